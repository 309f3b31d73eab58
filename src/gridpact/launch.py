"""The path of a launch, in Python: the definition that any other path has to agree with.

Read `launch` from top to bottom; each step is a module of the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from gridpact import backends, compiles, hooks, stored, toolchain
from gridpact.arguments import Classified, Leaf, Pointer, classify
from gridpact.backends.protocol import Device, LaunchDesc, StreamRef
from gridpact.errors import ContractValueError, LaunchError, UnsupportedError
from gridpact.grid import Grid, canonical_grid
from gridpact.identity import Key, typed
from gridpact.metadata import KernelMetadata, LaunchMetadata, check_option_names, resolve_options
from gridpact.stream import current_stream

if TYPE_CHECKING:
    from gridpact.compiles import Origin
    from gridpact.jit import CompiledKernel, Kernel
    from gridpact.state import Source
    from gridpact.toolchain import Binary

__all__ = [
    "Call",
    "bind",
    "compiled_for",
    "describe",
    "key_of",
    "launch",
    "observed",
    "owners_stream",
    "run",
    "stream_of",
    "waits_for",
]

_LAUNCH_OPTIONS = (
    "device",
    "stream",
)  # options of the launch and not of the binary; a kernel's parameter of that name wins


@dataclass
class Call:
    """One launch after binding: whose arguments, on which device, with which options.

    Attributes
    ----------
    bound
        Parameter -> value as passed, defaults included.
    arguments
        The same, classified and encoded.
    options
        Every option of the device, resolved.
    stream
        As given, by `stream=` or `with gridpact.stream(s)`; None if not given.
    """

    kernel: Kernel
    device: Device
    bound: Mapping[str, object]
    arguments: Classified
    options: Mapping[str, Any]
    stream: object

    def meta(self) -> dict[str, Any]:
        """Make the mapping that a callable grid receives (GRID-10)."""
        return {**self.options, **self.bound}


def launch(
    kernel: Kernel,
    grid: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    then: Callable[..., Any] | None = None,
) -> Any:
    """Run a kernel over a grid.

    Parameters
    ----------
    kernel, grid, args, kwargs
        As in `kernel[grid](*args, **kwargs)`.
    then
        Makes the launch once all of it is decided; `run` if not given.

    Returns
    -------
    The compiled kernel. Host memory and no stream given: the results can be read. Otherwise the launch is asynchronous.
    Triton's own compiled kernel where arguments are tensor descriptors: its launcher packs them.

    Raises
    ------
    ContractError
        The call breaks a clause; nothing ran.
    UnsupportedError
        The device cannot do it; nothing ran.
    BackendError
        The driver said no.
    HookError
        HOOK-5: an observer raised.
    """
    kernel.call_pre_run_hooks(args, kwargs)
    call = bind(kernel, args, kwargs)
    programs = canonical_grid(grid, call.meta, call.device.limits)
    stream = call.device.accept_stream(call.stream) if call.stream is not None else None
    if call.arguments.has_descriptors:
        from gridpact import triton

        return triton.hand_over(call, programs, stream_of(call, stream), waits_for(call, stream))
    compiled = compiled_for(call, lambda: call.device.check_may_load(stream_of(call, stream), repr(kernel.__name__)))
    compiled.check_launch(programs)
    if 0 in programs:
        return compiled  # nothing to run: no driver call, no hook (GRID-9)
    return (then or run)(compiled, call, programs, stream)


def bind(kernel: Kernel, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call:
    """Bind arguments and options, classify the arguments, and choose the device."""
    signature = kernel.signature
    named = {name: value for name, value in kwargs.items() if name in signature.names}
    given = {name: value for name, value in kwargs.items() if name not in named}
    where = given.pop("device", None)
    stream = given.pop("stream", None)
    stream = current_stream() if stream is None else stream
    try:
        bound = signature.bind(args, named)
    except TypeError:
        _check_names(kernel, given, _device(where, stream, []))  # a misspelt parameter is no missing one
        raise
    arguments = classify(signature, bound)
    pointers = list(arguments.pointers())
    device = _device(where, stream, pointers)
    _check_names(kernel, given, device)
    for subject, pointer in pointers:
        device.check_reach(subject, pointer)
    options = resolve_options({**kernel.options(device), **given}, device.options, device.name)
    return Call(kernel, device, bound, arguments, options, stream)


def _device(where: object, stream: object, pointers: Sequence[tuple[str, Pointer]]) -> Device:
    """Choose the device: the one that is named, else the pointers' owner, the stream's, the current one (DEVICE-1)."""
    if where is not None:
        return backends.open_device(where)  # type: ignore[arg-type]
    on_devices = (
        (subject, pointer)
        for subject, pointer in pointers
        if pointer.device not in ("host", "any")
        and (pointer.device != "cuda" or pointer.address)  # an empty one tells none
    )
    subject, first = next(on_devices, ("", None))
    owner = None if first is None else backends.owner_of(first)
    if owner is None or owner.partition(":")[0] not in backends.BACKENDS:  # no device has it: refused by its name
        owner = backends.device_of(stream) if stream is not None else None
        return backends.open_device(owner or backends.current_device())
    try:
        return backends.open_device(owner)
    except LaunchError as error:
        rule = f"expected memory that {backends.current_device()} can reach, it is on {owner}, which is not usable here"
        raise ContractValueError(subject, f"{rule} ({error})", clause="DEVICE-1") from error


def _check_names(kernel: Kernel, given: Mapping[str, object], device: Device) -> None:
    if given:
        known = [*device.options, *_LAUNCH_OPTIONS]
        check_option_names(given, known, kernel.__name__, kernel.signature.names, device.name)


def compiled_for(call: Call, check: Callable[[], None] = lambda: None) -> CompiledKernel:
    """Look a launch's binary up by its identity, in memory and on disk, or compile it: once for all threads (THREAD-1).

    Parameters
    ----------
    call
        The launch, bound.
    check
        Refuses to compile for it.
    """
    kernel, device = call.kernel, call.device
    if call.arguments.has_descriptors:
        raise UnsupportedError(
            f"kernel {kernel.__name__!r}",
            "binaries that take tensor descriptors are compiled and launched by Triton",
            remedy="Launch the kernel itself.",
            clause="ARG-3",
            capability="descriptors",
        )
    with kernel.lock:
        source = kernel.source(device)
        key = key_of(call, source)
        compiled = kernel.compiled.get(key)
        if compiled is not None:
            return compiled
        began = time.perf_counter_ns()
        binary, origin = _binary_of(call, source, key, check)
        elapsed_ns = time.perf_counter_ns() - began
        told = compiles.explained(kernel, device.name, key, origin, elapsed_ns)
        compiled = kernel.compiled[key] = kernel.make_compiled(key, binary, device)
    compiles.warn_of_storm(kernel, told)
    hooks.tell_of_compile(kernel, told)
    return compiled


def _binary_of(call: Call, source: Source, key: Key, check: Callable[[], None]) -> tuple[Binary, Origin]:
    """Find the binary, in memory where a function makes its kernel anew at each call, then on disk; or compile it."""
    device, kernel = call.device, call.kernel
    if not device.compiles:
        return device.compile(source, call.arguments, call.options, kernel.repr), "compiled"
    origin: Origin = "memory"
    binary = _binaries.get(key)
    if binary is None:
        check()
        binary, origin = stored.find(key), "disk"
    if binary is None:
        binary, origin = device.compile(source, call.arguments, call.options, kernel.repr), "compiled"
        if not source.was_steady():  # before anybody can find it under a key that tells other values
            rule = "captured values may not change in place while it is compiled"
            raise ContractValueError(f"kernel {kernel.__name__!r}", rule, remedy="Launch it again.", clause="STATE-1")
        stored.keep(key, kernel.__name__, binary)
    _binaries[key] = binary
    return binary, origin


_binaries: WeakValueDictionary[Key, Binary] = WeakValueDictionary()


def key_of(call: Call, source: Source) -> Key:
    """Give the identity of the binary that a launch of this source needs (KEY-1)."""
    facts = (*source.facts, *call.arguments.facts, *call.device.identity(call.options))
    if call.kernel.repr is not None and call.device.compiles:
        facts = (("name", typed(toolchain.chosen_name(call.kernel.repr, call.arguments))), *facts)
    return Key(facts)


def run(compiled: CompiledKernel, call: Call, programs: Grid, stream: StreamRef | None) -> CompiledKernel:
    """Hand a checked launch to the backend, between the hooks of whoever watches."""
    device, leaves = call.device, call.arguments.leaves
    is_waited_for = waits_for(call, stream)
    stream = stream_of(call, stream)
    kernel = device.load(compiled.binary, leaves, stream)
    desc = describe(compiled.metadata, programs, stream, kernel, leaves, (compiled,), is_waited_for)
    device.check_fits(desc, repr(call.kernel.__name__))
    observers = hooks.observers_of(call.kernel)
    if not observers:
        device.launch(desc)
    else:
        bound: Callable[[], dict[str, object]] = partial(dict, call.bound)
        told = observed(
            call.kernel, device, bound, programs, compiled.metadata, desc.kernel, stream.handle, compiled.hash
        )
        hooks.launched_under(observers, told, lambda: device.launch(desc))
    return compiled


def describe(
    metadata: KernelMetadata,
    programs: Grid,
    stream: StreamRef,
    kernel: object,
    leaves: Sequence[Leaf],
    keep: tuple[object, ...],
    is_waited_for: bool,
) -> LaunchDesc:
    """Put together all that crosses the boundary: what the kernel's metadata says, and what this launch adds."""
    x, y, z = programs
    return LaunchDesc(
        x,
        y,
        z,
        metadata.threads,
        metadata.shared,
        metadata.cluster,
        metadata.is_cooperative,
        metadata.is_programmatic,
        metadata.scratch_bytes,
        stream,
        kernel,
        leaves,
        keep,
        is_waited_for,
    )


