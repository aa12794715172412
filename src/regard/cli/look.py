"""`regard look`: a model's output and attention for an input, or over a corpus: views, tables, comparisons, exports."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    BeamSize,
    LoadOptions,
    MaxLength,
    ModelArgument,
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

EXPORT_SUFFIXES = (".html", ".npz", ".csv")  # exports of a trace; other files are plots
NUMBERS_SUFFIX = ".json"  # what a method found, or statistics of a corpus, as the page gets them


# --- the options ---


@dataclass(frozen=True)
class ViewOptions:
    """What of an output is shown."""

    target: Annotated[str | None, typer.Option(help="The target; default: the model's own output.")] = None
    head: Annotated[
        str | None, typer.Option(help="LAYER:HEAD, several with commas; default: the best alignment heads.")
    ] = None
    all_heads: Annotated[bool, typer.Option("--all-heads", "--every", help="All layers and heads.")] = False
    word: Annotated[str | None, typer.Option(help="Attribute this word's output to the input words.")] = None

    def __post_init__(self) -> None:
        if self.all_heads and (self.head or self.word):
            raise ValueError("--all-heads shows all heads and words; leave it out, or --head and --word")

    @property
    def names_heads(self) -> bool:
        return bool(self.all_heads or self.head or self.word)


@dataclass(frozen=True)
class MethodOptions:
    """How a prediction is explained, and which."""

    method: Annotated[str | None, typer.Option(help="Explain a prediction: heads, lens, rollout, ...")] = None
    row: Annotated[int, typer.Option(help="Which prediction --method explains, from 0; -1 is the last.")] = -1
    key: Annotated[int | None, typer.Option(help="With --method row, the key that is taken apart.")] = None
    against: Annotated[str | None, typer.Option(help="With --method patching, the text whose states are replaced.")] = (
        None
    )
    part: Annotated[str, typer.Option(help="What --method patching replaces: residual, attention or head.")] = (
        "residual"
    )


@dataclass(frozen=True)
class CorpusOptions:
    """Whose sentences are counted, and what of them."""

    corpus: Annotated[
        str | None, typer.Option(help="Statistics over the sentences of this file, or held-out ones.")
    ] = None
    tagger: Annotated[
        Path | None, typer.Option(help="A run that tags words, for --corpus without tags.", callback=model_folder)
    ] = None
    neighbours: Annotated[
        str | None, typer.Option(help="LAYER:STATE of --corpus, whose nearest states are listed.")
    ] = None


@dataclass(frozen=True)
class SamplingOptions:
    """How the output is drawn, if any of these is given."""

    temperature: Annotated[float | None, typer.Option(help="Draw the output at this temperature.")] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens that reach this probability.")] = None
    seed: Annotated[int | None, typer.Option(help="Draw with this seed.")] = None

    def build(self) -> "Sampling | None":
        from regard.decode import Sampling

        some = {name: one for name, one in vars(self).items() if one is not None}
        return Sampling(**some) if some else None


@dataclass(frozen=True)
class DisplayOptions:
    """Where it is shown: in a file, beside other models, in the microscope."""

    save: Annotated[
        Path | None,
        typer.Option(help="Write a plot (.png, .svg, .pdf), a page (.html) or numbers (.npz, .csv, .json)."),
    ] = None
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--compare",
            "--with",
            help="Another model or checkpoint, to compare outputs, weights and states.",
            callback=model_folders,
        ),
    ] = None
    page: Annotated[bool, typer.Option("--page/--no-page", help="In a terminal, open the microscope as well.")] = True


@dataclass(frozen=True)
class DecodingOptions:
    """How wide the search is, and how long an input may be."""

    beam: BeamSize = 5
    max_length: MaxLength = 1000


# --- the command ---


@with_option_groups
def look(
    model: ModelArgument,
    text: Annotated[str | None, typer.Argument(help="A sentence, an image or .wav file, or a node's name.")] = None,
    question: Annotated[str | None, typer.Argument(help="About the image.")] = None,
    view: ViewOptions = ViewOptions(),
    method: MethodOptions = MethodOptions(),
    branch: Annotated[
        list[str] | None, typer.Option(help="STEP:TOKEN, a token that is forced; then the model goes on. Repeatable.")
    ] = None,
    corpus: CorpusOptions = CorpusOptions(),
    sampling: SamplingOptions = SamplingOptions(),
    edits: Annotated[str | None, typer.Option(help="Interventions as JSON, as the page writes them; compares.")] = None,
    display: DisplayOptions = DisplayOptions(),
    decoding: DecodingOptions = DecodingOptions(),
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
    save = display.save and writable_file(display.save)
    opens = display.page and sys.stdout.isatty() and save is None and method.method is None
    if corpus.corpus is not None:
        if text is not None or method.method is not None or view.names_heads:
            raise ValueError("--corpus counts the sentences of a file, all heads; leave out the text and --head")
        look_at_corpus(model, corpus, save, load, opens=opens)
        return
    require_text(model, text, opens=opens)
    task, task_model = load_for(model, load, question)
    if text is not None:
        given = {"sampling": sampling.build(), "branches": tuple(branch or ()), "question": question}
        request = ViewRequest(**vars(view), beam=decoding.beam, max_tokens=decoding.max_length, **given)
        seen = ModelInput(task, task_model, model, text, request)
        if edits is not None:
            typer.echo(compare_with_edits(seen.trace(), edits))
            return
        print_input(seen, method, save, display.others or [], load)
    if opens:
        open_microscope(model, display.others or [], text, question, load)


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A model, the input that it is given, and what is asked for beside it."""

    task: "Task"
    task_model: "PretrainedModel"
    model: Path
    text: str
    request: ViewRequest

    def trace(self) -> "Trace":
        """What the model makes of it, with the tokens that are forced."""
        from regard.see import trace_model

        request, options = self.request, {*self.task.inputs.options}
        given: dict[str, Any] = {name: getattr(request, name) for name in ("question", "target", "sampling")}
        beam = request.beam if {"target", "beam"} <= options else None
        trace = trace_model(self.task_model, self.text, beam=beam, **given)
        for one in request.branches:
            step, _, token = one.partition(":")
            if not step.isdecimal() or not token:
                raise ValueError(f"--branch {one}: write STEP:TOKEN, as in 1:souris; steps are counted from 0")
            trace = trace.branch(int(step), token)
        return trace


