"""THREAD: life cycle."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gridpact.conformance import worker
from gridpact.conformance.check import POISON, Array, launch, own_rule, poisoned, require, same
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.script import Script
from gridpact.conformance.subjects import Subject

clause(
    "THREAD-1",
    "triton",
    "Any number of threads may launch the same kernel, first launch included: no race, and one compile (our own rule).",
    "Threads that load batches, or serve requests, meet at the first launch of a kernel.",
)

clause(
    "THREAD-2",
    "gridpact",
    "After fork, a child either works or gets a clear error. At interpreter exit nothing crashes or hangs.",
    "Data loaders fork; a runtime's threads do not come along, and a child that waits for them waits for ever.",
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


# ---------------------------------------------------------------------------------------------------------- THREAD-2

_CHILD_S: Final = 10.0


def _told_by_child(ask: Callable[[], str]) -> str:
    """Fork, and give what the child tells, or how it ended without a word."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                told = ask()
            except BaseException as error:  # whatever it is, the parent judges it
                told = f"{type(error).__name__}: {error}"
            os.write(write, told.encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    try:
        if select.select([read], [], [], _CHILD_S)[0]:
            told = os.read(read, 4000).decode(errors="replace")
        else:
            told = ""
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(read)
        _, status = os.waitpid(child, 0)
    if told:
        return told
    code = os.waitstatus_to_exitcode(status)
    return f"hung: nothing in {_CHILD_S:g} s" if code == -signal.SIGKILL else f"died of {signal.Signals(-code).name}"


@case("THREAD-2", asks=["a_later_launch", "a_first_launch", "a_launch_on_a_stream", "a_wait"])
def forked_child_works_or_says_why(subject: Subject, asks: str) -> None:
    """A child that was forked after launches gets a right result or an error that says why; its parent goes on."""
    kernel = subject.kernel("passed_on", fresh=True)
    launch(subject, "passed_on", (1,), poisoned(1), np.full(1, 5, "i4"), kernel=kernel)
    stream = subject.stream() if "stream" in asks else None
    seen, source = poisoned(1), np.full(1, 5, "i4")
    tensors = subject.tensor(seen), subject.tensor(source)

    def ask() -> str:
        if asks == "a_wait":
            subject.synchronize()
            return "right"
        launched = subject.kernel("passed_on", fresh=True) if "first" in asks else kernel
        with subject.on(stream) if stream is not None else nullcontext():
            launched[(1,)](*tensors)
        if stream is not None:
            stream.wait()
        subject.synchronize()
        return "right" if not subject.runs or seen[0] == 5 else f"wrong: {seen[0]}"

    told = _told_by_child(ask)
    with own_rule(subject):
        is_error = told.partition(":")[0].isidentifier() and told.partition(":")[0].endswith("Error")
        is_right = told == "right" or (is_error and (not subject.is_own or "fork" in told))
        same(subject, f"a forked child works or says why: {told}", True, is_right)
    after = poisoned(1)
    launch(subject, "passed_on", (1,), after, np.full(1, 6, "i4"), kernel=kernel)
    if subject.runs:
        same(subject, "what the parent's next launch wrote", 6, int(after[0]))


# How a program ends -> its last lines, the exit code that is due, and how often it is asked.
_ENDINGS: Final = {
    "end": ("", 0, 1),
    "exit": ("raise SystemExit(3)", 3, 1),
    "error": ("raise ValueError", 1, 1),
    "daemon": (
        "import contextvars, threading, time\n\ndef forever():\n    while True:\n{line}\n\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=contextvars.copy_context().run, args=[forever], daemon=True).start()\n"
        "time.sleep(0.05)",
        0,
        3,
    ),
}


def _program(subject: Subject, last: str) -> str:
    """Write a program that ends while its kernel runs, where kernels run beside the host."""
    script = Script(subject.language)
    if "THREAD-2" in subject.broken:  # the launcher of that process is to be broken, too
        breaking = f"break_process({subject.saboteur!r})"
        script.write(f"from gridpact.conformance.saboteurs import break_process\n\n{breaking}")
    is_held = "held" in subject.abilities
    source = subject.source("held" if is_held else "passed_on")
    turns = 1 if "{line}" in last else 1_000_000  # threads launch short kernels, many of them
    if is_held:
        args: tuple[Any, ...] = (subject.shared(np.zeros(1, "i4")), subject.shared(poisoned(2)), 7, turns)
    else:
        args = (poisoned(1), np.full(1, 5, "i4"))
    kernel = object()
    script.expect(kernel, source, getattr(source, "options", {}))
    if is_held:
        stream = subject.streams[next(iter(subject.streams))]()
        script.stream(stream.given, stream.imported, stream.made)
        with script.on(stream.given, stream.current_text):
            script.launch(kernel, source, (1,), args, {})
            line = script.in_blocks(script.line)
    else:
        script.launch(kernel, source, (1,), args, {})
        line = script.line
    script.write(last.format(line=textwrap.indent(line, " " * 8)))
    lines = script.text.splitlines()
    return "\n".join(line for line in lines if not line.startswith("print(")) + "\n"  # printing may wait


def _run(text: str, due: int) -> tuple[str, str]:
    """Run a program; give how it ended, with its last word if that is not due, and what it printed."""
    program = Path(tempfile.gettempdir()) / "program-that-ends.py"
    program.write_text(text)
    load = f"import runpy; runpy.run_path({worker.__file__!r})['load_package']()"
    command = [sys.executable, "-c", f"{load}; runpy.run_path({str(program)!r}, run_name='__main__')"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        return "hung: no end in 40 s", ""
    said = f": {ran.stderr.strip().splitlines()[-1:]}" if ran.returncode != due else ""
    return f"exit code {ran.returncode}{said}", ran.stdout.strip()


@case("THREAD-2", ending=list(_ENDINGS))
def program_ends_well(subject: Subject, ending: str) -> None:
    """A program that ends while a kernel is in flight, or other threads launch, ends as it should, and does end."""
    last, due, times = _ENDINGS[ending]
    text = _program(subject, last)
    subject.asked.script.write(text)
    with own_rule(subject):
        for _ in range(times):
            same(subject, f"how a program ends ({ending})", f"exit code {due}", _run(text, due)[0])


@case("THREAD-2")
def kernel_in_flight_is_done_before_its_memory_goes(subject: Subject) -> None:
    """A program that ends while a kernel is in flight waits for it: what runs after our own end sees what it wrote."""
    if not subject.is_own:
        raise Unsupported("that the end waits for kernels is our own way not to crash")
    require(subject, "held")
    # Registered before the device is opened, so called after the device's own end.
    look = "import atexit\n\natexit.register(lambda: print(seen[0]))\n"
    text = look + _program(subject, "")
    subject.asked.script.write(text)
    same(subject, "how it ends, and what it prints at last", str(("exit code 0", "7")), str(_run(text, 0)))
