"""Town: a random social graph for node classification; the label of a person is the trade.

A person's features are the street and a few tools, some of the trade, others random. Friends live in one street and
have one trade (homophilous edges). Acquaintances live in other streets and have any trade (noise edges). Every trade
occurs in every street, so the street alone does not predict the trade; but it tells friends from acquaintances.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from regard.world.lexicon import NAMES, SPLITS, Split
from regard.world.splitmix import SplitMix64

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
SPLIT_OF_HUNDRED: tuple[Split, ...] = tuple(
    split for split, share in zip(SPLITS, SHARES, strict=True) for _ in range(share)
)


@dataclass(frozen=True)
class Person:
    """A person: features (street and tools), label (trade) and split."""

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
    """People, and the edges between them as pairs of indices, the smaller first, each pair once."""

    people: tuple[Person, ...]
    edges: tuple[tuple[int, int], ...]

    def friends(self, one: int, other: int) -> bool:
        """Whether an edge joins friends, who live in one street, rather than acquaintances."""
        return self.people[one].street == self.people[other].street


@dataclass(frozen=True, kw_only=True)
class TownWorld:
    """The parameters of one random town.

    Args:
        seed: another seed, another town.
        people: how many.
        trades, streets: how many of either; the first ones of the tables.
        tools: how many each person has.
        clear: the percentage of tools that are of the person's trade; the others are of any trade.
        friends: edges drawn from each person within the street and trade; the degree is about twice as large.
        met: edges drawn from each person to other streets; the degree is about twice as large.
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
        rng = SplitMix64(self.seed, 0, number)
        trades = tuple(TOOLS)[: self.trades]
        trade, street = rng.choice(trades), rng.choice(STREETS[: self.streets])
        tools = [
            rng.choice(TOOLS[trade if rng.bernoulli(self.clear) else rng.choice(trades)]) for _ in range(self.tools)
        ]
        name = f"{rng.choice(NAMES).en[0]}-{number}"
        return Person(name, street, tuple(tools), trade, rng.choice(SPLIT_OF_HUNDRED))

    def _pairs(self, people: tuple[Person, ...]) -> Iterator[tuple[int, int]]:
        """The edges drawn from every person: none where there is nobody to choose from."""
        together: dict[tuple[str, str], list[int]] = {}
        elsewhere: dict[str, list[int]] = {street: [] for street in STREETS}
        for number, person in enumerate(people):
            together.setdefault((person.street, person.trade), []).append(number)
            for street in STREETS:
                if street != person.street:
                    elsewhere[street].append(number)
        for number, person in enumerate(people):
            rng = SplitMix64(self.seed, 1, number)
            wanted = (together[person.street, person.trade], self.friends), (elsewhere[person.street], self.met)
            for choices, count in wanted:
                others = [choices[rng.randbelow(len(choices))] for _ in range(count)] if choices else []
                yield from ((number, other) for other in others if other != number)
