"""Who is asked: launchers, each behind one small interface.

A subject is one file here and one row in the table; a third party's is an entry point of the group
`gridpact.subjects`. It runs in a worker process, which imports nothing but the standard library, NumPy and what the
subject itself imports.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import platform
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import Asked
from gridpact.conformance.model import Unsupported

__all__ = ["SUBJECTS", "Subject", "available", "open_subject"]

SUBJECTS: Final[dict[str, str]] = {
    "gridpact:reference": "gridpact.conformance.subjects.gridpact_device:reference",
    "gridpact:sycl:cpu": "gridpact.conformance.subjects.gridpact_device:sycl_cpu",
    "triton:interpreter": "gridpact.conformance.subjects.triton_interpreter:TritonInterpreter",
    "triton:active": "gridpact.conformance.subjects.triton_active:TritonActive",
}
"""Name -> `module:factory`."""

GROUP: Final = "gridpact.subjects"


class Subject(ABC):
    """A launcher under proof.

    Attributes
    ----------
    name
        As the report prints it; a subject that finds out its device may say more than the table (`triton:sycl:cpu`).
    is_own
        Ours: it must uphold every clause, our own rules and the form of errors included.
    device, driver
        What it runs on.
    abilities
        What it can be asked beyond plain launches: `num_warps`, `lanes`, `shared`, `hooks`, `options`, `binaries` (it
        can tell which binary ran), `compiled` (a launch gives back a compiled kernel), `geometry` (probe kernels in
        the driver's own language), `limits`.
    lacks
        Ability -> why it has not got it; such cases are `unsupported`.
    unwritten
        Ability -> what nobody has written yet to ask it so; such cases are `unimplemented`.
    programs_in_case
        How many programs it can run in a case's time; host loops are slow.
    limits
        Largest count per axis, programs, as the device's driver reports or shows; None if it has none to state.
    programs
        Module of the probe programs in its language; not needed where `source` gives them otherwise.
    prelude
        Lines before a probe that make it a whole program.
    tensor_text
        How a tensor of a NumPy array is written in such a program.
    asked
        Notes of the running case; renewed for each.
    """

    name: str
    is_own: bool = False
    device: str = ""
    driver: str = ""
    abilities: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = {}
    unwritten: Mapping[str, str] = {}
    programs_in_case: int = 2**40
    limits: tuple[int, int, int] | None = None
    programs: Any = None
    prelude: str = ""
    tensor_text: str = "{}"
    asked: Asked

    def __init__(self) -> None:
        self.asked = Asked()
        self._kernels: dict[tuple[str, str], Any] = {}

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what it is made of."""
        found = {"python": platform.python_version(), "numpy": np.__version__}
        for name in ("triton", "triton-xpu", "pytorch-triton", "intel-sycl-rt", "intel-opencl-rt", "torch"):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    # -- what a subject has to say

    def source(self, program: str) -> FunctionType:
        """Give the Python function of a probe program in the subject's language."""
        return getattr(self.programs, program)  # type: ignore[no-any-return]

    @abstractmethod
    def jit(self, function: FunctionType, **options: Any) -> Any:
        """Make a kernel of a function: `kernel[grid](*args, **options)` launches it."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Give an array as an argument of a launch; what kernels write must be seen in the array afterwards."""
        return array

    def begin(self, asked: Asked) -> None:
        """Begin a case: its notes go here."""
        self.asked = asked

    def is_poisoned(self) -> bool:
        """Whether a case has left the process unusable, as a kernel's fault does on CUDA; it is then started anew."""
        return False

    def synchronize(self) -> None:  # noqa: B027  (nothing to wait for is a fine answer)
        """Wait until launches are complete and arrays hold what kernels wrote."""

    def options(self, **wanted: Any) -> dict[str, Any]:
        """Turn `num_warps` and `lanes` into launch options of the subject."""
        return {("threads_per_warp" if name == "lanes" else name): value for name, value in wanted.items()}

    def identity(self, compiled: Any) -> str:
        """Name the binary that a launch ran, so that two are equal exactly if they are one."""
        raise Unsupported("it does not tell which binary ran")

    def geometry(self, grid: tuple[int, ...], wait: bool = True, **options: Any) -> dict[str, tuple[int, int, int]]:
        """Launch a probe in the driver's own language, and give what it saw: `global`, `local`, `groups`, x first."""
        raise Unsupported(self.lacks.get("geometry", "it takes no kernel in the driver's own language"))

    @contextmanager
    def observed(self, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None) -> Iterator[None]:
        """Register launch hooks for the time of the block; they receive a mapping or something with `get()`."""
        raise Unsupported(self.lacks.get("hooks", "it has no launch hooks"))
        yield

    # -- what cases use

    def kernel(self, program: str, *, fresh: bool = False, **options: Any) -> Any:
        """Give a kernel of a probe program; the same one each time, or one that was never launched."""
        key = (program, repr(sorted(options.items())))
        if fresh or key not in self._kernels:
            made = self.jit(self.source(program), **options)
            if fresh:
                return made
            self._kernels[key] = made
        return self._kernels[key]

    def launch(
        self,
        program: str,
        grid: Any,
        *args: Any,
        kernel: Any = None,
        jit: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Launch a probe program; arrays among the arguments become tensors. Gives what the launch gives back."""
        launched = self.kernel(program, **(jit or {})) if kernel is None else kernel
        self.show(program, grid, args, kwargs)
        try:
            result = launched[grid](*map(self._argument, args), **{k: self._argument(v) for k, v in kwargs.items()})
        except BaseException:
            with suppress(Exception):  # what ran before it failed must be seen
                self.synchronize()
            raise
        self.synchronize()
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.tensor(value)
        if type(value) is tuple:
            return tuple(map(self._argument, value))
        return value

    def show(self, program: str, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a launch as a program: the probe, its memory, the line that launches it, what it wrote."""
        source = self.source(program)
        names = [*inspect.signature(source).parameters, *(f"more_{i}" for i in range(len(args)))]
        given = [*zip(names, args, strict=False), *kwargs.items()]
        memory = {name: value for name, value in given if isinstance(value, np.ndarray) and value.size}
        made = "".join(
            f"{name} = {self.tensor_text.format(f'np.full({array.size}, {array.flat[0]}, {array.dtype.str!r})')}\n"
            for name, array in memory.items()
        )
        shown = [name if name in memory else repr(value) for name, value in given]
        shown[len(args) :] = [f"{name}={text}" for name, text in zip(kwargs, shown[len(args) :], strict=True)]
        before, what = _callable_text(grid) if isinstance(grid, FunctionType) else ("", repr(grid))
        self.asked.line = f"{program}[{what}]({', '.join(shown)})"
        probe = inspect.getsource(source).rstrip()
        seen = "".join(f"print({name})\n" for name in memory)
        self.asked.program = f"{self.prelude}{probe}\n\n\n{before}{made}{self.asked.line}\n{seen}"


def _callable_text(grid: FunctionType) -> tuple[str, str]:
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


def available() -> dict[str, str]:
    """Give every subject that is known here: ours and those of entry points."""
    found = dict(SUBJECTS)
    for entry in importlib.metadata.entry_points(group=GROUP):
        found[entry.name] = entry.value
    return found


def open_subject(name: str) -> Subject:
    """Make a subject, in the process that it is to run in."""
    module, _, factory = available()[name].partition(":")
    subject: Subject = getattr(importlib.import_module(module), factory)()
    return subject
