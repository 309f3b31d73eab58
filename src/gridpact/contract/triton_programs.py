"""Probe programs in Triton: plain functions, which each subject makes into kernels of its own. Each writes what it saw.

`options` of a function are what `jit` is told, so that one binary serves many grids.
"""

from types import ModuleType

import triton.language as tl


def coordinates(seen, width, height):
    """Count the program at its own place and write its coordinates and the grid: 7 numbers a program."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = seen + ((z * height + y) * width + x) * 7
    tl.atomic_add(at, 1)
    tl.store(at + 1, x)
    tl.store(at + 2, y)
    tl.store(at + 3, z)
    tl.store(at + 4, tl.num_programs(0))
    tl.store(at + 5, tl.num_programs(1))
    tl.store(at + 6, tl.num_programs(2))


coordinates.options = {"do_not_specialize": ["width", "height"]}


def shared_coordinates(seen, width, height):
    """Do the same, with a sum over shared memory that must be 2016 for the program to count."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = seen + ((z * height + y) * width + x) * 7
    total = tl.sum(tl.arange(0, 64) + (x - x), 0)
    tl.atomic_add(at, total - 2015)
    tl.store(at + 1, x)
    tl.store(at + 2, y)
    tl.store(at + 3, z)
    tl.store(at + 4, tl.num_programs(0))
    tl.store(at + 5, tl.num_programs(1))
    tl.store(at + 6, tl.num_programs(2))


shared_coordinates.options = coordinates.options


def counted(seen):
    """Count the programs that run, in one place."""
    tl.atomic_add(seen, 1)


def described(seen, n, BLOCK: tl.constexpr):
    """Write rows through a descriptor that the kernel makes on the device, which takes scratch memory."""
    rows = tl.make_tensor_descriptor(seen, shape=[n, BLOCK], strides=[BLOCK, 1], block_shape=[1, BLOCK])
    rows.store([tl.program_id(0), 0], tl.full((1, BLOCK), 7, tl.int32))


def sampled(seen, step):
    """Count one program in `step` along x, and note the last program of the grid."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if x % step == 0:
        tl.atomic_add(seen, 1)
    if (x == tl.num_programs(0) - 1) & (y == tl.num_programs(1) - 1) & (z == tl.num_programs(2) - 1):
        tl.store(seen + 1, x)
        tl.store(seen + 2, y)
        tl.store(seen + 3, z)


sampled.options = {"do_not_specialize": ["step"]}


def integers(
    seen, i8: tl.int8, i16: tl.int16, i32: tl.int32, i64: tl.int64, u8: tl.uint8, u16: tl.uint16, u32: tl.uint32, free
):
    """Write integers as they arrived in their declared types, and one that chose its own."""
    tl.store(seen + 0, i8.to(tl.int64))
    tl.store(seen + 1, i16.to(tl.int64))
    tl.store(seen + 2, i32.to(tl.int64))
    tl.store(seen + 3, i64)
    tl.store(seen + 4, u8.to(tl.int64))
    tl.store(seen + 5, u16.to(tl.int64))
    tl.store(seen + 6, u32.to(tl.int64))
    tl.store(seen + 7, free)


def floats(seen, half: tl.float16, brain: tl.bfloat16, single: tl.float32, double: tl.float64, free):
    """Write floats as they arrived."""
    tl.store(seen + 0, half.to(tl.float64))
    tl.store(seen + 1, brain.to(tl.float64))
    tl.store(seen + 2, single.to(tl.float64))
    tl.store(seen + 3, double)
    tl.store(seen + 4, free.to(tl.float64))


def optional(seen, extra):
    """Branch on None; take apart a tuple of a number and a nested tuple."""
    if extra is None:
        tl.store(seen, 1)
    else:
        tl.store(seen, extra[0] + extra[1][0])


def read_by_descriptor(source, seen, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy rows of a matrix that is passed as a tensor descriptor."""
    row = tl.program_id(0) * ROWS
    rows = source.load([row, 0])
    at = tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(seen + row * BLOCK + at, rows)


