"""What the page says, as plain data: answers, matrix, clauses, subjects, commands, what was not run.

Every string of a record passes `report.visible` on its way here: no character of it can act on the text around it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import quote

from gridpact.conformance.evidence import Record, known, subjects_of
from gridpact.conformance.model import CASES, CLAUSES, load_contract
from gridpact.conformance.report import OPEN_POINTS, RUN_TIME_TESTS, SIGNS, Question, example, tally, visible, worst

__all__ = ["Answer", "Cell", "Clause", "Content", "Plan", "Reason", "Row", "Subject", "describe"]

_FOUND: Final = ("violated", "unguarded", "error")  # verdicts whose program is worth its bytes
_NOT_RUN: Final = ("unsupported", "unimplemented")
_LONGEST: Final = 400  # characters of a text in a table; the whole stands with its record

BASES: Final = {
    "triton": "promised by Triton's language and documents",
    "guardrail": "outside of Triton's promise, where silence would be dangerous",
    "gridpact": "gridpact's own rule",
}
"""Basis of a clause -> what it means."""


@dataclass(frozen=True)
class Cell:
    """What one subject answered to a clause or a question: the worst verdict, passes of what was asked, where it is."""

    subject: int
    verdict: str
    told: str
    link: str

    @property
    def sign(self) -> str:
        """Give the verdict's sign."""
        return SIGNS[self.verdict][0]


@dataclass(frozen=True)
class Subject:
    """A launcher, and what it ran on."""

    name: str
    parts: tuple[str, ...]  # of the name: a heading may break between them
    is_own: bool
    device: str
    driver: str
    versions: str
    cases: int
    last: str
    commands: tuple[int, ...]  # numbers of them, from 1


@dataclass(frozen=True)
class Answer:
    """A question that the project began with, and each subject's answer; `left` is owed to GPUs."""

    text: str
    cells: tuple[Cell | None, ...]
    example: str
    left: str


@dataclass(frozen=True)
class Plan:
    """What the cases of one name ask."""

    name: str
    kind: str
    text: str
    count: int


@dataclass(frozen=True)
class Row:
    """One subject's answer to a clause, told by its worst case."""

    subject: int
    cell: Cell
    case: str
    asked: str
    due: str
    seen: str
    known: tuple[str, ...]


@dataclass(frozen=True)
class Clause:
    """A clause with all that was seen of it; `program` is the smallest that shows a violation, `shows` whose it is."""

    number: str
    anchor: str
    family: str
    sentence: str
    basis: str
    why: str
    plans: tuple[Plan, ...]
    cells: tuple[Cell | None, ...]
    rows: tuple[Row, ...]
    cases: int
    shows: str
    program: str

    @property
    def verdicts(self) -> str:
        """Name the verdicts that its cells have."""
        return " ".join(verdict for verdict in SIGNS if any(cell and cell.verdict == verdict for cell in self.cells))


@dataclass(frozen=True)
class Reason:
    """Why cases were not run, of which subjects and clauses."""

    text: str
    subjects: tuple[str, ...]
    clauses: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Content:
    """All of the page; `embedded` is what its script reads."""

    subjects: tuple[Subject, ...]
    families: tuple[str, ...]
    answers: tuple[tuple[str, tuple[Answer, ...]], ...]
    clauses: tuple[Clause, ...]
    commands: tuple[str, ...]
    reasons: tuple[Reason, ...]
    signs: dict[str, str]
    bases: dict[str, str]
    cases: int
    last: str
    embedded: dict[str, Any]


def describe(records: Sequence[Record]) -> Content:
    """Turn records, each case of each subject once, into what the page says."""
    load_contract()
    order = {number: at for at, number in enumerate(CLAUSES)}
    place = {address: at for at, address in enumerate(CASES)}
    shown = sorted(
        (_visible_record(record) for record in records),
        key=lambda it: (order.get(it.clause, len(order)), it.clause, place.get(it.case, len(place)), it.case),
    )
    subjects = subjects_of(shown)
    anchors = _anchors(dict.fromkeys(record.clause for record in shown))
    by_cell: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in shown:
        by_cell[record.clause, record.subject].append(record)
    clauses = tuple(_clause(number, anchors[number], subjects, by_cell) for number in anchors)
    commands = list(dict.fromkeys(record.command for record in sorted(shown, key=lambda it: it.date) if record.command))
    return Content(
        tuple(_subject(name, [r for r in shown if r.subject == name], commands) for name in subjects),
        tuple(dict.fromkeys(clause.family for clause in clauses)),
        tuple(
            (title, tuple(_answer(question, shown, subjects, anchors) for question in questions))
            for title, questions in (("Seven run-time tests", RUN_TIME_TESTS), ("Seven open points", OPEN_POINTS))
        ),
        clauses,
        tuple(commands),
        _reasons(shown),
        {verdict: sign for verdict, (sign, _) in SIGNS.items()},
        BASES,
        len(shown),
        max(record.date for record in shown),
        _embedded(shown, subjects, anchors),
    )


# ------------------------------------------------------------------------------------------------------------- strings


def _visible_record(record: Record) -> Record:
    texts: dict[str, Any] = {
        field.name: visible(getattr(record, field.name)) for field in fields(Record) if field.type == "str"
    }
    versions = {visible(name): visible(version) for name, version in record.versions.items()}
    return replace(record, versions=versions, **texts)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _anchors(numbers: Iterable[str]) -> dict[str, str]:
    """Give each clause an id in the page: its number, if that can be one."""
    return {
        number: number if re.fullmatch(r"[A-Z]+-\d+", number) else f"clause-{at}" for at, number in enumerate(numbers)
    }


