"""Element types: loads and stores of each, casts between them, bit casts."""

import ml_dtypes
import numpy as np
import pytest
import triton.language as tl

import gridpact

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "bfloat16")
CASTS = (
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float64", "float32"),
    ("float32", "float64"),
    ("float32", "int32"),
    ("int32", "float32"),
    ("float32", "uint8"),
    ("int8", "int64"),
    ("int64", "int8"),
    ("uint32", "float32"),
    ("float16", "bfloat16"),
    ("int32", "bfloat16"),
)


@gridpact.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n), mask=o < n)


@gridpact.jit
def double(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, v + v, mask=o < n)


@gridpact.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n)
    tl.store(out + o, v.to(out.dtype.element_ty), mask=o < n)


@pytest.mark.entry("load/add/store {dtype}")
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_load_add_store(dtype, rng, poisoned):
    x = rng.integers(0, 100, 1000).astype(dtype)
    out = poisoned(1000, dtype)
    double[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out.astype(np.float64), (x + x).astype(np.float64))


@pytest.mark.entry("bool (i1 ptr) copy")
def test_bool_copy(rng, poisoned):
    x = rng.integers(0, 2, 1000).astype(bool)
    out = poisoned(1000, bool)
    copy[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))  # bytes: any other byte is true, too


@gridpact.jit
def is_one_or_two(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o, mask=o < n, other=0)
    tl.store(out + o, (v > 0) & (v < 3), mask=o < n)


@pytest.mark.entry("compare -> bool store")
def test_comparison_stored_as_bool(rng, poisoned):
    x = rng.integers(-5, 5, 250).astype(np.int32)
    out = poisoned(250, bool)
    is_one_or_two[(1,)](x, out, 250, BLOCK=256)
    np.testing.assert_array_equal(out.view(np.uint8), (x > 0) & (x < 3))


@pytest.mark.entry("cast {source}->{target}")
@pytest.mark.parametrize(("source", "target"), CASTS)
def test_cast(source, target, rng, poisoned):
    low = 0 if "u" in (source[0], target[0]) else -100
    x = rng.uniform(low, 100, 1000).astype(source)
    out = poisoned(1000, target)
    cast[(4,)](x, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(target).astype(np.float64))


@pytest.mark.gap("cast {source}->{target}")
@pytest.mark.parametrize(("source", "target"), [("float64", "bfloat16")])
def test_cast_that_the_toolchain_lacks(source, target, poisoned):
    x, out = np.ones(256, source), poisoned(256, target)
    with pytest.raises(RuntimeError, match="PassManager"):
        cast[(1,)](x, out, 256, BLOCK=256)
    assert np.isnan(out.astype(np.float32)).all()


@pytest.mark.entry("f32 -> bf16 RNE 4096 random")
def test_cast_to_bfloat16_rounds_to_nearest_even(rng, poisoned):
    x = rng.standard_normal(4096).astype(np.float32)
    out = poisoned(4096, ml_dtypes.bfloat16)
    cast[(16,)](x, out, 4096, BLOCK=256)
    np.testing.assert_array_equal(out.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.entry("f32 -> f16 RNE 4096 random")
def test_cast_to_float16_rounds_to_nearest_even(rng, poisoned):
    x = rng.standard_normal(4096).astype(np.float32)
    out = poisoned(4096, np.float16)
    cast[(16,)](x, out, 4096, BLOCK=256)
    np.testing.assert_array_equal(out.view(np.uint16), x.astype(np.float16).view(np.uint16))


@gridpact.jit
def bits_of(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o).to(tl.int32, bitcast=True))


@pytest.mark.entry("bitcast f32->i32")
def test_bitcast(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(256, np.int32)
    bits_of[(1,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out, x.view(np.int32))


@gridpact.jit
def twice_plus_one(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o) * 2 + 1)


@pytest.mark.entry("bf16 arithmetic (x*2+1)")
def test_bfloat16_arithmetic(rng, poisoned):
    x = rng.integers(0, 50, 1024).astype(ml_dtypes.bfloat16)
    out = poisoned(1024, ml_dtypes.bfloat16)
    twice_plus_one[(4,)](x, out, BLOCK=256)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) * 2 + 1)
