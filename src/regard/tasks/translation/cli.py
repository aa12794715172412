"""`regard translate`: translates a document, or lines of a file, of stdin or typed at a prompt."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice, tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.progress import with_progress
from regard.tasks.registry import MAX_SENTENCE_TOKENS, ViewRequest

if TYPE_CHECKING:
    from regard.decode.alignment import AlignmentHead, SentencePairAttention
    from regard.decode.search import Search
    from regard.decode.stepwise import StepwiseSearch
    from regard.decode.translation import SentenceTranslator, Translation
    from regard.models.seq2seq import DecodableModel as Prepared
    from regard.see.plots.attention_maps import Alignment
    from regard.see.plots.panels import View
    from regard.tasks.protocol import ProgressBar
    from regard.tasks.translation.task import Translator


@dataclass(frozen=True)
class HypothesisOptions:
    """Which translations of each line are written, and what with them."""

    best: Annotated[
        int,
        typer.Option("--n-best", "--best", min=1, help="Number of hypotheses per line (n-best), each with its score."),
    ] = 1
    sample: Annotated[bool, typer.Option("--sample", help="Sample translations instead of beam search.")] = False
    temperature: Annotated[float | None, typer.Option(help="For --sample: the sampling temperature.")] = None
    top_k: Annotated[int | None, typer.Option(help="For --sample: sample from the k most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="For --sample: nucleus sampling, the total probability kept.")] = (
        None
    )
    seed: Annotated[int | None, typer.Option(min=0, help="For --sample.")] = None
    scores: Annotated[bool, typer.Option("--scores", help="Write each log-probability before its text.")] = False
    align: Annotated[
        Path | None, typer.Option(help="Write word alignments here, in Pharaoh format (0-0 1-2) on every line.")
    ] = None

    @property
    def with_scores(self) -> bool:
        return self.scores or self.best > 1

    def build(self, search: options.SearchOptions) -> "Search":
        """The search, or the sampling, that finds them."""
        names = ("temperature", "top_k", "top_p", "seed")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if given and not self.sample:
            raise ValueError(f"--{next(iter(given)).replace('_', '-')} needs --sample")
        if self.sample:
            from regard.decode import Sampling

            return Sampling(samples=self.best, **given)
        found = search.build(self.best)
        if self.best > 1 and (search.length_penalty or search.coverage_penalty):
            options.print_notice(
                "regard: n-best lists are ranked by the penalised score; the log-probabilities before them may be in "
                "another order, and are in this one with --length-penalty 0"
            )
        return found


@dataclass(frozen=True)
class ReadingOptions:
    """How the input is read: its form, the language that it is to have, and what is refused."""

    to: Annotated[
        str | None, typer.Option("--to", "--target", help="The target language, of a model that knows several.")
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            *options.MAX_LENGTH_NAMES,
            min=1,
            help="Maximum tokens of a sentence: a longer line is refused, a longer sentence of a document split into "
            f"clauses. Default: {MAX_SENTENCE_TOKENS}, and of documents the length that the model was trained with.",
        ),
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            help="lines (each one sentence, as test sets have them), or a document: text, markdown, srt or html. "
            "Default: by the file's ending (.txt .md .srt .vtt .html), text for stdin and a sentence, otherwise lines."
        ),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines and out-of-vocabulary words.")] = False


@options.with_option_groups
def translate(
    model: options.ModelArgument,
    files: options.TextFiles = options.TextFiles(),
    search: options.SearchOptions = options.SearchOptions(),
    hypotheses: HypothesisOptions = HypothesisOptions(),
    reading: ReadingOptions = ReadingOptions(),
    precision: Annotated[
        str,
        typer.Option(
            help="float32; faster: bfloat16 on a GPU, int8 on a CPU. A word in a hundred may differ; in int8, beside "
            "other lines, a score by up to 0.1. On a CPU, screened: float32 whose scores may differ by 0.002 a word."
        ),
    ] = "float32",
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Translate a document or a file of lines; without one, what you type (with --beam 1 or --sample word by word).

    Documents keep their lines, paragraphs, markup, code, URLs and numbers.

    Example: `regard translate run letter.md --out brief.md`

    Example: `cat letter.txt | regard translate run`

    Example: `regard translate run film.srt --out film.fr.srt`

    Example: `regard translate run text.en --out text.de`

    Example: `regard translate run "the black cat ate the mouse"`

    Example: `regard translate run text.en --n-best 3 --scores`

    Example: `regard translate run text.en --out text.de --align text.links`

    Example: `regard translate run --sample --temperature 0.7`

    Example: `regard translate both text.en --to fr` (see regard data prepare for models of several target languages)
    """
    from regard.decode import prepare
    from regard.tasks.translation.task import Translator

    out, align = options.writable_files(out=files.out, align=hypotheses.align)
    if align and (hypotheses.best > 1 or files.file is None):
        raise ValueError("--align is for a file with one translation of each line; leave out --n-best, or give a file")
    chosen, scores = hypotheses.build(search), hypotheses.with_scores
    of_lines = {"--align": align, "--n-best": hypotheses.best > 1, "--scores": scores, "--strict": reading.strict}
    names = [name for name, value in of_lines.items() if value]
    kind = "typed" if files.are_typed else choose_format(files.file, reading.format, names)
    translator = load.load(Translator, model)
    prepared = prepare(translator.model, precision)
    job = TranslationJob(translator, prepared, model, chosen, reading.to, reading.max_length)
    if kind == "typed":
        documents = not (scores or hypotheses.sample or job.lacks_target)
        prompt_loop(job, scores=scores, streams=precision == "float32", documents=documents)
    elif kind == "lines" or (reading.format is None and kind == "text" and job.lacks_target):
        # lines, or texts each of which says its language itself
        translate_file(job, files, hypotheses, out, align, strict=reading.strict)
    else:
        by = job.sentence_translator(with_progress)
        text = options.read_whole_input(files.file)
        if not text.strip():
            options.print_notice(f"regard: {files.file or 'stdin'} is empty; there is nothing to translate")
        write_document(by, text, kind, out)


