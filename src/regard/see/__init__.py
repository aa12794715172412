"""Seeing: patterns, positions, weights, steps and recipes as figures and as text."""

from regard.see.alignment import Alignment, stack, strip
from regard.see.drawing import ascii, draw, look
from regard.see.gallery import gallery
from regard.see.lengths import Lengths
from regard.see.paint import save
