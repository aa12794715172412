"""Multi-head attention: projections around `attend`. Grouping (MHA, GQA, MQA) is a number; crossing is an argument."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.attention.backends.reference import Steps
from regard.attention.batch_patterns import mask_parts
from regard.attention.block_map import is_tracing
from regard.attention.core import AttentionCore, AttentionSites, SiteName, record_steps
from regard.attention.gate import GateProjection
from regard.attention.kv_cache import CacheCell, KVCache, LayerCache
from regard.attention.latent import InducedPoints, InducingPoints, LatentKV, Linformer, expand, project_latent
from regard.attention.layer_options import LayerForm, LayerOptions, former_arguments
from regard.attention.native_sparse import BRANCHES, NativeSparse, SparseBranches
from regard.attention.normaliser import AttentionDropout
from regard.attention.pattern import Full, Pattern
from regard.attention.position_variants import DependencyTree
from regard.attention.recipe import Recipe
from regard.attention.softmax_variants import Hard
from regard.attention.text_positions import Context
from regard.ops.linear import find_whole, project_all
from regard.ops.rms_norm import norm_rows


def with_pattern(recipe: Recipe, pattern: Pattern) -> Recipe:
    """The recipe with another pattern; the other parts are not checked again, for a step of decoding is short."""
    if is_tracing():  # torch 2.11 cannot follow what stands below
        return replace(recipe, pattern=pattern)
    other = object.__new__(Recipe)
    other.__dict__.update(recipe.__dict__, pattern=pattern)
    return other


# not by einops: for one sentence it would take a tenth of a decoding step
def split_heads(x: Tensor, heads: int) -> Tensor:
    """b t (h d) -> b h t d"""
    b, t, width = x.shape
    return x.view(b, t, heads, width // heads).transpose(1, 2)


def concatenate_heads(heads: Tensor) -> Tensor:
    """b h t d -> b t (h d)"""
    return heads.transpose(1, 2).flatten(2)


# behind the name of the layer: what its points gather, and the branches of native sparse attention
BRANCH_SITES: AttentionSites = {
    "points.gather": SiteName("points", "points", "keys"),
    "branches.compressed": SiteName("compressed", "queries", "blocks"),
    "branches.*": SiteName("*", "queries", "keys"),
}


class MultiHeadAttention(nn.Module):
    """concat(head_1, ..., head_h) W^O,  head_n = attend(x W^Q_n, memory W^K_n, memory W^V_n).

    Args:
        model: the width of the tokens.
        heads: how many query heads; `groups` key and value heads serve them (default: one each).
        head: the width of a head (default: model / heads).
        recipe: what attention is. Build several layers from `recipe.fresh()`, unless they are to share weights.
        dropout: on the weights, while training.
        form: what it attends to, where that is not one key and value of each token: `LatentKV` (MLA), `NativeSparse`,
            `InducingPoints`, `Linformer`.
        options: norms, a gate, projections and the backend.

    Examples:
        >>> layer = MultiHeadAttention(16, heads=4, groups=2, recipe=Recipe(pattern=Causal()))
        >>> layer(torch.randn(2, 7, 16)).shape
        torch.Size([2, 7, 16])
        >>> output, seen = layer.look(torch.randn(2, 7, 16))
        >>> seen.weights.shape, seen.weights[0, 0, 0].tolist()
        (torch.Size([2, 4, 7, 7]), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
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
        form: LayerForm | None = None,
        options: LayerOptions = LayerOptions(),
        **deprecated: Any,
    ):
        super().__init__()
        form, options = (form, options) if not deprecated else former_arguments(form, options, deprecated)
        groups = heads if groups is None else groups
        if heads < 1 or groups < 1 or heads % groups:
            raise ValueError(f"{heads} heads cannot share {groups} groups: not a multiple")
        if head is None and model % heads:
            raise ValueError(f"{heads} heads do not divide a model of width {model}; say how wide a head is: head=...")
        if dropout and isinstance(recipe.normaliser, Hard):
            raise ValueError(f"dropout would drop the one key that {recipe.normaliser} chooses; use dropout=0")
        head, memory, projection = model // heads if head is None else head, options.memory, options.projection
        if form is not None:
            form.check(recipe, heads, groups, head)
        self.heads, self.groups, self.recipe, self.learned = heads, groups, recipe, recipe.learned()
        self.backend, self.dropout, value = options.backend, AttentionDropout(dropout).rate, head
        self.latent = self.points = self.branches = None
        if isinstance(form, LatentKV):
            self.latent, self.query, self.key, self.value = form.build(model, memory, heads, head, projection)
            value = form.value or head
        else:
            if isinstance(form, NativeSparse):
                self.branches = SparseBranches(form, model, heads=heads, groups=groups, head=head)
                self.groups = groups * len(BRANCHES)  # each has keys and values of its own
            self.query = projection(model, heads * head)
            self.key, self.value = (projection(memory or model, self.groups * head) for _ in range(2))
        if isinstance(form, InducingPoints):
            plain = replace(options, output_norm=None, output_gate=None)
            gather = MultiHeadAttention(
                model, heads=heads, groups=groups, head=head, recipe=recipe.fresh(), options=plain
            )
            self.points = InducedPoints(form, model, gather)
        self.output = projection(heads * value, model)
        self.query_norm, self.key_norm = (None if (norm := options.head_norm) is None else norm(head) for _ in range(2))
        self.output_gate = None if (gate := options.output_gate) is None else gate(model, heads * value)
        self.compress, self.output_norm = form if isinstance(form, Linformer) else None, options.output_norm
        if self.form != form:
            raise ValueError(f"a layer builds LatentKV, NativeSparse, InducingPoints or Linformer, not {form!r}")
        self.core = AttentionCore()
        keys = "mixtures" if self.compress is not None else "points" if self.points is not None else "keys"
        self.attention_sites: AttentionSites = {**BRANCH_SITES, "": SiteName("", "queries", keys)}
        self.gate = GateProjection(recipe.gate, model, heads=heads, head=head) if recipe.gate.values else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        pattern: Pattern | None = None,
        mask: Tensor | None = None,
        tree: DependencyTree | None = None,
        positions: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x is (b, t, model) and attends to itself, or to `memory`, (b, s, width).

        Args:
            pattern: applies besides the recipe's own, and so does `mask`.
            mask: boolean, True = may look (torch's layers: True = hidden), or numbers added to the scores, -∞ = hidden;
                (i, j), (b, i, j) or (b, h, i, j), where an axis of size 1 holds for all. With a cache, the rows are the
                new tokens, the columns all.
            positions: (b, t), the places of the tokens in their texts, if these are not their indices.
            cache: x stands after the tokens of the cache, and attends to them too.
        """
        bias = None
        if mask is not None:
            first = 0 if cache is None else cache.first
            keys = first + (x if memory is None else memory).shape[1]
            visible, bias = mask_parts(mask, (x.shape[0], self.heads, x.shape[1], keys), first)
            pattern = visible if pattern is None else pattern & visible
        return self.output(self.compute_heads(x, memory, Context(pattern, positions, tree, bias=bias), cache))

    def compute_heads(
        self, x: Tensor, memory: Tensor | None = None, context: Context = Context(), cache: LayerCache | None = None
    ) -> Tensor:
        """concat(head_1, ..., head_h): what the output projection reads."""
        recipe = self.effective_recipe(context)
        if memory is not None and (self.points is not None or self.branches is not None):
            raise ValueError(f"{self.form} is a form of self-attention; leave out memory")
        if self.gate is not None:
            recipe = recipe.with_gate(**self.gate(*context.pad(x), memory))
        if self.points is not None and cache is None:
            memory = self.points(x, context)
        if self.branches is not None:
            heads = self.branches(self, x, recipe, context, cache)
        elif cache is not None and self.latent is not None:
            heads = cache.attend_latent(self, *project_latent(self, x, memory, context), recipe)
        elif cache is not None:
            heads = cache.attend(self, *self.project(x, memory, context), recipe)
        else:
            qkv = self.project(x, memory, context)
            heads = self.core(*qkv, recipe, **context.token_positions, backend=self.backend)
        return self.gate_heads(x, context.unpad(concatenate_heads(heads)))

    def cross_heads(self, x: Tensor, keys_values: tuple[Tensor, Tensor], context: Context, first: int = 0) -> Tensor:
        """The same for keys and values that are known already; the queries' indices begin at the first."""
        (q,) = context.pad(*project_all(x, (self.query,), fused=context.fused))
        q = self.norm_queries(split_heads(q, self.heads))
        how = {"q_positions": context.positions} if context.segments is None else context.token_positions
        heads = self.core(q, *keys_values, self.effective_recipe(context), q_index=first, **how, backend=self.backend)
        return self.gate_heads(x, context.unpad(concatenate_heads(heads)))

    def gate_heads(self, x: Tensor, heads: Tensor) -> Tensor:
        """The heads' outputs side by side, normed and gated where the layer does so."""
        heads = heads if self.output_norm is None else self.output_norm(heads)
        return heads if self.output_gate is None else heads * self.output_gate(x).sigmoid()

    def look(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        pattern: Pattern | None = None,
        tree: DependencyTree | None = None,
    ) -> tuple[Tensor, Steps]:
        """The output, and every step on the way to it."""
        with record_steps(self) as record:
            output = self(x, memory, pattern=pattern, tree=tree)
        if self.branches is not None:
            raise ValueError(f"{self.form} attends in branches, which `record_attention` shows one by one")
        (seen,) = record.steps("attention")
        return output, seen

    @property
    def form(self) -> LayerForm | None:
        """What it attends to in place of each token's key and value."""
        if self.latent is not None:
            return self.latent.sizes
        built = self.points or self.branches
        return self.compress if built is None else built.form

    def extend(
        self, x: Tensor, cache: KVCache | None = None, *, pattern: Pattern | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KVCache]:
        """Attention of new tokens after those in the cache. The cache is a value; the old one stays as it was."""
        cell = CacheCell(KVCache() if cache is None else cache)
        return self(x, pattern=pattern, mask=mask, cache=cell), cell.cache

    def project(
        self, x: Tensor, memory: Tensor | None = None, context: Context = Context()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of queries, keys and values."""
        if wrong := [states for states in (x, memory) if states is not None and states.dim() != 3]:
            raise ValueError(f"x and memory must be (batch, tokens, width), not {tuple(wrong[0].shape)}")
        if self.latent is not None:
            q, latent = project_latent(self, x, memory, context)
            k, v = expand(self, latent)
        elif memory is not None:
            (q,), (k, v) = context.pad(self.query(x)), project_all(memory, (self.key, self.value), fused=context.fused)
            q, k, v = split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)
        elif (whole := find_whole(self.query, self.key, self.value)) is not None:
            (joint,) = context.pad(whole.linear(x))
            heads = split_heads(joint, self.heads + 2 * self.groups)
            q, k, v = heads.split_with_sizes((self.heads, self.groups, self.groups), 1)
        else:
            q, k, v = context.pad(*project_all(x, (self.query, self.key, self.value), fused=context.fused))
            q, k, v = split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)
        q, k = self.norm_queries(q), self.norm_keys(k)
        return (q, k, v) if self.compress is None else (q, *self.compress.mix(k, v, context.pattern, context.segments))

    def norm_queries(self, q: Tensor) -> Tensor:
        return q if self.query_norm is None else norm_rows(q, self.query_norm)

    def norm_keys(self, k: Tensor) -> Tensor:
        return k if self.key_norm is None else norm_rows(k, self.key_norm)

    def effective_recipe(self, context: Context) -> Recipe:
        """The layer's recipe with what the context adds to it, in its training form while training."""
        hidden = self.compress is None and self.points is None  # or the keys are no tokens
        recipe, pattern = self.recipe, context.pattern if hidden else None
        if context.tree is not None:
            recipe = recipe.with_tree(tree=context.tree)
        if context.segments is not None:
            recipe = replace(recipe, pattern=context.segments.within(recipe.pattern))
        if pattern is not None:
            recipe = with_pattern(recipe, pattern if type(recipe.pattern) is Full else recipe.pattern & pattern)
        if context.bias is not None:
            recipe = replace(recipe, position=recipe.position + context.bias)
        if not self.training:
            return recipe
        recipe = recipe.for_training()
        return replace(recipe, normaliser=AttentionDropout(self.dropout, recipe.normaliser)) if self.dropout else recipe

    def merge_heads(self, heads: Tensor) -> Tensor:
        return self.output(concatenate_heads(heads))
