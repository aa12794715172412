"""Attention: score × position × pattern × normaliser, and the backends that run it."""

from regard.attention.absolute_position import Learned, Sinusoidal, TreeDepth
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
from regard.attention.block_map import BlockMap
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
from regard.attention.head_mixing import Differential, HeadNorm, MultiToken, TalkingHeads
from regard.attention.kv_cache import CacheCell, KVCache, LayerCache
from regard.attention.linformer import Linformer
from regard.attention.multihead import Context, MultiHeadAttention, no_projection
from regard.attention.normaliser import (
    AttentionDropout,
    Normaliser,
    Proportional,
    ReLU,
    RowWise,
    Sigmoid,
    Softmax,
)
from regard.attention.pattern import Causal, Full, Pattern, StrictCausal, Strided, Window
from regard.attention.position import (
    Bias,
    EmbeddingPosition,
    FrequencyScaling,
    NoPosition,
    Position,
    QueryKeyPosition,
    Rotary,
)
from regard.attention.recipe import Recipe
from regard.attention.relative_position import (
    Alibi,
    Clipped,
    CoPE,
    LogBuckets,
    Relation,
    RelativeBias,
    RelativeVectors,
    TreePath,
)
from regard.attention.rotary_variants import AxialRotary, NTKScaling, RotaryScaling, XPos, YarnScaling
from regard.attention.scaled_score import GivenScale, LogitScale, SoftCap
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, InnerProduct, ScaledDot, Score
from regard.attention.serialize import parse_part
from regard.attention.softmax_variants import Entmax, SinkSoftmax, SoftmaxPlusOne, Sparsemax, StickBreaking, TopK
from regard.attention.sparse_patterns import Block, Global, PerHead, Prefix, Random
from regard.attention.stats import AttentionStats, StatsRequest, TopKeys, attention_stats
from regard.attention.text_positions import Segments
from regard.attention.torch_layer import from_torch, to_torch

__all__ = [
    "BACKENDS",
    "EXAMPLES",
    "POSITIONS",
    "RECIPES",
    "Additive",
    "AdditiveMask",
    "Alibi",
    "AttentionCall",
    "AttentionCore",
    "AttentionDropout",
    "AttentionRecord",
    "AttentionSites",
    "AttentionStats",
    "AxialRotary",
    "Bias",
    "Bilinear",
    "Block",
    "BlockMap",
    "BooleanMask",
    "CacheCell",
    "Causal",
    "Clipped",
    "CoPE",
    "Context",
    "Cosine",
    "DependencyTree",
    "Differential",
    "Documents",
    "Dot",
    "Edges",
    "EmbeddingPosition",
    "Entmax",
    "Explanation",
    "Feature",
    "FloatMask",
    "FrequencyScaling",
    "Full",
    "GateCall",
    "GateCore",
    "GivenScale",
    "Global",
    "Hard",
    "HeadNorm",
    "InnerProduct",
    "KVCache",
    "LayerCache",
    "Learned",
    "Linformer",
    "LogBuckets",
    "LogitScale",
    "MultiHeadAttention",
    "MultiToken",
    "NTKScaling",
    "NoPosition",
    "Normaliser",
    "PackedSequences",
    "Padding",
    "Pattern",
    "PerHead",
    "Position",
    "Prefix",
    "Proportional",
    "QueryKeyPosition",
    "Random",
    "ReLU",
    "Recipe",
    "RecipeSizes",
    "Relation",
    "RelativeBias",
    "RelativeVectors",
    "Rotary",
    "RotaryScaling",
    "RowWise",
    "Sampled",
    "ScaledDot",
    "Score",
    "Segments",
    "Sigmoid",
    "SinkSoftmax",
    "Sinusoidal",
    "SiteName",
    "SoftCap",
    "Softmax",
    "SoftmaxPlusOne",
    "Sparsemax",
    "StatsRequest",
    "Steps",
    "StickBreaking",
    "StraightThrough",
    "StrictCausal",
    "Strided",
    "TalkingHeads",
    "TopK",
    "TopKeys",
    "TreeDepth",
    "TreePath",
    "Window",
    "WorkedExample",
    "XPos",
    "YarnScaling",
    "attend",
    "attention_stats",
    "explain",
    "from_torch",
    "get_recipe",
    "no_projection",
    "parse_part",
    "record_attention",
    "record_steps",
    "reinforce",
    "steps",
    "to_torch",
]
