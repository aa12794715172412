"""What a translation may be: how long, and made of which tokens."""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Longest:
    """At most `factor` times the source's tokens and `offset` more, the end included. `Longest(0, 50)` is absolute."""

    factor: float = 2.0
    offset: int = 10

    def __post_init__(self):
        if self.factor < 0 or self.offset < 1:
            raise ValueError(f"a limit of {self.factor} × source + {self.offset} leaves no token: offset at least 1")

    def of(self, source: int) -> int:
        return int(self.factor * source) + self.offset


@dataclass(frozen=True)
class Allowed:
    """Which tokens may come next. Padding and beginning never may.

    Args:
        never: tokens that are never produced.
        shortest: how many tokens must stand before the end may come.
        rule: given the tokens so far, all that may follow; where the end may come, it names the end too.
    """

    never: frozenset[int] = frozenset()
    shortest: int = 0
    rule: Callable[[tuple[int, ...]], Collection[int]] | None = None
