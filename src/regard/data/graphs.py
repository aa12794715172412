"""Graphs: nodes with features and labels, edges and splits, in .tsv files; and a vector of features for each node.

graph = read_graph("nodes.tsv", "edges.tsv.gz")
featurizer = fit_featurizer(graph)   a bag of words or standardised numbers, from all nodes; labels are not used
featurizer.vectors(graph)            nodes x width
featurizer.save("nodes.json")        load_featurizer reads it back

nodes.tsv begins with a header that names its columns, in any order:

    name   what edges call the node
    label  its class; _ where that is not known
    text   its words; or instead
    features  its numbers with spaces between them, equally many for each node
    split  may be left out: train, valid or test, and _ for a node in none of them

Every line of edges.tsv is two names, a tab between them. Edges are undirected; duplicates count once.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.files import (
    open_atomic,
    open_compressed,
    read_lines,
    require_file,
    require_small_file,
    write_text_atomic,
)
from regard.data.labelled import Labels
from regard.world.lexicon import SPLITS, Split
from regard.world.splitmix import hash_text
from regard.world.town import Town

UNKNOWN = "_"
NEEDED, CONTENTS, OPTIONAL = ("name", "label"), ("text", "features"), ("split",)
NodeWords = tuple[str, ...]
NodeNumbers = tuple[float, ...]


@dataclass(frozen=True)
class GraphNode:
    """A node with its features, label and split; a node in a split has a label."""

    name: str
    content: NodeWords | NodeNumbers
    label: str | None = None
    split: Split | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes, and edges as sorted pairs of their indices, the smaller first: see `normalize_edges`."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self):
        if not self.nodes:
            raise ValueError("a graph without nodes; it has at least one")
        if twice := [name for name, times in Counter(node.name for node in self.nodes).items() if times > 1]:
            raise ValueError(f"two nodes are called {twice[0]!r}; give each a name of its own")
        for node in self.nodes:
            if node.split is not None and node.label is None:
                raise ValueError(f"{node.name!r} is for {node.split}, but its label is not known; take it out of that")
            if content_kind(node) != content_kind(self.nodes[0]):
                raise ValueError(
                    f"{node.name!r} has {content_kind(node)}, {self.nodes[0].name!r} has "
                    f"{content_kind(self.nodes[0])}; give all nodes the same kind of features"
                )
        if self.edges != normalize_edges(self.edges):
            raise ValueError(
                "edges are pairs of different nodes, the smaller first, sorted, each once; use normalize_edges"
            )
        if self.edges and not 0 <= min(chain(*self.edges)) <= max(chain(*self.edges)) < len(self):
            raise ValueError(f"edges join nodes 0 to {len(self) - 1}, not {min(self.edges)} or {max(self.edges)}")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def numeric(self) -> bool:
        return "numbers" in content_kind(self.nodes[0])

    def index(self, name: str) -> int:
        """The index of the node with this name."""
        for number, node in enumerate(self.nodes):
            if node.name == name:
                return number
        raise ValueError(f"no node is called {name!r}; the first are {', '.join(n.name for n in self.nodes[:5])}")

    def labels(self) -> Labels:
        return Labels.of(node.label for node in self.nodes if node.label is not None)

    def nodes_in_split(self, split: Split) -> tuple[int, ...]:
        """The indices of the nodes in a split."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        return tuple(number for number, node in enumerate(self.nodes) if node.split == split)


def content_kind(node: GraphNode) -> str:
    if node.content and not isinstance(node.content[0], str):
        return f"{len(node.content)} numbers"
    return "words"


