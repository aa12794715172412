"""Edits (ablations): heads switched off, weights set, cells masked, words swapped, temperatures.

    edits = Edits(off=(HeadOff("decoder.0.cross", 1),), masks=(Mask("encoder.0", 0, query=2, key=5),))
    after = trace_model("run", "the black cat ate the mouse", edits=edits)

An edit is a normaliser: what it changes is how scores become weights, so whatever computes weights (a layer, a row on
the page, a thumbnail) computes the edited ones. Queries and keys are counted from 0, as a site's axes are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import isfinite
from typing import Any, get_type_hints

import torch
from torch import Tensor

from regard.attention import Normaliser

EVERY_SITE = "*"  # the site of a temperature that holds everywhere
RESTS = {"scaled": "the rest of the row keeps its proportions and the row its sum", "kept": "the rest stays as it is"}


@dataclass(frozen=True)
class HeadOff:
    """An ablated head: all its weights are 0. Of a gate, which has no heads, one of its weights.

    Examples:
        >>> layer, x = regard.MultiHeadAttention(8, heads=2), torch.randn(1, 3, 8)
        >>> site = trace_layer(layer, x, edits=Edits(off=(HeadOff("attention", 1),)))
        >>> site.weights(head=1)
        tensor([[0., 0., 0.],
                [0., 0., 0.],
                [0., 0., 0.]])
        >>> site.weights(head=0).sum(-1).allclose(torch.ones(3))
        True
    """

    site: str
    head: int


@dataclass(frozen=True)
class Weight:
    """A weight as it should be; `rest` says what becomes of the others in its row: see RESTS.

    Examples:
        >>> layer = regard.MultiHeadAttention(8, heads=2)
        >>> edits = Edits(weights=(Weight("attention", head=0, query=0, key=2, value=0.5),))
        >>> weights = trace_layer(layer, torch.randn(1, 3, 8), edits=edits).weights(head=0)
        >>> weights[0, 2].item(), round(weights[0].sum().item(), 4)
        (0.5, 1.0)
    """

    site: str
    head: int
    query: int
    key: int
    value: float
    rest: str = "scaled"

    def __post_init__(self):
        if self.rest not in RESTS:
            raise ValueError(f"rest is one of {', '.join(RESTS)}, not {self.rest!r}")
        if not isfinite(self.value) or (self.rest == "scaled" and not 0 <= self.value <= 1):
            raise ValueError(f"a weight of {self.value} cannot be set; choose 0 to 1, or any number with rest='kept'")


@dataclass(frozen=True)
class Mask:
    """A key that a query may not see: it weighs 0, and the normaliser weighs the others without it.

    Examples:
        >>> edits = Edits(masks=(Mask("attention", head=0, query=2, key=1),))
        >>> site = trace_layer(regard.MultiHeadAttention(8, heads=2), torch.randn(1, 3, 8), edits=edits)
        >>> site.row(head=0, query=2)[1].item()
        0.0
    """

    site: str
    head: int
    query: int
    key: int


@dataclass(frozen=True)
class Swap:
    """Another word instead of one; words are counted from 0, and the text is tokenized again.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", edits=Edits(swaps=(Swap(word=1, to="dog"),)))
        >>> trace.axes["source"].labels
        ('the', 'dog', 'sleeps', '</s>')
    """

    word: int
    to: str

    def __post_init__(self):
        if len(self.to.split()) != 1:
            raise ValueError(f"{self.to!r} is not one word; swap words one by one")


@dataclass(frozen=True)
class Temperature:
    """normalise(scores / value): below 1 sharpens, above 1 flattens. `site` may be "*", every one.

    Examples:
        >>> edits = Edits(temperatures=(Temperature("attention", 1000.0),))
        >>> site = trace_layer(regard.MultiHeadAttention(8, heads=2), torch.randn(1, 4, 8), edits=edits)
        >>> site.row(head=0, query=2).round(decimals=2)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    site: str
    value: float

    def __post_init__(self):
        if not (isfinite(self.value) and self.value > 0):
            raise ValueError(f"a temperature is a positive number, not {self.value}")


