"""A request about what a model writes in; next tokens, branches, the beam, and what two scenes say otherwise out."""

from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from threading import Lock
from typing import Any

from regard.see.comparing import Compared, chosen, compare
from regard.see.scene import Scene
from regard.serve.answers import Request
from regard.serve.asking import text_in, whole
from regard.serve.described import described
from regard.serve.scenes import Showing
from regard.serve.wire import Answer, Refused, as_floats, as_json
from regard.text.vocabulary import EOS

OPTIONS = 20


def next_tokens(asked: Request) -> Answer:
    """The probability of every token."""
    return as_floats(asked.showing.scene.next_tokens(step_of(asked)).cpu().numpy())


def best_tokens(asked: Request) -> Answer:
    step, count = step_of(asked), asked.asked("count", OPTIONS, 1, 1000)
    return as_json(best(asked.showing.scene, step, count))


def best(scene: Scene, step: int, count: int) -> dict[str, Any]:
    found = scene.next_tokens(step)
    top = found.topk(min(count, len(found)))
    tokens = [
        {"token": scene.outcome.name(one), "id": one, "probability": share}
        for one, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    return {"tokens": tokens, "chosen": chosen_at(scene, step)}


def chosen_at(scene: Scene, step: int) -> int | None:
    """What was written there; nothing at the open end of a text."""
    ids = scene.generated()
    if step < len(ids):
        return ids[step]
    return EOS if scene.outcome.rows[step] == "</s>" else None


def step_of(asked: Request) -> int:
    step, scene = asked.number("step"), asked.showing.scene
    scene.generated()
    if step >= (count := len(scene.outcome.rows)):
        raise Refused(f"there is no step {step}; they are counted from 0 to {count - 1}", 404)
    return step


def branch(asked: Request) -> Answer:
    """The same up to a step, then another token."""
    showing = asked.showing
    step, token = whole(asked.body, "step", 0, 2**31), whole(asked.body, "token", 0, 2**31)
    if step is None or token is None:
        raise Refused('a branch has a step and a token, as in {"step": 2, "token": 17}')

    def make(number: str) -> Showing:
        scene = showing.scene.branch(step, token)
        return replace(showing, id=number, scene=scene, lock=Lock())

    return as_json(described(asked.desk.scenes.made((showing.id, step, token), make)))


def beam(asked: Request) -> Answer:
    return as_json({"steps": beam_steps(asked.showing.scene)})


def beam_steps(scene: Scene) -> list[list[dict[str, Any]]]:
    if scene.task == "write" and not scene.asked.more:
        return []
    tree = scene.beam_tree()
    return [
        [
            {
                "token": "</s>" if node.finished else scene.outcome.name(node.ids[-1]),
                "log_probability": node.log_probability,
                "score": node.score,  # what it is ranked by, once it is finished
                "parent": node.parent,
                "chosen": tree.chosen(node),
                "finished": node.finished,
            }
            for node in step
        ]
        for step in tree.steps
    ]


# --- two scenes ---


def compared(asked: Request) -> Answer:
    ids = [text_in(asked.body, name) for name in ("before", "after")]
    if not all(ids):
        raise Refused('two scenes are compared by their ids, as in {"before": "…", "after": "…"}')
    before, after = (asked.desk.scenes[one].scene for one in ids)
    return as_json(difference(before, after))


def difference(before: Scene, after: Scene) -> dict[str, Any]:
    said = {"said": [before.said, after.said], "tokens": tokens(chosen(before), chosen(after))}
    nothing = {"distribution": [], "at": None, "row": None}
    try:
        found = compare(before, after)
    except ValueError as error:
        return said | nothing | {"note": str(error)}
    strangers = before.asked.learner is not after.asked.learner and not same_names(before, after)
    if strangers or not found.rows:
        return said | nothing | {"note": "these models choose from other tokens; only what they say is compared"}
    return said | moved(found) | {"note": ""}


def same_names(before: Scene, after: Scene) -> bool:
    """Do the options of two models mean the same?"""
    return all(before.outcome.name(n) == after.outcome.name(n) for n in range(before.outcome.logits.shape[1]))


def moved(found: Compared) -> dict[str, Any]:
    """The options that moved most: of the first row that is said otherwise, or of the one that moved most."""
    generated = found.before.written is not None
    changes = found.probabilities.abs().sum(-1)
    differs = generated and found.before.written != found.after.written
    at = len(found.rows) - 1 if differs else int(changes.argmax())
    shares = [
        {"token": name, "before": was, "after": now, "change": now - was} for name, was, now in found.moved(at, OPTIONS)
    ]
    return {"distribution": shares, "at": at, "row": found.rows[at]}


def tokens(before: tuple[str, ...], after: tuple[str, ...]) -> list[dict[str, Any]]:
    """Side by side; where one has nothing, it is empty."""
    found = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for one, other in zip_longest(before[a:b], after[c:d], fillvalue=""):
            found.append({"before": one, "after": other, "same": kind == "equal"})
    return found
