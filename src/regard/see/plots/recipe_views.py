"""Recipe views: panels of patterns, positions, weights, steps and whole recipes."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import lcm, log
from typing import Any

import torch
from torch import Tensor

from regard.attention.backends.reference import Steps
from regard.attention.batch_patterns import Documents
from regard.attention.functional import steps
from regard.attention.gate import Lightning
from regard.attention.parts import children, leaves
from regard.attention.pattern import Pattern
from regard.attention.position import Bias, EmbeddingPosition, Position, QueryKeyPosition, ScorePosition
from regard.attention.position_variants import Alibi, CoPE, Learned, RelativeBias, RelativeVectors, TreeDepth, TreePath
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import LogitScale
from regard.attention.score import Additive, Bilinear, Dot
from regard.attention.softmax_variants import Differential, MultiToken, SinkSoftmax, TalkingHeads
from regard.attention.sparse_patterns import LightningIndexer, PerHead, conditions, is_content
from regard.see.plots.panels import Axis, ColourScale, Curve, Panel, PanelRow, View, grid, make_labels

Tokens = int | Sequence[str]  # how many, or which

DEFAULT_MASK_TOKENS = 32
MOST_CELLS = 1024  # a side; a longer mask is shown by its blocks
MOST_BLOCKS = 128


# --- patterns ---


def pattern_view(
    pattern: Pattern, *, tokens: Tokens | None = None, queries: Tokens | None = None, block: int | None = None
) -> View:
    """The mask: queries down, keys across; of `PerHead` one for each head. With `block`, also which blocks of that size
    are empty, mixed and full.

    A mask too long for cells is never formed: its blocks are shown alone. What a pattern chooses from the content is
    shown on an example, since without queries and keys there is no choice.
    """
    if is_content(pattern):
        return recipe_view(Recipe(pattern=pattern), tokens=tokens)
    n_k, n_q = mask_lengths(pattern, tokens, queries)
    if max(n_q, n_k) > MOST_CELLS:
        size = block or 2 ** ((max(n_q, n_k) - 1) // MOST_BLOCKS).bit_length()
        return View((PanelRow((block_panel(pattern, n_q, n_k, size),)),), title=one_line_repr(pattern))
    down, across = token_axis("query", tokens if queries is None else queries), token_axis("key", tokens)
    heads = heads_held(pattern)
    masks = torch.cat([mask(pattern, n_q, n_k, head) for head in range(heads)])
    names = [head + sentence for head in numbered("head", heads) for sentence in numbered("sentence", pattern.batches)]
    names = ["cells"] if block and len(names) == 1 else [name.strip() for name in names]
    panels = [
        Panel(name, seen, ColourScale("mask"), down=down, across=across)
        for name, seen in zip(names, masks, strict=True)
    ]
    panels += [block_panel(pattern, n_q, n_k, block)] if block else []
    return View(grid(panels), title=one_line_repr(pattern))


def mask(pattern: Pattern, n_q: int, n_k: int, head: int = 0) -> Tensor:
    """May query i of sentence b attend to key j in this head?  (b, i, j)"""
    b = torch.arange(pattern.batches).view(-1, 1, 1)
    i, j = torch.arange(n_q).view(1, -1, 1), torch.arange(n_k).view(1, 1, -1)
    return pattern.to("cpu").sees(b, torch.full_like(b, head), i, j).expand(pattern.batches, n_q, n_k)


def numbered(name: str, count: int) -> list[str]:
    """head 1, head 2 ...; nothing where there is one alone."""
    return [""] if count == 1 else [f" {name} {n}" for n in range(1, count + 1)]


def block_panel(pattern: Pattern, n_q: int, n_k: int, block: int) -> Panel:
    states = pattern.blocks(n_q, n_k, block).dense()
    return Panel(
        f"blocks of {block}", states, ColourScale("blocks", 0, 2), down=Axis("query block"), across=Axis("key block")
    )


def mask_lengths(pattern: Pattern, tokens: Tokens | None, queries: Tokens | None) -> tuple[int, int]:
    """How many keys and queries: as asked, else as many as the pattern holds data for, else the usual number."""
    named = [part for part in leaves(pattern) if isinstance(part, Documents)]
    known_k = min(
        [
            DEFAULT_MASK_TOKENS**4,
            *((part.segment_ids if part.key_segment_ids is None else part.key_segment_ids).shape[1] for part in named),
        ]
    )
    known_q = min([DEFAULT_MASK_TOKENS**4, *(part.segment_ids.shape[1] for part in named)])
    n_k = (known_k if named else DEFAULT_MASK_TOKENS) if tokens is None else token_count(tokens)
    n_q = (known_q if named and tokens is None else n_k) if queries is None else token_count(queries)
    if min(n_q, n_k) < 1:
        raise ValueError(f"{n_q} queries and {n_k} keys make no plot; ask for at least 1 of each")
    if n_q > known_q or n_k > known_k:
        raise ValueError(
            f"{one_line_repr(pattern)} names {known_q} queries and {known_k} keys, not {n_q} and {n_k}; ask for fewer"
        )
    return n_k, n_q


def token_count(tokens: Tokens) -> int:
    return tokens if isinstance(tokens, int) else len(tokens)


def token_axis(name: str, tokens: Tokens | None) -> Axis:
    if tokens is None or isinstance(tokens, int):
        return Axis(name)
    return Axis(name, make_labels(tokens, wanted=len(tokens), name="tokens"))


def one_line_repr(part: object) -> str:
    """A part as one line."""
    return " ".join(repr(part).split())


# --- weights ---


def weights_view(
    weights: Tensor,
    *,
    tokens: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    visible: Tensor | None = None,
) -> View:
    """Weights (i, j), (h, i, j) or (1, h, i, j). `tokens` names the keys, and the queries unless `queries` does."""
    heads = split_heads(weights)
    shown = None if visible is None else split_heads(visible.expand(weights.shape)).bool()
    down, across = matrix_axes(heads, tokens, queries)
    scale = ColourScale.robust_of_rows(heads if shown is None else heads.where(shown, 0.0), "weight")
    names = [""] if len(heads) == 1 else [f"head {h + 1}" for h in range(len(heads))]
    panels = [
        Panel(name, head, scale, None if shown is None else shown[h], down, across)
        for h, (name, head) in enumerate(zip(names, heads, strict=True))
    ]
    return View(grid(panels, most=4 if heads.shape[1] > 1 else 1))


def split_heads(x: Tensor) -> Tensor:
    if x.dim() == 4 and len(x) != 1:
        raise ValueError(f"weights of {len(x)} sentences; draw one at a time: weights[0], weights[1], ...")
    if not 2 <= x.dim() <= 4 or not x.numel():
        raise ValueError(f"weights must be (i, j), (h, i, j) or (1, h, i, j), not {tuple(x.shape)}")
    return x.detach().cpu().double().reshape(-1, *x.shape[-2:])


def matrix_axes(heads: Tensor, tokens: Sequence[str] | None, queries: Sequence[str] | None) -> tuple[Axis, Axis]:
    _, n_q, n_k = heads.shape
    across = Axis("key", None if tokens is None else make_labels(tokens, wanted=n_k, name="tokens"))
    if queries is None and tokens is not None and n_q == 1 < n_k:
        return Axis("", ("",)), across  # the one row needs no name
    if queries is None and tokens is not None and n_q != n_k:
        raise ValueError(f"{n_k} tokens name the keys, but there are {n_q} queries; name them too: queries=[...]")
    named = tokens if queries is None else queries
    return Axis("query", None if named is None else make_labels(named, wanted=n_q, name="queries")), across


def steps_view(steps: Steps, *, tokens: Sequence[str] | None = None, queries: Sequence[str] | None = None) -> View:
    """From left to right what happens to one head: scores → adjusted → visible → weights."""
    scores, adjusted, visible, weights = map(split_heads, (steps.scores, steps.adjusted, steps.visible, steps.weights))
    visible = visible.bool()
    down, across = matrix_axes(weights, tokens, queries)
    by_score = ColourScale.of(torch.cat((scores, adjusted)), "score")
    by_weight = ColourScale.robust_of_rows(weights, "weight")
    same = " (nothing added)" if torch.equal(scores, adjusted) else ""
    rows = [
        PanelRow(
            (
                Panel("scores", scores[h], by_score, None, down, across),
                Panel(f"adjusted{same}", adjusted[h], by_score, None, down, across),
                Panel("visible", visible[h], ColourScale("mask"), None, down, across),
                Panel("weights", weights[h], by_weight, visible[h], down, across),
            ),
            heading=f"head {h + 1}" if len(scores) > 1 else "",
        )
        for h in range(len(scores))
    ]
    return View(tuple(rows))


# --- positions ---


DEFAULT_POSITION_TOKENS = 64
DEFAULT_WIDTH = 64  # of the model or head, where the scheme leaves it open


def position_view(position: Position, *, tokens: int | None = None, width: int | None = None) -> View:
    """The first `tokens` positions; `width` features where the scheme does not fix them."""
    parts, rows = position.parts(), []
    for scheme in parts:
        first, *others = position_rows(scheme, tokens, width)
        rows += [replace(first, heading=repr(scheme) if len(parts) > 1 else ""), *others]
    return View(tuple(rows) or empty_rows(tokens or 8), title=repr(position))


def position_rows(scheme: Position, tokens: int | None, width: int | None) -> tuple[PanelRow, ...]:
    if isinstance(scheme, EmbeddingPosition):
        model = scheme.model if isinstance(scheme, Learned) else width or DEFAULT_WIDTH
        return embedding_rows(scheme, position_length(scheme, tokens, DEFAULT_POSITION_TOKENS), model)
    if isinstance(scheme, QueryKeyPosition):
        return rotation_rows(scheme, position_length(scheme, tokens, DEFAULT_POSITION_TOKENS), width or DEFAULT_WIDTH)
    if isinstance(scheme, Bias):
        return bias_rows(scheme, position_length(scheme, tokens, 32))
    if isinstance(scheme, RelativeVectors):
        return relation_rows(scheme, position_length(scheme, tokens, 12))
    if isinstance(scheme, CoPE):
        vectors = scheme.vectors.detach().cpu().double()
        return (PanelRow((feature_panel("added to keys at each whole position", vectors),)),)
    if isinstance(scheme, ScorePosition):
        return score_position_rows(
            scheme, torch.ones(1, 1, position_length(scheme, tokens, 32), width or DEFAULT_WIDTH)
        )
    raise ValueError(f"{scheme!r} is neither beside the token, nor inside q and k, nor on the score: nothing to draw")


def position_length(scheme: Position, wanted: int | None, usual: int) -> int:
    """How many positions to draw: as wanted, else the usual number or as many as the scheme knows."""
    known = 1024  # more rows than a screen has
    if isinstance(scheme, Learned):
        known = min(known, scheme.max_length)
    elif isinstance(scheme, TreeDepth) and scheme.depths is not None:
        known = min(known, scheme.depths.shape[1])
    elif isinstance(scheme, RelativeBias | RelativeVectors) and isinstance(scheme.relation, TreePath):
        known = known if scheme.relation.paths is None else min(known, scheme.relation.paths.shape[1])
    if wanted is not None and not 1 <= wanted <= known:
        raise ValueError(f"{scheme!r} cannot show {wanted} positions; ask for 1 to {known}")
    return wanted or min(usual, known)


def embedding_rows(scheme: EmbeddingPosition, tokens: int, width: int) -> tuple[PanelRow, ...]:
    table = scheme.table(torch.arange(tokens), width).detach().cpu().double()
    if table.dim() == 3 and len(table) > 1:
        raise ValueError(f"{scheme!r} was given {len(table)} trees; draw one at a time")
    table = table.view(tokens, -1)
    return (PanelRow((feature_panel("added to each token", table),)),)


def feature_panel(title: str, table: Tensor) -> Panel:
    return Panel(title, table, signed_scale(table), down=Axis("position"), across=Axis("feature"))


def signed_scale(values: Tensor) -> ColourScale:
    finite = values[torch.isfinite(values)]
    most = (float(finite.abs().max()) if len(finite) else 0.0) or 1.0
    return ColourScale("signed", -most, most)


def rotation_rows(scheme: QueryKeyPosition, tokens: int, width: int) -> tuple[PanelRow, ...]:
    """What becomes of a vector of ones, and how q · k falls with the distance when both are such vectors."""
    ones = torch.ones(1, 1, tokens, width, dtype=torch.float64)
    rotated = scheme.rotate(ones, torch.arange(tokens))[0, 0].detach().cpu()
    product = rotated @ rotated[0]
    curve = Curve("q · k when both are ones", torch.arange(tokens), product, "distance i − j", "q · k")
    return (PanelRow((feature_panel("a vector of ones, rotated", rotated), curve)),)


def index_tensors(heads: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    at = torch.arange(tokens)
    return torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(heads).view(1, -1, 1, 1), at[:, None], at[None]


def bias_rows(scheme: Bias, tokens: int) -> tuple[PanelRow, ...]:
    """One matrix per head; a bias that does not say how many heads it serves is drawn for one."""
    heads = scheme.heads if isinstance(scheme, Alibi | RelativeBias) else 1
    bias = scheme.bias(*index_tensors(heads, tokens)).detach().cpu().double().expand(1, heads, tokens, tokens)[0]
    # a bias that only dims is coloured by what it leaves of a weight, so that gentle slopes show too
    scale = ColourScale("dimming", -6, 0, "bias") if bias.max() <= 0 else signed_scale(bias)
    slopes = [f", slope {slope:.3g}" for slope in scheme.slopes()] if isinstance(scheme, Alibi) else [""] * heads
    return grid([Panel(f"head {h + 1}{slopes[h]}", bias[h], scale) for h in range(heads)])


def relation_rows(scheme: RelativeVectors, tokens: int) -> tuple[PanelRow, ...]:
    b, _, i, j = index_tensors(1, tokens)
    relation = scheme.relation.bucket(b, i, j).expand(1, 1, tokens, tokens)[0, 0]
    scale = ColourScale("kinds", 0, scheme.relation.num_buckets - 1)
    return (PanelRow((Panel("which learned vector each pair reads", relation.cpu().double(), scale),)),)


def score_position_rows(scheme: ScorePosition, q: Tensor) -> tuple[PanelRow, ...]:
    added = scheme.score_term(q, *index_tensors(1, q.shape[2])).detach().cpu().double()
    values = added.expand(1, 1, q.shape[2], q.shape[2])[0, 0]
    return (PanelRow((Panel("added to the score of a query of ones", values, signed_scale(values)),)),)


def empty_rows(tokens: int) -> tuple[PanelRow, ...]:
    return (PanelRow((Panel("added to each score", torch.zeros(tokens, tokens), ColourScale("signed", -1, 1)),)),)


# --- the example ---


ENGLISH = ("the", "black", "cat", "ate", "the", "mouse")
FRENCH = {"le": "the", "chat": "cat", "noir": "black", "a": "ate", "mangé": "ate", "la": "the", "souris": "mouse"}


def smooth_queries_keys(tokens: int, *, query: int = 8, key: int | None = None) -> tuple[Tensor, Tensor]:
    """Each query seeks a position along a bent line; some keys are longer vectors than others.

    q_i · k_j = loud_j Σ_f a_f cos(π f (line_i - j / n)): waves that agree only where j / n is near the line.
    """
    key = query if key is None else key
    at = (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens
    line = at + 0.13 * torch.sin(2 * torch.pi * at)
    loud = 1 + 0.1 * torch.cos(2 * torch.pi * 3 * at)
    return 2.2 * wave_features(line, query), 2.2 * loud[:, None] * wave_features(at, key)


def wave_features(at: Tensor, width: int) -> Tensor:
    """Pairs of sines and cosines, each pair faster and fainter; of one length, whatever the width."""
    pair = torch.arange(width) // 2
    phase = torch.pi / 2 * (torch.arange(width) % 2)
    return torch.cos(torch.pi * (pair + 1) * at[:, None] - phase) * 0.9**pair


def example_steps(recipe: Recipe, tokens: int) -> Steps:
    """Every step of a recipe on the smooth example, as wide as its learned parts ask for."""
    query = key = 8
    if isinstance(recipe.score, Additive | Bilinear):
        query, key = recipe.score.query, recipe.score.key or recipe.score.query
    for scheme in recipe.score_positions:
        query = key = scheme.head if isinstance(scheme, RelativeVectors | CoPE) else query
    for pattern in leaves(recipe.pattern):
        query, key = (
            (pattern.query, pattern.key or pattern.query) if isinstance(pattern, LightningIndexer) else (query, key)
        )
    heads = heads_of(recipe)
    like = next(recipe.learned().parameters(), torch.zeros(1))  # learned parts may live elsewhere
    q, k = (x.to(like).expand(1, heads, -1, -1) for x in smooth_queries_keys(tokens, query=query, key=key))
    q = q / torch.arange(1, heads + 1).to(like)[:, None, None]  # each head seeks less sharply than the one before
    if recipe.gate.values:
        recipe = bind_example_gate(recipe, heads, tokens, key)
    with torch.no_grad():
        return steps(q, k, k, replace(recipe, pattern=recipe.pattern.to(like.device)))


def bind_example_gate(recipe: Recipe, heads: int, tokens: int, width: int) -> Recipe:
    """What is one token older counts 0.95 times as much, features between 0.9 and 1; one token in the middle forgets
    most of what was before it; every token writes with β = 0.8."""
    gate, features = recipe.gate, (width,) if recipe.gate.decay == "vector" else ()
    decay = torch.linspace(0.9, 1.0, width) if features else torch.tensor(0.95)
    log_decay = decay.log().expand(1, heads, tokens, *features).clone()
    log_decay[:, :, tokens // 2] = log(0.2)
    values: dict[str, Any] = {"log_decay": log_decay, "beta": torch.full((1, heads, tokens), 0.8)}
    return recipe.with_gate(**{name: values[name] for name in gate.values})


def heads_of(recipe: Recipe) -> int:
    """The heads of an example: as many as its parts hold numbers for, and in multiples of its patterns."""
    held = max(map(heads_held, (recipe.score, recipe.position, recipe.normaliser, recipe.gate)))
    return lcm(held, heads_held(recipe.pattern))


def heads_held(part: Any) -> int:
    """For how many heads a part, or one that it holds, has numbers or patterns; 1 if it does not say."""
    if isinstance(part, Pattern):
        return lcm(*(len(one.patterns) for one in conditions(part) if isinstance(one, PerHead)))
    own = 2 if isinstance(part, Differential) else 1
    if isinstance(part, Alibi | RelativeBias | LogitScale | SinkSoftmax | TalkingHeads | MultiToken | Lightning):
        own = part.heads
    return max([own, *map(heads_held, children(part).values())])


def black_cat() -> tuple[Steps, tuple[str, ...], tuple[str, ...]]:
    """The lectures' translation: French words look for English ones by meaning, and among equals for the nearest."""
    meanings = sorted(set(ENGLISH))
    k = torch.stack([torch.tensor([float(word == meaning) for meaning in meanings]) for word in ENGLISH])
    q = torch.stack([5 * torch.tensor([float(word == meaning) for meaning in meanings]) for word in FRENCH.values()])
    q, k = (x.expand(1, 8, -1, -1) for x in (q, k))
    seen = steps(q, k, k, Recipe(score=Dot(), position=Alibi(8)))
    first = {field.name: getattr(seen, field.name)[:, :1] for field in fields(Steps) if field.name != "log_probability"}
    return Steps(**first), ENGLISH, tuple(FRENCH)  # the first of eight heads has the steepest slope


