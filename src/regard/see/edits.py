"""What if? Heads switched off, weights set, cells hidden, words swapped, temperatures: one value, and what it does.

edits = Edits(off=(Off("decoder.0.cross", 1),), masks=(Mask("encoder.0", 0, query=2, key=5),))
after = scene_of("run", "the black cat ate the mouse", edits=edits)

An edit is a normaliser: what it changes is how scores become weights, so whatever computes weights (a layer, a row on
the page, a thumbnail) computes the edited ones. Queries and keys are counted from 0, as a site's axes are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import isfinite
from typing import Any, get_type_hints

import torch
from torch import Tensor

from regard.attention import Normaliser

EVERY = "*"  # the site of a temperature that holds everywhere
RESTS = {"scaled": "the rest of the row keeps its proportions and the row its sum", "kept": "the rest stays as it is"}


@dataclass(frozen=True)
class Off:
    """A head that gives nothing: all its weights are 0. Of a gate, which has no heads, one of its weights."""

    site: str
    head: int


@dataclass(frozen=True)
class Weight:
    """A weight as it should be; `rest` says what becomes of the others in its row: see RESTS."""

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
    """A key that a query may not see: it weighs 0, and the normaliser weighs the others without it."""

    site: str
    head: int
    query: int
    key: int


@dataclass(frozen=True)
class Swap:
    """Another word in the place of one; they are counted from 0, and read again afterwards."""

    word: int
    to: str

    def __post_init__(self):
        if len(self.to.split()) != 1:
            raise ValueError(f"{self.to!r} is not one word; swap words one by one")


@dataclass(frozen=True)
class Temperature:
    """normalise(scores / value): below 1 sharpens, above 1 flattens. `site` may be "*", every one."""

    site: str
    value: float

    def __post_init__(self):
        if not (isfinite(self.value) and self.value > 0):
            raise ValueError(f"a temperature is a positive number, not {self.value}")


@dataclass(frozen=True)
class Shut:
    """A gate that lets nothing through: all its weights are 0."""

    site: str


KINDS = {"off": Off, "weights": Weight, "masks": Mask, "swaps": Swap, "temperatures": Temperature, "shut": Shut}


@dataclass(frozen=True)
class Edits:
    """All changes to one run of a model. Empty, it changes no bit."""

    off: tuple[Off, ...] = ()
    weights: tuple[Weight, ...] = ()
    masks: tuple[Mask, ...] = ()
    swaps: tuple[Swap, ...] = ()
    temperatures: tuple[Temperature, ...] = ()
    shut: tuple[Shut, ...] = ()

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
    def sites(self) -> tuple[str, ...]:
        """The sites that are named."""
        warm = (one for one in self.temperatures if one.site != EVERY)  # nothing else can hold everywhere
        return tuple(dict.fromkeys(one.site for one in (*self.off, *self.weights, *self.masks, *warm, *self.shut)))

    def of(self, site: str) -> "Here":
        """What is changed at one site; of several temperatures the last holds."""
        warm = [one.value for one in self.temperatures if one.site in (site, EVERY)]
        return Here(
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
        return Edits(**{name: tuple(read(name, one) for one in some) for name, some in given.items()})

    def to_python(self, model: str = "run", text: str = "", more: Mapping[str, object] | None = None) -> str:
        """Lines that do the same with the public interface; `more` are other arguments of `scene_of`."""
        used = [kind.__name__ for name, kind in KINDS.items() if getattr(self, name)]
        parts = [f"    {name}={getattr(self, name)!r},\n" for name in KINDS if getattr(self, name)]
        asked = ", ".join([repr(model), repr(text), *(f"{name}={value!r}" for name, value in (more or {}).items())])
        inside = "".join(["\n", *parts]) if parts else ""
        return (
            f"from regard.see import {', '.join(sorted(['Edits', 'compare', 'scene_of', *used]))}\n\n"
            f"edits = Edits({inside})\n"
            f"before = scene_of({asked})\n"
            f"after = scene_of({asked}, edits=edits)\n"
            "print(compare(before, after))\n"
        )


def read(name: str, one: Any) -> Any:
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


# --- what exists ---


@dataclass(frozen=True)
class Extent:
    """How many heads a site has, and how many queries and keys there can be."""

    heads: int
    queries: int
    keys: int


def refuse_unknown(edits: Edits, there: Mapping[str, Extent]) -> None:
    """A site, head or cell that does not exist, with what does; and a weight of a head that is off."""
    for site in edits.sites:
        if site not in there:
            raise ValueError(f"there is no site {site!r:.80}; there are {', '.join(there) or 'none'}")
    for one in edits.temperatures:
        if one.site != EVERY and not there[one.site].queries:
            raise ValueError(f"{one.site} is a gate, whose weights do not compete; a temperature means nothing to it")
    for one in edits.shut:
        if there[one.site].queries:
            raise ValueError(f"{one.site} is no gate that could be shut; switch its heads off")
    for one in (*edits.off, *edits.weights, *edits.masks):
        extent = there[one.site]
        for name, count in (("head", extent.heads), ("query", extent.queries), ("key", extent.keys)):
            if name in vars(one):
                refuse(name, vars(one)[name], count, one.site)
    off = {(one.site, one.head) for one in edits.off}
    for one in edits.weights:
        if (one.site, one.head) in off:
            raise ValueError(
                f"head {one.head} of {one.site} is off, so its weight {one.value:g} would be 0; "
                "switch it on, or set none"
            )


def refuse(name: str, index: int, count: int, site: str) -> None:
    """An index that is not there."""
    if not 0 <= index < count:
        there = f"they are counted from 0 to {count - 1}" if count else "there are none"
        raise ValueError(f"{site} has no {name} {index}; {there}")


# --- what it does ---


@dataclass(frozen=True)
class Here:
    """What is changed at one site."""

    site: str
    off: frozenset[int] = frozenset()
    weights: tuple[Weight, ...] = ()
    masks: tuple[Mask, ...] = ()
    temperature: float = 1.0
    shut: bool = False

    @property
    def by_cell(self) -> frozenset[int]:
        """The heads that are changed at places of their own."""
        return self.off | {one.head for one in (*self.weights, *self.masks)}

    def touched(self, heads: int) -> list[int]:
        """The heads whose weights are others, of so many."""
        refuse("head", max(self.by_cell, default=0), heads, self.site)
        return list(range(heads)) if self.temperature != 1 else sorted(self.by_cell)

    def warmth(self) -> "Here":
        """The temperature alone."""
        return Here(self.site, temperature=self.temperature)

    def on(self, then: Normaliser, head: int, queries: Sequence[int] | range) -> Normaliser:
        """The normaliser of one head, for these queries and all keys."""
        return then if self == Here(self.site) else Edited(then, self, head, tuple(queries))


@dataclass(frozen=True)
class Edited(Normaliser):
    """Another normaliser's weights, changed: those of one head and of these queries, over all keys."""

    then: Normaliser
    here: Here
    head: int
    queries: tuple[int, ...]

    def weigh(self, scores, visible):
        scores = scores if self.here.temperature == 1 else scores / self.here.temperature
        if masks := self.mine(self.here.masks):
            visible = visible.clone()
            for one in masks:
                if one.key < scores.shape[-1]:  # of a text that is still being written, a later key is hidden anyway
                    visible[:, :, self.queries.index(one.query), one.key] = False
        weights = self.then.weigh(scores, visible)
        if self.head in self.here.off:
            return torch.zeros_like(weights)
        for query in dict.fromkeys(one.query for one in self.mine(self.here.weights)):
            at = self.queries.index(query)
            weights = weights.clone()
            weights[:, :, at] = self.row(query, weights[:, :, at], visible[:, :, at])
        return weights

    def while_training(self):
        return replace(self, then=self.then.while_training())

    def mine(self, edits: Iterable[Any]) -> list[Any]:
        return [one for one in edits if one.head == self.head and one.query in self.queries]

    def row(self, query: int, weights: Tensor, visible: Tensor) -> Tensor:
        edits = {one.key: one for one in self.here.weights if (one.head, one.query) == (self.head, query)}
        where = f"{self.here.site}, head {self.head}, query {query}"
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
