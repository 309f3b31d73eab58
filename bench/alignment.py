"""What 16-byte alignment is worth: in machine code by target, and in run time on a device.

    python bench/alignment.py --device sycl:cpu --json bench/results/alignment-sycl-cpu.json
    python bench/alignment.py --device cuda:0 --json bench/results/alignment-h200.json     # needs torch
    python bench/alignment.py --json FILE                  # machine code alone: needs no device
    python bench/alignment.py --docs docs/alignment.md     # the tables of that text anew, from all bench/results

Where data lies and what the binary was built for are told apart: the binary of unaligned pointers also runs on aligned
data, as `do_not_specialize_on_alignment` has it. All of them take their turns in each round of one process.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import triton.language as tl
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from add import add  # noqa: E402
from histogram import histogram_kernel  # noqa: E402
from layer_norm import layer_norm_kernel  # noqa: E402
from matmul import matmul_kernel  # noqa: E402
from softmax import softmax_kernel  # noqa: E402

import gridpact  # noqa: E402
from gridpact import bench, plan, variants  # noqa: E402
from gridpact.asked import ask  # noqa: E402
from gridpact.errors import UnsupportedError  # noqa: E402

TARGETS: Final = ("xpu", "cuda:90", "hip:gfx942")
BYTES: Final = 64 << 20  # of a large array: more than caches hold


@gridpact.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    """Multiply one block of `n` elements, which may be of 16 bits."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) * factor, inside)


@gridpact.jit
def gather(x, index, out, n, BLOCK: tl.constexpr):
    """Read one block of `n` elements from anywhere."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + tl.load(index + at, inside, other=0), inside), inside)


# ---------------------------------------------------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Workload:
    """One kernel and its launch.

    Attributes
    ----------
    memory
        Pointer -> values of one axis; the last is what it writes, zeroed.
    others
        The other arguments, and options.
    """

    name: str
    kernel: gridpact.Kernel
    memory: Mapping[str, np.ndarray]
    others: Mapping[str, Any]
    grid: tuple[int, ...]

    @property
    def output(self) -> str:
        """Name of the pointer that it writes through."""
        return list(self.memory)[-1]


def workloads(large: int, side: int) -> Iterator[Workload]:
    """Give the kernels, one at a time.

    Parameters
    ----------
    large
        Bytes of each large array.
    side
        Of the matrices that are multiplied.
    """
    rng = np.random.default_rng(0)
    n, columns = large // 4, 2048
    rows = n // columns
    x, y, zeros = rng.standard_normal(n, np.float32), rng.standard_normal(n, np.float32), np.zeros(n, np.float32)
    blocks = (n // 1024,)
    yield Workload("add, fp32", add, {"x": x, "y": y, "out": zeros}, {"n": n, "BLOCK": 1024}, blocks)
    halves = {"x": np.tile(x.astype(np.float16), 2), "out": np.zeros(2 * n, np.float16)}
    yield Workload("scale, fp16", scale, halves, {"n": 2 * n, "factor": 0.5, "BLOCK": 1024}, (2 * n // 1024,))
    of_row = {"columns": columns, "BLOCK": columns}
    yield Workload("softmax, fp32", softmax_kernel, {"x": x, "out": zeros}, of_row, (rows,))
    affine = {"weight": x[:columns], "bias": y[:columns]}
    memory = {"x": x, **affine, "out": zeros}
    yield Workload("layer norm, fp32", layer_norm_kernel, memory, {**of_row, "eps": 1e-5}, (rows,))
    tile, size = 32, side * side
    strides = {f"{name}_{step}": side if step == "row" else 1 for name in "abc" for step in ("row", "col")}
    sides = {"M": side, "N": side, "K": side, **strides, "TILE": tile, "num_warps": 8}
    matrices = {"a": x[:size], "b": y[:size], "c": zeros[:size]}
    yield Workload("matmul, fp32", matmul_kernel, matrices, sides, (side // tile, side // tile))
    values = {"values": rng.integers(0, 256, n // 4, np.int32), "counts": np.zeros(256, np.int32)}
    yield Workload(
        "histogram, i32", histogram_kernel, values, {"n": n // 4, "bins": 256, "BLOCK": 512}, (n // 4 // 512,)
    )
    index = rng.integers(0, n, n, np.int32)
    yield Workload("gather, fp32", gather, {"x": x, "index": index, "out": zeros}, {"n": n, "BLOCK": 1024}, blocks)


# ------------------------------------------------------------------------------------------------------- machine code


def code_rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """Compare the aligned and the unaligned variant of a kernel, on each target that Triton compiles for here."""
    asked = ask(workload.kernel, (), {**workload.memory, **workload.others})
    for target in TARGETS:
        try:
            found = variants.list_variants(asked, plan.platform_of(target).device)
        except UnsupportedError:
            continue
        row = {"kernel": workload.name, "target": target, "form": found.form, "answer": found.answer}
        for name in ("aligned", "unaligned"):
            code = found[name].code
            widest = {f"widest_{what}": max(getattr(code, f"{what}s"), default=0) // 8 for what in ("load", "store")}
            row[name] = {"bytes": code.size, **widest}
        yield {**row, "is_same": found["unaligned"].same_as == "aligned"}


# ----------------------------------------------------------------------------------------------------------- run time

# What runs -> where data begins, in bytes after a multiple of 64, and whether pointers choose the binary.
CONTENDERS: Final = {
    "aligned": (0, True),
    "16 bytes off": (16, True),
    "unaligned code, aligned data": (0, False),
    "4 bytes off": (4, True),
    "8 bytes off": (8, True),
}
ROOM: Final = 64  # bytes, beside an array
ONE_TIMING_US: Final = 20_000  # so long at least, in as many launches as that takes


class Host:
    """NumPy arrays on a SYCL device: a launch returns when its results are there."""

    side = 512

    def room(self, size: int) -> Any:
        """Give memory for so many bytes, which begins at a multiple of 64."""
        memory = np.zeros(size + 2 * ROOM, np.uint8)
        return memory[-memory.ctypes.data % ROOM :][: size + ROOM]

    def view(self, room: Any, begin: int, values: np.ndarray) -> Any:
        """Give a view that begins there, of the values' type and length."""
        return room[begin : begin + values.nbytes].view(values.dtype)

    def fill(self, view: Any, values: np.ndarray) -> None:
        """Write values."""
        view[:] = values

    def read(self, view: Any) -> np.ndarray:
        """Give the values, when all launches are complete."""
        return view.copy()

    def time(self, launch: Callable[[], object], times: int) -> float:
        """Give microseconds of one launch."""
        begin = time.perf_counter()
        for _ in range(times):
            launch()
        return (time.perf_counter() - begin) / times * 1e6


