"""Scenes of all eight tasks: what was said, from which scores, axes that fit the sites, and generation step by step."""

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from regard.decode import Beam, Greedy, forced, translate
from regard.decode.model import at_rest
from regard.see import Gate, Scene, Site, by_word, learner_of, scene_of
from regard.see.scene import Axis
from regard.see.scene_pictures import onto_grid
from regard.see.tokens import id_of, named, words_of
from regard.text.vocabulary import EOS
from regard.world import known
from tests.see.scenes import CAT, LEARNERS, asked, author, rebuilder, recogniser, translator
from tests.see.test_trace import assert_untouched


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> dict[str, Scene]:
    """One of each task; nothing is left on any model."""
    found = {}
    for task, make in LEARNERS.items():
        learner = make()
        text, more = asked(task, learner, tmp_path_factory.mktemp(task))
        with assert_untouched(learner.model):
            found[task] = scene_of(learner, text, **more)
    return found


@pytest.mark.parametrize("task", LEARNERS)
def test_a_scene_says_what_the_model_says(scenes, task):
    scene, learner = scenes[task], scenes[task].asked.learner
    with at_rest(learner.model):
        match task:
            case "translate":
                (found,) = translate(learner.model, [learner.source.encode(CAT)], Beam(5, length_penalty=1.0))[0]
                assert scene.written == found.ids
            case "rebuild":
                (found,) = translate(learner.model, [learner.words.encode(CAT)], Greedy())[0]
                assert scene.written == found.ids
            case "classify":
                (judged,) = learner.judge([CAT])
                assert scene.said == judged.label
                assert_close(scene.outcome.probabilities(0), torch.tensor(judged.probabilities))
            case "write":
                opening, ids = learner.beginning(CAT)
                told = learner.model(torch.tensor([opening + ids]))[0, len(opening) - 1 :]
                assert_close(scene.outcome.logits, told)
                assert scene.said == CAT
            case _:
                assert scene.said
                assert scene.outcome.best(0, 1)[0][0] in scene.said


@pytest.mark.parametrize("task", LEARNERS)
def test_axes_fit_the_sites_and_every_head_is_exact(scenes, task):
    scene = scenes[task]
    assert scene.task == task
    assert scene.sites
    for name, site in scene.sites.items():
        assert isinstance(site, Site)
        keys = scene.axes[site.spot.keys]
        queries = scene.axes.get(site.spot.queries, Axis((site.spot.queries,)))  # a pooling asks with one query
        assert site.shape == (len(queries.labels), len(keys.labels))
        assert site.check(0).error < 1e-5
        assert site.name == name
        assert_close(scene.words(name, 0).sum(-1), torch.ones(len(queries.groups)), atol=1e-5, rtol=0)


def test_labels_are_what_was_read(scenes):
    axes = scenes["translate"].axes
    assert axes["source"].labels == (*CAT.split(), "</s>")
    assert axes["source"].words == tuple(CAT.split())
    assert axes["read"].labels[0] == "<s>"
    assert axes["read"].labels[1:] == axes["written"].labels[:-1]
    assert scenes["tag"].axes["text"].words == tuple(CAT.split())
    assert scenes["tag"].outcome.rows == tuple(CAT.split())
    assert scenes["write"].axes["text"].labels == ("</s>", *CAT.split())
    assert len(scenes["picture"].axes["patches"].labels) == 1 + len(scenes["answer"].axes["patches"].labels)
    assert scenes["rebuild"].axes["latents"].labels == ("latent 0", "latent 1", "latent 2")


def test_pictures_come_with_their_grid(scenes):
    scene = scenes["answer"]
    assert scene.picture is not None
    seen = onto_grid(scene.site("look.0.cross").head(0).weights, scene.axes["patches"])
    assert seen.shape == (5, *scene.axes["patches"].grid)
    with pytest.raises(ValueError, match="no patches"):
        onto_grid(torch.ones(2, 3), scene.axes["text"])


def test_a_cnn_shows_its_gates(tmp_path):
    learner = recogniser("cnn")
    scene = scene_of(learner, asked("picture", learner, tmp_path)[0])
    assert all(isinstance(site, Gate) for site in scene.sites.values())
    with pytest.raises(ValueError, match=r"there is no site .*; there are none"):
        scene.site("stage.0.0")


def test_the_lecture_s_sentence_has_its_gold_alignment():
    sentence = known(CAT)
    assert sentence is not None
    french = " ".join(sentence.said("fr"))
    one = translator()
    scene = scene_of(one, CAT, target=french)
    assert scene.gold == sentence.into["fr"].alignment
    assert not scene_of(one, CAT, target="le chat").gold


