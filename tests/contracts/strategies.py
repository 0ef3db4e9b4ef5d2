"""Hypothesis strategies for every message, made from what msgspec knows of its fields."""

from functools import cache, reduce
from operator import or_
from typing import TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from volt.contracts.ids import ID_PATTERN

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
ITEMS_MAX = 2
TEXT_CHARS_MAX = 8

IDS = st.builds(
    str.__add__, st.sampled_from(["a", "z", "0", "9", "x" * 63]), st.sampled_from(["", "b", "-", "_", "7"])
) | st.builds(str.__add__, st.sampled_from(["n", "4"]), st.text("abcxyz0189_-", max_size=5))

M = TypeVar("M", bound=msgspec.Struct)


def messages(kind: type[M]) -> st.SearchStrategy[M]:
    """Any message of this type that keeps the bounds of its fields."""
    return _fields(kind).map(lambda values: kind(**values))


@cache
def _fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, object]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return st.fixed_dictionaries({field.name: _values(field.type) for field in info.fields})


def _values(info: inspect.Type) -> st.SearchStrategy[object]:
    match info:
        case inspect.StructType(cls=kind):
            return messages(kind)
        case inspect.StrType():
            return _texts(info)
        case inspect.IntType():
            return st.integers(INTEGER_MIN if info.ge is None else info.ge, INTEGER_MAX if info.le is None else info.le)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(max_size=20)
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=ITEMS_MAX).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=ITEMS_MAX)
        case inspect.UnionType(types=types):
            return reduce(or_, map(_values, types))
        case _:
            raise AssertionError(f"no strategy for {info}")


def _texts(info: inspect.StrType) -> st.SearchStrategy[str]:
    if info.pattern is not None:
        return IDS if info.pattern == ID_PATTERN else st.from_regex(info.pattern)
    # Lone surrogates are no text that JSON can carry.
    letters = st.characters(exclude_categories=["Cs"])
    return st.text(letters, min_size=info.min_length or 0, max_size=TEXT_CHARS_MAX)
