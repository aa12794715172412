"""The notebook's widget: its values are those of the page, and requests of the page are answered by messages."""

import json
import time
from base64 import b64encode
from threading import Event
from typing import Any

import pytest

from regard.see import Edits, HeadOff, trace_model
from regard.see.methods import ablate_heads
from regard.see.plots.draw import widget
from regard.serve.exports import page_file
from regard.tasks.pretrained import PretrainedModel
from tests.see.untrained_models import CAT

from .client import events

pytest.importorskip("anywidget", reason="anywidget is missing: pip install 'regard[notebook]'")

TARGET = "le chat noir a mangé la souris"


class Messages(list[tuple[dict[str, Any], list[bytes]]]):
    """What a widget sends, instead of sending it."""

    def __call__(self, content: dict[str, Any], buffers: Any = None) -> None:
        self.append((content, [bytes(one) for one in buffers or []]))


def open_widget(models: dict[str, PretrainedModel], monkeypatch: Any, **options: Any) -> tuple[Any, Messages]:
    found, sent = widget(models["translate"], CAT, target=TARGET, **options), Messages()
    monkeypatch.setattr(found, "send", sent)
    return found, sent


def ask(seen: Any, sent: Messages, path: str, *, body: Any = None, **query: Any) -> tuple[int, bytes]:
    text = None if body is None else json.dumps(body)
    request = {"kind": "request", "id": 7, "path": path, "query": query, "body": text, "stream": False}
    seen._handle_custom_msg(request | {"method": "GET" if body is None else "POST"}, [])
    content, (data,) = sent.pop()
    assert content["id"] == 7
    return content["status"], data


def test_what_is_chosen_in_the_page_are_values_and_setting_them_tells_the_page(models, monkeypatch):
    seen, _ = open_widget(models, monkeypatch, site="decoder.0.cross", head=1)
    assert (seen.text, seen.target, seen.site, seen.head, seen.edits) == (CAT, TARGET, "decoder.0.cross", 1, Edits())
    changes: list[Any] = []
    seen.observe(lambda change: changes.append(change["new"]), ["head", "edits"])
    seen.set_state({"head": 2, "edits": {"off": [{"site": "decoder.0.cross", "head": 2}]}})  # as a page does
    off = Edits(off=(HeadOff("decoder.0.cross", 2),))
    assert changes == [2, off]
    assert float(seen.trace.site("decoder.0.cross").weights(2).abs().max()) == 0
    seen.edits = Edits(off=(HeadOff("encoder.0", 0),))
    assert seen.get_state("edits") == {"edits": {"off": [{"site": "encoder.0", "head": 0}]}}
    expected = trace_model(models["translate"], CAT, target=TARGET, edits=seen.edits)
    assert seen.trace.predictions.logits.allclose(expected.predictions.logits)


def test_requests_of_the_page_are_answered_as_the_server_does(models, monkeypatch):
    seen, sent = open_widget(models, monkeypatch)
    status, data = ask(seen, sent, "/api/traces", body={"text": CAT, "target": TARGET})
    card = json.loads(data)
    assert (status, card["output_text"]) == (200, TARGET)
    status, data = ask(seen, sent, f"/api/traces/{card['id']}/sites/encoder.0/heads/1/rows/2")
    weights = trace_model(models["translate"], CAT, target=TARGET).site("encoder.0").row(1, 2)
    assert data == weights.numpy().astype("<f4").tobytes()
    for path, query, code in (
        ("/api/nothing", {}, 404),
        ("/api/traces/x", {}, 404),
        ("/api/positions", {"kind": "x"}, 400),
    ):
        status, data = ask(seen, sent, path, **query)
        assert status == code
        assert json.loads(data)["error"]


