"""A fresh or half-trained translator and its pairs in; a folder with the finished one out, going on if interrupted.

A run's folder holds settings.toml and both tokenisers from the start, checkpoints/ while it runs, and in the end
model.safetensors: the mean of the last checkpoints, or the best of them.
"""

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from regard.models.weights import load_weights, write_weights
from regard.tasks.settings import Settings, TrainSettings
from regard.tasks.translate import Corpus, Translator, loss_of, validation, vocabularies
from regard.text.batches import Example
from regard.text.corpus import Pair
from regard.train.checkpoint import average, checkpoints, whole
from regard.train.claim import claimed
from regard.train.loop import Plan, Report, train
from regard.train.schedule import Constant, Cosine, Noam, Schedule


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything a run needs: what to train, on what, where."""

    translator: Translator
    corpus: Corpus
    held_out: Sequence[Example] = field(repr=False)
    folder: Path
    device: str = "cpu"
    left_out: int = 0  # pairs that are too long, training and held out

    @staticmethod
    def of(
        translator: Translator, pairs: Sequence[Pair], held_out: Sequence[Pair], folder: Path, device: str = "cpu"
    ) -> "Fit":
        longest = translator.settings.train.longest
        corpus = Corpus.of(translator.examples(pairs), translator.settings, device)
        kept = [example for example in translator.examples(held_out) if max(map(len, example)) <= longest]
        if not kept:
            raise ValueError(f"of {len(held_out)} held-out pairs none is within train.longest = {longest}; raise it")
        translator.model.to(device)
        left_out = len(corpus.batches.dropped) + len(held_out) - len(kept)
        return Fit(translator, corpus, kept, folder, device, left_out)

    @property
    def plan(self) -> Plan:
        return plan_of(self.translator.settings)

    @property
    def done(self) -> int:
        """The step of the newest checkpoint."""
        return max((int(path.name) for path in checkpoints(self.folder / "checkpoints") if whole(path)), default=0)

    def steps(self) -> Generator[Report]:
        """Train, a report for each step; leaving early saves. The finished model is written at the end."""
        loss = loss_of(self.translator.settings.train)
        with claimed(self.folder):  # all of it, since whoever comes second would describe another run
            self.translator.describe(self.folder)
            yield from train(self.translator.model, self.corpus, loss, self.plan, self.folder, self.validate)
            finish(self.translator, self.folder)

    def validate(self, model) -> dict[str, float]:
        return validation(model, self.held_out, device=self.device)


def finish(translator: Translator, folder: Path) -> None:
    """The weights to keep: the mean of the newest checkpoints, or of one only the best that validation found."""
    count = translator.settings.train.average
    paths = [path for path in checkpoints(folder / "checkpoints") if whole(path)]
    best = json.loads((paths[-1] / "state.json").read_text())["progress"]["best_step"]
    chosen = paths[-count:] if count > 1 else [path for path in paths if int(path.name) == best] or paths[-1:]
    final = folder / "model.safetensors"
    write_weights(average(chosen), final, vocabularies(folder))
    load_weights(translator.model, final)
    translator.model.eval()


# --- the plan ---

# what each number of [train] may be: at least, and below
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "tokens", "longest", "accumulate", "average"), (1, inf)),
    **dict.fromkeys(("validate_every", "checkpoint_every"), (1, inf)),
    **dict.fromkeys(("warmup", "patience", "seed", "clip", "decay", "consistency"), (0, inf)),
    "smoothing": (0, 1),
    "rate": (1e-12, inf),
}


def plan_of(settings: Settings) -> Plan:
    """The plan that the settings describe; numbers that make no sense are refused before anything is read."""
    train = settings.train
    for name, (least, most) in RANGES.items():
        if not least <= getattr(train, name) < most:
            below = "" if most == inf else f" and below {most}"
            raise ValueError(f"train.{name} = {getattr(train, name)} should be at least {least}{below}")
    return Plan(
        schedule_of(train, settings.model.model),
        train.steps,
        seed=train.seed,
        clip=train.clip,
        weight_decay=train.decay,
        precision=train.precision,
        validate_every=train.validate_every,
        checkpoint_every=train.checkpoint_every,
        patience=train.patience,
        exact=train.exact,
        keep=max(2, train.average),  # the one before, should the newest be torn
    )


def schedule_of(train: TrainSettings, width: int) -> Schedule:
    match train.schedule:
        case "noam":
            return Noam(width, train.warmup, train.rate)
        case "cosine":
            return Cosine(train.rate, train.steps, min(train.warmup, train.steps - 1))
        case _:
            return Constant(train.rate, train.warmup)
