"""Lengths to batches of like length that keep a budget."""

from collections.abc import Sequence


def by_budget(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in batches whose padded size, rows × longest, is at most `tokens`; the longest come first.

    One that is over the budget by itself makes a batch of its own.
    """
    if tokens < 1:
        raise ValueError(f"a budget of {tokens} tokens has room for nothing: at least 1")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
