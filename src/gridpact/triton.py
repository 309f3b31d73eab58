"""Triton's own runtime on gridpact's devices: plain `@triton.jit` programs, unmodified, through our launcher.

    triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))

From then on `kernel[grid](...)` of Triton ends in a `Launcher` of the shape that Triton and its backends share: three
counts, a stream, a compiled kernel, its metadata, launch metadata, two hooks, the arguments. Nothing of Triton is
patched: a backend with a target name of its own is added to Triton's table, and the driver is made active by the
user.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from gridpact import backends, hooks, toolchain
from gridpact.arguments import ALIGNMENT, Leaf, Path, Pointer, TypeTree, check_writable, encode, pointer_of
from gridpact.backends.protocol import StreamRef
from gridpact.errors import ContractTypeError, ContractValueError, LaunchError, ResourceError, UnsupportedError
from gridpact.grid import Grid, canonical_grid
from gridpact.identity import typed
from gridpact.launch import Call, check_programs, describe, key_of, observed, owners_stream
from gridpact.metadata import KernelMetadata, check_fields
from gridpact.stream import TorchCurrent, current_stream

__all__ = ["Launcher", "benchmark", "driver", "hand_over", "register"]

_ENTRY: Final = "gridpact"
_TARGET: Final = "sycl"  # a name that no other backend of Triton answers to


def driver(device: str = "sycl:cpu") -> Any:
    """Give Triton's runtime a driver for a device of gridpact.

    Parameters
    ----------
    device
        Name of a SYCL or CUDA device.

    Returns
    -------
    A `triton.backends.driver.DriverBase`, for `triton.runtime.driver.set_active`. Set it before `@triton.autotune`
    decorates anything: Triton 3.3 asks the active driver right there.

    Raises
    ------
    UnsupportedError
        The device is not usable, or the installed Triton has no backend for it.
    """
    register()
    opened = backends.open_device(device)
    kind = opened.name.partition(":")[0]
    if kind not in ("sycl", "cuda"):
        raise UnsupportedError(device, "Triton's runtime compiles for SYCL and CUDA devices", capability="triton")
    return _driver_class(kind)(opened)


class Launcher:
    """The shared boundary's launcher: made once per compiled kernel, called once per launch.

    Parameters
    ----------
    device
        The device that it launches on.
    source
        What Triton compiled: `signature` (parameter -> type tree), `constants` and `attrs` by path.
    metadata
        The compiled kernel's metadata, after compilation (META-1).

    Raises
    ------
    UnsupportedError
        META-2 an option that the device cannot do, META-4 more threads or memory than it has; the latter is also
        Triton's `OutOfResources`, so that its autotuner drops the configuration.
    """

    def __init__(self, device: Any, source: Any, metadata: Any) -> None:
        self.device = device
        self.signature: Mapping[str, TypeTree] = source.signature
        self.constants: Mapping[Path, Any] = getattr(source, "constants", {})
        self.divisible = {path for path, facts in getattr(source, "attrs", {}).items() if _DIVISIBLE in facts}
        self.metadata = toolchain.kernel_metadata(metadata._asdict(), device.target)
        check_fields(self.metadata.fields, device, repr(metadata.name))
        try:
            device.check_resources(self.metadata, repr(metadata.name))
        except ResourceError as error:
            raise toolchain.out_of_resources(error) from error

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: object,
        function: toolchain.Binary,
        kernel_metadata: object,
        launch_metadata: object,
        enter_hook: Callable[[object], object] | None,
        exit_hook: Callable[[object], object] | None,
        *args: object,
    ) -> None:
        """Launch, or refuse by name; an empty grid is a launch of nothing that no hook sees (GRID-9).

        Memory of a library goes to that library's stream if none is current; Triton has told its hooks the default one
        by then, since it asks for the stream before it knows the arguments.
        """
        device = self.device
        x, y, z = canonical_grid((grid_x, grid_y, grid_z), dict, device.limits)
        leaves = list(self._leaves(args))
        check_programs((x, y, z), self.metadata, device)
        if 0 in (x, y, z):
            return
        pointers = [leaf.pointer for leaf in leaves if leaf.pointer is not None]
        given = current_stream() if stream is None else stream
        is_default = given is None or isinstance(given, (StreamRef, TorchCurrent))
        if is_default:
            usual = device.accept_stream(given) if isinstance(given, TorchCurrent) else device.default_stream()
            ref = owners_stream(device, pointers, self.metadata.name) or usual
        else:
            ref = device.accept_stream(given)
        is_waited_for = is_default and any(map(device.is_host_memory, pointers))
        kernel = device.load(function, leaves, ref)
        desc = describe(self.metadata, (x, y, z), ref, kernel, leaves, (function,), is_waited_for)
        device.check_fits(desc, repr(self.metadata.name))
        if enter_hook is not None:
            enter_hook(launch_metadata)
        try:
            device.launch(desc)
        finally:
            if exit_hook is not None:
                exit_hook(launch_metadata)

    def _leaves(self, args: Sequence[object]) -> Iterator[Leaf]:
        if len(args) != len(self.signature):
            raise ContractTypeError(
                f"kernel {self.metadata.name!r}", f"expected {len(self.signature)} arguments", len(args), clause="ARG-1"
            )
        for i, ((name, tree), value) in enumerate(zip(self.signature.items(), args, strict=True)):
            yield from self._leaf(f"argument {name!r} of {self.metadata.name!r}", (i,), tree, value)

    def _leaf(self, subject: str, path: Path, tree: TypeTree, value: Any) -> Iterator[Leaf]:
        if isinstance(tree, (tuple, list)):
            for i, (item, part) in enumerate(zip(tree, value, strict=True)):
                yield from self._leaf(f"item {i} of {subject}", (*path, i), item, part)
        elif tree == "constexpr":
            if type(value) in (int, bool, float, str) and typed(value) != typed(self.constants.get(path, value)):
                raise self._built_for(subject, f"the constant {self.constants[path]!r}", value)
        elif not tree.startswith("*"):
            kind = "i1" if tree == "u1" else tree
            leaf = Leaf(subject, kind, encode(subject, kind, value))
            if path in self.divisible and value % ALIGNMENT:
                raise self._built_for(subject, f"multiples of {ALIGNMENT}", value)
            yield leaf
        else:
            yield self._pointer(subject, path, tree, value)

    def _pointer(self, subject: str, path: Path, tree: str, value: Any) -> Leaf:
        dtype = tree.removeprefix("*k").removeprefix("*")
        is_address = isinstance(value, int)
        pointer = Pointer(dtype, value, "any", False, None) if is_address else pointer_of(subject, value)
        if pointer is None:
            raise ContractTypeError(subject, f"compiled for {tree}, expected a tensor", value, clause="ARG-3")
        if pointer.dtype != dtype and (dtype, pointer.dtype) != ("u1", "i1"):
            raise ContractTypeError(subject, f"compiled for {tree}", f"*{pointer.dtype}", clause="ARG-3")
        check_writable(subject, pointer, is_const=tree.startswith("*k"))
        self.device.check_reach(subject, pointer)
        if path in self.divisible and pointer.address % ALIGNMENT:
            raise self._built_for(subject, f"addresses that are multiples of {ALIGNMENT}", hex(pointer.address))
        return Leaf(subject, tree, pointer.address, pointer)

    def _built_for(self, subject: str, fact: str, got: object) -> ContractValueError:
        """Tell that the binary was built on a fact that does not hold (SPEC-1)."""
        return ContractValueError(
            subject, f"this binary was built for {fact}", got, "Launch the kernel itself, which picks one.", "SPEC-1"
        )


_DIVISIBLE: Final = ["tt.divisibility", ALIGNMENT]


def hand_over(call: Call, programs: Grid, stream: StreamRef, is_waited_for: bool) -> Any:
    """Make a checked launch through Triton's own launcher, which packs what ours does not yet: tensor descriptors.

    Arguments, options, grid, stream and device were judged as for any launch; observers watch it as they do any.

    Raises
    ------
    UnsupportedError
        ARG-3: no CUDA device, or no torch. GRID-8: 2^31 programs or more, which that launcher would skip in silence.
    ContractError
        CAPTURE-1: the stream is captured.
    """
    device: Any = call.device
    subject = f"kernel {call.kernel.__name__!r}"
    if not device.name.startswith("cuda") or "torch" not in sys.modules:
        rule = "tensor descriptors are arguments on CUDA devices alone, where torch is in use"
        raise UnsupportedError(subject, rule, clause="ARG-3", capability="descriptors")
    import torch

    x, y, z = programs
    if x * y * z >= _COUNTED_BY_TRITON:
        rule = f"less than {_COUNTED_BY_TRITON} programs with tensor descriptors, which Triton's own launcher counts"
        raise UnsupportedError("grid", rule, f"{x} x {y} x {z}", "Launch in parts.", "GRID-8", "descriptors")
    device.check_may_load(stream, subject)  # whether Triton would have to, it does not tell
    source = call.kernel.source(device)
    theirs = call.kernel.of_triton(source, key_of(call, source), device.target)
    options = {name: value for name, value in call.options.items() if value != device.options[name].default}
    with torch.cuda.device(device.ordinal), torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        compiled = theirs.warmup(**call.bound, **options, grid=programs)
        metadata = toolchain.kernel_metadata(compiled.metadata._asdict(), device.target)
        device.check_resources(metadata, subject)
        check_programs(programs, metadata, device)
        if 0 in programs:
            return compiled

        def launch() -> None:
            theirs[programs](**call.bound, **options)
            device.hold(call.arguments.leaves, stream)

        bound: Callable[[], dict[str, object]] = partial(dict, call.bound)
        told = observed(call.kernel, device, bound, programs, metadata, compiled.function, stream.handle, compiled.hash)
        hooks.launched_under(hooks.own_observers_of(call.kernel), told, launch)
    if is_waited_for:
        torch.cuda.ExternalStream(stream.handle, device=device.ordinal).synchronize()
    return compiled


_COUNTED_BY_TRITON: Final = 2**31  # its launcher multiplies the axes as ints


def benchmark(
    call: Callable[[], object],
    quantiles: Sequence[float] | None = None,
    *,
    wait: Callable[[], None] = backends.synchronize,
    **_: object,
) -> Any:
    """Time a launch for Triton's autotuner: a first call to compile, then up to 25 calls or a tenth of a second.

    Parameters
    ----------
    call
        Makes the launch.
    quantiles
        Of the times that are wanted; the median if not given.
    wait
        Waits until it is complete.

    Returns
    -------
    Milliseconds per call: one number for each quantile, or the median.
    """
    call()
    wait()
    elapsed_ms: list[float] = []
    begin = time.perf_counter()
    while (len(elapsed_ms) < 25 and time.perf_counter() - begin < 0.1) or not elapsed_ms:
        start = time.perf_counter()
        call()
        wait()
        elapsed_ms.append((time.perf_counter() - start) * 1e3)
    elapsed_ms.sort()
    at = [elapsed_ms[round(q * (len(elapsed_ms) - 1))] for q in (quantiles or (0.5,))]
    return at if quantiles else at[0]


@cache
def register() -> None:
    """Add gridpact's row to Triton's table of backends, once.

    Its driver calls itself active where no other is, and then serves `@triton.autotune` with a benchmark; asked for a
    device, it names the remedy. So kernels of gridpact can be tuned on a machine without a GPU, and plain Triton
    programs run nowhere that the user did not name.
    """
    import triton.backends

    triton.backends.backends[_ENTRY] = triton.backends.Backend(_compiler_class(), _stand_in_class())


@cache
def _compiler_class() -> type:
    import triton.backends

    base = triton.backends.backends.get("intel")
    if base is None:

        class Nothing:
            """The compiler of a Triton without Intel's backend: serves no target."""

            @staticmethod
            def supports_target(target: Any) -> bool:
                return False

        return Nothing

    class SyclCompiler(toolchain.deviceless(base.compiler)):  # type: ignore[misc]
        """Intel's backend for the target name `sycl`, made without a device."""

        @staticmethod
        def supports_target(target: Any) -> bool:
            return bool(target.backend == _TARGET)

        @staticmethod
        def get_arg_specialization(arg: Any, ty: str, **kwargs: Any) -> str:
            """Judge alignment as Triton does, of any tensor that gridpact takes."""
            if ty == "tensor":
                try:
                    pointer = pointer_of("argument", arg)
                except LaunchError:
                    return ""  # the launcher refuses it by name
                return "D" if pointer is not None and pointer.address % ALIGNMENT == 0 and kwargs.get("align") else ""
            return str(base.compiler.get_arg_specialization(arg, ty, **kwargs))

        def add_stages(self, stages: dict[str, Any], options: Any) -> None:
            """Take Intel's stages, and refuse before them what would abort the process."""
            super().add_stages(stages, options)
            lower = stages["llir"]
            stages["llir"] = lambda module, metadata: lower(_checked(module), metadata)

        def hash(self) -> str:
            return f"gridpact-{toolchain.installed().full_version}-{sorted(self.properties.items())}"

    return SyclCompiler


