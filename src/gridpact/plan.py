"""What a launch would be on a target, with no device: its geometry, its metadata, and the limits that it keeps.

A kernel is compiled for the target and the launch path's own checks are asked; nothing is launched, and no driver is
opened. What only a device knows (Intel's limits, registers, occupancy) is said to be unknown, never guessed.

Limits are those of architectures, from public documentation: the CUDA C++ Programming Guide (compute capabilities), the
ROCm documentation (GPU specifications) and the HIP documentation (`hipModuleLaunchKernel`).
"""

from __future__ import annotations

import ast
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from gridpact import launch, toolchain
from gridpact.arguments import ALIGNMENT, SIZES, Classified, Pointer, classify
from gridpact.backends import sycl
from gridpact.backends.protocol import Device, Limits
from gridpact.errors import BackendError, ContractTypeError, ContractValueError, LaunchError
from gridpact.grid import Grid, canonical_grid
from gridpact.jit import Kernel, jit
from gridpact.metadata import (
    KernelMetadata,
    Option,
    Policy,
    check_option_names,
    lacking_resources,
    nearest_name,
    option_table,
    power_of_two,
    resolve_options,
)
from gridpact.state import Source, jitted_function

__all__ = ["TARGETS", "Asked", "Check", "Field", "Plan", "plan_launch", "read_grid", "read_launch", "read_options"]

_UNKNOWN: Final = 2**64  # keeps every check, and is shown as what only the device knows
_UNLIMITED: Final = 2**96  # more threads than any grid has that keeps its axes' limits


# ---------------------------------------------------------------------------------------------------------- policies

_APPLIED: Final[tuple[Policy, str]] = ("applied", "")
_COMPUTE: Final = (
    "num_warps", "num_stages", "enable_fp_fusion", "launch_cooperative_grid", "supported_fp8_dtypes",
    "deprecated_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "default_dot_input_precision",
    "allowed_dot_input_precisions", "extern_libs", "debug", "sanitize_overflow",
)  # fmt: skip
_BOTH: Final[dict[str, tuple[Policy, str]]] = {
    **dict.fromkeys(_COMPUTE, _APPLIED),
    "arch": ("default only", "the target says it"),
    "backend_name": ("default only", "it is not a choice"),
    "instrumentation_mode": ("default only", "sanitizers need Triton's own launcher"),
    "fpsan_homomorphic_casts": ("irrelevant", "it takes effect under instrumentation_mode alone"),
}
# What becomes of each option of the backends of Triton 3.3, 3.6 and 3.9, as their compilers and launchers have it.
_CUDA: Final[dict[str, tuple[Policy, str]]] = {
    **_BOTH,
    **dict.fromkeys(
        ("maxnreg", "ptx_version", "ptx_options", "enable_reflect_ftz", "sched4reg", "launch_pdl", "min_shared_mem"),
        _APPLIED,
    ),
    "num_ctas": _APPLIED,
    "clc": _APPLIED,
    "cluster_dims": ("default only", "the compiler makes it of num_ctas"),
    "warp_size": ("default only", "a warp has 32 lanes"),
    "ir_override": ("default only", "gridpact compiles the kernel's own source"),
    "max_num_imprecise_acc_default": ("default only", "the backend sets it by the architecture"),
}
_HIP: Final[dict[str, tuple[Policy, str]]] = {
    **_BOTH,
    **dict.fromkeys(
        ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "allow_flush_denorm", "instruction_sched_variant",
         "schedule_hint", "llvm_fn_attrs"),
        _APPLIED,
    ),
    "num_ctas": ("default only", "CDNA has no clusters of work-groups"),
    "cluster_dims": ("default only", "CDNA has no clusters of work-groups"),
    "wgp_cu_mode": ("irrelevant", "CDNA has one mode alone"),
    "max_num_imprecise_acc_default": ("irrelevant", "it concerns NVIDIA's sm_90 alone"),
}  # fmt: skip
# Fields that are no options: the compiler adds them, and a launch reads them.
_MADE: Final[dict[str, tuple[Policy, str]]] = {
    **dict.fromkeys(
        ("name", "shared", "build_flags", "warp_size", "tensordesc_meta", "global_scratch_size",
         "global_scratch_align", "profile_scratch_size", "profile_scratch_align"),
        _APPLIED,
    ),
    "tmem_size": ("irrelevant", "the kernel allocates its tensor memory itself"),
    "base_arch": ("irrelevant", "it is arch again"),
    "target": ("irrelevant", "it is what was asked for"),
    "hash": ("irrelevant", "gridpact has an identity of its own"),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True)
