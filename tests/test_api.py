"""The public API: load, train and trace in one line each, with the same defaults as the command line."""

import pytest

from regard.api import load, trace, train
from regard.tasks.pretrained import LabelOutput, ModelOutput, html_table
from regard.training.run import read_log

PAIRS = [("the cat sleeps", "le chat dort"), ("a dog eats", "un chien mange"), ("the dog sleeps", "le chien dort")]
SMALL = {"model": "transformer", "layers": 1, "heads": 2, "hidden": 32, "validate_every": 20, "checkpoint_every": 20}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run trained by one call on a .tsv."""
    folder = tmp_path_factory.mktemp("api")
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 40))
    sizes = {"model.model": 32, "text.kind": "words", "train.max_length": 20}
    model = train(train=pairs, out=folder / "run", steps=40, batch_size=256, device="cpu", **SMALL, **sizes)
    return model, folder


def test_it_is_logged(run):
    _, folder = run
    assert [line["step"] for line in read_log(folder / "run")] == [1, 20, 40]


def test_a_trained_model_translates_one_text_or_a_list(run):
    model, _ = run
    one, many = model.translate("the cat sleeps"), model.translate(["the cat sleeps", "a dog eats"])
    assert str(one) == one.text == many[0].text
    assert model("the cat sleeps") == one
    assert one.score == pytest.approx(many[0].score, abs=1e-5)
    assert one.score <= 0


def test_an_n_best_list_is_ranked(run):
    model, _ = run
    best = model.translate("the cat sleeps", n_best=3, length_penalty=0.0)
    scores = [best.score, *(other.score for other in best.alternatives)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_an_alignment_links_every_written_word_it_can(run):
    model, _ = run
    output = model.translate("the dog sleeps")
    alignment = output.alignment
    assert alignment.source == ("the", "dog", "sleeps")
    assert alignment.weights.shape == (len(alignment.target), 4)
    assert alignment.weights.sum(1).tolist() == pytest.approx([1.0] * len(alignment.target), abs=1e-5)
    assert str(alignment) == " ".join(f"{i}-{j}" for i, j in sorted(alignment.links))
    assert "<th>dog</th>" in alignment._repr_html_()


def test_the_folder_loads_the_same_model(run):
    model, folder = run
    again = load(str(folder / "run"), device="cpu")
    assert again.translate("a dog eats") == model.translate("a dog eats")
    assert again.settings == model.settings
    assert {"translate", "evaluate", "look", "trace", "save", "source", "settings"} <= {*dir(again)}
    assert not {"build_model", "from_description", "check_weights_match"} & {*dir(again)}
    assert "translation" in repr(again)


def test_the_same_call_finds_the_run_trained(run):
    model, folder = run
    sizes = {"model.model": 32, "text.kind": "words", "train.max_length": 20}
    again = train(
        train=folder / "pairs.tsv", out=folder / "run", steps=40, batch_size=256, device="cpu", **SMALL, **sizes
    )
    assert again.translate("a dog eats") == model.translate("a dog eats")


def test_a_model_is_evaluated_traced_and_drawn(run):
    model, folder = run
    metrics = model.evaluate(folder / "pairs.tsv")
    assert "BLEU" in metrics.table()
    traced = model.trace("the cat sleeps")
    assert traced.output_text == trace(folder / "run", "the cat sleeps").output_text
    view = model.look("the cat sleeps")
    assert "sleeps" in str(view)
    assert view.save(folder / "look.png").stat().st_size > 1000
    assert view._repr_png_().startswith(b"\x89PNG")


def test_another_tasks_verb_is_refused_with_the_models_own(run):
    model, _ = run
    with pytest.raises(AttributeError, match="no 'tag'; its verb is 'translate'"):
        _ = model.tag


def test_a_setting_that_is_misspelt_names_its_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"^the task 'tagging' has no setting 'leyers'; did you mean layers\?$"):
        train("tagging", out=tmp_path / "run", leyers=3)
    assert not (tmp_path / "run").exists()


def test_labels_are_ranked_and_tables_escape_their_text():
    output = LabelOutput.of(["good", "<bad>"], [0.25, 0.75])
    assert (output.text, output.score) == ("<bad>", 0.75)
    assert list(output.probabilities) == ["<bad>", "good"]
    assert output._repr_html_() == (
        "<table><tr><td>&lt;bad&gt;</td><td>75.0 %</td></tr><tr><td>good</td><td>25.0 %</td></tr></table>"
    )
    assert "background" in html_table([("a",)], shades=[[0.5]])
    assert str(ModelOutput(text="x", score=0.0)) == "x"
