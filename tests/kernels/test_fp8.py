"""The 8-bit floats: e5m2 and e4m3fn, and e4m3 with bias 15, which this toolchain can only read.

Intel's backend rounds float32 to fp8 by way of float16, and its e4m3fn has no NaN; both are pinned down here.
"""

import numpy as np
import pytest
import triton.language as tl
from triton.compiler.errors import CompilationError

import gridpact

NUMPY_NAMES = {"fp8e5": "float8_e5m2", "fp8e4nv": "float8_e4m3fn", "fp8e4b15": "float8_e4m3b11fnuz"}
MANTISSA_BITS = {"fp8e5": 2, "fp8e4nv": 3}
WIDE = ("float16", "float32", "bfloat16")


@gridpact.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n), mask=o < n)


@gridpact.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, v.to(out.dtype.element_ty), mask=o < n)


def bits(array):
    return array.view(np.uint8)


def rounded_twice(x, fp8):
    return x.astype(np.float16).astype(fp8)


@pytest.mark.entry("{kind} copy")
@pytest.mark.parametrize("kind", ["fp8e5", "fp8e4nv", "fp8e4b15"])
def test_copy(kind, rng, poisoned):
    fp8 = np.dtype(NUMPY_NAMES[kind])
    x = rng.uniform(-4, 4, 1000).astype(fp8)
    out = poisoned(1000, fp8)
    copy[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(bits(out), bits(x))


@pytest.mark.entry("{kind}->{wide}")
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("kind", ["fp8e5", "fp8e4nv"])
def test_widening_is_exact(kind, wide, rng, poisoned):
    x = rng.uniform(0.1, 1.8, 1000).astype(NUMPY_NAMES[kind])
    out = poisoned(1000, wide)
    cast[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64))


@pytest.mark.entry("fp8e4b15->{wide}")
@pytest.mark.parametrize("wide", ["float16", "float32"])
def test_widening_of_bias_15_is_exact(wide, rng, poisoned):
    x = rng.uniform(0.1, 1.8, 1000).astype(NUMPY_NAMES["fp8e4b15"])
    out = poisoned(1000, wide)
    cast[(4,)](x, out, 1000, BLOCK=256)
    bias = 2.0 ** (11 - 15)  # NumPy's type of the same layout has bias 11
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) * bias)


@pytest.mark.entry("{wide}->{kind}")
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("kind", ["fp8e5", "fp8e4nv"])
def test_narrowing_rounds_by_way_of_float16(kind, wide, rng, poisoned):
    fp8 = np.dtype(NUMPY_NAMES[kind])
    x = rng.uniform(0.1, 1.8, 1000).astype(wide)
    out = poisoned(1000, fp8)
    cast[(4,)](x, out, 1000, BLOCK=256)
    half_a_place = 2.0 ** -(MANTISSA_BITS[kind] + 1)
    np.testing.assert_allclose(out.astype(np.float64), x.astype(np.float64), rtol=half_a_place * 1.01)
    np.testing.assert_array_equal(bits(out), bits(rounded_twice(x, fp8)))


@pytest.mark.gap("{source}->{target}")
@pytest.mark.parametrize(("source", "target"), [*((wide, "fp8e4b15") for wide in WIDE), ("fp8e4b15", "bfloat16")])
def test_conversion_that_the_toolchain_lacks(source, target, poisoned):
    x = np.ones(256, NUMPY_NAMES.get(source, source))
    out = poisoned(256, NUMPY_NAMES.get(target, target))
    with pytest.raises(CompilationError, match=r"out\.dtype\.element_ty"):
        cast[(1,)](x, out, 256, BLOCK=256)
    assert np.isnan(out.astype(np.float32)).all()


def decoded(kind, poisoned):
    """Decode every code there is."""
    codes = np.arange(256, dtype=np.uint8)
    out = poisoned(256, np.float32)
    out[:] = 12345.0  # NaN would be right for some codes
    cast[(1,)](codes.view(NUMPY_NAMES[kind]), out, 256, BLOCK=256)
    return out, codes.view(NUMPY_NAMES[kind]).astype(np.float32)


@pytest.mark.entry("fp8e5 -> f32 all 256 codes")
def test_all_codes_of_e5m2(poisoned):
    out, expected = decoded("fp8e5", poisoned)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.gap("fp8e4nv -> f32 all 256 codes")
def test_all_codes_of_e4m3fn_but_nan(poisoned):
    out, expected = decoded("fp8e4nv", poisoned)
    assert np.isnan(expected[[0x7F, 0xFF]]).all()
    expected[0x7F], expected[0xFF] = 480, -480  # as if they were numbers like any other
    np.testing.assert_array_equal(out, expected)


@pytest.mark.gap("f32 -> {kind} rounding 4096 random")
@pytest.mark.parametrize("kind", ["fp8e5", "fp8e4nv"])
def test_float32_is_rounded_twice(kind, rng, poisoned):
    fp8 = np.dtype(NUMPY_NAMES[kind])
    x = (rng.standard_normal(4096) * 10).astype(np.float32)
    out = poisoned(4096, fp8)
    cast[(16,)](x, out, 4096, BLOCK=256)
    np.testing.assert_array_equal(bits(out), bits(rounded_twice(x, fp8)))
    differing = np.count_nonzero(bits(out) != bits(x.astype(fp8)))
    assert 0 < differing <= 40