def test_a_stream_comes_in_parts_and_can_be_closed(models, monkeypatch):
    seen, sent = open_widget(models, monkeypatch)
    card = json.loads(ask(seen, sent, "/api/traces", body={"text": CAT, "target": TARGET})[1])
    request = {"kind": "request", "id": 8, "method": "GET", "query": {"method": "heads", "row": "1"}, "stream": True}
    seen._handle_custom_msg(request | {"path": f"/api/traces/{card['id']}/explain"}, [])
    last = time.monotonic() + 30
    while not (sent and sent[-1][0].get("over")):
        assert time.monotonic() < last
        time.sleep(0.01)
    text = b"".join(data for _, (data,) in sent).decode()
    name, found = events("\n\n".join(part for part in text.split("\n\n") if not part.startswith(":")))[-1]
    expected = ablate_heads(trace_model(models["translate"], CAT, target=TARGET), row=1)
    assert name == "result"
    assert found["effects"]["encoder.0"] == pytest.approx(expected.effects["encoder.0"].tolist(), abs=1e-6)
    stopped = seen.streams[9] = Event()
    seen._handle_custom_msg({"kind": "close", "id": 9}, [])
    assert stopped.is_set()
    assert not seen.streams


def test_the_frame_may_ask_nobody_but_its_parent(models, monkeypatch):
    seen, _ = open_widget(models, monkeypatch)
    assert "default-src 'none'" in seen.page
    assert "regard/js/views/corpus.js" in seen.page  # every view, not only those of a saved page
    assert 'sandbox", "allow-scripts allow-downloads"' in page_file("js/widget.js")


# --- in a browser ---


NOTEBOOK = """
<!doctype html><meta charset="utf-8"><div id="cell"></div>
<script type="module">
  const { default: widget } = await import("data:text/javascript;base64,ESM");
  const [values, on] = [VALUES, {}];
  const octets = (text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
  const model = {
    get: (name) => values[name],
    set(name, value) {
      model.changed = { ...model.changed, [name]: value };
      fromPython(name, value);
    },
    save_changes() { if (model.changed) toPython({ kind: "values", values: model.changed }); model.changed = null; },
    on: (name, f) => (on[name] ??= []).push(f),
    off: () => {},
    async send(content) {
      const answers = await toPython(content);
      for (const [message, data] of answers) on["msg:custom"].forEach((f) => f(message, [octets(data)]));
    },
  };
  globalThis.fromPython = (name, value) => {
    values[name] = value;
    (on[`change:${name}`] ?? []).forEach((f) => f());
  };
  widget.render({ model, el: document.getElementById("cell") });
</script>
"""


def test_the_page_in_a_notebook_is_live(browser, models, monkeypatch):
    seen, sent = open_widget(models, monkeypatch, site="decoder.0.cross", head=1)

    def to_python(content: dict[str, Any]) -> list[Any]:
        sent.clear()
        if content["kind"] == "values":
            seen.set_state(content["values"])
        elif not content.get("stream"):
            seen._handle_custom_msg(content, [])
        return [(message, b64encode(data).decode()) for message, (data,) in sent]

    context = browser.new_context(viewport={"width": 1100, "height": 900})
    page, wrong, requested = context.new_page(), list[str](), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: requested.append(request.url.split(":")[0]))
    page.expose_function("toPython", to_python)
    values = {name: value for name, value in seen.get_state().items() if not name.startswith("_")}
    esm = b64encode(page_file("js/widget.js").encode()).decode()
    data = json.dumps({name: values[name] for name in (*seen.names, "names", "height", "page")}).replace("<", "\\u003c")
    page.set_content(NOTEBOOK.replace("ESM", esm).replace("VALUES", data))
    frame = page.frame_locator("iframe")
    frame.locator("regard-matrix[data-painted*='decoder.0.cross 1 ']").wait_for()
    frame.locator("input[name=head][value='2']").click()
    frame.locator("regard-matrix[data-painted*='decoder.0.cross 2 ']").wait_for()
    assert seen.head == 2
    page.evaluate("fromPython('head', 0)")
    frame.locator("regard-matrix[data-painted*='decoder.0.cross 0 ']").wait_for()
    page.evaluate("fromPython('edits', { off: [{ site: 'decoder.0.cross', head: 0 }] })")
    frame.get_by_text("edited:").wait_for()
    frame.get_by_text("Undo", exact=True).first.click()
    frame.get_by_text("edited:").wait_for(state="detached")
    assert seen.edits == Edits()
    context.close()
    assert not wrong
    assert set(requested) <= {"data", "about", "blob"}
