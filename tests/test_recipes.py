"""Every recipe can be read, says its commands, and names a corpus that is known."""

from pathlib import Path

import pytest

from regard.data.corpora import CORPORA
from regard.tasks.config import read_task_name
from regard.tasks.registry import get_task
from regard.training.config import make_train_config

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 8


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_run_as_it_says(path):
    settings = get_task(read_task_name(path)).settings.load(path)
    assert settings.data.corpus in ("world", "stories", *CORPORA)
    make_train_config(settings.train, 1)
    head = "".join(line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#"))
    for phrase in (f"regard train recipes/{path.name}", "regard evaluate run", "Expected"):
        assert phrase in head
