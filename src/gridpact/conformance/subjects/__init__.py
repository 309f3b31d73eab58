"""Who is asked: launchers, each behind one small interface.

A subject is one file here and one row in the table; a third party's is an entry point of the group
`gridpact.subjects`. It runs in a worker process, which imports nothing but the standard library, NumPy and what the
subject itself imports.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from gridpact.conformance.check import Asked, require
from gridpact.conformance.model import Unsupported
from gridpact.conformance.script import Language, Script

if TYPE_CHECKING:
    from gridpact.conformance.subjects.streams import Stream

__all__ = [
    "NAMED_ONLY",
    "SUBJECTS",
    "UNOBSERVED",
    "DriverCall",
    "Observed",
    "Ranges",
    "Subject",
    "available",
    "open_subject",
]

SUBJECTS: Final[dict[str, str]] = {
    "gridpact:reference": "gridpact.conformance.subjects.gridpact_device:reference",
    "gridpact:sycl:cpu": "gridpact.conformance.subjects.gridpact_device:sycl_cpu",
    "gridpact:sycl:cpu:python": "gridpact.conformance.subjects.gridpact_device:sycl_cpu_python",
    "gridpact:cuda:0": "gridpact.conformance.subjects.gridpact_cuda:cuda_0",
    "triton:interpreter": "gridpact.conformance.subjects.triton_interpreter:TritonInterpreter",
    "triton:active": "gridpact.conformance.subjects.triton_active:triton_active",
    "intel:launcher": "gridpact.conformance.subjects.intel_launcher:IntelLauncher",
    "triton:cuda:fake": "gridpact.conformance.subjects.triton_cuda_fake:TritonCudaFake",
    "gridpact:cuda:fake": "gridpact.conformance.subjects.gridpact_cuda:GridpactCudaFake",
    "gridpact:cuda:0:python": "gridpact.conformance.subjects.gridpact_cuda:cuda_0_python",
}
"""Name -> `module:factory`."""

NAMED_ONLY: Final = frozenset({"triton:cuda:fake", "gridpact:cuda:fake", "intel:launcher", "gridpact:cuda:0:python"})
"""Asked only if named: they build a launcher for each signature, need an environment of their own, or a GPU twice."""

GROUP: Final = "gridpact.subjects"


Ranges: TypeAlias = dict[str, tuple[int, ...]]


class Observed(NamedTuple):
    """What a launcher is handed for observers of a launch, in the order of the boundary: metadata and hooks."""

    metadata: Any = None
    enter: Any = None
    exit: Any = None


UNOBSERVED: Final = Observed()


@dataclass(frozen=True)
class DriverCall:
    """What a driver was asked for, and took; x comes first.

    Attributes
    ----------
    grid, block, cluster
        Blocks of the grid, threads of a block, blocks of a cluster.
    shared_bytes
        Dynamic shared memory of a block.
    stream
        Handle.
    function, binary
        The kernel's handle, and a digest of the module that it is of.
    parameters
        The bytes of each parameter, as many as the binary itself declares.
    attributes
        Names of what else was asked: `cooperative`, `programmatic`.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    stream: int = 0
    function: int = 0
    binary: str = ""
    parameters: tuple[bytes, ...] = ()
    attributes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        told = f"driver call: grid {self.grid}, block {self.block}"
        told += f", cluster {self.cluster}" if self.cluster != (1, 1, 1) else ""
        told += f", {self.shared_bytes} shared bytes" if self.shared_bytes else ""
        told += "".join(f", {name}" for name in sorted(self.attributes))
        return f"{told}, binary {self.binary}, parameters {' '.join(part.hex() for part in self.parameters)}"


