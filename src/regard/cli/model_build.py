"""Model build: a translator from the corpora to its card by one recipe, in stages that are resumed and skipped.

    out/
      corpora/tatoeba.en-fr.tsv       cleaned pairs, shared by all recipes
      en-fr/data, teacher             token files; a run
            back-translated(.tsv)     pairs whose sources a teacher of the other direction wrote; a second teacher
            distilled(.tsv)           pairs whose targets the better teacher wrote
            student-scratch, student  runs: trained on the pairs as they are, and on the distilled ones
            measurements.json         what card.md is written from
            stages/NAME.json          each stage: its settings, seconds, device and figures

A stage whose record says that it ended, by the same settings, is not run again.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import typer

from regard.cli.benchmarks.harness import describe_hardware
from regard.cli.data import batch_tokens, fast_precision
from regard.cli.options import shell_command
from regard.cli.progress import format_duration, step_progress, with_progress
from regard.cli.train import train_run
from regard.data.cleaning import CleaningRules, HashSet
from regard.data.corpora import (
    CORPORA,
    PairSource,
    find_corpus,
    iter_excluded,
    parse_sources,
    read_corpus_pairs,
    split_languages,
)
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair, read_pairs, write_pairs
from regard.data.preparation import CorpusCleaning, PairPreparation, prepare_corpora, vocabulary_text
from regard.data.token_files import split_weight
from regard.data.tokenizers.pretrained import language_tag
from regard.decode.beam import Beam
from regard.decode.quantize import prepare
from regard.decode.translation import PairSynthesis, first_best, never, synthesize_pairs
from regard.models.config import ModelConfig
from regard.models.config_base import AT_LEAST_0, AT_LEAST_1, SHARE, Ranges, SettingsTable, suggest
from regard.tasks.config import PairTokenizerSettings, parse_value, read_table, read_tables, table_keys
from regard.tasks.runs import summarize_run
from regard.tasks.train_request import TrainRequest
from regard.tasks.translation.metrics import closest_text
from regard.tasks.translation.model_card import (
    count_weights,
    describe_corpus,
    find_failures,
    may_be_quoted,
    measure_set,
    render_card,
)
from regard.tasks.translation.task import (
    TranslationData,
    TranslationSettings,
    Translator,
    evaluate_translations,
    train_tokenizers,
)
from regard.training.checkpoint import WEIGHTS
from regard.training.config import TrainSettings

T = TypeVar("T")
SYNTHETIC_RULES = CleaningRules(language=False, min_letters=0.0)  # what a model wrote may repeat itself, or run away
SHARED_TABLES = ("data", "text", "teacher", "measure")  # whose changes hold for other recipes' teachers, too


# --- the recipe ---


@dataclass(frozen=True, kw_only=True)
class BuildData(SettingsTable):
    """What a translator is made of, and what it is judged by.

    Args:
        directions: such as en-fr; of several, a recipe makes one teacher that knows all target languages.
        corpora: known corpora or files of pairs, each with :WEIGHT: how many of its pairs are seen, in proportion.
        exclude: test sets, as corpora with their split or files: pairs with a sentence of theirs are removed.
        valid: development sets, likewise: checkpoints are chosen by them, and every step is measured.
        test: test sets, measured only when asked for.
        sentences: of each corpus at most so many, to try a recipe out; 0 takes all.
        min_words, max_words, max_ratio, min_letters: of cleaning, as of `regard data clean`.
    """

    ranges: ClassVar[Ranges] = {"min_words": AT_LEAST_1, "max_words": AT_LEAST_1, "min_letters": SHARE}

    directions: tuple[str, ...] = ()
    corpora: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    sentences: int = 0
    min_words: int = 1
    max_words: int = 200
    max_ratio: float = 3.0
    min_letters: float = 0.5

    @property
    def rules(self) -> CleaningRules:
        names = ("min_words", "max_words", "max_ratio", "min_letters")
        return CleaningRules(**{name: getattr(self, name) for name in names})

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The directions as languages."""
        found = [(source, target) for source, _, target in (one.partition("-") for one in self.directions)]
        if bad := next((one for one, sides in zip(self.directions, found, strict=True) if not all(sides)), None):
            raise ValueError(f"data.directions: {bad} is no direction; write SOURCE-TARGET, such as en-fr")
        return found


