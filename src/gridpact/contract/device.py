"""DEVICE: where launches run, and from which thread they may be made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from gridpact.conformance.check import (
    POISON,
    Array,
    another_device,
    check_coordinates,
    check_refused,
    on_new_thread,
    own_rule,
    poisoned,
    require,
    require_runs,
    same,
    submit,
)
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Subject
from gridpact.conformance.subjects.streams import TorchTensor
from gridpact.errors import LaunchError

clause(
    "DEVICE-1",
    "guardrail",
    "The kernel runs on the device that owns its pointers; without pointers on the stream's device, else the current "
    "one. A pointer that the launch device cannot reach (no peer access, not pinned, managed or system-shared) is "
    "refused with the argument's name and both devices.",
    "A pointer of another device is an address here, too: of nothing, or of something else.",
)
clause(
    "DEVICE-2",
    "triton",
    "A launch works on any thread, also one that never touched the device before.",
    "What a driver keeps for each thread, such as CUDA's current context, is missing on a new one.",
)


# ---------------------------------------------------------------------------------------------------------- DEVICE-1

_LIBRARIES = ["dpctl", "torch", "cupy"]  # whose memory tells the device


def _own(subject: Subject) -> Any:
    """Give the open device of one of our subjects, whose devices can be made current in one process."""
    if not subject.is_own:
        raise Unsupported("which device is current is kept by another library")
    return subject.opened  # type: ignore[attr-defined]


def _device_of_launch(subject: Subject, program: str, *args: Any, **options: Any) -> str:
    """Launch by the kernel itself, which no device was named for, and give the name of the device."""
    kernel = subject.kernel(program).kernel
    subject.show(program, kernel, (1,), args, options)
    subject.asked.alive.append(args)
    given = [subject.tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    try:
        return str(kernel[(1,)](*given, **options).device.name)
    except LaunchError as error:
        raise Violated(subject.asked.script.line, "a launch", f"{type(error).__name__}: {error}") from error


@case("DEVICE-1")
def current_device_runs_host_memory(subject: Subject) -> None:
    """Host memory and no stream: the launch runs on the device of the innermost `with gridpact.device(name)`."""
    import gridpact

    own = _own(subject).name
    require_runs(subject)
    seen = subject.host(poisoned(1))
    with gridpact.device(another_device(subject)), gridpact.device(own):
        ran_on = _device_of_launch(subject, "passed_on", seen, subject.host(np.full(1, 5, "i4")))
    same(subject, "device and result", str((own, 5)), str((ran_on, int(seen[0]))))


@case("DEVICE-1", how=["current", "option"])
def stream_tells_the_device(subject: Subject, how: str) -> None:
    """Host memory and a stream, given or current: the launch runs on the stream's device, not on the current one."""
    import gridpact

    own = _own(subject).name
    stream = subject.stream()
    seen = subject.host(poisoned(1))
    with gridpact.device(another_device(subject)), subject.on(stream) if how == "current" else nullcontext():
        options = {"stream": stream.given} if how == "option" else {}
        ran_on = _device_of_launch(subject, "passed_on", seen, subject.host(np.full(1, 5, "i4")), **options)
    subject.wait(stream)
    same(subject, "device and result", str((own, 5)), str((ran_on, int(seen[0]))))


@case("DEVICE-1")
def launch_without_memory_runs_on_its_streams_device(subject: Subject) -> None:
    """A kernel without pointers: it runs on the stream's device, not on the current one."""
    import gridpact

    own = _own(subject).name
    stream = subject.stream()
    with gridpact.device(another_device(subject)):
        ran_on = _device_of_launch(subject, "idle", 3, stream=stream.given)
    subject.wait(stream)
    same(subject, "device", own, ran_on)


@case("DEVICE-1", kind="negative", on=_LIBRARIES)
def stream_of_another_device_than_the_memorys_is_refused(subject: Subject, on: str) -> None:
    """A launch whose memory is on one device and whose stream is on another is refused."""
    import gridpact

    _own(subject)
    require(subject, "owners")
    stream = subject.stream(on)
    (target, written), (source, _) = subject.memory(stream), subject.memory(stream)
    written[0] = POISON
    elsewhere = gridpact.Stream.from_handle(64, "reference", None)
    kernel = subject.kernel("passed_on").kernel

    def ask(seen: Array) -> None:
        with subject.in_library(stream):
            kernel[(1,)](target, source, stream=elsewhere)

    check_refused(subject, ValueError, "STREAM-5", ask, names="stream", memory=written, count=_one)


@case("DEVICE-1", on=_LIBRARIES)
def memory_tells_the_device(subject: Subject, on: str) -> None:
    """Memory of a device: the launch runs there, not on the current device."""
    import gridpact

    own = _own(subject).name
    require(subject, "owners")
    stream = subject.stream(on)
    (target, written), (source, read) = subject.memory(stream), subject.memory(stream)
    written[0], read[0] = POISON, 5
    with gridpact.device(another_device(subject)), subject.in_library(stream):
        ran_on = _device_of_launch(subject, "passed_on", target, source)
    subject.synchronize()  # wherever it went: which stream is not the question here
    same(subject, "device and result", str((own, 5)), str((ran_on, int(written[0]))))


