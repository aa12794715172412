"""Raw masks: `mask=` of a layer is a pattern, numbers a bias; every backend agrees with the reference, or objects."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    AdditiveMask,
    BooleanMask,
    Causal,
    Feature,
    KVCache,
    Linformer,
    MultiHeadAttention,
    Padding,
    Proportional,
    Recipe,
    Rotary,
    StatsRequest,
    Window,
    attend,
    attention_stats,
    explain,
    steps,
)
from regard.attention.backends import gather
from regard.attention.batch_patterns import mask_parts
from regard.attention.block_map import EMPTY
from regard.attention.pattern import Positions
from regard.attention.torch_layer import from_torch

B, H, N, J, D = 2, 6, 5, 7, 4
SHAPES = [(N, J), (1, J), (N, 1), (B, N, J), (1, N, J), (B, H, N, J), (B, 1, 1, J), (1, H, N, 1), (1, 1, 1, 1)]
FAST = [name for name in BACKENDS if name != "reference"]


def boolean(*shape: int) -> Tensor:
    """About half of it may be seen; the second row, where there is one, sees nothing."""
    mask = torch.rand(*shape) < 0.5
    if shape[-2] > 1:
        mask[..., 1, :] = False
    return mask


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double).masked_fill(~boolean(*shape), -torch.inf)


def recipe_of(mask: Tensor, recipe: Recipe = Recipe(), first: int = 0, shape=(B, H, N, J)) -> Recipe:
    visible, bias = mask_parts(mask, shape, first)
    position = recipe.position if bias is None else recipe.position + bias
    return replace(recipe, pattern=recipe.pattern & visible, position=position)


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ / √d + mask) v, and 0 where nothing is seen."""
    whole = mask[:, None] if mask.dim() == 3 else mask
    added = (
        torch.zeros(whole.shape, dtype=q.dtype).masked_fill(~whole, -torch.inf) if mask.dtype == torch.bool else whole
    )
    weights = (q @ k.mT / q.shape[-1] ** 0.5 + added).softmax(-1)
    return weights.nan_to_num(0.0) @ v


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})


def qkv(groups: int = H, grad: bool = False):  # noqa: FBT001, FBT002
    sizes = ((H, N), (groups, J), (groups, J))
    return [torch.randn(B, heads, n, D, dtype=torch.double, requires_grad=grad) for heads, n in sizes]


@pytest.mark.parametrize("make", [boolean, numbers])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mask_is_softmaxs_mask(shape, make):
    mask = make(*shape)
    q, k, v = qkv()
    out = attend(q, k, v, recipe_of(mask), backend="reference")
    assert_close(out, by_hand(q, k, v, mask))
    if shape[-2] > 1:
        assert not out[:, :, 1].any()  # sees nothing


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("make", [boolean, numbers])
@pytest.mark.parametrize("shape", [(N, J), (B, N, J), (B, H, N, J), (B, 1, 1, J)], ids=str)
def test_every_backend_agrees_or_objects(shape, make, backend, monkeypatch):
    # one shape is traced
    monkeypatch.setattr(
        "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", shape != (B, H, N, J)
    )
    mask = make(*shape)
    mask.requires_grad_(mask.is_floating_point())
    for grad in (False, True):
        q, k, v = inputs = qkv(groups=3, grad=grad)
        with torch.set_grad_enabled(grad):
            recipe = recipe_of(mask)
            if BACKENDS[backend].objections(recipe, q, k, Positions.of(q, k, None, None)):
                with pytest.raises(ValueError, match="cannot run this recipe"):
                    attend(q, k, v, recipe, backend=backend)
                continue
            want, got = (attend(q, k, v, recipe, backend=name) for name in ("reference", backend))
        assert_close(got, want)
        if grad:
            inputs = [*inputs, *([mask] if mask.requires_grad else [])]
            upstream = torch.randn_like(want)
            wanted, gotten = (
                torch.autograd.grad(y, inputs, upstream, retain_graph=True, materialize_grads=True) for y in (want, got)
            )
            assert_close(gotten, wanted)
            assert all(bool(x.isfinite().all()) for x in gotten)


