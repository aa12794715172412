"""regard draw, explain, gallery and lecture: pictures, who runs what, and mistakes in one line."""

import pytest
from PIL import Image

from regard.attention import GATED_RECIPES, Recipe, RecipeSizes, get_recipe, steps
from regard.see import gallery
from regard.see.gallery import LAYER_CAPTIONS
from regard.see.plots.draw import build_view, parse_thing
from regard.see.plots.panels import Panel

from .commands import regard as run

# --- draw ---


def test_draw_prints_a_pattern():
    assert run("draw", "Causal() & Window(2)", "--tokens", "3").output == "■ · ·\n■ ■ ·\n· ■ ■\n"


def test_draw_knows_names():
    assert run("draw", "sliding window", "--tokens", "3").output.startswith("mask\n■ · ·\n■ ■ ·\n■ ■ ■\n")
    assert run("draw", "shaw", "--tokens", "2").output == "4 5\n3 4\n"


@pytest.mark.parametrize("part", ["Cosine()", "Sparsemax()"])
def test_draw_shows_a_score_or_normaliser_by_its_weights(part):
    answer = run("draw", part, "--tokens", "5")
    assert answer.exit_code == 0
    assert part.removesuffix(")") in answer.output
    assert "weights on an example" in answer.output


def test_draw_writes_a_picture(tmp_path):
    path = tmp_path / "new" / "a.svg"
    answer = run("draw", "rotary", "--save", str(path))
    assert answer.output == f"drawn: {path}\n"
    assert "Rotary(theta=10000.0" in path.read_text()


def test_draw_shows_the_pattern_of_each_head():
    answer = run("draw", "PerHead([Causal(), Window(1)])", "--tokens", "2")
    assert answer.output == "head 1\n■ ·\n■ ■\n\nhead 2\n■ ·\n· ■\n"
    answer = run("draw", "per head", "--tokens", "9")
    assert "head 1\n\nmask\n■ · · · · · · · ·" in answer.output
    assert "■ ■ ■ ■ ■ ■ ■ ■ ■\n\nweights on an example" in answer.output.partition("head 2")[2]


@pytest.mark.parametrize("part", ["Window(2) & TopBlocks(2, 4)", "PerHead([Causal(), TopBlocks(1, 4)])"])
def test_draw_shows_what_a_pattern_chooses_within_another(part):
    answer = run("draw", part, "--tokens", "5")
    assert "■ · · · ·\n■ ■ · · ·" in answer.output
    assert "weights on an example" in answer.output


@pytest.mark.parametrize("name", LAYER_CAPTIONS)
def test_draw_knows_the_layers_of_the_gallery(name, tmp_path):
    answer = run("draw", name, "--tokens", "9")
    assert answer.exit_code == 0
    assert "█" in answer.output
    assert LAYER_CAPTIONS[name] in answer.output
    assert run("draw", name, "--tokens", "2").exit_code == 0  # fewer than a block
    assert run("draw", name, "--save", str(tmp_path / "a.png")).output == f"drawn: {tmp_path / 'a.png'}\n"


@pytest.mark.parametrize(
    "form",
    [
        "NativeSparse(block=2, k=2, window=3)",
        "LatentKV(rank=8)",
        "InducingPoints(3)",
        "Linformer(max_length=9, rank=4)",
    ],
)
def test_draw_knows_the_forms_of_a_layer_with_their_sizes(form, tmp_path):
    answer = run("draw", form, "--tokens", "9")
    assert answer.exit_code == 0
    assert "█" in answer.output
    assert f"attention_form = {form!r}" in answer.output
    path = tmp_path / "a.png"
    assert run("draw", form, "--tokens", "9", "--save", str(path)).output == f"drawn: {path}\n"
    with Image.open(path) as picture:
        assert picture.width < 1700  # also that of a long caption, which has several lines


@pytest.mark.parametrize("gate", ["Delta()", "GatedDelta()", "KimiDelta(rank=4)"])
def test_a_delta_rule_is_drawn_with_keys_of_length_1(gate):
    """Of longer keys its weights would grow from token to token, and only the largest would be seen."""
    view = build_view(parse_thing(gate, RecipeSizes()), tokens=32)
    _, weights = view.panels()
    assert isinstance(weights, Panel)
    assert 0.5 < weights.values.abs().max() <= 1


# --- explain ---


def test_explain_says_who_runs_a_recipe_and_why():
    answer = run("explain", "causal", "--tokens", "100", "--no-grad")
    assert answer.exit_code == 0
    assert "sdpa runs this recipe" in answer.output
    assert "not linear: Softmax() is not proportional" in answer.output
    assert "100 tokens, 8 heads of width 64, no gradients" in answer.output


@pytest.mark.parametrize("name", GATED_RECIPES)
def test_explain_knows_recipes_whose_gates_a_layer_makes(name):
    answer = run("explain", name, "--tokens", "64")
    assert answer.exit_code == 0
    assert f"gate        {get_recipe(name).gate}" in answer.output
    assert f"{'sdpa' if name == 'forget gate' else 'state'} runs this recipe" in answer.output


