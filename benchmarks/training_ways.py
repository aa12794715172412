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

from regard.layers.hashed_dropout import by_hash
from regard.layers.packed_looks import Dense, Looking, Tiled, Varlen
from regard.models.building import build_model
from regard.models.config import ModelConfig
from regard.models.packed_layers import Layers
from regard.models.transformer import Transformer
from regard.tasks.corpus import Corpus
from regard.tasks.job import Data, Loss
from regard.tasks.packed import PackedCorpus
from regard.tasks.settings import TrainSettings
from regard.tasks.translate import Smoothed
from regard.text.batches import Batch, Example, collate, lengths_of
from regard.text.vocabulary import PAD

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
    data: Data
    loss: Loss
    capture: bool = False
    exact: bool = False
    precision: str = "bfloat16"
    whole: bool = False  # the optimiser's step is recorded as well
    torchs: bool = False  # by torch's AdamW, where ours would do it


def ways(asked: argparse.Namespace, config: ModelConfig, examples: list[Example]) -> dict[str, Callable[[], Way]]:
    words, device = asked.words, asked.device
    packed = TrainSettings(tokens=round(asked.side * 1.04), longest=256, packed=True)
    padded = TrainSettings(tokens=round(asked.side * 1.06), longest=256)

    def ours() -> Transformer:
        torch.manual_seed(0)
        model = build_model(config, words, words).to(device)
        assert isinstance(model, Transformer)
        return model

    @cache
    def compiled(looking: Looking = Dense()) -> Layers:
        return Layers(looking=looking).compiled()

    @cache
    def fused() -> Layers:
        return Layers.fused(Tiled()).compiled()

    @cache
    def hashed() -> Layers:
        return replace(fused(), seeds=by_hash)

    def kernels() -> Layers:
        return Layers.by_kernels(Tiled())

    @cache
    def kernels_compiled() -> Layers:
        return kernels().compiled()

    def recorded(layers: Layers, **how: Any) -> Way:
        return Way(ours(), packed_pairs(), Smoothed(SMOOTHING, layers), capture=True, **how)

    def varlen() -> Varlen:
        return Varlen(packed_pairs().texts)

    @cache
    def sorted_pairs() -> Corpus:
        return Corpus.of(examples, lengths_of, collate, padded, device)

    @cache
    def packed_pairs() -> PackedCorpus:
        return PackedCorpus.of(examples, packed, device)

    def peer(*, compile: bool) -> Way:
        torch.manual_seed(0)
        model = Peer(config, words).to(device)
        return Way(model, sorted_pairs(), peer_loss(torch.compile(model, dynamic=True) if compile else model))

    return {
        "ours, padded": lambda: Way(ours(), sorted_pairs(), Smoothed(SMOOTHING)),
        "ours, packed, exact": lambda: Way(ours(), packed_pairs(), Smoothed(SMOOTHING), exact=True),
        "ours, packed": lambda: Way(ours(), packed_pairs(), Smoothed(SMOOTHING)),
        "ours, packed, captured": lambda: Way(ours(), packed_pairs(), Smoothed(SMOOTHING), capture=True),
        "ours, packed, compiled": lambda: Way(ours(), packed_pairs(), Smoothed(SMOOTHING, compiled())),
        "ours, packed, compiled, captured": lambda: Way(
            ours(), packed_pairs(), Smoothed(SMOOTHING, compiled()), capture=True
        ),
        "ours, kernels, narrow, whole": lambda: recorded(kernels(), precision="narrow", whole=True),
        "ours, kernels, narrow, whole, torch's AdamW": lambda: recorded(
            kernels(), precision="narrow", whole=True, torchs=True
        ),
        "ours, kernels, narrow, whole, exact": lambda: recorded(kernels(), precision="narrow", whole=True, exact=True),
        "ours, kernels, whole": lambda: recorded(kernels(), whole=True),
        "ours, kernels, captured": lambda: recorded(kernels()),
        "ours, kernels, compiled, narrow, whole": lambda: recorded(kernels_compiled(), precision="narrow", whole=True),
        "ours, tiled, fused, compiled, narrow, whole": lambda: recorded(fused(), precision="narrow", whole=True),
        "ours, tiled, fused, hashed, compiled, narrow, whole": lambda: recorded(
            hashed(), precision="narrow", whole=True
        ),
        "ours, tiled, captured": lambda: recorded(Layers(looking=Tiled())),
        "ours, tiled, compiled, captured": lambda: recorded(compiled(Tiled())),
        "ours, varlen, captured": lambda: recorded(Layers(looking=varlen())),
        "ours, varlen, compiled, captured": lambda: recorded(compiled(varlen())),
        "ours, tiled, narrow, captured": lambda: recorded(Layers(looking=Tiled()), precision="narrow"),
        "ours, tiled, compiled, narrow, captured": lambda: recorded(compiled(Tiled()), precision="narrow"),
        "ours, tiled, compiled, narrow, whole": lambda: recorded(compiled(Tiled()), precision="narrow", whole=True),
        "ours, tiled, compiled, whole": lambda: recorded(compiled(Tiled()), whole=True),
        "nn.Transformer": lambda: peer(compile=False),
        "nn.Transformer, compiled": lambda: peer(compile=True),
    }
