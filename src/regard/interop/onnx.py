"""ONNX: our network by torch.onnx.export, and a model that runs it in onnxruntime behind our own searches.

A sequence-to-sequence Transformer is two graphs: encoder.onnx (source, lengths) gives each decoder layer's keys and
values of the source, decoder.onnx (tokens, lengths, the KV cache, those keys and values) the logits and the next cache.
A language model is decoder.onnx alone; a classifier is model.onnx. Batch and lengths are free in all of them.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import KVCache, MultiHeadAttention, NoGate
from regard.data.tokenizers.base import UNK
from regard.decode.text_generation import has_growing_cache
from regard.interop.export_format import (
    CONTINUATION,
    ExportFormat,
    GenerationEngine,
    LabelEngine,
    TranslationEngine,
    attentions_of,
    compare_engines,
    quote_text,
    sentencepiece_engine,
    translation_limit,
    write_tokenizers,
)
from regard.layers.transformer_layers import DecoderLayer, EncoderLayer
from regard.models.encoder import MaskedLanguageModel, SequenceClassifier, TokenClassifier
from regard.models.language_model import LanguageModel, TransformerLM
from regard.models.seq2seq import DecoderState, Memory, inference_mode
from regard.models.transformer import EncodedSource, KVCaches, Transformer
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.sequence_classification.task import TextClassifier
from regard.tasks.tagging.task import Tagger
from regard.tasks.translation.task import Translator

ENCODER, DECODER, MODEL = "encoder.onnx", "decoder.onnx", "model.onnx"
# of the example that is traced: no two are the same, none is 1, and any other size may follow
BATCH, SOURCE, PAST, TARGET = 3, 7, 5, 2


# --- the graphs: our network, its state given and returned as tensors ---


class EncoderGraph(nn.Module):
    """Each decoder layer's keys and values of the sources."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> list[Tensor]:
        return [part for pair in self.model.encode(source, lengths).layers for part in pair]


class DecoderGraph(nn.Module):
    """The logits of what follows each token, and the KV cache with these tokens."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, lengths: Tensor, past: list[Tensor], source: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        memory = EncodedSource(tuple(zip(source[::2], source[1::2], strict=True)), lengths)
        logits, state = self.model.step(tokens, read_caches(past), memory)
        return logits, list_caches(state)


class LanguageModelGraph(nn.Module):
    """The same of a language model."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        logits, state = self.model.step(tokens, read_caches(past))
        return logits, list_caches(state)


class LabelGraph(nn.Module):
    """The logits of each text's labels, or of each token's."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if isinstance(self.model, SequenceClassifier):
            return self.model(tokens, lengths)[:, None]
        if isinstance(self.model, MaskedLanguageModel):
            return self.model(tokens, lengths)
        every = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return self.model(tokens, lengths, every)


def read_caches(past: Sequence[Tensor]) -> KVCaches:
    pairs = zip(past[::2], past[1::2], strict=True)
    return KVCaches(tuple(KVCache((k, v), k.shape[2]) for k, v in pairs))


def list_caches(state: Any) -> list[Tensor]:
    return [part for cache in state.layers for part in cache.past]


# --- writing ---


@dataclass(frozen=True)
class CacheShape:
    """The sizes of a KV cache: layers, key and value heads, and their width."""

    layers: int
    groups: int
    head: int

    @staticmethod
    def of(layers: Sequence[nn.Module], *, cross: bool = False) -> "CacheShape":
        first = layers[0]
        assert isinstance(first, EncoderLayer | DecoderLayer)
        attention = first.cross if cross and isinstance(first, DecoderLayer) else first.attention
        assert isinstance(attention.key, nn.Linear)
        return CacheShape(len(layers), attention.groups, attention.key.out_features // attention.groups)

    def example(self, batch: int, length: int) -> list[Tensor]:
        return [torch.randn(batch, self.groups, length, self.head) for _ in range(2 * self.layers)]

    def names(self, name: str) -> list[str]:
        return [f"{name}.{layer}.{part}" for layer in range(self.layers) for part in ("key", "value")]

    def free(self, *sizes: Any) -> list[dict[int, Any]]:
        """Which of the axes are free: those of the batch and of the tokens."""
        return [dict(zip((0, 2), sizes, strict=True)) for _ in range(2 * self.layers)]


def write_graph(
    graph: nn.Module, example: tuple[Any, ...], free: dict[str, Any], names: tuple[list[str], list[str]], path: Path
) -> None:
    inputs, outputs = names
    with torch.no_grad(), quiet_exporter():
        program = torch.onnx.export(
            graph.eval(),
            example,
            dynamic_shapes=free,
            input_names=inputs,
            output_names=outputs,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(path))


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Without what torch says of its own parts."""
    import logging

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def write_transformer(model: Transformer, folder: Path) -> None:
    size = torch.export.Dim.DYNAMIC
    past, source = CacheShape.of(list(model.decoder)), CacheShape.of(list(model.decoder), cross=True)
    lengths = torch.tensor([SOURCE, SOURCE - 2, SOURCE - 1])
    write_graph(
        EncoderGraph(model),
        (torch.full((BATCH, SOURCE), UNK), lengths),
        {"source": {0: size, 1: size}, "lengths": {0: size}},
        (["source", "lengths"], source.names("source")),
        folder / ENCODER,
    )
    write_graph(
        DecoderGraph(model),
        (torch.full((BATCH, TARGET), UNK), lengths, past.example(BATCH, PAST), source.example(BATCH, SOURCE)),
        {
            "tokens": {0: size, 1: size},
            "lengths": {0: size},
            "past": past.free(size, size),
            "source": source.free(size, size),
        },
        (
            ["tokens", "lengths", *past.names("past"), *source.names("source")],
            ["logits", *past.names("present")],
        ),
        folder / DECODER,
    )


