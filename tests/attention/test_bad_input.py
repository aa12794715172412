"""Bad input: a user's mistake is a ValueError with the value and the remedy; nothing is ever broadcast in silence."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard import MultiHeadAttention, Recipe, attend, explain
from regard.attention.batch_patterns import Documents, Edges, PackedSequences, Padding
from regard.attention.catalogue import get_recipe
from regard.attention.latent import Linformer
from regard.attention.layer_options import LayerOptions
from regard.attention.normaliser import AttentionDropout
from regard.attention.parts import parse_part
from regard.attention.pattern import Causal, Window
from regard.attention.position import Rotary
from regard.attention.position_variants import (
    Alibi,
    Clipped,
    DependencyTree,
    Learned,
    RelativeBias,
    RelativeVectors,
    Sinusoidal,
    TreePath,
)
from regard.attention.score import Additive, Bilinear, Feature
from regard.attention.softmax_variants import Hard, TopK
from regard.attention.sparse_patterns import Block, Strided

X = torch.zeros(2, 4, 5, 8)
FIVE = torch.zeros(1, 5).long()
NEXT = Recipe(pattern=Causal() | Window(2))  # sees the past and the very next token
SHORT_TREES = Recipe(position=RelativeBias(TreePath(2), heads=4)).with_tree(
    tree=DependencyTree.from_governors(torch.tensor([[0, 1]] * 2))
)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (X[0], X, X, "q must be"),
        (X, X[None], X, "k must be"),
        (X, X, X[:, :, :3], "every key needs a value"),
        (X, X[:1], X[:1], "2 sentences and k 1"),
        (X, X[:, :3], X[:, :3], "4 query heads cannot share 3"),
        (X, X[..., :6], X, "not 8 and 6"),
        (X, X.double(), X, "k torch.float64"),
        (X, X, X.half(), "v torch.float16"),
        (X.long(), X.long(), X.long(), "floating-point"),
    ],
)
def test_tensors_that_do_not_fit(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        attend(q, k, v)


def test_a_batch_of_one_is_not_shared_in_silence():
    with pytest.raises(ValueError, match="use expand"):
        attend(X, X[:1], X[:1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_found_on_request(bad):
    poisoned = X.clone()
    poisoned[0, 0, 0, 0] = bad
    attend(poisoned, X, X)  # not asked, not checked
    with pytest.raises(ValueError, match="q holds 1 values that are NaN or infinite"):
        attend(poisoned, X, X, check_finite=True)
    with pytest.raises(ValueError, match="v holds 1 values"):
        attend(X, X, poisoned, check_finite=True)


@pytest.mark.parametrize("at", [torch.arange(4), torch.zeros(3, 5, dtype=torch.long), torch.zeros(5)])
def test_positions_that_do_not_fit(at):
    with pytest.raises(ValueError, match="q_index must hold whole numbers"):
        attend(X, X, X, q_index=at)
    with pytest.raises(ValueError, match="k_index must hold whole numbers"):
        attend(X, X, X, k_index=at)


@pytest.mark.parametrize("tokens", [5, 1100])  # as many as make `choose` ask for a block map
@pytest.mark.parametrize("name", ["q_index", "k_index"])
def test_places_below_zero_are_refused(name, tokens):
    run: Callable[..., Tensor] = attend  # by the name of the argument
    x, at = torch.zeros(1, 1, tokens, 4), torch.arange(tokens).flip(0)
    for bad in (-3, at - 3, (at - 3)[None]):
        with pytest.raises(
            ValueError, match=f"{name} begins at -3, but indices count from 0: add 3 to q_index and k_index"
        ):
            run(x, x, x, Recipe(pattern=Window(3)), **{name: bad})


def test_places_beyond_what_a_pattern_names_are_refused_as_numbers_and_as_tensors():
    pattern = Documents(torch.zeros(1, 6, dtype=torch.long))
    x = torch.zeros(1, 1, 5, 4)
    for at in (2, torch.arange(2, 7)):
        with pytest.raises(ValueError, match="names 6 queries and 6 keys, not 7 and 5"):
            attend(x, x, x, Recipe(pattern=pattern), q_index=at)


def test_a_pattern_for_another_batch():
    with pytest.raises(ValueError, match="3 sentences, q for 2"):
        attend(X, X, X, Recipe(pattern=Padding(torch.tensor([1, 2, 3]))))


def test_backends_that_do_not_exist_or_object():
    with pytest.raises(ValueError, match="no backend is called 'warp'; there are linear"):
        attend(X, X, X, backend="warp")
    with pytest.raises(ValueError, match=r"linear cannot run this recipe: Softmax\(\) is not proportional"):
        attend(X, X, X, backend="linear")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(10, heads=3), "3 heads do not divide a model of width 10"),
        (lambda: MultiHeadAttention(12, heads=4, groups=3), "4 heads cannot share 3 groups"),
        (lambda: MultiHeadAttention(12, heads=0), "0 heads"),
        (lambda: LayerOptions(backend="flash"), "no backend is called 'flash'; there are"),
        (lambda: MultiHeadAttention(12, heads=4, dropout=1.5), "not 1.5"),
        (lambda: MultiHeadAttention(8, heads=2)(torch.zeros(5, 8)), "x and memory must be"),
        (lambda: MultiHeadAttention(8, heads=2)(torch.zeros(1, 5, 8), torch.zeros(5, 8)), "memory must be"),
        (lambda: Window(0), "size must be a whole number, at least 1"),
        (lambda: Window(2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Strided(0), "stride must be"),
        (lambda: Block(4, 3), "`pattern` must be a pattern"),  # type: ignore[arg-type]
        (lambda: Rotary(pairs="thirds"), "'adjacent' or 'halves'"),  # type: ignore[arg-type]
        (lambda: Sinusoidal(theta=0), "theta must be positive"),
        (lambda: Recipe.from_toml("pattern = 3"), "described by text"),
        (lambda: TopK(0), "sees nothing"),
        (lambda: AttentionDropout(1.0), "rate"),
        (lambda: Feature("cosh"), "no feature map is called 'cosh'; there are elu"),
        (lambda: Padding(torch.zeros(2, 2).long()), "one whole number per sentence"),
        (lambda: Padding(torch.zeros(2)), "one whole number per sentence"),
        (lambda: Documents(torch.zeros(3).long()), "shaped"),
        (lambda: Edges(torch.zeros(3, 2).long()), "shaped"),
        (lambda: Edges(torch.tensor([[0], [-1]])), "negative"),
        (lambda: PackedSequences.of([torch.zeros(3, 4), torch.zeros(3, 5)]), "packing wants"),
        (lambda: DependencyTree.from_governors(torch.tensor([[2, 1]])), "form a cycle"),
        (lambda: DependencyTree.from_governors(torch.tensor([[7, 0]])), "head index lies in"),
        (lambda: DependencyTree.from_governors(torch.zeros(2)), "head indices"),
        (lambda: Recipe(pattern="causal"), "pattern must be a Pattern, not 'causal'"),  # type: ignore[arg-type]
        (lambda: Recipe(score=Additive(4, hidden=4), position=RelativeVectors(Clipped(2), head=4)), "inner product"),
        (lambda: get_recipe("bigfoot"), "nothing is called 'bigfoot'"),
        (lambda: get_recipe("causal", "where"), "nothing is called 'where'"),
        (lambda: Learned(3, 4).table(torch.arange(4), 4), "has positions 0 to 2"),
        (lambda: attend(X, X, X, Recipe(score=Bilinear(7))), r"widths \(7, 7\), not 8 and 8"),
        (lambda: attend(X, X, X, Recipe(score=Additive(7, hidden=2))), "not 8 and 8"),
        (lambda: Documents(torch.zeros(1, 3).long()).blocks(5), "names 3 queries and 3 keys, not 5 and 5"),
        (lambda: attend(X, X, X, Recipe(pattern=Documents(torch.zeros(1, 3).long()))), "names 3 queries"),
        (lambda: attend(X, X, X, Recipe(position=Alibi(2))), "slopes for 2 heads, not 4"),
        (lambda: attend(X, X, X, Recipe(position=Alibi(8))), "slopes for 8 heads, not 4"),
        (
            lambda: attend(X, X, X, Recipe(pattern=Documents(FIVE, key_segment_ids=FIVE[:, :3]))),
            "5 queries and 3 keys, not 5 and 5",
        ),
        (lambda: MultiHeadAttention(8, heads=2, recipe=NEXT).extend(torch.zeros(1, 3, 8)), "is not causal"),
        (lambda: Alibi(0), "heads must be a whole number"),
        (lambda: attend(X, X, X, Recipe(position=RelativeBias(Clipped(2), heads=3))), "for 3 heads, not 4"),
        (lambda: attend(X, X, X, Recipe(position=RelativeVectors(Clipped(2), head=3))), "width 3, not 8"),
        (lambda: attend(X, X, X, SHORT_TREES), "trees of 2 tokens"),
        (
            lambda: MultiHeadAttention(8, heads=2, recipe=Recipe(position=Rotary()), form=Linformer(9, 2)),
            "no position",
        ),
        (lambda: MultiHeadAttention(8, heads=2, recipe=Recipe(normaliser=Hard()), dropout=0.1), "the one key"),
        (lambda: MultiHeadAttention(8, heads=2).extend(torch.zeros(1, 3, 8)), "is not causal"),
        (
            lambda: MultiHeadAttention(8, heads=2, recipe=get_recipe("linear")).extend(torch.zeros(1, 3, 8)),
            "is not causal",
        ),
    ],
)
def test_parts_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Windo(3)", "known parts"),
        ("Window(3", "cannot read"),
        ("Window(sizes=3)", "unexpected keyword"),
        ("__import__('os').system('true')", "cannot read"),
        ("Window(3).sees", "cannot read"),
        ("Window(3) + Causal()", "cannot read"),
        ("open('x')", "cannot read"),
        ("Causal() & 3", "unsupported operand"),
        ("Causal() & Softmax()", "unsupported operand"),
        ("Sinusoidal() + 3", "unsupported operand"),
    ],
)
def test_text_that_describes_no_part(text, message):
    with pytest.raises(ValueError, match=message):
        parse_part(text)


def test_a_recipe_file_with_an_unknown_line():
    with pytest.raises(ValueError, match="a recipe has no 'mask'"):
        Recipe.from_toml('mask = "Causal()"')


def test_a_batchs_own_data_is_not_written_to_a_recipe_file():
    with pytest.raises(ValueError, match="holds the data of one batch"):
        Recipe(pattern=Causal() & Padding(torch.tensor([1]))).to_toml()


def test_explain_says_who_runs_and_why_the_others_do_not():
    q = torch.zeros(1, 2, 4096, 8)
    explanation = explain(Recipe(pattern=Causal() & Window(64)), q)
    assert explanation.backend == "gather"
    assert str(explanation).startswith("gather runs this recipe\n  not linear: Softmax() is not proportional")
    assert "no backward pass on the CPU" in explanation.reasons["flex"][0]
    assert explain(Recipe(), q).backend == "sdpa"
    assert "100% of the blocks" in explain(Recipe(), q).reasons["gather"][0]
    assert explain(get_recipe("causal linear"), q).backend == "linear"
    assert explain(get_recipe("sparsemax"), q[:, :, :16]).backend == "reference"
    assert explain(Recipe(pattern=Causal() & Window(64)), q[:, :, :16]).backend == "sdpa"
