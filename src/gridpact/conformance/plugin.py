"""The suite on pytest: each case of each subject is an item, run by the subject's worker process.

    python -m pytest -p gridpact.conformance.plugin --pyargs gridpact.contract --subject gridpact:sycl:cpu

`gridpact verify` runs exactly this. It is loaded by name only, never by being installed.
"""

from __future__ import annotations

import datetime
import fnmatch
import functools
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from gridpact.backends import device_status
from gridpact.conformance.evidence import Record, Recorder
from gridpact.conformance.isolation import Worker, interpreter
from gridpact.conformance.model import Case, select
from gridpact.conformance.subjects import NAMED_ONLY, available

__all__ = ["WORKERS", "Allowed", "allowed_unsupported"]

WORKERS: Final = pytest.StashKey[dict[str, Worker]]()
_recorder: Final = pytest.StashKey[Recorder]()


@dataclass(frozen=True)
class Allowed:
    """A row of the list of cases that our subjects may leave as unsupported."""

    subject: str
    clause: str
    case: str
    reason: str

    def matches(self, subject: str, case: Case) -> bool:
        """Whether the row is about this case of this subject."""
        return (
            subject.partition("@")[0].removesuffix(":python") == self.subject
            and fnmatch.fnmatchcase(case.clause, self.clause)
            and fnmatch.fnmatchcase(case.id, self.case)
        )


@functools.cache
def allowed_unsupported() -> list[Allowed]:
    """Read the list: one row a line, `subject | clause | case pattern | reason`."""
    text = files("gridpact.conformance").joinpath("unsupported.txt").read_text()
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Allowed(*(part.strip() for part in row.split(" | "))) for row in rows]


class Failed(Exception):
    """The verdict of a case fails the run."""


class CaseItem(pytest.Item):
    """One case of one subject."""

    def __init__(self, *, case: Case, subject: str, **given: Any) -> None:
        super().__init__(**given)
        self.case, self.subject = case, subject
        self.record: Record | None = None

    def runtest(self) -> None:
        """Ask, keep the record, and fail if the verdict fails the run."""
        worker = self.config.stash[WORKERS][self.subject]
        answer = worker.ask(self.case.id, self.case.limit_s)
        runs = worker.facts.get("runs", True)
        if answer.pop("is_spent", False) or (self.case.ends_worker and runs):
            worker.stop()
        facts = worker.facts
        self.record = Record(
            clause=self.case.clause,
            case=self.case.id,
            subject=facts.get("subject", self.subject),
            is_own=facts.get("is_own", False),
            device=facts.get("device", ""),
            driver=facts.get("driver", ""),
            versions=facts.get("versions", {}),
            command=_command(),
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            **answer,
        )
        recorder = self.config.stash.get(_recorder, None)
        if recorder is not None:
            recorder.write(self.record)
        self.user_properties.append(("gridpact", self.record))
        problem = self._problem(self.record)
        if problem:
            raise Failed(problem)

    def _problem(self, record: Record) -> str:
        """Say why a verdict fails the run, or nothing: violations by others are findings."""
        told = f"{record.verdict}: {record.asked or record.case}\n  due  {record.expected}\n  seen {record.observed}"
        if record.verdict == "error":
            return told
        if record.is_own and record.stderr and record.verdict != "violated":
            return record.stderr
        if not record.is_own or record.verdict == "pass":
            return ""
        if record.verdict == "unsupported" and any(
            row.matches(self.subject, self.case) and row.reason in record.observed for row in allowed_unsupported()
        ):
            return ""
        return told

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show a verdict as it is, and anything else as pytest does."""
        if isinstance(excinfo.value, Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Name the item as it is pasted back."""
        return self.path, None, f"{self.subject} {self.case.id}"


class Contract(pytest.File):
    """The clauses' module as pytest sees it: the place that all items are below."""

    def collect(self) -> Iterator[CaseItem]:
        """Give the chosen cases of the chosen subjects."""
        config = self.config
        cases = select(config.getoption("--clause"), config.getoption("--case"), config.getoption("--tier"))
        for subject in config.getoption("--subject") or [name for name in available() if name not in NAMED_ONLY]:
            worker = Worker(subject, config.getoption("--saboteur"))
            config.stash[WORKERS][subject] = worker
            is_ready = worker.start()["ready"]
            if not is_ready and not config.getoption("--subject") and not _is_here(subject):
                continue  # told at the end
            for case in cases if is_ready else cases[:1]:  # one error says it
                yield CaseItem.from_parent(self, name=f"{subject} {case.id}", case=case, subject=subject)


def _command() -> str:
    """Give the command line of this run, without the folders of this machine."""
    program = Path(sys.argv[0]).name
    return shlex.join([*(["python", "-m", "gridpact"] if program == "__main__.py" else [program]), *sys.argv[1:]])


def _is_here(subject: str) -> bool:
    """Whether a subject is ours and its device usable here, so that it must answer."""
    owner, _, device = subject.partition(":")
    return owner == "gridpact" and device_status(device).is_usable


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the options of `gridpact verify`."""
    group = parser.getgroup("gridpact")
    group.addoption("--subject", action="append", default=[], help="whom to ask; all if not given")
    group.addoption("--clause", action="append", default=[], help="what to ask about")
    group.addoption("--case", action="append", default=[], help="address of a case, * is a wildcard")
    group.addoption("--tier", action="append", default=[], choices=["quick", "slow"])
    group.addoption("--saboteur", default="", help="break the launcher in this way")
    group.addoption("--records", type=Path, help="append the records to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Check what was asked for before anything runs."""
    config.option.tier = config.option.tier or ["quick"]
    known = available()
    for subject in config.option.subject:
        name, _, folder = subject.partition("@")
        if name not in known:
            raise pytest.UsageError(f"no subject {name!r}; there are {', '.join(known)}")
        if folder and not interpreter(folder).is_file():
            raise pytest.UsageError(f"no Python environment at {folder!r}")
    try:
        select(config.option.clause, config.option.case, config.option.tier)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[WORKERS] = {}
    if config.option.records:
        config.stash[_recorder] = Recorder(config.option.records)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers."""
    for worker in config.stash.get(WORKERS, {}).values():
        worker.close()
    recorder = config.stash.get(_recorder, None)
    if recorder is not None:
        recorder.close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Contract | None:
    """Collect the contract where its package is named, and no other file there."""
    if file_path.name == "__init__.py" and file_path.parent.name == "contract":
        return Contract.from_parent(parent, path=file_path)
    return None
