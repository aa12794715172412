"""The notes of a search by tensors in; hypotheses with the score of every word out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard.decode.hypothesis import Hypothesis
from regard.decode.lanes import Lanes, parts
from regard.decode.penalties import length_penalty
from regard.decode.request import Request
from regard.text.vocabulary import EOS

if TYPE_CHECKING:
    from regard.decode.beam import Beam


def told(
    lanes: Lanes, requests: Sequence[Request], rows: Sequence[int], beam: "Beam", steps: int
) -> dict[int, list[Hypothesis]]:
    """The translations of sentences that are done, read back from the notes."""
    picked = torch.tensor(rows, dtype=torch.long, device=lanes.ended.device)
    words, parents, values, totals = (note[:steps, picked].cpu().numpy() for note in parts(lanes.notes))
    ended = lanes.ended[picked].cpu().numpy()
    goes = (words >= 0) & (words != EOS)
    front = np.argsort(~goes, axis=-1, kind="stable")  # lane j holds candidate front[j]
    penalty = np.array([length_penalty(length, beam.length_penalty) for length in range(1, steps + 1)])
    scores = totals / penalty[:, None, None]

    # every end up to the last step counts; where nothing may follow, what stood before is cut
    ends = (words == EOS) & (np.arange(steps)[:, None, None] <= ended[:, None])
    stuck = ~(words[ended, np.arange(len(ended))] >= 0).any(-1)
    last = ended - stuck
    cuts = goes & (np.arange(steps)[:, None, None] == last[:, None])
    wanted = chosen(ends, cuts, scores, beam.best)
    read = read_back(words, values, parents, front, wanted)
    found: dict[int, list[Hypothesis]] = {request.index: [] for request in requests}
    for (step, n, rank), said, each in zip(wanted, *read, strict=True):
        finished = bool(ends[step, n, rank])
        said, each = tuple(said[: step + 1 - finished]), tuple(each[: step + 1])
        found[requests[n].index].append(Hypothesis(said, each, finished=finished, score=float(scores[step, n, rank])))
    for n in np.flatnonzero(last < 0).tolist():
        found[requests[n].index] = [Hypothesis((), (), finished=False, score=0.0)]
    return found


def chosen(ends: np.ndarray, cuts: np.ndarray, scores: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """Of every sentence the best candidates (step, sentence, rank): ends first, of equals the one that was found first.

    For all sentences at once, as the device waits meanwhile.
    """
    step, n, rank = (ends | cuts).nonzero()
    order = np.lexsort((-scores[step, n, rank], cuts[step, n, rank], n))  # stable, its last key first
    place = n[order]
    among = np.arange(len(place)) - np.searchsorted(place, place)
    order = order[among < count]
    return list(zip(step[order].tolist(), n[order].tolist(), rank[order].tolist(), strict=True))


def read_back(
    words: np.ndarray, values: np.ndarray, parents: np.ndarray, front: np.ndarray, wanted: list[tuple[int, int, int]]
) -> tuple[list[list[int]], list[list[float]]]:
    """The words on the way to each of these candidates (step, sentence, rank), and their values."""
    if not wanted:
        return [], []
    step, n, rank = np.array(wanted).T
    said, each = (np.zeros((len(step), int(step.max()) + 1), part.dtype) for part in (words, values))
    for at in range(int(step.max()), -1, -1):
        here = step >= at
        said[here, at], each[here, at] = words[at, n[here], rank[here]], values[at, n[here], rank[here]]
        if at:
            rank = np.where(here, front[at - 1, n, parents[at, n, rank]], rank)
    return said.tolist(), each.tolist()
