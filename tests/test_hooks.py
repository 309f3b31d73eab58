"""Observers: order, pairing, errors, on each device."""

import numpy as np
import pytest

import gridpact
from gridpact.contract import kernels
from gridpact.hooks import observe

PROBES = kernels("reference")
KERNEL = PROBES.optional


@pytest.fixture(autouse=True)
def _on_the_reference():
    with gridpact.device("reference"):
        yield


def launch():
    seen = np.full(1, -77, np.int64)
    KERNEL[1](seen, None)
    return int(seen[0])


def test_hooks_run_in_order_and_in_reverse():
    calls = []
    with (
        observe(lambda m: calls.append("a in"), lambda m: calls.append("a out")),
        observe(lambda m: calls.append("b in"), lambda m: calls.append("b out")),
    ):
        assert launch() == 1
    assert calls == ["a in", "b in", "b out", "a out"]
    assert launch() == 1
    assert len(calls) == 4  # removed


def test_enter_is_before_and_exit_after_the_driver_call():
    seen = np.full(1, -77, np.int64)
    found = []
    with observe(lambda m: found.append(int(seen[0])), lambda m: found.append(int(seen[0]))):
        KERNEL[1](seen, None)
    assert found == [-77, 1]


@pytest.mark.parametrize("side", ["enter", "exit"])
def test_either_side_alone_sees_the_same_metadata(side):
    found = []
    with observe(**{side: lambda m: found.append(m.get())}):
        KERNEL[(2, 1)](np.zeros(1, np.int64), None)
    (metadata,) = found
    assert metadata["name"] == "optional"
    assert metadata["grid"] == (2, 1, 1)
    assert metadata["device"] == "reference"
    assert metadata["arguments"].keys() == {"seen", "extra"}
    assert {"function", "stream", "hash", "num_warps", "shared"} <= metadata.keys()


def test_enter_that_raises_prevents_the_launch_and_names_itself():
    calls = []

    def broken(metadata):
        raise ValueError("boom")

    with observe(lambda m: calls.append("in"), lambda m: calls.append("out")), observe(enter=broken):
        seen = np.full(1, -77, np.int64)
        with pytest.raises(gridpact.HookError, match=r"broken.*Nothing was launched.*\[HOOK-5\]") as caught:
            KERNEL[1](seen, None)
    assert seen[0] == -77
    assert calls == ["in", "out"]
    assert isinstance(caught.value.__cause__, ValueError)
    assert not caught.value.launched


def test_exit_that_raises_lets_the_launch_and_the_other_exits_stand():
    calls = []

    def broken(metadata):
        raise ValueError("boom")

    with observe(exit=lambda m: calls.append("out")), observe(exit=broken):
        seen = np.full(1, -77, np.int64)
        with pytest.raises(gridpact.HookError, match=r"broken.*The launch stands") as caught:
            KERNEL[1](seen, None)
    assert seen[0] == 1
    assert calls == ["out"]
    assert caught.value.launched


def test_exit_is_called_when_the_launch_itself_fails():
    @gridpact.jit
    def failing(seen):
        raise RuntimeError("device fault")

    calls = []
    watched = observe(lambda m: calls.append("in"), lambda m: calls.append("out"))
    with watched, pytest.raises(RuntimeError, match="device fault"):
        failing[1](np.zeros(1))
    assert calls == ["in", "out"]


def test_interrupt_in_a_hook_is_the_users():
    def interrupted(metadata):
        raise KeyboardInterrupt

    with observe(enter=interrupted), pytest.raises(KeyboardInterrupt):
        launch()


def test_hooks_that_add_and_remove_hooks_do_not_disturb_the_running_launch():
    calls = []

    def enter(metadata):
        calls.append("enter")
        added.append(observe(exit=lambda m: calls.append("late")))
        watcher.remove()

    added = []
    watcher = observe(enter, lambda m: calls.append("exit"))
    try:
        launch()
        assert calls == ["enter", "exit"]
        launch()
        assert calls == ["enter", "exit", "late"]
    finally:
        watcher.remove()
        for observer in added:
            observer.remove()


def test_observer_of_one_kernel_does_not_see_others():
    calls = []
    with observe(lambda m: calls.append(m["name"]), kernel=PROBES.coordinates):
        launch()
        assert calls == []
        PROBES.coordinates[1](np.zeros(7, np.int32), 1, 1)
    assert calls == ["coordinates"]


def test_observer_finds_the_kernel_under_decorators():
    class Decorated:
        fn = KERNEL

    calls = []
    with observe(lambda m: calls.append(m["name"]), kernel=Decorated()):
        launch()
    assert calls == ["optional"]


@pytest.mark.parametrize("wrong", ["optional", len, object()])
def test_observing_what_is_no_kernel_is_refused(wrong):
    with pytest.raises(gridpact.ContractError, match=r"made by gridpact\.jit"):
        observe(lambda m: None, kernel=wrong)


def test_metadata_function_is_called_for_observers_only():
    calls = []

    def describe(grid, metadata, arguments):
        calls.append((grid, metadata.name, sorted(arguments)))
        return {"flops": 12, "name": "kernel [n=1]"}

    @gridpact.jit(launch_metadata=describe)
    def kernel(seen):
        seen[0] = 1

    kernel[1](np.zeros(1))
    assert calls == []
    found = []
    with observe(exit=lambda m: None):
        kernel[1](np.zeros(1))
    assert calls == []  # nobody looked
    with observe(enter=lambda m: found.append(m["flops"]), exit=lambda m: found.append(m["name"])):
        kernel[3](np.zeros(1))
    assert found == [12, "kernel [n=1]"]
    assert calls == [((3, 1, 1), "kernel", ["seen"])]


def test_hook_cannot_steer(device):
    probes = PROBES if device == "reference" else kernels("triton")
    plain, watched = np.full(7 * 6, -77, np.int32), np.full(7 * 6, -77, np.int32)
    plain[::7] = watched[::7] = 0

    def hostile(metadata):
        metadata["arguments"]["width"] = 99
        metadata.get()["grid"] = (1, 1, 1)

    probes.coordinates[(3, 2)](plain, 3, 2, device=device)
    with observe(hostile, hostile):
        probes.coordinates[(3, 2)](watched, 3, 2, device=device)
    assert plain.tobytes() == watched.tobytes()


def test_kernel_made_of_a_kernel_does_not_come_from_triton():
    again = gridpact.jit(KERNEL)
    assert again.origin is None
    seen = np.full(1, -77, np.int64)
    again[1](seen, None)
    assert seen[0] == 1
