"""What people see of a run: a table clause by subject, the first violations in full, and two tables of answers.

The answers are to the questions that this project began with: seven run-time tests, and seven points that the source
of the launchers left open. Each answer is made from the records of some cases and names one of them, or says why
there is none yet.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gridpact.conformance.evidence import Record
from gridpact.conformance.model import CLAUSES

__all__ = ["OPEN_POINTS", "RUN_TIME_TESTS", "Question", "answers", "example", "matrix", "violations"]

SIGNS: Final = {
    "pass": ("✓", "green"),
    "violated": ("✗", "red"),
    "unguarded": ("!", "yellow"),
    "unsupported": ("-", "dim"),
    "unimplemented": ("?", "dim"),
    "error": ("E", "magenta"),
}
"""Verdict -> sign and colour; a verdict is never told by colour alone."""

_WORST: Final = ("error", "violated", "unguarded", "pass", "unimplemented", "unsupported")


@dataclass(frozen=True)
class Question:
    """One of the questions that the project began with.

    Attributes
    ----------
    text
        The question.
    cases
        Patterns of the addresses whose records answer it.
    owed
        Kind of GPU -> what only a run on one can add to the answer.
    """

    text: str
    cases: tuple[str, ...]
    owed: Mapping[str, str] = field(default_factory=dict)

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Give the records that answer it."""
        return [r for r in records if any(fnmatch.fnmatchcase(r.case, pattern) for pattern in self.cases)]

    def left(self, found: Iterable[Record]) -> str:
        """Say what is owed to the GPUs that none of the records that answer it are from; nothing if to none."""
        answered = [record.subject for record in found if record.verdict in ("pass", "violated", "unguarded")]
        owed = {gpu: what for gpu, what in self.owed.items() if not any(map(_GPUS[gpu].search, answered))}
        return f"owed to {'; to '.join(f'{gpu}: {what}' for gpu, what in owed.items())}" if owed else ""


_CUDA, _INTEL = "a CUDA GPU", "an Intel GPU"
_GPUS: Final = {_CUDA: re.compile(r":cuda:\d"), _INTEL: re.compile(r":(xpu|sycl:gpu):\d")}
"""Kind of GPU -> what subjects that run on one are called."""

RUN_TIME_TESTS: Final = (
    Question("2- and 3-axis program ids", ("GRID-4:*",), {_CUDA: "ids that kernels read", _INTEL: "the same"}),
    Question("missing axes are 1", ("GRID-2:*",), {_CUDA: "what kernels read", _INTEL: "the same"}),
    Question("tuple against callable", ("GRID-5:*", "GRID-10:*"), {_CUDA: "what kernels read", _INTEL: "the same"}),
    Question("unsupported lengths", ("GRID-3:*",)),
    Question("ordering across queues", ("STREAM-[23]:*",), {_CUDA: "streams and events", _INTEL: "torch's streams"}),
    Question("hooks observational", ("HOOK-1:*",), {_CUDA: "hooks on side streams", _INTEL: "the same"}),
    Question("limits of backend metadata", ("GRID-7:*", "META-2:*", "META-4:*"),
             {_CUDA: "65,535 on y and z, opt-in memory, co-residency, clusters", _INTEL: "threads and memory"}),
)  # fmt: skip

OPEN_POINTS: Final = (
    Question("ids right on every target", ("GRID-4:*", "GRID-8:*", "META-5:*"),
             {_CUDA: "ids and geometry as they run", _INTEL: "the same through Level Zero"}),
    Question("lengths refused", ("GRID-3:*",)),
    Question("asynchronous ordering on each stream path", ("STREAM-[1-4]:*", "CAPTURE-*"),
             {_CUDA: "streams, events, capture in graphs", _INTEL: "torch's streams"}),
    Question("a meaning for every shared metadata field", ("META-2:*", "META-6:*"),
             {_CUDA: "maxnreg, launch_pdl, launch_cooperative_grid, cluster_dims as they run", _INTEL: "grf_mode"}),
    Question("non-default num_ctas", ("META-2:*cta*",), {_CUDA: "clusters that run"}),
    Question("hooks transparent in every configuration", ("HOOK-*",), {_CUDA: "streams and graphs", _INTEL: "streams"}),
    Question("an error or silent wrong result caused by this boundary", ("*",),
             {_CUDA: "what only hardware shows", _INTEL: "the same"}),
)  # fmt: skip


def visible(text: str) -> str:
    """Give a text whose control characters show: those of terminals and those that turn the direction of text."""
    return _ACTING.sub(_shown, text)


_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨{unicodedata.name(found[0], f'U+{code:04X}')}⟩"


