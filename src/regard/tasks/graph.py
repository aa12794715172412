"""A graph of which some nodes' labels are known in; a trained model out, and labels for all nodes with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.layers.neighbours import Neighbours, joined
from regard.models.graph import EdgesSeen, GraphClassifier, GraphConfig
from regard.tasks.data import Read, Sources, Split, read_from
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.settings import TrainSettings
from regard.tasks.tables import From, Tables
from regard.text.graphs import Graph, Node, divided, of_town, read_graph
from regard.text.labelled import Labels
from regard.text.node_vectors import Reader, load_reader, reader_of
from regard.world.graphs import TownWorld


@dataclass(frozen=True, kw_only=True)
class GraphData(From):
    """A graph: two files, of nodes and of edges. Nodes to validate and to test on are in it, or in graphs of their own.

    Where the nodes' file has no splits, nodes are divided by their names.
    """

    people: int = 2000  # for the world: of the town
    town: int = 0  # another number, another town

    def __post_init__(self):
        TownWorld(seed=self.town, people=self.people)


@dataclass(frozen=True, kw_only=True)
class GraphSettings(Tables):
    """Of labelling the nodes of a graph. Every step reads all of it, whatever train.tokens is."""

    task: ClassVar[str] = "graph"

    data: GraphData = field(default_factory=GraphData)
    model: GraphConfig = field(default_factory=lambda: GraphConfig(kind="attention", dropout=0.3))
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            steps=250, rate=3e-3, warmup=20, smoothing=0.0, decay=0.1, validate_every=20, checkpoint_every=100
        )
    )

    def __post_init__(self):
        if self.train.accumulate != 1:
            raise ValueError(
                f"train.accumulate = {self.train.accumulate} is for batches, and a graph is read whole; leave it out"
            )

    @classmethod
    def of_world(cls):
        """The trades of a town, in a minute."""
        usual = cls()
        return replace(usual, train=replace(usual.train, tokens=1))  # a town is too small to be worth two threads


# --- reading ---


@dataclass(frozen=True, eq=False)
class Placed:
    """A node whose label is known, and the graph it is in."""

    graph: Graph = field(repr=False)
    number: int

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.number]


def read_nodes(settings: GraphSettings, split: Split, folder: Path | None = None) -> Read[Placed]:
    """The nodes of a split, all in one graph."""
    data = settings.data
    named = {"train": data.train, "valid": data.valid, "test": data.test}

    def of_known(name: str, split: Split, folder: Path | None) -> list[Placed]:
        raise ValueError(f"data.corpus = {name!r} is no graph; give two files: --train nodes.tsv --train edges.tsv")

    sources = Sources(
        world=lambda split, count: placed(town_of(data), split, "the town"),
        files=lambda paths: Read(placed(graph_for(paths, data, split), split, " and ".join(paths))),
        known=of_known,
        examples="nodes",
        files_called=lambda split: (
            f'{split} = ["nodes.tsv", "edges.tsv"], or on the command line --{split} nodes.tsv --{split} edges.tsv'
        ),
    )
    if data.corpus == "files" and (paths := named.get(split) or data.train):
        return sources.files(paths)  # whichever split it is, the nodes of one graph stay together
    return read_from(sources, data, split, folder)


def trained_on(data: GraphData) -> Graph:
    """The graph whose nodes a run learns from."""
    return town_of(data) if data.corpus == "world" else graph_in(data.train)


def town_of(data: GraphData) -> Graph:
    return of_town(TownWorld(seed=data.town, people=data.people).town())


def graph_in(paths: Sequence[str]) -> Graph:
    if len(paths) != 2:
        raise ValueError(f"{' and '.join(paths)}: a graph is two files: nodes first, then edges")
    return read_graph(*paths)


def graph_for(paths: Sequence[str], data: GraphData, split: Split) -> Graph:
    """By the column of splits; without one, nodes to train on are divided, and a graph of its own is one split."""
    graph = graph_in(paths)
    if any(node.split for node in graph.nodes):
        return graph
    if tuple(paths) == data.train:
        return divided(graph, valid=0 if data.valid else 20, test=0 if data.test else 20)
    return replace(graph, nodes=tuple(replace(n, split=None if n.label is None else split) for n in graph.nodes))


def placed(graph: Graph, split: Split, where: str) -> list[Placed]:
    if not (numbers := graph.among(split)):
        raise ValueError(f"{where}: no node whose label is known is in {split}; write {split} in their column split")
    return [Placed(graph, number) for number in numbers]


# --- training ---


@dataclass(frozen=True, eq=False)
class Whole:
    """A graph as the model reads it."""

    features: Float[Tensor, "n f"]
    neighbours: Neighbours

    @property
    def read(self) -> tuple[Float[Tensor, "n f"], Neighbours]:
        return self.features, self.neighbours

    def to(self, device: torch.device | str) -> "Whole":
        return Whole(self.features.to(device), self.neighbours.to(device))


@dataclass(frozen=True, eq=False)
class Asked:
    """A graph, and the nodes whose labels are asked for; every step of training is the same."""

    whole: Whole
    nodes: Int[Tensor, " k"]
    labels: Int[Tensor, " k"]

    def steps(self, epoch: int) -> int:
        return 1

    def at(self, epoch: int, index: int) -> list["Asked"]:
        return [self]


def graph_loss(smoothing: float):
    """Cross-entropy summed over the nodes that are asked for; the others are only seen."""

    def loss(model: nn.Module, asked: Asked) -> tuple[Tensor, int]:
        logits = model(*asked.whole.read)[asked.nodes].float()
        return cross_entropy(logits, asked.labels, reduction="sum", label_smoothing=smoothing), len(asked.labels)

    return loss


def validation(model: nn.Module, asked: Asked) -> dict[str, float]:
    """The mean negative log-probability of a held-out node's label, and the share of nodes that are right."""
    logits = model(*asked.whole.read)[asked.nodes].float()
    right = (logits.argmax(-1) == asked.labels).float().mean()
    return {"loss": cross_entropy(logits, asked.labels).item(), "accuracy": right.item()}


