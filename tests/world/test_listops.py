"""Expressions of lists: of the length asked for, with the answer that someone else computes, every answer as often."""

from collections import Counter
from functools import cache
from statistics import median_low

import pytest

from regard.world import SPLITS
from regard.world.long_inputs import (
    DIGITS,
    OPERATORS,
    SHORTEST,
    VOCABULARY,
    ListOps,
    draw_operands,
    expression_split,
    listops_examples,
    split_operands,
)
from regard.world.splitmix import SplitMix64

WORLD = ListOps(seed=3, words=61, depth=3)


@cache
def examples():
    return {split: [WORLD.expression(number, split) for number in range(211)] for split in SPLITS}


def value(text: str) -> tuple[int, int]:
    """What an expression comes to, and how deep it is, by a stack of its own: no code of the generator is used."""
    open_lists: list[tuple[str, list[int]]] = [("", [])]
    deepest = 0
    for word in text.split():
        if word.startswith("["):
            open_lists.append((word[1:], []))
            deepest = max(deepest, len(open_lists) - 1)
        elif word == "]":
            operator, held = open_lists.pop()
            functions = {"MAX": max, "MIN": min, "MED": median_low, "SUM": lambda digits: sum(digits) % 10}
            open_lists[-1][1].append(functions[operator](held))
        else:
            open_lists[-1][1].append(int(word))
    (result,) = open_lists.pop()[1]
    assert not open_lists
    return result, deepest


def test_the_evaluator_agrees_with_paper():
    """MIN of 2 and 3 is 2; 9 + 8 is 17, so 7; the largest of 4, 2, 1, 7 is 7. Of 1 2 3 9 the lower middle is 2."""
    assert value("[MAX 4 [MIN 2 3 ] 1 [SUM 9 8 ] ]") == (7, 2)
    assert value("[MED 9 1 3 2 ]") == (2, 1)


def test_every_answer_is_what_the_expression_comes_to():
    for split in SPLITS:
        for found in examples()[split]:
            assert str(value(found.text)[0]) == found.answer


@pytest.mark.parametrize(("words", "depth"), [(16, 1), (17, 5), (97, 2), (1024, 4), (16_384, 3)])
def test_length_and_depth_are_dials(words, depth):
    world = ListOps(words=words, depth=depth)
    found = [world.expression(number) for number in range(3 if words > 1000 else 31)]
    assert {len(one.words) for one in found} == {words}
    deep = [value(one.text) for one in found]
    assert [str(answer) for answer, _ in deep] == [one.answer for one in found]
    assert max(at for _, at in deep) <= depth
    assert words < 1000 or max(at for _, at in deep) == depth


def test_every_answer_is_equally_frequent_and_every_word_occurs():
    counts = Counter(found.answer for some in examples().values() for found in some)
    assert set(counts) == set(DIGITS)
    assert all(35 < count < 95 for count in counts.values())
    assert {word for found in examples()["train"] for word in found.words} == set(VOCABULARY)


@pytest.mark.parametrize("operator", OPERATORS)
def test_operands_give_the_answer_and_are_no_give_away(operator):
    for count in (1, 2, 5, 8):
        drawn = [draw_operands(SplitMix64(count, answer), operator, count, answer) for answer in range(10)]
        text = (f"[{operator} {' '.join(map(str, digits))} ]" for digits in drawn)
        assert [value(one)[0] for one in text] == list(range(10))
        assert all(0 <= digit <= 9 for digits in drawn for digit in digits)
    # the digit that is the answer stands at no place of its own
    first = sum(draw_operands(SplitMix64(n), "MAX", 7, 9).index(9) == 0 for n in range(307))
    assert 307 / 7 * 0.6 < first < 307 / 2


def test_parts_fill_a_list_exactly():
    for size in range(1, 47):
        sizes = split_operands(SplitMix64(size, 5), size)
        assert sum(sizes) == size
        assert 2 not in sizes


def test_only_the_chosen_operators_occur():
    world = ListOps(words=53, operators=("MIN", "SUM"))
    words = {word for number in range(29) for word in world.expression(number).words}
    assert {word for word in words if word.startswith("[")} == {"[MIN", "[SUM"}


def test_splits_are_disjoint_even_where_texts_are_short():
    world = ListOps(words=SHORTEST, depth=1, operators=("MAX",))
    texts = {split: {world.expression(number, split).text for number in range(499)} for split in SPLITS}
    assert not texts["train"] & (texts["valid"] | texts["test"])
    assert not texts["valid"] & texts["test"]
    assert all(expression_split(found.words) == split for split, some in examples().items() for found in some)


def test_an_expression_is_a_function_of_its_number():
    assert WORLD.expression(17, "test") == examples()["test"][17]
    assert ListOps(seed=4, words=61).expression(17, "test") != examples()["test"][17]
    assert list(listops_examples(WORLD, 2, "valid", start=5)) == [
        (one.text, one.answer) for one in examples()["valid"][5:7]
    ]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: ListOps(words=15),
        lambda: ListOps(depth=0),
        lambda: ListOps(operators=("MAX", "MEAN")),
        lambda: ListOps(operators=()),
        lambda: WORLD.expression(-1),
        lambda: WORLD.expression(0, "exam"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_named(mistake):
    with pytest.raises(ValueError, match=r"not|'MEAN'"):
        mistake()
