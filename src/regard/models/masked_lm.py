"""Masked language model: an encoder trained to predict masked words, and its contextual word vectors.

Some words of each sentence are masked, and the encoder must predict them from the context (the cloze of Taylor 1953;
Devlin et al. 2019). It must also predict some words that are visible or replaced by another, so that it uses the
context everywhere. Unlike those of `word_vectors`, its vectors are contextual: *light* has as many as occurrences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from regard.attention import AttentionSites
from regard.attention.serialize import find_named
from regard.data.batching import pad_rows
from regard.data.tokenizers.base import UNK, WordTokenizer
from regard.layers.sublayers import ACTIVATIONS
from regard.models.config import EncoderConfig, make_stack_config
from regard.models.encoder import Encoder, SequenceClassifier, TokenClassifier

BATCH = 64  # sentences that are encoded together


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig:
    """How a masked language model is trained.

    Args:
        encoder: its configuration.
        mask_rate: the share of words to predict: half of them are masked, a quarter replaced by a random one.
        size: of the vocabulary; other words are unknown, and never predicted.
        steps, batch, rate: how often, how many sentences each time, and the optimiser's first rate (it falls to 0).
        seed: of initial weights, of the order of sentences and of the masks.
    """

    encoder: EncoderConfig = EncoderConfig(kind="gru", layers=1, model=48, hidden=96, directions=2, dropout=0.0)
    mask_rate: float = 0.25
    size: int = 10_000
    steps: int = 400
    batch: int = 64
    rate: float = 5e-3
    seed: int = 0

    def __post_init__(self):
        if not 0 < self.mask_rate < 1:
            raise ValueError(
                f"mask_rate = {self.mask_rate} should lie between 0 and 1: some words are predicted, not all"
            )
        for name in ("size", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Words as they occur, sentence after sentence: which word, in which sentence, at which position, and its vector.

    Words outside the vocabulary, which are all encoded alike, are nobody's neighbours.
    """

    words: tuple[str, ...]
    positions: tuple[tuple[int, int], ...]
    vectors: Float[Tensor, "n m"]
    known: frozenset[str]

    def of(self, word: str) -> list[int]:
        """The rows of a word."""
        found = [row for row, one in enumerate(self.words) if one == word]
        if not found:
            raise ValueError(f"{word!r} occurs in none of these sentences")
        return found

    def neighbours(self, row: int, k: int = 5) -> list[tuple[str, float]]:
        """The k other words of which some occurrence points most nearly the same way, with the cosine."""
        units = normalize(self.vectors, dim=-1)
        values, order = (units @ units[row]).sort(descending=True, stable=True)
        found: dict[str, float] = {}
        for one, cosine in zip(order.tolist(), values.tolist(), strict=True):
            if self.words[one] != self.words[row] and self.words[one] in self.known:
                found.setdefault(self.words[one], cosine)
            if len(found) == k:
                break
        return list(found.items())

    def nearest_same_word(self, word: str) -> list[tuple[int, int]]:
        """For each occurrence of a word the other one whose vector points most nearly the same way."""
        rows = self.of(word)
        if len(rows) < 2:
            raise ValueError(f"{word!r} occurs only once, so it has no other occurrence to compare with")
        units = normalize(self.vectors[rows], dim=-1)
        cosines = (units @ units.T).fill_diagonal_(-torch.inf)
        return [(row, rows[best]) for row, best in zip(rows, cosines.argmax(1).tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class MaskedLMEncoder:
    """A tokenizer, and an encoder of its sentences."""

    tokenizer: WordTokenizer
    encoder: Encoder

    def read(self, sentences: Iterable[Sequence[str]]) -> Occurrences:
        """Every word of the sentences."""
        sentences, vectors = list(sentences), []
        with torch.inference_mode():
            for start in range(0, len(sentences), BATCH):
                some = sentences[start : start + BATCH]
                tokens, lengths = pad_rows([self.tokenizer.encode(" ".join(sentence)) for sentence in some])
                read = self.encoder(tokens, lengths)
                vectors += [row[: len(sentence)] for row, sentence in zip(read, some, strict=True)]
        words = tuple(word for sentence in sentences for word in sentence)
        places = tuple((n, at) for n, sentence in enumerate(sentences) for at in range(len(sentence)))
        return Occurrences(words, places, torch.cat(vectors).clone(), frozenset(self.tokenizer.vocabulary))


def train_masked_lm(sentences: Iterable[Sequence[str]], config: MaskedLMConfig = MaskedLMConfig()) -> MaskedLMEncoder:
    """The same sentences and config give the same encoder, on one machine."""
    texts = [" ".join(sentence) for sentence in sentences if sentence]
    words = WordTokenizer.train(texts, size=config.size)
    ids, generator = words.encode_batch(texts), Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = TokenClassifier(Encoder(config.encoder, words.size), labels=words.size)
        optimiser = torch.optim.Adam(model.parameters(), lr=config.rate)
        for step in range(config.steps):
            optimiser.param_groups[0]["lr"] = config.rate * (1 - step / config.steps)
            rows = torch.randint(len(ids), (config.batch,), generator=generator).tolist()
            train_step(model, [ids[row] for row in rows], config.mask_rate, optimiser, generator)
    return MaskedLMEncoder(words, model.eval().encoder)


def train_step(
    model: TokenClassifier,
    ids: list[list[int]],
    mask_rate: float,
    optimiser: torch.optim.Optimizer,
    generator: Generator,
) -> None:
    """One step: mask, predict, update."""
    tokens, lengths = pad_rows(ids)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    masked = (
        (torch.rand(tokens.shape, generator=generator) < mask_rate) & (positions < lengths[:, None]) & (tokens != UNK)
    )
    if not masked.any():
        return
    draw = torch.rand(tokens.shape, generator=generator)
    other = torch.randint(UNK + 1, model.output.out_features, tokens.shape, generator=generator)
    inputs = tokens.where(~masked | (draw >= 0.75), other).masked_fill(masked & (draw < 0.5), UNK)
    states = model.encoder(inputs, lengths)
    loss = cross_entropy(model.output(states[masked]), tokens[masked])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


# --- with subwords, and a head of its own ---


class MaskedLanguageModel(nn.Module):
    """An encoder, and BERT's head: logits of every token by the embedding's own weights (Devlin et al. 2019).

    logits = E norm(φ(W x + b)) + c. Without a head it only encodes.

    Args:
        config: of the encoder; the head has its activation and its norm.
        size: of the vocabulary.
        head: whether there is one.
    """

    attention_sites: ClassVar[AttentionSites] = SequenceClassifier.attention_sites

    def __init__(self, config: EncoderConfig, size: int, *, head: bool = True):
        super().__init__()
        self.encoder, width = Encoder(config, size), config.width
        if head and width != config.model:
            raise ValueError(
                f"embeddings of width {config.model} cannot score states of width {width}; make them equal"
            )
        self.activation = find_named(config.activation, ACTIVATIONS, "activation")
        self.transform = nn.Linear(width, width) if head else None
        self.norm = make_stack_config(config).make_norm(width) if head else None
        self.bias = nn.Parameter(torch.zeros(size)) if head else None

    def forward(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b t v"]:
        return self.logits(self.encoder(tokens, lengths))

    def logits(self, x: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch v"]:
        if self.transform is None or self.norm is None or self.bias is None:
            raise ValueError("this encoder has no head that predicts tokens; it gives vectors: model.embed(texts)")
        return self.encoder.embedding.logits(self.norm(self.activation(self.transform(x))), self.bias)
