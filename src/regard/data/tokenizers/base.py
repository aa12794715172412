"""Tokenizers: the abstract class, the word, character and byte tokenizers; and the normalization of texts.

The special ids are the same everywhere and stand for no text: "<s>" in a sentence is encoded as ordinary tokens.

`word_tokenize` follows the Moses tokenizer for English, German and French, without its escapes; it gives the published
Multi30k text:

1. Every run of spaces becomes one; those at the ends are stripped.
2. Every character becomes a word of its own, except letters, digits, accents, hyphens and those of 3 to 6. Accents and
   joiners stay with the character before them, so that an emoji of several parts stays whole.
3. Two or more dots in a row become a word.
4. A comma becomes a word, except between digits: 1,000.
5. An apostrophe between letters splits the word before itself in English (dog 's, don 't), after itself in French
   (l' homme), on both sides in German (geht ' s); English also writes 1990 's. Any other apostrophe is a word.
6. A full stop at the end of a word becomes a word, except before another word if that begins with a small letter, or
   if what ends is an abbreviation of the language, has a stop inside (U.S.), or is a number in German (3. Mai).

`word_detokenize` reverses it by the same rules. The tokens do not tell which spaces were around dashes, slashes and
quotation marks, so it guesses: it restores ordinary sentences, not all.
"""

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, Literal, SupportsInt, get_args

from regard.data.files import find_lone_surrogate, write_text_atomic

ABBREVIATIONS = {
    "en": "mr mrs ms dr prof st sr jr rev gen col lt sgt capt gov sen rep vs no nos fig vol pp art inc ltd co corp etc "
    "jan feb mar apr jun jul aug sep sept oct nov dec",
    "de": "dr prof hr fr frl nr bzw ca evtl ggf inkl usw vgl bspw str abs art bd jh mio mrd tel zzgl st "
    "jan feb mär apr jun jul aug sep sept okt nov dez",
    "fr": "m mm mme mmes mlle mlles dr pr st ste av bd etc ex fig vol chap art env tél no "
    "janv févr avr juil sept oct nov déc",
}
TOKENIZED_LANGUAGES = tuple(ABBREVIATIONS)

MARK = re.compile(r"(?:[^\w\s.,'’-]|_)")
DOTS = re.compile(r"\.{2,}")
COMMA = re.compile(r"(?<!\d),|,(?!\d)")
APOSTROPHE = re.compile(r"['’]")
JOINER = "\u200d"


def word_tokenize(text: str, language: str) -> str:
    require_language(language)
    text = _separate_punctuation(" ".join(text.split()))
    text = COMMA.sub(" , ", DOTS.sub(r" \g<0> ", text))
    text = APOSTROPHE.sub(lambda match: _split_apostrophe(match, language), text)
    words = text.split()
    with_next = zip_longest(words, words[1:], fillvalue="")
    return " ".join(part for word, after in with_next for part in _split_full_stop(word, after, language))


def require_language(language: str) -> None:
    if language not in TOKENIZED_LANGUAGES:
        raise ValueError(f"no tokenization rules for {language!r}; choose from {', '.join(TOKENIZED_LANGUAGES)}")


def _separate_punctuation(text: str) -> str:
    parts, end = [], 0
    for match in MARK.finditer(text):
        if match.start() < end or is_combining(match[0]):
            continue
        stop = match.end()
        while stop < len(text) and (
            is_combining(text[stop]) or (text[stop - 1] == JOINER and not text[stop].isspace())
        ):
            stop += 1
        parts += [text[end : match.start()], " ", text[match.start() : stop], " "]
        end = stop
    return "".join([*parts, text[end:]])


