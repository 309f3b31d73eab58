"""Histograms, sorts and gathers."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@pytest.mark.entry("histogram {n}/{bins}")
@pytest.mark.parametrize(("n", "bins"), [(1024, 16), (256, 256), (2048, 64)])
def test_histogram(n, bins, rng, poisoned):
    x = rng.integers(0, bins, n).astype(np.int32)
    out = poisoned(bins, np.int32)
    histogram[(1,)](x, out, N=n, BINS=bins)
    np.testing.assert_array_equal(out, np.bincount(x, minlength=bins))


def test_histogram_with_16_lanes_that_the_backend_lacks(poisoned):
    out = poisoned(16, np.int32)
    with pytest.raises(RuntimeError, match="PassManager"):
        histogram[(1,)](np.zeros(1024, np.int32), out, N=1024, BINS=16, threads_per_warp=16)


@gridpact.jit
def sort_rows(x, out, R: tl.constexpr, C: tl.constexpr, DESCENDING: tl.constexpr):
    o = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + o, tl.sort(tl.load(x + o), 1, descending=DESCENDING))


@pytest.mark.entry("sort f32 16x64 desc={descending}")
@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending, rng, poisoned):
    x = rng.standard_normal((16, 64)).astype(np.float32)
    out = poisoned((16, 64))
    sort_rows[(1,)](x, out, R=16, C=64, DESCENDING=descending)
    np.testing.assert_array_equal(out, np.sort(x, 1)[:, ::-1] if descending else np.sort(x, 1))


@pytest.mark.entry("sort i32 1x512")
def test_sort_of_integers(rng, poisoned):
    x = rng.integers(-999, 999, (1, 512)).astype(np.int32)
    out = poisoned((1, 512), np.int32)
    sort_rows[(1,)](x, out, R=1, C=512, DESCENDING=False)
    np.testing.assert_array_equal(out, np.sort(x, 1))


@gridpact.jit
def largest_eight(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.sort(tl.load(x + o), 0, descending=True), mask=o < 8)


@pytest.mark.entry("sort + masked top-8")
def test_largest_eight(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    out = poisoned(8)
    largest_eight[(1,)](x, out, N=256)
    np.testing.assert_array_equal(out, np.sort(x)[::-1][:8])


@gridpact.jit
def gather(x, index, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.gather(tl.load(x + o), tl.load(index + o), 0))


@pytest.mark.entry("gather 1-D")
def test_gather(rng, poisoned):
    x = rng.standard_normal(256).astype(np.float32)
    index = rng.integers(0, 256, 256).astype(np.int32)
    out = poisoned(256)
    gather[(1,)](x, index, out, N=256)
    np.testing.assert_array_equal(out, x[index])


@gridpact.jit
def gather_along_rows(x, index, out, R: tl.constexpr, C: tl.constexpr):
    o = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + o, tl.gather(tl.load(x + o), tl.load(index + o), 1))


@pytest.mark.entry("gather axis 1 32x32")
def test_gather_along_rows(rng, poisoned):
    x = rng.standard_normal((32, 32)).astype(np.float32)
    index = rng.integers(0, 32, (32, 32)).astype(np.int32)
    out = poisoned((32, 32))
    gather_along_rows[(1,)](x, index, out, R=32, C=32)
    np.testing.assert_array_equal(out, np.take_along_axis(x, index, 1))
