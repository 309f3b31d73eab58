"""A kernel in a file, and one launch of it: as the file itself makes it, or as a signature tells."""

from __future__ import annotations

import ast
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gridpact import launch
from gridpact.arguments import ALIGNMENT, SIZES, Classified, Pointer, classify, number_of
from gridpact.errors import ContractTypeError, ContractValueError
from gridpact.jit import Kernel, jit
from gridpact.metadata import nearest_name
from gridpact.state import Source, jitted_function

__all__ = ["Asked", "ask", "in_a_line", "read_grid", "read_launch", "read_options", "value_of"]


@dataclass(frozen=True)
class Asked:
    """A kernel, and one launch of it.

    Attributes
    ----------
    bound
        Parameter -> value, defaults included.
    arguments
        The same, classified.
    options
        Launch options that this launch gave, without device and stream.
    grid
        As the launch gave it; None if no launch was seen.
    """

    kernel: Kernel
    bound: Mapping[str, object]
    arguments: Classified
    options: Mapping[str, Any]
    grid: object = None

    @property
    def spelled(self) -> dict[str, str]:
        """Parameter -> its argument as a signature spells it: `*fp32:16`, `i32`, `1024`."""
        spelled = {}
        for i, (name, tree) in enumerate(self.arguments.types.items()):
            if tree == "constexpr":
                value = self.arguments.constants[i,]
                spelled[name] = value.function.__name__ if isinstance(value, Source) else repr(value)
            else:
                divisor = f":{ALIGNMENT}" if (i,) in self.arguments.divisible else ""
                spelled[name] = f"{tree}{divisor}".replace("*k", "*")
        return spelled


def read_launch(where: str, signature: str = "") -> Asked:
    """Find a kernel in a file, and the arguments to plan it with.

    Parameters
    ----------
    where
        `FILE.py:FUNCTION`. The file is imported. Without a signature it is then run as a program until it launches the
        kernel, whose arguments are taken; launches of other `gridpact.jit` kernels are skipped, and give None. What it
        prints goes to stderr.
    signature
        `NAME=WHAT,...` instead: `*fp32` a pointer, `i32`, `i64`, `fp32`, ... a number, `:16` behind either divisible by
        16, a Python literal the value itself. Parameters left out take their defaults.

    Raises
    ------
    ContractError
        No such file or function, no kernel, a misspelt signature, or a file that does not launch it.
    """
    file, _, function = where.rpartition(":")
    path = Path(file).absolute()  # the file may go to another folder
    if path.suffix != ".py" or not function.isidentifier():
        raise ContractValueError("kernel", "expected FILE.py:FUNCTION", where)
    if not path.is_file():
        raise ContractValueError("file", "expected one that exists", file)
    found, launched = _run(path, function, "__plan__")
    kernel = _kernel_named(function, found, path)
    if signature:
        return ask(kernel, (), _signature_values(kernel, signature))
    names = ",".join(f"{p.name}={'VALUE' if p.is_constexpr else 'TYPE'}" for p in kernel.signature.parameters)
    remedy = f'Give its arguments as --signature "{names}", where TYPE is *fp32:16, i32, ...'
    if launched is None and not isinstance(_unwrapped(found[function]), Kernel):
        rule = "made by triton.jit, whose launches are not watched"
        raise ContractTypeError(f"kernel {function!r}", rule, remedy=remedy)
    if launched is None:
        launched = _run(path, function, "__main__", remedy)[1]
    if launched is None:
        raise ContractValueError(
            f"kernel {function!r}", f"{path.name} runs to its end without launching it", remedy=remedy
        )
    return launched


class _Stop(BaseException):
    """Ends the run of a file at the launch that was looked for."""


def _run(path: Path, function: str, name: str, remedy: str = "") -> tuple[dict[str, Any], Asked | None]:
    """Run a file as the module of that name until it launches the function; gives its names, and that launch."""
    module = ModuleType(name)
    module.__file__ = str(path)
    seen: list[Asked] = []

    def watch(
        kernel: Kernel, grid: object, args: tuple[object, ...], kwargs: Mapping[str, object], then: object = None
    ) -> None:
        if _unwrapped(getattr(module, function, None)) is kernel:
            seen.append(ask(kernel, args, kwargs, grid))
            raise _Stop

    before, main = (sys.argv, sys.path, launch.launch), sys.modules.get(name)
    sys.modules[name], sys.argv, sys.path = module, [str(path)], [str(path.parent), *sys.path]
    launch.launch = watch
    try:
        with redirect_stdout(sys.stderr):
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit, _Stop) as error:
        if not seen:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            place = f" in line {lines[-1]}" if lines else ""
            rule = f"expected to run until it launches {function!r}, got {in_a_line(error, place)}"
            raise ContractValueError(f"file {path.name!r}", rule, remedy=remedy) from error
    finally:
        sys.argv, sys.path, launch.launch = before
        if main is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = main
    return module.__dict__, seen[0] if seen else None