@dataclass(frozen=True)
class GateOff:
    """A gate that lets nothing through: all its weights are 0.

    Examples:
        >>> from regard.attention import GateCore
        >>> gate = GateCore("one weight for each channel")
        >>> output, _ = trace_module(gate, torch.tensor([[0.25, 0.75]]), edits=Edits(shut=(GateOff("attention"),)))
        >>> output
        tensor([[0., 0.]])
    """

    site: str


KINDS = {"off": HeadOff, "weights": Weight, "masks": Mask, "swaps": Swap, "temperatures": Temperature, "shut": GateOff}


@dataclass(frozen=True)
class Edits:
    """All changes to one run of a model. Empty, it changes no bit.

    Examples:
        >>> edits = Edits(off=(HeadOff("encoder.0", 1),), temperatures=(Temperature("*", 0.5),))
        >>> edits.to_dict()
        {'off': [{'site': 'encoder.0', 'head': 1}], 'temperatures': [{'site': '*', 'value': 0.5}]}
        >>> Edits.from_dict(edits.to_dict()) == edits, bool(Edits())
        (True, False)
    """

    off: tuple[HeadOff, ...] = ()
    weights: tuple[Weight, ...] = ()
    masks: tuple[Mask, ...] = ()
    swaps: tuple[Swap, ...] = ()
    temperatures: tuple[Temperature, ...] = ()
    shut: tuple[GateOff, ...] = ()

    def __post_init__(self):
        for one in (*self.off, *self.weights, *self.masks, *self.swaps):
            for name, value in vars(one).items():
                if name in ("head", "query", "key", "word") and value < 0:
                    raise ValueError(f"{one}: {name}s are counted from 0")

    def __bool__(self) -> bool:
        return self != Edits()

    def __or__(self, other: "Edits") -> "Edits":
        """These and those."""
        return Edits(**{name: (*getattr(self, name), *getattr(other, name)) for name in KINDS})

    @property
    def site_names(self) -> tuple[str, ...]:
        """The sites that are named."""
        warm = (one for one in self.temperatures if one.site != EVERY_SITE)  # nothing else can hold everywhere
        return tuple(dict.fromkeys(one.site for one in (*self.off, *self.weights, *self.masks, *warm, *self.shut)))

    def at_site(self, site: str) -> "SiteEdits":
        """What is changed at one site; of several temperatures the last holds."""
        warm = [one.value for one in self.temperatures if one.site in (site, EVERY_SITE)]
        return SiteEdits(
            site,
            frozenset(one.head for one in self.off if one.site == site),
            tuple(one for one in self.weights if one.site == site),
            tuple(one for one in self.masks if one.site == site),
            warm[-1] if warm else 1.0,
            any(one.site == site for one in self.shut),
        )

    # --- as text ---

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """For JSON; what is empty is left out."""
        return {name: [dict(vars(one)) for one in getattr(self, name)] for name in KINDS if getattr(self, name)}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> "Edits":
        """Back again; whatever is not an edit is refused."""
        if not isinstance(given, Mapping):
            raise ValueError(f"edits are a table of lists, not {given!r:.80}")
        if strange := [name for name in given if name not in KINDS]:
            raise ValueError(f"no edit is called {strange[0]!r:.80}; there are {', '.join(KINDS)}")
        for name, some in given.items():
            if not isinstance(some, (list, tuple)):
                raise ValueError(f"{name} is a list of tables, not {some!r:.80}")
        return Edits(**{name: tuple(read_edit(name, one) for one in some) for name, some in given.items()})

    def to_python(self, model: str = "run", text: str = "", more: Mapping[str, object] | None = None) -> str:
        """Lines that do the same with the public interface; `more` are other arguments of `trace_model`."""
        used = [kind.__name__ for name, kind in KINDS.items() if getattr(self, name)]
        parts = [f"    {name}={getattr(self, name)!r},\n" for name in KINDS if getattr(self, name)]
        asked = ", ".join([repr(model), repr(text), *(f"{name}={value!r}" for name, value in (more or {}).items())])
        inside = "".join(["\n", *parts]) if parts else ""
        return (
            f"from regard.see import {', '.join(sorted(['Edits', 'compare', 'trace_model', *used]))}\n\n"
            f"edits = Edits({inside})\n"
            f"before = trace_model({asked})\n"
            f"after = trace_model({asked}, edits=edits)\n"
            "print(compare(before, after))\n"
        )


