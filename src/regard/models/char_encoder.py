"""Character encoder: a vector for every word from its characters, also for unknown words."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.embedding import Embedding
from regard.layers.rnn import CELLS, RNNLayers

PAD_CHARACTER = 0  # padding
CHARACTER_WIDTH = 48  # the width of a character's embedding


class CharEncoder(nn.Module):
    """The last states of a bidirectional GRU over the characters, concatenated.

    Args:
        size: how many characters there are, padding included.
        width: of the words' vectors; even.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"two directions cannot share a width of {width}; make it even")
        self.embedding, self.width = Embedding(size, CHARACTER_WIDTH), width
        self.rnn = RNNLayers(CHARACTER_WIDTH, width // 2, cell=CELLS["gru"], directions=2)

    def forward(self, characters: Int[Tensor, "b t c"]) -> Float[Tensor, "b t m"]:
        """A word's characters end where padding begins; an empty word is 0. The same word has the same vector."""
        rows = rearrange(characters, "b t c -> (b t) c")
        if not self.rnn.may_sync:  # so the distinct words cannot be found
            return rearrange(self.encode_padded(rows), "(b t) m -> b t m", b=len(characters))
        words, inverse = rows.unique(dim=0, return_inverse=True)  # few words make up most of a text
        lengths = (words != PAD_CHARACTER).sum(1)
        _, (last, *_) = self.rnn(self.embedding.embed(words), lengths=lengths.clamp(min=1))
        vectors = rearrange(last, "n way h -> n (way h)").masked_fill((lengths == 0)[:, None], 0.0)
        return rearrange(vectors[inverse], "(b t) m -> b t m", b=len(characters))

    def encode_padded(self, words: Int[Tensor, "n c"]) -> Float[Tensor, "n m"]:
        """A vector for each, with repetitions: forwards its last state, backwards the one at its first character.

        The shapes do not depend on the words.
        """
        lengths = (words != PAD_CHARACTER).sum(1)
        states = self.rnn.forward_padded(self.embedding.embed(words), lengths.clamp(min=1))
        forth, back = states.chunk(2, -1)
        n, c = words.shape
        ends = torch.arange(n, device=words.device) * c + (lengths - 1).clamp(min=0)
        last = rearrange(forth, "n c h -> (n c) h").index_select(0, ends)
        return torch.cat((last, back[:, 0]), -1).masked_fill((lengths == 0)[:, None], 0.0)
