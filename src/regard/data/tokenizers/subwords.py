"""Subword tokenizers: byte-level BPE and unigram models of the `tokenizers` library; hashed n-grams; loading of any.

The library's ids are shifted by four, and it knows no special tokens, so no sentence can contain one. A space before
the text encodes its first word as any other; `decode` removes it.

For bag-of-n-grams models an n-gram has no entry in a vocabulary: its id is a hash bucket of its words' ids. N-grams may
collide, which costs little while there are many more buckets than n-grams.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers, trainers

from regard.data.files import require_small_file
from regard.data.tokenizers.base import (
    FORMAT,
    NUM_SPECIAL_TOKENS,
    ByteTokenizer,
    CharTokenizer,
    LosslessTokenizer,
    TextNormalizer,
    Tokenizer,
    WordTokenizer,
    format_piece,
    require_texts,
    start_offsets,
)
from regard.data.tokenizers.pretrained import PretrainedTokenizer, split_language_code
from regard.world.splitmix import GOLDEN_GAMMA, mix64_all

# Pre-tokens, which no piece spans: letters with their accents, digits, and signs, each with the one space before it.
PRETOKENIZE_PATTERN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def unicode_to_byte() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: a printable character for each byte."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


UNICODE_TO_BYTE = unicode_to_byte()


@dataclass(frozen=True)
class SubwordTokenizer(LosslessTokenizer):
    """Trained by `SubwordTokenizer.bpe` or `.unigram`. For a joint vocabulary, train on both sides.

    Examples:
        >>> tokenizer = SubwordTokenizer.bpe(["low lower lowest", "new newer newest"] * 4, size=300)
        >>> tokenizer.tokens("lower newest"), tokenizer.size
        (['lower', 'newest'], 274)
        >>> tokenizer.decode(tokenizer.encode("slow ☃"))
        'slow ☃'
    """

    model: str = field(repr=False)
    """The JSON of the `tokenizers` library."""
    normalizer: TextNormalizer = TextNormalizer()
    tags: tuple[str, ...] = ()
    """Tokens of their own at the beginning of a text: target languages, such as >>fr<<."""
    kind = "subwords"
    prefix = " "

    def __post_init__(self):
        assert self.pieces  # computed now, so that a damaged model is an error here

    @staticmethod
    def bpe(
        texts: Iterable[str], *, size: int = 10_000, min_count: int = 2, normalizer: TextNormalizer = TextNormalizer()
    ) -> "SubwordTokenizer":
        """Byte-pair encoding: the most frequent pair becomes one piece, until there are `size` ids in all."""
        trainer = trainers.BpeTrainer(
            vocab_size=piece_budget(size),
            min_frequency=min_count,
            initial_alphabet=list(UNICODE_TO_BYTE),
            show_progress=False,
        )
        engine = build_engine(models.BPE())
        engine.train_from_iterator(_normalized_texts(texts, normalizer), trainer)
        return SubwordTokenizer(canonical_json(engine.to_str()), normalizer)

    @staticmethod
    def unigram(
        texts: Iterable[str], *, size: int = 10_000, normalizer: TextNormalizer = TextNormalizer()
    ) -> "SubwordTokenizer":
        """Unigram language model: the pieces that make the texts most probable; `size` ids in all."""
        trainer = trainers.UnigramTrainer(
            vocab_size=piece_budget(size), initial_alphabet=list(UNICODE_TO_BYTE), show_progress=False
        )
        engine = build_engine(models.Unigram())
        engine.train_from_iterator(_normalized_texts(texts, normalizer), trainer)
        pruned = models.Unigram(prune_pieces(json.loads(engine.to_str())["model"]["vocab"], piece_budget(size)))
        return SubwordTokenizer(canonical_json(build_engine(pruned).to_str()), normalizer)

    def with_normalizer(self, normalizer: TextNormalizer) -> "SubwordTokenizer":
        """The same pieces with another normalizer: the other language of a joint vocabulary."""
        return replace(self, normalizer=normalizer)

    def with_tags(self, tags: Iterable[str]) -> "SubwordTokenizer":
        """The same pieces, and these tags behind them.

        Examples:
            >>> tokenizer = SubwordTokenizer.bpe(["low lower lowest"] * 4, size=270).with_tags([">>fr<<", ">>de<<"])
            >>> tokenizer.tokens(">>de<< low"), tokenizer.encode(">>de<< low")[0] == tokenizer.size - 1
            (['>>de<<', 'low'], True)
        """
        return replace(self, tags=tuple(tags))

    @cached_property
    def _engine(self) -> library.Tokenizer:
        # Before the library reads it: some settings would make it panic.
        settings = model_settings(self.model)
        references = [model_settings(build_engine(model).to_str()) for model in reference_models()]
        if settings not in references:
            strange = [name for name, value in settings.items() if all(one.get(name) != value for one in references)]
            raise ValueError(f"the subword model is damaged or foreign: {', '.join(strange) or 'a part is missing'}")
        try:
            return library.Tokenizer.from_str(self.model)
        except Exception as error:  # the library raises no narrower kind
            raise ValueError(f"the subword model is damaged: {error}") from None

    @cached_property
    def pieces(self):  # type: ignore[override]
        vocabulary = self._engine.get_vocab()
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError("the subword model is damaged: its ids have gaps")
        if missing := [byte for sign, byte in UNICODE_TO_BYTE.items() if sign not in vocabulary]:
            raise ValueError(f"the subword model is damaged: it has no piece for the byte 0x{missing[0]:02X}")
        strange = set("".join(vocabulary)) - UNICODE_TO_BYTE.keys()
        if foreign := [piece for piece in vocabulary if not piece or (strange and strange & set(piece))]:
            raise ValueError(f"the subword model is foreign: {foreign[0]!r} is not made of bytes")
        as_latin = str.maketrans({sign: chr(byte) for sign, byte in UNICODE_TO_BYTE.items()})
        ordered = sorted(vocabulary, key=vocabulary.__getitem__)
        learnt = (piece.translate(as_latin).encode("latin-1") for piece in ordered)
        return (*learnt, *(tag.encode() for tag in self.tags))

    def split_tag(self, text: str) -> tuple[list[int], str]:
        """The id of the tag that a text begins with, if there is one, and what follows it."""
        tag, rest = split_language_code(text)
        return ([self.size - len(self.tags) + self.tags.index(tag)], rest.lstrip()) if tag in self.tags else ([], text)

    def encode(self, text):
        tag, text = self.split_tag(text)
        text = self.normalizer.apply(text)
        return tag + ([NUM_SPECIAL_TOKENS + one for one in self._engine.encode(self.prefix + text).ids] if text else [])

    def encode_batch(self, texts):
        parts = [self.split_tag(text) for text in texts]
        normalized = [self.normalizer.apply(text) for _, text in parts]
        encodings = self._engine.encode_batch_fast([self.prefix + text for text in normalized])
        return [
            tag + ([NUM_SPECIAL_TOKENS + one for one in encoding.ids] if text else [])
            for (tag, _), text, encoding in zip(parts, normalized, encodings, strict=True)
        ]

    def words(self, text):
        tag, text = self.split_tag(text)
        words, word_ids = super().words(text)
        return (*(self.tags[one - self.size] for one in tag), *words), (
            *(0 for _ in tag),
            *(len(tag) + n for n in word_ids),
        )

    def word_ids(self, text):
        tag, text = self.split_tag(text)
        return [*(0 for _ in tag), *(len(tag) + word for word in super().word_ids(text))]

    def tokens(self, text):
        """A piece that continues a word begins with a middle dot: "light", "·ness"."""
        tag, text = self.split_tag(text)
        return [*(self.tags[one - self.size] for one in tag), *self._tokens(text)]

    def _tokens(self, text: str) -> list[str]:
        pieces, text = self.ids_to_bytes(self.encode(text)), self.prefix + self.normalizer.apply(text)
        inside = [not character.isspace() for character in text for _ in character.encode()]
        continues = [start > 0 and inside[start] and inside[start - 1] for start in start_offsets(pieces)]
        shown = [format_piece(piece.removeprefix(b" ") or piece) for piece in pieces]
        return [f"·{piece}" if more else piece for piece, more in zip(shown, continues, strict=True)]

    def to_dict(self):
        return {"model": json.loads(self.model), **({"tags": list(self.tags)} if self.tags else {})}


# --- models of the library ---


def build_engine(model: models.Model) -> library.Tokenizer:
    engine = library.Tokenizer(model)
    cuts = pre_tokenizers.Split(Regex(PRETOKENIZE_PATTERN), "isolated")
    into_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([cuts, into_bytes])
    return engine


def reference_models() -> list[models.Model]:
    """One of each kind that Regard trains."""
    return [models.BPE(), models.Unigram([("a", 0.0)])]


def model_settings(model: str) -> dict[str, Any]:
    """All of a model but what it learnt. Other settings would lose text or make the encoding random."""
    saved = json.loads(model)
    if not isinstance(saved, dict) or not isinstance(saved.get("model"), dict):
        raise ValueError("the subword model is damaged: it is not an object with a model inside")
    inner = {name: value for name, value in saved["model"].items() if name not in ("vocab", "merges")}
    return {**saved, "model": None, **inner}


def canonical_json(model: str) -> str:
    """The same text for the same model, whether just trained or read from a file."""
    return write_canonical(json.loads(model))


def write_canonical(model: Any) -> str:
    return json.dumps(model, ensure_ascii=False, separators=(",", ":"))


def piece_budget(size: int) -> int:
    """The number of pieces for `size` ids; every byte must have one."""
    if size < NUM_SPECIAL_TOKENS + len(UNICODE_TO_BYTE):
        raise ValueError(
            f"size={size} is too small: {NUM_SPECIAL_TOKENS} special ids and {len(UNICODE_TO_BYTE)} bytes are always "
            "in it"
        )
    return size - NUM_SPECIAL_TOKENS


def prune_pieces(scored: list[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    """At most so many pieces in a reproducible order, with reproducible scores.

    The library sums in an order that changes from run to run, which shows in the last digits, and gives rare bytes the
    lowest scores in a random order, in steps of 0.0001. So scores are rounded, and rare bytes all get the lowest.
    """
    lowest = min(score for _, score in scored)
    rare = lowest + 0.0001 * len(UNICODE_TO_BYTE)
    level = [
        (piece, round(lowest if piece in UNICODE_TO_BYTE and score <= rare else score, 4)) for piece, score in scored
    ]
    ranked = sorted(level, key=lambda one: (one[0] not in UNICODE_TO_BYTE, -one[1], one[0]))[:most]
    return sorted(ranked, key=lambda one: (-one[1], one[0]))


def _normalized_texts(texts: Iterable[str], normalizer: TextNormalizer) -> Iterator[str]:
    return (SubwordTokenizer.prefix + normalizer.apply(text) for text in require_texts(texts))


# --- saved tokenizers, of every kind ---


KINDS = tuple(one.kind for one in (WordTokenizer, CharTokenizer, SubwordTokenizer, ByteTokenizer, PretrainedTokenizer))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer that a file holds, whichever its kind.

    Examples:
        >>> WordTokenizer.train(["the cat sleeps"]).save("words.json")
        >>> load_tokenizer("words.json").tokens("the cat")
        ['the', 'cat']
    """
    path = require_small_file(path)
    try:
        saved = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no tokenizer at all ({error}); save it again") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        file_format = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise ValueError(f"{path}: not a tokenizer of this Regard: its format is {file_format!r}, not {FORMAT!r}")
    try:
        return _tokenizer(saved)
    except (ValueError, TypeError, KeyError) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: damaged: {reason}; save it again") from None


