"""Recipes: they compare, hash, print, survive a round trip through TOML, and load under old names."""

import inspect
import tomllib
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from regard.attention import (
    POSITIONS,
    RECIPES,
    Causal,
    DependencyTree,
    Pattern,
    Recipe,
    Rotary,
    Score,
    Sinusoidal,
    TopK,
    TreeDepth,
    Window,
    get_recipe,
    parts,
)
from regard.attention.normaliser import Normaliser, Wrapper
from regard.attention.parts import PartText, own_parts_of


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "documents"])
def test_toml_round_trip(name, position):
    if name in ("bahdanau", "soft cap") and position == "shaw":
        pytest.skip("the score has no keys that vectors could add to")
    recipe = get_recipe(name, position)
    text = recipe.to_toml()
    assert set(tomllib.loads(text)) == {"score", "position", "pattern", "normaliser"}
    assert Recipe.from_toml(text).to_toml() == text
    if not list(recipe.learned().parameters()) and position != "learned":
        assert Recipe.from_toml(text) == recipe
        assert hash(Recipe.from_toml(text)) == hash(recipe)


def test_a_recipe_file_reads_as_it_is_written_by_hand():
    recipe = Recipe.from_toml('pattern = "Causal() & Window(512)"\nposition = "Rotary()"\n')
    assert recipe == Recipe(pattern=Causal() & Window(512), position=Rotary())


def test_positions_add_up_and_are_found_where_they_enter():
    recipe = Recipe(position=Sinusoidal() + TreeDepth() + Rotary())
    assert [type(part).__name__ for part in recipe.embedding_positions] == ["Sinusoidal", "TreeDepth"]
    assert recipe.query_key_positions == (Rotary(),)
    assert recipe.score_positions == ()
    tree = DependencyTree.from_governors(torch.tensor([[0, 1, 1]]))
    x, at = torch.zeros(1, 3, 4, dtype=torch.double), torch.arange(3)
    both = recipe.with_tree(tree=tree).embed(x, at)
    waves = Sinusoidal().table(at, 4) + Sinusoidal().table(torch.tensor([0, 1, 1]), 4)
    assert torch.equal(both[0], waves)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Before() & Window(3)", "StrictCausal() & Window(size=3)"),
        ("Dropped(rate=0.1, then=Softmax())", "AttentionDropout(rate=0.1, then=Softmax())"),
        ("Learned(longest=7, model=4)", "Learned(max_length=7, model=4)"),
        ("RelativeBias(Clipped(reach=4), heads=2)", "RelativeBias(relation=Clipped(max_distance=4), heads=2)"),
        ("RelativeVectors(TreePath(reach=3), head=8)", "RelativeVectors(relation=TreePath(max_distance=3), head=8)"),
        (
            "RelativeBias(LogBuckets(buckets=8, furthest=16, both_ways=False), heads=2)",
            "RelativeBias(relation=LogBuckets(buckets=8, max_distance=16, bidirectional=False), heads=2)",
        ),
        ("Block(size=4, among=Before())", "Block(size=4, pattern=StrictCausal())"),
    ],
)
def test_recipes_of_older_runs_load_under_their_old_names(old, new):
    assert repr(parts.parse_part(old)) == repr(parts.parse_part(new)) == new


