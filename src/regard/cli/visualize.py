"""`regard look`, `serve`, `api`, `draw`, `explain`, `gallery`: attention on a screen and in files, models over HTTP."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    BeamSize,
    LoadOptions,
    MaxLength,
    ModelArgument,
    PartsOption,
    load_parts,
    model_folder,
    model_folders,
    with_option_groups,
    writable_file,
)
from regard.cli.progress import with_progress
from regard.tasks.registry import ViewRequest, get_commands, get_task, task_of_run

if TYPE_CHECKING:
    from regard.decode import Sampling
    from regard.see.compare import Comparison
    from regard.see.corpus import CorpusStatistics
    from regard.see.plots.panels import View
    from regard.see.trace import Trace
    from regard.serve.trace_cache import CachedTrace, CorpusEntry, CorpusStore
    from regard.tasks.pretrained import PretrainedModel
    from regard.tasks.protocol import Task


def draw(
    what: Annotated[str, typer.Argument(help='A part such as "Causal() & Window(4)", or a name such as bigbird.')],
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens.")] = 32,
    save: Annotated[Path | None, typer.Option(help="Write a plot here (.png, .svg or .pdf) instead.")] = None,
    parts: PartsOption = None,
) -> None:
    """Draw a pattern, a position, a recipe, or layers of the gallery: in the terminal, or into a file.

    Example: `regard draw "Causal() & Window(4)"`

    Example: `regard draw "3 gated delta : 1 full"`

    Example: `regard draw "NativeSparse(block=4, k=2, window=6)"`

    Example: `regard draw rotary --tokens 64 --save rotary.svg`

    Example: `regard draw "Causal() & EveryOther()" --parts mine.py`
    """
    from regard import see
    from regard.attention import RecipeSizes
    from regard.see.gallery import is_layer_name, layers_view
    from regard.see.plots.draw import build_view, parse_thing

    own_parts, sizes = load_parts(parts, None).named, RecipeSizes(heads=4, head=8, tokens=tokens, window=8, block=4)
    layers = is_layer_name(what)
    view = layers_view(what, sizes) if layers else build_view(parse_thing(what, sizes, own_parts), tokens=tokens)
    typer.echo(see.ascii(view) if save is None else f"drawn: {see.save(see.draw(view), save)}")


def explain(
    what: Annotated[str, typer.Argument(help="A name such as bigbird, a recipe's TOML file, or a part.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**20, help="Number of tokens.")] = 4096,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = 8,
    width: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="With gradients or without.")] = True,  # noqa: FBT002
    parts: PartsOption = None,
) -> None:
    """Explain which backend runs a recipe, and why the others object.

    Example: `regard explain bigbird --tokens 65536 --no-grad`

    Example: `regard explain "Causal() & Window(512)"`
    """
    import torch

    from regard.attention import Pattern, RecipeSizes
    from regard.attention import explain as explained
    from regard.attention.sparse_patterns import is_content
    from regard.see.plots.draw import as_recipe, parse_thing
    from regard.see.plots.recipe_views import bind_example_gate, one_line_repr

    sizes, own_parts = RecipeSizes(heads=heads, head=width, tokens=tokens), load_parts(parts, None).named
    recipe = as_recipe(thing := parse_thing(what, sizes, own_parts))
    for name, part in recipe.parts().items():
        typer.echo(f"{name:<11} {one_line_repr(part)}")
    typer.echo(f"{'on':<11} {tokens:,} tokens, {heads} heads of width {width}, {'with' if grad else 'no'} gradients")
    if isinstance(thing, Pattern) and not is_content(thing):
        from regard.serve.playground import describe_mask

        found = describe_mask(thing, tokens)
        about = "" if found["exact"] else "about "
        typer.echo(
            f"{'cells':<11} {about}{found['cells']:,} of {tokens**2:,}, {100 * found['share']:.6g} % of full attention"
        )
    typer.echo("")
    recipe = bind_example_gate(recipe, heads, tokens, width) if recipe.gate.values else recipe
    with torch.set_grad_enabled(grad):
        typer.echo(str(explained(recipe, torch.zeros(1, heads, tokens, width))))


def gallery(folder: Annotated[Path, typer.Argument(help="The folder of gallery.md and its plots.")]) -> None:
    """Draw every named recipe and position, and the page that shows them.

    Example: `regard gallery docs`
    """
    from regard.see.gallery import write_gallery

    typer.echo(f"drawn: {write_gallery(folder)}")


# --- look ---

EXPORT_SUFFIXES = (".html", ".npz", ".csv")  # exports of a trace; other files are plots
NUMBERS_SUFFIX = ".json"  # what a method found, or statistics of a corpus, as the page gets them


@with_option_groups
def look(
    model: ModelArgument,
    text: Annotated[str | None, typer.Argument(help="A sentence, an image or .wav file, or a node's name.")] = None,
    question: Annotated[str | None, typer.Argument(help="About the image.")] = None,
    target: Annotated[str | None, typer.Option(help="The target; default: the model's own output.")] = None,
    head: Annotated[
        str | None, typer.Option(help="LAYER:HEAD, several with commas; default: the best alignment heads.")
    ] = None,
    all_heads: Annotated[bool, typer.Option("--all-heads", "--every", help="All layers and heads.")] = False,  # noqa: FBT002
    word: Annotated[str | None, typer.Option(help="Attribute this word's output to the input words.")] = None,
    method: Annotated[str | None, typer.Option(help="Explain a prediction: heads, lens, rollout, ...")] = None,
    row: Annotated[int, typer.Option(help="Which prediction --method explains, from 0; -1 is the last.")] = -1,
    key: Annotated[int | None, typer.Option(help="With --method row, the key that is taken apart.")] = None,
    against: Annotated[
        str | None, typer.Option(help="With --method patching, the text whose states are replaced.")
    ] = None,
    part: Annotated[
        str, typer.Option(help="What --method patching replaces: residual, attention or head.")
    ] = "residual",
    branch: Annotated[
        list[str] | None, typer.Option(help="STEP:TOKEN, a token that is forced; then the model goes on. Repeatable.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Statistics over the sentences of this file, or held-out ones.")
    ] = None,
    tagger: Annotated[
        Path | None, typer.Option(help="A run that tags words, for --corpus without tags.", callback=model_folder)
    ] = None,
    neighbours: Annotated[
        str | None, typer.Option(help="LAYER:STATE of --corpus, whose nearest states are listed.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw the output at this temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens that reach this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw with this seed.")] = None,
    edits: Annotated[str | None, typer.Option(help="Interventions as JSON, as the page writes them; compares.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write a plot (.png, .svg, .pdf), a page (.html) or numbers (.npz, .csv, .json)."),
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--compare",
            "--with",
            help="Another model or checkpoint, to compare outputs, weights and states.",
            callback=model_folders,
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="In a terminal, open the microscope as well.")] = True,  # noqa: FBT002
    beam: BeamSize = 5,
    max_length: MaxLength = 1000,
    load: LoadOptions = LoadOptions(),
) -> None:
    """Show a model's output for an input and its attention weights: in the terminal and in the microscope.

    Example: `regard look run`

    Example: `regard look run "the black cat ate the mouse"`

    Example: `regard look run "the black cat ate the mouse" --all-heads --save heads.png`

    Example: `regard look run "the black cat ate the mouse" --head decoder.0.cross:1,decoder.1.cross:2`

    Example: `regard look run "the black cat ate the mouse" --save look.html`

    Example: `regard look run "the man carries the light box" --word light --no-page`

    Example: `regard look run "the black cat ate the mouse" --method heads --row 1 --save heads.json`

    Example: `regard look run "the black cat ate the mouse" --method statistics` (or row, beam)

    Example: `regard look run "the black cat" --method patching --against "the white cat" --row 2`

    Example: `regard look run "the black cat ate the mouse" --branch 1:souris`

    Example: `regard look run --corpus test.tsv --save heads.json` (every head over many sentences)

    Example: `regard look run --corpus held-out`

    Example: `regard look run "the black cat ate the mouse" --temperature 0.8 --top-p 0.9 --seed 1`

    Example: `regard look run "the black cat ate the mouse" --method next-tokens --row 1 --temperature 2`

    Example: `regard look run "the black cat" --edits '{"off": [{"site": "decoder.0.cross", "head": 1}]}'`

    Example: `regard look transformer "the black cat ate the mouse" --compare bahdanau`

    Example: `regard look shapes image.png --save overlay.png`

    Example: `regard look answers image.png "what colour is the circle"`
    """
    from regard import see

    save, opens = save and writable_file(save), page and sys.stdout.isatty() and save is None and method is None
    if all_heads and (head or word):
        raise ValueError("--all-heads shows all heads and words; leave it out, or --head and --word")
    if corpus is not None:
        if text is not None or method is not None or all_heads or head or word:
            raise ValueError("--corpus counts the sentences of a file, all heads; leave out the text and --head")
        look_at_corpus(model, corpus, tagger, neighbours, save, load, opens=opens)
        return
    if text is None and not opens:
        from regard.tasks.model_packages import shortest_name

        description = task_of_run(model).inputs.description
        raise ValueError(f"no input; give {description}, or start the page: regard serve {shortest_name(model)}")
    if text is not None and not text.strip():
        raise ValueError("the sentence is empty; give at least one word")
    task = task_of_run(model)
    task_model = load.load(task.task_model, model)
    if question is not None and "question" not in task.inputs.options:
        raise ValueError(f"{model} is for the task {task.name!r}, and answers no questions; give one text")
    if text is not None:
        sampling = sampling_option(temperature, top_k, top_p, seed)
        branches = tuple(branch or ())
        request = ViewRequest(head, all_heads, word, target, beam, max_length, question, sampling, branches)
        if edits is not None:
            typer.echo(compare_with_edits(trace_request(task, task_model, text, request), edits))
            return
        if method in TABLES:
            if save is not None and (method != "patching" or save.suffix.lower() != NUMBERS_SUFFIX):
                raise ValueError(f"{save}: --method {method} is a table; leave out --save (patching is saved as .json)")
            trace = trace_request(task, task_model, text, request)
            table = TABLES[method](trace, TableRequest(model, head, row, key, against, part, save))
            typer.echo(f"{trace.output_text}\n\n{table}")
            return
        if method is not None:
            output, view = explain_input(task, task_model, text, request, method, row, save)
        else:
            output, view = view_input(task, task_model, model, text, request)
        typer.echo(f"{output}\n\n{see.ascii(view)}")
        for other in others or []:
            typer.echo(f"\n{compare_with_model(trace_request(task, task_model, text, request), other, head, load)}")
        if save and method is None and save.suffix.lower() in EXPORT_SUFFIXES:
            cached = cached_trace(task, task_model, model, text, request)
            typer.echo(f"\nwritten: {write_export(cached, head, save)}")
        elif save and method is not None and save.suffix.lower() == NUMBERS_SUFFIX:
            typer.echo(f"\nwritten: {save}")
        elif save:
            typer.echo(f"\ndrawn: {see.save(see.draw(view), save)}")
    if opens:
        open_microscope(model, others or [], text, question, load)


def view_input(
    task: "Task", task_model: "PretrainedModel", model: Path, text: str, request: ViewRequest
) -> "tuple[str, View]":
    """What the task shows of an input; of a task without a view of its own, the attention of its trace."""
    from regard.see.plots.attention_maps import view_trace
    from regard.see.trace import trace_model

    several = request.sampling is not None or request.branches or (request.head is not None and "," in request.head)
    if not several and (view := vars(get_commands(task.name) or object).get("view")):
        return view(task_model, model, text, request)
    if request.word is not None:
        raise ValueError(f"--word means nothing to a model for the task {task.name!r}; leave it out")
    trace = (
        trace_request(task, task_model, text, request)
        if several
        else trace_model(task_model, text, question=request.question, target=request.target, longest=request.max_tokens)
    )
    return view_trace(trace, model, request.head, all_heads=request.all_heads)


def explain_input(
    task: "Task",
    task_model: "PretrainedModel",
    text: str,
    request: ViewRequest,
    method: str,
    row: int,
    save: Path | None,
) -> "tuple[str, View]":
    """What a method finds of a prediction; see `regard.see.methods`. As .json its numbers are those of the page."""
    from regard.see.methods import explain
    from regard.see.plots.charts import explanation_view
    from regard.serve.explanations import serialize_explanation

    if save is not None and save.suffix.lower() in EXPORT_SUFFIXES:
        raise ValueError(f"{save}: what a method found is saved as .json, or drawn as .png, .svg or .pdf")
    trace = trace_request(task, task_model, text, request)
    found = explain(trace, method, row, with_progress)
    if save is not None and save.suffix.lower() == NUMBERS_SUFFIX:
        write_json(save, serialize_explanation(trace, found))
    return trace.output_text, explanation_view(trace, method, found)


def write_json(path: Path, value: object) -> None:
    from regard.data.files import open_atomic
    from regard.serve.encoding import encode_json

    with open_atomic(path) as file:
        file.write(encode_json(value))


# --- a corpus ---

MAX_SHOWN_ERRORS = 10
HELD_OUT = "held-out"


def look_at_corpus(
    model: Path,
    corpus: str,
    tagger: Path | None,
    neighbours: str | None,
    save: Path | None,
    load: LoadOptions,
    *,
    opens: bool,
) -> None:
    """Every head over many sentences: a line each; then the errors, and the page, where a click loads a sentence."""
    from regard.see.corpus import held_out_sentences, read_corpus, serialize_statistics, tag_sentences
    from regard.serve.trace_cache import CorpusEntry, CorpusStore

    if save is not None and save.suffix.lower() != NUMBERS_SUFFIX:
        raise ValueError(f"{save}: the statistics of a corpus are written as .json")
    task_model = load.load(task_of_run(model).task_model, model)
    sentences = held_out_sentences(task_model) if corpus == HELD_OUT else read_corpus(task_model, corpus)
    sentences = sentences if tagger is None else tag_sentences(sentences, tagger)
    entry = CorpusEntry(model.resolve().name, None, sentences, Path(corpus).name)
    found = entry.statistics(task_model, with_progress)
    typer.echo(corpus_report(found) if neighbours is None else neighbours_report(found, neighbours))
    if save:
        write_json(save, serialize_statistics(found))
        typer.echo(f"\nwritten: {save}")
    if opens:
        open_microscope(model, [], None, None, load, (CorpusStore(), entry))


def corpus_report(found: "CorpusStatistics") -> str:
    """A table of the heads, and the predictions that were wrong."""
    titles = ["head", "entropy, nats", "distance, tokens", "sink", "sink token", "AER", "parts of speech", "strongest"]
    rows = [titles]
    for one in found.heads:
        span, pair = one.spans[0] if one.spans else None, one.tag_pairs[0] if one.tag_pairs else None
        rows.append(
            [
                f"{one.site}:{one.head}",
                f"{one.entropy:.3f}",
                f"{one.distance:.2f}",
                f"{one.sink:.3f}",
                f"{one.sinks[0][0]} {one.sinks[0][1]:.2f}" if one.sinks else "",
                "" if one.aer is None else f"{one.aer:.3f}",
                f"{pair.query} → {pair.key} {pair.weight:.2f}" if pair else "",
                f"{span.query_token} → {span.key_token} {span.weight:.3f}" if span else "",
            ]
        )
    lines = [text_table(rows), "", f"{len(found.sentences):,} sentences"]
    if found.predictions:
        lines[-1] += f", {len(found.errors):,} of {found.predictions:,} predictions are not the wanted ones"
    for error in found.errors[:MAX_SHOWN_ERRORS]:
        text = found.sentences[error.sentence].text
        lines.append(
            f"  {error.predicted} for {error.wanted} ({error.loss:.2f} nats), sentence {error.sentence}: {text}"
        )
    return "\n".join(lines)


def neighbours_report(found: "CorpusStatistics", which: str) -> str:
    """The states nearest to one, LAYER:STATE, by the cosine between them."""
    from regard.see.corpus import serialize_neighbours

    layer, _, number = which.rpartition(":")
    if not number.isdecimal():
        raise ValueError(
            f"--neighbours {which}: write LAYER:STATE, with one of {', '.join(found.states) or 'no layers'}"
        )
    rows = [["cosine", "state", "token", "tag", "sentence"]]
    for alike, state, sentence, position, token, tag in serialize_neighbours(found, layer, int(number)):
        rows.append([f"{alike:.4f}", str(state), f"{token} {position}", tag, found.sentences[sentence].text])
    return text_table(rows)


# --- tables of a trace ---


@dataclass(frozen=True)
class TableRequest:
    """What a table of a trace is asked for."""

    model: Path
    head: str | None
    row: int
    key: int | None
    against: str | None
    part: str
    save: Path | None = None


def text_table(rows: list[list[str]]) -> str:
    """Columns as wide as what they hold, without those that hold nothing below their title."""
    kept = [n for n, _ in enumerate(rows[0]) if any(row[n] for row in rows[1:])]
    widths = {n: max(len(row[n]) for row in rows) for n in kept}
    return "\n".join("  ".join(f"{row[n]:<{widths[n]}}" for n in kept).rstrip() for row in rows)


def statistics_table(trace: "Trace", _: TableRequest) -> str:
    """Every head over this text; the last column is the proof: |A·V - output|."""
    from regard.see import alignment_error_rates

    rows = [["head", "entropy, nats", "distance, tokens", "sink", "largest", "AER", "|A·V - output|"]]
    for name in trace.attention_names:
        site = trace.site(name)
        found, errors = site.statistics(), alignment_error_rates(trace, name)
        for head in range(site.heads):
            numbers = (found.entropy, found.distance, found.sink, found.largest)
            aer = "" if errors is None else f"{errors[head]:.4f}"
            cells = [f"{float(each[head]):.6g}" for each in numbers]
            rows.append([f"{name}:{head}", *cells, aer, f"{site.check(head).error:.2g}"])
    return text_table(rows)


def head_of(trace: "Trace", request: TableRequest) -> tuple[str, int]:
    """The head that --head names, or that at which the page opens."""
    from regard.see.plots.attention_maps import parse_head_of
    from regard.see.trace import select_initial

    if request.head is not None:
        return parse_head_of(request.head, {name: trace.site(name).heads for name in trace.attention_names})
    if (first := select_initial(trace, request.model)) is None:
        raise ValueError("this model has no attention to show; choose another model")
    return first.site, first.head


def row_table(trace: "Trace", request: TableRequest) -> str:
    """A query against all keys, or with --key one of them, by dimension."""
    from regard.see import pair_terms, row_terms

    name, head = head_of(trace, request)
    site = trace.site(name)
    query = request.row if request.row >= 0 else site.shape[0] + request.row
    queries, keys = (axis.labels for axis in trace.axes_of(name))
    if request.key is not None:
        pair = pair_terms(site, head, query, request.key)
        vectors = {"q": pair.q, "k": pair.k, "q∘k": pair.products, "v": pair.v, "weight·v": pair.added}
        size = max(map(len, vectors.values()))
        cells = [[f"{some[n]:.6g}" if n < len(some) else "" for some in vectors.values()] for n in range(size)]
        end = f"Σ {pair.dot:.6g} × {pair.scale:.6g} + {pair.bias:.6g} = {pair.adjusted:.6g}; weight {pair.weight:.6g}"
        table = text_table([["dimension", *vectors], *([str(n), *row] for n, row in enumerate(cells))])
        return f"{name}:{head}  {queries[query]} → {keys[request.key]}\n{table}\n{end}{pair.note and f'; {pair.note}'}"
    found = row_terms(site, head, query)
    rows = [["key", "Σ q·k", "score", "bias", "exp", "weight", "‖weight·v‖"]]
    for one in found.keys:
        numbers = (one.dot, one.score, one.bias, one.exp, one.weight, one.norm)
        masked = ["", "", "", "masked", "0", "0"]
        rows.append([f"{keys[one.key]} {one.key}", *([f"{x:.6g}" for x in numbers] if one.visible else masked)])
    if found.rest["count"]:
        rows.append(
            [f"{found.rest['count']} others", "", "", "", f"{found.rest['exp']:.6g}", f"{found.rest['weight']:.6g}", ""]
        )
    rows.append(["Σ", "", "", "", f"{found.sum['exp']:.6g}", f"{found.sum['weight']:.6g}", f"{found.output_norm:.6g}"])
    return "\n".join([f"{name}:{head}  query {query}, {queries[query]}", text_table(rows), *filter(None, [found.note])])


def beam_table(trace: "Trace", _: TableRequest) -> str:
    """Every hypothesis that the search kept; those on the path to the best one have a star."""
    tree = trace.beam_tree()
    rows = [["step", "", "hypothesis", "log p, nats", "nats per token"]]
    for step, nodes in enumerate(tree.steps):
        for node in nodes:
            names = [trace.predictions.option_name(one) for one in node.ids] + ["</s>"] * node.finished
            ranked = f"{node.score:.6g}" if node.finished else ""
            rows.append(
                [
                    str(step),
                    "*" if tree.on_best_path(node) else "",
                    " ".join(names),
                    f"{node.log_probability:.6g}",
                    ranked,
                ]
            )
    return text_table(rows)


def patching_table(trace: "Trace", request: TableRequest) -> str:
    """How much of the difference to another text each state of this one brings back."""
    from dataclasses import replace

    from regard.see import patch_activations
    from regard.see.trace import build_trace
    from regard.serve.explanations import serialize_patches

    if request.against is None:
        raise ValueError("--method patching compares two texts; give the other one with --against")
    if request.part not in ("residual", "attention", "head"):
        raise ValueError(f"--part {request.part}: it is residual, attention or head")
    target = trace.output_text if "target" in trace.request.task.inputs.options else None
    other = build_trace(replace(trace.request, text=request.against, target=target, prefix=(), ids=None))
    found = patch_activations(trace, other, request.row, part=request.part, progress=with_progress)  # type: ignore[arg-type]
    if request.save is not None:
        write_json(request.save, serialize_patches(trace, found, request.part))
    rows = [["layer", *found.labels]]
    for name, some in zip(found.layers, found.effects.tolist(), strict=True):
        rows.append([name, *("" if x != x else f"{x:.4f}" for x in some)])
    sums = f"difference of logits: {found.clean:.4f} for this text, {found.other:.4f} for the other"
    return "\n".join([text_table(rows), sums, *([f"\nwritten: {request.save}"] if request.save else [])])


TABLES = {"statistics": statistics_table, "row": row_table, "beam": beam_table, "patching": patching_table}


# --- exports: a page, or numbers, in a file ---


def compare_with_model(before: "Trace", other: Path, head: str | None, load: LoadOptions) -> str:
    """The same input in another model or checkpoint: outputs, probabilities, weights, states; and one head's change."""
    from dataclasses import replace

    from regard.see import compare
    from regard.see.plots.attention_maps import parse_head_of
    from regard.see.trace import build_trace
    from regard.serve.generation import same_vocabulary

    task = task_of_run(other)
    after = build_trace(replace(before.request, task_model=load.load(task.task_model, other), ids=None, prefix=()))
    lines = [f"compared with {other}"]
    try:
        found = compare(before, after)
        if not same_vocabulary(before, after):
            raise ValueError("the models have different vocabularies; only their outputs are compared")
        lines.append(comparison_text(found))
    except ValueError as reason:
        lines += [f"before  {before.output_text}", f"after   {after.output_text}", str(reason)]
    if head is not None:
        name, number = parse_head_of(head, {name: before.site(name).heads for name in before.attention_names})
        one, two = before.site(name).weights(number), after.site(name).weights(number)
        if one.shape == two.shape:
            down, across = (axis.labels for axis in before.axes_of(name))
            cells = [
                [label, *(f"{x:+.4f}" for x in row)] for label, row in zip(down, (two - one).tolist(), strict=True)
            ]
            lines += ["", f"{name}:{number}, after - before", text_table([["", *across], *cells])]
        else:
            sizes = " and ".join(f"{len(x)} × {x.shape[1]}" for x in (one, two))
            lines += ["", f"{sizes} cells have no difference; force one output with --target"]
    return "\n".join(lines)


