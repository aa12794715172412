"""Models small enough to know by heart, and searches too simple to be wrong: one sentence, from scratch, to the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import AttentionCore, AttentionSites, Dot, Proportional, Recipe, SiteName, record_attention
from regard.decode import Beam, Hypothesis
from regard.decode.topk import log_probabilities
from regard.models.seq2seq import DecodableModel, Reorderable

PAD, BOS, EOS, UNK = range(4)
Ids = tuple[int, ...]
Vector = Sequence[float] | np.ndarray
Matrix = Sequence[Sequence[float]] | np.ndarray
LogitsOf = Callable[[Ids, Ids], Vector]  # source and target so far -> logits
WeightsOf = Callable[[Ids, Ids], Matrix]  # source and target so far -> weights by head and source token


@dataclass(frozen=True)
class Sources:
    ids: tuple[Ids, ...]
    width: int

    def pick(self, rows: Tensor) -> "Sources":
        return Sources(tuple(self.ids[row] for row in rows.tolist()), self.width)


@dataclass(frozen=True)
class Read:
    written: tuple[Ids, ...]

    def pick(self, rows: Tensor) -> "Read":
        return Read(tuple(self.written[row] for row in rows.tolist()))


class FixedAttention(nn.Module):
    """Attention whose weights are known beforehand: each is the share of a score in its row."""

    def __init__(self):
        super().__init__()
        self.core = AttentionCore()

    def forward(self, weights: Tensor) -> Tensor:
        keys = torch.eye(weights.shape[-1], dtype=weights.dtype).expand(*weights.shape[:2], -1, -1)
        return self.core(weights, keys, keys, Recipe(score=Dot(), normaliser=Proportional()))


class Plain(nn.Module):
    """A model that only its protocol is known of: it is searched by the definition, step by step."""

    def __init__(self, model: DecodableModel):
        super().__init__()
        self.model = model

    def encode(self, source: Tensor, lengths: Tensor) -> Reorderable:
        return self.model.encode(source, lengths)

    def start(self, memory: Any) -> Reorderable:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Reorderable]:
        return self.model.step(tokens, state, memory)


class Toy(nn.Module):
    """Every distribution is that of a function; `rows` holds how many each step had."""

    attention_sites: ClassVar[AttentionSites] = {"layers.*": SiteName("layer *", "written", "source")}

    def __init__(self, logits_of: LogitsOf, weights_of: WeightsOf | None = None):
        super().__init__()
        self.logits_of, self.weights_of, self.rows = logits_of, weights_of, list[int]()
        self.anchor = nn.Parameter(torch.zeros((), dtype=torch.double))
        self.layers = nn.ModuleList(FixedAttention() for _ in range(0 if weights_of is None else 2))

    def encode(self, source: Tensor, lengths: Tensor) -> Sources:
        rows = zip(source.tolist(), lengths.tolist(), strict=True)
        for row, length in zip(source.tolist(), lengths.tolist(), strict=True):
            assert row[length - 1] == EOS
            assert set(row[length:]) <= {PAD}
        return Sources(tuple(tuple(row[: length - 1]) for row, length in rows), source.shape[1])

    def start(self, memory: Sources) -> Read:
        return Read(tuple(() for _ in memory.ids))

    def histories(self, tokens: Tensor, state: Read) -> list[list[Ids]]:
        """What stands before every prediction, without the beginning."""
        return [
            [(*read, *row[: t + 1])[1:] for t in range(len(row))]
            for read, row in zip(state.written, tokens.tolist(), strict=True)
        ]

    def step(self, tokens: Tensor, state: Read, memory: Sources) -> tuple[Tensor, Read]:
        assert len(tokens) == len(state.written) == len(memory.ids)
        self.rows.append(len(tokens))
        logits = [
            [list(self.logits_of(source, written)) for written in row]
            for source, row in zip(memory.ids, self.histories(tokens, state), strict=True)
        ]
        read = tuple((*read, *row) for read, row in zip(state.written, tokens.tolist(), strict=True))
        self.attend(tokens, state, memory)
        return torch.tensor(logits, dtype=torch.double) + self.anchor, Read(read)

    def attend(self, tokens: Tensor, state: Read, memory: Sources) -> None:
        if self.weights_of is None:
            return
        histories = self.histories(tokens, state)
        heads = len(self.weights_of(memory.ids[0], histories[0][0]))
        weights = torch.zeros(len(tokens), heads, tokens.shape[1], memory.width, dtype=torch.double)
        for b, (source, row) in enumerate(zip(memory.ids, histories, strict=True)):
            for t, written in enumerate(row):
                weights[b, :, t, : len(source) + 1] = torch.tensor(self.weights_of(source, written), dtype=torch.double)
        for layer, seen in zip(self.layers, (weights.flip(1), weights), strict=True):
            layer(seen)


def dice(seed: int, vocabulary: int = 7, spread: float = 1.0) -> LogitsOf:
    """A distribution of its own for every source and every beginning."""
    return lambda source, written: np.random.default_rng([seed, *source, 0, *written]).normal(size=vocabulary) * spread


def glance(seed: int, heads: int = 3) -> WeightsOf:
    def weights_of(source: Ids, written: Ids) -> np.ndarray:
        return np.random.default_rng([seed, *source, 1, *written]).dirichlet([0.3] * (len(source) + 1), heads)

    return weights_of


def tree(probabilities: dict[Ids, dict[int, float]], vocabulary: int = 7) -> LogitsOf:
    """Written-out probabilities after each beginning, whatever the source; a beginning left out ends at once."""

    def logits_of(source: Ids, written: Ids) -> list[float]:
        follows = probabilities.get(written, {EOS: 1.0})
        return [log(follows[token]) if token in follows else -np.inf for token in range(vocabulary)]

    return logits_of


# --- searches to compare with ---


def following(model: Any, source: Ids, written: Ids) -> list[float]:
    """Log-probabilities of the next token, computed alone and from the very beginning."""
    memory = model.encode(torch.tensor([[*source, EOS]]), torch.tensor([len(source) + 1]))
    with torch.no_grad():
        logits, _ = model.step(torch.tensor([[BOS, *written]]), model.start(memory), memory)
    return log_probabilities(logits)[0, -1].tolist()


def coverage(model: Any, source: Ids, written: Ids) -> list[float]:
    """How much of the last layer's mean attention each source token got, the prediction of the next token included."""
    memory = model.encode(torch.tensor([[*source, EOS]]), torch.tensor([len(source) + 1]))
    with torch.no_grad(), record_attention(model) as record:
        model.step(torch.tensor([[BOS, *written]]), model.start(memory), memory)
    last = [site.name for site in record.sites if site.queries == "written"][-1]
    return record.weights(last)[0].mean(0).sum(0).tolist()


