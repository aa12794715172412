"""Our attention against torch's own: its multi-head layer, its fused function and FlexAttention."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    Alibi,
    Causal,
    Clipped,
    Documents,
    Dot,
    Edges,
    Full,
    MultiHeadAttention,
    Padding,
    Pattern,
    Prefix,
    Recipe,
    RelativeBias,
    Window,
    attend,
)
from regard.attention.functional import prepare
from regard.attention.torch_layer import from_torch, to_torch
from tests.narrowing import assert_is_instance

UNCOMPILED = "ignore:flex_attention called without torch.compile"


def drawn(*shape: int) -> Tensor:
    """Random numbers; they want gradients where gradients are enabled."""
    return torch.randn(shape, dtype=torch.float64, requires_grad=torch.is_grad_enabled())


def gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of a sum in which every number of the output counts differently."""
    weight = torch.arange(output.numel(), dtype=output.dtype).cos().view_as(output)
    return torch.autograd.grad(output, inputs, weight, retain_graph=True)


# --- torch.nn.MultiheadAttention ---

BATCH, TOKENS, MEMORY_TOKENS, HEADS, MODEL, MEMORY = 3, 11, 13, 3, 15, 7
LENGTHS = torch.tensor([11, 5, 8])


def torch_layer(*, bias: bool = True, memory: int | None = None, batch_first: bool = True) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(
        MODEL, HEADS, bias=bias, kdim=memory, vdim=memory, batch_first=batch_first, dtype=torch.float64
    )
    for parameter in layer.parameters():  # torch starts with biases of 0, which would hide a lost one
        nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def hidden_keys(tokens: int) -> Tensor:
    return torch.arange(tokens) >= LENGTHS[:, None]


def future(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
@pytest.mark.parametrize(
    ("pattern", "hides"),
    [
        (None, {}),
        (Padding(LENGTHS), {"key_padding_mask": hidden_keys(TOKENS)}),
        (Causal(), {"attn_mask": future(TOKENS, TOKENS)}),
        (
            Causal() & Padding(LENGTHS),
            {"attn_mask": future(TOKENS, TOKENS), "key_padding_mask": hidden_keys(TOKENS)},
        ),
    ],
    ids=["full", "padding", "causal", "causal and padding"],
)
def test_torchs_self_attention_is_ours(pattern: Pattern | None, hides: dict[str, Tensor], bias: bool):  # noqa: FBT001
    theirs = torch_layer(bias=bias)
    ours = from_torch(theirs)
    x = drawn(BATCH, TOKENS, MODEL)
    expected, weights = theirs(x, x, x, average_attn_weights=False, **hides)
    output, seen = ours.look(x, pattern=pattern)
    assert_close(ours(x, pattern=pattern), expected)
    assert_close(output, expected)
    assert_close(seen.weights, weights)
    assert_close(gradients(ours(x, pattern=pattern), x), gradients(expected, x))
    assert_close(gradients(output, x), gradients(expected, x))


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
@pytest.mark.parametrize("memory", [MODEL, MEMORY], ids=["memory as wide", "memory of another width"])
@pytest.mark.parametrize("padded", [True, False], ids=["padding", "full"])
def test_torchs_cross_attention_is_ours(memory: int, *, bias: bool, padded: bool):
    theirs = torch_layer(bias=bias, memory=memory)
    ours = from_torch(theirs)
    x, y = drawn(BATCH, TOKENS, MODEL), drawn(BATCH, MEMORY_TOKENS, memory)
    expected, weights = theirs(
        x, y, y, key_padding_mask=hidden_keys(MEMORY_TOKENS) if padded else None, average_attn_weights=False
    )
    pattern = Padding(LENGTHS) if padded else None
    assert_close(ours(x, y, pattern=pattern), expected)
    assert_close(ours.look(x, y, pattern=pattern)[1].weights, weights)
    assert_close(gradients(ours(x, y, pattern=pattern), x, y), gradients(expected, x, y))


def test_torchs_fast_path_is_ours():
    theirs = torch_layer()
    ours = from_torch(theirs)
    with torch.no_grad():  # no gradients, no weights asked for, eval: torch then takes a kernel of its own
        x = drawn(BATCH, TOKENS, MODEL)
        assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_a_torch_layer_with_time_first_becomes_ours_with_batch_first():
    theirs = torch_layer(batch_first=False)
    x = drawn(BATCH, TOKENS, MODEL)
    timed = rearrange(x, "b t model -> t b model")
    expected = rearrange(theirs(timed, timed, timed)[0], "t b model -> b t model")
    assert_close(from_torch(theirs)(x), expected)


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without bias"])
@pytest.mark.parametrize("memory", [MODEL, MEMORY], ids=["memory as wide", "memory of another width"])
def test_to_torch_and_back_changes_no_weight_and_no_output(memory: int, *, bias: bool):
    theirs = torch_layer(bias=bias, memory=memory)
    back = to_torch(from_torch(theirs))
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
    x, y = drawn(BATCH, TOKENS, MODEL), drawn(BATCH, MEMORY_TOKENS, memory)
    assert torch.equal(back(x, y, y)[0], theirs(x, y, y)[0])


@pytest.mark.parametrize("training", [True, False])
def test_dropout_and_mode_survive_the_round_trip(training: bool):  # noqa: FBT001
    theirs = nn.MultiheadAttention(MODEL, HEADS, dropout=0.25).train(training)
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert (ours.dropout, ours.training) == (0.25, training)
    assert (back.dropout, back.training) == (0.25, training)


def test_a_converted_layer_shares_no_weights_with_the_original():
    theirs = torch_layer()
    ours = from_torch(theirs)
    weight = ours.get_parameter("query.weight")
    before = weight.clone()
    nn.init.zeros_(theirs.in_proj_weight)
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"add_bias_kv": True}, "extra keys"),
        ({"add_zero_attn": True}, "extra keys"),
        ({"kdim": 7, "vdim": 5}, "widths 7 and 5"),
    ],
    ids=["add_bias_kv", "add_zero_attn", "kdim and vdim differ"],
)
def test_a_torch_layer_we_cannot_express_is_refused(options: dict, why: str):
    with pytest.raises(ValueError, match=why):
        from_torch(nn.MultiheadAttention(MODEL, HEADS, **options))


