"""A seed in, a town out: people, what is said of each, and who knows whom. The question is everybody's trade.

Of a person one hears the street and a few tools; some tools are of the trade, others merely lie about. Friends live in
one street and practise one trade. Whom one met at the fair lives in another street and does anything. Every trade is
practised in every street, so the street alone says nothing of the trade; but it tells friends from those met.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from regard.world.chance import Chance
from regard.world.lexicon import SPLITS, Split
from regard.world.small import NAMES

TOOLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "baker": ("oven", "flour", "dough", "sieve"),
        "smith": ("anvil", "hammer", "tongs", "bellows"),
        "fisher": ("net", "boat", "hook", "sail"),
        "weaver": ("loom", "thread", "wool", "shuttle"),
        "farmer": ("plough", "seed", "hay", "scythe"),
        "mason": ("trowel", "chisel", "mortar", "plumb"),
    }
)
STREETS = ("mill-street", "church-lane", "harbour-road", "castle-hill", "bridge-row", "garden-walk", "well-yard")
SHARES = (50, 20, 30)  # of a hundred people, for train, valid and test
HUNDRED: tuple[Split, ...] = tuple(split for split, share in zip(SPLITS, SHARES, strict=True) for _ in range(share))


@dataclass(frozen=True)
class Person:
    """Someone, what one hears of them, and what they are."""

    name: str
    street: str
    tools: tuple[str, ...]
    trade: str
    split: Split

    @property
    def traits(self) -> tuple[str, ...]:
        return (self.street, *self.tools)


@dataclass(frozen=True)
class Town:
    """People, and pairs of their numbers, the smaller first: who knows whom, each pair once."""

    people: tuple[Person, ...]
    edges: tuple[tuple[int, int], ...]

    def friends(self, one: int, other: int) -> bool:
        """Is it more than having met?"""
        return self.people[one].street == self.people[other].street


@dataclass(frozen=True, kw_only=True)
class TownWorld:
    """Makes one town.

    Args:
        seed: another seed, another town.
        people: how many.
        trades, streets: how many of either; the first ones of the tables.
        tools: how many one hears of a person.
        clear: in so many of a hundred a tool is of the person's trade; else of any trade.
        friends: so many each person makes in the street, of the same trade; about twice as many come of it.
        met: so many each person meets, from other streets; about twice as many come of it.
    """

    seed: int = 0
    people: int = 600
    trades: int = 5
    streets: int = 5
    tools: int = 3
    clear: int = 30
    friends: int = 2
    met: int = 4

    def __post_init__(self):
        for name, least, most in (
            ("seed", 0, None),
            ("people", 2, None),
            ("trades", 2, len(TOOLS)),
            ("streets", 1, len(STREETS)),
            ("tools", 1, None),
            ("clear", 0, 100),
            ("friends", 0, None),
            ("met", 0, None),
        ):
            value = vars(self)[name]
            if value < least or (most is not None and value > most):
                bounds = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"a town's {name} should be {bounds}, not {value}")
        if self.met and self.streets < 2:
            raise ValueError(f"met = {self.met}, but in a town of one street nobody lives in another; use met=0")

    def town(self) -> Town:
        people = tuple(self._person(number) for number in range(self.people))
        return Town(people, tuple(sorted({(min(pair), max(pair)) for pair in self._pairs(people)})))

    def _person(self, number: int) -> Person:
        chance = Chance(self.seed, 0, number)
        trades = tuple(TOOLS)[: self.trades]
        trade, street = chance.pick(trades), chance.pick(STREETS[: self.streets])
        tools = [
            chance.pick(TOOLS[trade if chance.hits(self.clear) else chance.pick(trades)]) for _ in range(self.tools)
        ]
        name = f"{chance.pick(NAMES).en[0]}-{number}"
        return Person(name, street, tuple(tools), trade, chance.pick(HUNDRED))

    def _pairs(self, people: tuple[Person, ...]) -> Iterator[tuple[int, int]]:
        """Everybody makes friends and meets others; where there is nobody to choose from, none."""
        together: dict[tuple[str, str], list[int]] = {}
        elsewhere: dict[str, list[int]] = {street: [] for street in STREETS}
        for number, person in enumerate(people):
            together.setdefault((person.street, person.trade), []).append(number)
            for street in STREETS:
                if street != person.street:
                    elsewhere[street].append(number)
        for number, person in enumerate(people):
            chance = Chance(self.seed, 1, number)
            wanted = (together[person.street, person.trade], self.friends), (elsewhere[person.street], self.met)
            for choices, count in wanted:
                others = [choices[chance.below(len(choices))] for _ in range(count)] if choices else []
                yield from ((number, other) for other in others if other != number)