def is_combining(character: str) -> bool:
    """Accents, variation selectors, skin tones, joiners: they attach to the character before."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf", "Sk") and character not in "^`¨´¯¸"


def _split_apostrophe(match: re.Match[str], language: str) -> str:
    sign, before, after = match[0], match.string[: match.start()][-1:], match.string[match.end() :][:1]
    if before.isalpha() and after.isalpha():
        return {"en": f" {sign}", "fr": f"{sign} ", "de": f" {sign} "}[language]
    return f" {sign}" if language == "en" and before.isdigit() and after == "s" else f" {sign} "


def _split_full_stop(word: str, after: str, language: str) -> list[str]:
    stem = word[:-1]
    if not word.endswith(".") or not stem.strip("."):
        return [word]
    short = stem.lower() in ABBREVIATIONS[language].split() or ("." in stem and any(c.isalpha() for c in stem))
    ordinal = language == "de" and stem.isdigit()
    initial = len(stem) == 1 and stem.isupper()
    return [word] if after and (after[0].islower() or short or ordinal or initial) else [stem, "."]


# --- detokenization ---

CLOSING = frozenset(".,…)]}°”’›")
HALTS = frozenset(";:!?")  # French writes a space before them
OPENING = frozenset("([{¿¡#$£„‚‹")
BOTH = frozenset("/_@")
QUOTES = frozenset("\"'`")


def word_detokenize(text: str, language: str) -> str:
    require_language(language)
    joined, glued = [], True
    for word, left, right in _attachment(text.split(), language):
        joined += [word] if left or glued else [" ", word]
        glued = right
    return "".join(joined)


def _attachment(words: list[str], language: str) -> Iterator[tuple[str, bool, bool]]:
    """Each word, and whether it is attached to the one before and to the one after."""
    opened: set[str] = set()
    attached = {"en": HALTS | {"%"}, "de": HALTS, "fr": frozenset()}[language]
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if word in BOTH or (language == "de" and word in ("'", "’") and after in ("s", "n", "ne")):
            yield word, True, True
        elif word in QUOTES:
            alone = word not in words[at + 1 :] and at > 0
            closes = word in opened or (alone and word == "'" and words[at - 1].endswith("s"))  # the dogs' bones
            (opened.discard if closes else opened.add)(word)
            yield word, closes, not closes
        elif word in ("“", "«", "»"):
            closes = (word == "“" and language == "de") or word == "»"
            yield word, closes and language != "fr", not closes and language != "fr"
        elif word == ":" and at > 0 and words[at - 1].isdigit() and after.isdigit():
            yield word, True, True
        elif word in CLOSING or word in attached or DOTS.fullmatch(word):
            yield word, True, False
        else:
            apostrophe = len(word) > 1 and language != "de"
            starts, ends = word[0] in "'’", word[-1] in "'’"
            yield word, apostrophe and starts and language == "en", word in OPENING or (apostrophe and ends)


# --- the normalizer ---


Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS = get_args(Form)


@dataclass(frozen=True)
class TextNormalizer:
    """The normalization of a text before it is encoded; saved with the tokenizer.

    Args:
        form: a Unicode form: "NFC" makes one é of e and its accent; "NFKC" also makes fi of ﬁ.
        lower: lower case.
        squeeze: strip spaces at the ends, and make one of a run of them.
        language: word tokenization: "en", "de" or "fr".

    Examples:
        >>> normalizer = TextNormalizer(lower=True, language="en")
        >>> normalizer.apply("The dog's bone, isn't it?")
        "the dog 's bone , isn 't it ?"
        >>> normalizer.detokenize("the dog 's bone , isn 't it ?")
        "the dog's bone, isn't it?"
    """

    form: Form | None = None
    lower: bool = False
    squeeze: bool = False
    language: str | None = None

    def __post_init__(self):
        if self.form is not None and self.form not in FORMS:
            raise ValueError(f"form={self.form!r} is no Unicode form; choose from {', '.join(FORMS)} or None")
        if self.language is not None and self.language not in TOKENIZED_LANGUAGES:
            raise ValueError(
                f"language={self.language!r} is not known; choose from {', '.join(TOKENIZED_LANGUAGES)} or None"
            )
        if not isinstance(self.lower, bool) or not isinstance(self.squeeze, bool):
            raise ValueError(f"lower={self.lower!r} and squeeze={self.squeeze!r} must be True or False")

    def apply(self, text: str) -> str:
        if at := find_lone_surrogate(text):
            raise ValueError(f"character {at} of {text!r} is a lone surrogate; remove it")
        text = unicodedata.normalize(self.form, text) if self.form else text
        text = " ".join(text.split()) if self.squeeze else text
        # Before lower case: a capital letter helps to tell the end of a sentence from an abbreviation.
        text = word_tokenize(text, self.language) if self.language else text
        text = text.lower() if self.lower else text
        return unicodedata.normalize(self.form, text) if self.form else text

    def detokenize(self, text: str) -> str:
        """Model output as running text: punctuation is attached to its word. Capitals are not restored."""
        return word_detokenize(text, self.language) if self.language else text


# --- tokenizers ---

PAD = 0
"""The id that fills up the rows of a batch.

