"""META: executable metadata, that is, what a launch depends on beside its arguments and its grid."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import (
    Array,
    check_coordinates,
    check_refused,
    launch,
    poisoned,
    require,
    require_within_limits,
    same,
)
from gridpact.conformance.model import Unguarded, Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Observed, Subject
from gridpact.errors import UnsupportedError
from gridpact.jit import CompiledKernel
from gridpact.metadata import policy_of

clause(
    "META-1",
    "triton",
    "Launch geometry comes from the metadata after compilation (which may differ from what was asked: warp "
    "specialization raises num_warps, Intel rewrites threads_per_warp), never from the call site or the device's "
    "defaults.",
    "A binary for 8 warps that is run with 4 computes half of each block, and the call succeeds.",
)
clause(
    "META-2",
    "guardrail",
    "Every metadata field has one declared policy per backend: applied, refused unless default, or irrelevant "
    "(with the reason). The product prints it and a case proves each row. Nothing is accepted and then ignored.",
    "Whoever sets an option that is ignored believes in a result that nobody computed.",
)
clause(
    "META-3",
    "triton",
    "An option that the backend does not know is refused by name, with the nearest known name (our own rule).",
    "A misspelt num_warps would run, only slower.",
)
clause(
    "META-4",
    "guardrail",
    "Resources (threads per program, shared bytes, cooperative co-residency, cluster size) are checked against "
    "the device before the driver call; the error carries need and limit as attributes.",
    "A driver says 'out of resources', and names neither; a tuner cannot tell it from a broken kernel.",
)
clause(
    "META-5",
    "triton",
    "On SYCL: global range = (z, y, x * threads), local range = (1, 1, threads), threads = num_warps * "
    "threads_per_warp. Observed, not asserted: a probe kernel in the driver's own language is the launcher's "
    "function and writes the global, local and group counts that the device gave it, x first. Likewise on CUDA.",
    "A launcher that exchanges axes of the range is right on every cubic grid.",
)

clause(
    "META-6",
    "triton",
    "Executable and observational metadata are two things: the same launch with launch metadata absent, empty or "
    "hostile reaches the driver with identical geometry.",
    "A profiler that annotates a launch would change it.",
)

_NUM_WARPS: Final = [1, 2, 4, 8, 32]
_LANES: Final = [16, 32]


def _own_device(subject: Subject) -> Any:
    """Give the open device of one of our subjects."""
    if not subject.is_own:
        raise Unsupported("it is asked of our own devices, whose tables and binaries can be opened")
    return subject.opened  # type: ignore[attr-defined]


def _options(subject: Subject, num_warps: int, lanes: int) -> dict[str, Any]:
    """Give the options of so many warps and lanes; a subject with one number of lanes is asked with that."""
    if lanes == subject.lanes:
        return subject.options(num_warps=num_warps)
    require(subject, "lanes")
    return subject.options(num_warps=num_warps, lanes=lanes)


# ------------------------------------------------------------------------------------------------------------ META-1


@case("META-1", num_warps=_NUM_WARPS, lanes=_LANES)
def geometry_is_what_was_compiled(subject: Subject, num_warps: int, lanes: int) -> None:
    """A program has num_warps * lanes threads, the compiled kernel's metadata says so, and the programs are right."""
    for ability in ("geometry", "compiled"):
        require(subject, ability)
    options = _options(subject, num_warps, lanes)
    metadata = check_coordinates(subject, (3, 2, 1), (3, 2, 1), **options).metadata
    due = num_warps, lanes, (num_warps * lanes, 1, 1)
    told = subject.lanes or metadata.threads_per_warp
    seen = metadata.num_warps, told, subject.geometry((3, 2), **options)["local"]
    same(subject, f"warps and lanes by metadata, threads of a program at {options}", str(due), str(seen))


