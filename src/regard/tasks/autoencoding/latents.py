"""Latents of an autoencoder: encodes sentences, decodes latents, reconstructs and interpolates."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batching import pad_rows
from regard.data.files import chunks
from regard.data.tokenizers.base import EOS
from regard.decode.model import batch_by_tokens, device_of, inference_mode
from regard.decode.search import Constraints, Hypothesis, LengthLimit, Search, make_requests
from regard.decode.stepwise import Greedy
from regard.decode.translate import WINDOW, translate_all
from regard.models.autoencoder import Autoencoder
from regard.tasks.autoencoding.task import SentenceAutoencoder, detokenize_line

Ids = Sequence[int]
Latents = Float[Tensor, "n k m"]
USUAL = Greedy(LengthLimit(0, 100))  # a latent does not say how long its sentence is, so the limit is absolute


def encode_latents(model: Autoencoder, sources: Sequence[Ids], *, tokens: int = 4096) -> Latents:
    """The latent of every sentence, in order; batches of at most `tokens` tokens change no result."""
    if not sources:
        raise ValueError("there is no sentence to take the latent of; give at least one")
    found: dict[int, Tensor] = {}
    for batch in batch_by_tokens([len(source) + 1 for source in sources], tokens):
        words, lengths = pad_rows([[*sources[index], EOS] for index in batch])
        with inference_mode(model):
            made = model.encode_latent(words.to(device_of(model)), lengths.to(device_of(model)))
        found |= dict(zip(batch, made, strict=True))
    return torch.stack([found[index] for index in range(len(sources))])


def decode_latents(model: Autoencoder, latents: Latents, search: Search = USUAL) -> list[list[Hypothesis]]:
    """What the model writes from each latent: its sentences, best first."""
    with inference_mode(model):
        return (
            search.run(FromLatents(model, latents), make_requests([()] * len(latents)), Constraints())
            if len(latents)
            else []
        )


def interpolate_latents(one: Float[Tensor, "k m"], other: Float[Tensor, "k m"], points: int = 5) -> Latents:
    """So many points of the straight line from one latent to another, both ends included."""
    if points < 2:
        raise ValueError(f"a line has two ends, so at least 2 points, not {points}")
    share = torch.linspace(0, 1, points, dtype=one.dtype, device=one.device)[:, None, None]
    return torch.lerp(one[None], other[None], share)


@dataclass(frozen=True, eq=False)
class FromLatents:
    """An autoencoder that decodes given latents instead of encoding sentences; a DecodableModel."""

    model: Autoencoder
    latents: Latents

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        return self.model.memory_from_latent(self.latents.to(device_of(self.model)))

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        return self.model.step(tokens, state, memory)

    def eval(self) -> Any:
        return self.model.eval()

    def modules(self) -> Any:
        return self.model.modules()

    def named_modules(self) -> Any:
        return self.model.named_modules()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)


# --- texts ---


def reconstruct(autoencoder: SentenceAutoencoder, texts: Iterable[str], *, tokens: int = 4096) -> Iterator[str]:
    """A line for a line, in their order; an empty one stays empty."""
    for some in chunks(texts, WINDOW):
        sources = autoencoder.tokenizer.encode_batch(some)
        found = iter(translate_all(autoencoder.model, list(filter(None, sources)), Greedy(), tokens=tokens))
        for source in sources:
            yield detokenize_line(autoencoder, next(found)[0].ids) if source else ""


def interpolate_sentences(autoencoder: SentenceAutoencoder, one: str, other: str, points: int = 5) -> list[str]:
    """The sentences that points of the line between two latents decode to, both ends included."""
    sources = autoencoder.tokenizer.encode_batch((one, other))
    if not all(sources):
        raise ValueError("there is no way from or to an empty sentence; give two sentences")
    search = Greedy(LengthLimit(0, LengthLimit().of(max(map(len, sources)))))
    ends = encode_latents(autoencoder.model, sources)
    found = decode_latents(autoencoder.model, interpolate_latents(ends[0], ends[1], points), search)
    return [detokenize_line(autoencoder, these[0].ids) for these in found]
