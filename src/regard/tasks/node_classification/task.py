"""Node classification: the loss over labelled nodes, the training job, and the NodeClassifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.data.graphs import Graph, NodeFeaturizer, fit_featurizer, load_featurizer
from regard.data.labelled import Labels
from regard.layers.graph_attention import Neighbours, undirected_edges
from regard.models.graph import EdgeWeights, GraphNetwork
from regard.tasks.node_classification.data import LabelledNode, NodeClassificationSettings
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import TrainingJob

# --- reading ---


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
    """A graph, and the nodes whose labels are asked for; every step of training is the same."""

    graph: GraphInput
    nodes: Int[Tensor, " k"]
    labels: Int[Tensor, " k"]

    def steps(self, epoch: int) -> int:
        return 1

    def at(self, epoch: int, index: int) -> list["NodeBatch"]:
        return [self]


def node_loss(smoothing: float):
    """Cross-entropy summed over the nodes that are asked for; the others are only seen."""

    def loss(model: nn.Module, asked: NodeBatch) -> tuple[Tensor, int]:
        logits = model(*asked.graph.model_inputs)[asked.nodes].float()
        return cross_entropy(logits, asked.labels, reduction="sum", label_smoothing=smoothing), len(asked.labels)

    return loss


def validation(model: nn.Module, asked: NodeBatch) -> dict[str, float]:
    """The mean negative log-probability of a held-out node's label, and the share of nodes that are right."""
    logits = model(*asked.graph.model_inputs)[asked.nodes].float()
    right = (logits.argmax(-1) == asked.labels).float().mean()
    return {"loss": cross_entropy(logits, asked.labels).item(), "accuracy": right.item()}


@dataclass(frozen=True, eq=False)
class NodeClassifier(PretrainedModel):
    """A model with what reads its nodes and the labels it knows."""

    model: GraphNetwork
    reader: NodeFeaturizer
    labels: Labels
    settings: NodeClassificationSettings

    @staticmethod
    def from_examples(nodes: Sequence[LabelledNode], settings: NodeClassificationSettings) -> "NodeClassifier":
        """What reads nodes, and the labels, from their whole graph; a model with new weights."""
        graph = graph_of(nodes)
        if len(labels := graph.labels()) < 2:
            raise ValueError(f"all nodes whose label is known are {labels.names[0]!r}; give some of another label")
        return NodeClassifier.of(fit_featurizer(graph), labels, settings)

    @staticmethod
    def of(reader: NodeFeaturizer, labels: Labels, settings: NodeClassificationSettings) -> "NodeClassifier":
        torch.manual_seed(settings.train.seed)
        model = GraphNetwork(settings.model, features=reader.width, labels=len(labels))
        return NodeClassifier(model, reader, labels, settings)

    def graph_input(self, graph: Graph) -> GraphInput:
        features = torch.from_numpy(self.reader.vectors(graph))
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
        return TrainingJob(
            self.model,
            self.node_batch(nodes),
            node_loss(train.label_smoothing),
            lambda model: validation(model, held),
            train,
            self.settings.model.model,
            self.describe,
        )

    def probabilities(self, graph: Graph) -> Float[Tensor, "n labels"]:
        """Of every label, for every node of any graph whose nodes are described in the same way."""
        with torch.inference_mode():
            return self.model(*self.graph_input(graph).model_inputs).double().softmax(-1).float().cpu()

    def probabilities_with_attention(self, graph: Graph) -> tuple[Float[Tensor, "n labels"], EdgeWeights]:
        """The same, and the weight of every edge."""
        with torch.inference_mode():
            logits, looked = self.model.look(*self.graph_input(graph).model_inputs)
        weights = {name: one.cpu() for name, one in looked.weights.items()}
        return logits.double().softmax(-1).float().cpu(), EdgeWeights(looked.pairs.cpu(), weights)

    @property
    def parts(self) -> dict[str, NodeFeaturizer | Labels]:
        return {"reader": self.reader, "labels": self.labels}

    @classmethod
    def from_description(cls, folder):
        settings = load_settings(folder, NodeClassificationSettings)
        return NodeClassifier.of(load_featurizer(folder / "reader.json"), Labels.load(folder / "labels.json"), settings)


def graph_of(nodes: Sequence[LabelledNode]) -> Graph:
    graph = nodes[0].graph
    assert all(one.graph is graph for one in nodes), "nodes of a split are in one graph"
    return graph
