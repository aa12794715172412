"""The ways to search: a model and requests in; for each request its translations, best first, out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed
from regard.decode.model import Model
from regard.decode.request import Request


class Search(ABC):
    """A frozen value that says how translations are found."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many rows of the model one sentence may take."""

    @abstractmethod
    def run(self, model: Model, requests: Sequence[Request], allowed: Allowed) -> list[list[Hypothesis]]:
        """One batch, with a model at rest. What comes out for a request does not depend on the others."""