@case("META-1", num_warps=_NUM_WARPS)
def metadata_tells_shared_memory(subject: Subject, num_warps: int) -> None:
    """A kernel that reduces over its warps has shared bytes in its metadata, one that does not has none."""
    for ability in ("shared", "compiled"):
        require(subject, ability)
    options = subject.options(num_warps=num_warps)
    bare = check_coordinates(subject, (3, 2, 1), (3, 2, 1), "coordinates", **options).metadata
    reduced = check_coordinates(subject, (3, 2, 1), (3, 2, 1), "shared_coordinates", **options).metadata
    same(subject, "shared bytes of a kernel without shared memory", 0, bare.shared)
    if num_warps > 1:
        same(subject, "a kernel that reduces over its warps has shared bytes", True, reduced.shared > 0)
    if not subject.runs:
        same(subject, "shared bytes that the driver was asked for", reduced.shared, subject.last_call().shared_bytes)


@case("META-1", order=[(4, 1, 8, 4), (8, 1), (1, 32, 2, 1)])
def each_launch_has_its_own_geometry(subject: Subject, order: tuple[int, ...]) -> None:
    """One kernel launched with other numbers of warps in turn: each launch has its own, never the first's."""
    require(subject, "num_warps")
    kernel = subject.kernel("shared_coordinates")
    for num_warps in order:
        options = subject.options(num_warps=num_warps)
        check_coordinates(subject, (3, 2, 1), (3, 2, 1), "shared_coordinates", kernel=kernel, **options)
        if "geometry" in subject.abilities:
            lanes = subject.lanes or 16
            threads = subject.geometry((3, 2), **_options(subject, num_warps, lanes))["local"]
            same(subject, f"threads of a program with {num_warps} warps", (num_warps * lanes, 1, 1), threads)


@case("META-1", num_warps=[1, 2, 8])
def compiled_kernel_keeps_its_geometry(subject: Subject, num_warps: int) -> None:
    """What a launch gave back runs as it was built, after its kernel ran with other options and with the defaults."""
    for ability in ("num_warps", "compiled"):
        require(subject, ability)
    kernel = subject.kernel("shared_coordinates")
    options = subject.options(num_warps=num_warps)
    compiled = check_coordinates(subject, (3, 2, 1), (3, 2, 1), "shared_coordinates", kernel=kernel, **options)
    for other in (subject.options(num_warps=4), {}):
        check_coordinates(subject, (2, 1, 1), (2, 1, 1), "shared_coordinates", kernel=kernel, **other)
    check_coordinates(subject, (3, 2, 1), (3, 2, 1), "shared_coordinates", kernel=compiled)


def _threads_of(subject: Subject, options: Mapping[str, Any], rewritten: Mapping[str, int]) -> tuple[int, ...]:
    """Launch a probe that is compiled like `coordinates` with these options, and whose metadata was then rewritten."""
    require(subject, "geometry")
    device, seen = _own_device(subject), poisoned(16, "i8")
    compiled = launch(subject, "coordinates", (1,), poisoned(16, "i8"), 1, 1, **options)
    metadata = dataclasses.replace(compiled.metadata, **rewritten)
    if subject.runs:
        binary = subject.geometry_program(metadata)  # type: ignore[attr-defined]
    elif rewritten:
        raise Unsupported("a binary tells the driver itself how many threads it was built for")
    else:
        binary = dataclasses.replace(compiled.binary, metadata=metadata)
    launch(subject, "coordinates", (3, 2), seen, 1, 1, kernel=CompiledKernel(compiled.fn, compiled.key, binary, device))
    return subject.geometry_seen(seen)["local"] if subject.runs else subject.last_call().block  # type: ignore[attr-defined]


@case("META-1", num_warps=[1, 8], lanes=_LANES)
def compiled_kernel_is_given_its_own_threads(subject: Subject, num_warps: int, lanes: int) -> None:
    """A compiled kernel launched again gets the threads that it was built for, whatever the device's defaults."""
    threads = _threads_of(subject, _options(subject, num_warps, lanes), {})
    same(subject, "threads of a program", (num_warps * lanes, 1, 1), threads)


