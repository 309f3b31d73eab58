"""SPEC: specialization."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import (
    POISON,
    Array,
    aligned,
    check_refused,
    launch,
    launch_arrived,
    own_rule,
    poisoned,
    require,
    same,
)
from gridpact.conformance.model import Unguarded, Violated, case, clause
from gridpact.conformance.subjects import Subject

clause(
    "SPEC-1",
    "triton",
    "A binary only runs with arguments that satisfy the facts that it was built on (16-byte divisibility, equal "
    "to 1, 32 or 64 bits). A misaligned view after an aligned one gives right results, and so does a number of "
    "another class.",
    "A binary that loads 16 bytes at a time reads beside a misaligned view, or faults.",
)

clause(
    "SPEC-2",
    "gridpact",
    "The classes are documented, can be listed for a kernel, and can be switched off per argument; a misspelt name in "
    "the switch is refused.",
    "A warm-up that does not know the classes leaves compiles for the first requests.",
)

clause(
    "SPEC-3",
    "gridpact",
    "Alignment is a backend's policy, not a law: the product can show, per kernel and backend, whether the aligned and "
    "the unaligned variant really differ in machine code.",
    "Memory is padded for nothing, or wide loads are lost and nobody knows why.",
)

_COUNT: Final = 16

# Type of the elements and where the view begins, in bytes after a multiple of 16.
_VIEWS: Final = {
    f"{dtype}_{begin}": (dtype, begin) for dtype in ("i1", "i4", "i8") for begin in range(0, 16, int(dtype[1]))
}

# Numbers one after the other, whose binaries may differ.
_SEQUENCES: Final = [
    (1, 2, 1), (2, 1, 2), (0, 1, 0), (16, 17, 16), (17, 16, 17), (1, 16, 1), (-16, -17, -16),
    (2**31 - 1, 2**31, 2**31 - 1), (2**31, 2**31 - 1, 2**31), (-(2**31), -(2**31) - 1, -(2**31)), (2**32, 1, 2**32 + 1),
]  # fmt: skip

# Where memory began (in elements of 8 bytes) and the number, when a binary was built, and what it is given then.
_OTHERS: Final = {
    "another_number_than_1": ((0, 1), (0, 2)),
    "a_number_that_16_does_not_divide": ((0, 16), (0, 17)),
    "a_number_of_64_bits": ((0, 5), (0, 2**31 + 5)),
}


def _double(subject: Subject, kernel: Any, dtype: str, begins: tuple[int, int], count: int) -> tuple[Any, list[Array]]:
    """Launch `scaled` over two views, and demand right results and nothing beside them.

    Gives what the launch gave back, and the views.
    """
    size = np.dtype(dtype).itemsize
    seen, source = (aligned(poisoned(2 * count + 32, dtype)) for _ in range(2))
    source[begins[1] // size :][:count] = np.arange(count)
    due = seen.copy()
    due[begins[0] // size :][:count] = 2 * np.arange(count)
    views = [seen[begins[0] // size :], source[begins[1] // size :]]
    result = launch(subject, "scaled", (1,), *views, count, BLOCK=count, kernel=kernel)
    if subject.runs:
        same(subject, f"twice {count} of {dtype}, views at {begins[0]} and {begins[1]} bytes", due, seen)
    else:
        passed = subject.passed(result)
        addresses = [view.ctypes.data for view in views]
        same(subject, "where the views begin, as the driver got it", addresses, [passed["seen"], passed["source"]])
    return result, views


def _check_doubled(subject: Subject, kernel: Any, dtype: str, seen_begin: int, source_begin: int) -> str:
    """Launch over two views; gives the binary's name."""
    result, _ = _double(subject, kernel, dtype, (seen_begin, source_begin), _COUNT)
    if "binaries" not in subject.abilities:
        return ""
    return subject.identity(result)


