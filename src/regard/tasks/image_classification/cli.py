"""`regard image`: classifies images of files, folders and archives."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.progress import with_progress
from regard.tasks.registry import ViewRequest

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models.vision import ChannelCNN, VisionTransformer
    from regard.see.plots.panels import View
    from regard.tasks.image_classification.task import ImageClassifier


@options.with_option_groups
def image(
    model: options.ModelArgument,
    files: Annotated[
        list[str],
        typer.Argument(help="PNG and JPEG files, folders and archives of them, idx files; - reads names from stdin."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write here instead of stdout.")] = None,
    best: Annotated[int, typer.Option("--top-k", "--best", min=1, help="Top-k classes per image.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse images of another size.")] = False,  # noqa: FBT002
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Classify images: file name, class and probability, tab-separated.

    An image of another size is resized to the model's, and converted to greyscale for a greyscale model.

    Example: `regard image run cat.png dog.jpg`

    Example: `regard image run photos --top-k 3 --out classes.tsv`

    Example: `find photos -name "*.png" | regard image run -`
    """
    from regard.tasks.image_classification.task import ImageClassifier

    out = out and options.writable_file(out)
    classifier = load.load(ImageClassifier, model)
    names = [
        name for file in files for name in (options.read_input(None).texts if file == "-" else [file]) if name.strip()
    ]
    images = [one for name in with_progress(names, "reading", len(names)) for one in images_in(name, classifier)]
    if not images:
        raise ValueError("no image given; name a file or a folder, or pass file names on stdin")
    if other := [name for name, pixels in images if not classifier.preprocessor.accepts(pixels)]:
        _, rows, columns = classifier.preprocessor.shape
        if strict:
            raise ValueError(f"{other[0]}: not {rows} x {columns} pixels; resize it, or leave out --strict")
        typer.echo(f"resized: {len(other):,} of {len(images):,} images, to {rows} x {columns} pixels", err=True)
    options.write_lines(prediction_lines(classifier, images, min(best, len(classifier.labels))), out, "classified")


def images_in(name: str, classifier: "ImageClassifier") -> "Sequence[tuple[str, Tensor]]":
    """The images of a file, a folder, an archive or an idx file, with their names."""
    from regard.data.files import ARCHIVES, iter_files
    from regard.data.images import IMAGE_SUFFIXES, decode_image, image_to_tensor, read_idx, read_image
    from regard.tasks.image_classification.task import is_idx

    mode = "RGB" if classifier.preprocessor.channels == 3 else "L"
    if is_idx(name):
        array = read_idx(name)
        if array.dim() != 3:
            raise ValueError(f"{name}: holds an array of {array.dim()} axes, not images (idx3)")
        return [(f"{name}:{n}", pixels[None]) for n, pixels in enumerate(array)]
    if Path(name).is_dir() or name.endswith(ARCHIVES):
        found = [
            (one.where, image_to_tensor(decode_image(one.bytes, one.where, mode=mode)))
            for one in iter_files(name, endings=IMAGE_SUFFIXES)
        ]
        if not found:
            raise ValueError(f"{name}: no images; they end in {', '.join(IMAGE_SUFFIXES)}")
        return found
    return [(name, read_image(name, mode=mode))]


def prediction_lines(classifier: "ImageClassifier", images: "Sequence[tuple[str, Tensor]]", best: int) -> Iterator[str]:
    from regard.tasks.image_classification.task import AT_ONCE

    names = iter(name for name, _ in images)
    batches = classifier.iterate_probabilities([pixels for _, pixels in images])
    for batch in with_progress(batches, "classifying", -(-len(images) // AT_ONCE)):
        most = batch.topk(best)
        for found, chances in zip(most.indices.tolist(), most.values.tolist(), strict=True):
            cells = (f"{classifier.labels.name(n)}\t{chance:.4f}" for n, chance in zip(found, chances, strict=True))
            yield "\t".join((next(names), *cells))


# --- look ---


def view_image(classifier: "ImageClassifier", folder: Path, text: str, request: ViewRequest) -> "tuple[str, View]":
    """`text` is the path of a picture."""
    import torch

    from regard.models.vision import ChannelCNN
    from regard.tasks.image_batches import load_image

    if refused := [name for name in ("word", "target") if getattr(request, name) is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a picture; leave it out")
    pixels = load_image(classifier.preprocessor, text)
    device = next(classifier.model.parameters()).device
    best = classifier.probabilities([pixels])[0].topk(min(3, len(classifier.labels)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    output = f"{text}: " + ", ".join(f"{classifier.labels.name(n)} {100 * p:.1f} %" for n, p in named)
    x = classifier.preprocessor.normalize(pixels[None].to(device))
    with torch.inference_mode():
        if isinstance(classifier.model, ChannelCNN):
            return output, view_gates(classifier.model, x, pixels / 255, request)
        return output, view_patches(classifier.model, x, pixels / 255, request)


def view_patches(model: "VisionTransformer", x: "Tensor", shown: "Tensor", request: ViewRequest) -> "View":
    """By how much each patch enters the vector that is classified: in the last layer, and through all of them."""
    from einops import rearrange, reduce

    from regard import see
    from regard.attention import record_attention
    from regard.models.vision import rollout

    encoder = model.encoder
    with record_attention(model) as record:
        model(x)
    weights = {site.name: record.weights(site.name) for site in record.sites}
    layers = {name: encoder.to_grid(some)[0].cpu() for name, some in weights.items()}
    if request.all_heads:
        return see.overlay_heads_view(shown, layers, title="how much each patch is attended to")
    if request.head is not None:
        layer, head = options.parse_head(request.head, [len(heads) for heads in layers.values()])
        return see.overlay_view(shown, [(f"layer {layer}, head {head}", layers[f"blocks.{layer}"][head])])
    through = rearrange(rollout(list(weights.values())), "b i j -> b 1 i j")
    last = list(layers.values())[-1]
    looks = [
        ("last layer", reduce(last, "h y x -> y x", "mean")),
        ("all layers", encoder.to_grid(through)[0, 0].cpu()),
    ]
    return see.overlay_view(shown, looks, title="how much each patch is attended to")


def view_gates(model: "ChannelCNN", x: "Tensor", shown: "Tensor", request: ViewRequest) -> "View":
    """How much of each place, or of each channel, is let through; of the last block alone, or of every one."""
    from regard import see
    from regard.attention import record_attention

    if request.head is not None:
        raise ValueError(
            f"--head {request.head}: a convolutional network has no heads; use --all-heads for all its blocks"
        )
    with record_attention(model) as record:
        model(x)
    if not (gates := [site.name for site in record.sites]):
        raise ValueError("this network was trained with attention = 'none', so it weighs nothing; train another")
    blocks = {name: record.weights(name)[0].cpu() for name in (gates if request.all_heads else gates[-1:])}
    places = [(name, gate[0]) for name, gate in blocks.items() if gate.shape[1:].numel() > 1]
    channels = [(name, gate[:, 0, 0]) for name, gate in blocks.items() if gate.shape[1:].numel() == 1]
    return see.gates_view(shown, spatial=places, channels=channels, title="how much is let through")


COMMANDS = {"image": image}
FORMER_COMMANDS = {"picture": image}
view = view_image
