"""Program grids: canonical form and refusals, without a device."""

import numpy as np
import pytest

from gridpact.backends.protocol import Limits
from gridpact.errors import ContractError
from gridpact.grid import canonical_grid, cdiv

CUDA_LIKE = Limits("cuda:0", (2**31 - 1, 65535, 65535), 1024, 232448, 2**63)


def canonical(grid, meta=None, limits=CUDA_LIKE):
    return canonical_grid(grid, lambda: dict(meta or {}), limits)


@pytest.mark.parametrize(
    ("grid", "due"),
    [
        (7, (7, 1, 1)),
        ((7,), (7, 1, 1)),
        ((7, 5), (7, 5, 1)),
        ((7, 5, 3), (7, 5, 3)),
        ([7, 5, 3], (7, 5, 3)),
        (np.int64(7), (7, 1, 1)),
        ((np.uint8(7), np.int16(5)), (7, 5, 1)),
        (0, (0, 1, 1)),
        ((4, 0), (4, 0, 1)),
        (lambda meta: 7, (7, 1, 1)),
        (lambda meta: [7, 5], (7, 5, 1)),
        ((2**31 - 1, 65535, 65535), (2**31 - 1, 65535, 65535)),
    ],
)
def test_grid_has_one_canonical_form(grid, due):
    result = canonical(grid)
    assert result == due
    assert all(type(axis) is int for axis in result)


@pytest.mark.parametrize(
    ("grid", "kind", "clause", "subject"),
    [
        (1.0, TypeError, "GRID-1", "grid"),
        ("7", TypeError, "GRID-1", "grid"),
        (None, TypeError, "GRID-1", "grid"),
        (True, TypeError, "GRID-1", "grid"),
        (np.True_, TypeError, "GRID-1", "grid"),
        (np.array(7), TypeError, "GRID-1", "grid"),
        (np.array([7, 5]), TypeError, "GRID-1", "grid"),
        ({7}, TypeError, "GRID-1", "grid"),
        ((2, 1.0), TypeError, "GRID-1", "grid.y"),
        ((2, 2, True), TypeError, "GRID-1", "grid.z"),
        (lambda meta: lambda meta: 1, TypeError, "GRID-1", "grid"),
        ((), ValueError, "GRID-3", "grid"),
        ([], ValueError, "GRID-3", "grid"),
        ((1, 1, 1, 1), ValueError, "GRID-3", "grid"),
        ((-1,), ValueError, "GRID-6", "grid.x"),
        ((1, -1), ValueError, "GRID-6", "grid.y"),
        ((-1, 1, -1), ValueError, "GRID-6", "grid.x"),
        ((0, -1), ValueError, "GRID-6", "grid.y"),
        ((2**31,), ValueError, "GRID-7", "grid.x"),
        ((1, 65536), ValueError, "GRID-7", "grid.y"),
        ((0, 65536), ValueError, "GRID-7", "grid.y"),
        ((1, 1, 65536), ValueError, "GRID-7", "grid.z"),
        ((2**64,), ValueError, "GRID-7", "grid.x"),
    ],
)
def test_wrong_grid_is_refused_by_name(grid, kind, clause, subject):
    with pytest.raises(ContractError) as caught:
        canonical(grid)
    assert isinstance(caught.value, kind)
    assert caught.value.clause == clause
    assert caught.value.subject == subject
    assert str(caught.value).startswith(f"{subject}: ")
    assert str(caught.value).endswith(f"[{clause}]")


def test_error_over_a_limit_says_where_the_long_axis_goes():
    with pytest.raises(ContractError) as caught:
        canonical((1, 70000))
    assert str(caught.value) == (
        "grid.y: at most 65535 programs on cuda:0, got 70000 (int). Put the long axis on x. [GRID-7]"
    )
    with pytest.raises(ContractError, match="Let each program do more"):
        canonical((2**31,))


def test_callable_grid_is_called_once_with_a_mapping_of_its_own():
    metas = []

    def grid(meta):
        metas.append(meta)
        meta["n"] = "changed"
        return (meta["block"],)

    given = {"n": 100, "block": 4}
    assert canonical(grid, given) == (4, 1, 1)
    assert len(metas) == 1
    assert given == {"n": 100, "block": 4}


def test_mapping_is_not_made_without_a_callable():
    def meta():
        raise AssertionError("made")

    assert canonical_grid((2,), meta, CUDA_LIKE) == (2, 1, 1)


@pytest.mark.parametrize(
    ("n", "block", "due"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (2**40 + 1, 2**20, 2**20 + 1)]
)
def test_cdiv_rounds_up(n, block, due):
    assert cdiv(n, block) == due
