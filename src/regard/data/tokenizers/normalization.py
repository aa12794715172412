"""Normalization: Unicode forms, lower case, and Moses-style word tokenization and detokenization.

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

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, get_args

from regard.data.files import find_lone_surrogate

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
