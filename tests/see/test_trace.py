"""Traces of all eight tasks: output, logits, axes that fit the sites, and generation step by step."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from regard.data.tokenizers.base import EOS
from regard.decode import Beam, Greedy, Sampling, score_targets, translate
from regard.decode.search import LengthLimit
from regard.models.seq2seq import inference_mode
from regard.see import AttentionSite, GateSite, Trace, trace_model
from regard.see.trace import load_pretrained, merge_subwords, select_cell, to_grid
from regard.tasks.config import TASK_ALIASES
from regard.tasks.protocol import TokenAxis, group_into_words, token_id, token_label
from regard.world import find_lecture_sentence
from tests.narrowing import not_none
from tests.see.test_sites import assert_untouched
from tests.see.untrained_models import (
    CAT,
    LEARNERS,
    example_input,
    generator,
    image_classifier,
    sentence_autoencoder,
    translator,
)

TASKS = TASK_ALIASES  # the models of these tests go by the former names, which are short


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> dict[str, Trace]:
    """One of each task; nothing is left on any model."""
    found = {}
    for task, make in LEARNERS.items():
        learner = make()
        text, question = example_input(task, learner, tmp_path_factory.mktemp(task))
        with assert_untouched(learner.model):
            found[task] = trace_model(learner, text, question=question)
    return found


@pytest.mark.parametrize("task", LEARNERS)
def test_a_trace_holds_the_output_of_the_model(traces, task):
    trace, learner = traces[task], traces[task].request.task_model
    with inference_mode(learner.model):
        match task:
            case "translate":
                (found,) = translate(learner.model, [learner.source.encode(CAT)], Beam(5, length_penalty=1.0))[0]
                assert trace.output_ids == found.ids
            case "rebuild":
                (found,) = translate(learner.model, [learner.tokenizer.encode(CAT)], Greedy())[0]
                assert trace.output_ids == found.ids
            case "classify":
                (judged,) = learner.predict([CAT])
                assert trace.output_text == judged.label
                assert_close(trace.predictions.probabilities(0), torch.tensor(judged.probabilities))
            case "write":
                opening, ids = learner.encode_prompt(CAT)
                logits = learner.model(torch.tensor([opening + ids]))[0, len(opening) - 1 :]
                assert_close(trace.predictions.logits, logits)
                assert trace.output_text == CAT
            case _:
                assert trace.output_text
                assert trace.predictions.best(0, 1)[0][0] in trace.output_text


@pytest.mark.parametrize("task", LEARNERS)
def test_axes_fit_the_sites_and_every_head_is_exact(traces, task):
    trace = traces[task]
    assert trace.task == TASKS[task]
    assert trace.sites
    for name, site in trace.sites.items():
        assert isinstance(site, AttentionSite)
        keys = trace.axes[site.site_name.keys]
        queries = trace.axes.get(
            site.site_name.queries, TokenAxis((site.site_name.queries,))
        )  # a pooling asks with one query
        assert site.shape == (len(queries.labels), len(keys.labels))
        assert site.check(0).error < 1e-5
        assert site.name == name
        assert_close(trace.word_weights(name, 0).sum(-1), torch.ones(len(queries.word_groups)), atol=1e-5, rtol=0)


def test_labels_are_what_was_read(traces):
    axes = traces["translate"].axes
    assert axes["source"].labels == (*CAT.split(), "</s>")
    assert axes["source"].words == tuple(CAT.split())
    assert axes["read"].labels[0] == "<s>"
    assert axes["read"].labels[1:] == axes["written"].labels[:-1]
    assert traces["tag"].axes["text"].words == tuple(CAT.split())
    assert traces["tag"].predictions.rows == tuple(CAT.split())
    assert traces["write"].axes["text"].labels == ("</s>", *CAT.split())
    assert len(traces["picture"].axes["patches"].labels) == 1 + len(traces["answer"].axes["patches"].labels)
    assert traces["rebuild"].axes["latents"].labels == ("latent 0", "latent 1", "latent 2")


def test_pictures_come_with_their_grid(traces):
    trace = traces["answer"]
    assert trace.image is not None
    seen = to_grid(trace.site("look.0.cross").head(0).weights, trace.axes["patches"])
    assert seen.shape == (5, *trace.axes["patches"].grid)
    with pytest.raises(ValueError, match="no patches"):
        to_grid(torch.ones(2, 3), trace.axes["text"])


def test_a_cnn_shows_its_gates(tmp_path):
    learner = image_classifier("cnn")
    trace = trace_model(learner, example_input("picture", learner, tmp_path)[0])
    assert all(isinstance(site, GateSite) for site in trace.sites.values())
    with pytest.raises(ValueError, match=r"there is no site .*; there are none"):
        trace.site("stage.0.0")


def test_the_lecture_s_sentence_has_its_gold_alignment():
    sentence = find_lecture_sentence(CAT)
    assert sentence is not None
    french = " ".join(sentence.words_for("fr"))
    one = translator()
    trace = trace_model(one, CAT, target=french)
    assert trace.gold_alignment == sentence.renderings["fr"].alignment
    assert not trace_model(one, CAT, target="le chat").gold_alignment


def test_pieces_become_words():
    keys = TokenAxis(("ca", "t", "s", "</s>"), ("cat", "s"), (0, 0, 1, None))
    queries = TokenAxis(("a", "b"), ("ab",), (0, 0))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.3, 0.1]])
    assert [name for name, _ in keys.word_groups] == ["cat", "s", "</s>"]
    assert_close(merge_subwords(weights, queries, keys), torch.tensor([[0.45, 0.3, 0.25]]))


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_what_a_model_writes_has_words(kind):
    tokenizer = translator(text=kind).target
    ids = tokenizer.encode("le chat noir a")
    words, word_ids = group_into_words(tokenizer, ids)
    assert words == ("le", "chat", "noir", "a")
    assert list(word_ids) == tokenizer.word_ids("le chat noir a")
    assert all(token_id(tokenizer, token_label(tokenizer, one)) == one for one in ids)


# --- step by step ---


@pytest.mark.parametrize("kind", ["transformer", "bahdanau", "luong-dot", "gru"])
def test_a_beam_s_choice_is_what_is_looked_at(kind):
    """The distributions are those by which the search scored the hypothesis that won."""
    one = translator(kind)
    source = one.source.encode(CAT)
    trace = trace_model(one, CAT, beam=3)
    (found,) = translate(one.model, [source], Beam(3, length_penalty=1.0))[0]
    assert trace.output_ids == found.ids
    ids = [*found.ids, EOS][: len(found.scores)]
    log_probabilities = torch.stack(
        [trace.next_token_probabilities(step)[token] for step, token in enumerate(ids)]
    ).log()
    assert_close(log_probabilities, torch.tensor(found.scores), atol=1e-4, rtol=0)
    (again,) = score_targets(one.model, [source], [found.ids])
    assert_close(log_probabilities, torch.tensor(again.scores[: len(ids)]), atol=1e-4, rtol=0)
    assert trace.next_token_probabilities(0).dtype == torch.float32
    assert len(trace.next_token_probabilities(0)) == one.target.size


@pytest.mark.parametrize("size", [1, 3])
def test_the_beam_tree_finds_what_the_search_finds(size):
    one = translator("bahdanau")
    trace = trace_model(one, CAT, beam=size)
    tree = trace.beam_tree()
    (found,) = translate(one.model, [one.source.encode(CAT)], Beam(size, length_penalty=1.0))[0]
    assert tree.hypotheses[0].ids == found.ids
    assert tree.hypotheses[0].score == pytest.approx(found.score)
    assert sum(tree.on_best_path(node) for step in tree.steps for node in step) == len(found.ids) + found.finished
    for before, after in zip(tree.steps, tree.steps[1:], strict=False):
        opened = [node for node in before if not node.finished]
        for node in after:
            parent = opened[not_none(node.parent)]
            assert node.ids[: len(parent.ids)] == parent.ids
            assert len(node.ids) == len(parent.ids) + (not node.finished)
            assert node.log_probability <= parent.log_probability
    assert all(len(step) <= size for step in tree.steps)
    assert all(any(tree.on_best_path(node) for node in step) for step in tree.steps[: len(found.ids)])


def test_what_is_drawn_is_what_the_search_draws_and_as_probable_as_the_formula_says():
    one, sampling = translator(), Sampling(0.7, top_k=4, top_p=0.6, seed=5)
    trace = trace_model(one, CAT, sampling=sampling)
    limited = replace(sampling, max_length=LengthLimit(0, 6 + 2 * len(trace.axes["source"].labels)))
    ((found,),) = translate(one.model, [one.source.encode(CAT)], limited)
    count = min(len(found.ids), len(not_none(trace.output_ids)))
    assert not_none(trace.output_ids)[:count] == found.ids[:count]
    scores = trace.predictions.logits[1].double().log_softmax(-1)
    scores[[0, 1]] = -torch.inf  # padding and the start are never drawn
    kept = (scores / 0.7).exp().topk(4)
    shares = kept.values / kept.values.sum()
    shares = torch.where(shares.cumsum(0) - shares < 0.6, shares, 0.0)
    drawn = trace.next_token_probabilities(1, sampling)
    assert_close(drawn[kept.indices].double(), shares / shares.sum(), atol=1e-6, rtol=0)
    assert float(drawn.sum()) == pytest.approx(1, abs=1e-6)
    assert int((drawn > 0).sum()) == int((shares > 0).sum())
    assert trace_model(one, CAT, sampling=Sampling(top_k=1)).output_ids == trace_model(one, CAT, beam=1).output_ids


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [("tag", {}, "sampling means nothing"), ("translate", {"target": "le chat"}, "a target is read, not drawn")],
)
def test_what_cannot_be_drawn_is_refused(task, options, message):
    with pytest.raises(ValueError, match=message):
        trace_model(LEARNERS[task](), CAT, sampling=Sampling(), **options)


def test_a_branch_goes_another_way():
    trace = trace_model(translator("luong-dot"), CAT, beam=2)
    other = trace.predictions.best(1, 3)[2][0]
    branch = trace.branch(1, other)
    assert branch.generated_ids()[0] == trace.generated_ids()[0]
    assert branch.axes["written"].labels[1] == other
    assert torch.equal(branch.next_token_probabilities(0), trace.next_token_probabilities(0))
    assert trace.branch(2, "</s>").output_ids == trace.generated_ids()[:2]
    assert branch.beam_tree().hypotheses[0].ids == branch.output_ids


@pytest.mark.parametrize("text", ["words", "characters"])
def test_a_language_model_writes_on_and_branches(text):
    one = generator(text)
    trace = trace_model(one, CAT, more=5)
    assert trace.output_text.startswith(CAT)
    prompt = len(trace_model(one, CAT).generated_ids())
    assert len(trace.generated_ids()) == prompt + 5
    banned = {"</s>", "<unk>", "<pad>", "<s>"} - ({"</s>"} if text == "words" else set())
    best = next(name for name, _ in trace.predictions.best(prompt, 9) if name not in banned)
    assert token_id(one.tokenizer, best) == trace.generated_ids()[prompt]
    other = trace.predictions.best(prompt + 1, 9)[7][0]
    branch = trace.branch(prompt + 1, other)
    assert branch.generated_ids()[: prompt + 1] == trace.generated_ids()[: prompt + 1]
    assert token_label(one.tokenizer, branch.generated_ids()[prompt + 1]) == other
    assert branch.predictions.logits.shape[0] == len(branch.generated_ids()) + 1
    with pytest.raises(ValueError, match="nothing was generated"):
        trace_model(one, CAT).beam_tree()


@pytest.mark.parametrize("text", ["words", "characters"])
def test_the_beams_of_a_continuation_are_the_best_of_all(text):
    one = generator(text)
    prompt, greedy = len(trace_model(one, CAT).generated_ids()), trace_model(one, CAT, more=4)
    single = trace_model(one, CAT, more=4, beam=1)
    assert single.output_ids == greedy.output_ids
    assert [step[0].ids for step in single.beam_tree().steps] == [
        greedy.generated_ids()[prompt : prompt + n] for n in range(1, 5)
    ]
    wide, new = trace_model(one, CAT, more=4, beam=3), range(prompt, prompt + 4)
    tree = wide.beam_tree()
    assert tree.hypotheses[0].ids == wide.generated_ids()[prompt:]
    assert [len(step) for step in tree.steps] == [3] * 4
    assert len(greedy.beam_tree().steps[0]) == 4  # what a usual beam would have kept
    for before, after in pairwise(tree.steps):
        assert all(node.ids[:-1] == before[not_none(node.parent)].ids for node in after)
        assert [node.score for node in after] == sorted((node.score for node in after), reverse=True)
    best, other = (
        sum(float(trace.next_token_probabilities(step)[trace.generated_ids()[step]].log()) for step in new)
        for trace in (wide, greedy)
    )
    assert tree.steps[-1][0].score == pytest.approx(best, abs=1e-4)
    assert best >= other  # both by the trace: where they are the same tokens, the search's own sum may round otherwise


def test_a_beam_of_two_steps_is_found_by_trying_everything():
    one = generator()
    tree = trace_model(one, CAT, more=2, beam=one.tokenizer.size).beam_tree()  # so wide that nothing is lost
    first = trace_model(one, CAT)
    prompt = len(first.generated_ids())
    starts = first.next_token_probabilities(prompt).log()
    tried = {
        (a, b): float(starts[a] + first.branch(prompt, a).next_token_probabilities(prompt + 1).log()[b])
        for a in {node.ids[0] for node in tree.steps[1][:5]}
        for b in {node.ids[1] for node in tree.steps[1][:5]}
    }
    assert max(tried, key=lambda two: tried[two]) == tree.hypotheses[0].ids
    for node in tree.steps[1][:5]:
        a, b = node.ids
        assert node.score == pytest.approx(tried[a, b], abs=1e-4)


def test_a_sentence_autoencoder_branches_too():
    trace = trace_model(sentence_autoencoder("gru"), CAT)
    assert list(trace.sites) == ["bottleneck", "decoder.attention"]
    assert trace.branch(0, "cat").axes["written"].labels[0] == "cat"


def test_a_folder_is_as_good_as_a_model(tmp_path):
    one = translator()
    one.save(tmp_path / "run")
    assert type(load_pretrained(tmp_path / "run")) is type(one)
    assert trace_model(tmp_path / "run", CAT).output_text == trace_model(one, CAT).output_text


# --- what is refused ---


@pytest.mark.parametrize(
    ("task", "more", "why"),
    [
        ("tag", {"target": "x"}, "target means nothing to a model for the task 'tagging'"),
        ("write", {"question": "x"}, "question means nothing"),
        ("translate", {"more": 3}, "more = 3 means nothing"),
        ("translate", {"beam": 0}, "beam of size 0"),
    ],
)
def test_what_means_nothing_is_refused(traces, task, more, why):
    with pytest.raises(ValueError, match=why):
        trace_model(traces[task].request.task_model, CAT, **more)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda trace: trace.site("<script>"), "there is no site '<script>'; there are encoder.0, decoder.0.self"),
        (lambda trace: trace.site("\n" * 500), "there is no site"),
        (lambda trace: trace.next_token_probabilities(99), "there is no step 99"),
        (lambda trace: trace.branch(99, "le"), "there is no step 99"),
        (lambda trace: trace.branch(0, "<script>"), "there is no token '<script>'"),
        (lambda trace: trace.branch(0, 10**9), "not in this vocabulary"),
        (lambda trace: trace.branch(0, "<pad>"), "never occurs"),
    ],
)
def test_hostile_names_are_refused_in_one_line(traces, ask, why):
    with pytest.raises(ValueError, match=why) as refused:
        ask(traces["translate"])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("task", ["translate", "tag", "classify", "write", "rebuild"])
def test_a_long_text_is_refused_before_anything_is_computed(traces, task):
    with pytest.raises(ValueError, match=r"tokens are too many to trace; .* longest=\d+"):
        trace_model(traces[task].request.task_model, "cat " * 25_000)
    assert len(trace_model(traces[task].request.task_model, "cat", longest=3).predictions.rows) >= 1


def test_strange_letters_are_only_letters(traces):
    strange = "<script>alert(1)</script> \u05e9\u05dc\u05d5\u05dd e\u0301 \U0001f431"
    for task in ("translate", "tag", "classify", "write", "rebuild"):
        trace = trace_model(traces[task].request.task_model, strange, longest=97)
        assert trace.axes["text" if "text" in trace.axes else "source"].words


def test_what_writes_nothing_has_no_steps(traces):
    trace = traces["tag"]
    for ask in (lambda: trace.next_token_probabilities(0), lambda: trace.branch(0, 5), trace.beam_tree):
        with pytest.raises(ValueError, match="generates nothing step by step"):
            ask()


def test_empty_texts_and_folders_without_a_model_are_refused(traces, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        trace_model(traces["tag"].request.task_model, " \n")
    with pytest.raises(ValueError, match="holds no model"):
        trace_model(tmp_path, CAT)
    with pytest.raises(ValueError, match="answers questions"):
        trace_model(traces["answer"].request.task_model, traces["answer"].request.text)
    with pytest.raises(ValueError, match="no node is called"):
        trace_model(traces["graph"].request.task_model, "nobody")


# --- where one begins ---


def test_the_first_cell_is_the_largest_weight_between_two_words_that_is_no_sink():
    trace = trace_model(translator(layers=2), CAT, target="le chat noir a mangé la souris")
    words = {axis: [word for word, _ in found.word_groups] for axis, found in trace.axes.items()}
    for name in ("encoder.1", "decoder.0.cross", "decoder.1.self"):
        site = trace.site(name)
        rows, columns = words[site.site_name.queries], words[site.site_name.keys]
        for head in range(site.heads):
            weights = site.weights(head)
            best = [
                (float(row.max()) ** 2 / float(weights[:, key].sum()), query, key)
                for query, row in enumerate(weights)
                if (key := int(row.argmax())) is not None
                and rows.count(rows[query]) == columns.count(columns[key]) == 1
                and "</s>" not in (rows[query], columns[key])
                and "<s>" not in (rows[query], columns[key])
                and not (rows is columns and query == key)
                and int((row > 0).sum()) > 1
            ]
            found = select_cell(trace, site, head)
            if best:
                assert found == max(best)[1:], (name, head)
            assert found[1] == int(weights[found[0]].argmax())
