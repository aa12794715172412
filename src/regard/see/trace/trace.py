"""Trace: what one model made of one input: its output, the logits, and every attention site.

    trace = trace_model("run", "the black cat ate the mouse")
    trace.output_text, trace.axes["source"].labels, list(trace.sites)
    trace.sites["decoder.0.cross"].head(1).weights       rows are trace.axes["written"], columns trace.axes["source"]
    trace.next_token_probabilities(2), trace.branch(2, "chat"), trace.beam_tree()

It works for all tasks, and with edits (see edits.py). Of a generated text the final output is traced: the decoder's
sites are those of one forward pass over exactly these tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.attention import SiteName
from regard.attention.hooks import UNDECLARED_AXES
from regard.data.tokenizers.base import Tokenizer
from regard.decode.alignment import Links
from regard.decode.translate import unknown_words
from regard.decode.word_alignment import attend_pair, best_head
from regard.see.trace.beam_tree import BeamTree
from regard.see.trace.edits import Edits, refuse_unknown, swap_words
from regard.see.trace.recorder import AttentionRecorder, site_extents
from regard.see.trace.sites import AttentionSite, GateSite
from regard.tasks.autoencoding.task import SentenceAutoencoder
from regard.tasks.config import read_task_name
from regard.tasks.image_classification.task import ImageClassifier
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.node_classification.task import NodeClassifier
from regard.tasks.pretrained import PretrainedModel, settings_path
from regard.tasks.sequence_classification.task import TextClassifier
from regard.tasks.tagging.task import Tagger
from regard.tasks.translation.task import Translator
from regard.tasks.vqa.task import QuestionAnswerer

MAX_TOKENS = 16_384  # tokens of an input, unless more are allowed

TASK_MODELS: dict[str, type[PretrainedModel]] = {
    "translation": Translator,
    "tagging": Tagger,
    "sequence_classification": TextClassifier,
    "language_modeling": TextGenerator,
    "image_classification": ImageClassifier,
    "vqa": QuestionAnswerer,
    "node_classification": NodeClassifier,
    "autoencoding": SentenceAutoencoder,
}


@dataclass(frozen=True)
class TokenAxis:
    """One side of a site's matrices: a label for each position, and the words that positions belong to."""

    labels: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_ids: tuple[int | None, ...] = ()  # None: no word, as the end of a sentence; empty: there are no words
    grid: tuple[int, int] | None = None  # rows and columns of an image's patches, which are the last positions

    @property
    def word_groups(self) -> list[tuple[str, list[int]]]:
        """Each word with its positions, in their order; what is no word stands for itself."""
        found: dict[object, tuple[str, list[int]]] = {}
        for position, label in enumerate(self.labels):
            word = self.word_ids[position] if self.word_ids else None
            key, name = (("position", position), label) if word is None else (word, self.words[word])
            found.setdefault(key, (name, []))[1].append(position)
        return list(found.values())


