"""GRID: the program grid."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import (
    POISON,
    check_coordinates,
    check_refused,
    check_untouched,
    launch,
    limits_of,
    own_rule,
    poisoned,
    require,
    require_programs,
    require_runs,
    require_within_limits,
    same,
)
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Subject
from gridpact.errors import ResourceError

clause(
    "GRID-1",
    "triton",
    "Accepted grids: an int (our own rule), a sequence (tuple, list, torch.Size) of 1 to 3 integers (Python and "
    "NumPy integers; bool excepted), or a callable that returns one of these (not another callable). Anything "
    "else is refused as a TypeError.",
    "A float is cut silently, and the index of a device tensor would synchronise.",
)
clause(
    "GRID-2",
    "triton",
    "Missing axes are exactly 1: (N,) is (N, 1, 1); inside the kernel their only coordinate is 0 and num_programs"
    " is 1.",
    "A kernel that loops over num_programs of an unused axis would do nothing, or do it twice.",
)
clause(
    "GRID-3",
    "guardrail",
    "Any other length (0, or 4 and more) is refused as a ValueError. A fourth component is never dropped.",
    "A launch over (8, 4, 2, 99) would run 64 programs where 6,336 were asked for.",
)
clause(
    "GRID-4",
    "triton",
    "Every coordinate triple of the grid runs exactly once, with program_id(a) < grid[a] and num_programs(a) == "
    "grid[a]; no axes are exchanged. It holds for every supported launch configuration.",
    "It is what a grid means.",
)
clause(
    "GRID-5",
    "triton",
    "A tuple, a list, an int and a callable that mean the same grid give the same set of programs.",
    "Code that moves from a constant to a callable grid must not change its meaning.",
)
clause(
    "GRID-6",
    "guardrail",
    "Negative counts are refused as a ValueError (two negatives too: their product is positive).",
    "Cast to unsigned, -1 is 4,294,967,295 programs.",
)
clause(
    "GRID-7",
    "guardrail",
    "Limits are data of the device: per axis, and of the product where a device has one; they are those that the "
    "driver reports or shows, never chosen. A grid over a limit is refused; the error names axis, value and "
    "limit.",
    "A driver says 'invalid argument', and names no axis.",
)
clause(
    "GRID-8",
    "triton",
    "A grid within the limits runs completely. Arithmetic on grids is exact: products of axes, axis x threads, "
    "axis x num_ctas never wrap, so that products past 2^31 and 2^32 are neither skipped nor shortened.",
    "A product that wraps to 0 runs nothing, and the call succeeds.",
)
clause(
    "GRID-9",
    "gridpact",
    "An empty grid (a 0 on any axis) is a successful launch of nothing: no driver call, no scratch allocation, no"
    " hook fires; the same on the first launch and on later ones.",
    "Empty batches are ordinary; callers should not each need a guard.",
)
clause(
    "GRID-10",
    "triton",
    "A callable is evaluated once per launch, with all bound arguments, constexprs, defaults and launch options "
    "(ours) of that launch in a mapping of its own: changing it changes nothing.",
    "A callable with a side effect, or one that pops what it read, must not change the launch.",
)
clause(
    "GRID-11",
    "triton",
    "The first launch of a kernel in a process runs the same programs as later launches.",
    "The first launch compiles and takes another path.",
)

# Primes, powers of two, long thin ones on each axis; no two axes alike, so that an exchange shows.
_SHAPES: Final = [
    (1,), (7,), (64,), (997,),
    (7, 5), (5, 7), (2, 64), (64, 2), (1, 131), (131, 1),
    (7, 5, 3), (3, 5, 7), (5, 3, 7), (2, 4, 8), (8, 4, 2), (1, 1, 61), (1, 61, 1), (61, 1, 1), (13, 1, 11), (1, 13, 11),
]  # fmt: skip

# Our own rule: one integer alone.
_INTEGERS: Final = {
    "an_int": 7,
    "a_numpy_int64": np.int64(7),
    "a_numpy_uint8": np.uint8(7),
    "a_callable_of_an_int": lambda meta: 7,
}

_SEQUENCES: Final = {
    "a_tuple": (7,),
    "a_list": [7],
    "a_tuple_of_numpy_ints": (np.int32(7),),
    "a_callable_of_a_tuple": lambda meta: (7,),
    "a_callable_of_a_list": lambda meta: [7],
}

_NO_GRIDS: Final = {
    "a_float": 2.0,
    "a_numpy_float": np.float64(2),
    "a_string": "2",
    "bytes": b"\x02\x03",
    "none": None,
    "true": True,
    "a_numpy_bool": np.True_,
    "a_dict": {2: 2},
    "a_set": {2},
    "a_range": range(2, 4),
    "an_array": np.array([2, 3]),
    "an_array_of_no_axes": np.array(2),
    "a_tuple_with_a_float": (2, 2.0),
    "a_tuple_with_a_string": (2, "2"),
    "a_tuple_with_none": (2, None),
    "a_tuple_with_true": (2, True),
    "a_nested_tuple": ((2, 2),),
    "a_callable_of_a_float": lambda meta: 2.0,
    "a_callable_of_none": lambda meta: None,
    "a_callable_of_a_callable": lambda meta: lambda meta: (2,),
}


def _check_grid_refused(
    subject: Subject,
    kinds: type[Exception] | tuple[type[Exception], ...],
    number: str,
    grid: Any,
    names: str = "grid",
    means: int | None = None,
    **options: Any,
) -> None:
    """Demand that a grid is refused; the probe counts in one place, so that any number of programs may run."""
    memory = poisoned(8)
    memory[0] = 0
    for launched_before in (0, 1):
        check_refused(
            subject,
            kinds,
            number,
            lambda seen: subject.launch("counted", grid, seen, **options),
            names=names,
            means=means,
            memory=memory,
            count=lambda seen, before=launched_before: int(seen[0]) - before,  # type: ignore[misc]
        )
        if subject.is_own and not launched_before:  # again, where a launch of its like is remembered
            launch(subject, "counted", (1,), memory)


@case("GRID-1", given=_SEQUENCES)
def accepted_type_launches(subject: Subject, given: Any) -> None:
    """A grid of each accepted type runs its 7 programs."""
    check_coordinates(subject, given, (7, 1, 1))


@case("GRID-1", given=_INTEGERS)
def an_integer_alone_launches(subject: Subject, given: Any) -> None:
    """Our own rule: an integer alone is a grid of one axis."""
    with own_rule(subject):
        check_coordinates(subject, given, (7, 1, 1))


def _meaning(given: Any) -> int | None:
    """Give the programs that an invalid grid plainly stands for, if any."""
    try:
        return int(np.prod([int(count) for count in given]))
    except TypeError:
        return None


@case("GRID-1", kind="negative", given=_NO_GRIDS)
def other_type_is_refused(subject: Subject, given: Any) -> None:
    """A grid of any other type is a TypeError before anything ran."""
    _check_grid_refused(subject, TypeError, "GRID-1", given, means=_meaning(given))


@case("GRID-2", grid=[(7,), (1,), (7, 5), (1, 5)])
def missing_axes_are_one(subject: Subject, grid: tuple[int, ...]) -> None:
    """Axes that are not given have one coordinate, 0, and a count of 1."""
    check_coordinates(subject, grid, (*grid, 1, 1)[:3])  # type: ignore[arg-type]


@case("GRID-3", kind="control", grid=[(2,), (2, 2), (2, 2, 2)])
def one_to_three_axes_launch(subject: Subject, grid: tuple[int, ...]) -> None:
    """The same counts on 1 to 3 axes run."""
    check_coordinates(subject, grid, (*grid, 1, 1)[:3])  # type: ignore[arg-type]


_LENGTHS: Final = {
    "no_axes": (),
    "an_empty_list": [],
    "four": (2, 2, 2, 2),
    "four_with_a_one": (2, 2, 2, 1),
    "four_with_a_zero": (2, 2, 2, 0),
    "seven": (1,) * 7,
    "a_callable_of_four": lambda meta: (2, 2, 2, 2),
}


@case("GRID-3", kind="negative", grid=_LENGTHS)
def other_length_is_refused(subject: Subject, grid: Any) -> None:
    """No axis, or four and more, is a ValueError; none is dropped."""
    means = _meaning(grid) if grid else None
    _check_grid_refused(subject, ValueError, "GRID-3", grid, means=means)


@case("GRID-4", grid=_SHAPES)
def every_triple_runs_once(subject: Subject, grid: tuple[int, ...]) -> None:
    """Each program counts at its own place and writes its coordinates."""
    require_runs(subject)
    check_coordinates(subject, grid, (*grid, 1, 1)[:3])  # type: ignore[arg-type]


@case("GRID-4", num_warps=[1, 2, 4, 8, 32], lanes=[16, 32], shared=["no", "yes"])
def every_triple_runs_once_in_each_configuration(subject: Subject, num_warps: int, lanes: int, shared: str) -> None:
    """The same over three shapes for each number of warps and lanes, with shared memory and without."""
    require_runs(subject)
    for ability in ("num_warps", "lanes", *(["shared"] if shared == "yes" else [])):
        require(subject, ability)
    options = subject.options(num_warps=num_warps, lanes=lanes)
    program = "shared_coordinates" if shared == "yes" else "coordinates"
    for grid in ((7, 5, 3), (3, 1, 5), (1, 64, 2)):
        result = check_coordinates(subject, grid, grid, program, **options)
    if shared == "yes" and num_warps > 1:
        same(subject, "shared memory is used", True, result.metadata.shared > 0)


@case("GRID-5", given={"three": (4, 1, 1), "two": (4, 1), "one": (4,), "a_list": [4, 1],
      "a_callable": lambda meta: (4, 1, 1), "a_callable_of_one": lambda meta: (4,)})  # fmt: skip
def spellings_mean_the_same(subject: Subject, given: Any) -> None:
    """Each spelling of 4 programs runs the same 4."""
    check_coordinates(subject, given, (4, 1, 1))


@case("GRID-5", given={"an_int": 4, "a_callable_of_an_int": lambda meta: 4})
def an_integer_means_the_same(subject: Subject, given: Any) -> None:
    """Our own rule: so does an integer alone."""
    with own_rule(subject):
        check_coordinates(subject, given, (4, 1, 1))


@case("GRID-6", kind="control", grid=[(1,), (2, 1), (2, 2, 1)])
def positive_counts_launch(subject: Subject, grid: tuple[int, ...]) -> None:
    """The same counts without the sign run."""
    check_coordinates(subject, grid, (*grid, 1, 1)[:3])  # type: ignore[arg-type]


# A launcher that takes -1 for 4,294,967,295 is not waited for.
@case(
    "GRID-6",
    kind="negative",
    limit_s=20,
    grid=[(-1,), (2, -1), (2, 2, -1), (-2, -1), (-2, 1, -2), (0, -1), (-(2**31),), (-(2**63),)],
)
def negative_count_is_refused(subject: Subject, grid: tuple[int, ...]) -> None:
    """A negative count on any axis is a ValueError, two of them and beside a zero too."""
    _check_grid_refused(subject, (ValueError, OverflowError), "GRID-6", grid, "grid.")


@case("GRID-7", kind="control", axis=["x", "y", "z"], ends_worker=True)
def count_at_the_limit_is_taken(subject: Subject, axis: str) -> None:
    """The largest count of each axis reaches the driver as it is."""
    limits = limits_of(subject)
    require(subject, "geometry")
    grid = tuple(limit if name == axis else 1 for name, limit in zip("xyz", limits, strict=True))
    options = subject.options(num_warps=1)
    same(subject, f"groups of {grid}", grid, subject.geometry(grid, wait=False, **options)["groups"])


@case("GRID-7", kind="negative", axis=["x", "y", "z"], beyond=[1, 2**20, 2**40])
def count_over_the_limit_is_refused(subject: Subject, axis: str, beyond: int) -> None:
    """One more than the largest count, and far more, is a ValueError that names the axis."""
    limits = limits_of(subject)
    grid = tuple(limit + beyond if name == axis else 1 for name, limit in zip("xyz", limits, strict=True))
    _check_grid_refused(subject, (ValueError, OverflowError), "GRID-7", grid, f"grid.{axis}")


@case("GRID-7", kind="negative", grid={"beside_a_zero": (0, 1), "beside_a_zero_on_z": (1, 0)})
def count_over_the_limit_is_refused_beside_a_zero(subject: Subject, grid: tuple[int, int]) -> None:
    """A limit is judged before emptiness."""
    limits = limits_of(subject)
    over = (grid[0], limits[1] + 1) if grid[0] == 0 else (1, 0, limits[2] + 1)
    _check_grid_refused(subject, (ValueError, OverflowError), "GRID-7", over, "grid.")


# Products past 2^31 and 2^32, wrapped to 0, to 1 and to something small.
_LARGE: Final = [
    (65536, 32768),
    (65536, 65536),
    (16384, 16384, 16),
    (65536, 65535),
    (2**25 + 1,),
    (2**31 - 1, 2),
    (32768, 65536, 3),
]


@case("GRID-8", grid=_LARGE, num_warps=[1, 4], ends_worker=True)
def large_grid_reaches_the_driver_whole(subject: Subject, grid: tuple[int, ...], num_warps: int) -> None:
    """The driver is given every program and every thread of a grid whose product passes 2^31 or 2^32."""
    require(subject, "geometry")
    require_within_limits(subject, grid)
    seen = subject.geometry(grid, wait=False, **subject.options(num_warps=num_warps))
    due = (*grid, 1, 1)[:3]
    same(subject, f"groups of {grid}", due, seen["groups"])
    threads = seen["local"][0]
    same(subject, f"threads of {grid}", (due[0] * threads, due[1], due[2]), seen["global"])


@case("GRID-8", kind="negative", num_ctas=[4, 8])
def blocks_of_clusters_do_not_wrap(subject: Subject, num_ctas: int) -> None:
    """A grid whose blocks, in clusters, pass 2^32 is more than a device takes, and is never cut to a few of them."""
    require(subject, "clusters")
    grid = (2**32 // num_ctas + 1,)
    _check_grid_refused(subject, Exception, "GRID-7", grid, **subject.options(num_ctas=num_ctas))


@case("GRID-8", tier="slow", grid=[(65536, 32768), (65536, 65536), (16384, 16384, 16), (2**31 - 1,), (3, 5, 2**27 + 1)])
def large_grid_runs_completely(subject: Subject, grid: tuple[int, ...]) -> None:
    """Every 2^16th program along x counts, and the last program of the grid is seen."""
    require_programs(subject, grid)
    require_within_limits(subject, grid)
    x, y, z = (*grid, 1, 1)[:3]
    seen = poisoned(8)
    seen[0] = 0
    launch(subject, "sampled", grid, seen, 2**16, **subject.options(num_warps=1))
    due = [-(-x // 2**16) * y * z, x - 1, y - 1, z - 1, *[POISON] * 4]
    same(subject, f"sampled programs of {grid}", due, seen)


@case("GRID-9", first=["yes", "no"], grid={"x": (0,), "y": (4, 0), "z": (4, 4, 0), "x_before_y": (0, 4),
      "all": (0, 0, 0), "a_callable": lambda meta: (0,)})  # fmt: skip
def empty_grid_runs_nothing(subject: Subject, first: str, grid: Any) -> None:
    """A zero on any axis writes nothing and raises nothing, on the first launch of a kernel and later."""
    kernel = subject.kernel("coordinates", fresh=first == "yes")
    seen = poisoned(4096)
    with own_rule(subject):
        launch(subject, "coordinates", grid, seen, 4, 4, kernel=kernel)
    check_untouched(subject, "memory after an empty launch", np.full_like(seen, POISON), seen)


@case("GRID-9", grid=[(0,), (4, 0), (0, 0, 0)])
def empty_grid_calls_no_hook(subject: Subject, grid: tuple[int, ...]) -> None:
    """No hook sees a launch of nothing."""
    require(subject, "hooks")
    seen = poisoned(4096)
    fired: list[str] = []
    with subject.observed(lambda metadata: fired.append("enter"), lambda metadata: fired.append("exit")):
        launch(subject, "coordinates", grid, seen, 4, 4)
    with own_rule(subject):
        same(subject, f"hooks that fired at {grid}", [], fired)


def _check_scratch(subject: Subject, grid: tuple[int, ...], programs: int) -> None:
    """Launch a kernel that takes scratch memory, and demand that it is asked for once, with so many programs' worth."""
    require(subject, "scratch")
    sizes: list[int] = []
    with subject.allocating(sizes):
        compiled = launch(subject, "described", (1,), poisoned(64), 4, BLOCK=16) if programs else None
        due = [programs * compiled.metadata.global_scratch_size] if compiled is not None else []
        sizes.clear()
        try:
            subject.launch("described", grid, poisoned(64), 4, BLOCK=16)
        except Exception as error:  # more than the device has: what was asked for is seen all the same
            if not isinstance(error, ResourceError) and not sizes:
                raise Violated(subject.asked.script.line, "a launch", f"{type(error).__name__}: {error}") from error
            sizes = sizes or [error.need]  # type: ignore[attr-defined]
    same(subject, f"bytes asked for {grid}", due, sizes)


