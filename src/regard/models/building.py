"""A model's description and the sizes of the vocabularies in, the model with fresh weights out."""

from regard.layers.cells import CELLS
from regard.layers.recurrent import Recurrent
from regard.layers.words import Words
from regard.models.aligning import READOUTS, Bahdanau, Luong, LuongFed, WithAttention
from regard.models.config import PLAIN, ModelConfig, recipe
from regard.models.reading_config import stack_of
from regard.models.recurrent import Backward, Carried, Encoder, WithoutAttention
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer


def build_model(config: ModelConfig, source_size: int, target_size: int) -> Seq2Seq:
    output = config.hidden if config.kind in PLAIN else config.model
    words = Words(source_size, target_size, config.model, tie=config.tie, output=output)
    if config.kind == "transformer":
        return transformer(config, words)
    if config.kind in PLAIN:
        decoder = reader(config, config.kind, config.model)
        return WithoutAttention(words, carrying(config, config.kind), decoder, dropout=config.dropout)
    return bahdanau(config, words) if config.kind == "bahdanau" else luong(config, words)


def transformer(config: ModelConfig, words: Words) -> Transformer:
    encoder, decoder, cross = (recipe(config, place) for place in ("encoder", "decoder", "cross"))
    return Transformer(words, stack_of(config), encoder=encoder, decoder=decoder, cross=cross)


def bahdanau(config: ModelConfig, words: Words) -> WithAttention:
    cell, model, hidden = config.cell or "gru", config.model, config.hidden
    bridge = Backward(hidden, hidden, parts=CELLS[cell].parts)
    encoder = Encoder(reader(config, cell, model, directions=2), bridge, dropout=config.dropout)
    readout = READOUTS[config.readout](hidden + 2 * hidden + model, model)
    decoder = Bahdanau(reader(config, cell, model + 2 * hidden), readout)
    return WithAttention(words, encoder, decoder, recipe=recipe(config, "cross"), dropout=config.dropout)


def luong(config: ModelConfig, words: Words) -> WithAttention:
    cell, model, hidden = config.cell or "lstm", config.model, config.hidden
    decoder = (
        LuongFed(reader(config, cell, model + model), context=hidden, concluded=model)
        if config.input_feeding
        else Luong(reader(config, cell, model), context=hidden, concluded=model)
    )
    encoder = carrying(config, cell)
    return WithAttention(words, encoder, decoder, recipe=recipe(config, "cross"), dropout=config.dropout)


def carrying(config: ModelConfig, cell: str) -> Encoder:
    """An encoder whose last state, both directions side by side, is the decoder's first."""
    ways = config.directions
    rnn = reader(config, cell, config.model, hidden=config.hidden // ways, directions=ways)
    return Encoder(rnn, Carried(ways), dropout=config.dropout)


def reader(config: ModelConfig, cell: str, width: int, *, hidden: int | None = None, directions: int = 1) -> Recurrent:
    hidden = config.hidden if hidden is None else hidden
    return Recurrent(
        width, hidden, cell=CELLS[cell], layers=config.layers, directions=directions, dropout=config.dropout
    )
