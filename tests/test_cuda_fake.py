"""Our CUDA launcher on a driver that runs nothing: what the driver is called with, by each version of Triton.

It takes libcuda's place in the process, so each test asks a process of its own, the suite's worker or a program.
"""

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from gridpact import toolchain
from gridpact.conformance import model
from gridpact.conformance.isolation import Worker

pytest.importorskip("triton")

HEAD = """
import numpy as np
import gridpact
import triton.language as tl
from gridpact.conformance.subjects.fake_driver import driver_calls
from gridpact.conformance.subjects.gridpact_cuda import activate

activate()

@gridpact.jit
def kernel(a, b, c, d: tl.float16, e, f: tl.int8, N: tl.constexpr):
    tl.store(a + N, b + c + d + e + f)

def launch(grid=(1,), *, kernel=kernel, **options):
    return kernel[grid](np.zeros(64, "f8"), 2**40, 5, 1.5, True, -3, 7, **options)
"""


@pytest.fixture
def run(tmp_path):
    def run(text):
        """Run a program; give the lines that it printed."""
        program = tmp_path / "program.py"
        program.write_text(HEAD + textwrap.dedent(text))
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    return run


def test_parameters_are_packed_as_the_binary_declares_them(run):
    """In order, constants left out, each as wide as its type, hidden pointers last: one in 3.3, two from 3.6 on."""
    (told,) = run(
        """
        launch()
        (call,) = driver_calls()
        print([len(part) for part in call.parameters], call.parameters[1:6])
        """
    )
    hidden = 1 if toolchain.installed().version < (3, 6) else 2
    scalars = [(2**40).to_bytes(8, "little"), (5).to_bytes(4, "little"), b"\x00\x3e", b"\x01", b"\xfd"]
    assert told == f"{[8, 8, 4, 2, 1, 1] + [8] * hidden} {tuple(scalars)}"


def test_a_binary_that_two_devices_share_is_launched_and_told_of_by_each(run):
    """It is compiled once for a target, and names the device that it was made for."""
    told = run(
        """
        from gridpact.backends import cuda
        first, second = cuda.open_device("cuda:0"), cuda.CudaDevice("cuda:1", 0)
        cuda._opened = {"cuda:0": first, "cuda:1": second}.__getitem__
        asked = []
        second.check_fits = lambda desc, subject: asked.append((desc.x, desc.y, desc.z))

        def told(metadata):
            print(metadata["device"])

        with gridpact.hooks.observe(told):
            launch(launch_cooperative_grid=True)
            with gridpact.device("cuda:1"):
                for programs in (1, 2):
                    launch((programs,), launch_cooperative_grid=True)
                try:
                    launch((10**6,), launch_cooperative_grid=True)
                except gridpact.BackendError:
                    print(asked[-1])
        """
    )
    assert told == ["cuda:0", "cuda:1", "cuda:1", "cuda:1", "(1000000, 1, 1)"]


def test_a_plan_that_does_not_match_the_binary_is_refused_at_load(run):
    """Two hidden pointers where the binary takes one would be silent corruption."""
    told = run(
        """
        from gridpact import toolchain
        usual = toolchain.hidden_pointers()
        for count in (usual - 1, usual + 1):
            toolchain.hidden_pointers = lambda: count
            try:
                launch(kernel=gridpact.jit(kernel.fn))
            except gridpact.BackendError as error:
                print(error)
        print(driver_calls())
        """
    )
    assert len(told) == 3
    assert told[-1] == "[]"
    assert all("matching its parameters failed: the binary declares parameters of" in line for line in told[:2])


def test_a_load_that_the_driver_refuses_is_told_with_its_code(run):
    (told,) = run(
        """
        device = gridpact.open_device("cuda:0")
        binary = gridpact.toolchain.Binary({"cubin": b"no module"}, "cubin", gridpact.KernelMetadata("none"))
        try:
            device.load(binary, [], device.default_stream())
        except gridpact.BackendError as error:
            print(error)
        """
    )
    assert "cuModuleLoadData failed: device kernel image is invalid (CUDA_ERROR_INVALID_IMAGE)" in told


def test_plain_triton_goes_through_our_launcher(run):
    """`gridpact.triton.driver("cuda:0")` serves Triton's own frontend, clusters and scratch memory included."""
    if not _is_installed("triton"):
        pytest.skip("Intel's build of Triton has no frontend for CUDA without a GPU")
    told = run(
        """
        import os, tempfile, triton
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
        triton.runtime.driver.set_active(gridpact.triton.driver("cuda:0"))

        class Tensor:
            dtype = "float32"
            def __init__(self, array):
                self.array = array
            def data_ptr(self):
                return self.array.ctypes.data

        @triton.jit
        def plain(x, n):
            tl.store(x + n, 1.0)

        x = Tensor(np.zeros(64, "f4"))
        for options in ({}, {"num_warps": 8, "num_ctas": 2}, {"launch_cooperative_grid": True}):
            plain[(3, 2)](x, 5, **options)
            (call,) = driver_calls()
            print(call.grid, call.block, call.cluster, sorted(call.attributes), len(call.parameters))
        try:
            plain[(1, 70000)](x, 5)
        except gridpact.ContractError as error:
            print(error)
        print(driver_calls())
        """
    )
    assert told[:3] == [
        "(3, 2, 1) (128, 1, 1) (1, 1, 1) [] 4",
        "(6, 2, 1) (256, 1, 1) (2, 1, 1) [] 4",
        "(3, 2, 1) (128, 1, 1) (1, 1, 1) ['cooperative'] 4",
    ]
    assert told[3].startswith("grid.y: at most 65535 programs on cuda:0, got 70000 (int).")
    assert told[4] == "[]"


def _is_installed(distribution):
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_a_stream_of_another_library_is_taken_by_its_protocol(run):
    told = run(
        """
        class Protocol:
            def __cuda_stream__(self):
                return (0, 4096)

        class Impostor:
            cuda_stream = ptr = 4096

        Event = type("Event", (), {"ptr": 4096, "__module__": "cupy.cuda.stream"})

        launch(stream=Protocol())
        launch(stream=gridpact.Stream.from_handle(0, "cuda:0", None))
        print([call.stream for call in driver_calls()])
        for wrong in (Impostor(), Event(), 4096):
            try:
                launch(stream=wrong)
            except gridpact.ContractError as error:
                print(error)
        """
    )
    assert told[0] == "[4096, 0]"
    assert len(told) == 4
    assert all(line.endswith("[STREAM-5]") for line in told[1:])


def test_every_case_that_a_driver_call_can_answer_passes():
    """The quick cases of a few clauses; `make verify-upstream` asks all of them with each version of Triton."""
    worker = Worker("gridpact:cuda:fake")
    try:
        assert worker.start()["ready"], worker.facts
        cases = model.select(["GRID-4", "GRID-8", "META-*", "CAPTURE-1"])
        answers = {case.id: worker.ask(case.id, 60) for case in cases}
    finally:
        worker.close()
    wrong = {case: a for case, a in answers.items() if a["verdict"] not in ("pass", "unsupported")}
    assert not wrong
    assert sum(answer["verdict"] == "pass" for answer in answers.values()) > 140
