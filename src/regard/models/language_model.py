"""Language models: recurrent ones and Transformers with causal attention."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout

from regard.attention import AttentionSites, CacheCell, Context, KVCache, Pattern, SiteName, Window
from regard.attention.core import is_hooked
from regard.attention.kv_cache import LayerCache
from regard.attention.pattern import And, Or
from regard.attention.sparse_patterns import is_content
from regard.layers.embedding import Embedding, PositionalEmbedding
from regard.layers.rnn import CELLS, RNNLayers
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import EncoderLayer
from regard.models.config import RNN_KINDS, LanguageModelConfig, make_stack_config, text_recipes
from regard.models.rnn_seq2seq import RNNState
from regard.models.seq2seq import DecoderState, Logits, S, Tokens
from regard.models.transformer import KVCaches, make_causal
from regard.ops.dropout import Dropout

X = Float[Tensor, "b t m"]


class LMBackbone(nn.Module, ABC, Generic[S]):
    """Abstract: embeddings to hidden states that depend on the tokens so far."""

    width: int

    @abstractmethod
    def start(self, like: Float[Tensor, "b none model"]) -> S:
        """The state before the first token, for the batch size and on the device of `like`."""

    @abstractmethod
    def read(self, x: X, state: S) -> tuple[X, S]: ...

    @abstractmethod
    def memory_grows(self, state: S) -> bool:
        """Does the state grow with every token?"""


class LockedDropout(nn.Module):
    """Dropout with one mask for all tokens of a text (Gal & Ghahramani 2016)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: X) -> X:
        return x * dropout(torch.ones_like(x[:, :1]), self.rate) if self.training and self.rate else x


class RNNLM(LMBackbone[RNNState]):
    """h(t) = cell(x(t), h(t−1)): all of the past in one state for each layer.

    Args:
        layers: each of one layer, reading the states of the one below.
        dropout: on the input of each layer and on the output of the last.
        weight_dropout: on the weights between states.
    """

    def __init__(self, layers: list[RNNLayers], *, dropout: float = 0.0, weight_dropout: float = 0.0):
        super().__init__()
        self.layers, self.width, self.parts = nn.ModuleList(layers), layers[-1].hidden, layers[-1].cell.state_size
        self.dropout, self.weight_dropout = LockedDropout(dropout), weight_dropout

    def start(self, like):
        return RNNState((like.new_zeros(len(like), len(self.layers), self.width),) * self.parts)

    def read(self, x, state):
        lasts = []
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, RNNLayers)
            x, here = self.dropout(x), tuple(part[:, n : n + 1] for part in state.hidden)
            dropping = self.training and self.weight_dropout
            x, last = layer.forward_weight_dropped(x, here, self.weight_dropout) if dropping else layer(x, here)
            lasts.append(last)
        return self.dropout(x), RNNState(tuple(torch.cat(same, 1) for same in zip(*lasts, strict=True)))

    def memory_grows(self, state):
        return False


class TransformerLM(LMBackbone[KVCaches]):
    """Transformer layers with causal attention, as the recipe says; of several recipes, each layer has its own.

    The KV cache holds every token's keys and values; with a window only those still visible; with linear attention the
    sums alone.
    """

    def __init__(self, stack: StackConfig, recipe: LayerRecipes):
        super().__init__()
        recipes = [make_causal(each) for each in stack.recipes(recipe)]
        self.width, self.lookbacks = stack.model, [max_lookback(each.pattern) for each in recipes]
        self.positions, self.dropout = PositionalEmbedding(recipes[0].fresh()), Dropout(stack.dropout)
        self.layers = nn.ModuleList(EncoderLayer(stack, each) for each in recipes)
        self.norm = stack.final_norm()

    def start(self, like):
        return KVCaches((KVCache(),) * len(self.layers))

    def read(self, x, state):
        cells = [CacheCell(cache) for cache in state.layers]
        x = self.read_layers(self.dropout(self.positions(x, state.layers[0].length)), cells)
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        if is_hooked(first.attention.core):  # whoever records or edits the weights counts keys from the first
            return x, KVCaches(tuple(cell.cache for cell in cells))
        caches = (trim_cache(cell.cache, back) for cell, back in zip(cells, self.lookbacks, strict=True))
        return x, KVCaches(tuple(caches))

    def read_layers(self, x: X, cells: Sequence[LayerCache], context: Context = Context()) -> X:
        """The hidden states of embeddings with their positions; each layer has a KV cache of its own."""
        for layer, cell in zip(self.layers, cells, strict=True):
            x = layer(x, context, cell)
        return self.norm(x)

    def memory_grows(self, state):
        grows = zip(state.layers, self.lookbacks, strict=True)
        return any(back is None and isinstance(layer.past, tuple) for layer, back in grows)


