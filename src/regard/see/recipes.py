"""A recipe in; who may look at whom, the weights it gives on a fixed example, and its four parts out."""

from regard.attention.recipe import Recipe
from regard.see.example import seen_by
from regard.see.panel import Panel, Row, Scale, View
from regard.see.views import MOST_CELLS, Tokens, axis, code, lengths


def recipe_view(recipe: Recipe, *, tokens: Tokens | None = None) -> View:
    """The mask beside the weights on the smooth example of `regard.see.example`, and the parts as text."""
    n, n_q = lengths(recipe.pattern, tokens, None)
    if n != n_q:
        raise ValueError(f"{code(recipe.pattern)} has {n_q} queries and {n} keys; draw its pattern instead")
    if n > MOST_CELLS:
        raise ValueError(
            f"the weights of {n} tokens are too many for a picture; draw the pattern, or {MOST_CELLS} tokens"
        )
    seen = seen_by(recipe, n)
    visible, weights = seen.visible[0, 0].cpu(), seen.weights[0, 0].cpu().double()
    down, across = axis("query", tokens), axis("key", tokens)
    panels = (
        Panel("who may look at whom", visible, Scale("mask"), down=down, across=across),
        Panel("weights on an example", weights, Scale.of_rows(weights, "weight"), visible, down, across),
    )
    parts = {"score": recipe.score, "position": recipe.position}
    parts |= {"pattern": recipe.pattern, "normaliser": recipe.normaliser}
    return View((Row(panels),), notes=tuple((name, code(part)) for name, part in parts.items()))
