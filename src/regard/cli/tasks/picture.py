"""Telling pictures apart, as the commands see it: how a model of pictures is trained, measured and looked into."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, reduce
from torch import Tensor

from regard import see
from regard.cli.options import tracked
from regard.cli.tasks import Looking, Task
from regard.models.convolution import ChannelCNN
from regard.models.vision import VisionTransformer, rollout
from regard.see.panel import View
from regard.tasks.picture import AT_ONCE, PictureSettings, Recogniser, read_pictures_of
from regard.text.images import read_picture
from regard.text.pictures import Picture

SHOWN = 12  # classes whose confusions fit into a table, and confusions that are named where there are more
WIDEST = 8  # letters of a class above its column


@dataclass(frozen=True)
class Measured:
    """What pictures were taken for, by what they are."""

    classes: tuple[str, ...]
    confusions: Counter[tuple[str, str]]
    both_ways: bool
    chosen: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.confusions[one, one] for one in self.classes) / self.confusions.total()

    @property
    def signature(self) -> str:
        return f"pictures:{self.confusions.total()}|seen:{'as it is and mirrored' if self.both_ways else 'as it is'}"

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

    def figures(self) -> dict[str, Any]:
        matrix = {
            one: {other: n for other in self.classes if (n := self.confusions[one, other])} for one in self.classes
        }
        return {"accuracy": self.accuracy, "signature": self.signature, "taken_for": matrix}

    def lines(self) -> list[str]:
        return list(self.chosen)


def measured(recogniser: Recogniser, pictures: Sequence[Picture]) -> Measured:
    for one in pictures:
        recogniser.labels.index(one.label, one.name)
    batches = recogniser.in_batches([one.pixels for one in pictures])
    found = torch.cat(list(tracked(batches, "looking", -(-len(pictures) // AT_ONCE))))
    chosen = tuple(recogniser.labels.name(n) for n in found.argmax(-1).tolist())
    confusions = Counter((one.label, name) for one, name in zip(pictures, chosen, strict=True))
    return Measured(recogniser.labels.names, confusions, recogniser.settings.augment.both_ways, chosen)


# --- looking ---


def look(recogniser: Recogniser, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    """`text` is the path of a picture."""
    if refused := [name for name in ("word", "target") if getattr(asked, name) is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a picture; leave it out")
    pixels = recogniser.sight.fitted(read_picture(text, mode="RGB" if recogniser.sight.channels == 3 else "L"))
    device = next(recogniser.model.parameters()).device
    best = recogniser.probabilities([pixels])[0].topk(min(3, len(recogniser.labels)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    said = f"{text}: " + ", ".join(f"{recogniser.labels.name(n)} {100 * p:.1f} %" for n, p in named)
    x = recogniser.sight.scaled(pixels[None].to(device))
    with torch.inference_mode():
        if isinstance(recogniser.model, ChannelCNN):
            return said, gates_of(recogniser.model, x, pixels / 255, asked)
        return said, patches_of(recogniser.model, x, pixels / 255, asked)


def patches_of(model: VisionTransformer, x: Tensor, shown: Tensor, asked: Looking) -> View:
    """By how much each patch enters the vector that is judged: in the last layer, and through all of them."""
    encoder, (_, looked) = model.encoder, model.look(x)
    layers = {name: encoder.onto_grid(weights)[0].cpu() for name, weights in looked.weights.items()}
    if asked.every:
        return see.overlay_heads(shown, layers, title="how much each patch is looked at")
    if asked.head is not None:
        layer, head = chosen_head(asked.head, [len(heads) for heads in layers.values()])
        return see.overlay(shown, [(f"layer {layer}, head {head}", layers[f"layer.{layer}"][head])])
    through = rearrange(rollout(list(looked.weights.values())), "b i j -> b 1 i j")
    last = list(layers.values())[-1]
    looks = [
        ("last layer", reduce(last, "h y x -> y x", "mean")),
        ("all layers", encoder.onto_grid(through)[0, 0].cpu()),
    ]
    return see.overlay(shown, looks, title="how much each patch is looked at")


def gates_of(model: ChannelCNN, x: Tensor, shown: Tensor, asked: Looking) -> View:
    """How much of each place, or of each channel, is let through; of the last block alone, or of every one."""
    if asked.head is not None:
        raise ValueError(f"--head {asked.head}: a convolutional network has no heads; use --every for all its blocks")
    _, weights = model.look(x)
    if not weights:
        raise ValueError("this network was trained with attention = 'none', so it weighs nothing; train another")
    names = list(weights) if asked.every else list(weights)[-1:]
    blocks = {name: weights[name][0].cpu() for name in names}
    places = [(name, gate[0]) for name, gate in blocks.items() if gate.shape[1:].numel() > 1]
    channels = [(name, gate[:, 0, 0]) for name, gate in blocks.items() if gate.shape[1:].numel() == 1]
    return see.gates(shown, places=places, channels=channels, title="how much is let through")


def chosen_head(text: str, heads: Sequence[int]) -> tuple[int, int]:
    layer, _, head = text.partition(":")
    if not (layer.isdecimal() and head.isdecimal() and int(layer) < len(heads) and int(head) < heads[int(layer)]):
        raise ValueError(
            f"--head {text}: write LAYER:HEAD, counted from 0: layers to {len(heads) - 1}, heads to {heads[0] - 1}"
        )
    return int(layer), int(head)


PICTURE = Task(
    settings=PictureSettings,
    examples="pictures",
    read=read_pictures_of,
    fresh=Recogniser.fresh,
    described=Recogniser.described,
    load=Recogniser.load,
    measure=measured,
    look=look,
    reads="the file of a picture",
    tries=lambda folder: ("evaluate", folder),
)
