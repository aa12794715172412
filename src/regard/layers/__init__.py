"""Layers: embeddings, feed-forward, residual connections and recurrent layers."""

from regard.layers.embedding import TIES, Embedding, TiedEmbeddings
from regard.layers.feed_forward import ACTIVATIONS, FeedForward
from regard.layers.residual import NORM_ORDERS, PostNorm, PreNorm, Residual
from regard.layers.rnn import CELLS, GRU, LSTM, Cell, Elman, HiddenState, RNNLayers

__all__ = [
    "ACTIVATIONS",
    "CELLS",
    "GRU",
    "LSTM",
    "NORM_ORDERS",
    "TIES",
    "Cell",
    "Elman",
    "Embedding",
    "FeedForward",
    "HiddenState",
    "PostNorm",
    "PreNorm",
    "RNNLayers",
    "Residual",
    "TiedEmbeddings",
]
