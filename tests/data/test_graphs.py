"""Graphs are read from two files and written back; what is wrong is named by file and line; nodes become vectors."""

import gzip
import lzma
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.graphs import (
    BagOfWords,
    Graph,
    GraphNode,
    StandardScaler,
    assign_splits,
    fit_featurizer,
    graph_from_town,
    normalize_edges,
    read_graph,
    write_graph,
)
from regard.world.town import TownWorld

NODES = "name\tlabel\ttext\tsplit\nAnna\tbaker\toven oven flour\ttrain\nPaul\t_\tnet\t_\nNina\tsmith\t\ttest\n"
EDGES = "Anna\tPaul\nNina\tPaul\n"
TOWN = Graph(
    (
        GraphNode("Anna", ("oven", "oven", "flour"), "baker", "train"),
        GraphNode("Paul", ("net",)),
        GraphNode("Nina", (), "smith", "test"),
    ),
    ((0, 1), (1, 2)),
)


# --- what is read ---


def test_two_files_are_a_graph(put):
    assert read_graph(put("nodes.tsv", NODES), put("edges.tsv", EDGES)) == TOWN


@pytest.mark.parametrize(("ending", "opened"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_what_is_written_is_read_again(tmp_path, ending, opened):
    nodes, edges = (tmp_path / f"{name}.tsv{ending}" for name in ("nodes", "edges"))
    for graph in (TOWN, graph_from_town(TownWorld(people=53).town())):
        write_graph(graph, nodes, edges)
        assert read_graph(nodes, edges) == graph
    with opened(edges, "rt") as lines:
        assert len(lines.readlines()) == len(graph.edges)


def test_numbers_come_back_to_the_last_bit(tmp_path):
    graph = Graph((GraphNode("a", (0.1, 1e-300), "x", "train"), GraphNode("b", (1 / 3, -7.0))), ((0, 1),))
    write_graph(graph, tmp_path / "n.tsv", tmp_path / "e.tsv")
    assert read_graph(tmp_path / "n.tsv", tmp_path / "e.tsv") == graph
    assert graph.numeric
    assert not TOWN.numeric


def test_columns_stand_in_any_order_and_the_split_may_be_missing(put):
    nodes = put("nodes.tsv", "features\tname\tlabel\n1 2.5\ta\tx\n-3 4e2\tb\t_\n")
    graph = read_graph(nodes, put("edges.tsv", "a\tb\n"))
    assert graph.nodes == (GraphNode("a", (1.0, 2.5), "x"), GraphNode("b", (-3.0, 400.0)))


def test_a_repeated_edge_or_a_self_loop_changes_nothing(put):
    edges = put("edges.tsv", f"{EDGES}Paul\tAnna\nAnna\tPaul\nNina\tNina\n")
    assert read_graph(put("nodes.tsv", NODES), edges) == TOWN


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_tidied_edges_are_sorted_once_and_join_the_same_nodes(pairs):
    edges = normalize_edges(pairs)
    assert {frozenset(edge) for edge in edges} == {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
    assert list(edges) == sorted(set(edges))
    assert normalize_edges(edges) == edges


# --- what cannot be read ---


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ("", EDGES, "nodes.tsv: no nodes; it needs a header"),
        ("name\tlabel\ttext\n", EDGES, "nodes.tsv: no nodes"),
        ("Anna\tbaker\toven\n", EDGES, "nodes.tsv:1: 'Anna' is no column; the first line names the columns"),
        ("name\ttext\nAnna\toven\n", EDGES, "nodes.tsv:1: no column is called 'label'"),
        ("name\tlabel\nAnna\tx\n", EDGES, "nodes.tsv:1: a node is described by text or by features, one of the two"),
        ("name\tlabel\tlabel\ttext\n", EDGES, "nodes.tsv:1: 'label' occurs twice"),
        (NODES + "Max\tbaker\n", EDGES, "nodes.tsv:5: 2 columns; the header names 4: name, label, text, split"),
        (NODES + "\n", EDGES, "nodes.tsv:5: an empty line"),
        (NODES + "Anna\tsmith\tx\t_\n", EDGES, "nodes.tsv:5: the node 'Anna' was described on line 2; remove one"),
        (NODES + " \tsmith\tx\t_\n", EDGES, "nodes.tsv:5: the name is empty; give the node one"),
        (NODES + "Max\t\tx\t_\n", EDGES, "nodes.tsv:5: the label is empty; write _ where it is not known"),
        (NODES + "Max\ta\tx\tdev\n", EDGES, "nodes.tsv:5: a split is one of train, valid, test or _, not 'dev'"),
        (NODES + "Max\t_\tx\ttest\n", EDGES, "nodes.tsv:5: a node for test whose label is not known; write _"),
        ("name\tlabel\tfeatures\na\tx\t1 two\n", EDGES, "nodes.tsv:2: features are numbers"),
        ("name\tlabel\tfeatures\na\tx\t1 nan\n", EDGES, "nodes.tsv:2: features must be finite numbers"),
        ("name\tlabel\tfeatures\na\tx\t\n", EDGES, "nodes.tsv:2: features must be finite numbers, at least one"),
        ("name\tlabel\tfeatures\na\tx\t1\nb\tx\t1 2\n", EDGES, "nodes.tsv:3: 2 features; the nodes before have 1"),
        (NODES, "", "edges.tsv: no edges; it needs name, tab, name on every line"),
        (NODES, "Anna\tPaul\nAnna Nina\n", "edges.tsv:2: 1 column; an edge is name, tab, name"),
        (NODES, "Anna\tPaul\t1.0\n", "edges.tsv:1: 3 columns; an edge is name, tab, name"),
        (NODES, "Anna\tMax\n", "edges.tsv:1: no node is called 'Max'; describe it in nodes.tsv"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(put, nodes, edges, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the message is compared
        read_graph(put("nodes.tsv", nodes), put("edges.tsv", edges))
    assert str(refused.value).startswith(message)


def test_a_missing_file_is_told(put):
    with pytest.raises(ValueError, match="no such file"):
        read_graph(put("nodes.tsv", NODES), "nowhere.tsv")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: Graph((), ()), "a graph without nodes"),
        (lambda: replace(TOWN, nodes=TOWN.nodes[:1] * 2), "two nodes are called 'Anna'"),
        (lambda: replace(TOWN, edges=((1, 0),)), "use normalize_edges"),
        (lambda: replace(TOWN, edges=((0, 3),)), "edges join nodes 0 to 2"),
        (lambda: replace(TOWN, nodes=(*TOWN.nodes, GraphNode("x", (1.0,)))), "'x' has 1 numbers, 'Anna' has words"),
        (lambda: Graph((GraphNode("x", (), None, "test"),), ()), "'x' is for test, but its label is not known"),
        (lambda: TOWN.index("Max"), "no node is called 'Max'; the first are Anna, Paul, Nina"),
        (lambda: TOWN.nodes_in_split("dev"), "a split is one of train, valid, test, not 'dev'"),  # type: ignore[arg-type]
        (lambda: assign_splits(TOWN, valid=50, test=50), "leave nothing to train on"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(graph, message):
    with pytest.raises(ValueError, match=message):
        graph()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (GraphNode("a\tb", ()), "cannot be written to a file of nodes"),
        (GraphNode(" a", ()), "cannot be written to a file of nodes"),
        (GraphNode("a", (), "_"), "'_' cannot be written"),
        (GraphNode("a", ("two words",)), "'two words' of 'a' is not one word"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, node, message):
    with pytest.raises(ValueError, match=message):
        write_graph(Graph((node, GraphNode("z", ())), ((0, 1),)), tmp_path / "n.tsv", tmp_path / "e.tsv")
    assert not list(tmp_path.iterdir())


# --- splits, labels and vectors ---


def test_nodes_are_found_by_name_and_by_split():
    assert TOWN.index("Nina") == 2
    assert (TOWN.nodes_in_split("train"), TOWN.nodes_in_split("valid"), TOWN.nodes_in_split("test")) == ((0,), (), (2,))
    assert TOWN.labels().names == ("baker", "smith")


def test_a_split_depends_on_the_name_alone_and_leaves_out_what_is_not_known():
    names = [GraphNode(f"n{number}", (), None if number % 7 == 0 else "x") for number in range(700)]
    graph = assign_splits(Graph(tuple(names), ()), valid=10, test=30)
    turned = assign_splits(Graph(tuple(reversed(names)), ()), valid=10, test=30)
    assert {node.name: node.split for node in graph.nodes} == {node.name: node.split for node in turned.nodes}
    assert all((node.split is None) == (node.label is None) for node in graph.nodes)
    shares = [len(graph.nodes_in_split(split)) / 600 for split in ("train", "valid", "test")]
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.06)


def test_words_are_counted_into_vectors_of_length_one():
    """Anna's oven, oven, flour: 2 and 1 over √5. Nina's nothing stays nothing."""
    reader = fit_featurizer(TOWN)
    assert reader == BagOfWords(("flour", "net", "oven"))
    expected = np.array([[1 / 5**0.5, 0, 2 / 5**0.5], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_allclose(reader.vectors(TOWN), expected, rtol=1e-6)
    assert fit_featurizer(TOWN, most=1) == BagOfWords(("oven",))


def test_words_never_seen_before_are_passed_over():
    graph = Graph((GraphNode("a", ("oven", "spoon")),), ())
    assert BagOfWords(("net", "oven")).vectors(graph).tolist() == [[0, 1]]


def test_numbers_are_set_straight():
    """1 and 5 have mean 3 and spread 2; 7 never changes."""
    graph = Graph((GraphNode("a", (1.0, 7.0)), GraphNode("b", (5.0, 7.0))), ())
    reader = fit_featurizer(graph)
    assert reader == StandardScaler((3.0, 7.0), (2.0, 0.0))
    assert reader.vectors(graph).tolist() == [[-1, 0], [1, 0]]


def test_a_reader_refuses_nodes_of_another_kind():
    numbers = Graph((GraphNode("a", (1.0, 7.0)),), ())
    with pytest.raises(ValueError, match="have numbers, not words such as oven"):
        BagOfWords(("oven",)).vectors(numbers)
    with pytest.raises(ValueError, match="nodes need 3 numbers"):
        StandardScaler((0.0,) * 3, (1.0,) * 3).vectors(numbers)
    with pytest.raises(ValueError, match="no node has a word"):
        fit_featurizer(Graph((GraphNode("a", ()),), ()))
