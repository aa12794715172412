"""Explanation methods on the miniature world, where the right answer is known, beside raw attention.

    python benchmarks/methods.py --run out/microscope/transformer      a run of `regard train`; English to French
    python benchmarks/methods.py --run out/microscope/transformer --times   how long they take: methods-times.json

Held-out sentences are translated under force. Each method gives every source word a score for one target word:
alignment: is the best the word that it translates (AER)? deletion: how much log-probability is lost where the best one,
two, three or four are replaced by the average token? decider: of an ambiguous word's translation, is the best word
(itself apart) the one that decides its sense? Methods that score heads weight the heads' attention by what they found.
The logit lens scores no words: of it, the share of words that it gets right behind each layer. Writes
results/methods.json.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
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
    HeadEffects,
    PredictionTarget,
    ablate_heads,
    attention_flow,
    attention_rollout,
    attention_times_gradient,
    attribute_tokens,
    gradient_times_input,
    leave_one_out,
    logit_contributions,
    logit_lens,
    patch_activations,
    prediction_target,
    value_weighted,
    value_zeroing,
)
from regard.see.methods.attribution import TokenVectors, embed
from regard.see.methods.prediction import frozen_model, log_probabilities
from regard.see.trace import select_initial
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.translation.task import TASK, Translator
from regard.world import World
from regard.world.world import Ambiguity, Sentence

LONGEST = 10  # words of a sentence
DELETED = 4  # words


@dataclass(frozen=True, eq=False)
class Case:
    """A held-out sentence, its forced translation, the run's best head, and a sentence of as many words."""

    sentence: Sentence
    trace: Trace
    site: str
    head: int
    other: Trace

    @property
    def last(self) -> str:
        return [name for name in self.trace.attention_names if name.endswith("cross")][-1]

    def cross(self) -> Tensor:
        return weights_of(self, self.last).mean(0)


@cache
def weights_of(case: Case, name: str) -> Tensor:
    site = case.trace.site(name)
    return torch.stack([site.weights(head) for head in range(site.heads)])


@cache
def through_encoder(case: Case, method: Callable[[Trace, str], Tensor]) -> Tensor:
    return method(case.trace, "source").float()


@cache
def zeroed(case: Case) -> Tensor:
    return value_zeroing(case.trace)[case.last]


def by_heads(case: Case, row: int, effects: Callable[[str, int], float]) -> Tensor:
    """The weights of every cross-attention head, each as much as the method says of it; none where that is below 0."""
    names = [name for name in case.trace.attention_names if name.endswith("cross")]
    some = [(name, head) for name in names for head in range(len(weights_of(case, name)))]
    return torch.stack([max(effects(*one), 0.0) * weights_of(case, one[0])[one[1], row] for one in some]).sum(0)


def ablated(case: Case, found: HeadEffects) -> Tensor:
    return by_heads(case, found.target.row, lambda name, head: float(found.effects[name][head]))


def contributed(case: Case, row: int, option: int) -> Tensor:
    parts = logit_contributions(case.trace, row, option).parts
    return by_heads(case, row, lambda name, head: parts[f"{name}.head {head}"])


def patched(case: Case, row: int, option: int) -> Tensor:
    """How much of this word's lead over what the other sentence gives each state behind the encoder brings back."""
    instead = next(n for n in case.other.predictions.logits[row].argsort(descending=True).tolist() if n != option)
    found = patch_activations(case.trace, case.other, row, options=(option, instead))
    last = max(n for n, name in enumerate(found.layers) if name.startswith("encoder"))
    return found.effects[last, : len(case.trace.axes["source"].labels)]


def any_order(case: Case, row: int) -> Tensor:
    """What knows nothing: words in any order."""
    seed = torch.Generator().manual_seed(1000 * len(case.sentence.words) + row)
    return torch.rand(len(case.trace.axes["source"].labels), generator=seed)


Scores = Callable[[Case, int, int], Tensor]  # of every source token, for one option of one row
METHODS: dict[str, Scores] = {
    "words in any order": lambda case, row, option: any_order(case, row),
    "attention, best head": lambda case, row, option: case.trace.site(case.site).weights(case.head)[row],
    "attention, last layer": lambda case, row, option: case.cross()[row],
    "rollout of the encoder": lambda case, row, option: case.cross()[row] @ through_encoder(case, attention_rollout),
    "flow of the encoder": lambda case, row, option: case.cross()[row] @ through_encoder(case, attention_flow),
    "value norms": lambda case, row, option: value_weighted(case.trace, case.last).sum(0)[row],
    "value zeroing": lambda case, row, option: zeroed(case)[row],
    "attention × gradient": lambda case, row, option: attention_times_gradient(case.trace, row, option)[case.last].sum(
        0
    )[row],
    "gradient × input": lambda case, row, option: gradient_times_input(case.trace, row, option).scores["source"].abs(),
    "integrated gradients": lambda case, row, option: (
        attribute_tokens(case.trace, row, option, steps=16).scores["source"].abs()
    ),
    "leave one out": lambda case, row, option: leave_one_out(case.trace, row, option).scores["source"],
    "head ablation, zero": lambda case, row, option: ablated(case, ablate_heads(case.trace, row, option)),
    "head ablation, mean": lambda case, row, option: ablated(case, ablate_heads(case.trace, row, option, by="mean")),
    "contributions of heads": contributed,
    "activation patching": patched,
}


