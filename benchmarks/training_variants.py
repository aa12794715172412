"""Variants of training Transformer-base that `training_speed.py` compares: ours, and torch's nn.Transformer."""

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
from regard.training.config import Loss, TrainingData, TrainSettings
from regard.training.corpus import Corpus
from regard.training.packed_corpus import PackedCorpus

SMOOTHING = 0.1
BASE = replace(
    ModelConfig(kind="transformer", layers=6, model=512, heads=8, hidden=2048, norm="post", tie="all"),
    dropout=0.1,
    attention_dropout=0.1,
)
TINY = replace(BASE, layers=2, model=64, heads=4, hidden=128)


def sentences(count: int, words: int) -> list[Example]:
    """Synthetic ones; a target is about as long as its source."""
    chance = np.random.default_rng(0)
    source = np.clip(np.round(np.exp(chance.normal(3.2, 0.6, count))), 3, 120).astype(int)
    target = np.clip(np.round(source * np.exp(chance.normal(0.0, 0.15, count))), 3, 120).astype(int)
    return [
        (chance.integers(4, words, s).tolist(), chance.integers(4, words, t).tolist())
        for s, t in zip(source, target, strict=True)
    ]


# --- the peer ---


class Peer(nn.Module):
    """nn.Transformer with tied embeddings and sinusoidal positions, as one writes it with torch's own parts."""

    positions: Tensor

    def __init__(self, config: ModelConfig, words: int):
        super().__init__()
        self.table = nn.Embedding(words, config.model, padding_idx=PAD)
        nn.init.normal_(self.table.weight, std=config.model**-0.5)
        sizes = config.heads, config.layers, config.layers, config.hidden
        self.transformer = nn.Transformer(config.model, *sizes, config.dropout, batch_first=True)
        self.dropout, self.scale = nn.Dropout(config.dropout), math.sqrt(config.model)
        position, pair = torch.arange(512)[:, None], torch.arange(0, config.model, 2)
        angle = position * 10_000 ** (-pair / config.model)
        self.register_buffer("positions", torch.stack((angle.sin(), angle.cos()), -1).flatten(1).float())

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = source == PAD
        x = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return x @ self.table.weight.T


def peer_loss(forward: Callable[..., Tensor]) -> Loss:
    def loss(model: nn.Module, batch: tuple[Batch, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        logits = forward(given.source, given.target[:, :-1]).float().flatten(0, 1)
        targets = given.target[:, 1:].flatten()
        return cross_entropy(logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING), tokens

    return loss


# --- the variants ---


@dataclass(frozen=True, eq=False)
class TrainingVariant:
    model: nn.Module
    data: TrainingData
    loss: Loss
    cuda_graph: bool = False
    deterministic: bool = False
    precision: str = "bfloat16"
    capture_step: bool = False  # the optimiser's step is captured as well
    torch_adamw: bool = False  # in place of ours


def variants(
    args: argparse.Namespace, config: ModelConfig, examples: list[Example]
) -> dict[str, Callable[[], TrainingVariant]]:
    words, device = args.words, args.device
    packed = TrainSettings(batch_size=round(args.side * 1.04), max_length=256, packed=True)
    padded = TrainSettings(batch_size=round(args.side * 1.06), max_length=256)

    def ours(config: ModelConfig = config) -> Transformer:
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

    def captured(model: Transformer, **how: Any) -> TrainingVariant:
        return TrainingVariant(model, packed_pairs(), LabelSmoothingLoss(SMOOTHING), cuda_graph=True, **how)

    @cache
    def sorted_pairs() -> Corpus:
        return Corpus.of(examples, pair_lengths, collate, padded, device)

    @cache
    def packed_pairs() -> PackedCorpus:
        return PackedCorpus.of(examples, packed, device)

    def peer(*, compile: bool) -> TrainingVariant:
        torch.manual_seed(0)
        model = Peer(config, words).to(device)
        return TrainingVariant(
            model, sorted_pairs(), peer_loss(torch.compile(model, dynamic=True) if compile else model)
        )

    return {
        "ours, padded": lambda: TrainingVariant(ours(), sorted_pairs(), LabelSmoothingLoss(SMOOTHING)),
        "ours, packed, deterministic": lambda: TrainingVariant(
            ours(), packed_pairs(), LabelSmoothingLoss(SMOOTHING), deterministic=True
        ),
        "ours, packed": lambda: TrainingVariant(ours(), packed_pairs(), LabelSmoothingLoss(SMOOTHING)),
        "ours, captured": lambda: captured(ours()),
        "ours, captured step": lambda: captured(ours(), capture_step=True),
        "ours, bf16-pure, captured step": lambda: captured(ours(), precision="bf16-pure", capture_step=True),
        "ours, bf16-pure, captured step, deterministic": lambda: captured(
            ours(), precision="bf16-pure", capture_step=True, deterministic=True
        ),
        "ours, bf16-pure, captured step, pre-norm": lambda: captured(
            ours(replace(config, norm="pre")), precision="bf16-pure", capture_step=True
        ),
        "ours, bf16-pure, captured step, torch's AdamW": lambda: captured(
            ours(), precision="bf16-pure", capture_step=True, torch_adamw=True
        ),
        "ours, compiled, bf16-pure, captured step": lambda: captured(
            compiled(), precision="bf16-pure", capture_step=True
        ),
        "nn.Transformer": lambda: peer(compile=False),
        "nn.Transformer, compiled": lambda: peer(compile=True),
        "ours, without fused kernels, captured": lambda: captured(unfused()),  # last: it switches them off for good
    }
