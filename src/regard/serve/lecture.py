"""The lectures' worked example with whatever numbers in; every array from x to the output out, by the library itself.

Two heads walk x → q, k, v → scores → scaled → masked → weights → output, and are joined; then Bahdanau's and Luong's
scores on the first head's q, k and v. Arrays are lists of rows, and None stands for −∞, which JSON cannot write.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.attention.attending import steps
from regard.attention.backends import reference
from regard.attention.heads import MultiHeadAttention
from regard.attention.places import Places
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Bilinear, Dot, ScaledDot
from regard.attention.worked import WORKED, Worked
from regard.serve.lecture_given import Given, given

LOOK_AHEAD = "look-ahead mask"
LOOK_AHEAD_WORDS = ["<start>", "I", "am", "fine"]

Rows = list[Any]


@torch.no_grad()
def lecture(asked: object) -> dict[str, Any]:
    """Every number of the walk; a ValueError with a sentence for what cannot be computed."""
    inputs = given(asked)
    layer = layer_of(inputs)
    q, k, v = layer.projected(inputs["x"][None], None, None)
    seen = walked(inputs, q, k, v, scaled=inputs.scaled)
    heads = [head_of(inputs, n, q, k, v) for n in range(2)]
    joined = rearrange(seen.output, "b h t d -> b t (h d)")
    return {
        "given": {name: rows(matrix) for name, matrix in inputs.matrices.items()}
        | {"mask": inputs.visible.int().tolist(), "pattern": inputs.mask, "scaled": inputs.scaled},
        "root": q.shape[-1] ** 0.5,
        "heads": heads,
        "plain": weighed(inputs, q, k, v, scaled=False),
        "divided": weighed(inputs, q, k, v, scaled=True),
        "joined": rows(joined[0]),
        "output": rows(layer.joined(seen.output)[0]),
        "others": others(inputs, q[:, :1], k[:, :1], v[:, :1]),
        "look_ahead": look_ahead(),
    }


def layer_of(inputs: Given) -> MultiHeadAttention:
    """A layer of the library with the given matrices as its weights."""
    model, head = inputs["wq"].shape
    layer = unset(lambda: MultiHeadAttention(model, heads=2, head=head, projection=plain_linear))
    for part, names in ((layer.query, ("wq", "wq2")), (layer.key, ("wk", "wk2")), (layer.value, ("wv", "wv2"))):
        set_weight(part, torch.cat([inputs[name] for name in names], 1))
    set_weight(layer.output, inputs["wo"])
    return layer.eval()


Part = TypeVar("Part", bound=nn.Module)


def unset(make: Callable[[], Part]) -> Part:
    """A part whose weights are still to be set; no random numbers are drawn, which others may count on."""
    with torch.device("meta"):
        part = make()
    return part.to_empty(device="cpu").double()


def plain_linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False)


def set_weight(part: nn.Module, matrix: Tensor) -> None:
    """torch keeps W transposed: x Wᵀ."""
    part.get_parameter("weight").copy_(matrix.T)


def walked(inputs: Given, q: Tensor, k: Tensor, v: Tensor, *, scaled: bool) -> reference.Steps:
    recipe = Recipe(score=ScaledDot() if scaled else Dot())
    cells = Places.of(q, k, None, None).cells(*q.shape[:2])
    return reference.steps(recipe, q, k, v, cells, inputs.visible[None, None])


def weighed(inputs: Given, q: Tensor, k: Tensor, v: Tensor, *, scaled: bool) -> dict[str, Rows]:
    """The first head's weights and output with the scores divided by √d, or not."""
    seen = walked(inputs, q, k, v, scaled=scaled)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    return softmax_steps(masked) | {"weights": rows(seen.weights[0, 0]), "output": rows(seen.output[0, 0])}


def head_of(inputs: Given, n: int, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Rows]:
    """One head, step by step."""
    seen = walked(inputs, q, k, v, scaled=inputs.scaled)
    products = Dot().compare(q, k)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, n]
    return {
        "q": rows(q[0, n]),
        "k": rows(k[0, n]),
        "v": rows(v[0, n]),
        "scores": rows(products[0, n]),
        "scaled": rows(seen.scores[0, n]),
        "masked": rows(masked),
        **softmax_steps(masked),
        "weights": rows(seen.weights[0, n]),
        "output": rows(seen.output[0, n]),
    }


def softmax_steps(masked: Tensor) -> dict[str, Rows]:
    """What softmax divides by what. A row's largest score is taken away first: no weight changes, nothing overflows."""
    peak = masked.amax(-1, keepdim=True)
    some = peak.isfinite()
    exponentials = torch.where(some, (masked - torch.where(some, peak, 0.0)).exp(), 0.0)
    return {"peak": rows(peak), "exponentials": rows(exponentials), "sums": rows(exponentials.sum(-1, keepdim=True))}


# --- the scores before the Transformer's ---


def others(inputs: Given, q: Tensor, k: Tensor, v: Tensor) -> dict[str, dict[str, Rows]]:
    """Bahdanau's score and Luong's three, on the same queries, keys and values; everybody sees everybody."""
    hidden, head = inputs["wa"].shape
    general = unset(lambda: Bilinear(head))
    general.weight.copy_(inputs["wg"])
    additive, concat = (unset(lambda: Additive(head, hidden=hidden)) for _ in range(2))
    additive.W.weight.copy_(inputs["wa"])
    additive.U.weight.copy_(inputs["ua"])
    # Luong writes one matrix for query and key, one above the other: W [q; k] = W_left q + W_right k
    both = torch.cat([inputs["wa"], inputs["ua"]], 1)
    concat.W.weight.copy_(both[:, :head])
    concat.U.weight.copy_(both[:, head:])
    for score in (additive, concat):
        score.v.copy_(inputs["va"][0])
    scores = {"bahdanau": additive, "dot": Dot(), "general": general, "concat": concat}
    found = {name: compared(Recipe(score=score), q, k, v) for name, score in scores.items()}
    inner = rearrange(additive.W(q)[0, 0], "i m -> i 1 m") + rearrange(additive.U(k)[0, 0], "j m -> 1 j m")
    found["bahdanau"] |= {"wq": rows(additive.W(q)[0, 0]), "uk": rows(additive.U(k)[0, 0])}
    found["bahdanau"]["inner"] = found["concat"]["inner"] = [rows(part) for part in inner]
    found["general"]["qw"] = rows(general.fold_q(q)[0, 0])
    found["concat"]["w"] = rows(both)
    return found


def compared(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Rows]:
    seen = steps(q, k, v, recipe)
    scores, weights, context = (rows(part[0, 0]) for part in (seen.scores, seen.weights, seen.output))
    return {"scores": scores, **softmax_steps(seen.scores[0, 0]), "weights": weights, "context": context}


def look_ahead() -> dict[str, Any]:
    """The second lecture's "<start> I am fine": its scaled scores, masked, and their weights."""
    case: Worked = next(case for case in WORKED if case.name == LOOK_AHEAD)
    seen = steps(*case.qkv(), case.recipe)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    found = {"words": LOOK_AHEAD_WORDS, "scores": rows(seen.scores[0, 0]), "masked": rows(masked)}
    return found | softmax_steps(masked) | {"weights": rows(seen.weights[0, 0])}


def rows(matrix: Tensor) -> Rows:
    """As JSON can write it: None for −∞, and no negative zero."""
    return [[number + 0.0 if isfinite(number) else None for number in row] for row in matrix.tolist()]