@case(
    "META-1",
    rewritten={
        "more_warps": {"num_warps": 8},
        "fewer_warps": {"num_warps": 1},
        "fewer_lanes": {"threads_per_warp": 16},
        "both": {"num_warps": 16, "threads_per_warp": 16},
    },
)
def metadata_after_compilation_counts(subject: Subject, rewritten: Mapping[str, int]) -> None:
    """Where compilation changed the warps or lanes that were asked for, the launch has the changed ones."""
    threads = _threads_of(subject, _options(subject, 4, 32), rewritten)
    due = rewritten.get("num_warps", 4) * rewritten.get("threads_per_warp", 32)
    same(subject, f"threads of a program asked with 4 warps of 32, built with {rewritten}", (due, 1, 1), threads)


# ----------------------------------------------------------------------------------------------------- META-2, META-3


def _coordinates(subject: Subject, options: Mapping[str, Any]) -> Callable[[Array], object]:
    """Give what launches 2 programs of `coordinates` with options that are to be refused."""
    return lambda seen: subject.launch("coordinates", (2,), seen, 4, 4, **options)


_SENSIBLE: Final = (UnsupportedError, ValueError, TypeError, KeyError, AssertionError)


def _check_option_refused(subject: Subject, number: str, options: Mapping[str, Any]) -> str:
    """Demand that one option is refused by its name; gives the text."""
    (name,) = options
    refusal = check_refused(
        subject, _SENSIBLE, number, _coordinates(subject, options), names=f"option {name!r}", means=2
    )
    if not str(refusal).strip():
        raise Unguarded(f"{options}", "an error that says what is wrong", f"{type(refusal).__name__} without a text")
    return str(refusal)


_VALID: Final[dict[str, dict[str, Any]]] = {
    "one_warp": {"num_warps": 1},
    "two_warps": {"num_warps": 2},
    "sixteen_lanes": {"lanes": 16},
    "one_stage": {"num_stages": 1},
    "three_stages": {"num_stages": 3},
    "one_cta": {"num_ctas": 1},
}

_INVALID: Final[dict[str, dict[str, Any]]] = {
    "no_warps": {"num_warps": 0},
    "three_warps": {"num_warps": 3},
    "minus_one_warp": {"num_warps": -1},
    "warps_in_a_string": {"num_warps": "4"},
    "warps_in_a_float": {"num_warps": 2.0},
    "warps_in_a_bool": {"num_warps": True},
    "seven_lanes": {"lanes": 7},
    "minus_16_lanes": {"lanes": -16},
    "no_stages": {"num_stages": 0},
    "minus_one_stage": {"num_stages": -1},
    "stages_in_a_string": {"num_stages": "5"},  # not 2: a cache on disk may take it for the 2 that it knows
    "no_ctas": {"num_ctas": 0},
    "minus_one_cta": {"num_ctas": -1},
    "ctas_in_a_bool": {"num_ctas": True},
}

_ABILITY_FOR: Final = {"num_warps": "num_warps", "num_stages": "num_warps", "lanes": "lanes", "num_ctas": "options"}


def _options_of(subject: Subject, option: Mapping[str, Any]) -> dict[str, Any]:
    (name,) = option
    require(subject, _ABILITY_FOR[name])
    return subject.options(**option)


def _check_taken(subject: Subject, options: Mapping[str, Any]) -> None:
    """Demand that both programs of a launch with these options write; how often is asked by META-1 and GRID-4."""
    if not subject.runs:
        check_coordinates(subject, (2,), (2, 1, 1), **options)
        return
    seen = poisoned(14)
    launch(subject, "coordinates", (2,), seen, width=2, height=1, **options)
    due = [0, 0, 0, 2, 1, 1] + [1, 0, 0, 2, 1, 1]
    same(subject, f"coordinates and grid that 2 programs write with {options}", due, np.delete(seen, [0, 7]))


