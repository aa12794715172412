"""Language modeling on the command line: perplexity and bits per byte, and views of surprisal and attention."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard import see
from regard.attention import record_attention
from regard.cli.options import with_progress
from regard.data.lm_blocks import bits_per_byte, count_words, perplexity_per_word
from regard.data.tokenizers.base import (
    BOS,
    EOS,
    NUM_SPECIAL_TOKENS,
    UNK,
    LosslessTokenizer,
    Tokenizer,
    WordTokenizer,
    format_piece,
)
from regard.decode.alignment import AlignmentHead
from regard.decode.model import log_probabilities
from regard.see.plots.panels import Panel, PanelRow, View
from regard.tasks.language_modeling.data import LanguageModelingSettings, read_lines_of_split
from regard.tasks.language_modeling.neural_cache import tune_cache
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.language_modeling.token_nll import SlidingWindows, TokenNLL, total_nats
from regard.tasks.registry import Task, ViewRequest

EXPECTED = 3  # tokens that are named in the place of one that surprised


# --- measuring ---


@dataclass(frozen=True)
class LanguageModelingMetrics:
    """What a text cost a model in nats, with a cache beside it and in blocks side by side where there are such.

    Args:
        unknown: tokens that stand for a word outside of the vocabulary; they make the text easier than it is.
        signature: what the figures depend on besides the model.
        costs: of each token, in bits, and the token.
    """

    nats: float
    tokens: int
    words: int
    characters: int
    bytes: int
    unknown: int
    signature: str
    cached: float | None = None
    cache: str = ""
    in_blocks: float | None = None
    costs: tuple[tuple[float, str], ...] = field(default=(), repr=False)

    def metrics_of(self, nats: float) -> dict[str, float]:
        """The figures of one sum of nats. What has unknown words was not spelt, so its letters have no cost."""
        figures = {"loss": nats / self.tokens, "perplexity_per_word": perplexity_per_word(nats, self.words)}
        if self.unknown:
            return figures
        return figures | {
            "nats_per_character": nats / self.characters,
            "bits_per_character": nats / self.characters / math.log(2),
            "bits_per_byte": bits_per_byte(nats, self.bytes),
        }

    def totals(self) -> dict[str, float]:
        found = {"": self.nats, "with_cache": self.cached, "in_blocks": self.in_blocks}
        return {name: nats for name, nats in found.items() if nats is not None}

    def table(self) -> str:
        lines = []
        for name, nats in self.totals().items():
            each = self.metrics_of(nats)
            lines += [name.replace("_", " ")] if name else []
            lines += [f"{figure.replace('_', ' '):<20} {value:10.4f}" for figure, value in each.items()]
        said = [f"{self.unknown:,} words are unknown to the model: not comparable with others"] * bool(self.unknown)
        return "\n".join([*lines, *said, "", self.signature + (f"|{self.cache}" if self.cache else "")])

    def to_json(self) -> dict[str, Any]:
        counted = {name: getattr(self, name) for name in ("tokens", "words", "characters", "bytes", "unknown")}
        found = {
            f"{figure}_{name}" if name else figure: value
            for name, nats in self.totals().items()
            for figure, value in self.metrics_of(nats).items()
        }
        return {**found, **counted, "signature": self.signature, "cache": self.cache}

    def lines(self) -> list[str]:
        return [f"{bits:.3f}\t{token}" for bits, token in self.costs]


def evaluate_language_model(author: TextGenerator, lines: Sequence[str]) -> LanguageModelingMetrics:
    ids, words, each = author.ids(lines), author.tokenizer, list[Tensor]()

    def noting() -> Iterator[TokenNLL]:
        """The vectors of a long text would fill the memory, so they pass by."""
        for some in with_progress(author.evaluation_context.token_nlls(author.model, ids), "measuring"):
            each.append(some.nats.cpu())
            yield some

    cached = blocks = None
    with torch.no_grad():
        if author.neural_cache:
            cached = float(sum(nats.sum() for nats in author.neural_cache.token_nats(noting())))
        else:
            total_nats(noting())
        if isinstance(author.evaluation_context, SlidingWindows):
            blocks = total_nats(
                replace(author.evaluation_context, stride=author.evaluation_context.length).token_nlls(
                    author.model, ids
                )
            )
    nats, text = torch.cat(each), normalized_text(words, lines)
    return LanguageModelingMetrics(
        nats=float(nats.sum(dtype=torch.float64)),
        tokens=len(ids),
        words=count_words(lines),
        characters=len(text),
        bytes=len(text.encode()),
        unknown=int((ids == UNK).sum()),
        signature=evaluation_signature(author, len(ids), count_words(lines)),
        cached=cached,
        cache=author.neural_cache.signature if author.neural_cache else "",
        in_blocks=blocks,
        costs=tuple(zip((nats / math.log(2)).tolist(), (token_label(words, one) for one in ids.tolist()), strict=True)),
    )


def save_neural_cache(author: TextGenerator, held_out: Sequence[str], folder: Path) -> None:
    """The best cache of the size that the settings ask for, beside the weights."""
    if size := author.settings.measure.cache:
        with torch.no_grad():
            told = author.evaluation_context.token_nlls(author.model, author.ids(held_out))
            tune_cache(with_progress(told, "choosing a cache"), size).save(folder)


def normalized_text(words: Tokenizer, lines: Sequence[str]) -> str:
    """The text that the model is charged for: of words, with one blank between them and one end to a line."""
    if isinstance(words, WordTokenizer):
        return "".join(" ".join(words.normalizer.apply(line).split()) + "\n" for line in lines)
    return words.normalizer.apply("".join(lines))


def evaluation_signature(author: TextGenerator, tokens: int, words: int) -> str:
    normal = author.tokenizer.normalizer
    end = ",one <eos> a line" if isinstance(author.tokenizer, WordTokenizer) else ""
    return "|".join(
        [
            f"tokens:{tokens}",
            f"words:{words}, what stands between blanks and every line's end",
            f"text:{author.tokenizer.kind}{end}",
            f"lower:{'yes' if normal.lower else 'no'}",
            f"context:{author.evaluation_context.description}",
        ]
    )


def token_label(words: Tokenizer, one: int) -> str:
    """A token by itself, its blanks to be seen."""
    if one < NUM_SPECIAL_TOKENS:
        return {BOS: "<s>", EOS: "</s>"}.get(one, "<unk>")
    return (
        format_piece(words.pieces[one - NUM_SPECIAL_TOKENS])
        if isinstance(words, LosslessTokenizer)
        else words.decode([one])
    )


def token_text(words: Tokenizer, one: int) -> str:
    """A token in a running text, its blanks blank; half of a letter as `shown`."""
    if one < NUM_SPECIAL_TOKENS or not isinstance(words, LosslessTokenizer):
        return token_label(words, one)
    text = words.pieces[one - NUM_SPECIAL_TOKENS].decode(errors="replace")
    return token_label(words, one) if "\ufffd" in text else text


# --- looking ---


def view_language_model(author: TextGenerator, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """What surprised the model, and where it looked; without attention, the surprise alone."""
    if asked.target is not None:
        raise ValueError(f"--target {asked.target}: is for translations; a language model reads one text")
    opening, ids = author.encode_prompt(text)
    if len(ids) > asked.max_tokens:
        raise ValueError(f"the text has {len(ids):,} tokens; shorten it, or allow it with --max-length {len(ids)}")
    names = [token_label(author.tokenizer, one) for one in (*opening, *ids)]
    read = torch.tensor([opening + ids], device=author.model.embedding.weight.device)
    with torch.no_grad(), record_attention(author.model) as record:
        logits = author.model(read)
        heads = {site.name: record.weights(site.name)[0] for site in record.sites}
    surprise = view_surprisal(author, ids, log_probabilities(logits[0, len(opening) - 1 : -1]))
    if not heads:
        if asked.head or asked.all_heads or asked.word:
            raise ValueError(f"{folder} is a model without attention; it has no heads to show, only what surprised it")
        return text, surprise
    if asked.word is not None:
        return text, stack_views(surprise, *view_word_attention(names, len(opening), heads, asked))
    if asked.all_heads:
        every = {layer: list(weights) for layer, weights in heads.items()}
        return text, stack_views(surprise, see.self_attention_maps(names, every, causal=True))
    head = select_head(heads, asked.head)
    (row,) = see.self_attention_maps(names, {"": [heads[head.layer][head.head]]}, causal=True).rows
    (panel,) = row.panels
    assert isinstance(panel, Panel)
    return text, stack_views(surprise, View((PanelRow((replace(panel, title=f"{head.layer}:{head.head}"),)),)))


def view_surprisal(author: TextGenerator, ids: Sequence[int], scores: Float[Tensor, "t v"]) -> View:
    chances = scores.exp().gather(-1, torch.tensor(ids, device=scores.device)[:, None])[:, 0]
    best = scores.exp().topk(min(EXPECTED, scores.shape[-1]))
    expected = [
        [(token_text(author.tokenizer, one), chance) for one, chance in zip(ones, shares, strict=True)]
        for ones, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    tokens = [token_text(author.tokenizer, one) for one in ids]
    # a chance below the smallest number is still one
    return see.surprisal_view(
        tokens, chances.double().clamp(min=1e-300).cpu(), alternatives=expected, title="surprise, in bits"
    )


def select_head(heads: dict[str, Float[Tensor, "h t t"]], asked: str | None) -> AlignmentHead:
    """The one asked for, or the one that looks least at the beginning and at the word itself, where all heads rest."""
    if asked is None:
        busy = {
            AlignmentHead(layer, number): float(each[:, 1:].sum())
            for layer, weights in heads.items()
            for number, each in enumerate(weights - weights * torch.eye(weights.shape[-1], device=weights.device))
        }
        return max(busy, key=lambda head: busy[head])
    layer, _, number = asked.rpartition(":")
    if layer not in heads or not number.isdecimal() or int(number) >= len(heads[layer]):
        names = ", ".join(f"{layer}:{n}" for layer, weights in heads.items() for n in range(len(weights)))
        raise ValueError(f"--head {asked}: write LAYER:HEAD, one of {names}")
    return AlignmentHead(layer, int(number))


def view_word_attention(
    names: Sequence[str], opening: int, heads: dict[str, Float[Tensor, "h t t"]], asked: ViewRequest
) -> list[View]:
    """Where the model looked when the word was to be told: its weights stand in the row of the token before it."""
    if asked.word not in names[opening:]:
        raise ValueError(f"--word {asked.word}: no token of the text; they are {' '.join(names[opening:])}")
    at = names.index(asked.word, opening)
    chosen = [select_head(heads, asked.head)] if asked.head else [AlignmentHead(layer, -1) for layer in heads]
    views = []
    for head in chosen:
        weights = heads[head.layer].mean(0) if head.head < 0 else heads[head.layer][head.head]
        which = "mean of all heads" if head.head < 0 else f"head {head.head}"
        title = f"where {head.layer} looked to tell “{asked.word}” ({which})"
        views.append(see.strip(names[:at], weights[at - 1, :at].cpu(), title))
    return views


def stack_views(*views: View) -> View:
    rows = tuple(row for view in views for row in view.rows)
    return replace(views[0], rows=rows, notes=tuple(note for view in views for note in view.notes))


LANGUAGE_MODELING = Task(
    settings=LanguageModelingSettings,
    examples="lines",
    read=lambda settings, split, folder: read_lines_of_split(settings.data, split, folder),
    from_examples=TextGenerator.from_examples,
    from_description=TextGenerator.from_description,
    load=TextGenerator.load,
    evaluate=evaluate_language_model,
    view=view_language_model,
    suggested_command=lambda folder: ("generate", folder),
    after_training=save_neural_cache,
)
