"""Packaged models on the command line: a run packed by `regard export`, and its name in every verb."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard as library
from regard.cli import demo
from regard.models.safetensors_io import named_tensors, unpack_weights
from regard.tasks.config import read_tables
from regard.tasks.model_packages import PackagedModel, packaged_models
from regard.tasks.translation.task import Translator

from .commands import assert_done, assert_refused, output_lines, regard

TEXT = "the black cat ate the mouse"
EXAMPLE_TEXT = "the mouse ate the black cat"
CARD = "---\nlicense: CC0\n---\n# en-fr\n\n| test set | BLEU |\n| --- | --- |\n| world | 41.5 |\n"


@pytest.fixture(scope="module")
def packed(trained, tmp_path_factory) -> Path:
    """The trained run as a packaged model is shipped."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("carded") / "run"))
    (run / "card.md").write_text(CARD)
    (run / "example.txt").write_text(f"{EXAMPLE_TEXT}\n")
    folder = tmp_path_factory.mktemp("made_up") / "xx-fr"
    answer = regard("export", run, "--to", "regard", "--out", folder, "--count", 7)
    assert f"exported: {folder}, " in assert_done(answer)
    return folder


@pytest.fixture
def shipped(packed, monkeypatch) -> Path:
    """The same, in an installed package."""
    package = packed.parent
    (package / "made_up").mkdir(exist_ok=True)
    known = package / "made_up-1.0.dist-info"
    known.mkdir(exist_ok=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text("[regard.models]\nmade-up = made_up\n")
    if not (package / "made_up" / "xx-fr").exists():
        shutil.copytree(packed, package / "made_up" / "xx-fr")
    monkeypatch.syspath_prepend(str(package))
    return package / "made_up" / "xx-fr"


def test_a_packed_run_holds_whole_numbers_and_is_loaded_as_their_multiples(packed, trained):
    saved = load_file(packed / "model.safetensors")
    assert {one.dtype for one in saved.values() if one.dim() > 1} == {torch.int8}
    loaded = library.load(packed, device="cpu").task_model
    for name, tensor in named_tensors(loaded.model).items():
        assert torch.equal(tensor, unpack_weights(saved)[name])
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (packed, trained)]
    assert sizes[0] < 0.4 * sizes[1]
    proof = json.loads((packed / "proof.json").read_text())
    assert (proof["engine"], proof["precision"]) == ("Regard", "int8")
    meant = [check for check in proof["checks"] if check["check"].endswith("as quantised in memory")]
    assert [check["check"].split()[0] for check in meant] == ["weights,", "greedy,", "beam"]
    assert all(check["identical"] == check["sentences"] > 0 for check in meant)
    assert Translator.load(packed).alignment_heads == Translator.load(trained).alignment_heads != ()


