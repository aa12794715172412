"""Scoring of given targets, and word alignment from cross-attention: links, error rates, heads, deciding words."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import exp, inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from regard.attention import record_attention
from regard.data.files import require_small_file
from regard.data.tokenizers.base import EOS, TokenizedText
from regard.decode.beam_decoder import cross_attention_sites
from regard.decode.search import Hypothesis, Ids, check_plain_ids
from regard.decode.stepwise import Greedy
from regard.decode.topk import log_probabilities
from regard.decode.translation import AlignedWord, Span, batch_by_tokens, translate_texts
from regard.models.config import RNN_KINDS
from regard.models.seq2seq import DecodableModel, Reorderable, decoder_inputs, encode_sources, inference_mode
from regard.training.checkpoint import resolve_run
from regard.world.world import Sentence

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

WordLinks = tuple[Sequence[str], Sequence[str], Set[tuple[int, int]]]


def score_targets(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048
) -> list[Hypothesis]:
    """The targets as hypotheses, with the model's log-probability of every token and of EOS.

    They are read in batches of at most `tokens` tokens on either side, which changes no result.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat dort")
        >>> (found,) = score_targets(translator.model, [source], [target])
        >>> len(found.scores), found.log_probability == score(translator.model, [source], [target])[0]
        (4, True)
    """
    found: dict[int, Hypothesis] = {}
    for batch in batch_pairs(sources, targets, tokens):
        with inference_mode(model):
            scores = log_probabilities(model.step(*decoder_start(model, sources, targets, batch))[0])
        for index, row in zip(batch, scores, strict=True):
            predicted = torch.tensor([*targets[index], EOS], device=row.device)
            values = row[: len(predicted)].gather(-1, rearrange(predicted, "t -> t 1"))[:, 0].tolist()
            found[index] = Hypothesis(tuple(targets[index]), tuple(values), finished=True, score=sum(values))
    return [found[index] for index in range(len(sources))]


def score(model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048) -> list[float]:
    """log P(target | source) for each pair, EOS included.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("the cat", "a dog")]
        >>> targets = [translator.target.encode(text) for text in ("le chat", "un chien")]
        >>> [found < 0 for found in score(translator.model, sources, targets)]
        [True, True]
    """
    return [found.log_probability for found in score_targets(model, sources, targets, tokens=tokens)]


def perplexity(found: Sequence[Hypothesis]) -> float:
    """exp of the mean negative log-probability per token, EOS included.

    Examples:
        >>> from math import log
        >>> quarters = Hypothesis(ids=(5,), scores=(log(0.25), log(0.25)), finished=True, score=2 * log(0.25))
        >>> round(perplexity([quarters]), 6)
        4.0
    """
    count = sum(len(hypothesis.scores) for hypothesis in found)
    if not count:
        raise ValueError("perplexity needs at least one token; give at least one sentence")
    mean = -sum(hypothesis.log_probability for hypothesis in found) / count
    return exp(mean) if mean < 700 else inf  # exp of more does not fit a number


@dataclass(frozen=True, eq=False)
class CrossAttentionMaps:
    """What the model attended to for a given target: weights by layer, one row per predicted token, ends included.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat")
        >>> (maps,) = cross_attention_maps(translator.model, [source], [target])
        >>> {layer: tuple(weights.shape) for layer, weights in maps.layers.items()}  # EOS on both sides
        {'decoder.0.cross': (4, 3, 4), 'decoder.1.cross': (4, 3, 4)}
    """

    layers: dict[str, Float[Tensor, "h t s"]]


def cross_attention_maps(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048
) -> list[CrossAttentionMaps]:
    """The cross-attention of every pair: row t holds the weights with which token t of the target was predicted.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat dort")
        >>> (maps,) = cross_attention_maps(translator.model, [source], [target])
        >>> maps.layers["decoder.0.cross"].shape, maps.layers["decoder.0.cross"].sum(-1).allclose(torch.ones(4, 4))
        (torch.Size([4, 4, 4]), True)
    """
    found: dict[int, CrossAttentionMaps] = {}
    for batch in batch_pairs(sources, targets, tokens):
        with inference_mode(model):
            start = decoder_start(model, sources, targets, batch)
            with record_attention(model) as record:
                model.step(*start)
            layers = {name: record.weights(name) for name in cross_attention_sites(record)}
        if not layers:
            raise ValueError("the model has no cross-attention; use a model with attention")
        for n, index in enumerate(batch):
            t, s = len(targets[index]) + 1, len(sources[index]) + 1
            found[index] = CrossAttentionMaps({name: weights[n, :, :t, :s] for name, weights in layers.items()})
    return [found[index] for index in range(len(sources))]


def decoder_start(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], batch: Sequence[int]
) -> tuple[Tensor, Reorderable, Reorderable]:
    """The decoder inputs of a batch, the decoder's first state, and the encoded sources."""
    memory, lengths = encode_sources(model, [sources[index] for index in batch])
    return decoder_inputs([targets[index] for index in batch]).to(lengths.device), model.start(memory), memory


