"""Logits in; each beam's best words with their log-probabilities out."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.decode.model import log_probabilities
from regard.decode.ranking import best
from regard.text.vocabulary import EOS

CHUNK = 128  # words whose maximum is taken first; only the chunks of the best maxima are looked into


@dataclass(frozen=True, eq=False)
class Offers:
    """Words that may follow each row, the model's own log-probability of each, and whether all are numbers."""

    values: Float[Tensor, "n c"]
    words: Int[Tensor, "n c"]
    sound: Bool[Tensor, ""]

    def forced(self, must: Int[Tensor, "n 1"], told: Float[Tensor, "n 1"]) -> "Offers":
        """Where a word must come, that word alone, even one that may never come otherwise."""
        first = torch.arange(self.values.shape[1], device=self.values.device) == 0
        values = torch.where(must < 0, self.values, torch.where(first, told, -torch.inf))
        return Offers(values, torch.where(must < 0, self.words, must), self.sound)


def on_cpu(
    logits: Float[Tensor, "n v"],
    closed: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
) -> Offers:
    scores = log_probabilities(logits)
    told = None if must is None else scores.gather(1, must.clamp_min(0))
    sound = scores.amax(-1).isfinite().all()
    scores.index_fill_(-1, closed.nonzero()[:, 0], -torch.inf)
    found = Offers(*few_best(scores, count), sound)
    return found if must is None or told is None else found.forced(must, told)


def on_gpu(
    logits: Float[Tensor, "n v"],
    bias: Float[Tensor, " v"],
    closed: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
) -> Offers:
    """More than `count` words to a row, the best among them; the host is never asked, so a graph can hold it."""
    from regard.decode.offers_kernel import offers

    values, words, whole = offers(logits, bias, closed, count)
    found = Offers(values, words, whole.isfinite().all())
    if must is None:
        return found
    word = must.clamp_min(0)
    return found.forced(must, logits.gather(1, word).float() + bias[word] - whole)


def open_from(closed: UInt8[Tensor, " v"], at: Int[Tensor, " 1"], shortest: int) -> UInt8[Tensor, " v"]:
    """The end is closed too, as long as fewer words than `shortest` stand."""
    if not shortest:
        return closed
    closed = closed.clone()
    closed[EOS : EOS + 1].copy_(at < shortest)
    return closed


def few_best(scores: Float[Tensor, "n v"], count: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """As `best`, in one pass: among the first few of all chunks by their maxima are all of the first few words, since
    every chunk before a word's own holds a word before it."""
    v = scores.shape[1]
    if v < 4 * CHUNK * count:
        return best(scores, count)
    maxima = of_chunks(scores)
    chunks = best(maxima, count)[1].sort(-1).values
    words = rearrange(chunks, "n k -> n k 1") * CHUNK + torch.arange(CHUNK, device=scores.device)
    words = rearrange(words, "n k word -> n (k word)")
    values = scores.gather(1, words.clamp_max(v - 1)).masked_fill_(words >= v, -torch.inf)
    values, picked = best(values, count)
    return values, words.gather(1, picked)


def of_chunks(scores: Float[Tensor, "n v"]) -> Float[Tensor, "n chunks"]:
    """The largest of every so many words, and of those that remain."""
    whole = scores.shape[1] // CHUNK * CHUNK
    maxima = rearrange(scores[:, :whole], "n (chunk word) -> n chunk word", word=CHUNK).amax(-1)
    return maxima if whole == scores.shape[1] else torch.cat((maxima, scores[:, whole:].amax(-1, keepdim=True)), 1)
