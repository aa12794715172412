"""Beam trees: rebuilt from a search's backpointers they show the nodes of the reference search, step by step."""

import pytest
import torch
from torch import Tensor

from regard.decode import Beam, Constraints, LengthLimit, translate
from regard.decode.search import DecodingRequest
from regard.decode.stepwise import PartialHypothesis
from regard.decode.topk import log_probabilities, stable_topk
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import inference_mode
from regard.see.trace import BeamNode, BeamTree, beam_tree, continuation_tree
from tests.decode.reference_beam import SentenceBeam, mask_disallowed, reference_beam
from tests.decode.test_models import CONFIGS, model
from tests.decode.toy_models import Toy, dice, glance

SOURCES = [(5, 9, 4), (), (10, 10, 3, 8, 6, 5, 4)]


def reference_tree(made, source, beam: Beam, prefix=()) -> BeamTree:
    steps = []

    def note(before: SentenceBeam, after: SentenceBeam) -> None:
        prefixes = [row.tokens for row in before.partial_hypotheses]
        first = not prefixes[0]
        kept = [
            BeamNode(row.tokens, None if first else parent, row.total, finished=False, score=row.total)
            for row, parent in zip(after.partial_hypotheses, after.parents, strict=True)
        ]
        ended = [
            BeamNode(
                one.ids, None if first else prefixes.index(one.ids), one.log_probability, finished=True, score=one.score
            )
            for one in after.finished[len(before.finished) :]
        ]
        steps.append((*kept, *ended))

    with inference_mode(made):
        [found] = reference_beam(made, [DecodingRequest(source, prefix)], beam, Constraints(), note)
    return BeamTree(tuple(steps), tuple(found))


def reference_continuation(made: LanguageModel, prompt, size: int, tokens: int, allowed: Constraints) -> BeamTree:
    rows, state, steps = (PartialHypothesis(DecodingRequest(())),), made.start(1), []
    unread = torch.tensor([list(prompt)])
    for step in range(tokens):
        with inference_mode(made):
            x, state = made.decode_hidden(unread, state)
            scores = mask_disallowed(log_probabilities(made.logits(x[:, -1:])[:, 0]), rows, allowed)
        candidates = sorted(
            (-(rows[parent].total + value), token, parent, value)
            for parent, candidate in enumerate(zip(*map(Tensor.tolist, stable_topk(scores, size)), strict=True))
            for value, token in zip(*candidate, strict=True)
            if value > -torch.inf
        )[:size]
        if not candidates:
            break
        rows = tuple(rows[parent].extend(token, value) for _, token, parent, value in candidates)
        steps.append(
            tuple(
                BeamNode(row.tokens, parent if step else None, row.total, finished=False, score=row.total)
                for row, (_, _, parent, _) in zip(rows, candidates, strict=True)
            )
        )
        unread = torch.tensor([[row.tokens[-1]] for row in rows])
        state = state.pick(torch.tensor([parent for _, _, parent, _ in candidates]))
    return BeamTree(tuple(steps), tuple(row.truncate(row.total) for row in rows))


def assert_same_tree(found: BeamTree, wanted: BeamTree, within: float = 0.0) -> None:
    """The same nodes with the same parents, and the same numbers to rounding."""
    for one, other in zip(found.steps, wanted.steps, strict=True):
        assert [(n.ids, n.parent, n.finished) for n in one] == [(n.ids, n.parent, n.finished) for n in other]
        numbers = [value for node in other for value in (node.log_probability, node.score)]
        assert [value for node in one for value in (node.log_probability, node.score)] == pytest.approx(
            numbers, abs=within, rel=0
        )
    assert [h.ids for h in found.hypotheses] == [h.ids for h in wanted.hypotheses]
    assert [h.score for h in found.hypotheses] == pytest.approx([h.score for h in wanted.hypotheses], abs=within, rel=0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("alpha", "beta", "best"), [(0.0, 0.0, 1), (1.0, 0.0, 2), (0.7, 0.3, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_a_tree_shows_every_beam_until_the_best_is_overtaken(seed, alpha, beta, best):
    """Also those that cannot win any more, which a search without a tree drops."""
    toy = Toy(dice(seed), glance(seed))
    beam = Beam(4, alpha, beta, n_best=best, max_length=LengthLimit(1.0, 5))
    for source, prefix in zip(SOURCES, [(), (5, 3), (4,)], strict=True):
        tree = beam_tree(toy, source, beam, prefix)
        assert tree == reference_tree(toy, source, beam, prefix)
        assert list(tree.hypotheses) == translate(toy, [source], beam, prefixes=[prefix])[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_so_does_the_tree_of_every_kind_of_model(name):
    made, beam = model(name).double(), Beam(3, 1.0, 0.0 if name == "gru" else 0.2, n_best=2)
    for source in SOURCES:
        assert_same_tree(beam_tree(made, source, beam), reference_tree(made, source, beam), within=1e-9)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize(
    "allowed",
    [Constraints(), Constraints(allowed_next=lambda written: range(2, 9) if len(written) < 3 else ())],
    ids=["free", "stuck"],
)
def test_a_continuation_goes_on_behind_the_end_of_a_line(kind, allowed):
    torch.manual_seed(5)
    heads = 2 if kind == "transformer" else LanguageModelConfig.heads
    made = LanguageModel(LanguageModelConfig(kind=kind, layers=1, model=6, hidden=10, heads=heads), 13).double()
    with torch.no_grad():
        made.bias[2] = 1.5  # EOS, which ends nothing here
    for size in (1, 3, 13, 20):
        tree = continuation_tree(made, [4, 7], size, 5, allowed)
        assert_same_tree(tree, reference_continuation(made, [4, 7], size, 5, allowed), within=1e-9)
        assert any(2 in node.ids[:-1] for step in tree.steps for node in step)
        assert len(tree.steps) == (5 if allowed.allowed_next is None else 3)
        assert not any(h.finished for h in tree.hypotheses)
