"""`regard answer`: answers questions about an image (VQA)."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.tasks.registry import MAX_SENTENCE_TOKENS, ViewRequest

if TYPE_CHECKING:
    from torch import Tensor

    from regard.see.plots.panels import View
    from regard.tasks.vqa.task import QuestionAnswerer


@options.with_option_groups
def answer(
    model: options.ModelArgument,
    image: Annotated[Path, typer.Argument(help="A PNG or JPEG file.")],
    question: Annotated[
        str | None, typer.Argument(help="Default: the questions of --file, of stdin, or typed.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A text file with a question on every line; - for stdin.")] = None,
    out: options.OutOption = None,
    best: Annotated[int, typer.Option("--top-k", "--best", min=1, help="Top-k answers.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Write each answer's probability behind it.")] = False,  # noqa: FBT002
    max_length: Annotated[
        int,
        typer.Option(*options.MAX_LENGTH_NAMES, min=1, help="Maximum tokens of a question; a longer one is refused."),
    ] = MAX_SENTENCE_TOKENS,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Answer questions about an image.

    To train on your own: a .tsv with lines of image, tab, question, tab, answer, or a .jsonl with the fields picture,
    question and answer; paths of images are relative to the file. A folder or archive in the layout of easy-VQA also
    works: images/0.png … and questions.json, a list of [question, answer, number of the image].

    Example: `regard answer run image.png "what colour is the circle"`

    Example: `regard answer run image.png --file questions.txt --scores`
    """
    from regard.tasks.image_batches import load_image
    from regard.tasks.vqa.task import QuestionAnswerer

    out = out and options.writable_file(out)
    if question is not None and file is not None:
        raise ValueError(f"give the question, or the file {file}, not both")
    answerer = load.load(QuestionAnswerer, model)
    pixels = load_image(answerer.preprocessor, image)
    best = min(best, len(answerer.labels))
    scores = scores or best > 1
    if file is None and question is None and sys.stdin.isatty():
        prompt_loop(answerer, pixels, best, max_length, scores=scores)
        return
    if question is not None:
        if not question.strip():
            raise ValueError("the question is empty; give at least one word")
        inputs = options.InputLines(iter([question]), lambda _: "the question", lambda: 1)
    else:
        inputs = options.read_input(None if file is None else str(file))
    questions = check_questions(answerer, inputs, file or "stdin", max_length)
    options.write_lines(answer_lines(answerer, pixels, questions, best, scores=scores), out, "answered")


def check_questions(
    answerer: "QuestionAnswerer", inputs: options.InputLines, name: object, max_length: int
) -> Iterator[str]:
    """The questions, each checked before it is yielded."""
    number = 0
    for number, text in enumerate(inputs.texts, 1):
        if not text.strip():
            raise ValueError(
                f"{inputs.location(number)}: the question is empty; give at least one word, or remove the line"
            )
        options.refuse_long([answerer.tokenizer.encode(text)], inputs.location, max_length, number)
        yield text
    if not number:
        raise ValueError(f"{name}: no question; give at least one")


def answer_lines(
    answerer: "QuestionAnswerer", pixels: "Tensor", questions: Iterable[str], best: int, *, scores: bool
) -> Iterator[str]:
    from regard.data.files import chunks
    from regard.data.images import LabelledImage
    from regard.tasks.image_classification.task import AT_ONCE
    from regard.tasks.vqa.task import ImageQuestion

    image = LabelledImage(pixels, "", "the image")
    for some in chunks(questions, AT_ONCE):
        most = answerer.probabilities([ImageQuestion(image, text) for text in some]).topk(best)
        for found, chances in zip(most.indices.tolist(), most.values.tolist(), strict=True):
            named = zip((answerer.labels.name(n) for n in found), chances, strict=True)
            yield "\t".join(f"{name}\t{chance:.4f}" if scores else name for name, chance in named)


def prompt_loop(answerer: "QuestionAnswerer", pixels: "Tensor", best: int, max_length: int, *, scores: bool) -> None:
    def reply(line: str) -> None:
        inputs = options.InputLines(iter([line]), lambda _: "this line", lambda: 1)
        questions = check_questions(answerer, inputs, "", max_length)
        for row in answer_lines(answerer, pixels, questions, best, scores=scores):
            typer.echo(row)

    options.answer_typed_lines("Type a question about the image", reply)


# --- look ---


def view_question(answerer: "QuestionAnswerer", folder: Path, text: str, request: ViewRequest) -> "tuple[str, View]":
    """`text` is the path of a picture. Each word of the question, and what it attended to in the last layer."""
    import torch
    from einops import reduce

    from regard import see
    from regard.attention import record_attention
    from regard.data.batching import pad_rows
    from regard.data.images import LabelledImage
    from regard.tasks.image_batches import load_image
    from regard.tasks.vqa.task import ImageQuestion

    if refused := [name for name in ("word", "target") if getattr(request, name) is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a question about a picture; leave it out")
    if request.question is None:
        raise ValueError(f'{folder} answers questions: regard look {folder} {text} "what colour is the circle"')
    pixels = load_image(answerer.preprocessor, text)
    question = ImageQuestion(LabelledImage(pixels, "", text), request.question)
    best = answerer.probabilities([question])[0].topk(min(3, len(answerer.labels)))
    named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    output = ", ".join(f"{answerer.labels.name(n)} {100 * p:.1f} %" for n, p in named)
    model, device = answerer.model, next(answerer.model.parameters()).device
    tokens, lengths = (part.to(device) for part in pad_rows([answerer.ids(question.text)]))
    with torch.inference_mode(), record_attention(model) as record:
        model(answerer.preprocessor.normalize(pixels[None].to(device)), tokens, lengths)
        names = [site.name for site in record.sites if (site.queries, site.keys) == ("text", "patches")]
        layers = [model.to_grid(record.weights(name))[0].cpu() for name in names]
    words = answerer.tokenizer.tokens(question.text)
    if request.all_heads:
        rows = {f"layer {n}: {word}": layer[:, t] for n, layer in enumerate(layers) for t, word in enumerate(words)}
        return output, see.overlay_heads_view(pixels / 255, rows, title="what each word attended to, head by head")
    if request.head is not None:
        layer, head = options.parse_head(request.head, [len(heads) for heads in layers])
        seen, which = layers[layer][head], f"layer {layer}, head {head}"
    else:
        seen, which = reduce(layers[-1], "h t y x -> t y x", "mean"), "last layer"
    looks = list(zip(words, seen, strict=True))
    return output, see.overlay_view(pixels / 255, looks, title=f"what each word attended to ({which})")


COMMANDS = {"answer": answer}
view = view_question
