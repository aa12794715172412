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
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from regard.data.cleaning import CleaningRules, HashSet
from regard.data.corpora import CORPORA, find_corpus, read_corpus_pairs
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair, read_pairs, write_pairs
from regard.data.preparation import CorpusCleaning, PairPreparation, Progress, prepare_corpora, vocabulary_text
from regard.data.sources import PairSource, iter_excluded, parse_sources, split_languages
from regard.data.token_files import split_weight
from regard.data.tokenizers.pretrained import language_tag
from regard.decode.beam import Beam
from regard.decode.quantize import objections, prepare
from regard.decode.translation import PairSynthesis, first_best, never, synthesize_pairs
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.protocol import ProgressBar
from regard.tasks.runs import summarize_run
from regard.tasks.train_request import TrainRequest
from regard.tasks.translation.build_recipe import SHARED_TABLES, BuildRecipe, ModelPlan, SynthesisSettings
from regard.tasks.translation.build_stages import Figures, StageRecords, write_json
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

T = TypeVar("T")
SYNTHETIC_RULES = CleaningRules(language=False, min_letters=0.0)  # what a model wrote may repeat itself, or run away


@dataclass(frozen=True, kw_only=True)
class BuildCallbacks:
    """What a build asks of the program around it: to train, and to show how far it is.

    Args:
        train: trains a run, or goes on with it; False if it was interrupted before its last step.
        stage: is told which stage begins; and, with its seconds, which has ended.
        progress: of the sentences that are cleaned or measured.
        steps: a context whose value is told what is being done, how much of it is done, and of how much.
    """

    train: Callable[[TrainRequest], bool]
    stage: Callable[[str, float | None], object]
    progress: ProgressBar
    steps: Callable[[], AbstractContextManager[Progress]]


@dataclass(frozen=True, kw_only=True)
class ModelBuild:
    """The build of one recipe.

    Args:
        data: the folder that holds known corpora.
        out: the folder of all builds.
        stop: whether the time is over.
        test: measure the test sets.
        changes: lines of the recipe that are changed, and of those whose teachers it needs.
        callbacks: what it asks of the program around it.
    """

    recipe: BuildRecipe
    data: Path | None
    out: Path
    device: str = "cpu"
    stop: Callable[[], bool] = never
    test: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)
    callbacks: BuildCallbacks

    @property
    def folder(self) -> Path:
        return self.out / self.recipe.name

    @cached_property
    def stages(self) -> StageRecords:
        return self.records(self.folder, self.device)

    def records(self, folder: Path, device: str) -> StageRecords:
        return StageRecords(folder / "stages", self.stop, device, self.callbacks.stage)

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
            pairs = self.callbacks.progress(cleaning.pairs(), f"cleaning {source.name}")
            kept = (pair for pair, why in pairs if why is None)
            write_pairs(kept if source.languages == ordered else (pair.swapped() for pair in kept), path)
            return cleaning.report.to_dict()

        settings = {
            "corpus": word.partition("@")[0],
            "rules": asdict(data.rules),
            "excluded": self.excluded_digest,
            "sentences": data.sentences,
        }
        figures = self.records(self.out / "corpora", "cpu").run(f"{source.name}.{'-'.join(ordered)}", settings, work)
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
            with self.callbacks.steps() as seen:
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
            if not self.callbacks.train(request):
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
            with self.callbacks.steps() as seen:
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
                    self.callbacks.progress,
                    tokens=batch_tokens(translator),
                    precision="int8" if int8 else "float32",
                    to=self.languages[1] if translator.target_languages else None,
                )
                found[name_set(word)] = measure_set(seen)
                if split == "dev" and may_be_quoted(word):
                    failures += [{"set": name_set(word), **one} for one in find_failures(pairs, seen.translations)]
            return {"sets": found, "failures": failures}

        settings = {"sets": list(words), "search": repr(measure.search), "sentences": measure.sentences}
        figures = self.stages.run(measurement_stage(system, split), settings, work, device)
        return figures["sets"], figures["failures"]

    def can_measure(self, system: str, split: str) -> bool:
        """A large teacher may be removed when it has translated; what was measured of it before still stands."""
        if not system.startswith("teacher of "):
            return True
        weights = self.other(self.recipe.distillation.recipe).folder / "teacher" / WEIGHTS
        return weights.exists() or self.stages.has_ended(measurement_stage(system, split))

    def write_card(self, systems: Sequence[str]) -> Path:
        """measurements.json, and card.md from it."""
        assert self.recipe.student is not None
        student = self.load("student", "cpu")
        systems = [*systems, *(["int8"] if can_be_int8(student) else [])]
        if self.recipe.distillation.enabled and (other := self.recipe.distillation.recipe):
            systems = [f"teacher of {Path(other).stem}", *systems]
        dev = {system: self.measure(system, "dev") for system in systems if self.can_measure(system, "dev")}
        results: dict[str, Any] = {"dev": {system: sets for system, (sets, _) in dev.items()}}
        if self.test and self.recipe.data.test:
            seen = [system for system in systems if self.can_measure(system, "test")]
            results["test"] = {system: self.measure(system, "test")[0] for system in seen}
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
            "compared_with": self.compared_with([*dev]),
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
            {**one, "name": f"cleaning {one['name']}"} for one in self.records(self.out / "corpora", "cpu").listed()
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
        return shlex.join(map(str, [*words, *(["--test"] if self.test else [])]))


def measurement_stage(system: str, split: str) -> str:
    return f"{split}.{system.replace(' ', '-')}"


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


def fast_precision(translator: Translator) -> str:
    """bfloat16 on a GPU, where the model can be prepared for it."""
    device = next(translator.model.parameters()).device
    return "bfloat16" if device.type == "cuda" and not objections(translator.model) else "float32"


def batch_tokens(translator: Translator) -> int:
    """Tokens × beams of a batch that keep the device busy."""
    return 4096 if next(translator.model.parameters()).device.type == "cpu" else 65_536


def describe_model(model: ModelConfig) -> str:
    below = model.layers if model.decoder_layers is None else model.decoder_layers
    return (
        f"A {model.kind} with {model.layers} encoder and {below} decoder layers of width {model.model} and "
        f"{model.hidden}, {model.heads} heads"
    )