@case("GRID-8", grid=[(7, 5, 3), (65535, 32769), (65535, 65535, 3)])
def scratch_is_for_every_program(subject: Subject, grid: tuple[int, ...]) -> None:
    """Scratch memory is asked for as many programs as the grid has, also where their number passes 2^31 and 2^32."""
    require(subject, "scratch")
    require_within_limits(subject, grid)
    _check_scratch(subject, grid, int(np.prod(grid)))


@case("GRID-9", grid=[(0,), (4, 0)])
def empty_grid_allocates_nothing(subject: Subject, grid: tuple[int, ...]) -> None:
    """No scratch memory is asked for a launch of nothing."""
    with own_rule(subject):
        _check_scratch(subject, grid, 0)


@case("GRID-6", kind="negative", grid=[(-1,), (2, -1)])
def negative_grid_allocates_nothing(subject: Subject, grid: tuple[int, ...]) -> None:
    """No scratch memory is asked for a grid that is to be refused."""
    require(subject, "scratch")
    sizes: list[int] = []
    with subject.allocating(sizes), suppress(Exception):
        subject.launch("described", grid, poisoned(64), 4, BLOCK=16)
    with own_rule(subject):  # nothing runs, and nobody is told
        same(subject, f"bytes asked for {grid}", [], sizes)


