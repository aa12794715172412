"""Proofs of exports: the same inputs through our model and through the exported one, and how far they agree."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.files import require_small_file, write_text_atomic
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, PAD
from regard.decode.alignment import score_targets
from regard.decode.beam import Beam
from regard.decode.search import DecodableModel, LengthLimit
from regard.decode.stepwise import batched_continuation_search
from regard.decode.topk import log_probabilities
from regard.decode.translation import translate_all
from regard.models.seq2seq import inference_mode

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