@pytest.mark.parametrize(
    "ours",
    [
        MultiHeadAttention(MODEL, heads=HEADS, recipe=Recipe(pattern=Causal())),
        MultiHeadAttention(MODEL, heads=HEADS, groups=1),
        MultiHeadAttention(MODEL, heads=HEADS, head=7),
    ],
    ids=["a recipe of its own", "shared keys", "wider heads"],
)
def test_a_layer_torch_cannot_express_is_refused(ours: MultiHeadAttention):
    with pytest.raises(ValueError, match="torch's"):
        to_torch(ours)


# --- torch.nn.functional.scaled_dot_product_attention ---

Q = (2, 6, 11, 5)
LIKES = torch.rand(11, 13, generator=torch.Generator().manual_seed(1)) < 0.4
LIKES[3] = False  # a row that sees nothing
DIFFERENCE = torch.arange(13) - torch.arange(11)[:, None]


@dataclass(frozen=True, eq=False)
class Fused:
    """One way to call torch's function, and the recipe that means the same."""

    recipe: Recipe
    options: Callable[[Recipe], dict]
    objecting: tuple[str, ...] = ("linear",)
    groups: int = 6
    q_index: int | None = None


FUSED = {
    "full": Fused(Recipe(), lambda recipe: {}),
    "unscaled": Fused(Recipe(score=Dot()), lambda recipe: {"scale": 1.0}),
    "causal from the first key": Fused(Recipe(pattern=Causal()), lambda recipe: {"is_causal": True}),
    "causal from the last key": Fused(
        Recipe(pattern=Causal()), lambda recipe: {"attn_mask": causal_lower_right(11, 13)}, q_index=2
    ),
    "boolean mask": Fused(
        Recipe(pattern=Edges(LIKES.nonzero().T)), lambda recipe: {"attn_mask": LIKES}, ("linear", "flex")
    ),
    "float bias": Fused(
        Recipe(position=RelativeBias(Clipped(3), heads=6).double()),
        lambda recipe: {
            "attn_mask": assert_is_instance(recipe.position, RelativeBias).weight[:, DIFFERENCE.clamp(-3, 3) + 3]
        },
    ),
    "alibi": Fused(
        Recipe(position=Alibi(heads=6)),
        # the paper's slopes for six heads: those of four, then every other one of eight
        lambda recipe: {
            "attn_mask": -DIFFERENCE.abs()
            * torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8], dtype=torch.float64)[:, None, None]
        },
    ),
    "grouped": Fused(Recipe(), lambda recipe: {"enable_gqa": True}, groups=2),
    "one key head for all": Fused(
        Recipe(pattern=Causal()), lambda recipe: {"enable_gqa": True, "is_causal": True}, groups=1
    ),
}


