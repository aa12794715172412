"""Training configuration: the settings [train] of a run, what the loop is given of them, and the job to train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from regard.attention import ContentPattern, choice_loss, record_attention
from regard.models.config_base import (
    AT_LEAST_0,
    AT_LEAST_1,
    FRACTION,
    Choices,
    Range,
    Ranges,
    SettingsTable,
    check_value,
)
from regard.training.step import ConstantSchedule, CosineSchedule, NoamSchedule, Schedule

PRECISIONS = ("float32", "bfloat16", "float16", "bf16-pure")
PARALLEL = ("ddp", "fsdp")
DERIVED_FROM_STEPS = cast(int, None)  # until the settings are made


def warmup_for(steps: int) -> int:
    """A tenth of the run, and 500 steps at most: a run that is all warm-up never learns at its own rate."""
    return min(500, max(1, steps // 10))


@dataclass(frozen=True, kw_only=True)
class TrainSettings(SettingsTable):
    """How a model is trained.

    Args:
        steps: updates of the weights; left out on the command line, they follow from the number of examples.
        batch_size: tokens in a batch, padding included; of images, how many.
        gradient_accumulation: batches whose gradients are added up in a step.
        schedule: how the learning rate changes: cosine (warm-up, then half a cosine down to 0), noam (Vaswani et al.
            2017) or constant.
        learning_rate: the peak of the schedule; with noam its factor.
        warmup_steps: steps up to the peak; left out, a tenth of `steps`, and 500 at most.
        label_smoothing: the share of probability that is spread over all labels.
        rdrop: how much two passes under different dropout must agree (R-Drop); 0 makes one pass.
        max_grad_norm: gradients are clipped to this norm; 0 clips nothing.
        weight_decay: by how much AdamW shrinks matrices, times the learning rate.
        seed: decides the initial weights, the order of examples and dropout.
        precision: in which matrix products are computed: float32, bfloat16 or float16; bf16-pure is bfloat16
            throughout, for packed batches.
        max_length: tokens on a side; longer examples are left out of training.
        validate_every: steps between two validations.
        checkpoint_every: steps between two checkpoints.
        best_metric: chooses the best checkpoint: the least loss, the most accuracy (of labels) or the most BLEU (of
            translations).
        patience: stops after so many validations without a better one; 0 never stops.
        deterministic: only algorithms that give the same bits every time; a few models have none on a GPU.
        average_checkpoints: the newest ones whose weights are averaged in the end; 1 takes the best checkpoint instead.
        keep_checkpoints: the newest ones that are kept, besides the best; more, to look at training afterwards.
        packed: no padding: sentences one behind the other, in any order; for a Transformer that translates.
        cuda_graph: on a GPU, a batch's work (packed, the whole step) is captured once and replayed.
        parallel: how several processes (torchrun) hold a model: ddp, each all of it; fsdp, each a part of every weight
            and of the optimiser's state, for models that do not fit.
        compile: kernels made for a packed model's layers; after an interruption the last bits may differ.
    """

    choices: ClassVar[Choices] = {
        "schedule": ("noam", "cosine", "constant"),
        "best_metric": ("loss", "accuracy", "bleu"),
        "precision": PRECISIONS,
        "parallel": PARALLEL,
    }
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(("steps", "batch_size", "max_length", "gradient_accumulation"), AT_LEAST_1),
        **dict.fromkeys(("validate_every", "checkpoint_every", "average_checkpoints", "keep_checkpoints"), AT_LEAST_1),
        **dict.fromkeys(("max_grad_norm", "weight_decay", "rdrop"), AT_LEAST_0),
        "label_smoothing": FRACTION,
        "learning_rate": Range(1e-12),
    }

    steps: int = 10_000
    batch_size: int = 4096
    gradient_accumulation: int = 1
    schedule: str = "cosine"
    learning_rate: float = 1e-3
    warmup_steps: int = DERIVED_FROM_STEPS
    label_smoothing: float = 0.1
    rdrop: float = 0.0
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0
    precision: str = "float32"
    max_length: int = 256
    validate_every: int = 500
    checkpoint_every: int = 500
    best_metric: str = "loss"
    patience: int = 0
    deterministic: bool = True
    average_checkpoints: int = 1
    keep_checkpoints: int = 2
    packed: bool = False
    cuda_graph: bool = False
    parallel: str = "ddp"
    compile: bool = False

    def __post_init__(self):
        if self.warmup_steps is DERIVED_FROM_STEPS and isinstance(self.steps, int):
            object.__setattr__(self, "warmup_steps", warmup_for(self.steps))
        self.check()
        if self.precision == "bf16-pure" and not self.packed:
            raise ValueError(
                "precision = 'bf16-pure' is made for packed batches; say packed = true as well, or precision = "
                "'bfloat16'"
            )
        if self.parallel == "fsdp" and (self.cuda_graph or self.precision == "bf16-pure"):
            what = "cuda_graph = true" if self.cuda_graph else "precision = 'bf16-pure'"
            raise ValueError(f"{what} needs the whole model on each GPU, and parallel = 'fsdp' divides it; use 'ddp'")
        if self.compile and not self.packed:
            raise ValueError("compile = true wants batches of one shape; say packed = true as well")
        if self.compile and self.deterministic:
            raise ValueError(
                "compile = true: kernels made anew after an interruption may differ in their last bits; "
                "say deterministic = false as well"
            )

    @property
    def derived_keys(self):
        return ("warmup_steps",) if self.warmup_steps == warmup_for(self.steps) else ()


@dataclass(frozen=True)
class TrainConfig:
    """How the loop trains: the settings as it reads them, with the schedule they name.

    Examples:
        >>> config = TrainConfig(ConstantSchedule(peak=0.001), steps=1000, validate_every=300)
        >>> config.validations_between(0, 1000)  # after 300, 600, 900 and 1000
        4
    """

    schedule: Schedule
    steps: int
    seed: int = 0
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    # "bfloat16" and "float16" use torch's autocast; "bf16-pure" master weights and a bfloat16 copy
    precision: str = "float32"
    validate_every: int = 500
    checkpoint_every: int = 500
    best: str = "loss"  # the validation figure that selects the best checkpoint: the lowest loss, else the highest
    patience: int = 0  # stop after so many validations without a better one; 0 never stops
    keep: int = 5
    deterministic: bool = True  # deterministic algorithms only; a few models have none on a GPU
    cuda_graph: bool = False  # on a GPU, capture the backward pass as a CUDA graph for each shape of a batch
    capture_step: bool = False  # on a GPU, capture the whole step, the optimiser included; for steps of one batch
    parallel: str = "ddp"  # of several processes: each holds the model ("ddp"), or a part of it ("fsdp")

    def __post_init__(self):
        check_value("precision", self.precision, str, PRECISIONS)
        check_value("parallel", self.parallel, str, PARALLEL)
        for name in ("steps", "validate_every", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def validations_between(self, first: int, last: int) -> int:
        """How many validations follow step `first` until step `last`, the end of the run included."""
        ends = last == self.steps and last % self.validate_every != 0
        return last // self.validate_every - first // self.validate_every + ends


def make_train_config(train: TrainSettings, width: int) -> TrainConfig:
    return TrainConfig(
        make_schedule(train, width),
        train.steps,
        seed=train.seed,
        clip=train.max_grad_norm,
        weight_decay=train.weight_decay,
        precision=train.precision,
        validate_every=train.validate_every,
        checkpoint_every=train.checkpoint_every,
        best=train.best_metric,
        patience=train.patience,
        deterministic=train.deterministic,
        cuda_graph=train.cuda_graph,
        # packed batches have one shape
        capture_step=train.cuda_graph and train.packed and train.gradient_accumulation == 1,
        parallel=train.parallel,
        keep=max(2, train.average_checkpoints, train.keep_checkpoints),  # the one before, should the newest be damaged
    )


def make_schedule(train: TrainSettings, width: int) -> Schedule:
    match train.schedule:
        case "noam":
            return NoamSchedule(width, train.warmup_steps, train.learning_rate)
        case "cosine":
            return CosineSchedule(train.learning_rate, train.steps, min(train.warmup_steps, train.steps - 1))
        case _:
            return ConstantSchedule(train.learning_rate, train.warmup_steps)


# --- the job ---


class TrainingData(Protocol):
    """Micro-batches for every step, by epoch and index, whatever came before.

    Examples:
        >>> from pathlib import Path
        >>> class Line:  # y = 2 x, in steps of two micro-batches
        ...     def steps(self, epoch):
        ...         return 10
        ...     def at(self, epoch, index):
        ...         x = torch.linspace(-1, 1, 8).view(2, 4, 1)
        ...         return [(part, 2 * part) for part in x]
        >>> def loss(model, batch):
        ...     x, y = batch
        ...     return ((model(x) - y) ** 2).sum(), len(x)
        >>> layer = torch.nn.Linear(1, 1)
        >>> reports = list(train(layer, Line(), loss, TrainConfig(ConstantSchedule(0.1), steps=80), Path("line")))
        >>> len(reports), round(layer.weight.item()), reports[-1].tokens
        (80, 2, 8)
    """

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has."""
        ...

    def at(self, epoch: int, index: int) -> Sequence[Any]:
        """The micro-batches whose gradients are added up in one step."""
        ...


