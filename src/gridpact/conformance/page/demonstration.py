"""What pictures show, observed: `python -m gridpact.conformance.page.demonstration FOLDER` writes it as JSON.

The program grid on whole and on broken launchers, two streams with an event and without, and what a launch is for CUDA
and for SYCL. It needs sycl:cpu and no GPU, and writes the same bytes wherever it runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import NUMBERS, POISON, Array, poisoned

__all__ = ["observe_grid", "observe_mapping", "observe_streams", "write"]

COMMAND: Final = "python -m gridpact.conformance.page.demonstration docs/data"

_GRID: Final = (7, 5, 3)
_LAUNCHERS: Final = (
    ("gridpact:sycl:cpu", "", "our launcher"),
    ("gridpact:reference", "swap-xy", "broken: x and y exchanged"),
    ("gridpact:reference", "run-twice", "broken: the last runs twice"),
    ("gridpact:sycl:cpu", "drop-z", "broken: z dropped"),
)


def observe_grid() -> dict[str, Any]:
    """Launch `coordinates` over 7 x 5 x 3 programs with each launcher, in a process of its own, and keep what it wrote.

    Gives for each place of the grid, z slowest, the 7 numbers that `check_coordinates` judges, and how many programs
    counted elsewhere.
    """
    with get_context("spawn").Pool(1, maxtasksperchild=1) as processes:  # what is broken ends with its process
        seen = processes.starmap(_launch, [(name, broken) for name, broken, _ in _LAUNCHERS], chunksize=1)
    return {
        "kind": "grid",
        "command": COMMAND,
        "grid": list(_GRID),
        "launchers": [
            {"subject": name, "saboteur": broken, "told": told, "programs": places, "elsewhere": elsewhere}
            for (name, broken, told), (places, elsewhere) in zip(_LAUNCHERS, seen, strict=True)
        ],
    }


def _launch(name: str, broken: str) -> tuple[list[list[int]], int]:
    from gridpact.conformance.saboteurs import SABOTEURS
    from gridpact.conformance.subjects import open_subject

    subject = open_subject(name)
    if broken in SABOTEURS:
        SABOTEURS[broken].break_launcher(subject)
    elif broken == "drop-z":
        _drop_z(subject)
    x, y, z = _GRID
    # Room for axes that are exchanged, as in `check_coordinates`.
    seen = poisoned((max(_GRID) * x * y + max(_GRID) * x + max(_GRID) + 1) * NUMBERS)
    seen[::NUMBERS] = 0
    subject.launch("coordinates", _GRID, seen, x, y)
    subject.synchronize()
    count = x * y * z
    places = seen.reshape(-1, NUMBERS)
    return places[:count].tolist(), int(places[count:, 0].sum())


def _drop_z(subject: Any) -> None:
    """Break a launcher so that z is 1, below all that is checked."""
    from gridpact import native

    native.turn("off", True)
    kind = type(subject.opened)
    original = kind.launch
    kind.launch = lambda self, desc: original(self, replace(desc, z=1))


# ------------------------------------------------------------------------------------------------------------- streams

_WRITTEN: Final = 7


def observe_streams() -> dict[str, Any]:
    """Hold a writer on one stream, launch a reader on another, and look at both: before the flag is raised and after.

    With an event, the reader waits for the writer; without one, it reads the old value while the writer is held.
    """
    from gridpact.conformance.subjects import open_subject

    subject = open_subject("gridpact:sycl:cpu")
    return {
        "kind": "streams",
        "command": COMMAND,
        "subject": subject.name,
        "old": POISON,
        "written": _WRITTEN,
        "runs": [{"event": event, **_order(subject, event)} for event in (False, True)],
    }


def _order(subject: Any, event: bool) -> dict[str, Any]:
    a, b = subject.stream(), subject.stream()
    unread = _WRITTEN + 1
    read = subject.shared(np.full(1, unread, "i4"))
    with _held(subject, a) as written:
        if event:
            subject.wait_for(b, subject.record(a))
        with subject.on(b):
            subject.submit("passed_on", (1,), read, written)
        if event:
            # Another stream runs to its end meanwhile: the reader has had its time, and did not run.
            other, c = subject.shared(poisoned(1)), subject.stream()
            with subject.on(c):
                subject.submit("passed_on", (1,), other, subject.shared(np.zeros(1, "i4")))
            subject.wait(c)
        else:
            subject.wait(b)
        during = {"writer": int(written[0]), "reader": _read(read, unread)}
    subject.wait(b)
    return {"held": during, "after": {"writer": int(written[0]), "reader": _read(read, unread)}}


def _read(memory: Array, unread: int) -> int | None:
    """Give what a reader has read; None while it has not run."""
    return None if int(memory[0]) == unread else int(memory[0])


@contextmanager
def _held(subject: Any, stream: Any) -> Iterator[Array]:
    """Hold a stream with a writer during the block, and give its memory; compiled before."""
    subject.launch("held", (1,), np.ones(1, "i4"), poisoned(2), 0, 1)
    subject.launch("passed_on", (1,), poisoned(1), poisoned(1))
    flag, seen = subject.shared(np.zeros(1, "i4")), subject.shared(poisoned(2))
    try:
        with subject.on(stream):
            subject.submit("held", (1,), flag, seen, _WRITTEN, 2**31 - 1)
        end = time.monotonic() + 30
        while seen[1] != 1:
            if time.monotonic() > end:
                raise TimeoutError("the writer has not begun in 30 s")
            time.sleep(0)
        yield seen
    finally:
        subject.let_go(flag)
        subject.wait(stream)


# ------------------------------------------------------------------------------------------------------------- mapping

_KERNEL: Final = "examples/stencil.py:laplacian_kernel"
_TARGETS: Final = ("cuda:90", "xpu")


def observe_mapping() -> dict[str, Any]:
    """Say what the launch of an example is for CUDA and for SYCL: what each driver would be called with."""
    from gridpact.asked import read_launch
    from gridpact.plan import plan_launch

    asked = read_launch(_KERNEL, "")
    plans = [plan_launch(asked, target) for target in _TARGETS]
    return {
        "kind": "mapping",
        "command": f"gridpact plan {_KERNEL}" + "".join(f" --target {target}" for target in _TARGETS),
        "kernel": _KERNEL,
        "programs": list(plans[0].programs),
        "threads": plans[0].metadata.threads,
        "targets": [
            {"target": plan.target, "geometry": {name: list(counts) for name, counts in plan.geometry.items()}}
            for plan in plans
        ],
    }


def write(folder: Path) -> None:
    """Observe all of it, and write a file for each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, observe in (("grid", observe_grid), ("streams", observe_streams), ("mapping", observe_mapping)):
        (folder / f"{name}.json").write_text(json.dumps(observe(), separators=(",", ":")) + "\n")
        print(folder / f"{name}.json")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
