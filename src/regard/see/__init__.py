"""Seeing: patterns, positions, weights, steps and recipes as figures and as text."""

from regard.see.drawing import ascii, draw
from regard.see.gallery import gallery
from regard.see.paint import save