# those for one score, position or normaliser, or for a GPU alone, have tests of their own
DENSE = ("linear", "flex", "gather", "sdpa", "reference")


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings(UNCOMPILED)
@pytest.mark.parametrize("backend", DENSE)
@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED)
def test_torchs_fused_attention_is_ours_on_every_backend_that_does_not_object(case: Fused, backend: str):
    q, k, v = drawn(*Q), drawn(2, case.groups, 13, 5), drawn(2, case.groups, 13, 7)
    learned = tuple(case.recipe.learned().parameters())
    expected = scaled_dot_product_attention(q, k, v, **case.options(case.recipe))
    if backend in case.objecting:
        with torch.no_grad(), pytest.raises(ValueError, match=f"{backend} cannot run this recipe"):
            attend(q, k, v, case.recipe, q_index=case.q_index, backend=backend)
        return
    if backend == "flex":  # it has no backward pass on the CPU
        with torch.no_grad():
            output = attend(q.detach(), k.detach(), v.detach(), case.recipe, q_index=case.q_index, backend=backend)
            assert_close(output, expected)
        return
    output = attend(q, k, v, case.recipe, q_index=case.q_index, backend=backend)
    assert_close(output, expected)
    assert_close(gradients(output, q, k, v, *learned), gradients(expected, q, k, v, *learned))


@pytest.mark.parametrize("backend", DENSE)
@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED)
def test_a_backend_is_refused_exactly_when_it_objects(case: Fused, backend: str):
    q, k = torch.zeros(Q, dtype=torch.float64), torch.zeros(2, case.groups, 13, 5, dtype=torch.float64)
    with torch.no_grad():
        objections = BACKENDS[backend].objections(*prepare(q, k, k, case.recipe, case.q_index, None))
    assert bool(objections) == (backend in case.objecting)


def test_flex_is_refused_where_gradients_are_wanted_on_the_cpu():
    q = drawn(*Q)
    with pytest.raises(ValueError, match="no backward pass on the CPU"):
        attend(q, q, q, backend="flex")


@pytest.mark.filterwarnings(UNCOMPILED)
def test_flex_runs_where_gradients_are_off_though_its_inputs_could_have_them():
    q = drawn(*Q)
    with torch.no_grad():
        assert_close(attend(q, q, q, backend="flex"), scaled_dot_product_attention(q, q, q))


@pytest.mark.filterwarnings(UNCOMPILED)
@pytest.mark.parametrize("backend", ["flex", "gather", "sdpa", "reference", None])
@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Window(4)], ids=str)
def test_one_query_at_the_end_is_the_last_row_of_torchs_fused_attention(pattern: Pattern, backend: str | None):
    distance = torch.arange(13)[:, None] - torch.arange(13)
    visible = {Full(): distance > -13, Causal(): distance >= 0, Causal() & Window(4): (distance >= 0) & (distance <= 3)}
    with torch.no_grad():
        q, k, v = drawn(2, 6, 13, 5), drawn(2, 6, 13, 5), drawn(2, 6, 13, 7)
        last = attend(q[:, :, -1:], k, v, Recipe(pattern=pattern), q_index=12, backend=backend)
        assert_close(last, scaled_dot_product_attention(q, k, v, attn_mask=visible[pattern])[:, :, -1:])


# --- torch.nn.attention.flex_attention ---

DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [0] * 2 + [1] * 7 + [2] * 4])


@dataclass(frozen=True, eq=False)
class Flex:
    """FlexAttention's mask and score functions, and the recipe that means the same."""

    recipe: Recipe
    visible: Callable | None = None
    score: Callable | None = None
    scale: float | None = None
    groups: int = 4


