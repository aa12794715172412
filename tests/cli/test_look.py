"""regard look: a heat map in the terminal and in files, heads, what decided a word; and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from regard.data import SentencePair
from regard.decode import Sampling
from regard.decode.alignment import HEADS_FILE, AlignmentHead, load_alignment_heads
from regard.see import (
    Edits,
    alignment_error_rates,
    compare,
    corpus_statistics,
    next_tokens,
    pair_terms,
    patch_activations,
    read_corpus,
    row_terms,
    trace_model,
    trace_with_edits,
)
from regard.see.methods import METHODS, explain
from regard.see.trace import select_initial
from regard.serve.encoding import encode_json
from regard.serve.explanations import serialize_explanation, serialize_patches
from regard.tasks.translation.task import Translator, save_alignment_heads
from tests.narrowing import not_none

from .commands import LITTLE, assert_done, assert_plain, assert_refused, regard

SENTENCE = "the black cat ate the mouse"
PICTURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def test_a_sentence_its_translation_and_where_it_looked(trained):
    answer = regard("look", trained, SENTENCE)
    printed = assert_done(answer).splitlines()
    assert_plain(answer.output)
    assert printed[0] == SENTENCE
    assert printed[1] == assert_done(regard("translate", trained, "-", typed=SENTENCE)).strip()
    assert printed[3] == load_alignment_heads(trained)[0].name  # a reader is told whose weights these are
    assert printed[5].split() == [*SENTENCE.split(), "</s>"]
    assert [line.split()[0] for line in printed[6:]] == printed[1].split()


@pytest.mark.parametrize("suffix", PICTURES)
def test_a_picture_is_written(suffix, trained):
    answer = regard("look", trained, SENTENCE, "--save", f"new/look{suffix}")
    assert assert_done(answer).endswith(f"\ndrawn: new/look{suffix}\n")
    assert Path(f"new/look{suffix}").read_bytes().startswith(PICTURES[suffix])


def test_any_translation_can_be_looked_at(trained):
    wanted = "le chat noir a mangé la souris"
    output = assert_done(regard("look", trained, SENTENCE, "--target", wanted)).splitlines()
    assert output[1] == wanted
    assert [line.split()[0] for line in output[6:13]] == wanted.split()


def test_heads_one_by_one_and_side_by_side(trained):
    output = assert_done(regard("look", trained, SENTENCE, "--every"))
    assert output.count("head 0") == output.count("head 1") == 1
    one, other = (assert_done(regard("look", trained, SENTENCE, "--head", f"decoder.0.cross:{n}")) for n in (0, 1))
    assert one != other
    assert "decoder.0.cross, head 1" in other
    both = assert_done(regard("look", trained, SENTENCE, "--head", "decoder.0.cross:0,decoder.0.cross:1"))
    # the same numbers, one below the other; a trace also has the row of the end of the sentence
    shaded = [[line for line in text.splitlines() if set("█▓▒░") & set(line)] for text in (one, other, both)]
    maps = [[line for line in lines if not line.lstrip().startswith("</s>")] for lines in shaded]
    assert maps[2] == maps[0] + maps[1]
    assert both.index("decoder.0.cross:0") < both.index("decoder.0.cross:1")


def test_interventions_are_compared_in_output_weights_and_states(trained):
    edits = {"off": [{"site": "decoder.0.cross", "head": 1}]}
    output = assert_done(regard("look", trained, SENTENCE, "--edits", json.dumps(edits)))
    before = trace_model(Translator.load(trained), SENTENCE, beam=5)
    found = compare(before, trace_with_edits(before, Edits.from_dict(edits)))
    assert output.startswith(str(found))
    line = next(line for line in output.splitlines() if line.startswith("decoder.0.cross  "))
    assert line.split()[1:] == [f"{x:.4f}" for x in found.weight_changes()["decoder.0.cross"].tolist()]
    assert_refused(regard("look", trained, SENTENCE, "--edits", "{"), "--edits {: no JSON; write it as in")


def test_an_output_is_drawn_and_its_next_tokens_are_those_of_python(trained):
    how = ["--temperature", "1.5", "--top-k", "5", "--seed", "2"]
    output = assert_done(regard("look", trained, SENTENCE, *how))
    drawn = trace_model(Translator.load(trained), SENTENCE, beam=5, sampling=Sampling(1.5, top_k=5, seed=2))
    assert output.splitlines()[0] == drawn.output_text
    output = assert_done(regard("look", trained, SENTENCE, "--method", "next-tokens", "--row", "0", *how))
    found = next_tokens(drawn, 0)
    assert f"5 tokens can be drawn, entropy {found.entropy:.4f} nats" in " ".join(output.split())


def test_what_decided_a_word(trained):
    output = assert_done(regard("look", trained, SENTENCE, "--word", "cat"))
    assert output.count("[cat]") == 2
    assert "what it attended to for" in output


def test_unknown_words_are_said_and_shown(trained):
    answer = regard("look", trained, "the zebra 😀 שלום")
    assert "zebra" in assert_done(answer)
    assert answer.stderr == "regard: the sentence: 'zebra' is out of vocabulary; it is translated as <unk>\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "the sentence is empty; give at least one word"),
        ([" \t"], "the sentence is empty; give at least one word"),
        (["cat " * 10_000], "the sentence: 10,000 tokens; split it, or allow it with --max-length 10000"),
        ([SENTENCE, "--target", " "], f"'{SENTENCE}' is translated by nothing; give a translation to look at"),
        ([SENTENCE, "--head", "3"], "--head 3: write LAYER:HEAD, one of decoder.0.cross:0, decoder.0.cross:1"),
        ([SENTENCE, "--head", "decoder.0.cross:7"], "--head decoder.0.cross:7: write LAYER:HEAD, one of decoder.0.cro"),
        ([SENTENCE, "--head", "decoder.7.cross:0"], "--head decoder.7.cross:0: write LAYER:HEAD, one of decoder.0.cro"),
        ([SENTENCE, "--word", "dog"], f"--word dog: not in the sentence; its words are {SENTENCE}"),
        (
            [SENTENCE, "--every", "--word", "cat"],
            "--all-heads shows all heads and words; leave it out, or --head and --wo",
        ),
        ([SENTENCE, "--save", "."], ".: is a folder; name a file in it"),
        ([SENTENCE, "--save", "/dev/null"], "/dev/null: is a device or a pipe, not a file; choose another place"),
        ([SENTENCE, "--save", "/dev/null/look.png"], "/dev/null: is a file, not a folder; choose another path"),
        (["half \udce9"], "character 6 of 'half \\udce9' is a lone surrogate; remove it"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_said(words, message, trained):
    answer = regard("look", trained, *words)
    assert_refused(answer, message)
    assert answer.stdout == ""


def test_a_picture_of_another_kind(trained):
    assert_refused(
        regard("look", trained, SENTENCE, "--save", "look.gif"), "cannot write 'look.gif': a picture ends in"
    )


def test_a_model_without_attention(corpus):
    small = ["--set", "model.layers=1", "--set", "text.kind=words", "--tokens", 300, "--steps", 1]
    assert_done(regard("train", "--train", corpus(), "--model", "gru", "--size", "tiny", *small))
    assert load_alignment_heads(Path("run")) == ()
    assert_refused(regard("look", "run", "the"), "the model has no cross-attention; use a model with attention")


# --- the heads that are kept beside a model ---


def test_heads_are_kept_and_found_again(copied):
    translator = Translator.load(copied)
    heads = save_alignment_heads(translator, [], copied)
    assert load_alignment_heads(copied) == heads
    assert heads


def test_without_kept_heads_the_sentence_itself_decides(copied):
    (copied / HEADS_FILE).unlink()
    assert "decoder.0.cross, head " in assert_done(regard("look", copied, SENTENCE))


@pytest.mark.parametrize("number", [0, 1])
def test_the_terminal_and_the_page_open_at_the_best_head_that_was_kept(number, copied):
    (copied / HEADS_FILE).write_text(json.dumps([["decoder.0.cross", number, 0], ["decoder.0.cross", 1 - number, 0]]))
    output = assert_done(regard("look", copied, SENTENCE, "--save", "look.html"))
    assert output.splitlines()[3] == f"decoder.0.cross, head {number}"
    alone = assert_done(regard("look", copied, SENTENCE, "--head", f"decoder.0.cross:{number}"))
    assert output.startswith(alone.rstrip("\n"))
    trace = trace_model(copied, SENTENCE)
    first = not_none(select_initial(trace, copied))
    assert (first.site, first.head) == ("decoder.0.cross", number)
    row = trace.site(first.site).row(first.head, first.query)
    assert float(row[first.key]) == float(row.max())  # and at a cell that it looks at
    held = json.loads(re.findall(r'id="regard-data">(.*?)</script>', Path("look.html").read_text())[0])
    assert held["view"] == {"site": first.site, "head": number, "view": "overview"}
    assert held["trace"]["opening"] == vars(first)


def test_very_long_pairs_choose_no_head(corpus):
    """A run whose held-out pairs are all too long to look at still ends well."""
    assert_done(regard("train", "--train", corpus(), *LITTLE, "--steps", 1))
    translator = Translator.load(Path("run"))
    assert save_alignment_heads(translator, [SentencePair("cat " * 300, "chat " * 300)], Path("run")) == ()
    (head,) = save_alignment_heads(
        translator, [SentencePair("cat " * 300, "chat " * 300), SentencePair("the cat", "le chat")], Path("run")
    )
    assert head.layer in {"decoder.0.cross"}


@pytest.mark.parametrize("text", ["{", "[[1]]", "3", '[["a", 0]]'])
def test_damaged_heads(text, copied):
    (copied / HEADS_FILE).write_text(text)
    assert_refused(regard("look", copied, SENTENCE), f"{copied / HEADS_FILE} is damaged; remove it, or train again")


def test_heads_of_another_model(copied):
    (copied / HEADS_FILE).write_text(json.dumps([["decoder.5.cross", 0, 0]]))
    head = AlignmentHead("decoder.5.cross", 0)
    why = f"{copied / HEADS_FILE} names {head}, which the model does not have; remove it, or train again"
    assert_refused(regard("look", copied, SENTENCE), why)


# --- the tables that the page draws ---


def columns(text: str) -> list[list[str]]:
    """The cells of a table's lines; two blanks part them."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if "  " in line]