@dataclass(frozen=True, eq=False)
class TranslationJob:
    """A translator from a folder, and how it translates.

    Args:
        prepared: its model, in the precision that is asked for.
        to: the target language, of a model that knows several.
        max_length: tokens of a sentence; None is the default of lines, or of documents.
    """

    translator: "Translator"
    prepared: "Prepared"
    folder: Path
    search: "Search"
    to: str | None
    max_length: int | None

    @property
    def lacks_target(self) -> bool:
        """Whether each text has to say its target language itself."""
        return bool(self.translator.target_languages) and self.to is None

    @property
    def line_tokens(self) -> int:
        return self.max_length or MAX_SENTENCE_TOKENS

    def sentence_translator(self, progress: "ProgressBar | None" = None) -> "SentenceTranslator":
        """Translates the sentences of documents."""
        from regard.decode.document_translation import sentence_translator

        more = {} if progress is None else {"progress": progress}
        return sentence_translator(
            self.translator, self.search, model=self.prepared, to=self.to, max_length=self.max_length, **more
        )

    def translations(self, texts: Iterable[str]) -> "Iterator[list[Translation]]":
        return translations_in_order(self.translator, texts, self.search, self.prepared)


def translate_file(
    job: TranslationJob,
    files: options.TextFiles,
    hypotheses: HypothesisOptions,
    out: Path | None,
    align: Path | None,
    *,
    strict: bool,
) -> None:
    """A line for each line; with alignments, in a file of their own, for each."""
    from regard.data.files import open_atomic

    inputs, best = files.read(), hypotheses.best
    tagged = (job.translator.tag_source(text, job.to) for text in inputs.texts)
    texts = check_texts(job.translator, tagged, inputs.location, max_length=job.line_tokens, strict=strict)
    with open_atomic(align) if align else nullcontext() as links:
        found = write_alignments(job, texts, links) if links else job.translations(texts)
        lines = (
            translation_line(one, scores=hypotheses.with_scores) for these in found for one in (these * best)[:best]
        )  # an empty line has one
        if out or not sys.stdout.isatty():  # on a terminal the lines themselves show the progress
            lines = with_progress(lines, "translating", lambda: (inputs.count() or 0) * best or None)
        options.write_lines(lines, out)


