"""A trained model and sentence pairs in; BLEU, chrF and exact matches with signatures, and BLEU by length, out."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    FILES,
    BeamSize,
    CoveragePenalty,
    DataFolder,
    Device,
    LengthPenalty,
    Longest,
    Model,
    Split,
    device_of,
    file_for,
    search_of,
)


def evaluate(
    model: Model,
    pairs: Annotated[list[str] | None, typer.Option(help=FILES)] = None,
    split: Annotated[Split, typer.Option(help="Of the data it was trained with.")] = "valid",
    beam: BeamSize = 5,
    length_penalty: LengthPenalty = 1.0,
    coverage_penalty: CoveragePenalty = 0.0,
    save: Annotated[Path | None, typer.Option(help="Write the figures as JSON here.")] = None,
    translations: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    longest: Longest = 1000,
    data: DataFolder = None,
    device: Device = "auto",
) -> None:
    """Measure a model on held-out pairs.

    Example: `regard evaluate run`

    Example: `regard evaluate run --pairs test.en --pairs test.de --save figures.json`
    """
    import json

    from regard.cli.check import refuse_long
    from regard.cli.measure import measured
    from regard.tasks.data import given_pairs, read_split
    from regard.tasks.translate import Translator
    from regard.text.files import write_whole

    save, translations = save and file_for(save), translations and file_for(translations)
    translator = Translator.load(model, device_of(device))
    settings = translator.settings.data
    given = (given_pairs(pairs, settings) if pairs else read_split(settings, split, data)).pairs
    named = pairs or [f"{settings.corpus}, {split}"]
    if not given:
        raise ValueError(f"{' and '.join(named)}: no pair to measure on; give at least one")
    sources = translator.source.encode_all(pair.source for pair in given)
    refuse_long(sources, lambda number: f"pair {number}", longest)
    search = search_of(beam, length_penalty, coverage_penalty)
    found = measured(translator, given, search)
    typer.echo(found.table())
    if translations:
        write_whole(translations, "".join(f"{line}\n" for line in found.translations))
        typer.echo(f"written: {translations}")
    if save:
        what = {"model": str(model), "pairs": named, "search": repr(search), **found.figures()}
        write_whole(save, json.dumps(what, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"written: {save}")
