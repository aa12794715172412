"""Document translation: sentences of a document translated in batches; what must survive is checked, or kept out of it.

A sentence is translated as a whole. Where a number, a URL, code or a mark is then missing, the first of the n best
translations that has all of them is taken; failing that, that of the sentence with a number in place of what was
missing; failing that, the sentence is translated in pieces, around what was missing. So these survive whatever the
model writes, and all of a document's sentences share batches.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from regard.data.documents import (
    ACRONYM,
    DOCUMENT_FORMATS,
    DocumentFormat,
    LineBreak,
    Markup,
    Prose,
    Protected,
    clause_spans,
    cuts_between,
    is_punctuation,
    write_spans,
)
from regard.data.files import chunks
from regard.data.tokenizers.base import UNK, LosslessTokenizer, Tokenizer
from regard.decode.alignment import align_pair, argmax_links_or_null
from regard.decode.beam import Beam
from regard.decode.search import Search
from regard.decode.translation import translate_lines
from regard.models.config import RNN_KINDS
from regard.models.seq2seq import DecodableModel

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

T = TypeVar("T")
Span = tuple[int, int]
AlignedWord = tuple[Span, Span | None]  # where a word of the translation stands, and the source word it is linked to
WordLinks = tuple[Sequence[str], Sequence[str], Set[tuple[int, int]]]
Candidate = tuple[str, float]  # a translation and its score
Work = Generator[list["Ask"], Sequence[Sequence[Candidate]], T]  # asks, is sent translations, and returns its result

WINDOW = 20_000  # sentences and what is between them that share batches


def know_all(text: str) -> bool:
    return True


def know_none(text: str) -> bool:
    return False


def count_one(word: str) -> int:
    return 1


@dataclass(frozen=True)
class Ask:
    """A text to translate, and how many translations of it are wanted, best first."""

    text: str
    best: int = 1


@dataclass(frozen=True)
class SentenceTranslator:
    """What a document needs of a translator.

    Args:
        translate: the translations of some sentences.
        fits: whether a sentence is short enough for the model.
        knows: whether the model can read a word; one that it cannot is copied.
        is_common: whether the vocabulary has a word as one piece; upper case is an abbreviation where it has not.
        pieces: as how many pieces the vocabulary has a word; of two ways to write it, a text has the one with fewer.
        align: the words of a translation and the source words they are linked to; without it, a sentence with marks
            inside is translated in pieces.
        n_best: of each text so many translations with their scores, the best first; without it there is one of each,
            and a text is asked for as it stands.
        most: how many of them there are to choose from.
        source: the language to translate from; its abbreviations end no sentence.
        target: the language to translate into.
        report: called with the words that are copied.

    Examples:
        >>> shout = SentenceTranslator(lambda texts: [text.upper() for text in texts])
        >>> translate_document("See `x`, *all* of it, or https://a.org/b. Bye.", shout, "markdown")
        'SEE `x`, *ALL* OF IT, OR https://a.org/b. BYE.'
    """

    translate: Callable[[Sequence[str]], Sequence[str]]
    fits: Callable[[str], bool] = know_all
    knows: Callable[[str], bool] = know_all
    is_common: Callable[[str], bool] = know_none
    pieces: Callable[[str], int] = count_one
    align: Callable[[str, str], Sequence[AlignedWord] | None] | None = None
    n_best: Callable[[Sequence[str], int], Sequence[Sequence[Candidate]]] | None = None
    most: int = 1
    source: str = "en"
    target: str = ""
    report: Callable[[str], object] = know_all

    def answer(self, asked: Sequence[Ask]) -> list[Sequence[Candidate]]:
        """The translations that are asked for; those of which as many are wanted share batches."""
        if self.n_best is None:
            return [[(text, 0.0)] for text in self.translate([one.text for one in asked])]
        found = dict[Ask, Sequence[Candidate]]()
        for best in sorted({one.best for one in asked}):
            some = [one for one in asked if one.best == best]
            found |= zip(some, self.n_best([one.text for one in some], best), strict=True)
        return [found[one] for one in asked]


def translate_document(text: str, by: SentenceTranslator, format: str = "text") -> str:
    r"""The document in the other language, its lines, paragraphs and markup as they were.

    Args:
        format: text, markdown, srt or html.

    Examples:
        >>> swap = SentenceTranslator(lambda texts: [" ".join(text.split()[::-1]) for text in texts])
        >>> translate_document("one two\n\n- three four\n", swap)
        'two one\n\n- four three\n'
    """
    return "".join(translate_windows(text, by, format))


def translate_windows(text: str, by: SentenceTranslator, format: str) -> Iterator[str]:
    """The same, so many parts at a time."""
    known = find_format(format)
    for parts in chunks(sentence_parts(text, known, by.source), WINDOW, len_of_part):
        yield "".join(run_work(ask_once(SentenceWork(by, known.escape).translate_parts(parts)), by.answer))


def translate_documents(texts: Sequence[str], by: SentenceTranslator, format: str = "text") -> list[str]:
    """Several documents in the same batches.

    Examples:
        >>> loud = SentenceTranslator(lambda texts: [f"{text}!" for text in texts])
        >>> translate_documents(["one", "<b>two</b>"], loud, "html")
        ['one!', '<b>two!</b>']
    """
    return run_work(documents_work(texts, by, format), by.answer)


def documents_work(texts: Sequence[str], by: SentenceTranslator, format: str) -> Work[list[str]]:
    """The same for who translates what it asks for in a way of their own."""
    known = find_format(format)
    documents = [list(sentence_parts(text, known, by.source)) for text in texts]
    work = SentenceWork(by, known.escape).translate_parts([part for parts in documents for part in parts])
    found = iter((yield from ask_once(work)))
    return ["".join(islice(found, len(parts))) for parts in documents]


def find_format(name: str) -> DocumentFormat:
    if name not in DOCUMENT_FORMATS:
        raise ValueError(f"no document format is called {name!r}; choose from {', '.join(DOCUMENT_FORMATS)}")
    return DOCUMENT_FORMATS[name]


def sentence_parts(text: str, format: DocumentFormat, language: str) -> Iterator[str | Prose]:
    """What is copied, and sentence by sentence what is translated."""
    for part in format.parse(text):
        yield from [part] if isinstance(part, str) else part.sentences(language)


def len_of_part(part: str | Prose) -> int:
    return len(part if isinstance(part, str) else part.text)


# --- sentences that wait for each other's batch ---


def ask_once(work: Work[T]) -> Work[T]:
    """The same work; a text that it asks for twice is asked for once."""
    asked, found = advance_work(work, None)
    while asked is not None:
        once = list(dict.fromkeys(asked))
        answers = dict(zip(once, (yield once), strict=True))
        asked, found = advance_work(work, [answers[one] for one in asked])
    return found  # type: ignore[return-value]  (there is one where nothing is asked for)


def advance_work(work: Work[T], answers: Sequence[Sequence[Candidate]] | None) -> tuple[list[Ask] | None, T | None]:
    """What it asks for next, given the translations of what it asked for, None at first; or None and its result."""
    try:
        return work.send(answers), None  # type: ignore[arg-type]
    except StopIteration as end:
        return None, end.value


def run_work(work: Work[T], answer: Callable[[Sequence[Ask]], Sequence[Sequence[Candidate]]]) -> T:
    """The result."""
    asked, found = advance_work(work, None)
    while asked is not None:
        asked, found = advance_work(work, answer(asked))
    return found  # type: ignore[return-value]


@dataclass(frozen=True)
class SentenceWork:
    """The translation of sentences, or of pieces of one.

    Args:
        escape: how the document writes a text, given what it is a translation of.
        piece: whether these are pieces of one sentence.
        shouted: whether that is upper case throughout.
    """

    by: SentenceTranslator
    escape: Callable[[str, str], str]
    piece: bool = False
    shouted: bool = False

    def translate_parts(self, parts: Sequence[str | Prose]) -> Work[list[str]]:
        """The parts, prose translated; in each round all ask together."""
        works = {n: self.translate(part) for n, part in enumerate(parts) if isinstance(part, Prose)}
        results, asked = dict[int, str](), dict[int, list[Ask]]()

        def advance(n: int, answers: Sequence[Sequence[Candidate]] | None) -> None:
            try:
                asked[n] = next(works[n]) if answers is None else works[n].send(answers)
            except StopIteration as end:
                results[n] = end.value

        for n in works:
            advance(n, None)
        while asked:
            waiting, asked = asked, {}
            answers = iter((yield [one for some in waiting.values() for one in some]))
            for n, some in waiting.items():
                advance(n, [next(answers) for _ in some])
        return [part if isinstance(part, str) else results[n] for n, part in enumerate(parts)]

    def translate_pieces(self, parts: Sequence[str | Prose], *, shouted: bool) -> Work[str]:
        """The pieces of one sentence, each by itself."""
        return "".join((yield from replace(self, piece=True, shouted=shouted).translate_parts(parts)))

    def translate(self, prose: Prose) -> Work[str]:
        """One sentence or piece; in pieces if it is too long, or if something of it is missing in its translation."""
        prose = set_apart_emoji(drop_invisible(prose))
        if edges := loose_edges(prose, self.by, shouted=self.shouted):
            return "".join((yield from self.translate_parts(prose.cut(edges))))
        prose = protect(prose, [match.span() for match in LITERAL.finditer(prose.text)])
        shouted = self.shouted or is_shouted(outside_protected(prose), self.by)

        def knows(word: str) -> bool:
            return (shouted and self.by.knows(word.lower())) or self.by.knows(word)

        unknown = unknown_spans(prose, knows)
        for start, end in unknown:
            self.by.report(prose.text[start:end])
        prose = protect(prose, unknown)
        if not has_words(prose):
            return localize_numbers(prose, self.by).raw
        if self.piece and (edges := loose_punctuation(prose)):
            return (yield from self.translate_pieces(prose.cut(edges), shouted=shouted))
        closed = [(one.start, one.end) for one in (*prose.markup, *prose.protected)]
        clauses = clause_spans(prose.text, self.by.fits, closed)
        if len(clauses) > 1:
            gaps = [(end, start) for (_, end), (start, _) in pairwise(clauses)]
            return (yield from self.translate_pieces(prose.cut(gaps), shouted=shouted))
        if not self.by.fits(prose.text):  # a word, or the text of a mark
            parts = prose.cut([(one.start, one.end) for one in prose.protected], prose.markup)
            return (yield from self.translate_pieces(parts, shouted=shouted)) if len(parts) > 1 else prose.raw
        found = yield from self.find_whole(prose, shouted=shouted)
        if isinstance(found, Missing):
            parts = localize_numbers(prose, self.by).cut(found.spans, found.markup)
            return (yield from self.translate_pieces(parts, shouted=shouted)) if len(parts) > 1 else prose.raw
        return found

    def find_whole(self, prose: Prose, *, shouted: bool) -> Work["str | Missing"]:
        """The translation of a sentence that has all of it, or what is missing in the best one."""
        asked = lower_shouted(prose, self.by) if shouted else prose.text
        forms = [asked] if self.by.n_best is None else list(dict.fromkeys(sentence_forms(asked, self.by)))
        answers = yield [Ask(form) for form in forms]
        pairs = [(form, *one) for form, some in zip(forms, answers, strict=True) for one in some[:1]]
        pairs.sort(key=lambda pair: -pair[2])  # a sort is stable: of equals the text as it stands
        missing = Missing()
        unbalanced = ""  # the best one in which quotation marks or brackets do not match
        for number, (form, found, _) in enumerate(pairs):
            written = self.write_whole(prose, asked, form, found, shouted=shouted)
            if isinstance(written, str):
                if not is_unbalanced(prose.text, found) or self.by.most == 1:
                    return written
                unbalanced = written
                break
            missing = missing if number else written
        if self.by.most > 1:
            form = pairs[0][0]
            (others,) = yield [Ask(form, self.by.most)]
            for found, _ in others[1:]:
                written = self.write_whole(prose, asked, form, found, shouted=shouted)
                if isinstance(written, str):
                    if not is_unbalanced(prose.text, found):
                        return written
                    unbalanced = unbalanced or written
            if unbalanced:
                return unbalanced
            if missing.spans and (masked := mask(localize_numbers(prose, self.by), missing.spans, asked)):
                return (yield from self.find_masked(masked, missing, shouted=shouted))
        return missing

    def find_masked(self, prose: Prose, missing: "Missing", *, shouted: bool) -> Work["str | Missing"]:
        """The translation of a sentence that has numbers in place of what is missing, or that again."""
        asked = lower_shouted(prose, self.by) if shouted else prose.text
        form = sentence_form(asked, self.by)
        (others,) = yield [Ask(form, self.by.most)]
        for found, _ in others:
            if any(found.count(year) != asked.count(year) for year in MASKS):
                continue  # one more or less, in place of nothing
            written = self.write_whole(prose, asked, form, found, shouted=shouted)
            if isinstance(written, str):
                return written
        return missing

    def write_whole(self, prose: Prose, asked: str, form: str, found: str, *, shouted: bool) -> "str | Missing":
        """A translation as the document writes it; what of the sentence it does not have."""
        found = " ".join(found.split())
        if self.by.n_best is not None:
            found = undo_form(asked, form, found, self.by.target)
        if not found:
            return prose.raw
        if self.piece:
            found = match_ends(prose.text, found, self.by.target)
        found = typography(found, prose, self.by.target)
        restored = restore(prose, asked, found, self.by)
        if isinstance(restored, Missing):
            return restored

        def write(text: str) -> str:
            return self.escape(text.upper() if shouted else text, prose.text)

        return write_spans(found, restored.kept, restored.markup, write)


# --- what must survive ---

EMOJI = "[\U0001f000-\U0001faff\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff©®™]"
FILE_ENDINGS = (
    "txt md rst toml json ya?ml xml html? css js ts py ipynb java cpp rs go sh bat exe dll pdf docx? xlsx? pptx? odt "
    "csv tsv srt vtt png jpe?g gif svg webp mp3 mp4 wav avi mkv zip tar gz xz ini cfg conf log db sql tex bib "
    "safetensors"
)
LITERAL = re.compile(
    r"(?i:https?|ftp)://[^\s<>\"`]*[^\s<>\"`.,;:!?)\]}'’”»]"
    r"|(?<![\w@.])(?i:www)\.[^\s<>\"`]*[^\s<>\"`.,;:!?)\]}'’”»]"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.-])(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|eu|de|fr|uk|ch|at|be|ca)\b(?:/[^\s<>\"`]*[\w/])?"
    r"|</?[a-zA-Z][^<>]*>|\$\{[^{}\s]+\}|\{\{[^{}]+\}\}|\{[\w.:]*\}|%\(\w+\)[sdif]|%[sdif]\b"
    r"|(?<!\w)(?:[@#]\w+)+|(?<![\w/])(?:~|\.{1,2})?/[\w.-]+(?:/[\w.-]+)+/?|(?<!\w)[A-Za-z]:\\[^\s<>\"]+"
    r"|\b\w+\(\)|\b[^\W_]+(?:_[^\W_]+)+\b"
    rf"|(?<![\w./@-])[\w-]+(?:\.[\w-]+)*\.(?:{'|'.join(FILE_ENDINGS.split())})\b(?![\w(])"
    # A-4471/B, F-16, DE89, but neither 5PM nor 21ST
    r"|(?<![\w.,/-])(?=[A-Z\d/-]*[A-Z])(?=[A-Z\d/-]*\d)(?!\d+(?:AM|PM|ST|ND|RD|TH|S)\b)[A-Z\d]+(?:[-/][A-Z\d]+)*(?![\w-])"
    rf"|{EMOJI}(?:{EMOJI}|[\u200d\ufe0f\U000e0020-\U000e007f])*"
)
EMOJI_RUN = rf"{EMOJI}(?:{EMOJI}|[ \u200d\ufe0f\U000e0020-\U000e007f])*"
OUTER_EMOJI = re.compile(rf"\A{EMOJI_RUN}\s*|\s*{EMOJI_RUN}(?=[\s.!?…]*\Z)")
BRACKETED = re.compile(r"\A(?:\([^()]*\)|\[[^\[\]]*\])\Z")
LABEL = re.compile(r"\A(?:(?P<words>[^\W\d_][^:.!?…\n]{0,24}):|P\.? ?S\.?:?)\s+(?=\S)")
LOOSE_EMOJI = re.compile(rf"(?<=\S) +{EMOJI}(?:{EMOJI}|[ \u200d\ufe0f\U000e0020-\U000e007f])*(?<=\S) +(?=\S)")
INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")  # soft hyphen, zero width


def drop_invisible(prose: Prose) -> Prose:
    """Without characters that are not seen, which a model reads as letters."""
    spans = [match.span() for match in INVISIBLE.finditer(prose.text)]
    return rewrite(prose, [(*span, "", "") for span in spans]) if spans else prose


def set_apart_emoji(prose: Prose) -> Prose:
    """Emoji between two words have no part in the sentence, and are set between two words again, like a line break."""
    taken = [(one.start, one.end) for one in (*prose.protected, *prose.markup, *prose.breaks)]
    found = [m for m in LOOSE_EMOJI.finditer(prose.text) if not overlaps((m.start() - 1, m.end() + 1), taken)]
    if not found:
        return prose
    apart = rewrite(prose, [(*one.span(), " ", "") for one in found])
    gone, breaks = 0, list(apart.breaks)
    for one in found:
        breaks.append(LineBreak(one.start() - gone, one[0]))
        gone += len(one[0]) - 1
    return replace(
        apart,
        breaks=tuple(sorted(breaks, key=lambda one: one.start)),
    )


def loose_edges(prose: Prose, by: SentenceTranslator, *, shouted: bool) -> list[Span]:
    """What stands around a text and is none of its words: emoji, brackets around all of it, who speaks."""
    text, taken = prose.text, [(one.start, one.end) for one in (*prose.protected, *prose.breaks)]
    spans = [match.span() for match in OUTER_EMOJI.finditer(text)]
    if not spans and BRACKETED.match(text):
        spans = [(0, 1), (len(text) - 1, len(text))]
    label = None if spans or shouted else LABEL.match(text)
    if label and text[: label.end()] == text[: label.end()].upper() and text != text.upper():
        words = label["words"]
        if words is None or not (by.is_common(words) or is_shouted(words, by)):
            spans = [label.span()]
        elif is_shouted(words, by):
            spans = [(label.end("words"), label.end())]
    spans = [span for span in spans if not overlaps(span, taken)]
    if not spans:
        return []
    inside = text[spans[0][1] :] if spans[0][0] == 0 else text
    return spans if any(map(str.isalpha, inside)) else []


SEPARATORS = ".,'’\u00a0\u202f "
NUMBER = re.compile(rf"\d{{1,3}}(?:[{SEPARATORS}]\d{{3}})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*")


def protect(prose: Prose, spans: Iterable[Span]) -> Prose:
    """With these spans protected, but for those that go over a mark or are protected already."""
    taken = [(one.start, one.end) for one in prose.protected]
    edges = sorted({edge for one in prose.markup for edge in (one.start, one.end)})
    found = [span for span in spans if not cuts_between(edges, *span) and not overlaps(span, taken)]
    if not found:
        return prose
    new = [Protected(start, end, prose.slice(start, end).raw) for start, end in found]
    lost = {one.start for one in prose.breaks if overlaps((one.start, one.end), found)}
    return replace(
        prose,
        protected=tuple(sorted((*prose.protected, *new), key=lambda one: one.start)),
        breaks=tuple(one for one in prose.breaks if one.start not in lost),
    )


def unknown_spans(prose: Prose, knows: Callable[[str], bool]) -> list[Span]:
    """Runs of words on a line that are not known, without the punctuation around them; numbers need not be."""
    text, taken, found = prose.text, [(one.start, one.end) for one in prose.protected], list[Span]()
    breaks = [one.start for one in prose.breaks]
    last = -1  # the last word that was not known
    for number, match in enumerate(re.finditer(r"\S+", text)):
        start, end = match.span()
        while start < end and is_punctuation(text[start]):
            start += 1
        while start < end and is_punctuation(text[end - 1]):
            end -= 1
        word = text[start:end]
        if not any(map(str.isalpha, word)) or knows(word) or overlaps((start, end), taken):
            continue
        gap = text[found[-1][1] : start] if found and last == number - 1 else "."
        if not gap.strip() and not cuts_between(breaks, found[-1][1] - 1, start):
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
        last = number
    return found


def overlaps(span: Span, others: Iterable[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def outside_protected(prose: Prose) -> str:
    """The text with spaces for what is protected."""
    text = prose.text
    for one in prose.protected:
        if one.required:
            text = text[: one.start] + " " * (one.end - one.start) + text[one.end :]
    return text


def has_words(prose: Prose) -> bool:
    """Whether there is anything to translate."""
    return any(letter.isalpha() for letter in outside_protected(prose))


@dataclass(frozen=True)
class Restored:
    """Where the spans and the markup of a sentence are in its translation."""

    kept: list[tuple[int, int, str]]
    markup: list[Markup]


@dataclass(frozen=True)
class Missing:
    """What of a sentence its translation does not have: spans and markup of the source."""

    spans: list[Span] = field(default_factory=list)
    markup: list[Markup] = field(default_factory=list)


def restore(prose: Prose, asked: str, found: str, by: SentenceTranslator) -> Restored | Missing:
    """Finds what must survive in a translation."""
    kept, spans = find_protected(prose, found, by.target)
    numbers, changed = find_numbers(prose, found, kept, by)
    spans += numbers
    places = place_breaks(prose, found, [*kept, *changed])
    if places is None:
        spans += [(one.start, one.end) for one in prose.breaks]
    if spans:
        return Missing(spans)
    assert places is not None
    kept = [*kept, *changed, *places]
    markup, lost = place_markup(prose, asked, found, kept, by.align)
    return Missing(markup=lost) if lost else Restored(kept, markup)


PAIRED = ("()", "[]", "«»", "„“")


def is_unbalanced(source: str, found: str) -> bool:
    """Whether brackets or quotation marks do not match, and do in the source."""
    pairs = any(
        source.count(one) == source.count(other) and found.count(one) != found.count(other)
        for one, other in PAIRED
        if one in found or one != "„"  # what closes in German opens in English
    )
    return pairs or (found.count('"') % 2 > source.count('"') % 2)


AND = {"en": "and", "fr": "et", "de": "und"}


def find_protected(prose: Prose, found: str, target: str = "") -> tuple[list[tuple[int, int, str]], list[Span]]:
    """Where the protected spans are, each at its next occurrence as a word, and those that are nowhere."""
    kept, missing = list[tuple[int, int, str]](), list[Span]()
    for one in (one for one in prose.protected if one.required):
        shown = prose.text[one.start : one.end]
        left = r"(?<!\w)" if shown[0].isalnum() else ""
        right = r"(?!\w)" if shown[-1].isalnum() else ""
        for match in re.finditer(f"{left}{re.escape(shown)}{right}", found):
            if not overlaps(match.span(), [(start, end) for start, end, _ in kept]):
                kept.append((*match.span(), one.raw))
                break
        else:
            if not (shown == "&" and target in AND and re.search(rf"(?<!\w){AND[target]}(?!\w)", found)):
                missing.append((one.start, one.end))
    return kept, missing


def find_numbers(
    prose: Prose, found: str, kept: Sequence[tuple[int, int, str]], by: SentenceTranslator
) -> tuple[list[Span], list[tuple[int, int, str]]]:
    """Numbers that are missing, by their sign and digits, and those to be set right.

    These are one that is missing where another is too many, and those whose separators are not the target's.
    """
    read = outside_protected(prose)
    everywhere = list(NUMBER.finditer(read))
    source = [match for match in everywhere if not ORDINAL.match(read, match.end())]
    ordinals = Counter(digits_of(match) for match in everywhere if ORDINAL.match(read, match.end()))
    target = [match for match in NUMBER.finditer(found) if not overlaps(match.span(), [(a, b) for a, b, _ in kept])]
    wanted, written = Counter(map(digits_of, source)), Counter(map(digits_of, target))
    missing, extra = wanted - written, written - wanted - ordinals
    forms = {digits_of(one): format_number(one[0], by.source, by.target) for one in source}
    changed = list[tuple[int, int, str]]()
    for one in target:
        digits = digits_of(one)
        other = digits.removeprefix("-") if digits.startswith("-") else f"-{digits}"
        if extra[digits] and missing[other]:  # only its sign is another
            missing, extra = missing - Counter([other]), extra - Counter([digits])
            changed.append((start_of_sign(one), one.end(), "-" * other.startswith("-") + forms[other]))
        elif digits in forms and not is_written_well(one[0], forms[digits], by):
            changed.append((*one.span(), forms[digits]))
    if missing.total() == extra.total() == 1:
        (right,) = missing
        wrong = next(one for one in target if digits_of(one) in extra)
        changed.append((start_of_sign(wrong), wrong.end(), "-" * right.startswith("-") + forms[right]))
        missing.clear()
    if missing:
        return sorted({whole_token(read, match) for match in source if digits_of(match) in missing}), changed
    return [], with_units(source, target, changed, by)


ORDINAL = re.compile(r"(?:st|nd|rd|th|s|er|te[rn]?|[èe]res?|res?|i?[èe]mes?|es?)\b")  # 21st, 1990s: XXIe, the nineties
PASSING = "-.:/,"  # within a date, a time, a name of letters and digits


def whole_token(text: str, number: re.Match[str]) -> Span:
    """A number with what it is written together with: 14:35, 2024-06-01, £5, 20 %."""
    start, end = number.span()
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] in PASSING):
        start -= 1
    while text[start] in PASSING:
        start += 1
    while end < len(text) and (text[end].isalnum() or text[end] in PASSING):
        end += 1
    while text[end - 1] in PASSING:
        end -= 1
    before, after = UNIT_BEFORE.search(text[:start]), UNIT_AFTER.match(text, end)
    return (before.start() if before else start), (after.end() if after else end)


UNIT_BEFORE, UNIT_AFTER = re.compile(r"([€$£¥])\s?\Z"), re.compile(r"\s?([€$£¥%])")
UNITS = {  # how a translation may name them
    "€": re.compile(r"(?i)€|\beuros?\b|\beur(?![^\W\d])"),
    "$": re.compile(r"(?i)\$|\bdollars?\b|\bUSD(?![^\W\d])"),
    "£": re.compile(r"(?i)£|\b(?:pounds?|livres?|pfund)\b|\bGBP(?![^\W\d])"),
    "¥": re.compile(r"(?i)¥|\b(?:yens?|yuans?)\b|\bJPY(?![^\W\d])"),
    "%": re.compile(r"(?i)%|\bper\s?cent\b|\bpour[\s-]?cent|\bprozent|\bv\. ?h\."),
}


def unit_of(number: re.Match[str]) -> str:
    found = UNIT_BEFORE.search(number.string[: number.start()]) or UNIT_AFTER.match(number.string, number.end())
    return found[1] if found else ""


def with_units(
    source: Sequence[re.Match[str]],
    target: Sequence[re.Match[str]],
    changed: Sequence[tuple[int, int, str]],
    by: SentenceTranslator,
) -> list[tuple[int, int, str]]:
    """The changes, and the sign of a currency or % for numbers that have lost it."""
    edits = {(start, end): new for start, end, new in changed}
    spans = [next((span for span in edits if span[1] == one.end()), one.span()) for one in target]
    for unit, named in UNITS.items():
        lost = [digits_of(one) for one in source if unit_of(one) == unit]
        if not target or len(lost) <= len(named.findall(target[0].string)):
            continue
        for one, span in zip(target, spans, strict=True):
            written = edits.get(span, one[0])
            digits = "".join(filter(str.isdigit, written))
            if digits in lost and not named.search(one.string[max(0, span[0] - 4) : one.end() + 12]):
                lost.remove(digits)
                first = unit != "%" and (
                    by.target == "en" or (by.target not in MARKS and source[0].string.find(unit) == 0)
                )
                space = "" if by.target == "en" else "\u00a0"
                edits[span] = f"{unit}{written}" if first else f"{written}{space}{unit}"
    return [(*span, new) for span, new in edits.items()]


NEGATIVE = re.compile(r"(?:(?<![\w\d)\]%-])(?:[-–]|− ?)|\b(?:minus|moins)\s)\Z")


def sign_before(number: re.Match[str]) -> re.Match[str] | None:
    return NEGATIVE.search(number.string[max(0, number.start() - 8) : number.start()])


def start_of_sign(number: re.Match[str]) -> int:
    """Where it begins, or the sign before it."""
    sign = sign_before(number)
    return number.start() - (len(sign[0]) if sign else 0)


def digits_of(number: re.Match[str]) -> str:
    """Its sign, and its digits without those between them, which languages choose differently: 1,000.5 is 1 000,5."""
    return "-" * bool(sign_before(number)) + "".join(sign for sign in number[0] if sign.isdigit())


GROUPED = {
    "en": re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
    "fr": re.compile(r"\d{1,3}(?:[\u00a0\u202f ]\d{3})+(?:,\d+)?"),
    "de": re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?"),
}
MARKS = {"en": (",", "."), "fr": ("\u202f", ","), "de": (".", ",")}  # between thousands, before decimals


def format_number(number: str, source: str, target: str) -> str:
    """A number whose thousands stand apart as the other language writes it; others as they are.

    Examples:
        >>> format_number("1,234.5", "en", "de"), format_number("1.234,5", "de", "en"), format_number("1.5", "en", "de")
        ('1.234,5', '1,234.5', '1.5')
    """
    if source == target or source not in MARKS or target not in MARKS or not GROUPED[source].fullmatch(number):
        return number
    if number.startswith("0") or IP_ADDRESS.fullmatch(number):
        return number
    whole, _, decimals = number.partition(MARKS[source][1])
    thousands, decimal = MARKS[target]
    return thousands.join(re.findall(r"\d+", whole)) + (decimal + decimals if decimals else "")


IP_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def localize_numbers(prose: Prose, by: SentenceTranslator) -> Prose:
    """With its numbers as the other language writes them, which are as long."""
    text = prose.text
    for one in NUMBER.finditer(outside_protected(prose)):
        text = text[: one.start()] + format_number(one[0], by.source, by.target) + text[one.end() :]
    return replace(prose, text=text)


def is_written_well(number: str, form: str, by: SentenceTranslator) -> bool:
    """Whether only the width of spaces differs; without thousands apart, any sign may stand before the decimals."""
    if by.source not in MARKS or by.target not in MARKS:
        return True
    plain = re.compile(r"[\u00a0\u202f ]")
    if plain.sub(" ", number) == plain.sub(" ", form):
        return True
    return len(re.findall(r"\D", form)) < 2 and not any(one.fullmatch(form) for one in GROUPED.values())


MASKS = ("1995", "1987", "1972", "1968", "1953", "1949", "1936", "1924")  # years: models copy them


def mask(prose: Prose, spans: Sequence[Span], asked: str) -> Prose | None:
    """The sentence with a number in place of each of these; None if one of them has a mark or a line break within."""
    free = [one for one in MASKS if one not in asked]
    if len(free) < len(spans):
        return None
    edits = list[tuple[int, int, str, str]]()
    for (start, end), number in zip(sorted(spans), free, strict=False):
        edges = [edge for one in (*prose.markup, *prose.breaks) for edge in (one.start, one.end)]
        if any(start < edge < end for edge in edges):
            return None
        inside = [one for one in prose.protected if start <= one.start and one.end <= end]
        raw = write_spans(prose.text[start:end], [(one.start - start, one.end - start, one.raw) for one in inside])
        edits.append((start, end, number, raw))
    return rewrite(prose, edits)


def rewrite(prose: Prose, edits: Sequence[tuple[int, int, str, str]]) -> Prose:
    """With other text in some places; where it has a last item, that is how the document writes it."""

    def moved(at: int) -> int:
        return at + sum(len(new) - (end - start) for start, end, new, _ in edits if end <= at)

    def moved_all(ones: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace(one, start=moved(one.start), end=moved(one.end)) for one in ones)

    texts, at = list[str](), 0
    for start, end, new, _ in edits:
        texts += [prose.text[at:start], new]
        at = end
    spans = [(start, end) for start, end, _, _ in edits]
    kept = [one for one in prose.protected if not overlaps((one.start, one.end), spans)]
    new = [Protected(moved(end) - len(new), moved(end), raw) for _, end, new, raw in edits if raw]
    return Prose(
        "".join([*texts, prose.text[at:]]),
        tuple(sorted((*moved_all(kept), *new), key=lambda one: one.start)),
        moved_all(prose.markup),
        tuple(replace(one, start=moved(one.start)) for one in prose.breaks),
    )


NEAR_MARK = 12  # characters that a line break goes out of its way for a comma
UNBROKEN = re.compile(r"[-+*#>|=;:!?»]|\d+[.)]")  # what would begin a list, a heading or a quotation; or ends a clause


def place_breaks(prose: Prose, found: str, kept: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]] | None:
    """Each line break at the space that is nearest to its place; None if there are too few."""
    whole = [(start, end) for start, end, _ in kept]
    starts = {start for start, _ in whole}
    spaces = [
        match.start()
        for match in re.finditer(" ", found)
        if not overlaps(match.span(), whole) and (match.end() in starts or not UNBROKEN.match(found, match.end()))
    ]
    places, at = list[tuple[int, int, str]](), 0
    for number, one in enumerate(prose.breaks, 1):
        free = spaces[at : len(spaces) - (len(prose.breaks) - number)]
        if not free:
            return None
        wanted, mark = (one.start + 0.5) / len(prose.text) * len(found), prose.text[one.start - 1 : one.start]
        nearest = min(range(len(free)), key=lambda n: break_cost(found, free[n], wanted, mark))
        places.append((free[nearest], free[nearest] + 1, one.raw))
        at += nearest + 1
    return places


def break_cost(found: str, space: int, wanted: float, mark: str) -> float:
    """How far from its place, less where the same punctuation stands before."""
    same = is_punctuation(mark) and mark == found[space - 1 : space]
    return abs(space + 0.5 - wanted) - NEAR_MARK * same


# --- markup, by word alignment ---


def place_markup(
    prose: Prose,
    asked: str,
    found: str,
    kept: Sequence[tuple[int, int, str]],
    align: Callable[[str, str], Sequence[AlignedWord] | None] | None,
) -> tuple[list[Markup], list[Markup]]:
    """The marks in the translation, and those that have no place there: a mark holds the words linked to its own."""
    words: Sequence[AlignedWord] | None = None
    placed, lost, aligned = dict[Markup, Span](), list[Markup](), False
    for one in prose.markup:
        outer = [other for other in placed if other.start <= one.start and one.end <= other.end]
        first, last = placed[outer[-1]] if outer else (0, len(found))
        taken = [span for other, span in placed.items() if other not in outer]
        span = find_once(prose.text[one.start : one.end], prose.text, found)
        if span is None or not first <= span[0] <= span[1] <= last or overlaps(span, taken):
            if align is not None and not aligned:
                words, aligned = align(asked, found), True
            span = linked_span(one, words or (), (first, last), taken)
            span = span and fit_span(prose.text, one, found, span, kept)
        if span is None or not first <= span[0] <= span[1] <= last or overlaps(span, taken):
            lost.append(one)
        else:
            placed[one] = span
    return [Markup(*span, one.opening, one.closing) for one, span in placed.items()], lost


def find_once(text: str, source: str, found: str) -> Span | None:
    """Where a name is that stands once in either, as a word."""
    pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    there = [match.span() for match in pattern.finditer(found)]
    return there[0] if len(there) == 1 == len(pattern.findall(source)) else None


def linked_span(mark: Markup, words: Sequence[AlignedWord], room: Span, taken: Sequence[Span]) -> Span | None:
    """The run of words with most links into the mark, less those to words outside it."""
    gains: list[int] = []
    for (start, end), source in words:
        if not room[0] <= start <= end <= room[1] or overlaps((start, end), taken):
            gains.append(-len(words) - 1)
        else:
            middle = source and (source[0] + source[1]) / 2
            gains.append(0 if middle is None else 1 if mark.start <= middle <= mark.end else -1)
    best, span = 0, None
    for first in range(len(gains)):
        if gains[first] < 1:
            continue
        for length, total in enumerate(accumulate(gains[first:])):
            if total > best:
                best, span = total, (words[first][0][0], words[first + length][0][1])
    return span


def fit_span(source: str, mark: Markup, found: str, span: Span, kept: Sequence[tuple[int, int, str]]) -> Span | None:
    """Without punctuation at its ends that the mark does not have, and around what is kept whole."""
    start, end = span
    inside = source[mark.start : mark.end]
    while start < end and inside[:1].isalnum() and is_punctuation(found[start]):
        start += 1
    while start < end and inside[-1:].isalnum() and is_punctuation(found[end - 1]):
        end -= 1
    for first, last, _ in kept:
        start, end = first if first < start < last else start, last if first < end < last else end
    return (start, end) if start < end else None


def aligned_words(source: str, found: str, alignment: WordLinks, tag: int = 0) -> list[AlignedWord] | None:
    """The words of a translation by their characters; None where a word is not in its text as it stands.

    Args:
        alignment: the words of both sides, and their links by number.
        tag: characters of the tag before the source, which is linked to nothing.

    Examples:
        >>> aligned_words("the cat", "le chat", (("the", "cat"), ("le", "chat"), {(0, 0), (1, 1)}))
        [((0, 2), (0, 3)), ((3, 7), (4, 7))]
    """
    source_words, found_words, links = alignment
    source_spans, found_spans = find_words(source, source_words), find_words(found, found_words)
    if source_spans is None or found_spans is None:
        return None
    linked = {target: (start - tag, end - tag) for one, target in links for start, end in source_spans[one : one + 1]}
    linked = {target: span for target, span in linked.items() if span[0] >= 0}
    return [(span, linked.get(number)) for number, span in enumerate(found_spans)]


def find_words(text: str, words: Sequence[str]) -> list[Span] | None:
    """Where words are that follow each other in a text, in whatever case."""
    lowered, spans, at = text.lower(), list[Span](), 0
    for word in words:
        start = lowered.find(word.lower(), at)
        if start < 0 or len(lowered) != len(text):
            return None
        at = start + len(word)
        spans.append((start, at))
    return spans


# --- case, and the ends of pieces ---

SHOUTED_LETTERS, SHOUTED_WORDS, SHOUTED_WORD, SHOUTED_COMMON = 7, 3, 6, 4


def is_shouted(text: str, by: SentenceTranslator) -> bool:
    """Whether a text is upper case throughout, and more than an abbreviation.

    Examples:
        >>> by = SentenceTranslator(list, is_common=lambda word: word == "stop")
        >>> [is_shouted(text, by) for text in ("DO NOT ENTER", "NATO", "STOP!", "CHAPTER 1", "IBM and SAP")]
        [True, False, True, True, False]
    """
    words = re.findall(r"[^\W\d_]{2,}", text)
    if not words or not all(word.isupper() for word in words) or text != text.upper():
        return False
    letters, longest = sum(map(len, words)), max(map(len, words))
    plain = any(len(word) >= SHOUTED_COMMON and is_emphasised(word, by) for word in words)
    if letters >= SHOUTED_LETTERS and (len(words) >= SHOUTED_WORDS or longest >= SHOUTED_WORD or plain):
        return True
    return longest >= SHOUTED_COMMON and all(is_emphasised(word, by) for word in words)


def is_emphasised(word: str, by: SentenceTranslator) -> bool:
    """Whether a word in upper case is one of small letters, and no abbreviation."""
    return word.isupper() and by.is_common(word.lower()) and not by.is_common(word)


WORD = re.compile(r"[^\W\d_]+")


def restore_case(word: re.Match[str], prose: Prose, by: SentenceTranslator) -> str:
    """With a capital, as a name or a German noun has, or in upper case, if the vocabulary knows the word so."""
    ways = (word[0], word[0].title(), word[0].upper())
    if word[0] == prose.text[word.start() : word.end()] or len(word[0]) < 2 or len({*map(len, ways)}) > 1:
        return word[0]
    return fewer_pieces(ways, by)


def lower_shouted(prose: Prose, by: SentenceTranslator) -> str:
    """In lower case, with a capital at the beginning if the model knows the word so; what is protected stays."""
    lowered = [small if len(small := letter.lower()) == 1 else letter for letter in prose.text]
    for one in prose.protected:
        lowered[one.start : one.end] = prose.text[one.start : one.end]
    text = WORD.sub(lambda one: restore_case(one, prose, by), "".join(lowered))
    if by.source == "en":
        text = re.sub(r"(?<!\w)i(?!\w)", "I", text)
    first = next((n for n, letter in enumerate(text) if letter.isalpha()), 0)
    capital = text[:first] + prose.text[first : first + 1] + text[first + 1 :]
    return capital if by.knows(capital.split()[0].strip(".,;:!?")) else text


TITLE_WORDS, TITLE_WORD = 2, 4  # words, and letters of them, that tell a title


def sentence_forms(text: str, by: SentenceTranslator) -> Iterator[str]:
    """A text as it stands, as sentences are written, and a title in small letters.

    Examples:
        >>> by = SentenceTranslator(list, pieces=lambda word: 2 if word == "london" else 1)
        >>> list(sentence_forms("A Walk Through London", by))
        ['A Walk Through London', 'A Walk Through London.', 'A walk through London.']
    """
    yield text
    yield sentence_form(text, by)
    words = WORD.findall(text)
    long = [word for word in words if len(word) >= TITLE_WORD]
    if by.source == "en" and len(long) >= TITLE_WORDS and all(word.istitle() for word in long):
        small = re.sub(r"(?<=\s)[^\W\d_]+", lambda one: fewer_pieces((one[0].lower(), one[0]), by), text)
        yield sentence_form(small, by)


def fewer_pieces(ways: Sequence[str], by: SentenceTranslator) -> str:
    """Of several ways to write a word the one that the vocabulary knows best; the first of equals."""
    return min(ways, key=by.pieces)


UNENDED = re.compile(r"[\s,;:–—-]*\Z")
ENDED = re.compile(r"[.!?…][\"'”’“»)\]\s]*\Z")
END_MARK = re.compile(r"\s*[.!?…]+(?=[\"'”’“»)\]\s]*\Z)")


def sentence_form(text: str, by: SentenceTranslator) -> str:
    """A text as sentences are written, which is what models have read: with a capital, a mark at its end, and no words
    in upper case.

    Examples:
        >>> by = SentenceTranslator(list)
        >>> [sentence_form(text, by) for text in ("light switch", "Dear all,", "(i think so)", "Why?")]
        ['Light switch.', 'Dear all.', '(I think so).', 'Why?']
    """
    if by.source == "en":
        text = re.sub(r"(?<![\w.])i(?![\w.])", "I", text)
    if by.source == "de":  # STRASSE was a Straße
        text = WORD.sub(lambda one: fewer_pieces((one[0], one[0].replace("ss", "ß")), by), text)
    text = re.sub(r"(?<=\s)&(?=\s)", AND.get(by.source, "&"), text)
    text = re.sub(r"\b(?:[^\W\d_a-z]\.){3,}", lambda one: one[0].replace(".", ""), text)  # O.N.U.
    first = next((n for n, letter in enumerate(text) if letter.isalnum()), 0)
    text = re.sub(r"[^\W\d_]{2,}", lambda one: one[0].lower() if is_emphasised(one[0], by) else one[0], text)
    if text[first:].split()[:1] and text[first:].split()[0].islower() and len(text[first].upper()) == 1:
        capital = text[:first] + text[first].upper() + text[first + 1 :]
        text = capital if by.knows(capital[first:].split()[0].strip(".,;:!?")) else text
    if not ENDED.search(text) and by.knows("."):
        text = UNENDED.sub("", text) + "."
    return text


def undo_form(text: str, form: str, found: str, target: str) -> str:
    """The translation of a text, or of its sentence form, without an end mark or a capital that the text has not.

    Examples:
        >>> undo_form("light switch", "Light switch.", "Interrupteur.", "fr")
        'interrupteur'
        >>> undo_form("Dear all,", "Dear all.", "Chers tous !", "fr"), undo_form("oscar", "oscar", "Oscar", "fr")
        ('Chers tous,', 'Oscar')
    """
    if not ENDED.search(text):
        tail = UNENDED.search(text)
        if not ACRONYM.fullmatch(found.removesuffix(".").rpartition(" ")[2]):
            found = END_MARK.sub("", found) or found
        if tail and tail[0]:
            found = (UNENDED.sub("", found) or found) + tail[0]
    if first_letter(form) == first_letter(text):
        return found
    if re.match(r"\w\b", found) and target not in ("de", "en"):  # À is a word, as I is
        return found[0].lower() + found[1:]
    return lower_first(found, text, target)


def first_letter(text: str) -> str:
    return next((one for one in text if one.isalnum()), "")


def lower_first(found: str, source: str, target: str) -> str:
    """A small letter at the beginning where the source has one, but for German, and English I."""
    letter = first_letter(source)
    first = next((n for n, one in enumerate(found) if one.isalnum()), 0)
    word = next(iter(found[first:].split()), "")
    if letter.islower() and target != "de" and word[1:].islower() and not word.startswith(("I'", "I’")):
        return found[:first] + found[first].lower() + found[first + 1 :]
    return found


DOTS = re.compile(r"(?:\.{3}|…)(?=[\"'”’“»)\]\s]*\Z)")
LAST_STOP = re.compile(r"(?<![.…])\.(?=[\"'”’“»)\]\s]*\Z)")


def typography(found: str, prose: Prose, target: str) -> str:
    """French spaces before ; : ! ? and inside « », one kind of apostrophe; quotation marks that are not the target's.

    Examples:
        >>> typography("Il dit: «Viens!» l’été", Prose("He says: 'Come!' it's"), "fr")
        "Il dit : « Viens ! » l'été"
        >>> typography('He said, "No. »', Prose("Il a dit : « Non. »"), "en")
        'He said, "No."'
    """
    if re.search(r"[^\W\d]: ", prose.text) and not re.search(r"[^\W\d]:\S", prose.text):
        found = re.sub(r"(?<=[^\W\d]):(?=\S)", ": ", found)
    if dots := DOTS.search(prose.text):
        found = LAST_STOP.sub(dots[0], found)
    kept = [prose.text[one.start : one.end] for one in prose.protected if one.required]
    if any(re.search(r"[;:!?«»’']", one) and one in found for one in kept):
        return found
    if target == "fr":
        found = re.sub(r"(?<=[\w»)\]\"%€$'’])(:|[;!?]+)(?=[\s»\")\]]|\Z)", r" \1", found)
        found = re.sub(r"«\s*(?=\S)", "« ", re.sub(r"(?<=\S)\s*»", " »", found))
        straight = "’" not in prose.text
        found = re.sub(r"(?<=\w)[’'](?=\w)", "'" if straight else "’", found)
    elif target == "en":
        found = re.sub(r"«\s*|\s*»", '"', found)
    return found


LOOSE = re.compile(r"^[^\w\s\"'“‘„«(\[{<¿¡]+\s*|\s*[(\[{“„«]+$")


def loose_punctuation(prose: Prose) -> list[Span]:
    """What a piece of a sentence begins or ends with that belongs to its neighbours: a comma, an opening bracket."""
    protected = [(one.start, one.end) for one in prose.protected]
    return [match.span() for match in LOOSE.finditer(prose.text) if not overlaps(match.span(), protected)]


def match_ends(source: str, found: str, target: str) -> str:
    """A piece of a sentence begins with a small letter and ends in the punctuation of the source, if that does.

    German nouns keep their capitals.
    """
    last = source[-1]
    if found.endswith(".") and not found.endswith("..") and last not in ".…!?":
        found = found[:-1] or found
    if last in ",;:" and found[-1] not in ",;:":
        found += last
    return lower_first(found, source, target)


# --- a translator of ours ---


def sentence_translator(
    translator: "Translator",
    search: Search,
    *,
    model: DecodableModel | None = None,
    to: str | None = None,
    max_length: int | None = None,
    progress: Callable[[Iterable[Any], str, int], Iterable[Any]] = lambda items, what, total: items,
) -> SentenceTranslator:
    """What documents are translated by.

    Args:
        model: the translator's, if it has been prepared already.
        to: the target language, of a model that knows several.
        max_length: tokens of a sentence; by default as many as the training had at most.
    """
    settings = translator.settings
    longest = max_length or settings.train.max_length

    def n_best(texts: Sequence[str], count: int) -> list[Sequence[Candidate]]:
        tagged = [translator.tag_source(text, to) for text in texts]
        how = replace(search, n_best=count) if isinstance(search, Beam) else search
        found = dict(progress(translate_lines(translator, tagged, how, model=model), "translating", len(texts)))
        return [[(one.text, one.hypothesis.score) for one in found[number]] for number in range(len(texts))]

    def translate(texts: Sequence[str]) -> list[str]:
        return [best[0] for best, *_ in n_best(texts, 1)]

    def align(source: str, found: str) -> list[AlignedWord] | None:
        tagged = translator.tag_source(source, to)
        pair, weights = align_pair(translator, tagged, found)
        words = pair.source.words, pair.target.words, argmax_links_or_null(weights)
        return aligned_words(tagged, found, words, tag=len(tagged) - len(source))

    return SentenceTranslator(
        translate,
        fits=lambda text: len(translator.source.encode(translator.tag_source(text, to))) <= longest,
        knows=word_reader(translator.source),
        align=None if settings.model.kind in RNN_KINDS else align,
        is_common=lambda word: len(translator.source.encode(word)) == 1,
        pieces=lambda word: len(translator.source.encode(word)),
        n_best=n_best,
        most=search.size if isinstance(search, Beam) else 1,
        source=settings.data.source,
        target=to or settings.data.target,
    )


MIN_SHARE = 0.02  # of the letters of a vocabulary that a script must have to be one that the model was trained on
ALPHABETS = frozenset({"LATIN", "GREEK", "CYRILLIC"})  # of words with spaces between them


def word_reader(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a tokenizer has a word, or can spell it with letters that it was trained on.

    A word with another letter, such as Čapek where there is no Č, would be spelt by the bytes of that letter, which
    models of subwords garble. In scripts without spaces, where a word may be a sentence, only the script counts.
    """
    if not isinstance(tokenizer, LosslessTokenizer):
        return lambda word: UNK not in tokenizer.encode(word)
    scripts, letters = known_scripts(tokenizer.pieces), known_letters(tokenizer.pieces)
    if not scripts:
        return know_all

    def knows(letter: str) -> bool:
        script = script_of(letter)
        return script in scripts and (script not in ALPHABETS or letter in letters)

    return lambda word: word.isascii() or all(knows(letter) for letter in word if letter.isalpha())


