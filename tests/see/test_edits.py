"""What if: heads off, weights set, cells hidden, words swapped, temperatures; what changes, and what does not."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.testing import assert_close

from regard.attention import Causal, MultiHeadAttention, Recipe, Sigmoid, Sparsemax
from regard.decode import Beam, translate
from regard.decode.translation import translate_all
from regard.models import build_model
from regard.models.vision import ChannelCNN, ConvolutionBlock
from regard.see import (
    AttentionSite,
    Edits,
    GateSite,
    HeadOff,
    Mask,
    Swap,
    Temperature,
    Weight,
    compare,
    trace_layer,
    trace_model,
    trace_with_edits,
)
from regard.see.edits import KINDS
from regard.see.sites import AttentionRecorder, apply_edits
from tests.models.small_models import LADDER, SOURCE, TARGET, WITH_ATTENTION, sentences
from tests.narrowing import assert_all_instances, assert_is_instance
from tests.see.test_sites import assert_exact, assert_untouched
from tests.see.untrained_models import CAT, LEARNERS, example_input, generator, image_classifier, tagger, translator

LAYER = {"heads": 3, "recipe": Recipe(pattern=Causal())}


def layer(**changes) -> tuple[MultiHeadAttention, torch.Tensor]:
    return MultiHeadAttention(12, **LAYER | changes).eval(), torch.randn(2, 7, 12)


# --- on one layer ---


def test_a_head_that_is_off_gives_nothing_and_the_others_stay_bit_for_bit():
    made, x = layer()
    plain, off = trace_layer(made, x), trace_layer(made, x, edits=Edits(off=(HeadOff("attention", 1),)))
    assert bool((off.output[:, 1] == 0).all())
    assert torch.equal(off.output[:, ::2], plain.output[:, ::2])
    assert float(off.head(1).weights.sum()) == 0
    assert float(off.statistics().largest[1]) == 0
    assert float(off.max_pool(1, 3, 3).sum()) == 0


def test_a_masked_cell_weighs_nothing_and_its_row_still_sums_to_one():
    made, x = layer()
    plain = trace_layer(made, x)
    masked = trace_layer(made, x, edits=Edits(masks=(Mask("attention", 2, 5, 3), Mask("attention", 2, 5, 0))))
    row, before = masked.row(2, 5), plain.row(2, 5)
    assert row[3] == row[0] == 0
    assert float(row.sum()) == pytest.approx(1, abs=1e-6)
    left = before.index_fill(0, torch.tensor([0, 3]), 0.0)
    assert_close(row, left / left.sum())  # what softmax gives without them
    assert torch.equal(masked.row(2, 4), plain.row(2, 4))
    assert_close(masked.output[0, 2, 5], row @ masked.v[0, 2])


def test_a_row_whose_cells_are_all_masked_sees_nothing():
    made, x = layer()
    site = trace_layer(made, x, edits=Edits(masks=tuple(Mask("attention", 0, 2, key) for key in range(7))))
    assert float(site.row(0, 2).abs().sum()) == 0
    assert bool((site.output[:, 0, 2] == 0).all())


@pytest.mark.parametrize("rest", ["scaled", "kept"])
def test_a_weight_is_what_it_is_set_to(rest):
    made, x = layer()
    before = trace_layer(made, x).row(1, 6)
    site = trace_layer(made, x, edits=Edits(weights=(Weight("attention", 1, 6, 2, 0.5, rest),)))
    row = site.row(1, 6)
    assert row[2] == 0.5
    others = torch.arange(7) != 2
    scale = 0.5 / before[others].sum() if rest == "scaled" else 1.0
    assert_close(row[others], before[others] * scale)
    assert float(row.sum()) == pytest.approx(1.0 if rest == "scaled" else float(1.5 - before[2]), abs=1e-6)
    assert site.check(1).holds


def test_a_row_that_never_summed_to_one_keeps_its_sum():
    made, x = layer(recipe=Recipe(normaliser=Sigmoid()))
    before = trace_layer(made, x).row(0, 3)
    row = trace_layer(made, x, edits=Edits(weights=(Weight("attention", 0, 3, 1, 0.9),))).row(0, 3)
    assert_close(row.sum(), before.sum())


def test_several_weights_of_a_row_are_set_together():
    made, x = layer()
    edits = Edits(weights=(Weight("attention", 0, 4, 1, 0.2), Weight("attention", 0, 4, 3, 0.3)))
    row = trace_layer(made, x, edits=edits).row(0, 4)
    assert_close(row[[1, 3]], torch.tensor([0.2, 0.3]))
    assert_close(row[[0, 2, 4]].sum(), torch.tensor(0.5))


@pytest.mark.parametrize("normaliser", [Recipe().normaliser, Sparsemax()])
def test_a_temperature_divides_the_scores(normaliser):
    made, x = layer(recipe=Recipe(pattern=Causal(), normaliser=normaliser))
    plain = trace_layer(made, x)
    warm = trace_layer(made, x, edits=Edits(temperatures=(Temperature("*", 3.0),)))
    seen = plain.head(1)
    by_hand = normaliser.weigh(seen.adjusted[None, None] / 3, seen.visible[None, None])[0, 0]
    assert_close(warm.head(1).weights, by_hand)
    assert_close(warm.output[0, 1], by_hand @ plain.v[0, 1], atol=1e-6, rtol=0)
    assert float(warm.statistics().entropy[1]) > float(plain.statistics().entropy[1])
    assert warm.check(1).holds


def test_edits_that_change_nothing_change_no_bit():
    made, x = layer()
    plain = trace_layer(made, x)
    for edits in (Edits(), Edits(temperatures=(Temperature("*", 1.0), Temperature("attention", 1.0)))):
        assert torch.equal(trace_layer(made, x, edits=edits).output, plain.output)


# --- on models ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_every_site_of_the_ladder_can_be_edited(name):
    model, (source, lengths, target) = build_model(LADDER[name], SOURCE, TARGET).eval(), sentences()
    plain = AttentionRecorder()

    def read(within) -> torch.Tensor:
        with torch.no_grad(), within:
            return model(source, lengths, target)

    before = read(plain.record(model))
    assert_close(read(apply_edits(model, Edits())), before, rtol=0, atol=1e-6 if "linear" in name else 0)
    for site in plain.sites():
        edits = Edits(off=(HeadOff(site, 0),))
        tracing = AttentionRecorder(edits)
        with assert_untouched(model):
            after = read(tracing.record(model))
            assert torch.equal(after, read(apply_edits(model, edits)))
        assert not torch.equal(after, before)
        assert_exact(tracing)


def test_a_head_off_in_the_encoder_equals_zeroing_its_part_of_the_output_by_hand():
    one = translator()
    output = one.model.get_parameter("encoder.0.attention.output.weight")
    trace = trace_model(one, CAT, target="le chat noir", edits=Edits(off=(HeadOff("encoder.0", 2),)))
    with torch.no_grad():
        before = output.clone()
        output[:, 8:12] = 0  # the third head of width 4
        by_hand = trace_model(one, CAT, target="le chat noir")
        output.copy_(before)
    assert_close(trace.predictions.logits, by_hand.predictions.logits, atol=1e-6, rtol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["transformer", "bahdanau", "luong-dot"])
def test_generation_with_edits_is_beam_consistent(kind):
    """The edited model is searched, and what is looked at is what that search chose."""
    one = translator(kind)
    name = list(trace_model(one, CAT).sites)[-1]
    edits = Edits(
        off=(HeadOff("encoder.0", 0),) if kind == "transformer" else (),
        masks=(Mask(name, 0, 0, 1), Mask(name, 0, 2, 3)),
        temperatures=(Temperature(name, 0.3),),
    )
    trace = trace_model(one, CAT, beam=3, edits=edits)
    with apply_edits(one.model, edits):
        (found,) = translate(one.model, [one.source.encode(CAT)], Beam(3, length_penalty=1.0))[0]
        # whoever asks for a faster model gets the edited one all the same
        assert translate_all(one.model, [one.source.encode(CAT)], Beam(3, length_penalty=1.0)) == [[found]]
        with pytest.raises(ValueError, match="reads the unedited model's attention; use none with edits"):
            translate(one.model, [one.source.encode(CAT)], Beam(3, coverage_penalty=0.5))
    assert trace.output_ids == found.ids
    log_probabilities = [
        float(trace.next_token_probabilities(step)[token].log()) for step, token in enumerate(found.ids)
    ]
    assert log_probabilities == pytest.approx(found.scores[: len(log_probabilities)], abs=1e-4)
    assert trace.beam_tree().hypotheses[0].ids == found.ids
    site = trace.site(name)
    assert site.row(0, 0)[1] == 0
    assert site.check(0).holds
    assert all(isinstance(other, AttentionSite) and other.check(0).holds for other in trace.sites.values())


@pytest.mark.parametrize("task", LEARNERS)
def test_every_task_says_what_changed(task, tmp_path):
    learner = LEARNERS[task]()
    text, question = example_input(task, learner, tmp_path)
    before = trace_model(learner, text, question=question)
    same = compare(before, trace_with_edits(before, Edits()))
    assert same.largest_change == 0
    assert same.changes == ()
    name = next(iter(before.sites))
    after = trace_with_edits(before, Edits(off=tuple(HeadOff(name, head) for head in range(before.site(name).heads))))
    found = compare(before, after)
    assert found.largest_change > 0
    assert_close(
        found.logits, after.predictions.logits[: len(found.rows)] - before.predictions.logits[: len(found.rows)]
    )
    assert found.most_changed(0, 1)[0][1] != found.most_changed(0, 1)[0][2]
    assert str(found).startswith(f"before  {before.output_text}\nafter   {after.output_text}")


def test_what_changed_inside_is_the_edited_head_and_the_layers_behind_it():
    before = trace_model(translator(layers=2), CAT, target="le chat noir")
    same = compare(before, before)
    assert max(float(some.max()) for some in same.weight_changes().values()) == 0
    assert max(float(some.max()) for some in same.state_changes().values()) == 0
    found = compare(before, trace_with_edits(before, Edits(off=(HeadOff("decoder.0.cross", 1),))))
    weights, states = found.weight_changes(), found.state_changes()
    assert weights["decoder.0.cross"].tolist() == pytest.approx([0, 0.5, 0], abs=1e-6)  # half of each row's sum
    assert all(float(weights[name].max()) == 0 for name in ("encoder.0", "encoder.1", "decoder.0.self"))
    assert float(weights["decoder.1.self"].max()) > 0
    assert [float(states[name].max()) > 0 for name in ("encoder.1", "decoder.0", "decoder.1")] == [False, True, True]
    last = before.predictions.rows
    late = Edits(masks=(Mask("decoder.0.self", 0, 2, 0),))
    moved = compare(before, trace_with_edits(before, late)).state_changes()["decoder.1"]
    assert len(moved) == len(last)
    assert moved[:2].tolist() == pytest.approx([0, 0], abs=1e-6)  # what was read before cannot know
    assert float(moved[2]) > 1e-4


def test_rows_are_compared_up_to_the_first_other_token():
    one = translator("luong-dot")
    before = trace_model(one, CAT, target="le chat noir")
    found = compare(before, trace_model(one, CAT, target="le chat a mangé"))
    assert found.rows == ("le", "chat", "noir")
    assert [(change.position, change.before, change.after) for change in found.changes] == [
        (2, ("noir",), ("a", "mangé"))
    ]
    assert found.largest_change == 0  # both read the same so far
    with pytest.raises(ValueError, match="no row 3"):
        found.most_changed(3)
    with pytest.raises(ValueError, match="traces of one model"):
        compare(before, trace_model(tagger(), CAT))


def test_words_are_swapped_before_they_are_read():
    one = translator()
    swaps = Edits(swaps=(Swap(1, "white"), Swap(5, "cat")))
    trace = trace_model(one, CAT, target="le chat", edits=swaps)
    assert trace.axes["source"].words == ("the", "white", "cat", "ate", "the", "cat")
    other = trace_model(one, "the white cat ate the cat", target="le chat")
    assert torch.equal(trace.predictions.logits, other.predictions.logits)
    spelt = trace_model(generator("characters"), "the  cat\nate", edits=Edits(swaps=(Swap(1, "dog"),)))
    assert "".join(spelt.axes["text"].labels[1:]) == "the␣␣dog↵ate"


def test_a_channel_can_be_switched_off(tmp_path):
    learner = image_classifier("cnn")
    cnn = assert_is_instance(learner.model, ChannelCNN)
    with torch.no_grad():
        for block in assert_all_instances(cnn.stages.values(), ConvolutionBlock):
            torch.nn.init.normal_(block.second.weight, std=0.1)  # it begins as the way around itself
    text, _ = example_input("picture", learner, tmp_path)
    before = trace_model(learner, text)
    after = trace_model(learner, text, edits=Edits(off=(HeadOff("stage.1.0", 3),)))
    assert float(assert_is_instance(after.sites["stage.1.0"], GateSite).weights[0, 3]) == 0
    assert compare(before, after).largest_change > 0
    for edits, why in (
        (Edits(off=(HeadOff("stage.1.0", 16),)), "no weight 16"),
        (Edits(masks=(Mask("stage.1.0", 0, 0, 0),)), "no query 0; there are none"),
        (Edits(temperatures=(Temperature("stage.1.0", 2.0),)), "is a gate"),
    ):
        with pytest.raises(ValueError, match=why):
            trace_model(learner, text, edits=edits)


# --- as text ---

PLACES = {"site": some.text(), **dict.fromkeys(("head", "query", "key"), some.integers(0, 9))}
EDITS = some.builds(
    Edits,
    off=some.lists(some.builds(HeadOff, site=PLACES["site"], head=PLACES["head"])).map(tuple),
    weights=some.lists(some.builds(Weight, **PLACES, value=some.floats(0, 1), rest=some.just("kept"))).map(tuple),
    masks=some.lists(some.builds(Mask, **PLACES)).map(tuple),
    swaps=some.lists(some.builds(Swap, word=some.integers(0, 9), to=some.just("cat"))).map(tuple),
    temperatures=some.lists(some.builds(Temperature, site=PLACES["site"], value=some.floats(0.1, 9))).map(tuple),
)


@settings(deadline=None, derandomize=True)
@given(EDITS)
def test_edits_survive_json_and_hash(edits):
    again = Edits.from_dict(json.loads(json.dumps(edits.to_dict())))
    assert again == edits
    assert hash(again) == hash(edits)
    assert bool(edits) == bool(edits.to_dict())


@settings(deadline=None, derandomize=True)
@given(EDITS)
def test_edits_can_be_copied_as_python(edits):
    """The lines rebuild the very value."""
    lines = edits.to_python("run", "the cat")
    start, stop = lines.index("Edits(\n") if edits else lines.index("Edits()"), lines.index("\nbefore = ")
    names = {kind.__name__: kind for kind in KINDS.values()} | {"Edits": Edits}
    assert eval(lines[start:stop], names) == edits
    assert "after = trace_model('run', 'the cat', edits=edits)" in lines


def test_python_runs(tmp_path, capsys):
    translator("luong-dot").save(tmp_path / "run")
    edits = Edits(temperatures=(Temperature("attention", 0.2),), off=(HeadOff("attention", 0),))
    trace = trace_model(tmp_path / "run", CAT, beam=2, edits=edits)
    exec(trace.to_python(str(tmp_path / "run")), made := {})
    assert capsys.readouterr().out.startswith("before  ")
    assert made["edits"] == edits
    assert torch.equal(made["after"].predictions.logits, trace.predictions.logits)


def test_edits_add_up():
    one, other = Edits(off=(HeadOff("a", 0),)), Edits(off=(HeadOff("b", 1),), swaps=(Swap(0, "x"),))
    assert (one | other).off == (HeadOff("a", 0), HeadOff("b", 1))
    assert (one | other).site_names == ("a", "b")
    assert one | Edits() == one


# --- what is refused ---


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ([], "edits are a table of lists"),
        ({"of": []}, "no edit is called 'of'; there are off, weights, masks, swaps, temperatures"),
        ({"<script>" * 99: []}, "no edit is called"),
        ({"off": {}}, "off is a list of tables"),
        ({"off": [3]}, "is no edit; it has site, head"),
        ({"off": [{"site": "a"}]}, "is no edit; it has site, head"),
        ({"off": [{"site": "a", "head": 0, "more": 1}]}, "is no edit"),
        ({"off": [{"site": "a", "head": "0"}]}, "head = '0' should be int"),
        ({"off": [{"site": "a", "head": True}]}, "head = True should be int"),
        ({"off": [{"site": "a", "head": -1}]}, "heads are counted from 0"),
        ({"weights": [{"site": "a", "head": 0, "query": 0, "key": 0, "value": 2}]}, "weight of 2 cannot be set"),
        ({"weights": [{"site": "a", "head": 0, "query": 0, "key": 0, "value": 1, "rest": "?"}]}, "rest is one of"),
        ({"temperatures": [{"site": "*", "value": 0}]}, "positive number, not 0"),
        ({"temperatures": [{"site": "*", "value": float("nan")}]}, "positive number, not nan"),
        ({"swaps": [{"word": 0, "to": "two words"}]}, "is not one word"),
    ],
)
def test_hostile_tables_are_refused_in_one_line(table, why):
    with pytest.raises(ValueError, match=why) as refused:
        Edits.from_dict(table)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        (
            Edits(off=(HeadOff("nowhere", 0),)),
            "no site 'nowhere'; there are encoder.0, decoder.0.self, decoder.0.cross",
        ),
        (Edits(temperatures=(Temperature("nowhere", 2.0),)), "no site 'nowhere'"),
        (Edits(off=(HeadOff("encoder.0", 3),)), "encoder.0 has no head 3; they are counted from 0 to 2"),
        (Edits(masks=(Mask("encoder.0", 0, 7, 0),)), "encoder.0 has no query 7"),
        (Edits(masks=(Mask("decoder.0.cross", 0, 0, 7),)), "decoder.0.cross has no key 7"),
        (Edits(weights=(Weight("decoder.0.self", 0, 0, 1, 0.5),)), "may not see key 1"),
        (Edits(weights=(Weight("encoder.0", 0, 0, 1, 0.6), Weight("encoder.0", 0, 0, 2, 0.6))), "less than nothing"),
        (Edits(swaps=(Swap(6, "x"),)), "no word 6 to swap; words are counted from 0 to 5"),
    ],
)
def test_what_is_not_there_cannot_be_edited(edits, why):
    one = translator()
    for target in ("le chat noir", None):
        with pytest.raises(ValueError, match=why) as refused:
            trace_model(one, CAT, target=target, beam=2, edits=edits)
        assert "\n" not in str(refused.value)


def test_a_place_that_may_still_be_written_can_be_edited():
    one = translator()
    edits = Edits(masks=(Mask("decoder.0.cross", 0, 3, 0), Mask("decoder.0.self", 0, 2, 9)))
    trace = trace_model(one, CAT, beam=1, edits=edits)
    assert trace.generated_ids()[:3] == trace_model(one, CAT, beam=1).generated_ids()[:3]  # nothing is otherwise before
    assert trace.beam_tree().hypotheses[0].ids == trace.output_ids
    late = Edits(masks=(Mask("decoder.0.cross", 0, 21, 0),))
    with pytest.raises(ValueError, match="no query 21"):
        trace_model(one, CAT, target="le chat", edits=late)
    with pytest.raises(ValueError, match="no query 99"):
        trace_model(one, CAT, edits=replace(late, masks=(Mask("decoder.0.cross", 0, 99, 0),)))
