"""regard graph, and train, evaluate and look for graphs: labels for every node, and what is refused, by file."""

import json
from pathlib import Path

import pytest

from regard.data.graphs import graph_from_town, write_graph
from regard.world.town import TownWorld

from .commands import assert_done, assert_plain, assert_refused, regard

LITTLE = ["--set", "model.layers=1", "--set", "model.model=12", "--set", "model.hidden=14", "--set", "model.heads=2"]
TRADES = {"baker", "smith", "fisher", "weaver", "farmer"}
TOWN = TownWorld(people=97).town()
NODES = """name\tlabel\ttext\tsplit
Ann\tbaker\toven flour\ttrain
Ben\tsmith\tanvil\ttrain
Cat\tbaker\tdough\tvalid
Dan\t_\thammer\t_
"""
EDGES = "Ann\tCat\nBen\tDan\n"


@pytest.fixture(scope="module")
def town(train) -> Path:
    return train("--task", "node_classification", *LITTLE, "--set", "data.people=97", "--steps", 60)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests run beside their files."""
    monkeypatch.chdir(tmp_path)
    Path("nodes.tsv").write_text(NODES)
    Path("edges.tsv").write_text(EDGES)


def test_every_node_is_labelled_with_its_probability(town):
    output = assert_done(regard("graph", town, "nodes.tsv", "edges.tsv"))
    assert_plain(output)
    rows = [line.split("\t") for line in output.splitlines()]
    assert [row[0] for row in rows] == ["Ann", "Ben", "Cat", "Dan"]
    assert all(label in TRADES and 0.2 <= float(chance) <= 1 for _, label, chance in rows)
    regard("graph", town, "nodes.tsv", "edges.tsv", "--out", "a.tsv")
    assert Path("a.tsv").read_text() == output
    both = assert_done(regard("graph", town, "nodes.tsv", "edges.tsv", "--best", 9)).splitlines()
    assert all(set(line.split("\t")[1::2]) == TRADES for line in both)
    assert [sum(map(float, line.split("\t")[2::2])) for line in both] == pytest.approx([1.0] * 4, abs=3e-4)


def test_labels_that_nodes_have_play_no_part(town):
    before = assert_done(regard("graph", town, "nodes.tsv", "edges.tsv"))
    Path("nodes.tsv").write_text(NODES.replace("baker", "smith"))
    assert assert_done(regard("graph", town, "nodes.tsv", "edges.tsv")) == before


def test_two_files_are_trained_on_and_measured_by_split():
    write_graph(graph_from_town(TOWN), "town.tsv", "friends.tsv.gz")
    train = ["train", "--task", "node_classification", *LITTLE, "--train", "town.tsv", "--train", "friends.tsv.gz"]
    assert_done(regard(*train, "--steps", 3, "--out", "run"))
    for split in ("train", "valid", "test"):
        count = sum(person.split == split for person in TOWN.people)
        output = assert_done(regard("evaluate", "run", "--split", split, "--save", "a.json", "--outputs", "said.tsv"))
        assert f"nodes:{count}|among:97|edges:{len(TOWN.edges)}" in output
        assert len(Path("said.tsv").read_text().splitlines()) == count
        assert sum(row["nodes"] for row in json.loads(Path("a.json").read_text())["by_label"].values()) == count
    test = assert_done(regard("evaluate", "run", "--split", "test"))
    assert assert_done(regard("evaluate", "run", "--on", "town.tsv", "--on", "friends.tsv.gz")) == test


def test_looking_at_a_node(town):
    name = TOWN.people[38].name
    output = assert_done(regard("look", town, name, "--save", "a.png"))
    assert output.startswith(f"{name}: ")
    assert "head 0" in output
    assert "head 1" in output
    assert " ".join(TOWN.people[38].traits) in output
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    one, other = (assert_done(regard("look", town, name, "--head", f"blocks.0:{n}")) for n in (0, 1))
    assert one != other
    assert assert_done(regard("look", town, name, "--every")).count("head ") == 2
    assert_refused(regard("look", town, "Nobody"), "no node is called 'Nobody'; the first are ")
    assert_refused(regard("look", town, name, "--head", "1"), "--head 1: write LAYER:HEAD, one of blocks.0:0 to blocks")
    assert_refused(regard("look", town, name, "--word", "cat"), "--word means nothing to a node; leave it out")


def test_a_model_without_edges_has_no_neighbours_to_show():
    made = ["--set", "model.kind=alone", "--set", "data.people=31", "--steps", 2, "--out", "alone"]
    assert_done(regard("train", "--task", "node_classification", *made))
    assert_refused(regard("look", "alone", TOWN.people[3].name), "this model was trained with kind = 'alone', and")


@pytest.mark.parametrize(
    ("file", "held", "message"),
    [
        ("nodes.tsv", NODES + "Eve\tbaker\n", "nodes.tsv:6: 2 columns; the header names 4: name, label, text, split"),
        ("nodes.tsv", NODES.replace("valid", "held"), "nodes.tsv:4: a split is one of train, valid, test or _, not 'h"),
        ("nodes.tsv", NODES + "Ann\t_\tx\t_\n", "nodes.tsv:6: the node 'Ann' was described on line 2; remove one"),
        ("edges.tsv", EDGES + "Ann\tZoe\n", "edges.tsv:3: no node is called 'Zoe'; describe it in nodes.tsv"),
        ("edges.tsv", "Ann\n", "edges.tsv:1: 1 column; an edge is name, tab, name"),
        ("edges.tsv", "", "edges.tsv: no edges; it needs name, tab, name on every line"),
    ],
)
def test_bad_files_are_named_with_their_line(town, file, held, message):
    Path(file).write_text(held)
    assert_refused(regard("graph", town, "nodes.tsv", "edges.tsv"), message)
    given = ["--train", "nodes.tsv", "--train", "edges.tsv", "--out", "bad"]
    answer = regard("train", "--task", "node_classification", *given)
    assert answer.exit_code == 2
    assert message.partition(";")[0] in answer.stderr


def test_what_else_is_refused(town):
    assert_refused(regard("graph", town, "nodes.tsv", "no.tsv"), "no.tsv: no such file; check the name")
    Path("numbers.tsv").write_text("name\tlabel\tfeatures\nAnn\t_\t1 2\nCat\t_\t3 4\n")
    Path("few.tsv").write_text("Ann\tCat\n")
    assert_refused(regard("graph", town, "numbers.tsv", "few.tsv"), "the nodes have numbers, not words such as")
    Path("nodes.tsv").write_text(NODES.replace("baker", "pilot"))
    given = ["--on", "nodes.tsv", "--on", "edges.tsv"]
    assert_refused(regard("evaluate", town, *given), "nodes.tsv and edges.tsv: no node whose label is known is in test")
    Path("nodes.tsv").write_text(NODES.replace("valid", "test").replace("baker", "pilot"))
    assert_refused(regard("evaluate", town, *given), "the node 'Cat': the label 'pilot' is not known; the known ones")
    one = ["train", "--task", "node_classification", "--train", "nodes.tsv", "--out", "one"]
    answer = regard(*one)
    assert answer.exit_code == 2
    assert "a graph is two files: nodes first, then edges" in answer.stderr


def test_looking_at_nothing_asks_for_a_node(town):
    assert_refused(regard("look", town), "no input; give the name of a node, or start the page: regard")
