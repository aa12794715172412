"""Every work there is, by name."""

from regard.cli.benches.additive import additive
from regard.cli.benches.attention import attention, layer
from regard.cli.benches.decoding import decode
from regard.cli.benches.training import train
from regard.cli.benches.work import Work

ALL = (
    Work("attention", "softmax attention from q, k and v, forwards and backwards", "ms", attention),
    Work("layer", "a multi-head layer with its projections, forwards and backwards", "ms", layer),
    Work("additive", "Bahdanau's attention, forwards and backwards", "ms", additive),
    Work("train", "a small Transformer that learns to translate; source and target tokens", "tokens/s", train),
    Work("decode", "translations by beam search with the same weights; target tokens", "tokens/s", decode),
)
WORKS: dict[str, Work] = {work.name: work for work in ALL}
