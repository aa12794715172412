"""CTranslate2: Transformers that translate or write text, as its specifications of weights, in float32 or int8."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, Rotary, ScaledDot
from regard.data.tokenizers.base import BOS, EOS, PAD, UNK
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.beam import Beam
from regard.decode.quantize import objections as prepare_objections
from regard.decode.quantize import prepare
from regard.decode.search import Hypothesis
from regard.interop.export_format import (
    CONTINUATION,
    INNER_PRODUCTS,
    Engine,
    ExportFormat,
    GenerationEngine,
    Ids,
    Output,
    TranslationEngine,
    activation_name,
    attentions_of,
    compare_engines,
    group_by_length,
    position_objections,
    position_table,
    quote_text,
    sentencepiece_engine,
    stack_objections,
    token_names,
    translation_limit,
    write_tokenizers,
)
from regard.layers.embedding import Embedding, PositionalEmbedding
from regard.layers.transformer_layers import DecoderLayer, EncoderLayer, PreNorm, Residual
from regard.models.language_model import LanguageModel, TransformerLM
from regard.models.transformer import Transformer
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.translation.task import Translator

# our activations, by their names there
ACTIVATION_NAMES = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
MAX_BATCH = 64  # sentences


# --- the weights: copies of ours, for the library quantises them in place ---


def copy_weight(weight: Tensor) -> Tensor:
    return weight.detach().clone()


def write_linear(spec: Any, *parts: nn.Module) -> None:
    """One layer, or several of the same states one after the other."""
    weights, biases = [], []
    for part in parts:
        assert isinstance(part, nn.Linear)
        weights.append(part.weight.detach())
        biases.append(part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias.detach())
    spec.weight, spec.bias = torch.cat(weights), torch.cat(biases)


def write_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = copy_weight(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = copy_weight(norm.bias)


def write_attention(spec: Any, attention: MultiHeadAttention, residual: Residual, *, cross: bool) -> None:
    query, pair = [attention.query], [attention.key, attention.value]
    groups = [query, pair] if cross else [[*query, *pair]]
    for linear, parts in zip(spec.linear, [*groups, [attention.output]], strict=True):
        write_linear(linear, *parts)
    if not isinstance(attention.recipe.score, ScaledDot):
        import numpy

        spec.queries_scale = numpy.float32(1.0)
    if attention.query_norm is not None and attention.key_norm is not None:
        write_norm(spec.q_norm, attention.query_norm)
        write_norm(spec.k_norm, attention.key_norm)
    write_norm(spec.layer_norm, residual.norm)


def write_layers(spec: Any, layers: Iterable[nn.Module], final_norm: nn.Module) -> None:
    for here, layer in zip(spec.layer, layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        write_attention(here.self_attention, layer.attention, layer.residual_attention, cross=False)
        if isinstance(layer, DecoderLayer):
            write_attention(here.attention, layer.cross, layer.residual_cross, cross=True)
        write_linear(
            here.ffn.linear_0, layer.feed_forward.up if layer.feed_forward.gate is None else layer.feed_forward.gate
        )
        if layer.feed_forward.gate is not None:
            write_linear(here.ffn.linear_0_noact, layer.feed_forward.up)
        write_linear(here.ffn.linear_1, layer.feed_forward.down)
        write_norm(here.ffn.layer_norm, layer.residual_feed_forward.norm)
    if spec.pre_norm:
        write_norm(spec.layer_norm, final_norm)


def write_embedding(
    spec: Any, embedding: Embedding, stack: Any, positions: PositionalEmbedding, layer: nn.Module
) -> None:
    spec.weight, stack.scale_embeddings = copy_weight(embedding.weight), embedding.scaled
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    if not layer.attention.recipe.query_key_positions:
        stack.position_encodings.encodings = position_table(positions, embedding.weight)


def write_output(spec: Any, table: Embedding, bias: Tensor) -> None:
    spec.weight, spec.bias = copy_weight(table.weight), copy_weight(bias)


def stack_options(layers: Sequence[nn.Module]) -> dict[str, Any]:
    """What the constructor of a stack's specification is given."""
    from ctranslate2.specs import common_spec

    first = layers[0]
    assert isinstance(first, EncoderLayer | DecoderLayer)
    attention, linear = first.attention, first.attention.query
    assert isinstance(linear, nn.Linear)
    options: dict[str, Any] = {
        "num_layers": len(layers),
        "num_heads": attention.heads,
        "pre_norm": isinstance(first.residual_attention, PreNorm),
        "activation": common_spec.Activation[ACTIVATION_NAMES[activation_name(first)]],
        "rms_norm": isinstance(first.residual_attention.norm, nn.RMSNorm),
        "ffn_glu": first.feed_forward.gate is not None,
        "qk_norm": attention.query_norm is not None,
    }
    if attention.groups != attention.heads:
        options["num_heads_kv"] = attention.groups
    if linear.weight.shape[0] != linear.weight.shape[1]:
        options["head_dim"] = linear.weight.shape[0] // attention.heads
    for scheme in attention.recipe.query_key_positions:
        assert isinstance(scheme, Rotary)
        interleave = scheme.pairs == "adjacent"
        options |= {"rotary_dim": 0, "rotary_interleave": interleave, "rotary_base": scheme.theta}
    return options


