"""Multiply matrices in tiles, columns of tiles along x and rows along y, with strides: a transposed view will do."""

import numpy as np
import triton.language as tl

import gridpact


@gridpact.jit
def matmul_kernel(a, b, c, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col, TILE: tl.constexpr):
    """Make one tile of c = a @ b."""
    m = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        ka = start + tl.arange(0, TILE)[None, :]
        kb = start + tl.arange(0, TILE)[:, None]
        a_tile = tl.load(a + m * a_row + ka * a_col, (m < M) & (ka < K), other=0.0)
        b_tile = tl.load(b + kb * b_row + n * b_col, (kb < K) & (n < N), other=0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision="ieee")
    tl.store(c + m * c_row + n * c_col, total, (m < M) & (n < N))


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Give a @ b of float32 matrices of any strides."""
    (M, K), (_, N) = a.shape, b.shape
    c = np.empty((M, N), np.float32)
    strides = [step // matrix.itemsize for matrix in (a, b, c) for step in matrix.strides]  # elements, not bytes
    tile = 32  # small: the CPU's compiler unrolls the whole tile
    matmul_kernel[gridpact.cdiv(N, tile), gridpact.cdiv(M, tile)](a, b, c, M, N, K, *strides, TILE=tile, num_warps=8)
    return c


def main() -> None:
    """Compare with NumPy, one matrix being a transposed view."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 150), np.float32), rng.standard_normal((170, 150), np.float32).T
    error = np.abs(matmul(a, b) - a.astype(np.float64) @ b).max()
    print(f"matmul: {a.shape[0]} x {a.shape[1]} x {b.shape[1]}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