def test_the_dense_backends_run_masks_and_those_without_single_scores_object():
    for mask in (boolean(B, 1, N, J), numbers(B, 1, N, J)):
        recipe, (q, k, _) = recipe_of(mask), qkv()
        with torch.no_grad():
            able = {
                name for name in FAST if not BACKENDS[name].objections(recipe, q, k, Positions.of(q, k, None, None))
            }
        assert able == {"flex", "gather", "sdpa"}
    assert explain(recipe_of(boolean(N, J)), *qkv()[:2]).backend == "sdpa"


def test_the_gradient_of_numbers_is_that_of_torch_and_zero_where_hidden():
    mask = numbers(B, H, N, J).requires_grad_()
    q, k, v = qkv()
    ours, theirs = attend(q, k, v, recipe_of(mask)), by_hand(q, k, v, mask)
    upstream = torch.randn_like(ours)
    upstream[:, :, 1] = 0.0  # torch has NaN for what sees nothing
    found, wanted = (torch.autograd.grad(y, mask, upstream)[0] for y in (ours, theirs.nan_to_num(0.0)))
    seen = ~mask.isinf().all(-1)
    assert_close(found[seen], wanted[seen])
    assert not found[mask.isinf()].any()


def test_a_hidden_key_cannot_be_felt():
    mask = boolean(B, N, J)
    mask[:, :, 3] = False
    q, k, v = qkv()
    once = attend(q, k, v, recipe_of(mask))
    assert not steps(q, k, v, recipe_of(mask)).weights[..., 3].any()
    k[:, :, 3], v[:, :, 3] = 1e9, -1e9
    assert_close(attend(q, k, v, recipe_of(mask)), once)


def test_blocks_of_a_mask():
    visible = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    visible[..., 2:4, 4:] = True
    assert BooleanMask(visible).blocks(6, 6, 2).counts() == {"empty": 8, "mixed": 0, "full": 1}
    assert BooleanMask(visible, first=6).blocks(6, 6, 2).dense().eq(EMPTY).all()  # rows before the first see nothing
    with pytest.raises(ValueError, match="differs from head to head"):
        BooleanMask(visible.expand(1, 2, 6, 6)).blocks(6, 6, 2)


def test_the_statistics_of_a_masked_layer_are_those_of_its_weights():
    mask = boolean(B, N, J)
    q, k, v = qkv()
    weights = steps(q, k, v, recipe_of(mask)).weights
    entropy = torch.special.entr(weights).sum(-1)
    assert_close(attention_stats(q, k, recipe_of(mask), StatsRequest(entropy=True)).entropy, entropy)


# --- a layer ---


def layer_of(recipe: Recipe = Recipe(), **more) -> MultiHeadAttention:
    return MultiHeadAttention(12, heads=H, recipe=recipe, **more).double()


@pytest.mark.parametrize("make", [boolean, numbers])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_takes_masks_besides_its_recipe_and_pattern(shape, make):
    layer, padding = layer_of(Recipe(position=Rotary(), pattern=Window(4)), head=4), Padding(torch.tensor([7, 4]))
    x, memory, mask = torch.randn(B, N, 12).double(), torch.randn(B, J, 12).double(), make(*shape)
    q, k, v = layer.project(x, memory)
    recipe = recipe_of(mask, replace(layer.recipe, pattern=Window(4) & padding))
    wanted = layer.merge_heads(steps(q, k, v, recipe).output)
    assert_close(layer(x, memory, pattern=padding, mask=mask), wanted)


def test_a_mask_asks_about_indices_whatever_the_positions():
    layer = layer_of(Recipe(position=Rotary()), head=4)
    x, mask, positions = torch.randn(B, J, 12).double(), numbers(B, J, J), torch.randint(0, 50, (B, J))
    q, k, v = layer.project(x)
    q, k = (Rotary().rotate(part, positions) for part in (q, k))
    assert_close(layer(x, mask=mask, positions=positions), layer.merge_heads(by_hand(q, k, v, mask)))


