"""FLOPs: the arithmetic of training a Transformer on sentence pairs of given lengths, and the FLOP/s of a device.

Those of the model, not what an implementation does besides (Chowdhery et al. 2022, appendix B): each weight of a
product is used once by each token forwards and twice backwards, two operations each time. Causal attention costs half.
"""

import time
from collections.abc import Sequence

import torch
from torch import nn

from regard.models.transformer import EncoderLayer, Transformer


def flops(model: Transformer, lengths: Sequence[tuple[int, int]]) -> float:
    """Additions and multiplications, forwards and backwards; lengths in tokens, of source and target."""
    first = model.encoder[0]
    assert isinstance(first, EncoderLayer)
    up = first.feed_forward.up
    assert isinstance(up, nn.Linear)
    layers, width, hidden = len(model.decoder), model.embeddings.width, up.out_features
    source, target = (sum(side) for side in zip(*lengths, strict=True))
    square, feed_forward = width**2, 2 * width * hidden
    # the source is also each decoder layer's keys and values
    products = layers * (source * (4 * square + feed_forward + 2 * square) + target * (6 * square + feed_forward))
    logits = target * width * len(model.embeddings.bias)
    attention = layers * width * sum(2 * s * s + t * t + 2 * s * t for s, t in lengths)
    return 6.0 * (products + logits + attention)


def measure_matmul_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16, *, size: int = 8192) -> float:
    """FLOP/s of one large matrix product on a GPU: what a model's utilisation is measured against."""
    a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    for _ in range(3):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    began, times = time.perf_counter(), 20
    for _ in range(times):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    return 2.0 * size**3 * times / (time.perf_counter() - began)
