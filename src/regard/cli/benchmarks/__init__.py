"""Benchmarks of Regard against its peers; `harness` times them."""

from regard.cli.benchmarks.attention import additive, attention, layer
from regard.cli.benchmarks.decoding import decode
from regard.cli.benchmarks.harness import Benchmark
from regard.cli.benchmarks.training import train

ALL_BENCHMARKS = (
    Benchmark("attention", "softmax attention from q, k and v: forward and backward pass", "ms", attention),
    Benchmark("layer", "a multi-head layer with its projections: forward and backward pass", "ms", layer),
    Benchmark("additive", "Bahdanau's attention: forward and backward pass", "ms", additive),
    Benchmark("train", "training a small Transformer for translation; source and target tokens", "tokens/s", train),
    Benchmark("decode", "beam search with the same weights; target tokens", "tokens/s", decode),
)
BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in ALL_BENCHMARKS}
