"""Sequence packing: several texts in each row of a batch, first fit, the longest first; and plans of whole epochs."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.world.splitmix import combine_seeds, permute, random_keys

NO_SEGMENT = 0  # the segment of what fills up a row
PACKING_WINDOW = 1024  # pairs packed together, since a search through all rows takes long
WINDOWS_AT_ONCE = 256  # windows packed side by side


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Tokens of several texts in each row.

    Args:
        tokens: their ids, text after text.
        segment_ids: to which text of its row each token belongs, counted from 1; NO_SEGMENT for what fills up the row.
        position_ids: its place in that text, counted from 0.
    """

    tokens: Int[Tensor, "n t"]
    segment_ids: Int[Tensor, "n t"]
    position_ids: Int[Tensor, "n t"]

    def to(self, device: torch.device | str) -> "PackedBatch":
        parts = (self.tokens, self.segment_ids, self.position_ids)
        return PackedBatch(*(part.to(device, non_blocking=True) for part in parts))


def pack_first_fit(sizes: NDArray[np.int64], length: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of each pair, and the order in which they were laid there: first fit, the longest first."""
    shuffled = np.argsort(random_keys(combine_seeds(seed, 0, 2), len(sizes)), kind="stable")
    windows = [shuffled[start : start + PACKING_WINDOW] for start in range(0, len(sizes), PACKING_WINDOW)]
    ordered = [window[longest_first(sizes[window])] for window in windows]
    order = np.concatenate(ordered)
    missing = -len(sizes) % min(PACKING_WINDOW, len(sizes))
    filled = np.pad(sizes[order], ((0, missing), (0, 0))).reshape(len(windows), -1, 2)
    laid, rows = fit_windows(filled, length)
    row = np.empty(len(sizes), dtype=np.int64)
    row[order] = (laid + (np.cumsum(rows) - rows)[:, None]).ravel()[: len(sizes)]
    return row, order


def longest_first(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.argsort(-sizes.max(1), kind="stable")


def fit_windows(sizes: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of each pair in its window, and how many rows each window takes: all windows at once, pair by pair.

    Pairs are laid in their order; one of length 0 fills up a window that has fewer.
    """
    laid, rows = [], []
    for first in range(0, len(sizes), WINDOWS_AT_ONCE):
        some = sizes[first : first + WINDOWS_AT_ONCE]
        free = np.full((2, len(some), some.shape[1]), length, dtype=np.int32)
        windows, used = np.arange(len(some)), np.zeros(len(some), dtype=np.int64)
        row = np.empty(some.shape[:2], dtype=np.int64)
        for n in range(some.shape[1]):
            open_rows = free[:, :, : int(used.max()) + 1]
            row[:, n] = fits = (open_rows >= some[:, n].T[:, :, None]).all(0).argmax(1)
            free[:, windows, fits] -= some[:, n].T.astype(np.int32)
            used = np.maximum(used, fits + 1)
        laid.append(row)
        rows.append(used)
    return np.concatenate(laid), np.concatenate(rows)


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Which places of an epoch share a row.

    Args:
        length: tokens of a row.
        places: of an epoch.
        windows: how many there are.
        sizes: of each class of places, in their order, the tokens of a source and of a target.
        first_places: where each class begins.
        first_windows: the first of each series of windows whose pairs have the same lengths.
        laid: of each series, the row of each pair in a window, the longest first.
        counts: of each series, the rows of a window.
    """

    length: int
    places: int
    windows: int
    sizes: NDArray[np.int64]
    first_places: NDArray[np.int64]
    first_windows: NDArray[np.int64]
    laid: NDArray[np.uint16]
    counts: NDArray[np.int64]

    @staticmethod
    def of(sizes: NDArray[np.int64], counts: NDArray[np.int64], length: int) -> "RowPlan":
        """For so many places of each size."""
        ends = np.cumsum(counts)
        places = int(ends[-1])
        windows = -(-places // PACKING_WINDOW)
        # place p is in window p % windows: from there on, windows have the class that begins at p
        firsts = np.unique(np.concatenate(([0], ends % windows)))
        plan = RowPlan(length, places, windows, sizes, ends - counts, firsts, np.zeros((0, 0), np.uint16), firsts)
        laid, rows = [], []
        for first in range(0, len(firsts), WINDOWS_AT_ONCE):
            some = np.stack([plan.window_sizes(int(window)) for window in firsts[first : first + WINDOWS_AT_ONCE]])
            row, used = fit_windows(some, length)
            laid.append(row.astype(np.uint16))
            rows.append(used)
        return replace(plan, laid=np.concatenate(laid), counts=np.concatenate(rows))

    def window_places(self, window: int) -> NDArray[np.int64]:
        """The places of a window, from the longest pair to the shortest."""
        found = np.arange(window, self.places, self.windows)
        return found[longest_first(self.place_sizes(found))]

    def place_sizes(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.sizes[np.searchsorted(self.first_places, places, "right") - 1]

    def window_sizes(self, window: int) -> NDArray[np.int64]:
        """Those of its pairs, and of one of nothing if it has one less than others."""
        found = self.place_sizes(self.window_places(window))
        return np.pad(found, ((0, -(-self.places // self.windows) - len(found)), (0, 0)))

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """The number of the first row of each series, and how many there are."""
        windows = np.diff(self.first_windows, append=self.windows)
        return np.concatenate(([0], np.cumsum(windows * self.counts)))

    @property
    def rows(self) -> int:
        """How many rows an epoch has."""
        return int(self.first_rows[-1])

    def members(
        self, first: int, stop: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The places whose pairs lie in the rows from `first` to `stop`, the row of each, counted from 0, and their
        sizes. The rows of a window come in an order that the seed says."""
        places, rows, at = [], [], first
        while at < stop:
            series = int(np.searchsorted(self.first_rows, at, "right")) - 1
            count = int(self.counts[series])
            before, skipped = divmod(at - int(self.first_rows[series]), count)
            window = int(self.first_windows[series]) + before
            here = np.arange(skipped, min(count, skipped + stop - at))
            number_of = np.full(count, -1)
            number_of[permute(combine_seeds(seed, window), count, here)] = at - first + np.arange(len(here))
            found = self.window_places(window)
            row = number_of[self.laid[series, : len(found)]]
            places.append(found[row >= 0])
            rows.append(row[row >= 0])
            at += len(here)
        chosen = np.concatenate(places)
        return chosen, np.concatenate(rows), self.place_sizes(chosen)
