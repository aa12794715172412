"""Layers: embeddings, feed-forward, residual connections and recurrent layers."""

from regard.layers.embedding import TIES, Embedding, TiedEmbeddings
from regard.layers.rnn import CELLS, GRU, LSTM, Cell, Elman, HiddenState, RNNLayers
from regard.layers.transformer_layers import ACTIVATIONS, NORM_ORDERS, FeedForward, PostNorm, PreNorm, Residual

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
