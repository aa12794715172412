"""What the tests of the command line share: a small corpus, and one small translator trained by the command itself."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.tasks import splits
from regard.tasks.translation import task as translation
from regard.world import World, translation_pairs

from .commands import LITTLE, WORLD_TESTS, Started, assert_done, regard, started


@pytest.fixture(scope="package", autouse=True)
def few_tests() -> Iterator[None]:
    """Most of what a short training takes is its validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "WORLD_TESTS", WORLD_TESTS)
        patch.setattr(translation, "MAX_SENTENCES", WORLD_TESTS // 2)
        yield


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests run beside their files."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def train(tmp_path_factory) -> Callable[..., Path]:
    """Trains a run with these options of `regard train`, and says where it is. It is to be read only."""

    def train_run(*options: object) -> Path:
        folder = tmp_path_factory.mktemp("trained") / "run"
        assert_done(regard("train", *options, "--out", folder))
        return folder

    return train_run


@pytest.fixture(scope="session")
def trained(train) -> Path:
    """The folder of a translator of short sentences, trained for a few seconds."""
    world = ["--set", "data.sentences=1500", "--set", "data.max_length=6", "--rate", "0.01"]
    wider = ["--set", "model.model=32", "--set", "model.hidden=64"]
    return train(*world, *LITTLE, *wider, "--tokens", 700, "--steps", 100)


@pytest.fixture
def type_lines(monkeypatch) -> Callable[..., None]:
    """Lines that a person types, and then Ctrl-D."""

    def type_all(*lines: str) -> None:
        waiting = iter(lines)

        def read() -> str:
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)

    return type_all


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


@pytest.fixture
def corpus(tmp_path) -> Callable[..., Path]:
    """Writes pairs of the world into a .tsv, some rows replaced by others, and says where."""

    def write(count: int = 41, *, name: str = "train.tsv", rows: dict[int, str] | None = None) -> Path:
        lines = ["\t".join(pair) for pair in translation_pairs(World(max_length=6), "fr", count, "train")]
        for number, row in (rows or {}).items():
            lines[number - 1] = row
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[..., Started]]:
    """Starts a command in a process of its own; see `started`."""
    running: list[Started] = []

    def begin(*words: object, **streams: str) -> Started:
        running.append(started(tmp_path_factory.mktemp("streams"), *words, **streams))
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.join()
