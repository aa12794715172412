"""The tables of a run's settings: what text, training and the data of translation can be told."""

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, cast

from regard.models.config import ModelConfig
from regard.tasks.tables import From, Tables, one_of


@dataclass(frozen=True, kw_only=True)
class DataSettings(From):
    """Sentence pairs; files are one .tsv or .jsonl, or two text files.

    The corpus `stories` has English on both sides: stories of `longest` words, and what they tell of one person; to
    train on, also of half as many words, of a quarter and so on.
    """

    source: str = "en"
    target: str = "fr"
    sentences: int = 60_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How text becomes ids."""

    kind: str = "bpe"  # bpe, unigram, words or characters
    size: int = 8000
    joint: bool = True  # one vocabulary for both sides
    lower: bool = False
    source_language: str = ""  # en, de or fr: punctuation becomes words of its own; "" leaves text as it is
    target_language: str = ""

    def __post_init__(self):
        one_of("text.kind", self.kind, ("bpe", "unigram", "words", "characters"))


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How text of one language becomes ids."""

    kind: str = "bpe"  # bpe, unigram, words, characters or bytes
    size: int = 8000
    lower: bool = False
    language: str = ""  # en, de or fr: punctuation becomes words of its own; "" leaves text as it is

    def __post_init__(self):
        one_of("text.kind", self.kind, ("bpe", "unigram", "words", "characters", "bytes"))


# what each number of [train] may be: at least, and below
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "tokens", "longest", "accumulate", "average", "keep"), (1, inf)),
    **dict.fromkeys(("validate_every", "checkpoint_every"), (1, inf)),
    **dict.fromkeys(("warmup", "patience", "seed", "clip", "decay", "consistency"), (0, inf)),
    "smoothing": (0, 1),
    "rate": (1e-12, inf),
}


FROM_STEPS = cast(int, None)  # until the settings are made


def warmup_for(steps: int) -> int:
    """A tenth of the run, and 500 steps at most: a run that is all warm-up never learns at its own rate."""
    return min(500, max(1, steps // 10))


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained."""

    steps: int = 10_000
    tokens: int = 4096  # in a batch, padding included; of pictures, how many
    accumulate: int = 1  # batches whose gradients are added up in a step
    schedule: str = "cosine"  # noam, cosine or constant
    rate: float = 1e-3  # the peak; for noam the factor
    warmup: int = FROM_STEPS  # steps up to the peak; left out, it follows from `steps`
    smoothing: float = 0.1
    consistency: float = 0.0  # how much two passes under different dropout must agree (R-Drop)
    clip: float = 1.0
    decay: float = 0.0
    seed: int = 0
    precision: str = "float32"  # bfloat16, float16; narrow: bfloat16 from beginning to end, for what is packed
    longest: int = 256  # ids on a side; longer examples are left out of training
    validate_every: int = 500
    checkpoint_every: int = 500
    best: str = "loss"  # the best checkpoint is kept: the one with the least loss, or the most accuracy
    patience: int = 0
    exact: bool = True  # only algorithms that give the same bits every time; a few models have none on a GPU
    average: int = 1  # checkpoints whose weights are averaged in the end
    keep: int = 2  # the newest checkpoints that stay, besides the best: more, to look at training afterwards
    packed: bool = False  # no padding: sentences one behind the other, in any order; for a Transformer that translates
    capture: bool = False  # a batch's work (packed, the whole step) is recorded once, and told to a GPU as one
    compile: bool = False  # kernels made for a packed model's layers; after an interruption last bits may differ

    def __post_init__(self):
        if self.warmup is FROM_STEPS:
            object.__setattr__(self, "warmup", warmup_for(self.steps))
        one_of("train.schedule", self.schedule, ("noam", "cosine", "constant"))
        one_of("train.best", self.best, ("loss", "accuracy"))
        if self.precision == "narrow" and not self.packed:
            raise ValueError(
                "train.precision = 'narrow' is made for packed batches; say packed = true as well, or precision = "
                "'bfloat16'"
            )
        if self.compile and not self.packed:
            raise ValueError("train.compile = true wants batches of one shape; say packed = true as well")
        if self.compile and self.exact:
            raise ValueError(
                "train.compile = true: kernels made anew after an interruption may differ in their last bits; "
                "say exact = false as well"
            )
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) < most:
                below = "" if most == inf else f" and below {most}"
                raise ValueError(f"train.{name} = {getattr(self, name)} should be at least {least}{below}")


@dataclass(frozen=True, kw_only=True)
class Settings(Tables):
    """Of translation."""

    task: ClassVar[str] = "translate"

    data: DataSettings = field(default_factory=DataSettings)
    text: TextSettings = field(default_factory=TextSettings)
    model: ModelConfig = field(default_factory=lambda: ModelConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self):
        if self.train.capture and not self.train.packed:
            raise ValueError("train.capture = true wants batches of one shape; say packed = true as well")

    @classmethod
    def of_world(cls):
        """French, as the miniature world speaks it, in a minute."""
        rotary = 'position = "Rotary()"'
        return cls(
            data=DataSettings(sentences=40_000, longest=7),
            text=TextSettings(kind="words", joint=False),
            model=ModelConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, encoder=rotary, decoder=rotary
            ),
            # small batches: where nothing is ambiguous for long, many steps teach more than exact ones
            train=TrainSettings(
                steps=3300, tokens=384, rate=8e-3, warmup=100, smoothing=0.0, decay=0.1, validate_every=825
            ),
        )
