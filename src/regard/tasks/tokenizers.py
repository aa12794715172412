"""Tokenisers of tasks: trains the one that the settings ask for, and labels tokens and words."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from regard.data import ByteTokenizer, CharTokenizer, SubwordTokenizer, TextNormalizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, SPECIAL_LABELS, LosslessTokenizer, format_piece
from regard.models.baselines import WordVectors
from regard.models.config import WordEmbeddingConfig
from regard.tasks.config import PairTokenizerSettings, TokenizerSettings


def train_tokenizer(
    texts: Iterable[str], settings: PairTokenizerSettings | TokenizerSettings, normal: TextNormalizer
) -> Tokenizer:
    match settings.kind:
        case "bpe":
            return SubwordTokenizer.bpe(texts, size=settings.vocab_size, normalizer=normal)
        case "unigram":
            return SubwordTokenizer.unigram(texts, size=settings.vocab_size, normalizer=normal)
        case "words":
            return WordTokenizer.train(texts, size=settings.vocab_size, normalizer=normal)
        case "bytes":
            return ByteTokenizer(normal)
        case "pretrained":
            raise ValueError(
                "text.kind = 'pretrained' is the tokenizer of a model imported from elsewhere; train on from its run "
                "(--start), or choose another kind"
            )
        case _:
            return CharTokenizer.train(texts, normalizer=normal)


def extend_vocabulary(words: Tokenizer, more: Iterable[str], size: int) -> WordTokenizer:
    """A vocabulary of words with others behind its own, up to `size` ids."""
    if not isinstance(words, WordTokenizer):
        raise ValueError("vectors from a file are of whole words; set text.kind = 'words'")
    known = set(words.vocabulary)
    others = [word for word in more if word not in known and word.split() == [word]]
    return WordTokenizer((*words.vocabulary, *others)[: size - NUM_SPECIAL_TOKENS], words.normalizer)


def token_strings(words: Tokenizer) -> tuple[str, ...]:
    """The word of every id, if ids are words."""
    return (*[""] * NUM_SPECIAL_TOKENS, *words.vocabulary) if isinstance(words, WordTokenizer) else ()


def train_text_tokenizer(texts: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
    """For texts of one language."""
    return train_tokenizer(
        texts, settings, TextNormalizer(lower=settings.lowercase, language=settings.language or None)
    )


def train_tokenizer_with_vectors(
    texts: Iterable[str], settings: TokenizerSettings, words: WordEmbeddingConfig
) -> Tokenizer:
    """The same; it knows words that have a vector from elsewhere, too."""
    own = train_text_tokenizer(texts, settings)
    return (
        extend_vocabulary(own, WordVectors.load(words.file).words, settings.vocab_size) if words.kind == "file" else own
    )


# --- labels of tokens ---


FREQUENT_IDS = 1000  # ids from which the words of an example are taken: vocabularies are sorted by frequency


def token_label(tokenizer: Tokenizer, one: int) -> str:
    """A token by itself, its spaces made visible."""
    if one < NUM_SPECIAL_TOKENS:
        return SPECIAL_LABELS[one]
    return (
        format_piece(tokenizer.pieces[one - NUM_SPECIAL_TOKENS])
        if isinstance(tokenizer, LosslessTokenizer)
        else tokenizer.decode([one])
    )


def token_id(tokenizer: Tokenizer, token: int | str) -> int:
    """A token by its number or its name."""
    if isinstance(token, str):
        # of a character and a byte that look the same, the character, as `encode` would
        names = {token_label(tokenizer, one): one for one in range(tokenizer.size)} | {
            SPECIAL_LABELS[one]: one for one in SPECIAL_LABELS
        }
        if token in names:
            return names[token]
        raise ValueError(f"there is no token {token!r:.80} in the vocabulary of {tokenizer.size}")
    return tokenizer.validate_ids([token])[0]


@runtime_checkable
class GroupsWords(Protocol):
    """A tokenizer that knows by itself which ids make a word."""

    def group(self, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]: ...


def group_into_words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words that ids spell, and the word of each: also of ids that no tokenizer would give for that text.

    A space belongs to the word after it.
    """
    if isinstance(tokenizer, GroupsWords):
        return tokenizer.group(ids)
    if not isinstance(tokenizer, LosslessTokenizer):
        return tuple(token_label(tokenizer, one) for one in ids), tuple(range(len(ids)))
    word_ids: list[int] = []
    spelt: list[bytes] = []
    for one in ids:
        piece = b"" if one < NUM_SPECIAL_TOKENS else tokenizer.pieces[one - NUM_SPECIAL_TOKENS]
        if not spelt or (piece[:1].isspace() and spelt[-1].strip()):
            spelt.append(b"")
        spelt[-1] += piece
        word_ids.append(len(spelt) - 1)
    return tuple(word.strip().decode(errors="replace") for word in spelt), tuple(word_ids)


def frequent_words(tokenizer: Tokenizer, count: int = 6) -> str:
    """Some of the most frequent words of the vocabulary; "" if it has none."""
    ids = range(NUM_SPECIAL_TOKENS, min(tokenizer.size, FREQUENT_IDS))
    known = dict.fromkeys(word for id in ids if (word := tokenizer.decode([id]).strip()).isalpha())
    longer = [word for word in known if len(word) > 1] or list(known)  # a character vocabulary has letters only
    return " ".join(longer[:count])
