"""The suite itself: addresses, selection, isolation of cases that crash or hang, evidence that outlives a kill."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gridpact.conformance import evidence, model, report, subjects
from gridpact.conformance.check import check_refused, require, same
from gridpact.conformance.isolation import Worker
from gridpact.conformance.plugin import allowed_unsupported
from gridpact.errors import ContractValueError

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "subject"


@pytest.fixture(autouse=True, scope="module")
def contract():
    model.load_contract()


# -- clauses and cases


def test_every_clause_has_cases_and_a_sentence():
    for number, clause in model.CLAUSES.items():
        mine = [case for case in model.CASES.values() if case.clause == number]
        assert mine, number
        assert any(case.tier == "quick" for case in mine), number
        assert clause.sentence.endswith("."), number
        assert clause.why.endswith("."), number


def test_clauses_that_refuse_have_a_control_or_a_positive_case():
    for number in model.CLAUSES:
        kinds = {case.kind for case in model.CASES.values() if case.clause == number}
        assert kinds & {"control", "positive"}, number


def test_every_case_has_an_address_and_a_plan():
    for address, case in model.CASES.items():
        assert address == case.id
        assert address.startswith(f"{case.clause}:{case.name}")
        assert " " not in address, address
        assert case.plan.endswith("."), address


def test_an_address_can_be_pasted_back():
    for address in model.CASES:
        escaped = address.replace("[", "[[]")
        assert [case.id for case in model.select(cases=[escaped])] == [address]


def test_selection_that_matches_nothing_is_refused():
    with pytest.raises(ValueError, match="no clause 'GRID-99'"):
        model.select(clauses=["GRID-99"])
    with pytest.raises(ValueError, match="no case matches"):
        model.select(cases=["GRID-4:nothing*"])


def test_slow_cases_are_asked_on_request():
    quick, both = model.select(), model.select(tiers=["quick", "slow"])
    assert {case.tier for case in quick} == {"quick"}
    assert len(both) > len(quick)
    (slow, *_) = [case.id for case in both if case.tier == "slow"]
    assert [case.id for case in model.select(cases=[slow])] == [slow]


def test_a_clause_or_case_entered_twice_is_refused():
    with pytest.raises(ValueError, match="entered twice"):
        model.clause("GRID-4", "triton", "again.")
    with pytest.raises(ValueError, match="no clause GRID-99"):
        model.case("GRID-99")
    with pytest.raises(ValueError, match="entered twice"):

        @model.case("GRID-4", grid=[(7,)])
        def every_triple_runs_once(subject, grid):
            """Be there already."""


def test_every_allowed_unsupported_row_matches_a_case_of_a_known_subject():
    for row in allowed_unsupported():
        assert row.subject in subjects.SUBJECTS, row
        assert row.reason, row
        assert any(row.matches(row.subject, case) for case in model.CASES.values()), row


def test_no_allowed_unsupported_row_allows_more_than_the_committed_run_left_out():
    runs = [
        record for name in ("cpu", "upstream", "h200") for record in records_of(ROOT / "evidence" / f"{name}.jsonl")
    ]
    for row in allowed_unsupported():
        found = {}  # by the versions of one run: what one of them leaves out another may do
        for record in runs:
            if record.is_own and row.matches(record.subject, model.CASES[record.case]):
                outcome = record.verdict, row.reason in record.observed
                found.setdefault(str(record.versions), set()).add(outcome)
        if row.case == "*":  # the reason alone decides
            assert any(("unsupported", True) in outcomes for outcomes in found.values()), row
        else:
            assert {("unsupported", True)} in found.values(), row


# -- checks


class Launcher(subjects.Subject):
    """A subject of these tests: what it does at a launch is given."""

    name = "test"

    def __init__(self, is_own=False, does=lambda seen: None):
        super().__init__()
        self.is_own, self.does = is_own, does
        self.asked.script.line = "launch(...)"

    def source(self, program):
        raise NotImplementedError

    def jit(self, function, **options):
        raise NotImplementedError


def verdict(is_own, does, **options):
    subject = Launcher(is_own, does)
    try:
        check_refused(subject, ValueError, "GRID-6", subject.does, **options)
    except model.Unguarded:
        return "violated" if is_own else "unguarded"
    except model.Violated:
        return "violated"
    return "pass"


def nothing(seen):
    pass


def write(seen):
    seen[::7][:6] = 1


def write_and_raise(seen):
    write(seen)
    raise ValueError("late")


def raise_ours(seen):
    raise ContractValueError("grid.x", "a count is 0 or more", -1, clause="GRID-6")


def raise_other_clause(seen):
    raise ContractValueError("grid.x", "a count is 0 or more", -1, clause="GRID-7")


def raise_plain(seen):
    raise ValueError("negative")


def raise_vague(seen):
    raise AssertionError


@pytest.mark.parametrize(
    ("does", "own", "foreign"),
    [
        (nothing, "violated", "unguarded"),
        (write, "violated", "violated"),
        (write_and_raise, "violated", "violated"),
        (raise_ours, "pass", "pass"),
        (raise_other_clause, "violated", "pass"),
        (raise_plain, "violated", "pass"),
        (raise_vague, "violated", "unguarded"),
    ],
)
def test_refusals_are_judged_by_whose_launcher_it_is(does, own, foreign):
    assert verdict(True, does) == own
    assert verdict(False, does) == foreign


class Copying(Launcher):
    """What kernels write is seen after a wait alone, as on a GPU."""

    def synchronize(self):
        self.memory[:] = self.written


@pytest.mark.parametrize("is_own", [True, False])
def test_what_ran_before_a_refusal_is_seen_where_memory_is_copied(is_own):
    def write_and_refuse(seen):
        subject.memory, subject.written = seen, seen.copy()
        write_and_raise(subject.written)

    subject = Copying(is_own, write_and_refuse)
    with pytest.raises(model.Violated, match="6 programs ran, then ValueError"):
        check_refused(subject, ValueError, "GRID-6", subject.does)


def test_a_launch_that_fails_shows_what_ran():
    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, seen):
            subject.memory, subject.written = seen, np.ones_like(seen)
            raise ValueError("late")

    subject = Copying()
    subject.source = lambda program: write
    memory = np.zeros(3)
    with pytest.raises(ValueError, match="late"):
        subject.launch("write", (1,), memory, kernel=Kernel())
    assert memory.tolist() == [1, 1, 1]


def test_a_subject_lives_in_the_environment_that_is_named():
    worker = Worker(f"gridpact:reference@{sys.prefix}")
    try:
        assert worker.start()["subject"] == "gridpact:reference"
        assert worker.ask("GRID-2:missing_axes_are_one:grid=7", 60)["verdict"] == "pass"
    finally:
        worker.close()


def test_what_nobody_has_written_is_unimplemented():
    subject = Launcher()
    subject.unwritten = {"geometry": "nobody has"}
    with pytest.raises(model.Unimplemented, match="nobody has"):
        require(subject, "geometry")
    with pytest.raises(model.Unsupported, match="declares no lanes"):
        require(subject, "lanes")


def test_a_foreign_launch_of_what_was_plainly_meant_is_unguarded():
    assert verdict(False, write, means=6) == "unguarded"
    assert verdict(False, write, means=7) == "violated"
    assert verdict(True, write, means=6) == "violated"


@pytest.mark.parametrize(
    ("due", "seen"), [(0.0, -0.0), ([1, 2], [1]), (1, 2), (float("nan"), 0.0), ("a", "b"), (True, False)]
)
def test_what_differs_is_told_apart(due, seen):
    with pytest.raises(model.Violated):
        same(Launcher(), "it", due, seen)


def test_what_is_the_same_leaves_a_note():
    subject = Launcher()
    same(subject, "it", np.array([1.5, np.nan]), np.array([1.5, np.nan]))
    assert (subject.asked.checks, subject.asked.seen) == (1, "[1.5, nan]")


# -- isolation


def installed(site, module, entry):
    """Lay a module with a subject's entry point into a folder, as pip would."""
    info = site / f"{module.stem}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gridpact.subjects]\n{entry}\n")
    (site / module.name).write_text(module.read_text())