def worst(verdicts: Iterable[str]) -> str:
    """Give the worst of some verdicts; one pass makes up for no violation, and for any unsupported."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST if verdict in found), "unimplemented")


def matrix(records: Sequence[Record], subjects: Sequence[str]) -> Table:
    """Make the table clause by subject: sign, and passes of what was asked."""
    by_cell: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for record in records:
        by_cell[record.clause, record.subject].append(record.verdict)
    table = Table(title="Verdicts", title_justify="left", title_style="bold")
    table.add_column("clause", no_wrap=True)
    for subject in subjects:
        table.add_column(_heading(subject), justify="right", no_wrap=True)
    for number in CLAUSES:
        if any((number, subject) in by_cell for subject in subjects):
            table.add_row(number, *(_cell(by_cell.get((number, subject), [])) for subject in subjects))
    return table


def _heading(subject: str) -> str:
    """Name a subject in lines: whose it is, what it is, and its version where several were asked."""
    return visible(subject).replace(":", ":\n", 1).replace(" ", "\n")


def _cell(verdicts: list[str]) -> Text:
    if not verdicts:
        return Text("")
    sign, colour = SIGNS[worst(verdicts)]
    return Text(f"{tally(verdicts)} {sign}", style=colour)


def tally(verdicts: Sequence[str]) -> str:
    """Count passes by what was asked."""
    counts = Counter(verdicts)
    asked = len(verdicts) - counts["unsupported"] - counts["unimplemented"]
    return f"{counts['pass']}/{asked}" if asked else "none"


def legend() -> Text:
    """Explain the signs."""
    text = Text()
    for verdict, (sign, colour) in SIGNS.items():
        text.append(f"{sign} {verdict}  ", style=colour)
    return text


def violations(records: Sequence[Record], limit: int) -> Group:
    """Show the first violation of each clause and subject in full: asked, due, seen, and a program that shows it."""
    shown: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.verdict in ("violated", "error"):
            shown.setdefault((record.clause, record.subject), record)
    parts: list[Text] = []
    for record in list(shown.values())[:limit]:
        head = Text(f"\n{record.verdict.upper()} ", style=SIGNS[record.verdict][1])
        head.append(visible(f"{record.subject}  {record.case}"), style="bold")
        parts.append(head)
        for name, value in (("asked", record.asked), ("due", record.expected), ("seen", record.observed)):
            if value:
                parts.append(Text(f"  {name:<6}{visible(value).strip()}"))
        if record.program:
            parts.append(
                Text("\n".join(f"    {line}" for line in visible(record.program).strip().splitlines()), style="dim")
            )
    left = len(shown) - limit
    if left > 0:
        parts.append(Text(f"\n… and {left} more; -v shows all, --json keeps them"))
    return Group(*parts)


def answers(title: str, questions: Sequence[Question], records: Sequence[Record], subjects: Sequence[str]) -> Group:
    """Make a table of answers: for each question the verdict of each subject.

    Below it stand a case that shows each answer, and what is owed to the GPUs that have not answered.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("question")
    for subject in subjects:
        table.add_column(_heading(subject), justify="center", no_wrap=True)
    shown = Text()
    for number, question in enumerate(questions, start=1):
        found = question.of(records)
        cells = [_answer([record.verdict for record in found if record.subject == subject]) for subject in subjects]
        table.add_row(str(number), question.text, *cells)
        shown.append(f"  {number}  {visible(example(found))}\n", style="dim")
        if left := question.left(found):
            shown.append(f"     {left}\n", style="dim")
    return Group(table, shown)


def _answer(verdicts: list[str]) -> Text:
    if not verdicts:
        return Text(SIGNS["unimplemented"][0], style="dim")
    sign, colour = SIGNS[worst(verdicts)]
    return Text(sign, style=colour)


def example(records: Sequence[Record]) -> str:
    """Name a case that shows the worst of some records, and whose it is."""
    if not records:
        return "not asked in this run"
    verdict = worst(record.verdict for record in records)
    return next(f"{record.case} on {record.subject}" for record in records if record.verdict == verdict)


def show(console: Console, records: Sequence[Record], subjects: Sequence[str], limit: int) -> None:
    """Print a run: table, violations, answers; more subjects than the console is wide for in tables of their own."""
    for group in _that_fit(subjects, console.width - _CLAUSE_WIDTH):
        console.print(matrix(records, group))
    console.print(legend())
    console.print(violations(records, limit), soft_wrap=True)
    for title, questions in (("Seven run-time tests", RUN_TIME_TESTS), ("Seven open points", OPEN_POINTS)):
        for group in _that_fit(subjects, console.width - _QUESTION_WIDTH):
            table, shown = answers(title, questions, records, group).renderables
            console.print(table)
        console.print(shown, soft_wrap=True)


_CLAUSE_WIDTH: Final = 13  # of the columns before the subjects', with their borders
_QUESTION_WIDTH: Final = 29


def _that_fit(subjects: Sequence[str], width: int) -> list[list[str]]:
    """Part subjects into groups whose columns are no wider together; a group has one at least."""
    groups: list[list[str]] = []
    left = 0
    for subject in subjects:
        needed = max(9, *map(len, _heading(subject).split("\n"))) + 3
        if not groups or needed > left:
            groups.append([])
            left = width
        groups[-1].append(subject)
        left -= needed
    return groups


def summary(records: Sequence[Record], failed: int) -> str:
    """Give the last line: what there was, and how many cases fail the run."""
    counts = Counter(record.verdict for record in records)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in SIGNS if counts[verdict])
    return f"{len(records)} cases: {told or 'none'}; {failed} fail the run"
