"""Corpus tally: sums of every head over many sentences, read in batches; weights are formed a band at a time.

What is found of one sentence does not depend on the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.core import UNDECLARED_AXES
from regard.attention.stats import QueryBand, key_runs
from regard.data.tokenizers.base import EOS
from regard.decode.alignment import AlignmentCounts
from regard.decode.search import translate
from regard.decode.translation import batch_by_tokens
from regard.models.seq2seq import inference_mode
from regard.see.corpus import (
    AttentionSpan,
    CorpusHead,
    CorpusSentence,
    CorpusStates,
    CorpusStatistics,
    PredictionError,
    TagPair,
    as_sentence,
    as_task_model,
    token_of,
)
from regard.see.methods.layers import LayerBlock, find_blocks, queries_of_block, recorded_streams
from regard.see.sites import AttentionRecorder, AttentionSite
from regard.see.trace import MAX_TOKENS, target_search
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import EncodedInput, Predictions, ProgressBar, Task, TaskInput, TokenAxis, no_progress
from regard.tasks.registry import get_task

TOKENS_AT_ONCE, TOKENS_SEARCHED = 4096, 1024  # padded, of a batch that is read, and of one that is translated
SPANS = 20  # of each head
SINKS, TAG_PAIRS = 3, 8  # of each head, in a summary
MAX_LABELS = 4096  # options of a classifier, whose names are looked up

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