def weight_scale(weights: Tensor) -> ColourScale:
    """Differential attention and states have negative weights."""
    scale = signed_scale(weights) if weights.min() < 0 else ColourScale.robust_of_rows(weights, "weight")
    return replace(scale, name="weight")


# --- recipes ---


def recipe_view(recipe: Recipe, *, tokens: Tokens | None = None) -> View:
    """The mask beside the weights on the smooth example, of the first head or of each with its own pattern, and the
    parts as text."""
    n, n_q = mask_lengths(recipe.pattern, tokens, None)
    if n != n_q:
        raise ValueError(f"{one_line_repr(recipe.pattern)} has {n_q} queries and {n} keys; draw its pattern instead")
    if n > MOST_CELLS:
        raise ValueError(
            f"the weights of {n} tokens are too many for a picture; draw the pattern, or {MOST_CELLS} tokens"
        )
    seen = example_steps(recipe, n)
    down, across, rows = token_axis("query", tokens), token_axis("key", tokens), list[PanelRow]()
    for head, name in enumerate(numbered("head", heads_held(recipe.pattern))):
        visible, weights = seen.visible[0, head].cpu(), seen.weights[0, head].cpu().double()
        mask = Panel("mask", visible, ColourScale("mask"), down=down, across=across)
        panels = mask, Panel("weights on an example", weights, weight_scale(weights), visible, down, across)
        rows.append(PanelRow(panels, heading=name.strip()))
    notes = tuple((name, one_line_repr(part)) for name, part in recipe.parts().items())
    return View(tuple(rows), notes=notes)