class Gpu(Host):
    """Tensors of torch on an NVIDIA GPU, timed by events on torch's stream, which launches go to."""

    side = 2048

    def __init__(self, device: str) -> None:
        import torch

        torch.cuda.set_device(device)
        self.torch, self.device = torch, device

    def room(self, size: int) -> Any:
        return self.torch.zeros(size + ROOM, dtype=self.torch.uint8, device=self.device)  # torch aligns to 512 bytes

    def view(self, room: Any, begin: int, values: np.ndarray) -> Any:
        return room[begin : begin + values.nbytes].view(getattr(self.torch, values.dtype.name))

    def fill(self, view: Any, values: np.ndarray) -> None:
        view.copy_(self.torch.from_numpy(values))

    def read(self, view: Any) -> np.ndarray:
        return view.cpu().numpy()

    def time(self, launch: Callable[[], object], times: int) -> float:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / times * 1e3


def time_rows(workload: Workload, library: Host, rounds: int) -> list[dict[str, Any]]:
    """Time the contenders on one memory; all have to give the same results, and to run the code that they stand for."""
    unaligned = gridpact.jit(workload.kernel, do_not_specialize_on_alignment=list(workload.memory))
    rooms = {name: library.room(values.nbytes) for name, values in workload.memory.items()}
    launches: dict[str, Callable[[], Any]] = {}
    codes, due = {}, None
    for name, (begin, is_specialized) in CONTENDERS.items():
        views = {pointer: library.view(rooms[pointer], begin, values) for pointer, values in workload.memory.items()}
        for pointer, values in workload.memory.items():
            library.fill(views[pointer], values)
        launch = (workload.kernel if is_specialized else unaligned)[workload.grid]
        launches[name] = lambda launch=launch, views=views: launch(**views, **workload.others)
        codes[name] = variants.code_of(launches[name]().binary)
        seen = library.read(views[workload.output])
        due = seen if due is None else due
        rounding = 1e-5 * np.abs(due).max()  # sums of other layouts add in another order
        if not np.allclose(due, seen, rtol=1e-5, atol=rounding):
            raise RuntimeError(f"{workload.name}: results of {name!r} differ from those of 'aligned'")
    for is_aligned in (True, False):
        of_class = [
            name for name, (begin, chooses) in CONTENDERS.items() if is_aligned == (chooses and begin % 16 == 0)
        ]
        if len({codes[name] for name in of_class}) != 1:
            raise RuntimeError(f"{workload.name}: expected one code of {', '.join(of_class)}")
    once = library.time(launches["aligned"], 3)
    times = max(1, min(1000, int(ONE_TIMING_US / once)))
    spent: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(CONTENDERS)):  # none always follows the same one
            spent[name].append(library.time(launches[name], times))
    rows = []
    for name, us in spent.items():
        ratios = [one / aligned for one, aligned in zip(us, spent["aligned"], strict=True)]
        tenths = statistics.quantiles(ratios, n=10)
        told = {"us": statistics.median(us), "least_us": min(us), "ratio": statistics.median(ratios)}
        told |= {"low": tenths[0], "high": tenths[-1]}
        row = {"kernel": workload.name, "what": name, **{key: round(value, 4) for key, value in told.items()}}
        rows.append({**row, "launches": times, "is_same_code": codes[name] == codes["aligned"]})
    return rows


