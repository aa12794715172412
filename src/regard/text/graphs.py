"""A file of nodes and a file of edges in, a graph out, and back.

graph = read_graph("nodes.tsv", "edges.tsv.gz")

nodes.tsv begins with a heading that names its columns, in any order:

    name   what edges call the node
    label  what it is; _ where that is not known
    text   its words; or instead
    features  its numbers with blanks between them, equally many for each node
    split  may be left out: train, valid or test, and _ for a node in none of them

Every line of edges.tsv is two names, a tab between them. Both ends see each other; said twice is said once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite
from pathlib import Path

from regard.text.files import existing, read_lines, whole
from regard.text.labelled import Labels
from regard.text.writing import packed
from regard.world.chance import hashed
from regard.world.graphs import Town
from regard.world.lexicon import SPLITS, Split

UNKNOWN = "_"
NEEDED, CONTENTS, OPTIONAL = ("name", "label"), ("text", "features"), ("split",)
Words = tuple[str, ...]
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Node:
    """What is known of a node by itself. Of a node in a split the label is known."""

    name: str
    content: Words | Numbers
    label: str | None = None
    split: Split | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes, and pairs of their numbers, the smaller first and in order: see `tidied`."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self):
        if not self.nodes:
            raise ValueError("a graph without nodes; it has at least one")
        if twice := [name for name, times in Counter(node.name for node in self.nodes).items() if times > 1]:
            raise ValueError(f"two nodes are called {twice[0]!r}; give each a name of its own")
        for node in self.nodes:
            if node.split is not None and node.label is None:
                raise ValueError(f"{node.name!r} is for {node.split}, but its label is not known; take it out of that")
            if kind_of(node) != kind_of(self.nodes[0]):
                raise ValueError(
                    f"{node.name!r} has {kind_of(node)}, {self.nodes[0].name!r} has {kind_of(self.nodes[0])}; "
                    "describe all nodes in one way"
                )
        if self.edges != tidied(self.edges):
            raise ValueError("edges are pairs of different nodes, the smaller first, sorted, each once; use tidied")
        if self.edges and not 0 <= min(chain(*self.edges)) <= max(chain(*self.edges)) < len(self):
            raise ValueError(f"edges join nodes 0 to {len(self) - 1}, not {min(self.edges)} or {max(self.edges)}")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def numeric(self) -> bool:
        return "numbers" in kind_of(self.nodes[0])

    def index(self, name: str) -> int:
        """The number of the node with this name."""
        for number, node in enumerate(self.nodes):
            if node.name == name:
                return number
        raise ValueError(f"no node is called {name!r}; the first are {', '.join(n.name for n in self.nodes[:5])}")

    def labels(self) -> Labels:
        return Labels.of(node.label for node in self.nodes if node.label is not None)

    def among(self, split: Split) -> tuple[int, ...]:
        """The numbers of the nodes in a split."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        return tuple(number for number, node in enumerate(self.nodes) if node.split == split)


def kind_of(node: Node) -> str:
    if node.content and not isinstance(node.content[0], str):
        return f"{len(node.content)} numbers"
    return "words"


def tidied(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Each pair once, the smaller number first; a node's edge to itself goes, for it sees itself in any case."""
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))


def divided(graph: Graph, *, valid: int = 20, test: int = 20) -> Graph:
    """Every node whose label is known in a split, so many of a hundred in valid and test; by its name alone."""
    if valid < 0 or test < 0 or valid + test >= 100:
        raise ValueError(f"valid = {valid} and test = {test} of a hundred leave nothing to train on")

    def split(node: Node) -> Split | None:
        drawn = hashed(node.name) % 100
        known: Split = "valid" if drawn < valid else "test" if drawn < valid + test else "train"
        return None if node.label is None else known

    return replace(graph, nodes=tuple(replace(node, split=split(node)) for node in graph.nodes))


def of_town(town: Town) -> Graph:
    """People are nodes; what one hears of them is their text, and their trade the label."""
    nodes = (Node(person.name, person.traits, person.trade, person.split) for person in town.people)
    return Graph(tuple(nodes), tidied(town.edges))


# --- from files ---


def read_graph(nodes: str | Path, edges: str | Path) -> Graph:
    """The graph of two files, each plain, .gz or .xz by its name. What is wrong is named by file and line."""
    found = tuple(_nodes(existing(nodes)))
    numbers = {node.name: number for number, node in enumerate(found)}
    return Graph(found, tidied(_edges(existing(edges), numbers, existing(nodes))))


