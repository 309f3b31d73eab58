"""The program grid: how many programs run along x, y and z.

A grid counts programs, not threads, and x is the fastest axis. All numbers here are Python integers, so that no
product wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from gridpact.errors import ContractTypeError, ContractValueError

if TYPE_CHECKING:
    from gridpact.backends.protocol import Limits

__all__ = ["Grid", "GridLike", "canonical_grid", "cdiv"]

Grid: TypeAlias = tuple[int, int, int]
GridLike: TypeAlias = Union[
    int, tuple[int, ...], list[int], Callable[[Mapping[str, Any]], "int | tuple[int, ...] | list[int]"]
]

_TYPES = "an int, a tuple or list of 1 to 3 ints, or a callable that returns one of these"


def cdiv(n: int, block: int) -> int:
    """Give the number of blocks of `block` elements that cover `n` elements: n / block, rounded up."""
    return -(-n // block)


def canonical_grid(grid: object, meta: Callable[[], dict[str, Any]], limits: Limits) -> Grid:
    """Give a program grid as (x, y, z), or refuse it.

    Parameters
    ----------
    grid
        Programs per axis, x first: an int, a tuple or list of 1 to 3 ints, each 0 or more, or a callable that takes the
        launch's arguments by name and returns one of these. 0 on any axis is an empty launch (GRID-9).
    meta
        Makes the mapping that a callable grid receives; called at most once, and the mapping is the callable's own
        (GRID-10).
    limits
        Largest counts on the device that will run it, in programs.

    Returns
    -------
    (x, y, z) in programs; axes not given are 1 (GRID-2).

    Raises
    ------
    ContractTypeError
        GRID-1: not of the types above (`bool`, floats, arrays and device tensors are refused).
    ContractValueError
        GRID-3 not 1 to 3 axes, GRID-6 negative, GRID-7 over a limit of the device.
    """
    if callable(grid):
        grid = grid(meta())
        if callable(grid):
            raise ContractTypeError(
                "grid", f"a callable grid returns {_TYPES.rpartition(', or')[0]}", grid, clause="GRID-1"
            )
    axes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    for name, count in zip("xyz", axes, strict=False):  # the length is judged below
        if isinstance(count, (bool, np.bool_)) or not isinstance(count, (int, np.integer)):
            subject = f"grid.{name}" if isinstance(grid, (tuple, list)) else "grid"
            rule = "a count of programs is an int" if subject != "grid" else f"expected {_TYPES}"
            raise ContractTypeError(subject, rule, count, clause="GRID-1")
    if not 1 <= len(axes) <= 3:
        remedy = "Fold the axes before launching." if axes else "Give (1,) to run one program, 0 to run none."
        raise ContractValueError("grid", "expected 1 to 3 axes", grid, remedy, "GRID-3")
    x, y, z = (*map(int, axes), 1, 1)[:3]
    for name, count, limit in zip("xyz", (x, y, z), limits.programs, strict=True):
        if count < 0:
            raise ContractValueError(f"grid.{name}", "a count of programs is 0 or more", count, clause="GRID-6")
        if count > limit:
            raise ContractValueError(
                f"grid.{name}",
                f"at most {limit} programs on {limits.device}",
                count,
                _long_axis_remedy(limits.programs, limit),
                "GRID-7",
            )
    return x, y, z


def _long_axis_remedy(programs: Grid, limit: int) -> str:
    largest = max(programs)
    if largest > limit:
        return f"Put the long axis on {'xyz'[programs.index(largest)]}."
    return "Let each program do more, or launch in parts."
