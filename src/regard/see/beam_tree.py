"""Beam tree: every hypothesis that a beam search kept, step by step, read from its backpointers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from regard.attention.learned_parts import field_values
from regard.decode.beam import Beam, BeamSearch
from regard.decode.beam_decoder import ModelBeams
from regard.decode.search import Constraints, DecodingRequest, Hypothesis
from regard.decode.stepwise import PartialHypothesis
from regard.decode.text_generation import continuation_search
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import DecodableModel, inference_mode


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
    """The nodes of every step, open ones first, best first; and what was found in the end, best first.

    Examples:
        >>> tree = trace_model("run", "the cat sleeps", beam=2).beam_tree()
        >>> len(tree.steps[0]), tree.steps[0][0].parent
        (2, None)
        >>> tree.hypotheses[0].ids[:1] in [node.ids[:1] for node in tree.steps[0]]
        True
    """

    steps: tuple[tuple[BeamNode, ...], ...]
    hypotheses: tuple[Hypothesis, ...]

    def on_best_path(self, node: BeamNode) -> bool:
        """Is the node a prefix of the best hypothesis?"""
        best_ids = self.hypotheses[0].ids
        return best_ids == node.ids if node.finished else best_ids[: len(node.ids)] == node.ids


def beam_tree(model: DecodableModel, source: tuple[int, ...], beam: Beam, prefix: tuple[int, ...] = ()) -> BeamTree:
    """The beam search of one sentence alone; it finds what `beam.run` finds."""
    requests = [DecodingRequest(source, prefix)]
    with inference_mode(model):
        decoder = ModelBeams.begin(model, requests, beam.size, beam.coverage_penalty)
        return run_tree(BeamSearch.begin(decoder, beam, requests, Constraints()))


def continuation_tree(
    model: LanguageModel, prompt: Sequence[int], size: int, tokens: int, allowed: Constraints
) -> BeamTree:
    """The beam search for so many tokens after a text. As in all generation, nothing ends before."""
    with inference_mode(model):
        return run_tree(continuation_search(model, prompt, Beam(size, n_best=size), tokens, allowed))


def run_tree(search: BeamSearch) -> BeamTree:
    """A search of one sentence, run to its end; beams that can no longer win are shown too."""
    search.beams = replace(search.beams, prune=False)
    [hypotheses] = search.run()
    return BeamTree(tuple(tree_steps(search)), tuple(hypotheses))


def tree_steps(search: BeamSearch) -> Iterator[tuple[BeamNode, ...]]:
    history = field_values(search.beams.backpointers)
    tokens, parents, values, scores = (part[: search.steps, 0].tolist() for part in history)
    rows = [PartialHypothesis(DecodingRequest(()))]
    for step, candidates in enumerate(zip(tokens, parents, values, scores, strict=True)):
        before, rows, opened, ended = rows, [], [], []
        for token, parent, value, score in zip(*candidates, strict=True):
            index = parent if step else None
            if token == search.beams.eos:
                one = before[parent].finish(value, score)
                ended.append(BeamNode(one.ids, index, one.log_probability, finished=True, score=score))
            elif token >= 0:
                rows.append(row := before[parent].extend(token, value))
                opened.append(BeamNode(row.tokens, index, row.total, finished=False, score=row.total))
        if opened or ended:
            yield (*opened, *ended)
