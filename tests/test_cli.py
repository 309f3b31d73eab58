"""The command line as a user sees it: exit codes, tables, no traceback for a user's mistake."""

import io
import os
import re
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

import gridpact
from gridpact import bench, cli
from gridpact.conformance import evidence, model, report, saboteurs, subjects


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def run_apart(*arguments):
    """Run in a process of its own: the suite is pytest, which does not nest."""
    return subprocess.run(
        [sys.executable, "-m", "gridpact.cli", *arguments], capture_output=True, text=True, timeout=280, check=False
    )


def test_devices_shows_each_device_with_its_facts(sycl):
    result = run("devices")
    assert result.exit_code == 0
    assert "reference  usable" in result.output
    assert "sycl:cpu  usable" in result.output
    for fact in ("programs per axis", "2,147,483,647", "shared memory", "native launcher", "triton-xpu"):
        assert fact in result.output


def test_devices_shows_what_becomes_of_each_option(sycl):
    result = run("devices", "--policy")
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["num_warps", "4", "applied"] in lines
    assert ["num_ctas", "1", "default", "only", "SYCL", "has", "no"] in [line[:7] for line in lines]
    for name in gridpact.open_device("sycl:cpu").options:
        assert any(line[:1] == [name] for line in lines), name


def test_version_and_help():
    assert run("--version").output == f"gridpact {gridpact.__version__}\n"
    assert "verify" in run("--help").output


def test_verify_shows_the_table_the_answers_and_the_summary_last():
    ran = run_apart("verify", "-s", "gridpact:reference")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    for clause in model.CLAUSES:
        assert any(line.startswith(f"│ {clause} ") for line in lines), clause
    for question in (*report.RUN_TIME_TESTS, *report.OPEN_POINTS):
        assert question.text.split()[0] in ran.stdout
    assert "Seven run-time tests" in ran.stdout
    assert "Seven open points" in ran.stdout
    assert lines[-1].endswith("; 0 fail the run")
    assert "\x1b[" not in ran.stdout  # no colour on a pipe


def test_verify_asks_one_clause_of_one_subject():
    ran = run_apart("verify", "-s", "gridpact:reference", "-c", "GRID-2", "-q")
    assert ran.returncode == 0
    assert ran.stdout == "4 cases: 4 pass; 0 fail the run\n"


def test_violations_by_others_are_findings_and_shown_with_a_program(sycl):
    ran = run_apart("verify", "-s", "triton:interpreter", "-c", "GRID-1", "-v")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "unguarded" in ran.stdout.splitlines()[-1]


def test_a_saboteur_fails_the_run_and_shows_what_was_due_and_seen():
    ran = run_apart("verify", "--saboteur", "drop-fourth-axis")
    assert ran.returncode == 1
    assert "VIOLATED gridpact:reference+drop-fourth-axis  GRID-3:other_length_is_refused" in ran.stdout
    assert "due   ValueError [GRID-3] before anything ran" in ran.stdout
    assert "seen  8 programs ran, no error" in ran.stdout
    assert "counted[(2, 2, 2, 2)]" in ran.stdout


def test_saboteurs_can_be_listed():
    result = run("verify", "--saboteur", "list")
    assert result.exit_code == 0
    for name in saboteurs.SABOTEURS:
        assert name in result.output


def test_list_prints_subjects_and_addresses():
    result = run("verify", "--list")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert set(subjects.SUBJECTS) <= set(lines)
    assert {case.id for case in model.select()} <= set(lines)


def test_a_subject_of_no_environment_is_a_mistake():
    result = run("verify", "-s", "triton:interpreter@/no/such/place")
    assert result.exit_code == 2
    assert "subject 'triton:interpreter@/no/such/place': no Python at" in result.output


def test_clauses_are_chosen_by_a_pattern():
    result = run("verify", "--list", "-s", "gridpact:reference", "-c", "GRID-1*")
    assert {line.split(":")[0] for line in result.output.splitlines()[1:]} == {"GRID-1", "GRID-10", "GRID-11"}


def test_plan_prints_each_clause_with_what_its_cases_ask():
    result = run("verify", "--plan", "-c", "GRID-3")
    assert result.exit_code == 0
    assert "GRID-3 (guardrail)" in result.output
    assert "none is dropped." in " ".join(result.output.split())
    assert "GRID-3:other_length_is_refused, 7 cases" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--subject", "gridpact:syc:cpu"), "Did you mean 'gridpact:sycl:cpu'?"),
        (("--clause", "GRID-99"), "no clause 'GRID-99'"),
        (("--case", "GRID-4:nothing"), "no case matches"),
        (("--tier", "fast"), "tier 'fast': not known"),
        (("--saboteur", "swapxy"), "Did you mean 'swap-xy'?"),
        (("--saboteur", "drop-fourth-axis", "-s", "triton:active"), "it breaks gridpact:reference"),
        (("--clause", "GRID-2", "--tier", "slow"), "nothing to ask"),
        (("--clause", "GRID-4", "--case", "GRID-3:*"), "nothing to ask"),
    ],
)
def test_a_mistake_in_the_options_is_named_without_a_traceback(options, told):
    ran = run_apart("verify", *options)
    assert ran.returncode == 2
    assert told in " ".join(ran.stdout.split())
    assert "Traceback" not in ran.stderr + ran.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--device", "syc:cpu"), "Did you mean 'sycl'?"),
        (("--device", "reference"), "--device: reference compiles no kernel"),
        (("--device", "sycl:nothing"), "sycl:nothing"),
        (("--arguments", "5"), "--arguments: expected one of 0, 1, 4"),
        (("--beside", "no/such/place"), "--beside: no Python at no/such/place"),
        (("--cold",), "--cold: a first launch loads its kernel"),
        (("--json", "no/such/folder/x.json"), "--json: expected a file in a folder that exists, got 'no/such/folder/x"),
        (("--json", "."), "--json: expected a file in a folder that exists, got '.'"),
        (("--plot", "no/such/folder/x.png"), "--plot: expected a file in a folder that exists"),
        (("--plot", "x.txt"), "--plot: expected the name of a PNG, got 'x.txt'"),
    ],
)
def test_a_mistake_in_the_options_of_bench_is_named_before_anything_is_measured(options, told, monkeypatch):
    monkeypatch.setattr(bench, "_timed", lambda *_: pytest.fail("measured"))
    result = run("bench", "--device", "null", *options)
    assert result.exit_code == 2
    assert told in result.output