@case("META-2", kind="control", option=_VALID)
def valid_value_is_taken(subject: Subject, option: Mapping[str, Any]) -> None:
    """A value that the option takes launches."""
    _check_taken(subject, _options_of(subject, option))


@case("META-2", kind="negative", option=_INVALID)
def invalid_value_is_refused(subject: Subject, option: Mapping[str, Any]) -> None:
    """A value that means nothing is refused before anything ran, by the name of its option."""
    _check_option_refused(subject, "META-2", _options_of(subject, option))


@case("META-2", kind="negative", num_ctas=[2, 3])
def clusters_are_made_or_refused(subject: Subject, num_ctas: int) -> None:
    """Programs in clusters are launched as clusters, or refused: the number is never taken and dropped."""
    require(subject, "geometry")
    options, grid = subject.options(num_ctas=num_ctas), (4, 2)
    try:
        seen = subject.geometry(grid, **options)
    except Violated:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, _SENSIBLE):
            raise Unguarded(str(options), "clusters, or a refusal by name", text) from error
        subject.asked.note("clusters, or a refusal by name", text)
        return
    if seen["groups"] == (*grid, 1):
        told = f"the {grid} blocks of a launch without it, and no error"
        raise Violated(f"coordinates[{grid}](..., num_ctas={num_ctas})", "clusters, or a refusal by name", told)
    due = (grid[0] * num_ctas, grid[1], 1), (num_ctas, 1, 1)
    found = seen["groups"], seen.get("cluster", (num_ctas, 1, 1))
    same(subject, f"blocks of {grid} and blocks of a cluster with {options}", str(due), str(found))


_LAUNCHED: Final[dict[str, tuple[str, str]]] = {  # option of CUDA -> what the driver calls it, and we do
    "launch_cooperative_grid": ("cooperative", "is_cooperative"),
    "launch_pdl": ("programmatic", "is_programmatic"),
}


@case("META-2", option=list(_LAUNCHED))
def option_of_the_launch_reaches_the_driver(subject: Subject, option: str) -> None:
    """An option that is no part of the binary is one of the driver call, and of that launch alone."""
    require(subject, "cooperative")
    if option == "launch_pdl" and "launch_pdl" not in subject.launch_options:
        raise Unsupported("this version of Triton has no such option")
    in_call, in_record = _LAUNCHED[option]
    seen = []
    for value in (True, False):
        records: list[dict[str, Any]] = []
        options: dict[str, Any] = {option: value}
        with subject.recording(records):
            check_coordinates(subject, (3, 2, 1), (3, 2, 1), **options)
        if not subject.runs:
            seen.append(in_call in subject.last_call().attributes)
        elif subject.is_own:
            seen.append(records[0][in_record])
    if seen:
        same(subject, f"launches with {option}=True and False that reached the driver so", [True, False], seen)


@case("META-2")
def every_option_has_a_policy(subject: Subject) -> None:
    """Each option of the device is applied, refused unless default or irrelevant, the last two with a reason."""
    for name, option in _own_device(subject).options.items():
        is_declared = option.policy in ("applied", "default only", "irrelevant")
        is_reasoned = option.policy == "applied" or bool(option.reason)
        same(subject, f"policy and reason of {name}", [True, True], [is_declared, is_reasoned])


@case("META-2", kind="control")
def every_default_can_be_spelled_out(subject: Subject) -> None:
    """Each option of the device's table, given its default value, runs the same programs."""
    for name, option in _own_device(subject).options.items():
        _check_taken(subject, {name: option.default})


