"""Token NLL: the negative log-likelihood of every token of a text, in a context; with or without a neural cache.

In nats. How much of the text stands before a token decides what it costs, so a figure means something only with its
context:

    SlidingWindows(256, 128)     pieces of the text; a token is predicted from the 129 to 256 tokens before it
    RecurrentContext()           the state of a recurrent model runs through the whole text

A neural cache is attention over the recent past, with no weights of its own (Grave et al. 2017). The hidden state h(t)
from which word t + 1 is predicted attends to the states before it, and each of them points at the word that followed:

    p_cache(w) = Σ [word i + 1 is w] exp(θ h(t)·h(i)) / Σ exp(θ h(t)·h(i))      over the last `size` positions i < t
    p(w) = (1 − λ) p_model(w) + λ p_cache(w)

What was said lately is said again, names above all.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.files import require_small_file, write_text_atomic
from regard.data.lm_blocks import BlockOrder, LMBlock, LMBlocks, describe_context, sliding_windows
from regard.models.language_model import LanguageModel

TOKENS = 4096  # read at once
CACHE_FILE = "pointer.json"
CACHE_CHUNK = 512  # positions that attend together
SHARPNESS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of θ, in units of 1 / mean |h|²
SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)


@dataclass(frozen=True, eq=False)
class TokenNLL:
    """Some tokens of a text in their order: the hidden states they were predicted from, the ids, and the NLL of
    each."""

    states: Float[Tensor, "n m"]
    tokens: Int[Tensor, " n"]
    nats: Float[Tensor, " n"]


class EvaluationContext(ABC):
    """Abstract: how a text is read to be measured. Every token is predicted exactly once."""

    @abstractmethod
    def token_nlls(self, model: LanguageModel, ids: Int[Tensor, " n"]) -> Iterator[TokenNLL]: ...

    @property
    @abstractmethod
    def description(self) -> str:
        """What stands before a token that is predicted."""


@dataclass(frozen=True)
class SlidingWindows(EvaluationContext):
    """See `data.lm_blocks.sliding_windows`. With stride = length these are blocks side by side, predicted from
    1 token to all."""

    length: int
    stride: int

    def token_nlls(self, model, ids):
        for block in sliding_windows(ids, self.length, self.stride, rows=max(1, TOKENS // self.length)):
            here = block.to(model.embedding.weight.device)
            yield score_block(model, model.decode_hidden(here.inputs, model.start(len(here)))[0], here)

    @property
    def description(self) -> str:
        return describe_context(self.length, self.stride)


@dataclass(frozen=True)
class RecurrentContext(EvaluationContext):
    """From the first token to the last; with more rows, so many parts of the text at once, each from its first."""

    rows: int = 1

    def token_nlls(self, model, ids):
        blocks = LMBlocks(ids, max(1, TOKENS // self.rows), rows=self.rows, order=BlockOrder.SEQUENTIAL)
        state = model.start(self.rows)
        for index in range(blocks.steps(0)):
            (block,) = blocks.at(0, index)
            here = block.to(model.embedding.weight.device)
            x, state = model.decode_hidden(here.inputs, state)
            yield score_block(model, x, here)

    @property
    def description(self) -> str:
        parts = "" if self.rows == 1 else f" in its {self.rows}th of the text"
        return f"every token once, from all before it{parts}"


def score_block(model: LanguageModel, x: Float[Tensor, "b t m"], block: LMBlock) -> TokenNLL:
    states, tokens = x[block.loss_mask], block.targets[block.loss_mask]
    logits = model.logits(states[None])[0].float()
    return TokenNLL(states.float(), tokens, logits.logsumexp(-1) - logits.gather(-1, tokens[:, None])[:, 0])


@torch.no_grad()
def total_nats(parts: Iterator[TokenNLL]) -> float:
    """The nats of a whole text."""
    return float(sum(some.nats.sum(dtype=torch.float64) for some in parts))


# --- neural cache ---


@dataclass(frozen=True)
class NeuralCache:
    """A continuous cache.

    Args:
        size: how many words it remembers.
        theta: how sharply it attends.
        share: how much it counts beside the model: λ.
    """

    size: int
    theta: float
    share: float

    def __post_init__(self):
        if self.size < 1 or not self.theta > 0 or not 0 <= self.share < 1:
            raise ValueError(f"{self}: a size of at least 1, a positive theta, and a share from 0 to below 1")

    @property
    def signature(self) -> str:
        return f"cache:{self.size},theta:{self.theta:.3g},lambda:{self.share:g}"

    def token_nats(self, parts: Iterable[TokenNLL]) -> Iterator[Float[Tensor, " n"]]:
        """What each token costs the model and the cache together."""
        for some, (chances,) in cache_probabilities(parts, self.size, [self.theta]):
            yield interpolate_nats(some.nats, chances, self.share)

    def save(self, folder: Path) -> None:
        write_text_atomic(folder / CACHE_FILE, json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> "NeuralCache | None":
        """What `save` wrote, if it did."""
        if not (path := folder / CACHE_FILE).exists():
            return None
        try:
            return NeuralCache(**json.loads(require_small_file(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(
                f"{path} is damaged; remove it, or finish the run again: regard train --out FOLDER"
            ) from None


def interpolate_nats(nats: Float[Tensor, " n"], chances: Float[Tensor, " n"], share: float) -> Float[Tensor, " n"]:
    """−log((1 − λ) p + λ p_cache)."""
    return -((1 - share) * (-nats.double()).exp() + share * chances.double()).log()


def cache_probabilities(
    parts: Iterable[TokenNLL], size: int, thetas: Sequence[float]
) -> Iterator[tuple[TokenNLL, Float[Tensor, "thetas n"]]]:
    """The tokens again, each with its chance in the cache; the first, with nothing before it, has the model's."""
    past: TokenNLL | None = None
    for some in (part for each in parts for part in split_chunks(each)):
        known = some if past is None else concatenate(past, some)
        count, before = len(some.tokens), len(known.tokens) - len(some.tokens)
        at = before + torch.arange(count, device=some.tokens.device)[:, None]
        place = torch.arange(len(known.tokens), device=some.tokens.device)
        seen = (place < at) & (place >= at - size)
        scores = (some.states @ known.states.T).masked_fill(~seen, -torch.inf)
        points = known.tokens == some.tokens[:, None]
        chances = torch.stack([((theta * scores).softmax(-1) * points).sum(-1) for theta in thetas])
        yield some, torch.where(seen.any(-1), chances, (-some.nats).exp())
        past = TokenNLL(known.states[-size:], known.tokens[-size:], known.nats[-size:])


