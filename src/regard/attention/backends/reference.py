"""The definition: every matrix in the open. Slow, exact, and what all pictures are drawn from."""

from dataclasses import dataclass

from einops import einsum, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.places import Cells, Places
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct


@dataclass(frozen=True, eq=False)
class Steps:
    """What happens between q, k, v and the output, in order."""

    scores: Float[Tensor, "b h i j"]
    adjusted: Float[Tensor, "b h i j"]
    visible: Bool[Tensor, "b h i j"]
    weights: Float[Tensor, "b h i j"]
    output: Float[Tensor, "b h i e"]
    log_probability: Float[Tensor, "b h i"] | None = None  # of the keys drawn by sampled hard attention


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    return []


def doubts(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    return []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    return steps(recipe, q, k, v, places.cells(*q.shape[:2])).output


def steps(
    recipe: Recipe,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j c"],
    v: Float[Tensor, "b g j e"],
    cells: Cells,
    visible: Bool[Tensor, "#b #h i j"] | None = None,
) -> Steps:
    """Every step over given cells; `visible`, if given, is used instead of asking the pattern."""
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    scores = adjusted = recipe.score.compare(q, k)
    for scheme in recipe.on_score:
        adjusted = adjusted + scheme.on_score(folded(recipe, q), *cells.all())
    visible = (cells.visible(recipe.pattern) if visible is None else visible).expand_as(scores)
    weights = recipe.normaliser.weigh(adjusted, visible)
    output = einsum(weights, v, "b h i j, b h j e -> b h i e")
    for scheme in recipe.on_score:
        if (more := scheme.on_value(weights, *cells.all())) is not None:
            if more.shape[-1] != output.shape[-1]:
                raise ValueError(f"{scheme} adds to values of width {more.shape[-1]}, not {output.shape[-1]}")
            output = output + more
    drawn = recipe.normaliser.log_probability(adjusted, visible, weights)
    return Steps(scores, adjusted, visible, weights, output, drawn)


def folded(recipe: Recipe, q: Tensor) -> Tensor:
    """The query as the score folds it; a score that folds nothing takes it as it is."""
    return recipe.score.fold_q(q) if isinstance(recipe.score, InnerProduct) else q
