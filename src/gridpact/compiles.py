"""Why a kernel was compiled: which facts are new against the nearest binary that it has, and whether it never ends.

Each new binary of a kernel makes one `Compile`, which observers are told (`hooks.observe(compiled=...)`). A fact that
has made `STORM` binaries of one kernel in this process is warned of, once.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gridpact.identity import Change, Key, differences

__all__ = ["STORM", "Compile", "Origin", "RecompileWarning", "nearest", "of_kernel", "remedy_for"]

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


def of_kernel(
    kernel: str, device: str, key: Key, origin: Origin, elapsed_ns: int, known: Iterable[Key], causes: Counter[str]
) -> Compile:
    """Say why a binary was needed.

    Parameters
    ----------
    known
        The binaries that the kernel had, in the order in which it got them.
    causes
        Name of a fact -> binaries that it made, so far; counted up here.

    Warns
    -----
    RecompileWarning
        KEY-4: a fact made its `STORM`th binary.
    """
    known = list(known)
    changes = nearest(key, known)
    for change in changes:
        causes[change.name] += 1
        if causes[change.name] == STORM:
            warnings.warn(
                f"kernel {kernel!r}: {STORM} of its {len(known) + 1} binaries differ in one fact, {change}. "
                f"{remedy_for(change)} [KEY-4]",
                RecompileWarning,
                stacklevel=2,
            )
    return Compile(kernel, device, key, origin, elapsed_ns, changes, len(known))


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
