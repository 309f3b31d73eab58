"""The same probes as Python functions, for the reference backend."""

import gridpact
from gridpact.backends.reference import num_programs, program_id


@gridpact.jit(do_not_specialize=["width", "height"])
def coordinates(seen, width, height):
    """Count the program at its own place and write its coordinates and the grid; 7 numbers a program."""
    x, y, z = program_id(0), program_id(1), program_id(2)
    at = ((z * height + y) * width + x) * 7
    seen[at] += 1
    seen[at + 1 : at + 7] = x, y, z, num_programs(0), num_programs(1), num_programs(2)


@gridpact.jit
def integers(seen, i8: "i8", i16: "i16", i32: "i32", i64: "i64", u8: "u8", u16: "u16", u32: "u32", free):
    """Write integers as they arrived in their declared types, and one that chose its own."""
    seen[:8] = i8, i16, i32, i64, u8, u16, u32, free


@gridpact.jit
def floats(seen, half: "fp16", brain: "bf16", single: "fp32", double: "fp64", free):
    """Write floats as they arrived."""
    seen[:5] = half, brain, single, double, free


@gridpact.jit
def optional(seen, extra):
    """Branch on None; take apart a tuple of a number and a nested tuple."""
    seen[0] = 1 if extra is None else extra[0] + extra[1][0]
