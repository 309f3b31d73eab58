"""ARG: arguments."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

import numpy as np

from gridpact.conformance.check import POISON, Array, check_refused, launch, own_rule, poisoned, require, same
from gridpact.conformance.model import Unguarded, Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Subject

clause(
    "ARG-1",
    "triton",
    "Binding follows Python's rules for the kernel's signature (defaults, keywords, keyword-only); the error is "
    "the one that Python would give, with the kernel's name.",
    "An argument that lands on another parameter, or is dropped, is a wrong result and no error.",
)
clause(
    "ARG-2",
    "triton",
    "An integer arrives exactly in its declared type or is refused (OverflowError). A float is rounded once, to "
    "nearest even, to its declared type (fp32 if none); NaN and inf pass; a finite value that would become inf is"
    " refused. NumPy's scalars are numbers (our own rule).",
    "A number that is cut on its way is a wrong result and no error.",
)
clause(
    "ARG-3",
    "triton",
    "A pointer argument carries dtype and owner. None is the constexpr None (kernels branch on it) and takes no "
    "parameter. Tuples (nested, named), dtypes and constexprs are arguments as in Triton. Anything else is "
    "refused by the argument's name.",
    "An object without an element type fails deep inside the compiler, which names no argument.",
)


# ---------------------------------------------------------------------------------------------------------- ARG-1

# Arguments after the memory, keywords, and what a, b and C of `defaults` are then.
_BINDINGS: Final = {
    "all_by_position": ((10, 21, 31), {}, [10, 21, 31]),
    "all_by_name": ((), {"a": 10, "b": 21, "C": 31}, [10, 21, 31]),
    "all_by_name_in_another_order": ((), {"C": 31, "b": 21, "a": 10}, [10, 21, 31]),
    "some_by_name": ((10,), {"C": 31, "b": 21}, [10, 21, 31]),
    "both_defaults": ((10,), {}, [10, 20, 30]),
    "first_default": ((10,), {"C": 31}, [10, 20, 31]),
    "second_default": ((10, 21), {}, [10, 21, 30]),
    "defaults_spelled_out": ((10, 20), {"C": 30}, [10, 20, 30]),
}

# Program, arguments after the memory, keywords.
_MISFITS: Final = {
    "one_missing": ("defaults", (), {}),
    "two_missing": ("coordinates", (), {}),
    "one_missing_beside_a_keyword": ("defaults", (), {"b": 20}),
    "one_twice": ("defaults", (10,), {"a": 11}),
    "a_default_twice": ("defaults", (10, 20), {"b": 21}),
    "one_too_many": ("coordinates", (4, 4, 4), {}),
    "one_more_than_with_defaults": ("defaults", (10, 20, 30, 40), {}),
}


@case("ARG-1", given=_BINDINGS)
def arguments_bind_as_in_python(subject: Subject, given: tuple[Any, Any, list[int]]) -> None:
    """Arguments by position, by name in any order, and left out for their defaults arrive where Python puts them."""
    args, keywords, due = given
    seen = poisoned(4)
    result = launch(subject, "defaults", (1,), seen, *args, **keywords)
    _check_passed(subject, result, due)
    if subject.runs:
        same(subject, f"a, b and C of {args} {keywords}", [*due, POISON], seen)


@case("ARG-1")
def tensor_binds_by_name(subject: Subject) -> None:
    """A tensor that is given by name, after numbers, arrives."""
    seen = poisoned(4)
    result = launch(subject, "defaults", (1,), b=21, a=10, seen=seen)
    _check_passed(subject, result, [10, 21, 30])
    if subject.runs:
        same(subject, "a, b and C", [10, 21, 30, POISON], seen)


@case("ARG-1", given={"one_default": {"b": 21}, "no_default": {"c": 41, "b": 21}})
def keyword_only_parameters_bind(subject: Subject, given: dict[str, int]) -> None:
    """Parameters behind the star take arguments by name and have defaults."""
    seen = poisoned(4)
    with own_rule(subject):
        launch(subject, "keyword_only", (1,), seen, 10, **given)
        same(subject, f"a, b and c of {given}", [10, 21, given.get("c", 40), POISON], seen)


def _check_misfit(subject: Subject, program: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Demand a refusal, of our subjects in Python's own words."""
    kinds = TypeError if subject.is_own else (TypeError, KeyError)
    refusal = check_refused(
        subject, kinds, "ARG-1", lambda seen: subject.launch(program, (1,), seen, *args, **keywords)
    )
    if subject.is_own:
        words = _words_of_python(subject.source(program), (None, *args), keywords)
        same(subject, "words of the error", f"{words} [ARG-1]", str(refusal))


