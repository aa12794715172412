"""Document translation: sentences of a document translated in batches; what must survive is checked, or kept out of it.

A sentence is translated as a whole. Where a number, a URL, code or a mark is then missing, the sentence is translated
again in pieces, around what was missing. So these survive whatever the model writes, and all of a document's sentences
share batches.
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
    DOCUMENT_FORMATS,
    DocumentFormat,
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
Work = Generator[list[str], Sequence[str], T]  # asks for texts, is sent their translations, and returns its result

WINDOW = 20_000  # sentences and what is between them that share batches


def know_all(text: str) -> bool:
    return True


@dataclass(frozen=True)
class SentenceTranslator:
    """What a document needs of a translator.

    Args:
        translate: the translations of some sentences.
        fits: whether a sentence is short enough for the model.
        knows: whether the model can read a word; one that it cannot is copied.
        align: the words of a translation and the source words they are linked to; without it, a sentence with marks
            inside is translated in pieces.
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
    align: Callable[[str, str], Sequence[AlignedWord] | None] | None = None
    source: str = "en"
    target: str = ""
    report: Callable[[str], object] = know_all


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
        yield "".join(run_work(ask_once(SentenceWork(by, known.escape).translate_parts(parts)), by.translate))


def translate_documents(texts: Sequence[str], by: SentenceTranslator, format: str = "text") -> list[str]:
    """Several documents in the same batches.

    Examples:
        >>> loud = SentenceTranslator(lambda texts: [f"{text}!" for text in texts])
        >>> translate_documents(["one", "<b>two</b>"], loud, "html")
        ['one!', '<b>two!</b>']
    """
    return run_work(documents_work(texts, by, format), by.translate)


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
    texts, found = advance_work(work, None)
    while texts is not None:
        once = list(dict.fromkeys(texts))
        answers = dict(zip(once, (yield once), strict=True))
        texts, found = advance_work(work, [answers[text] for text in texts])
    return found  # type: ignore[return-value]  (there is one where nothing is asked for)


def advance_work(work: Work[T], answers: Sequence[str] | None) -> tuple[list[str] | None, T | None]:
    """What it asks for next, given the translations of what it asked for, None at first; or None and its result."""
    try:
        return work.send(answers), None  # type: ignore[arg-type]
    except StopIteration as end:
        return None, end.value


def run_work(work: Work[T], translate: Callable[[Sequence[str]], Sequence[str]]) -> T:
    """The result."""
    texts, found = advance_work(work, None)
    while texts is not None:
        texts, found = advance_work(work, translate(texts))
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
        results, asked = dict[int, str](), dict[int, list[str]]()

        def advance(n: int, answers: Sequence[str] | None) -> None:
            try:
                asked[n] = next(works[n]) if answers is None else works[n].send(answers)
            except StopIteration as end:
                results[n] = end.value

        for n in works:
            advance(n, None)
        while asked:
            waiting, asked = asked, {}
            answers = iter((yield [text for texts in waiting.values() for text in texts]))
            for n, texts in waiting.items():
                advance(n, [next(answers) for _ in texts])
        return [part if isinstance(part, str) else results[n] for n, part in enumerate(parts)]

    def translate_pieces(self, parts: Sequence[str | Prose], *, shouted: bool) -> Work[str]:
        """The pieces of one sentence, each by itself."""
        return "".join((yield from replace(self, piece=True, shouted=shouted).translate_parts(parts)))

    def translate(self, prose: Prose) -> Work[str]:
        """One sentence or piece; in pieces if it is too long, or if something of it is missing in its translation."""
        prose = protect(prose, [match.span() for match in LITERAL.finditer(prose.text)])
        shouted = self.shouted or is_shouted(outside_protected(prose))

        def knows(word: str) -> bool:
            return (shouted and self.by.knows(word.lower())) or self.by.knows(word)

        unknown = unknown_spans(prose, knows)
        for start, end in unknown:
            self.by.report(prose.text[start:end])
        prose = protect(prose, unknown)
        if not has_words(prose):
            return prose.raw
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
        asked = lower_shouted(prose, self.by) if shouted else prose.text
        (answer,) = yield [asked]
        found = " ".join(answer.split())
        if not found:
            return prose.raw
        if self.piece:
            found = match_ends(prose.text, found, self.by.target)
        restored = restore(prose, asked, found, self.by.align)
        if isinstance(restored, Missing):
            parts = prose.cut(restored.spans, restored.markup)
            return (yield from self.translate_pieces(parts, shouted=shouted))

        def write(text: str) -> str:
            return self.escape(text.upper() if shouted else text, prose.text)

        return write_spans(found, restored.kept, restored.markup, write)


