"""Explanation methods on the miniature world, where the right answer is known, beside raw attention.

    python benchmarks/methods.py --run out/microscope/transformer      a run of `regard train`; English to French
    python benchmarks/methods.py --run out/microscope/transformer --times   how long they take: methods-times.json

Held-out sentences are translated under force. Each method gives every source word a score for one target word:
alignment: is the best the word that it translates (AER)? deletion: how much log-probability is lost where the best one
or two are replaced by the average token? decider: of an ambiguous word's translation, is the best word (itself apart)
the one that decides its sense? Writes results/methods.json.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from machine import write
from regard.decode.alignment import AlignmentCounts, argmax_links, count_links
from regard.see import Trace, corpus_statistics, held_out_sentences, trace_model
from regard.see.methods import (
    PredictionTarget,
    ablate_heads,
    attention_rollout,
    attention_times_gradient,
    attribute_tokens,
    gradient_times_input,
    leave_one_out,
    prediction_target,
    value_weighted,
)
from regard.see.methods.attribution import TokenVectors, embed
from regard.see.methods.prediction import frozen_model, log_probabilities
from regard.see.trace import select_initial
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.translation.task import TASK, Translator
from regard.world import World
from regard.world.world import Ambiguity, Sentence

LONGEST = 10  # words of a sentence


@dataclass(frozen=True, eq=False)
class Case:
    """A held-out sentence, its forced translation, and the run's best head."""

    sentence: Sentence
    trace: Trace
    site: str
    head: int

    @property
    def last(self) -> str:
        return [name for name in self.trace.attention_names if name.endswith("cross")][-1]

    def cross(self) -> Tensor:
        site = self.trace.site(self.last)
        return torch.stack([site.weights(head) for head in range(site.heads)]).mean(0)


Scores = Callable[[Case, int, int], Tensor]  # of every source token, for one option of one row
METHODS: dict[str, Scores] = {
    "attention, best head": lambda case, row, option: case.trace.site(case.site).weights(case.head)[row],
    "attention, last layer": lambda case, row, option: case.cross()[row],
    "rollout of the encoder": lambda case, row, option: case.cross()[row] @ attention_rollout(case.trace, "source"),
    "value norms": lambda case, row, option: value_weighted(case.trace, case.last).sum(0)[row],
    "attention × gradient": lambda case, row, option: attention_times_gradient(case.trace, row, option)[case.last].sum(
        0
    )[row],
    "gradient × input": lambda case, row, option: gradient_times_input(case.trace, row, option).scores["source"].abs(),
    "leave one out": lambda case, row, option: leave_one_out(case.trace, row, option).scores["source"],
    "integrated gradients": lambda case, row, option: (
        attribute_tokens(case.trace, row, option, steps=8).scores["source"].abs()
    ),
}


def cases(model: PretrainedModel, run: Path, wanted: Callable[[Sentence], bool]) -> Iterator[Case]:
    """Held-out sentences whose every word is one token, so that words and tokens are counted alike."""
    world = World()
    for number in count():
        sentence = world.sentence(number, "valid")
        if len(sentence.words) > LONGEST or not wanted(sentence):
            continue
        trace = trace_model(model, sentence.text(), target=sentence.text("fr"))
        lengths = len(trace.axes["source"].labels) - 1, len(trace.predictions.rows) - 1
        first = select_initial(trace, run)
        if lengths == (len(sentence.words), len(sentence.renderings["fr"].words)) and first is not None:
            yield Case(sentence, trace, first.site, first.head)


def forced_options(case: Case) -> list[int]:
    """The token of every row, less the end."""
    assert case.trace.output_ids is not None
    return list(case.trace.output_ids)[: len(case.trace.predictions.rows) - 1]


def score_rows(case: Case, scores: Scores) -> Tensor:
    return torch.stack([scores(case, row, option) for row, option in enumerate(forced_options(case))])


# --- three questions ---


def links(case: Case, rows: Tensor) -> AlignmentCounts:
    return count_links(case.sentence.renderings["fr"].alignment, frozenset(), argmax_links(rows))


def losses(case: Case, rows: Tensor) -> list[list[float]]:
    """By row, the log-probability lost without the best token, and without the best two."""
    found = []
    for row, option in enumerate(forced_options(case)):
        best = rows[row, :-1].argsort(descending=True).tolist()
        target = prediction_target(case.trace, row, option)
        with frozen_model(case.trace):
            (before,) = log_probabilities(case.trace, target)
            found.append([before - without(case.trace, target, best[: n + 1]) for n in range(2)])
    return found


def without(trace: Trace, target: PredictionTarget, tokens: list[int]) -> float:
    def change(call: int, x: TokenVectors) -> Tensor:
        return (
            x.vectors if call else x.vectors.index_copy(1, torch.tensor(tokens), x.average().expand(1, len(tokens), -1))
        )

    with embed(trace, change):
        return log_probabilities(trace, target)[0]


