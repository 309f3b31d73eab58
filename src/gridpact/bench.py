"""What a launch costs: ours beside the driver's own call and beside others, in one process and in turn.

Machines are noisy and differ, so a figure is a ratio inside a round: each contender is timed in each round, and
the median over the rounds is told. A launch's host time is what is measured; the device is waited for in between.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import gridpact
from gridpact import backends, bench_programs, native, toolchain
from gridpact import launch as definition

__all__ = ["COUNTS", "Cost", "Result", "best_beside", "cold_start", "measure", "measure_beside", "plot"]

COUNTS: Final = {"0": (0, 0, 0, 0), "1": (1, 0, 0, 0), "4": (3, 1, 0, 1), "8": (4, 3, 1, 0), "19": (5, 9, 0, 5),
                 "58": (14, 13, 13, 18)}  # fmt: skip
"""Arguments of a launch -> tensors, integers, floats, constants. The constant of "4" is one more, as users count."""

_ELEMENTS: Final = 1024
_CONSTANTS: Final = (128, True, None, "none", 4, 64, False, 2, "relu", 16, 0.5, 32, True, 8, None, 256, "fp32", 3)


@dataclass(frozen=True)
class Cost:
    """One row: a contender at a number of arguments.

    Attributes
    ----------
    what
        Who launches, and how.
    arguments
        A key of `COUNTS`.
    us
        Host time of one launch, microseconds: the median over the rounds.
    least_us
        The least of them.
    ratio_to_driver
        Median over the rounds of its time by the bare driver call's in the same round; None without such a call.
    """

    what: str
    arguments: str
    us: float
    least_us: float
    ratio_to_driver: float | None


@dataclass
class Result:
    """What one run measured, and where; `text()` is what `--json` writes."""

    device: str
    rows: list[Cost] = field(default_factory=list)
    cold: dict[str, float] = field(default_factory=dict)
    ratio_to_triton: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    command: str = ""
    beside: list[dict[str, Any]] = field(default_factory=list)

    def ratio(self, what: str, arguments: str) -> float | None:
        """Give a row's ratio to the driver call."""
        return next((row.ratio_to_driver for row in self.rows if (row.what, row.arguments) == (what, arguments)), None)

    def text(self) -> str:
        """Give all of it as JSON."""
        to_driver = {count: self.ratio(OURS, count) for count in COUNTS} | {"prepared": self.ratio(PREPARED, "4")}
        told = {
            "device": self.device,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": self.machine,
            "versions": self.versions,
            "command": self.command,
            "ratio_to_driver": {name: ratio for name, ratio in to_driver.items() if ratio is not None},
            "ratio_to_triton": self.ratio_to_triton,
            "cold_start_s": self.cold,
            "rows": [vars(row) for row in self.rows],
            "beside": self.beside,
        }
        return json.dumps(told, indent=1) + "\n"


DRIVER: Final = "driver call, bare"
OURS: Final = "gridpact kernel[grid]"
PREPARED: Final = "gridpact prepared"
TRITON: Final = "triton kernel[grid]"
DRAWN: Final = (DRIVER, PREPARED, OURS, TRITON)
"""Who is in the picture, in its order."""

_Loop = Callable[[int], None]


@dataclass(frozen=True)
class _Contender:
    what: str
    arguments: str
    run: _Loop


# ------------------------------------------------------------------------------------------------------- the contenders