FLEX = {
    "full": Flex(Recipe()),
    "causal": Flex(Recipe(pattern=Causal()), lambda b, h, i, j: i >= j),
    "sliding window": Flex(Recipe(pattern=Causal() & Window(4)), lambda b, h, i, j: (i >= j) & (i - j <= 3)),
    "window to both sides": Flex(Recipe(pattern=Window(3)), lambda b, h, i, j: (i - j <= 2) & (j - i <= 2)),
    "prefix": Flex(Recipe(pattern=Prefix(5) | Causal()), lambda b, h, i, j: (j < 5) | (i >= j)),
    "documents": Flex(
        Recipe(pattern=Documents(DOCUMENTS) & Causal()),
        lambda b, h, i, j: (DOCUMENTS[b, i] == DOCUMENTS[b, j]) & (i >= j),
    ),
    "padding": Flex(Recipe(pattern=Padding(torch.tensor([13, 7]))), lambda b, h, i, j: j < 13 - 6 * b),
    "alibi": Flex(Recipe(position=Alibi(heads=4)), None, lambda s, b, h, i, j: s - 0.25 ** (h + 1) * (i - j).abs()),
    "causal alibi": Flex(
        Recipe(position=Alibi(heads=4), pattern=Causal()),
        lambda b, h, i, j: i >= j,
        lambda s, b, h, i, j: s + torch.exp2(-2.0 * (h + 1)) * (j - i),
    ),
    "softmax scale": Flex(Recipe(score=Dot()), scale=1.0),
    "grouped": Flex(Recipe(pattern=Causal()), lambda b, h, i, j: i >= j, groups=2),
}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings(UNCOMPILED)
@pytest.mark.parametrize("backend", ["reference", "flex"])
@pytest.mark.parametrize("case", FLEX.values(), ids=FLEX)
def test_flex_attention_with_its_own_masks_is_ours(case: Flex, backend: str, monkeypatch):
    # torch's is traced once for each case
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", backend == "flex")
    with torch.no_grad():
        q, k, v = drawn(2, 4, 13, 5), drawn(2, case.groups, 13, 5), drawn(2, case.groups, 13, 7)
        mask = None if case.visible is None else create_block_mask(case.visible, 2, 4, 13, 13, device="cpu")
        expected = flex_attention(
            q, k, v, score_mod=case.score, block_mask=mask, scale=case.scale, enable_gqa=case.groups != 4
        )
        assert_close(attend(q, k, v, case.recipe, backend=backend), expected)


@pytest.mark.filterwarnings(UNCOMPILED)
def test_a_softmax_scale_of_flex_attention_is_a_factor_of_our_queries():
    with torch.no_grad():
        q, k, v = drawn(2, 4, 11, 5), drawn(2, 4, 13, 5), drawn(2, 4, 13, 7)
        expected = flex_attention(q, k, v, scale=0.37)
        assert_close(attend(0.37 * q, k, v, Recipe(score=Dot())), expected)


@dataclass(frozen=True)
class TurnByTurn(Pattern):
    """Even heads see the past, odd heads the future."""

    def sees(self, b, h, i, j):
        return (i >= j) ^ (h % 2 == 1)


@pytest.mark.filterwarnings(UNCOMPILED)
@pytest.mark.parametrize("backend", ["reference", "sdpa", None])
def test_flex_attention_with_another_mask_for_every_head_is_ours(backend: str | None):
    with torch.no_grad():
        q, k, v = drawn(1, 2, 131, 5), drawn(1, 2, 131, 5), drawn(1, 2, 131, 7)
        mask = create_block_mask(lambda b, h, i, j: (i >= j) ^ (h % 2 == 1), 1, 2, 131, 131, device="cpu")
        expected = flex_attention(q, k, v, block_mask=mask)
        assert_close(attend(q, k, v, Recipe(pattern=TurnByTurn()), backend=backend), expected)


@pytest.mark.parametrize("backend", ["gather", "flex"])
def test_one_block_map_cannot_serve_heads_that_differ(backend: str):
    q = drawn(1, 2, 2100, 5)
    with torch.no_grad(), pytest.raises(ValueError, match="differs from head to head"):
        attend(q, q, q, Recipe(pattern=TurnByTurn()), backend=backend)
    with pytest.raises(ValueError, match="differs from head to head"):
        TurnByTurn().blocks(16)
