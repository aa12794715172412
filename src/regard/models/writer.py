"""The words so far in, scores for the next one out: language models, recurrent or by attention to what was written."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Generic

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout

from regard.attention import Cache, Pattern, Recipe, Steps, Window
from regard.attention.pattern import And, Or
from regard.layers.cells import CELLS
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Recurrent
from regard.layers.words import Table
from regard.models.reading_config import RECURRENT, WriterConfig, recipe_of, stack_of
from regard.models.recurrent import Reading
from regard.models.seq2seq import Logits, Looked, S, State, Tokens
from regard.models.transformer import Caches, EncoderLayer, Placed, Stack, looking_back

X = Float[Tensor, "b t m"]


class Past(nn.Module, ABC, Generic[S]):
    """Abstract: word vectors to vectors that know the words before them."""

    width: int

    @abstractmethod
    def start(self, like: Float[Tensor, "b none model"]) -> S:
        """What is known before the first word, of as many texts as `like` has, on its device."""

    @abstractmethod
    def read(self, x: X, state: S) -> tuple[X, S]: ...

    @abstractmethod
    def look(self, x: X) -> tuple[X, dict[str, list[Steps]]]:
        """A whole text from its beginning, every layer in the open."""

    @abstractmethod
    def grows(self, state: S) -> bool:
        """Does what is remembered become more with every word?"""


class Locked(nn.Module):
    """Dropout with one mask for all words of a text (Gal & Ghahramani 2016)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: X) -> X:
        return x * dropout(torch.ones_like(x[:, :1]), self.rate) if self.training and self.rate else x


class Remembering(Past[Reading]):
    """h(t) = cell(x(t), h(t−1)): all of the past in one state for each layer.

    Args:
        layers: each of one layer, reading the states of the one below.
        dropout: on what each layer reads and on what leaves the last.
        weight_dropout: on the weights between states.
    """

    def __init__(self, layers: list[Recurrent], *, dropout: float = 0.0, weight_dropout: float = 0.0):
        super().__init__()
        self.layers, self.width, self.parts = nn.ModuleList(layers), layers[-1].hidden, layers[-1].cell.parts
        self.dropout, self.weight_dropout = Locked(dropout), weight_dropout

    def start(self, like):
        return Reading((like.new_zeros(len(like), len(self.layers), self.width),) * self.parts)

    def read(self, x, state):
        lasts = []
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, Recurrent)
            x, here = self.dropout(x), tuple(part[:, n : n + 1] for part in state.parts)
            dropping = self.training and self.weight_dropout
            x, last = layer.with_dropped_weights(x, here, self.weight_dropout) if dropping else layer(x, here)
            lasts.append(last)
        return self.dropout(x), Reading(tuple(torch.cat(same, 1) for same in zip(*lasts, strict=True)))

    def look(self, x):
        return self.read(x, self.start(x))[0], {}

    def grows(self, state):
        return False


class LookingBack(Past[Caches]):
    """Every word looks at the words before it, as the recipe says.

    What is remembered: every word's keys and values; behind a window only those it still shows; of linear attention
    the sums alone.
    """

    def __init__(self, stack: Stack, recipe: Recipe):
        super().__init__()
        recipe = looking_back(recipe)
        self.width, self.back = stack.model, furthest_back(recipe.pattern)
        self.places, self.dropout = Placed(recipe.fresh()), Dropout(stack.dropout)
        self.layers = nn.ModuleList(EncoderLayer(stack, recipe) for _ in range(stack.layers))
        self.norm = stack.last()

    def start(self, like):
        return Caches((Cache(),) * len(self.layers))

    def read(self, x, state):
        x, caches = self.dropout(self.places(x, state.layers[0].seen)), []
        for layer, cache in zip(self.layers, state.layers, strict=True):
            assert isinstance(layer, EncoderLayer)
            x, after = layer.extend(x, cache)
            caches.append(forgetting(after, self.back))
        return self.norm(x), Caches(tuple(caches))

    def look(self, x):
        x, seen = self.dropout(self.places(x, 0)), {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)
            x, steps = layer.look(x, None)
            seen[f"past.layers.{n}.attention"] = [steps]
        return self.norm(x), seen

    def grows(self, state):
        return self.back is None and any(isinstance(layer.past, tuple) for layer in state.layers)