def norm_epsilon(layer: nn.Module) -> float:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    return float(layer.residual_attention.norm.eps or torch.finfo(torch.float32).eps)


def name_special_tokens(config: Any, names: Sequence[str]) -> None:
    config.unk_token, config.bos_token, config.eos_token = names[UNK], names[BOS], names[EOS]


def translation_spec(translator: Translator) -> Any:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    model = translator.model
    assert isinstance(model, Transformer)
    encoder = TransformerEncoderSpec(**stack_options(list(model.encoder)))
    decoder = TransformerDecoderSpec(**stack_options(list(model.decoder)))
    tables = model.embeddings
    write_embedding(encoder.embeddings[0], tables.table("source"), encoder, model.source_positions, model.encoder[0])
    write_embedding(decoder.embeddings, tables.table("target"), decoder, model.target_positions, model.decoder[0])
    write_output(decoder.projection, tables.table("output"), tables.bias)
    write_layers(encoder, model.encoder, model.encoder_norm)
    write_layers(decoder, model.decoder, model.decoder_norm)
    spec: Any = TransformerSpec(encoder, decoder)
    source, target = token_names(translator.source), token_names(translator.target)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    name_special_tokens(spec.config, target)
    spec.config.decoder_start_token, spec.config.add_source_eos = target[BOS], True
    spec.config.layer_norm_epsilon = norm_epsilon(model.encoder[0])
    return spec


def generation_spec(generator: TextGenerator) -> Any:
    from ctranslate2.specs import TransformerDecoderModelSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec

    model = generator.model
    backbone = model.backbone
    assert isinstance(backbone, TransformerLM)
    decoder = TransformerDecoderSpec(with_encoder_attention=False, **stack_options(list(backbone.layers)))
    write_embedding(decoder.embeddings, model.embedding, decoder, backbone.positions, backbone.layers[0])
    write_output(decoder.projection, model.output or model.embedding, model.bias)
    write_layers(decoder, backbone.layers, backbone.norm)
    spec: Any = TransformerDecoderModelSpec(decoder)
    names = token_names(generator.tokenizer)
    spec.register_vocabulary(names)
    name_special_tokens(spec.config, names)
    spec.config.layer_norm_epsilon = norm_epsilon(backbone.layers[0])
    return spec


# --- the engine ---


