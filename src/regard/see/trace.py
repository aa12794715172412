"""Trace: what one model made of one input: its output, the logits, and every attention site.

    trace = trace_model("run", "the black cat ate the mouse")
    trace.output_text, trace.axes["source"].labels, list(trace.sites)
    trace.sites["decoder.0.cross"].head(1).weights       rows are trace.axes["written"], columns trace.axes["source"]
    trace.next_token_probabilities(2), trace.branch(2, "chat"), trace.beam_tree()

It works for all tasks, and with edits (see edits.py). Of a generated text the final output is traced: the decoder's
sites are those of one forward pass over exactly these tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from regard.attention import SiteName
from regard.attention.core import UNDECLARED_AXES
from regard.attention.parts import field_values
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode.alignment import Links
from regard.decode.beam import Beam, BeamSearch
from regard.decode.beam_decoder import ModelBeams
from regard.decode.search import Constraints, DecodingRequest, Hypothesis, LengthLimit, translate
from regard.decode.stepwise import Greedy, PartialHypothesis, Sampling
from regard.decode.text_generation import continuation_search, generate, text_constraints
from regard.decode.translation import unknown_words
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import DecodableModel, inference_mode
from regard.see.edits import Edits, refuse_unknown, refuse_word_swaps, swap_words, without_word_swaps
from regard.see.sites import AttentionRecorder, AttentionSite, GateSite, apply_edits, site_extents
from regard.tasks.model_packages import resolve_model
from regard.tasks.own_parts import OwnParts, PartReference
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import (
    EncodedInput,
    GenerationInput,
    Predictions,
    Task,
    TaskInput,
    TokenAxis,
    token_id,
    token_label,
)
from regard.tasks.registry import get_task, task_of_run

MAX_TOKENS = 16_384  # tokens of an input, unless more are allowed


def merge_subwords(
    weights: Float[Tensor, "i j"], queries: TokenAxis, keys: TokenAxis
) -> Float[Tensor, "words other_words"]:
    """Pieces to words: summed over a key's pieces, averaged over a query's."""
    summed = torch.stack([weights[:, positions].sum(1) for _, positions in keys.word_groups], 1)
    return torch.stack([summed[positions].mean(0) for _, positions in queries.word_groups])


def to_grid(weights: Tensor, axis: TokenAxis) -> Tensor:
    """The weights of patches in the rows and columns of the image; the class token is left out."""
    if axis.grid is None:
        raise ValueError("this axis has no patches of an image; choose one whose grid is known")
    rows, columns = axis.grid
    return rearrange(weights[..., -rows * columns :], "... (y x) -> ... y x", y=rows)


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """The arguments of a trace; see `trace_model`."""

    task_model: PretrainedModel = field(repr=False)
    text: str
    question: str | None = None
    target: str | None = None
    beam: int | None = None
    more: int = 0
    longest: int = MAX_TOKENS
    prefix: tuple[int, ...] = ()  # what the generated text must begin with
    ids: tuple[int, ...] | None = None  # all of it, if it is known
    edits: Edits = Edits()
    array: Any = None  # an image or a sound in memory; then the text is but its name
    sampling: Sampling | None = None  # how the output is drawn; None searches for it

    @property
    def task(self) -> Task:
        return get_task(self.task_model.settings.task)

    def task_input(self) -> TaskInput:
        """The input with its words swapped."""
        options = self.question, self.target, self.beam, self.more, self.longest, self.prefix, self.ids
        given = TaskInput(self.text, *options, array=self.array)
        spec = self.task.inputs
        if spec.swappable is None:
            refuse_word_swaps(self.edits, spec.container)
        if spec.swappable is None or not self.edits.swaps:
            return given
        return replace(given, **{spec.swappable: swap_words(self.swappable_text, self.edits)})

    @property
    def swappable_text(self) -> str:
        """The text whose words can be swapped, and are counted; "" where there are none."""
        name = self.task.inputs.swappable
        return "" if name is None else self.task.normalize(self.task_model, vars(self)[name] or "")

    def edited(self) -> AbstractContextManager[None]:
        """The model with its edits while the block lasts; without edits it is left alone."""
        return apply_edits(self.task_model.model, without_word_swaps(self.edits))


@dataclass(frozen=True, eq=False)
class Trace:
    """What one model made of one input. Arrays are on the model's device; there is one sentence, number 0.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> trace.output_text, trace.axes["source"].labels
        ('le chat dort', ('the', 'cat', 'sleeps', '</s>'))
        >>> list(trace.sites)
        ['encoder.0', 'encoder.1', 'decoder.0.self', 'decoder.0.cross', 'decoder.1.self', 'decoder.1.cross']
        >>> trace.word_weights("decoder.0.cross", head=1).shape
        torch.Size([4, 4])
    """

    request: TraceRequest
    task: str
    output_text: str
    axes: Mapping[str, TokenAxis]
    sites: Mapping[str, AttentionSite | GateSite]  # in the order they ran; empty for a model without attention
    predictions: Predictions
    gold_alignment: Links = frozenset()  # (source word, target word), where the miniature world knows them
    image: UInt8[Tensor, "c h w"] | None = None  # as the model was given it
    output_ids: tuple[int, ...] | None = None  # ids of the text that was generated, or read to be gone on with
    forced_steps: int = 0  # steps whose tokens were not chosen: a prompt's, or a target's
    encoded: EncodedInput = field(default=EncodedInput((), {}, ()), repr=False)  # as the model read it

    def site(self, name: str) -> AttentionSite:
        """An attention by its name; a gate has no heads and is found in `sites`."""
        if not isinstance(found := self.sites.get(name), AttentionSite):
            raise ValueError(f"there is no site {name!r:.80}; there are {', '.join(self.attention_names) or 'none'}")
        return found

    @property
    def attention_names(self) -> list[str]:
        """Of the sites that are attentions, and no gates."""
        return [name for name, site in self.sites.items() if isinstance(site, AttentionSite)]

    def word_weights(self, name: str, head: int) -> Float[Tensor, "words other_words"]:
        """The weights of one head between words."""
        return merge_subwords(self.site(name).head(head).weights, *self.axes_of(name))

    def axes_of(self, name: str) -> tuple[TokenAxis, TokenAxis]:
        """The queries and the keys of an attention; positions without labels are counted."""
        site = self.site(name)
        queries, keys = (
            found
            if (found := self.axes.get(axis)) and len(found.labels) == count
            else TokenAxis((axis,) if count == 1 else tuple(f"{axis} {n}" for n in range(count)))
            for axis, count in zip((site.site_name.queries, site.site_name.keys), site.shape, strict=True)
        )
        return queries, keys

    @property
    def out_of_vocabulary(self) -> tuple[str, ...]:
        """The words that the model has no id for, each once: what it makes of them is a guess."""
        texts = self.request.task.texts(self.request.task_model, self.request.task_input())
        return tuple(dict.fromkeys(word for tokenizer, text in texts for word in unknown_words(tokenizer, text)))

    def to_python(self, model: str = "run") -> str:
        """Lines that make this trace from the folder of its model, and compare it with the one without edits."""
        arguments = {name: getattr(self.request, name) for name in ("question", "target", "beam", "more")}
        return self.request.edits.to_python(
            model, self.request.text, {name: one for name, one in arguments.items() if one}
        )

    def _repr_html_(self) -> str:
        """The page of this trace, for a notebook's cell."""
        from regard.see.plots.draw import show

        return show(self)._repr_html_()

    # --- generated text ---

    def next_token_probabilities(self, step: int, sampling: Sampling | None = None) -> Float[Tensor, " vocabulary"]:
        """The probability of every token at one step, given those before it; `predictions.option_name` names them. With
        a `sampling`, that with which it would be drawn: at a temperature, and 0 for all that is truncated or banned."""
        self.generated_ids()
        if sampling is None:
            return self.predictions.probabilities(step)
        given = self.request.task.generation(self.request.task_model, self.request.task_input())
        constraints = Constraints() if given.source is not None else text_constraints(given.tokenizer)
        return sampling.probabilities(self.predictions.logits[step], constraints)

    def branch(self, step: int, token: int | str) -> "Trace":
        """The same up to a step, then this token, then whatever the model makes of it."""
        request, ids = self.request, self.generated_ids()
        if not 0 <= step <= len(ids):
            raise ValueError(f"there is no step {step}; they are counted from 0 to {len(ids)}")
        generation = request.task.generation(request.task_model, request.task_input())
        one = token_id(generation.tokenizer, token)
        if generation.source is None:
            more = max(request.more, len(ids) - step - 1)
            return build_trace(replace(request, prefix=(*ids[:step], one), more=more))
        if one == EOS:
            return build_trace(replace(request, target=None, prefix=(), ids=tuple(ids[:step])))
        if one in (PAD, BOS):
            name = token_label(generation.tokenizer, one)
            raise ValueError(f"{name} never occurs in the middle of a text; choose another token")
        return build_trace(replace(request, target=None, ids=None, prefix=(*ids[:step], one)))

    def beam_tree(self) -> "BeamTree":
        """Every hypothesis that the search kept, step by step."""
        self.generated_ids()
        request = self.request
        generation = request.task.generation(request.task_model, request.task_input())
        with request.edited():
            return search_tree(generation, generation.tree_beam)

    def generated_ids(self) -> tuple[int, ...]:
        if self.output_ids is None:
            raise ValueError(f"a model for the task {self.task!r} generates nothing step by step")
        return self.output_ids


