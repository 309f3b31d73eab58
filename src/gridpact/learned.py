"""What the native path is told of a launch that the definition has decided, in the words of `native/path.c`.

An entry stands for all launches of the same classes, constants, options, device and captured values; it holds what
crosses the boundary to the driver, and nothing of the launch that it was made of. A launch whose meaning hangs on more
than that is not remembered, and takes the Python path each time.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import CellType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridpact import hooks, native
from gridpact import launch as path
from gridpact.arguments import Leaf, Pointer, read_by
from gridpact.backends.protocol import Device, StreamRef
from gridpact.grid import Grid, canonical_grid
from gridpact.native.marks import negative_mark
from gridpact.state import ABSENT, Captured, Source, is_constexpr, jitted_function
from gridpact.stream import Stream, TorchCurrent

if TYPE_CHECKING:
    from gridpact.jit import CompiledKernel, Kernel

__all__ = ["finish", "missed", "remember"]

# As in native/values.h.
_ARGUMENT, _CONSTANT, _OPTION, _STREAM = range(4)
_NAMES: Final = ("", "i1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp16", "bf16", "fp32", "fp64")
_DECLARED: Final = {name: number for number, name in enumerate(_NAMES)}
_POINTER: Final = 14
_SPECIALIZED, _ALIGNED = 1, 2
_NUMPY, _EXCHANGE, _DUCK = range(3)
_COOPERATIVE, _PROGRAMMATIC, _WAIT = 1, 2, 4
_DTYPES: Final[dict[str, int]] = {}  # element type -> number, in the order of their first use
_DEVICES: Final[dict[str, int]] = {}


class _NotRemembered(Exception):
    """The launch hangs on more than an entry holds."""


def missed(kernel: Kernel, grid: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    """Launch by the definition, and natively at its end where the launch could be remembered."""
    return path.launch(kernel, grid, args, kwargs, partial(finish, args, kwargs))


def finish(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    compiled: CompiledKernel,
    call: path.Call,
    programs: Grid,
    stream: StreamRef | None,
) -> Any:
    """Make a launch that is decided: natively, and remembered for its like, else by the definition."""
    is_known = not call.kernel.pre_run_hooks and remember(args, kwargs, compiled, call, programs, stream)
    if is_known and (stream is None or type(call.stream) is Stream):  # any other was accepted, and would be once more
        launched = native.path.again(call.kernel, programs, args, kwargs)
        if launched is not None:
            return launched
    return path.run(compiled, call, programs, stream)


def remember(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    compiled: CompiledKernel,
    call: path.Call,
    programs: Grid,
    stream: StreamRef | None,
) -> bool:
    """Enter a launch that is decided; whether the native path knows it now, and reads it as the definition did."""
    if native.path is None:
        return False
    try:
        slots = list(_slots(call, len(args), list(kwargs)))
        if not all(_is_fixed(kwargs[name]) for *_, role, _, _, _, name in slots if role == _OPTION):
            return False
        info = _info(compiled, call, programs, stream)
    except _NotRemembered:
        return False
    bits = tuple(leaf.bits for leaf in call.arguments.leaves)
    names = tuple(kwargs) or None
    values = (*args, *kwargs.values())
    return bool(native.path.remember(call.kernel, len(args), names, values, slots, bits, info))


# ----------------------------------------------------------------------------------------------------- the call's shape


def _slots(call: path.Call, positional: int, names: list[str]) -> Iterator[tuple[int, int, int, int, object, str]]:
    """Give where each parameter and option is found in a call of this shape, and what it may be."""
    known = set()
    for i, parameter in enumerate(call.kernel.signature.parameters):
        known.add(parameter.name)
        at = i if i < positional else positional + names.index(parameter.name) if parameter.name in names else -1
        role = _CONSTANT if parameter.is_constexpr else _ARGUMENT
        declared = _POINTER if parameter.declared.startswith("*") else _DECLARED[parameter.declared]
        flags = _SPECIALIZED * parameter.is_specialized + _ALIGNED * parameter.is_alignment_specialized
        fixed = call.bound[parameter.name] if at < 0 else None
        yield at, role, declared, flags, fixed, parameter.name
    for i, name in enumerate(names):
        if name not in known:
            yield positional + i, _STREAM if name == "stream" else _OPTION, 0, 0, None, name


# ------------------------------------------------------------------------------------------------------------ the entry


def _info(compiled: CompiledKernel, call: path.Call, programs: Grid, stream: StreamRef | None) -> dict[str, Any]:
    """Give all that an entry holds."""
    device, metadata, leaves = call.device, compiled.metadata, call.arguments.leaves
    if metadata.scratch_bytes or (stream is not None and stream.is_fenced):
        raise _NotRemembered
    source = call.kernel.source(device)
    if path.key_of(call, source) != compiled.key:  # state or environment changed since: by an observer, another thread
        raise _NotRemembered
    _check_choice_of_device(call)
    pointers = [pointer for _, pointer in call.arguments.pointers()]
    for pointer in pointers:
        _check_kind(pointer, device)
    is_waited_for = path.waits_for(call, stream)
    usual = stream or path.stream_of(call, stream)
    device.load(compiled.binary, leaves, usual)
    # For the default stream's context: a given stream may have another, for which `_given` loads its own.
    kernel = device.load(compiled.binary, leaves, device.default_stream())
    desc = path.describe(metadata, programs, usual, kernel, leaves, (compiled,), is_waited_for)
    device.check_fits(desc, repr(call.kernel.__name__))
    calls = device.native_calls(desc)
    if calls is None:
        raise _NotRemembered
    x, y, z = (limit // blocks for limit, blocks in zip(device.limits.programs, metadata.cluster, strict=True))
    flags = _COOPERATIVE * metadata.is_cooperative + _PROGRAMMATIC * metadata.is_programmatic + _WAIT * is_waited_for
    bare = [Leaf(leaf.subject, leaf.kind, 0, leaf.pointer and _BARE) for leaf in leaves]
    limits = device.limits
    return {
        "compiled": compiled,
        "options": dict(call.options),
        "kinds": tuple(leaf.kind for leaf in leaves),
        "guard": calls.guard,
        "owners": calls.stream_owners,
        "given": partial(_given, device, compiled, bare),
        "hold": calls.hold,
        "let_go": calls.let_go,
        "flights": calls.flights,
        "raise": calls.failed,
        "check": partial(_check, device),
        "fits": partial(_check_fits, device, compiled, kernel),
        "watched": partial(_watched, device, compiled, kernel),
        "reads": list(_reads(call, source)),
        "table": calls.table,
        "context": calls.context,
        "limits": (x, y, z),
        "most_programs": min(limits.threads_in_launch // metadata.threads, calls.most_programs),
        "cluster": metadata.cluster,
        "threads": metadata.threads,
        "shared_bytes": metadata.shared,
        "flags": flags,
        "kernel": kernel.handle,
        "keep": kernel,
        "hidden": calls.hidden,
        "stream": device.default_stream().handle,
        "default stream": device.default_stream().keep,
        **_streams(pointers, device),
        "is_held": int(any(pointer.stream is None for pointer in pointers)),
    }


_BARE: Final = Pointer("", 0, "", False, None)


def _check(device: Device, grid: object) -> Grid:
    """Judge a grid that the native path does not know."""
    return canonical_grid(lambda meta: grid, dict, device.limits)


def _check_fits(device: Device, compiled: CompiledKernel, kernel: Any, *programs: int) -> None:
    """Judge whether one launch may have so many programs, once the native path has accepted its stream.

    The device is the launch's own: one binary serves all devices of a target, and names that which it was made for.
    """
    x, y, z = programs
    compiled.check_launch((x, y, z))
    if 0 not in programs:
        desc = path.describe(compiled.metadata, (x, y, z), StreamRef(0), kernel, (), (), False)
        device.check_fits(desc, repr(compiled.fn.__name__))


def _watched(
    device: Device,
    compiled: CompiledKernel,
    function: object,
    programs: Grid,
    stream: int,
    values: tuple[object, ...],
    driver_call: Callable[[], None],
) -> None:
    """Make a native launch between the hooks of whoever watches this kernel."""
    kernel = compiled.fn
    observers = hooks.observers_of(kernel)
    if not observers:
        driver_call()
        return

    def bound() -> dict[str, object]:
        return dict(zip(kernel.signature.names, values, strict=True))

    told = path.observed(kernel, device, bound, programs, compiled.metadata, function, stream, compiled.hash)
    hooks.launched_under(observers, told, driver_call)


def _check_choice_of_device(call: path.Call) -> None:
    """Refuse where the device hangs on a stream that the words do not tell apart."""
    given: Any = call.stream
    if given is None or type(given) is Stream:
        return
    if not any(pointer.device == call.device.name for _, pointer in call.arguments.pointers()):
        raise _NotRemembered


def _check_kind(pointer: Pointer, device: Device) -> None:
    """Let the native path read tensors of this kind, or refuse: what has to be asked of the driver for each address."""
    is_host = pointer.device == "host" and bool({"host_memory", "pageable_memory"} & device.capabilities)
    if not is_host and pointer.device != device.name:
        raise _NotRemembered
    kind: Any = type(pointer.tensor)
    how = read_by(kind)
    if how == "numpy" and kind is np.ndarray:
        reader = native.path.register_reader(kind, _NUMPY, None, ())
    elif how == "tensor":
        if _register_torch(kind) >= 0:
            return
        reader = _register_duck(kind, pointer)
    else:
        raise _NotRemembered
    number = _DTYPES.setdefault(pointer.dtype, len(_DTYPES))
    if reader < 0 or not native.path.register_known(reader, "dtype", pointer.tensor.dtype, number):  # type: ignore[attr-defined]
        raise _NotRemembered


_EXCHANGE_API: Final = "__dlpack_c_exchange_api__"
_OF_TORCH: Final = {("torch", "Tensor"), ("torch.nn.parameter", "Parameter")}


@cache
def _register_torch(kind: Any) -> int:
    """Let the native path read torch's own types through their exchange API, which shows lazy views as stored.

    -1 for other types, and where the path does not know the version of that API.
    """
    if (kind.__module__, kind.__qualname__) not in _OF_TORCH or not hasattr(kind, _EXCHANGE_API):
        return -1
    reader = int(native.path.register_reader(kind, _EXCHANGE, getattr(kind, _EXCHANGE_API), (kind.is_neg,)))
    mark = negative_mark(sys.modules["torch"]) if reader >= 0 else None
    if mark is not None:
        native.path.register_mark(reader, *mark)
    return reader


def _register_duck(kind: Any, pointer: Pointer) -> int:
    tensor: Any = pointer.tensor
    if not hasattr(tensor, "device"):
        raise _NotRemembered
    reader = int(native.path.register_reader(kind, _DUCK, None, ()))
    number = _DEVICES.setdefault(pointer.device, len(_DEVICES))
    return reader if reader >= 0 and native.path.register_known(reader, "device", tensor.device, number) else -1


def _streams(pointers: list[Pointer], device: Device) -> dict[str, Any]:
    """Say who tells the stream of tensors whose library has one: nobody, its exchange API, or a call."""
    told = [pointer for pointer in pointers if pointer.stream is not None]
    if not told:
        return {"stream_reader": (-1, -1), "stream_call": None}
    current = told[0].stream
    if not isinstance(current, TorchCurrent) or current.kind != "cuda":
        raise _NotRemembered
    if any(not isinstance(pointer.stream, TorchCurrent) for pointer in told):
        raise _NotRemembered
    ordinal: int = device.ordinal  # type: ignore[attr-defined]
    kind: Any = type(told[0].tensor)
    reader = _register_torch(kind)
    if reader >= 0:
        return {"stream_reader": (reader, ordinal), "stream_call": None}
    return {"stream_reader": (-1, -1), "stream_call": lambda: TorchCurrent("cuda", ordinal).handle()[0]}


def _given(
    device: Device, compiled: CompiledKernel, leaves: list[Leaf], stream: object
) -> tuple[int, int, object] | None:
    """Accept a stream that a launch was given: its handle, the kernel for its context, and what keeps it valid."""
    ref = device.accept_stream(stream)
    if ref.is_fenced:
        return None
    return ref.handle, device.load(compiled.binary, leaves, ref).handle, ref.keep


# -------------------------------------------------------------------------------------------------------- what it reads


def _reads(call: path.Call, source: Source) -> Iterator[tuple[object, str | None, object, object]]:
    """Give each captured name of the kernel and of functions among its constants: where, and what it has to hold."""
    constants = list(call.arguments.constants.values())
    sources = [source, *(value for value in constants if isinstance(value, Source))]
    for value in constants:
        if not isinstance(value, Source) and not _is_fixed(value):
            raise _NotRemembered
    if any(map(is_constexpr, call.bound.values())):  # told from others by identity, and its value may change
        raise _NotRemembered
    seen = set()
    for read in (read for source in sources for read in source.reads):
        if not read.is_identical():
            raise _NotRemembered
        for step in _steps(read):
            told = tuple(map(id, step))
            if told not in seen:
                seen.add(told)
                yield step


def _steps(read: Captured) -> Iterator[tuple[object, str | None, object, object]]:
    """Follow a dotted name: a cell or the globals first, then the modules on its way."""
    function, names = read.function, read.path
    held = ... if read.held is ABSENT else read.held
    if read.is_default:
        if read.held is not ABSENT:  # may come to hold another value
            raise _NotRemembered
        return  # the function would have to be given another one by hand
    free = function.__code__.co_freevars
    value: Any = None
    if read.value is ABSENT:  # `...` for what is not there
        if len(names) > 1:
            raise _NotRemembered
        if names[0] in free:
            yield (function.__closure__ or ())[free.index(names[0])], None, ..., ...
        else:
            yield function.__globals__, names[0], ..., ...
        return
    for depth, name in enumerate(names):
        if depth:
            if not isinstance(value, ModuleType) or name not in vars(value):
                raise _NotRemembered
            container: object = vars(value)
            value = vars(value)[name]
        elif name in free:
            cell: CellType = (function.__closure__ or ())[free.index(name)]
            container, value = cell, cell.cell_contents
        else:
            container, value = function.__globals__, function.__globals__[name]
        is_last = depth == len(names) - 1
        yield container, None if container.__class__ is CellType else name, value, held if is_last else ...


def _is_fixed(value: object) -> bool:
    """Whether a constant is told from others by identity, or by what the native path compares."""
    if type(value) in (bool, int, float, str, type(None)) or isinstance(value, (np.generic, type, enum.Enum)):
        return True
    if jitted_function(value) is not None:
        return True
    if type(value) is tuple:
        return all(map(_is_fixed, value)) and not any(isinstance(item, np.generic) for item in value)
    kind = type(value)
    return kind.__name__ == "dtype" and kind.__module__.partition(".")[0] in ("triton", "torch", "numpy")


if native.path is not None:
    native.use("definition", missed)
    native.use("numpy_generic", np.generic)
    native.use("environment", os.environ._data)  # type: ignore[attr-defined]  # what the mapping keeps, bytes by bytes
    os.register_at_fork(after_in_child=partial(native.turn, "forked", True))
