"""Texts in; a tokeniser learnt from them out."""

from collections.abc import Iterable

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


def reading(texts: Iterable[str], settings: ReadingSettings) -> Tokeniser:
    """For texts of one language."""
    return learnt(texts, settings, Normal(lower=settings.lower, language=settings.language or None))