def max_lookback(pattern: Pattern) -> int | None:
    """How many tokens back a token can attend at most; None if there is no limit, or it is unknown."""
    if is_content(pattern):  # which chooses among all earlier keys, whatever else hides them
        return None
    match pattern:
        case Window(size):
            return size - 1
        case And(left, right):
            known = [back for part in (left, right) if (back := max_lookback(part)) is not None]
            return min(known, default=None)
        case Or(left, right):
            backs = max_lookback(left), max_lookback(right)
            return None if None in backs else max(back for back in backs if back is not None)
    return None


def trim_cache(cache: KVCache, back: int | None) -> KVCache:
    """Without the keys and values that no later token can attend to."""
    if back is None or not isinstance(cache.past, tuple):
        return cache
    return replace(cache, past=tuple(x[:, :, max(x.shape[2] - back, 0) :] for x in cache.past))


class LanguageModel(nn.Module):
    """A language model. Reading a text at once or token by token gives the same logits, and attention is causal.

    Texts in a batch begin together; what follows a text's end changes nothing before it.

    Args:
        config: the kind and its sizes.
        size: of the vocabulary.
    """

    prepared: bool = False  # by `regard.decode.prepare`: for inference alone, its linear layers swapped
    attention_sites: ClassVar[AttentionSites] = {"backbone.layers.*.attention": SiteName("blocks.*", "text", "text")}

    def __init__(self, config: LanguageModelConfig, size: int):
        super().__init__()
        self.embedding, self.backbone, self.word_dropout = (
            Embedding(size, config.model, scaled=config.embedding_scale == "input"),
            build_backbone(config),
            config.word_dropout,
        )
        self.input_dropout, self.output_dropout = (
            LockedDropout(config.input_dropout),
            LockedDropout(config.output_dropout),
        )
        width = self.backbone.width
        # a tied embedding scores states of its own width, so others are projected first
        self.output_projection = (
            nn.Linear(width, config.model) if config.tied and width != config.model else nn.Identity()
        )
        self.output = None if config.tied else Embedding(size, width)
        self.bias = nn.Parameter(torch.zeros(size), requires_grad=config.output_bias)

    def start(self, batch: int) -> DecoderState:
        """The state before the first token, for a batch of this size."""
        return self.backbone.start(self.embedding.weight.new_zeros(batch, 0, self.embedding.weight.shape[1]))

    def step(self, tokens: Tokens, state: DecoderState) -> tuple[Logits, DecoderState]:
        """Read further: one token or a whole text. Logits for what follows each; the old state stays as it was."""
        x, state = self.decode_hidden(tokens, state)
        return self.logits(x), state

    def decode_hidden(self, tokens: Tokens, state: DecoderState) -> tuple[X, DecoderState]:
        """As `step`, before the logits: the hidden state that predicts each next token, as wide as the embeddings where
        these are tied."""
        x, state = self.backbone.read(self.embed(tokens), state)
        return self.project_output(x), state

    def project_output(self, x: X) -> Float[Tensor, "b t width"]:
        """From the backbone's hidden states to those that logits are computed from."""
        return self.output_projection(self.output_dropout(x))

    def logits(self, x: X) -> Logits:
        return (self.output or self.embedding).logits(x, self.bias)

    def memory_grows(self, state: DecoderState) -> bool:
        """Does the state grow with every token? Not with recurrent models, windows or linear attention."""
        return self.backbone.memory_grows(state)

    def forward(self, tokens: Tokens) -> Logits:
        return self.step(tokens, self.start(len(tokens)))[0]

    def embed(self, tokens: Tokens) -> X:
        x = self.input_dropout(self.embedding.embed(tokens))
        if not self.training or not self.word_dropout:
            return x
        keep = dropout(torch.ones_like(self.embedding.weight[:, 0]), self.word_dropout)
        return x * keep[tokens][..., None]


def build_backbone(config: LanguageModelConfig) -> LMBackbone[Any]:
    if config.kind in RNN_KINDS:
        widths = [config.model] + [config.hidden] * (config.layers - 1)
        layers = [RNNLayers(width, config.hidden, cell=CELLS[config.kind]) for width in widths]
        return RNNLM(layers, dropout=config.dropout, weight_dropout=config.weight_dropout)
    return TransformerLM(make_stack_config(config), text_recipes(config))
