"""A Transformer and a precision in; the same model, its weights laid out for decoding, out.

Queries, keys and values become one matrix, and each matrix takes the form that its device multiplies by fastest
(linears.py). Whoever translates more than one batch prepares once. A model that cannot be prepared is used as it is.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from regard.attention import Causal, Dot, Full, MultiHeadAttention, Recipe, ScaledDot, Softmax
from regard.attention.score import InnerProduct
from regard.decode.linears import PRECISIONS, Cut, Linear, Plain, Unbiased, linear_of
from regard.decode.model import Model, at_rest
from regard.decode.slices import Sliced
from regard.layers.block import FeedForward, PostNorm, Residual
from regard.models.transformer import DecoderLayer, EncoderLayer, Transformer

X = Float[Tensor, "n model"]
Heads = Float[Tensor, "b h t d"]
Keys = Float[Tensor, "b g t d"]


@dataclass(frozen=True, eq=False)
class Around:
    """The residual path of one sub-layer at rest: norm(x + y), or x + y and the norm before."""

    weight: Tensor
    bias: Tensor
    eps: float
    post: bool

    @staticmethod
    def of(residual: Residual) -> "Around":
        norm = residual.norm
        return Around(norm.weight.detach(), norm.bias.detach(), norm.eps, isinstance(residual, PostNorm))

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
class Looking:
    """Attention's matrices: for itself one of queries, keys and values; across, keys and values apart from queries."""

    recipe: Recipe
    heads: int
    groups: int
    into: Linear
    source: Linear | None
    out: Linear
    around: Around

    @staticmethod
    def of(layer: MultiHeadAttention, around: Residual, precision: str, *, across: bool) -> "Looking":
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
        into = linear_of(*query, precision) if across else together((query, key, value), precision)
        output = linear_of(*output, precision)
        return Looking(recipe, layer.heads, layer.groups, into, of_source, output, Around.of(around))

    def fold(self, q: Heads, k: Keys, at: Int[Tensor, " t"]) -> tuple[Heads, Keys]:
        """Queries and keys that stand at these places, such that a plain product compares them."""
        assert isinstance(self.recipe.score, InnerProduct)
        for scheme in self.recipe.inside:
            q, k = scheme.turn(q, at), scheme.turn(k, at)
        return self.recipe.score.fold_q(q), self.recipe.score.fold_k(k)


@dataclass(frozen=True, eq=False)
class Thinking:
    """A feed-forward layer's matrices; the first may hold the activation already."""

    up: Linear
    down: Linear
    activation: Any
    around: Around

    @staticmethod
    def of(layer: FeedForward, around: Residual, precision: str) -> "Thinking":
        up, down = (linear_of(part.weight, part.bias, precision) for part in (layer.up, layer.down))
        activation = torch.relu_ if layer.activation is nn.functional.relu else layer.activation
        if activation is torch.relu_ and isinstance(up, Plain):
            up, activation = Cut(up.weight, up.bias), None
        return Thinking(up, down, activation, Around.of(around))

    def __call__(self, x: X) -> X:
        hidden = self.up(self.around.before(x))
        return self.around.after(x, self.down(hidden if self.activation is None else self.activation(hidden)))


@dataclass(frozen=True, eq=False)
class Ready:
    """A model prepared: as a model it does what it did; a beam search finds its layers here."""

    model: Transformer
    precision: str
    encoder: tuple[tuple[Looking, Thinking], ...]
    decoder: tuple[tuple[Looking, Looking, Thinking], ...]
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

    def look(self, tokens: Tensor, state: Any, memory: Any) -> Any:
        return self.model.look(tokens, state, memory)

    def eval(self) -> "Ready":
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
        return self.model.words.bias.device

    def read(self, tokens: Int[Tensor, " n"]) -> X:
        return self.model.words.target(tokens)

    def source(self, tokens: Int[Tensor, "b s"]) -> Float[Tensor, "b s model"]:
        return self.model.source_places(self.model.words.source(tokens), 0)

    def places(self, count: int) -> Float[Tensor, "t model"]:
        """What is added to the word at each of the first places."""
        width = self.model.words.width
        nothing = torch.zeros(1, count, width, dtype=self.model.words.bias.dtype, device=self.device)
        return self.model.target_places(nothing, 0)[0]


def objections(model: Model | nn.Module) -> list[str]:
    """Why a model cannot be prepared."""
    if not isinstance(model, Transformer):
        return [f"a {type(model).__name__} is no Transformer"]
    bias = model.words.bias
    found = ["double precision is for a CPU"] if bias.is_cuda and bias.dtype == torch.double else []
    for place, layer in (("encoder", model.encoder[0]), ("decoder", model.decoder[0])):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        for attention in [layer.attention, *([layer.cross] if isinstance(layer, DecoderLayer) else [])]:
            recipe, parts = attention.recipe, (attention.query, attention.key, attention.value, attention.output)
            plain = recipe.pattern == (Causal() if place == "decoder" and attention is layer.attention else Full())
            found += [
                *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
                *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
                *([] if plain else [f"{recipe.pattern} hides more than the future"]),
                *(f"{scheme} adds to the scores" for scheme in recipe.on_score),
                *([] if all(isinstance(part, nn.Linear) for part in parts) else ["a projection is not linear"]),
            ]
    return list(dict.fromkeys(found))


def prepare(model: Model, precision: str = "float32") -> Model:
    """The same model, ready for many steps; one that cannot be prepared comes back as it is.

    Its weights are copied: prepare again after they have changed.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"no precision is called {precision!r}; there are {', '.join(PRECISIONS)}")
    if isinstance(model, Ready):
        return model
    if why := objections(model):
        if precision != "float32":
            raise ValueError(f"this model cannot decode in {precision}: {'; '.join(why)}; use precision float32")
        return model
    assert isinstance(model, Transformer)
    if precision == "int8" and model.words.bias.device.type != "cpu":
        raise ValueError(f"int8 is for a CPU, and the model is on {model.words.bias.device}; use bfloat16 there")
    with at_rest(model):
        if precision == "bfloat16":
            model = deepcopy(model).bfloat16()
        encoder = tuple(
            (
                Looking.of(layer.attention, layer.around_attention, precision, across=False),
                Thinking.of(layer.feed_forward, layer.around_feed_forward, precision),
            )
            for layer in model.encoder
            if isinstance(layer, EncoderLayer)
        )
        decoder = tuple(
            (
                Looking.of(layer.attention, layer.around_attention, precision, across=False),
                Looking.of(layer.cross, layer.around_cross, precision, across=True),
                Thinking.of(layer.feed_forward, layer.around_feed_forward, precision),
            )
            for layer in model.decoder
            if isinstance(layer, DecoderLayer)
        )
        table = model.words.table("output").weight.detach()
        words = words_of(table, model.words.bias.detach(), precision)
    return Ready(model, precision, encoder, decoder, words)


def words_of(table: Tensor, bias: Tensor, precision: str) -> Linear:
    if table.is_cuda:
        return Unbiased(table)
    return Sliced.of(table, bias) if precision == "int8" else linear_of(table, bias, precision)


def together(parts: tuple[tuple[Tensor, Tensor], ...], precision: str) -> Linear:
    """Several matrices of one input as one."""
    weights, biases = zip(*parts, strict=True)
    return linear_of(torch.cat(weights), torch.cat(biases), precision)
