"""Bytes on the way to the page, by hand: shades of √weight, spread scores, the largest of a cell, JSON without NaN."""

import json

import numpy as np
import pytest

from regard.serve.encoding import (
    bin_starts,
    float32_response,
    json_response,
    max_pool,
    scale_to_bytes,
    scores_response,
    sqrt_bytes,
    thumbnail_bytes,
    weights_response,
)
from tests.narrowing import assert_is_instance

INF = float("inf")


def test_a_shade_is_the_root_of_a_weight():
    weights = np.array([[0.0, 1.0, 0.25, 0.0625]], np.float32)
    assert sqrt_bytes(weights).tolist() == [[0, 255, 128, 64]]
    assert sqrt_bytes(np.array([-0.5, 2.0, np.nan], np.float32)).tolist() == [0, 255, 0]


def test_a_thumbnail_tells_what_is_hidden_from_a_weight_of_zero():
    assert thumbnail_bytes(np.array([-np.inf, 0.0, 0.25, 1.0], np.float32)).tolist() == [0, 1, 128, 255]


def test_weights_below_0_are_told_from_hidden_ones_and_from_those_above():
    weights = np.array([-np.inf, -1.0, -0.25, 0.0, 0.25, 4.0], np.float32)
    assert thumbnail_bytes(weights, signed=True).tolist() == [0, 1, 64, 128, 192, 255]
    assert weights_response(weights[1:], signed=True).body == bytes([1, 64, 128, 192, 255])
    pooled = max_pool(np.array([[-3.0, 1.0, 2.0, -1.0]], np.float32), 1, 2, signed=True)
    assert pooled.tolist() == [[-3.0, 2.0]]


def test_small_weights_are_not_lost():
    """Linear bytes would round a row of 1,024 equal weights to nothing; these keep every one of them."""
    weights = np.full(1024, 1 / 1024, np.float32)
    assert np.rint(255 * weights).sum() == 0
    back = (sqrt_bytes(weights) / 255.0) ** 2
    assert back.sum() == pytest.approx(1, rel=0.01)


def test_scores_spread_from_1_to_255_and_hidden_ones_are_0():
    assert scale_to_bytes(np.array([-2.0, 0.0, 2.0, -INF], np.float32), -2.0, 2.0).tolist() == [1, 128, 255, 0]
    assert scale_to_bytes(np.array([3.0, 3.0], np.float32), 3.0, 3.0).tolist() == [1, 1]


@pytest.mark.parametrize(("count", "most"), [(7, 3), (3, 7), (1, 1), (11, 11), (10, 4), (4096, 700)])
def test_a_place_falls_into_the_cell_of_its_share(count, most):
    cells = min(count, most)
    by_hand = [place * cells // count for place in range(count)]
    found = np.searchsorted(bin_starts(count, most), np.arange(count), "right") - 1
    assert found.tolist() == by_hand


def test_a_cell_holds_the_largest_that_falls_into_it():
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert max_pool(values, 2, 2).tolist() == [[7, 9], [12, 14]]
    assert (max_pool(values, 9, 9) == values).all()
    assert max_pool(np.full((2, 2), -INF, np.float32), 1, 1).tolist() == [[-INF]]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 19), (7, 5), (16, 18), (17, 19)])
def test_bins_of_unequal_size_hold_what_reduceat_finds(rows, columns):
    """Bins of one size or of two, with NaN and -∞ in some."""
    values = np.random.default_rng(0).normal(size=(17, 19)).astype(np.float32)
    values[3, 4], values[11:, 7] = np.nan, -INF
    down, across = bin_starts(17, rows), bin_starts(19, columns)
    want = np.maximum.reduceat(np.maximum.reduceat(values, down, axis=0), across, axis=1)
    assert np.array_equal(max_pool(values, rows, columns), want, equal_nan=True)
    assert max_pool(values[:0], rows, columns).shape == (0, columns)


def test_answers_say_their_shape():
    found = float32_response(np.array([[1.5, -INF]], np.float64))
    assert (found.headers["X-Shape"], found.body) == ("1,2", np.array([1.5, -INF], "<f4").tobytes())
    assert weights_response(np.zeros((2, 3, 4), np.float32)).headers["X-Shape"] == "2,3,4"
    assert scores_response(np.zeros((1, 1), np.float32), -0.1, 0.30000000000000004).headers["X-Range"] == (
        "-0.1,0.30000000000000004"
    )


def test_json_knows_no_nan_and_no_half_letters():
    response = json_response({"a": [float("nan"), INF, -INF, 1.5], "b": ("\ud800", "é"), "c": {"d": None}})
    body = assert_is_instance(response.body, bytes)
    assert body.isascii()
    assert json.loads(body) == {"a": [None, None, None, 1.5], "b": ["\ud800", "é"], "c": {"d": None}}
