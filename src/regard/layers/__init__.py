"""Layers: what a block is made of besides attention."""

from regard.layers.block import ACTIVATIONS, ORDERS, FeedForward, PostNorm, PreNorm, Residual
from regard.layers.cells import CELLS, GRU, LSTM, Cell, Elman, Parts
from regard.layers.recurrent import Recurrent
from regard.layers.words import TIES, Table, Words
