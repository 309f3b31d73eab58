"""Clauses and cases: what can be asked, under which address.

A case is a plain function of a subject and of its parameters. Its address is its clause, its name and its parameters,
`GRID-4:every_triple_runs_once:grid=7x5x3`; what is printed is what can be pasted back.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

__all__ = [
    "CASES",
    "CLAUSES",
    "FAMILIES",
    "Basis",
    "Case",
    "Clause",
    "Kind",
    "Tier",
    "Unguarded",
    "Unimplemented",
    "Unsupported",
    "Verdict",
    "Violated",
    "case",
    "clause",
    "load_contract",
    "select",
]

Basis: TypeAlias = Literal["triton", "guardrail", "gridpact"]
Kind: TypeAlias = Literal["positive", "control", "negative"]
Tier: TypeAlias = Literal["quick", "slow"]
Verdict: TypeAlias = Literal["pass", "violated", "unguarded", "unsupported", "unimplemented", "error"]

FAMILIES: Final = ("grid", "stream", "device", "capture", "meta", "argument", "spec", "key", "state", "hook", "thread")
"""Modules of `gridpact.contract` that hold clauses and their cases, in the order of the report."""

LIMITS_S: Final[dict[Tier, float]] = {"quick": 60.0, "slow": 900.0}
"""Of a case's time, by tier."""

CLAUSES: Final[dict[str, Clause]] = {}
CASES: Final[dict[str, Case]] = {}


class Violated(Exception):
    """A valid launch went wrong, or an invalid one ran something else than was asked."""

    def __init__(self, asked: str, due: object, seen: object) -> None:
        super().__init__(f"{asked}: due {due}, seen {seen}")
        self.asked, self.due, self.seen = asked, due, seen


class Unguarded(Violated):
    """It failed late or vaguely, or did nothing in silence; only of foreign subjects, ours are violated by it."""


class Unimplemented(Exception):
    """The subject could be asked, and nobody has written how."""


class Unsupported(Exception):
    """The subject declares beforehand that it cannot be asked this; the reason is the text."""


@dataclass(frozen=True)
class Clause:
    """One rule of the launch contract.

    Attributes
    ----------
    number
        Such as `GRID-4`; never reused.
    basis
        Where it comes from: what Triton's language and documents promise, a guardrail outside of that promise where
        silence would be dangerous, or our own rule.
    sentence
        The rule.
    why
        What goes wrong without it.
    """

    number: str
    basis: Basis
    sentence: str
    why: str = ""


@dataclass(frozen=True)
class Case:
    """One question to a subject.

    Attributes
    ----------
    clause, name, parameters
        Its address.
    kind
        `positive` asks for what the clause promises, `negative` breaks this one rule, `control` is a negative without
        its fault.
    tier
        `quick` cases together take minutes, `slow` ones are asked on request.
    ends_worker
        It leaves work behind that never ends (a grid of 2^47 programs); its process is killed when it has answered.
    limit_s
        After so many seconds without an answer it hangs.
    run
        Takes the subject and the parameters by name. Raises `Violated`, `Unguarded` or `Unsupported`.
    """

    clause: str
    name: str
    parameters: Mapping[str, object]
    kind: Kind
    tier: Tier
    ends_worker: bool
    limit_s: float
    run: Callable[..., None] = field(repr=False)

    @property
    def id(self) -> str:
        """The address."""
        shown = ";".join(f"{name}={_shown(value)}" for name, value in self.parameters.items())
        return f"{self.clause}:{self.name}" + (f":{shown}" if shown else "")

    @property
    def plan(self) -> str:
        """What it asks, in a sentence: the docstring of its function."""
        return (inspect.getdoc(self.run) or "").split("\n\n")[0].replace("\n", " ")


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def clause(number: str, basis: Basis, sentence: str, why: str = "") -> None:
    """Enter a clause."""
    if number in CLAUSES:
        raise ValueError(f"clause {number} is entered twice")
    CLAUSES[number] = Clause(number, basis, sentence, why)


def case(
    number: str,
    *,
    kind: Kind = "positive",
    tier: Tier = "quick",
    ends_worker: bool = False,
    limit_s: float | None = None,
    **parameters: Iterable[object] | Mapping[str, object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter the cases of a clause: one for each combination of parameters.

    Parameters
    ----------
    number
        The clause; entered before.
    kind, tier, ends_worker
        See `Case`.
    limit_s
        Seconds; that of the tier if not given.
    parameters
        Name -> values; a mapping gives values names for the address: `grid={"a_float": 2.0}`.
    """
    if number not in CLAUSES:
        raise ValueError(f"no clause {number}")

    def enter(run: Callable[..., None]) -> Callable[..., None]:
        choices = [list(values) for values in parameters.values()]
        for chosen in itertools.product(*choices):
            named = dict(zip(parameters, chosen, strict=True))
            bound = _bound(run, parameters, named)
            entered = Case(number, run.__name__, named, kind, tier, ends_worker, limit_s or LIMITS_S[tier], bound)
            if entered.id in CASES:
                raise ValueError(f"case {entered.id} is entered twice")
            CASES[entered.id] = entered
        return run

    return enter


def _bound(run: Callable[..., None], parameters: Mapping[str, Any], named: Mapping[str, object]) -> Callable[..., None]:
    def value_of(name: str) -> Any:
        choices = parameters[name]
        return choices[named[name]] if isinstance(choices, Mapping) else named[name]

    values = {name: value_of(name) for name in named}

    def ask(subject: object) -> None:
        run(subject, **values)

    ask.__doc__ = run.__doc__
    return ask


def load_contract() -> None:
    """Enter every clause and case, once."""
    for family in FAMILIES:
        importlib.import_module(f"gridpact.contract.{family}")


def select(clauses: Iterable[str] = (), cases: Iterable[str] = (), tiers: Iterable[Tier] = ("quick",)) -> list[Case]:
    """Choose cases by clause and address (`*` is a wildcard) and by tier; a named case is chosen whatever its tier.

    Raises
    ------
    ValueError
        A clause or an address that matches nothing, or all of them together.
    """
    load_contract()
    clauses, cases, tiers = list(clauses), list(cases), set(tiers)
    for number in clauses:
        if not fnmatch.filter(CLAUSES, number):
            raise ValueError(f"no clause {number!r}; there are {', '.join(CLAUSES)}")
    for pattern in cases:
        if not fnmatch.filter(CASES, pattern):
            raise ValueError(f"no case matches {pattern!r}; --list shows all")
    chosen = []
    for entered in CASES.values():
        is_named = any(fnmatch.fnmatchcase(entered.id, pattern) for pattern in cases)
        is_of_clause = any(fnmatch.fnmatchcase(entered.clause, number) for number in clauses)
        if (clauses and not is_of_clause) or (cases and not is_named):
            continue
        if is_named or entered.tier in tiers:
            chosen.append(entered)
    if not chosen:
        raise ValueError("nothing to ask: no case is of these clauses, addresses and tiers together")
    return chosen
