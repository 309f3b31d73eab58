"""The launches of a case, written down as a program: what a finding shows, anybody can run by hand."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np

__all__ = ["Language", "Script"]

_MOST_LAUNCHES: Final = 24
_ALIGNMENT: Final = 16


@dataclass(frozen=True)
class Language:
    """How a subject's programs are written.

    Attributes
    ----------
    head
        Lines before everything: imports, and what makes the launcher ready.
    jit
        What makes a kernel of a function: `triton.jit`.
    tensor
        A tensor of a NumPy array, `{}`.
    finish
        Lines after a launch: they wait for it, or print what it came to.
    hooks
        Lines that register `enter` and `exit` as launch hooks, and those that remove them.
    """

    head: str = ""
    jit: str = "triton.jit"
    tensor: str = "{}"
    finish: str = ""
    hooks: tuple[str, str] = ("", "")


class Script:
    """A program in the making.

    Attributes
    ----------
    line
        The last launch, in a line.
    """

    def __init__(self, language: Language, kept: Path | None = None) -> None:
        self._language = language
        self._kept = kept  # a file that outlives the process, should a launch kill it
        self._parts: list[str] = []
        self._kernels: dict[int, tuple[str, Any]] = {}  # id -> name, and the kernel itself, to keep its id
        self._results: dict[int, tuple[int, Any]] = {}  # id of what a launch gave back -> its part
        self._expected: dict[int, tuple[Any, FunctionType, Mapping[str, Any]]] = {}
        self._memory: dict[str, Any] = {}
        self._launches = 0
        self._together: list[str] | None = None  # launches that are made at once
        self._streams: dict[int, tuple[str, Any]] = {}  # id -> name, and the stream itself, to keep its id
        self._inside: list[str] = []  # heads of the blocks that a launch is in now
        self._blocks: dict[int, list[str]] = {}  # part -> heads of the blocks that it is in
        self._at = 0  # the part that is the last launch
        self.line = ""

    @property
    def text(self) -> str:
        """The program."""
        if not self._parts:
            return ""
        has_floats = any(isinstance(a, np.ndarray) and a.dtype.kind == "f" for a in self._memory.values())
        body = "\n".join(_in_blocks(part, self._blocks.get(at, [])) for at, part in enumerate(self._parts))
        before = [
            *(["np.set_printoptions(precision=17)"] if has_floats else []),
            *(["from math import inf, nan"] if re.search(r"\b(inf|nan)\b", body) else []),
        ]
        return "\n".join([self._language.head.rstrip(), *before, "", body]).rstrip() + "\n"

    def write(self, text: str) -> None:
        """Write lines of one's own."""
        self._parts.append(text.rstrip())

    def constant(self, name: str, value: Any) -> None:
        """Write an assignment of a value that kernels capture."""
        self._parts.append(f"{name} = {_constant_text(value)}")

    # ------------------------------------------------------------------------------------------------------- kernels

    def expect(self, kernel: Any, source: FunctionType, options: Mapping[str, Any]) -> None:
        """Keep what a kernel is made of: it is written when it is launched."""
        self._expected[id(kernel)] = (kernel, source, options)

    def _name(self, kernel: Any, source: FunctionType) -> str:
        """Name a kernel, or what an earlier launch gave back; written before if it was not yet."""
        at, result = self._results.get(id(kernel), (0, None))
        if result is kernel:
            if not self._parts[at].startswith("compiled = "):
                self._parts[at] = f"compiled = {self._parts[at]}"
            return "compiled"
        name, known = self._kernels.get(id(kernel), ("", None))
        return name if known is kernel else self._define(kernel, source)

    def _define(self, kernel: Any, source: FunctionType) -> str:
        expected, function, options = self._expected.get(id(kernel), (None, source, {}))
        function = function if expected is kernel else source
        name = function.__name__
        for other, (before, held) in list(self._kernels.items()):
            if before == name:  # another kernel of the same function: it keeps a name of its own
                kept = f"{name}_{len(self._kernels)}"
                self._parts.append(f"{kept} = {name}")
                self._kernels[other] = (kept, held)
        for captured, value in inspect.getclosurevars(function).globals.items():
            is_constant = hasattr(value, "value") or not callable(value)  # a constexpr passes calls on
            if is_constant and not isinstance(value, (ModuleType, type)) and not hasattr(value, "fn"):
                self.constant(captured, value)
        if any(callable(value) for value in options.values()):
            self._parts.append(_DESCRIBED)
        shown = ", ".join(f"{key}={'described' if callable(v) else repr(v)}" for key, v in options.items())
        decorator = f"@{self._language.jit}({shown})" if shown else f"@{self._language.jit}"
        self._parts.append(f"\n{decorator}\n{inspect.getsource(function).rstrip()}\n")
        self._kernels[id(kernel)] = (name, kernel)
        return name

    def make(self, kernel: Any, function: FunctionType, name: str, text: str) -> None:
        """Write an expression that makes a kernel of a function."""
        self._parts.append(f"{name} = {text}")
        self.expect(kernel, function, {})
        self._kernels[id(kernel)] = (name, kernel)

    def result(self, given_back: Any) -> None:
        """Keep what the last launch gave back: it may be launched in its turn."""
        if given_back is not None and self._launches <= _MOST_LAUNCHES:
            self._results[id(given_back)] = (self._at, given_back)

    # ------------------------------------------------------------------------------------------------------ launches

    def launch(
        self,
        kernel: Any,
        source: FunctionType,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Write a launch: its memory, the line, what shows its outcome.

        Parameters
        ----------
        kernel
            What is launched.
        source
            The function that it was made of, if that was not said before.
        """
        expected, function, _ = self._expected.get(id(kernel), (None, source, {}))
        parameters = inspect.signature(function if expected is kernel else source).parameters
        given = [*zip([*parameters, *(f"more_{i}" for i in range(len(args)))], args, strict=False), *kwargs.items()]
        if self._together is not None:
            given = [(f"{key}_{len(self._together)}", value) for key, value in given]
        memory: dict[str, np.ndarray[Any, Any]] = {}
        if self._streams:
            given = [(key if array is self._memory.get(key) else self._new(key), array) for key, array in given]
            shown = [self._stream(v) or self._known(v) or _argument_text(key, v, memory) for key, v in given]
        else:
            shown = [_argument_text(key, value, memory) for key, value in given]
        shown[len(args) :] = [f"{key}={text}" for key, text in zip(kwargs, shown[len(args) :], strict=True)]
        before, what = _callable_text(grid) if isinstance(grid, FunctionType) else ("", repr(grid))
        self._launches += 1
        if self._launches > _MOST_LAUNCHES:
            self.line = f"{source.__name__}[{what}]({', '.join(shown)})"
            return
        self.line = f"{self._name(kernel, source)}[{what}]({', '.join(shown)})"
        for key, array in memory.items():
            if self._memory.get(key) is not array:
                self._memory[key] = array
                self._parts.append(f"{key} = {_array_text(array, self._language.tensor)}")
        if before:
            self._parts.append(before.rstrip())
        if self._together is not None:
            self._together.append(self.line)
            return
        self._parts.append(self.line)
        self._at = len(self._parts) - 1
        self._blocks[self._at] = list(self._inside)
        printed = [] if self._streams else [f"print({key})\n" for key in memory]  # printing may wait
        self._parts.append("".join([self._language.finish, *printed]).rstrip())
        self._keep()

    def _keep(self) -> None:
        if self._kept is not None:
            self._kept.write_text(self.text)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Write the launches of the block as launches on threads of their own."""
        self._together = []
        yield
        launches = "".join(f"    lambda: {line},\n" for line in self._together)
        self._parts.append(
            "from concurrent.futures import ThreadPoolExecutor\nfrom contextvars import copy_context\n\n"
            f"launches = [\n{launches}]\nwith ThreadPoolExecutor(len(launches)) as pool:\n"
            "    print(*[made.result() for made in [pool.submit(copy_context().run, launch) for launch in launches]])"
        )
        self._parts.append("".join(f"print({name})\n" for name in self._memory).rstrip())
        self._together = None
        self._keep()

    def forget(self) -> None:
        """Let go of the kernels and results that the program names, so that they can end."""
        self._results.clear()
        self._expected = {}
        self._kernels = {key: (name, None) for key, (name, _) in self._kernels.items()}

    def failed(self) -> None:
        """Let the program go on after the last launch, which was refused."""
        if 0 < self._launches <= _MOST_LAUNCHES:
            said = 'except Exception as error:\n    print(type(error).__name__, error, sep=": ")'
            self._parts[self._at] = f"try:\n    {self._parts[self._at]}\n{said}"

    # ------------------------------------------------------------------------------------------------------- streams

    def stream(self, given: Any, imported: str, text: str) -> None:
        """Write how a stream is made. From now on each piece of memory keeps its name: kernels may still use it."""
        name = f"stream_{len(self._streams) + 1}"
        self._streams[id(given)] = (name, given)
        if imported and imported not in self._parts:
            self._parts.append(imported)
        self._parts.append(f"{name} = {text}")

    def _new(self, key: str) -> str:
        """Give a name that no memory has yet."""
        names = (key, *(f"{key}_{i}" for i in range(2, 1000)))
        return next(name for name in names if name not in self._memory)

    def _stream(self, value: Any) -> str:
        name, known = self._streams.get(id(value), ("", None))
        return name if known is value else ""

    def event(self, given: Any, text: str) -> None:
        """Write what is done to a stream: it is marked, or waits for a mark."""
        self._parts.append(text.format(self._stream(given)))

    def memory(self, memory: Any, stream: Any, text: str) -> None:
        """Write how memory of a stream's library is made."""
        name = self._new("memory")
        self._memory[name] = memory
        if text:
            self._parts.append(f"from {type(memory).__module__} import {type(memory).__name__}")
        self._parts.append(f"{name} = {text.format(self._stream(stream)) or 'object()'}")

    def begun(self, memory: np.ndarray[Any, Any]) -> None:
        """Write a wait until a kernel has said, in the second element of its memory, that it runs."""
        self._parts.append(f"while {self._named(memory)}[1] != 1:\n    pass")

    def let_go(self, flag: np.ndarray[Any, Any]) -> None:
        """Write what raises the flag that a kernel waits for."""
        name = self._named(flag)
        on_device = f"with torch.cuda.stream(torch.cuda.Stream()):\n    {name}.tensor.fill_(1)"
        self._parts.append(on_device if hasattr(flag, "tensor") else f"{name}[0] = 1")

    def show(self) -> None:
        """Write what prints all memory."""
        self._parts.append("".join(f"print({name!r}, {name})\n" for name in self._memory).rstrip())

    def _known(self, value: Any) -> str:
        """Show an argument that is memory with a name."""
        name = self._named(value)
        return _passed(name, value) if name else ""

    def _named(self, memory: Any) -> str:
        """Give the name of memory that has one."""
        return next((name for name, array in self._memory.items() if array is memory), "")

    @contextmanager
    def on(self, given: Any, text: str) -> Iterator[None]:
        """Write launches inside a block that makes a stream the current one."""
        self._inside.append(text.format(self._stream(given)))
        try:
            yield
        finally:
            self._inside.pop()

    def in_blocks(self, part: str) -> str:
        """Give lines inside the blocks that launches are in now."""
        return _in_blocks(part, self._inside)

    # --------------------------------------------------------------------------------------------------------- hooks

    @contextmanager
    def watched(self, enter: object, exit: object) -> Iterator[None]:
        """Write hooks around what is written in the block; they print what they are told."""
        register, remove = self._language.hooks
        sides = [side for side, hook in (("enter", enter), ("exit", exit)) if hook is not None]
        for side in sides:
            self._parts.append(
                f"\ndef {side}(metadata):\n    print('{side} hook is told', metadata and metadata.get())\n\n"
                f"{register.format(side=side)}"
            )
        try:
            yield
        finally:
            self._parts += [remove.format(side=side) for side in sides]


def _in_blocks(part: str, heads: list[str]) -> str:
    for head in reversed(heads):
        part = f"{head}\n{textwrap.indent(part, '    ')}"
    return part


_DESCRIBED: Final = """
def described(grid, metadata, arguments):
    return {"told": (grid, metadata.name, sorted(arguments))}
"""


def _argument_text(name: str, value: Any, memory: dict[str, np.ndarray[Any, Any]]) -> str:
    """Show an argument; arrays, also those in tuples, are entered into the memory under a name."""
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "biufc":
        memory[name] = value
        return _passed(name, value)
    if type(value) is tuple:
        parts = [_argument_text(f"{name}_{i}", part, memory) for i, part in enumerate(value)]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = _argument_text(name, tuple(value), memory)
        return f"__import__('collections').namedtuple({type(value).__name__!r}, {value._fields})(*{fields})"
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()}, {value.dtype.str!r})"
    if isinstance(value, BuiltinFunctionType):
        return value.__name__
    return "object()" if repr(value).startswith("<") else repr(value)


