"""A text's words in, a vector for each that knows the others out; and from those one label, or one for every word."""

from abc import ABC, abstractmethod

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Padding, Recipe, Steps, Tree
from regard.layers.cells import CELLS
from regard.layers.dropout import Dropout
from regard.layers.pooling import Pooling, real
from regard.layers.recurrent import Recurrent
from regard.layers.words import Table
from regard.models.reading_config import RECURRENT, EncoderConfig, recipe_of, stack_of, wants_tree
from regard.models.seq2seq import Looked
from regard.models.spelling import Spelling
from regard.models.transformer import EncoderLayer, Placed, Stack

Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Heads = Int[Tensor, "b t"]
Letters = Int[Tensor, "b t c"]
X = Float[Tensor, "b t m"]


class Context(nn.Module, ABC):
    """Abstract: word vectors to vectors in context, and what was looked at on the way, by layer."""

    @abstractmethod
    def forward(self, x: X, lengths: Lengths, tree: Tree | None) -> X: ...

    @abstractmethod
    def look(self, x: X, lengths: Lengths, tree: Tree | None) -> tuple[X, dict[str, list[Steps]]]: ...


class Alone(Context):
    """No context: a word has one vector wherever it stands."""

    def forward(self, x, lengths, tree):
        return x

    def look(self, x, lengths, tree):
        return x, {}


class InTime(Context):
    """Word after word, in one direction or in both."""

    def __init__(self, rnn: Recurrent, *, dropout: float = 0.0):
        super().__init__()
        self.rnn, self.dropout = rnn, Dropout(dropout)

    def forward(self, x, lengths, tree):
        return self.dropout(self.rnn.states(x, lengths))

    def look(self, x, lengths, tree):
        return self(x, lengths, tree), {}


class ByAttention(Context):
    """Every word looks at every word, as the recipe says."""

    def __init__(self, stack: Stack, recipe: Recipe):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(stack, recipe) for _ in range(stack.layers))
        self.norm = stack.last()

    def forward(self, x, lengths, tree):
        for layer in self.layers:
            x = layer(x, Padding(lengths), tree)
        return self.norm(x)

    def look(self, x, lengths, tree):
        seen = {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)
            x, steps = layer.look(x, Padding(lengths), tree)
            seen[f"context.layers.{n}.attention"] = [steps]
        return self.norm(x), seen


class Encoder(nn.Module):
    """Words to vectors in context, 0 on padding. Padding changes nothing, whatever stands there.

    Args:
        config: the kind and its sizes.
        size: of the vocabulary.
    """

    def __init__(self, config: EncoderConfig, size: int):
        super().__init__()
        recipe = recipe_of(config)
        self.width, self.wants_heads = config.width, config.kind == "transformer" and wants_tree(recipe)
        self.words, self.dropout = Table(size, config.model), Dropout(config.dropout)
        self.places = Placed(recipe.fresh() if config.kind == "transformer" else Recipe())
        self.context = context(config, recipe)

    def forward(self, tokens: Tokens, lengths: Lengths, heads: Heads | None = None, beside: X | None = None) -> X:
        """Text b ends after lengths[b] tokens. `heads` are those of CoNLL-U (1-based, 0 is the root), by token; what
        else is known of a word stands `beside` it, and is added to its vector."""
        here, tree = real(tokens, lengths), self.tree(tokens, lengths, heads)
        x = self.embedded(tokens, lengths, tree, beside)
        return self.context(x, lengths, tree).masked_fill(~here[..., None], 0.0)

    def look(
        self, tokens: Tokens, lengths: Lengths, heads: Heads | None = None, beside: X | None = None
    ) -> tuple[X, Looked]:
        """As `forward`, and every layer's weights."""
        here, tree = real(tokens, lengths), self.tree(tokens, lengths, heads)
        assert isinstance(self.context, Context)
        x, seen = self.context.look(self.embedded(tokens, lengths, tree, beside), lengths, tree)
        return x.masked_fill(~here[..., None], 0.0), Looked.of(seen)

    def embedded(self, tokens: Tokens, lengths: Lengths, tree: Tree | None, beside: X | None = None) -> X:
        words = self.words.read(tokens.where(real(tokens, lengths), 0))
        return self.dropout(self.places(words if beside is None else words + beside, 0, tree))

    def tree(self, tokens: Tokens, lengths: Lengths, heads: Heads | None) -> Tree | None:
        if not self.wants_heads:
            return None
        if heads is None:
            raise ValueError(
                f"{self.places.recipe.position} wants the sentences' dependency heads: give heads=..., "
                "or use a place in the row, such as Sinusoidal()"
            )
        return Tree.of_heads(heads.where(real(tokens, lengths), 0))


