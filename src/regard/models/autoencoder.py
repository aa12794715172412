"""Sequence autoencoder: a sentence through a latent of fixed size and back, with decoders that see the latent alone.

The fourth lecture's appendix: "the encoder … compresses it into a latent space representation", and the decoder
"takes the compressed representation … and attempts to reconstruct the original input from it". It is a Seq2Seq whose
target is its source, and is trained, searched and scored like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Generic

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import AttentionSites, CacheCell, Context, KVCache, Padding, Recipe, SiteName
from regard.layers.embedding import PositionalEmbedding
from regard.layers.pooling import (
    AttentionBottleneck,
    Bottleneck,
    LastPooling,
    Latent,
    Lengths,
    MeanPooling,
    PooledBottleneck,
    Pooling,
    Tokens,
)
from regard.layers.rnn import CELLS, HiddenState, RNNLayers
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import DecoderLayer, cross_keys_values, decode_layers
from regard.models.config import (
    LANGUAGE_MODEL_KINDS,
    RNN_KINDS,
    TEXT_CHOICES,
    TRANSFORMER_FIELDS,
    EncoderConfig,
    TextModelConfig,
    make_stack_config,
    needs_tree,
    text_recipes,
)
from regard.models.config_base import Choices, RecipeText
from regard.models.encoder import Encoder
from regard.models.rnn_seq2seq import Annotations, AttentionRNNState, LuongDecoder, RNNAttention
from regard.models.seq2seq import DecoderState, M, Memory, S, Seq2Seq
from regard.models.transformer import EncodedSource, KVCaches, make_causal
from regard.ops.dropout import Dropout

X = Float[Tensor, "b t model"]


class LatentDecoder(nn.Module, ABC, Generic[M, S]):
    """Abstract: the memory is computed from the latent alone. `shape` is (k, m)."""

    shape: tuple[int, int]

    @abstractmethod
    def memory_from_latent(self, latent: Latent) -> M: ...

    @abstractmethod
    def start(self, memory: M) -> S: ...

    @abstractmethod
    def decode(self, x: X, state: S, memory: M) -> tuple[X, S]:
        """Embeddings to the states that predict what follows each, and the state after them."""


class LatentProjection(nn.Module):
    """W z_n + p_n: a latent vector as wide as the decoder, p_n being the embedding of the index n."""

    def __init__(self, latents: int, latent: int, width: int):
        super().__init__()
        self.weight = nn.Linear(latent, width, bias=False)
        self.index_embedding = nn.Parameter(torch.randn(latents, width) * width**-0.5)

    def forward(self, latent: Latent) -> Float[Tensor, "b k width"]:
        return self.weight(latent) + self.index_embedding


class RNNLatentDecoder(LatentDecoder[Annotations, AttentionRNNState]):
    """The initial state is s₀ = tanh(b + W z) of the whole latent; then each state attends to its k vectors.

    Where k is 1, the context is the same at every token (Cho et al. 2014).

    Args:
        rnn: reads embeddings.
        latents, latent: k and m.
        model: the width of the states before the logits.
    """

    def __init__(self, rnn: RNNLayers, *, latents: int, latent: int, model: int):
        super().__init__()
        self.shape, self.layers, self.parts = (latents, latent), rnn.layers, rnn.cell.state_size
        self.initial_projection = nn.Linear(latents * latent, rnn.cell.state_size * rnn.layers * rnn.hidden)
        self.latent_projection, self.attention = LatentProjection(latents, latent, rnn.hidden), RNNAttention(Recipe())
        self.decoder = LuongDecoder(rnn, context=rnn.hidden, concluded=model)

    def memory_from_latent(self, latent):
        states, count = (
            self.latent_projection(latent),
            torch.full((len(latent),), latent.shape[1], device=latent.device),
        )
        return self.attention.cross_keys_values(states, count, self.initial_state(latent))

    def initial_state(self, latent: Latent) -> HiddenState:
        first = torch.tanh(self.initial_projection(rearrange(latent, "b k m -> b (k m)")))
        return tuple(rearrange(first, "b (parts l h) -> parts b l h", parts=self.parts, l=self.layers))

    def start(self, memory):
        return self.decoder.initial_state(memory.initial_state)

    def decode(self, x, state, memory):
        return self.decoder(x, state, partial(self.attention, memory=memory))


class TransformerLatentDecoder(LatentDecoder[EncodedSource, KVCaches]):
    """A Transformer's decoder: causal self-attention, and cross-attention to the k latent vectors.

    Args:
        stack: the configuration of the layers.
        recipe: of the self-attention, which is causal in any case.
        latents, latent: k and m.
    """

    def __init__(self, stack: StackConfig, recipe: LayerRecipes, *, latents: int, latent: int):
        super().__init__()
        self.shape, recipes = (latents, latent), [make_causal(each) for each in stack.recipes(recipe)]
        self.latent_projection, self.positions = (
            LatentProjection(latents, latent, stack.model),
            PositionalEmbedding(recipes[0].fresh()),
        )
        self.layers = nn.ModuleList(DecoderLayer(stack, each, Recipe()) for each in recipes)
        self.dropout, self.norm = Dropout(stack.dropout), stack.final_norm()

    def memory_from_latent(self, latent):
        states, count = (
            self.latent_projection(latent),
            torch.full((len(latent),), latent.shape[1], device=latent.device),
        )
        return EncodedSource(cross_keys_values(self.layers, states), count)

    def start(self, memory):
        return KVCaches((KVCache(),) * len(self.layers))

    def decode(self, x, state, memory):
        x, cells = self.dropout(self.positions(x, state.layers[0].length)), [*map(CacheCell, state.layers)]
        across = Context(Padding(memory.lengths))
        x = decode_layers(self.layers, self.norm, x, memory.layers, Context(), across, cells)
        return x, KVCaches(tuple(cell.cache for cell in cells))


# --- the autoencoder ---


POOLED_BOTTLENECKS: dict[str, type[Pooling]] = {"last": LastPooling, "mean": MeanPooling}


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(TextModelConfig):
    """An autoencoder of sentences. The latent holds latents × latent numbers, whatever the bottleneck.

    Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: what encoder and decoder are: elman, gru, lstm or transformer.
        bottleneck: attention (as many learned queries as there are latents attend to all tokens), or without: last
            (the last state) or mean (of all states); that one vector is split into the latents.
        latents: how many vectors the latent is.
        latent: the width of each of them.
        layers: how many the encoder has, and as many the decoder.
        heads: attention heads of a Transformer's layers, and of each query of the bottleneck.
        recipe: the recipe of both self-attentions, in TOML, or a list with one for each layer; the decoder's is causal
            in any case.
    """

    choices: ClassVar[Choices] = {
        "kind": LANGUAGE_MODEL_KINDS,
        "bottleneck": ("attention", *POOLED_BOTTLENECKS),
        **TEXT_CHOICES,
    }
    used_by: ClassVar[Choices] = {
        **{name: kinds for name, kinds in TRANSFORMER_FIELDS.items() if name != "heads"},
        "directions": RNN_KINDS,
    }
    sizes: ClassVar[tuple[str, ...]] = ("tiny", "small")
    default_size: ClassVar[str] = "tiny"

    bottleneck: str = "attention"
    latents: int = 4
    latent: int = 32
    directions: int = 1
    recipe: RecipeText = ""

    def __post_init__(self):
        self.check()
        if self.kind in RNN_KINDS and self.bottleneck in POOLED_BOTTLENECKS and self.heads != AutoencoderConfig.heads:
            raise ValueError(
                f"heads = {self.heads} means nothing to a model of kind {self.kind!r} with the bottleneck "
                f"{self.bottleneck!r}; leave it out, or use bottleneck = 'attention'"
            )
        if self.bottleneck == "last" and self.directions > 1:
            raise ValueError(
                "read backwards, the state at the last token depends on no other; use directions = 1, or bottleneck = "
                "'mean' or 'attention'"
            )
        if self.bottleneck == "attention" and self.encoder.width % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide the states' width {self.encoder.width}")
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
            if needs_tree(*text_recipes(self.encoder)):
                raise ValueError(
                    "the recipe needs the trees of whole sentences, which are unknown while one is generated; "
                    "use a position in the sequence, such as Sinusoidal()"
                )

    @property
    def encoder(self) -> EncoderConfig:
        """The configuration of the encoder."""
        names = {field.name for field in fields(EncoderConfig)} & {field.name for field in fields(self)}
        if self.kind in RNN_KINDS:
            names -= {"heads"}  # they are the bottleneck's
        return EncoderConfig(**{name: getattr(self, name) for name in names})

    @classmethod
    def from_size(cls, kind: str, size: str = "tiny") -> "AutoencoderConfig":
        if size not in AUTOENCODER_SIZES:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(AUTOENCODER_SIZES)}")
        return AUTOENCODER_SIZES[size](kind)


AUTOENCODER_SIZES: dict[str, Callable[[str], AutoencoderConfig]] = {
    "tiny": lambda kind: AutoencoderConfig(kind=kind, layers=1, dropout=0.0),
    "small": lambda kind: AutoencoderConfig(kind=kind, model=256, hidden=512, latents=8, latent=64),
}


class Autoencoder(Seq2Seq[Memory, DecoderState]):
    """decoder(bottleneck(encoder(sentence))), with one tied embedding.

    Args:
        encoder: tokens to vectors in context.
        bottleneck: those to the latent.
        decoder: the latent, and the tokens so far, to the state that predicts the next.
    """

    attention_sites: ClassVar[AttentionSites] = {
        "encoder.context.layers.*.attention": SiteName("encoder.*", "source", "source"),
        "decoder.layers.*.attention": SiteName("decoder.*.self", "read", "read"),
        "decoder.layers.*.cross": SiteName("decoder.*.cross", "written", "latents"),
        "decoder.attention": SiteName("decoder.attention", "written", "latents"),
    }

    def __init__(
        self, encoder: Encoder, bottleneck: Bottleneck, decoder: LatentDecoder[Any, Any], *, dropout: float = 0.0
    ):
        super().__init__()
        self.encoder, self.bottleneck, self.decoder = encoder, bottleneck, decoder
        self.dropout = Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(len(encoder.embedding.weight)))

    def encode_latent(self, tokens: Tokens, lengths: Lengths) -> Latent:
        """The latent of each sentence, which ends after lengths[b] tokens."""
        return self.bottleneck(self.encoder(tokens, lengths), tokens, lengths)

    def memory_from_latent(self, latent: Latent) -> Memory:
        """The decoder's memory, from a latent of any origin: a sentence's, or a point between two."""
        if latent.dim() != 3 or tuple(latent.shape[1:]) != self.decoder.shape:
            k, m = self.decoder.shape
            raise ValueError(
                f"this model's latents are {k} vectors of width {m}, (b, {k}, {m}), not {(*latent.shape,)}"
            )
        return self.decoder.memory_from_latent(latent)

    def encode(self, source, lengths):
        return self.memory_from_latent(self.encode_latent(source, lengths))

    def start(self, memory):
        return self.decoder.start(memory)

    def decode_hidden(self, tokens, state, memory):
        x, after = self.decoder.decode(self.dropout(self.encoder.embedding.embed(tokens)), state, memory)
        return self.dropout(x), after

    def output(self):
        return self.encoder.embedding, self.bias


def build_autoencoder(config: AutoencoderConfig, size: int) -> Autoencoder:
    """With fresh weights, for a vocabulary of this size."""
    encoder, sizes = Encoder(config.encoder, size), {"latents": config.latents, "latent": config.latent}
    bottleneck = (
        PooledBottleneck(POOLED_BOTTLENECKS[config.bottleneck](), encoder.width, **sizes)
        if config.bottleneck in POOLED_BOTTLENECKS
        else AttentionBottleneck(encoder.width, heads=config.heads, **sizes)
    )
    if config.kind == "transformer":
        decoder = TransformerLatentDecoder(make_stack_config(config.encoder), text_recipes(config.encoder), **sizes)
        return Autoencoder(encoder, bottleneck, decoder)
    rnn = RNNLayers(config.model, config.hidden, cell=CELLS[config.kind], layers=config.layers, dropout=config.dropout)
    return Autoencoder(encoder, bottleneck, RNNLatentDecoder(rnn, model=config.model, **sizes), dropout=config.dropout)