def test_pieces_become_words():
    keys = Axis(("ca", "t", "s", "</s>"), ("cat", "s"), (0, 0, 1, None))
    queries = Axis(("a", "b"), ("ab",), (0, 0))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.3, 0.1]])
    assert [name for name, _ in keys.groups] == ["cat", "s", "</s>"]
    assert_close(by_word(weights, queries, keys), torch.tensor([[0.45, 0.3, 0.25]]))


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_what_a_model_writes_has_words(kind):
    tokeniser = translator(text=kind).target
    ids = tokeniser.encode("le chat noir a")
    words, word_of = words_of(tokeniser, ids)
    assert words == ("le", "chat", "noir", "a")
    assert list(word_of) == tokeniser.word_of("le chat noir a")
    assert all(id_of(tokeniser, named(tokeniser, one)) == one for one in ids)


# --- step by step ---


@pytest.mark.parametrize("kind", ["transformer", "bahdanau", "luong-dot", "gru"])
def test_a_beam_s_choice_is_what_is_looked_at(kind):
    """The distributions are those by which the search scored the hypothesis that won."""
    one = translator(kind)
    source = one.source.encode(CAT)
    scene = scene_of(one, CAT, beam=3)
    (found,) = translate(one.model, [source], Beam(3, length_penalty=1.0))[0]
    assert scene.written == found.ids
    ids = [*found.ids, EOS][: len(found.scores)]
    told = torch.stack([scene.next_tokens(step)[token] for step, token in enumerate(ids)]).log()
    assert_close(told, torch.tensor(found.scores), atol=1e-4, rtol=0)
    (again,) = forced(one.model, [source], [found.ids])
    assert_close(told, torch.tensor(again.scores[: len(ids)]), atol=1e-4, rtol=0)
    assert scene.next_tokens(0).dtype == torch.float32
    assert len(scene.next_tokens(0)) == one.target.size


@pytest.mark.parametrize("size", [1, 3])
def test_the_beam_tree_finds_what_the_search_finds(size):
    one = translator("bahdanau")
    scene = scene_of(one, CAT, beam=size)
    tree = scene.beam_tree()
    (found,) = translate(one.model, [one.source.encode(CAT)], Beam(size, length_penalty=1.0))[0]
    assert tree.found[0].ids == found.ids
    assert tree.found[0].score == pytest.approx(found.score)
    assert sum(tree.chosen(node) for step in tree.steps for node in step) == len(found.ids) + found.finished
    for before, after in zip(tree.steps, tree.steps[1:], strict=False):
        opened = [node for node in before if not node.finished]
        for node in after:
            parent = opened[node.parent]
            assert node.ids[: len(parent.ids)] == parent.ids
            assert len(node.ids) == len(parent.ids) + (not node.finished)
            assert node.log_probability <= parent.log_probability
    assert all(len(step) <= size for step in tree.steps)
    assert all(any(tree.chosen(node) for node in step) for step in tree.steps[: len(found.ids)])


def test_a_branch_goes_another_way():
    scene = scene_of(translator("luong-dot"), CAT, beam=2)
    other = scene.outcome.best(1, 3)[2][0]
    branch = scene.branch(1, other)
    assert branch.written[0] == scene.written[0]
    assert branch.axes["written"].labels[1] == other
    assert torch.equal(branch.next_tokens(0), scene.next_tokens(0))
    assert scene.branch(2, "</s>").written == scene.written[:2]
    assert branch.beam_tree().found[0].ids == branch.written


@pytest.mark.parametrize("text", ["words", "characters"])
def test_a_language_model_writes_on_and_branches(text):
    one = author(text)
    scene = scene_of(one, CAT, more=5)
    assert scene.said.startswith(CAT)
    read = len(scene_of(one, CAT).written)
    assert len(scene.written) == read + 5
    banned = {"</s>", "<unk>", "<pad>", "<s>"} - ({"</s>"} if text == "words" else set())
    best = next(name for name, _ in scene.outcome.best(read, 9) if name not in banned)
    assert id_of(one.words, best) == scene.written[read]
    other = scene.outcome.best(read + 1, 9)[7][0]
    branch = scene.branch(read + 1, other)
    assert branch.written[: read + 1] == scene.written[: read + 1]
    assert named(one.words, branch.written[read + 1]) == other
    assert branch.outcome.logits.shape[0] == len(branch.written) + 1
    with pytest.raises(ValueError, match="nothing was written"):
        scene_of(one, CAT).beam_tree()


@pytest.mark.parametrize("text", ["words", "characters"])
def test_the_beams_of_a_continuation_are_the_best_of_all(text):
    one = author(text)
    read, greedy = len(scene_of(one, CAT).written), scene_of(one, CAT, more=4)
    narrow = scene_of(one, CAT, more=4, beam=1)
    assert narrow.written == greedy.written
    assert [step[0].ids for step in narrow.beam_tree().steps] == [greedy.written[read : read + n] for n in range(1, 5)]
    wide = scene_of(one, CAT, more=4, beam=3)
    tree = wide.beam_tree()
    assert tree.found[0].ids == wide.written[read:]
    assert [len(step) for step in tree.steps] == [3] * 4
    assert len(greedy.beam_tree().steps[0]) == 4  # what a usual beam would have kept
    for before, after in pairwise(tree.steps):
        assert all(node.ids[:-1] == before[node.parent].ids for node in after)
        assert [node.score for node in after] == sorted((node.score for node in after), reverse=True)
    shares = [wide.next_tokens(read + n)[wide.written[read + n]].log() for n in range(4)]
    assert tree.steps[-1][0].score == pytest.approx(float(sum(shares)), abs=1e-4)
    assert tree.steps[-1][0].score >= float(
        sum(greedy.next_tokens(read + n)[greedy.written[read + n]].log() for n in range(4))
    )


