"""The launch layer of Triton kernels, made strict: a launch means what it says, or is refused by name.

Importing this package imports neither Triton nor a driver; both are opened by the first launch that needs them.
"""

from gridpact import hooks, triton
from gridpact.backends import device, open_device, synchronize
from gridpact.errors import (
    BackendError,
    ContractError,
    HookError,
    LaunchError,
    ResourceError,
    UnsupportedError,
)
from gridpact.grid import cdiv
from gridpact.jit import CompiledKernel, Kernel, jit
from gridpact.metadata import KernelMetadata, LaunchMetadata
from gridpact.stream import Event, Stream, stream

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CompiledKernel",
    "ContractError",
    "Event",
    "HookError",
    "Kernel",
    "KernelMetadata",
    "LaunchError",
    "LaunchMetadata",
    "ResourceError",
    "Stream",
    "UnsupportedError",
    "cdiv",
    "device",
    "hooks",
    "jit",
    "open_device",
    "stream",
    "synchronize",
    "triton",
]
