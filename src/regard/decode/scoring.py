"""Scoring: log-probabilities, perplexity and cross-attention of given targets (teacher forcing)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from regard.attention import record_attention
from regard.data.tokenizers.base import EOS
from regard.decode.beam_decoder import cross_attention_sites
from regard.decode.search import Hypothesis, Ids, check_plain_ids, inference_mode
from regard.decode.topk import log_probabilities
from regard.decode.translation import batch_by_tokens
from regard.models.seq2seq import DecodableModel, Reorderable, decoder_inputs, encode_sources


def score_targets(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048
) -> list[Hypothesis]:
    """The targets as hypotheses, with the model's log-probability of every token and of EOS.

    They are read in batches of at most `tokens` tokens on either side, which changes no result.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat dort")
        >>> (found,) = score_targets(translator.model, [source], [target])
        >>> len(found.scores), found.log_probability == score(translator.model, [source], [target])[0]
        (4, True)
    """
    found: dict[int, Hypothesis] = {}
    for batch in batch_pairs(sources, targets, tokens):
        with inference_mode(model):
            scores = log_probabilities(model.step(*decoder_start(model, sources, targets, batch))[0])
        for index, row in zip(batch, scores, strict=True):
            predicted = torch.tensor([*targets[index], EOS], device=row.device)
            values = row[: len(predicted)].gather(-1, rearrange(predicted, "t -> t 1"))[:, 0].tolist()
            found[index] = Hypothesis(tuple(targets[index]), tuple(values), finished=True, score=sum(values))
    return [found[index] for index in range(len(sources))]


def score(model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048) -> list[float]:
    """log P(target | source) for each pair, EOS included.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("the cat", "a dog")]
        >>> targets = [translator.target.encode(text) for text in ("le chat", "un chien")]
        >>> [found < 0 for found in score(translator.model, sources, targets)]
        [True, True]
    """
    return [found.log_probability for found in score_targets(model, sources, targets, tokens=tokens)]


def perplexity(found: Sequence[Hypothesis]) -> float:
    """exp of the mean negative log-probability per token, EOS included.

    Examples:
        >>> from math import log
        >>> quarters = Hypothesis(ids=(5,), scores=(log(0.25), log(0.25)), finished=True, score=2 * log(0.25))
        >>> round(perplexity([quarters]), 6)
        4.0
    """
    count = sum(len(hypothesis.scores) for hypothesis in found)
    if not count:
        raise ValueError("perplexity needs at least one token; give at least one sentence")
    mean = -sum(hypothesis.log_probability for hypothesis in found) / count
    return exp(mean) if mean < 700 else inf  # exp of more does not fit a number


@dataclass(frozen=True, eq=False)
class CrossAttentionMaps:
    """What the model attended to for a given target: weights by layer, one row per predicted token, ends included.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat")
        >>> (maps,) = cross_attention_maps(translator.model, [source], [target])
        >>> {layer: tuple(weights.shape) for layer, weights in maps.layers.items()}  # EOS on both sides
        {'decoder.0.cross': (4, 3, 4), 'decoder.1.cross': (4, 3, 4)}
    """

    layers: dict[str, Float[Tensor, "h t s"]]


def cross_attention_maps(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], *, tokens: int = 2048
) -> list[CrossAttentionMaps]:
    """The cross-attention of every pair: row t holds the weights with which token t of the target was predicted.

    Examples:
        >>> translator = regard.load("run")
        >>> source, target = translator.source.encode("the cat sleeps"), translator.target.encode("le chat dort")
        >>> (maps,) = cross_attention_maps(translator.model, [source], [target])
        >>> maps.layers["decoder.0.cross"].shape, maps.layers["decoder.0.cross"].sum(-1).allclose(torch.ones(4, 4))
        (torch.Size([4, 4, 4]), True)
    """
    found: dict[int, CrossAttentionMaps] = {}
    for batch in batch_pairs(sources, targets, tokens):
        with inference_mode(model):
            start = decoder_start(model, sources, targets, batch)
            with record_attention(model) as record:
                model.step(*start)
            layers = {name: record.weights(name) for name in cross_attention_sites(record)}
        if not layers:
            raise ValueError("the model has no cross-attention; use a model with attention")
        for n, index in enumerate(batch):
            t, s = len(targets[index]) + 1, len(sources[index]) + 1
            found[index] = CrossAttentionMaps({name: weights[n, :, :t, :s] for name, weights in layers.items()})
    return [found[index] for index in range(len(sources))]


def decoder_start(
    model: DecodableModel, sources: Sequence[Ids], targets: Sequence[Ids], batch: Sequence[int]
) -> tuple[Tensor, Reorderable, Reorderable]:
    """The decoder inputs of a batch, the decoder's first state, and the encoded sources."""
    memory, lengths = encode_sources(model, [sources[index] for index in batch])
    return decoder_inputs([targets[index] for index in batch]).to(lengths.device), model.start(memory), memory


def batch_pairs(sources: Sequence[Ids], targets: Sequence[Ids], tokens: int) -> list[list[int]]:
    """Indices of pairs that fit the budget on either side."""
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets: they must come in pairs")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_plain_ids(source, f"source {index}")
        check_plain_ids(target, f"target {index}")
    return batch_by_tokens([max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)], tokens)
