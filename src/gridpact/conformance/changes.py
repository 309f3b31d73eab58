"""What changed between two runs: cases whose verdict is another, new ones, and ones that are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gridpact.conformance.evidence import Record

__all__ = ["Change", "changes"]


@dataclass(frozen=True)
class Change:
    """A case that a subject answers otherwise than before; `before` or `now` is empty where it was not asked.

    `seen` is what was seen now, or of a case that is gone, before.
    """

    subject: str
    case: str
    before: str
    now: str
    seen: str

    @property
    def kind(self) -> str:
        """Name what happened to it: `changed`, `new` or `gone`."""
        return "new" if not self.before else "gone" if not self.now else "changed"


def changes(old: Iterable[Record], new: Iterable[Record]) -> list[Change]:
    """Give what differs between two runs, by subject in the order of the older run.

    Parameters
    ----------
    old, new
        Each case of each subject once (`evidence.latest`).
    """
    before = {(record.subject, record.case): record for record in old}
    now = {(record.subject, record.case): record for record in new}
    found = []
    for subject, case in {**before, **now}:
        known = [run.get((subject, case)) for run in (before, now)]
        earlier, later = (record.verdict if record else "" for record in known)
        if earlier != later:
            last = known[1] or known[0]
            lines = last.observed.strip().splitlines() if last else []
            found.append(Change(subject, case, earlier, later, lines[0] if lines else ""))
    order = {subject: at for at, subject in enumerate(dict.fromkeys(change.subject for change in found))}
    return sorted(found, key=lambda change: order[change.subject])
