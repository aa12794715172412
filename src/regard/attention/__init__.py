"""Attention: score × position × pattern × normaliser, and the backends that run it."""

from regard.attention.backends import BACKENDS
from regard.attention.backends.reference import Steps
from regard.attention.batch_patterns import (
    AdditiveMask,
    BooleanMask,
    Documents,
    Edges,
    FloatMask,
    PackedSequences,
    Padding,
)
from regard.attention.block_map import EMPTY, FULL, MIXED, BlockMap
from regard.attention.catalogue import POSITIONS, RECIPES, RecipeSizes, get_recipe
from regard.attention.core import (
    AttentionCall,
    AttentionCore,
    AttentionRecord,
    AttentionSites,
    GateCall,
    GateCore,
    SiteName,
    record_attention,
    record_steps,
)
from regard.attention.dependency_tree import DependencyTree
from regard.attention.examples import EXAMPLES, WorkedExample
from regard.attention.functional import Explanation, attend, explain, steps
from regard.attention.hard_normaliser import Hard, Sampled, StraightThrough, reinforce
from regard.attention.linformer import Linformer
from regard.attention.multihead import (
    CacheCell,
    Context,
    KVCache,
    MultiHeadAttention,
    no_projection,
)
from regard.attention.normaliser import (
    AttentionDropout,
    Normaliser,
    Proportional,
    ReLU,
    RowWise,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
)
from regard.attention.pattern import Causal, Full, Pattern, StrictCausal, Strided, Window
from regard.attention.position import (
    Bias,
    EmbeddingPosition,
    Learned,
    NoPosition,
    Position,
    QueryKeyPosition,
    Rotary,
    Sinusoidal,
)
from regard.attention.recipe import Recipe
from regard.attention.relative_position import (
    Alibi,
    Clipped,
    LogBuckets,
    Relation,
    RelativeBias,
    RelativeVectors,
    TreeDepth,
    TreePath,
)
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, InnerProduct, ScaledDot, Score
from regard.attention.serialize import parse_part
from regard.attention.sparse_patterns import Block, Global, Prefix, Random
from regard.attention.stats import AttentionStats, StatsRequest, TopKeys, attention_stats
from regard.attention.text_positions import Segments