@dataclass(frozen=True, eq=False)
class Labeller(Kept):
    """A model with what reads its nodes and the labels it knows."""

    model: GraphClassifier
    reader: Reader
    labels: Labels
    settings: GraphSettings

    @staticmethod
    def fresh(nodes: Sequence[Placed], settings: GraphSettings) -> "Labeller":
        """What reads nodes, and the labels, from their whole graph; a model with new weights."""
        graph = graph_of(nodes)
        if len(labels := graph.labels()) < 2:
            raise ValueError(f"all nodes whose label is known are {labels.names[0]!r}; give some of another label")
        return Labeller.of(reader_of(graph), labels, settings)

    @staticmethod
    def of(reader: Reader, labels: Labels, settings: GraphSettings) -> "Labeller":
        torch.manual_seed(settings.train.seed)
        model = GraphClassifier(settings.model, features=reader.width, labels=len(labels))
        return Labeller(model, reader, labels, settings)

    def whole(self, graph: Graph) -> Whole:
        features = torch.from_numpy(self.reader.vectors(graph))
        return Whole(features, Neighbours.of(joined(graph.edges, len(graph)), len(graph))).to(self.device)

    def asked(self, nodes: Sequence[Placed]) -> Asked:
        """A label that the model does not know is refused."""
        labels = [self.labels.index(one.node.label or "", f"the node {one.node.name!r}") for one in nodes]
        numbers = [one.number for one in nodes]
        rows = (torch.tensor(row, device=self.device) for row in (numbers, labels))
        return Asked(self.whole(graph_of(nodes)), *rows)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def job(self, nodes: Sequence[Placed], held_out: Sequence[Placed], device: str = "cpu", /) -> Job:
        train = self.settings.train
        self.model.to(device)
        held = self.asked(held_out)
        return Job(
            self.model,
            self.asked(nodes),
            graph_loss(train.smoothing),
            lambda model: validation(model, held),
            train,
            self.settings.model.model,
            self.describe,
        )

    def probabilities(self, graph: Graph) -> Float[Tensor, "n labels"]:
        """Of every label, for every node of any graph whose nodes are described in the same way."""
        with torch.inference_mode():
            return self.model(*self.whole(graph).read).double().softmax(-1).float().cpu()

    def look(self, graph: Graph) -> tuple[Float[Tensor, "n labels"], EdgesSeen]:
        """The same, and the weight of every edge."""
        with torch.inference_mode():
            logits, looked = self.model.look(*self.whole(graph).read)
        weights = {name: one.cpu() for name, one in looked.weights.items()}
        return logits.double().softmax(-1).float().cpu(), EdgesSeen(looked.pairs.cpu(), weights)

    @property
    def parts(self) -> dict[str, Reader | Labels]:
        return {"reader": self.reader, "labels": self.labels}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, GraphSettings)
        return Labeller.of(load_reader(folder / "reader.json"), Labels.load(folder / "labels.json"), settings)


def graph_of(nodes: Sequence[Placed]) -> Graph:
    graph = nodes[0].graph
    assert all(one.graph is graph for one in nodes), "nodes of a split are in one graph"
    return graph