def test_a_beam_of_two_steps_is_found_by_trying_everything():
    one = author()
    tree = scene_of(one, CAT, more=2, beam=one.words.size).beam_tree()  # so wide that nothing is lost
    first = scene_of(one, CAT)
    read = len(first.written)
    starts = first.next_tokens(read).log()
    tried = {
        (a, b): float(starts[a] + first.branch(read, a).next_tokens(read + 1).log()[b])
        for a in {node.ids[0] for node in tree.steps[1][:5]}
        for b in {node.ids[1] for node in tree.steps[1][:5]}
    }
    assert max(tried, key=lambda two: tried[two]) == tree.found[0].ids
    for node in tree.steps[1][:5]:
        assert node.score == pytest.approx(tried[node.ids], abs=1e-4)


def test_a_rebuilder_branches_too():
    scene = scene_of(rebuilder("gru"), CAT)
    assert list(scene.sites) == ["bottleneck", "decoder.attention"]
    assert scene.branch(0, "cat").axes["written"].labels[0] == "cat"


def test_a_folder_is_as_good_as_a_model(tmp_path):
    one = translator()
    one.save(tmp_path / "run")
    assert type(learner_of(tmp_path / "run")) is type(one)
    assert scene_of(tmp_path / "run", CAT).said == scene_of(one, CAT).said


# --- what is refused ---


@pytest.mark.parametrize(
    ("task", "more", "why"),
    [
        ("tag", {"target": "x"}, "target means nothing to a model for the task 'tag'"),
        ("write", {"question": "x"}, "question means nothing"),
        ("translate", {"more": 3}, "more = 3 means nothing"),
        ("translate", {"beam": 0}, "beam of size 0"),
    ],
)
def test_what_means_nothing_is_refused(scenes, task, more, why):
    with pytest.raises(ValueError, match=why):
        scene_of(scenes[task].asked.learner, CAT, **more)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda scene: scene.site("<script>"), "there is no site '<script>'; there are encoder.0, decoder.0.self"),
        (lambda scene: scene.site("\n" * 500), "there is no site"),
        (lambda scene: scene.next_tokens(99), "there is no step 99"),
        (lambda scene: scene.branch(99, "le"), "there is no step 99"),
        (lambda scene: scene.branch(0, "<script>"), "there is no token '<script>'"),
        (lambda scene: scene.branch(0, 10**9), "not in this vocabulary"),
        (lambda scene: scene.branch(0, "<pad>"), "never comes"),
    ],
)
def test_hostile_names_are_refused_in_one_line(scenes, ask, why):
    with pytest.raises(ValueError, match=why) as refused:
        ask(scenes["translate"])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("task", ["translate", "tag", "classify", "write", "rebuild"])
def test_a_long_text_is_refused_before_anything_is_computed(scenes, task):
    with pytest.raises(ValueError, match=r"tokens are too many to look at; .* longest=\d+"):
        scene_of(scenes[task].asked.learner, "cat " * 25_000)
    assert len(scene_of(scenes[task].asked.learner, "cat", longest=3).outcome.rows) >= 1


def test_strange_letters_are_only_letters(scenes):
    strange = "<script>alert(1)</script> \u05e9\u05dc\u05d5\u05dd e\u0301 \U0001f431"
    for task in ("translate", "tag", "classify", "write", "rebuild"):
        scene = scene_of(scenes[task].asked.learner, strange, longest=97)
        assert scene.axes["text" if "text" in scene.axes else "source"].words


def test_what_writes_nothing_has_no_steps(scenes):
    for ask in (lambda: scenes["tag"].next_tokens(0), lambda: scenes["tag"].branch(0, 5), scenes["tag"].beam_tree):
        with pytest.raises(ValueError, match="writes nothing step by step"):
            ask()


def test_empty_texts_and_folders_without_a_model_are_refused(scenes, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        scene_of(scenes["tag"].asked.learner, " \n")
    with pytest.raises(ValueError, match="holds no model"):
        scene_of(tmp_path, CAT)
    with pytest.raises(ValueError, match="answers questions"):
        scene_of(scenes["answer"].asked.learner, scenes["answer"].asked.text)
    with pytest.raises(ValueError, match="no node is called"):
        scene_of(scenes["graph"].asked.learner, "nobody")
