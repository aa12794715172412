"""A graph's nodes in, one vector for each out: the words they hold, or their numbers set straight.

reader = reader_of(graph)          from all nodes; labels are not looked at
reader.vectors(graph)              nodes x width
reader.save("nodes.json")          load_reader gives the same one back
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.text.files import small, write_whole
from regard.text.graphs import Graph

FORMAT = "regard node reader 1"


class Reader(ABC):
    """Abstract: how a node's content becomes a vector."""

    @property
    @abstractmethod
    def width(self) -> int: ...

    @abstractmethod
    def vectors(self, graph: Graph) -> NDArray[np.float32]: ...

    @abstractmethod
    def held(self) -> dict[str, tuple[str, ...] | tuple[float, ...]]:
        """All it knows, as a file holds it."""

    def save(self, path: str | Path) -> None:
        write_whole(path, json.dumps({"format": FORMAT, **self.held()}, ensure_ascii=False, indent=1) + "\n")


@dataclass(frozen=True)
class Bag(Reader):
    """How often each of these words occurs, as a vector of length 1; other words, and their order, are lost."""

    words: tuple[str, ...]

    @property
    def width(self):
        return len(self.words)

    def held(self):
        return asdict(self)

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

    def held(self):
        return asdict(self)

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


def load_reader(path: str | Path) -> Reader:
    """What `save` wrote."""
    path = small(path)
    try:
        held = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no reader of nodes at all ({error}); save it again") from None
    match held:
        case {"format": str(said), "words": [*words]} if said == FORMAT and all_are(words, str):
            return Bag(tuple(words))
        case {"format": str(said), "means": [*means], "spreads": [*spreads]} if (
            said == FORMAT and len(means) == len(spreads) and all_are(means + spreads, float)
        ):
            return Standard(tuple(means), tuple(spreads))
        case _:
            raise ValueError(f"{path}: not a reader of nodes, whose format is {FORMAT!r}; save it again")


def all_are(values: list[object], kind: type) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)