def merge_subwords(
    weights: Float[Tensor, "i j"], queries: TokenAxis, keys: TokenAxis
) -> Float[Tensor, "words other_words"]:
    """Pieces to words: summed over a key's pieces, averaged over a query's."""
    summed = torch.stack([weights[:, positions].sum(1) for _, positions in keys.word_groups], 1)
    return torch.stack([summed[positions].mean(0) for _, positions in queries.word_groups])


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the model chose from: for each row (a label, a word's tag, a generated token) a score for each option."""

    rows: tuple[str, ...]
    logits: Float[Tensor, "rows options"]
    option_name: Callable[[int], str] = field(repr=False)  # of an option

    def probabilities(self, row: int) -> Float[Tensor, " options"]:
        if not 0 <= row < len(self.rows):
            raise ValueError(f"there is no step {row}; they are counted from 0 to {len(self.rows) - 1}")
        return self.logits[row].double().softmax(-1).float()

    def best(self, row: int, count: int = 5) -> list[tuple[str, float]]:
        """The options that are most probable."""
        found = self.probabilities(row)
        top = found.topk(min(count, len(found)))
        return [(self.option_name(n), p) for n, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


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

    def refuse_long(self, tokens: int) -> None:
        if tokens > self.longest:
            raise ValueError(
                f"{tokens:,} tokens are too many to trace; shorten the input, or allow them: longest={tokens}"
            )


@dataclass(frozen=True, eq=False)
class Trace:
    """What one model made of one input. Arrays are on the model's device; there is one sentence, number 0."""

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

    def site(self, name: str) -> AttentionSite:
        """An attention by its name; a gate has no heads and is found in `sites`."""
        if not isinstance(found := self.sites.get(name), AttentionSite):
            there = [name for name, site in self.sites.items() if isinstance(site, AttentionSite)]
            raise ValueError(f"there is no site {name!r:.80}; there are {', '.join(there) or 'none'}")
        return found

    def word_weights(self, name: str, head: int) -> Float[Tensor, "words other_words"]:
        """The weights of one head between words."""
        site = self.site(name).site_name
        pooled = TokenAxis((site.queries,))
        return merge_subwords(
            self.site(name).head(head).weights, self.axes.get(site.queries, pooled), self.axes[site.keys]
        )

    @property
    def out_of_vocabulary(self) -> tuple[str, ...]:
        """The words that the model has no id for, each once: what it makes of them is a guess."""
        request, task_model = self.request, self.request.task_model
        texts: list[tuple[Tokenizer, str]] = []
        match task_model:
            case Translator():
                texts = [
                    (task_model.source, swap_words(request.text, request.edits)),
                    (task_model.target, request.target or ""),
                ]
            case QuestionAnswerer():
                texts = [(task_model.tokenizer, swap_words(request.question or "", request.edits))]
            case SentenceAutoencoder() | TextGenerator() | Tagger() | TextClassifier():
                texts = [
                    (task_model.tokenizer, swap_words(request.text, request.edits)),
                    (task_model.tokenizer, request.target or ""),
                ]
        return tuple(dict.fromkeys(word for words, text in texts for word in unknown_words(words, text)))

    def to_python(self, model: str = "run") -> str:
        """Lines that make this trace from the folder of its model, and compare it with the one without edits."""
        arguments = {name: getattr(self.request, name) for name in ("question", "target", "beam", "more")}
        return self.request.edits.to_python(
            model, self.request.text, {name: one for name, one in arguments.items() if one}
        )

    # --- generated text ---

    def next_token_probabilities(self, step: int) -> Float[Tensor, " vocabulary"]:
        """The probability of every token at one step, given those before it; `predictions.option_name` names them."""
        self.generated_ids()
        return self.predictions.probabilities(step)

    def branch(self, step: int, token: int | str) -> "Trace":
        """The same up to a step, then this token, then whatever the model makes of it."""
        from regard.see.trace.task_traces import trace_branch

        return trace_branch(self, self.generated_ids(), step, token)

    def beam_tree(self) -> BeamTree:
        """Every hypothesis that the search kept, step by step."""
        from regard.see.trace.task_traces import build_beam_tree

        self.generated_ids()
        return build_beam_tree(self.request)

    def generated_ids(self) -> tuple[int, ...]:
        if self.output_ids is None:
            raise ValueError(f"a model for the task {self.task!r} generates nothing step by step")
        return self.output_ids


def trace_model(
    model: PretrainedModel | Path | str,
    text: str,
    *,
    question: str | None = None,
    target: str | None = None,
    beam: int | None = None,
    more: int = 0,
    longest: int = MAX_TOKENS,
    edits: Edits = Edits(),
    device: str = "cpu",
) -> Trace:
    """What a model makes of an input.

    Args:
        model: a trained model, or the folder of its run.
        text: a sentence; the path of an image; the name of a node.
        question: about the image.
        target: the translation (or autoencoded sentence) to trace; without one, the model's own output.
        beam: hypotheses of the search; 5 for translations, 1 (greedy) for others.
        more: how many tokens a language model generates after the text.
        longest: an input of more tokens is refused.
        edits: what is changed.
        device: where a folder's model is loaded to.
    """
    task_model = model if isinstance(model, PretrainedModel) else load_pretrained(Path(model), device)
    if not text.strip():
        raise ValueError("the text is empty; give at least one word")
    return build_trace(TraceRequest(task_model, text, question, target, beam, more, longest, edits=edits))


def build_trace(request: TraceRequest) -> Trace:
    return number_undeclared_axes(trace_task(request))


def trace_task(request: TraceRequest) -> Trace:
    from regard.see.trace import task_traces

    task_model = request.task_model
    refuse_irrelevant(request)
    match task_model:
        case Translator():
            return task_traces.trace_translation(request, task_model)
        case SentenceAutoencoder():
            return task_traces.trace_autoencoding(request, task_model)
        case TextGenerator():
            return task_traces.trace_generation(request, task_model)
        case Tagger():
            return task_traces.trace_tagging(request, task_model)
        case TextClassifier():
            return task_traces.trace_classification(request, task_model)
        case NodeClassifier():
            return task_traces.trace_node_classification(request, task_model)
        case ImageClassifier():
            return task_traces.trace_image_classification(request, task_model)
        case QuestionAnswerer():
            return task_traces.trace_vqa(request, task_model)
    raise ValueError(f"{type(task_model).__name__} is no model of a task; there are {', '.join(TASK_MODELS)}")


def number_undeclared_axes(trace: Trace) -> Trace:
    """Which tokens the queries and keys of a site are, if its model does not declare it, nobody knows: they get
    numbers."""
    sites, axes = dict(trace.sites), dict(trace.axes)
    for name, site in trace.sites.items():
        declared = (site.site_name.queries, site.site_name.keys) != UNDECLARED_AXES
        if declared or not isinstance(site, AttentionSite):
            continue
        labels = [TokenAxis(tuple(map(str, range(count)))) for count in site.shape]
        names = [f"{count} tokens" for count in site.shape]
        axes |= dict(zip(names, labels, strict=True))
        sites[name] = replace(site, site_name=SiteName(name, *names))
    return replace(trace, sites=sites, axes=axes)


def refuse_irrelevant(request: TraceRequest) -> None:
    """Refuses arguments that mean nothing to this task."""
    task = request.task_model.settings.task
    seq2seq = ("translation", "autoencoding")
    meant = {"question": ("vqa",), "target": seq2seq, "beam": (*seq2seq, "language_modeling")}
    for name, tasks in meant.items():
        if getattr(request, name) is not None and task not in tasks:
            raise ValueError(f"{name} means nothing to a model for the task {task!r}; leave it out")
    if request.more and task != "language_modeling":
        raise ValueError(f"more = {request.more} means nothing to a model for the task {task!r}; leave it out")


def load_pretrained(folder: Path, device: str = "cpu", checkpoint: str | int | None = None) -> PretrainedModel:
    """The model of a run as it stands, or at a checkpoint, whatever its task."""
    task = read_task_name(settings_path(folder))
    if task not in TASK_MODELS:
        raise ValueError(f"{folder}: no task is called {task!r:.80}; there are {', '.join(TASK_MODELS)}")
    return TASK_MODELS[task].load(folder, device, checkpoint)


def collect_sites(
    recorder: AttentionRecorder, queries: Mapping[str, int] | None = None
) -> dict[str, AttentionSite | GateSite]:
    """What was traced; an edit of something that is not there is refused."""
    sites = recorder.sites()
    refuse_unknown(recorder.edits, site_extents(sites, dict(queries or {})))
    return sites


def trace_with_edits(trace: Trace, edits: Edits) -> Trace:
    """The same request again, with these edits instead."""
    return build_trace(replace(trace.request, edits=edits))


# --- initial selection ---


MAX_COMPARED_CELLS = 2**22  # of all heads together that are compared; of a longer text the first head is shown
CANDIDATE_QUERIES = 8  # queries among which the first that sees several keys is chosen


@dataclass(frozen=True)
class InitialSelection:
    """A head of a site, and a cell of it."""

    site: str
    head: int
    query: int
    key: int


def select_initial(trace: Trace, folder: Path | None = None) -> InitialSelection | None:
    """The best alignment head of the run, else the most confident; and the key of its largest weight. Without
    attention there is none."""
    sites = {name: site for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    if not sites:
        return None
    name, head = select_head(trace, folder, sites)
    site = sites[name]
    # a query that sees one key alone has nothing to choose from
    choosing = site.visible(head, range(min(CANDIDATE_QUERIES, site.shape[0]))).sum(-1) > 1
    query = int(choosing.int().argmax())
    return InitialSelection(name, head, query, int(site.row(head, query).argmax()))


def select_head(trace: Trace, folder: Path | None, sites: dict[str, AttentionSite]) -> tuple[str, int]:
    cells = sum(site.heads * site.shape[0] * site.shape[1] for site in sites.values())
    task_model, source, written = trace.request.task_model, trace.axes.get("source"), trace.axes.get("written")
    if cells > MAX_COMPARED_CELLS:
        return next(iter(sites)), 0
    across = any(site.site_name.queries == "written" for site in sites.values())
    if isinstance(task_model, Translator) and across and source and written and written.words:
        found = best_head(task_model, folder, attend_pair(task_model, " ".join(source.words), " ".join(written.words)))
        if found.layer in sites:
            return found.layer, found.head
    focused = {name: site.statistics().confidence for name, site in sites.items()}
    name = max(focused, key=lambda name: float(focused[name].max()))
    return name, int(focused[name].argmax())
