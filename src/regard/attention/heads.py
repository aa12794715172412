"""Model width to heads, attend, and back. Grouping (MHA, GQA, MQA) is a number; crossing is an argument."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.attention.attending import attend, prepare, steps
from regard.attention.backends import BACKENDS, linear
from regard.attention.backends.reference import Steps
from regard.attention.causality import is_causal
from regard.attention.given import Padding
from regard.attention.hard import Hard
from regard.attention.linformer import Linformer
from regard.attention.normaliser import Dropped
from regard.attention.pattern import Full, Pattern
from regard.attention.recipe import Recipe
from regard.attention.tree import Tree


@dataclass(frozen=True, eq=False)
class Cache:
    """What a layer remembers of the tokens it has read: keys and values, or a state of fixed size."""

    past: tuple[Tensor, Tensor] | linear.State | None = None
    seen: int = 0


def absent(width_in: int, width_out: int) -> nn.Module:
    """No projection at all: the weight-free attention of the fifth lecture."""
    if width_in != width_out:
        raise ValueError(f"without projections the widths must agree, not {width_in} and {width_out}")
    return nn.Identity()


class MultiHeadAttention(nn.Module):
    """concat(head_1, ..., head_h) Wᴼ,  head_n = attend(x Wᴷ_n, memory Wᵏ_n, memory Wᵛ_n).

    Args:
        model: the width of the tokens.
        heads: how many query heads; `groups` key and value heads serve them (default: one each).
        head: the width of a head (default: model / heads).
        recipe: what attention is. Build several layers from `recipe.fresh()`, unless they are to share weights.
        dropout: on the weights, while training.
        memory: the width of what is attended to, if it is not `model`.
        projection: makes each of the four projections; `absent` makes none.
        compress: mixes keys and values before they are attended to.
        backend: who computes it, by name, whatever the input. Default: the best for each input; see `explain`.
    """

    def __init__(
        self,
        model: int,
        *,
        heads: int,
        groups: int | None = None,
        head: int | None = None,
        recipe: Recipe = Recipe(),
        dropout: float = 0.0,
        memory: int | None = None,
        projection: Callable[[int, int], nn.Module] = nn.Linear,
        compress: Linformer | None = None,
        backend: str | None = None,
    ):
        super().__init__()
        groups = heads if groups is None else groups
        if heads < 1 or groups < 1 or heads % groups:
            raise ValueError(f"{heads} heads cannot share {groups} groups: not a multiple")
        if head is None and model % heads:
            raise ValueError(f"{heads} heads do not divide a model of width {model}; say how wide a head is: head=...")
        if compress is not None and recipe.pattern != Full():
            raise ValueError(f"{compress} mixes all keys, so {recipe.pattern} cannot be told any more; use Full()")
        if compress is not None and (recipe.inside or recipe.on_score):
            raise ValueError(
                f"{compress} mixes all keys, so they have no place any more; {recipe.position} cannot be used"
            )
        if dropout and isinstance(recipe.normaliser, Hard):
            raise ValueError(f"dropout would drop the one key that {recipe.normaliser} chooses; use dropout=0")
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"no backend is called {backend!r}; there are {', '.join(BACKENDS)}")
        head = model // heads if head is None else head
        self.backend = backend
        self.heads, self.groups, self.recipe, self.learned = heads, groups, recipe, recipe.learned()
        self.dropout = Dropped(dropout).rate
        self.query = projection(model, heads * head)
        self.key, self.value = (projection(memory or model, groups * head) for _ in range(2))
        self.output = projection(heads * head, model)
        self.compress = compress

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, pattern: Pattern | None = None, tree: Tree | None = None
    ) -> Tensor:
        """x is (b, t, model) and attends to itself, or to `memory`, (b, s, width); `pattern` is met as well."""
        q, k, v = self.projected(x, memory, pattern)
        return self.joined(attend(q, k, v, self.recipe_for(pattern, tree), backend=self.backend))

    def look(
        self, x: Tensor, memory: Tensor | None = None, *, pattern: Pattern | None = None, tree: Tree | None = None
    ) -> tuple[Tensor, Steps]:
        """The output, and every step on the way to it."""
        q, k, v = self.projected(x, memory, pattern)
        seen = steps(q, k, v, self.recipe_for(pattern, tree))
        return self.joined(seen.output), seen

    def extend(self, x: Tensor, cache: Cache | None = None, *, pattern: Pattern | None = None) -> tuple[Tensor, Cache]:
        """Read on: new tokens after those the cache remembers. The cache is a value; the old one stays as it was."""
        cache = Cache() if cache is None else cache
        if self.compress is not None:
            raise ValueError(f"{self.compress} mixes the whole text at once and cannot read on; call the layer instead")
        q, k, v = self.projected(x, None, None)
        recipe, seen = self.recipe_for(pattern, None), cache.seen + x.shape[1]
        if not is_causal(recipe.pattern, seen):
            raise ValueError(
                f"{recipe.pattern} looks ahead, or nobody can tell, so reading on would change what was read; "
                "call the layer, or add & Causal()"
            )
        if not recipe.normaliser.row_wise:
            raise ValueError(
                f"{recipe.normaliser} may look across queries, so reading on would change what was read; "
                "call the layer, or derive it from RowWise if each row is weighed by itself"
            )
        no_sum = linear.why_no_sum(recipe)
        if no_sum and isinstance(cache.past, linear.State):
            raise ValueError(f"the cache holds the sums of linear attention, and {'; '.join(no_sum)}; read anew")
        if self.backend in (None, "linear") and not no_sum and not isinstance(cache.past, tuple):
            q, k, places = prepare(q, k, v, recipe, cache.seen, cache.seen)
            out, state = linear.step(recipe, q, k, v, cache.past, at=places.k)
            return self.joined(out), Cache(state, seen)
        if isinstance(cache.past, tuple):
            k, v = (torch.cat((old, new), 2) for old, new in zip(cache.past, (k, v), strict=True))
        # a cache may have forgotten its oldest keys, where nobody looks back so far
        out = attend(q, k, v, recipe, q_at=cache.seen, k_at=seen - k.shape[2], backend=self.backend)
        return self.joined(out), Cache((k, v), seen)

    def projected(self, x: Tensor, memory: Tensor | None, pattern: Pattern | None) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of queries, keys and values."""
        for name, given in (("x", x), ("memory", memory)):
            if given is not None and given.dim() != 3:
                raise ValueError(f"{name} must be (batch, tokens, width), not {tuple(given.shape)}")
        source = x if memory is None else memory
        q = rearrange(self.query(x), "b t (h d) -> b h t d", h=self.heads)
        k, v = (rearrange(part(source), "b s (g d) -> b g s d", g=self.groups) for part in (self.key, self.value))
        if self.compress is None:
            return q, k, v
        if isinstance(pattern, Padding):
            kept = torch.arange(k.shape[2], device=k.device) < pattern.lengths[:, None]
            k, v = (y.masked_fill(~kept[:, None, :, None], 0.0) for y in (k, v))
        elif pattern is not None:
            raise ValueError(f"{self.compress} mixes all keys; of patterns it understands Padding alone, not {pattern}")
        return q, *self.compress(k, v)

    def recipe_for(self, pattern: Pattern | None, tree: Tree | None) -> Recipe:
        """The layer's recipe, met by this call's pattern and trees, in its training form while training."""
        recipe = self.recipe if tree is None else self.recipe.given(tree=tree)
        if pattern is not None and self.compress is None:
            recipe = replace(recipe, pattern=pattern if recipe.pattern == Full() else recipe.pattern & pattern)
        if not self.training:
            return recipe
        recipe = recipe.while_training()
        return replace(recipe, normaliser=Dropped(self.dropout, recipe.normaliser)) if self.dropout else recipe

    def joined(self, heads: Tensor) -> Tensor:
        return self.output(rearrange(heads, "b h t d -> b t (h d)"))

    @staticmethod
    def from_torch(layer: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same layer with the same weights; tokens come batch first."""
        if layer.bias_k is not None or layer.add_zero_attn:
            raise ValueError("extra keys (add_bias_kv, add_zero_attn) have no counterpart here")
        if layer.kdim != layer.vdim:
            raise ValueError(f"keys and values come from one memory here, not of widths {layer.kdim} and {layer.vdim}")
        biased = layer.in_proj_bias is not None
        ours = MultiHeadAttention(
            layer.embed_dim,
            heads=layer.num_heads,
            dropout=layer.dropout,
            memory=layer.kdim,
            projection=lambda i, o: nn.Linear(i, o, bias=biased),
        ).to(layer.out_proj.weight)
        joint = layer.in_proj_weight if layer._qkv_same_embed_dim else None
        parts = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if joint is None else joint.chunk(3)
        biases = layer.in_proj_bias.chunk(3) if biased else (None, None, None)
        ours.load_state_dict(
            {
                f"{name}.{kind}": value.detach().clone()
                for name, weight, bias in zip(
                    ("query", "key", "value", "output"),
                    (*parts, layer.out_proj.weight),
                    (*biases, layer.out_proj.bias if biased else None),
                    strict=True,
                )
                for kind, value in (("weight", weight), ("bias", bias))
                if value is not None
            }
        )
        return ours.train(layer.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Back again: only a layer that torch's own can express."""
        if self.recipe != Recipe() or self.compress is not None or self.groups != self.heads:
            raise ValueError(f"torch's layer knows plain scaled dot-product attention alone, not {self.recipe}")
        parts = [part for part in (self.query, self.key, self.value, self.output) if isinstance(part, nn.Linear)]
        if len(parts) < 4:
            raise ValueError("torch's layer always projects, and linearly")
        query, key, value, output = parts
        if query.out_features != output.out_features:
            raise ValueError(f"torch's heads divide the model: {query.out_features} for {output.out_features}")
        theirs = nn.MultiheadAttention(
            output.out_features,
            self.heads,
            self.dropout,
            bias=query.bias is not None,
            kdim=key.in_features,
            vdim=key.in_features,
            batch_first=True,
        ).to(output.weight)
        with torch.no_grad():
            if theirs._qkv_same_embed_dim:
                theirs.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
            else:
                theirs.q_proj_weight.copy_(query.weight)
                theirs.k_proj_weight.copy_(key.weight)
                theirs.v_proj_weight.copy_(value.weight)
            theirs.out_proj.weight.copy_(output.weight)
            if query.bias is not None:
                theirs.in_proj_bias.copy_(torch.cat([query.bias, key.bias, value.bias]))
                theirs.out_proj.bias.copy_(output.bias)
        return theirs.train(self.training)
