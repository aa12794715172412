"""Parts of a user's own in Python: given as classes or files, recorded with a run, and needed again to load it."""

import sys
import tomllib
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.attention import Causal, Pattern, Recipe, RowWise, Score, Sinusoidal
from regard.attention.parts import find_own_parts
from regard.layers import PreNorm
from regard.tasks.language_modeling.task import LanguageModelingSettings
from regard.tasks.own_parts import OwnParts, PartSource, format_record, read_record, source_of
from regard.tasks.pretrained import load_settings
from regard.tasks.translation.task import TranslationSettings

PAIRS = [("the cat sleeps", "le chat dort"), ("a dog eats", "un chien mange"), ("the dog sleeps", "le chien dort")]
SMALL: dict[str, Any] = {
    "layers": 1,
    "heads": 2,
    "hidden": 24,
    "model.model": 16,
    "text.kind": "words",
    "device": "cpu",
}


@dataclass(frozen=True)
class Odd(Pattern):
    """Keys at an odd distance, and the token itself."""

    def sees(self, b, h, i, j):
        return ((i - j) % 2 == 1) | (i == j)


class Gated(nn.Module, Score):
    """q · k times a learned number."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.ones(()))

    def compare(self, q, k):
        return self.gate * (q @ k.mT)


@dataclass(frozen=True)
class Squared(RowWise):
    """s² / Σ s²"""

    def weigh(self, scores, visible):
        squares = torch.where(visible, scores.square(), 0.0)
        return squares / squares.sum(-1, keepdim=True).clamp(min=1e-9)


class Sandwich(PreNorm):
    """A residual connection of a user's own."""


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    return x.relu().square()


OWN = OwnParts.load([Odd, Gated, Squared, Sandwich, squared_relu])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 20))
    return path


# --- regard.train and regard.load ---


def test_a_recipe_object_with_own_parts_is_trained_saved_and_loaded(pairs, tmp_path):
    recipe = Recipe(score=Gated(), position=Sinusoidal(), pattern=Odd(), normaliser=Squared())

    def train(steps: int) -> regard.LoadedModel:
        return regard.train(train=pairs, out=tmp_path / "run", steps=steps, batch_size=128, encoder=recipe, **SMALL)

    model = train(2)
    assert model.settings.model.encoder == recipe.to_toml()
    names = [name for name, _ in model.task_model.model.named_parameters() if name.endswith("gate")]
    assert len(names) == 1
    recorded = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())["parts"]
    here = Path(__file__)
    assert recorded == [
        {"file": str(here), "sha256": sha256(here.read_bytes()).hexdigest(), "names": ["Gated", "Odd", "Squared"]}
    ]
    with pytest.raises(ValueError, match=r"it uses Gated and Odd and Squared of your own; name the file"):
        regard.load(tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match=r"it uses Odd of your own"):
        regard.load(tmp_path / "run", device="cpu", parts=[Gated, Squared])
    for parts in ([Gated, Odd, Squared], [__file__]):
        again = regard.load(tmp_path / "run", device="cpu", parts=parts)
        assert again.translate("a dog eats") == model.translate("a dog eats")
    assert "dog" in str(regard.trace(tmp_path / "run", "a dog eats", parts=[Path(__file__)]).axes["source"].labels)
    assert train(3).settings.train.steps == 3  # resumes: the recipe brings its parts along


