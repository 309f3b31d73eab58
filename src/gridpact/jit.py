"""`@gridpact.jit`: kernels as users hold them, `kernel[grid](*args, **options)`, and what a launch gives back."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias, overload

import numpy as np

from gridpact import launch as path
from gridpact import learned, native, toolchain
from gridpact.arguments import Pointer, Signature, classes_of, short_dtype, stand_ins
from gridpact.backends.protocol import Device
from gridpact.errors import ContractTypeError, ContractValueError, ResourceError
from gridpact.grid import Grid, canonical_grid
from gridpact.identity import Key, differences
from gridpact.metadata import KernelMetadata, check_fields
from gridpact.state import Source, jitted_function, source_of, text_of, uncompiled_source

__all__ = ["CompiledKernel", "Kernel", "OnStateChange", "jit"]

_MOST_CLASSES: Final = 64
OnStateChange: TypeAlias = Literal["recompile", "refuse"]


class CompiledKernel:
    """One binary of a kernel, as `kernel[grid](...)` and `kernel.warmup(...)` return it.

    Attributes
    ----------
    asm
        Stage name -> text or bytes: `ttir`, `ttgir`, `llir`, `spv`, ...
    metadata
        What launches of it depend on; every field of the toolchain is an attribute, such as `metadata.shared` in bytes.
    name
        Of the kernel inside the binary.
    hash
        Digest of its identity, the same in every process.
    n_regs, n_spills
        Registers and spilled bytes per thread; 0 where the device has no such thing to report.
    key
        Its identity.
    """

    n_regs = 0
    n_spills = 0

    def __init__(self, kernel: Kernel, key: Key, binary: toolchain.Binary, device: Device) -> None:
        check_fields(binary.metadata.fields, device, repr(binary.metadata.name))
        self.fn = kernel
        self.key = key
        self.binary = binary
        self.device = device

    @property
    def asm(self) -> Mapping[str, str | bytes]:
        """Stage name -> text or bytes, the binary among them."""
        return self.binary.asm

    @property
    def kernel(self) -> bytes:
        """The binary itself, as Triton names it."""
        return self.binary.code

    @property
    def metadata(self) -> KernelMetadata:
        """What launches depend on."""
        return self.binary.metadata

    @property
    def name(self) -> str:
        """Name of the kernel inside the binary."""
        return self.metadata.name

    @property
    def hash(self) -> str:
        """Digest of the identity."""
        return self.key.digest

    def check_launch(self, programs: Grid) -> None:
        """Refuse what this binary needs and its device lacks (META-4, GRID-7)."""
        self.device.check_resources(self.metadata, repr(self.fn.__name__))
        path.check_programs(programs, self.metadata, self.device)

    def __getitem__(self, grid: object) -> Callable[..., CompiledKernel]:
        """Launch this very binary: `compiled[grid](*args)`; arguments it was not built for are refused (SPEC-1)."""

        def launch_binary(*args: object, stream: object = None) -> CompiledKernel:
            options = {name: self.metadata.fields[name] for name in self.device.options if name in self.metadata.fields}
            given = {"stream": stream, "device": self.device.name}
            call = path.bind(self.fn, args, given)
            call.options = options
            differs = [name for name, fact in call.arguments.facts if dict(self.key.facts).get(name) != fact]
            if differs:
                raise ContractValueError(
                    f"{differs[0]} of {self.name!r}",
                    "this binary was built for another type, class or constant",
                    call.bound[differs[0].partition(" ")[2]],
                    "Launch the kernel itself, which picks the binary by its arguments.",
                    "SPEC-1",
                )
            programs = canonical_grid(grid, call.meta, self.device.limits)
            accepted = self.device.accept_stream(call.stream) if call.stream is not None else None
            self.check_launch(programs)
            return self if 0 in programs else path.run(self, call, programs, accepted)

        return launch_binary

    def __repr__(self) -> str:
        return f"<CompiledKernel {self.name!r} on {self.device.name}, {self.hash[:12]}>"


class Kernel(native.Launchable):  # type: ignore[misc]  # either of two classes
    """A jitted function: launched as `kernel[grid](*args, **options)`, called as a helper inside other kernels.

    Made by `gridpact.jit`. Attributes that Triton's own decorators and tools look for are here: `fn`, `arg_names`,
    `run`, `warmup`.
    """

    def __init__(
        self,
        function: FunctionType,
        *,
        do_not_specialize: Iterable[str | int] = (),
        do_not_specialize_on_alignment: Iterable[str | int] = (),
        launch_metadata: Callable[..., Any] | None = None,
        repr: Callable[[Any], str] | None = None,
        noinline: bool = False,
        debug: bool | None = None,
        on_state_change: OnStateChange = "recompile",
        origin: Any = None,
    ) -> None:
        text_of(function)  # read the source now: the file may change later
        self.fn = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.signature = Signature(function, do_not_specialize, do_not_specialize_on_alignment)
        self.launch_metadata = launch_metadata
        self.repr = repr
        self.noinline = noinline
        self.debug = debug
        if on_state_change not in ("recompile", "refuse"):
            rule = "expected 'recompile' or 'refuse'"
            raise ContractValueError("on_state_change", rule, on_state_change, clause="STATE-1")
        self.on_state_change = on_state_change
        self.origin = origin  # the `triton.jit` function that it was made of: Triton's hooks see its launches, too
        self.pre_run_hooks: list[Callable[..., object]] = getattr(origin, "pre_run_hooks", [])
        self.lock = threading.RLock()
        self.compiled: dict[Key, CompiledKernel] = {}
        self.causes: Counter[str] = Counter()  # of its binaries: name of a fact -> how many it made (KEY-4)
        self._source: Source | None = None
        self._of_triton: dict[Key, Any] = {}
        if "triton" in sys.modules:  # so that triton.autotune can decorate it, with a GPU or without
            from gridpact import triton

            triton.register()

    @property
    def arg_names(self) -> list[str]:
        """Names of the parameters, in order."""
        return self.signature.names

    def add_pre_run_hook(self, hook: Callable[..., object]) -> None:
        """Call a function before each launch with its arguments and options, before these are bound.

        It may change objects, and is no observer; a `triton.jit` function and the kernel made of it share theirs.
        """
        self.pre_run_hooks.append(hook)

    def call_pre_run_hooks(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Call them, in the order in which they were added."""
        for hook in tuple(self.pre_run_hooks):
            hook(*args, **kwargs)

    def options(self, device: Device) -> dict[str, Any]:
        """Options that the decorator set for every launch."""
        return {"debug": self.debug} if self.debug is not None and "debug" in device.options else {}

    def source(self, device: Device) -> Source:
        """Give the kernel's source with what it captures now; read again only if something has changed.

        Raises
        ------
        ContractError
            STATE-1: it has changed, and that is to be refused; or what the kernel captures has no identity.
        """
        if not device.compiles:
            return uncompiled_source(self.fn)
        before = self._source
        if before is not None and before.is_current():
            return before
        now = source_of(self)
        if before is not None and self.compiled and self.on_state_change == "refuse" and now.facts != before.facts:
            changes = "; ".join(map(str, differences(before.facts, now.facts)))
            raise ContractValueError(
                f"state of {self.__name__!r}",
                f"what it captures may not change after its first launch: {changes}",
                remedy="Change it back, or let it recompile with on_state_change='recompile'.",
                clause="STATE-1",
            )
        self._source = now
        return now

    def of_triton(self, source: Source, key: Key, target: toolchain.Target) -> Any:
        """Give the same kernel as one of Triton's own, without hooks: its launcher packs what ours does not yet.

        One for each identity, and named by it, so that none of Triton's caches can hand back the binary of another.
        """
        with self.lock:
            if key not in self._of_triton:
                names = [parameter.name for parameter in self.signature.parameters if not parameter.is_specialized]
                unaligned = [p.name for p in self.signature.parameters if not p.is_alignment_specialized]
                self._of_triton[key] = toolchain.function_of_triton(
                    source,
                    key.digest,
                    target,
                    do_not_specialize=names,
                    do_not_specialize_on_alignment=unaligned,
                    debug=self.debug,
                    repr=self.repr,
                )
        return self._of_triton[key]

    def make_compiled(self, key: Key, binary: toolchain.Binary, device: Device) -> CompiledKernel:
        """Wrap a binary for the cache of this kernel."""
        return CompiledKernel(self, key, binary, device)

    def run(self, *args: object, grid: object, warmup: bool = False, **kwargs: object) -> CompiledKernel:
        """Launch, as Triton's `autotune` and `heuristics` call what they decorate."""
        try:
            return self.warmup(*args, grid=grid, **kwargs) if warmup else self[grid](*args, **kwargs)
        except ResourceError as error:
            raise toolchain.out_of_resources(error) from error

    def warmup(self, *args: object, grid: object = None, **kwargs: object) -> CompiledKernel:
        """Compile for these arguments without launching: no hook is called, pre-run hooks neither.

        Parameters
        ----------
        args, kwargs
            As for a launch. A NumPy or torch dtype stands for a tensor of it, aligned to 16 bytes.
        grid
            Checked if given.
        """
        stand_in = {name: _tensor_of(value) for name, value in kwargs.items()}
        call = path.bind(self, tuple(_tensor_of(value) for value in args), stand_in)
        if grid is not None:
            canonical_grid(grid, call.meta, call.device.limits)
        return path.compiled_for(call)

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """Parameter -> classes of its values with a binary of their own, as `arguments.CLASSES` says (SPEC-2)."""
        return {parameter.name: classes_of(parameter) for parameter in self.signature.parameters}

    def precompile(
        self, *args: object, over: Iterable[str | int] | None = None, **kwargs: object
    ) -> list[CompiledKernel]:
        """Compile a set of classes ahead, so that no launch of them compiles; nothing is launched.

        Parameters
        ----------
        args, kwargs
            As for `warmup`: one launch of the set. Element types, widths of integers and constants stay as here.
        over
            Names or positions of parameters whose classes are all compiled, in every combination: aligned to 16 bytes
            and not, equal to 1, divisible by 16, any other number. All parameters if not given.

        Returns
        -------
        One compiled kernel for each combination, the last parameter's class changing fastest.

        Raises
        ------
        ContractValueError
            SPEC-2: a misspelt name, or more than 64 combinations.
        """
        named = {name: value for name, value in kwargs.items() if name in self.signature.names}
        given = {name: _tensor_of(value) for name, value in kwargs.items() if name not in named}
        tensors = {name: _tensor_of(value) for name, value in named.items()}
        bound = self.signature.bind(tuple(map(_tensor_of, args)), tensors)
        wanted = self.signature.names if over is None else self.signature.named("over", over)
        choices = [
            stand_ins(parameter, bound[parameter.name]) if parameter.name in wanted else [bound[parameter.name]]
            for parameter in self.signature.parameters
        ]
        count = math.prod(map(len, choices))
        if count > _MOST_CLASSES:
            rule = f"at most {_MOST_CLASSES} binaries at once, and a combination of classes for each"
            remedy = "Name the parameters that vary with over=[...]."
            raise ContractValueError(f"precompile of {self.__name__!r}", rule, count, remedy, "SPEC-2")
        by_name = self.signature.names[self.signature.positional :]
        calls = []
        for chosen in product(*choices):
            positional, rest = chosen[: self.signature.positional], chosen[self.signature.positional :]
            calls.append(path.bind(self, positional, {**dict(zip(by_name, rest, strict=True)), **given}))
        return [path.compiled_for(call) for call in calls]

    def prepare(
        self, *args: object, grid: object, on_change: Literal["refuse", "prepare"] = "refuse", **kwargs: object
    ) -> Any:
        """Compile, load and decide a launch, for launches of its like that cost little more than the driver call.

        Parameters
        ----------
        args, kwargs
            As for a launch. What is given by name stays as it is, and is kept alive; what is given by position is given
            again to each launch.
        grid
            As for a launch. A callable one is asked at each launch; a list counts as it is now.
        on_change
            What becomes of a launch whose arguments need another binary (type, alignment, equal to 1, width of an
            integer, constant, device), or whose captured values have changed: refuse it, or find or compile that one.

        Returns
        -------
        A callable `p`: `p(*args)` launches over the grid, `p[grid](*args)` over another one. Its `compiled` is the
        compiled kernel. Streams are read and hooks are seen at each launch, as `kernel[grid](...)` does.

        Raises
        ------
        ContractError
            As a launch would, now; of the prepared launch SPEC-1 where a fact has changed and it is refused.
        """
        if on_change not in ("refuse", "prepare"):
            raise ContractValueError("on_change", "expected 'refuse' or 'prepare'", on_change, clause="SPEC-1")
        call = path.bind(self, args, kwargs)
        programs = canonical_grid(grid, call.meta, call.device.limits)
        stream = call.device.accept_stream(call.stream) if call.stream is not None else None
        check = partial(call.device.check_may_load, path.stream_of(call, stream), repr(self.__name__))
        compiled = path.compiled_for(call, check)
        compiled.check_launch(programs)
        call.device.load(compiled.binary, call.arguments.leaves, stream or path.stream_of(call, stream))
        learned.remember(args, kwargs, compiled, call, programs, stream)
        missed = partial(_missed, dict(kwargs), on_change == "refuse")
        if isinstance(grid, list) and not callable(grid):
            grid = programs  # a list may change, and is then another grid
        fixed = None if callable(grid) else programs
        names, values = tuple(kwargs) or None, tuple(kwargs.values())
        return native.prepared(
            self, grid, fixed, compiled, names, values, (*args, *values), on_change == "refuse", missed
        )

    def __call__(self, *args: object, **kwargs: object) -> None:
        """Refuse: a kernel is launched over a grid."""
        raise ContractTypeError(
            f"kernel {self.__name__!r}",
            "a kernel is launched over a grid, not called",
            remedy=f"Write {self.__name__}[grid](...).",
            clause="GRID-1",
        )

    def __repr__(self) -> str:
        return f"<Kernel {self.__module__}.{self.__qualname__}>"