def _loop(call: str, **scope: Any) -> _Loop:
    """Make a function that makes a call so many times, with its names as locals: the loop itself costs some 10 ns."""
    given = ", ".join(f"{name}={name}" for name in scope)
    made: dict[str, Any] = dict(scope)
    exec(f"def many(times, {given}):\n    for _ in range(times):\n        {call}\n", made)
    return made["many"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a launch as text and by name; tensors first."""

    text: str
    named: dict[str, Any]

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self.named.values())


def _arguments(count: str, tensor: Callable[[], Any]) -> _Arguments:
    tensors, integers, floats, constants = COUNTS[count]
    named: dict[str, Any] = {f"t{i}": tensor() for i in range(tensors)}
    named |= {f"i{i}": _ELEMENTS if count == "4" else 3 + 13 * i for i in range(integers)}
    named |= {f"f{i}": 0.5 + i for i in range(floats)}
    named |= {f"C{i}": _CONSTANTS[i] for i in range(constants)}
    return _Arguments(", ".join(named), named)


def _ours(device: str, tensor: Callable[[], Any], counts: Sequence[str]) -> Iterator[_Contender]:
    for count in counts:
        a = _arguments(count, tensor)
        kernel = gridpact.jit(getattr(bench_programs, f"arguments_{count}"))
        scope = {"kernel": kernel, **a.named, "grid": (1,)}
        with gridpact.device(device):
            kernel[(1,)](*a.values)
            prepared = kernel.prepare(*a.values, grid=(1,))
        if native.path is not None:
            yield _Contender(DRIVER, count, partial(_bare, kernel, a.values))
        yield _Contender(OURS, count, _loop(f"kernel[grid]({a.text})", **scope))
        yield _Contender(PREPARED, count, _loop(f"prepared({a.text})", prepared=prepared, **a.named))
        if count in ("4", "19"):
            given = {**scope, "grid": lambda meta: (1,)}
            yield _Contender("gridpact kernel[callable]", count, _loop(f"kernel[grid]({a.text})", **given))
            yield _Contender("gridpact, watched by a hook", count, _watched(_loop(f"kernel[grid]({a.text})", **scope)))
            by_definition = _loop(f"launch(kernel, grid, ({a.text},), dict())", launch=definition.launch, **scope)
            yield _Contender("gridpact, Python path", count, by_definition)


_spent: Final[list[float]] = []  # of the bare calls: they time themselves, in C


def _bare(kernel: Any, values: tuple[Any, ...], times: int) -> None:
    _spent.append(native.path.bare(kernel, (1,), values, {}, times))


def _watched(run: _Loop) -> _Loop:
    def watched(times: int) -> None:
        with gridpact.hooks.observe(lambda metadata: None):
            run(times)

    return watched


def _of_triton(triton: Any, tensor: Callable[[], Any], counts: Sequence[str]) -> Iterator[_Contender]:
    for count in counts:
        a = _arguments(count, tensor)
        kernel = triton.jit(getattr(bench_programs, f"arguments_{count}"))
        compiled = kernel[(1,)](*a.values)
        scope = {**a.named, "grid": (1,)}
        yield _Contender(TRITON, count, _loop(f"kernel[grid]({a.text})", kernel=kernel, **scope))
        if count in ("4", "19"):
            given = {**scope, "grid": lambda meta: (1,)}
            yield _Contender("triton kernel[callable]", count, _loop(f"kernel[grid]({a.text})", kernel=kernel, **given))
            given = {**scope, "grid": (1, 1, 1)}  # it wants all three
            yield _Contender(
                "triton compiled[grid]", count, _loop(f"compiled[grid]({a.text})", compiled=compiled, **given)
            )


def _of_cuda(torch: Any) -> Iterator[_Contender]:
    """Others' launches of four arguments on an NVIDIA GPU, as far as they are installed."""
    x, y, out = (torch.rand(_ELEMENTS, device="cuda") for _ in range(3))
    yield _Contender("torch.add(out=)", "4", _loop("add(x, y, out=out)", add=torch.add, x=x, y=y, out=out))
    source = 'extern "C" __global__ void add(const float *x, const float *y, float *out, int n) {}'
    try:
        import cupy

        kernel, arrays = cupy.RawKernel(source, "add"), [cupy.asarray(tensor) for tensor in (x, y, out)]
        scope = {"kernel": kernel, "grid": (1,), "block": (128,), "args": (*arrays, np.int32(_ELEMENTS))}
        yield _Contender("CuPy RawKernel", "4", _loop("kernel(grid, block, args)", **scope))
    except ImportError:
        pass
    try:
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    except ImportError:
        return
    device = Device()
    device.set_current()
    stream = device.create_stream()
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    built = Program(source, "c++", ProgramOptions(arch=arch)).compile("cubin").get_kernel("add")
    scope = {"launch": launch, "stream": stream, "config": LaunchConfig(grid=1, block=128), "kernel": built}
    pointers = {"x": x.data_ptr(), "y": y.data_ptr(), "out": out.data_ptr(), "n": np.int32(_ELEMENTS)}
    yield _Contender(
        "cuda.core launch", "4", _loop("launch(stream, config, kernel, x, y, out, n)", **scope, **pointers)
    )


class _Tensor:
    """What Triton asks of a tensor, at no cost of its own: an address and an element type."""

    __slots__ = ("address", "array", "dtype")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.address, self.dtype = array, array.ctypes.data, array.dtype.name

    def data_ptr(self) -> int:
        """Give the address of the first element."""
        return self.address


# ------------------------------------------------------------------------------------------------------------ measuring


def _contenders(device: str, counts: Sequence[str]) -> tuple[list[_Contender], Callable[[], None]]:
    """Open a device and give who launches on it, and how it is waited for."""

    def array() -> np.ndarray[Any, Any]:
        return np.ones(_ELEMENTS, "f4")

    if device == "null":
        from gridpact.conformance.subjects import fake_driver

        fake_driver.load().gridpact_keep(0)
        if toolchain.installed().distribution != "triton" or toolchain.installed().version < (3, 6):
            return list(_ours("cuda:0", array, counts)), lambda: None
        from gridpact.conformance.subjects import triton_cuda_fake

        triton_cuda_fake.activate()  # before ours: it sets switches that the toolchain reads
        import triton

        theirs = _of_triton(triton, lambda: _Tensor(array()), counts)
        return [*_ours("cuda:0", array, counts), *theirs], lambda: None
    opened = backends.open_device(device)
    if not opened.compiles:
        raise ValueError(f"--device: {opened.name} compiles no kernel, its launches have no cost to compare.")
    if opened.name.startswith("cuda"):
        try:
            import torch
            import triton
        except ImportError as error:
            raise ValueError(
                f"--device: on a GPU torch and triton are measured, too, and there is no {error.name}."
            ) from error
        torch.cuda.set_device(opened.name)  # where all the others launch

        def tensor() -> Any:
            return torch.ones(_ELEMENTS, device=opened.name)

        return [
            *_ours(opened.name, tensor, counts),
            *_of_triton(triton, tensor, counts),
            *_of_cuda(torch),
        ], opened.synchronize
    return list(_ours(opened.name, array, counts)), opened.synchronize


def measure(
    device: str,
    counts: Sequence[str] = tuple(COUNTS),
    rounds: int = 25,
    launches: int = 400,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Time launches on a device.

    Parameters
    ----------
    device
        A device's name, or `null`: the CUDA driver that runs nothing, where host cost is all there is.
    counts
        Keys of `COUNTS`.
    rounds, launches
        How many rounds there are, and launches of each contender in a round.
    tell
        Called with the rounds that are done, and all.
    """
    contenders, wait = _contenders(device, counts)
    result = Result(device, machine=_machine(device))
    current = gridpact.device("cuda:0" if device == "null" else device)
    with current:
        result.versions = _versions()
        times: dict[_Contender, list[float]] = {contender: [] for contender in contenders}
        for contender in contenders:
            contender.run(20)
        wait()
        for done in range(rounds):
            for contender in contenders:
                times[contender].append(_timed(contender, launches, wait))
            tell(done + 1, rounds)
    drivers = {contender.arguments: times[contender] for contender in contenders if contender.what == DRIVER}
    for contender, spent in times.items():
        driver = drivers.get(contender.arguments)
        ratio = statistics.median(a / b for a, b in zip(spent, driver, strict=True)) if driver else None
        us, least_us = round(statistics.median(spent), 4), round(min(spent), 4)
        result.rows.append(Cost(contender.what, contender.arguments, us, least_us, ratio and round(ratio, 4)))
    by_name = {(contender.what, contender.arguments): spent for contender, spent in times.items()}
    for name, count in [*((OURS, count) for count in counts), (PREPARED, "4")]:
        mine, theirs = by_name.get((name, count)), by_name.get((TRITON, count))
        if mine and theirs:
            ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            result.ratio_to_triton["prepared" if name == PREPARED else count] = round(ratio, 4)
    return result


def _timed(contender: _Contender, launches: int, wait: Callable[[], None]) -> float:
    """Give microseconds of one launch; the device is idle before and after."""
    _spent.clear()
    begin = time.perf_counter()
    contender.run(launches)
    end = time.perf_counter()
    wait()
    return _spent[0] / 1e3 if _spent else (end - begin) / launches * 1e6


def _machine(device: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    name = "a CUDA driver that runs nothing" if device == "null" else backends.device_status(device).facts["device"]
    return f"{name}; {cpu}, {os.cpu_count()} processors"


def _versions() -> dict[str, str]:
    known = {"python": platform.python_version(), "gridpact": gridpact.__version__, "numpy": np.__version__}
    installed = toolchain.installed()
    known[installed.distribution] = installed.full_version
    for name in ("torch", "cupy"):
        if name in sys.modules:
            known[name] = sys.modules[name].__version__
    return known


# ----------------------------------------------------------------------------------------------------------- cold start

_COLD: Final = """
import sys, time
begin = time.perf_counter()
import {module}
imported = time.perf_counter()
from gridpact import bench_programs
import numpy as np
{setup}
kernel = {module}.jit(bench_programs.arguments_4)
first = time.perf_counter()
kernel[(1,)]({tensors}, 1024, 128)
{wait}
print(imported - begin, time.perf_counter() - first)
"""


def cold_start(device: str) -> dict[str, float]:
    """Give seconds of the import and of the first launch, in processes of their own: with an empty cache, and again."""
    device = backends.open_device(device).name
    tensors = ", ".join(["np.ones(1024, 'f4')"] * 3)
    setup = {"gridpact": f"here = gridpact.device({device!r}); here.__enter__()", "triton": ""}
    wait = {"gridpact": "gridpact.synchronize()", "triton": ""}
    modules = ["gridpact"]
    if device.startswith("cuda"):
        tensors = ", ".join(["torch.ones(1024, device='cuda')"] * 3)
        warm = f"import torch; torch.cuda.set_device({device!r}); torch.ones(1, device='cuda')"
        setup = {"gridpact": f"{setup['gridpact']}; {warm}", "triton": warm}
        wait["triton"] = "torch.cuda.synchronize()"
        modules.append("triton")
    found = {}
    for module in modules:
        text = _COLD.format(module=module, setup=setup[module], tensors=tensors, wait=wait[module])
        with tempfile.TemporaryDirectory(prefix="gridpact-cold-") as folder:
            environment = {**os.environ, "XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
            environment.pop("GRIDPACT_KERNEL_CACHE", None)
            for cache in ("empty", "filled"):
                command = [sys.executable, "-c", text]
                ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
                if ran.returncode:
                    raise ValueError(f"--cold: a first launch of {module} ended with {ran.returncode}: {ran.stderr}")
                imported, first = map(float, ran.stdout.split()[-2:])
                found[f"{module}: import"] = round(imported, 3)
                found[f"{module}: first launch, {cache} cache"] = round(first, 3)
    return found


# --------------------------------------------------------------------------------------------------- other environments


def measure_beside(python: Path, device: str, counts: Sequence[str], rounds: int, launches: int) -> dict[str, Any]:
    """Measure in another environment, which has gridpact and another Triton; gives what its `--json` writes."""
    with tempfile.TemporaryDirectory(prefix="gridpact-bench-") as folder:
        path = Path(folder) / "bench.json"
        command = [
            str(python.absolute()),
            "-m",
            "gridpact",
            "bench",
            f"--device={device}",
            f"--json={path}",
            f"--rounds={rounds}",
        ]
        command += [f"--launches={launches}", *(f"--arguments={count}" for count in counts)]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ValueError(f"--beside: {' '.join(command)} ended with {ran.returncode}: {ran.stderr[-2000:]}")
        told: dict[str, Any] = json.loads(path.read_text())
        del told["command"]  # it is this run's own, with other folders
        return told


def best_beside(result: Result, others: Mapping[str, Mapping[str, Any]]) -> None:
    """Take up what other environments measured: each ratio to Triton becomes the worst for us, the best Triton's.

    Parameters
    ----------
    result
        Of this environment.
    others
        Environment -> what its `--json` wrote.
    """
    for other in others.values():
        result.beside.append(dict(other))
        for count, ratio in other["ratio_to_triton"].items():
            result.ratio_to_triton[count] = max(result.ratio_to_triton.get(count, 0.0), ratio)


def plot(result: Result, path: Path) -> None:
    """Draw launch cost by number of arguments, as bars beside the driver's own call."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    draw(axes, result.rows, result.beside)
    axes.set_title(f"{result.device}: {result.machine}", fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw(axes: Any, rows: Sequence[Cost], beside: Sequence[Mapping[str, Any]]) -> None:
    """Draw bars into axes of matplotlib, in the colours of their cycle: who launches, by number of arguments."""
    rows = [*rows, *(Cost(**row) for other in beside for row in other["rows"] if row["what"] == TRITON)]
    counts = [count for count in COUNTS if any(row.arguments == count for row in rows)]
    names = [name for name in DRAWN if any(row.what == name for row in rows)]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        heights = [min((r.us for r in rows if (r.what, r.arguments) == (name, c)), default=0.0) for c in counts]
        bars = axes.bar([at + i * width for at in range(len(counts))], heights, width, label=name)
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(counts))], counts)
    axes.set_xlabel("arguments")
    axes.set_ylabel("host time of a launch, us")
    axes.legend(fontsize=8)