# --- what must survive ---

EMOJI = "[\U0001f000-\U0001faff\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff©®™]"
LITERAL = re.compile(
    r"(?i:https?|ftp)://[^\s<>\"`]*[^\s<>\"`.,;:!?)\]}'’”»]"
    r"|(?<![\w@.])(?i:www)\.[^\s<>\"`]*[^\s<>\"`.,;:!?)\]}'’”»]"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.])(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|eu|de|fr|uk|ch|at|be|ca)\b(?:/[^\s<>\"`]*[\w/])?"
    r"|</?[a-zA-Z][^<>]*>|\$\{[^{}\s]+\}|\{\{[^{}]+\}\}|\{[\w.:]*\}|%\(\w+\)[sdif]|%[sdif]\b"
    r"|(?<!\w)[@#]\w+|(?<![\w/])(?:~|\.{1,2})?/[\w.-]+(?:/[\w.-]+)+/?|(?<!\w)[A-Za-z]:\\[^\s<>\"]+"
    r"|\b\w+\(\)|\b[^\W_]+(?:_[^\W_]+)+\b"
    rf"|{EMOJI}(?:{EMOJI}|[\u200d\ufe0f\U000e0020-\U000e007f])*"
)
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
        if not any(map(str.isalpha, word)) or overlaps((start, end), taken) or knows(word):
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


def restore(
    prose: Prose, asked: str, found: str, align: Callable[[str, str], Sequence[AlignedWord] | None] | None
) -> Restored | Missing:
    """Finds what must survive in a translation."""
    kept, spans = find_protected(prose, found)
    numbers, changed = find_numbers(prose, found, kept)
    spans += numbers
    places = place_breaks(prose, found, [*kept, *changed])
    if places is None:
        spans += [(one.start, one.end) for one in prose.breaks]
    if spans:
        return Missing(spans)
    assert places is not None
    kept = [*kept, *changed, *places]
    markup, lost = place_markup(prose, asked, found, kept, align)
    return Missing(markup=lost) if lost else Restored(kept, markup)


def find_protected(prose: Prose, found: str) -> tuple[list[tuple[int, int, str]], list[Span]]:
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
            missing.append((one.start, one.end))
    return kept, missing


def find_numbers(
    prose: Prose, found: str, kept: Sequence[tuple[int, int, str]]
) -> tuple[list[Span], list[tuple[int, int, str]]]:
    """Numbers that are missing, by their digits; one that is missing where another is too many is set right."""
    source = list(NUMBER.finditer(outside_protected(prose)))
    target = [match for match in NUMBER.finditer(found) if not overlaps(match.span(), [(a, b) for a, b, _ in kept])]
    wanted, written = Counter(map(digits_of, source)), Counter(map(digits_of, target))
    missing, extra = wanted - written, written - wanted
    if missing.total() == extra.total() == 1:
        (right,) = (one[0] for one in source if digits_of(one) in missing)
        wrong = next(one for one in target if digits_of(one) in extra)
        return [], [(*wrong.span(), right)]
    return [match.span() for match in source if digits_of(match) in missing], []


def digits_of(number: re.Match[str]) -> str:
    """Without the signs between them, which languages choose differently: 1,000.5 is 1 000,5."""
    return "".join(sign for sign in number[0] if sign.isdigit())


UNBROKEN = re.compile(r"[-+*#>|=]|\d+[.)]")  # what would begin a list, a heading or a quotation


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
        wanted = (one.start + 0.5) / len(prose.text) * len(found)
        nearest = min(range(len(free)), key=lambda n: abs(free[n] + 0.5 - wanted))
        places.append((free[nearest], free[nearest] + 1, one.raw))
        at += nearest + 1
    return places


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

SHOUTED_LETTERS, SHOUTED_WORDS, SHOUTED_WORD = 7, 3, 6


def is_shouted(text: str) -> bool:
    """Whether a text is upper case throughout, and more than an abbreviation.

    Examples:
        >>> [is_shouted(text) for text in ("DO NOT ENTER", "NATO", "CHAPTER 1", "IBM and SAP")]
        [True, False, True, False]
    """
    words = re.findall(r"[^\W\d_]{2,}", text)
    if not words or not all(word.isupper() for word in words) or text != text.upper():
        return False
    return sum(map(len, words)) >= SHOUTED_LETTERS and (
        len(words) >= SHOUTED_WORDS or max(map(len, words)) >= SHOUTED_WORD
    )


def lower_shouted(prose: Prose, by: SentenceTranslator) -> str:
    """In lower case, with a capital at the beginning if the model knows the word so; what is protected stays."""
    lowered = [small if len(small := letter.lower()) == 1 else letter for letter in prose.text]
    for one in prose.protected:
        lowered[one.start : one.end] = prose.text[one.start : one.end]
    text = "".join(lowered)
    if by.source == "en":
        text = re.sub(r"(?<!\w)i(?!\w)", "I", text)
    first = next((n for n, letter in enumerate(text) if letter.isalpha()), 0)
    capital = text[:first] + prose.text[first : first + 1] + text[first + 1 :]
    return capital if by.knows(capital.split()[0].strip(".,;:!?")) else text


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
    word = found.split()[0]
    if source[0].islower() and target != "de" and word[1:].islower() and not word.startswith(("I'", "I’")):
        found = found[0].lower() + found[1:]
    return found


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

    def translate(texts: Sequence[str]) -> list[str]:
        tagged = [translator.tag_source(text, to) for text in texts]
        found = dict(progress(translate_lines(translator, tagged, search, model=model), "translating", len(texts)))
        return [found[number][0].text for number in range(len(texts))]

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
        source=settings.data.source,
        target=to or settings.data.target,
    )