def normalize_edges(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Each pair once, the smaller index first; self-loops are dropped, since a node attends to itself in any case."""
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))


def assign_splits(graph: Graph, *, valid: int = 20, test: int = 20) -> Graph:
    """A split for every labelled node by the hash of its name; `valid` and `test` are percentages."""
    if valid < 0 or test < 0 or valid + test >= 100:
        raise ValueError(f"valid = {valid} and test = {test} of a hundred leave nothing to train on")

    def split(node: GraphNode) -> Split | None:
        percent = hash_text(node.name) % 100
        chosen: Split = "valid" if percent < valid else "test" if percent < valid + test else "train"
        return None if node.label is None else chosen

    return replace(graph, nodes=tuple(replace(node, split=split(node)) for node in graph.nodes))


def graph_from_town(town: Town) -> Graph:
    """People are nodes, their traits the features and their trade the label."""
    nodes = (GraphNode(person.name, person.traits, person.trade, person.split) for person in town.people)
    return Graph(tuple(nodes), normalize_edges(town.edges))


# --- reading ---


def read_graph(nodes: str | Path, edges: str | Path) -> Graph:
    """The graph of two files, each plain, .gz or .xz by its name. Errors name file and line."""
    graph_nodes = tuple(_nodes(require_file(nodes)))
    numbers = {node.name: number for number, node in enumerate(graph_nodes)}
    return Graph(graph_nodes, normalize_edges(_edges(require_file(edges), numbers, require_file(nodes))))


def _nodes(path: Path) -> Iterator[GraphNode]:
    columns, lines, width = (), {}, None
    for number, line in enumerate(read_lines(path), 1):
        where, cells = f"{path}:{number}", [cell.strip() for cell in line.split("\t")]
        if number == 1:
            columns = _columns(cells, where)
            continue
        if len(cells) != len(columns):
            raise ValueError(
                f"{where}: {_describe_columns(cells)}; the header names {len(columns)}: {', '.join(columns)}"
            )
        node = _node(dict(zip(columns, cells, strict=True)), where)
        if node.name in lines:
            raise ValueError(f"{where}: the node {node.name!r} was described on line {lines[node.name]}; remove one")
        if "features" in columns:
            width = width or len(node.content)
            if len(node.content) != width:
                raise ValueError(f"{where}: {len(node.content)} features; the nodes before have {width}")
        lines[node.name] = number
        yield node
    if not lines:
        raise ValueError(
            f"{path}: no nodes; it needs a header such as name, tab, label, tab, text, and a line per node"
        )


def _columns(cells: list[str], where: str) -> tuple[str, ...]:
    known = (*NEEDED, *CONTENTS, *OPTIONAL)
    remedy = f"the first line names the columns: {', '.join(NEEDED)}, text or features, and optionally split"
    for cell in cells:
        if cell not in known or cells.count(cell) > 1:
            raise ValueError(f"{where}: {cell!r} {'occurs twice' if cell in known else 'is no column'}; {remedy}")
    if missing := [name for name in NEEDED if name not in cells]:
        raise ValueError(f"{where}: no column is called {missing[0]!r}; {remedy}")
    if len([name for name in CONTENTS if name in cells]) != 1:
        raise ValueError(f"{where}: a node is described by text or by features, one of the two; {remedy}")
    return tuple(cells)


def _node(row: dict[str, str], where: str) -> GraphNode:
    for name in NEEDED:
        if not row[name]:
            remedy = f"; write {UNKNOWN} where it is not known" if name == "label" else "; give the node one"
            raise ValueError(f"{where}: the {name} is empty{remedy}")
    label, split = (None if (cell := row.get(name, UNKNOWN)) == UNKNOWN else cell for name in ("label", "split"))
    if split is not None and split not in SPLITS:
        raise ValueError(f"{where}: a split is one of {', '.join(SPLITS)} or {UNKNOWN}, not {split!r}")
    if split is not None and label is None:
        raise ValueError(f"{where}: a node for {split} whose label is not known; write {UNKNOWN} for its split")
    content = tuple(row["text"].split()) if "text" in row else _numbers(row["features"], where)
    return GraphNode(row["name"], content, label, split)


def _numbers(text: str, where: str) -> NodeNumbers:
    try:
        numbers = tuple(float(number) for number in text.split())
    except ValueError as error:
        raise ValueError(f"{where}: features are numbers with spaces between them ({error})") from None
    if not numbers or not all(map(isfinite, numbers)):
        raise ValueError(f"{where}: features must be finite numbers, at least one, not {text!r}")
    return numbers


def _edges(path: Path, numbers: dict[str, int], nodes: Path) -> Iterator[tuple[int, int]]:
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2:
            raise ValueError(f"{path}:{number}: {_describe_columns(cells)}; an edge is name, tab, name")
        for cell in cells:
            if cell not in numbers:
                raise ValueError(f"{path}:{number}: no node is called {cell!r}; describe it in {nodes}")
        yield numbers[cells[0]], numbers[cells[1]]
    if not number:
        raise ValueError(f"{path}: no edges; it needs name, tab, name on every line")


def _describe_columns(cells: list[str]) -> str:
    return "an empty line" if cells == [""] else "1 column" if len(cells) == 1 else f"{len(cells)} columns"


# --- writing ---


def write_graph(graph: Graph, nodes: str | Path, edges: str | Path) -> None:
    """Write a graph that `read_graph` reads back. On any error the old files stay as they were."""
    if not graph.edges:
        raise ValueError("a graph without edges is a table; write it as one")
    content = "features" if graph.numeric else "text"
    node_rows = ((n.name, n.label or UNKNOWN, n.split or UNKNOWN, " ".join(map(str, n.content))) for n in graph.nodes)
    edge_rows = (tuple(graph.nodes[end].name for end in edge) for edge in graph.edges)
    _refuse_unwritable(graph)
    with ExitStack() as stack:
        for path, rows in (
            (Path(nodes), chain([("name", "label", "split", content)], node_rows)),
            (Path(edges), edge_rows),
        ):
            file = stack.enter_context(open_compressed(stack.enter_context(open_atomic(path)), path.suffix))
            file.writelines("\t".join(row).encode() + b"\n" for row in rows)


def _refuse_unwritable(graph: Graph) -> None:
    for node in graph.nodes:
        for text in (node.name, *([] if node.label is None else [node.label])):
            if not text.strip() or text != text.strip() or set(text) & set("\t\r\n") or text == UNKNOWN:
                raise ValueError(
                    f"{text!r} cannot be written to a file of nodes: no tabs, line ends, outer spaces, or _ alone"
                )
        if not graph.numeric and (odd := [word for word in node.content if str(word).split() != [word]]):
            raise ValueError(f"{odd[0]!r} of {node.name!r} is not one word; remove its spaces")


# --- node features ---


FORMAT = "regard node reader 1"


class NodeFeaturizer(ABC):
    """Abstract: the feature vectors of nodes."""

    @property
    @abstractmethod
    def width(self) -> int: ...

    @abstractmethod
    def vectors(self, graph: Graph) -> NDArray[np.float32]: ...

    def save(self, path: str | Path) -> None:
        write_text_atomic(path, json.dumps({"format": FORMAT, **vars(self)}, ensure_ascii=False, indent=1) + "\n")


@dataclass(frozen=True)
class BagOfWords(NodeFeaturizer):
    """Word counts, L2-normalised; other words, and word order, are ignored."""

    words: tuple[str, ...]

    @property
    def width(self):
        return len(self.words)

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
