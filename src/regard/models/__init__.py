"""Models: from the recurrent encoder–decoder to the Transformer, on one interface."""

from regard.layers.stack import StackConfig
from regard.models.config import KINDS, ModelConfig, build_model
from regard.models.rnn_seq2seq import (
    READOUTS,
    BackwardStateBridge,
    BahdanauDecoder,
    Bridge,
    CopyBridge,
    InputFeedingDecoder,
    LuongDecoder,
    Maxout,
    RNNAttentionSeq2Seq,
    RNNEncoder,
    RNNSeq2Seq,
    TanhReadout,
)
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq, count_parameters
from regard.models.transformer import Transformer

__all__ = [
    "KINDS",
    "READOUTS",
    "BackwardStateBridge",
    "BahdanauDecoder",
    "Bridge",
    "CopyBridge",
    "DecoderState",
    "InputFeedingDecoder",
    "LuongDecoder",
    "Maxout",
    "Memory",
    "ModelConfig",
    "RNNAttentionSeq2Seq",
    "RNNEncoder",
    "RNNSeq2Seq",
    "Seq2Seq",
    "StackConfig",
    "TanhReadout",
    "Transformer",
    "build_model",
    "count_parameters",
]
