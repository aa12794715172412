"""Beam state: the beams of all sentences as tensors, how a step selects among their candidates, and backtracking.

Nothing here leaves the device between two steps; log-probabilities are summed in float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode.quantized_linear import ChunkedVocabLinear, chunked_vocab_topk
from regard.decode.search import Constraints, DecodingRequest, Hypothesis, length_penalty, token_index
from regard.decode.topk import topk_logprobs_torch, topk_logprobs_triton

if TYPE_CHECKING:
    from regard.decode.beam import Beam

NO_EOS = -2  # no candidate's token: -1 stands for no candidate
CANDIDATES = 4096  # at most so many of a sentence for the Triton kernel, which holds them in registers
MIN_ROWS = 32  # rows whose logits outgrow the CPU caches


@dataclass(frozen=True, eq=False)
class Backpointers:
    """For every step and sentence the selected candidates, best first; token -1 is none."""

    tokens: Int[Tensor, "t b k"]
    parents: Int[Tensor, "t b k"]
    log_probabilities: Float[Tensor, "t b k"]
    totals: Float[Tensor, "t b k"]
    coverage: Float[Tensor, "rows b k"]  # coverage penalties of those that end; no rows where there is none

    def select(self, rows: Int[Tensor, " n"]) -> "Backpointers":
        """Those of these sentences alone."""
        return Backpointers(*(part[:, rows] for part in field_values(self)))

    def scores(self, alpha: float, eos: int) -> Float[Tensor, "t b k"]:
        """log P(y) / lp(y) + cp(x, y) of every candidate; one that does not end has no coverage penalty."""
        penalties = [length_penalty(length, alpha) for length in range(1, len(self.totals) + 1)]
        scores = self.totals / torch.tensor(penalties, dtype=torch.double, device=self.totals.device)[:, None, None]
        return scores + self.coverage.where(self.tokens == eos, 0.0) if len(self.coverage) else scores


@dataclass(frozen=True, eq=False)
class BeamState:
    """The beams of a batch, updated in place. A beam whose total is -∞ is empty.

    Args:
        tokens, parents, totals: the last token of each beam, its parent beam, its log-probability.
        best_finished: the n best finished scores.
        finished_step: the step at which a sentence was done, -1 if it is not.
        max_lengths, max_length_penalty: the length limit, and the length penalty of that length.
        forced: the forced tokens, one row per step, -1 where none is; no rows if there are none at all.
        nonfinite: whether the model ever gave NaN or infinite scores.
    """

    tokens: Int[Tensor, "b k"]
    parents: Int[Tensor, "b k"]
    totals: Float[Tensor, "b k"]
    best_finished: Float[Tensor, "b n"]
    finished_step: Int[Tensor, " b"]
    max_lengths: Int[Tensor, " b"]
    max_length_penalty: Float[Tensor, " b"]
    forced: Int[Tensor, "t b"]
    nonfinite: Bool[Tensor, ""]
    backpointers: Backpointers

    def select(self, rows: Int[Tensor, " n"]) -> "BeamState":
        """These sentences alone."""
        by_sentence = (
            "tokens",
            "parents",
            "totals",
            "best_finished",
            "finished_step",
            "max_lengths",
            "max_length_penalty",
        )
        selected = {name: getattr(self, name)[rows] for name in by_sentence}
        return replace(self, **selected, forced=self.forced[:, rows], backpointers=self.backpointers.select(rows))


def field_values(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


@dataclass(frozen=True, eq=False)
class SearchRules:
    """What all sentences share: length penalties by length, banned tokens, the minimum length and the beam size.

    Args:
        eos: the token that ends a hypothesis; NO_EOS if none does.
        prune: whether each beam that can no longer enter the n best is dropped at once. Otherwise all of a sentence's
            beams go on until the best of them is overtaken: the hypotheses found are the same, the beams are not.
        refill: whether the next best prefix takes the place of a hypothesis that has ended.
    """

    penalties: Float[Tensor, " t"]
    banned: UInt8[Tensor, " v"]
    min_length: int
    beam_size: int
    eos: int = EOS
    prune: bool = True
    refill: bool = False

    @property
    def candidates(self) -> int:
        """How many are kept of a step: twice as many as there are beams, each of which may end and be refilled."""
        return 2 * self.beam_size if self.refill else self.beam_size

    @staticmethod
    def of(
        alpha: float, constraints: Constraints, size: int, steps: int, vocabulary: int, device: torch.device
    ) -> "SearchRules":
        penalties = [length_penalty(length, alpha) for length in range(1, steps + 1)]
        banned = torch.zeros(vocabulary, dtype=torch.uint8, device=device)
        banned[token_index({PAD, BOS, *constraints.banned}, vocabulary, device)] = 1
        return SearchRules(
            torch.tensor(penalties, dtype=torch.double, device=device), banned, constraints.min_length, size
        )


def initial_beam_state(
    requests: Sequence[DecodingRequest],
    limits: Sequence[int],
    rules: SearchRules,
    best: int,
    alpha: float,
    steps: int,
    *,
    coverage: bool = False,
) -> BeamState:
    device, b, k = rules.penalties.device, len(requests), rules.beam_size
    totals = torch.full((b, k), -torch.inf, dtype=torch.double, device=device)
    totals[:, 0] = 0.0  # a sentence starts with one beam
    longest = max((len(request.prefix) for request in requests), default=0)
    padded = [[*request.prefix, *[-1] * (steps - len(request.prefix))] if longest else [] for request in requests]
    if strange := [token for row in padded for token in row if token >= len(rules.banned)]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {len(rules.banned)}")
    none = torch.full((steps, b, rules.candidates), -1, device=device)
    nothing = torch.zeros((steps, b, rules.candidates), dtype=torch.double, device=device)
    return BeamState(
        torch.full((b, k), BOS, device=device),
        torch.zeros((b, k), dtype=torch.long, device=device),
        totals,
        torch.full((b, best), -torch.inf, dtype=torch.double, device=device),
        torch.full((b,), -1, device=device),
        torch.tensor(limits, device=device),
        torch.tensor([length_penalty(limit, alpha) for limit in limits], dtype=torch.double, device=device),
        rearrange(torch.tensor(padded, dtype=torch.long, device=device), "b t -> t b"),
        torch.zeros((), dtype=torch.bool, device=device),
        Backpointers(none, none.clone(), nothing, nothing.clone(), torch.zeros_like(nothing[: steps * coverage])),
    )


def advance_beams(
    beams: BeamState,
    rules: SearchRules,
    states: Float[Tensor, "n model"],
    output_linear: Callable[[Tensor], Tensor],
    bias: Float[Tensor, " v"] | None,
    step: Int[Tensor, " 1"],
    *,
    forcing: bool,
    live: Int[Tensor, " n"] | None = None,
    allowed: Bool[Tensor, "n v"] | None = None,
    covered: Float[Tensor, "b k"] | None = None,
) -> None:
    """All beams extended by one token.

    Args:
        output_linear: from states to logits; on a GPU without their bias, if there is one.
        bias: for a GPU, of the logits; None where the logits hold it already.
        step: how many tokens the beams have.
        forcing: whether some token may be forced at this step.
        live: the flat indices of the beams that the states belong to; None for all beams.
        allowed: which tokens may follow the prefix of each of these; None for all that are not banned.
        covered: the coverage penalty of each beam, if it ends here; None for none.
    """
    b, k = beams.tokens.shape
    must = repeat(beams.forced.index_select(0, step), "1 b -> (b k) 1", k=k) if forcing else None
    must = must if must is None or live is None else must[live]
    banned, count = ban_early_end(rules.banned, step, rules.min_length), k + rules.refill  # EOS, and k others
    if isinstance(output_linear, ChunkedVocabLinear) and len(states) >= MIN_ROWS:
        candidates = chunked_vocab_topk(output_linear, states, banned, count, must)
    elif states.is_cuda and bias is not None:
        candidates = topk_logprobs_triton(output_linear(states), bias, banned, count, must)
    else:
        candidates = topk_logprobs_torch(output_linear(states), banned, count, must, allowed)
    beams.nonfinite.logical_or_(~candidates.finite)
    values, tokens = candidates.values, candidates.tokens
    if live is not None:
        values = values.new_full((b * k, values.shape[1]), -torch.inf).index_copy_(0, live, values)
        tokens = tokens.new_zeros(b * k, tokens.shape[1]).index_copy_(0, live, tokens)
    # not by einops, nor below: for one sentence it would take a twentieth of the step
    values, tokens = (part.view(b, k, part.shape[1]) for part in (values, tokens))
    if values.is_cuda and values[0].numel() <= CANDIDATES and rules.prune and not rules.refill and covered is None:
        from regard.decode.kernels import select_candidates_triton

        select_candidates_triton(beams, rules, values, tokens, step)
    else:
        select_candidates(beams, rules, values, tokens, step, covered)


def select_candidates(
    beams: BeamState,
    rules: SearchRules,
    values: Float[Tensor, "b k c"],
    tokens: Int[Tensor, "b k c"],
    step: Int[Tensor, " 1"],
    covered: Float[Tensor, "b k"] | None = None,
) -> None:
    """The best `beam_size` of all beams' candidates; those that end are recorded as finished, the others go on, with
    `refill` those that follow them too. Ties: lower token first, then lower beam."""
    _, k, c = values.shape
    totals = (beams.totals[:, :, None] + values).flatten(1)
    values, tokens = values.flatten(1), tokens.flatten(1)
    by_token = tokens.sort(dim=-1, stable=True).indices
    totals, order = totals.gather(1, by_token).sort(dim=-1, descending=True, stable=True)
    picked, totals = by_token.gather(1, order)[:, : rules.candidates], totals[:, : rules.candidates]
    there = totals > -torch.inf
    token, value = tokens.gather(1, picked).where(there, -1), values.gather(1, picked)
    parent = picked // c
    for part, now in zip(field_values(beams.backpointers), (token, parent, value, totals), strict=False):
        part.index_copy_(0, step, now.to(part.dtype)[None])

    ends = token == rules.eos
    scores = totals / rules.penalties.index_select(0, step)
    if covered is not None:
        penalty = covered.double().gather(1, parent)
        beams.backpointers.coverage.index_copy_(0, step, penalty[None])
        scores = scores + penalty
    scores = scores.masked_fill(~ends, -torch.inf)[:, :k]
    beams.best_finished.copy_(torch.cat((beams.best_finished, scores), 1).topk(beams.best_finished.shape[1], -1).values)
    least = beams.best_finished[:, -1:]
    # a tie that is found later ranks lower, so equality is enough. A beam whose upper bound is too low is dropped: what
    # takes its slot has a lower total, and is dropped as well
    goes = there & ~ends
    best = totals if rules.prune else totals.masked_fill(~goes, -torch.inf).amax(-1, keepdim=True)
    overtaken = (least >= best / beams.max_length_penalty[:, None]) & (least > -torch.inf)
    goes = goes & ~overtaken
    front = (~goes).byte().sort(dim=-1, stable=True).indices[:, :k]
    goes = goes.gather(1, front)
    beams.totals.copy_(totals.gather(1, front).masked_fill(~goes, -torch.inf))
    beams.tokens.copy_(token.gather(1, front).masked_fill(~goes, PAD))
    beams.parents.copy_(parent.gather(1, front).masked_fill(~goes, 0))
    over = (beams.totals[:, 0] == -torch.inf) | (step + 1 == beams.max_lengths)
    beams.finished_step.copy_(torch.where(over & (beams.finished_step < 0), step, beams.finished_step))


# --- candidates ---


def ban_early_end(banned: UInt8[Tensor, " v"], step: Int[Tensor, " 1"], min_length: int) -> UInt8[Tensor, " v"]:
    """EOS is banned too, as long as there are fewer than `min_length` tokens."""
    if not min_length:
        return banned
    banned = banned.clone()
    banned[EOS : EOS + 1].copy_(step < min_length)
    return banned


# --- backtracking ---


def backtrack(
    beams: BeamState,
    requests: Sequence[DecodingRequest],
    rows: Sequence[int],
    beam: "Beam",
    steps: int,
    *,
    eos: int = EOS,
) -> dict[int, list[Hypothesis]]:
    """The hypotheses of finished sentences, by following the backpointers."""
    picked = torch.tensor(rows, dtype=torch.long, device=beams.finished_step.device)
    history = Backpointers(*(part[:steps, picked].cpu() for part in field_values(beams.backpointers)))
    tokens, parents, values = (part.numpy() for part in (history.tokens, history.parents, history.log_probabilities))
    scores = history.scores(beam.length_penalty, eos).numpy()
    ended = beams.finished_step[picked].cpu().numpy()
    goes = (tokens >= 0) & (tokens != eos)
    goes &= goes.cumsum(-1) <= beam.size
    front = np.argsort(~goes, axis=-1, kind="stable")  # beam j holds candidate front[j]

    # every EOS up to the last step counts; where no token was allowed, the prefixes before it are truncated
    ends = (tokens == eos) & (np.arange(steps)[:, None, None] <= ended[:, None])
    ends[..., beam.size :] = False  # further candidates are there to refill the beam
    stuck = ~(tokens[ended, np.arange(len(ended))] >= 0).any(-1)
    last = ended - stuck
    cuts = goes & (np.arange(steps)[:, None, None] == last[:, None])
    wanted = rank_finished(ends, cuts, scores, beam.n_best)
    read = follow_backpointers(tokens, values, parents, front, wanted)
    found: dict[int, list[Hypothesis]] = {request.index: [] for request in requests}
    for (step, n, rank), written, each in zip(wanted, *read, strict=True):
        finished = bool(ends[step, n, rank])
        written, each = tuple(written[: step + 1 - finished]), tuple(each[: step + 1])
        found[requests[n].index].append(
            Hypothesis(written, each, finished=finished, score=float(scores[step, n, rank]))
        )
    for n in np.flatnonzero(last < 0).tolist():
        found[requests[n].index] = [Hypothesis((), (), finished=False, score=0.0)]
    return found


def rank_finished(ends: np.ndarray, cuts: np.ndarray, scores: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """Of every sentence the best candidates (step, sentence, rank): finished before truncated ones, of
    ties the one that was found first.

    Vectorised over all sentences, as the device waits meanwhile.
    """
    step, n, rank = (ends | cuts).nonzero()
    order = np.lexsort((-scores[step, n, rank], cuts[step, n, rank], n))  # stable, its last key first
    place = n[order]
    among = np.arange(len(place)) - np.searchsorted(place, place)
    order = order[among < count]
    return list(zip(step[order].tolist(), n[order].tolist(), rank[order].tolist(), strict=True))


def follow_backpointers(
    tokens: np.ndarray, values: np.ndarray, parents: np.ndarray, front: np.ndarray, wanted: list[tuple[int, int, int]]
) -> tuple[list[list[int]], list[list[float]]]:
    """The tokens on the path to each of these candidates (step, sentence, rank), and their log-probabilities."""
    if not wanted:
        return [], []
    step, n, rank = np.array(wanted).T
    written, each = (np.zeros((len(step), int(step.max()) + 1), part.dtype) for part in (tokens, values))
    for at in range(int(step.max()), -1, -1):
        here = step >= at
        written[here, at], each[here, at] = tokens[at, n[here], rank[here]], values[at, n[here], rank[here]]
        if at:
            rank = np.where(here, front[at - 1, n, parents[at, n, rank]], rank)
    return written.tolist(), each.tolist()