# --- documents ---


def choose_format(file: str | None, wanted: str | None, of_lines: Sequence[str]) -> str:
    """The format that is wanted, or that of the input; `of_lines` are options that only lines have."""
    from regard.data.documents import DOCUMENT_FORMATS
    from regard.data.files import file_format

    if wanted is not None and wanted not in ("lines", *DOCUMENT_FORMATS):
        raise ValueError(f"--format {wanted}: choose from lines, {', '.join(DOCUMENT_FORMATS)}")
    if wanted is not None:
        kind = wanted
    elif file is None or file == "-" or options.is_sentence(file):
        kind = "lines" if of_lines else "text"
    else:
        ending = file_format(Path(file)).lower()
        kind = next((one.name for one in DOCUMENT_FORMATS.values() if ending in one.endings), "lines")
        kind = "lines" if kind == "text" and of_lines else kind
    if kind != "lines" and of_lines:
        raise ValueError(f"{of_lines[0]} is for lines, and this is {kind}; leave it out, or say --format lines")
    return kind


def write_document(by: "SentenceTranslator", text: str, kind: str, out: Path | None) -> None:
    """Translates a document and says which words were copied, since the model cannot read them."""
    from regard.data.files import write_text_atomic
    from regard.decode.document_translation import translate_windows

    unknown: Counter[str] = Counter()
    stdout = sys.stdout  # a progress bar, once started, replaces it
    found = translate_windows(text, replace(by, report=lambda words: unknown.update(words.split())), kind)
    if out is not None:
        write_text_atomic(out, "".join(found))
        typer.echo(f"translated: {out}", err=True)
    else:
        last = ""
        for last in found:
            typer.echo(last, nl=False, file=stdout)
        if last and not last.endswith("\n"):
            typer.echo(file=stdout)
    if unknown:
        first, more = shorten(next(iter(unknown))), len(unknown) - 1
        rest = f" and {more:,} more {'word' if more == 1 else 'words'} are" if more else " is"
        typer.echo(f"regard: {first!r}{rest} out of vocabulary; copied", err=True)


# --- lines ---


def write_alignments(job: TranslationJob, texts: Iterator[str], file: IO[bytes]) -> "Iterator[list[Translation]]":
    """The translations; writes the word alignments of each on the way."""
    from regard.decode.alignment import format_links

    heads, texts = alignment_heads_for(job.translator, job.folder, texts)
    read, again = tee(texts)  # buffers at most a window
    for text, these in zip(again, job.translations(read), strict=True):
        file.write(f"{format_links(job.translator, text, these[0].text, heads)}\n".encode())
        yield these


def alignment_heads_for(
    translator: "Translator", model: Path, texts: Iterator[str]
) -> "tuple[Sequence[AlignmentHead], Iterator[str]]":
    """The alignment heads, and the texts again: the first may have been read to choose the heads."""
    from regard.decode.alignment import load_alignment_heads
    from regard.decode.translation import WINDOW
    from regard.tasks.translation.task import alignment_heads_from_texts

    if heads := load_alignment_heads(model):
        return heads, texts
    first = list(islice(texts, WINDOW))
    if not (heads := alignment_heads_from_texts(translator, first)):
        raise ValueError(f"--align: {model} has no alignment heads; a model without attention has none")
    return heads, chain(first, texts)


def translations_in_order(
    translator: "Translator", texts: Iterable[str], search: "Search", model: "Prepared"
) -> "Iterator[list[Translation]]":
    """The translations in the order of the texts, each as soon as all before it have arrived."""
    from regard.decode.translation import translate_lines

    waiting: dict[int, list[Translation]] = {}
    due = 0
    for index, these in translate_lines(translator, texts, search, model=model):
        waiting[index] = these
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def translation_line(one: "Translation", *, scores: bool) -> str:
    return f"{one.hypothesis.log_probability:.4f}\t{one.text}" if scores else one.text