@lru_cache(maxsize=16)  # a server asks for every request: one vocabulary of each model
def known_letters(pieces: tuple[bytes, ...]) -> frozenset[str]:
    """Those of the pieces, and the same in upper or lower case.

    Examples:
        >>> sorted(known_letters(("é".encode(), b"a")))
        ['A', 'a', 'É', 'é']
    """
    letters = "".join(piece.decode("utf-8", errors="ignore") for piece in pieces)
    return frozenset(other for one in set(letters) if one.isalpha() for other in (one, one.lower(), one.upper()))


@lru_cache(maxsize=16)
def known_scripts(pieces: tuple[bytes, ...]) -> frozenset[str]:
    """Latin, and the scripts of more than a few of the pieces; none if these are single bytes.

    Examples:
        >>> sorted(known_scripts((b"e", b"the", "д".encode(), "да".encode(), b"cat")))
        ['CYRILLIC', 'LATIN']
        >>> known_scripts((b"a", b"b"))
        frozenset()
    """
    texts = [piece.decode("utf-8", errors="ignore") for piece in pieces if len(piece) > 1]
    letters = Counter("".join(texts))  # of each letter once, since the names of letters take long
    counts = Counter[str]()
    for letter, count in letters.items():
        if letter.isalpha():
            counts[script_of(letter)] += count
    return frozenset({"LATIN", *(one for one, n in counts.items() if n > MIN_SHARE * counts.total())} if counts else ())


def script_of(letter: str) -> str:
    """As its Unicode name begins: LATIN, CYRILLIC, CJK."""
    return unicodedata.name(letter, "").partition(" ")[0]