def context(config: EncoderConfig, recipe: Recipe) -> Context:
    if config.kind in RECURRENT:
        rnn = Recurrent(
            config.model,
            config.hidden // config.directions,
            cell=CELLS[config.kind],
            layers=config.layers,
            directions=config.directions,
            dropout=config.dropout,
        )
        return InTime(rnn, dropout=config.dropout)
    return ByAttention(stack_of(config), recipe) if config.kind == "transformer" else Alone()


class Classifier(nn.Module):
    """One label for a text: softmax(c + V pool(vectors)) of the labels."""

    def __init__(self, encoder: Encoder, pooling: Pooling, *, labels: int):
        super().__init__()
        self.encoder, self.pooling, self.output = encoder, pooling, chosen(encoder.width, labels)

    def forward(self, tokens: Tokens, lengths: Lengths, heads: Heads | None = None) -> Float[Tensor, "b labels"]:
        return self.output(self.pooling(self.encoder(tokens, lengths, heads), tokens, lengths))

    def look(
        self, tokens: Tokens, lengths: Lengths, heads: Heads | None = None
    ) -> tuple[Float[Tensor, "b labels"], Looked]:
        """As `forward`, and the weights of the encoder's layers and of the pooling; log p of a word that was drawn."""
        x, seen = self.encoder.look(tokens, lengths, heads)
        pooled = self.pooling.look(x, tokens, lengths)
        drawn = {} if pooled.log_probability is None else {"pooling": pooled.log_probability[:, None, None]}
        return self.output(pooled.vector), Looked(
            {f"encoder.{name}": weights for name, weights in seen.weights.items()}
            | {"pooling": pooled.weights[:, None, None]},
            {f"encoder.{name}": some for name, some in seen.log_probability.items()} | drawn,
        )


class Tagger(nn.Module):
    """One label for every word, from the first of the pieces it is written in.

    Args:
        encoder: reads the pieces.
        labels: how many there are to choose from.
        spelling: reads the letters of each piece as well.
    """

    def __init__(self, encoder: Encoder, *, labels: int, spelling: Spelling | None = None):
        super().__init__()
        self.encoder, self.output, self.spelling = encoder, chosen(encoder.width, labels), spelling

    def forward(
        self,
        tokens: Tokens,
        lengths: Lengths,
        first: Int[Tensor, "b w"],
        heads: Heads | None = None,
        letters: Letters | None = None,
    ) -> Float[Tensor, "b w labels"]:
        """first[b, w] is the place of word w's first piece; beyond a text's last word it may be any place."""
        return self.tagged(self.encoder(tokens, lengths, heads, self.spelt(letters)), first)

    def spelt(self, letters: Letters | None) -> X | None:
        if self.spelling is None:
            return None
        if letters is None:
            raise ValueError("this model reads the letters of words as well; give letters=...")
        return self.spelling(letters)

    def look(
        self,
        tokens: Tokens,
        lengths: Lengths,
        first: Int[Tensor, "b w"],
        heads: Heads | None = None,
        letters: Letters | None = None,
    ) -> tuple[Float[Tensor, "b w labels"], Looked]:
        x, seen = self.encoder.look(tokens, lengths, heads, self.spelt(letters))
        named = (
            {f"encoder.{name}": some for name, some in kind.items()} for kind in (seen.weights, seen.log_probability)
        )
        return self.tagged(x, first), Looked(*named)

    def tagged(self, x: X, first: Int[Tensor, "b w"]) -> Float[Tensor, "b w labels"]:
        if first.device.type == "cpu":  # a GPU would have to wait to tell, and refuses by itself
            refuse_beyond(x.shape[1], first)
        # whole rows: to gather numbers one by one has a way back that, made exact, makes a GPU wait
        rows = first + torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
        states = rearrange(x, "b t m -> (b t) m").index_select(0, rearrange(rows, "b w -> (b w)"))
        return self.output(rearrange(states, "(b w) m -> b w m", b=len(x)))


def refuse_beyond(tokens: int, first: Int[Tensor, "b w"]) -> None:
    if first.numel() and not 0 <= first.min() <= first.max() < tokens:
        raise ValueError(f"first pieces stand at 0 to {tokens - 1}, not at {int(first.min())} or {int(first.max())}")


def chosen(width: int, labels: int) -> nn.Linear:
    if labels < 2:
        raise ValueError(f"there must be 2 labels or more to choose from, not {labels}")
    return nn.Linear(width, labels)