def _another(default: Any) -> Any:
    """Give another value of a default's type."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    if isinstance(default, str) or default is None:
        return f"{default or ''}x"
    return (_another(default[0]), *default[1:])


@case("META-2", kind="negative")
def default_only_option_is_refused_otherwise(subject: Subject) -> None:
    """Each option that the device cannot do is refused with any value of its type but the default."""
    narrow = [item for item in _own_device(subject).options.items() if item[1].policy == "default only"]
    if not narrow:
        raise Unsupported("it has no such option")
    for name, option in narrow:
        _check_option_refused(subject, "META-2", {name: _another(option.default)})


@case("META-2")
def applied_option_reaches_the_binary(subject: Subject) -> None:
    """Each applied option, given another value that it takes, makes another kernel: none is dropped on the way."""
    device = _own_device(subject)
    applied = [item for item in device.options.items() if item[1].policy == "applied"]
    if not applied:
        raise Unsupported("it has no such option")
    kernel, seen = subject.kernel("coordinates"), subject.tensor(poisoned(7))
    usual = kernel.warmup(seen, 1, 1).hash
    for name, option in applied:
        other = _another_of(name, option.default)
        found = kernel.warmup(seen, 1, 1, **{name: other})
        same(subject, f"{name}={other!r} makes another kernel", True, found.hash != usual)
        same(subject, f"what the compiler took for {name}", repr(other), repr(found.metadata.fields[name]))


_OTHER_VALUES: Final = {
    "num_warps": 2,
    "threads_per_warp": 16,
    "default_dot_input_precision": "ieee",
    "maxnreg": 128,
    "ptx_version": 80,
    "ptx_options": "--opt-level=1",
    "min_shared_mem": 1024,
}


def _another_of(name: str, default: Any) -> Any:
    """Give another value of an option that it takes, too."""
    if name == "extern_libs":
        return (*default, ("another", default[0][1]))
    if isinstance(default, tuple):
        return default[:-1] or ("fp8e5",)
    return _OTHER_VALUES.get(name) or _another(default)


# Fields of metadata that a launch would have to act on: a value that asks for something.
_FIELDS: Final = {
    "global_scratch_size": 128,
    "profile_scratch_size": 64,
    "tmem_size": 256,
    "maxnreg": 64,
    "launch_pdl": True,
    "launch_cooperative_grid": True,
    "num_ctas": 2,
    "cluster_dims": (2, 1, 1),
    "grf_mode": "large",
    "a_field_of_tomorrow": 1,
}


@case("META-2", kind="negative", field=list(_FIELDS))
def field_that_is_not_done_is_refused(subject: Subject, field: str) -> None:
    """A binary whose metadata, after compilation, asks for what the device does not do is refused by the field."""
    require(subject, "shared")
    device = _own_device(subject)
    declared = policy_of(field, device)
    if declared is not None and declared.policy != "default only":
        raise Unsupported(f"{field} is {declared.policy} on this device")
    compiled = launch(subject, "coordinates", (1,), poisoned(7), 1, 1)
    fields = {**compiled.metadata.fields, field: _FIELDS[field]}
    metadata = dataclasses.replace(compiled.metadata, fields=fields)

    def ask(seen: Array) -> None:
        binary = dataclasses.replace(compiled.binary, metadata=metadata)
        asking = CompiledKernel(compiled.fn, compiled.key, binary, device)
        subject.launch("coordinates", (2,), seen, 4, 4, kernel=asking)

    check_refused(subject, UnsupportedError, "META-2", ask, names=f"field {field!r}")


@case("META-2")
def irrelevant_field_changes_nothing(subject: Subject) -> None:
    """Each metadata field that means nothing to a launch leaves outputs as they are, whatever its value."""
    require(subject, "shared")
    device = _own_device(subject)
    compiled = launch(subject, "coordinates", (1,), poisoned(7), 1, 1)
    for name in (name for name, field in device.fields.items() if field.policy == "irrelevant"):
        metadata = dataclasses.replace(compiled.metadata, fields={**compiled.metadata.fields, name: 4096})
        binary = dataclasses.replace(compiled.binary, metadata=metadata)
        other = CompiledKernel(compiled.fn, compiled.key, binary, device)
        check_coordinates(subject, (3, 2, 1), (3, 2, 1), kernel=other)


@case("META-2")
def every_field_has_a_policy(subject: Subject) -> None:
    """Each metadata field of a compiled kernel is in the device's tables, with a reason if it is not applied."""
    require(subject, "shared")
    device = _own_device(subject)
    compiled = launch(subject, "shared_coordinates", (1,), poisoned(7), 1, 1)
    for name in compiled.metadata.fields:
        found = policy_of(name, device)
        is_told = found is not None and found.is_known and (found.policy == "applied" or bool(found.reason))
        same(subject, f"{name} has a policy, and a reason if it is not applied", True, is_told)