def test_the_statistics_of_every_head_are_those_of_python(trained):
    known = "le chat noir a mangé la souris"  # its alignment is known
    answer = assert_done(regard("look", trained, SENTENCE, "--target", known, "--method", "statistics"))
    trace = trace_model(trained, SENTENCE, target=known)
    lines = {row[0]: row[1:] for row in columns(answer)}
    assert lines["head"][:3] == ["entropy, nats", "distance, tokens", "sink"]
    site = trace.site("decoder.0.cross")
    found, errors = site.statistics(), not_none(alignment_error_rates(trace, "decoder.0.cross"))
    for head in range(site.heads):
        entropy, distance, sink, largest, aer, proof = map(float, lines[f"decoder.0.cross:{head}"])
        wanted = [float(each[head]) for each in (found.entropy, found.distance, found.sink, found.largest)]
        assert [entropy, distance, sink, largest] == pytest.approx(wanted, rel=1e-5)
        assert aer == pytest.approx(errors[head], abs=1e-4)
        assert proof == pytest.approx(site.check(head).error, rel=0.1)
    assert alignment_error_rates(trace, "encoder.0") is None
    assert len(lines["encoder.0:0"]) == len(lines["decoder.0.cross:0"]) - 1  # no alignment within one side


def test_a_row_and_a_pair_are_taken_apart_as_in_python(trained):
    words = (trained, SENTENCE, "--head", "decoder.0.cross:1", "--method", "row", "--row", "2")
    answer = assert_done(regard("look", *words))
    site = trace_model(trained, SENTENCE).site("decoder.0.cross")
    row = row_terms(site, 1, 2)
    lines = [line for line in columns(answer) if line[0].split()[-1].isdecimal() and len(line) == 7]
    assert len(lines) == len(row.keys) == site.shape[1]
    for line, one in zip(lines, row.keys, strict=True):
        wanted = (one.dot, one.score, one.bias, one.exp, one.weight, one.norm)
        assert list(map(float, line[1:])) == pytest.approx(wanted, rel=1e-5, abs=1e-30)
    exps, weights, norm = map(float, next(line for line in columns(answer) if line[0] == "Σ")[1:])
    assert exps == pytest.approx(sum(one.exp for one in row.keys), rel=1e-5)
    assert weights == pytest.approx(1, abs=1e-5)
    assert norm == pytest.approx(row.output_norm, rel=1e-5)
    pair, answer = pair_terms(site, 1, 2, 1), assert_done(regard("look", *words, "--key", "1"))
    products = [float(line[3]) for line in columns(answer) if line[0].isdecimal()]
    assert products == pytest.approx(pair.products, rel=1e-5)
    assert sum(products) == pytest.approx(pair.dot, rel=1e-4)
    assert f"weight {pair.weight:.6g}" in answer


