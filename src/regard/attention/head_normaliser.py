"""Head normalisers: those that hold numbers for each head, and so must know which heads they weigh."""

from abc import abstractmethod
from dataclasses import is_dataclass, replace

from regard.attention.normaliser import Normaliser, RowWise


class HeadNormaliser(RowWise):
    """Abstract: a normaliser whose weights differ from head to head for the same scores."""

    @abstractmethod
    def for_heads(self, heads: range) -> Normaliser:
        """The same for some of its heads alone."""


def select_heads(normaliser: Normaliser, heads: range) -> Normaliser:
    """A normaliser for some of the heads that it is for, also where another one weighs by it (`then`)."""
    if isinstance(normaliser, HeadNormaliser):
        return normaliser.for_heads(heads)
    then = vars(normaliser).get("then")
    if not isinstance(then, Normaliser) or not is_dataclass(normaliser):
        return normaliser
    found = select_heads(then, heads)
    return normaliser if found is then else replace(normaliser, then=found)
