"""The lecture's numbers are the lectures' own, follow every change, and what cannot be computed gets a sentence."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import Causal, Dot, MultiHeadAttention, Recipe
from regard.attention.catalogue import EXAMPLES, K, Matrix, Q, V, X, tensor
from regard.attention.functional import steps
from regard.see.trace import trace_model
from regard.serve.playground import DEFAULTS, MAX_DIMENSIONS, MAX_KEYS, walk_through_example, walk_through_head
from tests.see.test_sites import assert_untouched
from tests.see.untrained_models import CAT, generator, translator


def assert_near(found: list, wanted: Matrix | np.ndarray | torch.Tensor, atol: float = 1e-9) -> None:
    wanted = [[float(number) for number in row] for row in wanted]
    np.testing.assert_allclose(np.array(found, float), np.array(wanted), rtol=0, atol=atol)


def array(name: str) -> np.ndarray:
    return np.array([[float(number) for number in row] for row in DEFAULTS[name]])


def test_x_becomes_the_lectures_queries_keys_and_values():
    head = walk_through_example({})["heads"][0]
    for name, wanted in (("q", Q), ("k", K), ("v", V)):
        assert_near(head[name], wanted)
    assert_near(head["scores"], [[2, 4, 4], [4, 16, 12], [4, 12, 10]])


@pytest.mark.parametrize(("scaled", "name"), [(False, "self-attention, unscaled"), (True, "self-attention, scaled")])
def test_weights_and_output_are_those_that_the_second_lecture_prints(scaled: bool, name: str):  # noqa: FBT001
    case = next(case for case in EXAMPLES if case.name == name)
    found = walk_through_example({"scaled": scaled})
    assert_near(found["heads"][0]["weights"], case.weights, 0.51e-4)
    assert_near(found["heads"][0]["output"], case.output, 0.51e-4)
    assert found["plain" if not scaled else "divided"]["output"] == found["heads"][0]["output"]
    assert_near([row[:3] for row in found["output"]], case.output, 0.51e-4)  # the first head is handed through


def test_the_look_ahead_mask_gives_the_lectures_weights():
    case = next(case for case in EXAMPLES if case.name == "look-ahead mask")
    found = walk_through_example({})["look_ahead"]
    assert_near(found["weights"], case.weights, 0.51e-4)
    assert [row.count(None) for row in found["masked"]] == [3, 2, 1, 0]


def test_another_x_gives_what_the_reference_gives():
    x = [[0.5, -1, 2, 0], [3, 0, 0, 1], [0, 0, 0.25, -2], [1, 1, 1, 1]]
    found = walk_through_example({"x": x})
    q, k, v = (tensor(x) @ tensor(DEFAULTS[name]) for name in ("wq", "wk", "wv"))
    seen = steps(q[None, None], k[None, None], v[None, None])
    assert_near(found["heads"][0]["weights"], seen.weights[0, 0], 1e-12)
    assert_near(found["heads"][0]["output"], seen.output[0, 0], 1e-12)


def test_two_heads_and_the_output_are_those_of_a_layer_with_these_weights():
    layer = MultiHeadAttention(4, heads=2, head=3, recipe=Recipe(pattern=Causal())).double()
    with torch.no_grad():
        weights = {"query": ("wq", "wq2"), "key": ("wk", "wk2"), "value": ("wv", "wv2")}
        for part, names in weights.items():
            joined = torch.cat([tensor(DEFAULTS[name]) for name in names], 1)
            layer.get_parameter(f"{part}.weight").copy_(joined.T)
        layer.get_parameter("output.weight").copy_(tensor(DEFAULTS["wo"]).T)
        for part in (*weights, "output"):
            layer.get_parameter(f"{part}.bias").zero_()
        wanted, seen = layer.look(tensor(X)[None])
    found = walk_through_example({"mask": "causal"})
    assert_near(found["output"], wanted[0], 1e-12)
    for head in range(2):
        assert_near(found["heads"][head]["weights"], seen.weights[0, head], 1e-12)
    assert_near(found["joined"], [[*a, *b] for a, b in zip(*(head["output"] for head in found["heads"]), strict=True)])


def test_softmax_can_be_followed_by_hand():
    for head in walk_through_example({"mask": "causal"})["heads"]:
        for masked, peak, powers, total, weights in zip(
            *(head[name] for name in ("masked", "peak", "exponentials", "sums", "weights")), strict=True
        ):
            by_hand = [0.0 if score is None else np.exp(score - peak[0]) for score in masked]
            assert_near([powers], [by_hand])
            assert_near([weights], [[power / sum(by_hand) for power in by_hand]])
            assert total[0] == pytest.approx(sum(by_hand))


def test_a_row_that_sees_nothing_weighs_and_gives_nothing():
    head = walk_through_example({"mask": "before"})["heads"][0]
    assert head["masked"][0] == [None] * 3
    assert head["weights"][0] == head["output"][0] == [0, 0, 0]
    assert head["weights"][1] == [1, 0, 0]


def test_a_mask_of_ones_own_hides_exactly_its_zeros():
    mask = [[1, 0, 1], [0, 1, 1], [1, 1, 0]]
    found = walk_through_example({"mask": mask})
    for i, j in product(range(3), range(3)):
        assert (found["heads"][0]["masked"][i][j] is None) == (mask[i][j] == 0)
        assert (found["heads"][0]["weights"][i][j] == 0) == (mask[i][j] == 0)
    assert (found["given"]["mask"], found["given"]["pattern"]) == (mask, "own")


def test_bahdanaus_and_luongs_scores_are_their_papers_formulas():
    q, k, w, u, v, general = (np.array(part, float) for part in (Q, K, *map(array, ("wa", "ua", "va", "wg"))))
    found = walk_through_example({})["others"]
    for i, j in product(range(3), range(3)):
        assert found["bahdanau"]["scores"][i][j] == pytest.approx(float(v[0] @ np.tanh(w @ q[i] + u @ k[j])))
        assert found["general"]["scores"][i][j] == pytest.approx(q[i] @ general @ k[j])
        both = np.concatenate([w, u], 1) @ np.concatenate([q[i], k[j]])
        assert found["concat"]["scores"][i][j] == pytest.approx(float(v[0] @ np.tanh(both)))
        assert_near([found["concat"]["inner"][i][j]], both[None])
    assert_near(
        found["dot"]["weights"],
        next(case for case in EXAMPLES if case.name == "self-attention, unscaled").weights,
        1e-4,
    )
    for name in found:
        scores, keys, values = (tensor(part)[None, None] for part in (found[name]["scores"], np.eye(3).tolist(), V))
        seen = steps(scores, keys, values, Recipe(score=Dot()))
        assert_near(found[name]["context"], seen.output[0, 0])


def test_nobody_elses_random_numbers_are_drawn():
    before = torch.get_rng_state()
    walk_through_example({})
    assert torch.equal(torch.get_rng_state(), before)


HOSTILE = {
    "text instead of a number": (
        {"x": [["one", 0, 1, 0], [0] * 4, [1] * 4]},
        "x, row 1, column 1 is 'one', not a",
    ),
    "markup": ({"wq": [["<script>", 0, 1]] + [[0] * 3] * 3}, "'<script>', not a number"),
    "nothing typed": ({"x": [[1, "", 1, 0]]}, "row 1, column 2 is empty"),
    "too large": ({"x": [[1e308, 0, 1, 0]]}, "keep to numbers from -1000 to 1000"),
    "far too large": ({"x": [[10**400, 0, 1, 0]]}, "far too large; keep to"),
    "not a number": ({"x": [[float("nan"), 0, 1, 0]]}, "is nan; write a finite number"),
    "infinite": ({"x": [[0, float("-inf"), 1, 0]]}, "is -inf; write a finite"),
    "a truth": ({"x": [[True, 0, 1, 0]]}, "not a number"),
    "missing": ({"x": [[None, 0, 1, 0]]}, "not a number"),
    "ragged": ({"x": [[1, 0, 1, 0], [1]]}, "the rows of x have 4, 1 numbers"),
    "empty": ({"x": []}, "x is empty"),
    "empty row": ({"x": [[]]}, "x is empty"),
    "too many rows": ({"x": [[1] * 4] * 9}, "x is 9 × 4; at most 8 × 8"),
    "a million columns": ({"x": [[1] * 1_000_000]}, "at most 8 × 8"),
    "not a matrix": ({"x": "x" * 10_000}, "write it as rows of numbers"),
    "a flat list": ({"x": [1, 2, 3]}, "write it as rows of numbers"),
    "misfit": ({"x": [[1, 2]]}, "wq is 4 × 3 and should be 2 × 3"),
    "strange name": ({"y" * 1000: 1}, "the example has no 'yyy"),
    "strange mask": ({"mask": "diagonal"}, "no mask is called 'diagonal'; there are full, causal, before"),
    "mask of another size": ({"mask": [[1]]}, "3 rows of 3"),
    "mask of sevens": ({"mask": [[7, 1, 1]] * 3}, "the mask holds 7"),
    "mask of lists": ({"mask": [[[], 1, 1]] * 3}, "the mask holds []"),
    "scaled by a word": ({"scaled": "yes"}, "scaled is 'yes'"),
    "a list": ([1, 2], "is an object of matrices"),
    "nothing": (None, "not nothing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_gets_a_sentence(name: str):
    request, sentence = HOSTILE[name]
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        walk_through_example(request)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 240
    assert "\n" not in str(refused.value)


numbers = st.floats(-1000, 1000).map(lambda number: round(number, 3))


@given(st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=8), st.sampled_from(["full", "causal"]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_numbers_within_bounds_give_finite_answers(x, mask):
    found = walk_through_example({"x": x, "mask": mask})
    json.dumps(found, allow_nan=False)
    for head in found["heads"]:
        np.testing.assert_allclose(np.sum(head["weights"], 1), 1, atol=1e-9)
        assert None not in [number for row in head["output"] for number in row]


# --- on a model ---


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    return trace_model(translator(model=21, heads=3), CAT)


def walk(trace, name: str, head: int, query: int) -> dict:
    site = trace.site(name)
    labels = {
        side: trace.axes[axis].labels
        for side, axis in (("queries", site.site_name.queries), ("keys", site.site_name.keys))
    }
    return walk_through_head(site, head, query, **labels)


def assert_made(found: dict, site, head: int, query: int) -> None:
    """x W + b, as far as it is shown and with what is not, gives q, k and v before any position."""
    for part, wanted in (
        ("q", site.q[0, head, query : query + 1]),
        ("k", site.k[0, head, :MAX_KEYS]),
        ("v", site.v[0, head]),
    ):
        x, w, bias, rest = (np.array(found[part][name]) for name in ("x", "w", "bias", "rest"))
        assert x.shape == (1 if part == "q" else MAX_KEYS, MAX_DIMENSIONS)
        assert_near(found[part]["result"], x @ w + rest + bias, 1e-6)
        if not found["turned"]:
            assert_near(found[part]["result"], wanted[:MAX_KEYS, :MAX_DIMENSIONS], 1e-6)


def test_of_turned_queries_the_making_is_shown_before_the_turn():
    trace = trace_model(generator(), CAT)  # rotary
    site, found = trace.site("blocks.0"), walk(trace, "blocks.0", 1, 3)
    assert found["made"]["turned"]
    assert_made(found["made"], site, 1, 3)
    assert_near(found["made"]["v"]["result"], site.v[0, 1, :MAX_KEYS, :MAX_DIMENSIONS], 1e-6)
    turned, made = (np.array(part) for part in (found["inner"]["q"], found["made"]["q"]["result"]))
    assert np.abs(turned - made).max() > 1e-4
    assert found["made"]["k"]["result"][0] == pytest.approx(
        found["inner"]["k"][0], abs=1e-6
    )  # at place 0 nothing turns
    assert (
        walk_through_head(trace_model(translator("bahdanau"), CAT).site("attention"), 0, 0, queries=(), keys=())["made"]
        is None
    )


def test_nothing_of_a_trace_stays_on_the_model():
    learner = generator()
    with assert_untouched(learner.model):
        assert trace_model(learner, CAT).site("blocks.0").projections is not None


def test_the_walk_on_a_model_is_made_of_its_own_numbers(trace):
    for name in ("encoder.0", "decoder.0.self", "decoder.0.cross"):
        site, found = trace.site(name), walk(trace, name, 1, 2)
        json.dumps(found, allow_nan=False)
        assert_near(found["weights"], site.row(1, 2)[None, :MAX_KEYS])
        assert_near(found["inner"]["q"], site.q[0, 1, 2:3, :MAX_DIMENSIONS])
        assert_made(found["made"], site, 1, 2)
        assert_near(found["layer"], site.output[0, 1, 2:3, :MAX_DIMENSIONS])
        assert_near(found["all_heads"], [site.row(head, 2)[:MAX_KEYS] for head in range(site.heads)])


def test_what_is_not_shown_is_in_the_sums(trace):
    found = walk(trace, "encoder.0", 1, 2)
    assert found["about"]["width"] == 7 > MAX_DIMENSIONS
    assert found["about"]["n_k"] > MAX_KEYS
    assert found["about"]["summary"].startswith(
        f"the first {MAX_KEYS} of {found['about']['n_k']} keys and the first 4 of 7"
    )
    q, k, v, weights = (
        np.array(part) for part in (found["inner"]["q"], found["inner"]["k"], found["v"], found["weights"])
    )
    assert_near(found["inner"]["dots"], q @ k.T + np.array(found["inner"]["rest"]), 1e-6)
    assert_near(found["scores"], np.array(found["inner"]["dots"]) / 7**0.5, 1e-6)
    assert_near(found["output"], weights @ v + np.array(found["output_rest"]), 1e-6)
    assert weights.sum() + found["weights_rest"] == pytest.approx(1, abs=1e-6)
    assert_near(found["weights"], np.array(found["softmax"]["exponentials"]) / found["softmax"]["sums"][0][0], 1e-6)
    assert_near(found["output"], found["layer"], found["tolerance"])


def test_a_mask_of_the_model_shows_as_minus_infinity(trace):
    found = walk(trace, "decoder.0.self", 0, 1)
    assert [score is None for score in found["masked"][0]] == [False, False, True, True, True]
    assert found["weights"][0][2:] == [0, 0, 0]


def test_bahdanaus_score_in_a_model_can_be_followed_too():
    trace = trace_model(translator("bahdanau"), CAT)
    found = walk_through_head(trace.site(next(iter(trace.sites))), 0, 0, queries=(), keys=())
    assert found["inner"]["dots"] is found["inner"]["root"] is None
    assert found["about"]["score"].startswith("Additive")
    assert found["about"]["keys"][:2] == ["0", "1"]
    v, wq, uk = (np.array(found["inner"]["additive"][name]) for name in ("v", "wq", "uk"))
    assert_near(found["scores"], (v * np.tanh(wq + uk)).sum(-1)[None] + np.array(found["inner"]["rest"]), 1e-6)


def test_luongs_general_score_is_a_product_once_the_query_is_mapped():
    trace = trace_model(translator("luong-general"), CAT)
    found = walk_through_head(trace.site(next(iter(trace.sites))), 0, 1, queries=(), keys=())
    q, k = (np.array(found["inner"][name]) for name in ("q", "k"))
    assert_near(found["scores"], q @ k.T + np.array(found["inner"]["rest"]), 1e-6)
    assert found["inner"]["dots"] == found["scores"]


def test_a_head_or_query_that_does_not_exist_gets_a_sentence(trace):
    with pytest.raises(ValueError, match=r"encoder.0 has no head 3; they are counted from 0 to 2"):
        walk(trace, "encoder.0", 3, 0)
    with pytest.raises(ValueError, match=r"encoder.0 has no query 99"):
        walk(trace, "encoder.0", 0, 99)
