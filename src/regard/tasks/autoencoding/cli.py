"""Autoencoding on the command line: exact match, token accuracy, and views of the bottleneck's attention."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import record_attention
from regard.cli.input_checks import refuse_long
from regard.cli.options import with_progress
from regard.data.tokenizers.base import EOS, UNK
from regard.decode.alignment import merge_subwords
from regard.decode.stepwise import Greedy
from regard.decode.translate import translate_as_found
from regard.decode.word_alignment import TokenizedText
from regard.see.plots.attention_maps import END, word_labels
from regard.see.plots.panels import Axis, ColourScale, Panel, View, grid
from regard.tasks.autoencoding.data import AutoencodingSettings, read_plain_sentences
from regard.tasks.autoencoding.latents import detokenize_line, reconstruct
from regard.tasks.autoencoding.task import SentenceAutoencoder
from regard.tasks.registry import Task, ViewRequest


@dataclass(frozen=True)
class AutoencodingMetrics:
    """How many sentences came back to the letter, by their words, and how many tokens in their places."""

    sentences: Counter[int]
    exact: Counter[int]
    tokens: int
    right: int
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def exact_match(self) -> float:
        return 100 * self.exact.total() / self.sentences.total()

    @property
    def token_accuracy(self) -> float:
        return 100 * self.right / self.tokens

    def table(self) -> str:
        lines = [
            f"rebuilt exactly {self.exact_match:6.2f} %   sentences:{self.sentences.total()}",
            f"tokens in place {self.token_accuracy:6.2f} %   tokens:{self.tokens}",
            "",
            "words   sentences  exactly",
        ]
        for size, n in sorted(self.sentences.items()):
            share = 100 * self.exact[size] / n
            lines.append(f"{size:<7} {n:>9,}  {share:5.1f} %  {'█' * round(share / 4)}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        by_length = [{"words": size, "sentences": n, "exact": self.exact[size]} for size, n in self.by_length]
        return {"exact": self.exact_match, "in_place": self.token_accuracy, "by_length": by_length}

    @property
    def by_length(self) -> list[tuple[int, int]]:
        return sorted(self.sentences.items())

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_autoencoder(rebuilder: SentenceAutoencoder, texts: Sequence[str]) -> AutoencodingMetrics:
    """A word that the model does not know cannot come back, so it is wrong whatever is written for it."""
    sources = rebuilder.tokenizer.encode_batch(texts)
    arriving = translate_as_found(rebuilder.model, sources, Greedy())
    found = {place: these[0].ids for place, these in with_progress(arriving, "rebuilding", len(texts))}
    sizes, places = [len(text.split()) for text in texts], range(len(texts))
    return AutoencodingMetrics(
        Counter(sizes),
        Counter(sizes[n] for n in places if list(found[n]) == sources[n] and UNK not in sources[n]),
        sum(map(len, sources)),
        sum(a == b != UNK for n in places for a, b in zip(found[n], sources[n], strict=False)),
        tuple(detokenize_line(rebuilder, found[n]) for n in places),
    )


# --- looking ---


def view_bottleneck(rebuilder: SentenceAutoencoder, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """Which words entered which vector of the latent: in the mean of the heads, in one, or in every one."""
    if refused := [name for name in ("word", "target") if vars(asked)[name] is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a model that rebuilds; leave it out")
    refuse_long(rebuilder.tokenizer.encode_batch([text]), lambda _: "the sentence", asked.max_tokens)
    read, heads = bottleneck_weights(rebuilder, text)
    shown = {"": heads.mean(0)}
    if asked.all_heads:
        shown = {f"head {n}": head for n, head in enumerate(heads)}
    elif asked.head is not None:
        shown = {asked.head: heads[parse_bottleneck_head(asked.head, len(heads))]}
    scale, across = ColourScale.of(heads, "weight"), Axis("word", (*word_labels(read.words, "words"), END))
    panels = [Panel(name, some, scale, down=Axis("latent"), across=across) for name, some in shown.items()]
    return f"{text}\n{next(reconstruct(rebuilder, [text]))}", View(grid(panels))


def bottleneck_weights(
    rebuilder: SentenceAutoencoder, text: str
) -> tuple[TokenizedText, Float[Tensor, "h k words_and_end"]]:
    read, device = TokenizedText.of(rebuilder.tokenizer, text), next(rebuilder.model.parameters()).device
    ids = torch.tensor([[*read.ids, EOS]], device=device)
    with torch.inference_mode(), record_attention(rebuilder.model) as record:
        latent = rebuilder.model.encode_latent(ids, torch.tensor([ids.shape[1]], device=device))
        heads = record.weights("bottleneck")[0].cpu()
    heads = heads.expand(-1, latent.shape[1], -1)  # one pooled vector is cut into the latents, which share its weights
    return read, torch.stack([merge_subwords(head, range(len(head)), read.word_ids) for head in heads])


def parse_bottleneck_head(head: str, heads: int) -> int:
    layer, _, number = head.rpartition(":")
    if layer != "bottleneck" or not number.isdecimal() or int(number) >= heads:
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of bottleneck:0 to bottleneck:{heads - 1}")
    return int(number)


AUTOENCODING = Task(
    settings=AutoencodingSettings,
    examples="sentences",
    read=read_plain_sentences,
    from_examples=SentenceAutoencoder.from_examples,
    from_description=SentenceAutoencoder.from_description,
    load=SentenceAutoencoder.load,
    token_ids=lambda rebuilder, texts: rebuilder.tokenizer.encode_batch(texts),
    evaluate=evaluate_autoencoder,
    view=view_bottleneck,
    suggested_command=lambda folder: ("autoencode", folder),
)
