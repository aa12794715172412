"""Corpus statistics: every head over many sentences, its strongest spans, the states of all tokens, the model's errors.

    found = corpus_statistics("run", read_corpus("run", "test.tsv"))
    found.statistics["decoder.1.cross"].entropy          in nats, means over the sentences
    found.head("decoder.1.cross", 2).spans[0]            the largest weight of that head, and where it stands
    found.states["encoder.1"].nearest(7), found.states["encoder.1"].project(), found.errors[0]

Sentences are read in batches; what is found of one does not depend on the others. Weights are formed a band at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice
from math import log
from pathlib import Path
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.core import UNDECLARED_AXES
from regard.attention.stats import QueryBand, key_runs
from regard.data.files import file_format, read_lines, require_file
from regard.data.labelled import NO_VALUE, LabelledText, TaggedSentence, read_conllu, read_labelled
from regard.data.parallel import SentencePair, read_pairs
from regard.data.tokenizers.base import EOS
from regard.decode.alignment import AlignmentCounts, Links, gold_links
from regard.decode.search import translate
from regard.decode.translation import batch_by_tokens
from regard.models.seq2seq import inference_mode
from regard.see.methods import LayerBlock, find_blocks, queries_of_block, recorded_streams
from regard.see.plots.charts import principal_components
from regard.see.sites import AttentionRecorder, AttentionSite, HeadStatistics
from regard.see.trace import MAX_TOKENS, load_pretrained, target_search
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import EncodedInput, Predictions, ProgressBar, Task, TaskInput, TokenAxis, no_progress
from regard.tasks.registry import get_task

TOKENS_AT_ONCE, TOKENS_SEARCHED = 4096, 1024  # padded, of a batch that is read, and of one that is translated
SPANS = 20  # of each head
MAX_LABELS = 4096  # options of a classifier, whose names are looked up
SINKS, TAG_PAIRS = 3, 8  # of each head, in a summary

# --- sentences ---


@dataclass(frozen=True)
class CorpusSentence:
    """A sentence with what is known of it.

    Args:
        target: its translation; without one the model's own is taken.
        tags: parts of speech, one for each of its words between blanks.
        alignment: (word of the text, word of the target), both from 0.
        label: of the text, for a classifier.

    Examples:
        >>> CorpusSentence("the cat sleeps", "le chat dort", tags=("DET", "NOUN", "VERB")).target
        'le chat dort'
    """

    text: str
    target: str | None = None
    tags: tuple[str, ...] = ()
    alignment: Links = frozenset()
    label: str | None = None

    def __post_init__(self):
        if not self.text.strip():
            raise ValueError("a sentence is empty; leave it out")
        if self.tags and len(self.tags) != len(self.text.split()):
            raise ValueError(f"{len(self.tags)} tags for {len(self.text.split())} words: {self.text!r:.80}")


def as_sentence(example: Any) -> CorpusSentence:
    """A text, or an example of a task's data."""
    match example:
        case CorpusSentence():
            return example
        case str():
            return CorpusSentence(example.strip())
        case SentencePair():
            return CorpusSentence(example.source, example.target)
        case TaggedSentence():
            tags = () if set(example.tags) == {NO_VALUE} else example.tags
            return CorpusSentence(
                " ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in example.words), tags=tags
            )
        case LabelledText():
            return CorpusSentence(example.text, label=example.label)
    raise ValueError(f"a {type(example).__name__} is no sentence; give texts, or CorpusSentence(text, ...)")


def read_corpus(model: PretrainedModel | Path | str, path: str | Path) -> list[CorpusSentence]:
    """The sentences of a file, for a model: one on every line; .tsv or .jsonl of pairs for one that translates, of
    texts and labels for one that classifies; .conllu with parts of speech for any.

    A .tsv of pairs may have a third column: word alignments in Pharaoh format, 0-0 1-2.

    Examples:
        >>> read_corpus("run", "pairs.tsv")[0]
        CorpusSentence(text='the cat sleeps', target='le chat dort', tags=(), alignment=frozenset(), label=None)
    """
    path, task_model = require_file(path), as_task_model(model)
    task, kind = get_task(task_model.settings.task), file_format(path)
    if task.inputs.kind != "text":
        raise ValueError(f"a model for the task {task.name!r} reads {task.inputs.description}, and no sentences")
    skipped: list[str] = []
    if kind == ".conllu":
        found = map(as_sentence, read_conllu(path))
    elif kind == ".tsv" and "target" in task.inputs.options:
        found = read_aligned_pairs(path)
    elif kind == ".jsonl" and "target" in task.inputs.options:
        found = map(as_sentence, read_pairs(path, on_empty=skipped.append))
    elif kind in (".tsv", ".jsonl"):
        found = map(as_sentence, read_labelled(path, on_empty=skipped.append))
    else:
        found = (CorpusSentence(line.strip()) for line in read_lines(path) if line.strip())
    if not (sentences := list(found)):
        raise ValueError(f"{path} holds no sentence; give one on every line")
    return sentences


def read_aligned_pairs(path: Path) -> Iterator[CorpusSentence]:
    for number, line in enumerate(read_lines(path), 1):
        source, *rest = line.split("\t")
        if not source.strip():
            continue
        if len(rest) > 2:
            raise ValueError(f"{path}:{number}: {len(rest) + 1} columns; text, target and alignment are at most three")
        links = parse_links(rest[1], f"{path}:{number}") if len(rest) == 2 else frozenset()
        yield CorpusSentence(source, rest[0] if rest and rest[0].strip() else None, alignment=links)


