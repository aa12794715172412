"""Documents: plain text, Markdown, subtitles and HTML as prose to translate and what stays; sentences and clauses.

A parser yields parts in order: a `str` is copied, a `Prose` is translated. Whatever the text, the parts written one
after the other are the text again. Prose holds what a reader reads; its markup, code, line breaks and entities stand
beside it, by position.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from itertools import pairwise
from typing import Literal, TypeVar

from regard.data.tokenizers.base import ABBREVIATIONS

# --- sentences ---

CLOSERS = r"(?:[\u00a0\u202f ]?»|[\"'”’“)\]])*"  # German closes with “
SENTENCE_END = re.compile(rf"[.!?…]+{CLOSERS}(?=\s|\Z)|[。！？]+[」』”’）]*")
ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S., p.m., z.B.
OPENERS = "\"'“‘„«»([¿¡-–—*_"
TITLES = {  # beside those of the tokenizer
    "en": "messrs mt ft al mon tue tues thu thur thurs fri",
    "fr": "me mgr cf al réf",
    "de": "dipl ing jun sen sog zz abb tab anm ziff",
}
BEFORE_NUMBERS = "no nos nr fig vol pp p art abs al bd kap ch chap s tab abb anm ziff eq sec tel tél réf"
NEAR = 100  # characters around the end of a sentence that tell
AT_ENDS = "etc usw inc ltd co corp jr sr mio mrd env ex str"


def sentence_spans(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Where the sentences begin and end; nothing but white space lies between them, whatever the text.

    Args:
        language: its abbreviations are known of English, French and German; of another, those of all three.

    Examples:
        >>> text = "Dr. Smith paid 3.50 at 5 p.m.  He left… “Why?” she asked."
        >>> [text[start:end] for start, end in sentence_spans(text)]
        ['Dr. Smith paid 3.50 at 5 p.m.', 'He left…', '“Why?” she asked.']
    """
    known = abbreviations(language)
    ends = [match.end() for match in SENTENCE_END.finditer(text) if ends_sentence(text, match, known, language)]
    spans = (strip_span(text, start, end) for start, end in pairwise([0, *ends, len(text)]))
    return [(start, end) for start, end in spans if start < end]


def abbreviations(language: str) -> frozenset[str]:
    languages = [language] if language in ABBREVIATIONS else [*ABBREVIATIONS]
    return frozenset(word for one in languages for word in f"{ABBREVIATIONS[one]} {TITLES[one]}".split())


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    first = start + len(text[start:end]) - len(text[start:end].lstrip())
    return first, first + len(text[start:end].strip())


def ends_sentence(text: str, end: re.Match[str], known: frozenset[str], language: str) -> bool:
    """Whether the marks end a sentence: not before a small letter, nor after an abbreviation or an ordinal."""
    rest = text[end.end() : end.end() + NEAR].lstrip()
    words = rest.lstrip(OPENERS).lstrip()
    after = words[:1]
    if after.islower() and end[0][0] not in "。！？":
        return False
    if end[0].rstrip("\"'”’“)] »\u00a0\u202f") != ".":  # several marks, or another one
        return True
    before = text[max(0, end.start() - NEAR) : end.start()]
    word = "" if before[-1:].isspace() else before.split()[-1] if before else ""
    first, stem = end.start() <= NEAR and before.strip() == word, word.lstrip(OPENERS).lower()
    if stem in BEFORE_NUMBERS.split() and (stem in known or len(stem) == 1):
        return not any(map(str.isdigit, words.split(maxsplit=1)[0])) if words else True
    if stem in known:
        return stem in AT_ENDS.split()
    if ACRONYM.fullmatch(stem):
        return stem in ("a.m", "p.m") and rest[:1] not in "-–—"  # 8 a.m. – 6 p.m.
    if stem.isdigit():
        return not (first or (language == "de" and len(stem) < 3))
    if len(stem) == 1 and stem.isalpha():  # an initial, or z. B.
        return (word.islower() and language in ("en", "fr")) or (stem == "i" and language == "en")
    return True


# --- clauses of a long sentence ---

