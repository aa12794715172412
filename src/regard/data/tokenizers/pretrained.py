"""Pretrained tokenizers: those of other toolkits behind our interface, their ids in our order.

Searches, traces and the page count on PAD, BOS, EOS and UNK being 0 to 3. Here the four stand first, and all other
tokens follow in their own order; the tokenizer's own ids are `to_foreign[id]`.
"""

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import tokenizers as library

from regard.data.tokenizers.base import (
    BOS,
    EOS,
    NUM_SPECIAL_TOKENS,
    PAD,
    SPECIAL_LABELS,
    UNK,
    TextNormalizer,
    Tokenizer,
)

WORD_STARTS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the blank before a word
CONTINUATION = "##"  # how WordPiece writes that there is none
ABSENT = -1  # instead of the tokenizer's own id, where it has no such token
Special = tuple[int | None, int | None, int | None, int | None]  # its own ids of PAD, BOS, EOS and UNK


def foreign_order(vocabulary: int, special: Special) -> tuple[tuple[int, ...], dict[int, int]]:
    """Of each id here the id there, and the reverse, for a model with so many ids of its own.

    One of theirs may be several of ours, as what begins a text may be what ends it: what is read is then EOS, if it is
    that, and never BOS, which nothing predicts.
    """
    pad, start, end, unknown = special
    unknown = None if unknown in (pad, start, end) else unknown  # GPT-2 has one token for everything
    from_foreign = {one: here for one, here in ((pad, PAD), (unknown, UNK), (end, EOS)) if one is not None}
    plain = [one for one in range(vocabulary) if one not in from_foreign]
    to_foreign = (*(ABSENT if one is None else one for one in (pad, start, end, unknown)), *plain)
    return to_foreign, from_foreign | {one: NUM_SPECIAL_TOKENS + n for n, one in enumerate(plain)}


