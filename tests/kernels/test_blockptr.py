"""Block pointers with boundary checks, and tensor descriptors, which this toolchain does not lower."""

import numpy as np
import pytest
import triton.language as tl

import gridpact


@gridpact.jit
def double_by_blocks(x, out, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M
    source = tl.make_block_ptr(x, (M, N), (N, 1), (row, 0), (BLOCK_M, BLOCK_N), (1, 0))
    target = tl.make_block_ptr(out, (M, N), (N, 1), (row, 0), (BLOCK_M, BLOCK_N), (1, 0))
    for _ in range(0, N, BLOCK_N):
        v = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, v * 2, boundary_check=(0, 1))
        source = tl.advance(source, (0, BLOCK_N))
        target = tl.advance(target, (0, BLOCK_N))


@pytest.mark.entry("block pointer copy, boundary_check")
def test_boundary_check(rng, poisoned):
    x = rng.standard_normal((50, 70)).astype(np.float32)
    out = poisoned((50, 70))
    double_by_blocks[(4,)](x, out, 50, 70, BLOCK_M=16, BLOCK_N=32)
    np.testing.assert_array_equal(out, x * 2)


@gridpact.jit
def matmul_by_blocks(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    left = tl.make_block_ptr(a, (M, K), (K, 1), (row, 0), (BLOCK_M, BLOCK_K), (1, 0))
    right = tl.make_block_ptr(b, (K, N), (N, 1), (0, column), (BLOCK_K, BLOCK_N), (1, 0))
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        v, w = tl.load(left, boundary_check=(0, 1)), tl.load(right, boundary_check=(0, 1))
        total += tl.dot(v, w, input_precision="ieee")
        left = tl.advance(left, (0, BLOCK_K))
        right = tl.advance(right, (BLOCK_K, 0))
    target = tl.make_block_ptr(c, (M, N), (N, 1), (row, column), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(target, total, boundary_check=(0, 1))


@pytest.mark.entry("block pointer matmul")
def test_matmul(rng, poisoned):
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    c = poisoned((64, 64))
    matmul_by_blocks[(2, 2)](a, b, c, 64, 64, 64, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@gridpact.jit
def add_one_by_descriptor(x, out, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):

    source = tl._experimental_make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    target = tl._experimental_make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(place, source.load(place) + 1)


@pytest.mark.gap("tensor descriptor copy")
def test_tensor_descriptor_that_the_backend_lacks(poisoned):
    x, out = np.ones((64, 64), np.float32), poisoned((64, 64))
    with pytest.raises(RuntimeError, match="PassManager"):
        add_one_by_descriptor[(2, 2)](x, out, 64, 64, BLOCK_M=32, BLOCK_N=32)
    assert np.isnan(out).all()
