"""Baselines without context: TF-IDF and log-count ratios, and word vectors by skip-gram with negative sampling.

TF-IDF and log-count ratios are weights of tokens by a formula, for a bag-of-words classifier;
`regard.layers.pooling.TokenWeightPooling` learns such weights instead. All are static attention, so all serve the same
classifier.

A word vector (Mikolov et al. 2013) is learned by telling the words of its context from words drawn at random. It is
static: *light* has one vector in every context.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import embedding, embedding_bag, logsigmoid, normalize
from torch.optim import SparseAdam

from regard.data.files import read_lines, write_text_atomic
from regard.layers.embedding import Embedding
from regard.layers.pooling import Lengths, StaticPooling, Tokens, token_mask

SCALES = {
    "count": "TF is how often the term occurs",
    "share": "TF is the share of the document's words that are the term",
    "unit": "TF × IDF, divided by the length of the document's vector",
}


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """What a collection says about its terms: N documents, n_j of which contain term j."""

    documents: int
    containing: Int[Tensor, " v"]

    @staticmethod
    def of(documents: Iterable[Sequence[int]], size: int) -> "DocumentFrequencies":
        """Of documents as token ids below `size`."""
        containing, number = torch.zeros(size, dtype=torch.long), 0
        for number, document in enumerate(documents, 1):
            terms = np.unique(np.asarray(document, dtype=np.int64))
            if len(terms) and not 0 <= terms[0] <= terms[-1] < size:
                unknown = terms[0] if terms[0] < 0 else terms[-1]
                raise ValueError(
                    f"document {number} has token {unknown}, but the vocabulary holds 0 to {size - 1}; "
                    "was it encoded by another tokeniser?"
                )
            containing[torch.from_numpy(terms)] += 1
        if number == 0:
            raise ValueError("there is no document to count tokens in; give at least one")
        return DocumentFrequencies(number, containing)

    def idf(self) -> Float[Tensor, " v"]:
        """log(N / n_j); a term in no document has weight 0."""
        return torch.where(self.containing > 0, self.documents / self.containing.clamp(min=1), 1.0).log()


class CorpusWeights(StaticPooling):
    """Abstract: static weights that are computed from a corpus, not learned."""

    @abstractmethod
    def fit(self, documents: Sequence[Sequence[int]], labels: Sequence[int]) -> None:
        """From documents as token ids, and their labels."""


class TfIdfPooling(CorpusWeights):
    """TF × IDF as weights of tokens: those of one term's occurrences add up to the term's.

    Args:
        idf: one number for each token of the vocabulary, as `DocumentFrequencies.idf` computes it.
        scale: what TF means: see SCALES.
    """

    idf: Tensor

    def __init__(self, idf: Float[Tensor, " v"], *, scale: str = "unit"):
        super().__init__()
        if scale not in SCALES:
            raise ValueError(f"no scale is called {scale!r}; there are {', '.join(SCALES)}")
        self.scale = scale
        self.register_buffer("idf", idf)

    def fit(self, documents, labels):
        self.idf.copy_(DocumentFrequencies.of(documents, len(self.idf)).idf())

    def weights(self, tokens, lengths):
        here = token_mask(tokens, lengths)
        weights = torch.where(here, self.idf[tokens.where(here, 0)], 0.0)
        match self.scale:
            case "share":
                return weights / lengths.clamp(min=1)[:, None]
            case "unit":
                # Σ_j (TF_j IDF_j)² over terms is Σ_t IDF_t · TF_t IDF_t over words
                squared = (weights.square() * count_occurrences(tokens.where(here, -1))).sum(1, keepdim=True)
                return weights / squared.masked_fill(squared == 0, 1.0).sqrt()
        return weights


class LogRatioPooling(CorpusWeights):
    """max_l |log p(t | l) / p(t | not l)|: how much a term tells about a label (Wang and Manning 2012).

    A term counts once, however often it occurs, and the document's vector has length 1. With it,
    `BagOfWordsClassifier` is the NB-SVM of that paper, but for the hinge.

    Args:
        size: of the vocabulary.
        smooth: the count that is added to every term, in every label.
    """

    ratio: Tensor

    def __init__(self, size: int, *, smooth: float = 1.0):
        super().__init__()
        if not smooth > 0:
            raise ValueError(
                f"smooth = {smooth} should be above 0, or a term of one label alone would weigh infinitely"
            )
        self.smooth = smooth
        self.register_buffer("ratio", torch.zeros(size))

    def fit(self, documents, labels):
        by_label = torch.stack(
            [
                DocumentFrequencies.of(
                    (one for one, is_ in zip(documents, labels, strict=True) if is_ == label), len(self.ratio)
                ).containing.double()
                for label in sorted(set(labels))
            ]
        )
        here, elsewhere = by_label + self.smooth, by_label.sum(0) - by_label + self.smooth
        log_ratio = (here / here.sum(1, keepdim=True)).log() - (elsewhere / elsewhere.sum(1, keepdim=True)).log()
        # for a term that never occurred, the formula would depend on the lengths of the labels' documents
        self.ratio.copy_(log_ratio.abs().amax(0).where(by_label.sum(0) > 0, 0.0))

    def weights(self, tokens, lengths):
        here = token_mask(tokens, lengths)
        ratio = torch.where(here, self.ratio[tokens.where(here, 0)], 0.0)
        times = count_occurrences(tokens.where(here, -1))
        squared = (ratio.square() / times).sum(1, keepdim=True)
        return ratio / times / squared.masked_fill(squared == 0, 1.0).sqrt()


def count_occurrences(tokens: Tokens) -> Int[Tensor, "b t"]:
    """How often each token occurs in its own row; memory grows with the tokens, not with the vocabulary."""
    ordered, order = tokens.sort(1)
    starts = torch.searchsorted(ordered, ordered), torch.searchsorted(ordered, ordered, right=True)
    return torch.empty_like(tokens).scatter(1, order, starts[1] - starts[0])


class BagOfWordsClassifier(nn.Module):
    """A linear classifier of Σ_t w_t onehot(t), which never forms that vector: o = c + Σ_t w_t V[t].

    Args:
        size: of the vocabulary.
        weigh: the weight of each token: TfIdfPooling, TokenWeightPooling, MeanPooling.
        labels: how many there are to choose from.
    """

    def __init__(self, size: int, weigh: StaticPooling, *, labels: int):
        super().__init__()
        if labels < 2:
            raise ValueError(f"a classifier chooses among 2 labels or more, not {labels}")
        self.weigh = weigh
        self.V, self.c = nn.Parameter(torch.zeros(size, labels)), nn.Parameter(torch.zeros(labels))

    def forward(self, tokens: Tokens, lengths: Lengths) -> Float[Tensor, "b labels"]:
        words = tokens.where(token_mask(tokens, lengths), 0)  # padding has weight 0, and must be a valid id
        weights = self.weigh.core(self.weigh.weights(tokens, lengths)).to(self.V.dtype)
        return self.c + embedding_bag(words, self.V, mode="sum", per_sample_weights=weights)

    def token_contributions(self, tokens: Tokens, lengths: Lengths) -> Float[Tensor, "b t labels"]:
        """What each token adds to the scores: with c they sum to `forward`."""
        words = tokens.where(token_mask(tokens, lengths), 0)
        return self.weigh.weights(tokens, lengths)[..., None] * embedding(words, self.V)


@dataclass(frozen=True, kw_only=True)
class SkipGram:
    """How word vectors are trained.

    Args:
        width: of the vectors.
        window: words of context to either side; each position draws its own window, from 1 to this, so that the
            nearest count most.
        negatives: words drawn for each word of the context, by frequency to the power of 3/4.
        min_count: rarer words have no vector.
        subsample: a word with the relative frequency f is kept with probability √(subsample / f); 0 keeps them all.
        epochs, rate, batch: passes over the text, the optimiser's first rate (it falls to 0), pairs in a step.
        seed: of everything that is drawn.
    """

    width: int = 64
    window: int = 5
    negatives: int = 5
    min_count: int = 1
    subsample: float = 1e-3
    epochs: int = 5
    rate: float = 0.01
    batch: int = 1024
    seed: int = 0

    def __post_init__(self):
        for name in ("width", "window", "negatives", "min_count", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")
        if not self.rate > 0 or self.subsample < 0:
            raise ValueError(f"rate = {self.rate} should be above 0 and subsample = {self.subsample} not below")

    def rate_at(self, done: float) -> float:
        """The optimiser's rate after this share of the training."""
        return self.rate * (1 - done)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A vector for each word, the most frequent first."""

    words: tuple[str, ...]
    vectors: Float[Tensor, "v m"]

    @cached_property
    def rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    def __getitem__(self, word: str) -> Float[Tensor, " m"]:
        return self.vectors[self.row(word)]

    def row(self, word: str) -> int:
        if word not in self.rows:
            raise ValueError(f"{word!r} has no vector among these {len(self.words)}; it was too rare, or never read")
        return self.rows[word]

    def neighbours(self, word: str, k: int = 5) -> list[tuple[str, float]]:
        """The k words whose vectors point most nearly the same way, with the cosine; the nearest first."""
        return [(self.words[row], cosine) for row, cosine in nearest_rows(self.vectors, self.row(word), k)]

    def initialise(self, table: Embedding, words: Sequence[str]) -> int:
        """Initialise a model's embedding from these vectors: its row n is that of words[n]. Returns how many are known.

        All are scaled alike, so that their features are as large as the embedding's initial ones; the words without
        a vector stay as they are.
        """
        if len(words) != len(table.weight) or self.vectors.shape[1] != table.weight.shape[1]:
            raise ValueError(
                f"{len(words)} words and vectors of width {self.vectors.shape[1]} cannot initialise an embedding of "
                f"{tuple(table.weight.shape)}; train them as wide as the model, and name every row's word"
            )
        known = [(row, self.rows[word]) for row, word in enumerate(words) if word in self.rows]
        if known:
            here, there = (torch.tensor(rows, device=table.weight.device) for rows in zip(*known, strict=True))
            with torch.no_grad():
                size = self.vectors.square().mean().sqrt() * table.weight.shape[1] ** 0.5
                table.weight[here] = self.vectors.to(table.weight)[there] / size.to(table.weight)
        return len(known)

    def save(self, path: str | Path) -> None:
        """The plain text that word2vec writes: how many and how wide, then a word and its numbers on each line."""
        if torn := [word for word in self.words if not word or {" ", "\n", "\r"} & set(word)]:
            raise ValueError(f"{torn[0]!r} is empty or holds a blank, which this form of file cannot tell from its own")
        rows = (" ".join(f"{x:.9g}" for x in row) for row in self.vectors.tolist())
        lines = (f"{word} {row}" for word, row in zip(self.words, rows, strict=True))
        write_text_atomic(path, "\n".join((f"{len(self.words)} {self.vectors.shape[1]}", *lines)) + "\n")

    @staticmethod
    def load(path: str | Path) -> "WordVectors":
        """What `save` wrote, or any file of that form."""
        lines = iter(read_lines(Path(path)))
        head = next(lines, "").split()
        if len(head) != 2 or not all(part.isdecimal() for part in head):
            raise ValueError(f"{path}:1: should say how many vectors there are and how wide, such as '5000 64'")
        size, width = map(int, head)
        words, rows = dict[str, int](), []  # each word with its line
        most = torch.finfo(torch.float32).max
        for number, line in enumerate(lines, 2):
            word, *numbers = line.rstrip().split(" ")
            try:
                row = [float(part) for part in numbers]
            except ValueError:
                raise ValueError(f"{path}:{number}: {line[:40]!r} should be a word and {width} numbers") from None
            if len(row) != width:
                raise ValueError(
                    f"{path}:{number}: {word!r} has {len(row)} numbers, not {width} as the first line says"
                )
            if strange := [part for part, x in zip(numbers, row, strict=True) if not abs(x) <= most]:
                raise ValueError(f"{path}:{number}: {word!r} has {strange[0]!r} among its numbers; remove the line")
            if word in words:
                raise ValueError(f"{path}:{number}: {word!r} has a vector in line {words[word]} already; remove one")
            words[word] = number
            rows.append(row)
        if len(words) != size:
            raise ValueError(f"{path}: the first line promises {size} vectors, but there are {len(words)}")
        return WordVectors(tuple(words), torch.tensor(rows).reshape(size, width))


def nearest_rows(vectors: Float[Tensor, "v m"], row: int, k: int) -> list[tuple[int, float]]:
    """The k other rows with the largest cosine to this one; of equals the first."""
    if not 1 <= k < len(vectors):
        raise ValueError(
            f"{k} neighbours cannot be found among {len(vectors)} vectors; ask for 1 to {len(vectors) - 1}"
        )
    units = normalize(vectors, dim=-1)
    cosines = (units @ units[row]).index_fill(0, torch.tensor([row], device=vectors.device), -torch.inf)
    values, order = cosines.sort(descending=True, stable=True)
    return list(zip(order[:k].tolist(), values[:k].tolist(), strict=True))


def pair_loss(
    near: Float[Tensor, "n m"], context: Float[Tensor, "n m"], drawn: Float[Tensor, "n k m"]
) -> Float[Tensor, " n"]:
    """−log σ(u·v) − Σ_k log σ(−u_k·v): v the word, u that of its context, u_k those drawn (Mikolov et al. 2013, 4)."""
    against = einsum(drawn, near, "n k m, n m -> n k")
    return -logsigmoid((context * near).sum(-1)) - logsigmoid(-against).sum(-1)


def train_vectors(
    sentences: Iterable[Sequence[str]], config: SkipGram = SkipGram(), on_progress: Callable[[float], object] = abs
) -> WordVectors:
    """The same sentences and config give the same vectors, on one machine; `on_progress` gets the share done."""
    sentences = list(sentences)
    counted = Counter(chain.from_iterable(sentences))
    words = sorted(
        (word for word, n in counted.items() if n >= config.min_count), key=lambda word: (-counted[word], word)
    )
    if len(words) < 2:
        raise ValueError(f"{len(words)} words occur {config.min_count} times or more; two are the least to compare")
    rows = {word: row for row, word in enumerate(words)}
    counts = torch.tensor([counted[word] for word in words], dtype=torch.double)
    ids = torch.tensor([rows[word] for sentence in sentences for word in sentence if word in rows])
    of = torch.tensor([n for n, sentence in enumerate(sentences) for word in sentence if word in rows])
    return WordVectors(tuple(words), train_skip_gram(ids, of, counts, config, on_progress))


def train_skip_gram(
    ids: Int[Tensor, " t"],
    sentence: Int[Tensor, " t"],
    counts: Float[Tensor, " v"],
    config: SkipGram,
    on_progress: Callable[[float], object],
) -> Float[Tensor, "v m"]:
    """Vectors of words given as ids; sentence[t] is that of word t."""
    generator = Generator().manual_seed(config.seed)
    near = ((torch.rand(len(counts), config.width, generator=generator) - 0.5) / config.width).requires_grad_()
    far = torch.zeros(len(counts), config.width, requires_grad=True)
    optimiser = SparseAdam([near, far], lr=config.rate)
    share = counts / counts.sum()
    keep_probability = (config.subsample / share).sqrt().clamp(max=1) if config.subsample else torch.ones_like(share)
    for epoch in range(config.epochs):
        keep = torch.rand(len(ids), generator=generator, dtype=torch.double) < keep_probability[ids]
        pairs = context_pairs(ids[keep], sentence[keep], config.window, generator)
        shuffled = pairs[torch.randperm(len(pairs), generator=generator)]
        steps = shuffled.split(config.batch) if len(pairs) else ()  # a small text may have no pairs
        for n, step in enumerate(steps):
            done = (epoch + n / len(steps)) / config.epochs
            on_progress(done)
            optimiser.param_groups[0]["lr"] = config.rate_at(done)
            drawn = sample_negatives(counts, len(step), config.negatives, generator)
            optimiser.zero_grad()
            word, context, against = (
                embedding(which, table, sparse=True)
                for which, table in ((step[:, 0], near), (step[:, 1], far), (drawn, far))
            )
            pair_loss(word, context, against).sum().backward()
            optimiser.step()
    return near.detach()


def sample_negatives(
    counts: Float[Tensor, " v"], pairs: int, negatives: int, generator: Generator
) -> Int[Tensor, "n k"]:
    """Words at random, the frequent ones more often, but not as often as they occur."""
    return torch.multinomial(counts**0.75, pairs * negatives, replacement=True, generator=generator).view(
        pairs, negatives
    )


def context_pairs(
    ids: Int[Tensor, " t"], sentence: Int[Tensor, " t"], window: int, generator: Generator
) -> Int[Tensor, "n 2"]:
    """Each word with each word of its sentence that stands within a window drawn for it, from 1 to `window`."""
    reach = torch.randint(1, window + 1, (len(ids),), generator=generator)
    return torch.cat(list(pairs_at_distance(ids, sentence, reach, window)) or [torch.empty(0, 2, dtype=torch.long)])


def pairs_at_distance(ids: Tensor, sentence: Tensor, reach: Tensor, window: int) -> Iterator[Tensor]:
    for apart in range(1, min(window, len(ids) - 1) + 1):
        same = sentence[:-apart] == sentence[apart:]
        before, after = ids[:-apart], ids[apart:]
        for word, context, allowed in ((before, after, reach[:-apart]), (after, before, reach[apart:])):
            use = same & (allowed >= apart)
            yield torch.stack((word[use], context[use]), 1)