def in_a_line(error: BaseException, place: str = "") -> str:
    """Give what another's exception says, in one line."""
    return f"{type(error).__name__}{place}: {str(error).partition(chr(10))[0]}".rstrip(".: ")


def _unwrapped(value: object) -> object:
    """Give what Triton's autotune and heuristics decorate."""
    while type(value).__module__ == "triton.runtime.autotuner" and hasattr(value, "fn"):
        value = value.fn
    return value


def _kernel_named(function: str, found: Mapping[str, object], path: Path) -> Kernel:
    kernels = [name for name, value in found.items() if jitted_function(_unwrapped(value)) is not None]
    if function in kernels:
        kernel: Any = _unwrapped(found[function])
        return kernel if isinstance(kernel, Kernel) else jit(kernel)
    remedy = nearest_name(function, kernels) if kernels else ""
    if function in found:
        raise ContractTypeError(
            f"function {function!r}", "expected one made by gridpact.jit or triton.jit", found[function], remedy
        )
    raise ContractValueError("function", f"expected a kernel of {path.name}", function, remedy)


def ask(kernel: Kernel, args: tuple[object, ...], given: Mapping[str, object], grid: object = None) -> Asked:
    """Bind and classify the arguments of a launch; what else is given are its options."""
    names = kernel.signature.names
    bound = kernel.signature.bind(args, {name: value for name, value in given.items() if name in names})
    options = {name: value for name, value in given.items() if name not in (*names, "device", "stream")}
    return Asked(kernel, bound, classify(kernel.signature, bound), options, grid)


def _signature_values(kernel: Kernel, signature: str) -> dict[str, object]:
    """Give values that a launch would classify as a signature says."""
    names = kernel.signature.names
    values: dict[str, object] = {}
    types: dict[str, str] = {}
    for item in re.split(r",(?=\s*\w+\s*=)", signature):
        name, _, what = (part.strip() for part in item.partition("="))
        if name not in names:
            rule = "expected NAME=WHAT of a parameter, as in x=*fp32:16,n=i32,BLOCK=1024"
            raise ContractTypeError("signature", rule, item, nearest_name(name, names), "ARG-1")
        if name in values:
            raise ContractTypeError("signature", "expected each parameter once", item, clause="ARG-1")
        values[name] = value_of(f"argument {name!r} of {kernel.__name__!r}", what)
        if what.partition(":")[0].removeprefix("*") in _ELEMENTS:
            types[name] = what
    asked = ask(kernel, (), values)
    for name, what in types.items():
        if asked.spelled[name] != what:
            is_constant = asked.arguments.types[name] == "constexpr"
            rule = "a constexpr is a Python literal" if is_constant else f"a launch passes it as {asked.spelled[name]}"
            raise ContractTypeError(f"argument {name!r} of {kernel.__name__!r}", rule, what, clause="ARG-2")
    return values


_ELEMENTS: Final = (*SIZES, "fp8e5", "fp8e4nv", "fp8e4b15", "fp8e5b16", "fp8e4b8")


def value_of(subject: str, what: str) -> object:
    """Give a value of a type, which is neither 1 nor, unless asked for, divisible by 16; or the value of a literal."""
    kind, colon, divisor = what.partition(":")
    element = kind.removeprefix("*")
    if element in _ELEMENTS and (not colon or divisor == str(ALIGNMENT)):
        if kind != element:
            return Pointer(element, 0 if colon else 1, "any", False, None)
        if kind == "i1" or kind[0] not in "iu":
            return True if kind == "i1" else 0.5
        return number_of(kind, bool(colon))
    try:
        return ast.literal_eval(what)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        rule = "expected a type such as *fp32:16 or i32, or a Python literal"
        remedy = nearest_name(kind, [f"{'*' * (kind != element)}{name}" for name in _ELEMENTS])
        raise ContractTypeError(subject, rule, what, remedy, "ARG-3") from None


def read_grid(text: str) -> tuple[int, ...]:
    """Read `7,5,3`; what the numbers may be is judged where grids are."""
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError:
        raise ContractTypeError("grid", "expected 1 to 3 ints such as 7,5,3", text, clause="GRID-1") from None


def read_options(given: list[str]) -> dict[str, Any]:
    """Read `num_warps=8`, ...; a value that is no Python literal is a string."""
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ContractValueError("option", "expected NAME=VALUE such as num_warps=8", text, clause="META-3")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options
