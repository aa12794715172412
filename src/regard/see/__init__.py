"""Seeing: patterns, positions, weights, steps, recipes, sentences and pictures as figures and as text."""

from regard.see.alignment import Alignment, stack, strip
from regard.see.drawing import ascii, draw, look
from regard.see.gallery import gallery
from regard.see.graph import Neighbourhood
from regard.see.growth import growth
from regard.see.heads import heads_view, self_view
from regard.see.judged import contributions, verdict, weighed
from regard.see.lengths import Lengths
from regard.see.neighbours import neighbours, senses
from regard.see.overlay import gates, overlay, overlay_heads
from regard.see.paint import save
from regard.see.tagged import tagged