def require_text(model: Path, text: str | None, *, opens: bool) -> None:
    """There is a text, unless the microscope opens, where it can be typed."""
    if text is None and not opens:
        from regard.tasks.model_packages import shortest_name

        description = task_of_run(model).inputs.description
        raise ValueError(f"no input; give {description}, or start the page: regard serve {shortest_name(model)}")
    if text is not None and not text.strip():
        raise ValueError("the sentence is empty; give at least one word")


def load_for(model: Path, load: LoadOptions, question: str | None) -> "tuple[Task, PretrainedModel]":
    """A model, which answers questions if it is asked one."""
    task = task_of_run(model)
    task_model = load.load(task.task_model, model)
    if question is not None and "question" not in task.inputs.options:
        raise ValueError(f"{model} is for the task {task.name!r}, and answers no questions; give one text")
    return task, task_model


def print_input(
    seen: ModelInput, method: MethodOptions, save: Path | None, others: list[Path], load: LoadOptions
) -> None:
    """The output with its attention, a table, or what a method finds; beside other models, and in a file."""
    from regard import see

    if method.method in TABLES:
        print_table(seen, method, save)
        return
    name = method.method
    output, view = view_input(seen) if name is None else explain_input(seen, name, method.row, save)
    typer.echo(f"{output}\n\n{see.ascii(view)}")
    for other in others:
        typer.echo(f"\n{compare_with_model(seen.trace(), other, seen.request.head, load)}")
    suffix = save.suffix.lower() if save else ""
    if save and name is None and suffix in EXPORT_SUFFIXES:
        typer.echo(f"\nwritten: {write_export(cached_trace(seen), seen.request.head, save)}")
    elif save and name is not None and suffix == NUMBERS_SUFFIX:
        typer.echo(f"\nwritten: {save}")
    elif save:
        typer.echo(f"\ndrawn: {see.save(see.draw(view), save)}")


def print_table(seen: ModelInput, method: MethodOptions, save: Path | None) -> None:
    """The output, and a table of it."""
    name = method.method
    assert name is not None
    if save is not None and (name != "patching" or save.suffix.lower() != NUMBERS_SUFFIX):
        raise ValueError(f"{save}: --method {name} is a table; leave out --save (patching is saved as .json)")
    trace = seen.trace()
    table = TABLES[name](trace, TableRequest(seen.model, seen.request.head, method, save))
    typer.echo(f"{trace.output_text}\n\n{table}")