def _words_of_python(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Call a program as the plain function that it is, with arguments that do not fit, for Python's own error."""
    try:
        function(*args, **keywords)
    except TypeError as error:
        return str(error)
    raise AssertionError(f"Python takes {args} {keywords}")


@case("ARG-1", kind="negative", given=_MISFITS)
def misfit_is_refused(subject: Subject, given: tuple[str, Any, Any]) -> None:
    """An argument that is missing, given twice or too many is a TypeError in Python's words."""
    _check_misfit(subject, *given)


@case("ARG-1", kind="negative", given={"one_by_position": ((10, 20), {}), "one_missing": ((10,), {"c": 41})})
def misfit_behind_the_star_is_refused(subject: Subject, given: tuple[Any, Any]) -> None:
    """A keyword-only argument that is missing or given by position is a TypeError in Python's words."""
    with own_rule(subject):
        _check_misfit(subject, "keyword_only", *given)


@case("ARG-1", kind="negative")
def unexpected_keyword_is_refused(subject: Subject) -> None:
    """A keyword that no parameter has is refused, for us as an option that nobody knows (META-3), and never dropped."""
    kinds = TypeError if subject.is_own else (TypeError, KeyError)
    check_refused(subject, kinds, "META-3", lambda seen: subject.launch("defaults", (1,), seen, 10, bb=21), names="bb")


# ---------------------------------------------------------------------------------------------------------- ARG-2

_RANGES: Final = {
    "i8": (-(2**7), 2**7 - 1), "i16": (-(2**15), 2**15 - 1), "i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1),
    "u8": (0, 2**8 - 1), "u16": (0, 2**16 - 1), "u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1),
    "bool": (0, 1),
}  # fmt: skip


def _inside(kind: str) -> list[int]:
    """Give both bounds of a type, and between them 0, the 1 and 16 that kernels are specialized on, and -1."""
    low, high = _RANGES[kind]
    return sorted({low, high, *(value for value in (0, 1, -1, 16) if low <= value <= high)})


_INTEGERS: Final = {f"{kind}_{value}": (kind, value) for kind in _RANGES for value in _inside(kind)}
_OUTSIDE: Final = {
    f"{kind}_{value}": (kind, value)
    for kind, (low, high) in _RANGES.items()
    for value in (low - 1, high + 1, 2**100)
}  # fmt: skip
_UNDECLARED: Final = [
    0, 1, -1, 16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, -(2**32),
    2**63 - 1, -(2**63), 2**63, 2**64 - 1, True, False,
]  # fmt: skip

_LARGEST_BF16: Final = (2 - 2**-7) * 2.0**127
_LARGEST_FP32: Final = (2 - 2**-23) * 2.0**127

# A value, and what it is in fp16, bf16, fp32 and fp64; None where it is too large.
_ROUNDED: Final = {
    "one_and_a_half": (1.5, 1.5, 1.5, 1.5, 1.5),
    "a_tenth": (0.1, 0.0999755859375, 0.10009765625, 0.10000000149011612, 0.1),
    "minus_zero": (-0.0, -0.0, -0.0, -0.0, -0.0),
    "inf": (math.inf, math.inf, math.inf, math.inf, math.inf),
    "minus_inf": (-math.inf, -math.inf, -math.inf, -math.inf, -math.inf),
    "nan": (math.nan, math.nan, math.nan, math.nan, math.nan),
    # Halfway goes to even; a little more goes up, also where a first rounding to fp32 would drop the little.
    "halfway_in_fp16": (1 + 2**-11, 1.0, 1.0, 1 + 2**-11, 1 + 2**-11),
    "above_halfway_in_fp16": (1 + 2**-11 + 2**-40, 1 + 2**-10, 1.0, 1 + 2**-11, 1 + 2**-11 + 2**-40),
    "halfway_in_bf16": (1 + 2**-8, 1 + 2**-8, 1.0, 1 + 2**-8, 1 + 2**-8),
    "above_halfway_in_bf16": (1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 2**-7, 1 + 2**-8, 1 + 2**-8 + 2**-40),
    "halfway_in_fp32": (1 + 2**-24, 1.0, 1.0, 1.0, 1 + 2**-24),
    "above_halfway_in_fp32": (1 + 2**-24 + 2**-50, 1.0, 1.0, 1 + 2**-23, 1 + 2**-24 + 2**-50),
    # Subnormals, and what is too small.
    "smallest_fp16": (2**-24, 2**-24, 2**-24, 2**-24, 2**-24),
    "halfway_below_smallest_fp16": (2**-25, 0.0, 2**-25, 2**-25, 2**-25),
    "above_halfway_below_smallest_fp16": (2**-25 + 2**-60, 2**-24, 2**-25, 2**-25, 2**-25 + 2**-60),
    "smallest_bf16": (2**-133, 0.0, 2**-133, 2**-133, 2**-133),
    "smallest_fp32": (-(2**-149), -0.0, -0.0, -(2**-149), -(2**-149)),
    "smallest_fp64": (2**-1074, 0.0, 0.0, 0.0, 2**-1074),
    # The largest, and the largest that is rounded down to it.
    "largest_fp16": (65504.0, 65504.0, 65536.0, 65504.0, 65504.0),
    "below_overflow_of_fp16": (65519.5, 65504.0, 65536.0, 65519.5, 65519.5),
    "largest_bf16": (_LARGEST_BF16, None, _LARGEST_BF16, _LARGEST_BF16, _LARGEST_BF16),
    "largest_fp32": (_LARGEST_FP32, None, None, _LARGEST_FP32, _LARGEST_FP32),
    "largest_fp64": (sys.float_info.max, None, None, None, sys.float_info.max),
}  # fmt: skip
_FLOATS: Final = {
    f"{kind}_{name}": (kind, value, due)
    for name, (value, *dues) in _ROUNDED.items()
    for kind, due in zip(("fp16", "bf16", "fp32", "fp64"), dues, strict=True)
    if due is not None
}
_UNDECLARED_FLOATS: Final = {name: (row[0], row[3]) for name, row in _ROUNDED.items() if row[3] is not None}

# Halfway between the largest value and the next that there would be, which goes to even and so to inf; and more.
_TOO_LARGE: Final = [
    ("arrived_fp16", 65520.0), ("arrived_fp16", -1e6),
    ("arrived_bf16", 2.0**128 - 2.0**119), ("arrived_bf16", -_LARGEST_FP32),
    ("arrived_fp32", 2.0**128 - 2.0**103), ("arrived_fp32", 1e300),
    ("arrived", 2.0**128 - 2.0**103), ("arrived", -1e39),
]  # fmt: skip

_SCALARS: Final = {
    type(value).__name__: value
    for value in (np.int8(-7), np.int16(-7), np.int32(-7), np.int64(-(2**63)),
                  np.uint8(200), np.uint16(7), np.uint32(2**32 - 1), np.uint64(2**64 - 1),
                  np.True_, np.float16(1.5), np.float32(0.1), np.float64(2.5))
}  # fmt: skip


def _memory(holds: float) -> Array:
    """Make memory of 8-byte elements whose type has a value."""
    if isinstance(holds, float):
        return poisoned(4, "f8")
    return poisoned(4, "i8").view("u8" if holds >= 2**63 else "i8")


def _check_arrives(subject: Subject, program: str, value: object, due: float) -> None:
    """Launch a program that writes one number, and demand that it is what is due, and nothing beside it is written."""
    seen = _memory(due)
    wanted = seen.copy()
    wanted[0] = due
    result = launch(subject, program, (1,), seen, value)
    if subject.runs:
        same(subject, f"{program} of {value!r}", wanted, seen)
    else:
        same(subject, f"{program} of {value!r}, as the driver got it", due, subject.passed(result)["value"])


def _check_passed(subject: Subject, result: Any, due: list[Any]) -> None:
    """Where no kernel runs, demand numbers of the driver call, in the order of the program's parameters.

    What was compiled in counts as passed.
    """
    if not subject.runs:
        passed = subject.passed(result)
        seen = [value for name, value in passed.items() if name != "seen"]
        for wanted, found in zip(due, seen, strict=True):
            same(subject, f"numbers {due}", wanted, found)


def _check_number_refused(
    subject: Subject, kinds: type[Exception] | tuple[type[Exception], ...], program: str, value: float, dtype: str
) -> None:
    """Demand a refusal; a foreign subject whose kernel gets just this value, in whatever type, ran what was asked."""
    arrived: list[Any] = []

    def ask(seen: Array) -> None:
        memory = seen.view(dtype)
        arrived.append(memory[:1])
        result = subject.launch(program, (1,), memory, value)
        if not subject.runs:
            arrived.append([subject.passed(result)["value"]])

    try:
        check_refused(subject, kinds, "ARG-2", ask, names="argument 'value'", count=lambda seen: 1)
    except Unguarded:
        raise
    except Violated as broken:
        number = np.asarray(arrived[-1][0]).item()
        is_as_asked = not subject.is_own and (len(arrived) > 1 or subject.runs) and number == value
        told = f"{broken.seen}; {number} arrived" if len(arrived) > 1 or subject.runs else broken.seen
        raise (Unguarded if is_as_asked else Violated)(broken.asked, broken.due, told) from broken


@case("ARG-2", given=_INTEGERS)
def declared_integer_arrives(subject: Subject, given: tuple[str, int]) -> None:
    """The bounds of each integer type, and 0, 1, -1 and 16, arrive as they are."""
    kind, value = given
    _check_arrives(subject, f"arrived_{kind}", value, value)


@case("ARG-2", value=_UNDECLARED)
def undeclared_integer_arrives(subject: Subject, value: int) -> None:
    """An integer without a declared type arrives whole, whatever width it needs."""
    _check_arrives(subject, "arrived", value, int(value))


@case("ARG-2", bound=["low", "high"])
def integers_arrive_side_by_side(subject: Subject, bound: str) -> None:
    """Integers of every width in one launch do not run into each other."""
    at = 0 if bound == "low" else 1
    values = [_RANGES[kind][at] for kind in ("i8", "i16", "i32", "i64", "u8", "u16", "u32")]
    seen = poisoned(9, "i8")
    result = launch(subject, "integers", (1,), seen, *values, 2**40)
    _check_passed(subject, result, [*values, 2**40])
    if subject.runs:
        same(subject, f"integers of {values}", [*values, 2**40, POISON], seen)


@case("ARG-2", value=[True, False])
def bool_is_an_integer(subject: Subject, value: bool) -> None:
    """A bool for a declared integer is 0 or 1, as in Python."""
    _check_arrives(subject, "arrived_i32", value, int(value))


@case("ARG-2", kind="negative", given=_OUTSIDE)
def integer_outside_its_type_is_refused(subject: Subject, given: tuple[str, int]) -> None:
    """One below and one above each integer type, and 2**100, are an OverflowError."""
    kind, value = given
    kinds = OverflowError if subject.is_own else (OverflowError, ValueError)
    _check_number_refused(subject, kinds, f"arrived_{kind}", value, "u8" if kind.startswith("u") else "i8")


@case("ARG-2", kind="negative", value=[2**64, -(2**63) - 1, 2**100])
def integer_of_no_width_is_refused(subject: Subject, value: int) -> None:
    """An integer without a declared type that needs more than 64 bits is an OverflowError."""
    kinds = OverflowError if subject.is_own else (OverflowError, ValueError)
    _check_number_refused(subject, kinds, "arrived", value, "u8" if value > 0 else "i8")


@case(
    "ARG-2", kind="negative", kind_of=["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"], value=[1.0, 2.5]
)
def float_for_an_integer_is_refused(subject: Subject, kind_of: str, value: float) -> None:
    """A float for a declared integer is a TypeError, a whole one too."""
    _check_number_refused(subject, TypeError, f"arrived_{kind_of}", value, "f8")


@case("ARG-2", given=_FLOATS)
def declared_float_is_rounded_once(subject: Subject, given: tuple[str, float, float]) -> None:
    """A float arrives as the nearest of its declared type, ties to even; inf, NaN, signed zeros and subnormals pass."""
    kind, value, due = given
    _check_arrives(subject, f"arrived_{kind}", value, due)


@case("ARG-2", given=_UNDECLARED_FLOATS)
def undeclared_float_is_fp32(subject: Subject, given: tuple[float, float]) -> None:
    """A float without a declared type arrives as the nearest of fp32."""
    _check_arrives(subject, "arrived", *given)


@case("ARG-2")
def floats_arrive_side_by_side(subject: Subject) -> None:
    """Floats of every width in one launch do not run into each other, and are values with methods like any other."""
    seen = poisoned(6, "f8")
    result = launch(subject, "floats", (1,), seen, 0.1, 0.1, 0.1, 0.1, 0.1)
    due = [0.0999755859375, 0.10009765625, 0.10000000149011612, 0.1, 0.10000000149011612, POISON]
    _check_passed(subject, result, due[:-1])
    if subject.runs:
        same(subject, "0.1 in fp16, bf16, fp32, fp64 and undeclared", due, seen)


# Past 2**53, an int that goes through fp64 on its way to fp32 is rounded twice.
@case("ARG-2", given={"fp16": ("fp16", 2049, 2048.0), "fp32": ("fp32", 2**24 + 1, 2.0**24),
      "fp64": ("fp64", 2**53 + 1, 2.0**53),
      "fp32_above_halfway": ("fp32", 2**60 + 2**36 + 1, 2.0**60 + 2.0**37)})  # fmt: skip
def integer_for_a_float_is_rounded_once(subject: Subject, given: tuple[str, int, float]) -> None:
    """Our own rule: an integer for a declared float arrives as the nearest of that type."""
    kind, value, due = given
    with own_rule(subject):
        _check_arrives(subject, f"arrived_{kind}", value, due)


@case("ARG-2", kind="negative", given={f"{program}_{value:.17g}": (program, value) for program, value in _TOO_LARGE})
def float_that_would_become_inf_is_refused(subject: Subject, given: tuple[str, float]) -> None:
    """A finite float that rounds to inf in its type is an OverflowError."""
    kinds = OverflowError if subject.is_own else (OverflowError, ValueError)
    _check_number_refused(subject, kinds, *given, "f8")


@case("ARG-2", value=_SCALARS)
def numpy_scalar_is_a_number(subject: Subject, value: Any) -> None:
    """A NumPy scalar without a declared type arrives like the Python number that it stands for."""
    with own_rule(subject):
        due = value.item()
        _check_arrives(subject, "arrived", value, int(due) if isinstance(due, bool) else due)


@case("ARG-2", given={"i64": ("i64", np.int8(-7), -7), "u8": ("u8", np.int64(200), 200),
      "fp64": ("fp64", np.float64(0.1), 0.1),
      "fp16": ("fp16", np.float64(1 + 2**-11 + 2**-40), 1 + 2**-10)})  # fmt: skip
def numpy_scalar_for_a_declared_type_is_a_number(subject: Subject, given: tuple[str, Any, float]) -> None:
    """A NumPy scalar of another type than the declared one arrives in the declared one."""
    kind, value, due = given
    with own_rule(subject):
        _check_arrives(subject, f"arrived_{kind}", value, due)


@case(
    "ARG-2",
    kind="negative",
    given={"i8": ("i8", np.int64(128)), "u32": ("u32", np.int32(-1)), "i32": ("i32", np.uint64(2**31))},
)
def numpy_scalar_outside_its_type_is_refused(subject: Subject, given: tuple[str, Any]) -> None:
    """A NumPy scalar that the declared type has not got is an OverflowError."""
    kind, value = given
    kinds = OverflowError if subject.is_own else (OverflowError, ValueError, TypeError)
    _check_number_refused(subject, kinds, f"arrived_{kind}", value, "i8")


# ---------------------------------------------------------------------------------------------------------- ARG-3


class _Point(NamedTuple):
    x: int
    y: int


def _integers(bits: int, is_signed: bool) -> list[int]:
    return (
        [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0, 1] if is_signed else [2**bits - 1, 2 ** (bits - 1), 0, 1, 16]
    )


_SPECIAL: Final = [math.inf, math.nan, -0.0, 1.5]

# Element type -> NumPy's name, NumPy's name of the widest of its kind, and values that tell it from its neighbours.
_ELEMENTS: Final[dict[str, tuple[str, str, list[Any]]]] = {
    "i1": ("?", "i8", [0, 1, 1, 0, 1]),
    **{f"i{8 * size}": (f"i{size}", "i8", _integers(8 * size, True)) for size in (1, 2, 4, 8)},
    **{f"u{8 * size}": (f"u{size}", "u8", _integers(8 * size, False)) for size in (1, 2, 4, 8)},
    "fp16": ("f2", "f8", [*_SPECIAL, 65504.0]),
    "fp32": ("f4", "f8", [*_SPECIAL, 2.0**-126]),
    "fp64": ("f8", "f8", [*_SPECIAL, 5e-324]),
}

_NO_ARGUMENTS: Final = {
    "text": "4",
    "bytes": b"4",
    "an_object": object(),
    "a_list": [4, 4],
    "a_dict": {4: 4},
    "a_set": {4},
    "a_complex": 4j,
    "a_function": len,
}

_NO_ELEMENTS: Final = {
    "foreign_byte_order": lambda seen: seen.view(seen.dtype.newbyteorder()),
    "objects": lambda seen: seen.astype("O"),
    "dates": lambda seen: seen.astype("M8[s]"),
    "complex": lambda seen: seen.view("c8"),
    "bytes": lambda seen: seen.view("S4"),
    "records": lambda seen: seen.view([("a", "i4")]),
}


def _takes_arrays(subject: Subject) -> bool:
    """Tell whether the subject's tensors are NumPy arrays; others have no byte order, and no way to be read-only."""
    array = poisoned(1)
    return subject.tensor(array) is array


@case("ARG-3", kind_of=_ELEMENTS, way=["read", "written"])
def tensor_carries_its_element_type(subject: Subject, kind_of: tuple[str, str, list[Any]], way: str) -> None:
    """Elements are read as their own type into the widest of their kind, and written as their own type from it."""
    narrow, wide, values = kind_of
    source_type, seen_type = (narrow, wide) if way == "read" else (wide, narrow)
    source, seen = np.zeros(8, source_type), poisoned(8, "i8").astype(seen_type)
    source[:5] = values
    due = seen.copy()
    due[:5] = values
    launch(subject, "copied", (1,), seen, source, 5, BLOCK=8)
    same(subject, f"{values} as {source_type} into {seen_type}", due, seen)


@case("ARG-3", begin=[1, 2, 5])
def view_is_passed_without_a_copy(subject: Subject, begin: int) -> None:
    """A view that begins inside of its memory is written there, and nothing around it."""
    whole = poisoned(16, "i8")
    due = whole.copy()
    due[begin] = 7
    launch(subject, "arrived", (1,), whole[begin:], 7)
    same(subject, f"memory around a view from {begin}", due, whole)


@case("ARG-3", given={"none": (None, 1), "numbers": ((40, (2, None)), 42), "a_one": ((1, (1, None)), 2),
      "wide_numbers": ((2**40, (16, None)), 2**40 + 16)})  # fmt: skip
def none_and_tuples_are_arguments(subject: Subject, given: tuple[Any, int]) -> None:
    """A kernel branches on None, and takes a tuple in a tuple apart."""
    extra, due = given
    seen = poisoned(2, "i8")
    launch(subject, "optional" if extra is None else "taken_apart", (1,), seen, extra)
    same(subject, f"extra={extra}", [due, POISON], seen)


@case("ARG-3", watched=["no", "yes"])
def tensor_descriptor_is_an_argument(subject: Subject, watched: str) -> None:
    """A kernel reads rows through a tensor descriptor that it is passed, with hooks and without."""
    require(subject, "descriptors")
    source, seen = np.arange(64 * 32, dtype="i4"), poisoned(64 * 32 + 1)
    calls: list[str] = []
    hooks = subject.observed(lambda metadata: calls.append("enter"), lambda metadata: calls.append("exit"))
    with hooks if watched == "yes" else nullcontext():
        passed = subject.descriptor(source, (64, 32), (16, 32))  # type: ignore[attr-defined]
        launch(subject, "read_by_descriptor", (4,), passed, seen, ROWS=16, BLOCK=32)
    same(subject, "rows that were read", [*source, POISON], seen)
    same(subject, "hooks that were called", ["enter", "exit"] if watched == "yes" else [], calls)


@case("ARG-3")
def named_tuple_is_an_argument(subject: Subject) -> None:
    """A kernel reads the fields of a named tuple."""
    seen = poisoned(3, "i8")
    launch(subject, "fields", (1,), seen, _Point(7, 2**40))
    same(subject, "x and y", [7, 2**40, POISON], seen)


@case("ARG-3")
def tensor_in_a_tuple_is_an_argument(subject: Subject) -> None:
    """A kernel writes through a tensor that came in a tuple."""
    seen = poisoned(3, "i8")
    launch(subject, "through_tuple", (1,), (seen, 7))
    same(subject, "memory behind the tuple", [7, *[POISON] * 2], seen)


@case(
    "ARG-3", given={"an_int": (1, 1), "a_bool": (True, 2), "a_float": (1.0, 3), "none": (None, 7), "text": ("other", 8)}
)
def constexpr_is_an_argument(subject: Subject, given: tuple[Any, int]) -> None:
    """A kernel sees a constant as it was given: a number, a bool, None or text."""
    value, due = given
    seen = poisoned(2)
    # A kernel of its own: whether 1 after True is another one is asked by KEY-1.
    launch(subject, "constant", (1,), seen, value, kernel=subject.kernel("constant", fresh=True))
    same(subject, f"C={value!r}", [due, POISON], seen)


@case("ARG-3", given={"i8": ("i8", -56), "u8": ("u8", 200), "i32": ("i32", 200), "fp32": ("fp32", 200)})
def element_type_is_an_argument(subject: Subject, given: tuple[str, int]) -> None:
    """A kernel converts 200 to an element type that it was given as a constant."""
    kind, due = given
    seen = poisoned(2, "i8")
    launch(subject, "converted", (1,), seen, 200, subject.source("converted").types[kind])  # type: ignore[attr-defined]
    same(subject, f"200 as {kind}", [due, POISON], seen)


@case("ARG-3", kind="negative", where=["width", "seen"], value=_NO_ARGUMENTS)
def other_value_is_refused(subject: Subject, where: str, value: Any) -> None:
    """Text, bytes, containers and other objects are a TypeError that names the argument."""

    def ask(seen: Array) -> None:
        given = {"seen": seen, "width": 4, where: value}
        subject.launch("coordinates", (1,), given["seen"], given["width"], 4)

    check_refused(subject, TypeError, "ARG-3", ask, names=f"argument '{where}'")


@case("ARG-3", kind="negative")
def other_value_in_a_tuple_is_refused(subject: Subject) -> None:
    """Text inside of a tuple is a TypeError that names the argument."""
    check_refused(
        subject, TypeError, "ARG-3", lambda seen: subject.launch("through_tuple", (1,), (seen, "4")), names="'pair'"
    )


@case("ARG-3", kind="negative", change=_NO_ELEMENTS)
def tensor_without_an_element_type_is_refused(subject: Subject, change: Callable[[Array], Array]) -> None:
    """An array of elements that kernels have not got, foreign byte order too, is a TypeError that names it."""
    if not _takes_arrays(subject):
        raise Unsupported("its tensors are not NumPy arrays")
    check_refused(
        subject,
        TypeError,
        "ARG-3",
        lambda seen: subject.launch("coordinates", (1,), change(seen), 4, 4),
        names="'seen'",
    )


def _read_only(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view


@case("ARG-3", kind="control")
def read_only_array_for_a_constant_tensor_launches(subject: Subject) -> None:
    """A read-only array for a parameter that is declared tl.const is read."""
    if not _takes_arrays(subject):
        raise Unsupported("its tensors are not NumPy arrays")
    seen, source = poisoned(8), np.arange(8, dtype="i4")
    launch(subject, "copied_const", (1,), seen, _read_only(source), 5, BLOCK=8)
    same(subject, "what was read", [0, 1, 2, 3, 4, *[POISON] * 3], seen)


@case("ARG-3", kind="negative", where=["seen", "source"])
def read_only_array_is_refused(subject: Subject, where: str) -> None:
    """A read-only array for a parameter that is not declared tl.const is a ValueError that names the argument."""
    if not _takes_arrays(subject):
        raise Unsupported("its tensors are not NumPy arrays")

    def ask(seen: Array) -> None:
        given = {"seen": seen, "source": np.arange(8, dtype="i4")}
        given[where] = _read_only(given[where])
        subject.launch("copied", (1,), given["seen"], given["source"], 5, BLOCK=8)

    with own_rule(subject):
        check_refused(subject, ValueError, "ARG-3", ask, names=f"argument '{where}'")
