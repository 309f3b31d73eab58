"""What a kernel reaches outside its parameters: helper functions and captured names, as Python means them.

A `Source` is one function with the values of all names that it mentions (closure cells before globals, as Python has
it); a name that holds a jitted helper holds that helper's own `Source`. The toolchain compiles from these values and
from nothing else, and their fingerprint is part of the kernel's identity, so that what was compiled in is what the
key says. The standard library of the kernel language (`triton.*`) is not walked: the toolchain's version stands for
it.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from gridpact.errors import ContractError, ContractTypeError
from gridpact.identity import Typed, typed

__all__ = ["ABSENT", "Captured", "Source", "is_constexpr", "jitted_function", "source_of", "text_of"]

ABSENT: Final = object()
_DEF: Final = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)
# Values that cannot change without becoming another object, so that identity proves them unchanged.
_IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), FunctionType, BuiltinFunctionType, ModuleType, type)


def jitted_function(value: object) -> FunctionType | None:
    """Give the Python function of a jitted helper (ours or Triton's), or None for anything else."""
    kind = type(value)
    if kind.__module__.startswith(("gridpact.jit", "triton.runtime.jit")):
        fn = getattr(value, "fn", None)
        return fn if isinstance(fn, FunctionType) else None
    return None


@dataclass(frozen=True)
class Text:
    """The text of a function without its decorators, and the dotted names that it reads from outside."""

    source: str
    names: tuple[tuple[str, ...], ...]


_texts: WeakKeyDictionary[FunctionType, Text] = WeakKeyDictionary()


def text_of(function: FunctionType) -> Text:
    """Read a function's text and the names that it reaches, once."""
    text = _texts.get(function)
    if text is None:
        text = _texts[function] = _read_text(function)
    return text


def _read_text(function: FunctionType) -> Text:
    code = function.__code__
    try:
        lines = textwrap.dedent(inspect.getsource(function))
        source = lines[_DEF.search(lines).start() :]  # type: ignore[union-attr]
        body: Any = ast.parse(source).body[0]
        parameters = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        is_its_own = isinstance(body, ast.FunctionDef) and body.name == code.co_name and _parameters(body) == parameters
    except (OSError, TypeError, AttributeError, SyntaxError, ValueError):
        is_its_own = False
    if not is_its_own:  # a prompt, exec, a lambda, or a file that is no longer what was imported
        raise ContractTypeError(
            f"kernel {function.__qualname__!r}",
            "its source text must be a def in a file",
            remedy="Kernels typed into a prompt or made by exec have none.",
            clause="KEY-1",
        )
    local = {*code.co_varnames, *code.co_cellvars}
    names = dict.fromkeys(path for node in body.body for path in _paths(node) if path[0] not in local)
    return Text(source, tuple(names))


def _parameters(body: ast.FunctionDef) -> list[str]:
    arguments = body.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _paths(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Give each dotted name read below a node, longest first: `a.b.c` gives ("a", "b", "c") and not its parts."""
    chain: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        chain.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
        yield (inner.id, *reversed(chain))
        return
    for child in ast.iter_child_nodes(node):
        yield from _paths(child)


@dataclass(frozen=True)
class Captured:
    """One value that a function reads from outside: where, what it was, and for a `tl.constexpr` what that held."""

    function: FunctionType
    path: tuple[str, ...]
    value: object
    held: object

    def is_same(self) -> bool:
        """Whether the name still holds the same object, and that object cannot have changed."""
        if _resolve(self.function, self.path) is not self.value:
            return False
        if self.value is ABSENT:
            return True
        if self.held is not ABSENT:
            return isinstance(self.held, _IMMUTABLE) and getattr(self.value, "value", None) is self.held
        return (
            isinstance(self.value, _IMMUTABLE)
            or jitted_function(self.value) is not None
            or type(self.value).__name__ == "dtype"
        )


def is_constexpr(value: object) -> bool:
    """Whether a value is a `tl.constexpr`, which holds another one, and may come to hold a third."""
    kind = type(value)
    return kind.__name__ == "constexpr" and kind.__module__.startswith("triton.language")


def _held(value: object) -> object:
    return getattr(value, "value", ABSENT) if is_constexpr(value) else ABSENT


class Source:
    """A function and all that it reaches, read at one moment.

    Attributes
    ----------
    function
        The plain Python function.
    text
        Its text without decorators.
    is_noinline
        Whether it was declared `noinline`.
    captured
        Dotted name -> value; the value of a name that holds a jitted helper is that helper's `Source`.
    """

    def __init__(self, function: FunctionType, is_noinline: bool = False) -> None:
        self.function = function
        self.is_noinline = is_noinline
        self.text = ""
        self.captured: dict[tuple[str, ...], Any] = {}
        self.reads: list[Captured] = []
        self.digest = ""

    def is_current(self) -> bool:
        """Whether all that was read still holds by identity alone; False means: read again (STATE-3)."""
        return all(read.is_same() for read in self.reads)


def source_of(function: FunctionType, is_noinline: bool = False) -> Source:
    """Read a kernel, its helpers and all captured values now."""
    return _read(function, is_noinline, {})


def _read(function: FunctionType, is_noinline: bool, seen: dict[FunctionType, Source]) -> Source:
    if function in seen:
        return seen[function]
    source = seen[function] = Source(function, is_noinline)
    text = text_of(function)
    source.text = text.source
    facts: list[Typed] = [typed(text.source), typed(is_noinline), typed(function.__name__)]
    for name, default in _defaults(function):
        facts += [typed(name), _fingerprint(function, ("default of", name), default)]
    for full in text.names:
        path, value = _reached(function, full)
        if path in source.captured:
            continue
        if value is ABSENT:  # a builtin, or not defined yet: it has no part in the identity until it is
            source.reads.append(Captured(function, path, ABSENT, ABSENT))
            continue
        source.reads.append(Captured(function, path, value, _held(value)))
        helper = jitted_function(value)
        if helper is not None and not helper.__module__.startswith("triton."):
            inner = _read(helper, bool(getattr(value, "noinline", False)), seen)
            source.captured[path] = inner
            source.reads += inner.reads
            facts += [typed(path), typed(inner.digest or "recursive")]
        else:
            source.captured[path] = value
            facts += [typed(path), _fingerprint(function, path, value)]
    source.digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    return source


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield parameter.name, parameter.default


def _scope(function: FunctionType, name: str) -> object:
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT
    return function.__globals__.get(name, ABSENT)


def _resolve(function: FunctionType, path: tuple[str, ...]) -> object:
    value = _scope(function, path[0])
    for attribute in path[1:]:
        value = getattr(value, attribute, ABSENT)
    return value


def _reached(function: FunctionType, full: tuple[str, ...]) -> tuple[tuple[str, ...], object]:
    """Follow a dotted name through modules, and stop at the language's own and at the first thing that is no module."""
    value = _scope(function, full[0])
    for depth, attribute in enumerate(full[1:], start=1):
        if not isinstance(value, ModuleType) or value.__name__.partition(".")[0] == "triton":
            return full[:depth], value
        value = getattr(value, attribute, ABSENT)
    return full, value


def _fingerprint(function: FunctionType, path: tuple[str, ...], value: object) -> Typed:
    if isinstance(value, ModuleType):
        return ("module", value.__name__)
    if isinstance(value, (type, BuiltinFunctionType)) or getattr(value, "__triton_builtin__", False):
        return ("name", getattr(value, "__module__", ""), getattr(value, "__qualname__", repr(value)))
    if getattr(builtins, path[0], ABSENT) is value:
        return ("builtin", path[0])
    helper = jitted_function(value)
    if helper is not None:  # of the language's own library
        return ("name", helper.__module__, helper.__qualname__)
    if isinstance(value, FunctionType):
        return ("function", value.__module__, value.__qualname__, value.__code__.co_code.hex())
    try:
        return typed(value)
    except TypeError as error:
        raise ContractError(
            f"{'.'.join(path)!r} captured by {function.__qualname__!r}",
            "expected a constexpr, a number, a string, a dtype, a tuple of these, a module or a jitted function",
            value,
            "Pass it as a parameter, or wrap its value in tl.constexpr.",
            "STATE-1",
        ) from error