Examples:
    >>> rows, lengths = pad_rows([[5, 6, 7], [8]])
    >>> rows
    tensor([[5, 6, 7],
            [8, 0, 0]])
    >>> (rows == PAD).sum().item()
    2
"""

BOS = 1
"""The id before the first token of a target: what the decoder reads first.

Examples:
    >>> collate([([5, 6], [7])]).target
    tensor([[1, 7, 2]])
    >>> BOS
    1
"""

EOS = 2
"""The id after the last token.

Examples:
    >>> collate([([5, 6], [7])]).source
    tensor([[5, 6, 2]])
    >>> EOS
    2
"""

UNK = 3
"""The id of a word outside the vocabulary.

Examples:
    >>> WordTokenizer.train(["the cat"]).encode("the dog")
    [5, 3]
    >>> UNK
    3
"""

NUM_SPECIAL_TOKENS = 4
SPECIAL_LABELS = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}
FORMAT = "regard tokeniser 1"
VISIBLE_BLANKS = str.maketrans({" ": "␣", "\t": "⇥", "\n": "↵"})


class Tokenizer(ABC):
    """Abstract. `decode(encode(text))` is `normalizer.apply(text)`, except for tokenizers with unknown words.

    Examples:
        >>> class Letters(Tokenizer):
        ...     kind, normalizer, size = "letters", TextNormalizer(lower=True), 30
        ...     def encode(self, text):
        ...         return [4 + ord(letter) - ord("a") for letter in self.normalizer.apply(text)]
        ...     def decode(self, ids):
        ...         return "".join(chr(one - 4 + ord("a")) for one in self.validate_ids(ids))
        ...     def tokens(self, text):
        ...         return list(self.normalizer.apply(text))
        ...     def word_ids(self, text):
        ...         return [0] * len(text)
        ...     def to_dict(self):
        ...         return {}
        >>> Letters().decode(Letters().encode("Cat"))
        'cat'
    """

    kind: str
    normalizer: TextNormalizer
    first_ids: tuple[int, ...] = ()
    """What the ids of every text begin with, whatever it says: the tag of a language."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ids there are, with the special ones."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of the text, without BOS and EOS."""

    @abstractmethod
    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of the ids; special ids are skipped."""

    @abstractmethod
    def tokens(self, text: str) -> list[str]:
        """The tokens in readable form, one for each id."""

    @abstractmethod
    def word_ids(self, text: str) -> list[int]:
        """For each id, which word of `normalizer.apply(text).split()` it belongs to.

        A space belongs to the word after it, at the end to the last; a text of spaces alone counts as one word.
        """

    def words(self, text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The words of the text, and for each id the one that it belongs to."""
        return tuple(self.normalizer.apply(text).split()), tuple(self.word_ids(text))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What `save` writes besides the kind and the normalizer."""

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def save(self, path: str | Path) -> None:
        """A JSON file; `load_tokenizer` reads it."""
        saved = {"format": FORMAT, "kind": self.kind, "normal": asdict(self.normalizer), **self.to_dict()}
        write_text_atomic(path, json.dumps(saved, ensure_ascii=False) + "\n")

    def validate_ids(self, ids: Iterable[SupportsInt]) -> list[int]:
        """The ids as integers; an id outside the vocabulary is an error."""
        numbers = [int(one) for one in ids]
        if unknown := [one for one in numbers if not 0 <= one < self.size]:
            raise ValueError(
                f"id {unknown[0]} is not in this vocabulary of {self.size}; was it encoded by another tokenizer?"
            )
        return numbers


@dataclass(frozen=True)
class WordTokenizer(Tokenizer):
    """Tokens are the words between spaces. Words outside the vocabulary become <unk>.

    `decode` joins the words by single spaces.

    Examples:
        >>> tokenizer = WordTokenizer.train(["the cat sleeps", "the dog"])
        >>> tokenizer.encode("the dog sings"), tokenizer.tokens("the dog sings")
        ([4, 6, 3], ['the', 'dog', '<unk:sings>'])
        >>> tokenizer.decode(tokenizer.encode("the dog sings"))
        'the dog <unk>'
    """

    vocabulary: tuple[str, ...] = field(repr=False)
    normalizer: TextNormalizer = TextNormalizer()
    kind = "words"

    def __post_init__(self):
        require_distinct(self.vocabulary, "word")
        if broken := [word for word in self.vocabulary if word.split() != [word]]:
            raise ValueError(f"{broken[0]!r} cannot be a word: a word is not empty and has no spaces inside")

    @staticmethod
    def train(
        texts: Iterable[str],
        *,
        size: int | None = None,
        min_count: int = 1,
        normalizer: TextNormalizer = TextNormalizer(),
    ) -> "WordTokenizer":
        """The most frequent words, at most `size` ids with the special ones; ties in code-point order."""
        counts = Counter(word for text in require_texts(texts) for word in normalizer.apply(text).split())
        return WordTokenizer(
            most_frequent(counts, None if size is None else size - NUM_SPECIAL_TOKENS, min_count), normalizer
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: at for at, word in enumerate(self.vocabulary, NUM_SPECIAL_TOKENS)}

    @property
    def size(self):
        return NUM_SPECIAL_TOKENS + len(self.vocabulary)

    def encode(self, text):
        return [self._ids.get(word, UNK) for word in self.normalizer.apply(text).split()]

    def decode(self, ids):
        shown = [one for one in self.validate_ids(ids) if one >= UNK]
        return " ".join("<unk>" if one == UNK else self.vocabulary[one - NUM_SPECIAL_TOKENS] for one in shown)

    def tokens(self, text):
        return [word if word in self._ids else f"<unk:{word}>" for word in self.normalizer.apply(text).split()]

    def word_ids(self, text):
        return list(range(len(self.normalizer.apply(text).split())))

    def to_dict(self):
        return {"vocabulary": list(self.vocabulary)}


class LosslessTokenizer(Tokenizer):
    """Abstract: every token stands for some bytes, so any text can be encoded without loss or unknown tokens."""

    prefix = ""
    """Put before every text by `encode`, removed by `decode`."""

    @property
    @abstractmethod
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes of the ids after the special ones."""

    @property
    def size(self):
        return NUM_SPECIAL_TOKENS + len(self.pieces)

    def ids_to_bytes(self, ids: Iterable[SupportsInt]) -> list[bytes]:
        return [self.pieces[one - NUM_SPECIAL_TOKENS] for one in self.validate_ids(ids) if one >= NUM_SPECIAL_TOKENS]

    def decode(self, ids):
        # A model may generate part of a character; its output must still be shown.
        return b"".join(self.ids_to_bytes(ids)).decode("utf-8", errors="replace").removeprefix(self.prefix)

    def word_ids(self, text):
        pieces, text = self.ids_to_bytes(self.encode(text)), self.prefix + self.normalizer.apply(text)
        owners = [
            word for character, word in zip(text, word_index_per_char(text), strict=True) for _ in character.encode()
        ]
        return [owners[start] for start in start_offsets(pieces)]


@dataclass(frozen=True)
class CharTokenizer(LosslessTokenizer):
    """Tokens are characters. Characters outside the vocabulary are encoded as UTF-8 bytes, so nothing is lost.

    Examples:
        >>> tokenizer = CharTokenizer.train(["a cat"])
        >>> tokenizer.tokens("a cab"), tokenizer.decode(tokenizer.encode("a cab"))
        (['a', '␣', 'c', 'a', 'b'], 'a cab')
    """

    vocabulary: str = field(repr=False)
    normalizer: TextNormalizer = TextNormalizer()
    kind = "characters"

    def __post_init__(self):
        require_distinct(self.vocabulary, "character")

    @staticmethod
    def train(
        texts: Iterable[str],
        *,
        size: int | None = None,
        min_count: int = 1,
        normalizer: TextNormalizer = TextNormalizer(),
    ) -> "CharTokenizer":
        """The most frequent characters, besides the 256 bytes; at most `size` ids in all."""
        counts = Counter(character for text in require_texts(texts) for character in normalizer.apply(text))
        return CharTokenizer(
            "".join(most_frequent(counts, None if size is None else size - NUM_SPECIAL_TOKENS - 256, min_count)),
            normalizer,
        )

    @cached_property
    def pieces(self):  # type: ignore[override]
        return (*(bytes([one]) for one in range(256)), *(character.encode() for character in self.vocabulary))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: at for at, character in enumerate(self.vocabulary, NUM_SPECIAL_TOKENS + 256)}

    def encode(self, text):
        return [one for character in self.normalizer.apply(text) for one in self._char_ids(character)]

    def _char_ids(self, character: str) -> list[int]:
        one = self._ids.get(character)
        return [NUM_SPECIAL_TOKENS + byte for byte in character.encode()] if one is None else [one]

    def tokens(self, text):
        return [format_piece(piece) for piece in self.ids_to_bytes(self.encode(text))]

    def to_dict(self):
        return {"vocabulary": self.vocabulary}


@dataclass(frozen=True)
class ByteTokenizer(LosslessTokenizer):
    """Tokens are the bytes of UTF-8: 256 after the special ids.

    Examples:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("é!"), tokenizer.size  # two bytes and one, each + 4 special ids
        ([199, 173, 37], 260)
    """

    normalizer: TextNormalizer = TextNormalizer()
    kind = "bytes"

    @cached_property
    def pieces(self):  # type: ignore[override]
        return tuple(bytes([one]) for one in range(256))

    def encode(self, text):
        return self.encode_bytes(self.normalizer.apply(text).encode())

    def encode_bytes(self, raw: bytes) -> list[int]:
        """The ids of bytes that need not be text; they are not normalized."""
        return [NUM_SPECIAL_TOKENS + byte for byte in raw]

    def decode_bytes(self, ids: Iterable[SupportsInt]) -> bytes:
        """The exact bytes, where `decode` replaces what is not UTF-8."""
        return b"".join(self.ids_to_bytes(ids))

    def tokens(self, text):
        return [format_piece(piece) for piece in self.ids_to_bytes(self.encode(text))]

    def to_dict(self):
        return {}


# --- helpers ---


def require_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts; at least one is required."""
    if isinstance(texts, str):
        raise ValueError(f"a vocabulary is trained on many texts, not on the one string {texts[:20]!r}; pass a list")
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise ValueError("no text to train a vocabulary on: the corpus is empty")


def most_frequent(counts: Counter[str], size: int | None, min_count: int) -> tuple[str, ...]:
    if (size is not None and size < 0) or min_count < 1:
        raise ValueError(f"min_count={min_count} and the size must be positive and leave room for the special ids")
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return tuple(piece for piece in ranked if counts[piece] >= min_count)[:size]


def require_distinct(pieces: Iterable[str], what: str) -> None:
    if twice := [piece for piece, times in Counter(pieces).items() if times > 1]:
        raise ValueError(f"the {what} {twice[0]!r} occurs twice in the vocabulary")


def start_offsets(pieces: list[bytes]) -> list[int]:
    """The byte offset of each token."""
    return list(accumulate(map(len, pieces), initial=0))[:-1]


def word_index_per_char(text: str) -> list[int]:
    """For each character, which word it belongs to; see `Tokenizer.word_ids`."""
    begins = [not character.isspace() and (at == 0 or text[at - 1].isspace()) for at, character in enumerate(text)]
    started, last = list(accumulate(begins, initial=0))[1:], max(sum(begins) - 1, 0)
    return [
        min(so_far, last) if character.isspace() else so_far - 1
        for character, so_far in zip(text, started, strict=True)
    ]


def format_piece(piece: bytes) -> str:
    """A token in readable form: spaces as visible characters, an incomplete character byte by byte."""
    try:
        return piece.decode("utf-8").translate(VISIBLE_BLANKS)
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)


@dataclass(frozen=True)
class TokenizedText:
    """A text as token ids, its words, and the word that each id belongs to."""

    ids: tuple[int, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Tokenizer, text: str) -> "TokenizedText":
        if not tokenizer.normalizer.apply(text).split():
            raise ValueError("an empty text has no attention to show; give at least one word")
        return TokenizedText(tuple(tokenizer.encode(text)), *tokenizer.words(text))
