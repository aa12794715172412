"""Every model overfits three pairs, in seconds."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard.models import build_model
from tests.models.small_models import recurrent, transformer

RUNGS = {
    "elman": recurrent("elman"),
    "gru": recurrent("gru"),
    "lstm": recurrent("lstm"),
    "bahdanau": recurrent("bahdanau"),
    "luong-dot": recurrent("luong-dot"),
    "luong-general": recurrent("luong-general", input_feeding=True),
    "transformer, pre": transformer(layers=1),
    "transformer, post": transformer(layers=1, norm="post"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", RUNGS)
def test_three_pairs_are_learned_by_heart(name):
    """The sentences begin alike: only the source tells which is meant."""
    model = build_model(replace(RUNGS[name], model=16, hidden=32), 13, 17)
    source, lengths = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0], [7, 6, 5, 2]]), torch.tensor([4, 3, 4])
    target = torch.tensor([[1, 10, 11, 12, 2], [1, 10, 12, 11, 2], [1, 11, 10, 12, 2]])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(90):
        optimiser.zero_grad()
        cross_entropy(model(source, lengths, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()).backward()
        optimiser.step()
    memory = model.eval().encode(source, lengths)
    state, word, written = model.start(memory), target[:, :1], []
    for _ in range(4):
        logits, state = model.step(word, state, memory)
        word = logits.argmax(-1)
        written.append(word)
    assert torch.equal(torch.cat(written, 1), target[:, 1:])
