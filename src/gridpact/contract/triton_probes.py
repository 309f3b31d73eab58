"""Probe kernels in Triton: each writes what it saw, so that the launcher's own word is no proof."""

import triton.language as tl

import gridpact


@gridpact.jit(do_not_specialize=["width", "height"])
def coordinates(seen, width, height):
    """Count the program at its own place and write its coordinates and the grid; 7 numbers a program."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = seen + ((z * height + y) * width + x) * 7
    tl.atomic_add(at, 1)
    tl.store(at + 1, x)
    tl.store(at + 2, y)
    tl.store(at + 3, z)
    tl.store(at + 4, tl.num_programs(0))
    tl.store(at + 5, tl.num_programs(1))
    tl.store(at + 6, tl.num_programs(2))


@gridpact.jit
def integers(
    seen,
    i8: tl.int8,
    i16: tl.int16,
    i32: tl.int32,
    i64: tl.int64,
    u8: tl.uint8,
    u16: tl.uint16,
    u32: tl.uint32,
    free,
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


@gridpact.jit
def floats(seen, half: tl.float16, brain: tl.bfloat16, single: tl.float32, double: tl.float64, free):
    """Write floats as they arrived."""
    tl.store(seen + 0, half.to(tl.float64))
    tl.store(seen + 1, brain.to(tl.float64))
    tl.store(seen + 2, single.to(tl.float64))
    tl.store(seen + 3, double)
    tl.store(seen + 4, free.to(tl.float64))


@gridpact.jit
def optional(seen, extra):
    """Branch on None; take apart a tuple of a number and a nested tuple."""
    if extra is None:
        tl.store(seen, 1)
    else:
        tl.store(seen, extra[0] + extra[1][0])
