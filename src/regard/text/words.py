"""A sentence in; its words and punctuation, apart by single blanks, out (and back again): the published Multi30k text.

It follows the customs of the Moses tokeniser for English, German and French, without its escapes. `split` does this:

1. Every run of blanks becomes one blank; those at the ends go.
2. Every character becomes a word of its own, except letters, digits, accents, hyphens and those of 3 to 6. Accents and
   joiners stay with the character before them, so that an emoji of several parts stays whole.
3. Two or more dots in a row become a word.
4. A comma becomes a word, except between digits: 1,000.
5. An apostrophe between letters breaks the word before itself in English (dog 's, don 't), behind itself in French
   (l' homme), on both sides in German (geht ' s); English also writes 1990 's. Any other apostrophe is a word.
6. A full stop at the end of a word becomes a word, except before another word if that begins with a small letter, or
   if what ends is an abbreviation of the language, has a stop inside (U.S.), or is a number in German (3. Mai).

`join` puts the punctuation back by the same customs. What blanks there were around dashes, slashes and quotation
marks is not in the split text, so `join` guesses: it restores ordinary sentences, not all.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest

ABBREVIATIONS = {
    "en": "mr mrs ms dr prof st sr jr rev gen col lt sgt capt gov sen rep vs no nos fig vol pp art inc ltd co corp etc "
    "jan feb mar apr jun jul aug sep sept oct nov dec",
    "de": "dr prof hr fr frl nr bzw ca evtl ggf inkl usw vgl bspw str abs art bd jh mio mrd tel zzgl st "
    "jan feb mär apr jun jul aug sep sept okt nov dez",
    "fr": "m mm mme mmes mlle mlles dr pr st ste av bd etc ex fig vol chap art env tél no "
    "janv févr avr juil sept oct nov déc",
}
LANGUAGES = tuple(ABBREVIATIONS)

MARK = re.compile(r"(?:[^\w\s.,'’-]|_)")
DOTS = re.compile(r"\.{2,}")
COMMA = re.compile(r"(?<!\d),|,(?!\d)")
APOSTROPHE = re.compile(r"['’]")
JOINER = "\u200d"


def split(text: str, language: str) -> str:
    known(language)
    text = _marks_apart(" ".join(text.split()))
    text = COMMA.sub(" , ", DOTS.sub(r" \g<0> ", text))
    text = APOSTROPHE.sub(lambda found: _apostrophe(found, language), text)
    words = text.split()
    followed = zip_longest(words, words[1:], fillvalue="")
    return " ".join(part for word, after in followed for part in _stop(word, after, language))


def known(language: str) -> None:
    if language not in LANGUAGES:
        raise ValueError(f"no customs of {language!r} are known; choose from {', '.join(LANGUAGES)}")


def _marks_apart(text: str) -> str:
    apart, end = [], 0
    for found in MARK.finditer(text):
        if found.start() < end or clings(found[0]):
            continue
        stop = found.end()
        while stop < len(text) and (clings(text[stop]) or (text[stop - 1] == JOINER and not text[stop].isspace())):
            stop += 1
        apart += [text[end : found.start()], " ", text[found.start() : stop], " "]
        end = stop
    return "".join([*apart, text[end:]])


def clings(character: str) -> bool:
    """Accents, variation selectors, skin tones, joiners: nothing on their own."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf", "Sk") and character not in "^`¨´¯¸"


def _apostrophe(found: re.Match[str], language: str) -> str:
    sign, before, after = found[0], found.string[: found.start()][-1:], found.string[found.end() :][:1]
    if before.isalpha() and after.isalpha():
        return {"en": f" {sign}", "fr": f"{sign} ", "de": f" {sign} "}[language]
    return f" {sign}" if language == "en" and before.isdigit() and after == "s" else f" {sign} "


def _stop(word: str, after: str, language: str) -> list[str]:
    stem = word[:-1]
    if not word.endswith(".") or not stem.strip("."):
        return [word]
    short = stem.lower() in ABBREVIATIONS[language].split() or ("." in stem and any(c.isalpha() for c in stem))
    ordinal = language == "de" and stem.isdigit()
    initial = len(stem) == 1 and stem.isupper()
    return [word] if after and (after[0].islower() or short or ordinal or initial) else [stem, "."]


# --- and back ---

CLOSING = frozenset(".,…)]}°”’›")
HALTS = frozenset(";:!?")  # French writes a blank before them
OPENING = frozenset("([{¿¡#$£„‚‹")
BOTH = frozenset("/_@")
QUOTES = frozenset("\"'`")


def join(text: str, language: str) -> str:
    known(language)
    joined, glued = [], True
    for word, left, right in _attached(text.split(), language):
        joined += [word] if left or glued else [" ", word]
        glued = right
    return "".join(joined)


def _attached(words: list[str], language: str) -> Iterator[tuple[str, bool, bool]]:
    """Each word, and whether it clings to the one before and to the one behind."""
    opened: set[str] = set()
    customs = {"en": HALTS | {"%"}, "de": HALTS, "fr": frozenset()}[language]
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
        elif word in CLOSING or word in customs or DOTS.fullmatch(word):
            yield word, True, False
        else:
            apostrophe = len(word) > 1 and language != "de"
            starts, ends = word[0] in "'’", word[-1] in "'’"
            yield word, apostrophe and starts and language == "en", word in OPENING or (apostrophe and ends)