def trace_model(
    model: PretrainedModel | Path | str,
    text: Any,
    *,
    question: str | None = None,
    target: str | None = None,
    beam: int | None = None,
    more: int = 0,
    longest: int = MAX_TOKENS,
    edits: Edits = Edits(),
    device: str = "cpu",
    parts: Sequence[PartReference] = (),
    sampling: Sampling | None = None,
) -> Trace:
    """What a model makes of an input.

    Args:
        model: a trained model, or the folder of its run.
        text: a sentence; the path of an image or of a sound, or the image or the sound itself (Pillow's, an array); the
            name of a node.
        question: about the image.
        target: the translation (or autoencoded sentence) to trace; without one, the model's own output.
        beam: hypotheses of the search; 5 for translations, 1 (greedy) for others.
        more: how many tokens a language model generates after the text.
        longest: an input of more tokens is refused.
        edits: what is changed.
        device: where a folder's model is loaded to.
        parts: files of a user's own parts, which are run, or the classes themselves; see `regard.load`.
        sampling: draws the output, with a temperature, top-k, top-p and a seed, instead of searching for the best.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> trace.axes["written"].labels, trace.axes["source"].labels
        (('le', 'chat', 'dort', '</s>'), ('the', 'cat', 'sleeps', '</s>'))
        >>> trace.site("decoder.0.cross").head(1).weights.shape
        torch.Size([4, 4])
    """
    task_model = (
        model
        if isinstance(model, PretrainedModel)
        else load_pretrained(Path(model), device, own_parts=OwnParts.load(parts))
    )
    kind = get_task(task_model.settings.task).inputs.kind
    text, array = (str(text), None) if isinstance(text, str | Path) else (kind, text)
    if array is not None and kind not in ("image", "audio"):
        raise ValueError(
            f"the input is {'a text' if kind == 'text' else 'the name of a node'}, not {type(array).__name__}"
        )
    if not text.strip():
        raise ValueError("the text is empty; give at least one word")
    given = task_model, text, question, target, beam, more, longest
    return build_trace(TraceRequest(*given, edits=edits, array=array, sampling=sampling))


