"""The number of warps, and of lanes in a warp: reductions and scans across all of them, and the dot product."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def cumsum_plus_sum(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o)
    tl.store(out + o, tl.cumsum(v, 0) + tl.sum(v, 0))


def check_cumsum_plus_sum(rng, poisoned, **options):
    x = rng.integers(0, 9, (2, 2048)).astype(np.int32)
    out = poisoned((2, 2048), np.int32)
    compiled = cumsum_plus_sum[(2,)](x, out, BLOCK=2048, **options)
    np.testing.assert_array_equal(out, x.cumsum(1) + x.sum(1, keepdims=True))
    assert {name: getattr(compiled.metadata, name) for name in options} == options


@pytest.mark.entry("num_warps={warps} sum+cumsum")
@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16, 32, 64])
def test_warps(warps, rng, poisoned):
    check_cumsum_plus_sum(rng, poisoned, num_warps=warps)


@pytest.mark.parametrize("warps", [1, 4, 32])
def test_warps_of_16_lanes(warps, rng, poisoned):
    check_cumsum_plus_sum(rng, poisoned, num_warps=warps, threads_per_warp=16)


@gridpact.jit
def dot(a, b, c, N: tl.constexpr):
    o = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + o, tl.dot(tl.load(a + o), tl.load(b + o)))


def check_dot(rng, poisoned, **options):
    a, b = rng.integers(-4, 5, (2, 64, 64)).astype(np.float16)
    c = poisoned((64, 64))
    dot[(1,)](a, b, c, N=64, **options)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.entry("dot f16 64^3 num_warps={warps}")
@pytest.mark.parametrize("warps", [8, 32])
def test_dot(warps, rng, poisoned):
    check_dot(rng, poisoned, num_warps=warps)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.entry("dot f16 64^3 num_warps={warps}")
@pytest.mark.parametrize("warps", [1])
def test_dot_by_one_warp(warps, rng, poisoned):
    """One warp unrolls the most: two minutes in the runtime's compiler."""
    check_dot(rng, poisoned, num_warps=warps)


@pytest.mark.slow
def test_dot_by_one_warp_of_16_lanes(rng, poisoned):
    check_dot(rng, poisoned, num_warps=1, threads_per_warp=16)