@case("SPEC-1", given=_VIEWS)
def misaligned_view_after_an_aligned_one_is_right(subject: Subject, given: tuple[str, int]) -> None:
    """A view at each offset, after one at a multiple of 16 bytes, is doubled right, by a binary of its own."""
    dtype, begin = given
    kernel = subject.kernel("scaled")
    aligned = _check_doubled(subject, kernel, dtype, 0, 0)
    view = _check_doubled(subject, kernel, dtype, begin, begin)
    again = _check_doubled(subject, kernel, dtype, 0, 0)
    same(subject, "binaries of the aligned ones", aligned, again)
    if "binaries" in subject.abilities:
        same(subject, "one binary serves both", begin == 0, aligned == view)


@case("SPEC-1", first=["aligned", "misaligned"])
def alignments_of_two_tensors_mix(subject: Subject, first: str) -> None:
    """Of two tensors each is aligned or not, in four launches of one kernel: all are right, by four binaries."""
    kernel = subject.kernel("scaled", fresh=True)
    begins = list(itertools.product((0, 4), repeat=2))
    binaries = [
        _check_doubled(subject, kernel, "i4", *begin) for begin in (begins if first == "aligned" else begins[::-1])
    ]
    if "binaries" in subject.abilities:
        same(subject, "binaries", 4, len(set(binaries)))


@case("SPEC-1", values=_SEQUENCES)
def numbers_of_other_classes_arrive(subject: Subject, values: tuple[int, ...]) -> None:
    """A number that is 1, divisible by 16 or 64 bits wide, after one that is not and before it, arrives as it is."""
    kernel = subject.kernel("arrived", fresh=True)
    for value in values:
        launch_arrived(subject, kernel, value)


@case("SPEC-1")
def classes_of_two_numbers_mix(subject: Subject) -> None:
    """Of two numbers each is 1, 3, divisible by 16 or 64 bits wide, in every combination: each arrives at its place."""
    kernel = subject.kernel("two_numbers", fresh=True)
    for pair in itertools.product((1, 3, 16, 2**40 + 1), repeat=2):
        seen = poisoned(3, "i8")
        result = launch(subject, "two_numbers", (1,), seen, *pair, kernel=kernel)
        if subject.runs:
            same(subject, f"numbers {pair}", [*pair, POISON], seen)
        else:
            passed = subject.passed(result)
            same(subject, f"numbers {pair}, as the driver got them", pair, (passed["m"], passed["n"]))


def _built(subject: Subject, begin: int, value: int) -> Any:
    """Compile `arrived` for memory that begins there and for a number, and give the binary."""
    require(subject, "compiled")
    memory = aligned(poisoned(8, "i8"))
    compiled = launch(subject, "arrived", (1,), memory[begin:], value)
    if subject.runs:
        same(subject, f"arrived of {value}", value, memory[begin])
    return compiled


@case("SPEC-1", kind="control", given={"aligned": ((0, 5), (0, 7)), "misaligned": ((1, 5), (1, 7)),
      "one": ((0, 1), (0, 1)), "divisible": ((0, 16), (0, 32))})  # fmt: skip
