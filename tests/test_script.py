"""A case's launches as a program: what it prints is what the case saw."""

import subprocess
import sys

import numpy as np
import pytest

from gridpact.conformance import subjects
from gridpact.conformance.check import Asked
from gridpact.conformance.script import Language, Script


@pytest.fixture
def subject():
    opened = subjects.open_subject("gridpact:reference")
    opened.begin(Asked())
    return opened


def run(subject, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(subject.asked.script.text)
    return subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)


def printed(subject, tmp_path):
    ran = run(subject, tmp_path)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("grid", ["a_lambda", "a_function"])
def test_a_callable_grid_is_written_with_what_it_captured(subject, grid, tmp_path):
    count = 3

    def a_function(meta):
        return (count,)

    given = {"a_lambda": lambda meta: (count,), "a_function": a_function}[grid]
    subject.launch("coordinates", given, np.zeros(21, "i4"), 3, 1)
    assert printed(subject, tmp_path) == ["[1 0 0 0 3 1 1 1 1 0 0 3 1 1 1 2 0 0 3 1 1]"]


def test_launches_of_one_kernel_follow_each_other_and_define_it_once(subject, tmp_path):
    kernel = subject.kernel("constant", fresh=True)
    for value in (1, True, 1.0):
        subject.launch("constant", (1,), np.full(2, 9), value, kernel=kernel)
    assert subject.asked.script.text.count("def constant") == 1
    assert printed(subject, tmp_path) == ["[1 9]", "[2 9]", "[3 9]"]


def test_another_kernel_of_the_same_function_is_another_kernel(subject, tmp_path):
    first, second = (subject.kernel("constant", fresh=True) for _ in range(2))
    for kernel in (first, second, first):
        subject.launch("constant", (1,), np.full(2, 9), 1, kernel=kernel)
    text = subject.asked.script.text
    assert text.count("def constant") == 2
    assert "constant_1[(1,)](seen, 1)" in text
    assert printed(subject, tmp_path) == ["[1 9]"] * 3


def test_memory_that_is_passed_again_is_not_made_again(subject, tmp_path):
    seen = np.zeros(3, "i4")
    for _ in range(2):
        subject.launch("counted", (4,), seen)
    assert printed(subject, tmp_path) == ["[4 0 0]", "[8 0 0]"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(20, dtype="i8"),
        np.full(20, 3, "u1"),
        np.resize(np.array([0, *[-77] * 6], "i4"), 70),
        np.array([np.nan, np.inf, -0.0, 1.5] * 5, "f8"),
        np.full(20, -77, "i4").view("f8"),
    ],
)
@pytest.mark.parametrize("begin", [0, 1, 3])
def test_memory_is_written_as_it_is(array, begin):
    script = Script(Language("import numpy as np"))

    def kernel(seen):
        """Do nothing."""

    view = array[begin:]
    script.launch(kernel, kernel, (1,), (view,), {})
    line = next(line for line in script.text.splitlines() if line.startswith("seen = "))
    scope = {"np": np}
    exec(line, scope)
    assert scope["seen"].dtype == view.dtype
    assert scope["seen"].tobytes() == view.tobytes()
    assert (scope["seen"].ctypes.data - view.ctypes.data) % 16 == 0


def test_what_a_launch_gave_back_is_launched_by_a_name(subject, tmp_path):
    compiled = subject.launch("counted", (1,), np.zeros(1, "i4"))
    subject.launch("counted", (1, 1, 1), np.zeros(1, "i4"), kernel=compiled)
    text = subject.asked.script.text
    assert "compiled = counted[(1,)](seen)" in text
    assert "compiled[(1, 1, 1)](seen)" in text
    assert printed(subject, tmp_path) == ["[1]", "[1]"]


def test_a_refusal_is_printed_and_the_program_goes_on(subject, tmp_path):
    with pytest.raises(ValueError, match="GRID-6"):
        subject.launch("counted", (-1,), np.zeros(1, "i4"))
    subject.launch("counted", (2,), np.zeros(1, "i4"))
    refused, before, after = printed(subject, tmp_path)
    assert refused.startswith("ContractValueError: grid.x")
    assert (before, after) == ("[0]", "[2]")


def test_hooks_print_what_they_are_told(subject, tmp_path):
    with subject.observed(print, None):
        subject.launch("counted", (2,), np.zeros(1, "i4"))
    subject.launch("counted", (2,), np.zeros(1, "i4"))
    lines = printed(subject, tmp_path)
    assert len(lines) == 3
    assert lines[0].startswith("enter hook is told {'name': 'counted'")


def test_captured_values_are_written_and_their_changes_too(subject, tmp_path):
    from gridpact.conformance import model

    model.load_contract()
    for case in ("changed_global_is_seen", "changed_closure_is_seen", "kernels_of_one_name_differ_by_their_closures"):
        subject.begin(Asked())
        model.CASES[f"KEY-1:{case}"].run(subject)
        last = [line for line in printed(subject, tmp_path) if line.startswith("[")][-1]
        assert last == {"changed_global_is_seen": "[  3 -77]", "changed_closure_is_seen": "[  9 -77]"}.get(
            case, "[  7 -77]"
        )


def test_launches_at_once_are_written_as_threads(subject, tmp_path):
    kernel = subject.kernel("counted", fresh=True)
    memory = [np.zeros(1, "i4") for _ in range(3)]
    with subject.asked.script.at_once():
        for i, seen in enumerate(memory):
            subject.show("counted", kernel, (i + 1,), (seen,), {})
    assert printed(subject, tmp_path)[1:] == ["[1]", "[2]", "[3]"]


def test_only_so_many_launches_are_written(subject, tmp_path):
    for _ in range(40):
        subject.launch("counted", (1,), np.zeros(1, "i4"))
    assert len(printed(subject, tmp_path)) == 24


def test_it_is_kept_in_a_file_before_each_launch(subject, tmp_path):
    kept = tmp_path / "kept.py"
    subject.begin(Asked(kept=kept))
    subject.launch("counted", (1,), np.zeros(1, "i4"))
    assert kept.read_text() == subject.asked.script.text