def batch_pairs(sources: Sequence[Ids], targets: Sequence[Ids], tokens: int) -> list[list[int]]:
    """Indices of pairs that fit the budget on either side."""
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets: they must come in pairs")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_plain_ids(source, f"source {index}")
        check_plain_ids(target, f"target {index}")
    return batch_by_tokens([max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)], tokens)


Link = tuple[int, int]  # (source word, target word), both from 0
Links = frozenset[Link]


@dataclass(frozen=True)
class AlignmentHead:
    """One head of one layer.

    `shift=0` takes the weights with which a token was predicted, `shift=1` those of the next step, when the token is
    the decoder's input: many heads of a Transformer align better so (Chen et al. 2020, "Accurate word alignment
    induction").

    Examples:
        >>> maps = CrossAttentionMaps({"decoder.0.cross": torch.tensor([[[0.8, 0.2], [0.1, 0.9]]])})
        >>> AlignmentHead("decoder.0.cross", 0).weights(maps)  # of one target token; the last row predicted EOS
        tensor([[0.8000, 0.2000]])
        >>> AlignmentHead("decoder.0.cross", 0, shift=1).name
        'decoder.0.cross, head 0, read one token later'
    """

    layer: str
    head: int
    shift: int = 0

    @property
    def name(self) -> str:
        """For titles and messages."""
        return f"{self.layer}, head {self.head}{', read one token later' if self.shift else ''}"

    def weights(self, attention: CrossAttentionMaps) -> Float[Tensor, "t s"]:
        """One row per target token, without EOS, which belongs to no word."""
        if self.layer not in attention.layers or not 0 <= self.head < attention.layers[self.layer].shape[0]:
            there = {name: weights.shape[0] for name, weights in attention.layers.items()}
            raise ValueError(f"there is no {self}; the model has these layers with so many heads: {there}")
        rows = attention.layers[self.layer][self.head]
        return rows[self.shift : rows.shape[0] - 1 + self.shift]