def binary_launches_what_it_was_built_for(subject: Subject, given: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """A binary that a launch gave back runs again with arguments of the same classes."""
    built, (begin, value) = given
    compiled = _built(subject, *built)
    memory = aligned(poisoned(8, "i8"))
    due = memory.copy()
    due[begin] = value
    subject.driver_calls()
    launch(subject, "arrived", (1, 1, 1), memory[begin:], value, kernel=compiled)
    if subject.runs:
        same(subject, f"{value} by a binary that was built with {built[1]}", due, memory)
    else:
        same(subject, f"{value} to a binary that was built with {built[1]}", value, subject.passed(compiled)["value"])


# A device that faults on a misaligned access takes its process along.
@case("SPEC-1", kind="negative", given={"a_misaligned_view": ((0, 5), (1, 5))}, ends_worker=True)
@case("SPEC-1", kind="negative", given=_OTHERS)
def binary_refuses_what_it_was_not_built_for(subject: Subject, given: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """A binary that a launch gave back refuses arguments that break a fact that it was built on."""
    built, (begin, value) = given
    compiled = _built(subject, *built)
    memory: list[Array] = []

    def ask(seen: Array) -> None:
        memory.append(aligned(seen.view("i8")))
        subject.launch("arrived", (1, 1, 1), memory[0][begin:], value, kernel=compiled)

    kinds = ValueError if subject.is_own else (ValueError, OverflowError, TypeError)
    try:
        check_refused(subject, kinds, "SPEC-1", ask, names="'arrived'", count=lambda seen: 1)
    except Unguarded:
        raise
    except Violated as broken:
        number = memory[0][begin] if subject.runs else subject.passed(compiled)["value"]
        is_right = not subject.is_own and number == value
        told = f"{broken.seen}; {number} arrived"
        raise (Unguarded if is_right else Violated)(broken.asked, broken.due, told) from broken


_SWITCHES: Final = ("do_not_specialize", "do_not_specialize_on_alignment")


def _classes_seen(subject: Subject, kernel: Any, values: tuple[int, ...]) -> int:
    """Launch with each number, demand that it arrives, and give how many binaries ran."""
    require(subject, "binaries")
    return len({subject.identity(launch_arrived(subject, kernel, value)) for value in values})


@case("SPEC-2", kind="control")
def each_class_has_a_binary(subject: Subject) -> None:
    """Without a switch 1, 16 and 17 are three classes of a number."""
    kernel = subject.kernel("arrived", fresh=True)
    with own_rule(subject):
        same(subject, "binaries", 3, _classes_seen(subject, kernel, (17, 16, 1, 33, 32)))


@case("SPEC-2", switch=_SWITCHES, by={"name": "value", "position": 1})
def class_is_switched_off(subject: Subject, switch: str, by: str | int) -> None:
    """An argument whose classes are switched off, by name or position, has one binary, and arrives each time."""
    kernel = subject.kernel("arrived", fresh=True, **{switch: [by]})
    values = (17, 16, 1, 33, 32) if switch == "do_not_specialize" else (17, 16, 33, 32)
    same(subject, "binaries", 1, _classes_seen(subject, kernel, values))


@case("SPEC-2", switch=_SWITCHES)
def alignment_of_a_tensor_is_switched_off(subject: Subject, switch: str) -> None:
    """A kernel whose tensors' alignment is switched off doubles aligned and misaligned views by one binary."""
    require(subject, "binaries")
    kernel = subject.kernel("scaled", fresh=True, **{switch: ["seen", "source"]})
    ran = [_check_doubled(subject, kernel, "i4", *begins) for begins in ((0, 0), (4, 0), (8, 12), (0, 0))]
    same(subject, "binaries", 1, len(set(ran)))


@case("SPEC-2", kind="negative", switch=_SWITCHES, wrong={"a_misspelt_name": "valeu", "no_position": 7})
def misspelt_switch_is_refused(subject: Subject, switch: str, wrong: str | int) -> None:
    """A switch that names no parameter is refused when the kernel is made, with the nearest name."""
    due = f"a refusal that names {wrong!r} [SPEC-2]"
    with own_rule(subject):
        try:
            subject.kernel("arrived", fresh=True, **{switch: [wrong]})
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            is_told = repr(wrong) in str(error) and (not subject.is_own or getattr(error, "clause", "") == "SPEC-2")
            if not is_told:
                raise Violated(f"{switch}=[{wrong!r}]", due, told) from error
            subject.asked.note(due, told)
        else:
            raise Violated(f"{switch}=[{wrong!r}]", due, "no error")


@case("SPEC-2", kind="negative", switch=_SWITCHES)
def switch_of_a_constant_is_refused(subject: Subject, switch: str) -> None:
    """A constexpr has a binary for each value: to switch that off is refused when the kernel is made."""
    require(subject, "classes")
    due = "a refusal that names 'C' [SPEC-2]"
    try:
        subject.kernel("constant", fresh=True, **{switch: ["C"]})
    except ValueError as error:
        same(subject, due, (True, "SPEC-2"), ("'C'" in str(error), getattr(error, "clause", "")))
    else:
        raise Violated(f"{switch}=['C']", due, "no error")


@case("SPEC-2")
def classes_are_listed(subject: Subject) -> None:
    """The classes of each parameter can be listed, and are those that launches have binaries for."""
    require(subject, "classes")
    listed = subject.kernel("scaled", fresh=True).kernel.classes
    number = ("None", "equal to 1", "divisible by 16", "any")
    due = {"seen": number, "source": number, "n": number, "BLOCK": ("each value",)}
    same(subject, "classes of `scaled`", str(due), str(listed))
    free = subject.kernel("scaled", fresh=True, do_not_specialize=["n"]).kernel.classes
    same(subject, "classes of n, switched off", ("None", "any"), free["n"])


@case("SPEC-2")
def classes_are_compiled_ahead(subject: Subject) -> None:
    """After every class of three arguments was compiled ahead, no launch of any of them compiles."""
    require(subject, "classes")
    kernel = subject.kernel("scaled", fresh=True)
    seen, source = (subject.tensor(aligned(poisoned(4 * _COUNT, "i4"))) for _ in range(2))
    made = kernel.kernel.precompile(seen, source, _COUNT, BLOCK=_COUNT, device=subject.opened.name)  # type: ignore[attr-defined]
    same(subject, "binaries made ahead", 12, len({binary.hash for binary in made}))
    told: list[list[str]] = []
    with subject.explained(told):
        for begins in itertools.product((0, 4), repeat=2):
            _check_doubled(subject, kernel, "i4", *begins)
    same(subject, "binaries that launches needed", "[]", str(told))


# How many elements a block has: with one element a thread no load can be wide.
_BLOCKS: Final = {"one_a_thread": 16, "many_a_thread": 1024}

# Where the two views of `scaled` begin, in bytes after a multiple of 16, and the variant that such a launch is of.
_SHOWN: Final = {(0, 0): "aligned", (4, 4): "unaligned", (4, 0): "seen unaligned"}


def _shown(subject: Subject, kernel: Any, views: list[Array], count: int) -> Any:
    """Give the variants of `scaled` that are shown for the subject's device, and for a launch over these views."""
    from gridpact.asked import ask
    from gridpact.variants import list_variants

    return list_variants(ask(kernel.kernel, (*views, count, count), {}), subject.opened)  # type: ignore[attr-defined]


def _ran(result: Any) -> Any:
    """Give the code that a launch ran."""
    from gridpact.variants import code_of

    return code_of(result.binary)


def _accesses(code: Any) -> str:
    return f"{code.form}, loads {dict(code.loads)}, stores {dict(code.stores)}"


@case("SPEC-3", count=_BLOCKS)
def launches_run_what_is_shown(subject: Subject, count: int) -> None:
    """Launches over aligned and misaligned views run the code that is shown for their variants, the same or not."""
    require(subject, "variants")
    kernel = subject.kernel("scaled", fresh=True)
    first: dict[str, str] = {}  # code -> the first launch that ran it
    due, told = [], []
    for begins, name in _SHOWN.items():
        result, views = _double(subject, kernel, "i4", begins, count)
        shown = _shown(subject, kernel, views, count)
        same(subject, f"variant of a launch over views at {begins} bytes", name, shown.launched)
        same(subject, f"errors of {name}", "", shown[name].error)
        code, seen = _ran(result), shown[name].code
        same(subject, f"accesses of {name}", _accesses(code), _accesses(seen))
        same(subject, f"code of {name}", code.text, seen.text)
        due.append(first.setdefault(code.text, name))
        told.append(shown[name].same_as or name)
    same(subject, f"first of {[*_SHOWN.values()]} with the code of each", due, told)


@case("SPEC-3", kind="control", count=_BLOCKS)
def launches_of_one_class_run_one_code(subject: Subject, count: int) -> None:
    """A kernel that is made again, over other memory of the same class, runs the same code; another block does not."""
    require(subject, "variants")
    codes = []
    for block in (count, count, 2 * count):
        result, _ = _double(subject, subject.kernel("scaled", fresh=True), "i4", (0, 0), block)
        codes.append(_ran(result).text)
    same(subject, f"code of a kernel that is made again, block of {count}", codes[0], codes[1])
    same(subject, "another block has the same code", False, codes[0] == codes[2])
