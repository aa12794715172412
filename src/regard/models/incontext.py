"""Sentences of words in, a vector for every occurrence of a word out: an encoder that has learnt to fill in gaps.

Some words of each sentence are hidden, and from what stands around them the encoder must tell which they were (the
cloze of Taylor 1953; Devlin et al. 2019). It is asked for some words that are shown as well, and not always truly, so
that it looks around wherever it reads. Unlike those of `wordvectors`, its vectors know where they stand: *light* has
as many as there are sentences with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, normalize

from regard.models.encoder import Encoder, Tagger
from regard.models.reading_config import EncoderConfig
from regard.text.batches import padded
from regard.text.vocabulary import UNK, Words

AT_ONCE = 64  # sentences that are read together


@dataclass(frozen=True, kw_only=True)
class FillIn:
    """How a reader learns.

    Args:
        encoder: what reads.
        hidden: the share of words that are asked for: half of them are hidden, a quarter are replaced by any other.
        size: of the vocabulary; other words are unknown, and never asked for.
        steps, batch, rate: how often, how many sentences each time, and the optimiser's first rate (it falls to 0).
        seed: of first weights, of the order of sentences and of what is hidden.
    """

    encoder: EncoderConfig = EncoderConfig(kind="gru", layers=1, model=48, hidden=96, directions=2, dropout=0.0)
    hidden: float = 0.25
    size: int = 10_000
    steps: int = 400
    batch: int = 64
    rate: float = 5e-3
    seed: int = 0

    def __post_init__(self):
        if not 0 < self.hidden < 1:
            raise ValueError(f"hidden = {self.hidden} should lie between 0 and 1: some words are asked for, not all")
        for name in ("size", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Words as they occur, sentence after sentence: which word, in which sentence, at which place, and its vector.

    Those that the reader did not know, and so read all alike, are nobody's neighbours.
    """

    words: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
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

    def nearest_of_its_kind(self, word: str) -> list[tuple[int, int]]:
        """For each occurrence of a word the other one whose vector points most nearly the same way."""
        rows = self.of(word)
        if len(rows) < 2:
            raise ValueError(f"{word!r} occurs only once, so it has no other occurrence to compare with")
        units = normalize(self.vectors[rows], dim=-1)
        cosines = (units @ units.T).fill_diagonal_(-torch.inf)
        return [(row, rows[best]) for row, best in zip(rows, cosines.argmax(1).tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Reader:
    """A vocabulary, and an encoder that reads sentences of it."""

    words: Words
    encoder: Encoder

    def read(self, sentences: Iterable[Sequence[str]]) -> Occurrences:
        """Every word of the sentences."""
        sentences, vectors = list(sentences), []
        with torch.inference_mode():
            for start in range(0, len(sentences), AT_ONCE):
                some = sentences[start : start + AT_ONCE]
                tokens, lengths = padded([self.words.encode(" ".join(sentence)) for sentence in some])
                read = self.encoder(tokens, lengths)
                vectors += [row[: len(sentence)] for row, sentence in zip(read, some, strict=True)]
        words = tuple(word for sentence in sentences for word in sentence)
        places = tuple((n, at) for n, sentence in enumerate(sentences) for at in range(len(sentence)))
        return Occurrences(words, places, torch.cat(vectors).clone(), frozenset(self.words.vocabulary))


def train_reader(sentences: Iterable[Sequence[str]], config: FillIn = FillIn()) -> Reader:
    """The same sentences and config give the same reader, on one machine."""
    texts = [" ".join(sentence) for sentence in sentences if sentence]
    words = Words.train(texts, size=config.size)
    ids, chance = words.encode_all(texts), Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Tagger(Encoder(config.encoder, words.size), labels=words.size)
        optimiser = torch.optim.Adam(model.parameters(), lr=config.rate)
        for step in range(config.steps):
            optimiser.param_groups[0]["lr"] = config.rate * (1 - step / config.steps)
            rows = torch.randint(len(ids), (config.batch,), generator=chance).tolist()
            learn(model, [ids[row] for row in rows], config.hidden, optimiser, chance)
    return Reader(words, model.eval().encoder)


def learn(
    model: Tagger, ids: list[list[int]], hidden: float, optimiser: torch.optim.Optimizer, chance: Generator
) -> None:
    """One step: hide, ask, correct."""
    tokens, lengths = padded(ids)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    gaps = (torch.rand(tokens.shape, generator=chance) < hidden) & (places < lengths[:, None]) & (tokens != UNK)
    if not gaps.any():
        return
    lot = torch.rand(tokens.shape, generator=chance)
    other = torch.randint(UNK + 1, model.output.out_features, tokens.shape, generator=chance)
    given = tokens.where(~gaps | (lot >= 0.75), other).masked_fill(gaps & (lot < 0.5), UNK)
    read = model.encoder(given, lengths)
    loss = cross_entropy(model.output(read[gaps]), tokens[gaps])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
