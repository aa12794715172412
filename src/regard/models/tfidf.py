"""TF-IDF and log-count ratios: weights of tokens by a formula, and a bag-of-words classifier.

`regard.layers.pooling.TokenWeightPooling` learns such weights instead. All are static attention, so all serve the same
classifier.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

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
