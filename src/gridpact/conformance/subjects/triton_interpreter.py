"""The installed Triton's interpreter (`TRITON_INTERPRET=1`), driven without torch.

The interpreter asks its tensors for a few things of torch's; `Tensor` gives them over a NumPy array.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gridpact.conformance.script import Language
from gridpact.conformance.subjects.triton_active import UpstreamTriton


class Storage:
    """Memory under a tensor: already on the host, so that copies of it are itself."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory

    def data_ptr(self) -> int:
        """Give the address of the memory."""
        return int(self.memory.ctypes.data)

    def cpu(self) -> Storage:
        """Give the same memory."""
        return self

    def copy_(self, other: Storage) -> None:
        """Take over another's content."""
        if other.memory is not self.memory:
            self.memory[...] = other.memory


class Tensor:
    """A NumPy array dressed as what the interpreter asks of a tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        """Give the address of the first element."""
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> Storage:
        """Give the memory below."""
        return Storage(self.array.reshape(-1).view(np.uint8))

    def storage_offset(self) -> int:
        """Begin at the first element."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Give the shape."""
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        """Give the strides in elements."""
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def new_empty(self, shape: Any, device: Any = None) -> Tensor:
        """Give a tensor that `set_` will fill."""
        return Tensor(np.empty(0, self.array.dtype))

    def set_(self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        """Become a view of a storage."""
        base = storage.memory.view(self.array.dtype)[offset:]
        self.array = np.lib.stride_tricks.as_strided(base, size, [s * base.itemsize for s in stride])
        return self

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self.array[part])

    def __repr__(self) -> str:
        return f"Tensor({self.array})"


class TritonInterpreter(UpstreamTriton):
    """`@triton.jit` functions as the interpreter runs them."""

    name = "triton:interpreter"
    programs_in_case = 600

    def __init__(self) -> None:
        super().__init__()
        os.environ["TRITON_INTERPRET"] = "1"  # read by triton.jit when it decorates
        import triton

        from gridpact.contract import triton_programs

        self.triton, self.programs = triton, triton_programs
        self.device = f"Triton {triton.__version__}'s interpreter"
        self.abilities = frozenset({"num_warps", "hooks", "options"})
        self.language = Language(
            'import os\n\nos.environ["TRITON_INTERPRET"] = "1"\n\nimport numpy as np\nimport triton\n'
            "import triton.language as tl\nfrom gridpact.conformance.subjects.triton_interpreter import Tensor\n",
            tensor="Tensor({})",
            hooks=self.hooks_text,
        )
        host = "it interprets on the host"
        self.lacks = {
            "lanes": host, "shared": host, "geometry": host, "binaries": "it makes no binary",
            "compiled": "a launch gives nothing back", "limits": "it has none",
        }  # fmt: skip

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return Tensor(array)
