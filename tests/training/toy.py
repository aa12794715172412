"""A toy to train: tagging random tokens, with dropout, so that resuming has noise to get wrong."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.training import ConstantSchedule, TrainConfig, train

TOKENS, KINDS = 13, 5


class Model(nn.Module):
    def __init__(self, dropout: float = 0.3):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 11)
        self.inner = nn.Linear(11, 7)
        self.out = nn.Linear(7, KINDS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.out(self.dropout(torch.tanh(self.inner(self.embed(x)))))


class Data:
    """Three steps an epoch, each of two micro-batches of different sizes."""

    def steps(self, epoch: int) -> int:
        return 3

    def at(self, epoch: int, index: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(epoch * 100 + index)
        x = torch.randint(0, TOKENS, (29,), generator=generator)
        return [x[:10], x[10:]]


def loss(model: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    return nn.functional.cross_entropy(model(x), x % KINDS, reduction="sum"), len(x)


def plan(steps: int, **more: Any) -> TrainConfig:
    return TrainConfig(ConstantSchedule(0.01), steps, checkpoint_every=2, validate_every=4, **more)


def validate(model: nn.Module) -> dict[str, float]:
    x = torch.arange(TOKENS)
    return {"loss": (loss(model, x)[0] / TOKENS).item()}


def fresh() -> Model:
    torch.manual_seed(1)
    return Model()


def run(folder: Path, steps: int, **more: Any) -> Model:
    model = fresh()
    for _ in train(model, Data(), loss, plan(steps, **more), folder, validate):
        pass
    return model
