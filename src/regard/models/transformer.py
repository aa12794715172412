"""Source and target words in, scores out, by attention alone: the encoder–decoder Transformer (Vaswani et al. 2017)."""

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.init import xavier_uniform_, zeros_

from regard.attention import Cache, Causal, Full, MultiHeadAttention, Padding, Recipe, Sinusoidal, Steps, Tree
from regard.attention.parts import learned
from regard.layers.block import ORDERS, FeedForward, Residual
from regard.layers.dropout import Dropout
from regard.layers.words import Words
from regard.models.seq2seq import Attending, Memory, Seq2Seq, State

X = Float[Tensor, "b t model"]
KeysValues = tuple[Float[Tensor, "b g s d"], Float[Tensor, "b g s d"]]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What a stack of layers is made of: sizes, the order of norm and residual, dropout."""

    layers: int
    model: int
    heads: int
    hidden: int
    groups: int | None = None
    norm: str = "pre"
    activation: str = "relu"
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self):
        if self.norm not in ORDERS:
            raise ValueError(f"norm is one of {', '.join(ORDERS)}, not {self.norm!r}")

    def around(self) -> Residual:
        return ORDERS[self.norm](self.model, dropout=self.dropout)

    def last(self) -> nn.Module:
        return ORDERS[self.norm].last(self.model)

    def attention(self, recipe: Recipe, branches: int) -> MultiHeadAttention:
        """A layer of its own weights, Xavier's; `branches` is how many of them the stack adds up."""
        layer = MultiHeadAttention(
            self.model,
            heads=self.heads,
            groups=self.groups,
            recipe=recipe.fresh(),
            dropout=self.attention_dropout,
        )
        for part in (layer.query, layer.key, layer.value):
            xavier(part, 2**-0.5)  # as if the three were one matrix
        xavier(layer.output, ORDERS[self.norm].gain(branches))
        return layer

    def feed_forward(self, branches: int) -> FeedForward:
        layer = FeedForward(self.model, self.hidden, activation=self.activation)
        xavier(layer.up, 1.0)
        xavier(layer.down, ORDERS[self.norm].gain(branches))
        return layer


def xavier(part: nn.Module, gain: float) -> None:
    assert isinstance(part, nn.Linear)
    xavier_uniform_(part.weight, gain)
    zeros_(part.bias)


class EncoderLayer(nn.Module):
    """Every word looks at every word, then thinks by itself."""

    def __init__(self, stack: Stack, recipe: Recipe):
        super().__init__()
        branches = 2 * stack.layers
        self.attention, self.feed_forward = stack.attention(recipe, branches), stack.feed_forward(branches)
        self.around_attention, self.around_feed_forward = stack.around(), stack.around()

    def forward(self, x: X, padding: Padding | None, tree: Tree | None = None) -> X:
        x = self.around_attention(x, lambda y: self.attention(y, pattern=padding, tree=tree))
        return self.around_feed_forward(x, self.feed_forward)

    def look(self, x: X, padding: Padding | None, tree: Tree | None = None) -> tuple[X, Steps]:
        y, seen = self.attention.look(self.around_attention.before(x), pattern=padding, tree=tree)
        return self.around_feed_forward(self.around_attention.after(x, y), self.feed_forward), seen

    def extend(self, x: X, cache: Cache) -> tuple[X, Cache]:
        """Read on, where nobody looks ahead."""
        y, after = self.attention.extend(self.around_attention.before(x), cache)
        return self.around_feed_forward(self.around_attention.after(x, y), self.feed_forward), after


