"""Latent keys and values: of one latent of each token (MLA), of mixtures of all (Linformer), or of learned points.

Multi-head latent attention: every head's keys and values are made of one latent, which is all a cache keeps.

    c_t = norm(W^C x_t)        k^R_t = W^R x_t                       what is kept of a token: rank + rotary numbers
    k_t = [k^R_t ; W^K c_t]    v_t = W^V c_t                         of each head; the part k^R is that of all heads

(DeepSeek-V2, eq. 9 to 19.) Since q · W^K c = (W^K)ᵀ q · c, a head can attend to the latents themselves: the absorbed
form, in which they are the one key and value head that all query heads share, and W^V comes after the weighted sum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.batch_patterns import Padding
from regard.attention.layer_options import LayerForm
from regard.attention.pattern import Full, Pattern, require_int
from regard.attention.position import Bias, NoPosition, Rotary
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import GivenScale
from regard.attention.score import Dot, ScaledDot
from regard.attention.text_positions import Context, Segments
from regard.ops.rms_norm import norm_rows

if TYPE_CHECKING:
    from regard.attention.multihead import MultiHeadAttention

Projection = Callable[[int, int], nn.Module]
NORM_EPS = 1e-6  # DeepSeek's


@dataclass(frozen=True, kw_only=True)
class LatentKV(LayerForm):
    """The sizes of multi-head latent attention; the width of a head's query and key is the layer's `head`.

    Args:
        rank: of the latent c, which keys and values are made of.
        rotary: the first features of every head's key, which all heads share and which are rotated; the recipe's
            position is then Rotary(fraction=rotary / head).
        value: the width of a head's values (default: as wide as its keys).
        query_rank: of a latent that the queries are made of (default: none, they are made of the token).

    Examples:
        >>> latent = LatentKV(rank=8, rotary=4)
        >>> recipe = Recipe(position=Rotary(fraction=4 / 16), pattern=Causal())
        >>> layer = MultiHeadAttention(32, heads=4, head=16, recipe=recipe, form=latent)
        >>> x = torch.randn(1, 6, 32)
        >>> first, cache = layer.extend(x[:, :5])
        >>> last, cache = layer.extend(x[:, 5:], cache)  # the absorbed form
        >>> torch.cat((first, last), 1).allclose(layer(x), atol=1e-6)
        True
        >>> cache.nbytes // 6  # bytes of a token: (8 + 4) · 4; keys and values of 4 heads would be 2 · 4 · 16 · 4
        48
    """

    rank: int
    rotary: int = 0
    value: int | None = None
    query_rank: int | None = None

    def check(self, recipe, heads, groups, head):
        if groups != heads:
            raise ValueError(f"every head makes its own keys of the latent; leave out groups = {groups}")
        if not 0 <= self.rotary < head or min(self.rank, self.value or 1, self.query_rank or 1) < 1:
            raise ValueError(f"{self} does not fit heads of width {head}: 0 ≤ rotary < head, and widths are at least 1")
        wrong = [part for part in recipe.query_key_positions if rotated_features(part, head) != self.rotary]
        if self.rotary and (wrong or not recipe.query_key_positions):
            needed = f"position=Rotary(fraction={self.rotary} / {head})"
            raise ValueError(
                f"the {self.rotary} shared features are those to rotate, not {recipe.position}: use {needed}"
            )

    def build(
        self, model: int, memory: int | None, heads: int, head: int, projection: Projection
    ) -> tuple["TokenLatents", nn.Module, nn.Module, nn.Module]:
        """The latents of tokens, and the projections to queries, keys and values."""
        value, wide = self.value or head, heads * head
        query = projection(model, wide)
        if self.query_rank is not None:  # W^Q norm(W^D x)
            norm = nn.RMSNorm(self.query_rank, eps=NORM_EPS)
            query = nn.Sequential(projection(model, self.query_rank), norm, no_bias(self.query_rank, wide))
        key, values = no_bias(self.rank, heads * (head - self.rotary)), no_bias(self.rank, heads * value)
        return TokenLatents(memory or model, self, head=head, value=value, projection=projection), query, key, values


def rotated_features(position: object, width: int) -> int | None:
    """How many features of a vector so wide a position rotates, all others staying as they are; None: not known."""
    return int(width * position.fraction) if type(position) is Rotary else None


class TokenLatents(nn.Module):
    """[W^R x ; norm(W^C x)]: what a cache keeps of a token.

    Args:
        sizes: of the layer.
        head, value: the widths of a head's keys and values.
        projection: makes W^R and W^C, as one matrix.
    """

    def __init__(self, model: int, sizes: LatentKV, *, head: int, value: int, projection: Projection):
        super().__init__()
        self.sizes, self.head, self.value = sizes, head, value
        self.down, self.norm = projection(model, sizes.rotary + sizes.rank), nn.RMSNorm(sizes.rank, eps=NORM_EPS)

    def forward(self, x: Float[Tensor, "b t model"]) -> Float[Tensor, "b t latent"]:
        shared, latent = self.down(x).tensor_split([self.sizes.rotary], -1)
        return torch.cat((shared, norm_rows(latent, self.norm)), -1)


def no_bias(width_in: int, width_out: int) -> nn.Linear:
    """From a latent: a bias could not be absorbed."""
    return nn.Linear(width_in, width_out, bias=False)


def project_latent(
    layer: "MultiHeadAttention", x: Tensor, memory: Tensor | None, context: Context
) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b t latent"]]:
    """Heads of queries, and the latents of the keys and values."""
    latents = latents_of(layer)
    q, latent = context.pad(layer.query(x), latents(x if memory is None else memory))
    return rearrange(q, "b t (h d) -> b h t d", h=layer.heads), latent


def expand(
    layer: "MultiHeadAttention", latent: Float[Tensor, "b t latent"]
) -> tuple[Float[Tensor, "b h t d"], Float[Tensor, "b h t e"]]:
    """The keys and values of every head."""
    shared, latent = latent.tensor_split([latents_of(layer).sizes.rotary], -1)
    k, v = (rearrange(part(latent), "b t (h d) -> b h t d", h=layer.heads) for part in (layer.key, layer.value))
    return torch.cat((shared[:, None].expand(-1, layer.heads, -1, -1), k), -1), v


def latents_of(layer: "MultiHeadAttention") -> TokenLatents:
    assert layer.latent is not None
    return layer.latent


# --- the absorbed form ---


def absorption_objections(layer: "MultiHeadAttention", recipe: Recipe) -> list[str]:
    """Why queries cannot meet the latents themselves; empty if they can."""
    latents = latents_of(layer)
    moved = [one for one in recipe.query_key_positions if rotated_features(one, latents.head) != latents.sizes.rotary]
    added = [part for part in recipe.score_positions if not isinstance(part, Bias)]
    linear = isinstance(layer.key, nn.Linear) and isinstance(layer.value, nn.Linear)
    return [
        *([] if type(recipe.score) in (Dot, ScaledDot, GivenScale) else [f"{recipe.score} is no plain product"]),
        *(f"{part} changes features of each head's own" for part in (*moved, *added)),
        *([] if len(recipe.query_key_positions) <= 1 else ["two positions rotate"]),
        *([] if layer.key_norm is None else ["each head's keys are normed"]),
        *([] if linear else [f"{type(layer.key).__name__} has no matrix to absorb"]),
    ]


def absorption_saves(layer: "MultiHeadAttention", queries: int, keys: int) -> bool:
    """Does it take fewer multiplications? It does where few queries meet many keys, as in decoding. A text that is read
    at once is left to the kernels for heads of one width, whatever the rank."""
    latents = latents_of(layer)
    sizes, width, value = latents.sizes, latents.head, latents.value
    made = sizes.rank * (width - sizes.rotary + value)  # of one token: its key and value, or the query and output
    plain = keys * made + queries * keys * (width + value)
    absorbed = queries * made + queries * keys * (sizes.rotary + 2 * sizes.rank)
    return queries < keys and absorbed < plain


def absorbed_recipe(layer: "MultiHeadAttention", recipe: Recipe) -> Recipe:
    """The same scores of wider queries and keys, [rotary ; rank]: the scale and what is rotated stay as they were."""
    sizes, scale = latents_of(layer).sizes, recipe.score.scale if isinstance(recipe.score, GivenScale) else 1.0
    scale = latents_of(layer).head ** -0.5 if isinstance(recipe.score, ScaledDot) else scale
    position = recipe.position
    for part in recipe.query_key_positions:
        assert isinstance(part, Rotary)
        wide = replace(part, fraction=(sizes.rotary + 0.5) / (sizes.rotary + sizes.rank))  # half a feature is none
        position = sum((one for one in position.parts() if one is not part), start=NoPosition() + wide)
    return replace(recipe, score=GivenScale(scale), position=position)


def absorb_query(layer: "MultiHeadAttention", q: Float[Tensor, "b h i d"]) -> Float[Tensor, "b h i latent"]:
    """[q^R ; (W^K)ᵀ q], which meets the latents as q meets the keys."""
    assert isinstance(layer.key, nn.Linear)
    shared, own = q.tensor_split([latents_of(layer).sizes.rotary], -1)
    weight = rearrange(layer.key.weight, "(h d) r -> h d r", h=layer.heads)
    return torch.cat((shared, einsum(own, weight, "b h i d, h d r -> b h i r")), -1)


def absorb_value(layer: "MultiHeadAttention", mixed: Float[Tensor, "b h i r"]) -> Float[Tensor, "b h i e"]:
    """W^V of the weighted sum of latents: the weighted sum of values."""
    assert isinstance(layer.value, nn.Linear)
    weight = rearrange(layer.value.weight, "(h e) r -> h e r", h=layer.heads)
    return einsum(mixed, weight, "b h i r, h e r -> b h i e")


# --- Linformer ---


@dataclass(eq=False)
class Linformer(nn.Module, LayerForm):
    """head = softmax(q (E k)ᵀ / √d) (F v)  (eq. 7). E and F are shared by all heads, or one for each of `heads`.

    Every mixed key holds something of every token, so which token a query attends to is lost: patterns are
    out, and padding is taken out of the mixture before it is made. A shorter sequence uses the first columns of E, F.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2, form=Linformer(max_length=64, rank=4))
        >>> output, seen = layer.look(torch.randn(1, 50, 8))
        >>> output.shape, seen.weights.shape  # 50 × 4 weights instead of 50 × 50
        (torch.Size([1, 50, 8]), torch.Size([1, 2, 50, 4]))
    """

    max_length: int
    rank: int
    heads: int = 1

    def __post_init__(self):
        super().__init__()
        self.E, self.F = (
            nn.Parameter(torch.randn(self.heads, self.rank, self.max_length) * self.rank**-0.5) for _ in range(2)
        )

    def check(self, recipe, heads, groups, head):
        """Nothing that depends on where a key stands can be applied to mixtures."""
        if recipe.pattern != Full():
            raise ValueError(f"{self} mixes all keys, so {recipe.pattern} cannot be applied any more; use Full()")
        if recipe.query_key_positions or recipe.score_positions:
            raise ValueError(
                f"{self} mixes all keys, so they have no position any more; {recipe.position} cannot be used"
            )

    def mix(self, k: Tensor, v: Tensor, pattern: Pattern | None, segments: Segments | None) -> tuple[Tensor, Tensor]:
        """The mixtures of one text's keys and values, without those of padding."""
        if segments is not None:
            raise ValueError(f"{self} mixes all keys of a row, and so those of several texts; do not pack")
        if isinstance(pattern, Padding):
            kept = torch.arange(k.shape[2], device=k.device) < pattern.lengths[:, None]
            k, v = (y.masked_fill(~kept[:, None, :, None], 0.0) for y in (k, v))
        elif pattern is not None:
            raise ValueError(f"{self} mixes all keys; of patterns it understands Padding alone, not {pattern}")
        return self(k, v)

    def forward(
        self, k: Float[Tensor, "b g j d"], v: Float[Tensor, "b g j e"]
    ) -> tuple[Float[Tensor, "b g r d"], Float[Tensor, "b g r e"]]:
        tokens = k.shape[2]
        if tokens > self.max_length:
            raise ValueError(f"{self} mixes at most {self.max_length} tokens, not {tokens}: raise `max_length`")
        if self.heads not in (1, k.shape[1]):
            raise ValueError(f"{self} has mixtures for {self.heads} heads, but there are {k.shape[1]} key heads")
        E, F = (weight[:, :, :tokens].expand(k.shape[1], -1, -1) for weight in (self.E, self.F))
        return einsum(E, k, "g r j, b g j d -> b g r d"), einsum(F, v, "g r j, b g j e -> b g r e")


