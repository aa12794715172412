"""Build recipe: what a translator is made of: data, teacher, student, synthetic pairs, and how it is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from regard.data.cleaning import CleaningRules
from regard.decode.beam import Beam
from regard.models.config import ModelConfig
from regard.models.config_base import AT_LEAST_0, AT_LEAST_1, SHARE, Ranges, SettingsTable, suggest
from regard.tasks.config import PairTokenizerSettings, parse_value, read_table, read_tables, table_keys
from regard.training.config import TrainSettings

SHARED_TABLES = ("data", "text", "teacher", "measure")  # whose changes hold for other recipes' teachers, too


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