def all_heads(attention: CrossAttentionMaps) -> list[AlignmentHead]:
    """Every cross-attention head, read at the step that writes a token and at the step after it.

    Examples:
        >>> maps = CrossAttentionMaps({"decoder.0.cross": torch.full((2, 3, 4), 0.25)})
        >>> [(head.head, head.shift) for head in all_heads(maps)]
        [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return [
        AlignmentHead(layer, head, shift)
        for layer, weights in attention.layers.items()
        for head in range(weights.shape[0])
        for shift in (0, 1)
    ]


def average_heads(attention: CrossAttentionMaps, heads: Sequence[AlignmentHead]) -> Float[Tensor, "t s"]:
    """The mean of some heads.

    Examples:
        >>> maps = CrossAttentionMaps({"cross": torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]])})
        >>> average_heads(maps, [AlignmentHead("cross", 0), AlignmentHead("cross", 1)])
        tensor([[0.7500, 0.2500]])
    """
    if not heads:
        raise ValueError("an average needs at least one head; give one")
    return torch.stack([head.weights(attention) for head in heads]).mean(0)


def merge_subwords(
    weights: Float[Tensor, "t s"], target_words: Sequence[int], source_words: Sequence[int]
) -> Float[Tensor, "words source_words_and_end"]:
    """Subwords to words: summed over a source word's pieces, averaged over a target word's.

    `target_words` and `source_words` say for each piece which word it belongs to; the source's EOS, for which no
    word is given, stays as the last column.

    Examples:
        >>> weights = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]])
        >>> merge_subwords(weights, target_words=[0, 0], source_words=[0, 0, 1])  # two source words, and EOS
        tensor([[0.6250, 0.2500, 0.1250]])
    """
    t, s = weights.shape
    if (t, s) != (len(target_words), len(source_words) + 1):
        raise ValueError(
            f"{t} target pieces and {s - 1} source pieces need a word each, "
            f"not {len(target_words)} and {len(source_words)}"
        )
    columns = membership_matrix([*source_words, max(source_words, default=-1) + 1], weights)
    rows = membership_matrix(target_words, weights)
    total = einsum(rows, weights, columns, "t w, t s, s x -> w x")
    return total / rearrange(rows.sum(0).clamp_min(1), "w -> w 1")


def membership_matrix(words: Sequence[int], like: Tensor) -> Float[Tensor, "pieces words"]:
    if any(word < 0 for word in words):
        raise ValueError(f"words are counted from 0, but {min(words)} is among them")
    return one_hot(torch.tensor(words, dtype=torch.long, device=like.device), max(words, default=-1) + 1).to(like.dtype)


def argmax_links(words: Float[Tensor, "w x"]) -> Links:
    """Every target word linked to the source word of its largest weight; EOS, the last column, does not count.

    Examples:
        >>> words = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]])  # rows: target words; the last column is EOS
        >>> sorted(argmax_links(words))
        [(0, 0), (1, 1)]
    """
    if words.shape[1] < 2:
        return frozenset()
    return frozenset((source, target) for target, source in enumerate(words[:, :-1].argmax(-1).tolist()))


def argmax_links_or_null(words: Float[Tensor, "w x"]) -> Links:
    """The same, but a target word whose largest weight is on EOS has no link.

    Examples:
        >>> words = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]])  # rows: target words; the last column is EOS
        >>> sorted(argmax_links_or_null(words))
        [(0, 0)]
    """
    end = words.shape[1] - 1
    return frozenset((source, target) for target, source in enumerate(words.argmax(-1).tolist()) if source != end)


# --- alignment error rate (AER) ---


@dataclass(frozen=True)
class AlignmentCounts:
    """Counts of links, which add up over sentences (Och & Ney 2003, section 5).

    Args:
        predicted: links of the model.
        sure: gold links that are not in doubt.
        predicted_and_sure, predicted_and_possible: predicted links that are among the sure, or among all gold links.

    Examples:
        >>> counts = AlignmentCounts(predicted=4, sure=3, predicted_and_sure=3, predicted_and_possible=3)
        >>> counts.precision, counts.recall, round(counts.error, 4)  # 1 - (3 + 3) / (4 + 3)
        (0.75, 1.0, 0.1429)
        >>> (counts + counts).predicted
        8
    """

    predicted: int = 0
    sure: int = 0
    predicted_and_sure: int = 0
    predicted_and_possible: int = 0

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(
            self.predicted + other.predicted,
            self.sure + other.sure,
            self.predicted_and_sure + other.predicted_and_sure,
            self.predicted_and_possible + other.predicted_and_possible,
        )

    @property
    def precision(self) -> float:
        """|A ∩ P| / |A|: the share of predicted links that are possible."""
        return self.predicted_and_possible / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        """|A ∩ S| / |S|: the share of sure links that are predicted."""
        return self.predicted_and_sure / self.sure if self.sure else 1.0

    @property
    def error(self) -> float:
        """Alignment error rate: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)."""
        both = self.predicted + self.sure
        return 1 - (self.predicted_and_sure + self.predicted_and_possible) / both if both else 0.0


def count_links(sure: Set[Link], possible: Set[Link], predicted: Set[Link]) -> AlignmentCounts:
    """One sentence. What is sure is possible too, whether `possible` repeats it or not.

    Examples:
        >>> count_links(sure={(0, 0), (1, 2)}, possible={(1, 1)}, predicted={(0, 0), (1, 1), (2, 2)})
        AlignmentCounts(predicted=3, sure=2, predicted_and_sure=1, predicted_and_possible=2)
    """
    return AlignmentCounts(len(predicted), len(sure), len(predicted & sure), len(predicted & (possible | sure)))


def aer(sure: Set[Link], possible: Set[Link], predicted: Set[Link]) -> float:
    """The alignment error rate of one sentence; for a corpus, add up the counts and take their `error`.

    Examples:
        >>> sure, possible = {(0, 0), (1, 2)}, {(1, 1)}
        >>> aer(sure, possible, predicted={(0, 0), (1, 2), (1, 1)}), aer(sure, possible, predicted={(0, 0), (2, 2)})
        (0.0, 0.5)
    """
    return count_links(sure, possible, predicted).error


@dataclass(frozen=True)
class AnnotatedPair:
    """A sentence pair whose alignment is known: ids, the word each id belongs to, and links (source, target).

    Examples:
        >>> links = frozenset({(0, 0), (1, 1)})
        >>> pair = AnnotatedPair((5, 6, 7), (8, 9), source_words=(0, 0, 1), target_words=(0, 1), sure=links)
        >>> pair.source_words  # the first word has two pieces
        (0, 0, 1)
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_words: tuple[int, ...]
    target_words: tuple[int, ...]
    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()