MIN_SHARE = 0.02  # of the letters of a vocabulary that a script must have to be one that the model was trained on


def word_reader(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a tokenizer has a word, or can spell it in a script that it was trained on."""
    if not isinstance(tokenizer, LosslessTokenizer):
        return lambda word: UNK not in tokenizer.encode(word)
    scripts = known_scripts(tokenizer.pieces)
    if not scripts:
        return know_all
    return lambda word: word.isascii() or all(script_of(letter) in scripts for letter in word if letter.isalpha())


@lru_cache(maxsize=16)  # a server asks for every request, and names of letters take long: one vocabulary of each model
def known_scripts(pieces: tuple[bytes, ...]) -> frozenset[str]:
    """Latin, and the scripts of more than a few of the pieces; none if these are single bytes.

    Examples:
        >>> sorted(known_scripts((b"e", b"the", "д".encode(), "да".encode(), b"cat")))
        ['CYRILLIC', 'LATIN']
        >>> known_scripts((b"a", b"b"))
        frozenset()
    """
    texts = [piece.decode("utf-8", errors="ignore") for piece in pieces if len(piece) > 1]
    counts = Counter(script_of(letter) for text in texts for letter in text if letter.isalpha())
    return frozenset({"LATIN", *(one for one, n in counts.items() if n > MIN_SHARE * counts.total())} if counts else ())


def script_of(letter: str) -> str:
    """As its Unicode name begins: LATIN, CYRILLIC, CJK."""
    return unicodedata.name(letter, "").partition(" ")[0]
