"""Pictures in files, folders, archives or named by a pipe in; a class with its probability for each of them out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Checkpoint, Device, Model, device_of, file_for, texts_in, tracked
from regard.cli.translate import write

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tasks.picture import Recogniser


def picture(
    model: Model,
    files: Annotated[
        list[str], typer.Argument(help="PNG and JPEG files, folders and archives of them, idx files; - reads names.")
    ],
    out: Annotated[Path | None, typer.Option(help="Write here instead of the terminal.")] = None,
    best: Annotated[int, typer.Option(min=1, help="So many classes for each picture, the most probable first.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse pictures of another size.")] = False,  # noqa: FBT002
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say what each picture shows: its name, a class and the probability, with tabs between.

    A picture of another size is resized to what the model reads, one in colours made grey for a model of grey ones.

    Example: `regard picture run cat.png dog.jpg`

    Example: `regard picture run photos --best 3 --out classes.tsv`

    Example: `find photos -name "*.png" | regard picture run -`
    """
    from regard.tasks.picture import Recogniser

    out = out and file_for(out)
    recogniser = Recogniser.load(model, device_of(device), checkpoint)
    names = [name for file in files for name in (texts_in(None).texts if file == "-" else [file]) if name.strip()]
    given = [one for name in tracked(names, "reading", len(names)) for one in pictures_in(name, recogniser)]
    if not given:
        raise ValueError("there is no picture; name a file or a folder, or pipe names of files")
    if other := [name for name, pixels in given if not recogniser.sight.reads(pixels)]:
        _, rows, columns = recogniser.sight.shape
        if strict:
            raise ValueError(f"{other[0]}: not {rows} x {columns} pixels; resize it, or leave out --strict")
        typer.echo(f"resized: {len(other):,} of {len(given):,} pictures, to {rows} x {columns} pixels", err=True)
    write(lines(recogniser, given, min(best, len(recogniser.labels))), out, "looked at")


def pictures_in(name: str, recogniser: "Recogniser") -> "Sequence[tuple[str, Tensor]]":
    """One file is one picture; a folder or an archive holds any number, an idx file many."""
    from regard.tasks.picture import is_idx
    from regard.text.idx import read_idx
    from regard.text.images import ENDINGS, decode, read_picture, tensor_of
    from regard.text.trees import ARCHIVES, files_under

    mode = "RGB" if recogniser.sight.channels == 3 else "L"
    if is_idx(name):
        array = read_idx(name)
        if array.dim() != 3:
            raise ValueError(f"{name}: holds an array of {array.dim()} axes, not pictures (idx3)")
        return [(f"{name}:{n}", pixels[None]) for n, pixels in enumerate(array)]
    if Path(name).is_dir() or name.endswith(ARCHIVES):
        found = [
            (one.where, tensor_of(decode(one.bytes, one.where, mode=mode)))
            for one in files_under(name, endings=ENDINGS)
        ]
        if not found:
            raise ValueError(f"{name}: no pictures; they end in {', '.join(ENDINGS)}")
        return found
    return [(name, read_picture(name, mode=mode))]


def lines(recogniser: "Recogniser", given: "Sequence[tuple[str, Tensor]]", best: int) -> Iterator[str]:
    from regard.tasks.picture import AT_ONCE

    names = iter(name for name, _ in given)
    batches = recogniser.in_batches([pixels for _, pixels in given])
    for batch in tracked(batches, "looking", -(-len(given) // AT_ONCE)):
        most = batch.topk(best)
        for found, chances in zip(most.indices.tolist(), most.values.tolist(), strict=True):
            cells = (f"{recogniser.labels.name(n)}\t{chance:.4f}" for n, chance in zip(found, chances, strict=True))
            yield "\t".join((next(names), *cells))