def taken_apart(seen, extra):
    """Take apart a tuple of a number and a nested tuple, without a look at what else is in it."""
    tl.store(seen, extra[0] + extra[1][0])


def constant(seen, C: tl.constexpr, D: tl.constexpr = "default"):
    """Write the type and value of a constant as text tells them: 1, True and 1.0 are three."""
    text: tl.constexpr = f"{C}"
    if text == "1":
        tl.store(seen, 1)
    elif text == "True":
        tl.store(seen, 2)
    elif text == "1.0":
        tl.store(seen, 3)
    elif text == "0.0":
        tl.store(seen, 4)
    elif text == "-0.0":
        tl.store(seen, 5)
    elif text == "nan":
        tl.store(seen, 6)
    elif text == "None":
        tl.store(seen, 7)
    else:
        tl.store(seen, 8)


def scaled(seen, source, n, BLOCK: tl.constexpr):
    """Write twice the first n elements of a block; reads and writes through both pointers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(seen + i, tl.load(source + i, mask=i < n, other=0) * 2, mask=i < n)


def arrived(seen, value):
    """Write a number as it arrived; its type is chosen by its value."""
    tl.store(seen, value)


def arrived_bool(seen, value: tl.int1):
    """Write a declared bool as it arrived."""
    tl.store(seen, value)


def arrived_i8(seen, value: tl.int8):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_i16(seen, value: tl.int16):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_i32(seen, value: tl.int32):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_i64(seen, value: tl.int64):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_u8(seen, value: tl.uint8):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_u16(seen, value: tl.uint16):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_u32(seen, value: tl.uint32):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_u64(seen, value: tl.uint64):
    """Write a declared integer as it arrived."""
    tl.store(seen, value)


def arrived_fp16(seen, value: tl.float16):
    """Write a declared float as it arrived."""
    tl.store(seen, value)


def arrived_bf16(seen, value: tl.bfloat16):
    """Write a declared float as it arrived."""
    tl.store(seen, value)


def arrived_fp32(seen, value: tl.float32):
    """Write a declared float as it arrived."""
    tl.store(seen, value)


def arrived_fp64(seen, value: tl.float64):
    """Write a declared float as it arrived."""
    tl.store(seen, value)


def defaults(seen, a, b=20, C: tl.constexpr = 30):
    """Write three arguments of which two may be left out."""
    tl.store(seen, a)
    tl.store(seen + 1, b)
    tl.store(seen + 2, C)


def keyword_only(seen, a, *, b, c=40):
    """Write three arguments of which two have to be named."""
    tl.store(seen, a)
    tl.store(seen + 1, b)
    tl.store(seen + 2, c)


def copied(seen, source, n, BLOCK: tl.constexpr):
    """Copy n elements, from their own type to that of the memory."""
    i = tl.arange(0, BLOCK)
    tl.store(seen + i, tl.load(source + i, mask=i < n), mask=i < n)


def copied_const(seen, source: tl.const, n, BLOCK: tl.constexpr):
    """Do the same from memory that is only read."""
    i = tl.arange(0, BLOCK)
    tl.store(seen + i, tl.load(source + i, mask=i < n), mask=i < n)


def fields(seen, point):
    """Write the fields x and y of a named tuple."""
    tl.store(seen, point.x)
    tl.store(seen + 1, point.y)


def through_tuple(pair):
    """Write the number of a pair through the tensor of the pair."""
    tl.store(pair[0], pair[1])


def converted(seen, value, TYPE: tl.constexpr):
    """Write a number after a conversion to an element type."""
    tl.store(seen, value.to(TYPE))


converted.types = {"i8": tl.int8, "u8": tl.uint8, "i32": tl.int32, "fp32": tl.float32}


def constants(seen, C: tl.constexpr, D: tl.constexpr):
    """Write which pair two constants are."""
    pair: tl.constexpr = f"{C!r} {D!r}"
    if pair == "'a-b' 'c'":
        tl.store(seen, 1)
    elif pair == "'a' 'b-c'":
        tl.store(seen, 2)
    elif pair == "1 None":
        tl.store(seen, 3)
    elif pair == "'1' None":
        tl.store(seen, 4)
    elif pair == "1 'None'":
        tl.store(seen, 5)
    elif pair == "True 'None'":
        tl.store(seen, 6)
    elif pair == "'True' 'None'":
        tl.store(seen, 7)
    else:
        tl.store(seen, 8)


CAPTURED = tl.constexpr(3)


def captured(seen):
    """Write what a global holds."""
    tl.store(seen, CAPTURED)


def closure(CAPTURED):
    """Make a program that writes what a cell of its closure holds, whose name a global has too."""
    CAPTURED = tl.constexpr(CAPTURED)

    def captured_cell(seen):
        tl.store(seen, CAPTURED)

    return captured_cell


# What the programs below capture; cases put other values there.
KEPT = tl.constexpr(4)
HOLDER = ModuleType("HOLDER")
HOLDER.KEPT = KEPT
KEPT_LIST = tl.constexpr([1, 2, 3])
KEPT_OBJECT = tl.constexpr(None)


def kept_global(seen):
    """Write the type and value of a global as text tells them."""
    text: tl.constexpr = f"{KEPT}"
    code = (text == "4") * 1 + (text == "4.0") * 2 + (text == "0.0") * 3 + (text == "-0.0") * 4 + (text == "1") * 5
    tl.store(seen, code + (text == "True") * 6 + (text == "nan") * 7)


def kept_attribute(seen):
    """Write the type and value of an attribute of a module as text tells them."""
    text: tl.constexpr = f"{HOLDER.KEPT}"
    code = (text == "4") * 1 + (text == "4.0") * 2 + (text == "0.0") * 3 + (text == "-0.0") * 4 + (text == "1") * 5
    tl.store(seen, code + (text == "True") * 6 + (text == "nan") * 7)


def kept_cell(KEPT):
    """Make a program that writes the type and value of a cell of its closure as text tells them."""

    def kept_in_a_cell(seen):
        text: tl.constexpr = f"{KEPT}"
        code = (text == "4") * 1 + (text == "4.0") * 2 + (text == "0.0") * 3 + (text == "-0.0") * 4 + (text == "1") * 5
        tl.store(seen, code + (text == "True") * 6 + (text == "nan") * 7)

    return kept_in_a_cell


def kept_length(seen):
    """Write how long a captured list is."""
    tl.store(seen, len(KEPT_LIST))


def kept_object(seen):
    """Write whether there is a captured object."""
    if KEPT_OBJECT is not None:
        tl.store(seen, 1)
    else:
        tl.store(seen, 2)


def answers_3():
    """Give a number; a helper."""
    return 3


def answers_5():
    """Give another number; a helper."""
    return 5


def asks_helper(seen):
    """Write what a helper gives."""
    tl.store(seen, HELPER())


def two_numbers(seen, m, n):
    """Write two numbers whose types and classes are chosen by their values."""
    tl.store(seen, m)
    tl.store(seen + 1, n)


def held(flag, seen, value, turns):
    """Say that it runs, wait until the host raises a flag, at most so many turns, and write a value."""
    tl.store(seen + 1, 1)
    turn = 0
    while (tl.atomic_add(flag, 0) == 0) & (turn < turns):
        turn += 1
    tl.store(seen, value)


held.options = {"do_not_specialize": ["value", "turns"]}


def passed_on(seen, source):
    """Write what another program wrote."""
    tl.store(seen, tl.load(source))


def parameter_named_stream(seen, stream):
    """Write a number whose name means something else in a launch."""
    tl.store(seen, stream)


def idle(n):
    """Do nothing that can be seen."""
    tl.multiple_of(n, 1)