@dataclass(frozen=True, eq=False)
class CTranslate2Translation(Engine):
    """A translation model that CTranslate2 has loaded."""

    translator: Any  # a ctranslate2.Translator
    source: Sequence[str]
    target: Sequence[str]
    prefix: Ids = ()

    @staticmethod
    def load(folder: Path, translator: Translator, precision: str) -> "CTranslate2Translation":
        import ctranslate2

        loaded = ctranslate2.Translator(str(folder), compute_type=precision, intra_threads=torch.get_num_threads())
        names = (token_names(part) for part in (translator.source, translator.target))
        return CTranslate2Translation(loaded, *names, prefix=translator.target.first_ids)

    def search(self, inputs, beam, max_length):
        found = [results[0] for results in self.translate(inputs, beam, max_length, 1)]
        cut = [at for at, output in enumerate(found) if len(output.ids) == max_length]
        # what met the limit competes there with what has ended, which we rank before it
        for at, results in zip(cut, self.translate([inputs[at] for at in cut], beam, max_length, beam), strict=True):
            found[at] = next((one for one in results if len(one.ids) < max_length), results[0])
        return found

    def translate(self, inputs: Sequence[Ids], beam: int, max_length: int, count: int) -> list[list[Output]]:
        ids = {name: one for one, name in enumerate(self.target)}
        found = self.translator.translate_batch(
            [[self.source[one] for one in row] for row in inputs],
            target_prefix=[[self.target[one] for one in self.prefix]] * len(inputs) if self.prefix else None,
            beam_size=beam,
            num_hypotheses=count,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=max_length,
            max_input_length=0,
            max_batch_size=MAX_BATCH,
            return_scores=True,
        )
        return [
            [
                Output(tuple(ids[name] for name in names), value)
                for names, value in zip(one.hypotheses, one.scores, strict=True)
            ]
            for one in found
        ]

    def search_beam(self, beam: Beam, sources: Sequence[Ids]) -> list[list[Hypothesis]]:
        """The n-best list of each source, by CTranslate2's own search: a beam that is refilled, without penalties."""
        found: dict[int, list[Hypothesis]] = {}
        for rows in group_by_length(sources):  # each length has a limit of its own
            limit = beam.max_length.of(len(sources[rows[0]]))
            results = self.translate([sources[row] for row in rows], beam.size, limit, beam.n_best)
            for row, outputs in zip(rows, results, strict=True):
                pairs = [(one.ids, one.log_probability) for one in outputs]
                found[row] = [Hypothesis(ids, (value,), finished=len(ids) < limit, score=value) for ids, value in pairs]
        return [found[row] for row in range(len(sources))]

    def score(self, inputs, outputs):
        found = self.translator.score_batch(
            [[self.source[one] for one in row] for row in inputs],
            [[self.target[one] for one in row] for row in outputs],
            max_input_length=0,
            max_batch_size=MAX_BATCH,
        )
        return [one.log_probs for one in found]


@dataclass(frozen=True, eq=False)
class CTranslate2Generation(Engine):
    """A language model that CTranslate2 has loaded."""

    generator: Any  # a ctranslate2.Generator
    names: Sequence[str]
    never: int = PAD  # an id that is never generated
    suppressed: Ids = ()

    @staticmethod
    def load(folder: Path, generator: TextGenerator, precision: str) -> "CTranslate2Generation":
        import ctranslate2

        loaded = ctranslate2.Generator(str(folder), compute_type=precision, intra_threads=torch.get_num_threads())
        found = CTranslate2Generation(loaded, token_names(generator.tokenizer))
        if isinstance(generator.tokenizer, PretrainedTokenizer):  # whose padding may be a token, and whose BOS is none
            return replace(found, never=BOS, suppressed=(PAD,))
        return found

    def search(self, inputs, beam, max_length):
        found = self.generator.generate_batch(
            [[self.names[one] for one in row] for row in inputs],
            beam_size=beam,
            length_penalty=0,
            min_length=0,
            max_length=max_length,
            end_token=self.names[self.never],  # so that no token ends a text
            suppress_sequences=[[self.names[one]] for one in self.suppressed],
            include_prompt_in_result=False,
            max_batch_size=MAX_BATCH,
            return_scores=True,
        )
        return [Output(tuple(one.sequences_ids[0]), one.scores[0]) for one in found]

    def score(self, inputs, outputs):
        rows = [[self.names[one] for one in (*row, *more)] for row, more in zip(inputs, outputs, strict=True)]
        found = self.generator.score_batch(rows, max_batch_size=MAX_BATCH)
        return [one.log_probs[-len(more) :] for one, more in zip(found, outputs, strict=True)]


# --- the format ---