def test_a_picture_of_bench_needs_matplotlib(monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    result = run("bench", "--plot", "x.png")
    assert result.exit_code == 2
    assert result.output == "--plot: matplotlib is not installed. Run: pip install 'gridpact[report]'.\n"


def test_bench_on_a_gpu_needs_torch_and_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(bench.backends, "open_device", lambda name: SimpleNamespace(name=name, compiles=True))
    result = run("bench", "--device", "cuda:1")
    assert result.exit_code == 2
    assert "torch and triton are measured, too, and there is no torch" in result.output


def test_a_subject_of_ours_that_breaks_on_a_usable_device_fails_the_run(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'gridpact:reference' in sys.orig_argv and '-m' not in sys.orig_argv: os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ran = run_apart("verify", "-c", "GRID-2", "-q")
    assert ran.returncode == 1
    assert "left with 7 without an answer" in ran.stdout


def test_a_subject_that_is_not_here_is_told_and_fails_if_asked_for(tmp_path, monkeypatch):
    info = tmp_path / "missing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: missing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gridpact.subjects]\nno:driver = no_such_module:Subject\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = run_apart("verify", "-s", "no:driver", "-c", "GRID-2", "-q")
    assert asked.returncode == 1
    assert "No module named 'no_such_module'" in asked.stdout
    unasked = run_apart("verify", "-c", "GRID-2", "-q")
    assert unasked.returncode == 0
    assert "NOT RUN no:driver: ModuleNotFoundError" in unasked.stdout


# -- what a terminal shows


def on_terminal(*arguments, columns, **environment):
    """Run on a terminal that is so many columns wide, and give what it was sent."""
    main, other = os.openpty()
    given = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "gridpact.cli", *arguments], stdout=other, stderr=other, env=given
    ) as process:
        os.close(other)
        sent = b""
        with suppress(OSError):  # how a terminal says that its other end is closed
            while read := os.read(main, 65536):
                sent += read
        os.close(main)
    assert process.returncode == 0
    return sent.decode()


ASKED = ("verify", "-s", "gridpact:reference", "-c", "GRID-2", "-c", "GRID-3")


@pytest.mark.parametrize("columns", [80, 200])
def test_tables_fit_a_pipe_of_any_width_without_colour_and_the_summary_is_last(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = run_apart(*ASKED)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout
    assert max(len(line) for line in lines if line.startswith(("│", "┃", "┏"))) <= columns
    assert not any("…" in line for line in lines if line.startswith("│"))
    assert lines[-1] == "14 cases: 14 pass; 0 fail the run"


def test_a_terminal_is_sent_colour_and_progress_and_the_summary_last():
    sent = on_terminal(*ASKED, columns=80)
    assert "\x1b[32m" in sent  # green
    assert "14/14" in sent
    assert sent.rstrip().endswith("14 cases: 14 pass; 0 fail the run")


def test_a_terminal_whose_user_wants_no_colour_is_sent_none():
    sent = on_terminal(*ASKED, columns=80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", sent)
    assert sent.rstrip().endswith("14 cases: 14 pass; 0 fail the run")


def test_what_a_launcher_said_cannot_act_on_the_terminal():
    console = Console(file=io.StringIO(), width=80)
    told = evidence.Record(
        "GRID-3", "GRID-3:\x1b[2J", "s", "violated", observed="\x1b]0;title\x07 [red]", program="\x1b[A"
    )
    report.show(console, [told], ["s"], limit=1)
    assert "\x1b" not in console.file.getvalue()
    assert "seen  ␛]0;title␇ [red]" in console.file.getvalue()


def test_verify_writes_what_pytest_makes_of_it_as_junit(tmp_path):
    path = tmp_path / "junit.xml"
    ran = run_apart(*ASKED, "--junit", str(path))
    assert ran.returncode == 0
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("14", "0", "0")
    names = [case.get("name") for case in suite.iter("testcase")]
    assert any("GRID-3:other_length_is_refused:grid=four" in name for name in names)
    broken = run_apart("verify", "--saboteur", "drop-fourth-axis", "-c", "GRID-3", "--junit", str(path))
    assert broken.returncode == 1
    failure = ElementTree.parse(path).getroot().find(".//failure")
    assert "8 programs ran, no error" in failure.text
    assert run("verify", "--junit", str(tmp_path)).exit_code == 2