def _checked(module: Any) -> Any:
    for name in re.findall(r"tt\.func public @(\w+)\(", str(module)):
        if toolchain.is_library_function(name):
            raise UnsupportedError(
                f"kernel {name!r}",
                "the device's library has a function of that name",
                remedy="Rename it.",
                capability="kernel_name",
            )
    return module


@cache
def _stand_in_class() -> type:
    from triton.backends import backends as table
    from triton.backends.driver import DriverBase

    def refuse(self: Any, *args: object, **kwargs: object) -> Any:
        raise UnsupportedError(
            "triton",
            "no driver of Triton is active in this process",
            remedy='Make one active: triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu")).',
            capability="driver",
        )

    def is_active(cls: type) -> bool:
        return not any(entry.driver.is_active() for name, entry in table.items() if name != _ENTRY)

    # Each version of Triton has other abstract methods; all of them name the remedy, and so does any other attribute.
    members: dict[str, Any] = dict.fromkeys(DriverBase.__abstractmethods__, refuse)
    members |= {
        "__doc__": "What Triton finds where nobody made a driver active and there is no GPU.",
        "__getattr__": refuse,
        "is_active": classmethod(is_active),
        "get_benchmarker": lambda self: benchmark,
    }
    return type("StandIn", (DriverBase,), members)


