"""Sentences to their latents, and latents of any origin to sentences: also those between two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.batches import by_budget
from regard.decode.greedy import Greedy
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed, Longest
from regard.decode.model import at_rest, device_of
from regard.decode.request import requests
from regard.decode.search import Search
from regard.models.autoencoder import Autoencoder
from regard.text.batches import padded
from regard.text.vocabulary import EOS

Ids = Sequence[int]
Latents = Float[Tensor, "n k m"]
USUAL = Greedy(Longest(0, 100))  # a latent does not say how long its sentence is, so the limit is absolute


def latents_of(model: Autoencoder, sources: Sequence[Ids], *, tokens: int = 4096) -> Latents:
    """The latent of every sentence, in order; batches of at most `tokens` tokens change no result."""
    if not sources:
        raise ValueError("there is no sentence to take the latent of; give at least one")
    found: dict[int, Tensor] = {}
    for batch in by_budget([len(source) + 1 for source in sources], tokens):
        words, lengths = padded([[*sources[index], EOS] for index in batch])
        with at_rest(model):
            made = model.latent(words.to(device_of(model)), lengths.to(device_of(model)))
        found |= dict(zip(batch, made, strict=True))
    return torch.stack([found[index] for index in range(len(sources))])


def write_from(model: Autoencoder, latents: Latents, search: Search = USUAL) -> list[list[Hypothesis]]:
    """What the model writes from each latent: its sentences, best first."""
    with at_rest(model):
        return search.run(Told(model, latents), requests([()] * len(latents)), Allowed()) if len(latents) else []


def between(one: Float[Tensor, "k m"], other: Float[Tensor, "k m"], points: int = 5) -> Latents:
    """So many points of the straight line from one latent to another, both ends included."""
    if points < 2:
        raise ValueError(f"a line has two ends, so at least 2 points, not {points}")
    share = torch.linspace(0, 1, points, dtype=one.dtype, device=one.device)[:, None, None]
    return torch.lerp(one[None], other[None], share)


@dataclass(frozen=True, eq=False)
class Told:
    """An autoencoder that is told its latents instead of reading sentences; for a search, a model like any other."""

    model: Autoencoder
    latents: Latents

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        return self.model.remember(self.latents.to(device_of(self.model)))

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        return self.model.step(tokens, state, memory)

    def look(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any, Any]:
        return self.model.look(tokens, state, memory)

    def eval(self) -> Any:
        return self.model.eval()

    def modules(self) -> Any:
        return self.model.modules()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)
