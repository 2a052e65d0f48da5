"""Measurements as strict JSON, exactly: data classes of numbers, texts, lists, tables and arrays, read by their types.

An array is its dtype, shape and little-endian bytes in base64; floats elsewhere round-trip, with tags for what JSON has
no word for. Nothing in a file says what to build: reading follows the annotations of the class that is asked for, and
anything that does not fit them is refused.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from quantaudit.core.serial import Json, to_strict

T = TypeVar("T")
_TAGS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DTYPES: dict[np.dtype[Any], str] = {np.dtype(np.float64): "<f8", np.dtype(np.int64): "<i8"}


class ArchiveError(ValueError):
    """Says that stored data do not fit the class they are read as."""


def freeze(value: object) -> Json:
    """Returns the JSON of a data class whose fields are numbers, texts, arrays, lists, tables or such classes.

    Raises:
        ArchiveError: If something else is in it.
    """
    if isinstance(value, np.ndarray):
        if value.dtype not in _DTYPES:
            raise ArchiveError(f"an array of {value.dtype} has no stored form")
        data = np.ascontiguousarray(value).astype(_DTYPES[value.dtype]).tobytes()
        return {"shape": list(value.shape), "data": base64.b64encode(data).decode("ascii")}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: freeze(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(key): freeze(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [freeze(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return to_strict(value)
    raise ArchiveError(f"{type(value).__name__} has no stored form")


def thaw(kind: type[T], stored: Json) -> T:
    """Returns what `freeze` stored, as the data class it was.

    Raises:
        ArchiveError: If it does not fit.
    """
    return cast(T, _thaw(kind, stored))


def _thaw(kind: object, stored: Json) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is np.ndarray:
        return _array(np.dtype(get_args(arguments[1])[0]), stored)
    if isinstance(kind, type) and is_dataclass(kind):
        return _data_class(kind, stored)
    if origin is list and isinstance(stored, list):
        return [_thaw(arguments[0], item) for item in stored]
    if origin in (dict, Mapping) and isinstance(stored, dict):
        return {_key(arguments[0], key): _thaw(arguments[1], item) for key, item in stored.items()}
    if kind is float and isinstance(stored, str) and stored in _TAGS:
        return _TAGS[stored]
    if kind is float and type(stored) in (int, float):
        return float(cast(float, stored))
    if kind in (int, str, bool) and type(stored) is kind:
        return stored
    raise ArchiveError(f"{str(stored):.40} is no {kind}")


def _data_class(kind: type, stored: Json) -> object:
    names = [field.name for field in fields(kind) if field.init]
    if not isinstance(stored, dict) or sorted(stored) != sorted(names):
        raise ArchiveError(f"these are not the fields of {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: _thaw(hints[name], stored[name]) for name in names})


def _key(kind: object, text: str) -> str | int:
    if kind is str:
        return text
    if kind is int and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    raise ArchiveError(f"{text:.40} is no key")


def _array(dtype: np.dtype[np.generic], stored: Json) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    if not isinstance(stored, dict) or sorted(stored) != ["data", "shape"] or dtype not in _DTYPES:
        raise ArchiveError("this is no array")
    shape, data = stored["shape"], stored["data"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ArchiveError("an array without a shape")
    if not isinstance(data, str):
        raise ArchiveError("an array without data")
    sizes = [cast(int, size) for size in shape]
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ArchiveError("an array that is not base64") from None
    if len(content) != math.prod(sizes) * dtype.itemsize:
        raise ArchiveError("an array whose data do not fill its shape")
    return np.frombuffer(content, dtype=_DTYPES[dtype]).reshape(sizes).astype(dtype)
