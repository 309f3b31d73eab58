"""Why a kernel was compiled: which facts are new against the nearest binary that it has, and whether it never ends.

Each new binary of a kernel makes one `Compile`, which observers are told (`hooks.observe(compiled=...)`). A fact that
has made `STORM` binaries of one kernel in this process, and is no type or class of an argument, is warned of, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gridpact.identity import Change, Key, differences

if TYPE_CHECKING:
    from gridpact.jit import Kernel

__all__ = ["STORM", "Compile", "Origin", "RecompileWarning", "explained", "nearest", "remedy_for", "warn_of_storm"]

Origin: TypeAlias = Literal["compiled", "disk", "memory"]

STORM: Final = 16
"""Binaries of one kernel that one fact has made when it is warned of."""


class RecompileWarning(RuntimeWarning):
    """A kernel is compiled again and again for one fact (KEY-4)."""


@dataclass(frozen=True)
class Compile:
    """A binary that a kernel did not have, and why it was needed.

    Attributes
    ----------
    kernel
        Name of the kernel.
    device
        Name of the device that asked for it.
    key
        Identity of the binary; `key.digest` is the `hash` of its `CompiledKernel`.
    origin
        `compiled`, read from `disk`, or in `memory` for another kernel of the same identity.
    elapsed_ns
        What that took, nanoseconds.
    changes
        Facts in which it differs from the nearest binary that the kernel had; none for its first one.
    known
        How many it had.
    """

    kernel: str
    device: str
    key: Key = field(repr=False)
    origin: Origin
    elapsed_ns: int
    changes: tuple[Change, ...]
    known: int

    def __str__(self) -> str:
        how = f"compiled in {self.elapsed_ns / 1e9:.2f} s" if self.origin == "compiled" else f"from {self.origin}"
        why = "; ".join(map(str, self.changes)) if self.known else "its first binary"
        return f"{self.kernel} on {self.device}, {how}: {why}"


def nearest(key: Key, known: Iterable[Key]) -> tuple[Change, ...]:
    """Give the changes from the known key that differs in the fewest facts; of several the latest, none without any."""
    changes = [tuple(differences(other.facts, key.facts)) for other in known]
    return min(reversed(changes), key=lambda each: len(each), default=())


def explained(kernel: Kernel, device: str, key: Key, origin: Origin, elapsed_ns: int) -> Compile:
    """Say why a binary is needed that a kernel has not, and count what made it."""
    changes = nearest(key, kernel.compiled)
    kernel.causes.update(change.name for change in changes)
    return Compile(kernel.__name__, device, key, origin, elapsed_ns, changes, len(kernel.compiled))


def warn_of_storm(kernel: Kernel, compiled: Compile) -> None:
    """Warn of a fact that has just made its `STORM`th binary of a kernel.

    Warns
    -----
    RecompileWarning
        KEY-4.
    """
    for change in compiled.changes:
        is_endless = not change.name.startswith("argument ")  # types and classes come to an end
        if is_endless and kernel.causes[change.name] == STORM:
            told = f"{STORM} of its {compiled.known + 1} binaries differ in one fact, {change}. {remedy_for(change)}"
            warnings.warn(f"kernel {kernel.__name__!r}: {told} [KEY-4]", RecompileWarning, stacklevel=2)


def remedy_for(change: Change) -> str:
    """Say what would spare the binaries that a fact makes."""
    kind, _, name = change.name.partition(" ")
    if kind == "constexpr":
        return f"Pass {name!r} as a number that is no constexpr, or choose among few values of it."
    if kind == "argument":
        return f"Name it in do_not_specialize=[{name!r}] if its class does not pay (`gridpact variants` shows)."
    if kind in ("captured", "default"):
        return "Pass it as a parameter."
    if kind in ("source", "helper"):
        return "Define the function once."
    return "Keep it the same from launch to launch."