def test_how_to_use_a_packed_run_is_shown_on_its_own_example(packed, monkeypatch, capsys):
    code = (packed / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert code.endswith(f'model = regard.load("xx-fr")\nprint(model("{EXAMPLE_TEXT}"))\n')
    monkeypatch.chdir(packed.parent)
    exec(code, {})
    assert capsys.readouterr().out.strip() == library.load(packed)(EXAMPLE_TEXT).text


def test_a_packed_run_names_no_folder_of_the_machine(trained, tmp_path, corpus):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    text, pairs = (run / "settings.toml").read_text(), corpus()
    text = text.replace('corpus = "world"', 'corpus = "files"').replace("train = []", f'train = ["{pairs}"]')
    (run / "settings.toml").write_text(text)
    assert_done(regard("export", run, "--to", "regard", "--out", "small", "--count", 3))
    assert read_tables(Path("small/settings.toml"))["data"]["train"] == [pairs.name]
    assert str(tmp_path) not in "".join(
        path.read_text() for path in Path("small").glob("*[nl]") if path.suffix == ".toml"
    )


def test_packing_never_overwrites(packed, trained):
    before = {path.name: path.read_bytes() for path in packed.iterdir()}
    answer = regard("export", trained, "--to", "regard", "--out", packed)
    assert_refused(answer, f"{packed} is there already; remove it, or choose another --out")
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == before


def test_weights_that_are_not_what_was_meant_leave_nothing(trained, monkeypatch):
    from regard.interop import exporter

    real = exporter.pack_weights
    monkeypatch.setattr(
        exporter, "pack_weights", lambda tensors: real({name: one * 1.5 for name, one in tensors.items()})
    )
    monkeypatch.setattr(exporter, "unpack_weights", lambda packed: unpack_weights(packed) | {"odd": torch.zeros(1)})
    monkeypatch.setattr(exporter.PackedRunFormat, "write", off_by_one)
    with pytest.raises(ValueError, match="is not what was written; nothing is kept"):
        library.interop.export(trained, "regard", "out", count=2)
    assert not Path("out").exists()


def off_by_one(self, task_model, folder, precision):
    """Writes the weights with the first of them changed."""
    from regard.models.safetensors_io import saveable_tensors, write_weights

    tensors = saveable_tensors(task_model.model)
    first = next(iter(tensors))
    write_weights(tensors | {first: tensors[first] + 1}, folder / "model.safetensors", task_model.describe(folder))


def test_only_what_is_proved_is_packed(tmp_path):
    answer = regard("train", "--task", "tagging", "--steps", 1, "--set", "data.sentences=40", "--out", "tagger")
    assert_done(answer)
    message = "tagger cannot be exported to Regard: nothing proves a packed model for the task 'tagging'"
    assert_refused(regard("export", "tagger", "--to", "regard", "--out", "small"), message)


# --- names ---


def test_every_verb_takes_a_name(shipped, corpus):
    pairs = corpus(20, name="pairs.tsv")
    answers = {
        folder: [
            assert_done(regard("translate", folder, TEXT)),
            assert_done(regard("look", folder, TEXT)),
            assert_done(regard("evaluate", folder, "--on", pairs, "--beam", 1)),
            assert_done(regard("compare", folder, shipped)).replace("xx-fr", "").replace(str(shipped.parent), ""),
        ]
        for folder in ("xx-fr", shipped)
    }
    assert answers["xx-fr"][:3] == answers[shipped][:3]
    assert_done(regard("export", "xx-fr", "--to", "regard", "--out", "again", "--count", 3))
    assert Path("again/model.safetensors").read_bytes() == (shipped / "model.safetensors").read_bytes()
    assert_done(
        regard("data", "prepare", pairs, "--to", "fr", "--vocabulary", "xx-fr", "--out", "ready", "--workers", 1)
    )
    assert Path("ready/source.json").read_bytes() == (shipped / "source.json").read_bytes()
    done = regard("train", "--init-from", "xx-fr", "--train", pairs, "--steps", 2, "--out", "tuned")
    assert "initialised with the weights and the vocabulary of" in f"{done.output}"
    assert Path("tuned/model.safetensors").stat().st_size > 2 * (shipped / "model.safetensors").stat().st_size


def test_a_name_works_in_python(shipped):
    model = library.load("xx-fr", device="cpu")
    assert model.folder == shipped
    assert str(model.translate(TEXT)) == str(library.load(shipped, device="cpu").translate(TEXT))
    assert library.trace("xx-fr", TEXT).axes["source"].labels[:2] == ("the", "black")
    fast = model.translate([TEXT], precision="int8")
    assert len(fast) == 1


def test_the_list_of_models_and_their_cards(shipped):
    lines = output_lines(regard("models"))
    assert lines[0].split() == ["model", "languages", "size", "BLEU", "licence", "where"]
    (mine,) = (line for line in lines if line.startswith("xx-fr "))
    assert "en → fr" in mine
    assert "41.5  CC0" in mine
    assert mine.endswith(str(shipped))
    (found,) = (one for one in json.loads(assert_done(regard("models", "--json"))) if one["name"] == "xx-fr")
    assert (found["bleu"], found["licence"], found["package"]) == (41.5, "CC0", "made-up")
    assert assert_done(regard("models", "show", "xx-fr")) == CARD
    assert_refused(regard("models", "show", "xx-de"), "no installed package has a model 'xx-de'; did you mean xx-fr?")


def test_a_name_that_nobody_ships(shipped):
    for words in (["translate", "xx-de", TEXT], ["look", "xx-de", TEXT], ["evaluate", "xx-de"], ["serve", "xx-de"]):
        assert_refused(
            regard(*words),
            "xx-de holds no model: it is neither a folder here nor the name of an installed one; did you mean xx-fr?",
        )


def test_without_models_the_list_says_how_to_get_some(monkeypatch):
    monkeypatch.setattr("regard.tasks.model_packages.entry_points", lambda **_: [])
    answer = regard("models")
    assert answer.output == "no installed package ships models; pip install regard-models brings translators\n"
    assert answer.exit_code == 0
    assert json.loads(assert_done(regard("models", "--json"))) == []
    assert_refused(regard("serve"), "no model given; name a run folder, or pip install regard-models")


# --- the demo ---


def test_the_demo_begins_with_real_sentences_where_a_model_is_shipped(shipped, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SHIPPED_MODEL", "xx-fr")
    monkeypatch.setattr(demo, "REAL_SENTENCES", (TEXT, "the cat sleeps"))
    assert demo.show_shipped_model(Path("out/demo")) == 2
    written = capsys.readouterr().out
    model = library.load(shipped, device="cpu")
    for text in (TEXT, "the cat sleeps"):
        assert f"  {text}\n  {model.translate(text)}\n" in written
    assert Path("out/demo-xx-fr.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(demo, "SHIPPED_MODEL", "nobody-ships-it")
    assert demo.show_shipped_model(Path("out/demo")) == 1
    assert capsys.readouterr().out == ""


def test_what_this_repository_ships_can_be_loaded_and_is_small():
    """Nothing to check in a checkout without weights."""
    ours = [model for model in packaged_models() if model.package == "regard-models"]
    for model in ours:
        assert model.size <= 16e6
        assert model.card
        assert library.load(model.folder, device="cpu").translate(TEXT).text
    assert sum(model.size for model in ours) <= 40e6
    assert all(isinstance(model, PackagedModel) for model in ours)
