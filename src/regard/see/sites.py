"""Attention sites: one attention as it ran, with weights, statistics and thumbnails; and the recorder that keeps them.

    recorder = AttentionRecorder(edits)
    with recorder.record(model):
        logits = model(tokens)
    recorder.sites()

It keeps every attention of a model and applies edits, by hooks on the model itself. Nothing is kept on the model: what
is recorded lives as long as its recorder.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import (
    AttentionCall,
    AttentionCore,
    GateCall,
    Hard,
    MultiHeadAttention,
    NoGate,
    Pattern,
    Recipe,
    SiteName,
    Unnormalised,
)
from regard.attention.backends import linear, reference
from regard.attention.core import (
    GateCore,
    HasModules,
    RecordedCall,
    core_hook,
    find_sites,
    hook_attention,
    hook_modules,
)
from regard.attention.functional import prepare
from regard.attention.normaliser import Wrapper
from regard.attention.pattern import IndexGrid, Positions
from regard.attention.scaled_score import is_scaled_product
from regard.attention.softmax_variants import (
    Differential,
    GivenWeights,
    MultiToken,
    SinkSoftmax,
    SoftmaxPlusOne,
    TalkingHeads,
)
from regard.attention.stats import HiddenKeys, KeyRuns, QueryBand, StatsCall, key_runs, slices
from regard.attention.text_positions import with_score_positions
from regard.interop import foreign_model
from regard.models.seq2seq import inference_mode
from regard.see.edits import Edits, SiteEdits, SiteExtent, refuse_index, refuse_unknown


@dataclass(frozen=True, eq=False)
class HeadProjection:
    """One head's q, k or v before any rotation: x W + b."""

    x: Float[Tensor, "b t m"]
    weight: Float[Tensor, "m d"]
    bias: Float[Tensor, " d"] | None


@dataclass(frozen=True, eq=False)
class Projections:
    """The vectors of queries and of keys, and the matrices of all heads."""

    x: Float[Tensor, "b i m"]
    memory: Float[Tensor, "b j w"]
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear

    @staticmethod
    def of(layer: MultiHeadAttention, x: Tensor, memory: Tensor | None) -> "Projections | None":
        """None where keys are mixtures of several tokens, or made of latents, or nothing is projected, or what is
        projected is normed."""
        query, key, value = layer.query, layer.key, layer.value
        indirect = layer.compress is not None or layer.latent is not None or layer.query_norm is not None
        if indirect or not isinstance(query, nn.Linear):
            return None
        assert isinstance(key, nn.Linear)
        assert isinstance(value, nn.Linear)
        return Projections(x, x if memory is None else memory, query, key, value)

    def head_projection(self, part: str, number: int, width: int) -> HeadProjection:
        """The query of a head, or the key or the value of a group: q, k or v."""
        layer = {"q": self.query, "k": self.key, "v": self.value}[part]
        some = slice(number * width, (number + 1) * width)
        bias = None if layer.bias is None else layer.bias.detach()[some]
        return HeadProjection(self.x if part == "q" else self.memory, layer.weight.detach()[some].T, bias)


