"""Memory of subjects on a GPU that torch knows: arrays are copied there as tensors, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridpact.conformance.check import Asked
from gridpact.conformance.subjects import Subject

__all__ = ["TorchMemory"]


class TorchMemory(Subject):
    """A subject whose arrays are copied to a GPU.

    Attributes
    ----------
    kind
        Of the device, as torch names it: `cuda`, `xpu`.
    """

    kind: str = "cuda"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.copies: list[tuple[np.ndarray[Any, Any], Any]] = []

    @property
    def devices(self) -> Any:
        """Torch's module of this kind of device."""
        import torch

        return getattr(torch, self.kind)

    def begin(self, asked: Asked) -> None:
        super().begin(asked)
        self.copies.clear()

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        import torch

        skipped = array.ctypes.data % 16 // array.itemsize  # the copy begins as far after a multiple of 16 bytes
        padded = np.concatenate([np.zeros(skipped, array.dtype), array]) if skipped else array
        copy = torch.from_numpy(padded).to(self.kind)[skipped:]
        self.copies.append((array, copy))
        return copy

    def synchronize(self) -> None:
        self.devices.synchronize()
        for array, copy in self.copies:
            array[...] = copy.cpu().numpy()

    def is_poisoned(self) -> bool:
        try:
            self.devices.synchronize()
        except Exception:  # sticky: every later call of the context says the same
            return True
        return False
