"""Watch launches: an observer sees each one's name, grid and what its kernel tells about it, and cannot change it."""

import numpy as np
import triton.language as tl

import gridpact


def traffic(grid: tuple[int, int, int], metadata: gridpact.KernelMetadata, arguments: dict) -> dict:
    """Tell observers how many bytes a launch moves; called only while somebody watches."""
    return {"bytes": 2 * arguments["x"].nbytes}


@gridpact.jit(launch_metadata=traffic)
def double(x, n, BLOCK: tl.constexpr):
    """Double one block in place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)


def watched_doubling(x: np.ndarray, times: int) -> list[tuple]:
    """Double a contiguous array in place, again and again; give (name, grid, bytes) of each launch."""
    seen: list[tuple] = []
    with gridpact.hooks.observe(lambda launch: seen.append((launch["name"], launch["grid"], launch["bytes"]))):
        for _ in range(times):
            double[lambda meta: (gridpact.cdiv(x.size, meta["BLOCK"]),)](x, x.size, BLOCK=256)
    return seen


def main() -> None:
    """Compare with NumPy."""
    x = np.random.default_rng(0).standard_normal(1000, np.float32)
    expected = 8 * x
    seen = watched_doubling(x, 3)
    moved = sum(size for _, _, size in seen)
    print(f"hooks: {len(seen)} launches, {moved:,} bytes, largest error {np.abs(x - expected).max():.2g}")


if __name__ == "__main__":
    main()
