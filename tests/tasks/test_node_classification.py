"""Labels for the nodes of a graph: who teaches, who is asked, another graph; exact resume; what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from regard.data.graphs import BagOfWords, Graph, GraphNode, StandardScaler, load_featurizer, write_graph
from regard.models.graph import GraphConfig
from regard.tasks.node_classification.task import (
    LabelledNode,
    NodeClassificationData,
    NodeClassificationSettings,
    NodeClassifier,
    graph_of,
    node_loss,
    validation,
)
from regard.tasks.splits import Split
from regard.training.config import TrainSettings
from tests.tasks.resume_check import assert_resumes

SETTINGS = NodeClassificationSettings(
    data=NodeClassificationData(people=97),
    model=GraphConfig(kind="attention", layers=1, model=12, heads=2, hidden=14),
    train=TrainSettings(steps=40, learning_rate=1e-2, warmup_steps=5, label_smoothing=0.0, validate_every=15),
)


def people(split: Split = "train", **changes) -> Sequence[LabelledNode]:
    return replace(SETTINGS, **changes).data.read(split).examples


def files(name: str = "a", *, content: bool = True, split: bool = False) -> tuple[str, str]:
    """A town in two files: with words or numbers, and with or without its splits."""
    graph = graph_of(people())
    nodes = [node if split else replace(node, split=None) for node in graph.nodes]
    nodes = [node if content else replace(node, content=(float(len(node.name)), 3.5)) for node in nodes]
    write_graph(replace(graph, nodes=tuple(nodes)), f"{name}.nodes.tsv", f"{name}.edges.tsv")
    return f"{name}.nodes.tsv", f"{name}.edges.tsv"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_only_the_nodes_asked_for_teach():
    """Worked by hand: the mean of − log p over two nodes; the label of a third changes nothing."""
    given = people()[:2]
    one = NodeClassifier.from_examples(given, SETTINGS)
    one.model.eval()
    chances = one.probabilities(given[0].graph)
    wanted = [one.labels.index(node.node.label or "") for node in given]
    expected = -sum(chances[node.number, label].log() for node, label in zip(given, wanted, strict=True))
    summed, count = node_loss(0.0)(one.model, one.node_batch(given))
    assert count == 2
    assert_close(summed, expected)
    figures = validation(one.model, one.node_batch(given))
    assert figures["loss"] == pytest.approx(float(expected) / 2)


def test_nodes_of_a_split_are_those_of_the_column():
    graph = graph_of(people())
    for split in ("train", "valid", "test"):
        assert [one.number for one in people(split)] == list(graph.nodes_in_split(split))


def test_a_file_without_splits_is_divided_by_names():
    data = NodeClassificationData(corpus="files", train=files())
    parts = [{one.node.name for one in people(split, data=data)} for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 97
    assert min(map(len, parts)) > 5
    assert all(len(graph_of(people(split, data=data))) == 97 for split in ("valid", "test"))


def test_graphs_of_their_own_are_asked_for_all_their_nodes():
    data = NodeClassificationData(corpus="files", train=files(), valid=files("b"))
    assert len(people("valid", data=data)) == 97
    assert len(people("train", data=data)) > 97 // 2 + 20
    measured = replace(data, train=(), valid=(), test=files(split=True))
    assert [one.number for one in people("test", data=measured)] == list(graph_of(people()).nodes_in_split("test"))


def test_how_nodes_are_numbered_changes_nothing():
    graph = graph_of(people())
    one = NodeClassifier.from_examples(people(), SETTINGS)
    one.model.eval()
    order = torch.randperm(97, generator=torch.Generator().manual_seed(3)).tolist()
    place = {old: new for new, old in enumerate(order)}
    edges = sorted((min(place[a], place[b]), max(place[a], place[b])) for a, b in graph.edges)
    other = Graph(tuple(graph.nodes[old] for old in order), tuple(edges))
    assert_close(one.probabilities(graph)[order], one.probabilities(other))


def test_what_cannot_be_reached_changes_nothing():
    """As a sentence does not depend on its batch: a second town beside the first."""
    graph = graph_of(people())
    other = graph_of(people(data=NodeClassificationData(people=31, town=1)))
    far = tuple(replace(node, name=f"far {node.name}") for node in other.nodes)
    both = Graph(graph.nodes + far, graph.edges + tuple((a + 97, b + 97) for a, b in other.edges))
    one = NodeClassifier.from_examples(people(), SETTINGS)
    one.model.eval()
    assert_close(one.probabilities(both)[:97], one.probabilities(graph))


def test_training_stops_goes_on_and_ends_with_the_same_bits(tmp_path):
    given, held_out = people(), people("valid")
    straight = assert_resumes(lambda: NodeClassifier.from_examples(given, SETTINGS), given, held_out, tmp_path, cut=22)
    loaded = NodeClassifier.load(tmp_path / "a")
    assert torch.equal(loaded.probabilities(graph_of(given)), straight.probabilities(graph_of(given)))
    assert validation(loaded.model, loaded.node_batch(given))["accuracy"] > 0.5


def test_looking_gives_the_same_labels_and_every_edge():
    given = people()
    one = NodeClassifier.from_examples(given, SETTINGS)
    one.model.eval()
    chances, attention = one.probabilities_with_attention(graph_of(given))
    assert_close(chances, one.probabilities(graph_of(given)))
    assert attention.weights["blocks.0"].shape == (2, 2 * len(graph_of(given).edges) + 97)


def test_featurizers_come_back_from_their_files(tmp_path):
    for featurizer in (BagOfWords(("cat", "été")), StandardScaler((0.1, -3.0), (2.0, 0.0))):
        featurizer.save(tmp_path / "featurizer.json")
        assert load_featurizer(tmp_path / "featurizer.json") == featurizer


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("{", "damaged, or no node features at all"),
        ('{"format": "regard node reader 1", "words": [3]}', "not node features, whose format is"),
        ('{"format": "regard node reader 1", "means": [0.5], "spreads": []}', "not node features, whose format is"),
        ('{"format": "regard labels 1", "words": ["a"]}', "not node features, whose format is"),
    ],
)
def test_a_damaged_featurizer_is_named(tmp_path, held, message):
    (tmp_path / "featurizer.json").write_text(held)
    with pytest.raises(ValueError, match=rf"featurizer\.json: {message}"):
        load_featurizer(tmp_path / "featurizer.json")


def test_numbers_are_read_as_numbers():
    data = NodeClassificationData(corpus="files", train=files(content=False))
    one = NodeClassifier.from_examples(people(data=data), replace(SETTINGS, data=data))
    assert isinstance(one.featurizer, StandardScaler)
    with pytest.raises(ValueError, match="nodes need 2 numbers, not"):
        one.probabilities(graph_of(people()))


def test_a_run_that_calls_its_featurizer_a_reader_still_loads(tmp_path):
    one = NodeClassifier.from_examples(people(), SETTINGS)
    one.save(tmp_path)
    (tmp_path / "featurizer.json").rename(tmp_path / "reader.json")
    assert NodeClassifier.load(tmp_path).featurizer == one.featurizer


def test_labels_of_another_run_are_not_taken_for_its_own(tmp_path):
    NodeClassifier.from_examples(people(), SETTINGS).save(tmp_path)
    labels = (tmp_path / "labels.json").read_text(encoding="utf-8")
    (tmp_path / "labels.json").write_text(labels.replace("smith", "smythe"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"featurizer\.json or labels\.json is not what the weights were trained with"):
        NodeClassifier.load(tmp_path)


def test_what_is_refused():
    alike = Graph((GraphNode("a", ("x",), "cat", "train"), GraphNode("b", ("y",), "cat", "valid")), ((0, 1),))
    with pytest.raises(ValueError, match="all nodes whose label is known are 'cat'; give some of another label"):
        NodeClassifier.from_examples([LabelledNode(alike, 0)], SETTINGS)
    other = replace(alike, nodes=(replace(alike.nodes[0], label="dog"), alike.nodes[1]))
    with pytest.raises(ValueError, match="the node 'a': the label 'dog' is not known; the known ones are baker, "):
        NodeClassifier.from_examples(people(), SETTINGS).node_batch([LabelledNode(other, 0)])
    with pytest.raises(
        ValueError, match=r"train\.gradient_accumulation = 2 is for batches, and a graph is read whole; leave it"
    ):
        NodeClassificationSettings(train=TrainSettings(gradient_accumulation=2))
    with pytest.raises(ValueError, match="people = 1 should be at least 2"):
        NodeClassificationData(people=1)
    with pytest.raises(ValueError, match=r"nodes\.tsv: a graph is two files: nodes first, then edges"):
        people(data=NodeClassificationData(corpus="files", train=("nodes.tsv",)))
    with pytest.raises(ValueError, match=r"data\.corpus = 'imdb' is no graph; give two files"):
        people(data=NodeClassificationData(corpus="imdb"))
    with pytest.raises(ValueError, match=r"data\.train names no files; e\.g\. train = \[\"nodes\.tsv\", \"edges"):
        people(data=NodeClassificationData(corpus="files"))
    write_graph(replace(alike, nodes=(alike.nodes[0], replace(alike.nodes[1], split=None))), "n.tsv", "e.tsv")
    with pytest.raises(ValueError, match=r"n\.tsv and e\.tsv: no node whose label is known is in valid; write valid"):
        people("valid", data=NodeClassificationData(corpus="files", train=("n.tsv", "e.tsv")))