@pytest.fixture
def nasty(tmp_path, monkeypatch):
    """Give a worker whose launches die in the way that is asked for, and a function to ask for it."""
    site = tmp_path / "site"
    installed(site, Path(__file__).parent / "nasty_subject.py", "tests:nasty = nasty_subject:nasty")
    monkeypatch.setenv("PYTHONPATH", str(site))
    how = site / "how"
    how.write_text("")
    worker = Worker("tests:nasty")
    assert worker.start()["ready"], worker.facts
    yield worker, how.write_text
    worker.close()


GOOD = "GRID-11:first_launch_is_like_later_ones:grid=5"
CASE = "GRID-4:every_triple_runs_once:grid=7"


@pytest.mark.parametrize(
    ("how", "told"),
    [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("leave", "left with 3 without an answer"), ("hang", "hung"),
     ("hang_with_the_gil", "hung")],
)  # fmt: skip
def test_a_case_that_kills_its_process_costs_that_case(nasty, how, told):
    worker, die = nasty
    assert worker.ask(GOOD, 30)["verdict"] == "pass"
    die(how)
    answer = worker.ask(CASE, 2)
    die("")
    assert answer["verdict"] == "violated"
    assert told in answer["observed"]
    assert answer["duration_s"] < 20
    assert worker.ask(GOOD, 30)["verdict"] == "pass"


