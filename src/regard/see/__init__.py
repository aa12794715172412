"""Visualisation: plots of patterns, positions, weights and recipes, and exact traces of models."""

from regard.see.beam_tree import BeamTree
from regard.see.compare import Comparison, compare
from regard.see.edits import Edits, GateOff, HeadOff, Mask, Swap, Temperature, Weight
from regard.see.plots.attention_maps import (
    Alignment,
    gates_view,
    head_maps,
    overlay_heads_view,
    overlay_view,
    self_attention_maps,
    stack,
    strip,
)
from regard.see.plots.charts import (
    LengthCurves,
    Neighbourhood,
    nearest_neighbours_view,
    senses_view,
    validation_view,
)
from regard.see.plots.draw import ascii, build_view, draw, show
from regard.see.plots.mpl_figure import save
from regard.see.plots.text_views import (
    prediction_title,
    surprisal_view,
    tag_view,
    word_contributions,
    word_weights_view,
)
from regard.see.recorder import trace_layer, trace_module
from regard.see.sites import AttentionSite, GateSite, HeadStatistics, HeadSteps, RecomputationCheck
from regard.see.trace import Trace, trace_model, trace_with_edits
from regard.see.watch import Watched, watch
from regard.tasks.protocol import Predictions, TokenAxis

__all__ = [
    "Alignment",
    "AttentionSite",
    "BeamTree",
    "Comparison",
    "Edits",
    "GateOff",
    "GateSite",
    "HeadOff",
    "HeadStatistics",
    "HeadSteps",
    "LengthCurves",
    "Mask",
    "Neighbourhood",
    "Predictions",
    "RecomputationCheck",
    "Swap",
    "Temperature",
    "TokenAxis",
    "Trace",
    "Watched",
    "Weight",
    "ascii",
    "build_view",
    "compare",
    "draw",
    "gates_view",
    "head_maps",
    "nearest_neighbours_view",
    "overlay_heads_view",
    "overlay_view",
    "prediction_title",
    "save",
    "self_attention_maps",
    "senses_view",
    "show",
    "stack",
    "strip",
    "surprisal_view",
    "tag_view",
    "trace_layer",
    "trace_model",
    "trace_module",
    "trace_with_edits",
    "validation_view",
    "watch",
    "word_contributions",
    "word_weights_view",
]