def cases(model: PretrainedModel, run: Path, wanted: Callable[[Sentence], bool]) -> Iterator[Case]:
    """Held-out sentences whose every word is one token, so that words and tokens are counted alike."""
    world = World()
    for number in count():
        sentence = world.sentence(number, "valid")
        if len(sentence.words) > LONGEST or not wanted(sentence):
            continue
        target = sentence.text("fr")
        trace = trace_model(model, sentence.text(), target=target)
        lengths = len(trace.axes["source"].labels) - 1, len(trace.predictions.rows) - 1
        first = select_initial(trace, run)
        if lengths == (len(sentence.words), len(sentence.renderings["fr"].words)) and first is not None:
            yield Case(sentence, trace, first.site, first.head, another(model, world, number, target, lengths[0]))


def another(model: PretrainedModel, world: World, number: int, target: str, words: int) -> Trace:
    """The next sentence of as many words, each of them one token, with the same forced translation."""
    for other in (world.sentence(n, "valid").text() for n in count(number + 1)):
        if len(other.split()) == words:
            trace = trace_model(model, other, target=target)
            if len(trace.axes["source"].labels) == words + 1:
                return trace
    raise AssertionError("the world has no end")


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
    """By row, the log-probability lost without the best token, without the best two, and so on."""
    found = []
    for row, option in enumerate(forced_options(case)):
        best = rows[row, :-1].argsort(descending=True).tolist()
        target = prediction_target(case.trace, row, option)
        with frozen_model(case.trace):
            (before,) = log_probabilities(case.trace, target)
            found.append([before - after for after in without(case.trace, target, best[:DELETED])])
    return found


def without(trace: Trace, target: PredictionTarget, tokens: list[int]) -> list[float]:
    """Of the target, without the first of these tokens, without the first two, and so on: a copy for each."""

    def change(call: int, x: TokenVectors) -> Tensor:
        vectors = x.vectors.clone()
        for copy in range(0 if call else DELETED):
            vectors[copy, tokens[: copy + 1]] = x.average()
        return vectors

    with embed(trace, change):
        return log_probabilities(trace, target, DELETED)


def decided(case: Case, scores: Scores, ambiguity: Ambiguity) -> bool:
    row = ambiguous_row(case)
    found = scores(case, row, forced_options(case)[row])[:-1].clone()
    found[ambiguity.index] = -torch.inf
    return int(found.argmax()) == ambiguity.decider


def ambiguity_of(sentence: Sentence) -> Ambiguity | None:
    aligned = {here for here, _ in sentence.renderings["fr"].alignment}
    return next((one for one in sentence.ambiguities if "fr" in one.languages and one.index in aligned), None)


def lens_rows(plain: list[Case], unclear: list[Case]) -> list[dict[str, Any]]:
    """Behind each layer, the share of all words, and of ambiguous ones, whose translation is the best already."""
    found = []
    for layer in range(len(logit_lens(plain[0].trace).layers)):
        right = [one for case in plain for one in lens_hits(case, layer)]
        clear = [lens_hits(case, layer)[ambiguous_row(case)] for case in unclear]
        name = logit_lens(plain[0].trace).layers[layer]
        found.append({"layer": name, "words": sum(right) / len(right), "ambiguous": sum(clear) / len(clear)})
    return found


@cache
def lens_best(case: Case) -> Tensor:
    return logit_lens(case.trace).logits.argmax(-1)


def lens_hits(case: Case, layer: int) -> list[bool]:
    return [int(lens_best(case)[layer, row]) == option for row, option in enumerate(forced_options(case))]


def ambiguous_row(case: Case) -> int:
    ambiguity = ambiguity_of(case.sentence)
    assert ambiguity is not None
    return next(there for here, there in sorted(case.sentence.renderings["fr"].alignment) if here == ambiguity.index)


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
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--ambiguous", type=int, default=400)
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
    about: dict[str, Any] = {"sentences": len(plain), "ambiguous": len(unclear), "decider_by_chance": chance}
    about["lens"] = lens_rows(plain, unclear)
    rows = []
    for name, scores in METHODS.items():
        start = time.process_time()
        found = [score_rows(case, scores) for case in plain]
        seconds = (time.process_time() - start) / sum(map(len, found))
        aer = reduce(lambda a, b: a + b, (links(*each) for each in zip(plain, found, strict=True))).error
        lost = torch.tensor([row for each in zip(plain, found, strict=True) for row in losses(*each)]).mean(0).tolist()
        hits = [decided(case, scores, one) for case in unclear if (one := ambiguity_of(case.sentence)) is not None]
        share = sum(hits) / len(hits)
        rows.append({"method": name, "aer": aer, "lost": lost, "decider": share, "seconds": seconds})
        curve = ", ".join(f"{x:.2f}" for x in lost)
        print(f"{name:24} AER {aer:.3f}   lost {curve} nats   decider {share:.2f}   {seconds:.3f} s", flush=True)
        write("methods", f"python benchmarks/methods.py {shlex.join(sys.argv[1:])}", rows, **about)
    print(about)


if __name__ == "__main__":
    main()
