"""Shared memory: transpositions and a dot that go through it, up to the device's limit and past it."""

import numpy as np
import pytest
import triton.language as tl

import gridpact

LIMIT_BYTES = 262_144


@gridpact.jit
def transpose(x, out, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + o, tl.trans(tl.load(x + o)))


@pytest.mark.entry("transpose {n}x{n} f32 (shared memory)")
@pytest.mark.parametrize("n", [32, 64, 128])
def test_transpose(n, rng, poisoned):
    x = rng.standard_normal((n, n)).astype(np.float32)
    out = poisoned((n, n))
    compiled = transpose[(1,)](x, out, N=n)
    np.testing.assert_array_equal(out, x.T)
    assert n * n * 4 <= compiled.metadata.shared <= LIMIT_BYTES


def check_is_refused(dtype, poisoned):
    x, out = np.ones((256, 256), dtype), poisoned((256, 256), dtype)
    with pytest.raises(gridpact.ResourceError) as raised:
        transpose[(1,)](x, out, N=256)
    assert raised.value.limit == LIMIT_BYTES
    assert raised.value.need > max(x.nbytes, LIMIT_BYTES)
    assert np.isnan(out).all()


@pytest.mark.gap("transpose 256x256 f32 (shared memory)")
def test_just_over_the_limit_is_refused(poisoned):
    check_is_refused(np.float32, poisoned)


@pytest.mark.gap("transpose 256x256 f64 (512 KiB-ish shared)")
def test_twice_the_limit_is_refused(poisoned):
    check_is_refused(np.float64, poisoned)


@gridpact.jit
def dot(a, b, c, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + o, tl.dot(tl.load(a + o), tl.load(b + o), input_precision="ieee"))


@pytest.mark.entry("dot f32 128x128x128 (shared)")
@pytest.mark.parametrize("warps", [32, pytest.param(8, marks=pytest.mark.slow)])
def test_dot(warps, rng, poisoned):
    a, b = rng.integers(-4, 5, (2, 128, 128)).astype(np.float32)
    c = poisoned((128, 128))
    compiled = dot[(1,)](a, b, c, N=128, num_warps=warps)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    assert compiled.metadata.shared > 0
