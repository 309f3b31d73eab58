"""Kernels whose launches are timed: their names say how many arguments they take, and all but `arguments_4` do nothing.

Tensors come first, then integers, floats and constants.
"""

import triton.language as tl


def arguments_4(x, y, out, n, BLOCK: tl.constexpr):
    """Add two vectors: three tensors, an integer and a constant."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def arguments_0():
    """Take nothing."""


def arguments_1(t0):
    """Take 1 tensor."""


def arguments_8(t0, t1, t2, t3, i0, i1, i2, f0):
    """Take 4 tensors, 3 integers, 1 float."""


def arguments_19(
    t0, t1, t2, t3, t4, i0, i1, i2, i3, i4, i5, i6, i7, i8, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr,
    C3: tl.constexpr, C4: tl.constexpr,
):  # fmt: skip
    """Take 5 tensors, 9 integers, 5 constants."""


def arguments_58(
    t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11,
    i12, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, C0: tl.constexpr, C1: tl.constexpr,
    C2: tl.constexpr, C3: tl.constexpr, C4: tl.constexpr, C5: tl.constexpr, C6: tl.constexpr, C7: tl.constexpr,
    C8: tl.constexpr, C9: tl.constexpr, C10: tl.constexpr, C11: tl.constexpr, C12: tl.constexpr, C13: tl.constexpr,
    C14: tl.constexpr, C15: tl.constexpr, C16: tl.constexpr, C17: tl.constexpr,
):  # fmt: skip
    """Take 14 tensors, 13 integers, 13 floats, 18 constants."""
