"""Sequences of different lengths in; one row without padding, and the pattern that keeps them apart, out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.given import Documents


@dataclass(frozen=True, eq=False)
class Packed:
    """Several sequences end to end: x is (1, tokens, model)."""

    x: Tensor
    lengths: tuple[int, ...]

    @staticmethod
    def of(sequences: list[Tensor]) -> "Packed":
        if not sequences or any(x.dim() != 2 or x.shape[1] != sequences[0].shape[1] for x in sequences):
            raise ValueError(f"packing wants sequences (tokens, model), not {[tuple(x.shape) for x in sequences]}")
        return Packed(torch.cat(sequences)[None], tuple(map(len, sequences)))

    @property
    def pattern(self) -> Documents:
        """Each sequence sees itself alone. Combine it: packed.pattern & Causal()."""
        return Documents(Documents.of_lengths(list(self.lengths)).ids.to(self.x.device))

    def onto(self, sources: "Packed") -> Documents:
        """For cross-attention: sequence n of these queries sees sequence n of those keys alone."""
        if len(self.lengths) != len(sources.lengths):
            raise ValueError(f"{len(self.lengths)} sequences cannot look at {len(sources.lengths)}: each needs its own")
        return Documents(self.pattern.ids, sources.pattern.ids)

    @property
    def at(self) -> Tensor:
        """The place of every token in its own sequence, for embeddings that count from 0."""
        return torch.cat([torch.arange(length, device=self.x.device) for length in self.lengths])

    def split(self, y: Tensor) -> list[Tensor]:
        """What a layer made of x, sequence by sequence."""
        return list(y[0].split(self.lengths))
