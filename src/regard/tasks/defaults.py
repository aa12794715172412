"""Data-dependent defaults: batch size, vocabulary size and number of steps for so many examples.

    examples     tokens in a batch     pieces             passes over the data
    n            512; from 250 on      two thirds of n,   20 · √(30,000 / n), from 2 to 100;
                 1,024, 2,500 2,048,   500 to 8,000       in steps 250 to 100,000
                 25,000 4,096

A piece must be seen a few dozen times to be learnt; a sentence pair has about two dozen, so there should be fewer
pieces than pairs. Few examples ask for small batches, because many uncertain steps teach more than few exact ones, and
for more passes, though less work in all: a hundred times the examples are shown a tenth as often. More passes than a
model needs do no harm but take time: it is validated twenty times, and the checkpoint with the least held-out loss is
kept, so what it learns by heart after that is thrown away.

What is given on the command line is never changed; recipes and the miniature world bring figures of their own.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from regard.tasks.config import RunSettings
from regard.train.config import TrainSettings, warmup_for

LINE = 80  # characters: running text counts as if it had lines of so many
VALIDATIONS = 20
LEAST_STEPS, MOST_STEPS = 250, 100_000


def effective_examples(examples: Sequence[Any]) -> int:
    """How many there are; of running text, whose lines may be as long as they like, in lines of the usual length."""
    texts = [one for one in examples if isinstance(one, str)]
    return max(len(examples), sum(map(len, texts)) // LINE)


def batch_tokens_for(examples: int) -> int:
    return 512 << sum(examples >= limit for limit in (250, 2_500, 25_000))


def vocabulary_size_for(examples: int) -> int:
    return min(8000, max(500, round(examples * 2 / 3000) * 1000))


def epochs_for(examples: int) -> float:
    return min(100.0, max(2.0, 20 * sqrt(30_000 / examples)))


def steps_for(examples: int, epoch: int) -> int:
    """So many steps make an epoch."""
    return min(MOST_STEPS, max(LEAST_STEPS, round(epochs_for(examples) * epoch)))


def fit_to_data(settings: RunSettings, examples: int, given: Collection[str]) -> RunSettings:
    """Batches and pieces for so many examples, but for what was given; never more than is usual for the task."""
    changes: dict[str, Any] = {}
    if "train.batch_size" not in given:
        tokens = min(settings.train.batch_size, max(batch_tokens_for(examples), 2 * settings.train.max_length))
        changes["train"] = replace(settings.train, batch_size=tokens)
    if "text" in settings.table_names() and "text.vocab_size" not in given:
        text = vars(settings)["text"]
        if text.kind in ("bpe", "unigram"):
            changes["text"] = replace(text, vocab_size=min(text.vocab_size, vocabulary_size_for(examples)))
    return replace(settings, **changes)  # type: ignore[type-var]


def plan_steps(train: TrainSettings, examples: int, epoch: int, given: Collection[str]) -> TrainSettings:
    """Steps, and what follows from them, but for what was given; so many steps make an epoch."""
    steps = train.steps if "train.steps" in given else steps_for(examples, epoch)
    often = min(train.validate_every, max(10, steps // VALIDATIONS))
    follows = {
        "steps": steps,
        "warmup_steps": warmup_for(steps),
        "validate_every": often,
        "checkpoint_every": min(train.checkpoint_every, often),
    }
    return replace(train, **{name: value for name, value in follows.items() if f"train.{name}" not in given})
