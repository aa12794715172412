"""Learned parts: the weights that a recipe's parts hold, however deep, by name, and a user's own.

A part is a frozen dataclass or an `nn.Module`, and either may hold the other: TopK(3, then=Temperature()). What a part
holds are its fields or attributes, and the members of a collection among them.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any

from torch import Tensor, nn

from regard.attention.block_map import attributes_of
from regard.attention.serialize import Part, find_part, prints_arguments


def children(value: Any) -> dict[str, Any]:
    """What a value holds, by name. Of a module, what it has not registered by itself."""
    match value:
        case Tensor() | type():
            return {}
        case nn.Module():
            return {name: x for name, x in vars(value).items() if not name.startswith("_")}
        case dict():
            return {str(name): x for name, x in value.items()}
        case tuple() | list():
            return {str(n): x for n, x in enumerate(value)}
    return attributes_of(value) if is_dataclass(value) or isinstance(value, Part) else {}


def learned_modules(part: Any, name: str) -> dict[str, nn.Module]:
    """The modules that hold a part's weights, each under the part's name and the way to it."""
    own = {field: x for field, x in children(part).items() if isinstance(x, nn.Parameter)}
    found = {name: part} if isinstance(part, nn.Module) else {name: as_module(own)} if own else {}
    for field, x in children(part).items():
        found |= learned_modules(x, f"{name}_{field}")
    return found


def as_module(weights: dict[str, nn.Parameter]) -> nn.Module:
    """The weights of a part that is no module, as a module."""
    module = nn.Module()
    for name, weight in weights.items():
        module.register_parameter(name, weight)
    return module


def tensors(part: Any) -> Iterator[Tensor]:
    """Every tensor that a part holds, those of its modules included; one held twice comes twice."""
    if isinstance(part, Tensor):
        yield part
    if isinstance(part, nn.Module):
        yield from (*part.parameters(), *part.buffers())
    for x in children(part).values():
        yield from tensors(x)


def fresh(part: Any) -> Any:
    """The same part with weights of its own; what holds none stays, and what was shared within it is shared again."""
    made: dict[int, Any] = {}
    mark_shared(part, made)
    return deepcopy(part, made)


def mark_shared(part: Any, made: dict[int, Any]) -> None:
    """Note for `deepcopy` what need not be copied. A module that is a dataclass of mere settings is made anew."""
    if id(part) in made or isinstance(part, nn.Parameter):
        return
    within = [learned_modules(x, "") or isinstance(x, nn.Parameter) for x in field_values(part)]
    if not learned_modules(part, ""):
        made[id(part)] = part
    elif isinstance(part, nn.Module) and is_dataclass(part) and not any(within):
        made[id(part)] = replace(part)
    else:
        for x in children(part).values():
            mark_shared(x, made)


def field_values(part: Any) -> list[Any]:
    """What a dataclass is made from."""
    return [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else []


# --- a user's own parts ---


def find_own_parts(value: Any) -> dict[str, type]:
    """The classes of a user's own parts that a recipe holds, however deep, by name."""
    kind, found = type(value), {}
    if isinstance(value, Part) and kind.__module__.split(".")[0] != "regard":
        if find_part(kind.__name__, "") is not None:
            raise ValueError(f"{kind.__name__} is the name of a built-in part; give yours another")
        refuse_hidden_arguments(kind)
        found[kind.__name__] = kind
    for held in (*children(value).values(), *field_values(value)):
        for name, one in find_own_parts(held).items():
            if found.setdefault(name, one) is not one:
                raise ValueError(f"two parts of your own are called {name}; rename one of them")
    return found


def refuse_hidden_arguments(kind: type) -> None:
    """Refuses a part that takes arguments and does not print them: its text would describe another part."""
    every = signature(kind).parameters.values()
    taken = [one.name for one in every if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if taken and not prints_arguments(kind):
        raise ValueError(f"{kind.__name__} does not print its {taken[0]}, so no text describes it; make it a dataclass")
