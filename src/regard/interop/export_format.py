"""Export formats: the interface of those that a run is exported to, proofs of outputs, tokenizer.json, and objections.

A proof sends the same inputs through our model and through the exported one and says how far they agree.
"""

import base64
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import tokenizers as library
import torch
from jaxtyping import Float, Int
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.attention import (
    Causal,
    Dot,
    Full,
    Learned,
    MultiHeadAttention,
    NoGate,
    Rotary,
    ScaledDot,
    Sinusoidal,
    Softmax,
)
from regard.attention.position import QueryKeyPosition
from regard.data import ByteTokenizer, CharTokenizer, SubwordTokenizer, TextNormalizer, Tokenizer, WordTokenizer
from regard.data.files import require_small_file, write_text_atomic
from regard.data.tokenizers.base import BOS, EOS, NUM_SPECIAL_TOKENS, PAD, UNK, LosslessTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer, SentencePieceEngine, TokenizersEngine
from regard.data.tokenizers.subwords import UNICODE_TO_BYTE
from regard.decode.alignment import score_targets
from regard.decode.beam import Beam
from regard.decode.search import DecodableModel, LengthLimit
from regard.decode.text_generation import batched_continuation_search
from regard.decode.topk import log_probabilities
from regard.decode.translation import translate_all
from regard.interop.huggingface.families import MAX_POSITIONS
from regard.layers.embedding import PositionalEmbedding
from regard.layers.transformer_layers import ACTIVATIONS, DecoderLayer, EncoderLayer, PostNorm, PreNorm
from regard.models.seq2seq import inference_mode
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.translation.task import Translator

PROOF = "proof.json"
FORMAT = "regard proof 1"
TOLERANCE = 1e-3  # by which the log-probability of a token may differ in float32
BEAMS = (1, 4)
CONTINUATION = 24  # tokens that a language model writes after a prompt
PROMPT = 12  # tokens of a prompt at most
MAX_DRAWN = 12  # tokens of an input at most that is drawn, as there are no texts
CHUNK = 2**16  # bytes of a file that are hashed at once

Ids = tuple[int, ...]


# --- inputs and outputs ---


@dataclass(frozen=True)
class ProofInputs:
    """What both models are given.

    Args:
        ids: of each input.
        origin: where they are from, for people.
        texts: of each input, as tokenizer.json is given them; none if the ids were drawn.
    """

    ids: tuple[Ids, ...]
    origin: str
    texts: tuple[str, ...] = ()

    @staticmethod
    def drawn(count: int, vocabulary: int, why: str) -> "ProofInputs":
        """Ids at random, always the same."""
        draw, ordinary = Random(0), range(NUM_SPECIAL_TOKENS, vocabulary)
        rows = (tuple(draw.choices(ordinary, k=draw.randint(1, MAX_DRAWN))) for _ in range(count))
        return ProofInputs(tuple(rows), f"ids drawn at random ({why})")


@dataclass(frozen=True)
class Output:
    """The tokens that a model gave for an input, and their log-probability."""

    ids: Ids
    log_probability: float


class Engine(ABC):
    """Abstract: whatever runs a model, ours or exported."""

    @abstractmethod
    def search(self, inputs: Sequence[Ids], beam: int, max_length: int) -> list[Output]:
        """The best hypothesis of each input, of at most so many tokens; a beam of 1 is greedy search. Beams are
        refilled, and no penalty is applied."""

    @abstractmethod
    def score(self, inputs: Sequence[Ids], outputs: Sequence[Ids]) -> list[list[float]]:
        """The log-probability of each token of these outputs."""


@dataclass(frozen=True, eq=False)
class TranslationEngine(Engine):
    """Our searches on a sequence-to-sequence model, or on one that stands for it; a target text begins with `prefix`,
    the tag of its language."""

    model: DecodableModel
    prefix: Ids = ()

    def search(self, inputs, beam, max_length):
        search = Beam(beam, max_length=LengthLimit(0, max_length), refill=True)
        found = translate_all(self.model, inputs, search, prefixes=[self.prefix] * len(inputs))
        return [Output(best.ids, best.log_probability) for best, *_ in found]

    def score(self, inputs, outputs):
        return [list(found.scores) for found in score_targets(self.model, inputs, outputs)]


