"""THREAD: life cycle."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import POISON, Array, own_rule, poisoned, same
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Subject

clause(
    "THREAD-1",
    "triton",
    "Any number of threads may launch the same kernel, first launch included: no race, and one compile (our own rule).",
    "Threads that load batches, or serve requests, meet at the first launch of a kernel.",
)

_THREADS: Final = 16
_ROUNDS: Final = 8

# Numbers of four specialization classes.
_CLASSES: Final = (1, 3, 16, 2**40 + 1)


@dataclass(frozen=True)
class _Launch:
    """A launch to be made on a thread, several times over."""

    program: str
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    tensors: list[Any]  # made on one thread, so that only launches meet
    options: dict[str, Any]
    rounds: int = 1

    def __call__(self) -> Any:
        for _ in range(self.rounds):
            result = self.kernel[self.grid](*self.tensors, **self.options)
        return result


def _at_once(subject: Subject, asked: str, launches: list[_Launch]) -> list[Any]:
    """Make each launch on a thread of its own, all at once, and give their results; one that fails is a violation.

    Python takes turns among the threads as often as it can, so that they meet in the middle of things.
    """
    barrier = threading.Barrier(len(launches))

    def run(launch: _Launch) -> Any:
        barrier.wait()
        return launch()

    with subject.asked.script.at_once():
        for made in launches:
            subject.show(made.program, made.kernel, made.grid, made.args, made.options)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(launches)) as pool:
            futures = [pool.submit(run, launch) for launch in launches]
    finally:
        sys.setswitchinterval(interval)
    failed = [error for error in (future.exception() for future in futures) if error is not None]
    if any("AST constructor recursion depth mismatch" in str(error) for error in failed):
        raise Unsupported("this Python's own ast.parse fails on many threads, as 3.11.7's does now and then")
    if failed:
        seen = f"{len(failed)} of {len(launches)} failed; {type(failed[0]).__name__}: {failed[0]}"
        raise Violated(asked, "a launch on each thread", seen) from failed[0]
    subject.synchronize()
    return [future.result() for future in futures]


def _call(
    subject: Subject, program: str, kernel: Any, grid: tuple[int, ...], *args: Any, rounds: int = 1, **options: Any
) -> _Launch:
    """Prepare a launch."""
    tensors = [subject.tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    return _Launch(program, kernel, grid, args, tensors, options, rounds)


def _coordinates(grid: tuple[int, int, int], rounds: int = 1) -> tuple[Array, Array]:
    """Make memory for `coordinates`, and what is due in it after some launches."""
    x, y, z = grid
    seen = poisoned((x * y * z + 1) * 7)
    seen[::7] = 0  # the counters
    due = seen.copy()
    rows = due[:-7].reshape(z, y, x, 7)
    rows[..., 0] = rounds
    rows[..., 3], rows[..., 2], rows[..., 1] = np.indices((z, y, x))
    rows[..., 4:] = grid
    return seen, due


@case("THREAD-1", block=[256, 512])
def first_launch_of_a_kernel_on_many_threads(subject: Subject, block: int) -> None:
    """16 threads make the first launch of a kernel at once: each has its own results, by a binary compiled once."""
    kernel = subject.kernel("copied", fresh=True)
    seen = [poisoned(block, "i8") for _ in range(_THREADS)]
    source = [np.arange(block, dtype="i8") + 1000 * i for i in range(_THREADS)]
    calls = [
        _call(subject, "copied", kernel, (1,), seen[i], source[i], block - 1, BLOCK=block) for i in range(_THREADS)
    ]
    results = _at_once(
        subject, f"{_THREADS} threads at once: copied[(1,)](seen, source, {block - 1}, BLOCK={block})", calls
    )
    for i in range(_THREADS):
        same(subject, f"copy of thread {i}", [*source[i][:-1], POISON], seen[i])
    if "binaries" in subject.abilities:
        same(subject, "binaries that ran", 1, len({subject.identity(result) for result in results}))
    if "compiled" in subject.abilities:
        with own_rule(subject):
            same(subject, "compiled kernels", 1, len({id(result) for result in results}))
    if subject.is_own:
        same(subject, "binaries in the kernel's cache", 1, len(kernel.kernel.compiled))


@case("THREAD-1")
def first_launches_of_every_class_at_once(subject: Subject) -> None:
    """16 threads launch a kernel with numbers of four classes at once: each arrives, by one binary for each class."""
    kernel = subject.kernel("arrived", fresh=True)
    values = _CLASSES * (_THREADS // len(_CLASSES))
    seen = [poisoned(2, "i8") for _ in values]
    calls = [_call(subject, "arrived", kernel, (1,), memory, value) for memory, value in zip(seen, values, strict=True)]
    results = _at_once(subject, f"{_THREADS} threads at once: arrived[(1,)](seen, one of {_CLASSES})", calls)
    for value, memory in zip(values, seen, strict=True):
        same(subject, f"arrived of {value}", [value, POISON], memory)
    if "compiled" in subject.abilities:
        with own_rule(subject):
            same(subject, "compiled kernels", len(_CLASSES), len({id(result) for result in results}))


@case("THREAD-1")
def different_kernels_at_once(subject: Subject) -> None:
    """16 threads launch four kernels at once, first launches among them: each kernel does its own work."""
    calls: list[_Launch] = []
    dues: list[tuple[str, Array, Array]] = []
    kernels = {name: subject.kernel(name, fresh=True) for name in ("arrived", "two_numbers", "defaults", "coordinates")}
    for i in range(_THREADS // len(kernels)):
        for name, args in (("arrived", (3,)), ("two_numbers", (5, 7)), ("defaults", (10, 21))):
            seen, due = poisoned(4), poisoned(4)
            written = [*args, 30] if name == "defaults" else args
            due[: len(written)] = written
            calls.append(_call(subject, name, kernels[name], (1,), seen, *args))
            dues.append((name, due, seen))
        seen, due = _coordinates((i + 1, 2, 2))
        calls.append(_call(subject, "coordinates", kernels["coordinates"], (i + 1, 2, 2), seen, i + 1, 2))
        dues.append(("coordinates", due, seen))
    _at_once(subject, f"{_THREADS} threads at once, each of the four on four of them", calls)
    for name, due, seen in dues:
        same(subject, f"{name} on a thread among others", due, seen)


@case("THREAD-1", first=["yes", "no"])
def different_grids_at_once(subject: Subject, first: str) -> None:
    """16 threads launch a kernel over grids of their own, 8 times each, first or later launches: each runs its grid."""
    kernel = subject.kernel("coordinates", fresh=True)
    grids = [((i % 5) + 1, (i % 3) + 1, (i % 2) + 1) for i in range(_THREADS)]
    if first == "no":
        seen, due = _coordinates((3, 2, 1))
        _at_once(
            subject,
            "one thread: coordinates[(3, 2, 1)](seen, 3, 2)",
            [_call(subject, "coordinates", kernel, (3, 2, 1), seen, 3, 2)],
        )
        same(subject, "programs of the first launch", due, seen)
    memory = [_coordinates(grid, _ROUNDS) for grid in grids]
    calls = [
        _call(subject, "coordinates", kernel, g, seen, g[0], g[1], rounds=_ROUNDS)
        for g, (seen, _) in zip(grids, memory, strict=True)
    ]
    _at_once(subject, f"{_THREADS} threads at once, {_ROUNDS} times: coordinates[grid](seen, grid[0], grid[1])", calls)
    for grid, (seen, due) in zip(grids, memory, strict=True):
        same(subject, f"programs of {grid} among other grids", due, seen)
