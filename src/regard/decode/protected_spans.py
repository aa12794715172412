"""Protected spans: what a translation must have, numbers, URLs, codes, line breaks and markup, and where it has it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from regard.data.documents import Markup, Prose, Protected, cuts_between, is_punctuation, write_spans
from regard.decode.translation import AlignedWord, SentenceTranslator, Span

# --- what is copied ---

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
    """Without punctuation and spaces at its ends that the mark does not have, and around what is kept whole."""
    start, end = span
    inside = source[mark.start : mark.end]
    while start < end and inside[:1].isalnum() and (is_punctuation(found[start]) or found[start].isspace()):
        start += 1
    while start < end and inside[-1:].isalnum() and (is_punctuation(found[end - 1]) or found[end - 1].isspace()):
        end -= 1
    for first, last, _ in kept:
        start, end = first if first < start < last else start, last if first < end < last else end
    return (start, end) if start < end else None
