"""Node classification: a town's trades by each node alone, by the mean of its neighbours and by attention.

    python benchmarks/graphs.py          writes results/graphs.json, draws docs/pictures/graph-neighbourhood.png

Half of the people are trained on; the step is chosen on a fifth, and every figure is of the rest. Three seeds are three
towns and three first weights. The row "mean, friends alone" is given what the others must learn: which edges count.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from machine import alone, forget_peak, peak_mib, write
from regard.attention import Additive, Recipe, ScaledDot, attend, record_attention
from regard.data.graphs import Graph, fit_featurizer, graph_from_town
from regard.models.graph import GraphConfig, GraphNetwork, Neighbours, edge_weights, undirected_edges
from regard.models.seq2seq import count_parameters
from regard.see import Neighbourhood, draw, save
from regard.world.town import TOOLS, TownWorld

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "graph-neighbourhood.png"
SEEDS = (0, 1, 2)
PEOPLE = 1000
RATE, DECAY, STEPS, EVERY = 3e-3, 0.1, 200, 10
SIZES: dict[str, Any] = {"layers": 2, "model": 64, "heads": 4, "dropout": 0.3}
PLAIN = {name: value for name, value in SIZES.items() if name != "heads"}
CONFIGS = {
    "alone": GraphConfig(kind="alone", **PLAIN),
    "mean": GraphConfig(kind="mean", **PLAIN),
    "attention, dot": GraphConfig(kind="attention", **SIZES),
    "attention, additive": GraphConfig(kind="attention", recipe='score = "Additive(16, hidden=16)"', **SIZES),
    "mean, friends alone": GraphConfig(kind="mean", **PLAIN),
}
LENGTHS = (1000, 4000, 16000, 64000)
LONGEST = {"dot, all pairs": 4000, "additive, all pairs": 1000}  # beyond, all pairs would hold many GiB
SCORES = {"dot": ScaledDot(), "additive": Additive(16, hidden=16)}


# --- accuracy ---


def graph_for(kind: str, seed: int) -> Graph:
    town = TownWorld(seed=seed, people=PEOPLE).town()
    graph = graph_from_town(town)
    kept = tuple(edge for edge in graph.edges if kind != "mean, friends alone" or town.friends(*edge))
    return replace(graph, edges=kept)


@dataclass(frozen=True)
class Fitted:
    """A model, the graph it was trained on, and what it reads."""

    graph: Graph
    gold: Tensor
    features: Tensor
    neighbours: Neighbours
    model: GraphNetwork


def fitted(kind: str, seed: int) -> tuple[Fitted, dict[str, Any]]:
    graph = graph_for(kind, seed)
    features, labels = torch.from_numpy(fit_featurizer(graph).vectors(graph)), graph.labels()
    gold = torch.tensor([labels.index(node.label or "") for node in graph.nodes])
    train, valid, test = (torch.tensor(graph.nodes_in_split(split)) for split in ("train", "valid", "test"))
    neighbours = Neighbours.of(undirected_edges(graph.edges, len(graph)), len(graph))
    torch.manual_seed(seed)
    model = GraphNetwork(CONFIGS[kind], features=features.shape[1], labels=len(labels))
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    best, began = {"valid": -1.0}, time.perf_counter()
    for step in range(1, STEPS + 1):
        optimiser.zero_grad()
        cross_entropy(model.train()(features, neighbours)[train], gold[train]).backward()
        optimiser.step()
        if step % EVERY == 0:
            with torch.no_grad():
                right = (model.eval()(features, neighbours).argmax(1) == gold).float()
            found = {"valid": float(right[valid].mean()), "test": float(right[test].mean()), "step": step}
            best = max(best, found, key=lambda some: some["valid"])
    seconds = time.perf_counter() - began
    row = {"kind": kind, "seed": seed, **best, "seconds": seconds, "parameters": count_parameters(model)}
    return Fitted(graph, gold, features, neighbours, model.eval()), row


def drawn(one: Fitted) -> None:
    """Someone held out whose own tools say nothing of the trade, and whose label is predicted right."""
    with torch.no_grad(), record_attention(one.model) as record:
        logits = one.model(one.features, one.neighbours)
        weights_of_edges = edge_weights(record, one.neighbours)
    for number in one.graph.nodes_in_split("test"):
        node = one.graph.nodes[number]
        silent = not set(TOOLS[node.label or ""]) & set(map(str, node.content))
        if silent and logits[number].argmax() == one.gold[number]:
            hood = Neighbourhood.of(one.graph, weights_of_edges, node.name, "blocks.0")
            heard = f"{node.name}, of whom one hears: {', '.join(map(str, node.content))}"
            PICTURE.parent.mkdir(exist_ok=True)
            save(draw(hood, title=heard), PICTURE)
            return


# --- cost ---


def cost(kind: str, people: int) -> dict[str, Any]:
    """Seconds and peak memory of attention over a town, forwards and backwards."""
    score, way = kind.split(", ")
    edges = undirected_edges(TownWorld(people=people).town().edges, people)
    neighbours = Neighbours.of(edges, people)
    q, k, v = (torch.randn(1, 4, people, 16, requires_grad=True) for _ in range(3))
    recipe = Recipe(score=SCORES[score], pattern=edges)
    forget_peak()
    before, times = peak_mib(), []
    while len(times) < 5 and sum(times) < 5:
        began = time.perf_counter()
        out = neighbours.attend(q, k, v, recipe) if way == "edges" else attend(q, k, v, recipe)
        out.sum().backward()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times)
    return {
        "kind": kind,
        "nodes": people,
        "edges": neighbours.pairs.shape[1],
        "seconds": seconds,
        "mib": peak_mib() - before,
    }


# --- tables ---


def accuracies(rows: list[dict[str, Any]]) -> Table:
    table = Table("", "test accuracy", "lowest – highest", "valid", "seconds", "parameters")
    for kind in CONFIGS:
        mine = [row for row in rows if row["kind"] == kind]
        test = [100 * row["test"] for row in mine]
        valid, seconds = (statistics.fmean(row[name] for row in mine) for name in ("valid", "seconds"))
        spread = f"{min(test):.1f} – {max(test):.1f}"
        cells = f"{statistics.fmean(test):.1f}", spread, f"{100 * valid:.1f}", f"{seconds:.1f}"
        table.add_row(kind, *cells, f"{mine[0]['parameters']:,}")
    return table


def costs(rows: list[dict[str, Any]]) -> Table:
    table = Table("forwards and backwards", *(f"{people:,} nodes" for people in LENGTHS))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = {row["nodes"]: row for row in rows if row["kind"] == kind}
        cells = (f"{mine[n]['seconds']:.3f} s\n{mine[n]['mib']:.0f} MiB" if n in mine else "–" for n in LENGTHS)
        table.add_row(kind, *cells)
    return table


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    jobs = [(kind, seed) for seed in SEEDS for kind in CONFIGS]
    rows = []
    for job in track(jobs, description="learning trades"):
        one, row = fitted(*job)
        rows.append(row)
        if job == ("attention, dot", SEEDS[0]):
            drawn(one)
    sizes = [
        (kind, people)
        for kind in ("dot, edges", "dot, all pairs", "additive, edges", "additive, all pairs")
        for people in LENGTHS
        if people <= LONGEST.get(kind, people)
    ]
    spent = [alone(cost, *job) for job in track(sizes, description="counting costs")]
    console = Console(width=120)
    console.print(accuracies(rows))
    console.print(costs(spent))
    town = TownWorld(people=PEOPLE)
    settings = {"town": vars(town), "steps": STEPS, "rate": RATE, "decay": DECAY, **SIZES}
    print(write("graphs", "python benchmarks/graphs.py", rows, settings=settings, cost=spent))


if __name__ == "__main__":
    main()
