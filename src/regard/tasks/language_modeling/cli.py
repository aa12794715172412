"""`regard generate`: generates text from a prompt with a language model."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.progress import with_progress
from regard.tasks.registry import ViewRequest

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.attention import SiteName
    from regard.data.tokenizers.base import Tokenizer
    from regard.decode.alignment import AlignmentHead
    from regard.decode.stepwise import StepwiseSearch
    from regard.see.plots.panels import View
    from regard.tasks.language_modeling.task import TextGenerator

    Heads = dict[SiteName, Float[Tensor, "h i j"]]  # of each attention, the weights of all heads


@options.with_option_groups
def generate(
    model: options.ModelArgument,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT]...", help="Prompts, continued together; or - for stdin.")
    ] = None,
    tokens: Annotated[int, typer.Option("--max-new-tokens", "--tokens", min=1, help="Number of new tokens.")] = 200,
    lines: Annotated[int | None, typer.Option(min=1, help="Stop after this many lines, if earlier.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy decoding.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: the total probability kept.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed generates the same text.")] = 0,
    max_length: Annotated[
        int, typer.Option(*options.MAX_LENGTH_NAMES, min=1, help="Maximum tokens of a prompt; a longer one is refused.")
    ] = options.MAX_PROMPT_TOKENS,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Generate text from a prompt, or from nothing; without a prompt, from each line you type.

    Example: `regard generate run "ROMEO:" --max-new-tokens 500`

    Example: `regard generate run --lines 5 --temperature 0.5 --top-p 0.9 --seed 3`

    Example: `echo "the black cat" | regard generate run - --temperature 0`

    Example: `regard generate run "ROMEO:" "JULIET:" --lines 3`
    """
    from regard.tasks.config import read_task_name
    from regard.tasks.pretrained import settings_path

    if (task := read_task_name(settings_path(model))) != "language_modeling":
        raise ValueError(
            f"{model} is for the task {task!r}, not a language model; train one: regard train --task language_modeling"
        )
    from regard.tasks.language_modeling.task import TextGenerator

    sampler, prompt = build_sampler(temperature, top_k, top_p, seed), prompts[0] if prompts else None
    if prompts is not None and len(prompts) > 1:
        continue_prompts(load.load(TextGenerator, model), prompts, sampler, tokens, lines, max_length)
        return
    if prompt is None and sys.stdin.isatty():
        prompt_loop(
            load.load(TextGenerator, model),
            sampler,
            tokens,
            lines,
            max_length,
        )
        return
    prompt_text = read_stdin() if prompt in (None, "-") else prompt or ""
    generator = load.load(TextGenerator, model)
    refuse_long_prompt(generator, prompt_text, "the prompt", max_length)
    stdout = sys.stdout  # a progress bar, once started, replaces it
    typer.echo(prompt_text, nl=False)
    pieces = generate_pieces(generator, prompt_text, sampler, tokens, lines)
    for piece in pieces if stdout.isatty() else with_progress(pieces, "generating", tokens):
        typer.echo(piece, nl=False, file=stdout)
    typer.echo(file=stdout)


def build_sampler(temperature: float, top_k: int | None, top_p: float, seed: int) -> "StepwiseSearch":
    from regard.decode import Greedy, Sampling

    return Greedy() if temperature == 0 else Sampling(temperature, top_k, top_p, seed)


def read_stdin() -> str:
    """All of stdin as one text, up to a bound: an endless pipe would fill the memory."""
    from regard.data.files import CHUNK, chunks, iter_lines

    text, *more = [*islice(chunks(iter_lines(sys.stdin.buffer, "stdin"), CHUNK), 2)] or [[]]
    if more:
        raise ValueError(f"stdin: more than {CHUNK:,} letters; pass only its last lines: tail -n 100")
    return "\n".join(text)


def refuse_long_prompt(generator: "TextGenerator", prompt_text: str, where: str, max_length: int) -> None:
    options.refuse_long([generator.encode_prompt(prompt_text)[1]], lambda _: where, max_length)


