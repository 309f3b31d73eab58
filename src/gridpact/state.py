"""What a kernel reaches outside its parameters: helper functions and captured names, as Python means them.

A `Source` is one function with the values of all names that it mentions (closure cells before globals, as Python has
it); a name that holds a jitted helper holds that helper's own `Source`. The toolchain compiles from these values and
from nothing else, and each is a fact of the kernel's identity, by value and type, so that what was compiled in is what
the key says. The standard library of the kernel language (`triton.*`) is not walked: the toolchain's version stands
for it.
"""

from __future__ import annotations

import ast
import builtins
import enum
import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from gridpact.errors import ContractTypeError, ContractValueError, LaunchError
from gridpact.identity import TooManyLeavesError, Typed, class_fact, code_fact, has_attributes, is_of_library, typed

__all__ = [
    "ABSENT",
    "Captured",
    "Source",
    "is_constexpr",
    "jitted_function",
    "source_of",
    "text_of",
    "uncompiled_source",
]

ABSENT: Final = object()
_DEFAULT: Final = "default of"  # begins the path of a parameter's default, as no name can
_LARGE: Final = 4096  # characters of a captured value's fact, which each look-up of a key would walk
_DEF: Final = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)
# Types of values that cannot change without becoming another object, so that identity proves them unchanged.
_IMMUTABLE: Final = (
    int, float, complex, str, bytes, bool, type(None), FunctionType, BuiltinFunctionType, ModuleType, enum.Enum,
    np.generic, np.dtype,
)  # fmt: skip


def jitted_function(value: object) -> FunctionType | None:
    """Give the Python function behind a jitted helper (ours or Triton's), or None for anything else."""
    if type(value).__module__.startswith(("gridpact.jit", "triton.runtime.jit")):
        function = getattr(value, "fn", None)
        return function if isinstance(function, FunctionType) else None
    return None


def _helper(reader: FunctionType, value: object) -> FunctionType | None:
    """Give the function behind a captured value, if its own text is part of the kernel: not of the language's library.

    A plain function, which Python runs while a kernel is compiled, is one where it is of the same package.
    """
    function = jitted_function(value)
    if function is not None:
        return None if function.__module__.startswith("triton.") else function
    if isinstance(value, FunctionType) and _package(value) == _package(reader) and not _is_builtin_of_triton(value):
        return value if _has_text(value) else None
    return None


