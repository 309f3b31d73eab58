"""Backends by name: a backend is one file here and one row in the table."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, cast

from gridpact import native
from gridpact.backends.protocol import Backend, Device, DeviceStatus
from gridpact.errors import ContractTypeError, ContractValueError
from gridpact.metadata import nearest_name
from gridpact.stream import Stream

if TYPE_CHECKING:
    from gridpact.arguments import Pointer

__all__ = [
    "BACKENDS",
    "current_device",
    "device",
    "device_of",
    "device_status",
    "device_statuses",
    "open_device",
    "out_of_reach",
    "owner_of",
    "synchronize",
]

BACKENDS: Final[dict[str, str]] = {
    "reference": "gridpact.backends.reference",
    "sycl": "gridpact.backends.sycl",
    "cuda": "gridpact.backends.cuda",
}
"""Name -> module. A device's name begins with its backend's: `sycl:cpu`."""

DEFAULT_DEVICE: Final = "sycl:cpu"
"""Where host memory is computed on when no device is named."""

_current: ContextVar[str | None] = ContextVar("gridpact_device", default=None)
native.use("device_var", _current)


def _backend(name: str) -> Backend:
    kind = name.partition(":")[0]
    if kind not in BACKENDS:
        raise ContractValueError(
            "device", "expected a device of a known backend", name, nearest_name(kind, BACKENDS), "DEVICE-1"
        )
    return cast(Backend, importlib.import_module(BACKENDS[kind]))


def open_device(name: str) -> Device:
    """Open a device by name, such as `sycl:cpu` or `reference`.

    Raises
    ------
    ContractTypeError, ContractValueError
        DEVICE-1: no such name.
    UnsupportedError
        The device is not usable here; says why.
    """
    if not isinstance(name, str):
        raise ContractTypeError("device", "expected a name such as 'sycl:cpu'", name, clause="DEVICE-1")
    return _backend(name).open_device(name)


@contextmanager
def device(name: str) -> Iterator[Device]:
    """Make a device the current one of this thread or task: launches inside that name none go there."""
    opened = open_device(name)
    token = _current.set(opened.name)
    try:
        yield opened
    finally:
        _current.reset(token)


def current_device() -> str:
    """Give the name of the innermost `with gridpact.device(name)`, else the default device."""
    return _current.get() or DEFAULT_DEVICE


def device_of(stream: object) -> str | None:
    """Name the device that a stream is on; None for what is no stream of a known backend."""
    if isinstance(stream, Stream):
        return stream.device if stream.device.partition(":")[0] in BACKENDS else None
    return next((found for kind in BACKENDS if (found := _backend(kind).device_of(stream)) is not None), None)


def owner_of(pointer: Pointer) -> str:
    """Name who owns memory: a device, such as `sycl:cpu` or `cuda:0`, else `host memory`.

    Memory of SYCL is on the device of the queue that its library names; of an array of CUDA the driver knows it.
    """
    if pointer.device in ("host", "any"):
        return "host memory"
    if pointer.device == "sycl":
        return device_of(pointer.stream) or "a SYCL device that its library names no queue of"
    if pointer.device == "cuda":
        from gridpact.backends import cuda

        return f"cuda:{cuda.ordinal_of_memory(pointer.address)}"
    return pointer.device


def out_of_reach(subject: str, device: str, owner: str) -> ContractValueError:
    """Give the error that refuses memory which a device cannot reach (DEVICE-1)."""
    remedy = f"Launch on {owner}, or copy it." if owner.partition(":")[0] in BACKENDS else "Copy it."
    rule = f"expected memory that {device} can reach, it is on {owner}"
    return ContractValueError(subject, rule, remedy=remedy, clause="DEVICE-1")


def device_status(name: str) -> DeviceStatus:
    """Tell whether a device is usable, or why not."""
    return _backend(name).status(name)


def device_statuses() -> Iterator[DeviceStatus]:
    """Give each backend's devices, usable or not."""
    for kind in BACKENDS:
        backend = _backend(kind)
        for name in backend.device_names():
            yield backend.status(name)


def synchronize(stream_or_device: object = None) -> None:
    """Wait until launches are complete and their results can be read.

    Parameters
    ----------
    stream_or_device
        A stream: what was launched on it. The name of a device: all of its streams. Nothing: the current device.
    """
    if stream_or_device is None or isinstance(stream_or_device, str):
        open_device(stream_or_device or current_device()).synchronize()
    else:
        open_device(device_of(stream_or_device) or current_device()).synchronize(stream_or_device)