def compare_with_edits(before: "Trace", edits: str) -> str:
    """The output, probabilities, weights and states with interventions beside those without."""
    import json

    from regard.see import Edits, compare, trace_with_edits

    try:
        given = json.loads(edits)
    except ValueError:
        example = '{"off": [{"site": "decoder.0.cross", "head": 1}]}'
        raise ValueError(f"--edits {edits:.60}: no JSON; write it as in {example}") from None
    return comparison_text(compare(before, trace_with_edits(before, Edits.from_dict(given))))


def comparison_text(found: "Comparison") -> str:
    """Output and probabilities, and the changes of weights and states."""
    weights = [
        f"{name:<24}{' '.join(f'{x:.4f}' for x in some.tolist())}" for name, some in found.weight_changes().items()
    ]
    states = [
        f"{name:<24}{' '.join(f'{x:.4f}' for x in some.tolist())}" for name, some in found.state_changes().items()
    ]
    inside = ["", "weights, by head", *weights] + (["", "states, by position", *states] if states else [])
    return "\n".join([str(found), *inside])


def sampling_option(
    temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> "Sampling | None":
    """How an output is drawn, if any of these is given."""
    from regard.decode import Sampling

    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    some = {name: one for name, one in given.items() if one is not None}
    return Sampling(**some) if some else None  # type: ignore[arg-type]


def cached_trace(
    task: "Task", task_model: "PretrainedModel", model: Path, text: str, request: ViewRequest
) -> "CachedTrace":
    from regard.serve.trace_cache import CachedTrace

    trace = trace_request(task, task_model, text, request)
    title = Path(text).name if task.inputs.kind in ("image", "audio") else text
    return CachedTrace("copy", model.resolve().name, trace, title, model)


def trace_request(task: "Task", task_model: "PretrainedModel", text: str, request: ViewRequest) -> "Trace":
    from regard.see import trace_model

    beam = request.beam if {"target", "beam"} <= {*task.inputs.options} else None
    options = {"question": request.question, "target": request.target, "sampling": request.sampling}
    trace = trace_model(task_model, text, beam=beam, **options)  # type: ignore[arg-type]
    for one in request.branches:
        step, _, token = one.partition(":")
        if not step.isdecimal() or not token:
            raise ValueError(f"--branch {one}: write STEP:TOKEN, as in 1:souris; steps are counted from 0")
        trace = trace.branch(int(step), token)
    return trace


def write_export(cached: "CachedTrace", head: str | None, save: Path) -> Path:
    from regard.data.files import open_atomic
    from regard.serve.exports import export_bytes

    site, _, number = head.rpartition(":") if head else ("", "", "")
    body = export_bytes(cached, save.suffix[1:].lower(), site or None, int(number) if number.isdecimal() else None)
    with open_atomic(save) as file:
        file.write(body)
    return save


# --- the microscope in a browser ---


def open_microscope(
    model: Path,
    others: list[Path],
    text: str | None,
    question: str | None,
    load: LoadOptions,
    corpus: "tuple[CorpusStore, CorpusEntry] | None" = None,
) -> None:
    from base64 import b64encode

    from regard.serve import server
    from regard.serve.model_store import MediaStore, ModelStore

    try:
        server.require_serve_extra()
    except ValueError as missing:
        if text is None:
            raise
        typer.echo(f"\n{missing}", err=True)
        return
    models = ModelStore.from_folders([model, *others], load.torch_device, load.checkpoint, load.own_parts)
    media = MediaStore()
    first = next(iter(models.entries))
    kind = get_task(models.model(first).settings.task).inputs.kind
    if text is not None and kind in ("image", "audio"):
        text = media.put(kind, b64encode(Path(text).read_bytes()).decode())
    with server.open_socket(0) as here:
        token = server.new_token()
        state = {"model": first, "text": text or "", "question": question or ""}
        if corpus is not None:
            state |= {"view": "corpus", "corpus": f'~{{"id":"{corpus[0].put(corpus[1]).id}"}}'}
        where = server.page_url(here, token, state)
        typer.echo(f"\n{where}\nCtrl-C stops it.")
        server.open_page(where)
        server.serve(models, here, token, media, corpus and corpus[0])


# --- serve ---


PORT, API_PORT = 8642, 8643
MIN_KEY = 16  # characters of an API key


@with_option_groups
def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, folders of their checkpoints, or names; default: all models of regard models.",
            metavar="RUN...",
            callback=model_folders,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 picks any free port.")] = PORT,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,  # noqa: FBT002
    with_api: Annotated[bool, typer.Option("--api", help="Answer as `regard api` does, too.")] = False,  # noqa: FBT002
    load: LoadOptions = LoadOptions(),
) -> None:
    """Serve the microscope: attention of every layer, head and step, interventions, masks, lectures. Ctrl-C stops it.

    Only this machine can reach it, the printed URL holds the access token, and it makes no outgoing requests.

    Example: `regard serve run --open`

    Example: `regard serve en-fr --open` (a model that is shipped; without a name, all of them)

    Example: `regard serve transformer bahdanau --port 8000`

    Example: `regard serve run --parts mine.py` (a run with parts of your own)

    Example: `regard serve run --api` (the page, and the routes of `regard api` without keys)
    """
    from regard.serve import server
    from regard.serve.model_store import ModelStore
    from regard.tasks.model_packages import packaged_models

    server.require_serve_extra()
    folders = runs or [model.folder for model in packaged_models()]
    if not folders:
        raise ValueError("no model given; name a run folder, or pip install regard-models")
    with server.open_socket(port) as here:
        models = ModelStore.from_folders(folders, load.torch_device, load.checkpoint, load.own_parts)
        token = server.new_token()
        where = server.page_url(here, token)
        typer.echo(f"{where}\nCtrl-C stops it.")
        if open_:
            server.open_page(where)
        if not with_api:
            server.serve(models, here, token)
            return
        from regard.serve.api import Api, create_api
        from regard.serve.app import create_app

        api = Api(models)
        server.serve_api(api, create_api(api, page=create_app(models, token=token)), here)