def write_language_model(model: LanguageModel, folder: Path) -> None:
    size, backbone = torch.export.Dim.DYNAMIC, model.backbone
    assert isinstance(backbone, TransformerLM)
    past = CacheShape.of(list(backbone.layers))
    write_graph(
        LanguageModelGraph(model),
        (torch.full((BATCH, TARGET), UNK), past.example(BATCH, PAST)),
        {"tokens": {0: size, 1: size}, "past": past.free(size, size)},
        (["tokens", *past.names("past")], ["logits", *past.names("present")]),
        folder / DECODER,
    )


def write_classifier(model: nn.Module, folder: Path) -> None:
    size = torch.export.Dim.DYNAMIC
    write_graph(
        LabelGraph(model),
        (torch.full((BATCH, SOURCE), UNK), torch.tensor([SOURCE, SOURCE - 2, SOURCE - 1])),
        {"tokens": {0: size, 1: size}, "lengths": {0: size}},
        (["tokens", "lengths"], ["logits"]),
        folder / MODEL,
    )


# --- running ---


def open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each of onnxruntime's own has another class
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged or no ONNX model ({reason}); export the run again") from None


def run_session(session: Any, *inputs: Tensor) -> list[Tensor]:
    names = [one.name for one in session.get_inputs()]
    given = {name: tensor.detach().numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(found) for found in session.run(None, given)]


