"""Tables of weights: the names and layouts of a model's weights here and in a checkpoint, read in both directions.

A table is text, a line for each weight or layer: our name, theirs, and, where the layouts differ, an einops pattern
from theirs to ours.

    encoder.*.attention.{query,key}                 encoder.layers.*.self_attn.{q,k}_proj    o model -> o model
    backbone.layers.*.attention.{query,key,value}   h.*.attn.c_attn            i (part o) -> part o i
    embedding.weight                                wte.weight                 target model -> target model
    bias                                            -                          target

A name is that of a tensor, or of a module whose tensors are called alike on both sides; `*` is the number of a layer,
braces are several names. Of the axes, `part` counts several tensors that are one on the other side; `source` and
`target` are the tokens and `model` are the features of the residual stream, which each side may have in an order of its
own. The bias of a layer lacks the last axis of our weight, its inputs. `-` is nothing: their model has no such weight,
and ours adds nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.pretrained import ABSENT, ForeignTokenizer

NOTHING = "-"
PART = "part"
# the logit of a token that a model does not have: of probability 0 in every precision, and yet a number
ABSENT_LOGIT = -1e4
Shape = tuple[int, ...]
LARGEST_SIZE = 2**24  # of a width, depth or length: no model comes near


# --- tables ---


@dataclass(frozen=True)
class WeightRow:
    """A line of a table: tensors of ours and of theirs that hold the same numbers.

    Args:
        ours, theirs: their names; several on one side are one on the other.
        pattern: from theirs to ours, as einops writes it; empty if the layouts are the same.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pattern: str = ""

    @property
    def sides(self) -> tuple[str, str]:
        """The axes of theirs and of ours."""
        left, _, right = self.pattern.partition("->")
        return left.strip(), right.strip()

    @property
    def axes(self) -> set[str]:
        return set(re.findall(r"[a-z_]+", self.pattern))

    def in_layer(self, number: str, suffix: str) -> "WeightRow":
        """The line of one tensor: of this layer, and this one of the module."""
        ours, theirs = (
            tuple(name.replace("*", number) + suffix for name in names) for names in (self.ours, self.theirs)
        )
        pattern, inputs = self.pattern, self.sides[1].split()[1:]
        if suffix == ".bias" and inputs:
            pattern = re.sub(rf"\b{inputs[-1]}\b", "", pattern)
        return WeightRow(ours, theirs if self.theirs != (NOTHING,) else (), " ".join(pattern.split()))


def parse_table(text: str) -> tuple[WeightRow, ...]:
    """The lines of a table; columns are two blanks or more apart."""
    return tuple(row for line in text.splitlines() if line.strip() for row in parse_line(line))


def parse_line(line: str) -> list[WeightRow]:
    """One row, or with as many names on both sides one for each."""
    ours, theirs, *pattern = re.split(r"\s{2,}", line.strip())
    row = WeightRow(expand_braces(ours), expand_braces(theirs), *pattern)
    if len(row.ours) == 1 or len(row.theirs) == 1:
        return [row]
    return [replace(row, ours=(one,), theirs=(other,)) for one, other in zip(row.ours, row.theirs, strict=True)]


def expand_braces(name: str) -> tuple[str, ...]:
    """a.{b,c}.d is a.b.d and a.c.d."""
    if (found := re.search(r"{([^}]*)}", name)) is None:
        return (name,)
    return tuple(name[: found.start()] + one + name[found.end() :] for one in found[1].split(","))


def tensor_rows(table: Iterable[WeightRow], parameters: Iterable[str]) -> list[WeightRow]:
    """The lines of a table for each tensor of a model of ours; each tensor must be in one of them, and only one."""
    parameters, found = list(parameters), list[WeightRow]()
    for row in table:
        first = re.compile(re.escape(row.ours[0]).replace(r"\*", r"(\d+)") + r"(\.\w+)?")
        for name in parameters:
            if match := first.fullmatch(name):
                *number, suffix = match.groups(default="")
                found.append(row.in_layer("".join(number), suffix))
    held = [name for row in found for name in row.ours]
    for name in parameters:
        if held.count(name) != 1:
            raise ValueError(f"the weight {name!r} has {held.count(name)} lines in the table of this family, not one")
    return found


