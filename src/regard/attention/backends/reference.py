"""Reference backend: the definition of attention, every matrix materialised. Slow and exact; what all plots show."""

from dataclasses import dataclass

from einops import einsum, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.gate import StateGate, effective_scores
from regard.attention.normaliser import Scores, Visible
from regard.attention.pattern import IndexGrid, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct


@dataclass(frozen=True, eq=False)
class Steps:
    """What happens between q, k, v and the output, in order.

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 3.0], [2.0, 2.0]]]]).log(), torch.eye(2)[None, None]
        >>> seen = steps(q, k, torch.tensor([[[[4.5], [8.0]]]]), Recipe(score=Dot(), pattern=Causal()))
        >>> seen.scores[0, 0]
        tensor([[0.0000, 1.0986],
                [0.6931, 0.6931]])
        >>> seen.visible[0, 0]
        tensor([[ True, False],
                [ True,  True]])
        >>> seen.weights[0, 0]
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
        >>> seen.output[0, 0]
        tensor([[4.5000],
                [6.2500]])
    """

    scores: Scores
    adjusted: Scores
    visible: Visible
    weights: Scores
    output: Float[Tensor, "b h i e"]
    log_probability: Float[Tensor, "b h i"] | None = None  # of the keys drawn by sampled hard attention


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return []


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    return steps(recipe, q, k, v, positions.grid(*q.shape[:2])).output


def steps(
    recipe: Recipe,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j c"],
    v: Float[Tensor, "b g j e"],
    grid: IndexGrid,
    visible: Bool[Tensor, "#b #h i j"] | None = None,
) -> Steps:
    """Every step over an index grid; `visible`, if passed, is used instead of the pattern."""
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    scores = adjusted = recipe.score.compare(q, k)
    visible = (grid.visible(recipe.pattern) if visible is None else visible).expand_as(scores)
    for scheme in recipe.score_positions:
        adjusted = adjusted + scheme.contextual_term(fold_query(recipe, q), scores, visible, *grid.all())
    if isinstance(recipe.gate, StateGate):
        adjusted = effective_scores(recipe.gate, recipe.score, q, k, grid, visible, recipe.pattern)
    weights = recipe.normaliser.weigh(adjusted, visible)
    output = einsum(weights, v, "b h i j, b h j e -> b h i e")
    for scheme in recipe.score_positions:
        if (more := scheme.value_term(weights, *grid.all())) is not None:
            if more.shape[-1] != output.shape[-1]:
                raise ValueError(f"{scheme} adds to values of width {more.shape[-1]}, not {output.shape[-1]}")
            output = output + more
    drawn = recipe.normaliser.log_probability(adjusted, visible, weights)
    return Steps(scores, adjusted, visible, weights, output, drawn)


def fold_query(recipe: Recipe, q: Tensor) -> Tensor:
    """The query as the score folds it; a score that folds nothing takes it as it is."""
    return recipe.score.fold_q(q) if isinstance(recipe.score, InnerProduct) else q