@dataclass(frozen=True, eq=False)
class GenerationEngine(Engine):
    """Our searches on a language model; as everywhere here, EOS does not end a text."""

    model: Any  # a LanguageModel, or what stands for one

    def search(self, inputs, beam, max_length):
        found: dict[int, Output] = {}
        for rows in group_by_length(inputs):
            with inference_mode(self.model):
                prompts = [inputs[row] for row in rows]
                hypotheses = batched_continuation_search(self.model, prompts, Beam(beam, refill=True), max_length).run()
            found |= {row: Output(best.ids, best.log_probability) for row, [best] in zip(rows, hypotheses, strict=True)}
        return [found[row] for row in range(len(inputs))]

    def score(self, inputs, outputs):
        found: dict[int, list[float]] = {}
        for rows in group_by_length([(*row, *more) for row, more in zip(inputs, outputs, strict=True)]):
            tokens = torch.tensor([[*inputs[row], *outputs[row]] for row in rows])
            with inference_mode(self.model):
                x, _ = self.model.decode_hidden(tokens[:, :-1], self.model.start(len(rows)))
                scores = log_probabilities(self.model.logits(x)).gather(2, tokens[:, 1:, None])[..., 0].tolist()
            found |= {row: each[len(inputs[row]) - 1 :] for row, each in zip(rows, scores, strict=True)}
        return [found[row] for row in range(len(inputs))]


def group_by_length(rows: Sequence[Ids]) -> list[list[int]]:
    """The indices of rows that are as long as each other."""
    found: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(len(row), []).append(index)
    return list(found.values())


class LabelEngine(Engine):
    """Abstract: a classifier of texts or of tokens, whose output are labels, the most probable ones."""

    @abstractmethod
    def logits(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b n labels"]:
        """A row of logits for each text, or for each of its tokens."""

    def log_probabilities(self, inputs: Sequence[Ids]) -> list[Float[Tensor, "n labels"]]:
        rows, lengths = [torch.tensor(one) for one in inputs], torch.tensor([len(one) for one in inputs])
        found = self.logits(pad_sequence(rows, batch_first=True, padding_value=PAD), lengths).log_softmax(-1)
        return [row[:length] for row, length in zip(found, lengths.tolist(), strict=True)]

    def search(self, inputs, beam, max_length):
        best = [scores.max(-1) for scores in self.log_probabilities(inputs)]
        return [Output(tuple(one.indices.tolist()), float(one.values.sum())) for one in best]

    def score(self, inputs, outputs):
        scores = self.log_probabilities(inputs)
        return [
            row.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist() for row, ids in zip(scores, outputs, strict=True)
        ]


# --- checks ---


@dataclass(frozen=True)
class Check:
    """One comparison of the two models.

    Args:
        name: of the search, or what else is compared.
        sentences: how many outputs are compared, and `identical` how many are the same.
        tokens: of our own outputs.
        largest_difference: of the log-probability of a token of these outputs, in either model.
        exact: whether all outputs must be the same; not those of quantised weights.
        mean_log_probability: of a token of our outputs, and of one of the others, by our model in float32; where they
            need not be the same.
        first: our output and the other one, where they differ first.
    """

    name: str
    sentences: int
    identical: int
    tokens: int
    largest_difference: float = 0.0
    exact: bool = True
    mean_log_probability: tuple[float, float] | None = None
    first: tuple[int, Ids, Ids] | None = None

    def failure(self) -> str | None:
        """What is wrong, in a clause."""
        if not self.exact:
            return None
        if self.first is not None:
            at, own, other = self.first
            return (
                f"{self.sentences - self.identical} of {self.sentences} outputs differ ({self.name}), first that of "
                f"input {at + 1}: {list(own)} became {list(other)}"
            )
        if not self.largest_difference <= TOLERANCE:
            return f"a log-probability differs by {self.largest_difference:.2g} ({self.name}), more than {TOLERANCE}"
        return None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"check": self.name, "sentences": self.sentences, "identical": self.identical}
        found |= {"tokens": self.tokens, "largest_difference": self.largest_difference}
        if self.mean_log_probability is not None:
            own, other = self.mean_log_probability
            found |= {"mean_log_probability": {"float32": own, "here": other}}
        return found


