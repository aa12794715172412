"""A case of a work in; everybody's turns, one after the other in every round, and what they come to, out.

Rounds are interleaved (we, they, others, we, …), so that a machine that slows down slows down for all. A ratio is the
median over the rounds of the ratio within a round. Whoever gives a wrong answer gets no ratio.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from regard.cli.benches.work import Case, Setting, Turn, Way

FEWEST = 2  # rounds, when it should be quick


@dataclass(frozen=True)
class Row:
    """What somebody's turns came to.

    Args:
        ours: whether it is one of us.
        state: right, wrong (a different answer), or unable (no answer).
        said: by how much the answer is off, or why there is none.
        speed: the median, in calls or tokens a second; `slowest` and `fastest` are the extremes.
        against: which of us it is compared with; None for ourselves, and for whoever was wrong or unable.
        ratio: how many times as fast that one was; `least` and `most` are the extremes over the rounds.
    """

    case: str
    way: str
    ours: bool
    state: Literal["right", "wrong", "unable"]
    said: str
    speed: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    against: str | None = None
    ratio: float | None = None
    least: float | None = None
    most: float | None = None
    turns: tuple[float, ...] = ()

    @property
    def failed(self) -> bool:
        """What must not be: a different answer from anybody, or none from us."""
        return self.state == "wrong" or (self.state == "unable" and self.ours)


def rounds_of(case: Case, setting: Setting) -> int:
    return setting.rounds or (min(FEWEST, case.rounds) if setting.quick else case.rounds)


def measure(case: Case, setting: Setting, told: Callable[[str], None]) -> list[Row]:
    """`told` hears who has had a turn."""
    turns: dict[str, list[Turn]] = {way.name: [] for way in case.ways}
    troubles: dict[str, str] = {}
    for number in range(case.warm + rounds_of(case, setting)):
        for way in case.ways:
            if way.name not in troubles:
                try:
                    turn = way.go()
                except RuntimeError as trouble:
                    troubles[way.name] = first_line(trouble)
                else:
                    turns[way.name] += [turn] if number >= case.warm else []
            told(way.name)
    able = {name: found for name, found in turns.items() if name not in troubles}
    ours, best = [], None
    for way in case.ours:
        first = able.get(case.ours[0].name)
        ours.append(row(case, way, able.get(way.name), first, troubles.get(way.name), ours=True))
        if ours[-1].state == "right" and (best is None or (ours[-1].speed or 0.0) > (best.speed or 0.0)):
            best = ours[-1]
    held = able[best.way] if best else None
    others = [row(case, way, able.get(way.name), held, troubles.get(way.name), ours=False) for way in case.others]
    return ours + [compared(one, best) if best else one for one in others]


def row(
    case: Case, way: Way, turns: list[Turn] | None, held: list[Turn] | None, trouble: str | None, *, ours: bool
) -> Row:
    if turns is None:
        return Row(case.name, way.name, ours, "unable", trouble or "")
    speeds = [turn.speed for turn in turns]
    verdict = case.judge(turns[-1].found, (held or turns)[-1].found)
    return Row(
        case.name,
        way.name,
        ours,
        "right" if verdict.right else "wrong",
        verdict.said,
        statistics.median(speeds),
        min(speeds),
        max(speeds),
        turns=tuple(speeds),
    )


def compared(they: Row, best: Row) -> Row:
    if they.state != "right":
        return they
    ratios = [we / them for we, them in zip(best.turns, they.turns, strict=True)]
    return replace(they, against=best.way, ratio=statistics.median(ratios), least=min(ratios), most=max(ratios))


def first_line(trouble: RuntimeError) -> str:
    return next((line.strip() for line in str(trouble).splitlines() if line.strip()), type(trouble).__name__)


def brief(figure: float) -> str:
    """For people: three digits, or all before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
