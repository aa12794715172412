"""Packaged models: found by the entry points of any package, whose code is not executed; their cards."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.tasks.model_packages import (
    card_bleu,
    card_fields,
    card_licence,
    find_model,
    package_folders,
    packaged_models,
    resolve_model,
    shortest_name,
)

SETTINGS = 'task = "translation"\n\n[data]\nsource = "en"\ntarget = "xx"\n'


@pytest.fixture
def install(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Installs a made-up package with a model; to import it is an error. Returns the model's folder."""

    def make(package: str, model: str = "en-xx", settings: str = SETTINGS, card: str = "") -> Path:
        place = tmp_path / f"{package}-site"
        folder, known = place / package / model, place / f"{package}-1.0.dist-info"
        folder.mkdir(parents=True)
        known.mkdir()
        (place / package / "__init__.py").write_text("raise RuntimeError('a package of models is imported')\n")
        (place / package / "notes").mkdir()  # a folder without settings is no model
        (folder / "settings.toml").write_text(settings)
        (folder / "weights").write_bytes(b"12345")
        if card:
            (folder / "card.md").write_text(card)
        (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (known / "entry_points.txt").write_text(f"[regard.models]\n{package} = {package}\n")
        monkeypatch.syspath_prepend(str(place))
        return folder

    monkeypatch.chdir(tmp_path)
    return make


def test_a_name_is_the_folder_of_the_installed_model_and_nothing_is_imported(install):
    folder = install("made_up_models", card="---\nlicense: CC0\nbleu: 12.5\n---\n# en-xx\n")
    assert resolve_model("en-xx") == folder
    assert "made_up_models" not in sys.modules
    assert "notes" not in {model.name for model in packaged_models()}
    found = find_model("en-xx").describe()
    assert (found["languages"], found["package"], found["bleu"]) == ("en → xx", "made_up_models", 12.5)
    assert (found["licence"], found["folder"]) == ("CC0", str(folder))
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert json.dumps(found)


def test_a_folder_here_comes_before_a_model_of_its_name(install, tmp_path):
    installed = install("made_up_models")
    (tmp_path / "en-xx").mkdir()
    assert resolve_model("en-xx") == Path("en-xx")
    assert resolve_model(tmp_path / "en-xx") == tmp_path / "en-xx"
    (tmp_path / "en-xx").rmdir()
    assert resolve_model(Path("en-xx")) == installed


@pytest.mark.parametrize("path", ["runs/en-xx", "./en-xx/", "../en-xx", "/en-xx", ".en-xx"])
def test_a_path_is_never_a_name(install, path):
    install("made_up_models")
    assert resolve_model(path) == Path(path)
    assert resolve_model(Path("runs") / "en-xx") == Path("runs/en-xx")


def test_an_unknown_name_says_what_there_is_and_how_to_get_more(install):
    install("made_up_models")
    with pytest.raises(
        ValueError,
        match=r"en-yy holds no model: .* an installed one; did you mean en-xx\?",
    ):
        resolve_model("en-yy")
    with pytest.raises(ValueError, match=r"there are .*en-xx.*regard train --out nothing"):
        resolve_model("nothing")
    if "regard-models" not in {model.package for model in packaged_models()}:
        with pytest.raises(ValueError, match="pip install regard-models brings translators"):
            resolve_model("nothing")
    with pytest.raises(ValueError, match="no installed package has a model 'en-yy'"):
        find_model("en-yy")


def test_a_direction_is_found_however_it_is_written_and_by_way_of_another_language(install):
    for package, model in (("one_models", "xx-yy"), ("two_models", "yy-zz")):
        install(package, model)
    for name in ("XX-YY", "xx_yy", "xxyy", "xx-to-yy"):
        with pytest.raises(ValueError, match=r"did you mean xx-yy\?"):
            resolve_model(name)
    with pytest.raises(ValueError, match=r"in two steps: regard translate xx-yy FILE \| regard translate yy-zz"):
        resolve_model("xx-zz")
    assert shortest_name(find_model("xx-yy").folder) == "xx-yy"
    assert shortest_name(Path("runs/mine")) == "runs/mine"


def test_a_name_that_two_packages_ship_is_not_guessed(install):
    first = install("made_up_models")
    install("other_models")
    with pytest.raises(
        ValueError, match="made_up_models and other_models both ship a model en-xx; give the folder"
    ) as why:
        resolve_model("en-xx")
    assert str(first) in str(why.value)


def test_an_entry_point_whose_package_is_gone_ships_nothing(install):
    folder = install("made_up_models")
    for path in [*folder.iterdir(), folder, folder.parent / "notes", folder.parent / "__init__.py", folder.parent]:
        path.unlink() if path.is_file() else path.rmdir()
    assert package_folders("made_up_models") == []
    assert package_folders("made_up_models.inner") == []
    assert "en-xx" not in {model.name for model in packaged_models()}


def test_a_model_of_another_task_has_no_languages(install):
    install("made_up_models", "writer", 'task = "language_modeling"\n')
    found = find_model("writer").describe()
    assert (found["task"], found["languages"], found["bleu"], found["licence"]) == ("language_modeling", "", None, "")


def test_bleu_is_that_of_the_first_test_set_of_a_card():
    table = "| set | BLEU | chrF |\n| --- | --- | --- |\n| tatoeba | 49.5 ± 1 | 68 |\n| news | 25.0 | 50 |\n"
    assert card_bleu(f"# en-xx\n\nTrained 3 hours.\n\n{table}") == 49.5
    assert card_bleu(f"---\nbleu: 48.1 (tatoeba)\n---\n{table}") == 48.1
    assert card_bleu("It has sacreBLEU BLEU|nrefs:1, see below") is None
    assert card_bleu("On tatoeba: BLEU = 31.25, chrF 60") == 31.25
    assert card_bleu("nothing is known, not even 1") is None
    assert card_fields("# no front matter\nlicense: none") == {}
    assert card_licence('---\ntags:\n- a: b\nlicense: "CC BY 2.0 FR"\n---\n') == "CC BY 2.0 FR"
