"""`regard autoencode`: reconstructs sentences from their latents, interpolates, or plots the latents."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.progress import with_progress
from regard.tasks.registry import MAX_SENTENCE_TOKENS, ViewRequest

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.data.tokenizers.base import TokenizedText
    from regard.see.plots.panels import View
    from regard.tasks.autoencoding.task import SentenceAutoencoder


@options.with_option_groups
def autoencode(
    model: options.ModelArgument,
    files: options.TextFiles = options.TextFiles(),
    interpolate: Annotated[
        tuple[str, str] | None,
        typer.Option("--interpolate", "--between", help="Two sentences: decode latents interpolated between them."),
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=2, help="Number of interpolation points with --interpolate; default 5.")
    ] = None,
    latents: Annotated[Path | None, typer.Option(help="Plot the latents of the lines here (.png, .svg, .pdf).")] = None,
    max_length: options.MaxLength = MAX_SENTENCE_TOKENS,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Encode sentences into fixed-size latents and decode them again; without a file, what you type.

    Example: `regard autoencode run text.txt --out reconstructed.txt`

    Example: `echo "the black cat ate the mouse" | regard autoencode run -`

    Example: `regard autoencode run --interpolate "she sold a book" "the old man will sleep" --points 7`

    Example: `regard autoencode run text.txt --latents latents.png`
    """
    from regard.tasks.autoencoding.task import SentenceAutoencoder, interpolate_sentences, reconstruct

    out, latents = options.writable_files(out=files.out, latents=latents)
    if interpolate and (files.file or latents):
        raise ValueError("--interpolate takes two sentences; leave out the file and --latents")
    if points and not interpolate:
        raise ValueError(f"--points {points} needs two sentences; add --interpolate ONE OTHER")
    autoencoder = load.load(SentenceAutoencoder, model)
    if interpolate:
        one, other = check_sentences(autoencoder, interpolate, lambda number: f"sentence {number}", max_length)
        options.write_lines(interpolate_sentences(autoencoder, one, other, points or 5), out, "written")
        return
    if files.are_typed and not latents:
        prompt_loop(autoencoder, max_length)
        return
    inputs = files.read()
    texts = check_sentences(autoencoder, inputs.texts, inputs.location, max_length)
    if latents:
        name = "stdin" if files.file in (None, "-") else files.file
        texts = list(texts)  # all of them are plotted
        typer.echo(f"drawn: {latent_map(autoencoder, texts, name, latents)}", err=True)
    options.write_lines(
        with_progress(reconstruct(autoencoder, texts), "reconstructing", inputs.count), out, "reconstructed"
    )


def check_sentences(
    autoencoder: "SentenceAutoencoder", texts: Iterable[str], where: Callable[[int], str], max_length: int
) -> Iterator[str]:
    """The same texts: refuses those that are too long, warns of the first with out-of-vocabulary words."""
    from regard.data.tokenizers.base import UNK

    number = first = unknown = 0
    for number, text in enumerate(texts, 1):
        ids = autoencoder.tokenizer.encode(text)
        options.refuse_long([ids], where, max_length, number)
        if UNK in ids:
            first, unknown = first or number, unknown + 1
        yield text
    if unknown:
        what, count = "out-of-vocabulary words, which cannot be reconstructed", f"{unknown:,} of {number:,}"
        typer.echo(f"regard: {where(first)}: {what}; in {count} in all", err=True)


def latent_map(autoencoder: "SentenceAutoencoder", texts: list[str], name: str, path: Path) -> Path:
    """The latents on their two principal components, coloured by sentence length."""
    from regard import see
    from regard.see.plots.charts import latents_view
    from regard.tasks.autoencoding.task import encode_latents

    full = [text for text in texts if text.strip()]
    if len(full) < 2:
        raise ValueError(f"{name}: a plot of latents needs 2 sentences or more, not {len(full)}; leave out --latents")
    view = latents_view(
        encode_latents(autoencoder.model, autoencoder.tokenizer.encode_batch(full)), length_groups(full), full
    )
    return see.save(see.draw(view), path)


def length_groups(texts: Sequence[str]) -> list[str]:
    """The length group of each sentence: about a third of them are in each."""
    sizes = [len(text.split()) for text in texts]
    low, high = (sorted(sizes)[len(sizes) * n // 3] for n in (1, 2))
    return [
        f"up to {low} words" if size <= low else f"up to {high} words" if size <= high else f"over {high} words"
        for size in sizes
    ]


def prompt_loop(autoencoder: "SentenceAutoencoder", max_length: int) -> None:
    from regard.tasks.autoencoding.task import reconstruct

    def answer(line: str) -> None:
        checked = list(check_sentences(autoencoder, [line], lambda _: "this line", max_length))
        typer.echo(next(reconstruct(autoencoder, checked)))

    options.answer_typed_lines("Type a sentence", answer)


# --- look ---


def view_bottleneck(
    autoencoder: "SentenceAutoencoder", folder: Path, text: str, request: ViewRequest
) -> "tuple[str, View]":
    """Which words entered which vector of the latent: in the mean of the heads, in one, or in every one."""
    from regard.see.plots.attention_maps import END, word_labels
    from regard.see.plots.panels import Axis, ColourScale, Panel, View, grid
    from regard.tasks.autoencoding.task import reconstruct

    if refused := [name for name in ("word", "target") if vars(request)[name] is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a model that rebuilds; leave it out")
    options.refuse_long(autoencoder.tokenizer.encode_batch([text]), lambda _: "the sentence", request.max_tokens)
    read, heads = bottleneck_weights(autoencoder, text)
    shown = {"": heads.mean(0)}
    if request.all_heads:
        shown = {f"head {n}": head for n, head in enumerate(heads)}
    elif request.head is not None:
        shown = {request.head: heads[parse_bottleneck_head(request.head, len(heads))]}
    scale, across = ColourScale.of(heads, "weight"), Axis("word", (*word_labels(read.words, "words"), END))
    panels = [Panel(name, some, scale, down=Axis("latent"), across=across) for name, some in shown.items()]
    return f"{text}\n{next(reconstruct(autoencoder, [text]))}", View(grid(panels))


def bottleneck_weights(
    autoencoder: "SentenceAutoencoder", text: str
) -> 'tuple[TokenizedText, Float[Tensor, "h k words_and_end"]]':
    import torch

    from regard.attention import record_attention
    from regard.data.tokenizers.base import EOS, TokenizedText
    from regard.decode.alignment import merge_subwords

    read, device = TokenizedText.of(autoencoder.tokenizer, text), next(autoencoder.model.parameters()).device
    ids = torch.tensor([[*read.ids, EOS]], device=device)
    with torch.inference_mode(), record_attention(autoencoder.model) as record:
        latent = autoencoder.model.encode_latent(ids, torch.tensor([ids.shape[1]], device=device))
        heads = record.weights("bottleneck")[0].cpu()
    heads = heads.expand(-1, latent.shape[1], -1)  # one pooled vector is cut into the latents, which share its weights
    return read, torch.stack([merge_subwords(head, range(len(head)), read.word_ids) for head in heads])


def parse_bottleneck_head(head: str, heads: int) -> int:
    layer, _, number = head.rpartition(":")
    if layer != "bottleneck" or not number.isdecimal() or int(number) >= heads:
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of bottleneck:0 to bottleneck:{heads - 1}")
    return int(number)


COMMANDS = {"autoencode": autoencode}
FORMER_COMMANDS = {"rebuild": autoencode}
view = view_bottleneck