class CTranslate2Format(ExportFormat):
    """model.bin, config.json, the vocabularies, and a tokenizer.json for each."""

    title = "CTranslate2"
    packages = ("ctranslate2",)
    precisions = ("float32", "int8")

    def objections(self, task_model):
        if not isinstance(task_model, Translator | TextGenerator):
            return [
                f"the task {task_model.settings.task!r} has no counterpart there; translation and language models do"
            ]
        model, engine = task_model.model, self.title
        options: dict[str, Any] = {"activations": ACTIVATION_NAMES, "rotary": True, "scores": INNER_PRODUCTS}
        if isinstance(model, Transformer):
            stacks = {
                "source": (model.encoder, model.source_positions),
                "target": (model.decoder, model.target_positions),
            }
        elif isinstance(model, LanguageModel) and isinstance(model.backbone, TransformerLM):
            stacks = {"target": (model.backbone.layers, model.backbone.positions)}
        else:
            return [f"the model {task_model.settings.model.kind!r} is recurrent, and {engine} holds Transformers"]
        found = []
        for side, (layers, positions) in stacks.items():
            found += stack_objections(list(layers), engine, causal=side == "target", **options)
            found += position_objections(positions, engine)
            found += head_norm_objections(layers)
        if isinstance(model, Transformer) and model.embeddings.scale == "output":
            found.append(f"states are scaled before the logits, which {engine} does not")
        return list(dict.fromkeys(found))

    def write(self, task_model, folder, precision):
        spec = translation_spec(task_model) if isinstance(task_model, Translator) else generation_spec(task_model)
        spec.validate()
        spec.optimize(quantization=None if precision == "float32" else precision)
        spec.save(str(folder))
        write_tokenizers(task_model, folder)

    def prove(self, task_model, folder, inputs, precision):
        exact = precision == "float32"
        if isinstance(task_model, TextGenerator):
            engine = CTranslate2Generation.load(folder, task_model, precision)
            return compare_engines(GenerationEngine(task_model.model), engine, inputs.ids, CONTINUATION, exact=exact)
        own = TranslationEngine(task_model.model, task_model.target.first_ids)
        other = CTranslate2Translation.load(folder, task_model, precision)
        max_length = translation_limit(task_model, inputs)
        checks = compare_engines(own, other, inputs.ids, max_length, exact=exact)
        if exact or prepare_objections(task_model.model):
            return checks
        ours = replace(own, model=prepare(task_model.model, precision))  # what 8 bits cost here
        quantized = compare_engines(own, ours, inputs.ids, max_length, exact=False)
        return [*checks, *(replace(check, name=f"{check.name}, Regard's {precision}") for check in quantized)]

    def usage(self, task_model, folder, text):
        text, imports = quote_text(task_model, text)
        if isinstance(task_model, TextGenerator):
            return f"""{imports}import ctranslate2
from tokenizers import Tokenizer

model = ctranslate2.Generator({folder!r})
tokenizer = Tokenizer.from_file({f"{folder}/tokenizer.json"!r})
tokens = tokenizer.encode({text}).tokens
found = model.generate_batch([tokens], max_length=30, sampling_topk=1)
print(tokenizer.decode(found[0].sequences_ids[0], skip_special_tokens=False))
"""
        tag = [token_names(task_model.target)[one] for one in task_model.target.first_ids]
        prefix, rest = (f", target_prefix=[{tag!r}]", f"[{len(tag)}:]") if tag else ("", "")
        given = {"imports": imports, "folder": folder, "text": text, "prefix": prefix, "rest": rest}
        if not sentencepiece_engine(task_model.source):
            return TRANSLATION.format(**given)
        first = [token_names(task_model.source)[one] for one in task_model.source.first_ids]
        return PIECES.format(**given, first="".join(f"{one!r}, " for one in first))


TRANSLATION = """{imports}import ctranslate2
from tokenizers import Tokenizer

model = ctranslate2.Translator("{folder}")
source, target = (Tokenizer.from_file(f"{folder}/{{side}}_tokenizer.json") for side in ("source", "target"))
tokens = source.encode({text}).tokens
best = model.translate_batch([tokens], beam_size=4{prefix})[0].hypotheses[0]{rest}
print(target.decode([target.token_to_id(token) for token in best]))
"""
PIECES = """{imports}import ctranslate2
from sentencepiece import SentencePieceProcessor

model = ctranslate2.Translator("{folder}")
source, target = (SentencePieceProcessor(f"{folder}/{{side}}_tokenizer.model") for side in ("source", "target"))
tokens = [{first}*source.encode({text}, out_type=str)]
best = model.translate_batch([tokens], beam_size=4{prefix})[0].hypotheses[0]{rest}
print(target.decode_pieces(best))
"""


def head_norm_objections(layers: Iterable[nn.Module]) -> list[str]:
    """Of queries and keys: there they are root mean squares, and of self-attention alone; outputs are neither normed
    nor gated."""
    parts = attentions_of(layers)
    if any(part.output_norm is not None or part.output_gate is not None for each in parts.values() for part in each):
        return ["the outputs of the heads are normed or gated, and there they are not"]
    norms = [part.query_norm for each in parts.values() for part in each if part.query_norm is not None]
    if norms and "cross-attention" in parts:
        return [f"the queries and keys of cross-attention are normed by {norms[0]}, and there they are not"]
    strange = [norm for norm in norms if not isinstance(norm, nn.RMSNorm)]
    return [f"queries and keys are normed by {strange[0]}, and there by RMS norm"] if strange else []