@pytest.mark.parametrize("make", [boolean, numbers])
@pytest.mark.parametrize("pieces", [(7,), (3, 4), (1, 1, 5), (2, 1, 4)], ids=str)
def test_rows_of_a_mask_follow_the_cache(pieces, make):
    layer, mask = layer_of(Recipe(position=Rotary(), pattern=Causal()), head=4), make(B, H, 7, 7)
    x = torch.randn(B, 7, 12).double()
    whole, outs, cache, seen = layer(x, mask=mask), [], KVCache(), 0
    for new in pieces:
        rows = mask[:, :, seen : seen + new, : seen + new]
        out, cache = layer.extend(x[:, seen : seen + new], cache, mask=rows)
        outs.append(out)
        seen += new
    assert_close(torch.cat(outs, 1), whole)
    with pytest.raises(ValueError, match=r"mask is \(7, 7\), and there are 2 sentences, 6 heads, 1 queries and 8 keys"):
        layer.extend(x[:, :1], cache, mask=mask[0, 0])
    with pytest.raises(ValueError, match=r"is not causal, or not provably so.*add & Causal\(\)"):
        layer_of().extend(x, mask=mask)


def test_a_linear_state_objects_to_a_mask():
    layer = layer_of(Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional()))
    x = torch.randn(B, 3, 12).double()
    _, cache = layer.extend(x)
    with pytest.raises(ValueError, match=r"BooleanMask\(1×1×1×4\) has no running sum; read anew"):
        layer.extend(x[:, :1], cache, mask=torch.ones(1, 4, dtype=torch.bool))
    masked, _ = layer.extend(x, mask=torch.ones(3, 3, dtype=torch.bool))  # keys and values instead
    assert_close(masked, layer(x))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(J, dtype=torch.bool), r"mask must be \(i, j\), \(b, i, j\) or \(b, h, i, j\), not \(7,\)"),
        (
            torch.ones(N, N, dtype=torch.bool),
            r"mask is \(5, 5\), and there are 2 sentences, 6 heads, 5 queries and 7 ke",
        ),
        (torch.ones(B * H, N, J, dtype=torch.bool), r"mask is \(12, 5, 7\), and there are 2 sentences"),
        (torch.ones(H, N, J, dtype=torch.bool), r"mask is \(6, 5, 7\), and there are 2 sentences"),
        (torch.ones(B, 3, N, J, dtype=torch.bool), r"mask is \(2, 3, 5, 7\), and there are 2 sentences, 6 heads"),
        (torch.ones(0, N, J, dtype=torch.bool), r"mask is \(0, 5, 7\)"),
        (torch.ones(N, J, dtype=torch.long), r"mask holds torch.int64; use mask.bool\(\), True = may attend"),
    ],
)
def test_masks_that_do_not_fit_are_refused_in_one_line(mask, message):
    with pytest.raises(ValueError, match=message) as refused:
        layer_of()(torch.randn(B, N, 12).double(), torch.randn(B, J, 12).double(), mask=mask)
    assert "\n" not in str(refused.value)