# --- the API ---


@dataclass(frozen=True)
class ApiOptions:
    """How many requests the API takes on, and how long they may last."""

    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request, from its arrival on.")] = 60.0
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Sentences and texts that may wait; more are refused with 429.")
    ] = 256
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget of a running batch: source tokens × beams.")
    ] = 4096
    workers: Annotated[int, typer.Option(min=0, help="Threads that compute, a core each; 0 for all cores.")] = 0
    processes: Annotated[
        bool,
        typer.Option(help="A process beside each worker for beam search, which shares the weights (Linux, on a CPU)."),
    ] = True
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of a request.")] = 4 * 2**20


@with_option_groups
def api(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, folders of their checkpoints, or names: regard models lists them.",
            metavar="RUN...",
            callback=model_folders,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks any free port.")] = API_PORT,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all, behind a proxy.")] = "127.0.0.1",
    precision: Annotated[str, typer.Option(help="Of translation: float32, bfloat16, or int8 on a CPU.")] = "float32",
    exported: Annotated[
        Path | None,
        typer.Option(help="The run's model as `regard export` wrote it for ctranslate2 or onnx, to run it."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="A file of API keys, one a line; or the variable REGARD_API_KEYS.")
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(help="An origin whose pages may ask, as https://my.site.")] = None,
    limits: ApiOptions = ApiOptions(),
    load: LoadOptions = LoadOptions(),
) -> None:
    """Serve models over HTTP: every task, translation as LibreTranslate has it, completions as OpenAI has them.

    Requests of all clients share running batches. GET /openapi.json describes the routes, /metrics is for Prometheus.
    SIGTERM finishes what was accepted; SIGHUP loads the models again.

    Example: `regard api run`

    Example: `regard api en-fr en-de shakespeare --host 0.0.0.0 --keys keys.txt`

    Example: `regard api run --precision int8`

    Example: `regard api run --exported ct2` (a folder that `regard export` wrote)
    """
    from regard.serve import server
    from regard.serve.model_store import ModelStore

    server.require_serve_extra()
    from regard.serve.api import Api, ApiLimits, create_api
    from regard.serve.scheduler import log_json
    from regard.serve.security import HOSTS

    secrets = read_keys(keys)
    loopback = host in HOSTS
    if not loopback and not secrets:
        typer.echo(f"regard: {host} can be reached by others, and there are no API keys; use --keys FILE", err=True)
    with server.open_socket(port, host) as here:
        models = ModelStore.from_folders(runs, load.torch_device, load.checkpoint, load.own_parts)
        state = Api(models, limits=ApiLimits(**vars(limits)), keys=secrets, precision=precision, exported=exported)
        log_json()
        typer.echo(f"http://{host}:{here.getsockname()[1]}/openapi.json\nCtrl-C stops it.")
        server.serve_api(state, create_api(state, loopback=loopback, origins=cors or []), here)


def read_keys(file: Path | None) -> list[str]:
    """From the file, or else from REGARD_API_KEYS; never from the command line, which others can see."""
    import os

    text = (
        os.environ.get("REGARD_API_KEYS", "").replace(",", "\n") if file is None else file.read_text(encoding="utf-8")
    )
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if file is not None and not found:
        raise ValueError(f"{file} holds no key; write one a line")
    if short := [key for key in found if len(key) < MIN_KEY]:
        raise ValueError(f"an API key of {len(short[0])} characters can be guessed; use at least {MIN_KEY}")
    return found