@dataclass(frozen=True, eq=False)
class OnnxMemory(Memory):
    """The encoded sources."""

    keys_values: tuple[Tensor, ...]
    lengths: Int[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class OnnxState(DecoderState):
    """The KV cache."""

    past: tuple[Tensor, ...]


class OnnxModel(nn.Module):
    """Abstract: graphs in onnxruntime behind the interface of our models; one parameter says where tensors are."""

    def __init__(self, decoder: Any):
        super().__init__()
        self.decoder, self.where = decoder, nn.Parameter(torch.zeros(0), requires_grad=False)
        self.past = [one for one in decoder.get_inputs() if one.name.startswith("past.")]

    def empty_cache(self, batch: int) -> OnnxState:
        shapes = [(batch, one.shape[1], 0, one.shape[3]) for one in self.past]
        return OnnxState(tuple(torch.zeros(shape) for shape in shapes))


class OnnxTransformer(OnnxModel):
    """A sequence-to-sequence model: our searches encode, start and step it as they do our own."""

    def __init__(self, encoder: Any, decoder: Any):
        super().__init__(decoder)
        self.encoder = encoder

    @staticmethod
    def load(folder: Path) -> "OnnxTransformer":
        return OnnxTransformer(open_session(folder / ENCODER), open_session(folder / DECODER))

    def encode(self, source: Tensor, lengths: Tensor) -> OnnxMemory:
        return OnnxMemory(tuple(run_session(self.encoder, source, lengths)), lengths)

    def start(self, memory: OnnxMemory) -> OnnxState:
        return self.empty_cache(memory.lengths.shape[0])

    def step(self, tokens: Tensor, state: OnnxState, memory: OnnxMemory) -> tuple[Tensor, OnnxState]:
        logits, *past = run_session(self.decoder, tokens, memory.lengths, *state.past, *memory.keys_values)
        return logits, OnnxState(tuple(past))


class OnnxLanguageModel(OnnxModel):
    """A language model, read at once or token by token; its graph ends with logits."""

    @staticmethod
    def load(folder: Path) -> "OnnxLanguageModel":
        return OnnxLanguageModel(open_session(folder / DECODER))

    @property
    def embedding(self) -> Any:
        """Whose weight says where tensors are."""
        return _Place(self.where)

    def start(self, batch: int) -> OnnxState:
        return self.empty_cache(batch)

    def decode_hidden(self, tokens: Tensor, state: OnnxState) -> tuple[Tensor, OnnxState]:
        logits, *past = run_session(self.decoder, tokens, *state.past)
        return logits, OnnxState(tuple(past))

    def logits(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class _Place:
    weight: Tensor


@dataclass(frozen=True, eq=False)
class OnnxLabels(LabelEngine):
    """A classifier in onnxruntime."""

    session: Any

    def logits(self, tokens, lengths):
        return run_session(self.session, tokens, lengths)[0]


@dataclass(frozen=True, eq=False)
class OwnLabels(LabelEngine):
    """Our own classifier."""

    model: nn.Module

    def logits(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b n labels"]:
        with inference_mode(self.model):
            return LabelGraph(self.model)(tokens, lengths)


# --- the format ---


class OnnxFormat(ExportFormat):
    """Graphs for onnxruntime, a tokenizer.json for each vocabulary, labels.json of classifiers."""

    title = "ONNX"
    packages = ("onnx", "onnxscript", "onnxruntime")

    def objections(self, task_model):
        if isinstance(task_model, TextClassifier | Tagger):
            model, kind = task_model.model, task_model.settings.model.kind
            if not isinstance(model, SequenceClassifier | TokenClassifier):
                return ["a bag of words has no graph; it is one product with counts"]
            found = [] if kind in ("transformer", "embed") else [recurrent_objection(kind)]
            if isinstance(model, TokenClassifier) and model.char_encoder is not None:
                found.append("the characters of words are read by a recurrent network, whose lengths a graph fixes")
            if model.encoder.needs_governors:
                found.append(f"the position {model.encoder.positions.recipe.position} needs dependency trees")
            return found
        if not isinstance(task_model, Translator | TextGenerator):
            return [f"the task {task_model.settings.task!r} is not exported to {self.title} yet"]
        model = task_model.model
        if not isinstance(model.backbone if isinstance(model, LanguageModel) else model, Transformer | TransformerLM):
            return [recurrent_objection(task_model.settings.model.kind)]
        layers = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
        if forms := [part.form for part in layers if part.form is not None]:
            return [f"{forms[0]} keeps something else than keys and values of each token, which a graph has not"]
        if gates := [part.recipe.gate for part in layers if not isinstance(part.recipe.gate, NoGate)]:
            return [f"the gate {gates[0]} keeps more of each token than keys and values, which a graph has not"]
        if isinstance(model, LanguageModel) and not has_growing_cache(model):
            assert isinstance(model.backbone, TransformerLM)
            recipe = attentions_of(model.backbone.layers)["self-attention"][0].recipe
            return [f"the KV cache of {recipe.pattern} and {recipe.normaliser} is bounded, and that of a graph grows"]
        return []

    def write(self, task_model, folder, precision):
        model = task_model.model
        if isinstance(model, Transformer):
            write_transformer(model, folder)
        elif isinstance(model, LanguageModel):
            write_language_model(model, folder)
        else:
            write_classifier(model, folder)
        if isinstance(task_model, TextClassifier | Tagger):
            task_model.labels.save(folder / "labels.json")
        write_tokenizers(task_model, folder)

    def prove(self, task_model, folder, inputs, precision):
        if isinstance(task_model, Translator):
            own = TranslationEngine(task_model.model, task_model.target.first_ids)
            other = replace(own, model=OnnxTransformer.load(folder))
            return compare_engines(own, other, inputs.ids, translation_limit(task_model, inputs))
        if isinstance(task_model, TextGenerator):
            own, other = GenerationEngine(task_model.model), GenerationEngine(OnnxLanguageModel.load(folder))
            return compare_engines(own, other, inputs.ids, CONTINUATION)
        own, other = OwnLabels(task_model.model), OnnxLabels(open_session(folder / MODEL))
        return [replace(check, name="labels") for check in compare_engines(own, other, inputs.ids, 1, beams=(1,))]

    def usage(self, task_model, folder, text):
        text, imports = quote_text(task_model, text)
        if isinstance(task_model, Translator):
            start = f"[{', '.join(['BOS', *map(str, task_model.target.first_ids)])}]"
            given = {"imports": imports, "folder": folder, "start": start}
            if not sentencepiece_engine(task_model.source):
                encode, decode = f"source.encode({text}).ids", "target.decode(written[:-1])"
                return TRANSLATION.format(
                    **given, reader=TOKENIZERS.format(folder=folder), encode=encode, decode=decode
                )
            first = "".join(f"{one}, " for one in task_model.source.first_ids)
            encode = f"{first}*(ids.get(piece, {UNK}) for piece in source.encode({text}, out_type=str))"
            decode = "target.decode_pieces([pieces[one] for one in written[:-1]])"
            return TRANSLATION.format(**given, reader=PIECES.format(folder=folder), encode=f"[{encode}]", decode=decode)
        if isinstance(task_model, TextGenerator):
            return GENERATION.format(imports=imports, folder=folder, text=text)
        return LABELS.format(imports=imports, folder=folder, text=text)


def recurrent_objection(kind: str) -> str:
    return f"the model {kind!r} is recurrent, and a graph would fix the lengths of its texts; Transformers are written"


# --- how they are used, without Regard ---

TOKENIZERS = """from tokenizers import Tokenizer

source, target = (Tokenizer.from_file(f"{folder}/{{side}}_tokenizer.json") for side in ("source", "target"))
"""
PIECES = """import json

from sentencepiece import SentencePieceProcessor

source, target = (SentencePieceProcessor(f"{folder}/{{side}}_tokenizer.model") for side in ("source", "target"))
ids, written_ids = (json.load(open(f"{folder}/{{side}}_tokenizer.json")) for side in ("source", "target"))
pieces = {{one: piece for piece, one in written_ids.items()}}
"""
TRANSLATION = """{imports}import numpy as np
import onnxruntime
{reader}
encoder = onnxruntime.InferenceSession("{folder}/encoder.onnx")
decoder = onnxruntime.InferenceSession("{folder}/decoder.onnx")

BOS, EOS = 1, 2
tokens = np.array([[*{encode}, EOS]])
given = {{"source": tokens, "lengths": np.array([tokens.shape[1]])}}
names = [one.name for one in encoder.get_outputs()]
memory = dict(zip(names, encoder.run(None, given)))
past = {{
    one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
    for one in decoder.get_inputs()
    if one.name.startswith("past.")
}}
written, unread = [], {start}
while EOS not in written and len(written) < 100:  # greedy search
    given = {{"tokens": np.array([unread]), "lengths": np.array([tokens.shape[1]]), **past, **memory}}
    logits, *present = decoder.run(None, given)
    past = dict(zip(past, present))
    unread = [int(logits[0, -1].argmax())]
    written += unread
print({decode})
"""
GENERATION = """{imports}import numpy as np
import onnxruntime
from tokenizers import Tokenizer

decoder = onnxruntime.InferenceSession("{folder}/decoder.onnx")
tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")

written = tokenizer.encode({text}).ids
unread = np.array([written])
past = {{
    one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
    for one in decoder.get_inputs()
    if one.name.startswith("past.")
}}
for _ in range(20):  # greedy search
    logits, *present = decoder.run(None, {{"tokens": unread, **past}})
    past = dict(zip(past, present))
    written.append(int(logits[0, -1].argmax()))
    unread = np.array([written[-1:]])
print(tokenizer.decode(written))
"""
LABELS = """{imports}import json

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

model = onnxruntime.InferenceSession("{folder}/model.onnx")
tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")
names = json.load(open("{folder}/labels.json"))["names"]

tokens = np.array([tokenizer.encode({text}).ids])
(logits,) = model.run(None, {{"tokens": tokens, "lengths": np.array([tokens.shape[1]])}})
print([names[label] for label in logits[0].argmax(-1)])
"""