class _Platform:
    """A target without its device: as much of a `Device` as a plan needs."""

    name: str
    target: toolchain.Target
    limits: Limits
    origin: str
    compiles = True

    @property
    def device(self) -> Device:
        """Pass as a device to functions of the launch path that read name, limits, options and `compiles` alone."""
        return cast("Device", self)

    @cached_property
    def options(self) -> Mapping[str, Option]:
        raise NotImplementedError

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        """Give what the driver is called with, by its own words."""
        raise NotImplementedError

    def limits_for(self, metadata: KernelMetadata) -> Limits:
        """Give the limits of programs for a kernel, which has threads and clusters."""
        return self.limits


class _Xpu(_Platform):
    """SYCL; limits of threads and memory differ between Intel's devices, so that only the device knows them."""

    _SUB_GROUPS: Final = (16, 32)

    def __init__(self) -> None:
        # No property of the target but the sub-group sizes reaches the compiler.
        target = sycl.target_of("xpu", 1024, True, self._SUB_GROUPS, inlines_all=False)
        limits = Limits("xpu", (sycl.PROGRAMS_PER_AXIS,) * 3, _UNKNOWN, _UNKNOWN, sycl.THREADS_IN_LAUNCH)
        origin = "Triton's and SYCL's; an Intel device's own are known with the device"
        super().__init__("xpu", target, limits, origin)

    @cached_property
    def options(self) -> Mapping[str, Option]:
        return sycl.options_of(self.target, self._SUB_GROUPS)

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        global_zyx, local_zyx = sycl.ranges_zyx(x, y, z, metadata.threads)
        return {"global range (z, y, x)": global_zyx, "local range (z, y, x)": local_zyx}


# CUDA C++ Programming Guide 13, table "Memory Information per Compute Capability": KiB of shared memory per block, with
# opt-in. Capabilities that Triton 3.3, 3.6 and 3.9 all compile for: LLVM aborts the process on others.
_CUDA_SHARED_KIB: Final = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}
# The same guide, table "Device and Streaming Multiprocessor (SM) Information per Compute Capability".
_CUDA_PROGRAMS: Final = (2**31 - 1, 65535, 65535)


