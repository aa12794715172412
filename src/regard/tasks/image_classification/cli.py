"""Image classification on the command line: accuracy, confusion matrix, and views of attention over patches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, reduce
from torch import Tensor

from regard import see
from regard.attention import record_attention
from regard.cli.options import with_progress
from regard.data.images.labelled_images import LabelledImage, read_image
from regard.models.convolution import ChannelCNN
from regard.models.vision import VisionTransformer, rollout
from regard.see.plots.panels import View
from regard.tasks.image_classification.data import ImageClassificationSettings, read_labelled_images
from regard.tasks.image_classification.task import AT_ONCE, ImageClassifier
from regard.tasks.registry import Task, ViewRequest

SHOWN = 12  # classes whose confusions fit into a table, and confusions that are named where there are more
WIDEST = 8  # letters of a class above its column


@dataclass(frozen=True)
class ImageClassificationMetrics:
    """What pictures were taken for, by what they are."""

    classes: tuple[str, ...]
    confusions: Counter[tuple[str, str]]
    flip_at_test: bool
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.confusions[one, one] for one in self.classes) / self.confusions.total()

    @property
    def signature(self) -> str:
        return f"pictures:{self.confusions.total()}|seen:{'as it is and mirrored' if self.flip_at_test else 'as it is'}"

    def table(self) -> str:
        wide = max(map(len, self.classes))
        lines = [f"accuracy {self.accuracy:.2f} %   {self.signature}", ""]
        totals = {one: sum(self.confusions[one, other] for other in self.classes) for one in self.classes}
        if len(self.classes) > SHOWN:
            wrong = [(pair, n) for pair, n in self.confusions.most_common() if pair[0] != pair[1]]
            taken = (f"{one:<{wide}} taken for {other:<{wide}} {n:,} of {totals[one]:,}" for (one, other), n in wrong)
            return "\n".join([*lines, *list(taken)[:SHOWN]])
        columns = [one[:WIDEST] for one in self.classes]
        cell = max(map(len, (*columns, *(f"{n:,}" for n in totals.values()))))
        lines.append(" " * wide + "".join(f"  {one:>{cell}}" for one in columns) + "   right")
        for one in self.classes:
            counts = "".join(f"  {self.confusions[one, other] or '·':>{cell}}" for other in self.classes)
            right = f"{100 * self.confusions[one, one] / totals[one]:6.2f} %" if totals[one] else "     none"
            lines.append(f"{one:<{wide}}{counts}  {right}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        matrix = {
            one: {other: n for other in self.classes if (n := self.confusions[one, other])} for one in self.classes
        }
        return {"accuracy": self.accuracy, "signature": self.signature, "taken_for": matrix}

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_image_classifier(
    recogniser: ImageClassifier, pictures: Sequence[LabelledImage]
) -> ImageClassificationMetrics:
    for one in pictures:
        recogniser.labels.index(one.label, one.name)
    batches = recogniser.iterate_probabilities([one.pixels for one in pictures])
    found = torch.cat(list(with_progress(batches, "looking", -(-len(pictures) // AT_ONCE))))
    chosen = tuple(recogniser.labels.name(n) for n in found.argmax(-1).tolist())
    confusions = Counter((one.label, name) for one, name in zip(pictures, chosen, strict=True))
    return ImageClassificationMetrics(
        recogniser.labels.names, confusions, recogniser.settings.augment.flip_at_test, chosen
    )


# --- looking ---


def view_image(recogniser: ImageClassifier, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """`text` is the path of a picture."""
    if refused := [name for name in ("word", "target") if getattr(asked, name) is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a picture; leave it out")
    pixels = recogniser.sight.fit(read_image(text, mode="RGB" if recogniser.sight.channels == 3 else "L"))
    device = next(recogniser.model.parameters()).device
    best = recogniser.probabilities([pixels])[0].topk(min(3, len(recogniser.labels)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    said = f"{text}: " + ", ".join(f"{recogniser.labels.name(n)} {100 * p:.1f} %" for n, p in named)
    x = recogniser.sight.normalize(pixels[None].to(device))
    with torch.inference_mode():
        if isinstance(recogniser.model, ChannelCNN):
            return said, view_gates(recogniser.model, x, pixels / 255, asked)
        return said, view_patches(recogniser.model, x, pixels / 255, asked)


def view_patches(model: VisionTransformer, x: Tensor, shown: Tensor, asked: ViewRequest) -> View:
    """By how much each patch enters the vector that is judged: in the last layer, and through all of them."""
    encoder = model.encoder
    with record_attention(model) as record:
        model(x)
    weights = {site.name: record.weights(site.name) for site in record.sites}
    layers = {name: encoder.to_grid(some)[0].cpu() for name, some in weights.items()}
    if asked.all_heads:
        return see.overlay_heads_view(shown, layers, title="how much each patch is looked at")
    if asked.head is not None:
        layer, head = parse_head(asked.head, [len(heads) for heads in layers.values()])
        return see.overlay_view(shown, [(f"layer {layer}, head {head}", layers[f"blocks.{layer}"][head])])
    through = rearrange(rollout(list(weights.values())), "b i j -> b 1 i j")
    last = list(layers.values())[-1]
    looks = [
        ("last layer", reduce(last, "h y x -> y x", "mean")),
        ("all layers", encoder.to_grid(through)[0, 0].cpu()),
    ]
    return see.overlay_view(shown, looks, title="how much each patch is looked at")


def view_gates(model: ChannelCNN, x: Tensor, shown: Tensor, asked: ViewRequest) -> View:
    """How much of each place, or of each channel, is let through; of the last block alone, or of every one."""
    if asked.head is not None:
        raise ValueError(
            f"--head {asked.head}: a convolutional network has no heads; use --all-heads for all its blocks"
        )
    with record_attention(model) as record:
        model(x)
    if not (gates := [site.name for site in record.sites]):
        raise ValueError("this network was trained with attention = 'none', so it weighs nothing; train another")
    blocks = {name: record.weights(name)[0].cpu() for name in (gates if asked.all_heads else gates[-1:])}
    places = [(name, gate[0]) for name, gate in blocks.items() if gate.shape[1:].numel() > 1]
    channels = [(name, gate[:, 0, 0]) for name, gate in blocks.items() if gate.shape[1:].numel() == 1]
    return see.gates_view(shown, spatial=places, channels=channels, title="how much is let through")


def parse_head(text: str, heads: Sequence[int]) -> tuple[int, int]:
    layer, _, head = text.partition(":")
    if not (layer.isdecimal() and head.isdecimal() and int(layer) < len(heads) and int(head) < heads[int(layer)]):
        raise ValueError(
            f"--head {text}: write LAYER:HEAD, counted from 0: layers to {len(heads) - 1}, heads to {heads[0] - 1}"
        )
    return int(layer), int(head)


IMAGE_CLASSIFICATION = Task(
    settings=ImageClassificationSettings,
    examples="pictures",
    read=read_labelled_images,
    from_examples=ImageClassifier.from_examples,
    from_description=ImageClassifier.from_description,
    load=ImageClassifier.load,
    evaluate=evaluate_image_classifier,
    view=view_image,
    input_description="the file of a picture",
    suggested_command=lambda folder: ("evaluate", folder),
)
