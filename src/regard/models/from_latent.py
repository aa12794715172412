"""A latent and the words written so far in, what the next word is predicted from out: decoders that know no source."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Generic

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import Cache, Padding, Recipe, Steps
from regard.layers.bottleneck import Latent
from regard.layers.cells import Parts
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Recurrent
from regard.models.aligning import Aligned, Luong
from regard.models.looking import Annotations, Looking
from regard.models.seq2seq import Attending, M, S
from regard.models.transformer import Caches, DecoderLayer, Placed, Source, Stack, looking_back

X = Float[Tensor, "b t model"]


class FromLatent(nn.Module, ABC, Generic[M, S]):
    """Abstract: `remember` is handed the latent alone, and `read` what was remembered. `shape` is (k, m)."""

    shape: tuple[int, int]

    @abstractmethod
    def remember(self, latent: Latent) -> M: ...

    @abstractmethod
    def start(self, memory: M) -> S: ...

    @abstractmethod
    def read(self, x: X, state: S, memory: M, attending: Attending) -> tuple[X, S, dict[str, list[Steps]]]: ...


class Widened(nn.Module):
    """W z_n + p_n: a latent vector as wide as the decoder, p_n telling which of the k it is."""

    def __init__(self, latents: int, latent: int, width: int):
        super().__init__()
        self.weight = nn.Linear(latent, width, bias=False)
        self.which = nn.Parameter(torch.randn(latents, width) * width**-0.5)

    def forward(self, latent: Latent) -> Float[Tensor, "b k width"]:
        return self.weight(latent) + self.which


class Unrolled(FromLatent[Annotations, Aligned]):
    """The whole latent makes the first state, s₀ = tanh(b + W z); then each state looks at its k vectors.

    Where k is 1 there is nothing to choose: the decoder is told the same at every word (Cho et al. 2014).

    Args:
        rnn: reads word vectors.
        latents, latent: k and m.
        model: the width of what words are predicted from.
    """

    def __init__(self, rnn: Recurrent, *, latents: int, latent: int, model: int):
        super().__init__()
        self.shape, self.layers, self.parts = (latents, latent), rnn.layers, rnn.cell.parts
        self.first = nn.Linear(latents * latent, rnn.cell.parts * rnn.layers * rnn.hidden)
        self.widened, self.attention = Widened(latents, latent, rnn.hidden), Looking(Recipe())
        self.decoder = Luong(rnn, context=rnn.hidden, concluded=model)

    def remember(self, latent):
        states, count = self.widened(latent), torch.full((len(latent),), latent.shape[1], device=latent.device)
        return self.attention.remember(states, count, self.first_state(latent))

    def first_state(self, latent: Latent) -> Parts:
        first = torch.tanh(self.first(rearrange(latent, "b k m -> b (k m)")))
        return tuple(rearrange(first, "b (parts l h) -> parts b l h", parts=self.parts, l=self.layers))

    def start(self, memory):
        return self.decoder.first(memory.first)

    def read(self, x, state, memory, attending):
        ask = partial(self.attention, memory=memory, attending=attending)
        concluded, after, seen = self.decoder(x, state, ask)
        return concluded, after, {"attention": seen} if seen else {}


class Crossing(FromLatent[Source, Caches]):
    """A Transformer's decoder: every word looks at the words before it, then at the k latent vectors.

    Args:
        stack: what the layers are made of.
        recipe: of the self-attention, which looks back in any case.
        latents, latent: k and m.
    """

    def __init__(self, stack: Stack, recipe: Recipe, *, latents: int, latent: int):
        super().__init__()
        self.shape, recipe = (latents, latent), looking_back(recipe)
        self.widened, self.places = Widened(latents, latent, stack.model), Placed(recipe.fresh())
        self.layers = nn.ModuleList(DecoderLayer(stack, recipe, Recipe()) for _ in range(stack.layers))
        self.dropout, self.norm = Dropout(stack.dropout), stack.last()

    def remember(self, latent):
        states, count = self.widened(latent), torch.full((len(latent),), latent.shape[1], device=latent.device)
        return Source(tuple(layer.remember(states) for layer in self.layers), count)  # type: ignore[operator]

    def start(self, memory):
        return Caches((Cache(),) * len(self.layers))

    def read(self, x, state, memory, attending):
        x, caches, seen = self.dropout(self.places(x, state.layers[0].seen)), [], {}
        for n, layer in enumerate(self.layers):
            x, cache, steps = layer(x, state.layers[n], memory.layers[n], Padding(memory.lengths), attending)
            caches.append(cache)
            seen |= {f"layers.{n}.cross": [steps]} if steps else {}
        return self.norm(x), Caches(tuple(caches)), seen