def test_a_launch_that_kills_its_process_is_kept_as_a_program(nasty):
    worker, die = nasty
    die("die_in_the_kernel")
    answer = worker.ask(CASE, 30)
    assert answer["observed"] == "died of SIGSEGV"
    assert "coordinates[(7,)](seen, 7, 1)" in answer["program"]


def test_a_process_that_died_leaves_nothing_behind(nasty):
    worker, die = nasty
    folder = Path(worker._folder.name)
    assert folder.is_dir()
    die("segfault")
    worker.ask(CASE, 5)
    child = int((Path(die.__self__).with_name("child")).read_text())
    end = time.monotonic() + 10
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)
    assert not folder.exists()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_death_after_the_answer_is_told_and_costs_no_verdict(nasty):
    worker, die = nasty
    die("die_afterwards")
    assert worker.ask(CASE, 30)["verdict"] == "pass"
    worker._process.wait(30)
    die("")
    answer = worker.ask(GOOD, 30)
    assert answer["verdict"] == "pass"
    assert answer["stderr"].startswith("after the answer to the case before, the process died of SIGSEGV")


def test_a_case_that_eats_memory_costs_that_case(nasty, monkeypatch):
    worker, die = nasty
    monkeypatch.setattr("gridpact.conformance.isolation._MEMORY_BYTES", 1 << 30)
    die("eat")
    answer = worker.ask(CASE, 60)
    die("")
    assert (answer["verdict"], answer["observed"]) == ("violated", "used more than 1 GiB of memory")
    assert worker.ask(GOOD, 30)["verdict"] == "pass"


def test_a_case_that_poisons_its_process_says_so(nasty):
    worker, die = nasty
    die("poison")
    answer = worker.ask(CASE, 30)
    assert (answer["verdict"], answer["is_spent"]) == ("violated", True)
    die("")
    assert not worker.ask(CASE, 30)["is_spent"]


def test_what_a_subject_prints_does_not_get_among_the_answers(nasty):
    worker, die = nasty
    die("print")
    assert worker.ask(CASE, 30)["verdict"] == "pass"


def test_a_subject_that_cannot_be_opened_is_told():
    worker = Worker("no:such:subject")
    assert not worker.start()["ready"]
    assert "no:such:subject" in worker.facts["reason"]
    assert worker.ask("GRID-2:missing_axes_are_one:grid=7", 5)["verdict"] == "error"
    worker.close()


# -- evidence


def records_of(path):
    return list(evidence.read(path))


def test_a_killed_run_loses_at_most_the_running_case(tmp_path):
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "gridpact.cli", "verify", "-s", "gridpact:reference", "--json", str(path)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end and (not path.exists() or path.read_bytes().count(b"\n") < 20):
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    raw = path.read_bytes()
    kept = records_of(path)
    assert len(kept) == raw.count(b"\n") >= 20
    assert raw.endswith(b"\n")
    expected = [case.id for case in model.select()]
    assert [record.case for record in kept] == expected[: len(kept)]  # each that ended before, none missing


def test_a_record_holds_what_was_asked_of_whom_and_how(tmp_path):
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "gridpact.cli", "verify", "-s", "gridpact:reference", "-c", "GRID-2", "--json"]
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    raw = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(raw) == 4
    due = {"clause", "case", "subject", "verdict", "expected", "observed", "device", "driver", "versions", "duration_s"}
    assert due <= raw[0].keys()
    assert raw[0]["clause"] == "GRID-2"
    assert raw[0]["versions"]["python"]
    assert "verify" in raw[0]["command"]
    assert all(record["verdict"] == "pass" for record in raw)


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    whole = evidence.Record("GRID-4", "GRID-4:x", "s", "pass").line()
    path.write_bytes(whole + whole[:20])
    assert [record.case for record in records_of(path)] == ["GRID-4:x"]
    recorder = evidence.Recorder(path)
    recorder.write(evidence.Record("GRID-4", "GRID-4:y", "s", "pass"))
    recorder.close()
    assert [record.case for record in records_of(path)] == ["GRID-4:x", "GRID-4:y"]


