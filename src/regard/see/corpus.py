"""Corpora: sentences with what is known of them, and what is found of every head, state and prediction over many.

    found = corpus_statistics("run", read_corpus("run", "test.tsv"))
    found.statistics["decoder.1.cross"].entropy          in nats, means over the sentences
    found.head("decoder.1.cross", 2).spans[0]            the largest weight of that head, and where it stands
    found.states["encoder.1"].nearest(7), found.states["encoder.1"].project(), found.errors[0]

`corpus_tally.py` makes the sums.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.files import file_format, read_lines, require_file
from regard.data.labelled import NO_VALUE, LabelledText, TaggedSentence, read_conllu, read_labelled
from regard.data.parallel import SentencePair, read_pairs
from regard.decode.alignment import Links, gold_links
from regard.interop import ForeignModel
from regard.see.plots.charts import principal_components
from regard.see.sites import HeadStatistics
from regard.see.trace import load_pretrained
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.registry import get_task

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
    task_model = as_task_model(model)
    settings, task = task_model.settings, get_task(task_model.settings.task)
    if isinstance(task_model.model, ForeignModel):
        raise ValueError(
            "this model was not trained here, so no sentences are held out; give a file, a sentence a line"
        )
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


def token_of(tokens: Mapping[str, tuple[str, ...]], axis: str, position: int) -> str:
    labels = tokens.get(axis, ())
    return labels[position] if position < len(labels) else f"{axis} {position}"


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
