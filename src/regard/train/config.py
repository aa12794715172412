"""Training settings: the table [train] of a run, its values checked."""

from dataclasses import dataclass
from math import inf
from typing import cast

from regard.models.config_base import check_choice

# what each number of [train] may be: at least, and below
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "batch_size", "max_length", "gradient_accumulation"), (1, inf)),
    **dict.fromkeys(("validate_every", "checkpoint_every", "average_checkpoints", "keep_checkpoints"), (1, inf)),
    **dict.fromkeys(("warmup_steps", "patience", "seed", "max_grad_norm", "weight_decay", "rdrop"), (0, inf)),
    "label_smoothing": (0, 1),
    "learning_rate": (1e-12, inf),
}


DERIVED_FROM_STEPS = cast(int, None)  # until the settings are made


def warmup_for(steps: int) -> int:
    """A tenth of the run, and 500 steps at most: a run that is all warm-up never learns at its own rate."""
    return min(500, max(1, steps // 10))


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained."""

    steps: int = 10_000
    batch_size: int = 4096  # tokens in a batch, padding included; of images, how many
    gradient_accumulation: int = 1  # batches whose gradients are added up in a step
    schedule: str = "cosine"  # noam, cosine or constant
    learning_rate: float = 1e-3  # the peak; for noam the factor
    warmup_steps: int = DERIVED_FROM_STEPS  # up to the peak; left out, they follow from `steps`
    label_smoothing: float = 0.1
    rdrop: float = 0.0  # how much two passes under different dropout must agree (R-Drop)
    max_grad_norm: float = 1.0  # gradients are clipped to it; 0 clips nothing
    weight_decay: float = 0.0
    seed: int = 0
    precision: str = "float32"  # bfloat16, float16; bf16-pure: bfloat16 from beginning to end, for what is packed
    max_length: int = 256  # ids on a side; longer examples are left out of training
    validate_every: int = 500
    checkpoint_every: int = 500
    best_metric: str = "loss"  # the best checkpoint is kept: the one with the least loss, or the most accuracy
    patience: int = 0
    deterministic: bool = True  # only algorithms that give the same bits every time; a few models have none on a GPU
    average_checkpoints: int = 1  # whose weights are averaged in the end
    keep_checkpoints: int = 2  # the newest, besides the best: more, to look at training afterwards
    packed: bool = False  # no padding: sentences one behind the other, in any order; for a Transformer that translates
    cuda_graph: bool = False  # a batch's work (packed, the whole step) is captured once and replayed
    compile: bool = False  # kernels made for a packed model's layers; after an interruption last bits may differ

    def __post_init__(self):
        if self.warmup_steps is DERIVED_FROM_STEPS:
            object.__setattr__(self, "warmup_steps", warmup_for(self.steps))
        check_choice("train.schedule", self.schedule, ("noam", "cosine", "constant"))
        check_choice("train.best_metric", self.best_metric, ("loss", "accuracy"))
        if self.precision == "bf16-pure" and not self.packed:
            raise ValueError(
                "train.precision = 'bf16-pure' is made for packed batches; say packed = true as well, or precision = "
                "'bfloat16'"
            )
        if self.compile and not self.packed:
            raise ValueError("train.compile = true wants batches of one shape; say packed = true as well")
        if self.compile and self.deterministic:
            raise ValueError(
                "train.compile = true: kernels made anew after an interruption may differ in their last bits; "
                "say deterministic = false as well"
            )
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) < most:
                below = "" if most == inf else f" and below {most}"
                raise ValueError(f"train.{name} = {getattr(self, name)} should be at least {least}{below}")