@cache
def _driver_class(kind: str) -> type:
    """Make Triton's view of one device of gridpact's, of a kind: `sycl` or `cuda`."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class Driver(DriverBase):  # type: ignore[misc]
        """What every device has."""

        def __init__(self, device: Any) -> None:
            self.device = device
            self.ordinal: int = getattr(device, "ordinal", 0)
            self.utils = self
            self.launcher_cls = lambda source, metadata: Launcher(device, source, metadata)

        @classmethod
        def is_active(cls) -> bool:
            return False  # only by set_active

        def get_current_device(self) -> int:
            return self.ordinal

        def set_current_device(self, index: int) -> None:
            if index != self.ordinal:
                raise ContractTypeError("device", f"{self.device.name} is the only one", index, clause="DEVICE-1")

        def get_benchmarker(self) -> Callable[..., Any]:
            return partial(benchmark, wait=self.device.synchronize)

    class Sycl(Driver):
        """Through our own target name, which our compiler serves."""

        def get_current_target(self) -> Any:
            return GPUTarget(_TARGET, dict(self.device.target.arch), self.device.target.threads_per_warp)

        def get_current_stream(self, index: int) -> object:
            given = current_stream()
            return self.device.default_stream() if given is None else given

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        # Triton calls these two on `driver.utils`.

        def get_device_properties(self, index: int) -> dict[str, Any]:
            found = self.device.found
            return {
                "max_shared_mem": found.local_bytes,
                "multiprocessor_count": found.compute_units,
                "max_work_group_size": found.threads,
                "sub_group_sizes": list(found.sub_group_sizes),
            }

        def load_binary(self, name: str, code: bytes, shared: int, build_flags: str, index: int) -> tuple[Any, ...]:
            """Wrap the binary; it is loaded at its first launch, where arguments are known to be checked against it."""
            metadata = KernelMetadata(name, shared=shared, build_flags=build_flags)
            binary = toolchain.Binary({"spv": bytes(code)}, "spv", metadata)
            return binary, binary, 0, 0

    class Cuda(Driver):
        """Through NVIDIA's backend of the installed Triton."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", self.device.target.arch, self.device.target.threads_per_warp)

        def get_current_stream(self, index: int) -> object:
            given = current_stream()
            if given is None:  # torch's, where torch is in use: its programs expect no other
                return TorchCurrent("cuda", index) if "torch" in sys.modules else self.device.default_stream()
            return given

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", self.ordinal)

        def get_device_properties(self, index: int) -> dict[str, Any]:
            return {
                "max_shared_mem": self.device.limits.shared_bytes,
                "multiprocessor_count": self.device.processors,
                "warpSize": self.device.target.threads_per_warp,
            }

        def load_binary(self, name: str, code: bytes, shared: int, index: int) -> tuple[Any, ...]:
            """Wrap the binary as above; 3.6 and later also ask for the most threads of a program."""
            binary = toolchain.Binary({"cubin": bytes(code)}, "cubin", KernelMetadata(name, shared=shared))
            known = (binary, binary, 0, 0)
            return known if toolchain.installed().version < (3, 6) else (*known, self.device.limits.threads)

    made: type = {"sycl": Sycl, "cuda": Cuda}[kind]
    missing = made.__abstractmethods__  # type: ignore[attr-defined]
    # Each version of Triton has other abstract methods, for parts of it that gridpact takes the place of.
    return type(kind.capitalize(), (made,), dict.fromkeys(missing, _unneeded)) if missing else made


def _unneeded(self: Any, *args: object, **kwargs: object) -> Any:
    """Refuse what Triton's own launchers alone ask their driver."""
    raise UnsupportedError("triton", "gridpact's launcher has no such part", capability="driver")
