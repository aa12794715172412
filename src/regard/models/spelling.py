"""The letters of every word in, a vector for every word out: how a word that was never seen is still known."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.cells import CELLS
from regard.layers.recurrent import Recurrent
from regard.layers.words import Table

NONE = 0  # the letter that is none: padding
LETTER = 48  # the width of a letter's vector


class Spelling(nn.Module):
    """The last states of a GRU that reads the letters forwards, and of one that reads them backwards, side by side.

    Args:
        size: how many letters there are, padding included.
        width: of the words' vectors; even.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"two directions cannot share a width of {width}; make it even")
        self.letters, self.width = Table(size, LETTER), width
        self.rnn = Recurrent(LETTER, width // 2, cell=CELLS["gru"], directions=2)

    def forward(self, letters: Int[Tensor, "b t c"]) -> Float[Tensor, "b t m"]:
        """A word's letters end where padding begins; a word without letters is 0. The same word has the same vector."""
        rows = rearrange(letters, "b t c -> (b t) c")
        if not self.rnn.asks:  # not even which words are the same
            return rearrange(self.read(rows), "(b t) m -> b t m", b=len(letters))
        words, which = rows.unique(dim=0, return_inverse=True)  # few words make up most of a text
        lengths = (words != NONE).sum(1)
        _, (last, *_) = self.rnn(self.letters.read(words), lengths=lengths.clamp(min=1))
        vectors = rearrange(last, "n way h -> n (way h)").masked_fill((lengths == 0)[:, None], 0.0)
        return rearrange(vectors[which], "(b t) m -> b t m", b=len(letters))

    def read(self, words: Int[Tensor, "n c"]) -> Float[Tensor, "n m"]:
        """A vector for each, however many are the same: forwards its last state, backwards the one at its first letter.

        In the same shapes whatever the words are.
        """
        lengths = (words != NONE).sum(1)
        states = self.rnn.beside_padding(self.letters.read(words), lengths.clamp(min=1))
        forth, back = states.chunk(2, -1)
        n, c = words.shape
        ends = torch.arange(n, device=words.device) * c + (lengths - 1).clamp(min=0)
        last = rearrange(forth, "n c h -> (n c) h").index_select(0, ends)
        return torch.cat((last, back[:, 0]), -1).masked_fill((lengths == 0)[:, None], 0.0)
