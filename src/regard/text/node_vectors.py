"""A graph's nodes in, one vector for each out: the words they hold, or their numbers set straight.

reader = reader_of(graph)          from all nodes; labels are not looked at
reader.vectors(graph)              nodes x width
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.text.graphs import Graph


class Reader(ABC):
    """Abstract: how a node's content becomes a vector."""

    @property
    @abstractmethod
    def width(self) -> int: ...

    @abstractmethod
    def vectors(self, graph: Graph) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Bag(Reader):
    """How often each of these words occurs, as a vector of length 1; other words, and their order, are lost."""

    words: tuple[str, ...]

    @property
    def width(self):
        return len(self.words)

    def vectors(self, graph):
        if graph.numeric:
            raise ValueError(f"the nodes are described by numbers, not by words such as {', '.join(self.words[:3])}")
        columns = {word: column for column, word in enumerate(self.words)}
        counts = np.zeros((len(graph), self.width), dtype=np.float32)
        for row, node in enumerate(graph.nodes):
            for word in node.content:
                if word in columns:
                    counts[row, columns[word]] += 1
        lengths = np.linalg.norm(counts, axis=1, keepdims=True)
        return (counts / np.where(lengths == 0, 1, lengths)).astype(np.float32)


@dataclass(frozen=True)
class Standard(Reader):
    """Each number less its mean, over its spread; a number that never changes becomes 0."""

    means: tuple[float, ...]
    spreads: tuple[float, ...]

    @property
    def width(self):
        return len(self.means)

    def vectors(self, graph):
        if not graph.numeric or len(graph.nodes[0].content) != self.width:
            raise ValueError(f"nodes described by {self.width} numbers are wanted, not {graph.nodes[0].content!r}")
        numbers = np.array([node.content for node in graph.nodes])
        spreads = np.array(self.spreads)
        return ((numbers - np.array(self.means)) / np.where(spreads == 0, 1, spreads)).astype(np.float32)


def reader_of(graph: Graph, *, most: int = 10_000) -> Reader:
    """What reads this graph's nodes: their numbers, or up to so many words, the most frequent ones."""
    if graph.numeric:
        numbers = np.array([node.content for node in graph.nodes])
        return Standard(tuple(numbers.mean(0).tolist()), tuple(numbers.std(0).tolist()))
    counted = Counter(word for node in graph.nodes for word in node.content)
    if not counted:
        raise ValueError("no node holds a word, so there is nothing to tell them apart by; give them texts")
    ranked = sorted(counted, key=lambda word: (-counted[word], str(word)))
    return Bag(tuple(sorted(map(str, ranked[:most]))))