def _missed(
    options: Mapping[str, object],
    refuses: bool,
    prepared: Any,
    grid: object,
    args: tuple[object, ...],
    names: tuple[str, ...] | None,
) -> Any:
    """Make a prepared launch by the definition, or refuse it: a fact that its binary was built on does not hold."""
    kernel: Kernel = prepared.kernel
    if names:
        rule = "takes again what prepare() was given by position; what it was given by name stays"
        remedy = "Use `with gridpact.stream(s)` for a stream." if "stream" in names else ""
        raise ContractTypeError(f"prepared launch of {kernel.__name__!r}", rule, names[0], remedy, "ARG-1")
    if refuses:
        call = path.bind(kernel, args, options)
        changed = path.key_of(call, kernel.source(call.device)).difference(prepared.compiled.key)
        if changed:
            rule = "this launch was prepared for another type, class, constant or state"
            kind, _, name = changed[0].partition(" ")
            got = call.bound[name] if kind in ("argument", "constexpr") else changed[0]
            remedy = "Prepare one for it, or use on_change='prepare'."
            raise ContractValueError(f"{changed[0]} of {kernel.__name__!r}", rule, got, remedy, "SPEC-1")
    return learned.missed(kernel, grid, args, options)


def _tensor_of(value: object) -> object:
    """Turn the dtype that stands for a tensor in `warmup` into an aligned pointer."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        name = np.dtype(value).name
    elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        name = str(value).rpartition(".")[2]
    else:
        return value
    return Pointer(short_dtype(f"warmup({value!r})", name), 0, "any", False, None)


@overload
def jit(fn: Callable[..., Any], /) -> Kernel: ...


@overload
def jit(
    *,
    do_not_specialize: Iterable[str | int] = (),
    do_not_specialize_on_alignment: Iterable[str | int] = (),
    launch_metadata: Callable[..., Any] | None = None,
    repr: Callable[[Any], str] | None = None,
    noinline: bool = False,
    debug: bool | None = None,
    on_state_change: OnStateChange = "recompile",
) -> Callable[[Callable[..., Any]], Kernel]: ...


def jit(fn: Callable[..., Any] | None = None, /, **options: Any) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a Python function, or of an existing `triton.jit` function.

    Parameters
    ----------
    fn
        The function. Its parameters may be annotated: `tl.constexpr` for constants of the binary, `tl.const` for a
        tensor that is only read, `tl.int64`, `tl.float16`, ... for numbers of a fixed type.
    do_not_specialize
        Names or positions of parameters whose value must not choose among binaries; 1 and multiples of 16 are then
        values like any other.
    do_not_specialize_on_alignment
        The same for divisibility by 16 alone.
    launch_metadata
        `f(grid, metadata, arguments) -> dict`, called for observers only (HOOK-4).
    repr
        Chooses the kernel's name in the binary, as in Triton.
    noinline
        As a helper, keep it a function of its own.
    debug
        Compile device assertions in.
    on_state_change
        What becomes of a launch after a captured value or helper has changed, by value or type: `recompile`, for what
        it is now, or `refuse` it (STATE-1).

    Raises
    ------
    ContractError
        SPEC-2 a misspelt parameter name; KEY-1 no source text.
    """
    if fn is None:
        return lambda function: jit(function, **options)
    function = jitted_function(fn)
    if function is not None:
        theirs = {name: getattr(fn, name, None) for name in ("do_not_specialize", "do_not_specialize_on_alignment")}
        inherited = {
            **{name: value for name, value in theirs.items() if value},
            "launch_metadata": getattr(fn, "launch_metadata", None),
            "noinline": bool(getattr(fn, "noinline", False)),
            "debug": getattr(fn, "debug", None),
            "repr": getattr(fn, "_repr", None),
            "origin": fn.origin if isinstance(fn, Kernel) else fn,
        }
        return Kernel(function, **{**inherited, **options})
    if not isinstance(fn, FunctionType):
        raise ContractTypeError("gridpact.jit", "expected a Python function", fn, clause="ARG-1")
    return Kernel(fn, **options)