def parse_links(text: str, where: str) -> Links:
    """Pharaoh format: source-target, as in 0-0 1-2 2-1."""
    pairs = [link.split("-") for link in text.split()]
    if wrong := [link for link in pairs if len(link) != 2 or not all(n.isascii() and n.isdecimal() for n in link)]:
        raise ValueError(f"{where}: {'-'.join(wrong[0])!r:.40} is no link; write source-target, as in 0-0 1-2")
    return frozenset((int(source), int(target)) for source, target in pairs)


def held_out_sentences(model: PretrainedModel | Path | str, count: int = 1000) -> list[CorpusSentence]:
    """The first sentences to test a run on; those of the miniature world with their tags and alignments.

    Examples:
        >>> held_out_sentences("run", count=5)[0].target is None
        False
    """
    settings = as_task_model(model).settings
    task = get_task(settings.task)
    if task.inputs.kind != "text":
        raise ValueError(f"a model for the task {task.name!r} reads {task.inputs.description}, and no sentences")
    split = "valid" if settings.data.corpus == "files" and not settings.data.test else "test"
    examples = [one for one in task.read(settings, split).examples[:count] if not isinstance(one, str) or one.strip()]
    found = [as_sentence(one) for one in examples]
    if settings.data.corpus != "world":
        return found
    english, other = (vars(settings.data).get(side, "en") for side in ("source", "target"))
    return [
        replace(
            one,
            tags=gold.tags if one.text == " ".join(gold.words) else (),
            alignment=gold_links(gold, english, other) if one.target else frozenset(),
        )
        for one, gold in zip(found, settings.data.world_sentences(split, count), strict=False)
    ]


def tag_sentences(sentences: Iterable[Any], tagger: PretrainedModel | Path | str) -> list[CorpusSentence]:
    """The sentences with the parts of speech that a run of ours gives them, where they have none.

    Examples:
        >>> tag_sentences([CorpusSentence("the cat", tags=("DET", "NOUN"))], "run")[0].tags
        Traceback (most recent call last):
            ...
        ValueError: a run that can translate tags no words; give the run of a tagger
    """
    task_model = as_task_model(tagger)
    task, given = get_task(task_model.settings.task), [as_sentence(one) for one in sentences]
    if task.verb != "tag":
        raise ValueError(f"a run that can {task.verb} tags no words; give the run of a tagger")
    bare = [n for n, one in enumerate(given) if not one.tags]
    for n, found in zip(bare, getattr(task_model, task.verb)([given[n].text for n in bare]), strict=True):
        given[n] = replace(given[n], tags=found.tags)
    return given


def as_task_model(model: PretrainedModel | Path | str) -> PretrainedModel:
    return model if isinstance(model, PretrainedModel) else load_pretrained(Path(model))


# --- what is found ---


@dataclass(frozen=True)
class AttentionSpan:
    """A weight, and where it stands: a query and a key of a sentence, by their positions and their tokens.

    Examples:
        >>> found = corpus_statistics("run", [CorpusSentence("the cat sleeps", "le chat dort")])
        >>> span = found.head("decoder.0.cross", 1).spans[0]
        >>> span.sentence, span.weight == found.head("decoder.0.cross", 1).largest
        (0, True)
    """

    sentence: int
    query: int
    key: int
    weight: float
    query_token: str
    key_token: str


@dataclass(frozen=True)
class TagPair:
    """What the queries of a part of speech give the keys of another, in the mean; and what they would give if they
    attended to all keys evenly.

    Examples:
        >>> sentence = CorpusSentence("the cat sleeps", "le chat dort", tags=("DET", "NOUN", "VERB"))
        >>> pair = corpus_statistics("run", [sentence]).head("encoder.0", 0).tag_pairs[0]
        >>> pair.weight > pair.even
        True
    """

    query: str
    key: str
    weight: float
    even: float


@dataclass(frozen=True)
class CorpusHead:
    """One head over a corpus: means over the sentences, its sinks, what it links, and its largest weights.

    Args:
        entropy: in nats.
        distance: between a query and its keys, in tokens.
        sink: what the first key gets.
        confidence: the largest weight of a query.
        largest: of all weights.
        sinks: the tokens that get most, each with its share of all that is given.
        tag_pairs: those that it links most beyond what even attention would.
        aer: alignment error rate against the known alignments.
        shift: 1 where the row behind a token aligns it better (see `AlignmentHead`).
        spans: its largest weights, of queries that see several keys.

    Examples:
        >>> found = corpus_statistics("run", [CorpusSentence("the cat sleeps", "le chat dort")])
        >>> head = found.head("encoder.0", 2)
        >>> 0 <= head.entropy <= 1.3863, 0 <= head.sink <= 1, len(head.spans)
        (True, True, 16)
    """

    site: str
    head: int
    entropy: float
    distance: float
    sink: float
    confidence: float
    largest: float
    sinks: tuple[tuple[str, float], ...]
    tag_pairs: tuple[TagPair, ...]
    aer: float | None
    shift: int
    spans: tuple[AttentionSpan, ...]


