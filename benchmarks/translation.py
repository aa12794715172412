"""Recipes of translation: trained, and measured by BLEU and chrF."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import get_args

from rich.console import Console
from rich.progress import track

from machine import add_recipe_options, spend, spent, write
from regard.data.parallel import SentencePair
from regard.decode import Beam
from regard.decode.translation import translate_lines
from regard.tasks.splits import Split
from regard.tasks.translation.metrics import translation_metrics
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training.run import TrainingRun

TOKENS = 16384  # source tokens × beams translated at once; it changes no result


def main() -> None:
    args = arguments()
    settings = TranslationSettings.from_toml(args.recipe.read_text(encoding="utf-8"))
    console = Console(stderr=True)
    splits: list[Split] = [split for split in get_args(Split) if split != "test" or args.test]
    pairs = {split: settings.data.read(split, args.data).examples for split in splits}
    translator = trained(settings, args, pairs["train"], pairs["valid"], console)
    searches = [Beam(args.beam, length_penalty=alpha) for alpha in args.length_penalty]
    found = {search: measured(translator, "valid", pairs["valid"], search, console) for search in searches}
    best = max(found, key=lambda search: found[search][0]["value"])  # of equals the first
    rows = [row for rows in found.values() for row in rows]
    if args.test:
        rows += measured(translator, "test", pairs["test"], best, console)
    more = {
        "seconds": round(spent(args.out)),
        "weights": sum(weight.numel() for weight in translator.model.parameters()),
        "search": repr(best),
        "settings": settings.to_toml().splitlines(),
    }
    print(write(f"translation-{args.recipe.stem}", " ".join(["python", *sys.argv]), rows, **more))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python benchmarks/translation.py recipes/world.toml --out run --test"
    )
    add_recipe_options(parser, out="the folder of the run; one that it holds is resumed")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument(
        "--length-penalty", type=float, nargs="+", default=[1.0], help="of several, the best on valid is used on test"
    )
    return parser.parse_args()


def trained(
    settings: TranslationSettings,
    args: argparse.Namespace,
    pairs: Sequence[SentencePair],
    held_out: Sequence[SentencePair],
    console: Console,
) -> Translator:
    """As `regard train` does it; a run that is finished is only read."""
    begun = (args.out / "settings.toml").exists()
    translator = Translator.from_description(args.out) if begun else Translator.from_examples(pairs, settings)
    if translator.settings != settings:
        raise ValueError(f"{args.out} holds a run with other settings; choose another --out")
    fit = TrainingRun(translator.job(pairs, held_out, args.device), args.out)
    left, before, began = settings.train.steps - fit.last_step, spent(args.out), time.perf_counter()
    for _ in track(fit.steps(), "training", left, console=console, transient=True):
        pass
    if left:
        spend(args.out, before + time.perf_counter() - began)
    return translator


def measured(
    translator: Translator, split: Split, pairs: Sequence[SentencePair], search: Beam, console: Console
) -> list[dict[str, str | float]]:
    arriving = translate_lines(translator, [pair.source for pair in pairs], search, tokens=TOKENS)
    found = dict(track(arriving, f"translating {split}", len(pairs), console=console, transient=True))
    texts = [found[place][0].text for place in range(len(pairs))]
    scores = translation_metrics(translator.target.normalizer, texts, [pair.target for pair in pairs])
    print(f"{split}, length penalty {search.length_penalty}", *scores, sep="\n  ", flush=True)
    return [{"split": split, "length penalty": search.length_penalty, **vars(score)} for score in scores]


if __name__ == "__main__":
    main()