# ------------------------------------------------------------------------------------------------------------- tables


def code_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Give a heading and the rows of machine code; `a → u` is what aligned and unaligned code have."""
    table = [["kernel", "target", "same code", "bytes of code", "widest load", "widest store"]]
    for row in rows:
        pair = row["aligned"], row["unaligned"]
        told = [
            " → ".join(f"{code[key] or 'none'}" for code in pair) for key in ("bytes", "widest_load", "widest_store")
        ]
        table.append([row["kernel"], f"{row['target']} ({row['form']})", "yes" if row["is_same"] else "no", *told])
    return table


def time_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Give a heading and the rows of run time: microseconds of the first contender, ratios to it of the others."""
    first, *others = CONTENDERS
    table = [["kernel", "same code", f"{first}, us", *others]]
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        by_name = {row["what"]: row for row in rows if row["kernel"] == kernel}
        ratios = [f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for row in map(by_name.get, others)]
        is_same = all(row["is_same_code"] for row in by_name.values())
        table.append([kernel, "yes" if is_same else "no", f"{by_name[first]['us']:,.0f}", *ratios])
    return table


def _markdown(table: list[list[str]]) -> str:
    heading, *rows = (f"| {' | '.join(row)} |" for row in table)
    return "\n".join([heading, "|---" * len(table[0]) + "|", *rows])


def _toolchain(result: Mapping[str, Any]) -> str:
    return next(f"{name} {version}" for name, version in result["versions"].items() if "triton" in name)


def docs_parts(folder: Path) -> dict[str, str]:
    """Give the parts of the text that come from the results in a folder, by name."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("alignment-*.json"))]
    on_devices = [result for result in results if result["times"]]
    reference = next(result for result in results if {row["target"] for row in result["code"]} == set(TARGETS))
    answers = {(row["kernel"], row["target"]): row["answer"] for row in reference["code"]}
    code = [f"By {_toolchain(reference)}:\n\n{_markdown(code_table(reference['code']))}"]
    for name in dict.fromkeys(map(_toolchain, results)):
        result = next(result for result in results if _toolchain(result) == name)
        if result is not reference:
            rows = [row for row in result["code"] if answers[row["kernel"], row["target"]] != row["answer"]]
            told = [f"- {row['kernel']} on {row['target']}: {row['answer']}" for row in rows]
            code.append(f"By {name} the answer is {'another for' if rows else 'the same for all.'}\n" + "\n".join(told))
    times = []
    for result in on_devices:
        where = f"`{result['device']}`: {result['machine']}; {_toolchain(result)}"
        when = f"medians of {result['rounds']} rounds, {result['date'][:10]}"
        if "load" in result:  # of processors, by others too: what the spread is owed to
            when += f", load {result['load']}"
        times.append(f"{where}, {when}\n\n{_markdown(time_table(result['times']))}")
    if not any(result["device"].startswith("cuda") for result in on_devices):
        times.append("`cuda:0`: not measured yet.")
    return {"code": "\n\n".join(code), "times": "\n\n".join(times)}


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """Put parts between their marks, `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        text = f"{before}{begin}\n{part}\n\n{end}{after}"
    return text


# ---------------------------------------------------------------------------------------------------------- the command


def main(
    device: Annotated[str, typer.Option(metavar="sycl:cpu|cuda:0", help="Measure run time there.")] = "",
    json_: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
    docs: Annotated[Path | None, typer.Option(help="Write the tables of this text anew, and measure nothing.")] = None,
    rounds: Annotated[int, typer.Option(min=4, help="Of all contenders in turn.")] = 25,
) -> None:
    """Compare aligned and unaligned memory, and the binaries that were built for them."""
    console = Console()
    if docs is not None:
        docs.write_text(with_parts(docs.read_text(), docs_parts(ROOT / "bench" / "results")))
        return
    library = Gpu(device) if device.startswith("cuda") else Host()
    result: dict[str, Any] = {
        "device": device,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": bench._machine(device) if device else "",
        "versions": bench._versions(),
        "command": shlex.join(["python", "bench/alignment.py", *sys.argv[1:]]),
        "rounds": rounds,
        "code": [],
        "times": [],
    }
    for workload in track(workloads(BYTES, library.side), "kernels", total=7, console=console, transient=True):
        result["code"] += code_rows(workload)
        if device:
            with gridpact.device(device):
                result["times"] += time_rows(workload, library, rounds)
    result["load"] = round(os.getloadavg()[0], 1)  # processes that wanted a processor in the last minute, this one too
    for title, table in (
        (_toolchain(result), code_table(result["code"])),
        (f"{device}  {result['machine']}", time_table(result["times"])),
    ):
        if len(table) > 1:
            shown = Table(*table[0], title=title, title_justify="left")
            for row in table[1:]:
                shown.add_row(*row)
            console.print(shown)
    if json_ is not None:
        json_.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