# --- input checks ---


MAX_WARNINGS = 3  # lines whose out-of-vocabulary words are named
MAX_WORD_LETTERS = 40  # letters of a word that are shown


def check_texts(
    translator: "Translator",
    texts: Iterable[str],
    where: Callable[[int], str],
    *,
    max_length: int,
    strict: bool = False,
) -> Iterator[str]:
    """The same texts, window by window: all of a window are checked before its first is yielded."""
    from regard.data.files import chunks
    from regard.data.tokenizers.base import UNK, LosslessTokenizer
    from regard.decode.translation import WINDOW, encode_texts, unreadable_words

    lossless = isinstance(translator.source, LosslessTokenizer)
    first, unknown = 1, 0
    for some in chunks(texts, WINDOW):
        encoded = encode_texts(translator.source, some)
        options.refuse_long(encoded, where, max_length, first)
        if strict and [] in encoded:
            empty = where(first + encoded.index([]))
            raise ValueError(f"{empty}: the line is empty; remove it, or leave out --strict to keep it empty")
        for number, (text, ids) in enumerate(zip(some, encoded, strict=True), first):
            if text.isascii() if lossless else UNK not in ids:
                continue
            if not (words := unreadable_words(translator, text)):
                continue
            unknown += 1
            if unknown <= MAX_WARNINGS:
                warn_unknown(words[0], where(number), "letter by letter" if lossless else "as <unk>", strict=strict)
        yield from some
        first += len(some)
    if unknown > MAX_WARNINGS:
        more = unknown - MAX_WARNINGS
        lines = "line" if more == 1 else "lines"
        typer.echo(f"regard: and {more:,} more {lines} with out-of-vocabulary words", err=True)


def warn_unknown(word: str, where: str, how: str, *, strict: bool) -> None:
    what = f"{where}: {shorten(word)!r} is out of vocabulary"
    if strict:
        raise ValueError(f"{what}; replace it, or leave out --strict to translate it {how}")
    typer.echo(f"regard: {what}; it is translated {how}", err=True)


def shorten(word: str) -> str:
    return word if len(word) <= MAX_WORD_LETTERS else f"{word[:MAX_WORD_LETTERS]}…"


def check_text(translator: "Translator", text: str, where: str, *, max_length: int) -> None:
    """The same for one text."""
    for _ in check_texts(translator, [text], lambda _: where, max_length=max_length):
        pass


# --- the prompt ---


def prompt_loop(job: TranslationJob, *, scores: bool, streams: bool, documents: bool) -> None:
    """Answers typed lines: word by word where the search goes so, else as documents or as they are.

    Args:
        streams: whether lines may be answered word by word, which the translator's own model does.
    """
    from regard.decode.stepwise import StepwiseSearch

    search, by = job.search, job.sentence_translator() if documents else None
    streamed = search if streams and isinstance(search, StepwiseSearch) and search.width == 1 else None

    def answer(line: str) -> None:
        if by is not None and streamed is None:
            write_document(by, line, "text", None)
            return
        line = job.translator.tag_source(line, job.to)
        check_text(job.translator, line, "this line", max_length=job.line_tokens)
        if streamed is not None and not scores:
            stream_words(job.translator, line, streamed)
            return
        for these in job.translations([line]):
            for one in these:
                typer.echo(translation_line(one, scores=scores))

    options.answer_typed_lines("Type a sentence", answer)


def stream_words(translator: "Translator", line: str, search: "StepwiseSearch") -> None:
    """A word is shown when the next one has begun: until then punctuation, or the rest of a letter, may join it."""
    from regard.decode import stream
    from regard.decode.translation import detokenize_line

    shown, ids = "", []
    for id in stream(translator.model, translator.source.encode(line), search):
        ids.append(id)
        settled = detokenize_line(translator, ids).rpartition(" ")[0]
        if settled.startswith(shown):
            typer.echo(settled[len(shown) :], nl=False)
            shown = settled
    text = detokenize_line(translator, ids)
    typer.echo(text[len(shown) :] if text.startswith(shown) else f"\n{text}")


