"""Findings are run by hand: what their programs print, and whether they end as the case did."""

import sys

import pytest

from gridpact.conformance import evidence, repeat


def file_of(tmp_path, *records):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(record.line() for record in records))
    return str(path)


def violated(program, observed="8 programs ran", case="GRID-3:b:x=1", **fields):
    return evidence.Record("GRID-3", case, "triton:y", "violated", "refused", observed, program=program, **fields)


@pytest.mark.parametrize(
    ("program", "observed", "is_repeated"),
    [
        ("print(7)", "8 programs ran", True),
        ("raise ValueError('late')", "8 programs ran", False),
        ("raise ValueError('late')", "1", False),  # stands in every traceback
        ("raise ValueError('late')", "TypeError: late", False),
        ("raise ValueError('late')", "ValueError: late", True),
        ("import ctypes; ctypes.string_at(0)", "died of SIGSEGV", True),
        ("import ctypes; ctypes.string_at(0)", "8 programs ran", False),
        ("", "8 programs ran", False),
    ],
)
def test_a_finding_is_repeated_if_its_program_ends_as_the_case_did(tmp_path, capsys, program, observed, is_repeated):
    assert repeat.main(file_of(tmp_path, violated(program, observed))) == (0 if is_repeated else 1)
    said = capsys.readouterr().out
    assert f"seen  {observed}" in said
    assert said.endswith(f"1 findings run by hand, {0 if is_repeated else 1} not as the case did\n")
    assert ("now   7" in said) == (program == "print(7)")


def test_a_program_that_hangs_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(repeat, "_LIMIT_S", 0.5)
    assert repeat.main(file_of(tmp_path, violated("while True: pass", "hung: no answer in 20 s"))) == 0
    assert "hung: no end in 0.5 s" in capsys.readouterr().out


def test_the_first_of_a_question_is_run_or_all(tmp_path):
    records = [violated("", case=f"GRID-3:{name}:x={x}") for name in "bc" for x in (1, 2)]
    passed = evidence.Record("GRID-3", "GRID-3:d:x=1", "triton:y", "pass")
    path = tmp_path / "records.jsonl"
    file_of(tmp_path, *records, passed)
    assert [record.case for record in repeat.findings(path, every=False)] == ["GRID-3:b:x=1", "GRID-3:c:x=1"]
    assert len(repeat.findings(path, every=True)) == 4


def test_it_runs_in_the_environment_that_the_command_names():
    command = "gridpact verify -s triton:y@.nox/upstream-3-6-0 -s triton:y@.nox/upstream-3-9-0 -c 'GRID-*'"
    for version, folder in (("3.6.0", "upstream-3-6-0"), ("3.9.0", "upstream-3-9-0")):
        python = repeat.python_of(violated("", command=command, versions={"triton": version}))
        assert python.endswith(f"/.nox/{folder}/bin/python")
    assert repeat.python_of(violated("", command="gridpact verify -s intel:launcher")) == sys.executable