def evaluate_heads(
    heads: Sequence[AlignmentHead], maps: Sequence[CrossAttentionMaps], examples: Sequence[AnnotatedPair]
) -> AlignmentCounts:
    """The link counts of the mean of these heads against the gold alignments, over all examples.

    Examples:
        >>> weights = torch.tensor([[[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]]])
        >>> pair = AnnotatedPair((5, 6), (7, 8), (0, 1), (0, 1), sure=frozenset({(0, 0), (1, 1)}))
        >>> evaluate_heads([AlignmentHead("cross", 0)], [CrossAttentionMaps({"cross": weights})], [pair]).error
        0.0
    """
    total = AlignmentCounts()
    for attention, example in zip(maps, examples, strict=True):
        words = merge_subwords(average_heads(attention, heads), example.target_words, example.source_words)
        total += count_links(example.sure, example.possible, argmax_links(words))
    return total


def choose_head(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> AlignmentHead:
    """The head with the least AER; of ties the first.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat"), translator.target.encode("le chat")
        >>> pair = AnnotatedPair(tuple(source), tuple(target), (0, 1), (0, 1), sure=frozenset({(0, 0), (1, 1)}))
        >>> head = choose_head(translator.model, [pair])
        >>> maps = cross_attention_maps(translator.model, [source], [target])
        >>> errors = {one: evaluate_heads([one], maps, [pair]).error for one in all_heads(maps[0])}
        >>> len(errors), errors[head] == min(errors.values())
        (16, True)
    """
    maps = annotated_attention_maps(model, examples)
    return min(all_heads(maps[0]), key=lambda head: evaluate_heads([head], maps, examples).error)


def choose_heads(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> tuple[AlignmentHead, ...]:
    """Greedy forward selection: the best head, then each time the one that lowers the AER of the mean most.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat"), translator.target.encode("le chat")
        >>> pair = AnnotatedPair(tuple(source), tuple(target), (0, 1), (0, 1), sure=frozenset({(0, 0), (1, 1)}))
        >>> heads = choose_heads(translator.model, [pair])
        >>> heads[0] == choose_head(translator.model, [pair])
        True
    """
    maps = annotated_attention_maps(model, examples)
    selected: tuple[AlignmentHead, ...] = ()
    least = 1.0
    while True:
        errors = {
            head: evaluate_heads([*selected, head], maps, examples).error
            for head in all_heads(maps[0])
            if head not in selected
        }
        best = min(errors, key=lambda head: errors[head], default=None)
        if best is None or (selected and errors[best] >= least):
            return selected
        selected, least = (*selected, best), errors[best]


def annotated_attention_maps(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> list[CrossAttentionMaps]:
    if not examples:
        raise ValueError("no head can be chosen without gold alignments; give at least one annotated pair")
    return cross_attention_maps(
        model, [example.source for example in examples], [example.target for example in examples]
    )


HEADS_FILE = "heads.json"  # in a run's folder: the heads that align best, as they were chosen on held-out sentences


@dataclass(frozen=True, eq=False)
class SentencePairAttention:
    """A sentence, its translation, and the model's cross-attention between them."""

    source: TokenizedText
    target: TokenizedText
    attention: CrossAttentionMaps

    def word_matrix(self, heads: Sequence[AlignmentHead]) -> Float[Tensor, "target source_and_end"]:
        """The mean of some heads, merged from subwords to words."""
        return merge_subwords(average_heads(self.attention, heads), self.target.word_ids, self.source.word_ids)


def attend_pair(translator: "Translator", source: str, target: str) -> SentencePairAttention:
    """The cross-attention of exactly this translation, teacher-forced."""
    one, other = TokenizedText.of(translator.source, source), TokenizedText.of(translator.target, target)
    return SentencePairAttention(one, other, cross_attention_maps(translator.model, [one.ids], [other.ids])[0])


def align_pair(
    translator: "Translator", source: str, target: str
) -> tuple[SentencePairAttention, Float[Tensor, "target source_and_end"]]:
    """The same, and the weights of its words by the run's alignment heads, or the head that covers this pair best."""
    if translator.settings.model.kind in RNN_KINDS:
        raise ValueError(f"a {translator.settings.model.kind} without attention aligns no words")
    pair = attend_pair(translator, source, target)
    heads = translator.alignment_heads or select_head_by_coverage(translator, [(source, target)])
    return pair, pair.word_matrix(heads)


def format_links(translator: "Translator", source: str, target: str, heads: Sequence[AlignmentHead]) -> str:
    """The links in Pharaoh format: source-target, counted from 0, as in 0-0 1-2 2-1."""
    if not (source.split() and target.split()):
        return ""
    links = argmax_links_or_null(attend_pair(translator, source, target).word_matrix(heads))
    return " ".join(f"{here}-{there}" for here, there in sorted(links))


def aligned_words(source: str, found: str, alignment: WordLinks, tag: int = 0) -> list[AlignedWord] | None:
    """The words of a translation by their characters; None where a word is not in its text as it stands.

    Args:
        alignment: the words of both sides, and their links by number.
        tag: characters of the tag before the source, which is linked to nothing.

    Examples:
        >>> aligned_words("the cat", "le chat", (("the", "cat"), ("le", "chat"), {(0, 0), (1, 1)}))
        [((0, 2), (0, 3)), ((3, 7), (4, 7))]
    """
    source_words, found_words, links = alignment
    source_spans, found_spans = find_words(source, source_words), find_words(found, found_words)
    if source_spans is None or found_spans is None:
        return None
    linked = {target: (start - tag, end - tag) for one, target in links for start, end in source_spans[one : one + 1]}
    linked = {target: span for target, span in linked.items() if span[0] >= 0}
    return [(span, linked.get(number)) for number, span in enumerate(found_spans)]


def find_words(text: str, words: Sequence[str]) -> list[Span] | None:
    """Where words are that follow each other in a text, in whatever case."""
    lowered, spans, at = text.lower(), list[Span](), 0
    for word in words:
        start = lowered.find(word.lower(), at)
        if start < 0 or len(lowered) != len(text):
            return None
        at = start + len(word)
        spans.append((start, at))
    return spans


# --- alignment heads ---


def annotate_pair(translator: "Translator", sentence: Sentence) -> AnnotatedPair:
    """A sentence of the miniature world, with its gold alignment."""
    data = translator.settings.data
    one, other = (
        TokenizedText.of(tokenizer, " ".join(sentence.words_for(language)))
        for tokenizer, language in ((translator.source, data.source), (translator.target, data.target))
    )
    return AnnotatedPair(
        one.ids, other.ids, one.word_ids, other.word_ids, gold_links(sentence, data.source, data.target)
    )


def gold_links(sentence: Sentence, source: str, target: str) -> Links:
    """Pairs (word of `source`, word of `target`); one of the languages is English."""
    if source == "en":
        return sentence.renderings[target].alignment
    return frozenset((there, here) for here, there in sentence.renderings[source].alignment)


def select_heads_by_gold(translator: "Translator", sentences: Sequence[Sentence]) -> tuple[AlignmentHead, ...]:
    """The set of heads whose mean has the least AER against gold alignments."""
    return choose_heads(translator.model, [annotate_pair(translator, sentence) for sentence in sentences])


def select_head_by_coverage(translator: "Translator", pairs: Sequence[tuple[str, str]]) -> tuple[AlignmentHead, ...]:
    """Without gold alignments: the head whose argmax links cover the most source words, each counted by the Dice
    coefficient of the words it links. A head that is one word off covers as much, but links words by chance."""
    examples = [attend_pair(translator, source, target) for source, target in pairs]
    if not examples:
        raise ValueError("no head can be chosen without sentences; give at least one pair")
    dice = dice_coefficients([(one.source.words, one.target.words) for one in examples])

    def coverage(head: AlignmentHead) -> float:
        return sum(
            link_coverage(argmax_links_or_null(one.word_matrix([head])), one.source.words, one.target.words, dice)
            for one in examples
        )

    return (max(all_heads(examples[0].attention), key=coverage),)


def dice_coefficients(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[tuple[str, str], float]:
    """2 C(e, f) / (C(e) + C(f)), in how many sentences words occur, and together (Och & Ney 2003, heuristic models)."""
    sources, targets = (Counter(word for pair in pairs for word in set(pair[side])) for side in (0, 1))
    together = Counter((one, other) for source, target in pairs for one in set(source) for other in set(target))
    return {(one, other): 2 * n / (sources[one] + targets[other]) for (one, other), n in together.items()}


def link_coverage(
    links: Links, source: Sequence[str], target: Sequence[str], dice: Mapping[tuple[str, str], float]
) -> float:
    """The share of source words that are linked, each counted by the largest coefficient of its links."""
    linked: dict[int, float] = {}
    for one, other in links:
        linked[one] = max(linked.get(one, 0.0), dice[source[one], target[other]])
    return sum(linked.values()) / len(source)


def load_alignment_heads(folder: Path, available: Sequence[AlignmentHead] | None = None) -> tuple[AlignmentHead, ...]:
    """The heads that were selected when the model was trained, the best first; none outside of `available`, if
    given."""
    path = resolve_run(folder)[0] / HEADS_FILE
    if not path.exists():
        return ()
    try:
        rows = json.loads(require_small_file(path).read_text(encoding="utf-8"))
        heads = tuple(AlignmentHead(layer, head, shift) for layer, head, shift in rows)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged; remove it, or train again") from None
    if available is not None and (strange := [head for head in heads if head not in available]):
        raise ValueError(f"{path} names {strange[0]}, which the model does not have; remove it, or train again")
    return heads


def best_head(translator: "Translator", folder: Path | None, attention: SentencePairAttention) -> AlignmentHead:
    """The head to show first: the best of those saved with the model, else the one that covers this sentence best."""
    saved = load_alignment_heads(folder, all_heads(attention.attention)) if folder else ()
    texts = (" ".join(attention.source.words), " ".join(attention.target.words))
    return (saved or select_head_by_coverage(translator, [texts]))[0]


# --- deciding words ---


def translate_without_each_word(translator: "Translator", source: str) -> list[str]:
    """The greedy translations of the sentence without each of its words (leave-one-out).

    Each is decoded from scratch, so no earlier decision leaks in through a prefix. Models without attention work as
    well.
    """
    words = TokenizedText.of(translator.source, source).words
    shorter = [" ".join(words[:index] + words[index + 1 :]) for index in range(len(words))]
    return translate_texts(translator, shorter, Greedy())


def find_deciding_words(translator: "Translator", source: str, target_word: str) -> dict[int, str]:
    """The source words without which `target_word` is not in the translation, each with the translation it gives."""
    return {
        index: text
        for index, text in enumerate(translate_without_each_word(translator, source))
        if target_word not in translator.target.normalizer.apply(text).split()
    }
