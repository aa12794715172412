"""Attention within texts that share a row: as each text alone has it, and nothing from what fills up the row."""

import math

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Causal, Recipe, attend
from regard.layers.packed import NONE, Texts, attend_within, hidden

HEADS, D, LENGTH = 3, 5, 13
ASKING, ASKED = ((3, 1, 7), (2, 11), (4,)), ((2, 5, 4), (12, 1), (13,))


def texts(*rows: tuple[int, ...], length: int = LENGTH) -> Texts:
    """Texts of these lengths in each row; the rest is filled up."""
    text, at = (torch.full((len(rows), length), NONE) for _ in range(2))
    for n, row in enumerate(rows):
        start = 0
        for number, size in enumerate(row, 1):
            text[n, start : start + size], at[n, start : start + size] = number, torch.arange(size)
            start += size
    return Texts((text != NONE).long(), text, at)


def drawn(n: int, heads: int = HEADS, d: int = D) -> list[torch.Tensor]:
    return [torch.randn(n, LENGTH, heads * d, dtype=torch.float64).requires_grad_() for _ in range(3)]


def look(q, k, v, asking: Texts, asked: Texts, *, causal: bool = False, head: int = D) -> torch.Tensor:
    return attend_within(q, k, v, hidden(asking, asked, q.dtype, causal=causal), head=head)


def alone(q, k, v, asking: Texts, asked: Texts, *, causal: bool) -> torch.Tensor:
    """Text by text, by the definition; 0 for what fills up."""
    recipe, out = Recipe(pattern=Causal()) if causal else Recipe(), torch.zeros_like(q)
    for n in range(len(q)):
        for number in range(1, int(asking.text[n].max()) + 1):
            ours, theirs = asking.text[n] == number, asked.text[n] == number
            parts = [
                x[n, rows].view(1, -1, HEADS, D).transpose(1, 2) for x, rows in ((q, ours), (k, theirs), (v, theirs))
            ]
            seen = attend(*parts, recipe, backend="reference").transpose(1, 2).flatten(2)[0]
            out = out.index_put((torch.tensor(n), ours.nonzero()[:, 0]), seen)
    return out


def test_two_texts_on_paper():
    """Scores log 1 and log 3: the second text's only word has its own value, the first text's ¼ and ¾ of two."""
    where = texts((2, 1), length=3)
    q, v = torch.ones(1, 3, 1, dtype=torch.float64), torch.tensor([4.0, 8.0, 5.0], dtype=torch.float64)[None, :, None]
    k = torch.tensor([0.0, math.log(3), 9.0], dtype=torch.float64)[None, :, None]
    assert_close(look(q, k, v, where, where, head=1).flatten().tolist(), [7.0, 7.0, 5.0])
    assert_close(look(q, k, v, where, where, causal=True, head=1).flatten().tolist(), [4.0, 7.0, 5.0])


@pytest.mark.parametrize("causal", [False, True])
def test_each_text_is_as_if_alone(causal):
    asking = texts(*ASKING)
    asked = asking if causal else texts(*ASKED)
    made, real = drawn(3), (asking.text != NONE)[..., None]
    found, wanted = look(*made, asking, asked, causal=causal) * real, alone(*made, asking, asked, causal=causal)
    assert_close(found, wanted)
    upstream = torch.randn_like(wanted)
    finds, wants = (torch.autograd.grad(out, made, upstream) for out in (found, wanted))
    assert_close(finds, wants)


def test_what_fills_up_a_row_is_a_number_and_is_felt_by_nobody():
    asking, asked = texts((5, 2), ()), texts((13,), ())
    made = drawn(2)
    out = look(*made, asking, asked)
    assert out.isfinite().all()
    real = (asking.text != NONE)[..., None]
    with torch.no_grad():
        made[0].masked_fill_(~real, 7.0)
    assert_close(look(*made, asking, asked) * real, out * real, rtol=0, atol=0)
    for grad in torch.autograd.grad((look(*made, asking, asked) * real).sum(), made):
        assert grad.isfinite().all()


def test_groups_of_heads_share_their_keys():
    where = texts(*ASKING)
    q, (k, v) = drawn(3, heads=4)[0], drawn(3, heads=2)[1:]
    wide = [x.view(3, LENGTH, 2, D).repeat_interleave(2, 2).flatten(2) for x in (k, v)]
    assert_close(look(q, k, v, where, where), look(q, *wide, where, where))