def penalised(model: Any, source: Ids, written: Ids, total: float, beam: Beam) -> float:
    """Wu et al. 2016, eq. 14, for a translation that ends after `written`."""
    score = total / ((5 + len(written) + 1) / 6) ** beam.length_penalty
    if beam.coverage_penalty:
        score += beam.coverage_penalty * sum(log(min(c, 1.0)) for c in coverage(model, source, written))
    return score


def naive_greedy(model: Any, source: Ids, limit: int) -> tuple[Ids, float, bool]:
    written, total = (), 0.0
    while len(written) < limit:
        scores = following(model, source, written)
        token = max(range(EOS, len(scores)), key=lambda token: (scores[token], -token))
        total += scores[token]
        if token == EOS:
            return written, total, True
        written = (*written, token)
    return written, total, False


def naive_beam(model: Any, source: Ids, limit: int, beam: Beam) -> list[tuple[Ids, float, float, bool]]:
    """The definition: no batch, no cache, no early stopping. (ids, log-probability, score, finished), best first."""
    live, finished = [((), 0.0)], []
    for _ in range(limit):
        candidates = []
        for n, (written, total) in enumerate(live):
            for token, value in enumerate(following(model, source, written)):
                if token not in (PAD, BOS) and value > -np.inf:
                    candidates.append((-(total + value), token, n))
        candidates.sort()
        for cost, token, n in candidates[: beam.size]:
            if token == EOS:
                written = live[n][0]
                finished.append((written, -cost, penalised(model, source, written, -cost, beam), True))
        going = [one for one in candidates[: None if beam.refill else beam.size] if one[1] != EOS][: beam.size]
        live = [((*live[n][0], token), -cost) for cost, token, n in going]
    cut = [(ids, total, total / ((5 + len(ids)) / 6) ** beam.length_penalty, False) for ids, total in live]
    by_score = [*sorted(finished, key=lambda found: -found[2]), *sorted(cut, key=lambda found: -found[2])]
    return by_score[: beam.n_best]


def every_translation(model: Any, source: Ids, limit: int, vocabulary: int = 7) -> dict[Ids, float]:
    """All finished translations of at most `limit` tokens, the end included, with their log-probabilities."""
    found = {}
    for length in range(limit):
        for ids in product(range(UNK, vocabulary), repeat=length):
            tokens = [*ids, EOS]
            scores = [following(model, source, ids[:at])[token] for at, token in enumerate(tokens)]
            found[ids] = sum(scores)
    return found


def same(found: Hypothesis, expected: Hypothesis, within: float = 1e-9) -> bool:
    """The same tokens, and the same scores to rounding."""
    numbers = zip((found.score, *found.scores), (expected.score, *expected.scores), strict=True)
    return (found.ids, found.finished) == (expected.ids, expected.finished) and all(
        abs(one - other) <= within for one, other in numbers
    )
