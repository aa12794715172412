"""Models: the ladder from the recurrent encoder–decoder to the Transformer, on one interface."""

from regard.models.aligning import READOUTS, Bahdanau, Luong, LuongFed, Maxout, Squashed, WithAttention
from regard.models.building import build_model
from regard.models.config import KINDS, ModelConfig
from regard.models.recurrent import Backward, Bridge, Carried, Encoder, WithoutAttention
from regard.models.seq2seq import Looked, Memory, Seq2Seq, State, parameters
from regard.models.transformer import Stack, Transformer