@case("GRID-9", kind="negative", wrong={"a_missing_argument": 0, "a_string": 1, "an_unknown_option": 2})
def empty_launch_judges_its_arguments(subject: Subject, wrong: int) -> None:
    """What is wrong with a launch of programs is wrong with a launch of none."""
    args: tuple[Any, ...] = ((), ("4", 4), (4, 4))[wrong]
    options: dict[str, Any] = {"no_such_option": 1} if wrong == 2 else {}
    kinds = (TypeError, KeyError) if wrong == 2 else TypeError
    clause_of = ("ARG-1", "ARG-3", "META-3")[wrong]
    check_refused(subject, kinds, clause_of, lambda seen: subject.launch("coordinates", (0,), seen, *args, **options))


@case("GRID-10")
def callable_is_evaluated_once(subject: Subject) -> None:
    """A callable is called once for a launch, on the first launch of a kernel and later."""
    calls: list[int] = []

    def grid(meta: Any) -> tuple[int, int]:
        calls.append(1)
        return (3, 2)

    kernel = subject.kernel("coordinates", fresh=True)
    for count in (1, 2, 3):
        seen = poisoned(64 * 7)
        launch(subject, "coordinates", grid, seen, 3, 2, kernel=kernel)
        same(subject, "calls of the callable", count, len(calls))


