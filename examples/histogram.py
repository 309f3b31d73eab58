"""Count integers with atomics: programs meet in the same bins, and no count is lost."""

import numpy as np
import triton.language as tl

import gridpact


@gridpact.jit
def histogram_kernel(values: tl.const, counts, n, bins, BLOCK: tl.constexpr):
    """Count one block; a value outside the bins is not counted, for it would be a write outside the array."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(values + at, inside)
    tl.atomic_add(counts + value, 1, inside & (value >= 0) & (value < bins))


def histogram(values: np.ndarray, bins: int) -> np.ndarray:
    """Give how often each of 0, 1, ..., bins - 1 is in a contiguous array of integers, which may be read-only."""
    counts = np.zeros(bins, np.int32)
    n = values.size
    histogram_kernel[lambda meta: (gridpact.cdiv(n, meta["BLOCK"]),)](values, counts, n, bins, BLOCK=512)
    return counts


def main() -> None:
    """Compare with NumPy."""
    values = np.random.default_rng(0).poisson(20, 100_003).astype(np.int32)
    error = np.abs(histogram(values, 64) - np.bincount(values, minlength=64)).max()
    print(f"histogram: {values.size:,} values in 64 bins, largest error {error}")


if __name__ == "__main__":
    main()