# --- look ---


def view_translation(translator: "Translator", folder: Path, text: str, request: ViewRequest) -> "tuple[str, View]":
    from regard import see
    from regard.decode.alignment import attend_pair
    from regard.decode.translation import translate_texts

    check_text(translator, text, "the sentence", max_length=request.max_tokens)
    written = request.target
    if written is None:
        written = translate_texts(translator, [text], options.SearchOptions(request.beam).build())[0]
    if not written.strip():
        raise ValueError(f"{text!r} is translated by nothing; give a translation to look at with --target")
    seen = attend_pair(translator, text, written)
    if request.all_heads:
        view = view_all_heads(seen)
    elif request.word is not None:
        view = view_deciding_words(
            translator, seen, text, request.word, choose_head_to_view(translator, folder, seen, request.head)
        )
    else:
        head = choose_head_to_view(translator, folder, seen, request.head)
        view = see.build_view(build_alignment(translator, seen, (head,)), title=head.name)
    return f"{text}\n{written}", view


def choose_head_to_view(
    translator: "Translator", model: Path, seen: "SentencePairAttention", wanted: str | None
) -> "AlignmentHead":
    """The one asked for, or the one at which the page opens as well."""
    from regard.decode.alignment import AlignmentHead, all_heads, best_head

    if wanted is None:
        return best_head(translator, model, seen)
    there = all_heads(seen.attention)
    layer, _, number = wanted.rpartition(":")
    if not number.isdecimal() or AlignmentHead(layer, int(number)) not in there:
        names = ", ".join(dict.fromkeys(f"{head.layer}:{head.head}" for head in there))
        raise ValueError(f"--head {wanted}: write LAYER:HEAD, one of {names}")
    return AlignmentHead(layer, int(number))


def build_alignment(
    translator: "Translator", seen: "SentencePairAttention", heads: "Sequence[AlignmentHead]"
) -> "Alignment":
    """The matrix; a sentence of the lectures, if translated as they do, comes with its gold alignment."""
    from regard.see.plots.attention_maps import Alignment
    from regard.tasks.translation.task import known_alignment

    gold = known_alignment(translator, seen.source.words, seen.target.words)
    return Alignment(seen.source.words, seen.target.words, seen.word_matrix(heads), gold)


def view_all_heads(seen: "SentencePairAttention") -> "View":
    from regard.decode.alignment import AlignmentHead
    from regard.see.plots.attention_maps import head_maps

    panels = {
        layer: [seen.word_matrix([AlignmentHead(layer, number)]) for number in range(weights.shape[0])]
        for layer, weights in seen.attention.layers.items()
    }
    return head_maps(seen.source.words, seen.target.words, panels)


def view_deciding_words(
    translator: "Translator", seen: "SentencePairAttention", text: str, word: str, head: "AlignmentHead"
) -> "View":
    """Two strips: what the model attended to for the word's translation, and without which words it is another."""
    import torch

    from regard.decode.alignment import find_deciding_words
    from regard.see.plots.attention_maps import stack, strip

    if word not in seen.source.words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(seen.source.words)}")
    at, weights = seen.source.words.index(word), seen.word_matrix([head])[:, :-1]
    there = int(weights[:, at].argmax())
    target_word, words = seen.target.words[there], seen.source.words
    others = {
        place: written for place, written in find_deciding_words(translator, text, target_word).items() if place != at
    }
    hangs = torch.tensor([float(place in others) for place in range(len(words))])
    shown = stack(
        strip(words, weights[there].cpu(), f"what it attended to for “{target_word}” ({head.name})", highlight=at),
        strip(
            words,
            hangs,
            f"left out, it is not “{target_word}” any more" if others else "no other word decides",
            highlight=at,
        ),
    )
    return replace(shown, notes=tuple((f"no {words[place]}", written) for place, written in others.items()))


COMMANDS = {"translate": translate}
view = view_translation
