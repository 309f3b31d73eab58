"""Evidence: one JSON record per case, appended as it ends, so that a crash of the run loses only the running case."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from gridpact.conformance.model import Verdict

if TYPE_CHECKING:
    from gridpact.conformance.report import Question

__all__ = ["Record", "Recorder", "apart", "gather", "known", "latest", "read", "subjects_of", "summary"]


@dataclass(frozen=True)
class Record:
    """What one subject answered to one case.

    Attributes
    ----------
    clause, case
        Address of the case.
    subject
        Who was asked.
    verdict
        `pass`, `violated`, `unguarded`, `unsupported`, `unimplemented` or `error`.
    expected, observed
        What was due and what was seen; for `unsupported` and `unimplemented` the reason is in `observed`.
    device, driver, versions
        What it ran on and with.
    duration_s
        Of the case alone, seconds.
    is_own
        Whether the subject is ours.
    asked, program
        Of a violation: the launch in a line, and the case's launches as a program.
    stderr
        What the process said last if it died, or that it died after the case before.
    checks
        How many comparisons the case made.
    command, date
        How and when it was asked (UTC).
    """

    clause: str
    case: str
    subject: str
    verdict: str
    expected: str = ""
    observed: str = ""
    device: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    is_own: bool = False
    asked: str = ""
    program: str = ""
    stderr: str = ""
    checks: int = 0
    command: str = ""
    date: str = ""

    @property
    def question(self) -> str:
        """The case's address without its parameters."""
        return ":".join(self.case.split(":")[:2])

    def line(self) -> bytes:
        """Give the record as one line of JSON; half of a surrogate pair, which UTF-8 has not, stands escaped."""
        return json.dumps(asdict(self), ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


class Recorder:
    """Appends records to a file, each as it ends, straight to the system; a line that a crash cut off goes first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._handle, whole)  # a last line that a crash has cut off

    def write(self, record: Record) -> None:
        """Append a record."""
        line = record.line()
        while line:
            line = line[os.write(self._handle, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read(path: Path) -> Iterator[Record]:
    """Give the records of a file; a last line that was cut off by a crash is left out.

    Raises
    ------
    ValueError
        A line that is no record; it names file and line.
    """
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            yield _record_of(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: expected a record as one line of JSON: {error}.") from error


_KINDS: Final[dict[str, type | tuple[type, ...]]] = {"str": str, "int": int, "float": (int, float), "bool": bool}


def _record_of(fields: object) -> Record:
    """Make a record of what JSON says; fields that it has not are left out, later versions may have more."""
    if not isinstance(fields, dict):
        raise ValueError(f"got {fields!r:.80} ({type(fields).__name__})")
    own = {name: fields[name] for name in Record.__dataclass_fields__ if name in fields}
    if lacking := [name for name in ("clause", "case", "subject", "verdict") if name not in own]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    for name, value in own.items():
        if not isinstance(value, _KINDS.get(str(Record.__dataclass_fields__[name].type), dict)):
            raise ValueError(f"{name} is {value!r:.80} ({type(value).__name__})")
    for name, version in own.get("versions", {}).items():
        if not isinstance(version, str):
            raise ValueError(f"version of {name!r:.80} is {version!r:.80} ({type(version).__name__})")
    if own["verdict"] not in get_args(Verdict):
        raise ValueError(f"verdict is {own['verdict']!r:.80}; there are {', '.join(get_args(Verdict))}")
    return Record(**own)


def gather(places: Iterable[Path]) -> list[Record]:
    """Give the records of files, and of folders of `*.jsonl`, oldest first.

    Raises
    ------
    ValueError
        A place that is not there, that holds no record, or a line that is none.
    """
    found: list[Record] = []
    for place in places:
        if not place.exists():
            raise ValueError(f"{place}: expected a file of records or a folder of them, there is nothing.")
        before = len(found)
        for path in sorted(place.glob("*.jsonl")) if place.is_dir() else [place]:
            found += read(path)
        if len(found) == before:
            raise ValueError(f"{place}: expected records, there are none. `gridpact verify --json FILE` writes them.")
    return sorted(found, key=lambda record: record.date)


def latest(records: list[Record]) -> list[Record]:
    """Give the last answer of each subject to each case; `records` are oldest first."""
    return list({(record.subject, record.case): record for record in apart(records)}.values())


def subjects_of(records: Iterable[Record]) -> list[str]:
    """Name the subjects, our own first."""
    return [name for _, name in sorted({(not record.is_own, record.subject) for record in records})]


def summary(folder: Path) -> str:
    """Write the README of an evidence folder from its records: confirmed, violated by whom, not run and why."""
    from gridpact.conformance.model import CLAUSES, load_contract
    from gridpact.conformance.report import OPEN_POINTS, RUN_TIME_TESTS

    load_contract()
    records = latest(gather([folder]))
    subjects = subjects_of(records)
    parts = [
        "# Evidence\n",
        _HEAD,
        "## Who was asked, on what\n",
        _row("subject", "device", "driver", "versions", "cases", "last"),
    ]
    parts.append(_row(*["---"] * 6))
    for subject in subjects:
        mine = [record for record in records if record.subject == subject]
        versions = ", ".join(f"{name} {version}" for name, version in mine[-1].versions.items())
        last = max(record.date for record in mine)
        parts.append(_row(f"`{subject}`", mine[-1].device, mine[-1].driver, versions, str(len(mine)), last))
    for title, questions in (("Seven run-time tests", RUN_TIME_TESTS), ("Seven open points", OPEN_POINTS)):
        parts += [f"\n## {title}\n", *_answered(questions, records, subjects)]
    parts += [
        "\n## Clauses\n",
        _row("clause", *(f"`{subject}`" for subject in subjects)),
        _row(*["---"] * (len(subjects) + 1)),
    ]
    for number in CLAUSES:
        cells = [
            _told([r.verdict for r in records if (r.subject, r.clause) == (subject, number)]) for subject in subjects
        ]
        if any(cells):
            parts.append(_row(number, *cells))
    parts.append("\n## Violated, by whom\n")
    for subject in subjects:
        found = [record for record in records if record.subject == subject and record.verdict == "violated"]
        by_question: dict[str, list[Record]] = {}
        for record in found:
            by_question.setdefault(record.question, []).append(record)
        parts += [_finding(subject, question, asked) for question, asked in by_question.items()]
    if not any(record.verdict == "violated" for record in records):
        parts.append("Nothing.\n")
    parts.append("\n## Unguarded: late, vague or silent, or our own rule differs\n")
    parts += _listed(records, "unguarded")
    parts.append("\n## Not run, and why\n")
    parts += _reasons(records)
    return "\n".join(parts).rstrip() + "\n"


_HEAD: Final = """\
Made by `python -m gridpact.conformance.evidence evidence` from the records beside it; do not edit. Each record is a
line of JSON: clause, case, subject, verdict, what was due and seen, device, driver, versions, command, date. Repeat a
case with `gridpact verify --case 'ADDRESS' -v`. The program of a finding runs by hand, with that launcher alone, and
prints what was seen; where threads meet (THREAD-1) it does so in some runs.
"""


def _made_of(record: Record) -> str:
    """Give the version of Triton."""
    names = ("triton", "triton-xpu", "pytorch-triton")
    return ", ".join(record.versions[name] for name in names if name in record.versions)


def apart(records: list[Record]) -> list[Record]:
    """Tell a launcher apart by Triton's version, where several were asked under one name."""
    asked: dict[str, set[str]] = {}
    for record in records:
        asked.setdefault(record.subject, set()).add(_made_of(record))
    return [
        record if len(asked[record.subject]) == 1 else replace(record, subject=f"{record.subject} {_made_of(record)}")
        for record in records
    ]


def _in_a_line(observed: str) -> str:
    lines = observed.strip().splitlines()
    return " … ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else "nothing"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_NOT_ASKED: Final = ("unsupported", "unimplemented")


def _told(verdicts: list[str]) -> str:
    if not verdicts:
        return ""
    asked = [verdict for verdict in verdicts if verdict not in _NOT_ASKED]
    worst = next((v for v in ("error", "violated", "unguarded") if v in asked), "pass" if asked else "unsupported")
    return f"{worst} {asked.count('pass')}/{len(asked)}" if asked else "not run"


def _answered(questions: Sequence[Question], records: list[Record], subjects: list[str]) -> Iterator[str]:
    """Answer the questions that the project began with, and name for each a case that shows the worst answer."""
    from gridpact.conformance.report import example

    found = [question.of(records) for question in questions]
    yield _row("question", *(f"`{subject}`" for subject in subjects))
    yield _row(*["---"] * (len(subjects) + 1))
    for question, mine in zip(questions, found, strict=True):
        told = [_told([record.verdict for record in mine if record.subject == subject]) for subject in subjects]
        yield _row(question.text, *told)
    yield ""
    for question, mine in zip(questions, found, strict=True):
        left = question.left(mine)
        yield f"- {question.text}: `{example(mine)}`" + (f"; {left}" if left else "")


def _finding(subject: str, question: str, records: list[Record]) -> str:
    """Tell what was due and seen in the case with the smallest program, and name the others of the same question."""
    first = min(records, key=lambda record: len(record.program) or 10**6)
    number, name = question.split(":")
    told = [
        f"### {number} by `{subject}`: {name.replace('_', ' ')}\n",
        f"- case `{first.case}`, Triton {_made_of(first)}, on {first.device}",
        f"- due: {first.expected}",
        f"- seen: {_in_a_line(first.observed)}",
    ]
    told += [f"- known: {report}" for report in known(first)]
    if len(records) > 1:
        others = [f"`{record.case.removeprefix(question + ':')}`" for record in records if record is not first]
        told.append(f"- also, {len(others)} cases: {', '.join(others)}")
    if first.program:
        told += ["", "```python", first.program.strip(), "```"]
    return "\n".join(told) + "\n"


@cache
def _reports() -> list[list[str]]:
    text = files("gridpact.conformance").joinpath("known.txt").read_text()
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [[part.strip() for part in row.split(" | ")] for row in rows]


def known(record: Record) -> list[str]:
    """Give public reports of a violation."""
    return [
        report
        for subject, case, report in _reports()
        if fnmatch.fnmatchcase(record.subject, subject) and fnmatch.fnmatchcase(record.case, case)
    ]


def _listed(records: list[Record], verdict: str) -> list[str]:
    found = [record for record in records if record.verdict == verdict]
    rows = [_row("subject", "case", "due", "seen"), _row(*["---"] * 4)]
    for record in found:
        seen = _in_a_line(record.observed)
        rows.append(_row(f"`{record.subject}`", f"`{record.case}`", record.expected[:120], seen[:160]))
    return rows if found else ["Nothing.\n"]


def _reasons(records: list[Record]) -> list[str]:
    counts: dict[tuple[str, str, str], int] = {}
    for record in records:
        if record.verdict in _NOT_ASKED:
            key = (record.subject, record.clause, record.observed)
            counts[key] = counts.get(key, 0) + 1
    rows = [_row("subject", "clause", "cases", "reason"), _row(*["---"] * 4)]
    rows += [_row(f"`{subject}`", clause, str(count), reason) for (subject, clause, reason), count in counts.items()]
    return rows if counts else ["Everything was run.\n"]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "README.md").write_text(summary(place))