class ForeignTokenizer(Tokenizer, ABC):
    """Abstract: a tokenizer with ids of its own, which are mapped to ours."""

    to_foreign: tuple[int, ...]
    from_foreign: dict[int, int]

    @abstractmethod
    def foreign_piece(self, one: int) -> str | None:
        """A token by its own id, as the tokenizer writes it; None beyond its vocabulary."""

    @abstractmethod
    def foreign_text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of its own ids."""

    @abstractmethod
    def is_foreign_special(self, one: int) -> bool:
        """Whether a token, by its own id, stands for no text."""

    @property
    def size(self):
        return len(self.to_foreign)

    def decode(self, ids):
        ids = self.validate_ids(ids)
        if len(ids) == 1:  # one token by itself: with the mark that it goes on, but without that of a blank
            return self.label(ids[0]) if ids[0] >= UNK else ""
        return self.foreign_text([self.to_foreign[one] for one in ids if one > EOS], skip_special=True)

    def label(self, one: int) -> str:
        """A token as it is shown."""
        if one < NUM_SPECIAL_TOKENS:
            return SPECIAL_LABELS[one]
        return self.piece(one).lstrip("".join(WORD_STARTS)) or "␣"

    def piece(self, one: int) -> str:
        """A token as the tokenizer writes it; ids beyond its vocabulary fill up a model's matrix."""
        return self.foreign_piece(self.to_foreign[one]) or f"<{self.to_foreign[one]}>"

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
        return one < NUM_SPECIAL_TOKENS or self.is_foreign_special(self.to_foreign[one])

    def spell(self, word: Sequence[int]) -> str:
        if len(word) == 1:
            return self.label(word[0])
        text = self.foreign_text([self.to_foreign[one] for one in word], skip_special=False)
        return text.strip() or "".join(map(self.label, word))

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids with all but what pads and begins it."""
        return self.foreign_text([self.to_foreign[one] for one in ids if one not in (PAD, BOS)], skip_special=False)


# --- engines ---


class TokenizerEngine(ABC):
    """Abstract: a tokenizer of another toolkit as a value, with ids of its own."""

    name: str

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Without any token that stands for no text."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str: ...

    @abstractmethod
    def piece(self, one: int) -> str | None:
        """A token as it is written; None beyond the vocabulary."""

    @property
    @abstractmethod
    def special_ids(self) -> frozenset[int]: ...

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class TokenizersEngine(TokenizerEngine):
    """A tokenizer.json of the `tokenizers` library.

    Args:
        model: its text.
        markup: whether special tokens that are written in a text are read as such, and not as plain text.
    """

    model: str = field(repr=False)
    markup: bool = False
    name = "tokenizers"

    def __post_init__(self):
        assert self.engine  # read now, so that a damaged model is an error here

    @cached_property
    def engine(self) -> library.Tokenizer:
        try:
            engine = library.Tokenizer.from_str(self.model)
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"the tokenizer is not one of `tokenizers` {library.__version__}: {error}") from None
        engine.no_truncation()
        engine.no_padding()
        engine.encode_special_tokens = not self.markup
        return engine

    def encode(self, text):
        return self.engine.encode(text, add_special_tokens=False).ids

    def decode(self, ids, *, skip_special):
        return self.engine.decode(list(ids), skip_special_tokens=skip_special)

    def piece(self, one):
        return self.engine.id_to_token(one)

    @cached_property
    def special_ids(self):  # type: ignore[override]
        return frozenset(one for one, token in self.engine.get_added_tokens_decoder().items() if token.special)

    def to_dict(self):
        return {"model": self.model, "markup": self.markup}


@dataclass(frozen=True)
class SentencePieceEngine(TokenizerEngine):
    """A model of SentencePiece, and the vocabulary that says which id each of its pieces has.

    Args:
        model: its bytes in base 64.
        pieces: the pieces of the vocabulary, by their ids.
        unknown: the id of pieces that are not in it.
        special: ids of tokens that stand for no text.
    """

    model: str = field(repr=False)
    pieces: tuple[str, ...] = field(repr=False)
    unknown: int
    special: tuple[int, ...] = ()
    name = "sentencepiece"

    def __post_init__(self):
        assert self.engine

    @cached_property
    def engine(self) -> Any:
        if find_spec("sentencepiece") is None:
            raise ValueError("this model's tokenizer needs sentencepiece; pip install 'regard[interop]'")
        from sentencepiece import SentencePieceProcessor

        try:
            return SentencePieceProcessor(model_proto=base64.b64decode(self.model, validate=True))
        except (RuntimeError, binascii.Error) as error:
            raise ValueError(f"the tokenizer is no model of SentencePiece: {error}") from None

    @cached_property
    def ids(self) -> dict[str, int]:
        return {piece: n for n, piece in enumerate(self.pieces)}

    def encode(self, text):
        code, rest = split_language_code(text)
        known = code in self.ids
        found = self.engine.encode(rest if known else text, out_type=str)
        return [self.ids.get(piece, self.unknown) for piece in ((code, *found) if known else found)]

    def decode(self, ids, *, skip_special):
        pieces = [self.pieces[one] for one in ids if not (skip_special and one in self.special_ids)]
        return self.engine.decode_pieces(pieces).strip()

    def piece(self, one):
        return self.pieces[one] if one < len(self.pieces) else None

    @cached_property
    def special_ids(self):  # type: ignore[override]
        return frozenset(self.special)

    def to_dict(self):
        return {
            "model": self.model,
            "pieces": list(self.pieces),
            "unknown": self.unknown,
            "special": list(self.special),
        }


def language_tag(language: str) -> str:
    """What a text for a model of several target languages begins with, as Marian's have it.

    Examples:
        >>> language_tag("fr")
        '>>fr<<'
    """
    return f">>{language}<<"


def split_language_code(text: str) -> tuple[str, str]:
    """The code that a text for Marian's multilingual models begins with, such as >>fra<<, and the text after it."""
    code, closed, rest = text.partition("<<")
    return (f"{code}<<", rest) if closed and text.startswith(">>") else ("", text)


# --- the tokenizer of an imported model ---


