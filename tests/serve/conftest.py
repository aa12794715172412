"""One server for the tests of a file."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from regard.serve.shelf import Shelf
from regard.tasks.kept import Kept

from .asking import client_of, learners


@pytest.fixture(scope="module")
def models() -> dict[str, Kept]:
    return learners()


@pytest.fixture(scope="module")
def client(models) -> Iterator[TestClient]:
    with client_of(Shelf.holding(models)) as found:
        yield found