@case("META-2")
def irrelevant_option_changes_nothing(subject: Subject) -> None:
    """Each option that means nothing on the device leaves outputs as they are, whatever value of its type it has."""
    irrelevant = [item for item in _own_device(subject).options.items() if item[1].policy == "irrelevant"]
    if not irrelevant:
        raise Unsupported("it has no irrelevant option")
    for name, option in irrelevant:
        check_coordinates(subject, (3, 2, 1), (3, 2, 1), **{name: _another(option.default)})


@case("META-3", kind="control")
def known_names_launch(subject: Subject) -> None:
    """Options by their right names, and parameters of the kernel as keywords, launch."""
    known = {"num_ctas": 1, **(subject.options(num_warps=2) if "num_warps" in subject.abilities else {})}
    _check_taken(subject, known)


# Name -> the known name that an error should propose, if there is a near one.
_MISSPELT: Final = {
    "num_warp": "num_warps",
    "numwarps": "num_warps",
    "Num_Warps": "num_warps",
    "num_stage": "num_stages",
    "num_cta": "num_ctas",
    "widht": "width",
    "no_such_option": "",
    "grid": "",
    "warmup": "",
}


@case("META-3", kind="negative", name=list(_MISSPELT), launched=["first", "later"])
def unknown_name_is_refused(subject: Subject, name: str, launched: str) -> None:
    """A name that nobody knows is refused by name, on the first launch of a kernel and when its binary is there."""
    if launched == "later":
        _check_taken(subject, {})
    kernel = subject.kernel("coordinates", fresh=launched == "first")

    def ask(seen: Array) -> None:  # not subject.launch: it has parameters of these names
        subject.show("coordinates", kernel, (2,), (seen, 4, 4), {name: 1})
        kernel[(2,)](subject.tensor(seen), 4, 4, **{name: 1})

    text = str(check_refused(subject, (TypeError, KeyError), "META-3", ask, names=f"option {name!r}", means=2))
    if name not in text:
        raise Unguarded(f"option {name}", "an error with its name", text)
    if subject.is_own and _MISSPELT[name]:
        same(subject, "the name that is proposed", True, f"Did you mean {_MISSPELT[name]!r}?" in text)


# Options of Triton's that one backend alone has: a value, and what subjects of this backend are called.
_OF_OTHERS: Final = {
    "maxnreg": (64, ("cuda",)),
    "launch_pdl": (True, ("cuda",)),
    "waves_per_eu": (2, ("hip",)),
    "matrix_instr_nonkdim": (16, ("hip",)),
    "grf_mode": ("large", ("sycl", "intel")),
}


@case("META-3", kind="negative", name=list(_OF_OTHERS))
def option_of_another_backend_is_refused(subject: Subject, name: str) -> None:
    """A launch option of Triton's that only another backend has is refused, too."""
    value, called = _OF_OTHERS[name]
    if any(backend in subject.name for backend in called):
        raise Unsupported("it is an option of this backend")
    text = _check_option_refused(subject, "META-3", {name: value})
    if name not in text:
        raise Unguarded(f"option {name}", "an error with its name", text)


