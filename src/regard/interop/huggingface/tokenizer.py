"""Hugging Face tokenizers behind our interface: the special ids stand first, as everywhere here; all others follow.

Searches, traces and the page count on PAD, BOS, EOS and UNK being 0 to 3. The ids of a Hugging Face model are mapped to
that order on the way in and its logits on the way out; its own ids are `to_foreign[id]`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.data.tokenizers.base import BOS, EOS, NUM_SPECIAL_TOKENS, PAD, UNK, Tokenizer
from regard.data.tokenizers.normalization import TextNormalizer
from regard.tasks.tokenizers import SPECIAL_LABELS

WORD_STARTS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the blank before a word
CONTINUATION = "##"  # how WordPiece writes that there is none


@dataclass(frozen=True, eq=False)
class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of transformers.

    Args:
        own: the tokenizer.
        to_foreign: of each id here the id there; -1 for a special one that the model does not have.
        from_foreign: the reverse.
        side: which of its texts it reads: a source's (text), or a target's, whose pieces or language may be others.
    """

    own: Any = field(repr=False)
    to_foreign: tuple[int, ...] = field(repr=False)
    from_foreign: dict[int, int] = field(repr=False)
    side: Literal["text", "text_target"] = "text"
    normalizer: TextNormalizer = TextNormalizer()
    kind = "huggingface"

    @staticmethod
    def of(own: Any, vocabulary: int, start: int | None, end: int | None) -> "HuggingFaceTokenizer":
        """For a model with so many logits, whose texts begin and end with these ids of its own."""
        special = [own.pad_token_id, start, end, own.unk_token_id]
        if special[UNK] in special[:UNK]:
            special[UNK] = None  # GPT-2 has one token for everything
        from_foreign = {one: here for here, one in enumerate(special) if one is not None and here in (PAD, EOS, UNK)}
        if end is not None:
            from_foreign[end] = EOS
        plain = [one for one in range(vocabulary) if one not in from_foreign]
        to_foreign = (*(-1 if one is None else one for one in special), *plain)
        from_foreign |= {one: NUM_SPECIAL_TOKENS + n for n, one in enumerate(plain)}
        return HuggingFaceTokenizer(own, to_foreign, from_foreign)

    @property
    def size(self):
        return len(self.to_foreign)

    def encode(self, text):
        return [self.from_foreign[one] for one in self.foreign_ids(text)]

    def foreign_ids(self, text: str) -> list[int]:
        """The model's own ids of a text with all that its tokenizer adds, but for the end, which a search appends."""
        ids = list(self.own(**{self.side: text})["input_ids"])
        return ids[:-1] if ids and self.from_foreign[ids[-1]] == EOS else ids

    def decode(self, ids):
        ids = self.validate_ids(ids)
        if len(ids) == 1:  # one token by itself: with the mark that it goes on, but without that of a blank
            return self.label(ids[0]) if ids[0] >= UNK else ""
        return self.own.decode([self.to_foreign[one] for one in ids if one > EOS], skip_special_tokens=True)

    def label(self, one: int) -> str:
        """A token as it is shown."""
        if one < NUM_SPECIAL_TOKENS:
            return SPECIAL_LABELS[one]
        piece = self.piece(one)
        return piece.lstrip("".join(WORD_STARTS)) or "␣"

    def piece(self, one: int) -> str:
        """A token as the tokenizer writes it; ids beyond its vocabulary fill up a model's matrix."""
        found = self.own.convert_ids_to_tokens(self.to_foreign[one])
        return found if isinstance(found, str) else f"<{self.to_foreign[one]}>"

    def tokens(self, text):
        return [self.label(one) for one in self.encode(text)]

    def word_ids(self, text):
        return list(self.words(text)[1])

    def words(self, text):
        return self.group(self.encode(text))

    def group(self, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The words that ids spell, and the word of each; a special token is a word of its own."""
        words: list[list[int]] = []
        word_ids, before, written = [], True, {self.mark(one) for one in ids}
        for one in ids:
            special = self.is_special(one)
            joins = "joins" in written and self.mark(one) == "joins"
            joins |= "begins" in written and self.mark(one) == ""
            if special or before or not words or not joins:
                words.append([])
            words[-1].append(one)
            word_ids.append(len(words) - 1)
            before = special
        return tuple(self.spell(word) for word in words), tuple(word_ids)

    def mark(self, one: int) -> str:
        """Whether a piece says that it begins a word, or joins one; "" if it says nothing."""
        piece = "" if one < NUM_SPECIAL_TOKENS else self.piece(one)
        return "begins" if piece.startswith(WORD_STARTS) else "joins" if piece.startswith(CONTINUATION) else ""

    def is_special(self, one: int) -> bool:
        return one < NUM_SPECIAL_TOKENS or self.to_foreign[one] in self.own.all_special_ids

    def spell(self, word: Sequence[int]) -> str:
        if len(word) == 1:
            return self.label(word[0])
        return self.own.decode([self.to_foreign[one] for one in word]).strip() or "".join(map(self.label, word))

    def to_dict(self):
        raise ValueError("a Hugging Face tokenizer is saved by itself: tokenizer.save_pretrained(folder)")

    def text(self, ids: Iterable[int]) -> str:
        """The text that the model's own tokenizer makes of ids."""
        return self.own.decode([self.to_foreign[one] for one in ids if one != PAD and one != BOS])

    def written(self, ids: Iterable[int]) -> str:
        """The text of what a model wrote, without its special tokens."""
        return self.own.decode([self.to_foreign[one] for one in ids], skip_special_tokens=True).strip()
