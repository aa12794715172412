"""Sources and given targets in; what the model thinks of exactly these targets, and where it looks for them, out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from regard.decode.batches import by_budget
from regard.decode.hypothesis import Hypothesis
from regard.decode.model import Model, Pickable, at_rest, encoded, log_probabilities, target_in
from regard.decode.request import plain
from regard.text.vocabulary import EOS

Ids = Sequence[int]


def forced(model: Model, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048) -> list[Hypothesis]:
    """The targets as if the model had found them, with its log-probability of every token and of the end.

    They are read in batches of at most `tokens` tokens on either side, which changes no result.
    """
    found: dict[int, Hypothesis] = {}
    for batch in batches(sources, targets, tokens):
        with at_rest(model):
            scores = log_probabilities(model.step(*before(model, sources, targets, batch))[0])
        for index, row in zip(batch, scores, strict=True):
            predicted = torch.tensor([*targets[index], EOS], device=row.device)
            values = row[: len(predicted)].gather(-1, rearrange(predicted, "t -> t 1"))[:, 0].tolist()
            found[index] = Hypothesis(tuple(targets[index]), tuple(values), finished=True, score=sum(values))
    return [found[index] for index in range(len(sources))]


def score(model: Model, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048) -> list[float]:
    """log P(target | source) for each pair, the end included."""
    return [found.log_probability for found in forced(model, sources, targets, tokens=tokens)]


def perplexity(found: Sequence[Hypothesis]) -> float:
    """exp of the mean surprise per token, ends included."""
    count = sum(len(hypothesis.scores) for hypothesis in found)
    if not count:
        raise ValueError("there is no token to be surprised by: give at least one sentence")
    mean = -sum(hypothesis.log_probability for hypothesis in found) / count
    return exp(mean) if mean < 700 else inf  # exp of more does not fit a number


@dataclass(frozen=True, eq=False)
class Attention:
    """Where the model looked for a given target: weights by layer, one row per predicted token, ends included."""

    layers: dict[str, Float[Tensor, "h t s"]]


def looked(model: Model, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048) -> list[Attention]:
    """The cross-attention of every pair: row t is where the model looked as it predicted token t of the target."""
    found: dict[int, Attention] = {}
    for batch in batches(sources, targets, tokens):
        with at_rest(model):
            layers = model.look(*before(model, sources, targets, batch))[2].weights
        if not layers:
            raise ValueError("the model has no cross-attention: there is nothing to look at")
        for n, index in enumerate(batch):
            t, s = len(targets[index]) + 1, len(sources[index]) + 1
            found[index] = Attention({name: weights[n, :, :t, :s] for name, weights in layers.items()})
    return [found[index] for index in range(len(sources))]


def before(
    model: Model, sources: Sequence[Ids], targets: Sequence[Ids], batch: Sequence[int]
) -> tuple[Tensor, Pickable, Pickable]:
    """The targets of a batch as the decoder reads them, its state before it does, and the memory of the sources."""
    memory, lengths = encoded(model, [sources[index] for index in batch])
    return target_in([targets[index] for index in batch]).to(lengths.device), model.start(memory), memory


def batches(sources: Sequence[Ids], targets: Sequence[Ids], tokens: int) -> list[list[int]]:
    """Indices of pairs that fit the budget on either side."""
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets: they must come in pairs")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        plain(source, f"source {index}")
        plain(target, f"target {index}")
    return by_budget([max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)], tokens)
