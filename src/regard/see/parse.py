"""Parsing of what a user typed: a catalogue name, a part, or a recipe's TOML becomes a pattern, position or recipe."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from regard.attention.catalogue import POSITIONS, RECIPES, RecipeSizes, get_recipe
from regard.attention.normaliser import Normaliser
from regard.attention.pattern import Pattern
from regard.attention.position import Position
from regard.attention.recipe import Recipe
from regard.attention.score import Score
from regard.attention.serialize import PARTS, attach_own_parts, own_parts_of, parse_part
from regard.data.files import require_small_file
from regard.see.plots.draw import build_view

# what comes of parts that are well written but do not go together, such as Causal() & 3
PARSE_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError)
TOML_RECIPE = re.compile(rf"\s*({'|'.join(field.name for field in fields(Recipe))})\s*=")


def parse_thing(text: str, sizes: RecipeSizes, own_parts: Mapping[str, Any] = {}) -> Pattern | Position | Recipe:
    """A name of the catalogue, a recipe's TOML or the path of it, or a part such as "Causal() & Window(4)"."""
    if text in RECIPES:
        return get_recipe(text, sizes=sizes)
    if text in POSITIONS:
        return POSITIONS[text](sizes)
    try:
        thing = parse_text(attach_own_parts(text, own_parts))
        build_view(thing, tokens=2)
    except PARSE_ERRORS as error:
        raise ValueError(f"{text!r} does not work: {type(error).__name__} {error}") from None
    return thing


def parse_text(text: str) -> Pattern | Position | Recipe:
    if text.endswith(".toml"):
        return parse_file(Path(text), own_parts_of(text))
    if TOML_RECIPE.match(text):
        return Recipe.from_toml(text)
    if "(" not in text:
        raise ValueError(f"nothing is called {text!r}{suggest_name(text)}")
    part = parse_part(text)
    if isinstance(part, Pattern | Position):
        return part
    if isinstance(part, Score):
        return Recipe(score=part)
    if isinstance(part, Normaliser):
        return Recipe(normaliser=part)
    raise ValueError(f"{text!r} is no score, position, pattern or normaliser; try RelativeVectors(Clipped(4), head=8)")


def parse_file(path: Path, own_parts: Mapping[str, Any] = {}) -> Recipe:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; a recipe file is what recipe.to_toml() writes")
    try:
        text = require_small_file(path).read_text(encoding="utf-8")
        return Recipe.from_toml(attach_own_parts(text, own_parts))
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def suggest_name(text: str) -> str:
    """What comes closest to a name that nothing has."""
    known = {name.lower(): name for name in (*RECIPES, *POSITIONS)} | {name.lower(): f"{name}()" for name in PARTS}
    near = get_close_matches(text.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {known[near[0]]!r}?"
    return f"; names are {', '.join((*RECIPES, *POSITIONS))}; or write a part such as 'Causal() & Window(4)'"


def as_recipe(thing: Pattern | Position | Recipe) -> Recipe:
    """A part by itself makes a recipe whose other parts are the Transformer's."""
    if isinstance(thing, Recipe):
        return thing
    return Recipe(pattern=thing) if isinstance(thing, Pattern) else Recipe(position=thing)
