"""Attention over a graph: the definition is the pattern Edges; numbering and far components change nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from regard.attention import Additive, Cosine, Edges, Recipe, ScaledDot, Sparsemax, attend, steps
from regard.data.graphs import fit_featurizer, graph_from_town
from regard.models.graph import (
    GRAPH_KINDS,
    EdgeWeights,
    GraphConfig,
    GraphNetwork,
    Neighbours,
    edge_weights,
    graph_recipe,
    undirected_edges,
)
from regard.models.safetensors_io import load_weights, saveable_tensors, write_weights
from regard.models.seq2seq import count_parameters
from regard.world.town import TownWorld
from tests.narrowing import not_none
from tests.recorded import call_recorded

EXACT: Any = {"rtol": 0.0, "atol": 1e-12}
NODES, FEATURES, LABELS = 11, 5, 3
# node 3 knows many, node 10 nobody, 7 and 8 stand apart from the others
PAIRS = [(0, 1), (0, 2), (1, 2), (3, 0), (3, 1), (3, 2), (3, 4), (3, 5), (3, 6), (3, 9), (7, 8)]
ADDITIVE = 'score = "Additive(4, hidden=3)"'


def config(kind, **changes) -> GraphConfig:
    return GraphConfig(**{"kind": kind, "layers": 2, "model": 8, "hidden": 13, "dropout": 0.0} | changes)


EVERY = {
    "alone": config("alone"),
    "mean": config("mean"),
    "dot": config("attention", heads=2),
    "additive": config("attention", heads=2, recipe=ADDITIVE),
    "sparsemax": config("attention", heads=2, recipe='normaliser = "Sparsemax()"', norm="post"),
}


@pytest.fixture(params=EVERY)
def model(request) -> GraphNetwork:
    torch.manual_seed(7)
    return GraphNetwork(EVERY[request.param], features=FEATURES, labels=LABELS).double().eval()


def around(pairs, nodes=NODES) -> Neighbours:
    return Neighbours.of(undirected_edges(pairs, nodes), nodes)


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(nodes=NODES) -> torch.Tensor:
    return torch.randn(nodes, FEATURES, generator=chance(3), dtype=torch.float64)


# --- on paper ---


def test_three_nodes_on_paper():
    """Node 0 sees 0 and 1 with scores log 1 and log 3: weights ¼ and ¾ of the values 4 and 8. Node 2 sees itself."""
    q = torch.tensor([1.0, 0.0, 5.0]).view(1, 1, 3, 1)
    k = torch.tensor([1.0, 3.0, 9.0]).log().view(1, 1, 3, 1)
    v = torch.tensor([4.0, 8.0, 100.0]).view(1, 1, 3, 1)
    neighbours = around([(0, 1)], 3)
    out, weights = neighbours.attend(q, k, v, Recipe()), neighbours.edge_weights(q, k, v, Recipe())
    assert neighbours.pairs.tolist() == [[0, 0, 1, 1, 2], [0, 1, 0, 1, 2]]
    assert_close(weights, torch.tensor([[0.25, 0.75, 0.5, 0.5, 1.0]]))
    assert_close(out.flatten(), torch.tensor([7.0, 6.0, 100.0]))


def test_the_mean_is_the_mean():
    """A node of degree 2 gives itself and both neighbours a third, whatever they are."""
    model = GraphNetwork(config("mean", layers=1), features=FEATURES, labels=LABELS)
    neighbours = around([(0, 1), (0, 2)], 3)
    found = edge_weights(call_recorded(model, features(3).float(), neighbours)[1], neighbours)
    assert_close(found.weights["blocks.0"], torch.tensor([[1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2]]))


def test_what_is_joined_is_joined_both_ways_and_sees_itself():
    assert undirected_edges([(0, 2)], 3) == Edges(torch.tensor([[0, 2, 0, 1, 2], [2, 0, 0, 1, 2]]))
    assert undirected_edges([], 2) == Edges(torch.tensor([[0, 1], [0, 1]]))


# --- the definition ---


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(score=Additive(7, hidden=5).double()),
        Recipe(score=Cosine(3.0), normaliser=Sparsemax()),
    ],
    ids=["dot", "additive", "cosine sparsemax"],
)
def test_gathered_neighbours_equal_the_pattern_edges_forwards_and_backwards(recipe):
    edges = undirected_edges(PAIRS, NODES)
    q, k, v = (torch.randn(1, 2, NODES, 7, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weight = torch.randn(1, 2, NODES, 7, dtype=torch.float64)
    by_pattern = Recipe(score=recipe.score, normaliser=recipe.normaliser, pattern=edges)
    ours = Neighbours.of(edges, NODES).attend(q, k, v, recipe)
    theirs = attend(q, k, v, by_pattern, backend="reference")
    assert_close(ours, theirs, **EXACT)
    learned = list(recipe.learned().parameters())
    gradients = (torch.autograd.grad((out * weight).sum(), [q, k, v, *learned]) for out in (ours, theirs))
    for mine, wanted in zip(*gradients, strict=True):
        assert_close(mine, wanted, **EXACT)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_edges_one_way_or_none_equal_the_pattern(pairs):
    edges = Edges(torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T)
    q, k, v = (torch.randn(1, 2, 13, 3, generator=chance(n), dtype=torch.float64) for n in range(3))
    neighbours = Neighbours.of(edges, 13)
    out, weights = neighbours.attend(q, k, v, Recipe()), neighbours.edge_weights(q, k, v, Recipe())
    seen = steps(q, k, v, Recipe(pattern=edges))
    assert_close(out, seen.output, **EXACT)
    assert_close(weights, seen.weights[0][:, neighbours.pairs[0], neighbours.pairs[1]], **EXACT)


def test_at_most_half_of_what_is_gathered_is_filling():
    hub = [(0, other) for other in range(1, 997)] + [(other, other + 1) for other in range(1, 500)]
    neighbours = around(hub, 997)
    gathered = sum(group.neighbours.numel() for group in neighbours.groups)
    assert gathered < 2 * neighbours.pairs.shape[1]
    assert torch.cat([group.edges[group.mask] for group in neighbours.groups]).sort().values.tolist() == list(
        range(neighbours.pairs.shape[1])
    )


# --- laws ---


def test_recording_changes_nothing_and_weights_sum_to_one(model):
    neighbours = around(PAIRS)
    logits, record = call_recorded(model, features(), neighbours)
    found = edge_weights(record, neighbours)
    assert_close(logits, model(features(), neighbours), rtol=0, atol=0)
    assert logits.shape == (NODES, LABELS)
    for weights in found.weights.values():
        sums = torch.zeros(len(weights), NODES, dtype=torch.float64).index_add(1, found.pairs[0], weights)
        assert_close(sums, torch.ones_like(sums), **EXACT)


def test_how_nodes_are_numbered_changes_nothing(model):
    order = torch.randperm(NODES, generator=chance(1))
    place = order.argsort().tolist()
    turned = around([(place[one], place[other]) for one, other in PAIRS])
    assert_close(model(features()[order], turned), model(features(), around(PAIRS))[order], **EXACT)


def test_another_graph_beside_changes_nothing(model):
    more = [*PAIRS, *((one + NODES, other + NODES) for one, other in PAIRS)]
    x = torch.cat((features(), torch.full((NODES, FEATURES), 1e3, dtype=torch.float64)))
    assert_close(model(x, around(more, 2 * NODES))[:NODES], model(features(), around(PAIRS)), **EXACT)


def test_a_node_feels_those_its_layers_reach_and_nobody_else(model):
    """Two layers: node 0 is one edge from node 1, 6 two (over 3); 7 cannot be reached."""
    x = features().requires_grad_()
    model(x, around(PAIRS))[0].sum().backward()
    felt = not_none(x.grad).abs().sum(1) > 0
    alone = not call_recorded(model, features(), around(PAIRS))[1].calls
    assert felt[0]
    assert not felt[[7, 8, 10]].any()
    assert bool(felt[[1, 6]].any()) != alone


def test_what_is_seen_around_a_node():
    found = EdgeWeights(torch.tensor([[0, 0, 1], [0, 1, 1]]), {"blocks.0": torch.tensor([[0.25, 0.75, 1.0]])})
    seen, weights = found.weights_of_node(0)["blocks.0"]
    assert seen.tolist() == [0, 1]
    assert weights.tolist() == [[0.25, 0.75]]


def test_dropout_is_at_work_while_training_alone():
    torch.manual_seed(2)
    model = GraphNetwork(config("attention", attention_dropout=0.5), features=FEATURES, labels=LABELS).double()
    neighbours = around(PAIRS)
    assert not torch.equal(model(features(), neighbours), model(features(), neighbours))
    assert torch.equal(model.eval()(features(), neighbours), model(features(), neighbours))


def test_every_weight_learns(model):
    cross_entropy(model.train()(features(), around(PAIRS)), torch.arange(NODES) % LABELS).backward()
    unmoved = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # softmax does not feel what all keys share
    assert [name for name in unmoved if not name.endswith("key.bias")] == []


def test_layers_share_no_weights():
    model = GraphNetwork(EVERY["additive"], features=FEATURES, labels=LABELS)
    first, second = (dict(layer.named_parameters()) for layer in model.layers)
    assert not torch.equal(first["attention.learned.score.v"], second["attention.learned.score.v"])


def test_the_mean_has_nothing_to_ask_with():
    mean, dot = (
        GraphNetwork(config(kind, layers=1), features=FEATURES, labels=LABELS) for kind in ("mean", "attention")
    )
    assert count_parameters(dot) - count_parameters(mean) == 2 * (8 * 8 + 8)
    assert isinstance(mean.get_submodule("layers.0.attention.query"), nn.Identity)


def test_weights_are_saved_and_loaded(model, tmp_path):
    write_weights(saveable_tensors(model), tmp_path / "w.safetensors")
    before = model(features(), around(PAIRS))
    for weight in model.parameters():
        nn.init.zeros_(weight)
    load_weights(model, tmp_path / "w.safetensors")
    assert_close(model(features(), around(PAIRS)), before, **EXACT)


def right(made: GraphConfig, graph, x, gold, train_nodes, test_nodes, steps) -> float:
    """The share of nodes whose label is found after training on others."""
    torch.manual_seed(0)
    model = GraphNetwork(made, features=x.shape[1], labels=int(gold.max()) + 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(model.train()(x, graph)[train_nodes], gold[train_nodes]).backward()
        optimiser.step()
    return float((model.eval()(x, graph).argmax(1) == gold)[test_nodes].double().mean())


def test_what_only_a_neighbour_shows_is_learnt_over_edges_alone():
    """Every other node shows its kind, its only neighbour has to ask for it."""
    kind, shows = torch.randint(2, (120,), generator=chance(5)).repeat_interleave(2), torch.arange(240) % 2 == 0
    x = torch.stack((kind * shows, (1 - kind) * shows), 1).float()
    graph, asking = around([(n, n + 1) for n in range(0, 240, 2)], 240), torch.arange(1, 240, 2)
    found = {name: right(config(name), graph, x, kind, asking[:60], asking[60:], 40) for name in GRAPH_KINDS}
    assert found["mean"] == found["attention"] == 1
    assert found["alone"] < 0.7


@pytest.mark.slow
def test_in_a_town_attention_is_better_than_the_mean_and_the_mean_than_nobody():
    graph = graph_from_town(TownWorld(people=1000).town())
    x, labels = torch.from_numpy(fit_featurizer(graph).vectors(graph)), graph.labels()
    gold = torch.tensor([labels.index(node.label or "") for node in graph.nodes])
    train_nodes, test_nodes = (torch.tensor(graph.nodes_in_split(split)) for split in ("train", "test"))
    made = {kind: GraphConfig(kind=kind, dropout=0.3) for kind in GRAPH_KINDS}
    joint = around(graph.edges, len(graph))
    found = {kind: right(made[kind], joint, x, gold, train_nodes, test_nodes, 100) for kind in GRAPH_KINDS}
    assert found["alone"] + 0.05 < found["mean"]
    assert found["mean"] + 0.05 < found["attention"]


# --- what cannot be ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "gat"}, "kind = 'gat' is unknown; choose from alone, mean, attention"),
        ({"kind": "attention", "heads": 5}, "heads = 5 does not divide model = 64"),
        ({"kind": "mean", "heads": 2}, "heads = 2 means nothing to the kind 'mean'"),
        ({"kind": "alone", "attention_dropout": 0.5}, "attention_dropout = 0.5 means nothing to the kind 'alone'"),
        ({"kind": "mean", "recipe": ADDITIVE}, "means nothing to the kind 'mean'"),
        ({"kind": "attention", "recipe": ADDITIVE}, r"the recipe: .* compares widths \(4, 4\), not 16 and 16"),
        ({"kind": "attention", "recipe": 'position = "Sinusoidal()"'}, "the recipe: nodes have no order"),
        ({"kind": "attention", "recipe": 'pattern = "Causal()"'}, "the pattern is the graph's edges, not Causal"),
        ({"kind": "attention", "layers": 0}, "layers = 0 should be at least 1"),
        ({"kind": "attention", "dropout": 1.0}, "dropout = 1.0 should be at least 0 and below 1"),
    ],
)
def test_a_description_that_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        GraphConfig(**given)


def test_a_description_survives_its_table_and_draws_nothing():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    for made in EVERY.values():
        assert GraphConfig.from_dict(made.to_dict()) == made
        assert made.kind in GRAPH_KINDS
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(graph_recipe(EVERY["additive"]).score, Additive)
    assert graph_recipe(EVERY["dot"]).score == ScaledDot()


def test_features_and_edges_must_fit(model):
    with pytest.raises(ValueError, match=r"11 nodes of 5 features each are expected, not \(11, 4\)"):
        model(features()[:, :4], around(PAIRS))
    with pytest.raises(ValueError, match="an edge names node 10, but there are 10"):
        Neighbours.of(undirected_edges([(0, 10)], 10), 10)
    with pytest.raises(ValueError, match="2 labels or more"):
        GraphNetwork(config("alone"), features=FEATURES, labels=1)