def test_every_old_name_stands_for_one_that_exists():
    assert set(parts.RENAMED_PARTS.values()) <= set(parts.PARTS)
    for (part, old), new in parts.RENAMED_ARGUMENTS.items():
        assert new in inspect.signature(parts.PARTS[part]).parameters
        assert old not in inspect.signature(parts.PARTS[part]).parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Window(size=1, size=2)", "Window is given size twice; leave one out"),
        ("Clipped(reach=1, max_distance=2)", "Clipped is given max_distance twice; leave one out"),
        ('Full(**{"a": 1})', r"\*\* names nothing; write each argument of Full by its name"),
        ("~" * 800 + "Full()", "more than 100 parts inside of each other"),
        ("|".join(["Causal()"] * 300), "more than 100 parts inside of each other"),
        ("(" * 300 + "Full()" + ")" * 300, "cannot read"),
        ("Full()" + " " * 20_000, "letters, more than 10,000"),
        ("1 + 1", "it is 2, and no part"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_said_twice_too_deep_or_no_part_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parts.parse_part(text)
    assert parts.parse_part("~" * 99 + "Full()") == parts.parse_part(repr(parts.parse_part("~" * 99 + "Full()")))


# --- parts of a user's own ---


@dataclass(frozen=True)
class EveryOther(Pattern):
    distance: int = 2

    def sees(self, b, h, i, j):
        return (i - j) % self.distance == 0


class Gated(nn.Module, Score):
    def __init__(self):
        super().__init__()
        self.gate, self.project = nn.Parameter(torch.ones(())), nn.Linear(1, 1)

    def compare(self, q, k):
        return self.gate * (q @ k.mT)


class Sharpened(nn.Module, Score):
    def __init__(self, power: float = 1.0):
        super().__init__()
        self.power = power

    def compare(self, q, k):
        return (q @ k.mT) ** self.power


@dataclass(frozen=True)
class Halved(Wrapper):
    then: Normaliser

    def weigh(self, scores, visible):
        return self.then.weigh(scores, visible) / 2


def test_a_recipe_with_own_parts_survives_the_round_trip_too():
    recipe = Recipe(score=Gated(), pattern=Causal() & EveryOther(3), normaliser=Halved(TopK(2)))
    text = recipe.to_toml()
    again = Recipe.from_toml(text)
    assert isinstance(again.score, Gated)
    assert (again.pattern, again.normaliser) == (recipe.pattern, recipe.normaliser)
    assert own_parts_of(deepcopy(text)) == {"Gated": Gated, "EveryOther": EveryOther, "Halved": Halved}
    plain = str(text)
    assert text == plain
    assert hash(text) == hash(plain)
    with pytest.raises(ValueError, match=r"known parts: Dot, .*; a part of your own needs its file: --parts FILE$"):
        Recipe.from_toml(plain)
    assert Recipe.from_toml(PartText(plain, own_parts_of(text))).pattern == recipe.pattern


def test_an_own_part_within_another_is_found():
    assert set(own_parts_of(Recipe(normaliser=TopK(3, then=Halved(TopK(2)))).to_toml())) == {"Halved"}
    assert set(own_parts_of(Recipe(pattern=~(EveryOther() | Causal())).to_toml())) == {"EveryOther"}
    assert not isinstance(Recipe(pattern=Causal()).to_toml(), PartText)


def test_an_own_part_whose_text_would_be_another_is_refused():
    with pytest.raises(ValueError, match="Sharpened does not print its power, so no text describes it; make it a"):
        Recipe(score=Sharpened(3.0)).to_toml()
    other = dataclass(frozen=True)(type("EveryOther", (Pattern,), {"sees": EveryOther.sees, "distance": 1}))
    with pytest.raises(ValueError, match="two parts of your own are called EveryOther; rename one of them"):
        Recipe(pattern=EveryOther() | other()).to_toml()


def test_text_names_only_own_parts_that_attention_has():
    def raises():
        raise KeyError("no such key")

    failing = type("Failing", (EveryOther,), {"__init__": lambda self: raises()})
    names = PartText("Failing()", {"Failing": failing, "Linear": nn.Linear, "raises": raises})
    with pytest.raises(ValueError, match=r"cannot read 'Failing\(\)': KeyError 'no such key'"):
        parts.parse_part(names)
    for text in ("Linear(3, 4)", "raises()"):
        with pytest.raises(ValueError, match=r"known parts: Dot, .*, KimiDelta, Failing; a part of your own"):
            parts.parse_part(PartText(text, names.own_parts))
