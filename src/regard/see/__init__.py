"""Seeing: patterns, positions, weights, steps, recipes, sentences and pictures as figures and as text."""

from regard.see.alignment import Alignment, stack, strip
from regard.see.attending import layer_site
from regard.see.beam_tree import BeamTree
from regard.see.comparing import Compared, compare
from regard.see.drawing import ascii, draw, look
from regard.see.edits import Edits, Mask, Off, Shut, Swap, Temperature, Weight
from regard.see.gallery import gallery
from regard.see.graph import Neighbourhood
from regard.see.growth import growth
from regard.see.heads import heads_view, self_view
from regard.see.judged import contributions, verdict, weighed
from regard.see.lengths import Lengths
from regard.see.neighbours import neighbours, senses
from regard.see.overlay import gates, overlay, overlay_heads
from regard.see.paint import save
from regard.see.scene import Axis, Outcome, Scene, by_word, edited, learner_of, scene_of
from regard.see.showing import show
from regard.see.tagged import tagged
from regard.see.trace import Check, Gate, Head, Site, Statistics
