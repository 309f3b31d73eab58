"""The command line: `gridpact devices` and `gridpact verify`."""

from __future__ import annotations

import importlib
import platform
from collections import Counter
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import gridpact
from gridpact import backends
from gridpact.backends.protocol import DeviceStatus
from gridpact.contract.cases import CASES, CLAUSES, Case, Subject
from gridpact.errors import LaunchError

app: Final = typer.Typer(
    help="The launch layer of Triton kernels, made strict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Backend -> module with the probe kernels in its language, and the warps to cross grids with.
_PROBES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "reference": ("gridpact.contract.reference_probes", (1,)),
    "sycl": ("gridpact.contract.triton_probes", (1, 2, 4, 8, 32)),
}


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Take the options that every command has."""
    if version:
        typer.echo(f"gridpact {gridpact.__version__}")
        raise typer.Exit


@app.command()
def devices() -> None:
    """Show each backend's devices: usable or why not, limits, capabilities, which launch path."""
    console = Console()
    for status in backends.device_statuses():
        sign = "[green]usable[/]" if status.is_usable else "[red]not usable[/]"
        console.print(f"[bold]{escape(status.name)}[/]  {sign}")
        if status.reason:
            console.print(f"  {escape(status.reason)}", highlight=False)
        table = Table.grid(padding=(0, 2))
        for name, value in status.facts.items():
            table.add_row(f"  [dim]{escape(name)}[/]", escape(value))
        console.print(table)


@app.command()
def verify(
    device: Annotated[
        list[str] | None, typer.Option(help="Prove this device only; may be repeated. All usable ones if not given.")
    ] = None,
) -> None:
    """Launch real kernels on every device found and prove what they saw.

    Ends with 0 if every case passed on every device, with 1 if one failed or there was nothing to prove.
    """
    console = Console()
    try:
        statuses = [backends.device_status(name) for name in device] if device else list(backends.device_statuses())
    except LaunchError as error:
        console.print(f"[red]{escape(str(error))}[/]", highlight=False)
        raise typer.Exit(2) from error
    usable = [status for status in statuses if status.is_usable]
    unusable = [status for status in statuses if not status.is_usable]
    console.print(f"gridpact {gridpact.__version__}, Python {platform.python_version()}, {platform.platform()}")
    for status in usable:
        console.print(f"  {status.name}: {', '.join(status.facts[k] for k in ('device', 'via'))}", highlight=False)
    passed: Counter[tuple[str, str]] = Counter()
    failures: list[tuple[str, Case, Exception]] = []
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=len(usable) * len(CASES))
        for status in usable:
            module, num_warps = _PROBES[status.name.partition(":")[0]]
            subject = Subject(status.name, importlib.import_module(module), num_warps)
            for case in CASES:
                progress.update(task, description=f"{status.name} {case.clause}")
                try:
                    case.run(subject)
                except Exception as raised:  # a case may fail in any way; it is reported, and the others run
                    failures.append((status.name, case, raised))
                else:
                    passed[status.name, case.clause] += 1
                progress.advance(task)
    console.print(_table(usable, passed))
    for name, case, failure in failures:
        console.print(f"[red]FAILED[/] {case.clause} on {name}, {case.name}", highlight=False)
        console.print(f"  {type(failure).__name__}: {escape(str(failure))}", highlight=False)
    for status in unusable:
        console.print(f"[yellow]NOT RUN[/] {escape(status.reason)}", highlight=False)
    total = sum(passed.values())
    console.print(f"{total} passed, {len(failures)} failed, {len(unusable)} devices not run", highlight=False)
    raise typer.Exit(1 if failures or (unusable and device) or not total else 0)


def _table(usable: list[DeviceStatus], passed: Counter[tuple[str, str]]) -> Table:
    table = Table(title="Proven by what the kernels wrote", title_justify="left")
    table.add_column("clause", no_wrap=True)
    table.add_column("means")
    for status in usable:
        table.add_column(status.name, justify="right", no_wrap=True)
    for clause, sentence in CLAUSES.items():
        asked = sum(case.clause == clause for case in CASES)
        cells = []
        for status in usable:
            count = passed[status.name, clause]
            cells.append(f"[green]pass {count}/{asked}[/]" if count == asked else f"[red]FAIL {count}/{asked}[/]")
        table.add_row(clause, sentence, *cells)
    return table


if __name__ == "__main__":
    app()
