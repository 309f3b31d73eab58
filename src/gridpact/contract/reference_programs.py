"""The same probe programs as Python functions, for the reference backend."""

from types import ModuleType

import numpy as np

from gridpact.backends.reference import num_programs, program_id


def coordinates(seen, width, height):
    """Count the program at its own place and write its coordinates and the grid: 7 numbers a program."""
    x, y, z = program_id(0), program_id(1), program_id(2)
    at = ((z * height + y) * width + x) * 7
    seen[at] += 1
    seen[at + 1 : at + 7] = x, y, z, num_programs(0), num_programs(1), num_programs(2)


def shared_coordinates(seen, width, height):
    """Do the same, with a sum that must be 2016 for the program to count."""
    x, y, z = program_id(0), program_id(1), program_id(2)
    at = ((z * height + y) * width + x) * 7
    seen[at] += sum(range(64)) - 2015
    seen[at + 1 : at + 7] = x, y, z, num_programs(0), num_programs(1), num_programs(2)


def counted(seen):
    """Count the programs that run, in one place."""
    seen[0] += 1


def sampled(seen, step):
    """Count one program in `step` along x, and note the last program of the grid."""
    at = program_id(0), program_id(1), program_id(2)
    if at[0] % step == 0:
        seen[0] += 1
    if at == (num_programs(0) - 1, num_programs(1) - 1, num_programs(2) - 1):
        seen[1:4] = at


def integers(seen, i8: "i8", i16: "i16", i32: "i32", i64: "i64", u8: "u8", u16: "u16", u32: "u32", free):
    """Write integers as they arrived in their declared types, and one that chose its own."""
    seen[:8] = i8, i16, i32, i64, u8, u16, u32, free


def floats(seen, half: "fp16", brain: "bf16", single: "fp32", double: "fp64", free):
    """Write floats as they arrived."""
    seen[:5] = half, brain, single, double, free


def optional(seen, extra):
    """Branch on None; take apart a tuple of a number and a nested tuple."""
    seen[0] = 1 if extra is None else extra[0] + extra[1][0]


def taken_apart(seen, extra):
    """Take apart a tuple of a number and a nested tuple."""
    seen[0] = extra[0] + extra[1][0]


def constant(seen, C: "tl.constexpr", D: "tl.constexpr" = "default"):
    """Write the type and value of a constant as text tells them: 1, True and 1.0 are three."""
    known = {"1": 1, "True": 2, "1.0": 3, "0.0": 4, "-0.0": 5, "nan": 6, "None": 7}
    seen[0] = known.get(f"{C}", 8)


def scaled(seen, source, n, BLOCK: "tl.constexpr"):
    """Write twice the first n elements of a block; reads and writes through both pointers."""
    begin = program_id(0) * BLOCK
    end = min(begin + BLOCK, n)
    seen[begin:end] = source[begin:end] * 2


def arrived(seen, value):
    """Write a number as it arrived; its type is chosen by its value."""
    seen[0] = value


def arrived_bool(seen, value: "i1"):
    """Write a declared bool as it arrived."""
    seen[0] = value


def arrived_i8(seen, value: "i8"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_i16(seen, value: "i16"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_i32(seen, value: "i32"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_i64(seen, value: "i64"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_u8(seen, value: "u8"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_u16(seen, value: "u16"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_u32(seen, value: "u32"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_u64(seen, value: "u64"):
    """Write a declared integer as it arrived."""
    seen[0] = value


def arrived_fp16(seen, value: "fp16"):
    """Write a declared float as it arrived."""
    seen[0] = value


def arrived_bf16(seen, value: "bf16"):
    """Write a declared float as it arrived."""
    seen[0] = value


def arrived_fp32(seen, value: "fp32"):
    """Write a declared float as it arrived."""
    seen[0] = value


def arrived_fp64(seen, value: "fp64"):
    """Write a declared float as it arrived."""
    seen[0] = value


def defaults(seen, a, b=20, C: "tl.constexpr" = 30):
    """Write three arguments of which two may be left out."""
    seen[:3] = a, b, C


def keyword_only(seen, a, *, b, c=40):
    """Write three arguments of which two have to be named."""
    seen[:3] = a, b, c


def copied(seen, source, n, BLOCK: "tl.constexpr"):
    """Copy n elements, from their own type to that of the memory."""
    seen[:n] = source[:n]


def copied_const(seen, source: "tl.const", n, BLOCK: "tl.constexpr"):
    """Do the same from memory that is only read."""
    seen[:n] = source[:n]


def fields(seen, point):
    """Write the fields x and y of a named tuple."""
    seen[:2] = point.x, point.y


def through_tuple(pair):
    """Write the number of a pair through the tensor of the pair."""
    pair[0][0] = pair[1]


def converted(seen, value, TYPE: "tl.constexpr"):
    """Write a number after a conversion to an element type."""
    seen[0] = np.asarray(value).astype(TYPE)


converted.types = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "fp32": np.float32}


def constants(seen, C: "tl.constexpr", D: "tl.constexpr"):
    """Write which pair two constants are."""
    known = ("'a-b' 'c'", "'a' 'b-c'", "1 None", "'1' None", "1 'None'", "True 'None'", "'True' 'None'")
    pair = f"{C!r} {D!r}"
    seen[0] = known.index(pair) + 1 if pair in known else 8


CAPTURED = 3


def captured(seen):
    """Write what a global holds."""
    seen[0] = CAPTURED


def closure(CAPTURED):
    """Make a program that writes what a cell of its closure holds, whose name a global has too."""

    def captured_cell(seen):
        seen[0] = CAPTURED

    return captured_cell


KEPT = 4
HOLDER = ModuleType("HOLDER")
HOLDER.KEPT = KEPT
KEPT_LIST = [1, 2, 3]
KEPT_OBJECT = None
_CODES = {"4": 1, "4.0": 2, "0.0": 3, "-0.0": 4, "1": 5, "True": 6, "nan": 7}


def kept_global(seen):
    """Write the type and value of a global as text tells them."""
    seen[0] = _CODES[str(KEPT)]


def kept_attribute(seen):
    """Write the type and value of an attribute of a module as text tells them."""
    seen[0] = _CODES[str(HOLDER.KEPT)]


def kept_cell(KEPT):
    """Make a program that writes the type and value of a cell of its closure as text tells them."""

    def kept_in_a_cell(seen):
        seen[0] = _CODES[str(KEPT)]

    return kept_in_a_cell


def kept_length(seen):
    """Write how long a captured list is."""
    seen[0] = len(KEPT_LIST)


def kept_object(seen):
    """Write whether there is a captured object."""
    seen[0] = 1 if KEPT_OBJECT is not None else 2


def answers_3():
    """Give a number; a helper."""
    return 3


def answers_5():
    """Give another number; a helper."""
    return 5


def asks_helper(seen):
    """Write what a helper gives."""
    seen[0] = HELPER()


def two_numbers(seen, m, n):
    """Write two numbers whose types and classes are chosen by their values."""
    seen[:2] = m, n


def passed_on(seen, source):
    """Write what another program wrote."""
    seen[0] = source[0]


def parameter_named_stream(seen, stream):
    """Write a number whose name means something else in a launch."""
    seen[0] = stream


def idle(n):
    """Do nothing that can be seen."""
