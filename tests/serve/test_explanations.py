"""Explanations over HTTP: the numbers of `regard.see.methods`, their progress, what is refused, and stopping."""

import time
from typing import Any

import pytest

from regard.see import head_views
from regard.see.methods import METHODS, HeadEffects, TokenScores, explain, logit_lens, patch_activations
from regard.see.trace import Trace, trace_model
from regard.serve import explanations
from regard.serve.explanations import ExplanationJob, serialize_explanation
from tests.narrowing import assert_is_instance
from tests.see.untrained_models import CAT

from .client import events, post_trace

OTHER = "the white cat ate the mouse"


def explained(client: Any, trace: dict[str, Any], **query: Any) -> tuple[str, dict[str, Any]]:
    answer = client.get(f"/api/traces/{trace['id']}/explain", params=query)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *before, last = events("\n\n".join(part for part in answer.text.split("\n\n") if not part.startswith(":")))
    assert {name for name, _ in before} <= {"progress"}
    return last


@pytest.fixture(scope="module")
def traced(client, models) -> tuple[dict[str, Any], Trace]:
    return post_trace(client, {"model": "translate", "text": CAT}), trace_model(models["translate"], CAT)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_python_says(client, traced, method):
    card, trace = traced
    name, found = explained(client, card, method=method, row=1)
    assert name == "result"
    expected = serialize_explanation(trace, explain(trace, method, 1))
    assert flat(found) == pytest.approx(flat(expected), abs=1e-6)
    assert found["kind"] == expected["kind"]


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in flat(each)]
    if isinstance(value, list | tuple):
        return [one for each in value for one in flat(each)]
    return [float(value)] if isinstance(value, int | float) else []


def test_heads_tokens_and_layers_are_under_their_names(client, traced):
    card, trace = traced
    heads = assert_is_instance(explain(trace, "heads", 0), HeadEffects)
    found = explained(client, card, method="heads", row=0)[1]
    assert found["effects"]["decoder.0.cross"] == pytest.approx(heads.effects["decoder.0.cross"].tolist(), abs=1e-6)
    tokens = assert_is_instance(explain(trace, "integrated-gradients", 0), TokenScores)
    found = explained(client, card, method="integrated-gradients", row=0)[1]
    assert found["scores"]["source"] == pytest.approx(tokens.scores["source"].tolist(), abs=1e-5)
    assert abs(found["total"] - found["difference"]) <= 0.01 * max(0.1, abs(found["difference"]))
    found = explained(client, card, method="lens")[1]
    assert found["best"][0][2][0][0] == logit_lens(trace).best(0, 2)[0][0]
    assert [best[0][0] for best in found["best"][-1]] == [
        trace.predictions.best(n, 1)[0][0] for n in range(len(found["rows"]))
    ]


@pytest.mark.parametrize("part", ["residual", "attention", "head"])
def test_patching_is_between_two_traces_and_names_the_axis_of_each_layer(client, traced, models, part):
    card, trace = traced
    target = {"target": trace.output_text}
    second = post_trace(client, {"model": "translate", "text": OTHER, **target})
    other = trace_model(models["translate"], OTHER, **target)
    row = next(
        n
        for n, _ in enumerate(trace.predictions.rows)
        if trace.predictions.best(n, 1)[0][0] != other.predictions.best(n, 1)[0][0]
    )
    name, found = explained(client, card, method="patching", row=row, other=second["id"], part=part)
    assert name == "result", found
    expected = patch_activations(trace, other, row, part=part)  # type: ignore[arg-type]
    assert flat(found["effects"]) == pytest.approx(
        [one for one in flat(expected.effects.tolist()) if one == one], abs=1e-4
    )
    axes = dict(zip(found["layers"], found["axes"], strict=True))
    encoder = next(axis for layer, axis in axes.items() if layer.startswith("encoder"))
    assert encoder == ("head" if part == "head" else "source")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"method": "magic"}, "no method is called 'magic'; there are heads"),
        ({"method": "heads", "row": 99}, "there is no row 99"),
        ({"method": "patching"}, "give the id of the other one"),
        ({"method": "flow"}, "flow is for up to 3 tokens"),
    ],
)
def test_what_cannot_be_explained_is_a_sentence(client, traced, monkeypatch, query, message):
    monkeypatch.setitem(explanations.MAX_TOKENS, "flow", 3)
    name, found = explained(client, traced[0], **query)
    assert name == "error"
    assert message in found["error"]


def test_whoever_closes_the_stream_stops_the_method():
    reached = []

    def compute(progress: Any) -> dict[str, Any]:
        for n in progress(range(10**6), "items"):
            reached.append(n)
            time.sleep(0.01)
        return {}

    job = ExplanationJob(compute)
    stream = job.stream()
    assert next(stream).startswith(b"event: progress")
    stream.close()
    assert job.done.wait(5)
    assert len(reached) < 10**3
    assert job.events.qsize() < 100  # of progress, and no result


def test_more_than_a_few_at_once_are_refused(client, traced):
    held = [explanations.RUNNING.acquire() for _ in range(explanations.MAX_RUNNING)]
    try:
        name, found = explained(client, traced[0], method="heads")
    finally:
        for _ in held:
            explanations.RUNNING.release()
    assert (name, "under way" in found["error"]) == ("error", True)


# --- one row in full ---


@pytest.mark.parametrize(("kind", "site"), [("translate", "decoder.0.cross"), ("write", "blocks.0")])
def test_a_row_in_full_adds_up_to_its_weights_and_its_output(client, models, kind, site):
    card = post_trace(client, {"model": kind, "text": CAT})
    found = client.get(f"/api/traces/{card['id']}/sites/{site}/heads/1/row", params={"query": 3}).json()
    trace = trace_model(models[kind], CAT, more=12 if kind == "write" else 0)
    weights, v = trace.site(site).row(1, 3), trace.site(site).head_qkv(1)[2][0, 0]
    assert [one["weight"] for one in found["keys"]] == pytest.approx(weights.tolist(), abs=1e-6)
    for one in found["keys"]:
        assert sum(one["products"]) == pytest.approx(one["dot"], abs=1e-5)
        assert one["dot"] * found["scale"] == pytest.approx(one["score"], abs=1e-5)
        assert one["exp"] / found["sum"]["exp"] == pytest.approx(one["weight"], abs=1e-6)
        assert one["norm"] == pytest.approx(one["weight"] * float(v[one["key"]].norm()), abs=1e-5)
        assert (one["weight"] == 0) == (not one["visible"])
    assert sum(one["exp"] for one in found["keys"]) + found["rest"]["exp"] == pytest.approx(
        found["sum"]["exp"], rel=1e-5
    )
    assert found["sum"]["weight"] == pytest.approx(1, abs=1e-5)
    assert found["output_norm"] == pytest.approx(float((weights @ v).norm()), rel=1e-4)
    assert found["rotated"] == (kind == "write")  # rotary positions


def test_of_many_keys_the_strongest_are_taken_apart(client, traced, monkeypatch):
    monkeypatch.setattr(head_views, "MAX_ROW_KEYS", 3)
    path = f"/api/traces/{traced[0]['id']}/sites/encoder.0/heads/0/row"
    found = client.get(path, params={"query": 2}).json()
    weights = traced[1].site("encoder.0").row(0, 2)
    assert [one["key"] for one in found["keys"]] == sorted(weights.topk(3).indices.tolist())
    assert found["rest"]["count"] == len(weights) - 3
    assert found["rest"]["weight"] == pytest.approx(1 - float(weights.topk(3).values.sum()), abs=1e-5)