@case("DEVICE-1", kind="negative", on=_LIBRARIES)
def memory_of_a_device_is_refused_elsewhere(subject: Subject, on: str) -> None:
    """A launch that names another device than the one that has its memory is refused, and names both."""
    own = _own(subject).name
    require(subject, "owners")
    other = another_device(subject)
    stream = subject.stream(on)
    (target, written), (source, _) = subject.memory(stream), subject.memory(stream)
    written[0] = POISON

    kernel = subject.kernel("passed_on").kernel

    def ask(seen: Array) -> None:
        with subject.in_library(stream):
            kernel[(1,)](target, source, device=other)

    refusal = check_refused(subject, ValueError, "DEVICE-1", ask, names="'seen'", memory=written, count=_one)
    same(subject, "devices that the error names", [True, True], [own in str(refusal), other in str(refusal)])


def _one(seen: Array) -> int:
    return 1


class _CudaArray:
    """Memory that says it is CUDA's, over memory that is here: nothing is harmed if it is believed."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.dtype = array.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (int(self.array.ctypes.data), False), "typestr": "<i4", "shape": self.array.shape, "version": 3,
        }  # fmt: skip


_ELSEWHERE: dict[str, tuple[Callable[[Array], Any], str]] = {
    "cuda_0": (lambda array: TorchTensor(array, "cuda", 0), "cuda:0"),
    "cuda_1": (lambda array: TorchTensor(array, "cuda", 1), "cuda:1"),
    "hip_2": (lambda array: TorchTensor(array, "hip", 2), "hip:2"),
    "meta": (lambda array: TorchTensor(array, "meta", 0), "meta:0"),
    "cuda_array": (_CudaArray, "cuda:0"),
}


@case("DEVICE-1", kind="negative", owner=list(_ELSEWHERE), argument=["seen", "source"])
def memory_out_of_reach_is_refused(subject: Subject, owner: str, argument: str) -> None:
    """A tensor of a device that is not here is refused by its argument's name, with its device and the launch's."""
    if not subject.is_own or not subject.runs:
        require(subject, "owners")
    make, name = _ELSEWHERE[owner]
    if owner == "cuda_0" and "cuda:0" in subject.name:
        raise Unsupported("that is the device of the launch, and what an object says of itself is believed")
    memory = poisoned(1)

    def ask(seen: Array) -> None:
        args: dict[str, Any] = {"seen": seen, "source": np.full(1, 5, "i4")}
        args[argument] = make(args[argument])
        subject.launch("passed_on", (1,), args["seen"], args["source"])

    kinds = (ValueError, TypeError)
    refusal = str(check_refused(subject, kinds, "DEVICE-1", ask, names=argument, memory=memory, count=_one))
    here = subject.opened.name if subject.is_own else ""  # type: ignore[attr-defined]
    with own_rule(subject):
        same(subject, "argument, its device and the launch's in the error", [True] * 3,
         [text in refusal for text in (argument, name, here)])  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- DEVICE-2


_GRID = (2, 7, 1)


@case("DEVICE-2", first=["yes", "no"], threads=[1, 20])
def new_thread_launches(subject: Subject, first: str, threads: int) -> None:
    """A thread that never touched the device runs every program of its grid: a first launch of a kernel or a later."""
    kernel = subject.kernel("coordinates", fresh=True)
    if first == "no":
        check_coordinates(subject, (1,), (1, 1, 1), kernel=kernel)

    def call() -> None:
        check_coordinates(subject, _GRID, _GRID, kernel=kernel)

    for _ in range(threads):
        on_new_thread(f"coordinates[{_GRID}] on a new thread", call)


@case("DEVICE-2", how=["current", "option"])
def new_thread_launches_on_a_stream(subject: Subject, how: str) -> None:
    """The same on a stream that another thread made."""
    require(subject, "streams")
    if how == "option":
        require(subject, "stream_option")
    stream = subject.stream()
    seen = subject.shared(poisoned(1))

    def call() -> None:
        with subject.on(stream) if how == "current" else nullcontext():
            options = {"stream": stream.given} if how == "option" else {}
            submit(subject, "passed_on", (1,), seen, subject.shared(np.full(1, 5, "i4")), **options)
        subject.wait(stream)

    on_new_thread("a launch on a stream, on a new thread", call)
    same(subject, "what a launch on a stream of another thread wrote", 5, int(seen[0]))


@case("DEVICE-2")
def kernel_of_a_thread_that_ended_launches(subject: Subject) -> None:
    """A kernel that was made and launched on a thread which has ended runs on this one."""
    made: list[Any] = []

    def make() -> None:
        made.append(subject.kernel("coordinates", fresh=True))
        check_coordinates(subject, _GRID, _GRID, kernel=made[0])

    on_new_thread("a first launch on a new thread", make)
    check_coordinates(subject, _GRID, _GRID, kernel=made[0])
