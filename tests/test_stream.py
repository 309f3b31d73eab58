"""Streams: opaque to the frontend, refused by name, asynchronous when given."""

import itertools
import sys
import threading
import time
import types

import numpy as np
import pytest

import gridpact
from gridpact.conformance.subjects.streams import TorchStream, TorchTensor
from gridpact.stream import current_stream


def test_stream_context_is_nested_and_of_this_thread_only():
    outer, inner = object(), object()
    assert current_stream() is None
    seen = []
    with gridpact.stream(outer):
        with gridpact.stream(inner):
            assert current_stream() is inner
        assert current_stream() is outer
        thread = threading.Thread(target=lambda: seen.append(current_stream()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert current_stream() is None


@pytest.mark.parametrize("raw", [0, 5, True])
def test_bare_integer_is_no_stream(raw):
    with pytest.raises(gridpact.ContractError, match=r"Stream.from_handle.*\[STREAM-5\]"), gridpact.stream(raw):
        pass


@pytest.mark.parametrize("value", ["5", -1, None, True, 1.0])
def test_handle_must_be_an_address(value):
    with pytest.raises(gridpact.ContractError) as caught:
        gridpact.Stream.from_handle(value, "sycl:cpu", None)
    assert caught.value.clause == "STREAM-5"


@pytest.mark.parametrize("way", ["option", "context"])
def test_stream_reaches_the_backend_by_identity(way, monkeypatch, by_definition):
    from gridpact import backends
    from gridpact.contract import kernels

    sentinel, accepted = object(), []
    device = backends.open_device("reference")

    def accept(self, stream):
        accepted.append(stream)
        return self.default_stream()

    monkeypatch.setattr(type(device), "accept_stream", accept)
    seen = np.full(1, -77, np.int64)
    if way == "option":
        kernels("reference").optional[1](seen, None, stream=sentinel, device="reference")
    else:
        with gridpact.stream(sentinel):
            kernels("reference").optional[1](seen, None, device="reference")
    assert len(accepted) == 1
    assert accepted[0] is sentinel
    assert seen[0] == 1


def test_stream_of_another_device_is_refused(device):
    other = gridpact.Stream.from_handle(1, "cuda:0", None)
    with pytest.raises(gridpact.ContractError) as caught:
        gridpact.open_device(device).accept_stream(other)
    assert caught.value.clause == "STREAM-5"


def test_closed_stream_is_refused(device):
    stream = gridpact.Stream(device)
    stream.close()
    stream.close()
    with pytest.raises(gridpact.ContractError, match="open stream"):
        gridpact.open_device(device).accept_stream(stream)
    with pytest.raises(gridpact.ContractError):
        stream.synchronize()


# -- on SYCL, where launches are asynchronous


@pytest.fixture
def kernels(sycl):
    import triton.language as tl

    @gridpact.jit
    def hold(flag, out):
        """Say that it runs, wait for the host's flag, at most some seconds, then write."""
        tl.store(flag + 1, 1)
        tries = 0
        while (tl.atomic_add(flag, 0) == 0) & (tries < 200_000_000):
            tries += 1
        tl.store(out, tl.load(out, volatile=True) + 1)

    @gridpact.jit
    def copy(source, target):
        tl.store(target, tl.load(source, volatile=True))

    return hold, copy


def zeros():
    return np.zeros(2, np.int32)


def wait_for_start(flag):
    """Wait until a worker runs the held kernel: a thread of ours that waits for another might else take it up."""
    while not flag[1]:
        time.sleep(0)


@pytest.mark.parametrize("kind", ["gridpact", "dpctl"])
def test_launch_with_a_stream_returns_while_its_kernel_is_held(kernels, kind):
    hold, copy = kernels
    if kind == "gridpact":
        stream = gridpact.Stream("sycl:cpu")
        wait = stream.synchronize
    else:
        import dpctl

        stream = dpctl.SyclQueue("opencl:cpu", property="in_order")
        wait = stream.wait
    flag, out, read = zeros(), zeros(), zeros()
    hold.warmup(flag, out)
    copy.warmup(out, read)
    hold[1](flag, out, stream=stream)
    copy[1](out, read, stream=stream)
    assert out[0] == read[0] == 0  # both launches returned while the first kernel waits for the flag
    flag[0] = 1
    wait()
    assert out[0] == read[0] == 1  # in order: the second saw what the first wrote


def test_launch_without_a_stream_returns_when_results_can_be_read(kernels):
    _, copy = kernels
    for i in range(100):
        source, target = np.full(1, i, np.int32), np.full(1, -77, np.int32)
        copy[1](source, target)
        assert target[0] == i


def test_arguments_live_until_their_kernel_is_complete(kernels):
    import gc
    import weakref

    class Array(np.ndarray):
        """A NumPy array that can be watched."""

    hold, _ = kernels
    stream = gridpact.Stream("sycl:cpu")
    flag, out = zeros(), zeros().view(Array)
    alive = weakref.ref(out)
    hold[1](flag, out, stream=stream)
    del out
    gc.collect()
    assert alive() is not None
    flag[0] = 1
    gridpact.synchronize(stream)
    gc.collect()
    assert alive() is None


def test_synchronize_waits_for_every_stream_of_the_device(kernels):
    hold, _ = kernels
    streams = [gridpact.Stream("sycl:cpu", in_order=False) for _ in range(2)]
    flag, outs = zeros(), [zeros(), zeros()]
    hold.warmup(flag, outs[0])
    for stream, out in zip(streams, outs, strict=True):
        hold[1](flag, out, stream=stream)
    assert [out[0] for out in outs] == [0, 0]
    flag[0] = 1
    gridpact.synchronize("sycl:cpu")
    assert [out[0] for out in outs] == [1, 1]


def test_raw_handle_of_a_queue_works_with_its_owner(kernels):
    import dpctl

    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
    stream = gridpact.Stream.from_handle(queue.addressof_ref(), "sycl:cpu", queue)
    source, target = np.full(1, 5, np.int32), np.full(1, -77, np.int32)
    copy[1](source, target, stream=stream)
    queue.wait()
    assert target[0] == 5


def test_usm_of_dpctl_goes_to_its_own_queue(kernels):
    import dpctl
    import dpctl.memory

    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
    source, target = (dpctl.memory.MemoryUSMShared(16, queue=queue) for _ in range(2))
    np.asarray(source)[:] = 7
    np.asarray(target)[:] = 0
    copy[1](source, target)
    queue.wait()
    assert np.asarray(target)[0] == 7


def test_usm_of_two_queues_needs_a_stream(kernels):
    import dpctl
    import dpctl.memory

    _, copy = kernels
    queues = [dpctl.SyclQueue("opencl:cpu", property="in_order") for _ in range(2)]
    source, target = (dpctl.memory.MemoryUSMShared(16, queue=queue) for queue in queues)
    np.asarray(source)[:] = 7
    np.asarray(target)[:] = 0
    with pytest.raises(gridpact.ContractError) as caught:
        copy[1](source, target)
    assert caught.value.clause == "STREAM-1"
    copy[1](source, target, stream=queues[0])
    queues[0].wait()
    assert np.asarray(target)[0] == 7


# -- what orders streams


def test_event_lets_one_stream_wait_for_another(kernels):
    hold, copy = kernels
    a, b = gridpact.Stream("sycl:cpu"), gridpact.Stream("sycl:cpu")
    flag, out, early, late = zeros(), zeros(), zeros(), zeros()
    hold.warmup(flag, out)
    copy.warmup(out, early)
    hold[1](flag, out, stream=a)
    wait_for_start(flag)
    written = a.record()
    copy[1](out, early, stream=b)
    b.synchronize()
    b.wait(written)
    copy[1](out, late, stream=b)
    assert not written.is_complete
    flag[0] = 1
    written.synchronize()
    assert written.is_complete
    b.synchronize()
    assert (early[0], late[0]) == (0, 1)


def test_event_of_another_device_is_refused(device, sycl):
    other = gridpact.Stream("reference" if device == "sycl:cpu" else "sycl:cpu").record()
    with pytest.raises(gridpact.ContractError, match=r"event.synchronize\(\)") as caught:
        gridpact.Stream(device).wait(other)
    assert caught.value.clause == "STREAM-5"
    with pytest.raises(gridpact.ContractError) as caught:
        gridpact.Stream(device).wait(5)
    assert caught.value.clause == "STREAM-5"


def test_event_of_a_closed_stream(device):
    stream = gridpact.Stream(device)
    event = stream.record()
    stream.close()
    event.synchronize()
    assert event.is_complete
    with pytest.raises(gridpact.ContractError, match="open stream"):
        stream.record()
    with pytest.raises(gridpact.ContractError, match="open stream"):
        stream.wait(event)


@pytest.mark.parametrize("dpctl_route", [False, True])
def test_queue_without_an_order_is_given_one(kernels, dpctl_route, monkeypatch, by_definition):
    """dpctl's queues are out of order unless asked; launches on one keep their order, to dpctl's own commands too."""
    import dpctl

    from gridpact.backends import sycl

    device = gridpact.open_device("sycl:cpu")
    if dpctl_route:
        route = sycl._Dpctl(sycl.installed_file("intel-sycl-rt", "/libsycl.so").parent)
        monkeypatch.setattr(device, "route", route)
    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu")
    assert not queue.is_in_order
    assert device.accept_stream(queue).is_fenced
    assert not device.accept_stream(dpctl.SyclQueue("opencl:cpu", property="in_order")).is_fenced
    chain = [np.full(1, 5, np.int32), *(zeros() for _ in range(50))]
    for source, target in itertools.pairwise(chain):
        copy[1](source, target, stream=queue)
    gridpact.synchronize(queue)
    assert [link[0] for link in chain] == [5] * 51


def test_own_stream_out_of_order_keeps_none(sycl):
    device = gridpact.open_device(sycl)
    assert not device.accept_stream(gridpact.Stream(sycl, in_order=False)).is_fenced


# -- streams of torch


def xpu_tensor(array):
    return TorchTensor(array, "xpu", 0)


@pytest.fixture(params=["by raw handle", "by stream object"])
def torch_xpu(request, sycl, monkeypatch):
    """Stand in for torch with real queues, as torch from before and after `_xpu_getCurrentRawStream`."""
    import dpctl

    queues = [dpctl.SyclQueue("opencl:cpu", property="in_order") for _ in range(2)]
    torch = types.ModuleType("torch")
    torch.current = queues[0]
    torch.xpu = types.SimpleNamespace(current_stream=lambda index: TorchStream(torch.current))
    torch._C = types.SimpleNamespace()
    if request.param == "by raw handle":
        torch._C._xpu_getCurrentRawStream = lambda index: torch.current.addressof_ref()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch, queues


def test_tensors_of_torch_go_to_its_current_stream(kernels, torch_xpu):
    torch, queues = torch_xpu
    _, copy = kernels
    used = []
    with gridpact.hooks.observe(lambda launch: used.append((launch["stream"], launch["device"]))):
        for queue in (*queues, queues[0]):
            torch.current = queue  # torch's user goes to another stream: nothing remembers the one before
            source, target = np.full(1, 7, np.int32), zeros()
            copy[1](xpu_tensor(source), xpu_tensor(target), device="sycl:cpu")
            queue.wait()
            assert target[0] == 7
    assert used == [(queue.addressof_ref(), "sycl:cpu") for queue in (*queues, queues[0])]


def test_launch_follows_tensors_of_torch_to_their_device(kernels, torch_xpu):
    _, queues = torch_xpu
    _, copy = kernels
    source, target = np.full(1, 7, np.int32), zeros()
    with gridpact.device("reference"):
        compiled = copy[1](xpu_tensor(source), xpu_tensor(target))
    queues[0].wait()
    assert (compiled.device.name, target[0]) == ("sycl:cpu", 7)


def test_stream_of_torch_is_taken(kernels, torch_xpu):
    _, copy = kernels
    _, queues = torch_xpu
    source, target = np.full(1, 7, np.int32), zeros()
    copy[1](source, target, stream=TorchStream(queues[1]))
    queues[1].wait()
    assert target[0] == 7


@pytest.mark.parametrize("what", ["sycl_device", "sycl_context", "event"])
def test_other_objects_of_dpctl_are_no_streams(kernels, what):
    """They give addresses, too: following one as a queue would end the process."""
    import dpctl

    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
    other = queue.submit_barrier() if what == "event" else getattr(queue, what)
    with pytest.raises(gridpact.ContractError) as caught:
        copy[1](zeros(), zeros(), stream=other)
    assert caught.value.clause == "STREAM-5"


# -- which device


def test_launch_follows_its_stream_to_its_device(kernels):
    _, copy = kernels
    source, target = np.full(1, 7, np.int32), zeros()
    with gridpact.device("reference"):
        compiled = copy[1](source, target, stream=gridpact.Stream("sycl:cpu"))
        assert compiled.device.name == "sycl:cpu"
    gridpact.synchronize("sycl:cpu")
    assert target[0] == 7


def test_launch_follows_its_memory_to_its_device(kernels):
    import dpctl
    import dpctl.memory

    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
    source, target = (dpctl.memory.MemoryUSMShared(16, queue=queue) for _ in range(2))
    np.asarray(source)[:] = 7
    np.asarray(target)[:] = 0
    with gridpact.device("reference"):
        assert copy[1](source, target).device.name == "sycl:cpu"
    queue.wait()
    assert np.asarray(target)[0] == 7
    with pytest.raises(gridpact.ContractError, match=r"'source'.*reference can reach, it is on sycl:cpu.*\[DEVICE-1\]"):
        copy[1](source, target, device="reference")


# -- threads, and what is dropped


def test_second_wait_for_a_device_waits_too(kernels):
    hold, _ = kernels
    flag, out = zeros(), zeros()
    hold[1](flag, out, stream=gridpact.Stream("sycl:cpu"))
    wait_for_start(flag)
    found = []

    def wait():
        gridpact.synchronize("sycl:cpu")
        found.append(int(out[0]))

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(0.2)
    assert found == []
    flag[0] = 1
    for thread in waiting:
        thread.join()
    assert found == [1, 1]


def test_stream_that_is_closed_while_others_launch_on_it(kernels):
    """Each launch goes there or is refused; nobody follows a queue that is gone."""
    _, copy = kernels
    source, target = np.full(1, 5, np.int32), zeros()
    copy[1](source, target)

    def launch(stream, refused):
        while not refused:
            try:
                copy[1](source, target, stream=stream)
            except gridpact.ContractError as error:
                refused.append(error.clause)

    for _ in range(50):
        stream = gridpact.Stream("sycl:cpu")
        refused = []
        threads = [threading.Thread(target=launch, args=(stream, refused)) for _ in range(3)]
        for thread in threads:
            thread.start()
        stream.close()
        for thread in threads:
            thread.join()
        assert set(refused) == {"STREAM-5"}
    gridpact.synchronize("sycl:cpu")
    assert target[0] == 5


def test_dropped_streams_let_go_of_queues_and_memory(kernels):
    import gc
    import weakref

    _, copy = kernels

    class Array(np.ndarray):
        """A NumPy array that can be watched."""

    alive = []
    for _ in range(20):
        stream = gridpact.Stream("sycl:cpu")
        target = zeros().view(Array)
        copy[1](np.full(1, 5, np.int32), target, stream=stream)
        stream.record().synchronize()
        alive += [weakref.ref(stream.owner), weakref.ref(target)]
        del stream, target
    gridpact.Stream("sycl:cpu")
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


def test_two_views_of_one_queue_are_one_stream(kernels):
    import dpctl
    import dpctl.memory

    _, copy = kernels
    queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
    source = dpctl.memory.MemoryUSMShared(16, queue=queue)
    target = dpctl.memory.as_usm_memory(dpctl.memory.MemoryUSMShared(16, queue=queue))
    np.asarray(source)[:] = 7
    copy[1](source, target)
    queue.wait()
    assert np.asarray(target)[0] == 7


def test_handle_0_is_no_queue(kernels):
    _, copy = kernels
    with pytest.raises(gridpact.ContractError, match="expected the address of a sycl::queue") as caught:
        copy[1](zeros(), zeros(), stream=gridpact.Stream.from_handle(0, "sycl:cpu", None))
    assert caught.value.clause == "STREAM-5"


def test_memory_whose_library_names_no_queue_is_refused(kernels):
    import dpctl
    import dpctl.memory

    _, copy = kernels

    class OfAContext:
        def __init__(self, memory):
            self.memory = memory

        @property
        def __sycl_usm_array_interface__(self):
            bare = self.memory.__sycl_usm_array_interface__
            return {**bare, "syclobj": self.memory.sycl_context}

    memory = dpctl.memory.MemoryUSMShared(16, queue=dpctl.SyclQueue("opencl:cpu"))
    with pytest.raises(gridpact.ContractError, match=r"names no queue of\. Copy it\. \[DEVICE-1\]"):
        copy[1](OfAContext(memory), zeros())


class Kept(np.ndarray):
    """Memory whose end is told, and may do things."""

    def __del__(self):
        for call in getattr(self, "calls", ()):
            call()


def test_memory_of_a_launch_may_launch_when_it_goes(kernels):
    """What a launch has kept alive is the user's: dropping it may launch and wait on the same stream."""
    _, copy = kernels
    stream = gridpact.Stream("sycl:cpu")
    source, last = np.full(1, 5, np.int32), zeros()
    target = zeros().view(Kept)
    target.calls = [lambda: gridpact.synchronize(stream), lambda: copy[1](source, last, stream=stream)]
    copy[1](source, target, stream=stream)
    del target
    gridpact.synchronize(stream)
    gridpact.synchronize(stream)
    assert last[0] == 5


def test_memory_of_a_launch_that_is_interrupted_outlives_its_kernel(kernels, monkeypatch, by_definition):
    hold, _ = kernels
    device = gridpact.open_device("sycl:cpu")
    stream = gridpact.Stream("sycl:cpu")
    flag, out, ends = zeros(), zeros().view(Kept), []
    hold.warmup(flag, out)
    out.calls = [lambda: ends.append(int(flag[0]))]
    submit = type(device)._submit

    def interrupted(self, desc):
        submit(self, desc)
        wait_for_start(flag)
        threading.Timer(0.05, lambda: flag.__setitem__(0, 1)).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(type(device), "_submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold[1](flag, out, stream=stream)
    assert out[0] == 1  # it was waited for
    del out
    assert ends == [1]


def test_queues_of_others_that_come_and_go_are_let_go(kernels):
    import gc
    import weakref

    import dpctl

    _, copy = kernels
    alive = []
    for _ in range(20):
        queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
        target = zeros().view(Kept)
        copy[1](np.full(1, 5, np.int32), target, stream=queue)
        queue.wait()
        alive.append(weakref.ref(target))
        del queue, target
    gc.collect()
    assert len([ref for ref in alive if ref() is not None]) <= 2
