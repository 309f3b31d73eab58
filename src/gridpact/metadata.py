"""Two kinds of metadata: what a launch may depend on (`KernelMetadata`), and what observers may see (`LaunchMetadata`).

The second depends on a launch and never the reverse: nothing in the launch path reads a `LaunchMetadata`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from gridpact.errors import ContractTypeError, ContractValueError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    from gridpact.backends.protocol import Device, Limits

__all__ = [
    "KernelMetadata",
    "LaunchMetadata",
    "Option",
    "Policy",
    "check_fields",
    "check_option_names",
    "lacking_resources",
    "nearest_name",
    "option_table",
    "policy_of",
    "power_of_two",
    "resolve_options",
]

Policy: TypeAlias = Literal["applied", "default only", "irrelevant"]


@dataclass(frozen=True)
class KernelMetadata:
    """All of a compiled kernel that its launches depend on, as it was *after* compilation (META-1).

    Attributes
    ----------
    name
        Name of the kernel inside its binary.
    num_warps, threads_per_warp
        Their product is the number of threads of one program.
    shared
        Shared (local) memory of one program, bytes. The name is Triton's.
    num_ctas
        Blocks of the cluster that runs one program.
    build_flags
        What the driver's compiler is told.
    fields
        Every metadata field of the toolchain, also readable as attributes: `metadata.num_stages`.
    """

    name: str
    num_warps: int = 1
    threads_per_warp: int = 1
    shared: int = 0
    num_ctas: int = 1
    build_flags: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> int:
        """Threads of one program; of one block where a program is a cluster of them."""
        return self.num_warps * self.threads_per_warp

    @property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of the cluster that runs one program, x first; (1, 1, 1) without clusters.

        Triton 3.3 plans how they lie, but for kernels that compute on no blocks of numbers.
        """
        x, y, z = self.fields.get("cluster_dims") or (1, 1, 1)
        return (x, y, z) if x * y * z == self.num_ctas else (self.num_ctas, 1, 1)

    @property
    def is_cooperative(self) -> bool:
        """Whether all programs of a launch have to run at once."""
        return bool(self.fields.get("launch_cooperative_grid"))

    @property
    def is_programmatic(self) -> bool:
        """Whether a launch may begin before the kernel ahead of it is over (programmatic dependent launch)."""
        return bool(self.fields.get("launch_pdl"))

    @property
    def scratch_bytes(self) -> int:
        """Global scratch memory of one block, bytes."""
        return self.fields.get("global_scratch_size") or 0

    def __getattr__(self, name: str) -> Any:
        if name != "fields" and name in self.fields:
            return self.fields[name]
        raise AttributeError(f"kernel metadata has no field {name!r}")


class LaunchMetadata(Mapping[str, Any]):
    """What observers of one launch see: read-only, and built when first looked at (HOOK-3, HOOK-4).

    Keys: `name`, `function` (the driver's kernel handle), `stream`, `hash` (identity of the binary), `grid` (three
    ints, x first), `device`, `num_warps`, `shared` (bytes), `arguments` (by name), and what the kernel's own
    `launch_metadata=` function returned, which may replace these.

    Parameters
    ----------
    facts
        Makes the launch's own entries.
    own
        Calls the kernel's `launch_metadata=` function.
    """

    def __init__(self, facts: Callable[[], dict[str, Any]], own: Callable[[], dict[str, Any]] = dict) -> None:
        self._facts, self._own = facts, own
        self._data: Mapping[str, Any] | None = None
        self._built: Mapping[str, Any] | None = None

    @property
    def data(self) -> Mapping[str, Any]:
        """The launch's own entries, without a call of the kernel's function; as Triton's profiler reads them."""
        if self._data is None:
            self._data = MappingProxyType(self._facts())
        return self._data

    def _content(self) -> Mapping[str, Any]:
        if self._built is None:
            self._built = MappingProxyType({**self.data, **self._own()})
        return self._built

    def get(self, key: str | None = None, default: Any = None) -> Any:
        """Give one entry as `dict.get` does; without a key the whole as a new dict, as Triton's hooks ask for it."""
        return dict(self._content()) if key is None else self._content().get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self._content()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __repr__(self) -> str:
        return f"LaunchMetadata({dict(self._content())!r})"


@dataclass(frozen=True)
class Option:
    """One launch option of a device and what becomes of it (META-2).

    Attributes
    ----------
    default
        Its value when not given.
    policy
        `applied`: it changes the binary or the launch. `default only`: any other value is refused. `irrelevant`:
        taken and without effect on this device, for the reason given.
    reason
        Why it is not applied.
    check
        Refuses a value by returning the rule that it breaks.
    is_known
        False for an option of the toolchain that no table of ours has: it is refused unless default.
    """

    default: Any
    policy: Policy = "applied"
    reason: str = ""
    check: Callable[[Any], str | None] = field(default=lambda value: None, repr=False)
    is_known: bool = True


def power_of_two(value: object) -> str | None:
    """Refuse what is not 1, 2, 4, ..., as a check of an option."""
    is_power = isinstance(value, int) and value > 0 and value & (value - 1) == 0
    return None if is_power else "expected a power of two"


