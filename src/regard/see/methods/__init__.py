"""Explanation methods: from what was attended to, to what it did to a prediction.

    trace = trace_model("run", "the black cat ate the mouse")
    ablate_heads(trace, row=0)                       what each head is worth: the loss of log-probability without it
    attribute_tokens(trace, row=0)                   integrated gradients: what each token adds to a logit
    patch_activations(trace, other, row=0)           where two inputs begin to differ in what is predicted
    logit_lens(trace, row=0)                         what each layer would have predicted

Every method runs the traced model again on the same inputs, with hooks: no model is copied or changed. They hold for
our models, and for those of Hugging Face and torch wherever a trace does; what a model does not have is refused.
"""

from collections.abc import Callable

from regard.see.methods.attribution import (
    TokenMatrices,
    TokenScores,
    attention_flow,
    attention_rollout,
    attention_times_gradient,
    attribute_tokens,
    by_site,
    gradient_times_input,
    leave_one_out,
    through_layers,
    value_weighted,
)
from regard.see.methods.interventions import (
    HeadEffects,
    PatchEffects,
    ablate_heads,
    patch_activations,
    value_zeroing,
)
from regard.see.methods.layers import (
    LogitContributions,
    LogitLens,
    ResidualStream,
    StreamPart,
    logit_contributions,
    logit_lens,
    residual_stream,
)
from regard.see.methods.prediction import NextTokens, PredictionTarget, next_tokens, prediction_target
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, no_progress

Explanation = HeadEffects | TokenScores | TokenMatrices | LogitLens | LogitContributions | ResidualStream | NextTokens
"""What a method finds.

Examples:
    >>> isinstance(explain(trace_model("run", "the cat sleeps", target="le chat dort"), "lens"), Explanation)
    True
"""


def explain(trace: Trace, method: str, row: int = -1, progress: ProgressBar = no_progress) -> Explanation:
    """What a method, by its name in `METHODS`, finds of one prediction.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> type(explain(trace, "mean-heads", row=0)).__name__
        'HeadEffects'
    """
    if method not in METHODS:
        raise ValueError(f"no method is called {method!r}; there are {', '.join(METHODS)}")
    if trace.predictions.rows:  # a model without a head predicts nothing, and yet attends
        prediction_target(trace, row)
    return METHODS[method](trace, row, progress)


METHODS: dict[str, Callable[[Trace, int, ProgressBar], Explanation]] = {
    "heads": lambda trace, row, progress: ablate_heads(trace, row, progress=progress),
    "mean-heads": lambda trace, row, progress: ablate_heads(trace, row, by="mean", progress=progress),
    "integrated-gradients": lambda trace, row, progress: attribute_tokens(trace, row, progress=progress),
    "gradient-input": lambda trace, row, progress: gradient_times_input(trace, row),
    "leave-one-out": lambda trace, row, progress: leave_one_out(trace, row, progress=progress),
    "rollout": lambda trace, row, progress: through_layers(trace, attention_rollout),
    "flow": lambda trace, row, progress: through_layers(trace, attention_flow),
    "value-zeroing": lambda trace, row, progress: by_site(trace, value_zeroing(trace, progress=progress)),
    "value-norms": lambda trace, row, progress: by_site(
        trace, {name: value_weighted(trace, name) for name in trace.attention_names}
    ),
    "attention-gradient": lambda trace, row, progress: by_site(trace, attention_times_gradient(trace, row)),
    "lens": lambda trace, row, progress: logit_lens(trace, progress=progress),
    "contributions": lambda trace, row, progress: logit_contributions(trace, row),
    "residual-stream": lambda trace, row, progress: residual_stream(trace, row, progress=progress),
    "next-tokens": lambda trace, row, progress: next_tokens(trace, row),
}
"""The methods that explain a prediction, by name; `regard look --method` and the page take one.

Examples:
    >>> METHODS["heads"](trace_model("run", "the cat sleeps", target="le chat dort"), 0, no_progress).target.row
    0
"""
