"""`regard classify`: classifies lines of a file, of stdin or typed at a prompt."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.progress import with_progress
from regard.tasks.registry import MAX_TEXT_TOKENS, ViewRequest

if TYPE_CHECKING:
    from torch import Tensor

    from regard.see.plots.panels import View
    from regard.tasks.sequence_classification.task import Classification, TextClassifier


@options.with_option_groups
def classify(
    model: options.ModelArgument,
    files: options.TextFiles = options.TextFiles(),
    scores: Annotated[bool, typer.Option("--scores", help="Write each label's probability behind it.")] = False,  # noqa: FBT002
    all_labels: Annotated[  # noqa: FBT002
        bool, typer.Option("--all-labels", "--every", help="All labels with their probabilities, as columns.")
    ] = False,
    max_length: options.MaxLength = MAX_TEXT_TOKENS,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines.")] = False,  # noqa: FBT002
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Classify each line of a file; without one, what you type. An empty line stays empty.

    Example: `regard classify run reviews.txt --scores`

    Example: `echo "the beautiful girl smiles" | regard classify run -`

    Example: `regard classify run reviews.txt --all-labels --out labels.tsv`
    """
    from regard.data.files import chunks
    from regard.tasks.sequence_classification.task import TextClassifier

    out = files.writable_out()
    if files.are_typed:
        prompt_loop(
            load.load(TextClassifier, model),
            max_length,
            scores=scores,
            all_labels=all_labels,
        )
        return
    inputs, chosen = files.read(), load.torch_device
    classifier = load.load(TextClassifier, model)
    texts = check_texts(classifier, inputs, max_length, strict=strict)
    lines = (
        line
        for some in chunks(texts, options.BATCH_LINES)
        for line in label_lines(classifier, some, chosen, scores=scores, all_labels=all_labels)
    )
    if out or not sys.stdout.isatty():
        lines = with_progress(lines, "classifying", inputs.count)
    options.write_lines(lines, out, "classified")


def check_texts(
    classifier: "TextClassifier", inputs: options.InputLines, max_length: int, *, strict: bool
) -> Iterator[str]:
    """The texts, each checked before it is yielded."""
    for number, text in enumerate(inputs.texts, 1):
        if strict and not text.strip():
            raise ValueError(
                f"{inputs.location(number)}: the line is empty; remove it, or leave out --strict to keep it empty"
            )
        options.refuse_long([classifier.tokenizer.encode(text)], inputs.location, max_length, number)
        yield text


def label_lines(
    classifier: "TextClassifier", texts: list[str], device: str, *, scores: bool, all_labels: bool
) -> "list[str]":
    """One line of output per text."""
    predictions = iter(classifier.predict([text for text in texts if text.strip()], device))
    return [
        label_line(classifier, next(predictions), scores=scores, all_labels=all_labels) if text.strip() else ""
        for text in texts
    ]


def label_line(classifier: "TextClassifier", one: "Classification", *, scores: bool, all_labels: bool) -> str:
    if all_labels:
        rows = zip(classifier.labels.names, one.probabilities, strict=True)
        return "\t".join(f"{name}={probability:.4f}" for name, probability in rows)
    return f"{one.label}\t{one.probability:.4f}" if scores else one.label


def prompt_loop(classifier: "TextClassifier", max_length: int, *, scores: bool, all_labels: bool) -> None:
    def answer(line: str) -> None:
        options.refuse_long([classifier.tokenizer.encode(line)], lambda _: "this line", max_length)
        typer.echo(label_lines(classifier, [line], classifier.device, scores=scores, all_labels=all_labels)[0])

    options.answer_typed_lines("Type a text", answer)


# --- look ---


def view_classification(
    classifier: "TextClassifier", folder: Path, text: str, request: ViewRequest
) -> "tuple[str, View]":
    """What each word weighed; of words that are only counted, what each contributed to the label."""
    from regard import see

    for name, given in (("head", request.head), ("word", request.word), ("target", request.target)):
        if given is not None:
            raise ValueError(f"--{name} is for translations; a classifier weighs all words for one label: leave it out")
    options.refuse_long([classifier.tokenizer.encode(text)], lambda _: "the text", request.max_tokens)
    (prediction,) = classifier.predict([text], classifier.device)
    if request.all_heads:
        return f"{text}\n{see.prediction_title(prediction.label, prediction.probability)}", view_every_head(
            classifier, text
        )
    return text, view_weights(classifier, text, prediction)


def view_weights(classifier: "TextClassifier", text: str, prediction: "Classification") -> "View":
    import torch

    from regard import see
    from regard.attention import record_attention
    from regard.models.baselines import BagOfWordsClassifier
    from regard.tasks.sequence_classification.task import collate

    shown, known = words_and_known(classifier, text)
    title = see.prediction_title(prediction.label, prediction.probability)
    batch = collate([(classifier.terms(text), 0)]).to(classifier.device)
    model = classifier.model
    with torch.inference_mode():
        if not isinstance(model, BagOfWordsClassifier):
            with record_attention(model) as record:
                model(batch.terms, batch.lengths)
            weights = sum_by_word(classifier, text, record.weights("pooling")[0, 0, 0].cpu())
            return see.word_weights_view(shown, weights, title, visible=known)
        parts = model.token_contributions(batch.terms, batch.lengths)[0].double().cpu()
        label = classifier.labels.index(prediction.label)
        others = [n for n in range(len(classifier.labels)) if n != label]
        added = sum_by_word(classifier, text, parts[:, label] - parts[:, others].mean(1))
        return see.word_contributions(shown, added, title, label=prediction.label, visible=known)


def view_every_head(classifier: "TextClassifier", text: str) -> "View":
    """What each word attended to, layer by layer."""
    import torch

    from regard.attention import record_attention
    from regard.see.plots.attention_maps import site_maps
    from regard.tasks.sequence_classification.task import collate

    model, batch = classifier.model, collate([(classifier.terms(text), 0)]).to(classifier.device)
    with torch.inference_mode(), record_attention(model) as record:
        model(batch.terms, batch.lengths)
        sites = [site for site in record.sites if site.name.startswith("encoder")]
        layers = {site: list(record.weights(site.name)[0].cpu()) for site in sites}
    pieces = classifier.tokenizer.tokens(text)
    return site_maps([pieces[place] for place in classifier.kept_indices(len(pieces))], "text", layers)


def words_and_known(classifier: "TextClassifier", text: str) -> "tuple[list[str], Tensor]":
    """The words as they are read, and which of them the model knows."""
    import torch

    from regard.data.tokenizers.base import UNK

    ids, owners = classifier.tokenizer.encode(text), classifier.tokenizer.word_ids(text)
    unknown = {owner for one, owner in zip(ids, owners, strict=True) if one == UNK}
    words = classifier.tokenizer.normalizer.apply(text).split()
    return words, torch.tensor([place not in unknown for place in range(len(words))])


def sum_by_word(classifier: "TextClassifier", text: str, parts: "Tensor") -> "Tensor":
    """What stands at the terms, added up for the words they are made of; one of several words is shared by them."""
    import torch

    from regard.tasks.sequence_classification.task import build_ngrams

    owners = classifier.tokenizer.word_ids(text)
    kept = classifier.kept_indices(len(owners))
    total = torch.zeros(max(owners) + 1, dtype=torch.double)
    places = build_ngrams(classifier.tokenizer, classifier.settings.words).word_indices(len(kept))
    for part, place in zip(parts.tolist(), places, strict=True):
        for one in place:
            total[owners[kept[one]]] += part / len(place)
    return total


COMMANDS = {"classify": classify}
view = view_classification