def split_chunks(parts: TokenNLL) -> Iterator[TokenNLL]:
    for start in range(0, len(parts.tokens), CACHE_CHUNK):
        here = slice(start, start + CACHE_CHUNK)
        yield TokenNLL(parts.states[here], parts.tokens[here], parts.nats[here])


def concatenate(one: TokenNLL, other: TokenNLL) -> TokenNLL:
    return TokenNLL(
        torch.cat((one.states, other.states)),
        torch.cat((one.tokens, other.tokens)),
        torch.cat((one.nats, other.nats)),
    )


def tune_cache(parts: Iterable[TokenNLL], size: int) -> NeuralCache:
    """The cache of this size that makes a held-out text cheapest; a share of 0 if none helps."""
    held = list(parts)
    squares = sum(float(some.states.square().sum()) for some in held)
    thetas = [sharp * sum(len(some.tokens) for some in held) / squares for sharp in SHARPNESS]
    costs = torch.zeros(len(thetas), len(SHARES), dtype=torch.float64)
    for some, chances in cache_probabilities(held, size, thetas):
        costs += torch.stack(
            [torch.stack([interpolate_nats(some.nats, each, share).sum() for share in SHARES]) for each in chances]
        ).cpu()
    theta, share = divmod(int(costs.argmin()), len(SHARES))
    return NeuralCache(size, thetas[theta], SHARES[share])