class DecoderLayer(nn.Module):
    """Every word looks at the words before it, then at the source, then thinks by itself."""

    def __init__(self, stack: Stack, recipe: Recipe, cross: Recipe):
        super().__init__()
        branches = 3 * stack.layers
        self.attention, self.cross = stack.attention(recipe, branches), stack.attention(cross, branches)
        self.feed_forward = stack.feed_forward(branches)
        self.around_attention, self.around_cross = stack.around(), stack.around()
        self.around_feed_forward = stack.around()

    def remember(self, states: Float[Tensor, "b s model"]) -> KeysValues:
        """The source's keys and values, which are the same for every target word."""
        k, v = (
            rearrange(part(states), "b s (g d) -> b g s d", g=self.cross.groups)
            for part in (self.cross.key, self.cross.value)
        )
        return k, v

    def forward(
        self, x: X, cache: Cache, source: KeysValues, padding: Padding, attending: Attending
    ) -> tuple[X, Cache, Steps | None]:
        y, after = self.attention.extend(self.around_attention.before(x), cache)
        x = self.around_attention.after(x, y)
        q = rearrange(self.cross.query(self.around_cross.before(x)), "b t (h d) -> b h t d", h=self.cross.heads)
        y, seen = attending(q, *source, self.cross.recipe_for(padding, None), cache.seen)
        x = self.around_cross.after(x, self.cross.joined(y))
        return self.around_feed_forward(x, self.feed_forward), after, seen


@dataclass(frozen=True, eq=False)
class Source(Memory):
    """Each decoder layer's keys and values of the source words."""

    layers: tuple[KeysValues, ...]
    lengths: Int[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class Caches(State):
    """Each decoder layer's keys and values of the target words read so far."""

    layers: tuple[Cache, ...]


class Transformer(Seq2Seq[Source, Caches]):
    """Two stacks of layers; each target word looks at the words before it and at the encoded source.

    Args:
        words: the tables.
        stack: what the layers of both sides are made of.
        encoder, decoder: the recipes of the two self-attentions; the decoder's looks back in any case. Positions
            beside the words are added to the embeddings.
        cross: the recipe by which the decoder looks at the source.
    """

    def __init__(
        self,
        words: Words,
        stack: Stack,
        *,
        encoder: Recipe = Recipe(position=Sinusoidal()),
        decoder: Recipe = Recipe(position=Sinusoidal()),
        cross: Recipe = Recipe(),
    ):
        super().__init__()
        if cross.beside:
            raise ValueError(
                f"{cross.position} is added to embeddings, and cross-attention has none of its own; "
                "give it to the encoder's or the decoder's recipe"
            )
        self.words, self.dropout = words, Dropout(stack.dropout)
        # weights of its own, should encoder and decoder be given one learned scheme
        self.source_places, self.target_places = Placed(encoder.fresh()), Placed(decoder.fresh())
        self.encoder = nn.ModuleList(EncoderLayer(stack, encoder) for _ in range(stack.layers))
        self.decoder = nn.ModuleList(DecoderLayer(stack, looking_back(decoder), cross) for _ in range(stack.layers))
        self.encoder_norm, self.decoder_norm = stack.last(), stack.last()

    def encode(self, source, lengths):
        x, padding = self.dropout(self.source_places(self.words.source(source), 0)), Padding(lengths)
        for layer in self.encoder:
            x = layer(x, padding)
        x = self.encoder_norm(x)
        return Source(tuple(layer.remember(x) for layer in self.decoder), lengths)  # type: ignore[operator]

    def start(self, memory):
        return Caches((Cache(),) * len(memory.layers))

    def reach(self, tokens, state, memory, attending):
        padding, caches, seen = Padding(memory.lengths), [], {}
        x = self.dropout(self.target_places(self.words.target(tokens), state.layers[0].seen))
        for n, layer in enumerate(self.decoder):
            x, cache, steps = layer(x, state.layers[n], memory.layers[n], padding, attending)
            caches.append(cache)
            seen |= {f"decoder.{n}.cross": [steps]} if steps else {}
        return self.decoder_norm(x), Caches(tuple(caches)), seen

    def output(self):
        return self.words.table("output"), self.words.bias


class Placed(nn.Module):
    """Word vectors with their places added, as the recipe says; the weights of learned places live here."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.recipe = recipe
        self.learned = nn.ModuleList(x for part in recipe.beside for x in learned(part, "beside").values())

    def forward(self, x: X, first: int, tree: Tree | None = None) -> X:
        recipe = self.recipe if tree is None else self.recipe.given(tree=tree)
        return recipe.embed(x, torch.arange(first, first + x.shape[1], device=x.device))


def looking_back(recipe: Recipe) -> Recipe:
    """The same, of the past alone; plain causality stays plain, for the fused kernels know it."""
    plain = recipe.pattern in (Full(), Causal())
    return replace(recipe, pattern=Causal() if plain else recipe.pattern & Causal())