@dataclass(frozen=True, kw_only=True)
class SynthesisSettings(SettingsTable):
    """How a model translates sentences into pairs to train on.

    Args:
        enabled: whether this stage, and what learns from it, takes place.
        recipe: a recipe beside this one whose teacher translates; of a distillation left out, it is this one's.
        texts: corpora, as europarl@en-de, whose sentences in the language that is read are translated as well.
        sentences: of each corpus at most so many are translated; 0 takes all.
        beam: beam width; 1 is greedy search.
        length_penalty: as of `regard translate`.
        best_of: of so many best the one most like the reference is taken.
        weight: of the synthetic pairs in what is trained on, beside those of the corpora.
        originals: train on the pairs of the corpora, too.
    """

    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("beam", "best_of"), AT_LEAST_1),
        **dict.fromkeys(("sentences", "length_penalty"), AT_LEAST_0),
    }

    enabled: bool = False
    recipe: str = ""
    texts: tuple[str, ...] = ()
    sentences: int = 0
    beam: int = 4
    length_penalty: float = 1.0
    best_of: int = 1
    weight: float = 1.0
    originals: bool = False


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(SettingsTable):
    """How models are measured.

    Args:
        beam: beam width.
        length_penalty: as of `regard translate`.
        sentences: of each set at most so many, to try a recipe out; 0 takes all.
        scratch: train a student without distillation, and a teacher without back-translation, to see what they gain.
        gpu_watts, cpu_watts: the power that the estimate of the energy assumes.
        notes: sentences for the card, of what the measurements do not say.
    """

    ranges: ClassVar[Ranges] = {"beam": AT_LEAST_1, "length_penalty": AT_LEAST_0}

    beam: int = 5
    length_penalty: float = 1.0
    sentences: int = 0
    scratch: bool = True
    gpu_watts: float = 700.0
    cpu_watts: float = 100.0
    notes: tuple[str, ...] = ()

    @property
    def search(self) -> Beam:
        return Beam(self.beam, length_penalty=self.length_penalty)


@dataclass(frozen=True)
class ModelPlan:
    """A model, and how it is trained: tables [NAME.model] and [NAME.train]."""

    model: ModelConfig
    train: TrainSettings

    def on(self, device: str) -> "ModelPlan":
        """What is made for a GPU runs elsewhere in its plain form."""
        train = self.train
        if not device.startswith("cuda"):
            precision = "float32" if train.precision == "bf16-pure" else train.precision
            train = replace(train, precision=precision, cuda_graph=False)
        return replace(self, train=train)


@dataclass(frozen=True, kw_only=True)
class BuildRecipe:
    """A recipe of `regard models build`; without a student it ends with its teacher, without a teacher the student
    learns from the corpora alone."""

    path: Path
    data: BuildData
    text: PairTokenizerSettings
    teacher: ModelPlan | None
    student: ModelPlan | None
    back_translation: SynthesisSettings
    distillation: SynthesisSettings
    measure: MeasureSettings

    @property
    def name(self) -> str:
        return self.path.stem

    @staticmethod
    def load(path: Path, changes: Mapping[str, str] = {}) -> "BuildRecipe":
        """A file, some of whose lines are changed: table.key, or table.model.key. Where it distils another recipe's
        teacher, lines of a teacher are changed there."""
        tables = read_tables(path)
        elsewhere = "teacher" not in tables and bool(tables.get("distillation", {}).get("recipe"))
        for name, value in changes.items():
            *within, key = name.split(".")
            if elsewhere and within[:1] == ["teacher"]:
                continue
            place: Any = tables
            for one in within:
                place = place.setdefault(one, {})
            if not within or not isinstance(place, dict):
                raise ValueError(f"--set {name}={value}: write table.key=value, such as teacher.train.steps=100")
            place[key] = parse_value(value)
        try:
            return BuildRecipe.from_tables(path, tables)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @staticmethod
    def from_tables(path: Path, tables: Mapping[str, Any]) -> "BuildRecipe":
        usual = {
            "data": BuildData(),
            "text": PairTokenizerSettings(vocab_size=10_000),
            "back_translation": SynthesisSettings(),
            "distillation": SynthesisSettings(),
            "measure": MeasureSettings(),
        }
        refuse_unknown(tables, (*usual, "teacher", "student"), "table")
        read: dict[str, Any] = {name: read_known(one, name, tables.get(name, {})) for name, one in usual.items()}
        plans = {name: read_plan(name, tables[name]) for name in ("teacher", "student") if name in tables}
        if not plans:
            raise ValueError("it has no tables [teacher.model] and [teacher.train], nor those of a student; write one")
        data = read["data"]
        if "teacher" not in plans and untaught(read["distillation"]):
            raise ValueError("only what has a teacher learns from its translations; write [teacher.model]")
        for key in ("directions", "corpora", "valid"):
            if not getattr(data, key):
                raise ValueError(f"data.{key} is empty; name one at least")
        if len(data.pairs) > 1 and (plans.keys() != {"teacher"} or read["back_translation"].enabled):
            raise ValueError(f"a recipe of {len(data.pairs)} directions makes a teacher alone; leave out the rest")
        if read["back_translation"].enabled and not read["back_translation"].recipe:
            raise ValueError("back_translation.recipe names the recipe of the other direction; it is left out")
        return BuildRecipe(path=path, teacher=plans.get("teacher"), student=plans.get("student"), **read)