def test_parts_of_a_recipe_that_do_not_fit_are_refused():
    q, k, v = qkv()
    for part, message in (
        (BooleanMask(boolean(3, 1, N, J)), "holds data for 3 sentences"),
        (BooleanMask(boolean(1, 1, 4, J)), "has 4 queries from 0 and 7 keys, not 5 and 7"),
        (BooleanMask(boolean(1, 1, N, 6)), "has 5 queries from 0 and 6 keys, not 5 and 7"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, Recipe(pattern=part))
    for part, message in (
        (AdditiveMask(numbers(1, 4, N, J)), "is for 4 heads and 7 tokens, not 6 and 7"),
        (AdditiveMask(numbers(1, H, N, 6)), "is for 6 heads and 6 tokens, not 6 and 7"),
        (AdditiveMask(numbers(3, 1, N, J)), "holds data for 3 sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, Recipe(position=part))
    with pytest.raises(
        ValueError, match=r"BooleanMask wants True and False shaped \(b, h, i, j\), not \(5, 7\) of bool"
    ):
        BooleanMask(boolean(N, J))
    with pytest.raises(
        ValueError, match=r"AdditiveMask wants numbers shaped \(b, h, i, j\), not \(1, 1, 5, 7\) of bool"
    ):
        AdditiveMask(boolean(1, 1, N, J))
    compressed = MultiHeadAttention(12, heads=H, form=Linformer(rank=2, max_length=J))
    with pytest.raises(ValueError, match="mixes all keys; of patterns it understands Padding alone"):
        compressed(torch.randn(B, J, 12), mask=boolean(J, J))


def test_a_mask_can_be_exported():
    layer, x, mask = layer_of(), torch.randn(B, J, 12).double(), boolean(B, J, J)
    exported = torch.export.export(layer, (x,), {"mask": mask})
    assert_close(exported.module()(x, mask=mask), layer(x, mask=mask))


# --- in place of torch's own layer ---


class TheirBlock(nn.Module):
    """Somebody's encoder layer, written around nn.MultiheadAttention."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, H, batch_first=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor, attn_mask: Tensor, key_padding_mask: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, key_padding_mask=key_padding_mask, attn_mask=attn_mask, need_weights=False)
        return self.norm(x + y)


class InPlaceOfTorch(nn.Module):
    """MultiHeadAttention behind the arguments of nn.MultiheadAttention: True means hidden there, visible here."""

    def __init__(self, layer: nn.MultiheadAttention):
        super().__init__()
        self.ours = from_torch(layer)

    def forward(self, query, key, value, *, key_padding_mask=None, attn_mask=None, need_weights=False, is_causal=False):
        assert key is value
        assert not need_weights
        mask = torch.zeros(len(query), 1, query.shape[1], key.shape[1], dtype=query.dtype)
        for theirs in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
            if theirs is not None:  # torch hands numbers on as they are
                mask = mask + theirs if theirs.is_floating_point() else mask.masked_fill(theirs, -torch.inf)
        return self.ours(query, None if key is query else key, mask=mask), None


def test_in_somebodys_block_the_layer_replaces_torchs():
    theirs, x = TheirBlock().double(), torch.randn(B, J, 12).double().requires_grad_()
    hidden = torch.ones(J, J, dtype=torch.bool).triu(1)
    padded = torch.arange(J) >= torch.tensor([7, 4])[:, None]
    ours = from_torch(theirs.attention)
    y = ours(x, mask=~hidden & ~padded[:, None])
    found, wanted = theirs.norm(x + y), theirs(x, hidden, padded)
    assert_close(found, wanted)
    upstream = torch.randn_like(found)
    assert_close(torch.autograd.grad(found, x, upstream), torch.autograd.grad(wanted, x, upstream))


@pytest.mark.parametrize("masked", [True, False])
def test_in_torchs_own_encoder_layer_ours_replaces_the_attention(masked):
    theirs = nn.TransformerEncoderLayer(12, H, 24, dropout=0.0, batch_first=True, norm_first=True).double()
    ours = nn.TransformerEncoderLayer(12, H, 24, dropout=0.0, batch_first=True, norm_first=True).double()
    ours.load_state_dict(theirs.state_dict())
    ours.self_attn = InPlaceOfTorch(ours.self_attn)  # type: ignore[assignment]
    x = torch.randn(B, J, 12).double().requires_grad_()
    how = {}
    if masked:
        how["src_mask"] = torch.randn(J, J, dtype=torch.double).masked_fill(torch.ones(J, J).triu(1).bool(), -torch.inf)
        how["src_key_padding_mask"] = torch.arange(J) >= torch.tensor([7, 4])[:, None]
    with pytest.warns(UserWarning, match="mismatched") if masked else nullcontext():
        found, wanted = ours(x, **how), theirs(x, **how)
    assert_close(found, wanted)
    upstream = torch.randn_like(found)
    assert_close(torch.autograd.grad(found, x, upstream), torch.autograd.grad(wanted, x, upstream))
