"""What is the same kernel: one typed key for all that can change a binary (KEY-1), and how two keys differ (KEY-4).

Values are told apart by type as well as by value: 1, True and 1.0 differ, 0.0 and -0.0 differ, NaN is itself. A value
is read by its structure, so that neither its `==` nor its `hash` is asked. The digest of a key is the same in every
process, and names the binary in memory and on disk.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = ["LEAVES", "Change", "Key", "TooManyLeavesError", "Typed", "class_fact", "code_fact", "differences", "typed"]

Typed: TypeAlias = tuple[Any, ...]

LEAVES: Final = 1024
"""Most values in one mutable value, containers among them (STATE-3)."""


class TooManyLeavesError(TypeError):
    """A value that may change has more than `LEAVES` values in it, or holds itself."""


def typed(value: object) -> Typed:
    """Give a value as a hashable tuple that equals another exactly when type and value are the same.

    Nothing but strings, bytes, whole numbers, booleans and tuples is in it, so that its `repr` is the same everywhere.

    Raises
    ------
    TooManyLeavesError
        A value that may change, and is too large to be looked at again and again.
    TypeError
        A value whose equality cannot be known from its content.
    """
    try:
        return _typed(value, [LEAVES])
    except RecursionError:
        raise TooManyLeavesError(f"no identity for a {type(value).__name__} that holds itself, or very deep") from None


def _typed(value: Any, left: list[int]) -> Typed:
    """Read a value; `left` counts down over all of a mutable one, so that one that holds itself comes to an end."""
    kind = type(value)
    if value is None:
        return ("None",)
    if kind is int and value.bit_length() > 64:
        return ("int", f"{value:#x}")  # Python writes no decimal number of any length
    if kind is bool or kind is int or kind is str or kind is bytes:
        return (kind.__name__, value)  # the name keeps True and 1 apart, which are equal and hash alike
    if kind is float:
        return ("float", "nan" if value != value else struct.pack("<d", value).hex())
    if kind is complex:
        return ("complex", typed(value.real), typed(value.imag))
    if isinstance(value, enum.Enum):
        return ("enum", kind.__module__, kind.__qualname__, value.name)
    if isinstance(value, np.generic):
        return ("numpy", value.dtype.str, value.tobytes().hex())
    if isinstance(value, np.dtype):
        return ("numpy dtype", value.str)
    if isinstance(value, type):
        return ("type", value.__module__, value.__qualname__)
    if kind.__module__.startswith("triton.language"):
        if kind.__name__ == "constexpr":
            return ("constexpr", _typed(value.value, left))
        if kind.__name__ == "dtype" or kind.__name__.endswith("_type"):
            return ("triton", kind.__name__, str(value))
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return ("torch dtype", str(value))
    if kind.__module__.startswith("gridpact.state") and kind.__name__ == "Source":
        return ("source", value.digest)
    return _structure(value, kind, left)


def _structure(value: Any, kind: type, left: list[int]) -> Typed:
    if isinstance(value, tuple):
        fields = getattr(kind, "_fields", ())
        return (kind.__name__, fields, *(_typed(item, left) for item in value))
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("no identity for an array of objects")
        _count(left, 1 + value.size)
        return ("array", value.dtype.str, tuple(map(int, value.shape)), value.tobytes().hex())
    if isinstance(value, (list, set, frozenset)):
        _count(left, 1 + len(value))
        items = [_typed(item, left) for item in value]
        return (kind.__name__, (), *(items if isinstance(value, list) else sorted(items, key=repr)))
    if isinstance(value, (dict, Mapping)):
        _count(left, 1 + len(value))
        return ("dict", *sorted(((_typed(k, left), _typed(v, left)) for k, v in value.items()), key=repr))
    if dataclasses.is_dataclass(value):
        state = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif kind.__basicsize__ == _Plain.__basicsize__:
        state = vars(value)
    else:
        raise TypeError(f"no identity for {kind.__name__}")
    _count(left, 1 + len(state))
    fields = ((name, _typed(item, left)) for name, item in sorted(state.items()))
    return ("object", kind.__module__, kind.__qualname__, class_fact(kind), *fields)


class _Plain:
    """As large as an object is that keeps all of its state in `__dict__`."""


def _count(left: list[int], leaves: int) -> None:
    left[0] -= leaves
    if left[0] < 0:
        raise TooManyLeavesError(f"at most {LEAVES} values that may change")


def class_fact(kind: type) -> str:
    """Give a digest of what is in a class, functions and values: kernels may use it while they are compiled."""
    facts = []
    for base in kind.__mro__[:-1]:
        for name, item in sorted(vars(base).items()):
            function = getattr(item, "fn", getattr(item, "__func__", item))  # jitted, or a static method
            if isinstance(function, FunctionType):
                facts.append((base.__qualname__, name, code_fact(function)))
            elif not name.startswith("__"):  # Python enters notes of its own there, when an object is copied, say
                facts.append((base.__qualname__, name, _plain_or_name(item)))
    return _digest(facts)


def code_fact(function: FunctionType) -> Typed:
    """Give what a plain Python function does by itself: its code and its defaults, not what it reaches."""
    defaults = (function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items())))
    return ("code", _digest((_code(function.__code__), _plain_or_name(defaults))))


def _code(code: CodeType) -> Typed:
    constants = tuple(_code(item) if isinstance(item, CodeType) else _plain_or_name(item) for item in code.co_consts)
    return (code.co_name, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants)


def _plain_or_name(value: object) -> Typed:
    try:
        return typed(value)
    except TypeError:
        return ("name of type", type(value).__qualname__)


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class Key:
    """The identity of a binary: named facts, hashable, with a digest that is the same in every process.

    Parameters
    ----------
    facts
        Name -> typed value: source, helpers and captured values, arguments with types and specialization classes,
        options after their defaults, target, toolchain, environment switches.
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
            self._digest = _digest(self.facts)
        return self._digest

    def difference(self, other: Key) -> list[str]:
        """Name the facts in which two keys differ."""
        return [change.name for change in differences(other.facts, self.facts)]