def compare_outputs(name: str, own: Sequence[Ids], other: Sequence[Ids], *, exact: bool = True) -> Check:
    pairs = list(zip(own, other, strict=True))
    differing = [(at, tuple(one), tuple(two)) for at, (one, two) in enumerate(pairs) if tuple(one) != tuple(two)]
    first = differing[0] if differing else None
    return Check(name, len(pairs), len(pairs) - len(differing), sum(map(len, own)), exact=exact, first=first)


def compare_engines(
    own: Engine,
    other: Engine,
    inputs: Sequence[Ids],
    max_length: int,
    *,
    beams: Sequence[int] = BEAMS,
    exact: bool = True,
) -> list[Check]:
    """The outputs of each search, and the log-probabilities of our own ones in either engine."""
    found = []
    for beam in beams:
        ours, theirs = ([one.ids for one in engine.search(inputs, beam, max_length)] for engine in (own, other))
        check = compare_outputs("greedy" if beam == 1 else f"beam {beam}", ours, theirs, exact=exact)
        scores, others = own.score(inputs, ours), other.score(inputs, ours)
        pairs = [pair for rows in zip(scores, others, strict=True) for pair in zip(*rows, strict=True)]
        check = replace(check, largest_difference=max((abs(one - two) for one, two in pairs), default=0.0))
        if not exact:
            check = replace(check, mean_log_probability=(mean(scores), mean(own.score(inputs, theirs))))
        found.append(check)
    return found


def mean(scores: Sequence[Sequence[float]]) -> float:
    """Of a token."""
    return sum(map(sum, scores)) / max(1, sum(map(len, scores)))


# --- the proof ---


