"""Stories and their extracts: all that is told of a person and nothing else, whatever the length."""

from functools import cache

import pytest

from regard.world import SPLITS
from regard.world.long_inputs import PEOPLE, Stories, Story, graded_story_pairs, story_pairs, story_sentences

WORLD = Stories(seed=3, words=101)


@cache
def examples():
    return {split: [WORLD.story(number, split) for number in range(53)] for split in SPLITS}


def extracted(source: str) -> str:
    """By splitting the text alone."""
    person, _, story = source.partition(" : ")
    return "".join(f"{one}. " for one in story.removesuffix(".").split(". ") if person in one.split()).strip()


def test_a_story_on_paper():
    relevant = tuple(
        tuple(f"{one} .".split()) for one in ("the tree grew", "Anna met a thief", "Paul slept", "he saw Anna")
    )
    story = Story("Anna", relevant, (1, 3))
    assert story.source == "Anna : the tree grew . Anna met a thief . Paul slept . he saw Anna ."
    assert story.target == "Anna met a thief . he saw Anna ." == extracted(story.source)


def test_an_extract_is_every_sentence_that_names_the_person():
    for some in examples().values():
        for story in some:
            assert extracted(story.source) == story.target
            assert len(story.evidence) == 2
            assert story.person in PEOPLE


@pytest.mark.parametrize(("words", "events", "longest"), [(30, 3, 6), (64, 1, 6), (1023, 2, 6), (4096, 5, 7)])
def test_length_is_a_dial(words, events, longest):
    world = Stories(words=words, relevant=events, longest=longest)
    for number in range(5):
        story = world.story(number, "valid")
        assert len(story.source.split()) == words
        assert len(story.target.split()) <= events * (longest + 1)
        assert story.target.count(".") == events
        assert extracted(story.source) == story.target


def test_what_matters_may_stand_anywhere():
    starts = [story.evidence[0] / len(story.sentences) for story in examples()["train"]]
    assert min(starts) < 0.1
    assert max(starts) > 0.6


def test_splits_share_no_sentence():
    pools = {split: set(story_sentences(6, split, 0)) for split in SPLITS}
    assert not pools["train"] & (pools["valid"] | pools["test"])
    assert not pools["valid"] & pools["test"]
    for split, some in examples().items():
        assert {one for story in some for one in story.sentences} <= pools[split]


def test_later_stories_are_made_of_other_sentences():
    early, late = (Stories(words=101).story(number, "valid").sentences for number in (0, 999))
    assert len(set(early) & set(late)) < len(early) / 2


def test_lessons_begin_with_short_stories():
    """Half as long and half of that, down to the shortest, which come most often; each is the story of its number."""
    stories = Stories(words=127, relevant=1)
    found = list(graded_story_pairs(stories, 8))
    assert [len(source.split()) for source, _ in found] == [31, 63, 31, 127, 31, 63, 31, 127]
    assert found[3] == (stories.story(3).source, stories.story(3).target)
    assert [len(source.split()) for source, _ in graded_story_pairs(Stories(words=20, relevant=1), 2)] == [20, 20]


def test_a_story_is_a_function_of_its_number():
    assert WORLD.story(17, "test") == examples()["test"][17]
    assert Stories(seed=4, words=101).story(17, "test") != examples()["test"][17]
    assert list(story_pairs(WORLD, 2, "valid", start=5)) == [
        (one.source, one.target) for one in examples()["valid"][5:7]
    ]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Stories(words=22),
        lambda: Stories(relevant=0),
        lambda: Stories(longest=5),
        lambda: WORLD.story(-1),
        lambda: WORLD.story(0, "exam"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_named(mistake):
    with pytest.raises(ValueError, match="not"):
        mistake()