def build_trace(request: TraceRequest) -> Trace:
    """Encodes the input, runs the model once with a recorder, and names what came out."""
    task, task_model = request.task, request.task_model
    refuse_irrelevant(request)
    given, recorder = with_output(request), AttentionRecorder(without_word_swaps(request.edits))
    encoded = task.encode(task_model, given)
    with inference_mode(task_model.model), recorder.record(task_model.model):
        logits = task.forward(task_model.model, encoded).float()
    predictions = Predictions(encoded.rows, logits, partial(task.option_name, task_model))
    trace = Trace(
        request,
        task.name,
        task.output_text(task_model, given, predictions),
        encoded.axes,
        collect_sites(recorder, encoded),
        predictions,
        encoded.gold_alignment,
        encoded.image,
        encoded.output_ids,
        encoded.forced_steps,
        encoded,
    )
    return number_undeclared_axes(trace)


def with_output(request: TraceRequest) -> TaskInput:
    """The input and, of a task that generates, the ids of its output: those given, or those that the search finds."""
    given, options = request.task_input(), request.task.inputs.options
    known = given.target is not None or given.ids is not None
    if "beam" not in options or (not given.more if "more" in options else known):
        return given
    generation = request.task.generation(request.task_model, given)
    model = generation.model
    with request.edited():
        if generation.source is not None:
            search = target_search(generation, generation.beam)
            search = replace(request.sampling, max_length=search.max_length) if request.sampling else search
            ((found, *_),) = translate(model, [generation.source], search, prefixes=[generation.prefix])
            return replace(given, ids=found.ids, searched=True, finished=found.finished)
        if generation.beam == 1 or request.sampling:
            search, constraints = request.sampling or Greedy(), text_constraints(generation.tokenizer)
            found = generate(model, generation.prefix, search, tokens=generation.max_tokens, constraints=constraints)
            more = tuple(one.id for one in found)
        else:
            more = search_tree(generation, generation.beam).hypotheses[0].ids
    prompt = generation.prefix[len(generation.prefix) - generation.first_step :]
    return replace(given, ids=(*prompt, *more), searched=True)


