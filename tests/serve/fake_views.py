"""What fake.py leaves out: texts written step by step, pictures that are looked at, checkpoints, edits, labs.

    python -m tests.serve.fake_views 8766

Models: "small" translates and has checkpoints, "second" is another translator, "viewer" answers about a picture.
Patterns and positions are the library's own.
"""

import base64
import json
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.serve import playground
from tests.serve import fake_server
from tests.serve.fake_server import SOURCE, TARGET, Refused, site

BAD = "<img src=x onerror=window.bad=1>"
VOCABULARY = [*TARGET, BAD, "\u202eturned", *(f"w{n}" for n in range(60))]
QUESTION = ["what", "colour", "is", "the", BAD, "?"]
GRID = 4
STEPS = [100, 200]
LOSSES = [(50, 4.0), (200, 1.0), (350, 0.5)]  # for validation; the last is the end of training
BEAM = [
    [("le", -0.5, None, True, False), ("la", -1.5, None, False, False), (BAD, -2.5, None, False, False)],
    [("chat", -0.75, 0, True, False), ("chats", -1.25, 0, False, False), ("souris", -2.25, 1, False, False)],
    [("noir", -1.0, 0, True, False), ("</s>", -1.875, 0, False, True), ("est", -2.75, 2, False, False)],
    [("</s>", -1.375, 0, True, True)],
]
MOVED = [("noir", 0.75, 0.25), (BAD, 0.125, 0.5), ("blanc", 0.0625, 0.125)]


def trace(request: dict[str, Any]) -> dict[str, Any]:
    """A branch carries what was written before it."""
    written = request.get("written") or TARGET
    output = " ".join(written[:-1])
    base = {
        "id": fake_server.name_of(request),
        "model": request["model"],
        "text": request["text"],
        "output_text": output,
        "gold": None,
        "edits": request.get("edits", {}),
        "checkpoint": request.get("checkpoint"),
        "output": None,
        "options": ["question"] if request["model"] == "viewer" else ["target", "beam"],
        "picture": None,
        "swappable": [word for word, _, _ in fake_server.WORDS["source"]],
        "python": f"# {request.get('edits', {})}\nfrom regard.see import trace_model\n",
    }
    if request["model"] == "viewer":
        patches = [f"{y},{x}" for y in range(GRID) for x in range(GRID)]
        sites = [site("look.0.cross", "cross", 4, ("text", "patches"), (6, 16))]
        sites += [site("picture.0", "self", 4, ("patches", "patches"), (16, 16))]
        picture = {"url": f"api/traces/{base['id']}/picture", "rows": GRID, "columns": GRID, "height": 32, "width": 32}
        axes = {"text": QUESTION, "patches": patches}
        words = {"text": [["what", 0, 0], ["colour", 1, 2], [BAD, 4, 4]]}
        return {**base, "task": "vqa", "steps": 0, "axes": axes, "words": words, "sites": sites, "picture": picture}
    size = len(written)
    sites = [site("encoder.0", "self", 4, ("source", "source"), (8, 8))]
    sites += [site("decoder.0.cross", "cross", 4, ("written", "source"), (size, 8))]
    axes = {"source": SOURCE, "read": ["<s>", *written[:-1]], "written": written}
    return {**base, "task": "translation", "steps": size, "axes": axes, "words": fake_server.WORDS, "sites": sites}


def weights_of(request: dict[str, Any], name: str, head: int, size: tuple[int, int]) -> NDArray[np.float32]:
    """Others for each model and checkpoint."""
    key = f"{request['model']} {request.get('checkpoint')} {name}"
    return fake_server.arrays(key, head, *size)["weights"]


def next_tokens(step: int) -> NDArray[np.float32]:
    scores = np.random.default_rng(step).normal(size=len(VOCABULARY))
    scores[step % len(TARGET)] += 5  # what was written is nearly always the most probable
    shares = np.exp(scores)
    return (shares / shares.sum()).astype(np.float32)


def best(step: int, count: int) -> dict[str, Any]:
    found = next_tokens(step)
    top = [{"token": VOCABULARY[n], "id": int(n), "probability": float(found[n])} for n in (-found).argsort()[:count]]
    return {"tokens": top, "chosen": step % len(TARGET)}