def _package(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _has_text(function: FunctionType) -> bool:
    try:
        text_of(function)
    except ContractTypeError:
        return False
    return True


def _is_builtin_of_triton(value: object) -> bool:
    """Whether a function is a word of the language, whose meaning the toolchain's version stands for."""
    return getattr(value, "__triton_builtin__", False) is True


def _is_immutable(value: object) -> bool:
    """Whether identity proves a value unchanged, all that is in it too."""
    if isinstance(value, (tuple, frozenset)):
        return not has_attributes(value) and all(map(_is_immutable, value))
    if isinstance(value, type):
        return is_of_library(value)
    if isinstance(value, _IMMUTABLE) or jitted_function(value) is not None:
        return not isinstance(value, np.void)
    return (type(value).__name__ == "dtype" and is_of_library(type(value))) or _is_builtin_of_triton(value)


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


def _paths(node: ast.AST, own: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Give each dotted name read below a node, longest first: `a.b.c` gives ("a", "b", "c") and not its parts.

    `own` are names of comprehensions around it, which are nobody else's.
    """
    chain: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        chain.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
        if inner.id not in own:
            yield (inner.id, *reversed(chain))
        return
    for comprehension in getattr(node, "generators", ()):
        own |= {each.id for each in ast.walk(comprehension.target) if isinstance(each, ast.Name)}
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, own)


@dataclass
class Captured:
    """One value that a function reads from outside.

    Attributes
    ----------
    function, path
        Where: the function, and the dotted name in it, or the parameter whose default it is.
    value, held
        What was there, and for a `tl.constexpr` what that held; `ABSENT` for nothing.
    fact
        What the value was, by value and type.
    is_immutable
        Whether the identity of the value, or of the held one, proves it unchanged.
    is_live
        Whether a function reads it that Python runs while the kernel is compiled.
    """

    function: FunctionType
    path: tuple[str, ...]
    value: object
    held: object
    fact: Typed
    is_immutable: bool
    is_live: bool

    @property
    def is_default(self) -> bool:
        """Whether it is the default of a helper's parameter."""
        return self.path[0] == _DEFAULT

    def is_identical(self) -> bool:
        """Whether the name still holds the same object, and that object cannot have changed: O(1) (STATE-3)."""
        if not self.is_immutable or _resolve(self.function, self.path) is not self.value:
            return False
        return self.held is ABSENT or getattr(self.value, "value", None) is self.held

    def is_same(self) -> bool:
        """Whether the name still holds the same value of the same type; its own `==` is not asked (STATE-2)."""
        if self.is_identical():
            return True
        now = _resolve(self.function, self.path)
        if now is ABSENT or self.value is ABSENT or _helper(self.function, now) or _helper(self.function, self.value):
            return False  # what a helper is, its name does not tell
        if _fact_of(self.function, self.path, now) != self.fact:
            return False
        # Identity proves the copy from now on.
        self.__dict__ = _capture(self.function, self.path, now, self.fact, self.is_live).__dict__
        return True

    def was_steady(self) -> bool:
        """Whether a compiler that was given the value has seen what its fact says, whatever its name means by now."""
        if self.is_live:
            return self.is_same()
        if self.is_immutable:
            return self.held is ABSENT or getattr(self.value, "value", None) is self.held
        return _fact_of(self.function, self.path, self.value) == self.fact


def is_constexpr(value: object) -> bool:
    """Whether a value is a `tl.constexpr`, which holds another one, and may come to hold a third."""
    kind = type(value)
    return kind.__name__ == "constexpr" and kind.__module__.startswith("triton.language")


def _held(value: object) -> object:
    return getattr(value, "value", ABSENT) if is_constexpr(value) else ABSENT


def _capture(function: FunctionType, path: tuple[str, ...], value: object, fact: Typed, is_live: bool) -> Captured:
    held = _held(value)
    is_immutable = value is ABSENT or _is_immutable(value if held is ABSENT else held)
    return Captured(function, path, value, held, fact, is_immutable, is_live)


class Source:
    """A function and all that it reaches, read at one moment.

    Attributes
    ----------
    function
        The plain Python function.
    text
        Its text without decorators.
    jitted
        The object that holds it, with its options `noinline` and others; the function itself where nothing does.
    captured
        Dotted name -> value; the value of a name that holds a jitted helper is that helper's `Source`.
    reads
        Every name that it and its helpers read, with what was there.
    facts
        The part of a key that the function and all that it reaches make: `source`, `captured K`, `helper f`, ...
    digest
        Of the facts.
    """

    def __init__(self, function: FunctionType, jitted: object) -> None:
        self.function = function
        self.jitted = jitted
        self.text = ""
        self.captured: dict[tuple[str, ...], Any] = {}
        self.reads: list[Captured] = []
        self.facts: tuple[tuple[str, Typed], ...] = ()
        self.digest = ""

    @property
    def is_noinline(self) -> bool:
        """Whether it was declared `noinline`."""
        return bool(getattr(self.jitted, "noinline", False))

    @property
    def is_run_by_compiler(self) -> bool:
        """Whether Python runs it while a kernel is compiled: a plain function, or a `triton.constexpr_function`."""
        return self.jitted is self.function or type(self.jitted).__name__ == "ConstexprFunction"

    def is_current(self) -> bool:
        """Whether all that was read still holds; what identity proves costs O(1) a name (STATE-3)."""
        try:
            return all(read.is_same() for read in self.reads)
        except Exception:  # of the value's own code, or it has no identity any more: who reads it again says so
            return False

    def was_steady(self) -> bool:
        """Whether the compiler has seen what the facts say: nothing that it was given changed meanwhile."""
        try:
            return all(read.was_steady() for read in self.reads)
        except Exception:  # as above
            return False


def source_of(jitted: object) -> Source:
    """Read a kernel, its helpers and all captured values now.

    Parameters
    ----------
    jitted
        A plain function, or what `gridpact.jit` or Triton made of one.

    Raises
    ------
    ContractError
        KEY-1: no source text. STATE-1: a captured value whose identity cannot be known. STATE-3: one that may change
        and has more values in it than are looked at.
    """
    return _read(jitted, "", {})


def uncompiled_source(function: FunctionType) -> Source:
    """Give a kernel that Python itself runs, and that reads its captured names as it goes."""
    source = Source(function, function)
    source.facts = (("source", _text_fact(source)),)
    return source


def _text_fact(source: Source) -> Typed:
    text = hashlib.sha256(text_of(source.function).source.encode()).hexdigest()
    return ("text", source.function.__name__, text, source.is_noinline)


def _read(jitted: Any, trail: str, seen: dict[FunctionType, Source]) -> Source:
    """Read one function; `trail` is how the kernel reaches it, and makes the names of its facts its own."""
    function = jitted_function(jitted) or jitted
    if function in seen:
        return seen[function]
    source = seen[function] = Source(function, jitted)
    text = text_of(function)
    source.text = text.source
    of = f" of {trail}" if trail else ""
    is_live = source.is_run_by_compiler and bool(trail)
    facts: list[tuple[str, Typed]] = [(f"helper {trail}" if trail else "source", _text_fact(source))]
    for name in _with_defaults(function):
        where = (_DEFAULT, name)
        value = _resolve(function, where)
        fact = _fact_of(function, where, value)
        facts.append((f"default of {name}{of}", fact))
        if trail:  # a kernel's own are among its arguments
            source.reads.append(_capture(function, where, value, fact, is_live))
    for full in text.names:
        path, value, helper, fact = _look(function, full)
        if path in source.captured:
            continue
        if value is ABSENT:  # a builtin, or not defined yet: it has no part in the identity until it is
            source.reads.append(_capture(function, path, ABSENT, (), is_live))
            continue
        name = ".".join(path)
        source.reads.append(_capture(function, path, value, fact, is_live))
        if helper is None:
            source.captured[path] = value
            facts.append((f"captured {name}{of}", fact))
        elif helper in seen:  # its facts are there by the first name that reached it
            inner = source.captured[path] = seen[helper]
            facts.append((f"captured {name}{of}", ("source", inner.digest or "recursive")))
        else:
            inner = source.captured[path] = _read(value, f"{trail}.{name}" if trail else name, seen)
            source.reads += inner.reads
            facts += inner.facts
    source.facts = tuple(facts)
    source.digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    return source


def _look(function: FunctionType, full: tuple[str, ...]) -> tuple[tuple[str, ...], object, FunctionType | None, Typed]:
    """Give what a dotted name leads to: how far it was followed, the value, whether it is a helper, else its fact."""
    try:
        path, value = _reached(function, full)
        helper = None if value is ABSENT else _helper(function, value)
        return path, value, helper, () if helper or value is ABSENT else _fact_of(function, path, value)
    except LaunchError:
        raise
    except Exception as error:  # of the value's own code: `__getattr__`, `__class__`, `__len__`, ...
        rule, told = "expected a value that can be read", f"{type(error).__name__}: {error}"
        raise ContractTypeError(
            _captured_by(function, full), rule, told, "Pass it as a parameter.", "STATE-1"
        ) from error


def _with_defaults(function: FunctionType) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield parameter.name


def _default(function: FunctionType, name: str) -> object:
    by_name = function.__kwdefaults__ or {}
    if name in by_name:
        return by_name[name]
    defaults, code = function.__defaults__ or (), function.__code__
    index = code.co_varnames.index(name) - code.co_argcount + len(defaults)
    return defaults[index] if 0 <= index < len(defaults) else ABSENT


def _scope(function: FunctionType, name: str) -> object:
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT
    return function.__globals__.get(name, ABSENT)


def _resolve(function: FunctionType, path: tuple[str, ...]) -> object:
    if path[0] == _DEFAULT:
        return _default(function, path[1])
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


def _fact_of(function: FunctionType, path: tuple[str, ...], value: object) -> Typed:
    """Give a captured value by value and type; a function of the language's library by its name."""
    if isinstance(value, ModuleType):
        return ("module", value.__name__)
    if isinstance(value, type) and not is_of_library(value):
        return ("class", value.__module__, value.__qualname__, class_fact(value))
    if isinstance(value, type) or _is_function_in_c(value) or _is_builtin_of_triton(value):
        return ("name", getattr(value, "__module__", ""), getattr(value, "__qualname__", repr(value)))
    if getattr(builtins, path[0], ABSENT) is value:
        return ("builtin", path[0])
    of_library = jitted_function(value)
    if of_library is not None:
        return ("name", of_library.__module__, of_library.__qualname__)
    if isinstance(value, FunctionType):
        return code_fact(value)
    try:
        fact = typed(value)
        text = repr(fact)
        return fact if len(text) < _LARGE else ("large", fact[0], hashlib.sha256(text.encode()).hexdigest())
    except TooManyLeavesError as error:
        raise ContractValueError(
            _captured_by(function, path), str(error), value, "Capture less of it, or a tuple.", "STATE-3"
        ) from error
    except TypeError as error:
        raise ContractTypeError(
            _captured_by(function, path),
            "expected a constexpr, a number, a string, a dtype, a container or plain object of these, a module or a "
            "jitted function",
            value,
            "Pass it as a parameter, or wrap its value in tl.constexpr.",
            "STATE-1",
        ) from error


def _is_function_in_c(value: object) -> bool:
    """Whether a value is a function written in C, and no method of an object that may change."""
    return isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type, type(None)))


def _captured_by(function: FunctionType, path: tuple[str, ...]) -> str:
    if path[0] == _DEFAULT:
        return f"default of {path[1]!r} of {function.__qualname__!r}"
    return f"{'.'.join(path)!r} captured by {function.__qualname__!r}"
