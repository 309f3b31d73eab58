"""Intel's launcher on the CPU: it runs, says what was changed in it, and its findings can be repeated by hand."""

import ctypes
import subprocess
import sys
import textwrap

import pytest

from gridpact import native
from gridpact.conformance.isolation import Worker
from gridpact.conformance.subjects import intel_launcher
from gridpact.errors import BackendError, UnsupportedError

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


@pytest.fixture
def worker(sycl):
    started = Worker("intel:launcher")
    assert started.start()["ready"], started.facts
    yield started
    started.close()


@pytest.fixture
def run(sycl, tmp_path):
    def run_program(text):
        """Run a program as a user would; gives what it printed."""
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run_program


def test_records_tell_what_was_changed(worker):
    assert "launcher built by" in worker.facts["driver"]
    assert worker.facts["driver"].endswith(intel_launcher.NOTE)
    assert "check that pointers are Level-Zero device memory left out" in intel_launcher.NOTE


@pytest.mark.parametrize(
    "case",
    [
        "GRID-4:every_triple_runs_once:grid=7x5x3",
        "GRID-4:every_triple_runs_once_in_each_configuration:num_warps=8;lanes=16;shared=yes",
        "META-5:device_is_given_the_ranges_of_the_grid:grid=7x5x3;num_warps=4",
    ],
)
def test_what_is_right_passes(worker, case):
    assert worker.ask(case, 60)["verdict"] == "pass"


def test_threads_that_wrap_to_a_few_are_found_and_shown_by_the_program(worker, run):
    answer = worker.ask("GRID-8:large_grid_reaches_the_driver_whole:grid=33554433;num_warps=4", 60)
    assert (answer["verdict"], answer["observed"]) == ("violated", "(1, 1, 1)")
    assert run(answer["program"]) == "[1]\n"


def test_stream_is_looked_up_at_each_launch(run):
    said = run("""
        import numpy as np
        import triton
        import triton.language as tl
        from gridpact.conformance.subjects.intel_launcher import Stream, Tensor, activate

        activate()
        import torch

        @triton.jit
        def hold(flag, seen):
            tl.store(seen, 1)
            turns = 0
            while (tl.atomic_add(flag, 0) == 0) & (turns < 200000000):
                turns += 1
            tl.store(seen, 2)

        open_flag, flag = np.ones(1, "i4"), np.zeros(1, "i4")
        first, second, third = (np.zeros(1, "i4") for _ in range(3))
        hold[(1,)](Tensor(open_flag), Tensor(first))  # compiled before anything is held
        held = torch.xpu.current_stream()
        held.queue.wait()
        hold[(1,)](Tensor(flag), Tensor(second))
        while second[0] == 0:  # until a thread of the runtime has it, which this one could be else
            pass
        other = Stream()
        torch.xpu.current_stream = lambda device=None: other
        hold[(1,)](Tensor(open_flag), Tensor(third))
        other.queue.wait()
        print(first, second, third)
        flag[0] = 1
        held.queue.wait()
        print(second)
    """)
    assert said == "[2] [1] [2]\n[2]\n"


def test_launcher_of_another_form_is_refused():
    with pytest.raises(UnsupportedError, match="has another form"):
        intel_launcher._edited("extern int launch();")


def test_what_was_built_is_not_built_again(sycl, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = 'extern "C" int seven() { return 7; }'
    built = intel_launcher._built("seven.cpp", ".so", text)
    monkeypatch.setattr(intel_launcher.subprocess, "run", lambda *_, **__: pytest.fail("built again"))
    assert intel_launcher._built("seven.cpp", ".so", text) == built
    assert ctypes.CDLL(str(built)).seven() == 7


def test_what_cannot_be_built_is_told_with_the_compilers_words(sycl, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BackendError, match="nonsense"):
        intel_launcher._built("wrong.cpp", ".so", "nonsense")
