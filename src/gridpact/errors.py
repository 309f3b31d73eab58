"""What a refused launch says: which thing, which rule, what came, what to do, and which clause.

Three families, so that a caller (and the conformance suite) can tell them apart without reading text: the caller
broke a clause (`ContractError`), the launch is valid but this device cannot do it (`UnsupportedError`), the driver
said no (`BackendError`).
"""

from __future__ import annotations

import reprlib
from typing import Final

__all__ = [
    "BackendError",
    "ContractError",
    "ContractOverflowError",
    "ContractTypeError",
    "ContractValueError",
    "HookError",
    "LaunchError",
    "ResourceError",
    "UnsupportedError",
    "describe",
    "sentence",
]

_NOTHING: Final = object()


def describe(value: object) -> str:
    """Give a value as an error shows it: `repr (type)`, bounded in length, also when its `repr` raises."""
    try:
        text = reprlib.repr(value)
    except Exception:  # a broken __repr__ must not hide the error that is being told
        text = "<no repr>"
    return f"{text} ({type(value).__name__})"


def sentence(subject: str, rule: str, got: object = _NOTHING, remedy: str = "", clause: str = "") -> str:
    """Put an error into the one form that all of them have."""
    text = f"{subject}: {rule}"
    if got is not _NOTHING:
        text += f", got {describe(got)}"
    text += "."
    if remedy:
        text += f" {remedy}"
    if clause:
        text += f" [{clause}]"
    return text


class LaunchError(Exception):
    """Base of everything that a launch refuses or reports."""


class ContractError(LaunchError):
    """The caller broke a clause of the launch contract; nothing was run.

    Parameters
    ----------
    subject
        What is at fault, in the caller's words: `grid.y`, `argument 'n' of 'add'`, `stream`.
    rule
        What was expected there.
    got
        The value that came; left out of the text if not given.
    remedy
        What to do instead, a whole sentence, or nothing.
    clause
        The clause of the contract, such as `GRID-6`.
    """

    def __init__(self, subject: str, rule: str, got: object = _NOTHING, remedy: str = "", clause: str = "") -> None:
        super().__init__(sentence(subject, rule, got, remedy, clause))
        self.subject = subject
        self.rule = rule
        self.got = None if got is _NOTHING else got
        self.remedy = remedy
        self.clause = clause


class ContractTypeError(ContractError, TypeError):
    """A clause broken by the type of a value."""


class ContractValueError(ContractError, ValueError):
    """A clause broken by a value."""


class ContractOverflowError(ContractError, OverflowError):
    """A number that does not fit its declared type (ARG-2)."""


class UnsupportedError(LaunchError):
    """The launch is valid, but this device, backend or toolchain cannot do it; nothing was run.

    Parameters
    ----------
    subject, rule, remedy, clause
        As for `ContractError`.
    capability
        The missing ability in one word, such as `cooperative_grid`.
    """

    def __init__(
        self,
        subject: str,
        rule: str,
        got: object = _NOTHING,
        remedy: str = "",
        clause: str = "",
        capability: str = "",
    ) -> None:
        # Not super(): a subclass may also be an error of Triton with a constructor of its own.
        Exception.__init__(self, sentence(subject, rule, got, remedy, clause))
        self.subject = subject
        self.clause = clause
        self.capability = capability


class ResourceError(UnsupportedError):
    """A kernel needs more of something than the device has (META-4).

    Attributes
    ----------
    need, limit
        Both in `unit`.
    """

    def __init__(self, subject: str, need: int, limit: int, unit: str, remedy: str = "") -> None:
        super().__init__(subject, f"at most {limit} {unit}", need, remedy, "META-4", capability="resources")
        self.need = need
        self.limit = limit
        self.unit = unit


class BackendError(LaunchError, RuntimeError):
    """The driver, the runtime or a tool of theirs failed; a `RuntimeError`, as Triton would raise it.

    Attributes
    ----------
    call
        The call that failed, such as `clBuildProgram`.
    log
        What it printed (a build log), or nothing.
    """

    def __init__(self, subject: str, call: str, reason: str, log: str = "", remedy: str = "") -> None:
        text = f"{subject}: {call} failed: {reason.rstrip('.')}."
        if remedy:
            text += f" {remedy}"
        if log:
            text += f"\n{log.rstrip()}"
        super().__init__(text)
        self.subject = subject
        self.call = call
        self.log = log


class HookError(LaunchError):
    """A launch hook raised (HOOK-5); the hook's own exception is the cause.

    Attributes
    ----------
    hook
        Name of the hook that raised first.
    launched
        False if the launch was given up (enter), True if it stands (exit).
    """

    def __init__(self, hook: str, launched: bool, error: BaseException, others: int) -> None:
        what = "The launch stands" if launched else "Nothing was launched"
        more = f" {others} more of them raised." if others else ""
        super().__init__(f"hook {hook!r}: a hook must not raise, got {describe(error)}. {what}.{more} [HOOK-5]")
        self.hook = hook
        self.launched = launched
        self.clause = "HOOK-5"
