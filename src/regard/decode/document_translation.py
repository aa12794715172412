"""Document translation: sentences of a document translated in batches; what must survive is checked, or kept out of it.

A sentence is translated as a whole. Where a number, a URL, code or a mark is then missing, the first of the n best
translations that has all of them is taken; failing that, that of the sentence with a number in place of what was
missing; failing that, the sentence is translated in pieces, around what was missing. So these survive whatever the
model writes, and all of a document's sentences share batches.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from regard.data.documents import (
    ACRONYM,
    DOCUMENT_FORMATS,
    DocumentFormat,
    LineBreak,
    Prose,
    clause_spans,
    write_spans,
)
from regard.data.files import chunks
from regard.decode.alignment import align_pair, aligned_words, argmax_links_or_null
from regard.decode.beam import Beam
from regard.decode.protected_spans import (
    AND,
    EMOJI,
    LITERAL,
    MASKS,
    Missing,
    has_words,
    is_unbalanced,
    localize_numbers,
    mask,
    outside_protected,
    overlaps,
    protect,
    restore,
    rewrite,
    unknown_spans,
)
from regard.decode.search import Search
from regard.decode.translation import (
    AlignedWord,
    Ask,
    Candidate,
    SentenceTranslator,
    Span,
    translate_lines,
    word_reader,
)
from regard.models.config import RNN_KINDS
from regard.models.seq2seq import DecodableModel

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

T = TypeVar("T")
Work = Generator[list[Ask], Sequence[Sequence[Candidate]], T]  # asks, is sent translations, and returns its result

WINDOW = 20_000  # sentences and what is between them that share batches


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


# --- what stands around a sentence ---

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