# --- inducing points ---


@dataclass(frozen=True)
class InducingPoints(LayerForm):
    """Attention through k learned points: h = I + attend(I, x), y = attend(x, h); n × k twice instead of n × n.

    Set Transformer's (Lee et al. 2019, eq. 9), norms and feed-forward layers apart; the first half by itself is
    Perceiver's (Jaegle et al. 2021). What x attends to stands in no order: a recipe has neither pattern nor relative
    positions.

    Examples:
        >>> layer, x = MultiHeadAttention(8, heads=2, form=InducingPoints(3)), torch.randn(1, 50, 8)
        >>> with record_attention(layer) as record:
        ...     output = layer(x)
        >>> output.shape, {site.name: tuple(record.weights(site.name).shape) for site in record.sites}
        (torch.Size([1, 50, 8]), {'points': (1, 2, 3, 50), 'attention': (1, 2, 50, 3)})
    """

    points: int

    def __post_init__(self):
        require_int(self, self.points, 1, "points")

    def check(self, recipe, heads, groups, head):
        ordered = [*recipe.query_key_positions, *recipe.score_positions]
        for part in [*ordered, *([] if recipe.pattern == Full() else [recipe.pattern])]:
            raise ValueError(f"the points of {self} stand in no order: leave out {part}")
        if recipe.gate.values:
            raise ValueError(f"{recipe.gate} gates a text's own past, and {self} attends to points; leave it out")


class InducedPoints(nn.Module):
    """I + attend(I, x): what the layer attends to.

    Args:
        form: how many points.
        model: their width, and that of the tokens.
        gather: their attention to the tokens.
    """

    def __init__(self, form: InducingPoints, model: int, gather: "MultiHeadAttention"):
        super().__init__()
        self.form, self.gather = form, gather
        self.points = nn.Parameter(torch.randn(form.points, model) * model**-0.5)

    def forward(self, x: Float[Tensor, "b t model"], context: Context) -> Float[Tensor, "b k model"]:
        if context.segments is not None:
            raise ValueError(f"{self.form} gather all tokens of a row, and so those of several texts; do not pack")
        (x,) = context.pad(x)
        points = repeat(self.points, "k m -> b k m", b=len(x))
        return points + self.gather(points, x, pattern=context.pattern)
