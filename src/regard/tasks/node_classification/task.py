"""Node classification: its settings and graphs, the loss of labelled nodes, the NodeClassifier and its task."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import record_attention
from regard.data.graphs import (
    Graph,
    GraphNode,
    NodeFeaturizer,
    assign_splits,
    fit_featurizer,
    graph_from_town,
    load_featurizer,
    read_graph,
)
from regard.data.labelled import Labels
from regard.models.config_base import Range, Ranges
from regard.models.graph import EdgeWeights, GraphConfig, GraphNetwork, Neighbours, edge_weights, undirected_edges
from regard.tasks.config import RunSettings, world_training
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics, loss_and_accuracy
from regard.tasks.pretrained import LabelOutput, PretrainedModel
from regard.tasks.protocol import (
    EncodedInput,
    InputSpec,
    Task,
    TaskInput,
    TokenAxis,
    no_progress,
)
from regard.tasks.splits import DataSettings, LoadedExamples, Split
from regard.training.config import TrainingJob, TrainSettings
from regard.world.town import TownWorld

# --- settings and data ---


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


# --- training ---


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph as the model reads it."""

    features: Float[Tensor, "n f"]
    neighbours: Neighbours

    @property
    def model_inputs(self) -> tuple[Float[Tensor, "n f"], Neighbours]:
        return self.features, self.neighbours

    def to(self, device: torch.device | str) -> "GraphInput":
        return GraphInput(self.features.to(device), self.neighbours.to(device))


@dataclass(frozen=True, eq=False)
class NodeBatch:
    """A graph, and the nodes whose labels are predicted; every step of training is the same."""

    graph: GraphInput
    nodes: Int[Tensor, " k"]
    labels: Int[Tensor, " k"]

    def steps(self, epoch: int) -> int:
        return 1

    def at(self, epoch: int, index: int) -> list["NodeBatch"]:
        return [self]


def node_loss(smoothing: float):
    """Cross-entropy summed over these nodes; the others are only seen."""

    def loss(model: nn.Module, batch: NodeBatch) -> tuple[Tensor, int]:
        logits = model(*batch.graph.model_inputs)[batch.nodes].float()
        return cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing), len(batch.labels)

    return loss


def validation(model: nn.Module, batch: NodeBatch) -> dict[str, float]:
    logits = model(*batch.graph.model_inputs)[batch.nodes].float()
    return loss_and_accuracy(logits, batch.labels)


