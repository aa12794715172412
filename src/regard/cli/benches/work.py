"""What a bench is made of: a work, its cases, the ways to do each, what one turn of a way gave, and a verdict on it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# where this very file lies, if it is one: to run what lies where one happens to stand would be to run anybody's code
CHECKOUT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Under what everybody is measured.

    Args:
        quick: small sizes and few rounds, to see that all is well.
        rounds: how often everybody has a turn; left out, as often as the work wants.
        peers: a folder with a virtual environment for each toolkit that cannot live beside us.
        data: the folder of known corpora; without it, what ships with the package.
        folder: for whatever is written on the way.
    """

    device: str
    quick: bool
    threads: int
    rounds: int | None
    peers: Path
    data: Path | None
    folder: Path


@dataclass(frozen=True, eq=False)
class Turn:
    """One turn: the seconds it took, for how much (calls, tokens), and what was found, by which it is judged."""

    seconds: float
    amount: float
    found: Any

    @property
    def speed(self) -> float:
        return self.amount / self.seconds


@dataclass(frozen=True, eq=False)
class Way:
    """Somebody who can do the work. A RuntimeError is an answer: that it could not."""

    name: str
    go: Callable[[], Turn]


@dataclass(frozen=True)
class Missing:
    """Somebody who could not be asked, why, and what to do about it."""

    name: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """How far what was found is from what is right, in words, and whether that is near enough."""

    said: str
    right: bool = True


@dataclass(frozen=True, eq=False)
class Case:
    """One size or kind of the work.

    Args:
        ours: our ways, of which the fastest that is right is compared with the others.
        judge: what somebody found, and what we found, to a verdict; ours are held against the first of them.
        rounds: of turns, if nobody says how many; `warm` more come first and are not counted.
    """

    name: str
    ours: tuple[Way, ...]
    others: tuple[Way, ...]
    missing: tuple[Missing, ...]
    judge: Callable[[Any, Any], Verdict]
    rounds: int
    warm: int = 0

    @property
    def ways(self) -> tuple[Way, ...]:
        return self.ours + self.others


@dataclass(frozen=True, eq=False)
class Work:
    """Something that we and others can do.

    `cases` are made one by one, so that only one lies in memory; a Missing among them cannot be measured here.
    """

    name: str
    about: str
    unit: Literal["ms", "tokens/s"]
    cases: Callable[[Setting], Iterator[Case | Missing]]

    def figure(self, speed: float) -> float:
        """A speed, in calls or tokens a second, as people read it."""
        return 1e3 / speed if self.unit == "ms" else speed
