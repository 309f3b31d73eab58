"""The boundary between frontend and backend: what a device is, and the one struct that reaches it at a launch.

A backend never sees Python arguments' objects, launch options or hooks; the frontend never sees what a stream handle
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gridpact.arguments import Classified, Leaf, Pointer
    from gridpact.identity import Typed
    from gridpact.metadata import KernelMetadata, Option
    from gridpact.state import Source
    from gridpact.toolchain import Binary

__all__ = ["Backend", "Device", "DeviceStatus", "LaunchDesc", "Limits", "Mark", "NativeCalls", "StreamRef"]


@dataclass(frozen=True)
class Limits:
    """What one launch on a device may ask for, as the driver reports or shows it.

    Attributes
    ----------
    device
        Name of the device, for errors.
    programs
        Largest count per axis (x, y, z), programs; blocks, where a program is a cluster of them.
    threads
        Largest number of threads of one program, or block.
    shared_bytes
        Largest shared memory of one program, or block, bytes.
    threads_in_launch
        Largest number of threads of a whole launch.
    """

    device: str
    programs: tuple[int, int, int]
    threads: int
    shared_bytes: int
    threads_in_launch: int


@dataclass(frozen=True)
class StreamRef:
    """A stream as a backend understands it.

    Attributes
    ----------
    handle
        The driver's handle.
    keep
        What keeps the handle valid; held until the launch is complete.
    is_fenced
        The queue itself keeps no order, so a launch waits for all before it and is waited for by all after it
        (STREAM-2).
    """

    handle: int
    keep: object = None
    is_fenced: bool = False


class Mark(Protocol):
    """A point in a stream, as a backend keeps it."""

    def wait(self) -> None:
        """Wait until all before it is complete."""

    def is_complete(self) -> bool:
        """Whether it is."""


@dataclass
class LaunchDesc:
    """All that crosses the boundary at a launch.

    Attributes
    ----------
    x, y, z
        Programs per axis; each at least 1.
    threads
        Threads of one block; a program is one, or a cluster of them.
    shared_bytes
        Shared memory of one block, bytes.
    cluster
        Blocks of the cluster that runs one program, x first; (1, 1, 1) without clusters.
    is_cooperative, is_programmatic
        All programs have to run at once; the launch may begin before the kernel ahead of it is over.
    scratch_bytes
        Global scratch memory of one block, bytes.
    stream, kernel
        Handles of the backend's own.
    leaves
        Arguments in the kernel's order, encoded.
    keep
        Objects that the kernel uses beside the memory of its leaves; the backend holds both until it is complete.
    is_waited_for
        The call returns when the results can be read (host memory, no stream given).
    """

    x: int
    y: int
    z: int
    threads: int
    shared_bytes: int
    cluster: tuple[int, int, int]
    is_cooperative: bool
    is_programmatic: bool
    scratch_bytes: int
    stream: StreamRef
    kernel: Any
    leaves: Sequence[Leaf]
    keep: tuple[object, ...] = ()
    is_waited_for: bool = False


@dataclass(frozen=True)
class NativeCalls:
    """What the native path is given of a device for launches of one kernel.

    Attributes
    ----------
    failed
        Raises the error of a code that the driver gave.
    flights, let_go
        Launches that may not be complete, by stream, and what looks at them.
    hold
        Called after launches that are not complete: with the stream's handle, whether the launch was captured, and the
        arguments with what else has to be kept. None where each driver call makes an event, which tells all that.
    guard
        Called before each launch: False sends it to the definition. None if nothing has to be asked.
    table
        Address of the driver's table of calls (`native/launch_abi.h`); 0 for the one of CUDA.
    context
        Handle of CUDA's context.
    hidden
        Pointers that follow the kernel's own parameters.
    most_programs
        Of one launch, where the kernel itself sets a limit.
    stream_owners
        Type of the owners of our streams on which this kernel can be launched as it is; None if on all.
    """

    failed: Callable[[int], None]
    flights: Mapping[int, object]
    let_go: Callable[[], None]
    hold: Callable[[int, int, tuple[object, ...]], None] | None = None
    guard: Callable[[], bool] | None = None
    table: int = 0
    context: int = 0
    hidden: int = 0
    most_programs: int = 2**128
    stream_owners: type | None = None


@dataclass(frozen=True)
class DeviceStatus:
    """One line of `gridpact devices`: usable, or why not."""

    name: str
    is_usable: bool
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


class Device(Protocol):
    """An open device."""

    @property
    def name(self) -> str:
        """Name as users write it: `sycl:cpu`, `reference`."""

    @property
    def limits(self) -> Limits:
        """Limits, asked of the driver when the device was opened."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Lower-case names of what the device can do beyond the plain launch."""

    @property
    def compiles(self) -> bool:
        """Whether captured values are compiled in; False where the Python function itself runs and reads them."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Launch options and what becomes of each (META-2)."""

    @property
    def fields(self) -> Mapping[str, Option]:
        """Metadata fields that compiling adds to the options, and what becomes of each."""

    def identity(self, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
        """Give the facts of a key that device, toolchain and options make; options are resolved."""

    def compile(self, source: Source, arguments: Classified, options: Mapping[str, Any], name: Any) -> Binary:
        """Make the binary; touches no driver."""

    def load(self, binary: Binary, leaves: Sequence[Leaf], stream: StreamRef) -> Any:
        """Hand a binary to the driver, once per binary and context; gives the kernel's handle."""

    def check_reach(self, subject: str, pointer: Pointer) -> None:
        """Refuse a pointer that the device cannot follow (DEVICE-1)."""

    def is_host_memory(self, pointer: Pointer) -> bool:
        """Whether results in this memory are read when the launch has returned, and no stream is asked (STREAM-4)."""

    def check_resources(self, metadata: KernelMetadata, subject: str) -> None:
        """Refuse a kernel that needs more than the device has (META-4)."""

    def check_may_load(self, stream: StreamRef, subject: str) -> None:
        """Refuse to load a binary for a launch on a stream that is being captured (CAPTURE-1)."""

    def check_fits(self, desc: LaunchDesc, subject: str) -> None:
        """Refuse a launch for which a loaded kernel is too large: programs at once, blocks of a cluster (META-4)."""

    def accept_stream(self, stream: object) -> StreamRef:
        """Take a user's stream, or refuse one of another kind or device (STREAM-5)."""

    def default_stream(self) -> StreamRef:
        """Give the stream of launches that name none."""

    def create_stream(self, *, in_order: bool) -> tuple[int, object]:
        """Make a stream; gives its handle and the object that owns it."""

    def is_same_stream(self, stream: StreamRef, other: StreamRef) -> bool:
        """Whether two handles are of one stream."""

    def record(self, stream: StreamRef) -> Mark:
        """Mark the point that a stream has come to."""

    def wait_for(self, stream: StreamRef, mark: Mark) -> None:
        """Let what comes later on a stream wait for a mark of another one; the host does not wait."""

    def launch(self, desc: LaunchDesc) -> None:
        """Make the driver call."""

    def native_calls(self, desc: LaunchDesc) -> NativeCalls | None:
        """Give what the native path needs to make launches like this one; None where it cannot."""

    def synchronize(self, stream: object = None) -> None:
        """Wait for the launches of a stream, or for all of them."""


class Backend(Protocol):
    """A module of `backends`: one row in the table of names."""

    def device_names(self) -> Sequence[str]:
        """Names of the devices that this backend might have here, without opening any."""

    def status(self, name: str) -> DeviceStatus:
        """Whether a device is usable, or why not; never raises for a missing driver."""

    def open_device(self, name: str) -> Device:
        """Open a device; the same object each time."""

    def device_of(self, stream: object) -> str | None:
        """Name the device of a stream that another library made; None for what this backend does not know."""
