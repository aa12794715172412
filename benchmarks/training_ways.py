"""The ways to train a Transformer-base that `training_speed.py` compares: ours as they can be told, and torch's own."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.data.batching import Batch, Example, collate, pair_lengths
from regard.data.tokenizers.base import PAD
from regard.models.config import ModelConfig, build_model
from regard.models.transformer import Transformer
from regard.ops import dispatch
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.train.config import Loss, TrainingData, TrainSettings
from regard.train.corpus import Corpus, PackedCorpus

SMOOTHING = 0.1
BASE = ModelConfig(
    kind="transformer",
    layers=6,
    model=512,
    heads=8,
    hidden=2048,
    dropout=0.1,
    attention_dropout=0.1,
    norm="post",
    tie="all",
)
TINY = replace(BASE, layers=2, model=64, heads=4, hidden=128)


def sentences(count: int, words: int) -> list[Example]:
    """Made ones; a target is about as long as its source."""
    chance = np.random.default_rng(0)
    source = np.clip(np.round(np.exp(chance.normal(3.2, 0.6, count))), 3, 120).astype(int)
    target = np.clip(np.round(source * np.exp(chance.normal(0.0, 0.15, count))), 3, 120).astype(int)
    return [
        (chance.integers(4, words, s).tolist(), chance.integers(4, words, t).tolist())
        for s, t in zip(source, target, strict=True)
    ]


# --- the peer ---


class Peer(nn.Module):
    """As one writes it with torch's own parts."""

    def __init__(self, config: ModelConfig, words: int):
        super().__init__()
        self.table = nn.Embedding(words, config.model, padding_idx=PAD)
        nn.init.normal_(self.table.weight, std=config.model**-0.5)
        self.transformer = nn.Transformer(
            config.model,
            config.heads,
            config.layers,
            config.layers,
            config.hidden,
            config.dropout,
            batch_first=True,
        )
        self.dropout, self.scale = nn.Dropout(config.dropout), math.sqrt(config.model)
        at, pair = torch.arange(512)[:, None], torch.arange(0, config.model, 2)
        angle = at * 10_000 ** (-pair / config.model)
        self.register_buffer("places", torch.stack((angle.sin(), angle.cos()), -1).flatten(1).float())

    def embedded(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * self.scale + self.places[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = source == PAD
        x = self.transformer(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=causal,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return x @ self.table.weight.T


def peer_loss(forward: Callable[..., Tensor]) -> Loss:
    def loss(model: nn.Module, batch: tuple[Batch, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        scores = forward(given.source, given.target[:, :-1]).float().flatten(0, 1)
        wanted = given.target[:, 1:].flatten()
        return cross_entropy(scores, wanted, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING), tokens

    return loss


# --- one way to train ---


@dataclass(frozen=True, eq=False)
class Way:
    model: nn.Module
    data: TrainingData
    loss: Loss
    capture: bool = False
    exact: bool = False
    precision: str = "bfloat16"
    whole: bool = False  # the optimiser's step is recorded as well
    torchs: bool = False  # by torch's AdamW, where ours would do it


def ways(asked: argparse.Namespace, config: ModelConfig, examples: list[Example]) -> dict[str, Callable[[], Way]]:
    words, device = asked.words, asked.device
    packed = TrainSettings(batch_size=round(asked.side * 1.04), max_length=256, packed=True)
    padded = TrainSettings(batch_size=round(asked.side * 1.06), max_length=256)

    def ours() -> Transformer:
        torch.manual_seed(0)
        model = build_model(config, words, words).to(device)
        assert isinstance(model, Transformer)
        return model

    def unfused() -> Transformer:
        """Every op by its torch form."""
        dispatch.use_fused = lambda x: False
        return ours()

    def compiled() -> Transformer:
        model = ours()
        for layer in (*model.encoder, *model.decoder):
            layer.compile(dynamic=False)
        return model

    def captured(model: Transformer, **how: Any) -> Way:
        return Way(model, packed_pairs(), LabelSmoothingLoss(SMOOTHING), capture=True, **how)

    @cache
    def sorted_pairs() -> Corpus:
        return Corpus.of(examples, pair_lengths, collate, padded, device)

    @cache
    def packed_pairs() -> PackedCorpus:
        return PackedCorpus.of(examples, packed, device)

    def peer(*, compile: bool) -> Way:
        torch.manual_seed(0)
        model = Peer(config, words).to(device)
        return Way(model, sorted_pairs(), peer_loss(torch.compile(model, dynamic=True) if compile else model))

    return {
        "ours, padded": lambda: Way(ours(), sorted_pairs(), LabelSmoothingLoss(SMOOTHING)),
        "ours, packed, exact": lambda: Way(ours(), packed_pairs(), LabelSmoothingLoss(SMOOTHING), exact=True),
        "ours, packed": lambda: Way(ours(), packed_pairs(), LabelSmoothingLoss(SMOOTHING)),
        "ours, captured": lambda: captured(ours()),
        "ours, whole": lambda: captured(ours(), whole=True),
        "ours, bf16-pure, whole": lambda: captured(ours(), precision="bf16-pure", whole=True),
        "ours, bf16-pure, whole, exact": lambda: captured(ours(), precision="bf16-pure", whole=True, exact=True),
        "ours, bf16-pure, whole, torch's AdamW": lambda: captured(
            ours(), precision="bf16-pure", whole=True, torchs=True
        ),
        "ours, compiled, bf16-pure, whole": lambda: captured(compiled(), precision="bf16-pure", whole=True),
        "nn.Transformer": lambda: peer(compile=False),
        "nn.Transformer, compiled": lambda: peer(compile=True),
        "ours, without our kernels, captured": lambda: captured(unfused()),  # the last: it switches them off for good
    }
