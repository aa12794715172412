"""Pictures that belong to classes in; a trained model that tells them apart out, and pictures to classes with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.models.convolution import ChannelCNN
from regard.models.picture_config import PictureConfig, build_picture_model
from regard.models.vision import VisionTransformer
from regard.tasks.data import Read, Sources, Split, divided, read_from
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.settings import TrainSettings
from regard.tasks.shown import AugmentSettings, Making, Shown, Shuffled, Told, refuse_consistency
from regard.tasks.tables import From, Tables, one_of
from regard.text.idx import read_idx_pictures
from regard.text.images import MODES, each_picture, stacked
from regard.text.known import find, known
from regard.text.labelled import Labels
from regard.text.pictures import Picture, from_scenes
from regard.text.sight import Sight
from regard.text.trees import within
from regard.world.shapes import ShapeWorld

HELD_OUT = 12  # of a known corpus that has no pictures to validate on, every twelfth to train on
AT_ONCE = 500  # pictures, when nothing is learnt
CLOTHES = "T-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
IDX = {"mnist": tuple("0123456789"), "fashion_mnist": tuple(CLOTHES.split())}
CORPORA = (*IDX, "cifar10")


@dataclass(frozen=True, kw_only=True)
class PictureData(From):
    """Pictures: a folder or archive with one folder for each class, or two idx files, of pictures and of labels."""

    pictures: int = 6000  # for the world: how many, each with one shape
    mode: str = "RGB"  # of folders: RGB, or L for grey
    rows: int = 0  # of folders: to resize to; 0 leaves pictures as they are
    columns: int = 0

    def __post_init__(self):
        one_of("data.mode", self.mode, MODES)
        if self.pictures < 1 or min(self.rows, self.columns) < 0 or (self.rows > 0) != (self.columns > 0):
            raise ValueError(
                f"data.pictures = {self.pictures}, data.rows = {self.rows}, data.columns = {self.columns}: there is "
                "at least one picture, and a size to resize to has both rows and columns"
            )

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.rows, self.columns) if self.rows else None


@dataclass(frozen=True, kw_only=True)
class PictureSettings(Tables):
    """Of telling pictures apart."""

    task: ClassVar[str] = "picture"

    data: PictureData = field(default_factory=PictureData)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    model: PictureConfig = field(default_factory=lambda: PictureConfig.named("vit", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(tokens=128))

    def __post_init__(self):
        refuse_consistency(self.train)

    @classmethod
    def of_world(cls):
        """Circles, squares and triangles, in colours that training never showed them in, in a minute."""
        return cls(
            data=PictureData(pictures=4000),
            augment=AugmentSettings(flip=True, grey=0.5),
            model=PictureConfig(kind="vit", patch=4, layers=3, model=48, heads=4, hidden=96),
            train=TrainSettings(steps=600, tokens=48, rate=3e-3, warmup=100, smoothing=0.0, validate_every=150),
        )


# --- reading ---


def read_pictures_of(settings: PictureSettings, split: Split, folder: Path | None = None) -> Read[Picture]:
    """The pictures of a split."""
    data = settings.data

    def of_world(split: Split, count: int | None) -> list[Picture]:
        world = ShapeWorld(fewest=1, most=1)
        return list(from_scenes([world.scene(number, split) for number in range(count or data.pictures)]))

    def of_known(name: str, split: Split, folder: Path | None) -> list[Picture]:
        part = known_pictures(name, "test" if split == "test" else "train", folder)
        return list(part) if split == "test" else divided(part, split, HELD_OUT)

    sources = Sources(
        world=of_world,
        files=lambda paths: Read(given_pictures(paths, data)),
        known=of_known,
        examples="pictures",
        files_called=lambda split: (
            f'{split} = ["photos/{split}"], a folder that holds one for each class, or two idx files; '
            f"on the command line --{split} photos/{split}"
        ),
    )
    return read_from(sources, data, split, folder)


def given_pictures(paths: Sequence[str], data: PictureData) -> list[Picture]:
    """Of idx files, two of them, or of folders and archives; "set.tar:train" is the folder train in an archive."""
    if all(is_idx(path) for path in paths):
        if len(paths) != 2:
            raise ValueError(f"{paths[0]}: idx files come in twos: pictures (idx3) first, then labels (idx1)")
        return list(read_idx_pictures(*paths))
    found = []
    for path in paths:
        if is_idx(path):
            raise ValueError(f"{path}: an idx file among folders; give two idx files, or folders and archives")
        place, inside = within(path)
        found += each_picture(place, inside=inside, mode=data.mode, size=data.size)
    return found


def is_idx(path: str) -> bool:
    return "-idx" in Path(path).name or Path(path).name.partition(".")[2].startswith("idx")


@lru_cache(maxsize=1)  # of the same pictures some are to train on, some to validate on
def known_pictures(name: str, part: str, folder: Path | None) -> tuple[Picture, ...]:
    """As published: to train on, or to test on."""
    corpus = known(name)
    if name not in CORPORA:
        raise ValueError(f"{name} holds no pictures of classes; choose from {', '.join(CORPORA)}")
    if name in IDX:
        files = [find(corpus, [one], folder) for one in corpus.parts if one.split == part]
        return tuple(read_idx_pictures(*files, classes=IDX[name]))
    return tuple(each_picture(find(corpus, corpus.parts, folder), inside=part))


# --- training ---


@dataclass(frozen=True, eq=False)
class PictureBatch:
    """Pictures as the model reads them, what they are, and what the rest of each is that is not its own."""

    pixels: Float[Tensor, "b c h w"]
    labels: Int[Tensor, " b"]
    others: Int[Tensor, " b"]
    share: Float[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class ShownPictures:
    """The batches of every step: what is told of them, and what the device makes of that."""

    shown: Shown
    labels: Int[Tensor, " n"]
    rows: Shuffled

    def steps(self, epoch: int) -> int:
        return self.rows.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[Told, int]]:
        return [(self.shown.told(rows, epoch), len(rows)) for rows in self.rows.at(epoch, index)]

    def made(self, told: Told) -> PictureBatch:
        pixels, others, share = self.shown.mixed(told)
        return PictureBatch(pixels, self.labels[told[:, 0]], self.labels[others], share)


def picture_loss(smoothing: float):
    """Cross-entropy summed over the pictures; of a mixture, that of each part by its share."""

    def loss(model: nn.Module, batch: tuple[PictureBatch, int]) -> tuple[Tensor, int]:
        given, count = batch
        logits = model(given.pixels).float()
        own, rest = (
            cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
            for labels in (given.labels, given.others)
        )
        return (given.share * own + (1 - given.share) * rest).sum(), count

    return loss


@dataclass(frozen=True, eq=False)
class Recogniser(Kept):
    """A model with how it sees and the classes it knows."""

    model: VisionTransformer | ChannelCNN
    sight: Sight
    labels: Labels
    settings: PictureSettings

    @staticmethod
    def fresh(pictures: Sequence[Picture], settings: PictureSettings) -> "Recogniser":
        """Size, scale and classes from the pictures, and a model with new weights."""
        labels = Labels.of(one.label for one in pictures)
        if len(labels) < 2:
            raise ValueError(f"all {len(pictures)} pictures are {labels.names[0]!r}; give pictures of two classes")
        return Recogniser.of(Sight.of(stacked((one.name, one.pixels) for one in pictures)), labels, settings)

    @staticmethod
    def of(sight: Sight, labels: Labels, settings: PictureSettings) -> "Recogniser":
        torch.manual_seed(settings.train.seed)
        return Recogniser(build_picture_model(settings.model, sight.shape, len(labels)), sight, labels, settings)

    def job(self, pictures: Sequence[Picture], held_out: Sequence[Picture], device: str = "cpu", /) -> Job:
        train, augment = self.settings.train, self.settings.augment
        shown = Shown(self.sight.strictly(pictures).to(device), self.sight, augment, train.seed)
        data = ShownPictures(shown, self.numbers(pictures).to(device), Shuffled.of(len(pictures), train))
        held, labels = self.sight.strictly(held_out).to(device), self.numbers(held_out).to(device)
        return Job(
            self.model.to(device),
            data,
            Making(data.made, picture_loss(train.smoothing)),
            lambda model: validation(model, self.sight, held, labels),
            train,
            self.settings.model.model if self.settings.model.kind == "vit" else self.settings.model.width,
            self.describe,
            unrecorded="",
        )

    def numbers(self, pictures: Sequence[Picture]) -> Int[Tensor, " n"]:
        return torch.tensor([self.labels.index(one.label, one.name) for one in pictures])

    def probabilities(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Float[Tensor, "n classes"]:
        """Of every class, for pictures of any size; with both_ways the mean of a picture's and its mirror image's."""
        return torch.cat([*self.in_batches(pictures), torch.zeros(0, len(self.labels))])

    def in_batches(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Iterator[Float[Tensor, "n classes"]]:
        device = next(self.model.parameters()).device
        for first in range(0, len(pictures), AT_ONCE):
            some = torch.stack([self.sight.fitted(one) for one in pictures[first : first + AT_ONCE]])
            x = self.sight.scaled(some.to(device))
            with torch.inference_mode():
                ways = (x, x.flip(-1)) if self.settings.augment.both_ways else (x,)
                yield torch.stack([self.model(way).double().softmax(-1) for way in ways]).mean(0).float().cpu()

    @property
    def parts(self) -> dict[str, Sight | Labels]:
        return {"sight": self.sight, "labels": self.labels}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, PictureSettings)
        return Recogniser.of(Sight.load(folder / "sight.json"), Labels.load(folder / "labels.json"), settings)


def validation(
    model: nn.Module, sight: Sight, pixels: UInt8[Tensor, "n c h w"], labels: Int[Tensor, " n"]
) -> dict[str, float]:
    """The mean negative log-probability of what a held-out picture is, and the share of pictures that are right."""
    logits = torch.cat([model(sight.scaled(some)).float() for some in pixels.split(AT_ONCE)])
    right = (logits.argmax(-1) == labels).float().mean()
    return {"loss": cross_entropy(logits, labels).item(), "accuracy": right.item()}