def waits_for(call: Call, given: StreamRef | None) -> bool:
    """Whether a launch returns when results can be read: no stream is given, some are in host memory (STREAM-4)."""
    return given is None and any(call.device.is_host_memory(pointer) for _, pointer in call.arguments.pointers())


def stream_of(call: Call, given: StreamRef | None) -> StreamRef:
    """Give the stream of a launch: the one given, else that of the memory's library, else the default one."""
    if given is not None:
        return given
    pointers = [pointer for _, pointer in call.arguments.pointers()]
    return owners_stream(call.device, pointers, call.kernel.__name__) or call.device.default_stream()


def owners_stream(device: Device, pointers: Sequence[Pointer], kernel: str) -> StreamRef | None:
    """Give the stream that the library of the device pointers would use; None for host memory (STREAM-1)."""
    chosen = [device.accept_stream(pointer.stream) for pointer in pointers if pointer.stream is not None]
    if not all(device.is_same_stream(chosen[0], other) for other in chosen[1:]):
        raise ContractValueError(
            "stream",
            f"the tensors of {kernel!r} belong to different streams",
            remedy="Say which one with stream=.",
            clause="STREAM-1",
        )
    return chosen[0] if chosen else None


def observed(
    kernel: Kernel,
    device: Device,
    bound: Callable[[], dict[str, object]],
    programs: Grid,
    metadata: KernelMetadata,
    function: object,
    stream: int,
    digest: str,
) -> LaunchMetadata:
    """Give what observers may see of a launch, built when it is looked at (HOOK-4)."""

    def facts() -> dict[str, Any]:
        return {
            "name": metadata.name,
            "function": function,
            "stream": stream,
            "hash": digest,
            "grid": programs,
            "device": device.name,
            "num_warps": metadata.num_warps,
            "shared": metadata.shared,
            "arguments": bound(),
        }

    def own() -> dict[str, Any]:
        describes = kernel.launch_metadata
        returned: dict[str, Any] | None = describes(programs, metadata, bound()) if describes else None
        return returned or {}

    return LaunchMetadata(facts, own)


def check_programs(programs: Grid, metadata: KernelMetadata, device: Device) -> None:
    """Refuse more programs of a compiled kernel than one launch may have (GRID-7); products are exact.

    Its clusters count in the limit of each axis, and its threads in that of the whole launch.
    """
    limits = device.limits
    if metadata.cluster != (1, 1, 1):
        x, y, z = (limit // blocks for limit, blocks in zip(limits.programs, metadata.cluster, strict=True))
        canonical_grid(programs, dict, replace(limits, programs=(x, y, z)))
    x, y, z = programs
    if x * y * z * metadata.threads > limits.threads_in_launch:
        got = f"{x} x {y} x {z} programs of {metadata.threads} threads"
        rule = f"at most {limits.threads_in_launch} threads in one launch on {device.name}"
        raise ContractValueError("grid", rule, got, "Launch in parts.", "GRID-7")