# --- layouts ---


@dataclass(frozen=True)
class AxisOrder:
    """Their index of each index of ours along an axis: of tokens, or of features.

    Args:
        to_foreign: by our ids; ABSENT where they have no such token.
        second: ids of ours whose token is another id of ours as well, as what begins a text may be what ends it. They
            are read, and never predicted.
        size: how many rows they have, if more than there are tokens.
    """

    to_foreign: tuple[int, ...]
    second: frozenset[int] = frozenset()
    size: int = 0

    @staticmethod
    def of(tokenizer: Tokenizer) -> "AxisOrder":
        """The order of a tokenizer's ids: its own, or that of what it stands for."""
        if not isinstance(tokenizer, ForeignTokenizer):
            return AxisOrder(tuple(range(tokenizer.size)))
        found = enumerate(tokenizer.to_foreign)
        second = (ours for ours, theirs in found if theirs != ABSENT and tokenizer.from_foreign[theirs] != ours)
        return AxisOrder(tokenizer.to_foreign, frozenset(second))

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """Our ids of their tokens, each once, in their order."""
        known = [(theirs, ours) for ours, theirs in enumerate(self.to_foreign) if ours not in self.second]
        return tuple(ours for theirs, ours in sorted(known) if theirs != ABSENT)

    def select(self, x: Tensor, axis: int) -> Tensor:
        """From their order to ours: 0 where they have none."""
        if max(self.to_foreign) >= x.shape[axis]:
            raise ValueError(
                f"{len(self.to_foreign)} tokens and a table of {x.shape[axis]} rows do not belong together; "
                "the tokenizer is another model's"
            )
        ids = torch.tensor(self.to_foreign)
        there = (ids != ABSENT).view([-1 if n == axis else 1 for n in range(x.dim())])
        return x.index_select(axis, ids.clamp(min=0).to(x.device)).where(there.to(x.device), 0.0)

    def restore(self, x: Tensor, axis: int) -> Tensor:
        """From our order to theirs; rows of no token are 0, and in a bias of the logits ABSENT_LOGIT."""
        found = x.index_select(axis, torch.tensor(self.predicted, device=x.device))
        shape = list(found.shape)
        shape[axis] = max(0, self.size - shape[axis])
        return torch.cat((found, found.new_full(shape, ABSENT_LOGIT if x.dim() == 1 else 0.0)), axis)

    def mask_bias(self, bias: Tensor) -> Tensor:
        """A bias of the logits: ABSENT_LOGIT at ids that are never predicted."""
        kept = torch.zeros(len(self.to_foreign), dtype=torch.bool)
        kept[list(self.predicted)] = True
        return bias.where(kept.to(bias.device), ABSENT_LOGIT)


