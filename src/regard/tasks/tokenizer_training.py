"""Tokeniser training: builds the tokeniser that the settings ask for from texts."""

from collections.abc import Iterable

from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, ByteTokenizer, CharTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.models.config import WordEmbeddingConfig
from regard.models.word_vectors import WordVectors
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