def untaught(distillation: SynthesisSettings) -> bool:
    """Whether a recipe's own teacher is to translate."""
    return distillation.enabled and not distillation.recipe


def read_plan(name: str, lines: Mapping[str, Any]) -> ModelPlan:
    refuse_unknown(lines, ("model", "train"), f"[{name}]")
    model: ModelConfig = read_known(
        ModelConfig.from_size("transformer", "base"), f"{name}.model", lines.get("model", {})
    )
    return ModelPlan(model, read_known(TrainSettings(), f"{name}.train", lines.get("train", {})))


def read_known(usual: SettingsTable, name: str, lines: Any) -> Any:
    """A table, none of whose keys is unknown."""
    if not isinstance(lines, dict):
        raise ValueError(f"{name} = {lines!r} is a table; write [{name}]")
    refuse_unknown(lines, table_keys(usual), f"[{name}]")
    return read_table(usual, name, lines)


def refuse_unknown(lines: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := [name for name in lines if name not in known]:
        raise ValueError(f"{where} {unknown[0]!r} is unknown; {suggest(unknown[0], known)}")


# --- stages ---


class BuildStoppedError(Exception):
    """The time is over, or somebody has asked to stop; the argument is the stage that goes on next time."""


Figures = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class StageRecords:
    """The records of the stages in a folder.

    Args:
        stop: whether the time is over; asked before a stage begins.
        device: that of the stages, unless one says otherwise.
    """

    folder: Path
    stop: Callable[[], bool]
    device: str

    def run(
        self, name: str, settings: Mapping[str, Any], work: Callable[[], Figures | None], device: str = ""
    ) -> Figures:
        """The figures of a stage, which is run unless its record says that it ended; None from it asks to stop."""
        path, device = self.folder / f"{name}.json", device or self.device
        wanted = json.loads(json.dumps(dict(settings)))
        record = json.loads(path.read_bytes()) if path.exists() else {"settings": wanted, "seconds": 0.0}
        if changed := [
            key for key in {**wanted, **record["settings"]} if wanted.get(key) != record["settings"].get(key)
        ]:
            raise ValueError(
                f"{path}: this stage was made with other {' and '.join(changed)}; choose another --out, or remove "
                "what it made, and this"
            )
        if "figures" in record:
            return record["figures"]
        if self.stop():
            raise BuildStoppedError(name)
        typer.echo(f"{self.folder.parent.name}, {name}", err=True)
        hardware, kind = describe_hardware(), "cuda" if device.startswith("cuda") else "cpu"
        record |= {"kind": kind, "device": hardware["gpu"] if kind == "cuda" else hardware["cpu"]}
        write_json(path, record)  # its settings hold even if it is killed
        began, figures = time.perf_counter(), None
        try:
            figures = work()
        finally:
            record["seconds"] += time.perf_counter() - began
            ended = {"figures": dict(figures), "ended": datetime.now(UTC).isoformat()} if figures is not None else {}
            write_json(path, record | ended)
        if figures is None:
            raise BuildStoppedError(name)
        typer.echo(f"{self.folder.parent.name}, {name}: {format_duration(record['seconds'])}", err=True)
        return figures

    def listed(self) -> list[dict[str, Any]]:
        """Name, seconds and device of every stage that ended, the first one first."""
        found = ((path.stem, json.loads(path.read_bytes())) for path in sorted(self.folder.glob("*.json")))
        ended = sorted(((n, one) for n, one in found if "figures" in one), key=lambda stage: stage[1]["ended"])
        return [{"name": name} | {key: one[key] for key in ("seconds", "kind", "device")} for name, one in ended]


@dataclass(frozen=True, kw_only=True)
class ModelBuild:
    """The build of one recipe.

    Args:
        data: the folder that holds known corpora.
        out: the folder of all builds.
        stop: whether the time is over.
        test: measure the test sets.
        changes: lines of the recipe that are changed, and of those whose teachers it needs.
    """

    recipe: BuildRecipe
    data: Path | None
    out: Path
    device: str = "cpu"
    stop: Callable[[], bool] = never
    test: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.out / self.recipe.name

    @cached_property
    def stages(self) -> StageRecords:
        return StageRecords(self.folder / "stages", self.stop, self.device)

    @property
    def languages(self) -> tuple[str, str]:
        """Of the one direction of a recipe with a student."""
        return self.recipe.data.pairs[0]

    def run(self) -> Path | None:
        """All stages to the card, whose path it gives; of a recipe without a student, to its teacher."""
        self.prepare()
        teachers = self.make_teachers()
        if self.recipe.student is None:
            return None
        students, synthetic, distillation = ["student"], list[str](), self.recipe.distillation
        if self.recipe.teacher is None and self.recipe.back_translation.enabled:
            self.back_translate()
            synthetic.append("back-translated")
        if distillation.enabled:
            self.distil(self.better_teacher(teachers))
            synthetic.append("distilled")
        self.train("student", self.recipe.student, self.mixture(*synthetic, originals=self.originals))
        if self.recipe.measure.scratch and synthetic:
            self.train("student-scratch", self.recipe.student, self.mixture())
            students.insert(0, "student-scratch")
        return self.write_card([*teachers, *students])

    @property
    def originals(self) -> bool:
        """Whether the student also learns from people's translations."""
        return self.recipe.distillation.originals or not self.recipe.distillation.enabled

    def make_teachers(self) -> list[str]:
        """The teachers of this recipe, by the names of their runs: one, one that has read what was translated back,
        both, or none."""
        if self.recipe.teacher is None:
            return []
        back = self.recipe.back_translation.enabled
        teachers = ["teacher"] if self.recipe.measure.scratch or not back else []
        if teachers:
            self.train("teacher", self.recipe.teacher, self.mixture())
        if back:
            self.back_translate()
            self.train("teacher-back", self.recipe.teacher, self.mixture("back-translated"))
            teachers.append("teacher-back")
        return teachers

    def make_teacher(self) -> None:
        """The first one, for a build that needs it."""
        if self.recipe.teacher is None:
            raise ValueError(f"{self.recipe.path} has no [teacher.model]; name a recipe that makes a teacher")
        self.prepare()
        self.train("teacher", self.recipe.teacher, self.mixture())

    def other(self, name: str) -> "ModelBuild":
        """The build of a recipe beside this one."""
        shared = {key: value for key, value in self.changes.items() if key.partition(".")[0] in SHARED_TABLES}
        return replace(self, recipe=BuildRecipe.load(self.recipe.path.parent / name, shared))

    # --- corpora ---

    @cached_property
    def excluded(self) -> HashSet:
        """The sentences of all sets that must not be trained on, in every language they have."""
        data = self.recipe.data
        words = [split_languages(word, ("", ""))[0] for word in (*data.exclude, *data.valid, *data.test)]
        known = [name for name in (word.partition(":")[0] for word in words) if name in CORPORA]
        languages = dict.fromkeys((*data.pairs, *(pair for name in known for pair in find_corpus(name).pairs)))
        return HashSet().update(iter_excluded(list(dict.fromkeys(words)), list(languages), self.data))

    @cached_property
    def excluded_digest(self) -> str:
        return sha256(np.sort(np.concatenate([np.zeros(0, np.uint64), *self.excluded.runs])).tobytes()).hexdigest()

    def clean(self, word: str, languages: tuple[str, str]) -> tuple[PairSource, Figures]:
        """A corpus in a direction, cleaned once for both and for all recipes, and what was removed."""
        (source,) = parse_sources([word], languages, folder=self.data)
        if source.languages == languages[::-1]:
            source = swap_source(source)
        ordered, data = tuple(sorted(source.languages)), self.recipe.data
        path = self.out / "corpora" / f"{source.name}.{'-'.join(ordered)}.tsv"
        limited = replace(source, read=lambda on_empty: islice(source.read(on_empty), data.sentences or None))

        def work() -> Figures:
            cleaning = CorpusCleaning([limited], data.rules, self.excluded)
            pairs = with_progress(cleaning.pairs(), f"cleaning {source.name}")
            kept = (pair for pair, why in pairs if why is None)
            write_pairs(kept if source.languages == ordered else (pair.swapped() for pair in kept), path)
            return cleaning.report.to_dict()

        settings = {
            "corpus": word.partition("@")[0],
            "rules": asdict(data.rules),
            "excluded": self.excluded_digest,
            "sentences": data.sentences,
        }
        records = StageRecords(self.out / "corpora" / "stages", self.stop, "cpu")
        figures = records.run(f"{source.name}.{'-'.join(ordered)}", settings, work)
        cleaned = PairSource(
            source.name,
            (ordered[0], ordered[1]),
            lambda on_empty: read_pairs(path, on_empty=on_empty),
            (str(figures["kept"]),),
        )
        return cleaned if source.languages == ordered else swap_source(cleaned), figures

    @cached_property
    def corpora(self) -> list[tuple[PairSource, float | None, Figures]]:
        """Those of the recipe in all its directions, cleaned, with their weights and what was removed."""
        found, several = [], len(self.recipe.data.pairs) > 1
        for languages in self.recipe.data.pairs:
            for word in self.recipe.data.corpora:
                name, weight = split_weight(word)
                source, figures = self.clean(name, languages)
                if several:
                    source = replace(source, name=f"{source.name}.{'-'.join(languages)}")
                found.append((source, weight, figures))
        return found

    def prepare(self) -> None:
        """Token files of the corpora, with the vocabularies that all models of this recipe share."""
        sources, data = [source for source, _, _ in self.corpora], self.recipe.data
        settings = {"corpora": [[one.name, *one.languages, *one.identity] for one in sources]}
        settings |= {"text": self.recipe.text.to_dict(), "valid": list(data.valid)}
        self.tokenize("data", sources, settings)
        if not (self.folder / "valid.tsv").exists():
            write_pairs(self.held_out(), self.folder / "valid.tsv")

    def held_out(self) -> Iterator[SentencePair]:
        """Pairs of the development sets, in all directions; sources as the models read them."""
        tagged = len({target for _, target in self.recipe.data.pairs}) > 1
        for pair in self.recipe.data.pairs:
            for word in self.recipe.data.valid:
                for one in read_set(word, pair, self.data):
                    yield replace(one, source=f"{language_tag(pair[1])} {one.source}") if tagged else one

    def tokenize(self, name: str, sources: Sequence[PairSource], settings: Mapping[str, Any]) -> None:
        """Token files of some pairs, with the vocabularies of `data` if they are there."""
        first = name == "data"

        def work() -> Figures:
            request = PairPreparation(
                sources=sources,
                out=self.folder / name,
                text=self.recipe.text.to_dict(),
                learn=lambda sample: train_tokenizers(sample, self.recipe.text),
                vocabulary=None if first else self.folder / "data",
                rules=None if first else SYNTHETIC_RULES,
                excluded=HashSet() if first else self.excluded,
                held_out=0,
                workers=max(1, min(16, os.cpu_count() or 1)) if enough_pairs(sources) else 1,
            )
            with step_progress() as seen:
                found = prepare_corpora(request, seen)
            return {"pairs": {one.folder.name: len(one) for one in found}}

        self.stages.run(name, settings, work, "cpu")

    def mixture(self, *synthetic: str, originals: bool = True) -> list[str]:
        """The corpora with their weights, and synthetic pairs with theirs."""
        corpora = [(f"data/{source.name}", weight) for source, weight, _ in self.corpora] if originals else []
        tables = {"back-translated": self.recipe.back_translation, "distilled": self.recipe.distillation}
        weights = [*corpora, *((f"{name}/pairs", tables[name].weight) for name in synthetic)]
        if not any(weight for _, weight in corpora):
            return [name for name, _ in weights]
        return [f"{name}:{weight or 1.0:g}" for name, weight in weights]

    # --- models ---

    def train(self, name: str, plan: ModelPlan, pairs: Sequence[str]) -> None:
        """A run, by a recipe of `regard train` that is written beside it. One that ended is done on every device."""
        here, toml = plan.on(self.device), self.folder / f"{name}.toml"
        (source, target), data = self.languages, tuple(pairs)
        of_run = TranslationData(corpus="files", source=source, target=target, train=data, valid=("valid.tsv",))
        text = PairTokenizerSettings(**vocabulary_text(self.folder / "data") or {})
        settings = TranslationSettings(data=of_run, text=text, model=here.model, train=here.train)

        def work() -> Figures | None:
            write_text_atomic(toml, settings.to_toml())
            request = TrainRequest(self.folder / name, recipe=toml, device=self.device, stop=self.stop)
            if not train_run(request).finished:
                return None
            found = summarize_run(self.folder / name)
            return {"best": vars(found.best) if found.best else None, "step": found.step}

        self.stages.run(name, {"pairs": data, "model": plan.model.to_dict(), "train": plan.train.to_dict()}, work)

    def better_teacher(self, names: Sequence[str]) -> tuple["ModelBuild", str]:
        """That of the distillation's recipe, or of this one's the one with the least loss on the development sets."""
        if self.recipe.distillation.recipe:
            other = self.other(self.recipe.distillation.recipe)
            other.make_teacher()
            return other, "teacher"
        return self, min(names, key=lambda name: summarize_run(self.folder / name).best.value)  # type: ignore[union-attr]

    def load(self, name: str, device: str | None = None) -> Translator:
        return Translator.load(self.folder / name, device or self.device)

    # --- synthetic pairs ---

    def back_translate(self) -> None:
        """Sentences in the target language, translated by the teacher of the other direction."""
        table = self.recipe.back_translation
        reverse = self.other(table.recipe)
        if self.languages[::-1] not in reverse.recipe.data.pairs:
            raise ValueError(
                f"back_translation.recipe = {table.recipe!r} is of {' '.join(reverse.recipe.data.directions)}; name a "
                f"recipe of {'-'.join(self.languages[::-1])}"
            )
        reverse.make_teacher()

        def sentences() -> Iterator[SentencePair]:
            known = {pair.target for source, _, _ in self.corpora for pair in source.read(str)}
            yield from (SentencePair("", text) for text in self.monolingual(table, self.languages[1], known))

        self.synthesize("back-translated", table, sentences(), (reverse, "teacher"), to=self.languages[0])

    def distil(self, teacher: tuple["ModelBuild", str]) -> None:
        """The sources of the corpora, and further texts in their language, translated by the teacher."""
        table = self.recipe.distillation

        def sentences() -> Iterator[SentencePair]:
            seen: set[str] = set()
            for source, _, _ in self.corpora:
                yield from first_unseen(source.read(str), attrgetter("source"), seen, table.sentences)
            yield from (SentencePair(text, "") for text in self.monolingual(table, self.languages[0], seen))

        self.synthesize("distilled", table, sentences(), teacher, to=self.languages[1])

    def monolingual(self, table: SynthesisSettings, language: str, seen: set[str]) -> Iterator[str]:
        """The sentences of further corpora in a language that are not seen yet."""
        for word in table.texts:
            source, _ = self.clean(word, self.languages)
            if language not in source.languages:
                raise ValueError(f"texts: {word} has no {language}; write one that has, as in europarl@en-de")
            side = source.languages.index(language)
            texts = ((pair.source, pair.target)[side] for pair in source.read(str))
            yield from first_unseen(texts, str, seen, table.sentences)

    def synthesize(
        self,
        name: str,
        table: SynthesisSettings,
        pairs: Iterable[SentencePair],
        by: tuple["ModelBuild", str],
        to: str,
    ) -> None:
        """NAME.tsv, and the token files of it."""
        build, run = by
        path = self.folder / f"{name}.tsv"

        def work() -> Figures | None:
            translator = build.load(run)
            how = PairSynthesis(
                translator=translator,
                search=Beam(max(table.beam, table.best_of), length_penalty=table.length_penalty, n_best=table.best_of),
                precision=fast_precision(translator),
                tokens=batch_tokens(translator),
                reverse=name == "back-translated",
                to=to if translator.target_languages else None,
                choose=closest_text if table.best_of > 1 else first_best,
            )
            with step_progress() as seen:
                found = synthesize_pairs(
                    pairs, how, path, stop=self.stop, progress=lambda done: seen(f"translating, {name}", done, None)
                )
            if found and not found.pairs:
                raise ValueError(
                    f"the {run} of {build.recipe.name} ends none of {found.read:,} translations; train it for longer"
                )
            return asdict(found) if found else None

        settings = {"by": [build.recipe.name, run], **table.to_dict()}
        figures = self.stages.run(f"{name}.translate", settings, work)
        source = PairSource("pairs", self.languages, lambda on_empty: read_pairs(path, on_empty=on_empty), ())
        self.tokenize(name, [source], {"translations": figures})

    # --- measurements and the card ---

    def measure(self, system: str, split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """BLEU and chrF of a model on all sets of a split, and its failures; `int8` is the student in 8 bits."""
        measure, data = self.recipe.measure, self.recipe.data
        words, build, run = data.valid if split == "dev" else data.test, self, system
        if system.startswith("teacher of "):
            build, run = self.other(self.recipe.distillation.recipe), "teacher"
        int8 = system == "int8"
        device = "cpu" if int8 else self.device

        def work() -> Figures:
            translator = build.load("student" if int8 else run, device)
            found: dict[str, Any] = {}
            failures: list[dict[str, Any]] = []
            for word in words:
                pairs = list(islice(read_set(word, self.languages, self.data), measure.sentences or None))
                seen = evaluate_translations(
                    translator,
                    pairs,
                    measure.search,
                    with_progress,
                    tokens=batch_tokens(translator),
                    precision="int8" if int8 else "float32",
                    to=self.languages[1] if translator.target_languages else None,
                )
                found[name_set(word)] = measure_set(seen)
                if split == "dev" and may_be_quoted(word):
                    failures += [{"set": name_set(word), **one} for one in find_failures(pairs, seen.translations)]
            return {"sets": found, "failures": failures}

        settings = {"sets": list(words), "search": repr(measure.search), "sentences": measure.sentences}
        figures = self.stages.run(f"{split}.{system.replace(' ', '-')}", settings, work, device)
        return figures["sets"], figures["failures"]

    def write_card(self, systems: Sequence[str]) -> Path:
        """measurements.json, and card.md from it."""
        assert self.recipe.student is not None
        student = self.load("student", "cpu")
        systems = [*systems, *(["int8"] if can_be_int8(student) else [])]
        if self.recipe.distillation.enabled and (other := self.recipe.distillation.recipe):
            weights = self.other(other).folder / "teacher" / WEIGHTS
            systems = [*([f"teacher of {Path(other).stem}"] if weights.exists() else []), *systems]  # it may be removed
        dev = {system: self.measure(system, "dev") for system in systems}
        results: dict[str, Any] = {"dev": {system: sets for system, (sets, _) in dev.items()}}
        if self.test and self.recipe.data.test:
            results["test"] = {system: self.measure(system, "test")[0] for system in systems}
        shipped = systems[-1]
        measured = {
            "name": self.recipe.name,
            "version": version("regard"),
            "source": self.languages[0],
            "target": self.languages[1],
            "model": {
                "description": describe_model(self.recipe.student.model),
                "vocabulary": student.target.size,
                "weights": count_weights(student.model),
            },
            "corpora": [describe_corpus(source.name, weight or 1.0, one) for source, weight, one in self.corpora],
            "synthetic": list(self.synthetic_counts()),
            "excluded": list(dict.fromkeys(map(name_set, (*self.recipe.data.exclude, *self.recipe.data.valid)))),
            "search": f"beam {self.recipe.measure.beam}, length penalty {self.recipe.measure.length_penalty:g}",
            "results": results,
            "shipped": shipped,
            "compared_with": self.compared_with(systems),
            "failures": dev[shipped][1],
            "notes": list(self.recipe.measure.notes),
            "stages": self.all_stages(),
            "watts": {"cuda": self.recipe.measure.gpu_watts, "cpu": self.recipe.measure.cpu_watts},
            "command": self.command(),
        }
        write_json(self.folder / "measurements.json", measured)
        for folder in (self.folder, self.folder / "student"):  # what is shipped is the folder of a run
            write_text_atomic(folder / "card.md", render_card(measured))
        return self.folder / "card.md"

    def compared_with(self, systems: Sequence[str]) -> dict[str, str]:
        """Which step each is compared with, where both are there."""
        others = [one for one in systems if one.startswith("teacher of ")]
        chosen = next((one for one in ("student-scratch", "teacher", "teacher-back", *others) if one in systems), "")
        pairs = {"teacher-back": "teacher", "student": chosen, "int8": "student"}
        return {system: before for system, before in pairs.items() if {system, before} <= set(systems)}

    def synthetic_counts(self) -> Iterator[dict[str, Any]]:
        for name in ("back-translated", "distilled"):
            path = self.stages.folder / f"{name}.translate.json"
            with suppress(FileNotFoundError):
                record = json.loads(path.read_bytes())
                by = "the {1} of {0}".format(*record["settings"]["by"])
                yield {"name": name, "by": by, **{key: record["figures"][key] for key in ("pairs", "read")}}

    def all_stages(self) -> list[dict[str, Any]]:
        """Those of this build, and of the teachers of others that it needed."""
        found = [
            {**one, "name": f"cleaning {one['name']}"}
            for one in StageRecords(self.out / "corpora" / "stages", self.stop, "cpu").listed()
        ]
        found += self.stages.listed()
        tables = (self.recipe.back_translation, self.recipe.distillation)
        for name in dict.fromkeys(table.recipe for table in tables if table.enabled and table.recipe):
            other = self.other(name)
            found += [
                {**one, "name": f"{other.recipe.name}: {one['name']}"}
                for one in other.stages.listed()
                if one["name"] in ("data", "teacher")
            ]
        return found

    def command(self) -> str:
        """The one that makes the model again, with folders that are the reader's own."""
        changes = [word for name, value in self.changes.items() for word in ("--set", f"{name}={value}")]
        words = ["regard", "models", "build", self.recipe.path, *changes, "--data", "FOLDER", "--out", "models"]
        return shell_command(*words, *(["--test"] if self.test else []))


def write_json(path: Path, what: Mapping[str, Any]) -> None:
    write_text_atomic(path, json.dumps(what, indent=1, ensure_ascii=False) + "\n")


def swap_source(source: PairSource) -> PairSource:
    """The pairs in the other direction."""
    return replace(
        source,
        languages=source.languages[::-1],
        read=lambda on_empty: (pair.swapped() for pair in source.read(on_empty)),
    )


def first_unseen(items: Iterable[T], text: Callable[[T], str], seen: set[str], most: int) -> Iterator[T]:
    """The first items whose text was not seen before, at most so many; 0 takes all. Their texts are seen from then on.

    Examples:
        >>> list(first_unseen(["a", "b", "a", "c", "d"], str, {"b"}, 2))
        ['a', 'c']
    """

    def new() -> Iterator[T]:
        for item in items:
            if (key := text(item)) not in seen:
                seen.add(key)
                yield item

    return islice(new(), most or None)


def enough_pairs(sources: Sequence[PairSource]) -> bool:
    """Whether processes pay, each of which imports all of this anew."""
    return sum(1 for source in sources for _ in islice(source.read(str), 50_000)) >= 50_000


def read_set(word: str, languages: tuple[str, str], folder: Path | None) -> Iterator[SentencePair]:
    """The pairs of a set: of a corpus and its split, or of a file, whose languages may stand behind an @."""
    name, colon, split = word.partition(":")
    if name in CORPORA and colon:
        return iter(read_corpus_pairs(name, split, *languages, folder))
    path, columns = split_languages(word, languages)
    if columns not in (languages, languages[::-1]):
        raise ValueError(f"{word} is {'-'.join(columns)}, not {'-'.join(languages)}; name a set of these languages")
    pairs = read_pairs(path, fields=columns, on_empty=str)
    return pairs if columns == languages else (pair.swapped() for pair in pairs)


def name_set(word: str) -> str:
    """As a card calls it.

    Examples:
        >>> name_set("tatoeba:valid"), name_set("sets/mine.tsv")
        ('tatoeba, valid', 'mine.tsv')
    """
    name, colon, split = word.partition(":")
    return f"{name}, {split}" if colon and name in CORPORA else Path(word).name.rpartition("@")[0] or Path(word).name


def can_be_int8(translator: Translator) -> bool:
    """Whether the processor, and the model, can decode in 8 bits."""
    try:
        prepare(translator.model, "int8")
    except ValueError:
        return False
    return True


def describe_model(model: ModelConfig) -> str:
    below = model.layers if model.decoder_layers is None else model.decoder_layers
    return (
        f"A {model.kind} with {model.layers} encoder and {below} decoder layers of width {model.model} and "
        f"{model.hidden}, {model.heads} heads"
    )