@dataclass(frozen=True)
class Proof:
    """That an exported model gives the outputs of ours.

    Args:
        engine: what ran the exported model, with the versions of all packages that took part.
        precision: of its weights.
        origin: of the inputs.
        checks: all comparisons.
        run_weights: the SHA-256 of the run's own weights.
        files: that of each file that was written, by its name.
    """

    engine: str
    precision: str
    versions: dict[str, str]
    origin: str
    checks: tuple[Check, ...]
    run_weights: str
    files: dict[str, str]

    @property
    def exact(self) -> bool:
        """Whether every output was the same."""
        return all(check.identical == check.sentences for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        agreement = {"identical": self.exact}
        if self.precision != "float32":
            agreement = {"share_identical": {check.name: check.identical / check.sentences for check in self.checks}}
        return {
            "format": FORMAT,
            "engine": self.engine,
            "precision": self.precision,
            "versions": self.versions,
            "inputs": self.origin,
            **agreement,
            "largest_difference": max(check.largest_difference for check in self.checks),
            "checks": [check.to_json() for check in self.checks],
            "run_weights_sha256": self.run_weights,
            "sha256": self.files,
        }

    def save(self, folder: Path) -> None:
        write_text_atomic(folder / PROOF, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: version(name) for name in ("regard", "torch", *packages)}


def hash_files(folder: Path) -> dict[str, str]:
    """Of every file but the proof itself and what is for people."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (PROOF, "README.md"))
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def hash_file(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            found.update(block)
    return found.hexdigest()


def read_proof(folder: Path) -> dict[str, Any]:
    """The proof of an exported folder, if its files are still those that were proved."""
    path = folder / PROOF
    if not path.is_file():
        raise ValueError(f"{folder} has no {PROOF}: nothing shows that its model is ours; export it with regard export")
    try:
        proof = json.loads(require_small_file(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); export the run again") from None
    if not isinstance(proof, dict) or proof.get("format") != FORMAT or not isinstance(proof.get("sha256"), dict):
        raise ValueError(f"{path} is no proof of this Regard; export the run again")
    found = hash_files(folder)
    for name in sorted(found.keys() | proof["sha256"].keys()):
        if found.get(name) != proof["sha256"].get(name):
            missing = "is missing" if name not in found else "was changed or added after the proof"
            raise ValueError(f"{folder / name} {missing}, so {PROOF} says nothing of it; export the run again")
    return proof


# --- formats ---

INNER_PRODUCTS = (ScaledDot, Dot)
SPECIAL_NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}
NEVER = -1e9  # the score of a special token of a unigram model, which any other spelling exceeds
NO_TEXT = "\0"
FORMS = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}


class ExportFormat(ABC):
    """Abstract: a folder that another engine loads. `task_model` is a `PretrainedModel`.

    Attributes:
        title: the engine's name.
        packages: that write and run it.
        precisions: of its weights.
    """

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]] = ("float32",)

    @abstractmethod
    def objections(self, task_model: Any) -> list[str]:
        """Why a model cannot be written: clauses that name the part; none means that it can."""

    @abstractmethod
    def write(self, task_model: Any, folder: Path, precision: str) -> None:
        """All that the engine reads, into a folder that is empty."""

    @abstractmethod
    def prove(self, task_model: Any, folder: Path, inputs: ProofInputs, precision: str) -> Sequence[Check]:
        """The same inputs through the model and through what was written."""

    @abstractmethod
    def usage(self, task_model: Any, folder: str, text: str) -> str:
        """Python that loads the folder, runs the model on this text and prints its output."""

    def copy_extras(self, run: Path, folder: Path) -> None:
        """What else of a run's folder belongs to what was written; most formats have no place for more."""
        return

    def encode(self, task_model: Any, folder: Path, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, by the tokenizer that was written; those of the input alone."""
        name, tokenizer = next(iter(used_tokenizers(task_model).items()))
        if sentencepiece_engine(tokenizer):
            return encode_pieces(folder, name, tokenizer.first_ids, texts)
        found = library.Tokenizer.from_file(str(folder / f"{name}.json"))
        return [one.ids for one in found.encode_batch(list(texts))]

    def require_packages(self) -> None:
        """One line that says how to get what is missing."""
        if missing := [name for name in self.packages if find_spec(name) is None]:
            raise ValueError(f"an export to {self.title} needs {missing[0]}; pip install 'regard[interop]'")


# --- tokenizer.json: our tokenizers as those of the `tokenizers` library, with the same ids. Our special ids stand for
# no text, so those of the library are not added tokens: "<s>" in a sentence stays text. ---


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A name for each id, all of them distinct: the word, the character, the piece in GPT-2's alphabet of bytes."""
    names = piece_names(tokenizer)
    own = special_names(names)
    if isinstance(tokenizer, PretrainedTokenizer):  # which has names for them, if they are tokens of it
        own = [tokenizer.piece(one) if is_own_token(tokenizer, one) else name for one, name in enumerate(own)]
    return [*own, *names]


def is_own_token(tokenizer: PretrainedTokenizer, one: int) -> bool:
    """Whether an id is a token of the tokenizer's own, and no other id is."""
    return tokenizer.from_foreign.get(tokenizer.to_foreign[one]) == one


def piece_names(tokenizer: Tokenizer) -> list[str]:
    if isinstance(tokenizer, WordTokenizer):
        return list(tokenizer.vocabulary)
    if isinstance(tokenizer, CharTokenizer):
        return [*(f"<0x{byte:02X}>" for byte in range(256)), *tokenizer.vocabulary]
    if isinstance(tokenizer, SubwordTokenizer | ByteTokenizer):
        signs = {byte: sign for sign, byte in UNICODE_TO_BYTE.items()}
        return ["".join(signs[byte] for byte in piece) for piece in tokenizer.pieces]
    if isinstance(tokenizer, PretrainedTokenizer):
        return [tokenizer.piece(one) for one in range(NUM_SPECIAL_TOKENS, tokenizer.size)]
    raise ValueError(
        f"a tokenizer of the kind {tokenizer.kind!r} has no tokenizer.json; export words, bytes or subwords"
    )


def special_names(taken: Iterable[str]) -> list[str]:
    """Names of PAD, BOS, EOS and UNK; a corpus may have words such as "<unk>", and then they differ from these."""
    known, found = set(taken), []
    for name in SPECIAL_NAMES.values():
        while name in known:
            name = f"<{name}>"
        found.append(name)
    return found


def export_tokenizer(
    tokenizer: Tokenizer, *, before: Sequence[int] = (), after: Sequence[int] = (), opening: str = ""
) -> library.Tokenizer:
    """The library's tokenizer. All of `TextNormalizer` is part of it but the word tokenization of a language, which
    comes first.

    Args:
        before, after: special ids around every text.
        opening: stands before every text, and is not part of what ids are decoded to.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        return export_pretrained(tokenizer, before=before, after=after)
    made = library.Tokenizer(export_model(tokenizer))
    made.normalizer = export_normalizer(tokenizer, opening)
    strip = [decoders.Strip(sign, 1, 0) for sign in opening]
    if isinstance(tokenizer, WordTokenizer):
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif isinstance(tokenizer, CharTokenizer):
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *strip])
    elif isinstance(tokenizer, SubwordTokenizer):
        made.pre_tokenizer = library.Tokenizer.from_str(tokenizer.model).pre_tokenizer
        strip = [decoders.Strip(" ", 1, 0), *strip]
        made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), *strip])
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), *strip])
    names = token_names(tokenizer)
    return with_frame(made, {one: (names[one], one) for one in (*before, *after)}, before, after)


def with_frame(
    made: library.Tokenizer, tokens: Mapping[int, tuple[str, int]], before: Sequence[int], after: Sequence[int]
) -> library.Tokenizer:
    """With ids before and after every text, whose names and ids there are `tokens`."""
    if before or after:
        template = [*(tokens[one][0] for one in before), "$A", *(tokens[one][0] for one in after)]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(tokens.values()))
    return made


def export_pretrained(
    tokenizer: PretrainedTokenizer, *, before: Sequence[int] = (), after: Sequence[int] = (), own_ids: bool = False
) -> library.Tokenizer:
    """A tokenizer.json that a model was imported with, its ids in our order, or with `own_ids` as they were.

    Special tokens that are written in a text are plain text, unless the tokenizer reads them as such.
    """
    if not isinstance(tokenizer.engine, TokenizersEngine):
        raise ValueError(
            "the tokenizer is a model of SentencePiece, which has no tokenizer.json; exported are models that were "
            "imported with a tokenizer.json"
        )
    described = json.loads(tokenizer.engine.model) | {"post_processor": None, "truncation": None, "padding": None}
    if not own_ids:
        described = renumber_tokens(described, tokenizer, markup=tokenizer.engine.markup)
    made, names = library.Tokenizer.from_str(json.dumps(described)), token_names(tokenizer)
    if wrong := [n for n, name in enumerate(names) if not own_ids and made.token_to_id(name) not in (n, None)]:
        raise ValueError(f"the token {names[wrong[0]]!r} cannot have the id {wrong[0]} in a tokenizer.json")
    piece, there = tokenizer.piece, tokenizer.to_foreign
    tokens = {one: (piece(one), there[one]) if own_ids else (names[one], one) for one in (*before, *after)}
    return with_frame(made, tokens, before, after)


def renumber_tokens(described: dict[str, Any], tokenizer: PretrainedTokenizer, *, markup: bool) -> dict[str, Any]:
    """What a tokenizer.json holds, with our ids; every token is one of the model's own, so that none gets another."""
    model, added = dict(described["model"]), list(described["added_tokens"])
    listed = isinstance(model["vocab"], list)
    vocabulary = {piece: one for one, (piece, _) in enumerate(model["vocab"])} if listed else dict(model["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in added}
    if outside := [piece for piece, one in vocabulary.items() if one not in tokenizer.from_foreign]:
        raise ValueError(f"the token {outside[0]!r} of the tokenizer has no vector in the model; it cannot be exported")
    ours = {piece: tokenizer.from_foreign[one] for piece, one in vocabulary.items()}
    if listed:
        scores, names = dict(map(tuple, model["vocab"])), token_names(tokenizer)
        by_id = {ours[piece]: piece for piece in scores}
        # what is no piece of the model is spelt as no text is; the least score is what unknown signs are scored by
        pieces = [by_id.get(one, f"{names[one]}{NO_TEXT}") for one in range(max(ours.values()) + 1)]
        model |= {
            "vocab": [[piece, scores.get(piece, min(scores.values()))] for piece in pieces],
            "unk_id": None if model.get("unk_id") is None else tokenizer.from_foreign[model["unk_id"]],
        }
    else:
        model["vocab"] = ours
    kept = [token | {"id": ours[token["content"]]} for token in added if markup or not token["special"]]
    return described | {"model": model, "added_tokens": sorted(kept, key=lambda token: token["id"])}


def export_model(tokenizer: Tokenizer) -> models.Model:
    names = token_names(tokenizer)
    vocabulary = {name: one for one, name in enumerate(names)}
    if isinstance(tokenizer, WordTokenizer):
        return models.WordLevel(vocabulary, unk_token=names[UNK])
    if isinstance(tokenizer, CharTokenizer):
        return models.BPE(vocabulary, [], unk_token=names[UNK], byte_fallback=True)
    if not isinstance(tokenizer, SubwordTokenizer):
        return models.BPE(vocabulary, [])
    model: Mapping[str, Any] = json.loads(tokenizer.model)["model"]
    if model["type"] == "BPE":
        return models.BPE(vocabulary, [(left, right) for left, right in model["merges"]])
    scores = [*((name, NEVER) for name in names[:NUM_SPECIAL_TOKENS]), *map(tuple, model["vocab"])]
    return models.Unigram(scores, unk_id=UNK)


def export_normalizer(tokenizer: Tokenizer, opening: str) -> normalizers.Normalizer:
    normal, steps = tokenizer.normalizer, list[normalizers.Normalizer]()
    steps += [FORMS[normal.form]()] if normal.form else []
    if normal.squeeze or normal.language:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps += [normalizers.Lowercase()] if normal.lower else []
    steps += [FORMS[normal.form]()] if normal.form and normal.lower else []
    if isinstance(tokenizer, WordTokenizer):  # a word that is spelt as a special token is unknown, and no such token
        names = token_names(tokenizer)[:NUM_SPECIAL_TOKENS]
        spelt = "|".join(map(re.escape, names))
        steps.append(normalizers.Replace(Regex(rf"(?<!\S)(?:{spelt})(?!\S)"), names[UNK]))
    prefix = (tokenizer.prefix if isinstance(tokenizer, LosslessTokenizer) else "") + opening
    steps += [normalizers.Prepend(prefix)] if prefix else []
    return normalizers.Sequence(steps)


def words_first(normal: TextNormalizer, text: str) -> str:
    """What tokenizer.json is given: the text, tokenized into words where the model reads it so."""
    return TextNormalizer(language=normal.language).apply(text)


# --- the tokenizers of a task ---


def used_tokenizers(task_model: PretrainedModel) -> dict[str, Tokenizer]:
    """By the names of their files, that of the input first."""
    if isinstance(task_model, Translator):
        return {"source_tokenizer": task_model.source, "target_tokenizer": task_model.target}
    return {"tokenizer": input_tokenizer(task_model)}


def text_tokenizer(task_model: PretrainedModel, tokenizer: Tokenizer) -> library.Tokenizer:
    """tokenizer.json of one of them. An engine itself adds what ends a source; a request says how a target begins."""
    if isinstance(task_model, Translator):
        return export_tokenizer(tokenizer, before=tokenizer.first_ids if tokenizer is task_model.source else ())
    before, after = frame_ids(task_model, tokenizer)
    opening = prompt_opening(tokenizer)[1] if isinstance(task_model, TextGenerator) else ""
    return export_tokenizer(tokenizer, before=before, after=after, opening=opening)


def frame_ids(task_model: PretrainedModel, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before and after every text that a model reads."""
    if isinstance(task_model, Translator):
        return tokenizer.first_ids, (EOS,)
    if isinstance(task_model, TextGenerator):
        return prompt_opening(tokenizer)[0], ()
    return (tokenizer.first_ids, tokenizer.last_ids) if isinstance(tokenizer, PretrainedTokenizer) else ((), ())


def prompt_opening(tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    """The special ids and the text that stand before a prompt: see `TextGenerator.encode_prompt`."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return ((BOS,) if tokenizer.starts else ()), ""
    if isinstance(tokenizer, WordTokenizer):
        return (EOS,), ""
    if isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.vocabulary:
        return (BOS,), ""
    return (), "\n"


def input_tokenizer(task_model: Any) -> Tokenizer:
    return task_model.source if isinstance(task_model, Translator) else task_model.tokenizer


def encode_text(task_model: PretrainedModel, text: str) -> tuple[int, ...]:
    """A text as the model reads it, without the EOS that follows a source."""
    if isinstance(task_model, TextGenerator):
        opening, ids = task_model.encode_prompt(text)
        return (*opening, *ids)
    return tuple(input_tokenizer(task_model).encode(text))


def write_tokenizers(task_model: PretrainedModel, folder: Path) -> None:
    """NAME.json for each; of a model of SentencePiece NAME.model, and the ids of its pieces as NAME.json."""
    for name, tokenizer in used_tokenizers(task_model).items():
        if isinstance(tokenizer, PretrainedTokenizer) and (engine := sentencepiece_engine(tokenizer)):
            (folder / f"{name}.model").write_bytes(base64.b64decode(engine.model))
            ids = {piece: tokenizer.from_foreign[one] for piece, one in engine.ids.items()}
            write_text_atomic(folder / f"{name}.json", json.dumps(ids, ensure_ascii=False) + "\n")
        else:
            text_tokenizer(task_model, tokenizer).save(str(folder / f"{name}.json"))


def sentencepiece_engine(tokenizer: Tokenizer) -> SentencePieceEngine | None:
    """The model of SentencePiece that a model was imported with, if it was."""
    engine = tokenizer.engine if isinstance(tokenizer, PretrainedTokenizer) else None
    return engine if isinstance(engine, SentencePieceEngine) else None


def encode_pieces(folder: Path, name: str, first: Sequence[int], texts: Sequence[str]) -> list[list[int]]:
    """By the files of a model of SentencePiece that were written."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
    ids = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return [[*first, *(ids.get(piece, UNK) for piece in model.encode(text, out_type=str))] for text in texts]


def quote_text(task_model: Any, text: str) -> tuple[str, str]:
    """Python for a text as tokenizer.json is given it, and the import that it needs."""
    if language := input_tokenizer(task_model).normalizer.language:
        return (
            f"word_tokenize({text!r}, {language!r})",
            "from regard.data.tokenizers.base import word_tokenize\n",
        )
    return repr(text), ""


# --- what a model is made of ---


def attentions_of(layers: Iterable[nn.Module]) -> dict[str, list[MultiHeadAttention]]:
    """The attentions of layers of an encoder, a decoder or a language model, by what they attend to."""
    found: dict[str, list[MultiHeadAttention]] = {}
    for layer in layers:
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        found.setdefault("self-attention", []).append(layer.attention)
        if isinstance(layer, DecoderLayer):
            found.setdefault("cross-attention", []).append(layer.cross)
    return found


def stack_objections(
    layers: Sequence[nn.Module],
    engine: str,
    *,
    causal: bool,
    activations: Iterable[str],
    rotary: bool = False,
    scores: tuple[type, ...] = (ScaledDot,),
) -> list[str]:
    """Why layers are not those of a plain Transformer: softmax(q kᵀ / √d) v of everybody, or of everybody before."""
    found, first = [], layers[0]
    assert isinstance(first, EncoderLayer | DecoderLayer)
    if type(norm := first.residual_attention) not in (PreNorm, PostNorm):
        found.append(f"the residual connection {type(norm).__name__} is none of {engine}, which has pre and post norm")
    if (activation := activation_name(first)) not in activations:
        found.append(f"the activation {activation or 'of your own'} is none of {engine}")
    for place, attentions in attentions_of(layers).items():
        pattern = Causal() if causal and place == "self-attention" else Full()
        for part in attentions:
            recipe, turns = part.recipe, rotary and place == "self-attention"
            if type(recipe.score) not in scores:
                found.append(f"the score {recipe.score} of {place} is none of {engine}")
            if recipe.normaliser != Softmax():
                found.append(f"the normaliser {recipe.normaliser} of {place} is none of {engine}, which has softmax")
            if not isinstance(recipe.gate, NoGate):
                found.append(f"the gate {recipe.gate} of {place} is none of {engine}, which has none")
            if recipe.pattern != pattern:
                found.append(f"the pattern {recipe.pattern} of {place} is none of {engine}, which has {pattern}")
            strange = [one for one in recipe.query_key_positions if not (turns and is_plain_rotary(one))]
            found += [
                f"the position {one} of {place} is none of {engine}" for one in (*strange, *recipe.score_positions)
            ]
            if part.form is not None:
                found.append(f"{part.form} of {place} is none of {engine}, which has keys and values of each token")
        if len({one.recipe.query_key_positions for one in attentions}) > 1:
            found.append(f"the layers differ in their rotary positions, and those of {engine} do not")
    return list(dict.fromkeys(found))


def is_plain_rotary(scheme: QueryKeyPosition) -> bool:
    """All features of a head, without a scaling for longer texts."""
    return isinstance(scheme, Rotary) and scheme == Rotary(theta=scheme.theta, pairs=scheme.pairs)


def activation_name(layer: EncoderLayer | DecoderLayer) -> str:
    """Its name; "" for a function of a user's own."""
    return next((name for name, function in ACTIVATIONS.items() if function is layer.feed_forward.activation), "")


def position_objections(positions: PositionalEmbedding, engine: str) -> list[str]:
    """Why what is added to embeddings is no table of positions."""
    schemes = positions.recipe.embedding_positions
    return [f"the position {one} is none of {engine}" for one in schemes if not isinstance(one, Sinusoidal | Learned)]


def position_table(positions: PositionalEmbedding, like: Float[Tensor, "size width"]) -> Float[Tensor, "length width"]:
    """What is added at each position, as many as the learned ones are."""
    schemes = positions.recipe.embedding_positions
    length = min((one.max_length for one in schemes if isinstance(one, Learned)), default=MAX_POSITIONS)
    with torch.no_grad():
        return positions.table(length, like).to(like.dtype)


def position_limit(task_model: Any) -> int:
    """How many tokens a text may have: as many as there are learned positions, or rows of a written table."""
    learned = [part.max_length for part in task_model.model.modules() if isinstance(part, Learned)]
    return min([*learned, MAX_POSITIONS])


def translation_limit(task_model: Any, inputs: ProofInputs) -> int:
    """How many tokens a translation may have in a proof."""
    return min(2 * max(map(len, inputs.ids)) + 10, position_limit(task_model) - 1)
