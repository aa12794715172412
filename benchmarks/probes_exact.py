"""A probe's findings in, their relative errors at full length out: some rows, columns and cells against float64."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.attention import Recipe
from regard.attention.stats import AttentionStats


def exactness(recipe: Recipe, q: Tensor, k: Tensor, seen: AttentionStats, asked: dict) -> Iterator[tuple[str, float]]:
    """Relative errors at full length against float64: whole rows of some queries, whole columns, whole cells."""
    n, head, rows, keys = q.shape[2], q.shape[1] - 1, [1, n_th(q, 3), n_th(q, 7) + 1], [0, n_th(k, 5) + 1]
    lse, top, places = seen.log_sum_exp, seen.top, torch.arange(n, device=q.device)
    assert lse is not None
    assert top is not None

    def scores(i: Tensor, j: Tensor) -> Tensor:
        s = q[0, head, i].double() @ k[0, head, j].double().mT * q.shape[3] ** -0.5
        zero = torch.zeros((), dtype=torch.long, device=q.device)
        return s.masked_fill_(~recipe.pattern.sees(zero, zero, i[:, None], j), -torch.inf)

    def weights(i: Tensor, j: Tensor) -> Tensor:
        return (scores(i, j) - lse[0, head, i, None].double()).exp()

    def off(got: Tensor, want: Tensor) -> float:
        return float(((got.double() - want).abs() / want.abs().clamp(min=1e-12)).max())

    chosen = torch.tensor(rows, device=q.device)
    s = scores(chosen, places)
    p = s.softmax(-1)
    yield "log-sum-exp", off(lse[0, head, chosen], s.logsumexp(-1))
    for name, got, want in (
        ("entropy", seen.entropy, torch.special.entr(p).sum(-1)),
        ("largest weights", top.weights, p.topk(asked["top"]).values),
    ):
        assert got is not None
        yield name, off(got[0, head, chosen], want)
    named = top.keys[0, head, chosen]
    weighed = p.gather(-1, named.clamp(min=0)).masked_fill_(named < 0, 0.0)
    yield "weights of the keys named", off(weighed, p.topk(asked["top"]).values)
    columns = torch.tensor(keys, device=q.device)
    assert seen.mass is not None
    yield "mass", off(seen.mass[0, head, columns], weights(places, columns).sum(0))
    for name, picture in (("map", seen.map), ("peaks", seen.peaks)):
        assert picture is not None
        down, across = picture.shape[2:]
        row, cell = down - 1, across - 1
        i, j = (places[places * size // n == at] for size, at in ((down, row), (across, cell)))
        block = weights(i, j)
        want = block.sum() if name == "map" else block.max()
        yield name, off(picture[0, head, row, cell], want)


def n_th(x: Tensor, part: int) -> int:
    return x.shape[2] * part // 8
