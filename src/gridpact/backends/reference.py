"""The executable definition of a launch: nested loops over a Python function that asks for its program ids.

Slow and obvious on purpose. A kernel for it is a plain Python function over the arguments themselves (NumPy arrays,
numbers):

    @gridpact.jit
    def count(out):
        out[program_id(2), program_id(1), program_id(0)] += 1

It needs neither Triton nor a driver. It is the definition and never the oracle: tests compare with literals or NumPy.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, Final
from weakref import WeakKeyDictionary

from gridpact import backends
from gridpact.arguments import Classified, Leaf, Pointer, TypeTree, decode
from gridpact.backends.protocol import Device, DeviceStatus, LaunchDesc, Limits, Mark, StreamRef
from gridpact.errors import ContractTypeError, ContractValueError
from gridpact.identity import Typed, typed
from gridpact.metadata import KernelMetadata, Option
from gridpact.state import Source
from gridpact.stream import Stream
from gridpact.toolchain import Binary

__all__ = ["device_names", "num_programs", "open_device", "program_id", "status"]

_NAME: Final = "reference"
_UNBOUNDED: Final = 2**63 - 1
_running: Final = threading.local()
_stream_handles: Final = itertools.count(1)  # 0 is the default stream


def program_id(axis: int) -> int:
    """Give the running program's coordinate on an axis: 0 for x, 1 for y, 2 for z."""
    coordinates: tuple[int, int, int] = _running.coordinates
    return coordinates[axis]


def num_programs(axis: int) -> int:
    """Give the grid's count of programs on an axis."""
    grid: tuple[int, int, int] = _running.grid
    return grid[axis]


class _Function:
    """A kernel of this backend: the function, and how its arguments are put together from encoded leaves."""

    def __init__(self, function: Callable[..., Any], arguments: Classified) -> None:
        parameters = inspect.signature(function).parameters.values()
        named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]  # the last ones
        self.function = _by_position(function, named) if named else function
        self.types = list(arguments.types.values())
        self.constants = dict(arguments.constants)

    def arguments(self, leaves: Sequence[Leaf]) -> list[Any]:
        """Decode the leaves, so that a kernel sees what was encoded and not what was passed."""
        remaining = iter(leaves)
        return [self._argument((i,), tree, remaining) for i, tree in enumerate(self.types)]

    def _argument(self, path: tuple[int, ...], tree: TypeTree, leaves: Any) -> Any:
        if isinstance(tree, tuple):
            items = [self._argument((*path, i), item, leaves) for i, item in enumerate(tree)]
            return type(tree)._make(items) if hasattr(tree, "_make") else tuple(items)
        if tree == "constexpr":
            value = self.constants[path]
            return value.function if isinstance(value, Source) else value
        leaf: Leaf = next(leaves)
        return decode(leaf.kind, leaf.bits) if leaf.pointer is None else leaf.pointer.tensor


def _by_position(function: Callable[..., Any], named: list[str]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        split = len(arguments) - len(named)
        return function(*arguments[:split], **dict(zip(named, arguments[split:], strict=True)))

    return call


_NO_WARPS: Final = "a program is one call of a Python function"


def _count(value: object) -> str | None:
    return None if isinstance(value, int) and value > 0 else "expected an int of 1 or more"


class _Mark:
    """A point that is reached when it is made: each launch runs to its end."""

    def wait(self) -> None:
        """Nothing is in flight."""

    def is_complete(self) -> bool:
        return True


class ReferenceDevice:
    """The one device of this backend; see `backends.protocol.Device` for what its methods mean."""

    name = _NAME
    compiles = False
    limits = Limits(_NAME, (_UNBOUNDED,) * 3, 1, 0, _UNBOUNDED)
    capabilities = frozenset({"fp16", "fp64", "host_memory"})
    options: Mapping[str, Option] = {
        "num_warps": Option(1, "irrelevant", _NO_WARPS, _count),
        "num_stages": Option(1, "irrelevant", _NO_WARPS, _count),
        "num_ctas": Option(1, "default only", _NO_WARPS),
    }
    fields: Mapping[str, Option] = {}

    def identity(self, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
        return (("target", typed(_NAME)),)

    def compile(self, source: Source, arguments: Classified, options: Mapping[str, Any], name: Any) -> Binary:
        metadata = KernelMetadata(source.function.__name__, fields=dict(options))
        binary = Binary({"python": source.text}, "python", metadata)
        _functions[binary] = _Function(source.function, arguments)
        return binary

    def load(self, binary: Binary, leaves: Sequence[Leaf], stream: StreamRef) -> _Function:
        return _functions[binary]

    def check_reach(self, subject: str, pointer: Pointer) -> None:
        if pointer.device not in ("host", "any"):
            raise backends.out_of_reach(subject, _NAME, backends.owner_of(pointer))

    def is_host_memory(self, pointer: Pointer) -> bool:
        return True

    def check_resources(self, metadata: KernelMetadata, subject: str) -> None:
        return None

    def check_may_load(self, stream: StreamRef, subject: str) -> None:
        return None

    def check_fits(self, desc: LaunchDesc, subject: str) -> None:
        return None

    def accept_stream(self, stream: object) -> StreamRef:
        if not isinstance(stream, Stream):
            raise ContractTypeError("stream", "expected a gridpact.Stream", stream, clause="STREAM-5")
        stream.check_open()
        if stream.device != _NAME:
            raise ContractValueError("stream", f"expected one of {_NAME}", stream, clause="STREAM-5")
        return StreamRef(stream.handle)

    def default_stream(self) -> StreamRef:
        return StreamRef(0)

    def create_stream(self, *, in_order: bool) -> tuple[int, object]:
        return next(_stream_handles), None

    def is_same_stream(self, stream: StreamRef, other: StreamRef) -> bool:
        return stream.handle == other.handle

    def record(self, stream: StreamRef) -> _Mark:
        return _Mark()

    def wait_for(self, stream: StreamRef, mark: Mark) -> None:
        """Nothing is ever in flight."""

    def launch(self, desc: LaunchDesc) -> None:
        arguments = desc.kernel.arguments(desc.leaves)
        _running.grid = (desc.x, desc.y, desc.z)
        for z in range(desc.z):
            for y in range(desc.y):
                for x in range(desc.x):
                    _running.coordinates = (x, y, z)
                    desc.kernel.function(*arguments)

    def native_calls(self, desc: LaunchDesc) -> None:
        """Its kernels are Python functions."""

    def synchronize(self, stream: object = None) -> None:
        """Nothing is ever in flight: each launch runs to its end."""
        if stream is not None:
            self.accept_stream(stream)


_functions: Final[WeakKeyDictionary[Binary, _Function]] = WeakKeyDictionary()


def device_names() -> list[str]:
    return [_NAME]


@lru_cache(maxsize=1)
def _device() -> ReferenceDevice:
    return ReferenceDevice()


def open_device(name: str) -> Device:
    if name != _NAME:
        raise ContractValueError("device", f"expected {_NAME!r}", name, clause="DEVICE-1")
    return _device()


def device_of(stream: object) -> str | None:
    return None


def status(name: str) -> DeviceStatus:
    facts = {
        "device": "Python",
        "via": "nested loops",
        "programs per axis": "unbounded",
        "threads per program": "1",
        "capabilities": ", ".join(sorted(ReferenceDevice.capabilities)),
    }
    return DeviceStatus(name, True, facts=facts)