def test_explain_knows_patterns_that_are_chosen():
    assert "sdpa runs this recipe" in run("explain", "TopBlocks(2, 4)", "--tokens", "64").output


def test_explain_minds_gradients():
    without, with_them = (run("explain", "causal", *words).output for words in (["--no-grad"], []))
    assert "it has no backward pass on the CPU" not in without
    assert "it has no backward pass on the CPU" in with_them


def test_explain_reads_files_texts_and_parts(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(get_recipe("longformer").to_toml())
    assert "Window(size=64) | Global(tokens=1)" in run("explain", str(path)).output
    assert "linear runs this recipe" in run("explain", get_recipe("linear").to_toml()).output
    assert "pattern     Window(size=7)" in run("explain", "Window(7)").output
    assert "position    Alibi(heads=8)" in run("explain", "Alibi(8)").output
    path.write_text("pattern = Causal")
    assert run("explain", str(path)).stderr.startswith(f"regard: {path}: Invalid value")


# --- mistakes ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "No such command 'fly'; see regard --help"),
        (["draw"], "Missing argument 'what'; see regard draw --help"),
        (["draw", "Causal()", "--tokens", "0"], "Invalid value for '--tokens'"),
        (["draw", "Causal()", "--colour"], "No such option: --colour"),
        (["draw", "bigbrd"], "nothing is called 'bigbrd'; did you mean 'bigbird'?"),
        (["draw", "Causal"], "nothing is called 'Causal'; did you mean 'Causal()'?"),
        (["draw", "natve sparse"], "nothing is called 'natve sparse'; did you mean 'native sparse'?"),
        (["explain", "qk-norm"], "nothing is called 'qk-norm', but a layer or several are: `regard draw` shows them"),
        (["draw", "qqq"], "nothing is called 'qqq'; names are dot, scaled dot,"),
        (["draw", "Window(0)"], "Window(size=0): size must be a whole number, at least 1"),
        (["draw", "Window(size=1"], "cannot read 'Window(size=1'"),
        (["draw", "__import__('os')"], """cannot read "__import__('os')" in "__import__('os')"; known parts: Dot,"""),
        (
            ["draw", "Clipped(3)"],
            "'Clipped(3)' is no score, position, pattern, normaliser or gate; try",
        ),
        (["draw", "TreeDepth()"], "TreeDepth(theta=10000.0) needs the sentences' trees: use recipe.with_tree"),
        (["draw", "Additive(3, hidden=-1)"], "cannot read 'Additive(3, hidden=-1)': RuntimeError"),
        (["draw", "Causal()", "--save", "a.gif"], "cannot write 'a.gif': a picture ends in .png, .svg, .pdf"),
        (["draw", "Causal()", "--save", "/dev/null/a.png"], "/dev/null/a.png: cannot be written"),
        (["draw", "causal", "--tokens", "5000"], "the weights of 5000 tokens are too many for a picture"),
        (["explain", "missing.toml"], "there is no file 'missing.toml'; a recipe file is what recipe.to_toml() writes"),
        (["explain", "pattern = 'Causal()'\nmask = 'Causal()'"], "a recipe has no 'mask'; it has score, position"),
        (["explain", "luong general", "--heads", "0"], "Invalid value for '--heads'"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(words, message):
    answer = run(*words)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith(f"regard: {message}")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["Causal() & 3", "Sinusoidal() + 3", "Alibi('x')", "Rotary(pairs='x')", "pattern = 3"])
def test_parts_that_do_not_go_together_are_one_line_too(text):
    answer = run("draw", text)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("regard: ")
    assert answer.stderr.count("\n") == 1


# --- lecture ---


def test_the_lecture_walks_through_the_lectures_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "write_gallery", lambda folder: folder / "gallery.md")
    answer = run("lecture", "--folder", str(tmp_path))
    assert answer.exit_code == 0, answer.output
    assert "1.8639  6.3194  1.7042  ✓" in answer.output
    assert "1.9366  6.6831  1.5951  ✓" in answer.output
    assert "│    fine  ■        ■        ■        ■       │" in answer.output
    assert "gather runs this recipe" in answer.output
    assert "✗" not in answer.output
    assert "overview.png" in answer.output.replace("\n", "")


def test_the_lecture_would_notice_other_numbers():
    case = gallery.example("look-ahead mask")
    output = steps(*case.qkv(), Recipe()).output
    assert gallery.agreement_mark(case, output).startswith("✗")


def test_the_gallery_command_draws_the_gallery(tmp_path, monkeypatch):
    from regard.see import gallery

    monkeypatch.setattr(gallery, "write_gallery", lambda folder: folder / "gallery.md")
    assert run("gallery", str(tmp_path)).output == f"drawn: {tmp_path / 'gallery.md'}\n"
