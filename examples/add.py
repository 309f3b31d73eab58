"""Add two arrays: the grid follows from the block size, and a mask ends the last block where the arrays end."""

import math

import numpy as np
import triton.language as tl

import gridpact


@gridpact.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """Add one block of `n` elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def add_arrays(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Give x + y of contiguous arrays of one shape and type; torch tensors on the CPU go the same way with `out=`."""
    out = np.empty_like(x) if out is None else out
    n = math.prod(x.shape)
    add[lambda meta: (gridpact.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    return out  # ready: a launch on host memory returns when its results can be read


def main() -> None:
    """Compare with NumPy."""
    x, y = np.random.default_rng(0).standard_normal((2, 98_432), dtype=np.float32)
    error = np.abs(add_arrays(x, y) - (x + y)).max()
    print(f"add: {x.size:,} elements, largest error {error:.2g}")


if __name__ == "__main__":
    main()