@case("GRID-10")
def callable_sees_arguments_constants_and_defaults(subject: Subject) -> None:
    """The mapping holds every argument by name, constants and defaults included."""
    metas: list[dict[str, Any]] = []

    def grid(meta: Any) -> tuple[int]:
        metas.append(dict(meta))
        return (1,)

    seen = poisoned(8)
    launch(subject, "constant", grid, seen, C=3)
    found = {name: getattr(metas[0].get(name), "value", metas[0].get(name)) for name in ("C", "D")}
    same(subject, "constants and defaults in the mapping", str({"C": 3, "D": "default"}), str(found))
    same(subject, "the tensor in the mapping", True, "seen" in metas[0])


@case("GRID-10")
def callable_sees_launch_options(subject: Subject) -> None:
    """Our own rule: the mapping holds the options of the launch too."""
    require(subject, "options")
    if not subject.is_own:
        raise Unsupported("options in the mapping are our own rule")
    metas: list[dict[str, Any]] = []

    def grid(meta: Any) -> tuple[int]:
        metas.append(dict(meta))
        return (1,)

    launch(subject, "optional", grid, poisoned(8, "i8"), None, num_warps=2)
    same(subject, "num_warps in the mapping", 2, metas[0].get("num_warps"))


@case("GRID-10", change=["replace", "clear"])
def changing_the_mapping_changes_nothing(subject: Subject, change: str) -> None:
    """What a callable does to its mapping reaches neither the launch nor the caller."""

    def grid(meta: Any) -> tuple[int, int]:
        try:
            if change == "clear":
                meta.clear()
            else:
                meta["width"] = meta["height"] = 1
                meta["seen"] = None
        except TypeError:  # read-only is as good
            pass
        return (3, 2)

    check_coordinates(subject, grid, (3, 2, 1))


@case("GRID-11", grid=[(5,), (5, 3), (5, 3, 2)])
def first_launch_is_like_later_ones(subject: Subject, grid: tuple[int, ...]) -> None:
    """A kernel that was never launched runs the same programs in its first launch as in its second and third."""
    x, y, z = (*grid, 1, 1)[:3]
    kernel = subject.kernel("coordinates", fresh=True)
    seen = [poisoned(x * y * z * 7) for _ in range(3)]
    if not subject.runs:
        for _ in seen:
            check_coordinates(subject, grid, (x, y, z), kernel=kernel)
        return
    for memory in seen:
        memory[::7] = 0
        launch(subject, "coordinates", grid, memory, x, y, kernel=kernel)
    same(subject, "programs counted by the first launch", [1] * (x * y * z), seen[0][::7])
    same(subject, "first and second launch", seen[0], seen[1])
    same(subject, "first and third launch", seen[0], seen[2])