def _nodes(path: Path) -> Iterator[Node]:
    columns, lines, width = (), {}, None
    for number, line in enumerate(read_lines(path), 1):
        where, cells = f"{path}:{number}", [cell.strip() for cell in line.split("\t")]
        if number == 1:
            columns = _columns(cells, where)
            continue
        if len(cells) != len(columns):
            raise ValueError(f"{where}: {_counted(cells)}; the heading names {len(columns)}: {', '.join(columns)}")
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
        raise ValueError(f"{path}: no nodes; it wants a heading such as name, tab, label, tab, text, and a line each")


def _columns(cells: list[str], where: str) -> tuple[str, ...]:
    known = (*NEEDED, *CONTENTS, *OPTIONAL)
    said = f"the first line names the columns: {', '.join(NEEDED)}, text or features, and split if you like"
    for cell in cells:
        if cell not in known or cells.count(cell) > 1:
            raise ValueError(f"{where}: {cell!r} {'stands twice' if cell in known else 'is no column'}; {said}")
    if missing := [name for name in NEEDED if name not in cells]:
        raise ValueError(f"{where}: no column is called {missing[0]!r}; {said}")
    if len([name for name in CONTENTS if name in cells]) != 1:
        raise ValueError(f"{where}: a node is described by text or by features, one of the two; {said}")
    return tuple(cells)


def _node(held: dict[str, str], where: str) -> Node:
    for name in NEEDED:
        if not held[name]:
            remedy = f"; write {UNKNOWN} where it is not known" if name == "label" else "; give the node one"
            raise ValueError(f"{where}: the {name} is empty{remedy}")
    label, split = (None if (cell := held.get(name, UNKNOWN)) == UNKNOWN else cell for name in ("label", "split"))
    if split is not None and split not in SPLITS:
        raise ValueError(f"{where}: a split is one of {', '.join(SPLITS)} or {UNKNOWN}, not {split!r}")
    if split is not None and label is None:
        raise ValueError(f"{where}: a node for {split} whose label is not known; write {UNKNOWN} for its split")
    content = tuple(held["text"].split()) if "text" in held else _numbers(held["features"], where)
    return Node(held["name"], content, label, split)


def _numbers(text: str, where: str) -> Numbers:
    try:
        numbers = tuple(float(number) for number in text.split())
    except ValueError as error:
        raise ValueError(f"{where}: features are numbers with blanks between them ({error})") from None
    if not numbers or not all(map(isfinite, numbers)):
        raise ValueError(f"{where}: features must be finite numbers, at least one, not {text!r}")
    return numbers


def _edges(path: Path, numbers: dict[str, int], nodes: Path) -> Iterator[tuple[int, int]]:
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2:
            raise ValueError(f"{path}:{number}: {_counted(cells)}; an edge is name, tab, name")
        for cell in cells:
            if cell not in numbers:
                raise ValueError(f"{path}:{number}: no node is called {cell!r}; describe it in {nodes}")
        yield numbers[cells[0]], numbers[cells[1]]
    if not number:
        raise ValueError(f"{path}: no edges; it wants name, tab, name on every line")


def _counted(cells: list[str]) -> str:
    return "an empty line" if cells == [""] else "1 column" if len(cells) == 1 else f"{len(cells)} columns"


# --- to files ---


def write_graph(graph: Graph, nodes: str | Path, edges: str | Path) -> None:
    """`read_graph` gives back the same graph. If anything goes wrong, the files hold what they held before."""
    if not graph.edges:
        raise ValueError("a graph without edges is a table; write it as one")
    content = "features" if graph.numeric else "text"
    described = ((n.name, n.label or UNKNOWN, n.split or UNKNOWN, " ".join(map(str, n.content))) for n in graph.nodes)
    joined = (tuple(graph.nodes[end].name for end in edge) for edge in graph.edges)
    _refuse_unwritable(graph)
    with ExitStack() as stack:
        for path, rows in (
            (Path(nodes), chain([("name", "label", "split", content)], described)),
            (Path(edges), joined),
        ):
            file = stack.enter_context(packed(stack.enter_context(whole(path)), path.suffix))
            file.writelines("\t".join(row).encode() + b"\n" for row in rows)


def _refuse_unwritable(graph: Graph) -> None:
    for node in graph.nodes:
        for text in (node.name, *([] if node.label is None else [node.label])):
            if not text.strip() or text != text.strip() or set(text) & set("\t\r\n") or text == UNKNOWN:
                raise ValueError(
                    f"{text!r} cannot stand in a file of nodes: no tabs, line ends, outer blanks, or _ alone"
                )
        if not graph.numeric and (odd := [word for word in node.content if str(word).split() != [word]]):
            raise ValueError(f"{odd[0]!r} of {node.name!r} is not one word; leave out its blanks")
