"""`regard demo`, `regard ladder`, `regard lecture`: guided tours that train small models and show their attention."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    BeamSize,
    ChangedPartsOption,
    DataFolder,
    DeviceOption,
    LengthPenalty,
    PartsOption,
    SearchOptions,
    Split,
    load_parts,
    print_notice,
    resolve_device,
    shell_command,
    with_option_groups,
    writable_folder,
)
from regard.cli.progress import with_progress
from regard.cli.train import parse_assignment, train_run
from regard.tasks.registry import get_task

if TYPE_CHECKING:
    from regard.tasks.translation.metrics import TranslationMetrics

SENTENCE = "the black cat ate the mouse"
MIN_CHECKPOINTS = 10  # checkpoints at least, spread over the training
MAX_SHOWN = 6  # held-out sentences with their translations
SHIPPED_MODEL = "en-fr"  # the packaged model that comes first, where it is installed
REAL_SENTENCES = (
    "Where is the train station?",
    "I would like a cup of tea without sugar, please.",
    "She has been living in Paris for two years.",
    "The children who were playing in the garden are tired now.",
)


def demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("out/demo"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; fewer are faster and translate worse.")
    ] = None,
) -> None:
    """Train a small Transformer on the miniature world, translate with it, and show its attention.

    Where the models of regard-models are installed, real sentences are translated first.

    Example: `regard demo`
    """
    first = show_shipped_model(out)
    from rich.console import Console
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    from regard import see
    from regard.decode import Greedy
    from regard.decode.alignment import attend_pair, load_alignment_heads
    from regard.decode.translation import translate_texts
    from regard.tasks.train_request import TrainRequest
    from regard.tasks.translation.cli import build_alignment
    from regard.tasks.translation.metrics import exact_match
    from regard.tasks.translation.task import TranslationSettings, Translator

    console = Console()
    console.print(Rule(f"{first}. Training a small Transformer: English to French", align="left"))
    total_steps = steps or TranslationSettings.of_world().train.steps
    # kept so that the microscope can show the attention over training
    checkpoints = {
        "train.checkpoint_every": max(1, total_steps // MIN_CHECKPOINTS),
        "train.keep_checkpoints": 2 * MIN_CHECKPOINTS,
    }
    overrides = checkpoints | ({"train.steps": steps} if steps else {})
    train_run(TrainRequest(out, overrides=overrides, device="cpu"))
    translator = Translator.load(out)
    console.print(Rule(f"{first + 1}. Held-out sentences", align="left"))
    held_out = translator.settings.data.read("test").examples
    with console.status(f"translating {len(held_out)} held-out sentences"):
        translations = translate_texts(translator, [pair.source for pair in held_out], Greedy())
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for pair, text in list(zip(held_out, translations, strict=True))[:MAX_SHOWN]:
        table.add_row(Text(pair.source), Text(text), "✓" if text == pair.target else f"✗ {pair.target}")
    console.print(table)
    right = exact_match(translations, [pair.target for pair in held_out])
    console.print(
        f"Exact match: {right.value:.1f} % of {len(held_out)} sentences, each with a pair of words "
        "that never occurred together in training.\n"
    )
    console.print(Rule(f"{first + 2}. Attention weights", align="left"))
    written = translate_texts(translator, [SENTENCE], Greedy())[0]
    attention = attend_pair(translator, SENTENCE, written or "?")  # an untrained model may output nothing
    heads = load_alignment_heads(out)
    title = f"{'the mean of ' if len(heads) > 1 else ''}{' and '.join(head.name for head in heads)}"
    view = see.build_view(build_alignment(translator, attention, heads), title=title)
    console.print(Text(see.ascii(view)), soft_wrap=True)
    console.print(Text(f"\nThe plot is {see.save(see.draw(view), out / 'alignment.png')}.\n"))
    console.print(Rule("What to try next", align="left"))
    console.print(Text("  source .venv/bin/activate", "bold"))
    commands = next_commands(out)
    width = max(map(len, commands))
    for command, does in commands.items():
        console.print(Text.assemble("  ", (f"{command:<{width}}", "bold"), f"  {does}"), soft_wrap=True)


def show_shipped_model(out: Path) -> int:
    """Real sentences by the packaged translator, each on the screen as soon as it is translated, and what one attended
    to. Returns the number of the next part: 1 where no such model is installed."""
    from regard.tasks.model_packages import packaged_models

    found = [model for model in packaged_models() if model.name == SHIPPED_MODEL]
    if not found:
        return 1
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    console, folder = Console(), found[0].folder
    console.print(Rule(f"1. Real sentences: the model {SHIPPED_MODEL}", align="left"))
    from regard.tasks.translation.task import Translator

    translator = Translator.load(folder)
    for text in REAL_SENTENCES:
        console.print(Text(f"  {text}\n  ").append(str(translator.translate(text)), "bold"))
    from regard import see
    from regard.tasks.registry import ViewRequest
    from regard.tasks.translation.cli import view_translation

    _, view = view_translation(translator, folder, REAL_SENTENCES[0], ViewRequest())
    console.print(Text(f"\n{see.ascii(view)}"), soft_wrap=True)
    picture = see.save(see.draw(view), out.with_name(f"{out.name}-{SHIPPED_MODEL}.png"))
    console.print(Text(f"\nWhat it attended to, as a plot: {picture}. More: regard look {SHIPPED_MODEL} "), end="")
    console.print(Text(f'"{REAL_SENTENCES[1]}"; its card: regard models show {SHIPPED_MODEL}.\n'), soft_wrap=True)
    return 2


def next_commands(out: Path) -> dict[str, str]:
    return {
        f"regard translate {out}": "type a sentence",
        f'regard look {out} "the man carries the light box" --word light': "word attribution",
        f'regard look {out} "{SENTENCE}" --all-heads': "all heads",
        f"regard evaluate {out}": "BLEU, chrF++, TER, BLEU by length",
        "regard ladder": "models without and with attention, compared",
        "regard train --train my.en --train my.de --to de --out mine": "your own corpus",
        "regard lecture": "attention computed step by step, and the gallery",
    }


def lecture(folder: Annotated[Path, typer.Option(help="Where the gallery is drawn.")] = Path("out")) -> None:
    """Compute the lectures' example, a mask and a backend explanation step by step, and draw the gallery.

    Example: `regard lecture`
    """
    from rich.console import Console

    from regard.see.gallery import print_lecture

    print_lecture(Console(), folder)


# --- ladder ---


FAMILY_TASKS = (
    "Of --family, comma-separated: recall, retrieval, listops, world, tinyshakespeare, wikitext2 (--data), or a text."
)
RUNGS = ("gru", "bahdanau", "luong-dot", "transformer")
# the default corpus: long sentences, so that BLEU can fall with the length
LONG_SENTENCES = {"data.max_length": 20, "data.sentences": 60_000}
LONG_SENTENCES |= {
    "train.steps": 1500,
    "train.batch_size": 2048,
    "train.learning_rate": 2e-3,
    "train.validate_every": 500,
}


@dataclass(frozen=True)
class RungOptions:
    """Which models are trained, how large they are, and how."""

    models: Annotated[str, typer.Option(help="The rungs, comma-separated.")] = ",".join(RUNGS)
    size: Annotated[str, typer.Option(help="tiny, small or base.")] = "tiny"
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each.")] = None
    sentence: Annotated[str | None, typer.Option(help="The sentence whose alignment is drawn.")] = None
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as table.key=value.")] = None

    def changes(self, recipe: Path | None) -> dict[str, dict[str, Any]]:
        """The settings of each model, by its kind, that are not those of the recipe."""
        shared: dict[str, Any] = {} if recipe else dict(LONG_SENTENCES)
        shared |= {"train.steps": self.steps} if self.steps else {}
        shared |= dict(parse_assignment(line) for line in self.set_ or [])
        kinds = self.models.replace(" ", "").split(",")
        return {kind: shared | {"model.kind": kind, "model.size": self.size} for kind in kinds}


@dataclass(frozen=True)
class EvaluationOptions:
    """What the models are compared by."""

    split: Annotated[Split, typer.Option(help="The split to evaluate on.")] = "valid"
    beam: BeamSize = 5
    length_penalty: LengthPenalty = 1.0


@dataclass(frozen=True)
class FamilyOptions:
    """The other ladder: recipes as language models."""

    family: Annotated[bool, typer.Option("--family", help="Compare recipes, as language models.")] = False
    recipes: Annotated[
        Path | None, typer.Option(help="Of --family: a TOML file with a table of [model] keys for each recipe.")
    ] = None
    tasks: Annotated[str | None, typer.Option(help=FAMILY_TASKS)] = None
    quick: Annotated[bool, typer.Option("--quick", help="Of --family: the smallest size, a smoke test.")] = False
    jobs: Annotated[int, typer.Option(min=1, help="Of --family: runs at a time.")] = 1


@with_option_groups
def ladder(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file; its [model] is replaced for every rung.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of all runs and plots.")] = Path("ladder"),
    rungs: RungOptions = RungOptions(),
    evaluation: EvaluationOptions = EvaluationOptions(),
    data: DataFolder = None,
    device: DeviceOption = "auto",
    parts: PartsOption = None,
    changed_parts: ChangedPartsOption = None,
    family: FamilyOptions = FamilyOptions(),
) -> None:
    """Train models without and with attention on one corpus; draw BLEU against length, and the alignments.

    Without a recipe it uses the miniature world with long sentences, which takes a quarter of an hour on two cores.
    Finished runs are not trained again.

    Example: `regard ladder --out ladder`

    With --family: every recipe of attention as a language model, on the same tokens, parameters and seeds, each at the
    best of three rates; sizes are quick, small (a CPU) and full (a GPU). A run that was killed goes on.

    Example: `regard ladder recipes/multi30k-de-en-transformer.toml --data corpora --size small --out ladder`

    Example: `regard ladder --family --size full --jobs 12 --tasks recall,tinyshakespeare --data corpora --out family`
    """
    if family.family:
        ladder_family(out, rungs, family, data, device)
        return
    from rich.console import Console

    from regard.tasks.config import DEFAULT_TASK
    from regard.tasks.train_request import TrainRequest, build_settings, with_recipe_parts
    from regard.tasks.translation.task import Translator, evaluate_translations

    console, device = Console(stderr=True), resolve_device(device)
    own_parts = with_recipe_parts(load_parts(parts, changed_parts), recipe, print_notice)
    models = rungs.changes(recipe)
    for changes in models.values():
        # an error in the last should not wait for the first
        build_settings(get_task(DEFAULT_TASK), recipe, changes, None, own_parts)
    results: dict[str, TranslationMetrics] = {}
    for kind, changes in models.items():
        console.rule(kind, align="left")
        folder = out / kind
        if not (folder / "model.safetensors").exists():
            train_run(TrainRequest(folder, recipe, changes, data, device, own_parts=own_parts))
        translator = Translator.load(folder, device, own_parts=own_parts)
        pairs = translator.settings.data.read(evaluation.split, data).examples
        search = SearchOptions(evaluation.beam, evaluation.length_penalty).build()
        results[kind] = evaluate_translations(translator, pairs, search, with_progress)
        text = rungs.sentence or (SENTENCE if translator.settings.data.corpus == "world" else pairs[0].source)
        if kind not in ("elman", "gru", "lstm"):
            typer.echo(f"drawn: {draw_alignment(translator, folder, text, out / f'alignment-{kind}.png')}")
    report_results(out, results)


def report_results(out: Path, results: "dict[str, TranslationMetrics]") -> None:
    """BLEU against length, on the screen and as a plot; the scores; and all of it as JSON."""
    from regard import see
    from regard.see.plots.charts import LengthCurves

    curves = tuple((kind, tuple((b.length, b.bleu, b.sentences) for b in one.lengths)) for kind, one in results.items())
    view = LengthCurves(curves)
    typer.echo(see.ascii(view))
    typer.echo(f"\ndrawn: {see.save(see.draw(view), out / 'bleu-by-length.png')}\n")
    typer.echo("\n".join(f"{kind:<14} {one.scores[0]}" for kind, one in results.items()))
    write_results(out, {kind: one.to_json() for kind, one in results.items()})


def ladder_family(out: Path, rungs: RungOptions, options: FamilyOptions, data: Path | None, device: str) -> None:
    """All recipes of the family, compared on a page."""
    from regard.see.family_page import write_family
    from regard.tasks.language_modeling.family import SIZES, FamilyLadder, build_task, family_rungs

    size = "quick" if options.quick else "small" if rungs.size == "tiny" else rungs.size  # tiny is the other ladder's
    if size not in SIZES:
        raise ValueError(f"no size of --family is called {size!r}; there are {', '.join(SIZES)}")
    chosen = SIZES[size] if rungs.steps is None else replace(SIZES[size], steps=rungs.steps)
    usual = "recall,world" if data is None else "recall,retrieval,listops,tinyshakespeare,wikitext2"
    names = tuple((options.tasks or usual).replace(" ", "").split(","))
    made = FamilyLadder(
        writable_folder(out), chosen, names, family_rungs(chosen, options.recipes), resolve_device(device), data
    )
    for name in names:  # an error in the last should not wait for the first
        task = build_task(name, chosen, data)
        for recipe in made.rungs:
            made.config(recipe, task.vocabulary)
    words = ["regard", "ladder", "--family", "--size", size, "--tasks", ",".join(names), "--device", made.device]
    words += [*(["--steps", rungs.steps] if rungs.steps else [])]
    words += [*(["--recipes", options.recipes] if options.recipes else [])]
    command = shell_command(*words) + (" --data FOLDER" if data else "")
    page = write_family(made, options.jobs, command, print_notice, with_progress)
    typer.echo(page.read_text(encoding="utf-8"))
    typer.echo(f"written: {page}")


def draw_alignment(translator, folder: Path, text: str, path: Path) -> Path:
    """The weights of the best alignment heads, for the model's own translation."""
    from regard import see
    from regard.decode import Greedy
    from regard.decode.alignment import attend_pair, load_alignment_heads
    from regard.decode.translation import translate_texts
    from regard.tasks.translation.cli import build_alignment

    written = translate_texts(translator, [text], Greedy())[0]
    attention = attend_pair(translator, text, written or "?")
    return see.save(see.draw(build_alignment(translator, attention, load_alignment_heads(folder))), path)


def write_results(out: Path, results: dict[str, Any]) -> None:
    from regard.data.files import write_text_atomic

    write_text_atomic(out / "ladder.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