def view_input(seen: ModelInput) -> "tuple[str, View]":
    """What the task shows of an input; of a task without a view of its own, the attention of its trace."""
    from regard.see.plots.attention_maps import view_trace
    from regard.see.trace import trace_model

    task, model, request = seen.task, seen.task_model, seen.request
    several = request.sampling is not None or request.branches or (request.head is not None and "," in request.head)
    if not several and (view := vars(get_commands(task.name) or object).get("view")):
        return view(model, seen.model, seen.text, request)
    if request.word is not None:
        raise ValueError(f"--word means nothing to a model for the task {task.name!r}; leave it out")
    trace = (
        seen.trace()
        if several
        else trace_model(model, seen.text, question=request.question, target=request.target, longest=request.max_tokens)
    )
    return view_trace(trace, seen.model, request.head, all_heads=request.all_heads)


def explain_input(seen: ModelInput, method: str, row: int, save: Path | None) -> "tuple[str, View]":
    """What a method finds of a prediction; see `regard.see.methods`. As .json its numbers are those of the page."""
    from regard.see.methods import explain
    from regard.see.plots.charts import explanation_view
    from regard.serve.explanations import serialize_explanation

    if save is not None and save.suffix.lower() in EXPORT_SUFFIXES:
        raise ValueError(f"{save}: what a method found is saved as .json, or drawn as .png, .svg or .pdf")
    trace = seen.trace()
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


def look_at_corpus(model: Path, options: CorpusOptions, save: Path | None, load: LoadOptions, *, opens: bool) -> None:
    """Every head over many sentences: a line each; then the errors, and the page, where a click loads a sentence."""
    from regard.see.corpus import held_out_sentences, read_corpus, serialize_statistics, tag_sentences
    from regard.serve.trace_cache import CorpusEntry, CorpusStore

    if save is not None and save.suffix.lower() != NUMBERS_SUFFIX:
        raise ValueError(f"{save}: the statistics of a corpus are written as .json")
    corpus = options.corpus
    assert corpus is not None
    task_model = load.load(task_of_run(model).task_model, model)
    sentences = held_out_sentences(task_model) if corpus == HELD_OUT else read_corpus(task_model, corpus)
    sentences = sentences if options.tagger is None else tag_sentences(sentences, options.tagger)
    entry = CorpusEntry(model.resolve().name, None, sentences, Path(corpus).name)
    found = entry.statistics(task_model, with_progress)
    typer.echo(corpus_report(found) if options.neighbours is None else neighbours_report(found, options.neighbours))
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
    method: MethodOptions
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
    row, key = request.method.row, request.method.key
    query = row if row >= 0 else site.shape[0] + row
    queries, keys = (axis.labels for axis in trace.axes_of(name))
    if key is not None:
        pair = pair_terms(site, head, query, key)
        vectors = {"q": pair.q, "k": pair.k, "q∘k": pair.products, "v": pair.v, "weight·v": pair.added}
        size = max(map(len, vectors.values()))
        cells = [[f"{some[n]:.6g}" if n < len(some) else "" for some in vectors.values()] for n in range(size)]
        end = f"Σ {pair.dot:.6g} × {pair.scale:.6g} + {pair.bias:.6g} = {pair.adjusted:.6g}; weight {pair.weight:.6g}"
        table = text_table([["dimension", *vectors], *([str(n), *cell] for n, cell in enumerate(cells))])
        return f"{name}:{head}  {queries[query]} → {keys[key]}\n{table}\n{end}{pair.note and f'; {pair.note}'}"
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

    if request.method.against is None:
        raise ValueError("--method patching compares two texts; give the other one with --against")
    if request.method.part not in ("residual", "attention", "head"):
        raise ValueError(f"--part {request.method.part}: it is residual, attention or head")
    target = trace.output_text if "target" in trace.request.task.inputs.options else None
    other = build_trace(replace(trace.request, text=request.method.against, target=target, prefix=(), ids=None))
    found = patch_activations(trace, other, request.method.row, part=request.method.part, progress=with_progress)  # type: ignore[arg-type]
    if request.save is not None:
        write_json(request.save, serialize_patches(trace, found, request.method.part))
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


def cached_trace(seen: ModelInput) -> "CachedTrace":
    from regard.serve.trace_cache import CachedTrace

    title = Path(seen.text).name if seen.task.inputs.kind in ("image", "audio") else seen.text
    return CachedTrace("copy", seen.model.resolve().name, seen.trace(), title, seen.model)


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