CONJUNCTIONS = (
    "and but or because which that while although when where so who if "
    "et mais ou car qui que dont où lorsque tandis parce puis donc si "
    "und oder aber denn weil dass sondern während wenn obwohl damit"
)
CONJUNCTION = rf"(?:{'|'.join(CONJUNCTIONS.split())})\b"
# where a sentence is broken, and how much further from its middle a break of the next kind may be to be preferred
CLAUSE_BREAKS = (
    (re.compile(r"(?<=[;:；：])\s+|\s+(?=[–—]\s)|(?<=[；：])"), 0.0),
    (re.compile(rf"(?<=[,，])\s+(?={CONJUNCTION})"), 0.1),
    (re.compile(r"(?<=[,，、)])\s+|(?<=[，、])"), 0.2),
    (re.compile(rf"\s+(?={CONJUNCTION})"), 0.3),
    (re.compile(r"\s+|(?<=[\u3040-\u30ff\u4e00-\u9fff])(?=[\u3040-\u30ff\u4e00-\u9fff])"), 0.6),
)


def clause_spans(
    text: str, fits: Callable[[str], bool], unbroken: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """The text itself if it fits, otherwise clauses that fit, each as long as a break at a good place allows.

    A word is never broken, so a word that does not fit is a clause of its own. Only white space lies between clauses.

    Args:
        unbroken: where no break may be.

    Examples:
        >>> text = "He came home late, but nobody was there; the dog slept and the cat, of course, was out."
        >>> [text[start:end] for start, end in clause_spans(text, lambda clause: len(clause.split()) <= 10)]
        ['He came home late, but nobody was there;', 'the dog slept and the cat, of course, was out.']
        >>> [text[start:end] for start, end in clause_spans(text, lambda clause: len(clause.split()) <= 6)][:2]
        ['He came home late,', 'but nobody was there;']
    """

    def split(start: int, end: int) -> Iterator[tuple[int, int]]:
        start, end = strip_span(text, start, end)
        if start == end:
            return
        if fits(text[start:end]) or (found := best_break(text, start, end, unbroken)) is None:
            yield start, end
            return
        yield from split(start, found[0])
        yield from split(found[1], end)

    return list(split(0, len(text)))


def best_break(text: str, start: int, end: int, unbroken: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Where the break nearest to the middle begins and ends, by its kind; None in a single word."""
    found: list[tuple[float, int, int]] = []
    for pattern, distance in CLAUSE_BREAKS:
        for match in pattern.finditer(text, start, end):
            if start < match.start() and match.end() < end and not any(a < match.end() < b for a, b in unbroken):
                middle = abs((match.start() - start) / (end - start) - 0.5)
                found.append((distance + middle, *match.span()))
    return min(found)[1:] if found else None


# --- prose ---


@dataclass(frozen=True)
class Protected:
    """What is written otherwise than it is read, or must stay as it is: `code`, an entity, a URL.

    Args:
        raw: as the document writes it.
        required: whether a translation must have it; an é that is written &eacute; is as good as é.
    """

    start: int
    end: int
    raw: str
    required: bool = True


@dataclass(frozen=True)
class Markup:
    """A pair of marks around some of the text: emphasis, a link, <b>."""

    start: int
    end: int
    opening: str
    closing: str


@dataclass(frozen=True)
class LineBreak:
    """A line break inside a paragraph, with what stands around it; prose has a space there."""

    start: int
    raw: str

    @property
    def end(self) -> int:
        return self.start + 1


S = TypeVar("S", Protected, Markup, LineBreak)


@dataclass(frozen=True)
class Prose:
    """Text to translate, and the markup, the protected spans and the line breaks in it.

    Examples:
        >>> (prose,) = DOCUMENT_FORMATS["markdown"].parse("Use **one** `x`")
        >>> prose.text, prose.raw
        ('Use one x', 'Use **one** `x`')
        >>> prose.markup[0]
        Markup(start=4, end=7, opening='**', closing='**')
    """

    text: str
    protected: tuple[Protected, ...] = ()
    markup: tuple[Markup, ...] = ()  # outer ones before those inside them
    breaks: tuple[LineBreak, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is text alone, as most is."""
        return not (self.protected or self.markup or self.breaks)

    @property
    def raw(self) -> str:
        """As the document writes it."""
        if self.is_plain:
            return self.text
        kept = [(one.start, one.end, one.raw) for one in self.protected]
        kept += [(one.start, one.end, one.raw) for one in self.breaks]
        return write_spans(self.text, kept, self.markup)

    def slice(self, start: int, end: int) -> "Prose":
        """Some of it; markup that is not wholly inside is dropped."""
        if self.is_plain:
            return Prose(self.text[start:end])
        return Prose(
            self.text[start:end],
            tuple(
                replace(one, start=one.start - start, end=one.end - start) for one in within(self.protected, start, end)
            ),
            tuple(
                replace(one, start=one.start - start, end=one.end - start) for one in within(self.markup, start, end)
            ),
            tuple(replace(one, start=one.start - start) for one in within(self.breaks, start, end)),
        )

    def cut(self, kept: Iterable[tuple[int, int]], opened: Iterable[Markup] = ()) -> "list[str | Prose]":
        """The same as parts: the spans `kept` and the marks of `opened` are copied, and what lies between is prose.

        Marks around any such edge are copied as well.
        """
        kept, loose = sorted(kept), set(opened)
        marks = [(one.start, one.end) for one in loose]
        edges = sorted({edge for span in (*kept, *marks) for edge in span})
        # a mark around an edge is copied; its own edges are edges too, and lie in no mark that has none of these
        loose |= {one for one in self.markup if cuts_between(edges, one.start, one.end)}
        edges = {*edges, *(edge for one in loose for edge in (one.start, one.end))}
        opens, closes = dict[int, str](), dict[int, str]()
        for one in self.markup:
            if one in loose:
                opens[one.start] = opens.get(one.start, "") + one.opening
                closes[one.end] = one.closing + closes.get(one.end, "")
        inside, rest = (
            {start for start, _ in kept},
            replace(self, markup=tuple(m for m in self.markup if m not in loose)),
        )
        parts: list[str | Prose] = []
        for start, end in pairwise(sorted({0, len(self.text), *edges})):
            parts.append(closes.get(start, "") + opens.get(start, ""))
            piece = rest.slice(start, end)
            if start in inside:
                parts.append(piece.raw)
                continue
            first, last = strip_span(piece.text, 0, end - start)
            if first >= last:
                parts.append(piece.raw)
                continue
            # marks at an edge may hold a space of it, and then stay whole
            first = min([first, *(one.start for one in piece.markup)])
            last = max([last, *(one.end for one in piece.markup)])
            parts += [piece.slice(0, first).raw, piece.slice(first, last), piece.slice(last, end - start).raw]
        parts.append(closes.get(len(self.text), ""))
        return [part for part in parts if isinstance(part, Prose) or part]

    def sentences(self, language: str = "en") -> "list[str | Prose]":
        """The sentences, and what stands between and around them.

        Examples:
            >>> (prose,) = DOCUMENT_FORMATS["markdown"].parse("**Yes. It** is. *Now.*")
            >>> [part if isinstance(part, str) else part.raw for part in prose.sentences()]
            ['**Yes. It** is.', ' ', '*', 'Now.', '*']
        """
        spans = sentence_spans(self.text, language)
        for one in (*self.markup, *self.protected):  # sentences that share a mark are one, unless it holds all of each
            starts, ends = [start for start, _ in spans], [end for _, end in spans]
            if cuts_between(starts, one.start, one.end) and (
                isinstance(one, Protected) or one.start not in starts or one.end not in ends
            ):
                first, last = bisect_right(ends, one.start), bisect_left(starts, one.end)
                spans[first:last] = [(starts[first], ends[last - 1])]
        starts, around, tails = [start for start, _ in spans], list[Markup](), set[tuple[int, int]]()
        for one in self.markup:  # those that hold a sentence, or all of it but its last punctuation
            start, end = [*spans, (0, -1)][bisect_left(starts, one.start)]
            if start <= end <= one.end:
                around.append(one)
            elif start == one.start and is_punctuation(self.text[one.end : end]):
                around.append(one)
                tails.add((one.end, end))
        gaps = [(end, start) for (_, end), (start, _) in pairwise(spans)]
        return self.cut([*gaps, *tails], around)


def cuts_between(edges: Sequence[int], start: int, end: int) -> bool:
    """Whether any of the edges, which are in order, lies inside."""
    return bisect_right(edges, start) < bisect_left(edges, end)


def is_punctuation(text: str) -> bool:
    return not any(letter.isalnum() or letter.isspace() for letter in text)


def within(spans: Sequence[S], start: int, end: int) -> Iterator[S]:
    """Those that lie inside; they come in the order of their beginnings."""
    first = bisect_left(spans, start, key=lambda one: one.start)
    return (one for one in spans[first : bisect_left(spans, end, key=lambda one: one.start)] if one.end <= end)


def write_spans(
    text: str,
    kept: Iterable[tuple[int, int, str]],
    markup: Sequence[Markup] = (),
    write: Callable[[str], str] = str,
) -> str:
    """The text with some spans replaced and marks inserted; `write` is applied to what is neither."""
    edits = [(start, 2, 0, 0, end, new) for start, end, new in kept]
    for number, one in enumerate(markup):
        edits.append((one.start, 1, -one.end, number, one.start, one.opening))
        edits.append((one.end, 0, -one.start, -number, one.end, one.closing))
    parts, at = list[str](), 0
    for start, *_, end, new in sorted(edits):
        parts += [write(text[at:start]), new]
        at = max(at, end)
    return "".join([*parts, write(text[at:])])


# --- from pieces of a document to prose ---

LINE_BREAK = re.compile(r"(?<![^\S\n\r])[^\S\n\r]*(?:\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])\s*")
TYPOGRAPHY = "'\"‘’‚‛“”„«»‹›–—…-"  # a language has its own, so an entity of these need not be in a translation
TokenKind = Literal["text", "open", "close", "protect", "break", "cut"]


@dataclass(frozen=True)
class InlineToken:
    """A piece of a paragraph: text, a mark that opens or closes, what is protected, a line break, or what is no prose.

    Args:
        shown: what a reader reads of it.
        name: marks of one name make a pair.
    """

    kind: TokenKind
    raw: str
    shown: str = ""
    name: str = ""


def assemble(tokens: Iterable[InlineToken]) -> "list[str | Prose]":
    """The parts that the tokens make: what is no prose, and marks without their other half, separate them."""
    tokens = list(tokens)
    pairs = pair_marks(tokens)
    partners = {**pairs, **{end: start for start, end in pairs.items()}}
    cuts = [n for n, one in enumerate(tokens) if one.kind == "cut"]
    cuts += [n for n, one in enumerate(tokens) if one.kind in ("open", "close") and n not in partners]
    cuts.sort()
    cuts += [n for start, end in pairs.items() if cuts_between(cuts, start, end) for n in (start, end)]
    parts, run, cut = list[str | Prose](), dict[int, InlineToken](), set(cuts)
    for n, one in enumerate(tokens):
        if n in cut:
            parts += [*build_prose(run, pairs), one.raw]
            run = {}
        else:
            run[n] = one
    return [part for part in (*parts, *build_prose(run, pairs)) if part]


def pair_marks(tokens: Sequence[InlineToken]) -> dict[int, int]:
    """The closing mark of each opening one that has it; pairs lie in each other or apart."""
    pairs, waiting = dict[int, int](), list[int]()
    for n, one in enumerate(tokens):
        if one.kind == "open":
            waiting.append(n)
        elif one.kind == "close" and any(tokens[m].name == one.name for m in waiting):
            while tokens[m := waiting.pop()].name != one.name:
                pass
            if any(between.shown.strip() for between in tokens[m + 1 : n]):
                pairs[m] = n
    return pairs


def build_prose(run: dict[int, InlineToken], pairs: dict[int, int]) -> "list[str | Prose]":
    """One stretch of prose between two cuts, without the white space around it."""
    text, starts = "", dict[int, int]()
    protected, breaks, markup = list[Protected](), list[LineBreak](), list[Markup]()
    for n, one in run.items():
        starts[n] = len(text)
        if one.kind == "protect":
            free = one.shown.isalnum() or one.shown.isspace() or (one.name == "entity" and one.shown in TYPOGRAPHY)
            required = one.name == "code" or not free
            protected.append(Protected(len(text), len(text) + len(one.shown), one.raw, required))
            text += one.shown
        elif one.kind == "break":
            breaks.append(LineBreak(len(text), one.raw))
            text += " "
        elif one.kind == "text":
            at = 0
            for match in LINE_BREAK.finditer(one.shown):
                text += one.shown[at : match.start()]
                breaks.append(LineBreak(len(text), match[0]))
                text += " "
                at = match.end()
            text += one.shown[at:]
    for start in run:
        if start in pairs:
            end = pairs[start]
            markup.append(Markup(starts[start], starts[end], run[start].raw, run[end].raw))
    order = sorted(range(len(markup)), key=lambda n: (markup[n].start, -markup[n].end))
    prose = Prose(text, tuple(protected), tuple(markup[n] for n in order), tuple(breaks))
    return prose.cut([]) if text else []


# --- plain text ---

BULLET = re.compile(r"(?:[-*•–—>+·▪◦]+\s+|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]\s+)+(?=\S)")
COLUMNS = re.compile(r"\t\s*|[^\S\t]{3,}")
MIN_WRAPPED = 50  # characters of the longest line of a paragraph whose line breaks are taken to be by width


def parse_text(text: str) -> Iterator["str | Prose"]:
    """Each line by itself, but for paragraphs that were broken at a width, whose sentences go over their lines."""
    for lines in paragraphs(text.splitlines(keepends=True)):
        if len(lines) > 1 and is_wrapped(lines):
            yield from assemble(plain_tokens("".join(lines)))
        else:
            for line in lines:
                yield from assemble(plain_tokens(line))


def paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines up to a blank one; a line that begins with a bullet begins another."""
    held: list[str] = []
    for line in lines:
        if held and (not line.strip() or not held[-1].strip() or BULLET.match(line.lstrip())):
            yield held
            held = []
        held.append(line)
    if held:
        yield held


def is_wrapped(lines: Sequence[str]) -> bool:
    """Whether no line but the last had room for the first word of the next, and the end is the end of a sentence."""
    shown = [line.rstrip() for line in lines]
    width = max(map(len, shown))
    full = all(len(line) + 1 + len(after.split()[0]) > width for line, after in pairwise(shown))
    ended = [bool(re.search(r"[.!?…:;]\W*$", line)) for line in shown]
    return width >= MIN_WRAPPED and full and ended[-1] and not all(ended)


def plain_tokens(text: str) -> Iterator[InlineToken]:
    """Bullets, columns and the white space around the text are no prose."""
    start = len(text) - len(text.lstrip())
    if bullet := BULLET.match(text, start):
        start = bullet.end()
    yield InlineToken("cut", text[:start])
    end = max(start, len(text.rstrip()))
    for match in COLUMNS.finditer(text, start, end):
        if LINE_BREAK.search(match[0]) is None:
            yield InlineToken("text", text[start : match.start()], text[start : match.start()])
            yield InlineToken("cut", match[0])
            start = match.end()
    yield InlineToken("text", text[start:end], text[start:end])
    yield InlineToken("cut", text[end:])


# --- HTML, and tags in other formats ---

TAG = r"</?[a-zA-Z][^\s<>/]*(?:\"[^\"]*\"|'[^']*'|[^'\"<>])*>"
UNREAD = "script style pre textarea template svg math"  # elements whose text is not prose
HTML_TOKEN = re.compile(
    rf"(?P<unread><!--.*?-->|<![^>]*>|<\?.*?\?>|<(?P<element>{'|'.join(UNREAD.split())})\b[^>]*>.*?</(?P=element)\s*>)"
    r"|(?P<code><(?P<coded>code|kbd|samp|var|tt)\b[^>]*>.*?</(?P=coded)\s*>)"
    rf"|(?P<tag>{TAG})|(?P<entity>&(?:\#\d{{1,7}}|\#[xX][0-9a-fA-F]{{1,6}}|[a-zA-Z]\w{{1,30}});)",
    re.DOTALL,
)
INLINE_TAGS = "a abbr b bdi bdo big cite del dfn em font i ins mark q s small span strong sub sup u"


def parse_html(text: str) -> Iterator["str | Prose"]:
    yield from assemble(html_tokens(text))


def html_tokens(text: str) -> Iterator[InlineToken]:
    at = 0
    for match in HTML_TOKEN.finditer(text):
        yield InlineToken("text", text[at : match.start()], text[at : match.start()])
        yield html_token(match)
        at = match.end()
    yield InlineToken("text", text[at:], text[at:])


def html_token(match: re.Match[str]) -> InlineToken:
    raw = match[0]
    if match["tag"]:
        return tag_token(raw)
    if match["entity"]:
        return InlineToken("protect", raw, shown, "entity") if (shown := entity_text(raw)) else InlineToken("cut", raw)
    if match["code"]:
        shown = " ".join(unescape(re.sub(TAG, "", raw)).split())
        return InlineToken("protect", raw, shown, "code") if shown else InlineToken("cut", raw)
    return InlineToken("cut", raw)


def tag_token(raw: str) -> InlineToken:
    """Inline elements mark some of a sentence; others separate sentences."""
    found = re.match(r"<(/?)([a-zA-Z][\w-]*)", raw)
    if found is None or found[2].lower() not in INLINE_TAGS.split() or raw.endswith("/>"):
        return InlineToken("cut", raw)
    return InlineToken("close" if found[1] else "open", raw, "", f"<{found[2].lower()}>")


def entity_text(raw: str) -> str:
    """The character of an entity; a space for those that are wide or do not break; "" if there is none."""
    shown = unescape(raw)
    return "" if shown == raw else " " if shown.isspace() else shown


# --- Markdown ---

FENCE = re.compile(r"[\s>]*(?:[-*+]\s+)?(?P<fence>`{3,}|~{3,}|\$\$)")
UNREAD_BLOCK = re.compile(rf"\s*(?:<!--|<(?P<element>{'|'.join(UNREAD.split())})\b)", re.IGNORECASE)
BLOCK_PREFIX = re.compile(
    r"(?P<quote>(?:\s{0,3}>)*)\s*(?P<marker>\[\^[^\]]+\]:\s+|(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?:\[[ xX]\]\s+)?)"
    r"(?P<heading>\#{1,6}\s+)?"
)
HEADING_TAIL = re.compile(r"\s+#+\s*$|\s*\{[#.:][^}]*\}\s*$")
VERBATIM_LINE = re.compile(r"\s{0,3}\[[^\]^][^\]]*\]:\s|\s*(?::::|!!!|\?\?\?|\{[%:#.])")
TABLE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
CELL_EDGE = re.compile(r"(?:\\.|`[^`]*`|[^|\\`]|[\\`])+")
DESTINATION = r"\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\]\n]*\]"
MARKDOWN_TOKEN = re.compile(
    rf"(?P<code>(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<image>\[!\[[^\]]*\](?:{DESTINATION})\](?:{DESTINATION})|!\[[^\]]*\](?:{DESTINATION}))"
    r"|(?P<literal><(?:https?:|mailto:|ftp:)[^>\s]+>|<[^<>\s@]+@[^<>\s]+>|\[\^[^\]\s]+\]|\$(?![\s\d])[^$\n]+(?<!\s)\$(?!\w))"
    rf"|(?P<comment><!--.*?-->)|(?P<tag>{TAG})|(?P<escape>\\[!-/:-@\[-`{{-~])"
    r"|(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]\w{1,30});)"
    rf"|(?P<link>\](?:{DESTINATION}))|(?P<bracket>[\[\]])|(?P<emphasis>\*{{1,3}}|_{{1,3}}|~~)"
    r"|(?P<hard>(?:[ ]{2,}|\\)(?:\r\n|\n|\r)\s*)",
    re.DOTALL,
)


def parse_markdown(text: str) -> Iterator["str | Prose"]:
    """Blocks by their first characters; code, mathematics, references and rules are copied."""
    lines, at, listed, blank = text.splitlines(keepends=True), 0, False, True
    if lines and lines[0].rstrip() in ("---", "+++"):
        ends = [n for n, line in enumerate(lines[1:], 2) if line.rstrip() == lines[0].rstrip()]
        at = ends[0] if ends else 0
        yield "".join(lines[:at])
    while at < len(lines):
        line = lines[at]
        count = verbatim_lines(lines, at)
        if not count and blank and not listed and line.startswith(("    ", "\t")) and line.strip():
            count = 1  # indented code
        elif line.strip():
            marked = BLOCK_PREFIX.match(line)
            listed = bool(marked and marked["marker"]) or (listed and line[:1].isspace())
            blank = False
        if count:
            yield "".join(lines[at : at + count])
            blank = blank or not line.strip()
        elif is_table(lines, at):
            while at + count < len(lines) and "|" in lines[at + count]:
                yield from parse_table_row(lines[at + count])
                count += 1
        else:
            count = paragraph_lines(lines, at)
            yield from parse_markdown_block(lines[at : at + count])
        at += count


def verbatim_lines(lines: Sequence[str], at: int) -> int:
    """How many lines from here on are copied: a fenced block, a comment, a line without words; 0 if none."""
    line = lines[at]
    if fence := FENCE.match(line):
        mark = fence["fence"]
        if mark == "$$" and line.count("$$") > 1:
            return 1
        return until(lines, at, lambda after: after.strip().lstrip("> \t").startswith(mark))
    if block := UNREAD_BLOCK.match(line):
        end = f"</{block['element'].lower()}" if block["element"] else "-->"
        if end in line.lower():
            return 1 if not line.lower().rpartition(end)[2].strip(">\r\n\t ") else 0
        return until(lines, at, lambda after: end in after.lower())
    return int(VERBATIM_LINE.match(line) is not None or not any(letter.isalnum() for letter in line))


def until(lines: Sequence[str], at: int, ends: Callable[[str], bool]) -> int:
    """How many lines there are to the one that ends the block, or to the end."""
    return next((n for n, line in enumerate(lines[at + 1 :], 2) if ends(line)), len(lines) - at)


def is_table(lines: Sequence[str], at: int) -> bool:
    return "|" in lines[at] and at + 1 < len(lines) and "|" in lines[at + 1] and bool(TABLE_RULE.match(lines[at + 1]))


def parse_table_row(line: str) -> Iterator["str | Prose"]:
    if TABLE_RULE.match(line):
        yield line
        return
    at = 0
    for cell in CELL_EDGE.finditer(line):
        yield from ([line[at : cell.start()]] if at < cell.start() else [])
        yield from assemble(markdown_tokens(cell[0]))
        at = cell.end()
    yield from ([line[at:]] if at < len(line) else [])


def paragraph_lines(lines: Sequence[str], at: int) -> int:
    """How many lines the paragraph, the item or the heading at a line has."""
    first = BLOCK_PREFIX.match(lines[at])
    assert first is not None  # each part of it may be empty
    if first["heading"]:
        return 1
    count = 1
    while at + count < len(lines) and not verbatim_lines(lines, at + count) and not is_table(lines, at + count):
        found = BLOCK_PREFIX.match(lines[at + count])
        assert found is not None
        if found["marker"] or found["heading"] or found["quote"].count(">") != first["quote"].count(">"):
            break
        count += 1
    return count


def parse_markdown_block(lines: Sequence[str]) -> Iterator["str | Prose"]:
    """The prefix of the first line is no prose, and those of others belong to its line breaks."""
    first, rest = lines[0], list[InlineToken]()
    start = prefix_end(first)
    body = "".join([first[start:], *lines[1:]])
    if tail := HEADING_TAIL.search(body) if first[:start].rstrip().endswith("#") else None:
        rest, body = [InlineToken("cut", body[tail.start() :])], body[: tail.start()]
    yield from ([first[:start]] if start else [])
    yield from assemble([*markdown_tokens(body), *rest])


def prefix_end(line: str) -> int:
    found = BLOCK_PREFIX.match(line)
    return found.end() if found else 0


def markdown_tokens(text: str) -> Iterator[InlineToken]:
    at = 0
    brackets = link_brackets(text)
    for match in MARKDOWN_TOKEN.finditer(text):
        token = markdown_token(match, brackets)
        if token is None:
            continue
        yield from quoted_text(text[at : match.start()])
        yield token
        at = match.end()
    yield from quoted_text(text[at:])


def quoted_text(text: str) -> Iterator[InlineToken]:
    """Text; a line break takes the > of a quotation with it."""
    at = 0
    for match in re.finditer(r"(?:\r\n|\n|\r)(?:[ \t]*>)+[ \t]*", text):
        yield InlineToken("text", text[at : match.start()], text[at : match.start()])
        yield InlineToken("break", match[0])
        at = match.end()
    yield InlineToken("text", text[at:], text[at:])


def link_brackets(text: str) -> set[int]:
    """Where the brackets of links stand: the [ before, and the ] with a destination; others are text."""
    found, waiting = set[int](), list[int]()
    for match in MARKDOWN_TOKEN.finditer(text):
        if match["bracket"] == "[":
            waiting.append(match.start())
        elif match["bracket"] and waiting:
            waiting.pop()
        elif match["link"] and waiting:
            found |= {waiting.pop(), match.start()}
    return found


def markdown_token(match: re.Match[str], brackets: set[int]) -> InlineToken | None:
    """None for a character that is text here."""
    raw, start = match[0], match.start()
    if match["tag"]:
        return tag_token(raw)
    if match["entity"]:
        return InlineToken("protect", raw, shown, "entity") if (shown := entity_text(raw)) else InlineToken("cut", raw)
    if match["code"]:
        shown = " ".join(raw.strip("`").split())
        return InlineToken("protect", raw, shown, "code") if shown else InlineToken("cut", raw)
    if match["literal"]:
        after_end = raw.startswith("[^") and match.string[:start].rstrip()[-1:] in (".", "!", "?", "…")
        return InlineToken("cut", raw) if after_end else InlineToken("protect", raw, raw, "code")
    if match["escape"]:
        return InlineToken("protect", raw, raw[1], "escape")
    if match["bracket"] or match["link"]:
        if start not in brackets:
            return None
        return InlineToken("open" if match["bracket"] else "close", raw, "", "[")
    if match["emphasis"]:
        return emphasis_token(match)
    return InlineToken("cut", raw)


def emphasis_token(match: re.Match[str]) -> InlineToken | None:
    """By what stands around it (CommonMark's flanking runs, simplified)."""
    raw, text = match[0], match.string
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    inside_word = raw[0] == "_" and before.isalnum() and after.isalnum()
    opens = bool(after.strip()) and not inside_word and not before.isalnum()
    closes = bool(before.strip()) and not inside_word and not (opens and not after.isalnum())
    if raw[0] != "_" and before.isalnum() and after.isalnum():  # **bold**ness
        opens = closes = True
    if opens and closes:
        closes = text.count(raw, 0, match.start()) % 2 == 1
    if not (opens or closes):
        return None
    return InlineToken("close" if closes else "open", raw, "", raw)


def escape_markdown(text: str, source: str) -> str:
    """Marks that the source does not have, escaped: a translation adds no markup."""
    return re.sub(r"[\\`*_\[\]<|]", lambda match: match[0] if match[0] in source else f"\\{match[0]}", text)


# --- subtitles ---

CUE_TIME = re.compile(r"\s*(?:\d+:)?\d{1,2}:\d{2}[,.]\d{1,3}\s*-->")
CUE_TOKEN = re.compile(rf"(?P<tag>{TAG})|(?P<cut>\{{\\[^}}]*\}}|[♪♫#]+|^[-–—]\s*|<\d[\d:.]*>)", re.MULTILINE)


def parse_subtitles(text: str) -> Iterator["str | Prose"]:
    """The lines of a cue as one text, and with those of the next where a sentence goes on; numbers and times stay.

    A line that begins with a dash is another speaker's.
    """
    lines, tokens, at, ended = text.splitlines(keepends=True), list[InlineToken](), 0, True
    times = [n for n, line in enumerate(lines) if CUE_TIME.match(line)]
    header = ""
    for time, after in pairwise([*times, len(lines)]):
        header += "".join(lines[at : time + 1])
        at = next((n for n in range(time + 1, after) if not lines[n].strip()), after)
        if at == after < len(lines) and lines[after - 1].strip().isdigit():
            at = max(time + 1, after - 1)  # no blank line before the number of the next cue
        body = "".join(lines[time + 1 : at])
        shown = body.rstrip()
        goes_on = not ended and re.sub(rf"^(?:{TAG})+", "", shown)[:1].islower()
        if not goes_on:
            yield from assemble(tokens)
            tokens = []
        tokens.append(InlineToken("break" if goes_on else "cut", header))
        tokens += cue_tokens(shown)
        header = body[len(shown) :]
        ended = not shown or re.search(rf"[.!?…:♪]\W*(?:(?:{TAG})\W*)*$", shown) is not None
    yield from assemble(tokens)
    if rest := header + "".join(lines[at:]):
        yield rest


def cue_tokens(text: str) -> Iterator[InlineToken]:
    at = 0
    for match in CUE_TOKEN.finditer(text):
        yield InlineToken("text", text[at : match.start()], text[at : match.start()])
        yield tag_token(match[0]) if match["tag"] else InlineToken("cut", match[0])
        at = match.end()
    yield InlineToken("text", text[at:], text[at:])


# --- the formats ---


@dataclass(frozen=True)
class DocumentFormat:
    """A kind of document: how it is read, how text is written in it, and the endings of its files."""

    name: str
    parse: Callable[[str], Iterator["str | Prose"]]
    escape: Callable[[str, str], str]
    endings: tuple[str, ...]


def keep_characters(text: str, source: str) -> str:
    return text


DOCUMENT_FORMATS = {
    one.name: one
    for one in (
        DocumentFormat("text", parse_text, keep_characters, (".txt",)),
        DocumentFormat("markdown", parse_markdown, escape_markdown, (".md", ".markdown")),
        DocumentFormat("srt", parse_subtitles, keep_characters, (".srt", ".vtt")),
        DocumentFormat("html", parse_html, lambda text, _: escape(text, quote=False), (".html", ".htm")),
    )
}
