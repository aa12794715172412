"""Every recipe can be read, says its commands, and names a corpus that is known."""

from pathlib import Path

import pytest

from regard.cli.tasks import task_of
from regard.tasks.tables import task_in
from regard.text.known import KNOWN
from regard.train.fit import plan_of

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 8


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_run_as_it_says(path):
    settings = task_of(task_in(path)).settings.load(path)
    assert settings.data.corpus in ("world", "stories", *KNOWN)
    plan_of(settings.train, 1)
    head = "".join(line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#"))
    for said in (f"regard train recipes/{path.name}", "regard evaluate run", "Expected"):
        assert said in head
