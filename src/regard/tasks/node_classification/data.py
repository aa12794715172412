"""Node classification data: the settings of a run, and its labelled nodes of a graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from regard.data.graphs import Graph, GraphNode, assign_splits, graph_from_town, read_graph
from regard.models.config_base import Range, Ranges
from regard.models.graph import GraphConfig
from regard.tasks.config import RunSettings, world_training
from regard.tasks.splits import DataSettings, LoadedExamples, Split
from regard.training.config import TrainSettings
from regard.world.town import TownWorld


@dataclass(frozen=True, eq=False)
class LabelledNode:
    """A node whose label is known, and the graph it is in."""

    graph: Graph = field(repr=False)
    number: int

    @property
    def node(self) -> GraphNode:
        return self.graph.nodes[self.number]


@dataclass(frozen=True, kw_only=True)
class NodeClassificationData(DataSettings[LabelledNode]):
    """A graph: two files, of nodes and of edges. Nodes to validate and to test on are in it, or in graphs of their own.

    Where the nodes' file has no splits, nodes are divided by their names.

    Args:
        people: how many live in the town, the graph of the miniature world.
        town: which town it is: another number, another town.
    """

    examples: ClassVar[str] = "nodes"
    files_hint: ClassVar[str] = (
        '{split} = ["nodes.tsv", "edges.tsv"], or on the command line --{split} nodes.tsv --{split} edges.tsv'
    )

    ranges: ClassVar[Ranges] = {"people": Range(2)}

    people: int = 2000
    town: int = 0

    def from_world(self, split: Split, count: int | None) -> list[LabelledNode]:
        return labelled_nodes(world_graph(self), split, "the town")

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[LabelledNode]:
        return LoadedExamples(labelled_nodes(split_graph(paths, self, split), split, " and ".join(paths)))

    def read_files(self, split: Split) -> LoadedExamples[LabelledNode]:
        if paths := self.paths(split) or self.train:
            return self.from_files(paths, split)  # whichever split it is, the nodes of one graph stay together
        return super().read_files(split)

    def from_corpus(self, split: Split, folder: Path | None) -> list[LabelledNode]:
        raise ValueError(
            f"data.corpus = {self.corpus!r} is no graph; give two files: --train nodes.tsv --train edges.tsv"
        )


@dataclass(frozen=True, kw_only=True)
class NodeClassificationSettings(RunSettings):
    """Of node classification. Every step reads all of it, whatever train.batch_size is."""

    task: ClassVar[str] = "node_classification"

    data: NodeClassificationData = NodeClassificationData()
    model: GraphConfig = GraphConfig(kind="attention", dropout=0.3)
    train: TrainSettings = world_training(
        steps=250,
        learning_rate=3e-3,
        warmup_steps=20,
        weight_decay=0.1,
        validate_every=20,
        checkpoint_every=100,
    )

    def __post_init__(self):
        if self.train.gradient_accumulation != 1:
            raise ValueError(
                f"train.gradient_accumulation = {self.train.gradient_accumulation} is for batches, and a graph is read "
                "whole; leave it out"
            )

    @classmethod
    def of_world(cls):
        """The trades of a town, in a minute."""
        usual = cls()
        return replace(usual, train=replace(usual.train, batch_size=1))  # a town is too small to be worth two threads


def training_graph(data: NodeClassificationData) -> Graph:
    """The graph whose nodes a run learns from."""
    return world_graph(data) if data.corpus == "world" else read_graph_files(data.train)


def world_graph(data: NodeClassificationData) -> Graph:
    return graph_from_town(TownWorld(seed=data.town, people=data.people).town())


def read_graph_files(paths: Sequence[str]) -> Graph:
    if len(paths) != 2:
        raise ValueError(f"{' and '.join(paths)}: a graph is two files: nodes first, then edges")
    return read_graph(*paths)


def split_graph(paths: Sequence[str], data: NodeClassificationData, split: Split) -> Graph:
    """By the column of splits; without one, nodes to train on are divided, and a graph of its own is one split."""
    graph = read_graph_files(paths)
    if any(node.split for node in graph.nodes):
        return graph
    if tuple(paths) == data.train:
        return assign_splits(graph, valid=0 if data.valid else 20, test=0 if data.test else 20)
    return replace(graph, nodes=tuple(replace(n, split=None if n.label is None else split) for n in graph.nodes))


def labelled_nodes(graph: Graph, split: Split, where: str) -> list[LabelledNode]:
    if not (numbers := graph.nodes_in_split(split)):
        raise ValueError(f"{where}: no node whose label is known is in {split}; write {split} in their column split")
    return [LabelledNode(graph, number) for number in numbers]
