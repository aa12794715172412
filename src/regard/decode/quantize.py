"""Quantised and prepared models: a copy of a Transformer whose linear layers are swapped for ones that decode faster.

Queries, keys and values are projected by one product, the scale of the scores is part of the queries' weights, and each
matrix takes the form that its device multiplies by fastest (quantized_linear.py). The model stays the model: it
reads, steps and is searched as before. Whoever decodes more than one batch prepares once.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.attention import Dot, EmbeddingPosition, MultiHeadAttention, NoPosition, ScaledDot
from regard.attention.backends.masked import masked_kernels
from regard.attention.position import PositionSum
from regard.decode import beam_decoder, text_generation
from regard.decode.beam_kernels import beam_kernels
from regard.decode.cuda_graphs import CapturedSteps
from regard.decode.quantized_linear import (
    PRECISIONS,
    ChunkedVocabLinear,
    Float32KernelLinear,
    Int8KernelLinear,
    Int8Linear,
    OutputLinear,
    ScreenedLinear,
    linear_kernels,
)
from regard.decode.text_generation import IdleDecoders
from regard.layers.embedding import TiedEmbeddings
from regard.layers.transformer_layers import DecoderLayer, EncoderLayer, FeedForward
from regard.models.language_model import LanguageModel, TransformerLM
from regard.models.seq2seq import DecodableModel
from regard.models.transformer import Transformer
from regard.ops.cuda_graph import CUDAGraphCapture
from regard.ops.linear import FusedLinear, LinearPart, MkldnnLinear

Weights = tuple[Tensor, Tensor]  # a linear layer's weight, (out, in), and its bias


Model = TypeVar("Model", DecodableModel, LanguageModel, DecodableModel | LanguageModel)


def prepare(model: Model, precision: str = "float32") -> Model:
    """The same model, ready for many steps; one that cannot be prepared comes back as it is.

    Its weights are copied: prepare again after they have changed.

    Examples:
        >>> translator = regard.load("run")
        >>> fast, source = prepare(translator.model, "int8"), translator.source.encode("the cat sleeps")
        >>> ((found,),) = translate(fast, [source], Beam(4))
        >>> found.score < 0, type(fast) is type(translator.model)
        (True, True)
    """
    if precision not in PRECISIONS:
        raise ValueError(f"no precision is called {precision!r}; there are {', '.join(PRECISIONS)}")
    if is_prepared(model):
        return model
    if why := objections(model):
        if precision != "float32":
            raise ValueError(f"this model cannot decode in {precision}: {'; '.join(why)}; use precision float32")
        return model
    assert isinstance(model, Transformer | LanguageModel)
    bias = model.bias if isinstance(model, LanguageModel) else model.embeddings.bias
    device, dtype = bias.device, bias.dtype
    if precision in ("int8", "screened") and device.type != "cpu":
        raise ValueError(f"{precision} is for a CPU, and the model is on {device}; use bfloat16 there")
    if precision == "screened" and dtype != torch.float32:
        raise ValueError(f"screened is float32, and the model is {dtype}; use precision float32 to keep it as it is")
    if device.type == "cpu":
        masked_kernels()  # compiled now, once on a machine, rather than with the first sentence
    return swap_linears(copy_model(model, precision), precision)


def is_prepared(model: DecodableModel | nn.Module) -> bool:
    """Whether `prepare` made it.

    Examples:
        >>> model = regard.load("run").model
        >>> is_prepared(model), is_prepared(prepare(model))
        (False, True)
    """
    return isinstance(model, Transformer | LanguageModel) and model.prepared


def objections(model: DecodableModel | nn.Module) -> list[str]:
    """Why a model cannot be prepared."""
    speaks = isinstance(model, LanguageModel)
    found = text_generation.objections(model) if speaks else beam_decoder.objections(model)
    if isinstance(model, Transformer | LanguageModel):
        attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
        parts = [part for each in attentions for part in (each.query, each.key, each.value, each.output)]
        if not all(isinstance(part, nn.Linear) for part in parts):
            found.append("a projection is not linear")
    return found


def copy_model(model: nn.Module, precision: str) -> Any:
    """Modules of its own; its weights are shared until they are swapped, unless all of them change."""
    if precision == "bfloat16":
        return deepcopy(model).bfloat16().eval()
    return deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()


def swap_linears(model: Any, precision: str) -> Any:
    beam_kernels()  # are compiled now, and not with the first sentence
    with torch.no_grad():
        crosses, layers = [], model_layers(model)
        for layer in layers:
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            swap_attention(layer.attention, precision)
            swap_feed_forward(layer.feed_forward, precision)
            if isinstance(layer, DecoderLayer):
                swap_cross_queries(layer.cross, precision)
                crosses.append(layer.cross)
        # the source is multiplied once and read at every step: 8 bits would save little and cost most
        if crosses:
            fused = fuse([weights_of(part) for cross in crosses for part in (cross.key, cross.value)], "float32")
            for n, cross in enumerate(crosses):
                cross.key, cross.value = fused[2 * n], fused[2 * n + 1]
        if isinstance(model, LanguageModel):
            table = model.output or model.embedding
            table.projection = output_linear(table.weight.detach(), model.bias.detach(), precision)
            model.add_module("idle_decoders", IdleDecoders())
        else:
            swap_output(model.embeddings, precision)
            model.add_module("captured_steps", CapturedSteps(CUDAGraphCapture()))
    for part in model.modules():  # torch finds a child or weight in Python code, and a step asks for hundreds
        for name, own in (*part.named_children(), *part.named_parameters(recurse=False)):
            object.__setattr__(part, name, own)
    model.prepared = True
    return model.eval()  # what was swapped in as well


def model_layers(model: Transformer | LanguageModel) -> list[nn.Module]:
    if isinstance(model, Transformer):
        return [*model.encoder, *model.decoder]
    assert isinstance(model.backbone, TransformerLM)
    return [*model.backbone.layers]


def swap_attention(attention: MultiHeadAttention, precision: str) -> None:
    parts = [fold_scale(attention), weights_of(attention.key), weights_of(attention.value)]
    attention.query, attention.key, attention.value = fuse(parts, precision)
    attention.output = build_linear(*weights_of(attention.output), precision)


def swap_cross_queries(cross: MultiHeadAttention, precision: str) -> None:
    cross.query = build_linear(*fold_scale(cross), precision)
    cross.output = build_linear(*weights_of(cross.output), precision)


def fold_scale(attention: MultiHeadAttention) -> Weights:
    """The queries' weights, which scale the scores too; attention itself scales them no more."""
    weight, bias = weights_of(attention.query)
    recipe = attention.recipe  # what is added to embeddings, attention itself never sees
    parts = tuple(part for part in recipe.position.parts() if not isinstance(part, EmbeddingPosition))
    attention.recipe = replace(recipe, position=PositionSum(parts) if parts else NoPosition())
    if not isinstance(attention.recipe.score, ScaledDot) or attention.query_norm is not None:  # which would undo it
        return weight, bias
    attention.recipe = replace(attention.recipe, score=Dot())
    scale = (len(weight) // attention.heads) ** -0.5
    return weight * scale, bias * scale


def swap_feed_forward(layer: FeedForward, precision: str) -> None:
    layer.down = build_linear(*weights_of(layer.down), precision)
    if layer.gate is None:
        layer.up = build_linear(*weights_of(layer.up), precision)
    else:
        layer.gate, layer.up = fuse([weights_of(layer.gate), weights_of(layer.up)], precision)
    if layer.activation is nn.functional.relu and layer.down.bias.device.type == "cpu":
        layer.activation = torch.relu_


def swap_output(embeddings: TiedEmbeddings, precision: str) -> None:
    """The output's table is one of its own from here on, with the same weight."""
    table, bias = embeddings.table("output"), embeddings.bias.detach()
    table = deepcopy(table, {id(table.weight): table.weight})
    table.projection = output_linear(table.weight.detach(), bias, precision)
    embeddings.tables["output"] = table


def output_linear(weight: Tensor, bias: Tensor, precision: str) -> nn.Module:
    if weight.is_cuda:
        return OutputLinear(weight, bias)
    if precision == "screened":
        return ScreenedLinear(weight, bias)
    linear = build_linear(weight, bias, precision)
    return ChunkedVocabLinear.of(weight, bias) if isinstance(linear, Int8Linear) else linear


def build_linear(weight: Tensor, bias: Tensor, precision: str) -> nn.Module:
    """The fastest for this device and precision; `weight` is (out, in)."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if precision == "int8":
        return (Int8KernelLinear if on_cpu and linear_kernels() is not None else Int8Linear)(weight, bias)
    if on_cpu and linear_kernels() is not None:
        return Float32KernelLinear(weight, bias)
    if on_cpu and torch.backends.mkldnn.is_available():
        return MkldnnLinear(weight, bias)
    linear = nn.Linear(weight.shape[1], len(weight), device="meta")
    linear.weight, linear.bias = (nn.Parameter(part.detach(), requires_grad=False) for part in (weight, bias))
    return linear.eval()


def weights_of(linear: nn.Module) -> Weights:
    """Of a layer without a bias, one that adds nothing."""
    assert isinstance(linear, nn.Linear)
    weight = linear.weight.detach()
    return weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()


def fuse(parts: Sequence[Weights], precision: str) -> tuple[LinearPart, ...]:
    """Several projections of the same states as one linear layer."""
    weights, biases = zip(*parts, strict=True)
    linear = build_linear(torch.cat(weights), torch.cat(biases), precision)
    return FusedLinear(linear, [len(weight) for weight in weights]).parts