# -------------------------------------------------------------------------------------------------------------- clauses


def _cell(subject: int, records: Sequence[Record], link: str) -> Cell:
    verdicts = [record.verdict for record in records]
    return Cell(subject, worst(verdicts), tally(verdicts), link)


def _telling(records: Sequence[Record]) -> Record:
    """Choose the record that tells most: of the worst verdict, and there the one with the smallest program."""
    verdict = worst(record.verdict for record in records)
    return min((r for r in records if r.verdict == verdict), key=lambda record: len(record.program) or 10**6)


def _clause(number: str, anchor: str, subjects: Sequence[str], by_cell: dict[tuple[str, str], list[Record]]) -> Clause:
    cells: list[Cell | None] = []
    rows, found = [], []
    cases: set[str] = set()
    for at, subject in enumerate(subjects):
        mine = by_cell.get((number, subject), [])
        if not mine:
            cells.append(None)
            continue
        cell, record = _cell(at, mine, f"#{anchor}--{at}"), _telling(mine)
        cells.append(cell)
        rows.append(
            Row(at, cell, record.case, _short(record.asked), _short(record.expected), _short(record.observed),
                tuple(known(record)) if record.verdict in _FOUND else ())
        )  # fmt: skip
        found += [r for r in mine if r.verdict in _FOUND and r.program]
        cases.update(r.case for r in mine)
    # A violation shows more than silence does, however short the program of that.
    smallest = min(found, key=lambda it: (it.verdict != "violated", len(it.program)), default=None)
    entered = CLAUSES.get(number)
    return Clause(
        number,
        anchor,
        number.partition("-")[0],
        entered.sentence if entered else "",
        entered.basis if entered else "",
        entered.why if entered else "",
        _plans(number),
        tuple(cells),
        tuple(rows),
        len(cases),
        f"{smallest.case} on {smallest.subject}" if smallest else "",
        smallest.program.strip() if smallest else "",
    )


def _plans(number: str) -> tuple[Plan, ...]:
    by_name: defaultdict[str, list[Any]] = defaultdict(list)
    for case in CASES.values():
        if case.clause == number:
            by_name[case.name].append(case)
    return tuple(Plan(name, cases[0].kind, cases[0].plan, len(cases)) for name, cases in by_name.items())


def _answer(question: Question, records: Sequence[Record], subjects: Sequence[str], anchors: dict[str, str]) -> Answer:
    found = question.of(records)
    by_subject: defaultdict[str, list[Record]] = defaultdict(list)
    for record in found:
        by_subject[record.subject].append(record)
    cells: list[Cell | None] = []
    for at, subject in enumerate(subjects):
        mine = by_subject.get(subject)
        if mine:
            record = _telling(mine)
            link = f"#{anchors[record.clause]}--{at}?case={quote(record.case, safe=':')}"
            cells.append(_cell(at, mine, link))
        else:
            cells.append(None)
    return Answer(question.text, tuple(cells), example(found), question.left(found))


# ----------------------------------------------------------------------------------------------------------------- runs


def _subject(name: str, records: Sequence[Record], commands: Sequence[str]) -> Subject:
    last = max(records, key=lambda record: record.date)
    mine = {record.command for record in records}
    return Subject(
        name,
        tuple(re.findall(r"[^: ]*[: ]?", name)[:-1]),
        last.is_own,
        last.device,
        last.driver,
        ", ".join(f"{what} {version}" for what, version in last.versions.items()),
        len(records),
        last.date,
        tuple(number for number, command in enumerate(commands, start=1) if command in mine),
    )


def _reasons(records: Sequence[Record]) -> tuple[Reason, ...]:
    by_text: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.verdict in _NOT_RUN:
            by_text[record.observed or "no reason is told"].append(record)
    reasons = (
        Reason(text, tuple(subjects_of(mine)), tuple(dict.fromkeys(record.clause for record in mine)), len(mine))
        for text, mine in by_text.items()
    )
    return tuple(sorted(reasons, key=lambda reason: -reason.count))


# --------------------------------------------------------------------------------------------- what the script reads


def _embedded(records: Sequence[Record], subjects: Sequence[str], anchors: dict[str, str]) -> dict[str, Any]:
    """Give every record as a row of numbers: of its case, subject, verdict, texts and run; equal texts stand once."""
    texts: dict[str, int] = {"": 0}
    runs: dict[tuple[str, ...], int] = {}
    verdicts, places = list(SIGNS), {name: at for at, name in enumerate(subjects)}
    clauses: dict[str, dict[str, Any]] = {
        anchor: {"number": number, "cases": {}, "records": []} for number, anchor in anchors.items()
    }

    def number_of(text: str) -> int:
        return texts.setdefault(text, len(texts))

    for record in records:
        mine = clauses[anchors[record.clause]]
        case = mine["cases"].setdefault(record.case, len(mine["cases"]))
        versions = ", ".join(f"{what} {version}" for what, version in record.versions.items())
        run = (record.device, record.driver, versions, record.command)
        is_found = record.verdict in _FOUND
        told = (
            record.asked,
            record.expected,
            record.observed,
            record.program.strip() if is_found else "",
            record.stderr.strip() if is_found else "",
        )
        mine["records"].append(
            [case, places[record.subject], verdicts.index(record.verdict), *map(number_of, told),
             runs.setdefault(run, len(runs))]
        )  # fmt: skip
    for mine in clauses.values():
        mine["cases"] = list(mine["cases"])
    return {
        "verdicts": [[verdict, sign] for verdict, (sign, _) in SIGNS.items()],
        "subjects": list(subjects),
        "texts": list(texts),
        "runs": [list(run) for run in runs],
        "clauses": clauses,
    }
