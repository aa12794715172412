"""Attention: score × position × pattern × normaliser, and the backends that run it."""

from regard.attention.attending import Explanation, attend, explain, steps
from regard.attention.backends import BACKENDS
from regard.attention.backends.reference import Steps
from regard.attention.blocks import EMPTY, FULL, MIXED, BlockMap
from regard.attention.catalogue import POSITIONS, RECIPES, Sizes, named
from regard.attention.given import Documents, Edges, Padding
from regard.attention.hard import Hard, Sampled, StraightThrough, reinforce
from regard.attention.heads import Cache, MultiHeadAttention, absent
from regard.attention.linformer import Linformer
from regard.attention.normaliser import (
    Dropped,
    Normaliser,
    Proportional,
    ReLU,
    RowWise,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
)
from regard.attention.notation import read
from regard.attention.packing import Packed
from regard.attention.pattern import Before, Causal, Full, Pattern, Strided, Window
from regard.attention.position import Alibi, Beside, Bias, Inside, Learned, NoPosition, Position, Rotary, Sinusoidal
from regard.attention.probes import Probed, Top, Wanted, probe
from regard.attention.reach import Block, Global, Prefix, Random
from regard.attention.recipe import Recipe
from regard.attention.relative import Clipped, LogBuckets, Relation, RelativeBias, RelativeVectors
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, InnerProduct, ScaledDot, Score
from regard.attention.syntax import TreeDepth, TreePath
from regard.attention.tree import Tree
from regard.attention.worked import WORKED, Worked
