"""Texts of 16,384 tokens: looked at as a whole and cell by cell, without ever holding a number for each pair."""

import numpy as np
import pytest
import torch

from regard.attention import AttentionCore, Recipe, parse_part
from regard.see import AttentionSite, Edits, HeadOff, sites, trace_model
from regard.see.sites import AttentionRecorder
from regard.serve.model_store import ModelStore
from tests.forks import run_program
from tests.see.untrained_models import classifier, generator

from .client import assert_sentence, client_of, floats, octets, post_trace, site_path

TOKENS = 16_384
WORDS = ("the black cat ate the mouse " * TOKENS).split()


def text_of(count: int) -> str:
    return " ".join(WORDS[:count])


ASKED = """
from time import perf_counter
import torch
from machine import forget_peak, peak_mib
from regard.serve.model_store import ModelStore
from tests.serve.client import post_trace, client_of, floats, octets, site_path
from tests.serve.test_long_inputs import TOKENS, text_of, windowed
torch.set_num_threads(1)
with client_of(ModelStore.from_models({"long": windowed()})) as client:
    post_trace(client, {"model": "long", "text": text_of(500)})
    forget_peak()
    before, start = peak_mib(), perf_counter()
    trace = post_trace(client, {"model": "long", "text": text_of(TOKENS), "more": 5})
    path = site_path(trace, "blocks.0")
    client.get(f"/api/traces/{trace['id']}/statistics").raise_for_status()
    octets(client, path + "/thumbnails")
    octets(client, path + "/heads/1/map?rows=700&columns=700")
    octets(client, path + "/heads/1/map?rows=700&columns=700&top=9000&bottom=12000&left=8000&right=12000")
    floats(client, path + f"/heads/1/rows/{TOKENS}")
    client.get(path + f"/heads/0/pair?query={TOKENS}&key={TOKENS - 3}").raise_for_status()
    print(peak_mib() - before, perf_counter() - start)
"""


def windowed():
    return generator(recipe='position = "Rotary()"\npattern = "Causal() & Window(64)"')


@pytest.mark.slow
def test_sixteen_thousand_tokens_are_seen_in_seconds_and_little_memory():
    """The weights of one head alone would be 1,024 MiB; the page asks for a trace, every thumbnail and two maps."""
    done = run_program(ASKED)
    assert done.code == 0, done.err
    memory, seconds = map(float, done.out.split())
    print(f"{memory:.0f} MiB, {seconds:.1f} s")
    assert memory < 256
    assert seconds < 30  # about 3 on one quiet core


@pytest.mark.parametrize("tokens", [4096, pytest.param(TOKENS, marks=pytest.mark.slow)])
def test_a_long_map_and_its_rows_are_the_references(tokens):
    learner = windowed()
    with client_of(ModelStore.from_models({"long": learner})) as client:
        trace = post_trace(client, {"model": "long", "text": text_of(tokens), "more": 0})
        assert len(trace["axes"]["text"]) == tokens + 1
        path = site_path(trace, "blocks.0") + "/heads/2"
        site = trace_model(learner, text_of(tokens)).site("blocks.0")
        for query in (0, 63, tokens):
            row = floats(client, f"{path}/rows/{query}")
            assert np.abs(row - site.row(2, query).numpy()).max() < 1e-6
            assert np.flatnonzero(row).tolist() == list(range(max(0, query - 63), query + 1))
        top, bottom, left = tokens - 400, tokens - 200, tokens - 500
        window = f"top={top}&bottom={bottom}&left={left}&right={bottom}"
        cells = floats(client, f"{path}/cells?{window}")
        wanted = torch.stack([site.row(2, n)[left:bottom] for n in range(top, bottom)]).numpy()
        assert np.abs(cells - wanted).max() < 1e-6
        near = octets(client, f"{path}/map?{window}")
        assert (near == np.rint(255 * np.sqrt(cells))).all()
        whole = octets(client, f"{path}/map?rows=257&columns=257")
        assert not np.triu(whole, 1).any()
        assert whole.diagonal().min() > 0
        check = client.get(f"{path}/check").json()
        assert check["difference"] < check["tolerance"]


@pytest.mark.parametrize("recipe", ["Causal() & Window(7)", "Window(5) | Global(2)", "Full()"])
def test_part_of_a_map_is_that_part_of_the_whole(recipe, monkeypatch):
    x = torch.randn(1, 2, 401, 8)
    tracing, attention = AttentionRecorder(), AttentionCore()
    with tracing.record(attention, "it"):
        attention(x, x, x, Recipe(pattern=parse_part(recipe)))
    site = tracing.sites()["it"]
    assert isinstance(site, AttentionSite)
    whole = site.head(1).weights
    assert torch.equal(site.max_pool(1, 401, 401), site.max_pool(1, 999, 999, queries=range(401), keys=range(401)))
    part = site.max_pool(1, 500, 500, queries=range(130, 331), keys=range(7, 390))
    torch.testing.assert_close(part, whole[130:331, 7:390])


def test_a_head_that_is_off_is_off_in_a_long_text_too(monkeypatch):
    learner, edits = classifier(), Edits(off=(HeadOff("encoder.0", 1),))
    before = trace_model(learner, text_of(211), edits=edits).predictions.logits
    monkeypatch.setattr(sites, "CELLS_AT_ONCE", 7 * 211)
    torch.testing.assert_close(trace_model(learner, text_of(211), edits=edits).predictions.logits, before)


def test_what_is_longer_still_is_told_the_limit_and_why(monkeypatch):
    learners = {"long": windowed(), "read": classifier()}
    with client_of(ModelStore.from_models(learners)) as client:
        for name in learners:
            answer = client.post("/api/traces", json={"model": name, "text": text_of(TOKENS + 1)})
            assert_sentence(
                answer, 413, "the text has 16,385 tokens, and at most 16,384 are attended to; split the text"
            )
        monkeypatch.setattr("regard.tasks.language_modeling.task.MAX_LOGITS", 100 * learners["long"].tokenizer.size)
        answer = client.post("/api/traces", json={"model": "long", "text": text_of(100), "more": 1})
        size = learners["long"].tokenizer.size
        assert_sentence(
            answer, 400, f"101 tokens with {size} logits each are too many to keep; shorten the text to 100"
        )