def _tokenizer(saved: dict[str, Any]) -> Tokenizer:
    normalizer = TextNormalizer(**saved["normal"])
    match saved["kind"]:
        case "words":
            return WordTokenizer(tuple(_texts(saved["vocabulary"], list)), normalizer)
        case "characters":
            return CharTokenizer("".join(_texts(saved["vocabulary"], str)), normalizer)
        case "subwords":
            tags = tuple(_texts(saved.get("tags", []), list))
            return SubwordTokenizer(write_canonical(saved["model"]), normalizer, tags)
        case "bytes":
            return ByteTokenizer(normalizer)
        case "pretrained":
            return PretrainedTokenizer.from_dict(saved, normalizer)
    raise ValueError(f"the kind {saved['kind']!r} is none of {', '.join(KINDS)}")


def _texts(vocabulary: Any, wanted: type) -> Any:
    if not isinstance(vocabulary, wanted) or not all(isinstance(piece, str) for piece in vocabulary):
        raise ValueError(f"the vocabulary is no {'list of texts' if wanted is list else 'text'}")
    return vocabulary


# --- n-grams of words ---


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ngrams:
    """The words and hashed n-grams of a text.

    Args:
        words: the size of the vocabulary.
        longest: 1 is words alone, 2 adds bigrams, 3 adds trigrams.
        buckets: ids for all longer n-grams, after those of the words.
    """

    words: int
    longest: int = 1
    buckets: int = 2**18

    def __post_init__(self):
        for name in ("words", "longest", "buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")

    @property
    def size(self) -> int:
        """How many ids there are."""
        return self.words if self.longest == 1 else self.words + self.buckets

    def terms(self, ids: Sequence[int]) -> Ids:
        """First the words, then the bigrams, then the trigrams, each from left to right."""
        words = np.asarray(ids, dtype=np.uint64)
        ids_by_length, mixed = [words], words
        for length in range(2, min(self.longest, len(words)) + 1):
            mixed = mix64_all(mixed[:-1] ^ (words[length - 1 :] * np.uint64(GOLDEN_GAMMA)))
            ids_by_length.append(mixed % np.uint64(self.buckets) + np.uint64(self.words))
        return np.concatenate(ids_by_length).astype(np.int64)

    def word_indices(self, words: int) -> list[range]:
        """For each n-gram of a text of so many words, the indices of its words."""
        return [
            range(start, start + length)
            for length in range(1, min(self.longest, words) + 1)
            for start in range(words - length + 1)
        ]
