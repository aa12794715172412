"""Scaling of Transformer-big over GPUs: calculated from the measured rate of one and the volume of communication.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --within 300 --between 200     other networks, in GB/s

Nothing of it is measured but the rate of one GPU (benchmarks/results/training-speed.json): Transformer-base on an H200,
by packed rows, precision "bf16-pure" and steps captured as a whole. Transformer-big is taken to reach the same
utilisation, which is cautious: its matrix products are larger. Of several processes only the backward pass is captured,
and what a step then loses to the optimiser's launches is left out.

In a step every process sends and receives 2 (n - 1) / n of the gradients, in float32 (a ring all-reduce), and waits for
them: nothing overlaps with the backward pass. The default bandwidths are four fifths of what data sheets say: NVLink of
an H200 has 450 GB/s each way, eight network cards of 400 Gbit/s have 400 GB/s for the eight GPUs of a machine.

The published figure is that of NVIDIA's DeepLearningExamples (PyTorch/Translation/Transformer, mixed precision, WMT14
English-German, 10,240 tokens a GPU), which counts target tokens; so they are counted here. An A100 has about a third of
the matrix rate of an H200 by their data sheets (312 and 989 TFLOP/s in bfloat16).
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard.models.config import ModelConfig, build_model
from regard.models.transformer import Transformer
from regard.training.run import flops
from training_variants import BASE

SPEED = Path(__file__).parent / "results" / "training-speed.json"
BIG = replace(BASE, model=1024, heads=16, hidden=4096)
WORDS, LENGTH = 32_000, 28  # subwords; tokens of a sentence of WMT, on each side
PAIRS = 4_500_000  # of WMT14 English-German
PUBLISHED, PUBLISHED_GPUS = 551_599, 8  # tokens/s, on A100s
PER_MACHINE = 8  # GPUs


@dataclass(frozen=True)
class ModelCost:
    """Weights, and FLOPs of a target token with its share of the source, forwards and backwards."""

    weights: int
    flops: float

    @staticmethod
    def of(config: ModelConfig) -> "ModelCost":
        with torch.device("meta"):
            model = build_model(config, WORDS, WORDS)
        assert isinstance(model, Transformer)
        return ModelCost(sum(one.numel() for one in model.parameters()), flops(model, [(LENGTH, LENGTH)]) / LENGTH)


@dataclass(frozen=True)
class Step:
    """A step of `gpus` GPUs, each with so many target tokens.

    Args:
        rate: tokens/s of one GPU.
        bandwidth: bytes/s that a process sends and receives in an all-reduce.
    """

    gpus: int
    tokens: float
    rate: float
    gradient_bytes: int
    bandwidth: float

    @property
    def volume(self) -> float:
        """Bytes that each process sends: a ring reduces and then gathers, n - 1 parts of n each time."""
        return 2 * (self.gpus - 1) / self.gpus * self.gradient_bytes

    @property
    def seconds(self) -> tuple[float, float]:
        """Of computing, and of communication."""
        return self.tokens / self.rate, self.volume / self.bandwidth

    @property
    def tokens_per_second(self) -> float:
        return self.gpus * self.tokens / sum(self.seconds)

    @property
    def efficiency(self) -> float:
        return self.tokens_per_second / (self.gpus * self.rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--within", type=float, default=360.0, help="GB/s of an all-reduce within a machine")
    parser.add_argument(
        "--between", type=float, default=320.0, help="GB/s between machines, of all their GPUs together"
    )
    args = parser.parse_args()
    measured = json.loads(SPEED.read_text())
    row = measured["rows"][0]
    base, big = ModelCost.of(BASE), ModelCost.of(BIG)
    tokens, rate = row["tokens a step"] / 2, row["tokens/s"] / 2 * base.flops / big.flops  # those of the target
    print(f"measured: Transformer-base, {base.weights / 1e6:.1f} million weights, one {measured['machine']['gpu']}:")
    print(f"  {row['tokens/s']:,.0f} tokens/s of both sides, {row['utilisation']:.0%} of the matrix rate")
    more = big.flops / base.flops
    print(f"calculated: Transformer-big, {big.weights / 1e6:.0f} million weights, {more:.2f} × the FLOPs a token:")
    print(f"  {rate:,.0f} target tokens/s on one GPU; gradients of {4 * big.weights / 1e6:,.0f} MB in float32\n")
    print("GPUs  batch      computing  sent by each  all-reduce  target tokens/s  efficiency  an epoch of WMT14")
    for gpus, share in ((1, tokens), (8, tokens), (64, tokens), (64, tokens / 8)):
        bandwidth = 1e9 * (args.within if gpus <= PER_MACHINE else min(args.within, args.between))
        step = Step(gpus, share, rate, 4 * big.weights, bandwidth)
        computing, sending = (f"{1e3 * seconds:6.1f} ms" for seconds in step.seconds)
        epoch = PAIRS * LENGTH / step.tokens_per_second
        print(
            f"{gpus:4}  {gpus * share:9,.0f}  {computing}  {step.volume / 1e6:9,.0f} MB   {sending}"
            f"  {step.tokens_per_second:15,.0f}  {step.efficiency:10.0%}  {epoch:15,.0f} s"
        )
    print(f"\npublished: {PUBLISHED:,} target tokens/s on {PUBLISHED_GPUS} A100s, 84 % of eight times one")


if __name__ == "__main__":
    main()
