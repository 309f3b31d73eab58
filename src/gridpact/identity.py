"""What is the same kernel: one typed key for all that can change a binary (KEY-1), and how two keys differ (KEY-4).

Values are told apart by type as well as by value: 1, True and 1.0 differ, 0.0 and -0.0 differ, NaN is itself. A value
is read by its structure, so that neither its `==` nor its `hash` is asked. The digest of a key is the same in every
process, and names the binary in memory and on disk.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import struct
import sys
from collections.abc import Iterable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = [
    "LEAVES",
    "Change",
    "Key",
    "TooManyLeavesError",
    "Typed",
    "class_fact",
    "code_fact",
    "differences",
    "has_attributes",
    "is_of_library",
    "typed",
]

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
    return _typed_in(value, {})


def _typed_in(value: object, classes: dict[type, str]) -> Typed:
    try:
        return _typed(value, _Walk(classes))
    except RecursionError:
        raise TooManyLeavesError(f"no identity for a {type(value).__name__} that holds itself, or very deep") from None


@dataclasses.dataclass
class _Walk:
    """The reading of one value.

    Attributes
    ----------
    classes
        Digest of each class that was met; empty of one that is being read, which may hold objects of its own.
    left
        How many values may still come if any may change, so that one that holds itself comes to an end.
    may_change
        Whether any may.
    """

    classes: dict[type, str]
    left: int = dataclasses.field(default_factory=lambda: LEAVES)
    may_change: bool = False

    def count(self, leaves: int, *, may_change: bool) -> None:
        self.left -= leaves
        self.may_change = self.may_change or may_change
        if self.may_change and self.left < 0:
            raise TooManyLeavesError(f"at most {LEAVES} values that may change")


def _typed(value: Any, walk: _Walk) -> Typed:
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
        return ("enum", kind.__module__, kind.__qualname__, value.name, _plain_or_name(value._value_, walk.classes))
    if isinstance(value, np.generic):
        return ("numpy", value.dtype.str, value.tobytes().hex())
    if isinstance(value, np.dtype):
        return ("numpy dtype", value.str if value.fields is None else str(value.descr))
    if isinstance(value, type):
        content = () if is_of_library(value) else (_class_fact(value, walk.classes),)
        return ("type", value.__module__, value.__qualname__, *content)
    if kind.__module__.startswith("triton.language"):
        if kind.__name__ == "constexpr":
            return ("constexpr", _typed(value.value, walk))
        if kind.__name__ == "dtype" or kind.__name__.endswith("_type"):
            return ("triton", kind.__name__, str(value))
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return ("torch dtype", str(value))
    if kind.__module__.startswith("gridpact.state") and kind.__name__ == "Source":
        return ("source", value.digest)
    return _structure(value, kind, walk)


def _structure(value: Any, kind: type, walk: _Walk) -> Typed:
    if isinstance(value, (tuple, frozenset)):
        walk.count(1 + len(value), may_change=has_attributes(value))
        items = [_typed(item, walk) for item in value]
        in_order = items if isinstance(value, tuple) else sorted(items, key=repr)
        return (kind.__name__, _of_subclass(value, kind, walk), *in_order)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("no identity for an array of objects")
        walk.count(1 + value.size, may_change=True)
        return ("array", value.dtype.str, tuple(map(int, value.shape)), value.tobytes().hex())
    if isinstance(value, (list, set)):
        walk.count(1 + len(value), may_change=True)
        items = [_typed(item, walk) for item in value]
        in_order = items if isinstance(value, list) else sorted(items, key=repr)
        return (kind.__name__, _of_subclass(value, kind, walk), *in_order)
    if isinstance(value, (dict, Mapping)):
        walk.count(1 + len(value), may_change=True)
        return ("dict", *sorted(((_typed(k, walk), _typed(v, walk)) for k, v in value.items()), key=repr))
    slots = [name for base in kind.__mro__ for name in _slots(base)]
    if not dataclasses.is_dataclass(value) and (slots or kind.__basicsize__ != _Plain.__basicsize__):
        raise TypeError(f"no identity for {kind.__name__}")
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    state.update(getattr(value, "__dict__", {}))
    walk.count(1 + len(state), may_change=True)
    fields = ((name, _typed(item, walk)) for name, item in sorted(state.items()))
    return ("object", kind.__module__, kind.__qualname__, _class_fact(kind, walk.classes), *fields)


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def has_attributes(value: object) -> bool:
    """Whether a container can have attributes beside what it contains: one of a class of its own."""
    return bool(type(value).__dictoffset__)


def _of_subclass(value: Any, kind: type, walk: _Walk) -> Typed:
    """Give what else is in a container of a class of its own: names of items, attributes, methods."""
    if kind in (tuple, frozenset, list, set):
        return ()
    attributes = ((name, _typed(item, walk)) for name, item in sorted(getattr(value, "__dict__", {}).items()))
    return (*getattr(kind, "_fields", ()), _class_fact(kind, walk.classes), *attributes)


class _Plain:
    """As large as an object is that keeps all of its state in `__dict__`."""


def is_of_library(kind: type) -> bool:
    """Whether a class does not change: of the standard library, or of one whose version is part of the toolchain."""
    package = kind.__module__.partition(".")[0]
    return package in sys.stdlib_module_names or package in ("numpy", "torch", "triton")


def class_fact(kind: type) -> str:
    """Give a digest of what is in a class, functions and values: kernels may use it while they are compiled."""
    return _class_fact(kind, {})


def _class_fact(kind: type, classes: dict[type, str]) -> str:
    if kind not in classes:
        classes[kind] = ""
        facts = []
        for base in kind.__mro__[:-1]:
            for name, item in sorted(vars(base).items()):
                function = _function_of(item)
                if isinstance(function, FunctionType):
                    facts.append((base.__qualname__, name, code_fact(function)))
                elif not name.startswith("__"):  # Python enters notes of its own there, when an object is copied, say
                    facts.append((base.__qualname__, name, _plain_or_name(item, classes)))
        classes[kind] = _digest(facts)
    return classes[kind]


def _function_of(item: Any) -> object:
    """Give the function behind an entry of a class: a method of any kind, a property, or jitted."""
    if isinstance(item, property):
        return item.fget
    if isinstance(item, functools.cached_property):
        return item.func
    return getattr(item, "fn", getattr(item, "__func__", item))


def code_fact(function: FunctionType) -> Typed:
    """Give what a plain Python function does by itself: its code, its defaults and its closure, not what it reaches."""
    return ("code", _digest(_code_fact(function, ())))


def _code_fact(function: FunctionType, outer: tuple[FunctionType, ...]) -> Typed:
    defaults = (function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items())))
    cells = tuple(_cell_fact(cell, (*outer, function)) for cell in function.__closure__ or ())
    return (_code(function.__code__), _plain_or_name(defaults), *cells)


def _cell_fact(cell: CellType, outer: tuple[FunctionType, ...]) -> Typed:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return ()
    if isinstance(value, FunctionType):
        return ("itself",) if value in outer else _code_fact(value, outer)
    return ("name", value.__module__, value.__qualname__) if isinstance(value, type) else _plain_or_name(value)


def _code(code: CodeType) -> Typed:
    constants = tuple(_code(item) if isinstance(item, CodeType) else _plain_or_name(item) for item in code.co_consts)
    return (code.co_name, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants)


def _plain_or_name(value: object, classes: dict[type, str] | None = None) -> Typed:
    try:
        return _typed_in(value, {} if classes is None else classes)
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
        return str(np.frombuffer(bytes.fromhex(rest[1]), rest[0])[0]) if np.dtype(rest[0]).itemsize else "empty"
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
