"""Node features: a bag of words or standardised numbers, one vector per node.

featurizer = fit_featurizer(graph)   from all nodes; labels are not used
featurizer.vectors(graph)            nodes x width
featurizer.save("nodes.json")        load_featurizer reads it back
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.files import require_small_file, write_text_atomic
from regard.data.graphs.graph import Graph

FORMAT = "regard node reader 1"


class NodeFeaturizer(ABC):
    """Abstract: the feature vectors of nodes."""

    @property
    @abstractmethod
    def width(self) -> int: ...

    @abstractmethod
    def vectors(self, graph: Graph) -> NDArray[np.float32]: ...

    @abstractmethod
    def to_dict(self) -> dict[str, tuple[str, ...] | tuple[float, ...]]:
        """Its parameters, as saved."""

    def save(self, path: str | Path) -> None:
        write_text_atomic(path, json.dumps({"format": FORMAT, **self.to_dict()}, ensure_ascii=False, indent=1) + "\n")


@dataclass(frozen=True)
class BagOfWords(NodeFeaturizer):
    """Word counts, L2-normalised; other words, and word order, are ignored."""

    words: tuple[str, ...]

    @property
    def width(self):
        return len(self.words)

    def to_dict(self):
        return asdict(self)

    def vectors(self, graph):
        if graph.numeric:
            raise ValueError(f"the nodes have numbers, not words such as {', '.join(self.words[:3])}")
        columns = {word: column for column, word in enumerate(self.words)}
        counts = np.zeros((len(graph), self.width), dtype=np.float32)
        for row, node in enumerate(graph.nodes):
            for word in node.content:
                if word in columns:
                    counts[row, columns[word]] += 1
        lengths = np.linalg.norm(counts, axis=1, keepdims=True)
        return (counts / np.where(lengths == 0, 1, lengths)).astype(np.float32)


@dataclass(frozen=True)
class StandardScaler(NodeFeaturizer):
    """(number - mean) / standard deviation; a constant number becomes 0."""

    means: tuple[float, ...]
    spreads: tuple[float, ...]

    @property
    def width(self):
        return len(self.means)

    def to_dict(self):
        return asdict(self)

    def vectors(self, graph):
        if not graph.numeric or len(graph.nodes[0].content) != self.width:
            raise ValueError(f"nodes need {self.width} numbers, not {graph.nodes[0].content!r}")
        numbers = np.array([node.content for node in graph.nodes])
        spreads = np.array(self.spreads)
        return ((numbers - np.array(self.means)) / np.where(spreads == 0, 1, spreads)).astype(np.float32)


def fit_featurizer(graph: Graph, *, most: int = 10_000) -> NodeFeaturizer:
    """Fit the features to this graph: its numbers, or up to `most` words, the most frequent ones."""
    if graph.numeric:
        numbers = np.array([node.content for node in graph.nodes])
        return StandardScaler(tuple(numbers.mean(0).tolist()), tuple(numbers.std(0).tolist()))
    counts = Counter(word for node in graph.nodes for word in node.content)
    if not counts:
        raise ValueError("no node has a word, so they cannot be told apart; give them texts")
    ranked = sorted(counts, key=lambda word: (-counts[word], str(word)))
    return BagOfWords(tuple(sorted(map(str, ranked[:most]))))


def load_featurizer(path: str | Path) -> NodeFeaturizer:
    """Load what `save` wrote."""
    path = require_small_file(path)
    try:
        saved = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no node features at all ({error}); save it again") from None
    match saved:
        case {"format": str(form), "words": [*words]} if form == FORMAT and all_are(words, str):
            return BagOfWords(tuple(words))
        case {"format": str(form), "means": [*means], "spreads": [*spreads]} if (
            form == FORMAT and len(means) == len(spreads) and all_are(means + spreads, float)
        ):
            return StandardScaler(tuple(means), tuple(spreads))
        case _:
            raise ValueError(f"{path}: not node features, whose format is {FORMAT!r}; save it again")


def all_are(values: list[object], kind: type) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)
