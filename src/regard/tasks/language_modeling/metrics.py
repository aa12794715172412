"""Language modeling metrics: perplexity and bits per character and byte, with a neural cache and in blocks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.data.lm_blocks import bits_per_byte, count_words, perplexity_per_word
from regard.data.tokenizers.base import UNK, Tokenizer, WordTokenizer
from regard.tasks.language_modeling.token_nll import SlidingWindows, TokenNLL, total_nats
from regard.tasks.protocol import ProgressBar, no_progress
from regard.tasks.tokenizers import token_label

if TYPE_CHECKING:
    from regard.tasks.language_modeling.task import TextGenerator


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


def evaluate_language_model(
    generator: "TextGenerator", lines: Sequence[str], progress: ProgressBar = no_progress
) -> LanguageModelingMetrics:
    ids, words, each = generator.ids(lines), generator.tokenizer, list[Tensor]()

    def token_nlls() -> Iterator[TokenNLL]:
        """The vectors of a long text would fill the memory, so they pass by."""
        for some in progress(generator.evaluation_context.token_nlls(generator.model, ids), "measuring"):
            each.append(some.nats.cpu())
            yield some

    cached = blocks = None
    with torch.no_grad():
        if generator.neural_cache:
            cached = float(sum(nats.sum() for nats in generator.neural_cache.token_nats(token_nlls())))
        else:
            total_nats(token_nlls())
        if isinstance(generator.evaluation_context, SlidingWindows):
            blocks = total_nats(
                replace(generator.evaluation_context, stride=generator.evaluation_context.length).token_nlls(
                    generator.model, ids
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
        signature=evaluation_signature(generator, len(ids), count_words(lines)),
        cached=cached,
        cache=generator.neural_cache.signature if generator.neural_cache else "",
        in_blocks=blocks,
        costs=tuple(zip((nats / math.log(2)).tolist(), (token_label(words, one) for one in ids.tolist()), strict=True)),
    )


def normalized_text(words: Tokenizer, lines: Sequence[str]) -> str:
    """The text that the model is charged for: of words, with one blank between them and one end to a line."""
    if isinstance(words, WordTokenizer):
        return "".join(" ".join(words.normalizer.apply(line).split()) + "\n" for line in lines)
    return words.normalizer.apply("".join(lines))


def evaluation_signature(generator: "TextGenerator", tokens: int, words: int) -> str:
    normal = generator.tokenizer.normalizer
    end = ",one <eos> a line" if isinstance(generator.tokenizer, WordTokenizer) else ""
    return "|".join(
        [
            f"tokens:{tokens}",
            f"words:{words}, what stands between blanks and every line's end",
            f"text:{generator.tokenizer.kind}{end}",
            f"lower:{'yes' if normal.lower else 'no'}",
            f"context:{generator.evaluation_context.description}",
        ]
    )