@dataclass(frozen=True)
class PredictionError:
    """A prediction that was not the wanted one, and the probabilities of both.

    Examples:
        >>> found = corpus_statistics("run", [CorpusSentence("the cat sleeps", "le chat dort")])
        >>> found.predictions, len(found.errors) <= 4
        (4, True)
    """

    sentence: int
    row: int
    wanted: str
    predicted: str
    wanted_probability: float
    predicted_probability: float

    @property
    def loss(self) -> float:
        """-log p of the wanted one, in nats."""
        return -log(max(self.wanted_probability, 1e-300))


@dataclass(frozen=True, eq=False)
class CorpusStates:
    """The states behind a layer, of all tokens of a corpus.

    Args:
        axis: whose tokens they are.
        vectors: one for each token.
        places: the sentence and the position of each.

    Examples:
        >>> states = CorpusStates("text", torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), ((0, 0), (0, 1), (1, 0)))
        >>> [(number, round(alike, 3)) for number, alike in states.nearest(0)]
        [(1, 0.994), (2, 0.0)]
    """

    axis: str
    vectors: Float[Tensor, "n width"]
    places: tuple[tuple[int, int], ...]

    def nearest(self, number: int, count: int = 10) -> list[tuple[int, float]]:
        """The states most alike, by the cosine between them, itself apart."""
        if not 0 <= number < len(self.places):
            raise ValueError(f"there is no state {number}; they are counted from 0 to {len(self.places) - 1}")
        alike = torch.cosine_similarity(self.vectors, self.vectors[number, None], -1)
        alike[number] = -torch.inf
        best = alike.topk(min(count, len(alike) - 1))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def project(self) -> tuple[Float[Tensor, "n 2"], tuple[float, float]]:
        """Coordinates along the first two principal components, and the share of the variance along each."""
        return principal_components(self.vectors)


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """What a model did with a corpus.

    Args:
        sentences: as they were given.
        outputs: what the model wrote, or was given to write.
        tokens: the labels of each sentence, by axis.
        tags: the parts of speech of its tokens, by axis, where they are known.
        sentence_statistics: by site, of each sentence.
        heads: of all sites, in their order.
        states: by layer.
        predictions: how many are compared with what was wanted.
        errors: those that differ, the least probable first.

    Examples:
        >>> found = corpus_statistics("run", ["the cat sleeps", "a dog"])
        >>> len(found.heads), found.statistics["encoder.0"].entropy.shape
        (24, torch.Size([4]))
    """

    sentences: tuple[CorpusSentence, ...]
    outputs: tuple[str, ...]
    tokens: tuple[Mapping[str, tuple[str, ...]], ...]
    tags: tuple[Mapping[str, tuple[str, ...]], ...]
    sentence_statistics: Mapping[str, Float[Tensor, "sentences h 5"]]
    heads: tuple[CorpusHead, ...]
    states: Mapping[str, CorpusStates]
    predictions: int
    errors: tuple[PredictionError, ...]

    @cached_property
    def statistics(self) -> dict[str, HeadStatistics]:
        """Means over the sentences, by site; of `largest` the largest."""
        means = {name: each.nanmean(0) for name, each in self.sentence_statistics.items()}
        largest = {name: each[..., 4].amax(0) for name, each in self.sentence_statistics.items()}
        return {
            name: HeadStatistics(*torch.cat([each[:, :4], largest[name][:, None]], 1).T) for name, each in means.items()
        }

    def tag(self, layer: str, number: int) -> str:
        """The part of speech of a state's word; "" if it is not known."""
        sentence, position = self.states[layer].places[number]
        tags = self.tags[sentence].get(self.states[layer].axis, ())
        return tags[position] if position < len(tags) else ""

    def head(self, site: str, head: int) -> CorpusHead:
        for found in self.heads:
            if (found.site, found.head) == (site, head):
                return found
        names = ", ".join(dict.fromkeys(found.site for found in self.heads)) or "none"
        raise ValueError(f"there is no head {head} of {site!r:.80}; there are the sites {names}")


# --- as JSON ---

MAX_POINTS, MAX_ERRORS = 2000, 500  # of a layer's projection, and of the table of errors


def serialize_statistics(found: CorpusStatistics) -> dict[str, Any]:
    """What the page and `regard look --corpus ... --save found.json` show; of many states some, at equal distances."""
    return {
        "sentences": [
            {"text": one.text, "target": one.target, "output": output}
            for one, output in zip(found.sentences, found.outputs, strict=True)
        ],
        "heads": [asdict(head) for head in found.heads],
        "layers": {name: serialize_states(found, name) for name in found.states},
        "predictions": found.predictions,
        "error_count": len(found.errors),
        "errors": [asdict(error) | {"loss": error.loss} for error in found.errors[:MAX_ERRORS]],
    }


