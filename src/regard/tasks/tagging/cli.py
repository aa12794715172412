"""`regard tag`: tags the words of sentences, in the format of the input."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.tasks.registry import MAX_SENTENCE_TOKENS, ViewRequest

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.labelled import TaggedSentence
    from regard.see.plots.panels import View
    from regard.tasks.tagging.task import Tagger, TaggingPrediction


@options.with_option_groups
def tag(
    model: options.ModelArgument,
    file: Annotated[
        str | None,
        typer.Argument(help="A .conllu, a .tsv of words, a text with a sentence a line, one in quotes, or -."),
    ] = None,
    out: options.OutOption = None,
    max_length: options.MaxLength = MAX_SENTENCE_TOKENS,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Tag the words of sentences. A .conllu keeps its other columns; words of plain text are separated by blanks.

    Example: `regard tag tagger dev.conllu --out tagged.conllu`

    Example: `echo "the black cat ate the mouse" | regard tag tagger -`

    Example: `regard tag tagger text.txt --out text.tsv`
    """
    from regard.tasks.tagging.task import Tagger

    out = out and options.writable_file(out)
    tagger = load.load(Tagger, model)
    if file is None and sys.stdin.isatty():
        prompt_loop(tagger, max_length)
        return
    write_tagged(
        tag_sentences(tagger, read_plain_sentences(file), file or "stdin", max_length),
        out,
        conllu=file is not None and ".conllu" in Path(file).suffixes,
    )


def read_plain_sentences(file: str | None) -> "Iterator[TaggedSentence]":
    """Columns of a .conllu or .tsv file; otherwise one sentence per line. Lines without words are skipped."""
    from regard.data.files import file_format
    from regard.data.labelled import NO_VALUE, TaggedSentence, read_tagged

    if file is not None and file_format(Path(file)) in (".conllu", ".tsv"):
        yield from read_tagged(file)
        return
    for line in options.read_input(file).texts:
        if words := line.split():
            yield TaggedSentence(tuple(words), (NO_VALUE,) * len(words))


def tag_sentences(
    tagger: "Tagger", sentences: "Iterable[TaggedSentence]", name: str, max_length: int
) -> "Iterator[TaggedSentence]":
    """The sentences with the model's tags, a window at a time."""
    from regard.data.files import chunks
    from regard.decode.translation import WINDOW
    from regard.tasks.tagging.task import without_tags

    first = 1
    for some in chunks(sentences, WINDOW, lambda sentence: sum(map(len, sentence.words))):
        examples = [tagger.example(without_tags(one), f"sentence {number}") for number, one in enumerate(some, first)]
        pieces = (example.pieces.ids for example in examples)
        options.refuse_long(pieces, lambda number: f"{name}: sentence {number}", max_length, first)
        for one, tags in zip(some, tagger.predict(some), strict=True):
            yield one.with_tags(tags)
        first += len(some)
    if first == 1:
        raise ValueError(f"{name}: no sentence to tag; give at least one")


def write_tagged(tagged: "Iterable[TaggedSentence]", out: Path | None, *, conllu: bool) -> None:
    from regard.data.labelled import format_conllu, format_two_columns, write_columns, write_conllu

    if out is None:
        for number, one in enumerate(tagged, 1):
            lines = format_conllu(one, f"sentence {number}") if conllu else format_two_columns(one)
            typer.echo("\n".join(lines) + "\n")
        return
    count = (write_conllu if conllu else write_columns)(tagged, out)
    typer.echo(f"tagged: {out}, {count:,} sentences", err=True)


def prompt_loop(tagger: "Tagger", max_length: int) -> None:
    from regard.tasks.tagging.task import parse_sentence

    def answer(line: str) -> None:
        sentence = parse_sentence(tagger, line)
        options.refuse_long([tagger.example(sentence).pieces.ids], lambda _: "this line", max_length)
        tags = tagger.predict([sentence])[0]
        typer.echo(" ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, tags, strict=True)))

    options.answer_typed_lines("Type a sentence", answer)


# --- look ---


def view_tagging(tagger: "Tagger", folder: Path, text: str, request: ViewRequest) -> "tuple[str, View]":
    """Words and tags; for one word what it attended to; or every head."""
    from regard import see
    from regard.tasks.tagging.task import parse_sentence

    if request.target is not None:
        raise ValueError("--target is a translation, and this model tags words; leave it out")
    sentence = parse_sentence(tagger, text)
    options.refuse_long([tagger.example(sentence).pieces.ids], lambda _: "the sentence", request.max_tokens)
    seen = tagger.predict_with_attention(sentence)
    output = " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, seen.tags, strict=True))
    if request.all_heads:
        heads = {layer: [seen.word_weights(head) for head in weights] for layer, weights in seen.weights.items()}
        return output, see.self_attention_maps(sentence.words, heads)
    attention = {}
    if request.word is not None:
        attention = {find_word(request.word, sentence.words): select_head_weights(seen, request.head)}
        attention = {at: seen.word_weights(weights)[at] for at, weights in attention.items()}
    return output, see.tag_view(sentence.words, seen.tags, probabilities=seen.confidence, attention=attention)


def find_word(word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(words)}")
    return list(words).index(word)


def select_head_weights(seen: "TaggingPrediction", head: str | None) -> "Tensor":
    """The weights of one head, written LAYER:HEAD; without one, the mean of the last layer's."""
    if not seen.weights:
        raise ValueError("this model has no attention to look at; leave out --word and --head")
    if head is None:
        return list(seen.weights.values())[-1].mean(0)
    layer, _, number = head.rpartition(":")
    if layer not in seen.weights or not number.isdecimal() or int(number) >= len(seen.weights[layer]):
        names = ", ".join(f"{name}:0 to {len(weights) - 1}" for name, weights in seen.weights.items())
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of {names}")
    return seen.weights[layer][int(number)]


COMMANDS = {"tag": tag}
view = view_tagging
