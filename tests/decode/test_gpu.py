"""On a CUDA device: steps replayed as a graph find what the definition finds, and bfloat16 is told as it is."""

import pytest
import torch

from regard.decode import (
    Beam,
    Constraints,
    Greedy,
    LengthLimit,
    Sampling,
    cuda_graphs,
    is_prepared,
    prepare,
    translate,
)
from regard.decode.text_generation import generate_all
from regard.decode.topk import topk_logprobs_torch

from .reference_beam import reference_translate
from .test_batched_beam import PREFIXES, assert_same, decided
from .test_generation import requests, writer_of
from .test_models import SOURCES, model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LIMIT = LengthLimit(1.0, 9)


@pytest.mark.parametrize("prefixes", [None, PREFIXES], ids=["free", "forced"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_graph_finds_what_the_definition_finds(monkeypatch, size, prefixes):
    monkeypatch.setattr(cuda_graphs, "MIN_SENTENCES", 2)
    monkeypatch.setattr(cuda_graphs, "SLOTS", 16)
    made, beam = model("transformer").cuda(), Beam(size, 0.8, n_best=size, max_length=LIMIT)
    ready, allowed = prepare(made), Constraints(min_length=2)
    assert is_prepared(ready)
    for _ in range(2):  # the second time every step is captured already
        found = translate(ready, SOURCES, beam, prefixes=prefixes, constraints=allowed)
        assert_same(
            found, reference_translate(made, SOURCES, beam, prefixes=prefixes, constraints=allowed), within=1e-4
        )
    assert_same(translate(ready, SOURCES, Greedy(LIMIT)), translate(made, SOURCES, Greedy(LIMIT)), within=1e-4)


@pytest.mark.parametrize("changes", [{"norm": "post", "tie": "all"}, {"groups": 3}], ids=["post norm", "grouped"])
def test_whatever_the_transformer_is_made_of(changes):
    made, beam = decided(**changes).float().cuda(), Beam(3, 0.7, n_best=3, max_length=LIMIT)
    assert_same(translate(prepare(made), SOURCES, beam), reference_translate(made, SOURCES, beam), within=1e-4)


def test_half_the_bits_say_nearly_the_same():
    made, beam = model("transformer").cuda(), Beam(3, max_length=LIMIT)
    exact, half = reference_translate(made, SOURCES, beam), translate(prepare(made, "bfloat16"), SOURCES, beam)
    assert sum(one[0].ids == other[0].ids for one, other in zip(exact, half, strict=True)) >= 3


def test_the_kernel_offers_what_the_cpu_offers():
    from regard.decode.kernels import topk_logprobs_triton

    logits, bias = torch.randn(13, 32_003) * 3, torch.randn(32_003)
    logits[1] = 0.0
    closed = torch.zeros(32_003, dtype=torch.uint8)
    closed[[0, 1, 8]] = 1
    wanted, found = (
        topk_logprobs_torch(logits + bias, closed, 4, None),
        topk_logprobs_triton(logits.cuda(), bias.cuda(), closed.cuda(), 4, None),
    )
    order = found.tokens.sort(dim=-1, stable=True).indices
    top = found.values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(top.values[:, :4].cpu(), wanted.values)
    assert torch.equal(found.tokens.gather(1, order).gather(1, top.indices)[:, :4].cpu(), wanted.tokens)


@pytest.mark.parametrize("search", [Greedy(), Sampling(0.7, top_k=5, seed=3)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("name", ["full", "window", "sinusoidal"])
def test_a_language_model_s_captured_step_says_what_the_cpu_says(name, search):
    torch.manual_seed(5)
    made = writer_of(name).float()
    prompts = [request.prompt for request in requests(9)]
    wanted = generate_all(made, prompts, search, tokens=150, context=40, rows=4)
    ready = prepare(made.cuda())
    for _ in range(2):  # the second time every step is captured already
        found = generate_all(ready, prompts, search, tokens=150, context=40, rows=4)
        same = sum(
            one.id == other.id and abs(one.log_probability - other.log_probability) < 1e-3
            for text, expected in zip(found, wanted, strict=True)
            for one, other in zip(text, expected, strict=True)
        )
        assert same > 0.9 * 9 * 150  # of two tokens that are as probable either may come


def test_more_texts_than_were_captured_are_captured_anew():
    """The graphs of one text, and with them their memory pool, are gone once a batch needs more rows or slots."""
    torch.manual_seed(5)
    made = writer_of("full").float()
    ready = prepare(made.cuda())
    for count, tokens in ((1, 40), (9, 40), (2, 150), (9, 150)):
        prompts = [request.prompt for request in requests(count)]
        found = generate_all(ready, prompts, Greedy(), tokens=tokens)
        wanted = generate_all(made, prompts, Greedy(), tokens=tokens)
        same = sum(
            one.id == other.id
            for text, expected in zip(found, wanted, strict=True)
            for one, other in zip(text, expected, strict=True)
        )
        assert same > 0.9 * count * tokens