def test_the_evidence_readme_tells_confirmed_violated_and_not_run(tmp_path):
    rows = [
        evidence.Record("GRID-4", "GRID-4:a", "gridpact:x", "pass", is_own=True),
        evidence.Record("GRID-3", "GRID-3:b_c:x=2", "triton:y", "violated", "refused", "9 ran", program="k[(1, 2)]()"),
        evidence.Record("GRID-3", "GRID-3:b_c:x=1", "triton:y", "violated", "refused", "8 ran", program="k[(1,)]()"),
        evidence.Record("GRID-8", "GRID-8:c", "triton:y", "unsupported", observed="it loops"),
        evidence.Record("GRID-6", "GRID-6:d", "triton:y", "unguarded", "ValueError", "nothing ran"),
    ]
    (tmp_path / "run.jsonl").write_bytes(b"".join(row.line() for row in rows))
    text = evidence.summary(tmp_path)
    assert "| GRID-4 | pass 1/1 |  |" in text
    assert "### GRID-3 by `triton:y`: b c" in text
    assert "- case `GRID-3:b_c:x=1`" in text
    assert "- also, 1 cases: `x=2`" in text
    assert "k[(1,)]()" in text
    assert "k[(1, 2)]()" not in text  # the smaller program shows it
    assert "it loops" in text
    assert "nothing ran" in text


def test_the_committed_evidence_answers_each_question_and_owes_an_intel_gpu_alone():
    text = (ROOT / "evidence" / "README.md").read_text()
    for question in (*report.RUN_TIME_TESTS, *report.OPEN_POINTS):
        assert f"| {question.text} | pass " in text, question.text  # of our launcher on an H200, the first column
    assert "| question | `gridpact:cuda:0` |" in text
    assert "owed to an Intel GPU" in text
    assert "owed to a CUDA GPU" not in text


def test_the_committed_evidence_readme_is_made_from_the_records():
    assert (ROOT / "evidence" / "README.md").read_text() == evidence.summary(ROOT / "evidence")


# -- report


def test_the_worst_verdict_stands_for_a_clause():
    assert report.worst(["pass", "unsupported"]) == "pass"
    assert report.worst(["unsupported"]) == "unsupported"
    assert report.worst(["pass", "unguarded"]) == "unguarded"
    assert report.worst(["unguarded", "violated", "pass"]) == "violated"
    assert report.worst(["violated", "error"]) == "error"


def test_the_questions_ask_for_cases_that_exist():
    for question in (*report.RUN_TIME_TESTS, *report.OPEN_POINTS):
        for pattern in question.cases:
            assert model.select(cases=[pattern]), pattern
    assert len(report.RUN_TIME_TESTS) == len(report.OPEN_POINTS) == 7


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_of_many_subjects_is_cut_into_tables_that_can_be_read(width):
    records = list(records_of(ROOT / "evidence" / "upstream.jsonl"))
    names = list(dict.fromkeys(record.subject for record in records))
    subjects_of_run = [*names, *(f"{name} 3.9.0" for name in names), "somebody:else:entirely"]
    console = Console(width=width, file=io.StringIO())
    report.show(console, records, subjects_of_run, 0)
    text = console.file.getvalue()
    tables = [line for line in text.splitlines() if line.startswith(("┃", "│"))]
    assert not any("…" in line for line in tables)
    assert max(map(len, tables)) <= width
    assert sum("else:entirely" in line for line in tables) == 3  # verdicts, tests, open points


@pytest.mark.parametrize(
    ("subject", "verdict", "owed"),
    [
        ("gridpact:sycl:cpu", "pass", "owed to a CUDA GPU: ids that kernels read; to an Intel GPU: the same"),
        ("triton:cuda:fake", "pass", "owed to a CUDA GPU: ids that kernels read; to an Intel GPU: the same"),
        ("triton:cuda:0", "unimplemented", "owed to a CUDA GPU: ids that kernels read; to an Intel GPU: the same"),
        ("triton:cuda:0", "violated", "owed to an Intel GPU: the same"),
        ("triton:xpu:1", "pass", "owed to a CUDA GPU: ids that kernels read"),
        ("gridpact:sycl:gpu:0", "pass", "owed to a CUDA GPU: ids that kernels read"),
    ],
)
def test_what_is_owed_to_gpus_is_told_until_they_answer(subject, verdict, owed):
    records = [evidence.Record("GRID-4", "GRID-4:a:b", subject, verdict)]
    _, shown = report.answers("", report.RUN_TIME_TESTS[:1], records, [subject]).renderables
    assert shown.plain.splitlines()[1:] == [f"     {owed}"]


# -- a third party's subject


def test_the_example_of_a_third_partys_subject_works(tmp_path):
    assert len((EXAMPLE / "loop_subject.py").read_text().splitlines()) < 60
    site = tmp_path / "site"
    installed(site, EXAMPLE / "loop_subject.py", "example:loop = loop_subject:Loop")
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "gridpact.cli", "verify", "-s", "example:loop", "-c", "GRID-4", "-c", "GRID-3"]
    env = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    verdicts = {record.clause: set() for record in records_of(path)}
    for record in records_of(path):
        verdicts[record.clause].add(record.verdict)
    assert verdicts["GRID-4"] <= {"pass", "unsupported"}
    assert "violated" in verdicts["GRID-3"]  # it drops a fourth axis, as the example says
