"""Word alignment of a translator: cross-attention between words, alignment heads, and deciding source words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from regard.data.files import require_small_file
from regard.data.tokenizers.base import Tokenizer
from regard.decode.alignment import (
    AlignmentHead,
    AnnotatedPair,
    Links,
    all_heads,
    argmax_links_or_null,
    average_heads,
    choose_heads,
    merge_subwords,
)
from regard.decode.scoring import CrossAttentionMaps, cross_attention_maps
from regard.decode.stepwise import Greedy
from regard.decode.translate import translate_texts
from regard.train.run_folder import resolve_run
from regard.world.world import Sentence

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

HEADS_FILE = "heads.json"  # in a run's folder: the heads that align best, as they were chosen on held-out sentences


@dataclass(frozen=True)
class TokenizedText:
    """A text as token ids, its words, and the word that each id belongs to."""

    ids: tuple[int, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Tokenizer, text: str) -> "TokenizedText":
        words = tokenizer.normalizer.apply(text).split()
        if not words:
            raise ValueError("an empty text has no attention to show; give at least one word")
        return TokenizedText(tuple(tokenizer.encode(text)), tuple(words), tuple(tokenizer.word_ids(text)))


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


def format_links(translator: "Translator", source: str, target: str, heads: Sequence[AlignmentHead]) -> str:
    """The links in Pharaoh format: source-target, counted from 0, as in 0-0 1-2 2-1."""
    if not (source.split() and target.split()):
        return ""
    links = argmax_links_or_null(attend_pair(translator, source, target).word_matrix(heads))
    return " ".join(f"{here}-{there}" for here, there in sorted(links))


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
    """Without gold alignments: the head whose argmax links cover the most source words."""
    examples = [attend_pair(translator, source, target) for source, target in pairs]
    if not examples:
        raise ValueError("no head can be chosen without sentences; give at least one pair")

    def coverage(head: AlignmentHead) -> float:
        return sum(
            len({source for source, _ in argmax_links_or_null(one.word_matrix([head]))}) / len(one.source.words)
            for one in examples
        )

    return (max(all_heads(examples[0].attention), key=coverage),)


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