def test_a_branch_and_the_beam_are_those_of_python(trained):
    trace = trace_model(trained, SENTENCE, beam=5).branch(1, "souris")
    answer = assert_done(regard("look", trained, SENTENCE, "--branch", "1:souris", "--method", "beam"))
    assert answer.splitlines()[0] == trace.output_text
    tree = trace.beam_tree()
    nodes = [node for step in tree.steps for node in step]
    lines = [line for line in columns(answer) if line[0].isdecimal()]
    starred = [line for line in lines if line[1] == "*"]
    assert len(lines) == len(nodes)
    assert len(starred) == sum(map(tree.on_best_path, nodes))
    sums = [float(line[2 + (line[1] == "*")]) for line in lines]
    assert sums == pytest.approx([node.log_probability for node in nodes], rel=1e-5)


def test_two_texts_are_patched_as_in_python(trained):
    other = "the white cat ate the mouse"
    words = ("look", trained, SENTENCE, "--target", "le chat noir", "--row", "2", "--method", "patching")
    assert_refused(regard(*words), "--method patching compares two texts; give the other one with --against")
    both = [trace_model(trained, text, target="le chat noir") for text in (SENTENCE, other)]
    options = [int(trace.predictions.logits[2].argmax()) for trace in both]
    answer = regard(*words, "--against", other, "--part", "attention")
    if options[0] == options[1]:  # so little was learnt that both give the same
        assert_refused(answer, "both inputs give")
        return
    found = patch_activations(both[0], both[1], 2, part="attention")
    assert_done(regard(*words, "--against", other, "--part", "attention", "--save", "patches.json"))
    saved = json.loads(Path("patches.json").read_text())
    assert saved == json.loads(encode_json(serialize_patches(both[0], found, "attention")))
    lines = {line[0]: line[1:] for line in columns(assert_done(answer))}
    effects = [x for x in found.effects[-1].tolist() if x == x]
    assert list(map(float, lines[found.layers[-1]])) == pytest.approx(effects, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_of_every_method_are_those_of_python_and_the_page(method, trained):
    """What --save writes is the answer that the page gets; tests/serve/test_explanations holds that one to Python."""
    assert_done(regard("look", trained, SENTENCE, "--method", method, "--row", "1", "--save", "found.json"))
    trace = trace_model(trained, SENTENCE)
    expected = serialize_explanation(trace, explain(trace, method, 1))
    saved = json.loads(Path("found.json").read_text())
    assert saved["kind"] == expected["kind"]
    assert numbers(saved) == pytest.approx(numbers(expected), abs=1e-6)
    assert any(numbers(saved))


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in numbers(each)]
    if isinstance(value, list | tuple):
        return [one for each in value for one in numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []


def test_what_a_method_found_is_saved_as_numbers_or_drawn(trained):
    words = ("look", trained, SENTENCE, "--method", "rollout", "--save")
    assert assert_done(regard(*words, "found.png")).endswith("\ndrawn: found.png\n")
    assert_refused(regard(*words, "found.npz"), "found.npz: what a method found is saved as .json, or drawn as .png")
    table = regard("look", trained, SENTENCE, "--method", "beam", "--save", "beam.json")
    assert_refused(table, "beam.json: --method beam is a table; leave out --save (patching is saved as .json)")


def test_two_models_are_compared_in_the_terminal(trained):
    head = "decoder.0.cross:1"
    words = ("look", trained, SENTENCE, "--compare", trained, "--head", head, "--no-page")
    answer = assert_done(regard(*words))
    assert f"compared with {trained}" in answer
    assert "the largest change of a probability is 0.0000" in answer
    cells = [line[1:] for line in columns(answer.split(f"{head}, after - before")[1])][1:]
    assert cells
    assert {float(cell) for line in cells for cell in line} == {0.0}


def test_the_nearest_states_of_a_corpus_are_those_of_python(trained, tmp_path):
    (tmp_path / "some.txt").write_text("the black cat\nthe white cat\nthe cat sleeps\n")
    answer = assert_done(regard("look", trained, "--corpus", "some.txt", "--neighbours", "encoder.0:2"))
    found = corpus_statistics(trained, read_corpus(trained, "some.txt"))
    lines = [line for line in columns(answer) if line[0] != "cosine"]
    nearest = found.states["encoder.0"].nearest(2)
    assert [int(line[1]) for line in lines] == [number for number, _ in nearest]
    assert [float(line[0]) for line in lines] == pytest.approx([alike for _, alike in nearest], abs=1e-4)
    refused = regard("look", trained, "--corpus", "some.txt", "--neighbours", "encoder")
    assert_refused(refused, "--neighbours encoder: write LAYER:STATE, with one of encoder.0")
