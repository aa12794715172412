"""Multi-head attention: projections around `attend`. Grouping (MHA, GQA, MQA) is a number; crossing is an argument."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from regard.attention.backends import BACKENDS
from regard.attention.backends.reference import Steps
from regard.attention.batch_patterns import UnpaddedTokens, mask_parts
from regard.attention.block_map import is_tracing
from regard.attention.core import AttentionCore, record_steps
from regard.attention.dependency_tree import DependencyTree
from regard.attention.gate import GateProjection
from regard.attention.kv_cache import CacheCell, KVCache, LayerCache
from regard.attention.latent import LatentKV, Linformer, expand, project_latent
from regard.attention.normaliser import AttentionDropout
from regard.attention.pattern import Full, Pattern
from regard.attention.position import Bias
from regard.attention.recipe import Recipe
from regard.attention.softmax_variants import Hard
from regard.attention.text_positions import Segments
from regard.ops.linear import find_whole, project_all
from regard.ops.rms_norm import norm_rows


def no_projection(width_in: int, width_out: int) -> nn.Module:
    """No projection at all: the weight-free attention of the fifth lecture.

    Examples:
        >>> layer = MultiHeadAttention(2, heads=1, recipe=Recipe(score=Dot()), projection=no_projection)
        >>> layer(torch.eye(2)[None])  # e / (e + 1) and 1 / (e + 1)
        tensor([[[0.7311, 0.2689],
                 [0.2689, 0.7311]]])
        >>> len(list(layer.parameters()))
        0
    """
    if width_in != width_out:
        raise ValueError(f"without projections the widths must agree, not {width_in} and {width_out}")
    return nn.Identity()


@dataclass(frozen=True, eq=False)
class Context:
    """What varies between the uses of one layer: which keys may be attended to, and where the tokens stand.

    Args:
        pattern: met besides the recipe's own: padding, a mask.
        positions: the place of each token in its text, (b, t), where that is not its index.
        tree: the dependency trees of the batch.
        segments: of rows of packed texts.
        bias: added to the scores besides the recipe's own: an additive mask.
        tokens: x holds these tokens of the batch alone, one after the other, (1, n, model).
        captured: the kernels are captured in a CUDA graph.

    Examples:
        >>> x = torch.randn(2, 5, 8)
        >>> layer = MultiHeadAttention(8, heads=2)
        >>> heads = layer.compute_heads(x, context=Context(Padding(torch.tensor([5, 3]))))
        >>> heads.shape, torch.equal(layer.output(heads), layer(x, pattern=Padding(torch.tensor([5, 3]))))
        (torch.Size([2, 5, 8]), True)
    """

    pattern: Pattern | None = None
    positions: Tensor | None = None
    tree: DependencyTree | None = None
    segments: Segments | None = None
    bias: Bias | None = None
    tokens: UnpaddedTokens | None = None
    captured: bool = False

    @property
    def fused(self) -> bool:
        """Packed rows are many tokens in few shapes: worth the fused operations, which cost a CPU more to launch."""
        return self.segments is not None or self.captured

    def unpad(self, x: Tensor) -> Tensor:
        return x if self.tokens is None else self.tokens.unpad(x)

    def pad(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return parts if self.tokens is None else self.tokens.pad(*parts)

    @property
    def token_positions(self) -> dict[str, Tensor | None]:
        if self.segments is not None:
            return {"q_positions": self.segments.positions, "k_positions": self.segments.of_keys}
        return {"q_positions": self.positions, "k_positions": self.positions}


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


class MultiHeadAttention(nn.Module):
    """concat(head_1, ..., head_h) W^O,  head_n = attend(x W^Q_n, memory W^K_n, memory W^V_n).

    Args:
        model: the width of the tokens.
        heads: how many query heads; `groups` key and value heads serve them (default: one each).
        head: the width of a head (default: model / heads).
        recipe: what attention is. Build several layers from `recipe.fresh()`, unless they are to share weights.
        dropout: on the weights, while training.
        memory: the width of what is attended to, if it is not `model`.
        projection: makes each of the four projections; `no_projection` makes none.
        head_norm: makes the norm of each head's queries, and that of its keys (QK-norm; Henry et al. 2020).
        output_norm: norms the heads' outputs side by side, e.g. `HeadNorm` (differential attention).
        output_gate: makes W of the gate σ(W x), by which these are multiplied (Qwen3-Next; Qiu et al. 2025).
        compress: mixes keys and values before they are attended to.
        latent: makes keys and values of one latent for each token, which is all that a cache keeps (MLA).
        backend: which backend runs it, by name, whatever the input. Default: the best for each input; see `explain`.

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
        memory: int | None = None,
        projection: Callable[[int, int], nn.Module] = nn.Linear,
        head_norm: Callable[[int], nn.Module] | None = None,
        output_norm: nn.Module | None = None,
        output_gate: Callable[[int, int], nn.Module] | None = None,
        compress: Linformer | None = None,
        latent: LatentKV | None = None,
        backend: str | None = None,
    ):
        super().__init__()
        groups = heads if groups is None else groups
        if heads < 1 or groups < 1 or heads % groups:
            raise ValueError(f"{heads} heads cannot share {groups} groups: not a multiple")
        if head is None and model % heads:
            raise ValueError(f"{heads} heads do not divide a model of width {model}; say how wide a head is: head=...")
        if compress is not None:
            compress.check_recipe(recipe)
        if dropout and isinstance(recipe.normaliser, Hard):
            raise ValueError(f"dropout would drop the one key that {recipe.normaliser} chooses; use dropout=0")
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"no backend is called {backend!r}; there are {', '.join(BACKENDS)}")
        head = model // heads if head is None else head
        self.heads, self.groups, self.recipe, self.learned = heads, groups, recipe, recipe.learned()
        self.backend, self.dropout = backend, AttentionDropout(dropout).rate
        value = head if latent is None else latent.value or head
        if latent is None:
            self.latent, self.query = None, projection(model, heads * head)
            self.key, self.value = (projection(memory or model, groups * head) for _ in range(2))
        else:
            latent.check(recipe, heads, groups, head)
            self.latent, self.query, self.key, self.value = latent.build(model, memory, heads, head, projection)
        self.output = projection(heads * value, model)
        self.query_norm, self.key_norm = (None if head_norm is None else head_norm(head) for _ in range(2))
        self.output_gate = None if output_gate is None else output_gate(model, heads * value)
        self.compress, self.output_norm, self.core = compress, output_norm, AttentionCore()
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
        if self.gate is not None:
            recipe = recipe.with_gate(**self.gate(*context.pad(x), memory))
        if cache is not None and self.latent is not None:
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
        (seen,) = next(record.steps(site.name) for site in record.sites)
        return output, seen

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
            q, (k, v) = self.query(x), project_all(memory, (self.key, self.value), fused=context.fused)
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
        recipe, pattern = self.recipe, context.pattern if self.compress is None else None
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
