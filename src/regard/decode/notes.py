"""The notes of a search by tensors in; hypotheses with the score of every word out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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
    words, parents, values, totals = (note[:steps, list(rows)].cpu().numpy() for note in parts(lanes.notes))
    ended = lanes.ended[list(rows)].cpu().numpy()
    goes = (words >= 0) & (words != EOS)
    front = np.argsort(~goes, axis=-1, kind="stable")  # lane j holds candidate front[j]
    penalty = np.array([length_penalty(length, beam.length_penalty) for length in range(1, steps + 1)])
    scores = totals / penalty[:, None, None]

    # every end up to the last step counts; where nothing may follow, what stood before is cut
    ends = (words == EOS) & (np.arange(steps)[:, None, None] <= ended[:, None])
    stuck = ~(words[ended, np.arange(len(ended))] >= 0).any(-1)
    last = ended - stuck
    cuts = goes & (np.arange(steps)[:, None, None] == last[:, None])
    wanted = []
    for n in range(len(requests)):
        chosen = [
            place
            for kind in (ends, cuts)
            for place in sorted(
                map(tuple, np.argwhere(kind[:, n]).tolist()), key=lambda place: -scores[place[0], n, place[1]]
            )
        ]
        wanted += [(step, n, rank) for step, rank in chosen[: beam.best]]
    read = read_back(words, values, parents, front, wanted)
    found: dict[int, list[Hypothesis]] = {request.index: [] for request in requests}
    for (step, n, rank), said, each in zip(wanted, *read, strict=True):
        finished = bool(ends[step, n, rank])
        said, each = tuple(said[: step + 1 - finished]), tuple(each[: step + 1])
        found[requests[n].index].append(Hypothesis(said, each, finished=finished, score=float(scores[step, n, rank])))
    for n in np.flatnonzero(last < 0).tolist():
        found[requests[n].index] = [Hypothesis((), (), finished=False, score=0.0)]
    return found


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
