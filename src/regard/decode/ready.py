"""Prepared model: a Transformer whose weights are laid out for decoding, with fused QKV projections.

Queries, keys and values become one matrix, and each matrix takes the form that its device multiplies by fastest
(quantized_linear.py). Whoever translates more than one batch prepares once. A model that cannot be prepared is used as
it is.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from regard.attention import Causal, Dot, Full, MultiHeadAttention, Recipe, ScaledDot, Softmax
from regard.attention.hooks import is_recorded
from regard.attention.score import InnerProduct
from regard.decode.model import DecodableModel, inference_mode
from regard.decode.quantized_linear import PRECISIONS, Linear, LinearNoBias, LinearReLU, TorchLinear, build_linear
from regard.decode.topk_logprobs import ChunkedVocabLinear
from regard.layers.feed_forward import FeedForward
from regard.layers.residual import PostNorm, Residual
from regard.models.transformer import DecoderLayer, EncoderLayer, Transformer

X = Float[Tensor, "n model"]
Heads = Float[Tensor, "b h t d"]
Keys = Float[Tensor, "b g t d"]


@dataclass(frozen=True, eq=False)
class PreparedResidual:
    """The residual path of one sub-layer at rest: norm(x + y), or x + y and the norm before."""

    weight: Tensor
    bias: Tensor
    eps: float
    post: bool

    @staticmethod
    def of(residual: Residual) -> "PreparedResidual":
        norm = residual.norm
        return PreparedResidual(norm.weight.detach(), norm.bias.detach(), norm.eps, isinstance(residual, PostNorm))

    def norm(self, x: X) -> X:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def before(self, x: X) -> X:
        return x if self.post else self.norm(x)

    def after(self, x: X, y: X) -> X:
        if self.post and x.is_cuda:
            from regard.decode.norm_kernel import added_and_normed

            return added_and_normed(x, y, self.weight, self.bias, self.eps)
        return self.norm(y.add_(x)) if self.post else y.add_(x)


@dataclass(frozen=True, eq=False)
class PreparedAttention:
    """Attention's matrices: for itself one of queries, keys and values; across, keys and values apart from queries."""

    recipe: Recipe
    heads: int
    groups: int
    into: Linear
    source: Linear | None
    out: Linear
    around: PreparedResidual

    @staticmethod
    def of(layer: MultiHeadAttention, around: Residual, precision: str, *, across: bool) -> "PreparedAttention":
        query, key, value, output = (
            (part.weight, part.bias)
            for part in (layer.query, layer.key, layer.value, layer.output)
            if isinstance(part, nn.Linear)
        )
        recipe = layer.recipe
        if isinstance(recipe.score, ScaledDot):  # the queries come scaled
            scale = (query[0].shape[0] // layer.heads) ** -0.5
            query, recipe = (query[0] * scale, query[1] * scale), replace(recipe, score=Dot())
        # the source is multiplied once and read at every step: 8 bits would save little and cost most
        of_source = together((key, value), "float32") if across else None
        into = build_linear(*query, precision) if across else together((query, key, value), precision)
        output = build_linear(*output, precision)
        return PreparedAttention(
            recipe, layer.heads, layer.groups, into, of_source, output, PreparedResidual.of(around)
        )

    def fold(self, q: Heads, k: Keys, at: Int[Tensor, " t"]) -> tuple[Heads, Keys]:
        """Queries and keys that stand at these places, such that a plain product compares them."""
        assert isinstance(self.recipe.score, InnerProduct)
        for scheme in self.recipe.query_key_positions:
            q, k = scheme.rotate(q, at), scheme.rotate(k, at)
        return self.recipe.score.fold_q(q), self.recipe.score.fold_k(k)


@dataclass(frozen=True, eq=False)
class PreparedFeedForward:
    """A feed-forward layer's matrices; the first may hold the activation already."""

    up: Linear
    down: Linear
    activation: Any
    around: PreparedResidual

    @staticmethod
    def of(layer: FeedForward, around: Residual, precision: str) -> "PreparedFeedForward":
        up, down = (build_linear(part.weight, part.bias, precision) for part in (layer.up, layer.down))
        activation = torch.relu_ if layer.activation is nn.functional.relu else layer.activation
        if activation is torch.relu_ and isinstance(up, TorchLinear):
            up, activation = LinearReLU(up.weight, up.bias), None
        return PreparedFeedForward(up, down, activation, PreparedResidual.of(around))

    def __call__(self, x: X) -> X:
        hidden = self.up(self.around.before(x))
        return self.around.after(x, self.down(hidden if self.activation is None else self.activation(hidden)))


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model prepared: as a model it does what it did; a beam search finds its layers here."""

    model: Transformer
    precision: str
    encoder: tuple[tuple[PreparedAttention, PreparedFeedForward], ...]
    decoder: tuple[tuple[PreparedAttention, PreparedAttention, PreparedFeedForward], ...]
    words: Linear  # on a GPU without the bias, which is added where the scores are read
    stages: dict[Any, Any] = field(default_factory=dict)  # graphs of kernels by their shapes, see stages.py

    def as_it_was(self, why: list[str]) -> Transformer:
        """The model itself, for a search that cannot use the layers here; there it runs as it was trained."""
        if self.precision != "float32":
            raise ValueError(f"this search cannot run in {self.precision}: {'; '.join(why)}; use precision float32")
        return self.model

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        return self.as_it_was(["it asks the model word by word"]).encode(source, lengths)

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> Any:
        return self.model.step(tokens, state, memory)

    def named_modules(self) -> Any:
        return self.model.named_modules()

    def eval(self) -> "PreparedModel":
        self.model.eval()
        return self

    def modules(self) -> Any:
        return self.model.modules()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)

    def last(self, x: X, side: str) -> X:
        """The norm behind the last layer of the encoder or the decoder, if there is one."""
        return (self.model.encoder_norm if side == "encoder" else self.model.decoder_norm)(x)

    @property
    def device(self) -> torch.device:
        return self.model.embeddings.bias.device

    def read(self, tokens: Int[Tensor, " n"]) -> X:
        return self.model.embeddings.embed_target(tokens)

    def source(self, tokens: Int[Tensor, "b s"]) -> Float[Tensor, "b s model"]:
        return self.model.source_positions(self.model.embeddings.embed_source(tokens), 0)

    def places(self, count: int) -> Float[Tensor, "t model"]:
        """What is added to the word at each of the first places."""
        width = self.model.embeddings.width
        nothing = torch.zeros(1, count, width, dtype=self.model.embeddings.bias.dtype, device=self.device)
        return self.model.target_positions(nothing, 0)[0]


def objections(model: DecodableModel | nn.Module) -> list[str]:
    """Why a model cannot be prepared."""
    if not isinstance(model, Transformer):
        return [f"a {type(model).__name__} is no Transformer"]
    if is_recorded(model):
        return ["its attention is recorded or edited, which needs the model's own layers"]
    bias = model.embeddings.bias
    found = ["double precision is for a CPU"] if bias.is_cuda and bias.dtype == torch.double else []
    for place, layer in (*(("encoder", one) for one in model.encoder), *(("decoder", one) for one in model.decoder)):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        for attention in [layer.attention, *([layer.cross] if isinstance(layer, DecoderLayer) else [])]:
            recipe, parts = attention.recipe, (attention.query, attention.key, attention.value, attention.output)
            plain = recipe.pattern == (Causal() if place == "decoder" and attention is layer.attention else Full())
            found += [
                *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
                *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
                *([] if plain else [f"{recipe.pattern} hides more than the future"]),
                *(f"{scheme} adds to the scores" for scheme in recipe.score_positions),
                *([] if all(isinstance(part, nn.Linear) for part in parts) else ["a projection is not linear"]),
            ]
    return list(dict.fromkeys(found))


def prepare(model: DecodableModel, precision: str = "float32") -> DecodableModel:
    """The same model, ready for many steps; one that cannot be prepared comes back as it is.

    Its weights are copied: prepare again after they have changed.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"no precision is called {precision!r}; there are {', '.join(PRECISIONS)}")
    if isinstance(model, PreparedModel):
        return model
    if why := objections(model):
        if precision != "float32":
            raise ValueError(f"this model cannot decode in {precision}: {'; '.join(why)}; use precision float32")
        return model
    assert isinstance(model, Transformer)
    if precision == "int8" and model.embeddings.bias.device.type != "cpu":
        raise ValueError(f"int8 is for a CPU, and the model is on {model.embeddings.bias.device}; use bfloat16 there")
    with inference_mode(model):
        if precision == "bfloat16":
            model = deepcopy(model).bfloat16()
        encoder = tuple(
            (
                PreparedAttention.of(layer.attention, layer.residual_attention, precision, across=False),
                PreparedFeedForward.of(layer.feed_forward, layer.residual_feed_forward, precision),
            )
            for layer in model.encoder
            if isinstance(layer, EncoderLayer)
        )
        decoder = tuple(
            (
                PreparedAttention.of(layer.attention, layer.residual_attention, precision, across=False),
                PreparedAttention.of(layer.cross, layer.residual_cross, precision, across=True),
                PreparedFeedForward.of(layer.feed_forward, layer.residual_feed_forward, precision),
            )
            for layer in model.decoder
            if isinstance(layer, DecoderLayer)
        )
        table = model.embeddings.table("output").weight.detach()
        words = words_of(table, model.embeddings.bias.detach(), precision)
    return PreparedModel(model, precision, encoder, decoder, words)


def words_of(table: Tensor, bias: Tensor, precision: str) -> Linear:
    if table.is_cuda:
        return LinearNoBias(table)
    return ChunkedVocabLinear.of(table, bias) if precision == "int8" else build_linear(table, bias, precision)


def together(parts: tuple[tuple[Tensor, Tensor], ...], precision: str) -> Linear:
    """Several matrices of one input as one."""
    weights, biases = zip(*parts, strict=True)
    return build_linear(torch.cat(weights), torch.cat(biases), precision)
