"""Beam tree: every hypothesis that a beam search kept, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.decode.beam import Beam, SentenceBeam, expand_beam, start_beams, step_beams
from regard.decode.constraints import Constraints, mask_disallowed
from regard.decode.hypothesis import DecodingRequest, Hypothesis, PartialHypothesis
from regard.decode.model import DecodableModel, inference_mode, log_probabilities
from regard.decode.search import stable_topk


@dataclass(frozen=True)
class BeamNode:
    """A prefix that was kept, or a hypothesis that ended here: then `finished`, and `score` is what ranks it."""

    ids: tuple[int, ...]
    parent: int | None  # its index among the open nodes of the step before; None at the first
    log_probability: float  # of all its tokens together, the end included
    finished: bool
    score: float


@dataclass(frozen=True)
class BeamTree:
    """The nodes of every step, open ones first, best first; and what was found in the end, best first."""

    steps: tuple[tuple[BeamNode, ...], ...]
    hypotheses: tuple[Hypothesis, ...]

    def on_best_path(self, node: BeamNode) -> bool:
        """Is the node a prefix of the best hypothesis?"""
        best_ids = self.hypotheses[0].ids
        return best_ids == node.ids if node.finished else best_ids[: len(node.ids)] == node.ids


def beam_tree(model: DecodableModel, source: tuple[int, ...], beam: Beam, prefix: tuple[int, ...] = ()) -> BeamTree:
    """The search again, for one sentence alone, everything kept: it finds what `beam.run` finds."""
    request, steps = DecodingRequest(source, prefix), []
    with inference_mode(model):
        sentence = SentenceBeam(request, request.max_length(beam.max_length), (PartialHypothesis(request),))
        rows = start_beams(model, [request])
        while True:
            rows, scores = step_beams(model, rows, beam)
            values, tokens = stable_topk(mask_disallowed(scores, sentence.partial_hypotheses, Constraints()), beam.size)
            candidates = [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), tokens.tolist(), strict=True)]
            grown = expand_beam(sentence, candidates, rows.coverage_penalties(beam), beam)
            steps.append(step_nodes(sentence, grown))
            if grown.done(beam):
                return BeamTree(tuple(steps), tuple(grown.hypotheses(beam)))
            sentence, rows = grown, rows.reorder(grown.parents, grown.partial_hypotheses)


def step_nodes(before: SentenceBeam, after: SentenceBeam) -> tuple[BeamNode, ...]:
    prefixes = [row.tokens for row in before.partial_hypotheses]
    first = not prefixes[0]
    kept = [
        open_node(row, None if first else parent)
        for row, parent in zip(after.partial_hypotheses, after.parents, strict=True)
    ]
    ended = [
        BeamNode(
            one.ids, None if first else prefixes.index(one.ids), one.log_probability, finished=True, score=one.score
        )
        for one in after.finished[len(before.finished) :]
    ]
    return (*kept, *ended)


def continuation_tree(model: Any, prompt: Sequence[int], size: int, tokens: int, allowed: Constraints) -> BeamTree:
    """So many tokens after a text: the `size` best prefixes of each step. As in all generation, nothing ends before."""
    rows, state, steps = (PartialHypothesis(DecodingRequest(())),), model.start(1), []
    with inference_mode(model):
        device = model.embedding.weight.device
        unread = torch.tensor([list(prompt)], device=device)
        for step in range(tokens):
            x, state = model.decode_hidden(unread, state)
            values, ids = stable_topk(
                mask_disallowed(log_probabilities(model.logits(x[:, -1:])[:, 0]), rows, allowed), size
            )
            # of equals the lower token first, then the better prefix, as in every beam here
            candidates = sorted(
                (-(rows[parent].total + value), token, parent, value)
                for parent, candidate in enumerate(zip(values.tolist(), ids.tolist(), strict=True))
                for value, token in zip(*candidate, strict=True)
                if value > -torch.inf
            )[:size]
            if not candidates:
                break
            parents = [parent for _, _, parent, _ in candidates]
            rows = tuple(rows[parent].extend(token, value) for _, token, parent, value in candidates)
            steps.append(
                tuple(open_node(row, parent if step else None) for row, parent in zip(rows, parents, strict=True))
            )
            unread = torch.tensor([[row.tokens[-1]] for row in rows], device=device)
            state = state.pick(torch.tensor(parents, device=device))
    return BeamTree(tuple(steps), tuple(row.truncate(row.total) for row in rows))


def open_node(row: PartialHypothesis, parent: int | None) -> BeamNode:
    return BeamNode(row.tokens, parent, row.total, finished=False, score=row.total)
