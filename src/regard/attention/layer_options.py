"""Layer options: what a multi-head layer attends to, and what stands around its heads, beside the recipe."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from warnings import warn

from torch import nn

if TYPE_CHECKING:
    from regard.attention.recipe import Recipe


class LayerForm(ABC):
    """Abstract: what a multi-head layer attends to in place of one key and value of each token: latents, mixtures,
    points, or keys in several branches. A value beside the recipe.

    Examples:
        >>> isinstance(NativeSparse(block=16), LayerForm), isinstance(LatentKV(rank=8), LayerForm)
        (True, True)
    """

    @abstractmethod
    def check(self, recipe: "Recipe", heads: int, groups: int, head: int) -> None:
        """Refuses a recipe, or sizes, that it cannot be combined with."""


def no_projection(width_in: int, width_out: int) -> nn.Module:
    """No projection at all: the weight-free attention of the fifth lecture.

    Examples:
        >>> options = LayerOptions(projection=no_projection)
        >>> layer = MultiHeadAttention(2, heads=1, recipe=Recipe(score=Dot()), options=options)
        >>> layer(torch.eye(2)[None])  # e / (e + 1) and 1 / (e + 1)
        tensor([[[0.7311, 0.2689],
                 [0.2689, 0.7311]]])
        >>> len(list(layer.parameters()))
        0
    """
    if width_in != width_out:
        raise ValueError(f"without projections the widths must agree, not {width_in} and {width_out}")
    return nn.Identity()


Projection = Callable[[int, int], nn.Module]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerOptions:
    """What stands around the heads of a layer, and who runs them.

    Args:
        memory: the width of what is attended to, if it is not that of the tokens.
        projection: makes each of the four projections; `no_projection` makes none.
        head_norm: makes the norm of each head's queries, and that of its keys (QK-norm; Henry et al. 2020).
        output_norm: norms the heads' outputs side by side, e.g. `HeadNorm` (differential attention).
        output_gate: makes W of the gate σ(W x), by which these are multiplied (Qwen3-Next; Qiu et al. 2025).
        backend: which backend runs it, by name, whatever the input. Default: the best for each input; see `explain`.

    Examples:
        >>> options = LayerOptions(head_norm=torch.nn.RMSNorm, output_gate=torch.nn.Linear)
        >>> layer = MultiHeadAttention(16, heads=4, options=options)
        >>> layer.query_norm, layer.output_gate
        (RMSNorm((4,), eps=None, elementwise_affine=True), Linear(in_features=16, out_features=16, bias=True))
    """

    memory: int | None = None
    projection: Projection = nn.Linear
    head_norm: Callable[[int], nn.Module] | None = None
    output_norm: nn.Module | None = None
    output_gate: Projection | None = None
    backend: str | None = None

    def __post_init__(self):
        from regard.attention.backends import BACKENDS  # which read recipes, and these name the forms

        if self.backend is not None and self.backend not in BACKENDS:
            raise ValueError(f"no backend is called {self.backend!r}; there are {', '.join(BACKENDS)}")


# --- before there were forms and options ---


def former_arguments(
    form: LayerForm | None, options: LayerOptions, given: dict[str, Any]
) -> tuple[LayerForm | None, LayerOptions]:
    """Arguments as they were before `form` and `options`."""
    for name in given:
        if name not in (*LayerOptions.__dataclass_fields__, "compress"):
            raise TypeError(f"MultiHeadAttention has no argument {name!r}; see LayerOptions")
        now = "form=..." if name == "compress" else f"options=LayerOptions({name}=...)"
        warn(f"MultiHeadAttention({name}=...) is now {now}", DeprecationWarning, stacklevel=3)
    options = replace(options, **{name: x for name, x in given.items() if name != "compress"})
    return given.get("compress", form), options