def read_edit(name: str, one: Any) -> Any:
    """One edit of a kind, from a table."""
    kind = KINDS[name]
    wanted, needed = get_type_hints(kind), [field.name for field in fields(kind) if field.default is MISSING]
    if not isinstance(one, Mapping) or set(one) - set(wanted) or set(needed) - set(one):
        raise ValueError(f"{name}: {one!r:.80} is no edit; it has {', '.join(wanted)}")
    for field, value in one.items():
        fits = isinstance(value, (int, float) if wanted[field] is float else wanted[field])
        if not fits or isinstance(value, bool):
            raise ValueError(f"{name}: {field} = {value!r:.80} should be {wanted[field].__name__}")
    return kind(**one)


# --- checks ---


@dataclass(frozen=True)
class SiteExtent:
    """How many heads a site has, and how many queries and keys there can be."""

    heads: int
    queries: int
    keys: int


def refuse_unknown(edits: Edits, there: Mapping[str, SiteExtent]) -> None:
    """A site, head or cell that does not exist, with what does; and a weight of a head that is off."""
    for site in edits.site_names:
        if site not in there:
            raise ValueError(f"there is no site {site!r:.80}; there are {', '.join(there) or 'none'}")
    for one in edits.temperatures:
        if one.site != EVERY_SITE and not there[one.site].queries:
            raise ValueError(f"{one.site} is a gate, whose weights do not compete; a temperature means nothing to it")
    for one in edits.shut:
        if there[one.site].queries:
            raise ValueError(f"{one.site} is no gate that could be shut; switch its heads off")
    for one in (*edits.off, *edits.weights, *edits.masks):
        extent = there[one.site]
        for name, count in (("head", extent.heads), ("query", extent.queries), ("key", extent.keys)):
            if name in vars(one):
                refuse_index(name, vars(one)[name], count, one.site)
    off = {(one.site, one.head) for one in edits.off}
    for one in edits.weights:
        if (one.site, one.head) in off:
            raise ValueError(
                f"head {one.head} of {one.site} is off, so its weight {one.value:g} would be 0; "
                "switch it on, or set none"
            )


def refuse_index(name: str, index: int, count: int, site: str) -> None:
    """An index that is not there."""
    if not 0 <= index < count:
        there = f"they are counted from 0 to {count - 1}" if count else "there are none"
        raise ValueError(f"{site} has no {name} {index}; {there}")


# --- edits of one site ---


@dataclass(frozen=True)
class SiteEdits:
    """What is changed at one site."""

    site: str
    off: frozenset[int] = frozenset()
    weights: tuple[Weight, ...] = ()
    masks: tuple[Mask, ...] = ()
    temperature: float = 1.0
    shut: bool = False

    @property
    def cell_edited_heads(self) -> frozenset[int]:
        """The heads with edits of their own: off, set weights or masks."""
        return self.off | {one.head for one in (*self.weights, *self.masks)}

    def edited_heads(self, heads: int) -> list[int]:
        """The heads whose weights are others, of so many."""
        refuse_index("head", max(self.cell_edited_heads, default=0), heads, self.site)
        return list(range(heads)) if self.temperature != 1 else sorted(self.cell_edited_heads)

    def temperature_only(self) -> "SiteEdits":
        """The temperature alone."""
        return SiteEdits(self.site, temperature=self.temperature)

    def wrap_normaliser(self, then: Normaliser, head: int, queries: Sequence[int] | range) -> Normaliser:
        """The normaliser of one head, for these queries and all keys."""
        return then if self == SiteEdits(self.site) else EditedNormaliser(then, self, head, tuple(queries))