class Subject(ABC):
    """A launcher under proof.

    Attributes
    ----------
    name
        As the report prints it; a subject that finds out its device may say more than the table (`triton:sycl:cpu`).
    is_own
        Ours: it must uphold every clause, our own rules and the form of errors included.
    device, driver
        What it runs on.
    abilities
        What it can be asked beyond plain launches: `num_warps`, `lanes`, `shared`, `hooks`, `options`, `binaries` (it
        can tell which binary ran), `compiled` (a launch gives back a compiled kernel), `geometry` (probe kernels in the
        driver's own language), `limits`, `scratch` (kernels may ask for memory of each launch), `clusters` (of
        programs), `cooperative` (grids whose programs run at once), `streams` (launches go to streams that it can
        make), `held` (kernels run beside the host, so that one can be held on a flag), `stream_option` (a launch may
        name a stream), `stream_handles` (any number can be made the current stream), `owners` (it can tell whose memory
        a pointer is to), `records` (what reaches the backend is seen), `from_triton` (it takes over kernels that
        `triton.jit` made), `capture` (launches can be captured in graphs and replayed),
        `descriptors` (tensor descriptors of Triton are arguments), `state` (captured values are compiled in, by our own
        rules), `explained` (it says why it compiles), `classes` (they can be listed, and compiled ahead), `variants`
        (it can show which specializations of a kernel differ in machine code).
    lacks
        Ability -> why it has not got it; such cases are `unsupported`. Every subject can be asked in processes of its
        own but one that lacks `processes`.
    unwritten
        Ability -> what nobody has written yet to ask it so; such cases are `unimplemented`.
    programs_in_case
        How many programs it can run in a case's time; host loops are slow.
    limits
        Largest count per axis, programs, as the device's driver reports or shows; None if it has none to state.
    most_threads
        Of one program, as the device's driver reports; None if it has none to state.
    programs
        Module of the probe programs in its language; not needed where `source` gives them otherwise.
    language
        How findings are written as programs.
    runs
        Whether kernels run. Where not, `driver_calls` is all that is seen of a launch.
    lanes
        Threads of a warp where there is one number of them; None where it is an option or means nothing.
    streams
        Kind -> how streams of this kind are made; the first is the usual one.
    graphs
        Library -> how a stream that it can capture is made.
    saboteur, broken
        The saboteur that has broken it, if one has, and the clauses that it breaks.
    asked
        Notes of the running case; renewed for each.
    """

    name: str
    is_own: bool = False
    device: str = ""
    driver: str = ""
    abilities: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = {}
    unwritten: Mapping[str, str] = {}
    programs_in_case: int = 2**40
    limits: tuple[int, int, int] | None = None
    most_threads: int | None = None
    programs: Any = None
    language: Language = Language()
    runs: bool = True
    lanes: int | None = None
    streams: Mapping[str, Callable[[], Stream]] = {}
    graphs: Mapping[str, Callable[[], Stream]] = {}
    saboteur: str = ""
    broken: frozenset[str] = frozenset()
    asked: Asked

    def __init__(self) -> None:
        self.asked = Asked()
        self._kernels: dict[tuple[str, str], Any] = {}

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what it is made of."""
        found = {"python": platform.python_version(), "numpy": np.__version__}
        for name in ("triton", "triton-xpu", "pytorch-triton", "intel-sycl-rt", "intel-opencl-rt", "torch"):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    # -- what a subject has to say

    def source(self, program: str) -> FunctionType:
        """Give the Python function of a probe program in the subject's language."""
        return getattr(self.programs, program)  # type: ignore[no-any-return]

    @abstractmethod
    def jit(self, function: FunctionType, **options: Any) -> Any:
        """Make a kernel of a function: `kernel[grid](*args, **options)` launches it."""

    def helper(self, function: FunctionType) -> Any:
        """Make a function that kernels call."""
        return self.jit(function)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Give an array as an argument of a launch; what kernels write must be seen in the array afterwards.

        It begins as far after a multiple of 16 bytes as the array does.
        """
        return array

    def shared(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Give an array of the same values that the host may read and write while kernels use it."""
        return array

    def host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Give an array of the same values in memory of the host that kernels reach without a copy."""
        return array

    def driver_calls(self) -> list[DriverCall]:
        """Give the driver calls since this was last asked; of subjects whose kernels do not run."""
        return []

    def last_call(self) -> DriverCall:
        """Give the driver call of the last launch, or say that it made none; of subjects whose kernels do not run."""
        raise Unsupported("what the driver is given is not seen")

    def passed(self, result: Any) -> dict[str, Any]:
        """Give the arguments of the last driver call by name, as the driver got them, and those that were compiled in.

        Pointers are given as addresses.
        """
        raise Unsupported("what the driver is given is not seen")

    def begin(self, asked: Asked) -> None:
        """Begin a case: its notes go here."""
        self.asked = asked
        asked.script = Script(self.language, asked.kept)

    def forget(self) -> None:  # noqa: B027
        """Empty the disk cache of kernels, where another launcher keeps one: what a case sees is its own doing."""

    def is_poisoned(self) -> bool:
        """Whether a case has left the process unusable, as a kernel's fault does on CUDA; it is then started anew."""
        return False

    def wait_default(self) -> None:  # noqa: B027
        """Wait until launches on no stream in particular are complete, where they are not when they return."""

    def synchronize(self) -> None:  # noqa: B027  (nothing to wait for is a fine answer)
        """Wait until launches are complete and arrays hold what kernels wrote."""

    def options(self, **wanted: Any) -> dict[str, Any]:
        """Turn `num_warps` and `lanes` into launch options of the subject."""
        return {("threads_per_warp" if name == "lanes" else name): value for name, value in wanted.items()}

    @property
    def launch_options(self) -> frozenset[str]:
        """Names of the launch options that it takes, as far as it tells."""
        return frozenset()

    @contextmanager
    def explained(self, told: list[list[str]]) -> Iterator[None]:
        """Note of each binary that kernels get in the block which facts are new; of subjects with `explained`."""
        raise Unsupported(self.lacks.get("explained", "it does not say why it compiles"))
        yield

    def identity(self, compiled: Any) -> str:
        """Name the binary that a launch ran, so that two are equal exactly if they are one."""
        raise Unsupported("it does not tell which binary ran")

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        """Launch a probe in the driver's own language, and give what it saw: `global`, `local`, `groups`, x first.

        Where nothing runs, what the driver was called with: also `cluster`, `shared` (bytes) and `stream` (handle).

        Parameters
        ----------
        wait
            Until the grid is complete, else until its first work-item has written what it saw.
        observed
            What the launcher is handed for observers.
        """
        raise Unsupported(self.lacks.get("geometry", "it takes no kernel in the driver's own language"))

    @contextmanager
    def allocating(self, sizes: list[int]) -> Iterator[None]:
        """Note the sizes of scratch memory, bytes, that launches in the block ask for; of subjects with `scratch`."""
        raise Unsupported(self.lacks.get("scratch", "its kernels take no scratch memory"))
        yield

    @contextmanager
    def observed(self, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None) -> Iterator[None]:
        """Register launch hooks for the time of the block; they receive a mapping or something with `get()`."""
        raise Unsupported(self.lacks.get("hooks", "it has no launch hooks"))
        yield

    @contextmanager
    def current_handle(self, handle: int) -> Iterator[None]:
        """Make a raw handle the current stream of launches in the block; of subjects with `stream_handles`."""
        raise Unsupported(self.lacks.get("stream_handles", "what the driver is given is not seen"))
        yield

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        """Note all that crosses the boundary to the backend in launches of the block; of subjects with `records`."""
        raise Unsupported(self.lacks.get("records", "what reaches its backend is not seen"))
        yield

    # -- what cases use

    def stream(self, kind: str = "") -> Stream:
        """Make a stream of a kind, or the usual one."""
        require(self, "streams")
        if kind and kind not in self.streams:
            raise Unsupported(f"it takes no stream of the kind {kind}")
        made = self.streams[kind or next(iter(self.streams))]()
        self.asked.script.stream(made.given, made.imported, made.made)
        return made

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Make a stream the current one of launches in the block, as its library's users do."""
        with self.asked.script.on(stream.given, stream.current_text), stream.current():
            yield

    @contextmanager
    def in_library(self, stream: Stream) -> Iterator[None]:
        """Make a stream the one that its library's memory is launched on in the block, if that is not always so."""
        if not stream.follows_current:
            yield
            return
        with self.asked.script.on(stream.given, stream.library_text), stream.in_library():
            yield

    def memory(self, stream: Stream) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give an integer of memory whose library launches on a stream: as an argument, and as an array."""
        memory, array = stream.memory()
        self.asked.script.memory(memory, stream.given, stream.remembered)
        return memory, array

    def let_go(self, flag: np.ndarray[Any, Any]) -> None:
        """Raise the flag that a held kernel waits for."""
        self.asked.script.let_go(flag)
        self.raise_flag(flag)

    def raise_flag(self, flag: np.ndarray[Any, Any]) -> None:
        """Set shared memory to 1, so that a kernel that waits in a loop sees it."""
        flag[0] = 1

    def wait(self, stream: Stream) -> None:
        """Wait until all that was launched on a stream is complete."""
        self.asked.script.event(stream.given, stream.ended)
        self.asked.script.show()
        stream.wait()

    def record(self, stream: Stream) -> Any:
        """Mark the point that a stream has come to."""
        self.asked.script.event(stream.given, f"event = {stream.recorded}")
        return stream.record()

    def wait_for(self, stream: Stream, event: Any) -> None:
        """Let what comes later on a stream wait for the last mark."""
        self.asked.script.event(stream.given, stream.waited)
        stream.wait_for(event)

    @contextmanager
    def capturing(self, stream: Stream) -> Iterator[Any]:
        """Capture launches of the block on a stream into a graph, as its library's users do; gives the graph."""
        self.asked.script.event(stream.given, stream.graphed)
        with self.asked.script.on(stream.given, stream.captured_text), stream.capturing() as graph:
            yield graph

    def replay(self, stream: Stream, graph: Any) -> None:
        """Run the launches of the last graph, and wait until they are complete."""
        self.asked.script.event(stream.given, stream.replayed)
        stream.replay(graph)
        stream.wait()

    def kernel(self, program: str, *, fresh: bool = False, **options: Any) -> Any:
        """Give a kernel of a probe program; the same one each time, or one that was never launched."""
        key = (program, repr(sorted(options.items())))
        source = self.source(program)
        if fresh or key not in self._kernels:
            made = self.jit(source, **options)
            if not fresh:
                self._kernels[key] = made
        else:
            made = self._kernels[key]
        self.asked.script.expect(made, source, {**getattr(source, "options", {}), **options})
        return made

    def launch(self, program: str, grid: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a probe program, and wait until arrays hold what it wrote; see `submit`."""
        result = self.submit(program, grid, *args, **kwargs)
        self.synchronize()
        return result

    def submit(
        self,
        program: str,
        grid: Any,
        *args: Any,
        kernel: Any = None,
        jit: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Launch a probe program, and do not wait; arrays among the arguments become tensors.

        Gives what the launch gives back.
        """
        launched = self.kernel(program, **(jit or {})) if kernel is None else kernel
        self.show(program, launched, grid, args, kwargs)
        self.asked.alive.append((args, kwargs))
        try:
            result = launched[grid](*map(self._argument, args), **{k: self._argument(v) for k, v in kwargs.items()})
        except BaseException:
            self.asked.script.failed()
            with suppress(Exception):  # what ran before it failed must be seen
                self.synchronize()
            raise
        self.asked.script.result(result)
        return result

    def show(self, program: str, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a launch in the case's program."""
        self.asked.script.launch(kernel, self.source(program), grid, args, kwargs)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.tensor(value)
        if type(value) is tuple:
            return tuple(map(self._argument, value))
        return value


def available() -> dict[str, str]:
    """Give every subject that is known here: ours and those of entry points."""
    found = dict(SUBJECTS)
    for entry in importlib.metadata.entry_points(group=GROUP):
        found[entry.name] = entry.value
    return found


def open_subject(name: str) -> Subject:
    """Make a subject, in the process that it is to run in."""
    module, _, factory = available()[name].partition(":")
    subject: Subject = getattr(importlib.import_module(module), factory)()
    return subject
