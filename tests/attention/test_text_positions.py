"""Text positions: an index is not a position. Each packed text is read as if it stood alone, whatever the recipe."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from regard.attention.batch_patterns import Documents
from regard.attention.functional import attend, steps
from regard.attention.multihead import Context, MultiHeadAttention
from regard.attention.pattern import Causal, Window
from regard.attention.position import Rotary
from regard.attention.position_variants import Alibi, Clipped, CoPE, LogBuckets, RelativeBias, RelativeVectors, XPos
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import SoftCap
from regard.attention.score import Additive
from regard.attention.softmax_variants import MultiToken, SinkSoftmax, Sparsemax, StickBreaking, TalkingHeads
from regard.attention.sparse_patterns import Global, PerHead, Prefix, Random, Strided
from regard.attention.text_positions import Segments
from tests.attention.qkv import QKV, random_qkv

LENGTHS, HEADS, D = (5, 1, 7, 3), 2, 4
ENDS = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
IDS = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))[None]
POSITIONS = torch.cat([torch.arange(n) for n in LENGTHS])[None]
ROWS = Segments(IDS, POSITIONS)

RECIPES = {
    "rotary": lambda: Recipe(position=Rotary(), pattern=Causal()),
    "alibi": lambda: Recipe(position=Alibi(heads=HEADS), pattern=Window(3) & Causal()),
    "t5": lambda: Recipe(position=RelativeBias(LogBuckets(4, 8), heads=HEADS)),
    "shaw": lambda: Recipe(position=RelativeVectors(Clipped(3), head=D), pattern=Causal()),
    "rotary and alibi": lambda: Recipe(position=Rotary() + Alibi(heads=HEADS)),
    "prefix": lambda: Recipe(pattern=Prefix(2) | Window(1)),
    "global": lambda: Recipe(pattern=Global(1) | Window(2)),
    "strided": lambda: Recipe(pattern=Strided(2), normaliser=Sparsemax()),
    "random": lambda: Recipe(pattern=Random(1) | Window(1)),
    "additive": lambda: Recipe(score=Additive(D, 3), pattern=Causal()),
    "cope": lambda: Recipe(position=CoPE(3, head=D), pattern=Causal()),
    "xpos": lambda: Recipe(position=XPos(scale=8.0), pattern=Causal(), normaliser=SinkSoftmax(HEADS)),
    "multi-token": lambda: Recipe(pattern=Causal(), normaliser=MultiToken(HEADS, 3, 3)),
    "talking heads": lambda: Recipe(pattern=PerHead([Causal(), Prefix(2)]), normaliser=TalkingHeads(HEADS)),
    "stick-breaking": lambda: Recipe(score=SoftCap(2.0), pattern=Causal(), normaliser=StickBreaking()),
}


SHAPE = 1, HEADS, IDS.shape[1], D


def drawn() -> QKV:
    return random_qkv(SHAPE, SHAPE, SHAPE)


def test_alibi_of_two_packed_tokens_on_paper():
    """Two texts of one token each: between positions 0 and 0 lies nothing, though the indices are 0 and 1."""
    q = k = torch.zeros(1, 1, 2, 1)
    v = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    recipe, together = Recipe(position=Alibi(heads=1)), torch.zeros(1, 2, dtype=torch.long)
    by_index, by_position = attend(q, k, v, recipe), attend(q, k, v, recipe, q_positions=together, k_positions=together)
    # one token away a head alone adds −2⁻⁸ to the score: the other token weighs e^(−2⁻⁸) of what the query itself does
    assert_close(by_index[0, 0, 0, 0].item(), 1 / (1 + math.exp(2**-8)), rtol=1e-6, atol=0)
    assert by_position.flatten().tolist() == [0.5, 0.5]


def test_the_keys_of_other_rows_have_positions_of_their_own():
    """Each packed text attends to its source, whose tokens stand elsewhere: a row of 2 + 2 tokens to one of 3 + 1."""
    recipe, ids, sources = Recipe(position=Rotary()), torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1]])
    rows = Segments(ids, torch.tensor([[0, 1, 0, 1]]), sources, torch.tensor([[0, 1, 2, 0]]))
    q, k, v = torch.randn(3, 1, HEADS, 4, D, dtype=torch.double)
    packed = replace(recipe, pattern=rows.within(recipe.pattern))
    found = attend(q, k, v, packed, q_positions=rows.positions, k_positions=rows.of_keys)
    alone = [
        attend(q[:, :, :2], k[:, :, :3], v[:, :, :3], recipe),
        attend(q[:, :, 2:], k[:, :, 3:], v[:, :, 3:], recipe),
    ]
    assert_close(found, torch.cat(alone, 2))


@pytest.mark.parametrize("name", RECIPES)
def test_each_packed_text_is_read_as_if_it_stood_alone(name):
    recipe, (q, k, v) = RECIPES[name](), drawn()
    recipe.learned().double()
    weights = list(recipe.learned().parameters())
    packed = replace(recipe, pattern=ROWS.within(recipe.pattern))
    out = attend(q, k, v, packed, q_positions=POSITIONS, k_positions=POSITIONS)
    parts = [attend(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], recipe) for a, b in pairwise(ENDS)]
    alone = torch.cat(parts, 2)
    assert_close(out, alone)
    upstream = torch.randn_like(out)
    assert_close(*(torch.autograd.grad(each, [q, k, v, *weights], upstream) for each in (out, alone)))


@pytest.mark.parametrize("name", ["alibi", "shaw", "rotary"])
def test_positions_stay_with_their_tokens_when_indices_begin_later(name):
    """Reading on after a cache: indices go on, and so may positions, or they begin anew."""
    recipe, (q, k, v) = RECIPES[name](), drawn()
    recipe.learned().double()
    whole = attend(q, k, v, recipe, q_positions=POSITIONS + 3, k_positions=POSITIONS + 3)
    later = attend(q[:, :, 6:], k, v, recipe, q_index=6, q_positions=POSITIONS[:, 6:] + 3, k_positions=POSITIONS + 3)
    assert_close(later, whole[:, :, 6:])
    assert_close(steps(q, k, v, recipe, q_positions=POSITIONS + 3, k_positions=POSITIONS + 3).output, whole)


def test_a_layer_takes_segments_and_positions():
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(position=Alibi(heads=2), pattern=Prefix(2))).double().eval()
    x = torch.randn(1, IDS.shape[1], 8, dtype=torch.double)
    packed = layer.output(layer.compute_heads(x, None, Context(segments=ROWS)))
    assert_close(packed, torch.cat([layer(x[:, a:b]) for a, b in pairwise(ENDS)], 1))
    assert_close(layer(x, positions=POSITIONS.new_zeros(POSITIONS.shape)), layer(x, positions=POSITIONS * 0 + 5))


def test_a_pattern_of_distances_stays_what_fused_kernels_know():
    assert ROWS.within(Recipe().pattern) == Documents(IDS)
    assert ROWS.within(Causal()) == Causal() & Documents(IDS)


def test_mistakes_are_named():
    q, k, v = (x.detach() for x in drawn())
    with pytest.raises(ValueError, match=r"q_positions must hold whole numbers shaped \(1, 16\), not"):
        attend(q, k, v, q_positions=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="give q_index and k_index as numbers"):
        attend(q, k, v, q_index=torch.arange(16), q_positions=POSITIONS)