def target_search(generation: GenerationInput, beam: int) -> Beam:
    """How a target is found for a source."""
    return Beam(beam, length_penalty=1.0, max_length=LengthLimit(0, generation.max_tokens))


def search_tree(generation: GenerationInput, beam: int) -> "BeamTree":
    """Every hypothesis of a beam search."""
    model = generation.model
    if generation.source is not None:
        return beam_tree(model, generation.source, target_search(generation, beam), generation.prefix)
    if not generation.max_tokens:
        raise ValueError("nothing was generated after this text, so there are no beams; ask for some tokens: more=12")
    constraints = text_constraints(generation.tokenizer)
    return continuation_tree(model, generation.prefix, beam, generation.max_tokens, constraints)


IN_PLACE = ("blocks", "mixtures", "points")  # of tokens: what a layer of another form attends to


def number_undeclared_axes(trace: Trace) -> Trace:
    """Which tokens the queries and keys of a site are, if its model does not declare it, nobody knows: they get
    numbers, and so does what a layer attends to in place of tokens."""
    sites, axes = dict(trace.sites), dict(trace.axes)
    for name, site in trace.sites.items():
        if not isinstance(site, AttentionSite):
            continue
        spot = site.site_name if site.mixture is None else replace(site.site_name, keys="mixtures")
        if (spot.queries, spot.keys) != UNDECLARED_AXES:
            counts = {
                axis: n for axis, n in zip((spot.queries, spot.keys), site.shape, strict=True) if axis in IN_PLACE
            }
            axes |= {axis: TokenAxis(tuple(f"{axis} {at}" for at in range(n))) for axis, n in counts.items()}
            sites[name] = replace(site, site_name=spot)
            continue
        labels = [TokenAxis(tuple(map(str, range(count)))) for count in site.shape]
        names = [f"{count} tokens" for count in site.shape]
        axes |= dict(zip(names, labels, strict=True))
        sites[name] = replace(site, site_name=SiteName(name, *names))
    return replace(trace, sites=sites, axes=axes)


def refuse_irrelevant(request: TraceRequest) -> None:
    """Refuses arguments that mean nothing to this task."""
    task = request.task
    for name, option in {"question": "question", "target": "target", "beam": "beam", "sampling": "beam"}.items():
        if vars(request)[name] is not None and option not in task.inputs.options:
            raise ValueError(f"{name} means nothing to a model for the task {task.name!r}; leave it out")
    if request.sampling and request.target is not None:
        raise ValueError("a target is read, not drawn; leave out the target or the sampling")
    if request.more and "more" not in task.inputs.options:
        raise ValueError(f"more = {request.more} means nothing to a model for the task {task.name!r}; leave it out")


