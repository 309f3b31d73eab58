"""The command line as a user sees it: exit codes, tables, no traceback for a user's mistake."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gridpact
from gridpact import cli
from gridpact.contract import cases


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def test_devices_shows_each_device_with_its_facts(sycl):
    result = run("devices")
    assert result.exit_code == 0
    assert "reference  usable" in result.output
    assert "sycl:cpu  usable" in result.output
    for fact in ("programs per axis", "2,147,483,647", "shared memory", "native launcher", "triton-xpu"):
        assert fact in result.output


def test_verify_proves_every_clause_on_every_device(sycl):
    result = run("verify")
    assert result.exit_code == 0, result.output
    for clause in cases.CLAUSES:
        assert clause in result.output
    assert "FAIL" not in result.output
    assert f"{2 * len(cases.CASES)} passed, 0 failed, 0 devices not run" in result.output


def test_verify_of_one_device():
    result = run("verify", "--device", "reference")
    assert result.exit_code == 0
    assert f"{len(cases.CASES)} passed, 0 failed" in result.output
    assert "sycl:cpu" not in result.output


def test_verify_fails_when_a_case_fails(monkeypatch):
    def fail(subject):
        raise cases.CaseFailedError("programs", 8, 7)

    broken = [cases.Case("GRID-4", "made_to_fail", fail), cases.CASES[0]]
    monkeypatch.setattr(cli, "CASES", broken)
    result = run("verify", "--device", "reference")
    assert result.exit_code == 1
    assert "FAILED GRID-4 on reference, made_to_fail" in result.output
    assert "due 8, seen 7" in result.output
    assert "1 passed, 1 failed" in result.output


def test_verify_fails_when_nothing_was_asked(monkeypatch):
    monkeypatch.setattr(cli, "CASES", [])
    assert run("verify", "--device", "reference").exit_code == 1


@pytest.mark.parametrize("name", ["abacus", "sycl:gpu:99"])
def test_unknown_device_is_named_without_a_traceback(sycl, name):
    ran = subprocess.run(
        [sys.executable, "-m", "gridpact.cli", "verify", "--device", name], capture_output=True, text=True, check=False
    )
    assert ran.returncode in (1, 2)
    assert "Traceback" not in ran.stderr + ran.stdout
    assert "[DEVICE-1]" in ran.stdout


def test_device_that_is_not_usable_fails_when_asked_for(monkeypatch):
    from gridpact.backends import protocol

    missing = protocol.DeviceStatus("sycl:cpu", False, "sycl: not installed. Run: pip install 'gridpact[sycl]'.")
    monkeypatch.setattr(cli.backends, "device_status", lambda name: missing)
    result = run("verify", "--device", "sycl:cpu")
    assert result.exit_code == 1
    assert "NOT RUN" in result.output
    assert "pip install" in result.output


def test_device_that_is_missing_does_not_fail_the_others(monkeypatch):
    from gridpact.backends import protocol, reference

    missing = protocol.DeviceStatus("sycl:cpu", False, "sycl: not installed.")
    monkeypatch.setattr(cli.backends, "device_statuses", lambda: iter([reference.status("reference"), missing]))
    result = run("verify")
    assert result.exit_code == 0
    assert "NOT RUN sycl: not installed." in result.output
    assert "1 devices not run" in result.output


def test_version_and_help():
    assert run("--version").output == f"gridpact {gridpact.__version__}\n"
    assert "verify" in run("--help").output
