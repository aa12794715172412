"""From weights over pieces to links between words, and how well they agree with what is known."""

import pytest
import torch
from torch.testing import assert_close

from regard.decode import (
    AlignmentCounts,
    AlignmentHead,
    AnnotatedPair,
    aer,
    choose_head,
    choose_heads,
    cross_attention_maps,
    evaluate_heads,
)
from regard.decode.alignment import argmax_links, argmax_links_or_null, average_heads, count_links, merge_subwords

from .toy_models import Toy, dice, glance


def test_och_and_ney_s_error_rate_on_paper():
    """Four found, three sure, two more possible: two of the found are sure, one only possible, one wrong."""
    sure, possible, found = {(0, 0), (1, 1), (2, 2)}, {(2, 3), (3, 2)}, {(0, 0), (1, 1), (2, 3), (0, 3)}
    counts = count_links(sure, possible, found)
    assert counts == AlignmentCounts(predicted=4, sure=3, predicted_and_sure=2, predicted_and_possible=3)
    assert counts.precision == 3 / 4
    assert counts.recall == 2 / 3
    assert aer(sure, possible, found) == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert aer(sure, possible | sure, found) == aer(sure, possible, found)


def test_the_ends_of_the_error_rate():
    links = {(0, 1), (1, 0)}
    assert aer(links, set(), links) == 0.0
    assert aer(links, set(), {(5, 5)}) == 1.0
    assert aer(links, set(), set()) == 1.0
    assert aer(set(), set(), set()) == 0.0
    # possible links cost nothing whether they are found or not
    assert aer(links, {(3, 3)}, links) == aer(links, {(3, 3)}, links | {(3, 3)}) == 0.0


def test_agreements_of_a_corpus_add_up():
    one, other = AlignmentCounts(4, 3, 2, 3), AlignmentCounts(1, 2, 1, 1)
    assert one + other == AlignmentCounts(5, 5, 3, 4)
    assert (one + other).error == pytest.approx(1 - 7 / 10)


WEIGHTS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 0.2, 0.2, 0.6]])


def test_merging_on_paper():
    """Source pieces 0 and 1 are one word: summed. Target pieces 0 and 1 are one word: averaged. The end stays."""
    words = merge_subwords(WEIGHTS, target_words=[0, 0, 1], source_words=[0, 0, 1])
    assert_close(words, torch.tensor([[0.45, 0.2, 0.35], [0.2, 0.2, 0.6]]))
    assert_close(words.sum(-1), torch.ones(2))


def test_links_by_the_highest_weight():
    words = merge_subwords(WEIGHTS, target_words=[0, 0, 1], source_words=[0, 0, 1])
    assert argmax_links(words) == {(0, 0), (0, 1)}
    assert argmax_links_or_null(words) == {(0, 0)}
    nothing = merge_subwords(torch.ones(1, 1), [0], [])
    assert argmax_links(nothing) == argmax_links_or_null(nothing) == frozenset()


def test_pieces_without_a_word_are_refused():
    with pytest.raises(ValueError, match="3 target pieces and 3 source pieces need a word each, not 3 and 2"):
        merge_subwords(WEIGHTS, [0, 1, 2], [0, 1])
    with pytest.raises(ValueError, match="-1 is among them"):
        merge_subwords(WEIGHTS, [0, 1, 2], [0, -1, 1])


def test_the_weights_of_a_target_are_those_of_its_tokens_alone_or_in_a_batch():
    weights_of = glance(3)
    model = Toy(dice(0), weights_of)
    sources, targets = [(3, 4, 5), (6,), ()], [(5,), (4, 3, 3, 6), (3,)]
    together = cross_attention_maps(model, sources, targets, tokens=50)
    for source, target, attention in zip(sources, targets, together, strict=True):
        assert list(attention.layers) == ["layer 0", "layer 1"]
        for at in range(len(target) + 1):
            assert_close(
                attention.layers["layer 1"][:, at], torch.tensor(weights_of(source, target[:at])), rtol=0, atol=1e-12
            )
        [alone] = cross_attention_maps(model, [source], [target])
        assert_close(attention.layers, alone.layers)


def test_a_head_reads_where_it_looked_before_or_after_a_token():
    [attention] = cross_attention_maps(Toy(dice(0), glance(3)), [(3, 4)], [(5, 6, 3)])
    rows = attention.layers["layer 0"][2]
    assert_close(AlignmentHead("layer 0", 2).weights(attention), rows[:3])
    assert_close(AlignmentHead("layer 0", 2, shift=1).weights(attention), rows[1:])
    mean = average_heads(attention, [AlignmentHead("layer 0", 0), AlignmentHead("layer 1", 1)])
    assert_close(mean, (attention.layers["layer 0"][0, :3] + attention.layers["layer 1"][1, :3]) / 2)
    with pytest.raises(ValueError, match=r"no AlignmentHead\(layer='layer 7'.*'layer 0': 3"):
        AlignmentHead("layer 7", 0).weights(attention)
    with pytest.raises(ValueError, match="no cross-attention"):
        cross_attention_maps(Toy(dice(0)), [(3,)], [(3,)])


def crossing(source, written):
    """Head 1 looks at the mirror place, the right one, from even places, head 2 from odd ones; else at the end."""
    at, end = len(written), len(source)
    right = [float(j == max(end - 1 - at, 0)) for j in range(end + 1)]
    vague = [0.2 if j == 1 else 0.8 * (j == end) for j in range(end + 1)]
    return [vague, right if at % 2 == 0 else vague, right if at % 2 else vague]


EXAMPLES = [
    AnnotatedPair((3, 4, 5), (5, 4, 3), (0, 1, 2), (0, 1, 2), frozenset({(0, 2), (1, 1), (2, 0)})),
    AnnotatedPair(
        (3, 4, 5, 6, 3), (5, 4, 3, 6, 6), tuple(range(5)), tuple(range(5)), frozenset((4 - t, t) for t in range(5))
    ),
]


def test_the_head_that_agrees_best_is_chosen():
    model = Toy(dice(0), crossing)
    head = choose_head(model, EXAMPLES)
    assert head == AlignmentHead("layer 0", 1)
    seen = cross_attention_maps(model, [e.source for e in EXAMPLES], [e.target for e in EXAMPLES])
    # wrong in one of the odd places alone: in the other two the vague look happens to fall on the right word
    assert evaluate_heads([head], seen, EXAMPLES) == AlignmentCounts(8, 8, 7, 7)


def test_a_mixture_is_better_than_its_heads_where_they_know_different_things():
    model = Toy(dice(0), crossing)
    heads = choose_heads(model, EXAMPLES)
    seen = cross_attention_maps(model, [e.source for e in EXAMPLES], [e.target for e in EXAMPLES])
    assert evaluate_heads(heads, seen, EXAMPLES).error == 0.0
    assert len(heads) == 2
    assert heads[0] == choose_head(model, EXAMPLES)


def test_without_examples_no_head_can_be_chosen():
    with pytest.raises(ValueError, match="without gold alignments"):
        choose_head(Toy(dice(0), glance(0)), [])