# ------------------------------------------------------------------------------------------------------------ META-4


def _most_threads(subject: Subject) -> int:
    require(subject, "num_warps")
    if not subject.most_threads:
        raise Unsupported("it states no limit of threads")
    return subject.most_threads


@case("META-4", kind="control")
def largest_program_launches(subject: Subject) -> None:
    """A program of as many threads as the device allows runs."""
    threads = _most_threads(subject)
    _check_taken(subject, _options(subject, threads // 32, 32))


@case("META-4", kind="negative", times=[2, 8])
def too_many_threads_are_refused(subject: Subject, times: int) -> None:
    """A program of more threads than the device allows is refused with both numbers."""
    limit = _most_threads(subject)
    options = _options(subject, times * limit // 32, 32)
    kinds = UnsupportedError if subject.is_own else Exception
    refusal: Any = check_refused(subject, kinds, "META-4", _coordinates(subject, options), names="threads")
    if subject.is_own:
        same(subject, "need and limit of the error", (times * limit, limit), (refusal.need, refusal.limit))
    elif not {str(times * limit), str(limit)} <= set(re.findall(r"\d+", str(refusal))):
        raise Unguarded(f"{options}", f"an error with {times * limit} and {limit}", f"{refusal}")


@case("META-4", kind="negative", beyond=[1, 2**20, 2**40])
def too_much_shared_memory_is_refused(subject: Subject, beyond: int) -> None:
    """A binary whose metadata asks for more shared memory than the device has is refused with both numbers."""
    require(subject, "shared")
    limit = _own_device(subject).limits.shared_bytes
    compiled = launch(subject, "shared_coordinates", (1,), poisoned(7), 1, 1)
    metadata = dataclasses.replace(compiled.metadata, shared=limit + beyond)
    larger = CompiledKernel(
        compiled.fn, compiled.key, dataclasses.replace(compiled.binary, metadata=metadata), compiled.device
    )

    def ask(seen: Array) -> None:
        subject.launch("shared_coordinates", (2,), seen, 4, 4, kernel=larger)

    refusal: Any = check_refused(subject, UnsupportedError, "META-4", ask, names="shared memory")
    same(subject, "need and limit of the error", (limit + beyond, limit), (refusal.need, refusal.limit))


@case("META-4", kind="negative", programs=[100_000, 2**31 - 1])
def too_many_cooperative_programs_are_refused(subject: Subject, programs: int) -> None:
    """More programs than run at once, launched as a cooperative grid, are refused with both numbers."""
    require(subject, "cooperative")

    def ask(seen: Array) -> None:
        subject.launch("coordinates", (programs,), seen, 4, 4, launch_cooperative_grid=True)

    kinds = UnsupportedError if subject.is_own else Exception
    refusal: Any = check_refused(subject, kinds, "META-4", ask, names="programs at once")
    if subject.is_own:
        same(
            subject,
            "need of the error, and that its limit is lower",
            (programs, True),
            (refusal.need, refusal.limit < programs),
        )
    elif str(programs) not in str(refusal):
        raise Unguarded(f"{programs} cooperative programs", f"an error with {programs} and the limit", f"{refusal}")


@case("META-4", kind="negative", num_ctas=[32, 64])
def too_large_clusters_are_refused(subject: Subject, num_ctas: int) -> None:
    """Clusters of more blocks than the device takes are refused with both numbers."""
    require(subject, "clusters")
    kinds = UnsupportedError if subject.is_own else Exception
    ask = _coordinates(subject, {"num_ctas": num_ctas})
    refusal: Any = check_refused(subject, kinds, "META-4", ask, names="cluster")
    if subject.is_own:
        same(subject, "need and limit of the error", (num_ctas, 16), (refusal.need, refusal.limit))
    elif str(num_ctas) not in str(refusal):
        raise Unguarded(f"num_ctas={num_ctas}", f"an error with {num_ctas} and the limit", f"{refusal}")


# ------------------------------------------------------------------------------------------------------------ META-5

_GRIDS: Final = [
    (7,), (997,), (7, 5), (2, 131), (131, 2), (7, 5, 3), (3, 5, 7), (1, 1, 61), (1, 997, 1),
    (65537,), (1, 65537), (1, 1, 65537),
]  # fmt: skip


def _check_ranges(subject: Subject, grid: tuple[int, ...], threads: int, seen: Mapping[str, Any]) -> None:
    x, y, z = (*grid, 1, 1)[:3]
    due = {"global": (x * threads, y, z), "local": (threads, 1, 1), "groups": (x, y, z)}
    same(subject, f"ranges of {grid}, x first", str(due), str({name: seen[name] for name in due}))


@case("META-5", grid=_GRIDS, num_warps=[1, 4, 32])
def device_is_given_the_ranges_of_the_grid(subject: Subject, grid: tuple[int, ...], num_warps: int) -> None:
    """The device counts x * threads, y and z work-items, in groups of the threads of one program."""
    require(subject, "geometry")
    if "limits" in subject.abilities:
        require_within_limits(subject, grid)
    for lanes in [subject.lanes] if subject.lanes else _LANES:
        _check_ranges(subject, grid, num_warps * lanes, subject.geometry(grid, **_options(subject, num_warps, lanes)))


@case("META-5", grid=[(2**31 - 1,), (3, 2**31 - 1), (2, 3, 2**30 + 1)], ends_worker=True)
def device_is_given_the_ranges_of_a_large_grid(subject: Subject, grid: tuple[int, ...]) -> None:
    """The same where x * threads and the number of work-items pass 2^32; the device is not asked to finish."""
    require(subject, "geometry")
    require_within_limits(subject, grid)
    _check_ranges(subject, grid, 128, subject.geometry(grid, wait=False, **_options(subject, 4, 32)))


# ------------------------------------------------------------------------------------------------------------ META-6


class _Liar:
    """Launch metadata whose every attribute and entry is wrong, or raises."""

    num_warps, num_ctas, shared, grid, stream, function = 1, 7, 2**30, (1, 1, 1), 0, None
    cluster_dims = (7, 7, 7)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"launch metadata was asked for {name}")

    def __getitem__(self, name: object) -> Any:
        raise RuntimeError(f"launch metadata was asked for {name}")

    def get(self, *args: Any) -> dict[str, Any]:
        """Give lies."""
        return {"num_warps": 1, "grid": (1, 1, 1), "shared": 2**30, "stream": 0, "function": None}


_METADATA: Final[dict[str, Any]] = {
    "empty": {},
    "lies": {"grid": (1, 1, 1), "num_warps": 1, "num_ctas": 7, "shared": 2**30, "stream": 0, "function": None},
    "an_object_of_lies": _Liar(),
    "a_number": 1,
}


@case("META-6", metadata=_METADATA, watched=["no", "yes"], num_warps=[1, 8])
def launch_metadata_does_not_steer(subject: Subject, metadata: Any, watched: str, num_warps: int) -> None:
    """The driver is given the same ranges whatever the metadata for observers, with hooks and without."""
    require(subject, "geometry")
    seen: list[object] = []

    def look(metadata: Any) -> None:
        seen.append(metadata)
        with suppress(Exception):  # what is hostile may not be looked at
            dict(metadata.get())

    observed = Observed(metadata, look, look) if watched == "yes" else Observed(metadata)
    options = subject.options(num_warps=num_warps)
    absent = subject.geometry((7, 5, 3), **options)
    given = subject.geometry((7, 5, 3), observed=observed, **options)
    same(subject, f"ranges with {type(metadata).__name__} as launch metadata", str(absent), str(given))
    same(subject, "hooks that were called", 2 if watched == "yes" else 0, len(seen))