# --------------------------------------------------------------------------------------------------- what differs


@dataclasses.dataclass(frozen=True)
class Change:
    """One fact in which two keys differ, as `str` tells it: `constexpr BLOCK: 128 -> 128.0 (int -> float)`.

    Attributes
    ----------
    name
        Of the fact: `argument n`, `constexpr BLOCK`, `option num_warps`, `captured K`, `helper f`, `source`, ...
    before, after
        Its typed values; None where there is no such fact.
    """

    name: str
    before: Typed | None
    after: Typed | None

    def __str__(self) -> str:
        kind = self.name.partition(" ")[0]
        if self.name == "source" or kind == "helper":
            is_edited = self.before is not None and self.after is not None
            return f"{self.name} {'edited' if is_edited else 'new' if self.after else 'no longer reached'}"
        if kind == "argument":
            return f"{self.name}: {_class_change(self.before, self.after)}"
        if kind == "environment" and self.before is not None and self.after is not None:
            before, after = dict(self.before), dict(self.after)
            names = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
            return ", ".join(
                f"{kind} {name}: {before.get(name, 'unset')} -> {after.get(name, 'unset')}" for name in names
            )
        return f"{self.name}: {_told(self.before)} -> {_told(self.after)}{_types(self.before, self.after)}"


def differences(before: Iterable[tuple[str, Typed]], after: Iterable[tuple[str, Typed]]) -> list[Change]:
    """Give the facts in which two keys differ, in their order."""
    old, new = dict(before), dict(after)
    return [Change(name, old.get(name), new.get(name)) for name in {**new, **old} if old.get(name) != new.get(name)]


def _class_change(before: Typed | None, after: Typed | None) -> str:
    """Say in which classes the values of an argument were, and why the earlier binary does not serve."""
    old, new = _class_of(before), _class_of(after)
    if old[0] == new[0] and len(old) == len(new) == 2:
        return f"{new[1]} (was not)" if new[1] else f"not {old[1]}"
    return f"{' '.join(filter(None, old))} -> {' '.join(filter(None, new))}"


def _class_of(fact: Typed | None) -> tuple[str, ...]:
    if fact is None:
        return ("absent",)
    if fact[0] == "constexpr":
        return ("equal to 1",) if fact[1] == ("int", 1) else (_told(fact[1]),)
    if len(fact) == 2 and isinstance(fact[1], bool):
        return (fact[0], "divisible by 16" if fact[1] else "")
    return ("(" + ", ".join(" ".join(filter(None, _class_of(item))) for item in fact[1:]) + ")",)


def _types(before: Typed | None, after: Typed | None) -> str:
    """Name the types where values of two types may look alike."""
    if before is None or after is None:
        return ""
    before, after = (fact[1] if fact[0] == "constexpr" else fact for fact in (before, after))
    return f" ({before[0]} -> {after[0]})" if before[0] != after[0] else ""


def _told(fact: Typed | None) -> str:
    """Give a typed value as a person would write it."""
    if fact is None:
        return "absent"
    kind, rest = fact[0], fact[1:]
    if kind == "None":
        return "None"
    if kind in ("bool", "int", "str", "bytes"):
        return rest[0] if kind == "int" and isinstance(rest[0], str) else repr(rest[0])
    if kind == "float":
        return "nan" if rest[0] == "nan" else repr(struct.unpack("<d", bytes.fromhex(rest[0]))[0])
    if kind == "constexpr":
        return _told(rest[0])
    if kind == "enum":
        return f"{rest[1]}.{rest[2]}"
    if kind == "numpy":
        return str(np.frombuffer(bytes.fromhex(rest[1]), rest[0])[0])
    if kind == "dict":
        return "{" + ", ".join(f"{_told(key)}: {_told(value)}" for key, value in rest) + "}"
    if kind == "array":
        return f"array of {rest[1]}, {_digest(rest[2])[:8]}"
    if kind == "object":
        return f"{rest[1]}({', '.join(f'{name}={_told(item)}' for name, item in rest[3:])})"
    if kind in ("source", "code", "large"):
        return f"{' '.join((kind, *rest[:-1]))} {rest[-1][:8]}"
    if rest and isinstance(rest[0], tuple) and all(isinstance(item, tuple) for item in rest[1:]):
        items = ", ".join(map(_told, rest[1:]))
        return f"[{items}]" if kind == "list" else f"({items})" if kind == "tuple" else f"{kind}({items})"
    return " ".join(map(str, rest)) or kind