WeightBand = tuple[Tensor, Tensor, Tensor]  # some queries, the keys they may see, both ascending, and those weights


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Of every head, means over the queries that see anything.

    Examples:
        >>> from regard.attention import Causal
        >>> layer = regard.MultiHeadAttention(8, heads=1, recipe=regard.Recipe(pattern=Causal()))
        >>> layer.query.weight.data = torch.zeros(8, 8)  # every key weighs the same
        >>> layer.query.bias.data = torch.zeros(8)
        >>> statistics = trace_layer(layer, torch.randn(1, 3, 8)).statistics()
        >>> statistics.entropy  # (log 1 + log 2 + log 3) / 3
        tensor([0.5973])
        >>> statistics.sink  # (1 + 1/2 + 1/3) / 3
        tensor([0.6111])
    """

    entropy: Float[Tensor, " h"]  # in nats; 0 where one key has all
    distance: Float[Tensor, " h"]  # between the position of a query and those of its keys
    sink: Float[Tensor, " h"]  # what the first key gets
    confidence: Float[Tensor, " h"]  # the largest weight of a query
    largest: Float[Tensor, " h"]  # of all weights


def summarise_heads(
    bands: Iterable[QueryBand],
    heads: int,
    query_offset: int,
    thumbnails: Float[Tensor, "h rows columns"] | None = None,
    shape: tuple[int, int] = (0, 0),
    *,
    signed: bool = False,
) -> HeadStatistics:
    """Statistics of all heads, and thumbnails if given, in one pass; queries begin at `query_offset`, keys at 0."""
    sums, largest = torch.zeros(heads, 5, dtype=torch.float64), torch.zeros(heads)
    for band in bands:
        queries, keys, weights = band.query_indices, band.keys, band.weights[0]
        if thumbnails is not None:
            where = range(shape[0]), range(shape[1])
            max_pool_band(thumbnails[band.heads], (queries, keys, weights), *where, signed=signed)
        total, most = weights.sum(-1), weights.amax(-1)
        far = (queries.float()[:, None] + query_offset - keys.float()).abs_()
        first = weights[..., 0] if band.reach.where(0) == 0 else torch.zeros_like(total)
        found = torch.stack([band.weighted_sum(far)[0], first, most])
        found /= total.masked_fill(total == 0, 1.0)  # a query that sees nothing adds nothing
        sums[band.heads] += torch.cat([band.entropy(), found, (total != 0)[None]]).sum(-1).T.double().cpu()
        largest[band.heads] = largest[band.heads].maximum(most.amax(-1).cpu())
    means = sums[:, :4] / sums[:, 4:].clamp(min=1)
    return HeadStatistics(*torch.cat([means.float(), largest[:, None]], 1).T)


def empty_thumbnail(
    rows: int, columns: int, queries: range, keys: range, like: Tensor
) -> Float[Tensor, "rows columns"]:
    """An empty thumbnail of so many rows and columns, but never of more than there are queries and keys."""
    if rows < 1 or columns < 1:
        raise ValueError(f"a picture has at least one row and one column, not {rows} and {columns}")
    return like.new_zeros(min(rows, len(queries)), min(columns, len(keys)), dtype=torch.float32)


def max_pool_band(picture: Tensor, band: WeightBand, queries: range, keys: range, *, signed: bool = False) -> None:
    """Query i and key j fall into a cell by their shares of the way; a cell holds the largest weight in it: of weights
    that may be below 0, the one furthest from it."""
    (here, there, weights), (rows, columns) = band, picture.shape[-2:]
    if len(there) and (int(there[0]) < keys.start or int(there[-1]) >= keys.stop):
        shown = (there >= keys.start) & (there < keys.stop)
        there, weights = there[shown], weights[..., shown]
    across = ((there - keys.start) * columns // len(keys)).expand(*weights.shape[:-2], -1)
    marks, counts = ((here - queries.start) * rows // len(queries)).unique_consecutive(return_counts=True)
    for row, some in zip(marks.tolist(), weights.split(counts.tolist(), -2), strict=True):
        held = picture[..., row, :]
        if not signed:
            held.scatter_reduce_(-1, across, some.amax(-2), "amax")
            continue
        least, most = (
            torch.zeros_like(held).scatter_reduce_(-1, across, found, how)
            for found, how in ((some.amin(-2), "amin"), (some.amax(-2), "amax"))
        )
        found = torch.where(-least > most, least, most)
        held.copy_(torch.where(found.abs() > held.abs(), found, held))


# --- sites ---


CELLS_AT_ONCE = 2**22  # weights that are formed at once
MAX_FULL_MATRIX = 2**26  # weights of the largest matrix that is ever formed: 8,192 tokens by as many


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """One head, step by step.

    Examples:
        >>> site = trace_layer(regard.MultiHeadAttention(8, heads=2), torch.randn(1, 3, 8))
        >>> steps = site.head(0)
        >>> steps.scores.allclose(steps.products / 2)  # √d is √4
        True
        >>> steps.weights.allclose(steps.scores.softmax(-1))
        True
    """

    products: Float[Tensor, "i j"] | None  # q · k before it is scaled; None for other scores
    scores: Float[Tensor, "i j"]  # as the recipe compares
    adjusted: Float[Tensor, "i j"]  # with what positions add
    visible: Bool[Tensor, "i j"]  # as the pattern says; a mask among the edits hides more
    weights: Float[Tensor, "i j"]  # edits included
    output: Float[Tensor, "i e"]


@dataclass(frozen=True)
class RecomputationCheck:
    """How far the recomputed output is from the layer's own at most, and how far it may be.

    Examples:
        >>> check = trace_layer(regard.MultiHeadAttention(8, heads=2), torch.randn(1, 3, 8)).check()
        >>> check.holds
        True
        >>> print(RecomputationCheck(error=3e-7, tolerance=1e-5))
        |A·V - layer output| ≤ 3.0e-07 (within 1e-05)
    """

    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"|A·V - layer output| ≤ {self.error:.1e} ({'within' if self.holds else 'beyond'} {self.tolerance:.0e})"


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention as it ran. q and k are rotated already; b sentences, of which the first is meant unless another is
    named.

    Examples:
        >>> site = trace_model("run", "the cat sleeps", target="le chat dort").site("decoder.0.cross")
        >>> site.heads, site.shape
        (4, (4, 4))
        >>> site.weights(head=1).shape, site.check().holds
        (torch.Size([4, 4]), True)
    """

    site_name: SiteName
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j c"]
    v: Float[Tensor, "b g j e"]
    recipe: Recipe  # all of it, as the layer was built
    output: Float[Tensor, "b h i e"]  # what the layer's own kernel gave for these heads
    query_offset: int = 0  # the position of the first query; keys count from 0
    edits: SiteEdits = SiteEdits("")
    mixture: Float[Tensor, "g j t"] | None = None  # of which tokens each value is made, if it is mixed (Linformer's F)
    projections: Projections | None = None  # what q, k and v were made from, where that is known

    @property
    def name(self) -> str:
        return self.site_name.name

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.q.shape[2], self.k.shape[2]

    @property
    def note(self) -> str:
        """What a reader must know of these weights; mostly nothing."""
        if self.mixture is not None:
            mixed, tokens = self.mixture.shape[1:]
            return (
                f"the {mixed} keys are mixtures of {tokens} tokens (Linformer); `token_weights` has the weight of each"
            )
        if isinstance(self.recipe.normaliser, SinkSoftmax):
            return "each head has a learned sink, which takes what its weights leave of 1"
        if isinstance(self.recipe.normaliser, SoftmaxPlusOne):
            return "each query may attend to nothing, which takes what its weights leave of 1"
        if not self.recipe.normaliser.head_wise:
            return "the weights of a head are mixed from the scores of several"
        if isinstance(self.recipe.normaliser, Hard):
            return "hard attention: each query takes its best key alone, so every weight is 0 or 1"
        if not isinstance(self.recipe.gate, NoGate):
            return f"{self.recipe.gate}: the weights with what tokens forget and erase, which give the layer's output"
        positions = Positions.of(self.q, self.k, self.query_offset, None)
        if not linear.objections(self.recipe_after_rotation(), self.q, self.k, positions):
            return "linear attention: the layer keeps sums and never forms these weights, but they give its output"
        return ""

    @property
    def signed(self) -> bool:
        """May weights be below 0, as those of a state or of a difference of two maps?"""
        normaliser = self.recipe.normaliser
        while isinstance(normaliser, Wrapper | MultiToken):
            normaliser = normaliser.then
        return isinstance(normaliser, Unnormalised | Differential | TalkingHeads)

    # --- one head ---

    def head(self, head: int, *, sentence: int = 0, dtype: torch.dtype = torch.float32) -> HeadSteps:
        """Every step of one head; no other is computed."""
        if self.shape[0] * self.shape[1] > MAX_FULL_MATRIX:
            raise ValueError(f"{self.name}: {self.shape} weights are too many to hold; use row(...) and max_pool(...)")
        found = self.steps(head, range(self.shape[0]), slice(sentence, sentence + 1), dtype)
        products = None
        if is_scaled_product(self.recipe.score):
            q, k, _ = (x[sentence, 0].to(dtype) for x in self.head_qkv(head))
            products = einsum(q, k, "i d, j d -> i j")
        parts = (found.scores, found.adjusted, found.visible, found.weights, found.output)
        return HeadSteps(products, *(part[0, 0] for part in parts))

    def weights(self, head: int, *, sentence: int = 0) -> Float[Tensor, "i j"]:
        """The weights of one head, edits included."""
        return self.head(head, sentence=sentence).weights

    def row(
        self, head: int, query: int, *, sentence: int = 0, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, " j"]:
        """The weights of one query."""
        refuse_index("query", query, self.shape[0], self.name)
        return self.steps(head, (query,), slice(sentence, sentence + 1), dtype).weights[0, 0, 0]

    @torch.no_grad()
    def token_weights(self, head: int, *, sentence: int = 0) -> Float[Tensor, "i t"]:
        """What each token weighs in the output: the weights themselves, or through the mixtures (may be negative)."""
        weights = self.head(head, sentence=sentence).weights
        return weights if self.mixture is None else weights @ self.mixture[self.group(head)].to(weights)

    def check(self, head: int | None = None) -> RecomputationCheck:
        """|A·V - what the layer gave| of one head or of all, for all sentences."""
        if head is None:
            return max((self.check(head) for head in range(self.heads)), key=lambda found: found.error)
        error, (n_q, n_k), values = 0.0, self.shape, self.head_qkv(head)[2]
        for rows in torch.arange(n_q).split(max(1, CELLS_AT_ONCE // max(1, n_k * len(self.q)))):
            again = self.steps(head, rows.tolist(), slice(None), torch.float32).output[:, 0]
            given = self.output[:, head].index_select(1, rows.to(self.q.device)).float()
            apart = (again - given).abs().nan_to_num(nan=torch.inf)
            error = max(error, float(apart.max())) if again.numel() else error
        # half precision rounds each weight and each output once; in single precision sums differ by their order
        size = max(1.0, float(values.abs().max())) if values.numel() else 1.0
        return RecomputationCheck(error, max(1e-5, 4 * torch.finfo(self.output.dtype).eps) * size)

    # --- all heads ---

    def statistics(self, *, sentence: int = 0) -> HeadStatistics:
        """Of every head, in memory that grows with the tokens."""
        return summarise_heads(self.bands(range(self.heads), sentence), self.heads, self.query_offset)

    def overview(
        self, rows: int, columns: int, *, sentence: int = 0
    ) -> tuple[HeadStatistics, Float[Tensor, "h rows columns"]]:
        """The same, and a thumbnail of every head, as `max_pool` makes it; -∞ where nothing may be seen."""
        one = empty_thumbnail(rows, columns, range(self.shape[0]), range(self.shape[1]), self.q)
        pictures = one.expand(self.heads, -1, -1).clone()
        bands, of = self.bands(range(self.heads), sentence), (self.heads, self.query_offset)
        found = summarise_heads(bands, *of, pictures, self.shape, signed=self.signed)
        return found, pictures.masked_fill_(~self.max_pool_visible(one, sentence), -torch.inf)

    @torch.no_grad()
    def max_pool_visible(
        self, picture: Float[Tensor, "rows columns"], sentence: int
    ) -> Bool[Tensor, "#h rows columns"]:
        """Of every cell of such a thumbnail whether a query may see a key in it; all, where the matrix is too large."""
        (n_q, n_k), each = self.shape, slice(sentence, sentence + 1)
        if n_q * n_k > MAX_FULL_MATRIX:
            return torch.ones_like(picture, dtype=torch.bool)[None]
        everyone = torch.arange(n_q, device=self.q.device)
        heads = range(self.heads if self.recipe.pattern.depends_on_head else 1)
        seen = picture.new_zeros(len(heads), *picture.shape)
        for head in heads:
            for rows in everyone.split(max(1, CELLS_AT_ONCE // max(1, n_k))):
                visible = self.index_grid(head, rows, each).visible(self.recipe.pattern).expand(1, 1, len(rows), n_k)
                band = rows, torch.arange(n_k, device=rows.device), visible[0, 0].float()
                max_pool_band(seen[head], band, range(n_q), range(n_k))
        return seen > 0

    def max_pool(
        self,
        head: int,
        rows: int,
        columns: int,
        *,
        queries: range | None = None,
        keys: range | None = None,
        sentence: int = 0,
    ) -> Float[Tensor, "rows columns"]:
        """A thumbnail of one head, or of some of its queries and keys: each cell the largest weight that falls into it.

        Never larger than what it shows.
        """
        refuse_index("head", head, self.heads, self.name)
        (n_q, n_k), whole = self.shape, queries is None
        queries, keys = range(n_q) if queries is None else queries, range(n_k) if keys is None else keys
        for name, some, count in (("query", queries, n_q), ("key", keys, n_k)):
            if some.step != 1 or not len(some):
                raise ValueError(f"{some}: a picture shows {name} after {name}, at least one")
            refuse_index(name, some.start, count, self.name)
            refuse_index(name, some.stop - 1, count, self.name)
        picture = empty_thumbnail(rows, columns, queries, keys, self.q)
        for band in self.bands(range(head, head + 1), sentence, None if whole else queries):
            shown = band.query_indices + queries.start, band.keys, band.weights[0, 0]
            max_pool_band(picture, shown, queries, keys, signed=self.signed)
        return picture

    @torch.no_grad()
    def bands(self, heads: range, sentence: int = 0, queries: range | None = None) -> Iterator[QueryBand]:
        """Some of these heads and queries at a time, counted from the first of each, and their weights; keys that no
        block shows are left out. One product for a dozen heads costs little more than for one."""
        (n_q, n_k), edited = self.shape, self.edits.cell_edited_heads
        chosen = range(n_q) if queries is None else queries
        if (edited or self.is_joint) and len(heads) > 1:
            for number, head in enumerate(heads):
                for band in self.bands(range(head, head + 1), sentence, queries):
                    yield replace(band, heads=slice(number, number + 1))
        elif heads.start in edited or self.is_joint:
            yield from self.bands_by_steps(heads.start, sentence, chosen)
        else:
            call = self.stats_call(heads, range(sentence, sentence + 1))
            call = call if queries is None else call.select_queries(tuple(chosen))
            yield from call.bands(key_runs(self.recipe.pattern, len(chosen), n_k, self.query_offset + chosen.start))

    def bands_by_steps(self, head: int, sentence: int, queries: range) -> Iterator[QueryBand]:
        """The same of one head by the reference, all keys: its cells are edited, or depend on others."""
        one, (_, n_k) = slice(0, 1), self.shape
        at_once = len(queries) if self.is_joint else CELLS_AT_ONCE // max(1, n_k)
        for rows in slices(0, len(queries), at_once):
            found = self.steps(head, queries[rows], slice(sentence, sentence + 1), torch.float32)
            where = one, one, rows, KeyRuns(((0, n_k),), ()), (len(queries), n_k)
            hidden = HiddenKeys(((slice(0, n_k), ~found.visible),))
            yield QueryBand(*where, found.adjusted, hidden, self.recipe.normaliser, found.weights)

    # --- computation ---

    def stats_call(self, heads: range, sentences: range) -> StatsCall:
        """The call of `attention_stats` for some heads, by their own numbers, which biases and patterns depend on."""
        groups = slice(self.group(heads.start), self.group(heads.stop - 1) + 1)
        parts = self.q[:, heads.start : heads.stop], self.k[:, groups]
        q, k = (x[sentences.start : sentences.stop].float() for x in parts)
        recipe = self.recipe_after_rotation(torch.float32)
        normaliser = recipe.normaliser.for_heads(heads)
        recipe = replace(
            recipe,
            score=recipe.score.for_heads(heads),
            normaliser=self.edits.temperature_only().wrap_normaliser(normaliser, heads.start, ()),
        )
        call = StatsCall.of(recipe, q, k, Positions.of(q, k, self.query_offset, None))
        b, h = (torch.tensor(numbers, device=q.device) for numbers in (list(sentences), list(heads)))
        return replace(call, cells=replace(call.cells, b=b.view(-1, 1, 1, 1), h=h.view(1, -1, 1, 1)))

    @torch.no_grad()
    def steps(self, head: int, queries: Sequence[int] | range, sentences: slice, dtype: torch.dtype) -> reference.Steps:
        """By the reference: one head, these queries, all keys."""
        return self.differentiable_steps(head, queries, sentences, dtype)

    def differentiable_steps(
        self, head: int, queries: Sequence[int] | range, sentences: slice, dtype: torch.dtype
    ) -> reference.Steps:
        rows = torch.tensor(list(queries), dtype=torch.long, device=self.q.device)
        q, k, v = (x[sentences].to(dtype) for x in self.head_qkv(head))
        cells = self.index_grid(head, rows, sentences)
        recipe = self.recipe_after_rotation(dtype)
        queries = (rows + self.query_offset).tolist()
        one = range(head, head + 1)
        own = GivenWeights(self.joint_weights(head, rows, sentences, dtype)) if self.is_joint else recipe.normaliser
        normaliser = self.edits.wrap_normaliser(own.for_heads(one), head, queries)
        recipe = replace(recipe, score=recipe.score.for_heads(one), normaliser=normaliser)
        return reference.steps(recipe, q.index_select(2, rows), k, v, cells)

    @property
    def is_joint(self) -> bool:
        """Do the weights of a query depend on other heads or queries?"""
        return not (self.recipe.normaliser.row_wise and self.recipe.normaliser.head_wise)

    def joint_weights(self, head: int, rows: Tensor, sentences: slice, dtype: torch.dtype) -> Tensor:
        """The weights of these queries, of one head, where all heads and queries are needed to know them."""
        q, k = (x[sentences].to(dtype) for x in (self.q, self.k))
        cells = Positions.of(q, k, self.query_offset, None).grid(*q.shape[:2])
        b = torch.arange(len(self.q), device=q.device)[sentences].view(-1, 1, 1, 1)
        whole = reference.steps(self.recipe_after_rotation(dtype), q, k, k[..., :0], replace(cells, b=b)).weights
        return whole[:, head : head + 1].index_select(2, rows)

    def index_grid(self, head: int, rows: Tensor, sentences: slice) -> IndexGrid:
        """One head, these queries, all keys."""
        q, k, _ = (x[sentences] for x in self.head_qkv(head))
        b = torch.arange(len(self.q), device=q.device)[sentences].view(-1, 1, 1, 1)
        cells = Positions.of(q, k, self.query_offset, None).grid(len(q), 1)
        number = torch.full((1, 1, 1, 1), head, device=q.device)
        return replace(cells, b=b, h=number, i=cells.i.index_select(2, rows))

    def visible(self, head: int, queries: Sequence[int] | range, *, sentence: int = 0) -> Bool[Tensor, "i j"]:
        """Which keys these queries may see; no score is computed."""
        rows = torch.tensor(list(queries), dtype=torch.long, device=self.q.device)
        found = self.index_grid(head, rows, slice(sentence, sentence + 1)).visible(self.recipe.pattern)
        return found.expand(1, 1, len(rows), self.shape[1])[0, 0]

    def recipe_after_rotation(self, dtype: torch.dtype | None = None) -> Recipe:
        """The recipe for q and k that are rotated already."""
        recipe = with_score_positions(self.recipe, self.recipe.score_positions)
        return recipe if dtype is None else cast_parameters(recipe, dtype)

    def head_qkv(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        refuse_index("head", head, self.heads, self.name)
        group = self.group(head)
        return self.q[:, head : head + 1], self.k[:, group : group + 1], self.v[:, group : group + 1]

    def group(self, head: int) -> int:
        return head // (self.heads // self.k.shape[1])


@dataclass(frozen=True, eq=False)
class GateSite:
    """Weights without queries: of channels or positions (a CNN's gates), or of words (static poolings).

    Examples:
        >>> from regard.attention import GateCore
        >>> _, sites = trace_module(GateCore("one weight for each channel"), torch.tensor([[0.25, 0.75]]))
        >>> sites["attention"].weights, sites["attention"].note
        (tensor([[0.2500, 0.7500]]), 'one weight for each channel')
    """

    site_name: SiteName
    weights: Float[Tensor, "b ..."]
    note: str

    @property
    def name(self) -> str:
        return self.site_name.name


def cast_parameters(part: Any, dtype: torch.dtype) -> Any:
    """The same part, its learned numbers in another precision; the original stays as it is."""
    if isinstance(part, nn.Module):
        return part if all(one.dtype == dtype for one in part.parameters()) else deepcopy(part).to(dtype)
    if isinstance(part, tuple):
        made = tuple(cast_parameters(one, dtype) for one in part)
        return part if all(one is other for one, other in zip(made, part, strict=True)) else made
    if is_dataclass(part) and not isinstance(part, type):
        given = {field.name: getattr(part, field.name) for field in fields(part)}
        made = {name: cast_parameters(one, dtype) for name, one in given.items()}
        return part if all(made[name] is given[name] for name in given) else replace(part, **made)
    return part


# --- the recorder ---


@contextmanager
def apply_edits(model: HasModules, edits: Edits) -> Iterator[None]:
    """The model with its edits while the block lasts, for any search; without edits it is left alone."""
    if not edits:
        yield
        return
    with hook_attention(model, lambda call: edit_call(call, edits.at_site(call.site.name))):
        yield


def edit_call(call: RecordedCall, edits: SiteEdits) -> Tensor | None:
    """What an attention or a gate gives with these edits; None if that is what it gave."""
    if isinstance(call, GateCall):
        return edit_gate(call, edits)
    return edit_heads(build_site(call, edits)) if edits.edited_heads(call.q.shape[1]) else None


def edit_gate(call: GateCall, edits: SiteEdits) -> Tensor | None:
    weights = call.weights
    if edits.shut:
        return torch.zeros_like(weights)
    if not edits.off:
        return None
    refuse_index("weight", max(edits.off), weights[0].numel(), call.site.name)
    off = torch.tensor(sorted(edits.off), device=weights.device)
    return weights.flatten(1).index_fill(1, off, 0.0).view_as(weights)


def edit_heads(site: AttentionSite) -> Tensor:
    """The output of a site with its edits; heads that are not edited stay the same, bit for bit."""
    output, precise = site.output.clone(), torch.promote_types(site.q.dtype, torch.float32)
    n_q, n_k = site.shape
    for head in site.edits.edited_heads(site.heads):
        for rows in torch.arange(n_q).split(max(1, CELLS_AT_ONCE // max(1, n_k))):
            found = site.differentiable_steps(head, rows.tolist(), slice(None), precise).output[:, 0]
            output[:, head, rows[0] : rows[-1] + 1] = found.to(output.dtype)
    return output


def build_site(call: AttentionCall, edits: SiteEdits) -> AttentionSite:
    """An attention as it ran, before its edits."""
    if call.k_index:
        raise ValueError(
            f"the cache of {call.site.name} has dropped its first {call.k_index} keys; record from the first token on"
        )
    where = call.q_index, call.k_index, call.q_positions, call.k_positions
    recipe, q, k, _ = prepare(call.q, call.k, call.v, call.recipe, *where)
    return AttentionSite(call.site, q, k, call.v, recipe, call.output, call.q_index, edits)


@dataclass(frozen=True, eq=False)
class AttentionRecorder:
    """Applies edits, and keeps every attention as it ran."""

    edits: Edits = Edits()
    calls: dict[str, list[AttentionSite | GateSite]] = field(default_factory=dict)
    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)  # of projections and mixtures, the last of each

    @contextmanager
    def record(self, model: HasModules, name: str | None = None) -> Iterator[None]:
        """Whatever this thread runs of the model while the block lasts; of a single layer, under this name."""
        sites = list(find_sites(model))
        layers = [layer for _, layer, _ in sites if isinstance(layer, MultiHeadAttention)]
        parts = [part for layer in layers for part in (layer.query, layer.key, layer.compress) if part is not None]

        def see(call: RecordedCall) -> Tensor | None:
            return self.keep(call if name is None else replace(call, site=replace(call.site, name=name)))

        hooks = [(part, self.keep_input) for part in parts]
        with hook_modules([*hooks, *((core, core_hook(site, layer, see)) for core, layer, site in sites)]):
            yield

    def keep_input(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.inputs[part] = args[0]

    def keep(self, call: RecordedCall) -> Tensor | None:
        edits = self.edits.at_site(call.site.name)
        calls = self.calls.setdefault(call.site.name, [])
        if isinstance(call, GateCall):
            changed = edit_gate(call, edits)
            calls.append(GateSite(call.site, call.weights if changed is None else changed, call.note))
            return changed
        site = build_site(call, edits)
        changed = edit_heads(site) if edits.edited_heads(site.heads) else None
        if isinstance(call.layer, MultiHeadAttention):
            known = {"projections": self.projections(call.layer, site), "mixture": self.mixture(call.layer, site)}
            site = replace(site, **known)
        calls.append(site if changed is None else replace(site, output=changed))
        return changed

    def projections(self, layer: MultiHeadAttention, site: AttentionSite) -> Projections | None:
        """None where the inputs do not make all of q and k: of cached tokens only k and v are known."""
        x, memory = self.inputs.get(layer.query), self.inputs.get(layer.key)
        if x is None or memory is None:
            return None
        (b, _, i, _), j = site.q.shape, site.k.shape[2]
        complete = tuple(x.shape[:2]) == (b, i) and tuple(memory.shape[:2]) == (b, j)
        return Projections.of(layer, x, memory) if complete else None

    def mixture(self, layer: MultiHeadAttention, site: AttentionSite) -> Tensor | None:
        if layer.compress is None:
            return None
        tokens = self.inputs[layer.compress].shape[2]
        return layer.compress.F[:, :, :tokens].expand(site.k.shape[1], -1, -1).detach()

    def sites(self) -> dict[str, AttentionSite | GateSite]:
        """By name, in the order they ran; the steps of a recurrent decoder are one site."""
        return {name: merge_calls(calls) for name, calls in self.calls.items()}


def merge_calls(calls: list[AttentionSite | GateSite]) -> AttentionSite | GateSite:
    first = calls[0]
    if isinstance(first, GateSite):
        return first
    sites = [site for site in calls if isinstance(site, AttentionSite)]
    for before, after in pairwise(sites):
        if after.query_offset != before.query_offset + before.shape[0]:
            raise ValueError(
                f"{first.name} ran {len(sites)} times on the same tokens, as a layer with shared weights does, and a "
                "trace shows each attention once; watch it: regard.watch(model)"
            )
    q, output = (torch.cat(parts, 2) for parts in ([site.q for site in sites], [site.output for site in sites]))
    origin = first.projections if len(sites) == 1 else None
    return replace(sites[-1], q=q, output=output, query_offset=first.query_offset, projections=origin)


def site_extents(sites: dict[str, AttentionSite | GateSite], queries: dict[str, int]) -> dict[str, SiteExtent]:
    """What can be edited; axes of text that is still generated may reach up to `queries`."""
    found = {}
    for name, site in sites.items():
        if isinstance(site, GateSite):
            found[name] = gate_extent(site.weights)
        else:
            n_q, n_k = site.shape
            found[name] = SiteExtent(site.heads, max(n_q, queries.get(site.site_name.queries, 0)), n_k)
    return found


def gate_extent(weights: Tensor) -> SiteExtent:
    """A gate has no queries: each of its weights can be switched off, and that is all."""
    return SiteExtent(weights[0].numel(), 0, 0)


def with_cores(model: nn.Module) -> nn.Module:
    """The model itself, or, where its attentions pass no core of ours, one around it whose attentions do."""
    ours = any(isinstance(part, AttentionCore | GateCore) for part in model.modules())
    return model if ours else foreign_model(model)


def trace_module(
    module: nn.Module, *inputs: Any, edits: Edits = Edits(), name: str | None = None, **named: Any
) -> tuple[Any, dict[str, AttentionSite | GateSite]]:
    """What any module makes of its inputs, and every attention on the way, by the names it declares or by its paths.

    Also a module of torch's own attention layers, or of transformers. A single layer may be given a name.

    Examples:
        >>> layers = torch.nn.Sequential(*(regard.MultiHeadAttention(8, heads=heads) for heads in (2, 4)))
        >>> output, sites = trace_module(layers, torch.randn(1, 5, 8))
        >>> {name: site.heads for name, site in sites.items()}
        {'0': 2, '1': 4}
    """
    recorder, module = AttentionRecorder(edits), with_cores(module)
    with inference_mode(module), recorder.record(module, name):
        output = module(*inputs, **named)
    sites = recorder.sites()
    refuse_unknown(edits, site_extents(sites, {}))
    return output, sites


def trace_layer(
    layer: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    pattern: Pattern | None = None,
    edits: Edits = Edits(),
    name: str = "attention",
) -> AttentionSite:
    """The attention of one layer: x is (b, t, model), and attends to itself or to `memory`.

    Examples:
        >>> layer = regard.MultiHeadAttention(8, heads=2)
        >>> site = trace_layer(layer, torch.randn(1, 5, 8), memory=torch.randn(1, 7, 8))
        >>> site.shape, site.weights(head=0).shape, site.check().holds
        ((5, 7), torch.Size([5, 7]), True)
    """
    _, sites = trace_module(layer, x, memory, edits=edits, name=name, pattern=pattern)
    site = sites[name]
    assert isinstance(site, AttentionSite)
    return site