def _positive(value: object) -> str | None:
    return None if isinstance(value, int) and value > 0 else "expected an int of 1 or more"


_CHECKS: Final[dict[str, Callable[[Any], str | None]]] = {"num_warps": power_of_two, "num_stages": _positive}


def option_table(
    defaults: Mapping[str, Any],
    policies: Mapping[str, tuple[Policy, str]],
    checks: Mapping[str, Callable[[Any], str | None]],
) -> dict[str, Option]:
    """Say of each option of a toolchain what becomes of it; one without a policy is refused unless default.

    Parameters
    ----------
    defaults
        The toolchain's options: name -> default.
    policies
        Name -> policy, and the reason for one that is not applied.
    checks
        Name -> what refuses a value, besides those of options that every device has.
    """
    unknown: tuple[Policy, str] = ("default only", "gridpact does not know what it does")
    checks = {**_CHECKS, **checks}
    return {
        name: Option(
            default, *policies.get(name, unknown), checks.get(name, lambda value: None), is_known=name in policies
        )
        for name, default in defaults.items()
    }


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Give the sentence that proposes the nearest known name, or lists them all."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."


def check_option_names(
    given: Iterable[str], table: Iterable[str], kernel: str, params: Iterable[str], device: str
) -> None:
    """Refuse a keyword that is neither a parameter of the kernel nor an option of the device (META-3)."""
    known = set(table)
    for name in given:
        if name not in known:
            raise ContractTypeError(
                f"option {name!r}",
                f"neither a parameter of {kernel!r} nor an option of {device}",
                remedy=nearest_name(name, [*params, *known]),
                clause="META-3",
            )


def resolve_options(given: Mapping[str, Any], table: Mapping[str, Option], device: str) -> dict[str, Any]:
    """Give every option of a device with its value in this launch, or refuse one.

    Parameters
    ----------
    given
        The options of this launch; their names are known (`check_option_names`).
    table
        The device's options.
    device
        Its name, for the error.

    Raises
    ------
    ContractValueError
        META-2: a value that the option does not take.
    UnsupportedError
        META-2: a value other than the default, where the device can do nothing else.
    """
    resolved = {name: option.default for name, option in table.items()}
    for name, value in given.items():
        option = table[name]
        default = option.default
        if isinstance(default, (bool, int)) and isinstance(value, bool) != isinstance(default, bool):
            rule = f"expected {'True or False' if isinstance(default, bool) else 'an int'}"
            raise ContractValueError(f"option {name!r}", rule, value, clause="META-2")
        broken = option.check(value)
        if broken:
            raise ContractValueError(f"option {name!r}", broken, value, clause="META-2")
        if option.policy == "default only" and value != default:
            raise UnsupportedError(
                f"option {name!r}",
                f"only {default!r} on {device} ({option.reason})",
                value,
                clause="META-2",
                capability=name,
            )
        resolved[name] = value
    return resolved


def policy_of(name: str, device: Device) -> Option | None:
    """Give what becomes of a metadata field on a device, by its table of fields or its options; None if neither has it.

    A field may be applied though no launch may choose it: the compiler does.
    """
    return device.fields.get(name) or device.options.get(name)


def check_fields(fields: Mapping[str, Any], device: Device, subject: str) -> None:
    """Refuse a binary whose metadata, after compilation, asks for what the device does not do (META-2).

    Parameters
    ----------
    fields
        Every metadata field of the toolchain.
    device
        Its `options` and `fields` say what becomes of each; one that neither has must be empty.
    subject
        What the kernel is called, for the error.

    Raises
    ------
    UnsupportedError
        META-2: a launch would drop it in silence.
    """
    for name, value in fields.items():
        option = policy_of(name, device) or _UNHEARD_OF
        plain = tuple(value) if isinstance(value, list) else value  # JSON of Triton's cache knows no tuples
        is_empty = plain is None or (option is _UNHEARD_OF and not plain)
        is_default = plain == option.default and isinstance(plain, bool) == isinstance(option.default, bool)
        if option.policy == "default only" and not is_empty and not is_default:
            raise UnsupportedError(
                f"metadata field {name!r} of {subject}",
                f"only {option.default!r} on {device.name} ({option.reason})",
                value,
                clause="META-2",
                capability=name,
            )


_UNHEARD_OF: Final = Option(None, "default only", "gridpact does not know what it does")


def lacking_resources(metadata: KernelMetadata, limits: Limits, subject: str) -> list[ResourceError]:
    """Give what a kernel needs more of than a device has, as the errors that refuse its launch (META-4)."""
    threads, shared = f"threads of a program of {subject}", f"shared memory of {subject}"
    needs = [
        (threads, metadata.threads, limits.threads, "threads", "Lower num_warps."),
        (shared, metadata.shared, limits.shared_bytes, "bytes", "Use smaller blocks."),
    ]
    return [ResourceError(what, need, limit, *rest) for what, need, limit, *rest in needs if need > limit]