@dataclass(frozen=True, eq=False)
class NodeClassifier(PretrainedModel):
    """A model with what reads its nodes and the labels it knows."""

    settings_type = NodeClassificationSettings
    part_files: ClassVar = {"featurizer": ("featurizer", load_featurizer), "labels": ("labels", Labels.load)}

    model: GraphNetwork
    featurizer: NodeFeaturizer
    labels: Labels
    settings: NodeClassificationSettings

    @classmethod
    def from_examples(cls, nodes: Sequence[LabelledNode], settings: NodeClassificationSettings) -> "NodeClassifier":
        """What reads nodes, and the labels, from their whole graph; a model with new weights."""
        graph = graph_of(nodes)
        if len(labels := graph.labels()) < 2:
            raise ValueError(f"all nodes whose label is known are {labels.names[0]!r}; give some of another label")
        return cls.from_parts(fit_featurizer(graph), labels, settings=settings)

    @staticmethod
    def build_model(featurizer: NodeFeaturizer, labels: Labels, settings: NodeClassificationSettings) -> GraphNetwork:
        return GraphNetwork(settings.model, features=featurizer.width, labels=len(labels))

    def graph_input(self, graph: Graph) -> GraphInput:
        features = torch.from_numpy(self.featurizer.vectors(graph))
        return GraphInput(features, Neighbours.of(undirected_edges(graph.edges, len(graph)), len(graph))).to(
            self.device
        )

    def node_batch(self, nodes: Sequence[LabelledNode]) -> NodeBatch:
        """A label that the model does not know is refused."""
        labels = [self.labels.index(one.node.label or "", f"the node {one.node.name!r}") for one in nodes]
        numbers = [one.number for one in nodes]
        rows = (torch.tensor(row, device=self.device) for row in (numbers, labels))
        return NodeBatch(self.graph_input(graph_of(nodes)), *rows)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def job(
        self, nodes: Sequence[LabelledNode], held_out: Sequence[LabelledNode], device: str = "cpu", /
    ) -> TrainingJob:
        train = self.settings.train
        self.model.to(device)
        held = self.node_batch(held_out)
        return self.training_job(
            self.node_batch(nodes),
            node_loss(train.label_smoothing),
            lambda model: validation(model, held),
            device,
            figures=LABEL_FIGURES,
            shard_objection="its nodes are those of one graph",
        )

    def classify(self, nodes: str | Path, edges: str | Path) -> dict[str, LabelOutput]:
        """The label of every node of a graph in two files, by the node's name."""
        graph = read_graph(Path(nodes), Path(edges))
        found = self.probabilities(graph).tolist()
        return {node.name: LabelOutput.of(self.labels.names, row) for node, row in zip(graph.nodes, found, strict=True)}

    def probabilities(self, graph: Graph) -> Float[Tensor, "n labels"]:
        """Of every label, for every node of any graph whose nodes are described in the same way."""
        with torch.inference_mode():
            return self.model(*self.graph_input(graph).model_inputs).double().softmax(-1).float().cpu()

    def probabilities_with_attention(self, graph: Graph) -> tuple[Float[Tensor, "n labels"], EdgeWeights]:
        """The same, and the weight of every edge."""
        read = self.graph_input(graph)
        with torch.inference_mode(), record_attention(self.model) as record:
            logits = self.model(*read.model_inputs)
            found = edge_weights(record, read.neighbours)
        weights = {name: one.cpu() for name, one in found.weights.items()}
        return logits.double().softmax(-1).float().cpu(), EdgeWeights(found.pairs.cpu(), weights)


def graph_of(nodes: Sequence[LabelledNode]) -> Graph:
    graph = nodes[0].graph
    assert all(one.graph is graph for one in nodes), "nodes of a split are in one graph"
    return graph


def evaluate_node_classifier(classifier: NodeClassifier, nodes: Sequence[LabelledNode]) -> LabelMetrics:
    graph = graph_of(nodes)
    for one in nodes:  # a label that is unknown could never be right
        classifier.labels.index(one.node.label or "", f"the node {one.node.name!r}")
    numbers = classifier.probabilities(graph).argmax(-1).tolist()
    found = tuple(classifier.labels.name(numbers[one.number]) for one in nodes)
    return LabelMetrics(
        labels=classifier.labels.names,
        wanted=tuple(one.node.label or "" for one in nodes),
        found=found,
        unit="nodes",
        signature=f"nodes:{len(nodes)}|among:{len(graph)}|edges:{len(graph.edges)}",
        outputs=tuple(f"{one.node.name}\t{label}" for one, label in zip(nodes, found, strict=True)),
    )


# --- the task ---


class NodeClassificationTask(Task):
    """Node classification: a label for each node of a graph."""

    settings = NodeClassificationSettings
    task_model = NodeClassifier
    verb = "classify"
    batch_unit = ""
    inputs = InputSpec("the name of a node", "node", "a graph")

    def evaluate(
        self, task_model: NodeClassifier, examples: Sequence[LabelledNode], *, search=None, progress=no_progress
    ):
        return evaluate_node_classifier(task_model, examples)

    def example_input(self, task_model: NodeClassifier) -> TaskInput:
        return TaskInput(training_graph(task_model.settings.data).nodes[0].name)

    def encode(self, task_model: NodeClassifier, given: TaskInput) -> EncodedInput:
        """One node of the graph that was trained on; the sites are those of the whole graph."""
        graph = training_graph(task_model.settings.data)
        inputs = (graph.index(given.text), *task_model.graph_input(graph).model_inputs)
        return EncodedInput(inputs, {"nodes": TokenAxis(tuple(node.name for node in graph.nodes))}, (given.text,))

    def forward(self, model: Any, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        number, *graph = encoded.model_inputs
        return model(*graph)[number, None]

    def option_name(self, task_model: NodeClassifier, option: int) -> str:
        return task_model.labels.name(option)


TASK = NodeClassificationTask()