def decided(case: Case, scores: Scores, ambiguity: Ambiguity) -> bool:
    row = next(there for here, there in sorted(case.sentence.renderings["fr"].alignment) if here == ambiguity.index)
    found = scores(case, row, forced_options(case)[row])[:-1].clone()
    found[ambiguity.index] = -torch.inf
    return int(found.argmax()) == ambiguity.decider


def ambiguity_of(sentence: Sentence) -> Ambiguity | None:
    aligned = {here for here, _ in sentence.renderings["fr"].alignment}
    return next((one for one in sentence.ambiguities if "fr" in one.languages and one.index in aligned), None)


# --- times ---


PROMISED = {"ablation": 2.0, "BERT": 20.0, "gradients": 3.0, "corpus": 60.0}  # seconds, on two cores
CORPUS = 1000


def bert_base() -> PretrainedModel:
    """BERT's own size, random weights: what its heads are worth takes as long to find."""
    from transformers import BertConfig, BertForMaskedLM

    from regard.interop.huggingface.tasks import HuggingFaceTaskModel
    from watching import tokenizer_of_words

    torch.manual_seed(0)
    return HuggingFaceTaskModel.of(BertForMaskedLM(BertConfig()).eval(), tokenizer_of_words())


def times(model: Translator, repeats: int) -> Iterator[dict[str, Any]]:
    """Each so many times, and of the whole: of the wall and of the processor, in seconds."""
    from watching import sentence

    trace = trace_model(model, "the black cat ate the mouse")
    long, corpus = trace_model(bert_base(), sentence(64)), held_out_sentences(model, CORPUS)
    heads = [sum(one.site(name).heads for name in one.attention_names) for one in (trace, long)]
    jobs: dict[str, tuple[str, Callable[[], object]]] = {
        f"head-ablation map of {heads[0]} heads, the demo's sentence": ("ablation", lambda: ablate_heads(trace)),
        f"head-ablation map of {heads[1]} heads, BERT-base size, 64 tokens": ("BERT", lambda: ablate_heads(long)),
        "integrated gradients of 32 steps, the demo's sentence": (
            "gradients",
            lambda: attribute_tokens(trace, steps=32),
        ),
        f"statistics of {len(corpus):,} sentences": ("corpus", lambda: corpus_statistics(model, corpus)),
        f"the same, translated first, beam {TASK.beam}": (
            "corpus",
            lambda: corpus_statistics(model, [one.text for one in corpus]),
        ),
    }
    for what, (bound, run) in jobs.items():
        wall, busy = [], []
        for _ in range(repeats):
            start, processor = time.perf_counter(), time.process_time()
            run()
            wall.append(time.perf_counter() - start)
            busy.append(time.process_time() - processor)
        numbers = {"median_s": median(wall), "most_s": max(wall), "processor_s": median(busy)}
        print(f"{what:70} {median(wall):7.2f} s   promised {PROMISED[bound]:.0f} s", flush=True)
        yield {"what": what} | numbers | {"promised_s": PROMISED[bound], "times": repeats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--ambiguous", type=int, default=40)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(2 if given.times else 1)
    model = Translator.load(given.run)
    if given.times:
        rows = list(times(model, given.repeats))
        write("methods-times", f"python benchmarks/methods.py {shlex.join(sys.argv[1:])}", rows, threads=2)
        return
    plain = list(islice(cases(model, given.run, lambda one: True), given.sentences))
    unclear = list(islice(cases(model, given.run, lambda one: ambiguity_of(one) is not None), given.ambiguous))
    chance = sum(1 / (len(case.sentence.words) - 1) for case in unclear) / len(unclear)
    about = {"sentences": len(plain), "ambiguous": len(unclear), "decider_by_chance": chance}
    rows = []
    for name, scores in METHODS.items():
        start = time.process_time()
        found = [score_rows(case, scores) for case in plain]
        seconds = (time.process_time() - start) / sum(map(len, found))
        aer = reduce(lambda a, b: a + b, (links(*each) for each in zip(plain, found, strict=True))).error
        lost = [row for each in zip(plain, found, strict=True) for row in losses(*each)]
        lost = torch.tensor(lost).mean(0).tolist()
        hits = [decided(case, scores, one) for case in unclear if (one := ambiguity_of(case.sentence)) is not None]
        share = sum(hits) / len(hits)
        rows.append(
            {"method": name, "aer": aer, "lost_1": lost[0], "lost_2": lost[1], "decider": share, "seconds": seconds}
        )
        print(f"{name:24} AER {aer:.3f}   lost {lost[0]:.2f}, {lost[1]:.2f} nats   decider {share:.2f}", flush=True)
        write("methods", f"python benchmarks/methods.py {shlex.join(sys.argv[1:])}", rows, **about)
    print(about)


if __name__ == "__main__":
    main()
