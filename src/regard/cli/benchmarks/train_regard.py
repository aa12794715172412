"""Training benchmark, in a process of its own: times the steps of Regard or of nn.Transformer.

    python -m regard.cli.benchmarks.train_regard regard plan.json

Reads the plan and writes the result of train_peers.py. Regard trains as `regard train` does; nn.Transformer by the
shortest equivalent loop, on the same batches.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from regard.attention import Recipe, Sinusoidal
from regard.cli.benchmarks.train_peers import RunPlan, Stopwatch, count_subwords, weights, write_result
from regard.data.batching import Batch, InMemoryBatches, TokenBatchSampler, pair_lengths
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.data import TranslationData, TranslationSettings, read_translation_pairs
from regard.tasks.translation.task import Translator
from regard.train.config import TrainingData, TrainSettings
from regard.train.corpus import PackedPairs
from regard.train.run import TrainingRun


def settings_of(plan: RunPlan) -> TranslationSettings:
    train, valid = ((f"{plan[name]}.source", f"{plan[name]}.target") for name in ("train", "valid"))
    return TranslationSettings(
        data=TranslationData(corpus="files", train=train, valid=valid),
        text=PairTokenizerSettings(kind="words", vocab_size=plan["words"], joint=True),
        model=ModelConfig(
            kind="transformer",
            layers=plan["layers"],
            model=plan["model"],
            heads=plan["heads"],
            hidden=plan["hidden"],
            dropout=plan["dropout"],
            tie="all",
        ),
        train=TrainSettings(
            steps=plan["steps"],
            batch_size=plan["tokens"],
            schedule="constant",
            learning_rate=plan["rate"],
            warmup_steps=0,
            label_smoothing=plan["smoothing"],
            max_grad_norm=plan["clip"],
            seed=plan["seed"],
            max_length=plan["longest"],
            validate_every=plan["steps"],
            checkpoint_every=plan["steps"],
        ),
    )


# --- Regard ---


def train_regard(plan: RunPlan, watch: Stopwatch, **more: Any) -> tuple[float, int]:
    settings = settings_of(plan)
    settings = replace(settings, train=replace(settings.train, **more))
    pairs, held_out = (read_translation_pairs(settings.data, split).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)
    fit = TrainingRun(translator.job(pairs, held_out, plan["device"]), Path(plan["folder"]))
    loss = float("nan")
    for report in fit.steps():
        watch.step(0)
        loss = report.validation["loss"] if report.validation else loss
    # the batches of a step are a function of its number, so their subwords are counted after the timing
    counted = (sum(subwords_in(batch) for batch, _ in batches) for batches in steps_of(fit.job.data))
    watch.tokens[:] = [next(counted) for _ in watch.ends]
    return loss, weights(translator.model)


def steps_of(data: TrainingData) -> Iterator[Sequence[tuple[Batch | PackedPairs, int]]]:
    """The batches of every step, endlessly."""
    for epoch in count():
        for index in range(data.steps(epoch)):
            yield data.at(epoch, index)


def subwords_in(batch: Batch | PackedPairs) -> int:
    sides = (batch.source, batch.target)
    return sum(count_subwords(side if isinstance(side, Tensor) else side.tokens, (PAD, BOS, EOS)) for side in sides)


# --- nn.Transformer ---


class TorchTransformer(nn.Module):
    """nn.Transformer with tied embeddings."""

    def __init__(self, plan: RunPlan, words: int):
        super().__init__()
        width = plan["model"]
        self.table, self.bias = nn.Parameter(torch.randn(words, width) * width**-0.5), nn.Parameter(torch.zeros(words))
        self.dropout = nn.Dropout(plan["dropout"])
        self.stacks = nn.Transformer(
            width,
            plan["heads"],
            plan["layers"],
            plan["layers"],
            plan["hidden"],
            plan["dropout"],
            batch_first=True,
            norm_first=True,
        )

    def read(self, ids: Tensor) -> Tensor:
        placed = Recipe(position=Sinusoidal()).embed(
            embedding(ids, self.table) * self.table.shape[1] ** 0.5, torch.arange(ids.shape[1], device=ids.device)
        )
        return self.dropout(placed)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = source == PAD
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        states = self.stacks(
            self.read(source),
            self.read(target),
            tgt_mask=later,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return linear(states, self.table, self.bias)


def torch_transformer(plan: RunPlan, watch: Stopwatch) -> tuple[float, int]:
    settings, device = settings_of(plan), plan["device"]
    pairs, held_out = (read_translation_pairs(settings.data, split).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)  # for its vocabulary
    torch.manual_seed(plan["seed"])
    model = TorchTransformer(plan, translator.source.size).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), plan["rate"], (0.9, 0.98), weight_decay=0.0, fused=True)
    examples, valid = translator.examples(pairs), translator.examples(held_out)
    lengths = pair_lengths(examples)
    feed = InMemoryBatches(
        examples, TokenBatchSampler(lengths, tokens=plan["tokens"], limit=plan["longest"], seed=plan["seed"])
    )
    for batch in islice(chain.from_iterable(map(feed.epoch, count())), plan["steps"]):
        optimiser.zero_grad(set_to_none=True)
        (summed_loss(model, batch.to(device), plan["smoothing"]) / batch.tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan["clip"])
        optimiser.step()
        watch.step(subwords_in(batch))
    model.eval()
    rest = InMemoryBatches(valid, TokenBatchSampler(pair_lengths(valid), tokens=plan["tokens"]))
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in rest.epoch(0):
            total, tokens = total + float(summed_loss(model, batch.to(device), 0.0)), tokens + batch.tokens
    return total / tokens, weights(model)


def summed_loss(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    logits = rearrange(model(batch.source, batch.target[:, :-1]), "b t v -> (b t) v")
    wanted = rearrange(batch.target[:, 1:], "b t -> (b t)")
    return cross_entropy(logits, wanted, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)


TRAINERS = {
    "regard": train_regard,
    "regard packed": partial(train_regard, packed=True),
    "regard bfloat16": partial(train_regard, precision="bfloat16"),
    "regard packed bfloat16": partial(train_regard, packed=True, precision="bfloat16"),
    "nn.Transformer": torch_transformer,
}

if __name__ == "__main__":
    write_result(json.loads(Path(sys.argv[2]).read_text()), TRAINERS[sys.argv[1]])
