"""Functions of `tl` and of libdevice, against NumPy and SciPy in float64."""

import numpy as np
import pytest
import scipy.special
import triton.language as tl
from triton.language.extra import libdevice

import gridpact


def unary(op):
    @gridpact.jit
    def kernel(x, out, BLOCK: tl.constexpr):
        o = tl.arange(0, BLOCK)
        tl.store(out + o, op(tl.load(x + o)))

    return kernel


def binary(op):
    @gridpact.jit
    def kernel(x, y, out, BLOCK: tl.constexpr):
        o = tl.arange(0, BLOCK)
        tl.store(out + o, op(tl.load(x + o), tl.load(y + o)))

    return kernel


def ternary(op):
    @gridpact.jit
    def kernel(x, y, z, out, BLOCK: tl.constexpr):
        o = tl.arange(0, BLOCK)
        tl.store(out + o, op(tl.load(x + o), tl.load(y + o), tl.load(z + o)))

    return kernel


def any_real(rng):
    return rng.standard_normal(256)


def positive(rng):
    return np.abs(rng.standard_normal(256)) + 0.1


def up_to_one(rng):
    return rng.uniform(-1, 1, 256)


def with_nan(rng):
    return np.where(np.arange(256) % 3, rng.standard_normal(256), np.nan)


def reciprocal_root(v):
    return 1 / np.sqrt(v)


def round_away_from_zero(v):
    return np.trunc(v + np.copysign(0.5, v))


# Name in the list -> the function, what it means, where it is tried.
UNARY = {
    "exp": (tl.exp, np.exp, any_real),
    "exp2": (tl.exp2, np.exp2, any_real),
    "log": (tl.log, np.log, positive),
    "log2": (tl.log2, np.log2, positive),
    "sin": (tl.sin, np.sin, any_real),
    "cos": (tl.cos, np.cos, any_real),
    "sqrt": (tl.sqrt, np.sqrt, positive),
    "sqrt_rn": (tl.sqrt_rn, np.sqrt, positive),
    "rsqrt": (tl.rsqrt, reciprocal_root, positive),
    "erf": (tl.erf, scipy.special.erf, any_real),
    "abs": (tl.abs, np.abs, any_real),
    "floor": (tl.floor, np.floor, any_real),
    "ceil": (tl.ceil, np.ceil, any_real),
    "sigmoid": (tl.sigmoid, scipy.special.expit, any_real),
    "tanh": (libdevice.tanh, np.tanh, any_real),
    "ld_erf": (libdevice.erf, scipy.special.erf, any_real),
    "ld_exp": (libdevice.exp, np.exp, any_real),
    "ld_rsqrt": (libdevice.rsqrt, reciprocal_root, positive),
    "ld_log1p": (libdevice.log1p, np.log1p, positive),
    "ld_expm1": (libdevice.expm1, np.expm1, any_real),
    "ld_tan": (libdevice.tan, np.tan, any_real),
    "ld_asin": (libdevice.asin, np.arcsin, up_to_one),
    "ld_sinh": (libdevice.sinh, np.sinh, any_real),
    "ld_lgamma": (libdevice.lgamma, scipy.special.gammaln, positive),
    "ld_round": (libdevice.round, round_away_from_zero, any_real),
    "ld_rint": (libdevice.rint, np.rint, any_real),
    "ld_trunc": (libdevice.trunc, np.trunc, any_real),
    "ld_cbrt": (libdevice.cbrt, np.cbrt, any_real),
    "ld_isnan": (libdevice.isnan, np.isnan, with_nan),
}
# The same, and what the second operand is, given the first.
BINARY = {
    "div_rn": (tl.div_rn, np.divide, positive, lambda x: x + 1),
    "fdiv": (tl.fdiv, np.divide, positive, lambda x: x + 1),
    "ld_div_rz": (libdevice.div_rz, np.divide, positive, lambda x: x + 1),
    "ld_pow": (libdevice.pow, np.power, positive, lambda x: x.copy()),
    "ld_atan2": (libdevice.atan2, np.arctan2, any_real, lambda x: x + 1),
}
TOLERANCES = {np.float32: 2e-5, np.float64: 1e-10}


def check_unary(name, dtype, rng, poisoned):
    op, meaning, domain = UNARY[name]
    x = domain(rng).astype(dtype)
    out = poisoned(256, dtype)
    unary(op)[(1,)](x, out, BLOCK=256)
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(out, meaning(x.astype(np.float64)), rtol=tolerance, atol=tolerance)


def check_binary(name, dtype, rng, poisoned):
    op, meaning, domain, second = BINARY[name]
    x = domain(rng).astype(dtype)
    y = second(x)
    out = poisoned(256, dtype)
    binary(op)[(1,)](x, y, out, BLOCK=256)
    tolerance = TOLERANCES[dtype]
    expected = meaning(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.entry("math {name} f32")
@pytest.mark.parametrize("name", UNARY)
def test_float32(name, rng, poisoned):
    check_unary(name, np.float32, rng, poisoned)


@pytest.mark.entry("math {name} f32")
@pytest.mark.parametrize("name", BINARY)
def test_two_operands_float32(name, rng, poisoned):
    check_binary(name, np.float32, rng, poisoned)


@pytest.mark.entry("math {name} f32")
@pytest.mark.parametrize("name", ["fma"])
def test_three_operands_float32(name, rng, poisoned):
    x, y, z = rng.standard_normal((3, 256)).astype(np.float32)
    out = poisoned(256)
    ternary(tl.fma)[(1,)](x, y, z, out, BLOCK=256)
    expected = x.astype(np.float64) * y.astype(np.float64) + z  # the product is exact in float64
    np.testing.assert_allclose(out, expected, rtol=1e-6)  # without fusion, cancellation would cost more


@pytest.mark.entry("math {name} f64")
@pytest.mark.parametrize("name", ["exp", "sin", "erf", "rsqrt", "tanh", "sqrt"])
def test_float64(name, rng, poisoned):
    check_unary(name, np.float64, rng, poisoned)


@pytest.mark.entry("math {name} f64")
@pytest.mark.parametrize("name", ["ld_pow"])
def test_two_operands_float64(name, rng, poisoned):
    check_binary(name, np.float64, rng, poisoned)


@pytest.mark.entry("math abs/exp f16")
def test_float16(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float16)
    magnitude = poisoned(256, np.float16)
    unary(tl.abs)[(1,)](x, magnitude, BLOCK=256)
    np.testing.assert_array_equal(magnitude, np.abs(x))


@gridpact.jit
def exp_of_float16(x, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.exp(tl.load(x + o).to(tl.float32)))


@pytest.mark.entry("math abs/exp f16")
def test_exp_of_float16_by_way_of_float32(rng, poisoned):
    """`tl.exp` itself takes no float16."""
    x = rng.standard_normal(256).astype(np.float16)
    out = poisoned(256, np.float16)
    exp_of_float16[(1,)](x, out, BLOCK=256)
    np.testing.assert_allclose(out.astype(np.float64), np.exp(x.astype(np.float64)), rtol=2.0**-10)


@pytest.mark.gap("math ld_fast_expf f32")
def test_fast_exp_is_inexact(rng, poisoned):
    """It is the runtime's `native_exp`."""
    x = any_real(rng).astype(np.float32)
    out = poisoned(256)
    unary(libdevice.fast_expf)[(1,)](x, out, BLOCK=256)
    errors = np.abs(out / np.exp(x.astype(np.float64)) - 1)
    assert TOLERANCES[np.float32] < errors.max() < 1e-3
