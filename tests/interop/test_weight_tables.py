"""Tables of weights: names, layouts and the order of tokens, by hand and there and back."""

import pytest
import torch
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.data.tokenizers.pretrained import ABSENT
from regard.interop.huggingface import weights
from regard.interop.huggingface.weights import (
    ABSENT_LOGIT,
    AxisOrder,
    WeightLayout,
    WeightRow,
    convert_to_ours,
    convert_to_theirs,
    parse_table,
    tensor_rows,
)

TABLE = parse_table("""
layers.*.{query,key}       h.*.c_attn      i (part o) -> part o i
layers.*.{up,down}         h.*.mlp.{fc,proj}
embedding.weight           wte             target model -> target model
norm                       ln_f
bias                       -               target
""")
# our 0 is their 2, our 1 is nothing of theirs, our 2 is their 0, and our 3 is their 2 again
ORDER = AxisOrder((2, ABSENT, 0, 2, 1), second=frozenset({3}))
LAYOUT = WeightLayout(orders={"target": ORDER})


def test_a_line_is_a_row_or_as_many_rows_as_it_has_names():
    assert TABLE[0] == WeightRow(("layers.*.query", "layers.*.key"), ("h.*.c_attn",), "i (part o) -> part o i")
    assert TABLE[1:3] == (
        WeightRow(("layers.*.up",), ("h.*.mlp.fc",)),
        WeightRow(("layers.*.down",), ("h.*.mlp.proj",)),
    )


def test_a_row_is_that_of_each_layer_and_each_tensor_of_its_module():
    names = ["layers.11.query.weight", "layers.11.key.weight", "layers.11.query.bias", "layers.11.key.bias"]
    weight, bias = tensor_rows(TABLE, names)
    assert weight == WeightRow(tuple(names[:2]), ("h.11.c_attn.weight",), "i (part o) -> part o i")
    assert bias == WeightRow(tuple(names[2:]), ("h.11.c_attn.bias",), "(part o) -> part o")


@pytest.mark.parametrize("name", ["layers.0.gate.weight", "bias.more.yet", "layers.x.up.weight"])
def test_a_weight_that_no_line_names_is_refused(name):
    with pytest.raises(ValueError, match="has 0 lines in the table of this family, not one"):
        tensor_rows(TABLE, [name])


def test_one_matrix_becomes_two_and_tokens_change_places():
    """Of [[1 2 3 4]] the first half is the queries', the second the keys'; each is transposed."""
    theirs = {
        "h.0.c_attn.weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "h.0.c_attn.bias": torch.arange(4.0),
        "wte": torch.tensor([[10.0], [11.0], [12.0]]),
        "ln_f.weight": torch.ones(1),
    }
    rows = tensor_rows(
        TABLE,
        [f"layers.0.{part}.{kind}" for part in ("query", "key") for kind in ("weight", "bias")]
        + ["embedding.weight", "norm.weight", "bias"],
    )
    ours = convert_to_ours(rows, LAYOUT, theirs.__getitem__)
    assert ours["layers.0.query.weight"].tolist() == [[1.0], [2.0]]
    assert ours["layers.0.key.bias"].tolist() == [2.0, 3.0]
    assert ours["embedding.weight"].flatten().tolist() == [12.0, 0.0, 10.0, 12.0, 11.0]
    assert ours["bias"].tolist() == [0.0, ABSENT_LOGIT, 0.0, ABSENT_LOGIT, 0.0]
    back = convert_to_theirs(rows, LAYOUT, ours)
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)


def test_a_bias_that_the_other_model_has_no_place_for_is_refused():
    (row,) = tensor_rows(TABLE, ["bias"])
    with pytest.raises(ValueError, match="bias is not 0, and the other model has no place for it"):
        convert_to_theirs([row], LAYOUT, {"bias": torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0])})


@given(st.permutations(range(7)), st.integers(0, 2**31))
def test_there_and_back_is_the_same_bits(order, seed):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed))
    (row,) = tensor_rows(TABLE, ["embedding.weight"])
    layout = WeightLayout(orders={"target": AxisOrder(tuple(order))})
    (ours,) = layout.to_ours(row, [x])
    assert torch.equal(ours, x[list(order)])
    assert torch.equal(layout.to_theirs(row, [ours])[0], x)


def test_sizes_say_how_an_axis_is_taken_apart():
    row, x = WeightRow(("a",), ("b",), "o c p q -> o (p q c)"), torch.randn(5, 3, 2, 2)
    layout = WeightLayout(sizes={"c": 3, "p": 2, "q": 2, "unused": 7})
    (ours,) = layout.to_ours(row, [x])
    assert_close(ours, rearrange(x, "o c p q -> o (p q c)"))
    assert torch.equal(layout.to_theirs(row, [ours])[0], x)


def test_what_a_checkpoint_lacks_or_has_besides_is_named():
    rows = tensor_rows(TABLE, ["norm.weight", "norm.bias"])
    weights.check_names(rows, ["ln_f.weight", "ln_f.bias", "h.3.mask"], ["h.*.mask"])
    with pytest.raises(ValueError, match=r"lacks 'ln_f.bias' \(1 tensors\); is it whole"):
        weights.check_names(rows, ["ln_f.weight"], [])
    with pytest.raises(ValueError, match=r"has 'h.x.mask' \(1 tensors\), of which our model knows nothing"):
        weights.check_names(rows, ["ln_f.weight", "ln_f.bias", "h.x.mask"], ["h.*.mask"])


@pytest.mark.parametrize("shape", [(9, 4), (9, 12, 1), (8, 12)])
def test_a_shape_that_does_not_fit_is_refused_before_anything_is_read(shape):
    rows = tensor_rows(TABLE, ["layers.0.query.weight", "layers.0.key.weight"])
    ours = dict.fromkeys(rows[0].ours, (6, 9))
    weights.check_shapes(rows, LAYOUT, {"h.0.c_attn.weight": (9, 12)}, ours)
    with pytest.raises(ValueError, match=r"c_attn\.weight'? is shaped"):
        weights.check_shapes(rows, LAYOUT, {"h.0.c_attn.weight": shape}, ours)
