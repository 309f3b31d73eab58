"""The cases of `gridpact verify`: they pass on each device, and each can fail on a launcher broken in one way."""

import dataclasses
import importlib
import math

import pytest

from gridpact import backends
from gridpact.cli import _PROBES
from gridpact.contract.cases import CASES, CLAUSES, Subject


def subject(name):
    module, num_warps = _PROBES[name.partition(":")[0]]
    return Subject(name, importlib.import_module(module), num_warps)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.clause}:{case.name}")
def test_case_passes(device, case):
    case.run(subject(device))


def test_every_clause_has_a_case_and_every_case_a_clause():
    assert {case.clause for case in CASES} == set(CLAUSES)
    assert len({(case.clause, case.name) for case in CASES}) == len(CASES)


def swaps_x_and_z(launch, desc):
    launch(dataclasses.replace(desc, x=desc.z, z=desc.x))


def runs_twice(launch, desc):
    launch(desc)
    launch(desc)


def skips_a_large_product(launch, desc):
    if desc.x * desc.y * desc.z < 32:
        launch(desc)


def first_launch_short():
    launches = []

    def short(launch, desc):
        launches.append(desc)
        launch(desc if len(launches) > 1 else dataclasses.replace(desc, x=max(1, desc.x - 1)))

    return short


def truncates_scalars(launch, desc):
    leaves = [
        leaf
        if leaf.pointer is not None or leaf.kind != "i64"
        else dataclasses.replace(leaf, bits=leaf.bits & 0xFFFFFFFF)
        for leaf in desc.leaves
    ]
    launch(dataclasses.replace(desc, leaves=leaves))


SABOTEURS = {
    "swaps_x_and_z": (swaps_x_and_z, {"GRID-2", "GRID-4"}),
    "runs_twice": (runs_twice, {"GRID-4"}),
    "skips_a_large_product": (skips_a_large_product, {"GRID-4"}),
    "truncates_scalars": (truncates_scalars, {"ARG-2"}),
}


def failing_clauses(name):
    failed = set()
    for case in CASES:
        try:
            case.run(subject(name))
        except Exception:
            failed.add(case.clause)
    return failed


@pytest.mark.parametrize("saboteur", SABOTEURS)
def test_broken_launcher_is_caught(device, saboteur, monkeypatch):
    broken, due = SABOTEURS[saboteur]
    kind = type(backends.open_device(device))
    launch = kind.launch
    monkeypatch.setattr(kind, "launch", lambda self, desc: broken(lambda d: launch(self, d), desc))
    failed = failing_clauses(device)
    assert due <= failed
    assert not failed & {"GRID-1", "GRID-3", "GRID-6", "ARG-1"} or saboteur in ("swaps_x_and_z", "runs_twice")


def test_first_launch_that_is_short_is_caught(device, monkeypatch):
    kind = type(backends.open_device(device))
    launch, broken = kind.launch, first_launch_short()
    monkeypatch.setattr(kind, "launch", lambda self, desc: broken(lambda d: launch(self, d), desc))
    grid_4 = next(case for case in CASES if case.clause == "GRID-4")
    with pytest.raises(Exception, match="due"):
        grid_4.run(subject(device))


FRONTEND_SABOTEURS = {
    "drops_the_fourth_axis": (lambda grid: grid[:3] if isinstance(grid, tuple) else grid, {"GRID-3"}),
    "takes_the_absolute_value": (
        lambda grid: tuple(map(abs, grid)) if isinstance(grid, tuple) and all(type(n) is int for n in grid) else grid,
        {"GRID-6"},
    ),
    "runs_one_for_an_empty_grid": (
        lambda grid: tuple(n or 1 for n in grid) if isinstance(grid, tuple) and grid and 0 in grid else grid,
        {"GRID-9"},
    ),
    "rounds_floats": (lambda grid: math.floor(grid) if isinstance(grid, float) else grid, {"GRID-1"}),
}


@pytest.mark.parametrize("saboteur", FRONTEND_SABOTEURS)
def test_broken_frontend_is_caught(device, saboteur, monkeypatch):
    broken, due = FRONTEND_SABOTEURS[saboteur]
    from gridpact import launch

    canonical = launch.canonical_grid
    monkeypatch.setattr(launch, "canonical_grid", lambda grid, *rest: canonical(broken(grid), *rest))
    assert failing_clauses(device) == due


def test_grid_callable_that_is_called_twice_is_caught(device, monkeypatch):
    from gridpact import launch

    canonical = launch.canonical_grid

    def twice(grid, *rest):
        if callable(grid):
            canonical(grid, *rest)
        return canonical(grid, *rest)

    monkeypatch.setattr(launch, "canonical_grid", twice)
    assert failing_clauses(device) == {"GRID-10"}
