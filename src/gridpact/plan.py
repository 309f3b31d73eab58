"""What a launch would be on a target, with no device: its geometry, its metadata, and the limits that it keeps.

A kernel is compiled for the target and the launch path's own checks are asked; nothing is launched, and no driver is
opened. What only a device knows (Intel's limits, registers, occupancy) is said to be unknown, never guessed.

Limits are those of architectures, from public documentation: the CUDA C++ Programming Guide (compute capabilities), the
ROCm documentation (GPU specifications) and the HIP documentation (`hipModuleLaunchKernel`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, cast

from gridpact import launch, toolchain
from gridpact.arguments import Classified
from gridpact.asked import Asked, in_a_line
from gridpact.backends import cuda, sycl
from gridpact.backends.protocol import Device, Limits
from gridpact.errors import BackendError, ContractTypeError, ContractValueError, LaunchError, ResourceError
from gridpact.grid import Grid, canonical_grid
from gridpact.identity import Typed
from gridpact.metadata import (
    KernelMetadata,
    Option,
    Policy,
    check_option_names,
    lacking_resources,
    nearest_name,
    option_table,
    policy_of,
    resolve_options,
)
from gridpact.state import Source

__all__ = ["TARGETS", "Check", "Field", "Plan", "compile_asked", "plan_launch", "platform_of", "resolve_asked"]

_UNKNOWN: Final = 2**64  # keeps every check, and is shown as what only the device knows
_UNLIMITED: Final = 2**96  # more threads than any grid has that keeps its axes' limits


# ---------------------------------------------------------------------------------------------------------- policies

_APPLIED: Final[tuple[Policy, str]] = ("applied", "")
# What becomes of each option of AMD's backend in Triton 3.3, 3.6 and 3.9, as its compiler and launcher have it.
_HIP: Final[dict[str, tuple[Policy, str]]] = {
    **dict.fromkeys(
        (
            "num_warps", "num_stages", "enable_fp_fusion", "launch_cooperative_grid", "supported_fp8_dtypes",
            "deprecated_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "default_dot_input_precision",
            "allowed_dot_input_precisions", "extern_libs", "debug", "sanitize_overflow", "waves_per_eu",
            "matrix_instr_nonkdim", "kpack", "allow_flush_denorm", "instruction_sched_variant", "schedule_hint",
            "llvm_fn_attrs",
        ),
        _APPLIED,
    ),
    "arch": ("default only", "the target says it"),
    "backend_name": ("default only", "it is not a choice"),
    "instrumentation_mode": ("default only", "sanitizers need Triton's own launcher"),
    "fpsan_homomorphic_casts": ("irrelevant", "it takes effect under instrumentation_mode alone"),
    "num_ctas": ("default only", "CDNA has no clusters of work-groups"),
    "cluster_dims": ("default only", "CDNA has no clusters of work-groups"),
    "wgp_cu_mode": ("irrelevant", "CDNA has one mode alone"),
    "max_num_imprecise_acc_default": ("irrelevant", "it concerns NVIDIA's sm_90 alone"),
}  # fmt: skip
# Fields that are no options: the compiler adds them, and a launch reads them.
_HIP_FIELDS: Final[Mapping[str, Option]] = {
    **{
        name: Option(None, "applied")
        for name in ("name", "shared", "build_flags", "warp_size", "tensordesc_meta", "global_scratch_size",
                     "global_scratch_align", "profile_scratch_size", "profile_scratch_align")
    },
    "base_arch": Option("", "irrelevant", "it is arch again"),
    "target": Option(None, "irrelevant", "it is what was asked for"),
    "hash": Option("", "irrelevant", "gridpact has an identity of its own"),
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
    fields = _HIP_FIELDS

    @property
    def device(self) -> Device:
        """Pass as a device to what reads name, limits, options and `compiles` of one, or compiles for it."""
        return cast("Device", self)

    @cached_property
    def options(self) -> Mapping[str, Option]:
        raise NotImplementedError

    def identity(self, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
        """Give the facts of a key that target, toolchain and options make."""
        return toolchain.facts_of(self.target, options)

    def compile(self, source: Source, arguments: Classified, options: Mapping[str, Any], name: Any) -> toolchain.Binary:
        """Make the binary, or all of it that needs no linker of another vendor."""
        return toolchain.compile_kernel(source, arguments, self.target, options, name=name, links=False)

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        """Give what the driver is called with, by its own words."""
        raise NotImplementedError

    def further_checks(self, programs: Grid, metadata: KernelMetadata, kernel: str) -> list[Check]:
        """Give checks of what this target alone has; whether a cooperative grid fits, only the device knows."""
        if not metadata.fields.get("launch_cooperative_grid"):
            return []
        x, y, z = programs
        return [Check("programs at once, cooperative", x * y * z, None, None)]

    def limits_for(self, metadata: KernelMetadata) -> Limits:
        """Give the limits of programs for a kernel, which has threads and clusters."""
        return self.limits


class _Xpu(_Platform):
    """SYCL; limits of threads and memory differ between Intel's devices, so that only the device knows them."""

    _SUB_GROUPS: Final = (16, 32)
    fields = sycl.FIELDS

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

    fields = cuda.FIELDS

    def __init__(self, capability: int) -> None:
        name, shared = f"cuda:{capability}", _CUDA_SHARED_KIB[capability] * 1024
        limits = Limits(name, _CUDA_PROGRAMS, 1024, shared, _UNLIMITED)
        target = toolchain.Target("cuda", capability, 32)
        super().__init__(name, target, limits, "the architecture's, from the CUDA C++ Programming Guide")

    @cached_property
    def options(self) -> Mapping[str, Option]:
        return cuda.options_of(self.target)

    def geometry(self, x: int, y: int, z: int, metadata: KernelMetadata) -> dict[str, tuple[int, ...]]:
        cluster = metadata.cluster
        grid = tuple(count * size for count, size in zip((x, y, z), cluster, strict=True))
        return {"grid": grid, "block": (metadata.threads, 1, 1), "cluster": cluster}

    def limits_for(self, metadata: KernelMetadata) -> Limits:
        """Count in clusters: a program is one, and CUDA's grid counts their blocks."""
        x, y, z = (limit // size for limit, size in zip(_CUDA_PROGRAMS, metadata.cluster, strict=True))
        return replace(self.limits, programs=(x, y, z))

    def further_checks(self, programs: Grid, metadata: KernelMetadata, kernel: str) -> list[Check]:
        checks, need = super().further_checks(programs, metadata, kernel), math.prod(metadata.cluster)
        if need == 1:
            return checks
        limit = cuda.LARGEST_CLUSTER if need > cuda.PORTABLE_CLUSTER else cuda.PORTABLE_CLUSTER
        error = (
            ResourceError(f"cluster of {kernel}", need, limit, "blocks", "Lower num_ctas.") if need > limit else None
        )
        return [*checks, Check("blocks of a cluster", need, limit, error)]


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
    platform, kernel = platform_of(target), asked.kernel
    resolved = resolve_asked(asked, platform.device, options or {})
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
        rule, remedy = f"the launch's callable raised {in_a_line(error)}", "Give --grid, as in --grid 7,5,3."
        raise ContractValueError("grid", rule, remedy=remedy, clause="GRID-10") from error
    metadata = compile_asked(asked, platform.device, resolved).metadata
    return Plan(
        target,
        programs,
        platform.geometry(*programs, metadata),
        metadata,
        tuple(_field(name, value, platform) for name, value in metadata.fields.items()),
        tuple(_checks(programs, metadata, platform, repr(kernel.__name__))),
        platform.origin,
    )


def platform_of(target: str) -> _Platform:
    """Give a target by its name, or refuse one whose limits are not known (DEVICE-1)."""
    if target not in _PLATFORMS:
        rule = "expected an architecture whose limits are known"
        raise ContractValueError("target", rule, target, nearest_name(target, TARGETS), "DEVICE-1")
    return _PLATFORMS[target]()


def resolve_asked(asked: Asked, device: Device, options: Mapping[str, Any]) -> dict[str, Any]:
    """Give the options of a launch as a device takes them, those given over those of the launch (META-2, 3)."""
    kernel, given = asked.kernel, {**asked.options, **options}
    check_option_names(given, device.options, kernel.__name__, kernel.signature.names, device.name)
    resolved = resolve_options({**kernel.options(device), **given}, device.options, device.name)
    device.identity(resolved)  # the toolchain may refuse a value, too
    return resolved


def compile_asked(asked: Asked, device: Device, options: Mapping[str, Any]) -> toolchain.Binary:
    """Compile the kernel of a launch with resolved options; what the compiler says is a `BackendError`."""
    kernel = asked.kernel
    try:
        with redirect_stdout(sys.stderr):  # Triton prints the assembly that ptxas refuses
            return device.compile(kernel.source(device), asked.arguments, options, kernel.repr)
    except Exception as error:
        if not type(error).__module__.startswith("triton"):
            raise
        raise BackendError(f"kernel {kernel.__name__!r}", f"compiling for {device.name}", str(error)) from error


def _field(name: str, value: object, platform: _Platform) -> Field:
    option = policy_of(name, platform.device)
    if option is None or not option.is_known:
        return Field(name, value, "unknown", "no table of gridpact has it")
    return Field(name, value, option.policy, option.reason)


def _checks(programs: Grid, metadata: KernelMetadata, platform: _Platform, kernel: str) -> list[Check]:
    """Ask the launch path's own checks, one limit at a time."""
    limits = platform.limits_for(metadata)
    checks = []
    for axis, count, limit in zip("xyz", programs, limits.programs, strict=True):
        alone = tuple(count if other == axis else 1 for other in "xyz")
        checks.append(Check(f"grid.{axis}, programs", count, limit, _refusal(canonical_grid, alone, dict, limits)))
    if limits.threads_in_launch < _UNLIMITED:
        x, y, z = programs
        error = _refusal(launch.check_programs, programs, metadata, platform.device)
        need = x * y * z * metadata.threads
        checks.append(Check("threads in the launch", need, limits.threads_in_launch, error))
    checks += platform.further_checks(programs, metadata, kernel)
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
