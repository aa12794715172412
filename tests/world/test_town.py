"""A town is a function of its seed; friends share the trade, others do not, and the street tells which is which."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from regard.world.town import SPLIT_OF_HUNDRED, STREETS, TOOLS, TownWorld

WORLD = TownWorld(seed=3, people=997)
TOWN = WORLD.town()


def test_the_same_seed_is_the_same_town_in_every_process():
    code = "from regard.world.town import TownWorld as T; t = T(people=53).town(); print(t.people[17], t.edges[-3:])"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    town = TownWorld(people=53).town()
    assert result.stdout.strip() == f"{town.people[17]} {town.edges[-3:]}"
    assert TownWorld(people=53, seed=1).town() != town


def test_people_have_names_of_their_own_and_all_they_should():
    assert len({person.name for person in TOWN.people}) == 997
    for person in TOWN.people:
        assert person.traits == (person.street, *person.tools)
        assert len(person.tools) == WORLD.tools
        assert person.street in STREETS[: WORLD.streets]
        assert person.trade in tuple(TOOLS)[: WORLD.trades]


def test_edges_are_pairs_of_different_people_each_once():
    assert list(TOWN.edges) == sorted(set(TOWN.edges))
    assert all(0 <= one < other < 997 for one, other in TOWN.edges)


def test_friends_share_the_trade_and_those_met_do_not():
    same = {True: Counter(), False: Counter()}
    for one, other in TOWN.edges:
        same[TOWN.friends(one, other)][TOWN.people[one].trade == TOWN.people[other].trade] += 1
    assert same[True][False] == 0
    assert same[False][True] / same[False].total() == pytest.approx(1 / WORLD.trades, abs=0.05)
    assert same[False].total() / same[True].total() == pytest.approx(WORLD.met / WORLD.friends, rel=0.2)


def test_a_street_says_nothing_of_the_trade():
    held = Counter((person.street, person.trade) for person in TOWN.people)
    assert len(held) == WORLD.streets * WORLD.trades
    assert max(held.values()) < 2 * 997 / len(held)


def test_tools_say_as_much_of_the_trade_as_asked_for():
    def own(clear: int) -> float:
        people = TownWorld(people=997, clear=clear).town().people
        return sum(tool in TOOLS[person.trade] for person in people for tool in person.tools) / (997 * WORLD.tools)

    assert own(100) == 1
    assert own(0) == pytest.approx(1 / 5, abs=0.03)
    assert own(50) == pytest.approx(0.5 + 0.5 / 5, abs=0.03)


def test_people_are_divided_as_the_shares_say():
    found = Counter(person.split for person in TOWN.people)
    assert {split: 100 * count / 997 for split, count in found.items()} == pytest.approx(
        Counter(SPLIT_OF_HUNDRED), abs=4
    )


def test_a_town_may_have_no_friends_or_none_met():
    alone = TownWorld(people=53, friends=0, met=0).town()
    assert alone.edges == ()
    assert alone.people == TownWorld(people=53).town().people
    village = TownWorld(people=53, streets=1, met=0).town()
    assert all(village.friends(*edge) for edge in village.edges)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"people": 1}, "a town's people should be at least 2, not 1"),
        ({"trades": 7}, "a town's trades should be 2 to 6, not 7"),
        ({"streets": 0}, "a town's streets should be 1 to 7, not 0"),
        ({"clear": 101}, "a town's clear should be 0 to 100, not 101"),
        ({"met": -1}, "a town's met should be at least 0, not -1"),
        ({"seed": -1}, "a town's seed should be at least 0, not -1"),
        ({"streets": 1}, "nobody lives in another; use met=0"),
    ],
)
def test_a_town_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TownWorld(**wrong)
