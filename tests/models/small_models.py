"""Small models of every kind, and a batch for them: shared by the tests of models."""

import torch
from torch import Tensor
from torch.testing import assert_close

from regard.models import ModelConfig, Seq2Seq, build_model

SOURCE, TARGET = 13, 17  # words in the two vocabularies
LENGTHS = (7, 2, 5)


def recurrent(kind: str, **changes) -> ModelConfig:
    return ModelConfig(**{"kind": kind, "layers": 1, "model": 6, "hidden": 10, "dropout": 0.0} | changes)


def transformer(**changes) -> ModelConfig:
    return ModelConfig(
        **{"kind": "transformer", "layers": 2, "model": 8, "hidden": 11, "heads": 2, "dropout": 0.0} | changes
    )


def positioned(position: str) -> ModelConfig:
    return transformer(encoder=f'position = "{position}"', decoder=f'position = "{position}"')


LADDER: dict[str, ModelConfig] = {
    "elman": recurrent("elman"),
    "gru": recurrent("gru", layers=2),
    "lstm": recurrent("lstm", layers=2),
    "lstm, both ways": recurrent("lstm", directions=2, hidden=6, tie="target"),
    "bahdanau": recurrent("bahdanau"),
    "bahdanau, two layers of lstm": recurrent("bahdanau", layers=2, cell="lstm", readout="tanh", tie="target"),
    "bahdanau, sparsemax": recurrent("bahdanau", cross='normaliser = "Sparsemax()"'),
    "bahdanau, hard": recurrent("bahdanau", cross='normaliser = "Hard(training=StraightThrough())"'),
    "bahdanau, rotary": recurrent("bahdanau", cross='score = "Additive(10, 3, 20)"\nposition = "Rotary()"'),
    "luong dot": recurrent("luong-dot"),
    "luong dot, distance": recurrent("luong-dot", cell="elman", cross='position = "Alibi(1)"'),
    "luong general": recurrent("luong-general", layers=2, directions=2, cell="gru"),
    "luong general, fed": recurrent("luong-general", layers=2, directions=2, input_feeding=True),
    "transformer, pre": transformer(),
    "transformer, post": transformer(norm="post", activation="gelu", tie="target"),
    "transformer, one group": transformer(groups=1),
    "transformer, rotary": positioned("Rotary()"),
    "transformer, alibi": positioned("Alibi(2)"),
    "transformer, shaw": positioned("RelativeVectors(Clipped(2), 4)"),
    "transformer, learned": positioned("Learned(longest=11, model=8)"),
    "transformer, t5 everywhere": transformer(
        **dict.fromkeys(("encoder", "decoder", "cross"), 'position = "RelativeBias(LogBuckets(), 2)"')
    ),
    "transformer, windows": transformer(encoder='pattern = "Window(2) | Global(1)"', decoder='pattern = "Window(3)"'),
    "transformer, linear decoder": transformer(
        decoder='score = "Feature()"\nnormaliser = "Proportional()"\nposition = "Sinusoidal()"'
    ),
    "transformer, a recipe per layer": transformer(
        layers=3,
        encoder=('pattern = "Window(2)"', "", 'score = "Feature()"\nnormaliser = "Proportional()"'),
        decoder=(
            'pattern = "Window(3)"',
            'normaliser = "Sparsemax()"',
            'score = "Feature()"\nnormaliser = "Proportional()"',
        ),
        cross=("", 'position = "Alibi(2)"', 'score = "Additive(4, 3)"'),
    ),
    "transformer, additive cross": transformer(
        cross='score = "Additive(4, 3)"\nnormaliser = "Sparsemax()"', encoder='score = "Bilinear(4)"'
    ),
}
WITH_ATTENTION = [name for name in LADDER if not name.startswith(("elman", "gru", "lstm"))]


def model_of(name: str) -> Seq2Seq:
    """In double precision and without noise, so that equal means equal."""
    return build_model(LADDER[name], SOURCE, TARGET).double().eval()


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Source, its lengths, and what the decoder reads."""
    source, lengths = torch.randint(3, SOURCE, (len(LENGTHS), max(LENGTHS))), torch.tensor(LENGTHS)
    return source.where(torch.arange(max(LENGTHS)) < lengths[:, None], 0), lengths, torch.randint(1, TARGET, (3, 5))


def check_single_precision(model: Seq2Seq, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """In float32 too, a sentence alone gives the logits that it gives in a batch."""
    (source, lengths, target), model = batch, model.float()
    together = model(source, lengths, target)
    for n, length in enumerate(lengths.tolist()):
        alone = model(source[n : n + 1, :length], lengths[n : n + 1], target[n : n + 1])[0]
        assert_close(alone, together[n], rtol=0, atol=1e-5)


def check_chunks(model: Seq2Seq, batch: tuple[Tensor, Tensor, Tensor], sizes: list[int]) -> None:
    """The decoder gives the same logits for a target in chunks as for the whole."""
    source, lengths, target = batch
    memory = model.encode(source, lengths)
    state, parts = model.start(memory), []
    for tokens in target.split(sizes, 1):
        logits, state = model.step(tokens, state, memory)
        parts.append(logits)
    assert_close(torch.cat(parts, 1), model(source, lengths, target), rtol=0.0, atol=1e-10)