def warn_unknown(generator: "TextGenerator", prompt_text: str) -> None:
    from regard.data.tokenizers.base import UNK
    from regard.decode.translation import unknown_words

    if UNK in generator.encode_prompt(prompt_text)[1]:
        word = unknown_words(generator.tokenizer, prompt_text)[0]
        typer.echo(f"regard: {word!r} is out of vocabulary", err=True)


def generate_pieces(
    generator: "TextGenerator", prompt_text: str, sampler: "StepwiseSearch", tokens: int, lines: int | None
) -> Iterator[str]:
    """The text after a prompt, subword by subword, without the newline that ends the last line."""
    from regard.decode.text_generation import generate as generate_tokens
    from regard.decode.text_generation import stream_text, text_constraints

    warn_unknown(generator, prompt_text)
    opening, ids = generator.encode_prompt(prompt_text)
    allowed, context = text_constraints(generator.tokenizer), max(2, generator.context_length)
    tokens_found = generate_tokens(
        generator.model, opening + ids, sampler, tokens=tokens, constraints=allowed, context=context
    )
    ended = 0
    for piece in stream_text(generator.tokenizer, (token.id for token in tokens_found), opening + ids):
        ended += piece.count("\n")
        if lines is not None and ended >= lines:
            yield piece.partition("\n")[0]
            return
        yield piece


def continue_prompts(
    generator: "TextGenerator",
    prompts: Sequence[str],
    sampler: "StepwiseSearch",
    tokens: int,
    lines: int | None,
    max_length: int,
) -> None:
    """Several prompts, continued together; each text is printed when all are there, with an empty line between two."""
    for number, prompt_text in enumerate(prompts, 1):
        refuse_long_prompt(generator, prompt_text, f"prompt {number}", max_length)
        warn_unknown(generator, prompt_text)
    for number, found in enumerate(generator.continue_prompts(prompts, sampler, tokens)):
        kept = found.generated if lines is None else "\n".join(found.generated.split("\n")[:lines])
        typer.echo(f"{'' if number == 0 else chr(10)}{found.prompt}{kept}")


def prompt_loop(
    generator: "TextGenerator",
    sampler: "StepwiseSearch",
    tokens: int,
    lines: int | None,
    max_length: int = options.MAX_PROMPT_TOKENS,
) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    typer.echo("Type a prompt, or nothing for an empty one; Ctrl-D exits.", err=True)
    while True:
        typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected text
        try:
            prompt_text = input()
        except EOFError:
            return
        try:
            refuse_long_prompt(generator, prompt_text, "this line", max_length)
            typer.echo(prompt_text, nl=False)
            for piece in generate_pieces(generator, prompt_text, sampler, tokens, lines):
                typer.echo(piece, nl=False)
            typer.echo()
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)


# --- look ---


EXPECTED = 3  # tokens that are named in the place of one that surprised


def token_text(words: "Tokenizer", one: int) -> str:
    """A token in a running text, its blanks blank; half of a letter as `shown`."""
    from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, LosslessTokenizer
    from regard.tasks.protocol import token_label

    if one < NUM_SPECIAL_TOKENS or not isinstance(words, LosslessTokenizer):
        return token_label(words, one)
    text = words.pieces[one - NUM_SPECIAL_TOKENS].decode(errors="replace")
    return token_label(words, one) if "\ufffd" in text else text


def view_language_model(
    generator: "TextGenerator", folder: Path, text: str, request: ViewRequest
) -> "tuple[str, View]":
    """The surprisal of each token, and what it attended to; without attention, the surprisal alone."""
    import torch

    from regard.attention import record_attention
    from regard.decode.topk import log_probabilities
    from regard.see.plots.attention_maps import site_maps
    from regard.see.plots.panels import Panel, PanelRow, View
    from regard.tasks.protocol import token_label

    if request.target is not None:
        raise ValueError(f"--target {request.target}: is for translations; a language model reads one text")
    opening, ids = generator.encode_prompt(text)
    if len(ids) > request.max_tokens:
        raise ValueError(f"the text has {len(ids):,} tokens; shorten it, or allow it with --max-length {len(ids)}")
    names = [token_label(generator.tokenizer, one) for one in (*opening, *ids)]
    read = torch.tensor([opening + ids], device=generator.model.embedding.weight.device)
    with torch.no_grad(), record_attention(generator.model) as record:
        logits = generator.model(read)
        heads = {site: record.weights(site.name)[0] for site in record.sites}
    surprise = view_surprisal(generator, ids, log_probabilities(logits[0, len(opening) - 1 : -1]))
    if not heads:
        if request.head or request.all_heads or request.word:
            raise ValueError(f"{folder} is a model without attention; it has no heads to show, only what surprised it")
        return text, surprise
    if request.word is not None:
        return text, stack_views(surprise, *view_word_attention(names, len(opening), heads, request))
    if request.all_heads:
        every = {site: list(weights) for site, weights in heads.items()}
        return text, stack_views(surprise, site_maps(names, "text", every, causal=True))
    head = select_head(heads, request.head)
    one = {site: [weights[head.head]] for site, weights in heads.items() if site.name == head.layer}
    (panel,) = site_maps(names, "text", one, causal=True).panels()
    assert isinstance(panel, Panel)
    return text, stack_views(surprise, View((PanelRow((replace(panel, title=f"{head.layer}:{head.head}"),)),)))