def serialize_states(found: CorpusStatistics, layer: str) -> dict[str, Any]:
    states = found.states[layer]
    about = {"axis": states.axis, "states": len(states.places)}
    if min(states.vectors.shape) < 2:
        return about | {"variance": None, "points": []}
    points, variance = states.project()
    some = range(0, len(points), -(-len(points) // MAX_POINTS))
    return about | {
        "variance": variance,
        "points": [[*points[n].tolist(), *serialize_state(found, layer, n)] for n in some],
    }


def serialize_state(found: CorpusStatistics, layer: str, number: int) -> tuple[int, int, int, str, str]:
    """The number of a state, its sentence and position, its token, and its tag."""
    states = found.states[layer]
    sentence, position = states.places[number]
    return number, sentence, position, token_of(found.tokens[sentence], states.axis, position), found.tag(layer, number)


def serialize_neighbours(found: CorpusStatistics, layer: str, number: int, count: int = 10) -> list[list[Any]]:
    """The nearest states as in a projection, each behind its cosine."""
    if layer not in found.states:
        raise ValueError(f"the states of {layer!r:.80} are not kept; there are {', '.join(found.states) or 'none'}")
    return [[alike, *serialize_state(found, layer, n)] for n, alike in found.states[layer].nearest(number, count)]


# --- batches ---


@dataclass(frozen=True, eq=False)
class CorpusBatch:
    """Some sentences of a corpus as the model reads them at once.

    Args:
        numbers: which sentences.
        tags: of the tokens of each sentence by axis, as numbers; 0 for none.
    """

    numbers: list[int]
    sentences: list[CorpusSentence]
    encoded: list[EncodedInput]
    tags: list[dict[str, list[int]]]

    def axis_name(self, declared: str) -> str:
        """The axis of an attention; where its model declares none and there is but one, that one."""
        axes = self.encoded[0].axes
        return next(iter(axes)) if declared in UNDECLARED_AXES and len(axes) == 1 else declared

    def lengths(self, axis: str, size: int, device: torch.device) -> Int[Tensor, " b"]:
        """How many tokens of an axis each sentence has; all positions, where the axis has no tokens."""
        found = [one.axes.get(axis) for one in self.encoded]
        counts = [size if each is None else min(len(each.labels), size) for each in found]
        return torch.tensor(counts, device=device)

    def padded_tags(self, axis: str, size: int, device: torch.device) -> Int[Tensor, "b size"]:
        rows = [(each.get(axis, []) + [0] * size)[:size] for each in self.tags]
        return torch.tensor(rows, device=device)


def corpus_statistics(
    model: PretrainedModel | Path | str,
    sentences: Iterable[Any],
    *,
    layers: Sequence[str] | None = None,
    spans: int = SPANS,
    progress: ProgressBar = no_progress,
) -> CorpusStatistics:
    """Statistics of every head over many sentences, and what the model's states and errors were.

    Args:
        model: a trained model, the folder of its run or of a Hugging Face model, or a traced one's `task_model`.
        sentences: texts, `CorpusSentence`s, or examples of the task's data.
        layers: whose states are kept. Default: the last of each stack.
        spans: how many of the largest weights of each head are kept.

    Examples:
        >>> found = corpus_statistics("run", [CorpusSentence("the cat sleeps", "le chat dort"), "a dog"])
        >>> head = min(found.heads, key=lambda head: head.entropy)
        >>> head.spans[0].weight >= head.spans[1].weight, len(found.states["encoder.1"].places)
        (True, 7)
    """
    task_model = as_task_model(model)
    task, given = get_task(task_model.settings.task), tuple(as_sentence(one) for one in sentences)
    if not given:
        raise ValueError("the corpus is empty; give at least one sentence")
    if task.inputs.kind != "text":
        raise ValueError(f"a model for the task {task.name!r} reads {task.inputs.description}, and no sentences")
    inputs = with_outputs(task, task_model, given, progress)
    encoded = [encode_sentence(task, task_model, one, n) for n, one in enumerate(inputs)]
    tags = ["", *sorted({tag for one in given for tag in one.tags})]
    blocks = chosen_blocks(task_model.model, layers)
    tally = CorpusTally(task, task_model, given, tags, blocks, spans)
    sizes = [max((len(axis.labels) for axis in one.axes.values()), default=1) for one in encoded]
    batches = batch_by_tokens(sizes, TOKENS_AT_ONCE) if task.takes_batches else [[n] for n in range(len(given))]
    counted = iter(progress(range(len(given)), "sentences"))
    with inference_mode(task_model.model):
        for numbers in batches:
            for _ in islice(counted, len(numbers)):
                pass
            some = [given[n] for n in numbers]
            labelled = [token_tags(one, encoded[n], tags) for n, one in zip(numbers, some, strict=True)]
            tally.add(CorpusBatch(numbers, some, [encoded[n] for n in numbers], labelled))
    return tally.result(inputs, encoded)


def encode_sentence(task: Task, task_model: PretrainedModel, given: TaskInput, number: int) -> EncodedInput:
    try:
        return task.encode(task_model, given)
    except ValueError as error:
        raise ValueError(f"sentence {number + 1}: {error}") from None


def with_outputs(
    task: Task, task_model: PretrainedModel, sentences: Sequence[CorpusSentence], progress: ProgressBar
) -> list[TaskInput]:
    """The inputs; of a task that writes a target, those without one with what the search finds, many at once."""
    writes = "target" in task.inputs.options
    found = [TaskInput(one.text, target=one.target if writes else None, max_tokens=MAX_TOKENS) for one in sentences]
    missing = [n for n, one in enumerate(found) if writes and one.target is None]
    searches = {n: task.generation(task_model, found[n]) for n in missing}
    batches = batch_by_tokens([len(searches[n].source or ()) + 1 for n in missing], TOKENS_SEARCHED)
    counted = iter(progress(missing, "translations")) if missing else iter(())
    for batch in batches:
        some = list(islice(counted, len(batch)))
        rows = [missing[n] for n in batch]
        assert len(some) == len(rows)
        for limit in sorted({searches[n].max_tokens for n in rows}):  # as in a trace, which searches for one alone
            alike = [n for n in rows if searches[n].max_tokens == limit]
            first = searches[alike[0]]
            sources, prefixes = (
                [tuple(getattr(searches[n], side) or ()) for n in alike] for side in ("source", "prefix")
            )
            hypotheses = translate(first.model, sources, target_search(first, first.beam), prefixes=prefixes)
            for n, (best, *_) in zip(alike, hypotheses, strict=True):
                found[n] = replace(found[n], ids=best.ids, searched=True, finished=best.finished)
    return found


def chosen_blocks(model: nn.Module, layers: Sequence[str] | None) -> list[LayerBlock]:
    """The layers by their names; by default the last of each stack. A model without a stack has none."""
    try:
        blocks = find_blocks(model)
    except ValueError:
        if layers:
            raise
        return []
    if layers is None:
        return list({block.stack: block for block in blocks}.values())
    named = {block.name: block for block in blocks}
    if unknown := [name for name in layers if name not in named]:
        raise ValueError(f"there is no layer {unknown[0]!r:.80}; there are {', '.join(named)}")
    return [named[name] for name in layers]


def token_tags(sentence: CorpusSentence, encoded: EncodedInput, tags: Sequence[str]) -> dict[str, list[int]]:
    """The tags of tokens, by axis: of every axis that holds the letters of the text, and of a translation whose words
    are aligned with those of the text."""
    if not sentence.tags:
        return {}
    words, numbers = sentence.text.split(), {tag: n for n, tag in enumerate(tags)}
    owners = [n for n, word in enumerate(words) for _ in word]
    aligned = {other: one for one, other in sorted(sentence.alignment, reverse=True)}
    found = {}
    for name, axis in encoded.axes.items():
        if sum(map(letters, axis.words)) == len(owners):
            starts = accumulate(map(letters, axis.words), initial=0)
            own = [owners[start] if start < len(owners) else None for start in starts]
        else:
            own = [aligned.get(n) for n in range(len(axis.words))]
        of_word = [0 if word is None else numbers[sentence.tags[word]] for word in own]
        found[name] = [0 if word is None else of_word[word] for word in axis.word_ids]
    return {name: each for name, each in found.items() if any(each)}


def letters(word: str) -> int:
    return sum(not letter.isspace() or letter == "\N{NO-BREAK SPACE}" for letter in word)


# --- sums over the corpus ---


@dataclass(eq=False)
class HeadTally:
    """Sums of the heads of one site."""

    sentences: Float[Tensor, "sentences h 5"]
    pairs: Float[Tensor, "h tags tags"]
    even: Float[Tensor, "h tags tags"]
    tagged: Float[Tensor, " tags"]
    weights: Float[Tensor, "h spans"]
    places: Int[Tensor, "h spans 3"]
    mass: list[tuple[list[str], Float[Tensor, "h n"]]] = field(default_factory=list)
    links: dict[int, list[AlignmentCounts]] = field(default_factory=dict)
    axes: tuple[str, str] = ("", "")

    @staticmethod
    def of(site: AttentionSite, sentences: int, tags: int, spans: int) -> "HeadTally":
        h = site.heads
        whole, pairs = torch.full((sentences, h, 5), torch.nan), torch.zeros(h, tags, tags, dtype=torch.float64)
        none = torch.full((h, spans), -1.0), torch.zeros(h, spans, 3, dtype=torch.long)
        return HeadTally(whole, pairs, pairs.clone(), torch.zeros(tags, dtype=torch.float64), *none)


@dataclass(eq=False)
class CorpusTally:
    """Adds up batch after batch."""

    task: Task
    task_model: PretrainedModel
    sentences: tuple[CorpusSentence, ...]
    tags: list[str]
    blocks: list[LayerBlock]
    spans: int
    sites: dict[str, HeadTally] = field(default_factory=dict)
    states: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)
    errors: list[PredictionError] = field(default_factory=list)
    predictions: int = 0
    options: dict[str, int] | None = None

    def add(self, batch: CorpusBatch) -> None:
        recorder, model = AttentionRecorder(), self.task_model.model
        with recorder.record(model), recorded_streams(self.blocks) as streams:
            logits = self.task.forward_batch(model, batch.encoded)
        for site in recorder.sites().values():
            if isinstance(site, AttentionSite):
                if site.name not in self.sites:
                    self.sites[site.name] = HeadTally.of(site, len(self.sentences), len(self.tags), self.spans)
                SiteBatch.of(site, batch).add_to(self.sites[site.name])
        for name, stream in streams.items():
            lengths = batch.lengths(self.axis_of(name, batch), stream.shape[1], stream.device).tolist()
            rows = zip(batch.numbers, stream, lengths, strict=True)
            self.states.setdefault(name, []).extend((n, x[:length].float().cpu()) for n, x, length in rows)
        for number, sentence, encoded, x in zip(batch.numbers, batch.sentences, batch.encoded, logits, strict=True):
            self.compare(number, sentence, encoded, x)

    def axis_of(self, layer: str, batch: CorpusBatch) -> str:
        block = next(block for block in self.blocks if block.name == layer)
        return batch.axis_name(queries_of_block(self.task_model.model, block))

    def compare(self, number: int, sentence: CorpusSentence, encoded: EncodedInput, logits: Tensor) -> None:
        """Where the model prefers another option than the wanted one."""
        wanted = self.wanted_options(sentence, encoded, logits.shape[-1])
        if not wanted:
            return
        log_p = logits[: len(wanted)].double().log_softmax(-1)
        best = log_p.argmax(-1).tolist()
        self.predictions += sum(one is not None for one in wanted)
        for row, (one, other) in enumerate(zip(wanted, best, strict=True)):
            if one is not None and one != other:
                # the token itself, also where the vocabulary does not hold it
                writes, name = encoded.output_ids is not None, self.task.option_name(self.task_model, other)
                right = encoded.rows[row] if writes else self.task.option_name(self.task_model, one)
                self.errors.append(PredictionError(number, row, right, name, *log_p[row, [one, other]].exp().tolist()))

    def wanted_options(self, sentence: CorpusSentence, encoded: EncodedInput, options: int) -> Sequence[int | None]:
        """The option that each row should have: the next token, the tag of a word, or a label; none, if unknown."""
        if encoded.output_ids is not None:
            writes = "target" in self.task.inputs.options
            if writes and sentence.target is None:
                return []
            return [*encoded.output_ids, *([EOS] if writes else [])][: len(encoded.rows)]
        names = sentence.tags if len(encoded.rows) == len(sentence.tags) else (sentence.label,)
        if options > MAX_LABELS or len(names) != len(encoded.rows):
            return []
        if self.options is None:
            self.options = {self.task.option_name(self.task_model, n): n for n in range(options)}
        return [None if name is None else self.options.get(name) for name in names]

    # --- the result ---

    def result(self, inputs: Sequence[TaskInput], encoded: Sequence[EncodedInput]) -> CorpusStatistics:
        tokens = tuple({name: axis.labels for name, axis in one.axes.items()} for one in encoded)
        outputs = tuple(
            self.output_text(given, one) if one.output_ids is not None else given.text
            for given, one in zip(inputs, encoded, strict=True)
        )
        heads = [head for name, tally in self.sites.items() for head in self.summaries(name, tally, tokens)]
        return CorpusStatistics(
            self.sentences,
            outputs,
            tokens,
            tuple(
                {name: tuple(self.tags[n] for n in each) for name, each in token_tags(*both, self.tags).items()}
                for both in zip(self.sentences, encoded, strict=True)
            ),
            {name: tally.sentences for name, tally in self.sites.items()},
            tuple(heads),
            {name: self.states_of(name, encoded) for name in self.states},
            self.predictions,
            tuple(sorted(self.errors, key=lambda error: -error.loss)),
        )

    def output_text(self, given: TaskInput, encoded: EncodedInput) -> str:
        nothing = Predictions(encoded.rows, torch.zeros(len(encoded.rows), 1), str)
        return self.task.output_text(self.task_model, given, nothing)

    def states_of(self, layer: str, encoded: Sequence[EncodedInput]) -> CorpusStates:
        found = sorted(self.states[layer], key=lambda each: each[0])
        places = tuple((n, position) for n, x in found for position in range(len(x)))
        one = CorpusBatch([0], [self.sentences[0]], [encoded[0]], [{}])
        return CorpusStates(self.axis_of(layer, one), torch.cat([x for _, x in found]), places)

    def summaries(
        self, name: str, tally: HeadTally, tokens: Sequence[Mapping[str, tuple[str, ...]]]
    ) -> Iterator[CorpusHead]:
        means, largest = tally.sentences[..., :4].nanmean(0).tolist(), tally.sentences[..., 4].amax(0).tolist()
        labels, masses = summed_by_label(tally.mass, len(means))
        for head, numbers in enumerate(means):
            best = masses[head].topk(min(SINKS, len(labels)))
            sinks = tuple(
                (labels[n], share) for n, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            )
            error, shift = min(
                ((counts[head].error, shift) for shift, counts in tally.links.items()), default=(None, 0)
            )
            spans = tuple(
                AttentionSpan(
                    s, i, j, weight, token_of(tokens[s], tally.axes[0], i), token_of(tokens[s], tally.axes[1], j)
                )
                for weight, (s, i, j) in zip(tally.weights[head].tolist(), tally.places[head].tolist(), strict=True)
                if weight >= 0
            )
            pairs = tuple(self.tag_pairs(tally, head))
            entropy, distance, sink, confidence = numbers
            four = {"entropy": entropy, "distance": distance, "sink": sink, "confidence": confidence}
            known = {"sinks": sinks, "tag_pairs": pairs, "aer": error, "shift": shift, "spans": spans}
            yield CorpusHead(site=name, head=head, largest=largest[head], **four, **known)

    def tag_pairs(self, tally: HeadTally, head: int) -> Iterator[TagPair]:
        """The pairs whose weight is furthest above that of even attention, over the whole corpus."""
        beyond = (tally.pairs - tally.even)[head, 1:, 1:]
        best = beyond.flatten().topk(min(TAG_PAIRS, beyond.numel()))
        for n, more in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            one, other = divmod(n, beyond.shape[1])
            count = float(tally.tagged[one + 1])
            if more > 0 and count:
                weights = (float(each[head, one + 1, other + 1]) / count for each in (tally.pairs, tally.even))
                yield TagPair(self.tags[one + 1], self.tags[other + 1], *weights)


def token_of(tokens: Mapping[str, tuple[str, ...]], axis: str, position: int) -> str:
    labels = tokens.get(axis, ())
    return labels[position] if position < len(labels) else f"{axis} {position}"


def summed_by_label(
    mass: Sequence[tuple[list[str], Float[Tensor, "h _"]]], heads: int
) -> tuple[list[str], Float[Tensor, "h labels"]]:
    """The share of all weight that each token gets."""
    numbers: dict[str, int] = {}
    ids = [[numbers.setdefault(label, len(numbers)) for label in labels] for labels, _ in mass]
    found = torch.zeros(heads, len(numbers), dtype=torch.float64)
    for some, (_, each) in zip(ids, mass, strict=True):
        found.index_add_(1, torch.tensor(some, dtype=torch.long), each.double())
    return list(numbers), found / found.sum(-1, keepdim=True).clamp(min=1e-300)


@dataclass(frozen=True, eq=False)
class SiteBatch:
    """One attention on one batch."""

    site: AttentionSite
    batch: CorpusBatch
    queries: str
    keys: str
    q_lengths: Int[Tensor, " b"]
    k_lengths: Int[Tensor, " b"]

    @staticmethod
    def of(site: AttentionSite, batch: CorpusBatch) -> "SiteBatch":
        names = [batch.axis_name(name) for name in (site.site_name.queries, site.site_name.keys)]
        device = site.q.device
        lengths = [batch.lengths(name, size, device) for name, size in zip(names, site.shape, strict=True)]
        return SiteBatch(site, batch, names[0], names[1], lengths[0], lengths[1])

    def bands(self) -> Iterator[QueryBand]:
        """The weights of all sentences and heads, some queries at a time."""
        site, sentences = self.site, range(len(self.site.q))
        if not site.is_joint:
            reach = key_runs(site.recipe.pattern, *site.shape, site.query_offset)
            yield from site.stats_call(range(site.heads), sentences).bands(reach)
            return
        for n in sentences:
            for band in site.bands(range(site.heads), n):
                yield replace(band, batch=slice(n, n + 1))

    @torch.no_grad()
    def add_to(self, tally: HeadTally) -> None:
        (b, h, n_q, _), n_k = self.site.q.shape, self.site.shape[1]
        tally.axes = self.queries, self.keys
        sums, largest = self.site.q.new_zeros(b, h, 5, dtype=torch.float64), self.site.q.new_zeros(b, h)
        mass = self.site.q.new_zeros(b, h, n_k, dtype=torch.float32)
        aligned = AlignedWords.of(self)
        tags = [
            self.batch.padded_tags(axis, size, self.site.q.device)
            for axis, size in ((self.queries, n_q), (self.keys, n_k))
        ]
        tagged = [nn.functional.one_hot(each, len(tally.tagged)).float() for each in tags] if self.has_tags else None
        for band in self.bands():
            weights, at = band.weights, band.query_indices
            total, most = weights.sum(-1), weights.amax(-1)
            own = (at < self.q_lengths[band.batch, None])[:, None]
            seen = own & (total != 0)
            far = (at.float()[:, None] + self.site.query_offset - band.keys.float()).abs_()
            first = weights[..., 0] if band.reach.where(0) == 0 else torch.zeros_like(total)
            some = total.masked_fill(total == 0, 1.0)
            means = [band.weighted_sum(far) / some, first / some, most / some, seen.to(most)]
            entropy = band.entropy()
            numbers = torch.stack([entropy.where(seen, 0.0), *(each.where(seen, 0.0) for each in means)], -1)
            sums[band.batch, band.heads] += numbers.sum(2).double()
            inside = largest[band.batch, band.heads]
            largest[band.batch, band.heads] = inside.maximum(most.where(seen, 0.0).amax(-1))
            given = weights.where(seen[..., None], 0.0)
            mass[band.batch, band.heads][..., band.keys] += given.sum(2)
            visible = visible_keys(band)
            self.keep_spans(tally, band, given, visible)
            if tagged is not None:
                one, other = tagged[0][band.batch, band.queries], tagged[1][band.batch][:, band.keys]
                shares = visible.float() / visible.sum(-1, keepdim=True).clamp(min=1)
                shares = shares.where(seen[..., None], 0.0)
                for each, into in ((given, tally.pairs), (shares, tally.even)):
                    found = einsum(each, one, other, "b h i j, b i t, b j u -> h t u")
                    into[band.heads] += found.double().cpu()
            if aligned is not None:
                aligned.keep(band)
        means = torch.cat([(sums[..., :4] / sums[..., 4:].clamp(min=1)).float(), largest[..., None]], -1)
        tally.sentences[self.batch.numbers] = means.cpu()
        if tagged is not None:
            real = torch.arange(n_q, device=self.site.q.device) < self.q_lengths[:, None]
            tally.tagged += (tagged[0] * real[..., None]).sum((0, 1)).double().cpu()
        self.keep_mass(tally, mass.cpu())
        if aligned is not None:
            aligned.count(tally)

    @property
    def has_tags(self) -> bool:
        return any(self.queries in each and self.keys in each for each in self.batch.tags)

    def keep_mass(self, tally: HeadTally, mass: Float[Tensor, "b h j"]) -> None:
        for encoded, length, each in zip(self.batch.encoded, self.k_lengths.tolist(), mass, strict=True):
            axis = encoded.axes.get(self.keys, TokenAxis(tuple(f"{self.keys} {n}" for n in range(length))))
            tally.mass.append((list(axis.labels[:length]), each[:, :length]))

    def keep_spans(self, tally: HeadTally, band: QueryBand, given: Tensor, visible: Bool[Tensor, "b h i j"]) -> None:
        """The largest weights so far, of queries that have something to choose from."""
        choosing = visible.sum(-1, keepdim=True) > 1
        flat = rearrange(given.where(choosing & visible, -1.0), "b h i j -> h (b i j)")
        spans = tally.weights.shape[1]
        best = flat.topk(min(spans, flat.shape[1]))
        (_, _, n_i, n_j), numbers = given.shape, torch.tensor(self.batch.numbers, device=given.device)[band.batch]
        sentence, rest = best.indices // (n_i * n_j), best.indices % (n_i * n_j)
        places = torch.stack([numbers[sentence], rest // n_j + band.queries.start, band.keys[rest % n_j]], -1)
        weights = torch.cat([tally.weights[band.heads], best.values.cpu()], 1)
        every = torch.cat([tally.places[band.heads], places.cpu()], 1)
        order = weights.sort(dim=1, descending=True, stable=True).indices[:, :spans]
        tally.weights[band.heads] = weights.gather(1, order)
        tally.places[band.heads] = every.gather(1, order[..., None].expand(-1, -1, 3))


def visible_keys(band: QueryBand) -> Bool[Tensor, "b h i j"]:
    """Which keys of a band its queries may see."""
    everything = torch.ones((), dtype=torch.bool, device=band.weights.device).expand(1, 1, *band.weights.shape[2:])
    found = band.hidden.visible(everything) if band.hidden.parts else everything
    return found.expand(band.weights.shape)


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """The weights of target tokens for source words, of sentences whose alignment is known.

    Args:
        rows: of the queries of each head.
        members: which keys each source word has.
        targets: which queries each target word has, each with its share of them.
        gold: the known links, of target words and source words.
    """

    rows: Float[Tensor, "b h i words"]
    members: Float[Tensor, "b j words"]
    targets: Float[Tensor, "b i targets"]
    gold: Bool[Tensor, "b targets words"]

    @staticmethod
    def of(part: SiteBatch) -> "AlignedWords | None":
        known = [bool(sentence.alignment) for sentence in part.batch.sentences]
        if (part.queries, part.keys) != ("written", "source") or not any(known):
            return None
        axes = [(one.axes["source"], one.axes["written"]) for one in part.batch.encoded]
        words, targets = (max(len(pair[side].words) for pair in axes) for side in (0, 1))
        (b, h, n_q, _), n_k = part.site.q.shape, part.site.shape[1]
        members, shares = torch.zeros(b, n_k, words), torch.zeros(b, n_q, targets)
        gold = torch.zeros(b, targets, words, dtype=torch.bool)
        for n, (sentence, (source, target)) in enumerate(zip(part.batch.sentences, axes, strict=True)):
            for into, axis in ((members, source), (shares, target)) if known[n] else ():
                pieces = [(position, word) for position, word in enumerate(axis.word_ids) if word is not None]
                for position, word in pieces:
                    into[n, position, word] = 1.0
            for one, other in sentence.alignment:
                if one >= len(source.words) or other >= len(target.words):
                    raise ValueError(
                        f"sentence {part.batch.numbers[n] + 1}: the link {one}-{other} is beyond its "
                        f"{len(source.words)} and {len(target.words)} words; count words from 0"
                    )
                gold[n, other, one] = True
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        device, like = part.site.q.device, part.site.q.new_zeros(b, h, n_q, words, dtype=torch.float32)
        return AlignedWords(like, members.to(device), shares.to(device), gold.to(device))

    def keep(self, band: QueryBand) -> None:
        members = self.members[band.batch][:, band.keys]
        self.rows[band.at] = einsum(band.weights, members, "b h i j, b j w -> b h i w")

    def count(self, tally: HeadTally) -> None:
        """Each target word is linked to the source word of its largest weight, read at its own row or at the next."""
        there, known = self.targets.sum(1) > 0, self.members.sum(1) > 0
        for shift in (0, 1):
            targets = self.targets.roll(shift, 1)
            words = einsum(self.rows, targets, "b h i w, b i t -> b h t w")
            best = words.masked_fill(~known[:, None, None], -torch.inf).argmax(-1)
            gold = self.gold[:, None].expand(-1, best.shape[1], -1, -1)
            right = (gold.gather(-1, best[..., None])[..., 0] & there[:, None]).sum((0, 2)).tolist()
            total, sure = int(there.sum()), int(self.gold.sum())
            found = [AlignmentCounts(total, sure, hits, hits) for hits in right]
            before = tally.links.get(shift, [AlignmentCounts()] * len(found))
            tally.links[shift] = [one + other for one, other in zip(before, found, strict=True)]