def _passed(name: str, array: Any) -> str:
    """Show memory as an argument: what host and device share is an array that has a tensor."""
    return f"{name}.tensor" if hasattr(array, "tensor") else name


def _constant_text(value: Any) -> str:
    return f"tl.constexpr({value.value!r})" if hasattr(value, "value") else repr(value)


def _array_text(array: np.ndarray[Any, Any], tensor: str) -> str:
    """Show memory: its content, as short as it goes, and where it begins after a multiple of 16 bytes."""
    tensor = "Shared({})" if hasattr(array, "tensor") else tensor
    flat, dtype = np.asarray(array).ravel(), repr(array.dtype.str)
    if array.dtype.kind == "f" and not np.isfinite(flat).all():  # nan and inf are no words of Python
        tensor = tensor.format(f"{{}}.view({dtype})")
        flat, dtype = flat.view(f"i{array.itemsize}"), repr(f"i{array.itemsize}")
    skipped = array.ctypes.data % _ALIGNMENT // array.itemsize
    count = array.size + skipped
    if (flat == flat[0]).all():
        text = f"np.full({count}, {flat[:1].tolist()[0]!r}, {dtype})"
    elif np.array_equal(np.resize(flat[:7], array.size), flat):
        text = f"np.resize(np.array({np.roll(flat[:7], skipped).tolist()}, {dtype}), {count})"
    else:
        text = f"np.array({[0] * skipped + flat.tolist()}, {dtype})"
    return tensor.format(text) + (f"[{skipped}:]" if skipped else "")


def _callable_text(grid: Callable[..., Any]) -> tuple[str, str]:
    """Show a callable grid: the lines that define it with what it captured, and the expression that names it."""
    captured = inspect.getclosurevars(grid).nonlocals
    before = "".join(f"{name} = {value!r}\n" for name, value in captured.items())
    text = textwrap.dedent(inspect.getsource(grid))
    if grid.__name__ != "<lambda>":
        return f"from typing import Any\n\n{before}{text}\n\n", grid.__name__
    text = re.split(r"(?=\blambda\b)", text, maxsplit=1)[-1]
    for end in range(len(text), 0, -1):  # the source is of whole lines: cut what follows the lambda
        with suppress(SyntaxError):
            if isinstance(ast.parse(text[:end].strip(), mode="eval").body, ast.Lambda):
                return before, text[:end].strip()
    return before, text.strip()