@dataclass(frozen=True)
class EditedNormaliser(Normaliser):
    """Another normaliser's weights, changed: those of one head and of these queries, over all keys."""

    then: Normaliser
    edits: SiteEdits
    head: int
    queries: tuple[int, ...]

    def weigh(self, scores, visible):
        scores = scores if self.edits.temperature == 1 else scores / self.edits.temperature
        if masks := self.edits_of_head(self.edits.masks):
            visible = visible.clone()
            for one in masks:
                if one.key < scores.shape[-1]:  # of a text that is still generated, a later key is hidden anyway
                    visible[:, :, self.queries.index(one.query), one.key] = False
        weights = self.then.weigh(scores, visible)
        if self.head in self.edits.off:
            return torch.zeros_like(weights)
        for query in dict.fromkeys(one.query for one in self.edits_of_head(self.edits.weights)):
            row = self.queries.index(query)
            weights = weights.clone()
            weights[:, :, row] = self.edit_row(query, weights[:, :, row], visible[:, :, row])
        return weights

    def for_training(self):
        return replace(self, then=self.then.for_training())

    @property
    def row_wise(self):
        return self.then.row_wise and self.edits == self.edits.temperature_only()

    @property
    def head_wise(self):
        return self.then.head_wise

    def for_heads(self, heads):
        return replace(self, then=self.then.for_heads(heads))

    def edits_of_head(self, edits: Iterable[Any]) -> list[Any]:
        return [one for one in edits if one.head == self.head and one.query in self.queries]

    def edit_row(self, query: int, weights: Tensor, visible: Tensor) -> Tensor:
        edits = {one.key: one for one in self.edits.weights if (one.head, one.query) == (self.head, query)}
        where = f"{self.edits.site}, head {self.head}, query {query}"
        if hidden := [key for key in edits if key >= visible.shape[-1] or not bool(visible[..., key].all())]:
            raise ValueError(f"{where} may not see key {hidden[0]}, so it cannot weigh anything; set another")
        keys = torch.tensor(list(edits), device=weights.device)
        values = weights.new_tensor([one.value for one in edits.values()])
        total, others = weights.sum(-1, keepdim=True), weights.index_fill(-1, keys, 0.0)
        if all(one.rest == "scaled" for one in edits.values()):
            left, rest = total - values.sum(), others.sum(-1, keepdim=True)
            if bool((left < -1e-6).any()):
                raise ValueError(
                    f"{where}: weights of {float(values.sum()):g} in all leave less than nothing; set less"
                )
            others = others * (left.clamp(min=0) / rest.masked_fill(rest == 0, 1.0))
        return others.index_copy(-1, keys, values.expand(*weights.shape[:-1], -1))


# --- word swaps ---


def swap_words(text: str, edits: Edits) -> str:
    """The text with its words swapped; the blanks between them stay."""
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    for one in sorted(edits.swaps, key=lambda swap: -swap.word):
        if one.word >= len(spans):
            raise ValueError(f"there is no word {one.word} to swap; words are counted from 0 to {len(spans) - 1}")
        start, stop = spans[one.word]
        text = text[:start] + one.to + text[stop:]
    return text


def refuse_word_swaps(edits: Edits, what: str) -> None:
    if edits.swaps:
        raise ValueError(f"{edits.swaps[0]}: {what} has no words to swap; leave it out")


def without_word_swaps(edits: Edits) -> Edits:
    """The same once the words are swapped."""
    return replace(edits, swaps=())
