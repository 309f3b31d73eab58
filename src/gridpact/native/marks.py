"""Where torch marks a tensor whose values are stored negated, so that the native path need not call it for each one.

A kernel would read the stored values of such a lazy view, so it is refused (ARG-3), and every tensor has to be looked
at. `Tensor.is_neg()` costs some 100 ns, more than all else that is read of a tensor. The mark is one bit of torch's own
object, at a place that no interface tells. It is found by experiment, on tensors with the mark and without, when
torch's tensors are first seen; where the answer is not one bit, torch is asked each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

__all__ = ["negative_mark"]


def negative_mark(torch: Any) -> tuple[int, int, int] | None:
    """Give where the bit is, or None if the experiment does not show it.

    Returns
    -------
    Offset in the Python object of the pointer to torch's own object, bytes; offset there of a 64-bit word; the bit.
    """
    plain, negative = [], []
    for tensor, negated in _samples(torch):
        plain.append(tensor)
        negative.append(negated)
    inner = _only(
        at
        for at in range(object.__basicsize__, torch.Tensor.__basicsize__, 8)
        if all(_words(id(tensor) + at, 1)[0] == tensor._cdata for tensor in (*plain, *negative))
    )
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.restype, usable.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    count = min(int(usable(tensor._cdata)) for tensor in (*plain, *negative)) // 8
    without, marked = [0] * count, [2**64 - 1] * count
    for tensor in plain:
        without = [all_of | word for all_of, word in zip(without, _words(tensor._cdata, count), strict=True)]
    for tensor in negative:
        marked = [all_of & word for all_of, word in zip(marked, _words(tensor._cdata, count), strict=True)]
    found = _only((8 * at, marked[at] & ~without[at]) for at in range(count) if marked[at] & ~without[at])
    if inner is None or found is None or found[1].bit_count() != 1:
        return None
    return (inner, *found)


def _samples(torch: Any) -> Iterator[tuple[Any, Any]]:
    """Give tensors of many kinds, each with a view of it that has the mark."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for dtype in (torch.float32, torch.float16, torch.int32, torch.float64):
            for shape in ((), (1,), (4,), (2, 3), (0,), (2, 3, 4)):
                for mode in (nullcontext, torch.inference_mode, torch.no_grad):
                    with mode():
                        tensor = torch.ones(shape, dtype=dtype, device=device)
                        yield tensor, torch._neg_view(tensor)
                        yield tensor[...], torch._neg_view(tensor.expand(2, *shape))
    parameter = torch.nn.Parameter(torch.ones(3))
    yield parameter, torch._neg_view(parameter)


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _only(found: Iterator[Any]) -> Any:
    """Give the one thing that was found; None for none and for more."""
    first, second = next(found, None), next(found, None)
    return first if second is None else None