@dataclass(frozen=True)
class WeightLayout:
    """What a table leaves open.

    Args:
        sizes: of axes that a pattern takes apart.
        orders: of the axes `source`, `target` and `model`.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    orders: Mapping[str, AxisOrder] = field(default_factory=dict)

    def to_ours(self, row: WeightRow, theirs: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of ours that a row names, from those of theirs."""
        if not row.theirs:
            order = self.orders[row.pattern]
            return [order.mask_bias(torch.zeros(len(order.to_foreign)))]
        left, right = row.sides
        found = self.rearrange(row, theirs, (left, right), len(row.ours))
        for order, axis in self.ordered_axes(right):
            found = [order.select(x, axis) for x in found]
            if found[0].dim() == 1:
                found = [order.mask_bias(x) for x in found]
        return found

    def to_theirs(self, row: WeightRow, ours: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of theirs that a row names, from those of ours: the inverse of `to_ours`."""
        if not row.theirs:
            if bool(ours[0][list(self.orders[row.pattern].predicted)].any()):
                raise ValueError(f"{row.ours[0]} is not 0, and the other model has no place for it")
            return []
        (left, right), found = row.sides, list(ours)
        for order, axis in self.ordered_axes(right):
            found = [order.restore(x, axis) for x in found]
        return self.rearrange(row, found, (right, left), len(row.theirs))

    def rearrange(self, row: WeightRow, given: Sequence[Tensor], sides: tuple[str, str], count: int) -> list[Tensor]:
        if not row.pattern:
            return list(given)
        sizes = {axis: size for axis, size in self.sizes.items() if axis in row.axes}
        if PART in row.axes:
            sizes[PART] = max(len(row.ours), len(row.theirs))
        x = list(given) if len(given) > 1 else given[0]
        try:
            found: Tensor = rearrange(x, " -> ".join(sides), **sizes)  # type: ignore[arg-type]
        except (EinopsError, RuntimeError) as error:
            shapes = ", ".join(str(tuple(one.shape)) for one in given)
            raise ValueError(f"{row.theirs[0]!r} is shaped {shapes}, and not {row.sides[0]!r}: {error}") from None
        return list(found.unbind()) if count > 1 else [found]

    def ordered_axes(self, side: str) -> list[tuple[AxisOrder, int]]:
        return [(self.orders[name], axis) for axis, name in enumerate(side.split()) if name in self.orders]


# --- whole checkpoints ---


def check_names(rows: Sequence[WeightRow], names: Iterable[str], ignored: Iterable[str]) -> None:
    """Every tensor of theirs must be used, or be one that is left out on purpose; and none may be missing.

    Args:
        ignored: names that are left out, in which `*` is a number.
    """
    names, wanted = set(names), {name for row in rows for name in row.theirs}
    if missing := sorted(wanted - names):
        raise ValueError(f"the checkpoint lacks {missing[0]!r} ({len(missing)} tensors); is it whole?")
    patterns = [re.compile(re.escape(one).replace(r"\*", r"\d+")) for one in ignored]
    unknown = sorted(name for name in names - wanted if not any(one.fullmatch(name) for one in patterns))
    if unknown:
        raise ValueError(
            f"the checkpoint has {unknown[0]!r} ({len(unknown)} tensors), of which our model knows nothing; "
            "it is another architecture than its config.json says"
        )


def check_shapes(
    rows: Sequence[WeightRow], layout: WeightLayout, theirs: Mapping[str, Shape], ours: Mapping[str, Shape]
) -> None:
    """Whether each tensor of theirs becomes one of ours in shape, before any is read."""
    for row in rows:
        given = [torch.empty(theirs[name], device="meta") for name in row.theirs]
        for name, found in zip(row.ours, layout.to_ours(row, given), strict=True):
            if tuple(found.shape) != tuple(ours[name]):
                shapes = ", ".join(str(theirs[one]) for one in row.theirs)
                raise ValueError(
                    f"{', '.join(row.theirs)} is shaped {shapes}, and config.json asks for {name} of {ours[name]}; "
                    "the two do not belong together"
                )


def convert_to_ours(
    rows: Sequence[WeightRow], layout: WeightLayout, read: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """All tensors of ours, from theirs, which are read one by one; in float32."""
    found: dict[str, Tensor] = {}
    for row in rows:
        given = [read(name).float() for name in row.theirs]
        for name, x in zip(row.theirs, given, strict=True):
            if bool(x.isnan().any()):
                raise ValueError(f"{name!r} holds NaN; its training diverged, or the file is damaged")
        found |= zip(row.ours, (x.contiguous() for x in layout.to_ours(row, given)), strict=True)
    return found


def convert_to_theirs(rows: Sequence[WeightRow], layout: WeightLayout, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of theirs, from ours: the inverse of `convert_to_ours`."""
    found: dict[str, Tensor] = {}
    for row in rows:
        given = [ours[name] for name in row.ours]
        found |= zip(row.theirs, (x.contiguous() for x in layout.to_theirs(row, given)), strict=True)
    return found