def load_pretrained(
    folder: Path, device: str = "cpu", checkpoint: str | int | None = None, own_parts: OwnParts = OwnParts()
) -> PretrainedModel:
    """The model of a run as it stands, or at a checkpoint, or of a name, whatever its task."""
    folder = resolve_model(folder)
    return task_of_run(folder).task_model.load(folder, device, checkpoint, own_parts)


def collect_sites(recorder: AttentionRecorder, encoded: EncodedInput) -> dict[str, AttentionSite | GateSite]:
    """What was traced; an edit of something that is not there is refused."""
    sites = {name: with_known_axes(site, encoded.axes) for name, site in recorder.sites().items()}
    refuse_unknown(recorder.edits, site_extents(sites, dict(encoded.max_queries)))
    return sites


def with_known_axes(site: AttentionSite | GateSite, axes: Mapping[str, TokenAxis]) -> AttentionSite | GateSite:
    """An attention whose model does not say what its queries and keys are: where there is but one axis of tokens, and
    there are as many, they are those."""
    spot = site.site_name
    if isinstance(site, GateSite) or (spot.queries, spot.keys) != ("queries", "keys") or len(axes) != 1:
        return site
    ((name, axis),) = axes.items()
    queries, keys = (
        name if count == len(axis.labels) else unknown
        for count, unknown in zip(site.shape, ("queries", "keys"), strict=True)
    )
    return replace(site, site_name=replace(spot, queries=queries, keys=keys))


def trace_with_edits(trace: Trace, edits: Edits) -> Trace:
    """The same request again, with these edits instead.

    Examples:
        >>> before = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> after = trace_with_edits(before, Edits(off=(HeadOff("encoder.0", 0),)))
        >>> [round(trace.site("encoder.0").weights(head=0).sum().item(), 4) for trace in (before, after)]
        [4.0, 0.0]
    """
    return build_trace(replace(trace.request, edits=edits))


# --- initial selection ---


MAX_COMPARED_CELLS = 2**22  # of all heads together that are compared; of a longer text the first head is shown
CANDIDATE_QUERIES = 64  # queries among which the first cell is chosen


@dataclass(frozen=True)
class InitialSelection:
    """A head of a site, and a cell of it."""

    site: str
    head: int
    query: int
    key: int