@dataclass(frozen=True, eq=False)
class PretrainedTokenizer(ForeignTokenizer):
    """A tokenizer of another toolkit that a run holds with its model.

    Args:
        engine: the tokenizer itself.
        vocabulary: how many ids of its own its model has.
        special: its own ids of PAD, BOS, EOS and UNK; None where it has none.
        first_ids: ids of ours before the tokens of every text, such as a language's tag or BERT's [CLS].
        last_ids: the same behind them.
        starts: whether BOS stands before a text that a language model reads.
    """

    engine: TokenizerEngine = field(repr=False)
    vocabulary: int
    special: Special
    first_ids: tuple[int, ...] = ()
    last_ids: tuple[int, ...] = ()
    starts: bool = False
    normalizer: TextNormalizer = TextNormalizer()
    kind = "pretrained"

    @cached_property
    def to_foreign(self):  # type: ignore[override]
        return foreign_order(self.vocabulary, self.special)[0]

    @cached_property
    def from_foreign(self):  # type: ignore[override]
        return foreign_order(self.vocabulary, self.special)[1]

    def encode(self, text):
        found = (self.from_foreign[one] for one in self.engine.encode(text))
        return [*self.first_ids, *found, *self.last_ids]

    def foreign_piece(self, one):
        return self.engine.piece(one) if one >= 0 else None

    def foreign_text(self, ids, *, skip_special):
        return self.engine.decode(
            [one for one in ids if self.foreign_piece(one) is not None], skip_special=skip_special
        )

    def is_foreign_special(self, one):
        return one in self.engine.special_ids

    @property
    def mask(self) -> int:
        """What stands for a token that is to be predicted; UNK if the tokenizer has none."""
        found = (
            one for one in self.engine.special_ids if (self.engine.piece(one) or "").strip("[]<>").lower() == "mask"
        )
        return next((self.from_foreign[one] for one in found), UNK)

    def to_dict(self):
        return {
            "engine": {"name": self.engine.name, **self.engine.to_dict()},
            "vocabulary": self.vocabulary,
            "special": list(self.special),
            "first_ids": list(self.first_ids),
            "last_ids": list(self.last_ids),
            "starts": self.starts,
        }

    @staticmethod
    def from_dict(saved: dict[str, Any], normalizer: TextNormalizer) -> "PretrainedTokenizer":
        """What `to_dict` wrote, or somebody else."""
        engine = dict(saved["engine"])
        match engine.pop("name"):
            case "tokenizers":
                made: TokenizerEngine = TokenizersEngine(**engine)
            case "sentencepiece":
                lists = {name: tuple(engine[name]) for name in ("pieces", "special")}
                made = SentencePieceEngine(**{**engine, **lists})
            case name:
                raise ValueError(f"the engine {name!r:.80} is neither tokenizers nor sentencepiece")
        pad, start, end, unknown = saved["special"]
        lists = {name: tuple(saved[name]) for name in ("first_ids", "last_ids")}
        check_ids(saved["vocabulary"], (pad, start, end, unknown), lists.values())
        return PretrainedTokenizer(
            made,
            saved["vocabulary"],
            (pad, start, end, unknown),
            starts=bool(saved["starts"]),
            normalizer=normalizer,
            **lists,
        )


def check_ids(vocabulary: Any, special: Special, around: Iterable[Sequence[Any]]) -> None:
    if not isinstance(vocabulary, int) or not 0 < vocabulary < 2**31:
        raise ValueError(f"vocabulary = {vocabulary!r:.80} should be a whole number, and not too large")
    known = [one for one in special if one is not None]
    if not all(isinstance(one, int) and 0 <= one < vocabulary for one in known):
        raise ValueError(f"special = {special!r:.80} should be ids below {vocabulary}")
    size = vocabulary + NUM_SPECIAL_TOKENS
    if not all(isinstance(one, int) and 0 <= one < size for ids in around for one in ids):
        raise ValueError(f"first_ids and last_ids should be ids below {size}")
