"""A Transformer and the lengths of sentence pairs in; the arithmetic that training on them asks for out.

What the model must do, not what an implementation does besides (Chowdhery et al. 2022, appendix B): each weight of a
product is met once by each token forwards and twice backwards, two operations each time. A causal look costs half.
"""

from collections.abc import Sequence

from regard.models.transformer import EncoderLayer, Transformer


def flops(model: Transformer, lengths: Sequence[tuple[int, int]]) -> float:
    """Additions and multiplications, forwards and backwards; lengths in tokens, as both sides read them."""
    first = model.encoder[0]
    assert isinstance(first, EncoderLayer)
    layers, width, hidden = len(model.decoder), model.words.width, first.feed_forward.up.out_features
    source, target = (sum(side) for side in zip(*lengths, strict=True))
    square, wide = width**2, 2 * width * hidden
    # the source is also each decoder layer's keys and values
    products = layers * (source * (4 * square + wide + 2 * square) + target * (6 * square + wide))
    words = target * width * len(model.words.bias)
    looks = layers * width * sum(2 * s * s + t * t + 2 * s * t for s, t in lengths)
    return 6.0 * (products + words + looks)
