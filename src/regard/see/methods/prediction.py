"""Predictions: the option of a row that is explained, the traced model run again, and what could have come next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.seq2seq import inference_mode
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar

T = TypeVar("T")


@dataclass(frozen=True)
class PredictionTarget:
    """One option of one row of a trace's predictions, whose logit or log-probability is explained.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> ablate_heads(trace, row=3).target.row  # the option is the one that the model prefers there
        3
    """

    row: int
    option: int
    name: str


def prediction_target(trace: Trace, row: int = -1, option: int | None = None) -> PredictionTarget:
    """By default the last row, and the option that the model prefers there."""
    rows = len(trace.predictions.rows)
    if not rows:
        raise ValueError("this model predicts nothing; ask for rollout, flow, value-zeroing or value-norms")
    if not -rows <= row < rows:
        raise ValueError(f"there is no row {row}; they are counted from 0 to {rows - 1}")
    logits = trace.predictions.logits[row]
    if option is not None and not 0 <= option < len(logits):
        raise ValueError(f"there is no option {option}; they are counted from 0 to {len(logits) - 1}")
    chosen = int(logits.argmax()) if option is None else option
    return PredictionTarget(row % rows, chosen, trace.predictions.option_name(chosen))


def run_again(trace: Trace) -> Float[Tensor, "rows options"]:
    """The logits of the traced model for the traced input, under whatever hooks are set."""
    return run_copies(trace, 1)[0]


def run_copies(trace: Trace, copies: int) -> list[Float[Tensor, "rows options"]]:
    """The same for so many copies of the input at once, each of which a hook may change in its own way."""
    request = trace.request
    return [x.float() for x in request.task.forward_batch(request.task_model.model, [trace.encoded] * copies)]


TOKENS_AT_ONCE = 2048  # of all copies of an input: more are no faster on a CPU


def copies_at_once(trace: Trace) -> int:
    """How many copies of the input one call takes."""
    tokens = sum(len(axis.labels) for axis in trace.axes.values())
    return max(1, TOKENS_AT_ONCE // max(1, tokens)) if trace.request.task.takes_batches else 1


def log_probabilities(trace: Trace, target: PredictionTarget, copies: int = 1) -> list[float]:
    """Of the target, in each copy."""
    return [float(x[target.row].double().log_softmax(-1)[target.option]) for x in run_copies(trace, copies)]


def in_batches(trace: Trace, items: Sequence[T], what: str, progress: ProgressBar) -> Iterator[list[T]]:
    """As many items as there are copies of the input in one call; progress counts the items."""
    size = copies_at_once(trace)
    counted = iter(progress(items, what))
    while some := list(islice(counted, size)):
        yield some


@contextmanager
def frozen_model(trace: Trace) -> Iterator[nn.Module]:
    """The traced model in eval mode and without gradients, edited as in the trace."""
    model = trace.request.task_model.model
    with inference_mode(model), trace.request.edited():
        yield model


@dataclass(frozen=True, eq=False)
class NextTokens:
    """The most probable tokens of one step: each with the model's probability, and that with which it is drawn.

    Args:
        tokens: name, probability, and the probability at the trace's temperature, top-k and top-p.
        kept: how many tokens can be drawn at all.
        entropy: of what is drawn, in nats.

    Examples:
        >>> from regard.decode import Sampling
        >>> found = next_tokens(trace_model("run", "the cat sleeps", sampling=Sampling(top_k=3)), row=0)
        >>> found.kept, round(sum(drawn for _, _, drawn in found.tokens), 4)
        (3, 1.0)
    """

    row: int
    tokens: tuple[tuple[str, float, float], ...]
    kept: int
    entropy: float


def next_tokens(trace: Trace, row: int = -1, count: int = 20) -> NextTokens:
    """What could have come next, as the trace's own sampling draws it; without one, by the model's probabilities.

    Examples:
        >>> found = next_tokens(trace_model("run", "the cat sleeps", target="le chat dort"), row=0, count=3)
        >>> len(found.tokens), found.tokens[0][1] == found.tokens[0][2]
        (3, True)
    """
    target = prediction_target(trace, row)
    shares, drawn = (trace.next_token_probabilities(target.row, how) for how in (None, trace.request.sampling))
    top = shares.topk(min(count, len(shares))).indices.tolist()
    tokens = tuple((trace.predictions.option_name(n), float(shares[n]), float(drawn[n])) for n in top)
    entropy = float(torch.special.entr(drawn.double()).sum())
    return NextTokens(target.row, tokens, int((drawn > 0).sum()), entropy)