def beam() -> dict[str, Any]:
    """What ended is ranked by its log-probability over its length."""
    names = ("token", "log_probability", "parent", "chosen", "finished")
    found: list[list[dict[str, Any]]] = [[dict(zip(names, node, strict=True)) for node in step] for step in BEAM]
    for length, step in enumerate(found, 1):
        for node in step:
            node["score"] = node["log_probability"] / (length if node["finished"] else 1)
    return {"steps": found}


def compared(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    names = [*TARGET[:2], "<s>bleu</s>", *TARGET[3:]]
    tokens = [{"before": a, "after": b, "same": a == b} for a, b in zip(TARGET, names, strict=True)]
    moved = [{"token": name, "before": a, "after": b, "change": b - a} for name, a, b in MOVED]
    output = [trace(before)["output_text"], " ".join(names[:-1])]
    return {"output_text": output, "tokens": tokens, "distribution": moved, "at": 2, "row": "noir", "note": ""}


class Answers(fake_server.Answers):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.path.strip("/").split("/")[1:]:
            case ["traces"]:
                self.keep(request)
            case ["traces", number, "branch"]:
                step, other = request["step"], VOCABULARY[request["token"]]
                self.keep({**fake_server.KEPT[number], "written": [*TARGET[:step], other, "fin", "</s>"]})
            case ["compare"]:
                self.send_json(compared(fake_server.KEPT[request["before"]], fake_server.KEPT[request["after"]]))
            case ["patterns"]:
                try:
                    self.send_json(
                        playground.describe_mask(playground.parse_pattern(request["pattern"]), request["length"])
                    )
                except ValueError as reason:
                    self.send_json({"error": str(reason)}, 400)

    def keep(self, request: dict[str, Any]) -> None:
        fake_server.KEPT[fake_server.name_of(request)] = request
        self.send_json(trace(request))

    def answer(self, parts: list[str], given: dict[str, str]) -> None:
        match parts:
            case ["models"]:
                return self.send_json({"models": [card(name) for name in ("small", "second", "viewer")]})
            case ["models", _, "checkpoints"]:
                history = [{"step": step, "loss": loss} for step, loss in LOSSES]
                return self.send_json({"checkpoints": STEPS, "final": LOSSES[-1][0], "history": history})
            case ["positions"]:
                length, width, heads = (int(given.get(name, 8)) for name in ("length", "width", "heads"))
                return self.array(playground.position_table(given["kind"], length, width, heads).float().numpy())
            case ["generate"]:
                return self.stream({"model": given["model"], "text": given["text"], "beam": 1})
        if parts[1] not in fake_server.KEPT:
            raise Refused("this trace was evicted; ask again")
        request = fake_server.KEPT[parts[1]]
        here = trace(request)
        match parts[2:]:
            case ["beam"]:
                return self.send_json(beam())
            case ["next", step]:
                return self.array(next_tokens(int(step)))
            case ["next", step, "tokens"]:
                return self.send_json(best(int(step), int(given["count"])))
            case ["picture"]:
                return self.send(picture(), "image/png")
            case ["statistics"]:
                return self.send_json({one["name"]: self.statistics(one, None) for one in here["sites"]})
            case ["sites", name, "heads", head, *rest]:
                spot = next(one for one in here["sites"] if one["name"] == name)
                return self.head(
                    {"weights": weights_of(request, name, int(head), (spot["n_q"], spot["n_k"]))}, rest, given
                )
        raise Refused(f"there is no {'/'.join(parts)}; ask for another")

    def stream(self, request: dict[str, Any]) -> None:
        row = base64.b64encode(np.linspace(0, 1, 8, dtype=np.float32).tobytes()).decode()
        output = [("token", {"step": n, "token": one, "probability": 0.5, "row": row}) for n, one in enumerate(TARGET)]
        fake_server.KEPT[fake_server.name_of(request)] = request
        output.append(("done", trace(request)))
        self.send(
            "".join(f"event: {name}\ndata: {json.dumps(one)}\n\n" for name, one in output).encode(), "text/event-stream"
        )


def card(name: str) -> dict[str, Any]:
    seen = name == "viewer"
    return {
        "name": name,
        "task": "vqa" if seen else "translation",
        "what": f"the {name} one",
        "question": seen,
        "example": "example 1" if seen else "the cat",
        "picture": seen,
        "checkpoints": STEPS if name == "small" else [],
    }


def picture() -> bytes:
    written = BytesIO()
    Image.fromarray(np.full((32, 32, 3), (40, 90, 200), np.uint8)).save(written, "PNG")
    return written.getvalue()


if __name__ == "__main__":
    fake_server.serve_for_ever(Answers)
