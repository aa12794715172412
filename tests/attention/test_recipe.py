"""A recipe is a value: it compares, hashes, prints, and survives a round trip through TOML."""

import tomllib

import pytest
import torch

from regard.attention import (
    POSITIONS,
    RECIPES,
    Causal,
    Recipe,
    Rotary,
    Sinusoidal,
    Tree,
    TreeDepth,
    Window,
    named,
    notation,
)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "documents"])
def test_toml_round_trip(name, position):
    if (name, position) == ("bahdanau", "shaw"):
        pytest.skip("Bahdanau's score has no keys that vectors could add to")
    recipe = named(name, position)
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
    assert [type(part).__name__ for part in recipe.beside] == ["Sinusoidal", "TreeDepth"]
    assert recipe.inside == (Rotary(),)
    assert recipe.on_score == ()
    tree = Tree.of_heads(torch.tensor([[0, 1, 1]]))
    x, at = torch.zeros(1, 3, 4, dtype=torch.double), torch.arange(3)
    both = recipe.given(tree=tree).embed(x, at)
    waves = Sinusoidal().table(at, 4) + Sinusoidal().table(torch.tensor([0, 1, 1]), 4)
    assert torch.equal(both[0], waves)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Window(size=1, size=2)", "Window is given size twice; leave one out"),
        ('Full(**{"a": 1})', r"\*\* names nothing; write each argument of Full by its name"),
        ("~" * 800 + "Full()", "more than 100 parts inside of each other"),
        ("|".join(["Causal()"] * 300), "more than 100 parts inside of each other"),
        ("(" * 300 + "Full()" + ")" * 300, "cannot read"),
        ("Full()" + " " * 20_000, "letters, more than 10,000"),
        ("1 + 1", "it is 2, and no part"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_said_twice_too_deep_or_no_part_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        notation.read(text)
    assert notation.read("~" * 99 + "Full()") == notation.read(repr(notation.read("~" * 99 + "Full()")))
