"""KV caches: the keys and values of the tokens so far, or the state of linear attention; and which patterns allow one.

A cache answers as the whole sequence would only if no token sees a later one: how far ahead of a query a pattern shows
keys is proved from what the pattern is made of.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.backends import linear, state
from regard.attention.batch_patterns import Edges
from regard.attention.core import is_hooked
from regard.attention.functional import prepare
from regard.attention.gate import NoGate
from regard.attention.latent import (
    absorb_query,
    absorb_value,
    absorbed_recipe,
    absorption_objections,
    absorption_saves,
    expand,
    latents_of,
)
from regard.attention.normaliser import Proportional
from regard.attention.pattern import And, Causal, Not, Or, Pattern, StrictCausal, Window
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import (
    Block,
    ContentPattern,
    Global,
    PerHead,
    Prefix,
    Strided,
    is_content,
    plans_of,
)

if TYPE_CHECKING:
    from regard.attention.multihead import MultiHeadAttention


class LayerCache(ABC):
    """Abstract: the KV cache that one layer reads and writes in one call.

    Examples:
        >>> cell = CacheCell(KVCache(length=3))
        >>> isinstance(cell, LayerCache), cell.first
        (True, 3)
    """

    @property
    @abstractmethod
    def first(self) -> int:
        """The index of the first query."""

    @abstractmethod
    def attend(self, layer: "MultiHeadAttention", q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        """Attention of the new tokens to those of the cache and to themselves; the cache then holds them too."""

    def attend_latent(self, layer: "MultiHeadAttention", q: Tensor, latent: Tensor, recipe: Recipe) -> Tensor:
        """The same of the latents (b, t, rank + rotary) that keys and values are made of (MLA); as keys and values,
        unless the cache keeps the latents themselves."""
        k, v = expand(layer, latent)
        return self.attend(layer, layer.norm_queries(q), layer.norm_keys(k), v, recipe)


@dataclass(frozen=True, eq=False)
class KVCache:
    """The keys and values of the tokens so far, or the state of fixed size of linear attention.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal()))
        >>> x = torch.randn(1, 5, 8)
        >>> first, cache = layer.extend(x[:, :3])
        >>> rest, cache = layer.extend(x[:, 3:], cache)
        >>> cache.length, torch.cat((first, rest), 1).allclose(layer(x), atol=1e-6)
        (5, True)
    """

    # keys, values (or latents alone), and what a gate has of each token
    past: tuple[Tensor, ...] | linear.LinearState | None = None
    length: int = 0
    plans: Mapping[Pattern, Pattern] = field(default_factory=dict)  # what content patterns chose last

    @property
    def nbytes(self) -> int:
        """How much memory it takes, for the whole batch."""
        past = (self.past.kv, self.past.k) if isinstance(self.past, linear.LinearState) else self.past or ()
        return sum(part.nbytes for part in past if part is not None)


@dataclass
class CacheCell(LayerCache):
    """Where a layer reads its KV cache, and leaves the longer one. A cell is made for one call.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal()))
        >>> cell = CacheCell(KVCache())
        >>> output = layer(torch.randn(1, 3, 8), cache=cell)
        >>> cell.cache.length
        3
    """

    cache: KVCache

    @property
    def first(self):
        return self.cache.length

    def attend(self, layer, q, k, v, recipe):
        cache = self.cache
        if (running := self.running_sum(layer, recipe, q.shape[2])) is not None:
            recipe, q, k, positions = prepare(q, k, v, recipe, cache.length, cache.length)
            out, after = running.step(recipe, q, k, v, cache.past, positions=positions.k)
            self.cache = KVCache(after, cache.length + q.shape[2])
            return out
        (k, v), recipe, first = self.append((k, v), recipe)
        recipe = self.plan(q, k, v, recipe, cache, first)
        return layer.core(q, k, v, recipe, q_index=cache.length, k_index=first, backend=layer.backend)

    def attend_latent(self, layer, q, latent, recipe):
        cache, start = self.cache, self.cache.length
        if self.running_sum(layer, recipe, q.shape[2]) is not None:
            return super().attend_latent(layer, q, latent, recipe)
        (latents,), recipe, first = self.append((latent[:, None],), recipe)
        where = {"q_index": start, "k_index": first, "backend": layer.backend}
        plain = (
            is_hooked(layer.core)
            or is_content(recipe.pattern)
            or not absorption_saves(layer, q.shape[2], latents.shape[2])
        )
        if plain or absorption_objections(layer, recipe):
            k, v = expand(layer, latents[:, 0])
            q, k = layer.norm_queries(q), layer.norm_keys(k)
            return layer.core(q, k, v, self.plan(q, k, v, recipe, cache, first), **where)
        values, recipe = latents[..., latents_of(layer).sizes.rotary :], absorbed_recipe(layer, recipe)
        return absorb_value(layer, layer.core(absorb_query(layer, q), latents, values, recipe, **where))

    def plan(self, q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, before: KVCache, first: int) -> Recipe:
        """The recipe with what its pattern chooses from the content, which the cache keeps for queries that follow."""
        if not is_content(recipe.pattern):
            return recipe
        planned = prepare(q, k, v, recipe, before.length, first, past=before.plans)[0].pattern
        self.cache = replace(self.cache, plans=plans_of(recipe.pattern, planned))
        return replace(recipe, pattern=planned)

    def running_sum(self, layer: "MultiHeadAttention", recipe: Recipe, tokens: int) -> ModuleType | None:
        """The backend whose state of fixed size stands for all tokens so far; None where they themselves are kept."""
        cache = self.cache
        if why := cache_objections(layer, recipe, cache.length + tokens):
            raise ValueError(why)
        running = linear if isinstance(recipe.gate, NoGate) and recipe.normaliser == Proportional() else state
        no_sum = running.running_sum_objections(recipe)
        if no_sum and isinstance(cache.past, linear.LinearState):
            raise ValueError(f"the cache holds the sums of linear attention, and {'; '.join(no_sum)}; read anew")
        if isinstance(cache.past, linear.LinearState) and is_hooked(layer.core):
            raise ValueError(
                "the cache holds the sums of linear attention, which have no weights of single keys; record from the "
                "first token on"
            )
        # while somebody records or edits the weights, the keys are kept, which the sums are made of
        sums = layer.backend in (None, "linear", "state") and not no_sum and not is_hooked(layer.core)
        return running if sums and not isinstance(cache.past, tuple) else None

    def append(self, new: tuple[Tensor, ...], recipe: Recipe) -> tuple[tuple[Tensor, ...], Recipe, int]:
        """What is kept of all tokens, the recipe with the gates of all, and the index of the first that is kept: a
        cache may have dropped its oldest keys, where no query attends so far back."""
        gates, seen = recipe.gate.bound_values(), self.cache.length + new[0].shape[2]
        parts = *new, *gates.values()
        if isinstance(self.cache.past, tuple):
            parts = tuple(torch.cat((old, more), 2) for old, more in zip(self.cache.past, parts, strict=True))
        self.cache, first = KVCache(parts, seen), seen - parts[0].shape[2]
        if gates:
            recipe = recipe.with_gate(**dict(zip(gates, parts[len(new) :], strict=True)), first=first)
        return parts[: len(new)], recipe, first


def cache_objections(layer: "MultiHeadAttention", recipe: Recipe, seen: int) -> str | None:
    """Why a layer that has seen so many tokens cannot attend token by token."""
    if layer.compress is not None:
        return f"{layer.compress} mixes the whole sequence at once and cannot use a KV cache; call the layer instead"
    if layer.points is not None:
        return (
            f"the points of {layer.points.form} attend to the whole sequence; a KV cache would change earlier outputs"
        )
    if not is_causal(recipe.pattern, seen):
        return (
            f"{recipe.pattern} is not causal, or not provably so: a KV cache would change earlier outputs; "
            "call the layer, or add & Causal()"
        )
    if not recipe.normaliser.row_wise:
        return (
            f"{recipe.normaliser} may mix queries, so a KV cache would change earlier outputs; "
            "call the layer, or derive it from RowWise if each row is weighed by itself"
        )
    if layer.gate is not None and not recipe.gate.bound_values():
        name = type(recipe.gate).__name__
        return f"{name} does not tell a KV cache what was bound to it, which the cache must keep; define bound_values"
    return None


# --- causality ---

HORIZON = 2**14  # differences tried at least: what is not causal is found out before the sequence is long


def is_causal(pattern: Pattern, tokens: int) -> bool:
    """Is it proved that none of so many tokens sees a later one? Any pattern becomes causal by `& Causal()`."""
    ahead = lookahead(pattern, tokens)
    return ahead is not None and ahead <= 0


def lookahead(pattern: Pattern, tokens: int) -> int | None:
    """No visible key lies further ahead of its query than this, among so many tokens; None if it cannot be proved."""
    match pattern:
        case Causal() | ContentPattern():
            return 0
        case StrictCausal():
            return -1
        case Window(size):
            return size - 1
        case Strided():
            return None  # however long the stride, some sequence is longer
        case Prefix(length):
            return length - 1  # the first query sees the last of them
        case Global(0 | ()):
            return -1
        case PerHead(patterns):
            each = [lookahead(one, tokens) for one in patterns]
            known = [ahead for ahead in each if ahead is not None]
            return max(known) if len(known) == len(each) else None
        case Edges(pairs):
            return int((pairs[1].long() - pairs[0].long()).max()) if pairs.numel() else -1
        case Block(size, among):
            blocks = lookahead(among, -(-tokens // size))
            return None if blocks is None else (blocks + 1) * size - 1
        case Or(left, right):
            ahead, other = lookahead(left, tokens), lookahead(right, tokens)
            return None if ahead is None or other is None else max(ahead, other)
        case And(left, right):
            known = [x for part in (left, right) if (x := lookahead(part, tokens)) is not None]
            if known and min(known) <= 0:
                return min(known)
            tried = toeplitz_lookahead(pattern, tokens)  # two that are not causal may still share no key ahead
            return min(known, default=None) if tried is None else tried
        case Not(Not(inner)):
            return lookahead(inner, tokens)
        case Not(And(left, right)):
            return lookahead(~left | ~right, tokens)
        case Not(Or(left, right)):
            return lookahead(~left & ~right, tokens)
    return toeplitz_lookahead(pattern, tokens)


def toeplitz_lookahead(pattern: Pattern, tokens: int) -> int | None:
    """Where i - j alone matters there are few cases, and all are tried; None where more than that matters."""
    if not pattern.is_toeplitz or pattern.depends_on_head:
        return None
    furthest = max(tokens, HORIZON)
    ahead = torch.arange(furthest - 1, -furthest, -1)
    zero = torch.zeros_like(ahead)
    seen = ahead[pattern.sees(zero, zero, -ahead, zero)]
    return int(seen[0]) if len(seen) else -furthest