def view_surprisal(generator: "TextGenerator", ids: Sequence[int], scores: 'Float[Tensor, "t v"]') -> "View":
    import torch

    from regard import see

    chances = scores.exp().gather(-1, torch.tensor(ids, device=scores.device)[:, None])[:, 0]
    best = scores.exp().topk(min(EXPECTED, scores.shape[-1]))
    expected = [
        [(token_text(generator.tokenizer, one), chance) for one, chance in zip(ones, shares, strict=True)]
        for ones, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    tokens = [token_text(generator.tokenizer, one) for one in ids]
    # a chance below the smallest number is still one
    return see.surprisal_view(
        tokens, chances.double().clamp(min=1e-300).cpu(), alternatives=expected, title="surprise, in bits"
    )


def select_head(heads: "Heads", wanted: str | None) -> "AlignmentHead":
    """The one asked for, or the one that looks least at the beginning and at the word itself, where all heads rest."""
    from regard.decode.alignment import AlignmentHead

    if wanted is None:
        busy = {
            AlignmentHead(site.name, number): float(each.fill_diagonal_(0.0)[:, 1:].sum())
            for site, weights in heads.items()
            if site.queries == site.keys
            for number, each in enumerate(weight_shares(weights))
        }
        return max(busy, key=lambda head: busy[head])
    layer, _, number = wanted.rpartition(":")
    sizes = {site.name: len(weights) for site, weights in heads.items()}
    if layer not in sizes or not number.isdecimal() or int(number) >= sizes[layer]:
        names = ", ".join(f"{layer}:{n}" for layer, count in sizes.items() for n in range(count))
        raise ValueError(f"--head {wanted}: write LAYER:HEAD, one of {names}")
    return AlignmentHead(layer, int(number))


def weight_shares(weights: 'Float[Tensor, "h t t"]') -> 'Float[Tensor, "h t t"]':
    """Each as its share of its row: those of a state are none, and may be negative."""
    import torch

    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)


def view_word_attention(names: Sequence[str], opening: int, heads: "Heads", request: ViewRequest) -> "list[View]":
    """What the model attended to when it predicted the word: the weights stand in the row of the token before it."""
    from regard import see

    if request.word not in names[opening:]:
        raise ValueError(f"--word {request.word}: no token of the text; they are {' '.join(names[opening:])}")
    at = names.index(request.word, opening)
    head = select_head(heads, request.head) if request.head else None
    views = []
    for site, weights in heads.items():
        if head is not None and site.name != head.layer:
            continue
        row = (weights.mean(0) if head is None else weights[head.head])[at - 1].cpu()
        which = "mean of all heads" if head is None else f"head {head.head}"
        title = f"what {site.name} attended to for “{request.word}” ({which})"
        keys = names if site.keys == site.queries else [f"{site.keys} {n}" for n in range(len(row))]
        views.append(see.strip(keys[:at], row[:at], title))
    return views


def stack_views(*views: "View") -> "View":
    rows = tuple(row for view in views for row in view.rows)
    return replace(views[0], rows=rows, notes=tuple(note for view in views for note in view.notes))


COMMANDS = {"generate": generate}
FORMER_COMMANDS = {"write": generate}
view = view_language_model