def furthest_back(pattern: Pattern) -> int | None:
    """How many words before it a word can see at most; None if there is no end to it, or nobody can tell."""
    match pattern:
        case Window(size):
            return size - 1
        case And(left, right):
            known = [back for part in (left, right) if (back := furthest_back(part)) is not None]
            return min(known, default=None)
        case Or(left, right):
            backs = furthest_back(left), furthest_back(right)
            return None if None in backs else max(back for back in backs if back is not None)
    return None


def forgetting(cache: Cache, back: int | None) -> Cache:
    """Without the keys and values that no later word can see."""
    if back is None or not isinstance(cache.past, tuple):
        return cache
    k, v = cache.past
    return replace(cache, past=(k[:, :, max(k.shape[2] - back, 0) :], v[:, :, max(v.shape[2] - back, 0) :]))


class Writer(nn.Module):
    """A language model. Reading a text at once or word by word gives the same scores, and nobody sees the future.

    Texts in a batch begin together; what stands behind a text's end changes nothing before it.

    Args:
        config: the kind and its sizes.
        size: of the vocabulary.
    """

    def __init__(self, config: WriterConfig, size: int):
        super().__init__()
        self.words, self.past, self.word_dropout = Table(size, config.model), past(config), config.word_dropout
        self.input_dropout, self.output_dropout = Locked(config.input_dropout), Locked(config.output_dropout)
        width = self.past.width
        # a tied table scores vectors of its own width, so wider states come back to it first
        self.back = nn.Linear(width, config.model) if config.tied and width != config.model else nn.Identity()
        self.output = None if config.tied else Table(size, width)
        self.bias = nn.Parameter(torch.zeros(size))

    def start(self, batch: int) -> State:
        """Before the first word of so many texts."""
        return self.past.start(self.words.weight.new_zeros(batch, 0, self.words.weight.shape[1]))

    def step(self, tokens: Tokens, state: State) -> tuple[Logits, State]:
        """Read on: one word or a whole text. Scores for what follows each; the old state stays as it was."""
        x, state = self.read(tokens, state)
        return self.logits(x), state

    def read(self, tokens: Tokens, state: State) -> tuple[X, State]:
        """As `step`, before the scores: the vector from which each next word is told, as wide as word vectors are
        where the table is tied."""
        x, state = self.past.read(self.embedded(tokens), state)
        return self.back(self.output_dropout(x)), state

    def logits(self, x: X) -> Logits:
        return (self.output or self.words).score(x, self.bias)

    def grows(self, state: State) -> bool:
        """Does what is remembered become more with every word? Not in recurrent models, windows, linear attention."""
        return self.past.grows(state)

    def forward(self, tokens: Tokens) -> Logits:
        return self.step(tokens, self.start(len(tokens)))[0]

    def look(self, tokens: Tokens) -> tuple[Logits, Looked]:
        """As `forward`, and what every layer looked at."""
        x, seen = self.past.look(self.embedded(tokens))
        return self.logits(self.back(self.output_dropout(x))), Looked.of(seen)

    def embedded(self, tokens: Tokens) -> X:
        x = self.input_dropout(self.words.read(tokens))
        if not self.training or not self.word_dropout:
            return x
        kept = dropout(torch.ones_like(self.words.weight[:, 0]), self.word_dropout)
        return x * kept[tokens][..., None]


def past(config: WriterConfig) -> Past[Any]:
    if config.kind in RECURRENT:
        widths = [config.model] + [config.hidden] * (config.layers - 1)
        layers = [Recurrent(width, config.hidden, cell=CELLS[config.kind]) for width in widths]
        return Remembering(layers, dropout=config.dropout, weight_dropout=config.weight_dropout)
    return LookingBack(stack_of(config), recipe_of(config))
