"""Questions about long texts: one place answers, someone else can find it, and no text is in two splits."""

import re
from collections import Counter
from functools import cache

import pytest

from regard.world import SPLITS
from regard.world.long_inputs import PEOPLE, TOWNS, Retrieval, filler_sentences, retrieval_examples, state_facts

WORLD = Retrieval(seed=3, words=127, chains=3, hops=2)


@cache
def examples():
    return {split: [WORLD.question(number, split) for number in range(101)] for split in SPLITS}


def answered(text: str) -> str:
    """By regular expressions alone: follow who lives with whom until there is a town."""
    (person,) = re.findall(r"where does (\w+) live \.", text)
    while person in PEOPLE:
        ((_, person),) = re.findall(rf"\b{person} lives (in|with) (\w+) \.", text)
    return person


def test_the_solver_agrees_with_paper():
    text = "where does Anna live . Paul lives in Rome . Clara lives in Oslo . Anna lives with Clara ."
    assert answered(text) == "Oslo"
    chain = state_facts(("Anna", "Clara"), "Oslo")
    assert [" ".join(fact) for fact in chain] == ["Anna lives with Clara .", "Clara lives in Oslo ."]


def test_every_answer_is_found_by_whoever_reads_the_text():
    for some in examples().values():
        for found in some:
            assert answered(found.text) == found.answer


def test_the_evidence_leads_to_the_answer():
    for found in examples()["train"]:
        first, last = (found.words[at : at + 5] for at in found.evidence)
        assert first[0] == found.words[2]
        assert first[1:3] == ("lives", "with")
        assert last == (first[3], "lives", "in", found.answer, ".")


@pytest.mark.parametrize(
    ("words", "chains", "hops"), [(14, 1, 1), (15, 1, 1), (101, 16, 1), (1024, 4, 4), (16_384, 1, 3)]
)
@pytest.mark.parametrize("asked", ["first", "last"])
def test_length_chains_and_hops_are_dials(words, chains, hops, asked):
    world = Retrieval(words=words, chains=chains, hops=hops, asked=asked)
    for number in range(5):
        found = world.question(number, "valid")
        assert len(found.words) == words
        assert found.text.count(" lives in ") == chains
        assert found.text.count(" lives with ") == chains * (hops - 1)
        assert answered(found.text) == found.answer
        assert ("where" in found.words[:1]) == (asked == "first")
        assert all(found.words[at + 1] == "lives" for at in found.evidence)


def test_several_questions_are_asked_of_one_text_and_all_but_the_last_answered():
    world = Retrieval(words=64, chains=4, asked="last", questions=5)
    people = Counter()
    for number in range(199):
        found = world.question(number)
        assert len(found.words) == 64
        text, questions = found.words[:35], [(*found.words, found.answer)[at : at + 6] for at in range(35, 65, 6)]
        for *question, answer in questions:
            assert question == ["where", "does", question[2], "live", "."]
            assert f"{question[2]} lives in {answer} ." in " ".join(text)
        people[len({question[2] for question in questions})] += 1
    assert people[5] == 0  # there are four
    assert 2 < sum(count * n for n, count in people.items()) / 199 < 3.7  # drawn anew each time: 3.05 on average


def test_answers_and_positions_of_the_evidence_are_uniform():
    world = Retrieval(words=256, chains=1)
    found = [world.question(number) for number in range(499)]
    assert set(Counter(one.answer for one in found)) == set(TOWNS)
    assert max(Counter(one.answer for one in found).values()) < 90
    places = Counter(one.evidence[0] // 64 for one in found)
    assert all(85 < places[quarter] < 165 for quarter in range(4))


def test_filler_tells_nothing_of_where_people_live_but_names_them():
    words = {word for size in range(3, 13) for split in SPLITS for one in filler_sentences(size, split) for word in one}
    assert not words & {"where", "live", "lives", *TOWNS}
    assert words >= set(PEOPLE)


def test_splits_share_no_filler():
    pools = {split: {one for size in range(3, 13) for one in filler_sentences(size, split)} for split in SPLITS}
    assert not pools["train"] & (pools["valid"] | pools["test"])
    assert not pools["valid"] & pools["test"]


def test_a_text_is_a_function_of_its_number():
    assert WORLD.question(17, "test") == examples()["test"][17]
    assert Retrieval(seed=4, words=127, chains=3, hops=2).question(17, "test") != examples()["test"][17]
    assert list(retrieval_examples(WORLD, 2, "valid", start=5)) == [
        (one.text, one.answer) for one in examples()["valid"][5:7]
    ]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Retrieval(words=33, chains=5),
        lambda: Retrieval(chains=0),
        lambda: Retrieval(words=999, chains=6, hops=3),
        lambda: Retrieval(asked="twice"),  # type: ignore[arg-type]
        lambda: Retrieval(words=99, questions=2),
        lambda: Retrieval(words=99, asked="last", questions=0),
        lambda: WORLD.question(-1),
        lambda: WORLD.question(0, "exam"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_named(mistake):
    with pytest.raises(ValueError, match="not"):
        mistake()
