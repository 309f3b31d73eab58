"""What is the same kernel: one typed key for all that can change a binary (KEY-1).

Values are told apart by type as well as by value: 1, True and 1.0 differ, 0.0 and -0.0 differ, NaN is itself. The
digest of a key is the same in every process.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Key", "Typed", "typed"]

Typed: TypeAlias = tuple[Any, ...]


def typed(value: object) -> Typed:
    """Give a value as a hashable tuple that equals another exactly when type and value are the same.

    Raises
    ------
    TypeError
        A value whose equality cannot be known from its content.
    """
    kind = type(value)
    if value is None:
        return ("None",)
    if kind is bool or kind is int or kind is str or kind is bytes:
        return (kind.__name__, value)  # the name keeps True and 1 apart, which are equal and hash alike
    if kind is float:
        return ("float", "nan" if value != value else struct.pack("<d", value).hex())
    if kind is complex:
        return ("complex", typed(value.real), typed(value.imag))  # type: ignore[attr-defined]
    if isinstance(value, enum.Enum):
        return ("enum", kind.__module__, kind.__qualname__, value.name)
    if isinstance(value, np.generic):
        return ("numpy", value.dtype.str, value.tobytes().hex())
    if isinstance(value, (tuple, list)):
        fields = getattr(kind, "_fields", ())
        return (kind.__name__, fields, *(typed(item) for item in value))
    if isinstance(value, (dict, Mapping)):
        return ("dict", *sorted(((typed(k), typed(v)) for k, v in value.items()), key=repr))
    if isinstance(value, np.dtype):
        return ("numpy dtype", value.str)
    if isinstance(value, type):
        return ("type", value.__module__, value.__qualname__)
    if kind.__module__.startswith("triton.language"):
        if kind.__name__ == "constexpr":
            return ("constexpr", typed(value.value))  # type: ignore[attr-defined]
        if kind.__name__ == "dtype" or kind.__name__.endswith("_type"):
            return ("triton", kind.__name__, str(value))
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return ("torch dtype", str(value))
    if kind.__module__.startswith("gridpact.state") and kind.__name__ == "Source":
        return ("source", value.digest)  # type: ignore[attr-defined]
    raise TypeError(f"no identity for {kind.__name__}")


class Key:
    """The identity of a binary: named facts, hashable, with a digest that is the same in every process.

    Parameters
    ----------
    facts
        Name -> typed value: source, arguments with types and specialization classes, options after their defaults,
        target, toolchain, environment switches.
    """

    __slots__ = ("_digest", "_hash", "facts")

    def __init__(self, facts: tuple[tuple[str, Typed], ...]) -> None:
        self.facts = facts
        self._hash = hash(facts)
        self._digest = ""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.facts == other.facts

    @property
    def digest(self) -> str:
        """SHA-256 of the facts, in hexadecimal."""
        if not self._digest:
            self._digest = hashlib.sha256(repr(self.facts).encode()).hexdigest()
        return self._digest

    def difference(self, other: Key) -> list[str]:
        """Name the facts in which two keys differ."""
        mine, others = dict(self.facts), dict(other.facts)
        return [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
