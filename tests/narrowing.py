"""Type narrowing: a value as the class that a test knows it to be; the test fails if it is another."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def assert_is_instance(value: object, kind: type[T]) -> T:
    assert isinstance(value, kind), f"a {type(value).__name__} instead of a {kind.__name__}"
    return value


def not_none(value: T | None) -> T:
    assert value is not None
    return value


def assert_all_instances(values: Iterable[object], kind: type[T]) -> list[T]:
    return [assert_is_instance(value, kind) for value in values]