VARIABLE_SHAPES = "its batches have many shapes, and a CUDA graph has one"

# A batch's summed loss and the number of tokens (or labels) it was summed over.
Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]


@dataclass(frozen=True)
class LossWithChoices:
    """A loss; beside it the patterns that choose keys by weights of their own learn, which the figures do not count."""

    loss: Loss

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        with record_attention(model) as record:
            summed, count = self.loss(model, batch)
        unseen = choice_loss(record)
        return (summed if unseen is None else summed + count * (unseen - unseen.detach())), count


def with_choice_loss(model: nn.Module, loss: Loss) -> Loss:
    """The loss of a model, some of whose patterns may have weights to learn."""
    return LossWithChoices(loss) if any(isinstance(part, ContentPattern) for part in model.modules()) else loss


def to_float32(logits: Tensor) -> Tensor:
    """At least float32: the softmax of a loss needs it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


Validate = Callable[[nn.Module], dict[str, float]]  # a model to its figures on held-out data


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A model to train, and on what.

    Args:
        validate: figures on held-out data, by the names in `figures`.
        width: of the model, by which Noam's schedule is scaled.
        describe: writes all but the weights into the run folder, and returns the checksum that is saved with the
            weights.
        left_out: examples that are too long, training and held out.
        flops: additions and multiplications that a token of the loss asks for, forwards and backwards; None where
            nobody has counted.
        capture_objection: why a step cannot be captured as a CUDA graph; "" where it can.
        figures: what `validate` finds, by any of which the best checkpoint can be chosen.
        shard_objection: why the rows of a batch cannot be shared among processes; "" where they can.
    """

    model: nn.Module
    data: TrainingData
    loss: Loss
    validate: Validate
    train: TrainSettings
    width: int
    describe: Callable[[Path], str]
    left_out: int = 0
    flops: float | None = None
    capture_objection: str = VARIABLE_SHAPES
    figures: tuple[str, ...] = ("loss",)
    shard_objection: str = ""
