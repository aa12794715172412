"""Texts in; a tokeniser learnt from them out."""

from collections.abc import Iterable

from regard.models.reading_config import WordsConfig
from regard.models.wordvectors import WordVectors
from regard.tasks.settings import ReadingSettings, TextSettings
from regard.text.bytewise import Bytes
from regard.text.normal import Normal
from regard.text.subwords import Subwords
from regard.text.vocabulary import SPECIALS, Characters, Tokeniser, Words


def learnt(texts: Iterable[str], settings: TextSettings | ReadingSettings, normal: Normal) -> Tokeniser:
    match settings.kind:
        case "bpe":
            return Subwords.bpe(texts, size=settings.size, normal=normal)
        case "unigram":
            return Subwords.unigram(texts, size=settings.size, normal=normal)
        case "words":
            return Words.train(texts, size=settings.size, normal=normal)
        case "bytes":
            return Bytes(normal)
        case _:
            return Characters.train(texts, normal=normal)


def widened(words: Tokeniser, more: Iterable[str], size: int) -> Words:
    """A vocabulary of words with others behind its own, up to `size` ids."""
    if not isinstance(words, Words):
        raise ValueError("vectors from a file are of whole words; set text.kind = 'words'")
    known = set(words.vocabulary)
    others = [word for word in more if word not in known and word.split() == [word]]
    return Words((*words.vocabulary, *others)[: size - SPECIALS], words.normal)


def names_of(words: Tokeniser) -> tuple[str, ...]:
    """The word of every id, if ids are words."""
    return (*[""] * SPECIALS, *words.vocabulary) if isinstance(words, Words) else ()


def reading(texts: Iterable[str], settings: ReadingSettings) -> Tokeniser:
    """For texts of one language."""
    return learnt(texts, settings, Normal(lower=settings.lower, language=settings.language or None))


def reading_with(texts: Iterable[str], settings: ReadingSettings, words: WordsConfig) -> Tokeniser:
    """The same; it knows words that have a vector from elsewhere, too."""
    own = reading(texts, settings)
    return widened(own, WordVectors.load(words.file).words, settings.size) if words.kind == "file" else own
