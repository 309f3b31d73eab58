"""A stencil over a volume: the grid's axes are the volume's, x first, with a block of x in each program."""

import numpy as np
import triton.language as tl

import gridpact


@gridpact.jit
def laplacian_kernel(field, out, width, height, depth, BLOCK: tl.constexpr):
    """Do one block of one line along x; cells outside the volume are 0."""
    x, y, z = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1), tl.program_id(2)
    inside = x < width
    line, plane = width, width * height  # steps along y and z
    at = z * plane + y * line + x
    total = -6 * tl.load(field + at, inside)
    total += tl.load(field + at - 1, inside & (x > 0), other=0.0)
    total += tl.load(field + at + 1, x + 1 < width, other=0.0)
    total += tl.load(field + at - line, inside & (y > 0), other=0.0)
    total += tl.load(field + at + line, inside & (y + 1 < height), other=0.0)
    total += tl.load(field + at - plane, inside & (z > 0), other=0.0)
    total += tl.load(field + at + plane, inside & (z + 1 < depth), other=0.0)
    tl.store(out + at, total, inside)


def laplacian(field: np.ndarray) -> np.ndarray:
    """Give the sum of the six neighbours less six times the cell, for each cell of a contiguous (z, y, x) array."""
    out = np.empty_like(field)
    depth, height, width = field.shape
    laplacian_kernel[lambda meta: (gridpact.cdiv(width, meta["BLOCK"]), height, depth)](
        field, out, width, height, depth, BLOCK=64
    )
    return out


def main() -> None:
    """Compare with NumPy."""
    field = np.random.default_rng(0).standard_normal((19, 37, 101), np.float32)
    padded = np.pad(field.astype(np.float64), 1)
    sums = sum(np.roll(padded, step, axis) for step in (-1, 1) for axis in range(3)) - 6 * padded
    error = np.abs(laplacian(field) - sums[1:-1, 1:-1, 1:-1]).max()
    print(f"stencil: {' x '.join(map(str, field.shape))} cells, largest error {error:.2g}")


if __name__ == "__main__":
    main()