def select_initial(trace: Trace, folder: Path | None = None) -> InitialSelection | None:
    """The best alignment head of the run, else the most confident; and the cell of it that tells most. Without
    attention there is none."""
    sites = {name: site for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    if not sites:
        return None
    name, head = select_head(trace, folder, sites)
    return InitialSelection(name, head, *select_cell(trace, sites[name], head))


def select_cell(trace: Trace, site: AttentionSite, head: int) -> tuple[int, int]:
    """The query and key of the largest weight between two words that their texts hold once: not to itself, nor to a key
    that most queries attend to (an attention sink); where there is none, of the first query that sees several keys."""
    queries = range(min(CANDIDATE_QUERIES, site.shape[0]))
    weights = site.steps(head, queries, slice(0, 1), torch.float32).weights[0, 0]
    largest, keys = weights.max(-1)
    choosing = site.visible(head, queries).sum(-1) > 1  # one that sees one key alone has nothing to choose from
    rows, columns = (
        word_positions(trace, axis, n)
        for axis, n in zip((site.site_name.queries, site.site_name.keys), site.shape, strict=True)
    )
    tells = choosing & rows[: len(queries)].to(keys.device) & columns.to(keys.device)[keys]
    if site.site_name.queries == site.site_name.keys:
        tells &= keys != torch.arange(len(queries), device=keys.device)
    # of the weight that a key gets, the share that is this query's: small for a sink
    exclusive = largest * largest / weights.sum(0)[keys].clamp(min=1e-30)
    query = int((exclusive * tells if tells.any() else choosing.int()).argmax())
    return query, int(keys[query])


def word_positions(trace: Trace, axis: str, count: int) -> Bool[Tensor, " n"]:
    """Which positions of an axis belong to a word of letters or digits that occurs once; all, where it has no words."""
    found = trace.axes.get(axis)
    if found is None or not found.word_ids or len(found.word_ids) != count:
        return torch.ones(count, dtype=torch.bool)
    counts = Counter(found.words)
    telling = [counts[word] == 1 and any(map(str.isalnum, word)) for word in found.words]
    return torch.tensor([word is not None and telling[word] for word in found.word_ids])


def select_head(trace: Trace, folder: Path | None, sites: dict[str, AttentionSite]) -> tuple[str, int]:
    cells = sum(site.heads * site.shape[0] * site.shape[1] for site in sites.values())
    if cells > MAX_COMPARED_CELLS:
        return next(iter(sites)), 0
    named = {axis for site in sites.values() for axis in (site.site_name.queries, site.site_name.keys)}
    axes = {name: axis for name, axis in trace.axes.items() if name in named}
    preferred = trace.request.task.preferred_head(trace.request.task_model, folder, axes)
    if preferred and preferred[0] in sites:
        return preferred
    focused = {name: site.statistics().confidence for name, site in sites.items()}
    name = max(focused, key=lambda name: float(focused[name].max()))
    return name, int(focused[name].argmax())


# --- beam trees, read from the backpointers of a search ---


@dataclass(frozen=True)
class BeamNode:
    """A prefix that was kept, or a hypothesis that ended here: then `finished`, and `score` is what ranks it."""

    ids: tuple[int, ...]
    parent: int | None  # its index among the open nodes of the step before; None at the first
    log_probability: float  # of all its tokens together, the end included
    finished: bool
    score: float


@dataclass(frozen=True)
class BeamTree:
    """The nodes of every step, open ones first, best first; and what was found in the end, best first.

    Examples:
        >>> tree = trace_model("run", "the cat sleeps", beam=2).beam_tree()
        >>> len(tree.steps[0]), tree.steps[0][0].parent
        (2, None)
        >>> tree.hypotheses[0].ids[:1] in [node.ids[:1] for node in tree.steps[0]]
        True
    """

    steps: tuple[tuple[BeamNode, ...], ...]
    hypotheses: tuple[Hypothesis, ...]

    def on_best_path(self, node: BeamNode) -> bool:
        """Is the node a prefix of the best hypothesis?"""
        best_ids = self.hypotheses[0].ids
        return best_ids == node.ids if node.finished else best_ids[: len(node.ids)] == node.ids


def beam_tree(model: DecodableModel, source: tuple[int, ...], beam: Beam, prefix: tuple[int, ...] = ()) -> BeamTree:
    """The beam search of one sentence alone; it finds what `beam.run` finds."""
    requests = [DecodingRequest(source, prefix)]
    with inference_mode(model):
        decoder = ModelBeams.begin(model, requests, beam.size, beam.coverage_penalty)
        return run_tree(BeamSearch.begin(decoder, beam, requests, Constraints()))


def continuation_tree(
    model: LanguageModel, prompt: Sequence[int], size: int, tokens: int, allowed: Constraints
) -> BeamTree:
    """The beam search for so many tokens after a text. As in all generation, nothing ends before."""
    with inference_mode(model):
        return run_tree(continuation_search(model, prompt, Beam(size, n_best=size), tokens, allowed))


def run_tree(search: BeamSearch) -> BeamTree:
    """A search of one sentence, run to its end; beams that can no longer win are shown too."""
    search.beams = replace(search.beams, prune=False)
    [hypotheses] = search.run()
    return BeamTree(tuple(tree_steps(search)), tuple(hypotheses))


def tree_steps(search: BeamSearch) -> Iterator[tuple[BeamNode, ...]]:
    history = field_values(search.beams.backpointers)
    tokens, parents, values, scores = (part[: search.steps, 0].tolist() for part in history)
    rows = [PartialHypothesis(DecodingRequest(()))]
    for step, candidates in enumerate(zip(tokens, parents, values, scores, strict=True)):
        before, rows, opened, ended = rows, [], [], []
        for token, parent, value, score in zip(*candidates, strict=True):
            index = parent if step else None
            if token == search.beams.eos:
                one = before[parent].finish(value, score)
                ended.append(BeamNode(one.ids, index, one.log_probability, finished=True, score=score))
            elif token >= 0:
                rows.append(row := before[parent].extend(token, value))
                opened.append(BeamNode(row.tokens, index, row.total, finished=False, score=row.total))
        if opened or ended:
            yield (*opened, *ended)