class _Cuda(_Platform):
    """An NVIDIA architecture, by compute capability."""

    def __init__(self, capability: int) -> None:
        name, shared = f"cuda:{capability}", _CUDA_SHARED_KIB[capability] * 1024
        limits = Limits(name, _CUDA_PROGRAMS, 1024, shared, _UNLIMITED)
        target = toolchain.Target("cuda", capability, 32)
        super().__init__(name, target, limits, "the architecture's, from the CUDA C++ Programming Guide")

    @cached_property
    def options(self) -> Mapping[str, Option]:
        capability, policies = cast("int", self.target.arch), dict(_CUDA)
        if capability < 90:
            policies["num_ctas"] = ("default only", "clusters need compute capability 9.0")
        if capability < 100:
            policies["clc"] = ("default only", "it needs compute capability 10.0")
        return option_table(toolchain.option_defaults(self.target), policies, {"num_ctas": power_of_two})

    def _cluster(self, metadata: KernelMetadata) -> tuple[int, ...]:
        return tuple(metadata.fields.get("cluster_dims") or (metadata.num_ctas, 1, 1))

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        cluster = self._cluster(metadata)
        grid = tuple(count * size for count, size in zip((x, y, z), cluster, strict=True))
        return {"grid": grid, "block": (metadata.threads, 1, 1), "cluster": cluster}

    def limits_for(self, metadata: KernelMetadata) -> Limits:
        """Count in clusters: a program is one, and CUDA's grid counts their blocks."""
        x, y, z = (limit // size for limit, size in zip(_CUDA_PROGRAMS, self._cluster(metadata), strict=True))
        return replace(self.limits, programs=(x, y, z))


# ROCm documentation, table "AMD GPU specifications": KiB of LDS; CDNA has 64 lanes and work-groups of 1024.
_HIP_LDS_KIB: Final = {"gfx90a": 64, "gfx942": 64, "gfx950": 160}
_HIP_THREADS_PER_AXIS: Final = 2**32 - 1  # HIP documentation, hipModuleLaunchKernel: gridDim x blockDim below 2^32


class _Hip(_Platform):
    """An AMD architecture of CDNA, by its LLVM name."""

    def __init__(self, arch: str) -> None:
        name, shared = f"hip:{arch}", _HIP_LDS_KIB[arch] * 1024
        # hipDeviceProp_t::maxGridSize; y and z are 65535 or 65536 by HIP's version, the lower is right in each.
        limits = Limits(name, (2**31 - 1, 65535, 65535), 1024, shared, _UNLIMITED)
        super().__init__(
            name, toolchain.Target("hip", arch, 64), limits, "the architecture's, from the ROCm and HIP documentation"
        )

    @cached_property
    def options(self) -> Mapping[str, Option]:
        policies = dict(_HIP)
        if self.target.arch == "gfx950":
            policies["kpack"] = ("default only", "Triton sets it to 1 on gfx950")
        if toolchain.installed().version >= (3, 9):
            policies["schedule_hint"] = ("irrelevant", "Triton 3.9 reads it no longer")
        return option_table(toolchain.option_defaults(self.target), policies, {})

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        return {"grid": (x, y, z), "block": (metadata.threads, 1, 1)}

    def limits_for(self, metadata: KernelMetadata) -> Limits:
        """Heed that HIP counts threads along an axis in 32 bits."""
        x, y, z = self.limits.programs
        return replace(self.limits, programs=(min(x, _HIP_THREADS_PER_AXIS // metadata.threads), y, z))


_PLATFORMS: Final[dict[str, Callable[[], _Platform]]] = {
    "xpu": _Xpu,
    **{f"cuda:{capability}": partial(_Cuda, capability) for capability in _CUDA_SHARED_KIB},
    **{f"hip:{arch}": partial(_Hip, arch) for arch in _HIP_LDS_KIB},
}
TARGETS: Final = tuple(_PLATFORMS)
"""Names of the targets whose limits are known: `xpu`, `cuda:90`, `hip:gfx942`, ..."""


# ------------------------------------------------------------------------------------------------- what is asked for


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
        kernel, whose arguments are taken; launches of other `gridpact.jit` kernels are skipped. What it prints goes to
        stderr.
    signature
        `NAME=WHAT,...` instead: `*fp32` a pointer, `i32`, `i64`, `fp32`, ... a number, `:16` behind either divisible by
        16, a Python literal the value itself. Parameters left out take their defaults.

    Raises
    ------
    ContractError
        No such file or function, no kernel, a misspelt signature, or a file that does not launch it.
    """
    file, _, function = where.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not function.isidentifier():
        raise ContractValueError("kernel", "expected FILE.py:FUNCTION", where)
    if not path.is_file():
        raise ContractValueError("file", "expected one that exists", file)
    found, launched = _run(path, function, "__plan__")
    kernel = _kernel_named(function, found, path)
    if signature:
        return _asked(kernel, (), _signature_values(kernel, signature))
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

    def watch(kernel: Kernel, grid: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if _unwrapped(getattr(module, function, None)) is kernel:
            seen.append(_asked(kernel, args, kwargs, grid))
            raise _Stop

    before, main = (sys.argv, sys.path, launch.launch), sys.modules.get(name)
    sys.modules[name], sys.argv, sys.path = module, [str(path)], [str(path.parent), *sys.path]
    launch.launch = watch  # type: ignore[assignment]
    try:
        with redirect_stdout(sys.stderr):
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit, _Stop) as error:
        if not seen:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            place = f" in line {lines[-1]}" if lines else ""
            rule = f"expected to run until it launches {function!r}, got {_told(error, place)}"
            raise ContractValueError(f"file {path.name!r}", rule, remedy=remedy) from error
    finally:
        sys.argv, sys.path, launch.launch = before
        if main is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = main
    return module.__dict__, seen[0] if seen else None


def _told(error: BaseException, place: str = "") -> str:
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


def _asked(kernel: Kernel, args: tuple[object, ...], given: Mapping[str, object], grid: object = None) -> Asked:
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
        values[name] = _value_of(f"argument {name!r} of {kernel.__name__!r}", what)
        if what.partition(":")[0].removeprefix("*") in _ELEMENTS:
            types[name] = what
    asked = _asked(kernel, (), values)
    for name, what in types.items():
        if asked.spelled[name] != what:
            is_constant = asked.arguments.types[name] == "constexpr"
            rule = "a constexpr is a Python literal" if is_constant else f"a launch passes it as {asked.spelled[name]}"
            raise ContractTypeError(f"argument {name!r} of {kernel.__name__!r}", rule, what, clause="ARG-2")
    return values


_ELEMENTS: Final = (*SIZES, "fp8e5", "fp8e4nv", "fp8e4b15", "fp8e5b16", "fp8e4b8")


def _value_of(subject: str, what: str) -> object:
    """Give a value of a type, which is neither 1 nor, unless asked for, divisible by 16; or the value of a literal."""
    kind, colon, divisor = what.partition(":")
    element = kind.removeprefix("*")
    if element in _ELEMENTS and (not colon or divisor == str(ALIGNMENT)):
        if kind != element:
            return Pointer(element, 0 if colon else 1, "any", False, None)
        if kind == "i1" or kind[0] not in "iu":
            return True if kind == "i1" else 0.5
        return {"i64": 2**32, "u64": 2**63}.get(kind, 0) + (ALIGNMENT if colon else 2)
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


# ---------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Check:
    """One limit of a target, and what the launch needs of it.

    Attributes
    ----------
    subject
        What is limited, with its unit.
    need, limit
        In that unit; the limit is None where only the device knows it.
    error
        The sentence that would refuse the launch; None if the limit is kept, or not known.
    """

    subject: str
    need: int
    limit: int | None
    error: LaunchError | None


@dataclass(frozen=True)
class Field:
    """One metadata field of the toolchain: its value in this launch, and what becomes of it on the target.

    Attributes
    ----------
    policy
        That of `metadata.Option`, or `unknown` for a field that no table of gridpact has.
    reason
        Why it is not applied.
    """

    name: str
    value: object
    policy: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What would be launched on a target.

    Attributes
    ----------
    target
        Its name, such as `cuda:90`.
    programs
        (x, y, z).
    geometry
        What the driver would be called with, in its words and order: `grid`, `block`, `global range (z, y, x)`, ...
    metadata
        Of the compiled kernel; all of its shared memory is allocated by the launch, the binary declares none.
    origin
        Where the limits come from.
    """

    target: str
    programs: Grid
    geometry: Mapping[str, tuple[int, ...]]
    metadata: KernelMetadata
    fields: tuple[Field, ...]
    checks: tuple[Check, ...]
    origin: str

    @property
    def errors(self) -> list[LaunchError]:
        """What would refuse this launch."""
        return [check.error for check in self.checks if check.error is not None]


def plan_launch(asked: Asked, target: str, grid: object = None, options: Mapping[str, Any] | None = None) -> Plan:
    """Say what a launch would be on a target. Nothing is launched, and no driver is opened.

    Parameters
    ----------
    asked
        The kernel and its arguments.
    target
        One of `TARGETS`.
    grid
        Programs per axis, x first; that of the launch in `asked` if not given.
    options
        Launch options by name, over those of the launch in `asked`.

    Raises
    ------
    ContractError
        No such target (DEVICE-1), no grid or a malformed one (GRID-1, 3, 6), an option that it has not (META-2, 3).
    UnsupportedError
        The installed Triton cannot compile for the target, or the target can do nothing but an option's default.
    BackendError
        The compiler failed.
    """
    if target not in _PLATFORMS:
        rule = "expected an architecture whose limits are known"
        raise ContractValueError("target", rule, target, nearest_name(target, TARGETS), "DEVICE-1")
    platform, kernel = _PLATFORMS[target](), asked.kernel
    given = {**asked.options, **(options or {})}
    check_option_names(given, platform.options, kernel.__name__, kernel.signature.names, target)
    resolved = resolve_options({**kernel.options(platform.device), **given}, platform.options, target)
    toolchain.resolved_options(platform.target, resolved)
    grid = asked.grid if grid is None else grid
    if grid is None:
        raise ContractTypeError(
            "grid", "no launch was seen that tells it", remedy="Give --grid, as in --grid 7,5,3.", clause="GRID-1"
        )
    unlimited = replace(platform.limits, programs=(_UNLIMITED,) * 3)
    try:
        programs = canonical_grid(grid, lambda: {**resolved, **asked.bound}, unlimited)
    except LaunchError:
        raise
    except Exception as error:  # of the file's own callable
        rule, remedy = f"the launch's callable raised {_told(error)}", "Give --grid, as in --grid 7,5,3."
        raise ContractValueError("grid", rule, remedy=remedy, clause="GRID-10") from error
    metadata = _compiled(asked, platform, resolved)
    return Plan(
        target,
        programs,
        platform.geometry(*programs, metadata),
        metadata,
        tuple(_field(name, value, platform.options) for name, value in metadata.fields.items()),
        tuple(_checks(programs, metadata, platform, repr(kernel.__name__))),
        platform.origin,
    )


def _compiled(asked: Asked, platform: _Platform, options: Mapping[str, Any]) -> KernelMetadata:
    kernel = asked.kernel
    try:
        with redirect_stdout(sys.stderr):  # Triton prints the assembly that ptxas refuses
            return toolchain.compile_kernel(
                kernel.source(platform.device), asked.arguments, platform.target, options, name=kernel.repr, links=False
            ).metadata
    except Exception as error:
        if not type(error).__module__.startswith("triton"):
            raise
        raise BackendError(f"kernel {kernel.__name__!r}", f"compiling for {platform.name}", str(error)) from error


def _field(name: str, value: object, options: Mapping[str, Option]) -> Field:
    option = options.get(name)
    if option is not None and option.is_known:
        return Field(name, value, option.policy, option.reason)
    return Field(name, value, *(_MADE.get(name) or ("unknown", "no table of gridpact has it")))


def _checks(programs: Grid, metadata: KernelMetadata, platform: _Platform, kernel: str) -> list[Check]:
    """Ask the launch path's own checks, one limit at a time."""
    limits = platform.limits_for(metadata)
    checks = []
    for axis, count, limit in zip("xyz", programs, limits.programs, strict=True):
        alone = tuple(count if other == axis else 1 for other in "xyz")
        checks.append(Check(f"grid.{axis}, programs", count, limit, _refusal(canonical_grid, alone, dict, limits)))
    if limits.threads_in_launch < _UNLIMITED:
        x, y, z = programs
        error = _refusal(launch.check_threads_in_launch, programs, metadata.threads, platform.device)
        need = x * y * z * metadata.threads
        checks.append(Check("threads in the launch", need, limits.threads_in_launch, error))
    lacking = {error.unit: error for error in lacking_resources(metadata, limits, kernel)}
    for subject, unit, need, limit in (
        ("threads of a program", "threads", metadata.threads, limits.threads),
        ("shared memory, bytes", "bytes", metadata.shared, limits.shared_bytes),
    ):
        checks.append(Check(subject, need, None if limit == _UNKNOWN else limit, lacking.get(unit)))
    return checks


def _refusal(check: Callable[..., object], *args: object) -> LaunchError | None:
    try:
        check(*args)
    except LaunchError as error:
        return error
    return None