def test_attention_is_the_recipe_of_a_model_that_has_one(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat sleeps and the dog eats\n" * 40)
    recipe = Recipe(score=Gated(), position=Sinusoidal())
    sizes: dict[str, Any] = SMALL | {"train.max_length": 16}
    model = regard.train(
        "language_modeling", train=lines, out=tmp_path / "run", steps=1, batch_size=64, attention=recipe, **sizes
    )
    assert model.settings.model.recipe == recipe.to_toml()
    several = r"'translation' has 3 recipes of attention; name one: encoder=Recipe\(...\), decoder="
    with pytest.raises(ValueError, match=several):
        regard.train(out=tmp_path / "other", attention=recipe)
    with pytest.raises(ValueError, match=r"'vqa' has no recipes of attention$"):
        regard.train("vqa", out=tmp_path / "other", attention=recipe)


# --- settings ---


def test_settings_name_own_parts_wherever_a_part_is_named():
    changes = {
        "model.encoder": 'score = "Gated()"',
        "model.decoder": 'pattern = "Causal() & ~Odd()"\nnormaliser = "Squared()"',
        "model.norm": "Sandwich",
        "model.activation": "squared_relu",
    }
    settings = TranslationSettings().with_changes(changes, OWN)
    assert list(settings.own_parts) == ["Sandwich", "squared_relu", "Gated", "Odd", "Squared"]
    assert settings == replace(settings, train=settings.train)
    tables = tomllib.loads(settings.to_toml())
    assert TranslationSettings.from_tables(tables, OWN) == settings
    assert settings.with_changes({"train.steps": 3}).own_parts == settings.own_parts
    assert settings.with_changes({"model.encoder": 'pattern = "Odd()"'}).own_parts["Odd"] is Odd
    assert not settings.with_changes({"model.kind": "gru"}).own_parts
    assert "parts = " not in TranslationSettings().with_changes({}, OWN).to_toml()  # what is not named is not recorded
    with pytest.raises(ValueError, match=r"model.norm = 'Odd' is a part of your own, and no subclass of Residual"):
        TranslationSettings().with_changes({"model.norm": "Odd"}, OWN)


def test_one_recipe_for_each_layer_may_have_own_parts():
    recipes = [Recipe(pattern=Odd() & Causal(), position=Sinusoidal()).to_toml(), 'position = "Sinusoidal()"']
    changes = {"model.layers": 2, "model.recipe": recipes}
    settings = LanguageModelingSettings().with_changes(changes, OWN)
    assert list(settings.own_parts) == ["Odd"]
    assert LanguageModelingSettings.from_tables(tomllib.loads(settings.to_toml()), OWN) == settings
    assert list(find_own_parts([recipes, Recipe(score=Gated()), 3, "Odd()"])) == ["Gated"]


# --- records ---


def test_a_part_typed_at_a_prompt_is_recorded_by_its_name(tmp_path, monkeypatch):
    typed = type("Typed", (Odd,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Typed", typed, raising=False)
    assert source_of(typed) == PartSource("", b"")
    settings = TranslationSettings().with_changes({"model.encoder": 'pattern = "Typed()"'}, OwnParts.load([typed]))
    (tmp_path / "settings.toml").write_text(settings.to_toml())
    with pytest.raises(ValueError, match=r"it uses Typed of your own, from no file; pass parts=\[Typed\], or a file"):
        load_settings(tmp_path, TranslationSettings)
    again = load_settings(tmp_path, TranslationSettings, OwnParts.load([typed]))
    assert again.own_parts == {"Typed": typed}


def test_a_record_reads_as_it_is_written():
    (recorded,) = read_record(tomllib.loads(format_record({"Odd": Odd, "Gated": Gated}))["parts"])
    assert (recorded.file, recorded.names) == (__file__, ("Odd", "Gated"))
    assert recorded.sha256 == source_of(Odd).sha256
    assert [one.file for one in read_record(["mine.py", "yours.py"])] == ["mine.py", "yours.py"]
    assert format_record({}) == ""


@pytest.mark.parametrize("record", [3, [3], [{"file": "mine.py"}], [{"file": 3, "sha256": "", "names": ["a"]}], {}])
def test_any_other_record_is_refused(record):
    with pytest.raises(ValueError, match="should be a list of files, such as"):
        OWN.check_record(record, Path())


def test_two_versions_of_a_part_do_not_go_together(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    source = "from regard.attention import Causal\n\nclass Mine(Causal):\n    pass\n"
    one.write_text(source)
    other.write_text(source)
    with pytest.raises(ValueError, match=f"Mine is defined in {one} and in {other}; rename one"):
        OwnParts.load([one], changed=[other])
    assert list(OwnParts.load([one, str(one)]).named) == ["Mine"]
    mixed = OwnParts.load([one]).load_more(OwnParts.load([one]).named.values())  # the same file, run twice
    assert list(mixed.named) == ["Mine"]
    assert mixed.files == (one,)


def test_a_changed_file_is_taken_alone(tmp_path):
    files = {name: tmp_path / f"{name.lower()}.py" for name in ("Mine", "Yours")}
    for name, file in files.items():
        file.write_text(f"from regard.attention import Causal\n\nclass {name}(Causal):\n    pass\n")
    mine, yours = files.values()
    record = tomllib.loads(format_record(OwnParts.load([mine, yours]).named))["parts"]
    OwnParts.load([mine, yours]).check_record(record, tmp_path)
    for file in files.values():
        file.write_text(f"{file.read_text()}\n# another")
    OwnParts.load([], changed=[mine, yours]).check_record(record, tmp_path)
    with pytest.raises(ValueError, match=f"Mine of '{mine}' has changed since the training"):
        OwnParts.load([mine], changed=[yours]).check_record(record, tmp_path)


def test_helpers_and_imports_are_no_parts(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from abc import abstractmethod\n"
        "from dataclasses import dataclass\n"
        "from regard.attention import Causal, Pattern\n"
        "class Base(Pattern):\n    pass\n"
        "class _Hidden(Causal):\n    pass\n"
        "class Plain:\n    pass\n"
        "@dataclass(frozen=True)\nclass Mine(Causal):\n    size: int = 3\n"
        "Alias = Mine\n"
    )
    assert list(OwnParts.load([file]).named) == ["Mine"]
