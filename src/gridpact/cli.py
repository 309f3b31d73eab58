"""The command line: `gridpact devices`, `plan`, `variants`, `why`, `verify`, `report`, `cache` and `bench`."""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.resources import files
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import gridpact
from gridpact import backends, cache, native, toolchain
from gridpact.metadata import Option, nearest_name

app: Final = typer.Typer(
    help="The launch layer of Triton kernels, made strict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Take the options that every command has."""
    if version:
        typer.echo(f"gridpact {gridpact.__version__}")
        raise typer.Exit


@app.command()
def devices(
    policy: Annotated[bool, typer.Option("--policy", help="What becomes of each option and metadata field.")] = False,
) -> None:
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
        if status.is_usable and status.name != "reference":
            told = f"Python ({escape(native.MISSING)})" if native.path is None else "native"
            console.print(f"  [dim]launch path[/]  {told}", highlight=False, soft_wrap=True)
        if policy and status.is_usable:
            opened = backends.open_device(status.name)
            console.print(_policies("option", opened.options))
            if opened.fields:
                console.print(_policies("other metadata", opened.fields))


def _policies(heading: str, options: Mapping[str, Option]) -> Table:
    """Show each option or field with its default, and what becomes of another value (META-2)."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(heading, no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("policy", no_wrap=True)
    table.add_column("because", overflow="fold")
    for name, option in sorted(options.items(), key=lambda item: (item[1].policy, item[0])):
        table.add_row(name, escape(repr(option.default)), option.policy, escape(option.reason))
    return table


# What `plan` and `variants` are told of a launch.
_Kernel = Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The kernel, and the file that makes it.")]
_Target = Annotated[
    list[str] | None, typer.Option(metavar="xpu|cuda:90|hip:gfx942|...", help="May be repeated. xpu if not given.")
]
_Signature = Annotated[
    str, typer.Option(help="The arguments, as in x=*fp32:16,n=i32,BLOCK=1024; those of the file's launch if not given.")
]
_Option = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A launch option, such as num_warps=8.")]


@app.command()
def plan(
    kernel: _Kernel,
    grid: Annotated[
        str, typer.Option(metavar="X[,Y[,Z]]", help="Programs per axis; those of the file's launch if not given.")
    ] = "",
    target: _Target = None,
    signature: _Signature = "",
    option: _Option = None,
) -> None:
    """Show what a launch would be on each target, with no device: compile it, and launch nothing.

    Without --signature the file is run until its first launch of the kernel, which tells the arguments.

    Ends with 0 if every target would take the launch, with 1 if one would not or could not be compiled for, with 2 for
    a mistake in what was asked.
    """
    from gridpact import asked as asking
    from gridpact.errors import ContractError, LaunchError
    from gridpact.plan import plan_launch

    console, is_taken = Console(), True
    try:
        asked = asking.read_launch(kernel, signature)
        programs, options = asking.read_grid(grid) if grid else None, asking.read_options(option or [])
        _print_asked(console, asked)
        for name in dict.fromkeys(target or ["xpu"]):
            try:
                planned = plan_launch(asked, name, programs, options)
            except ContractError:
                raise
            except LaunchError as error:
                console.print(f"\n[bold]{name}[/]\n  [red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
                is_taken = False
            else:
                _print_launch(console, planned)
                is_taken = is_taken and not planned.errors
    except LaunchError as error:
        raise _mistake(console, error) from error
    raise typer.Exit(0 if is_taken else 1)


def _check_place(option: str, path: Path | None) -> None:
    """Refuse a place where no file can be written, before the work that is to be written there."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"{option}: expected a file in a folder that exists, got '{path}'.")


def _mistake(console: Console, error: Exception) -> typer.Exit:
    """Print what was wrong in what was asked; give the exit that says so."""
    console.print(f"[red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def _print_asked(console: Console, asked: Any) -> None:
    arguments = ",".join(f"{name}={what}" for name, what in asked.spelled.items())
    console.print(f"[bold]{asked.kernel.__name__}[/]({escape(arguments)})", highlight=False, soft_wrap=True)


def _print_launch(console: Console, planned: Any) -> None:
    """Print a `Plan`: geometry, limits, metadata fields by policy, and the sentences that refuse it."""
    metadata, triton = planned.metadata, toolchain.installed()
    console.print(
        f"\n[bold]{planned.target}[/]  compiled by {triton.distribution} {triton.full_version}, not launched",
        highlight=False,
    )
    table = Table.grid(padding=(0, 2))
    for name, value in {
        **planned.geometry,
        "warps": f"{metadata.num_warps} of {metadata.threads_per_warp} lanes, {metadata.threads} threads",
        "shared memory": f"{metadata.shared} bytes: 0 static + {metadata.shared} dynamic",
    }.items():
        table.add_row(f"  {name}", str(value))
    console.print(table)
    limits = Table("limit", box=SIMPLE_HEAD)
    for column in ("need", "at most", ""):
        limits.add_column(column, justify="right")
    for check in planned.checks:
        known = "the device knows" if check.limit is None else f"{check.limit:,}"
        sign = "[red]✗ fail[/]" if check.error else "[dim]?[/]" if check.limit is None else "[green]✓ pass[/]"
        limits.add_row(check.subject, f"{check.need:,}", known, sign)
    console.print(limits, f"  Limits: {planned.origin}.\n", highlight=False)
    fields = Table.grid(padding=(0, 2))
    fields.add_column(no_wrap=True)
    fields.add_column(overflow="fold")
    by_policy: dict[tuple[str, str], list[str]] = {}
    for field in planned.fields:
        by_policy.setdefault((field.policy, field.reason), []).append(f"{field.name}={field.value!r}")
    for (policy, reason), same in sorted(by_policy.items()):
        told = f"[dim] ({escape(reason)})[/]" if reason else ""
        fields.add_row(f"  {policy}", escape(", ".join(same)) + told)
    console.print(fields)
    if 0 in planned.programs:
        console.print("An axis is 0: nothing would run. [GRID-9]", markup=False)
    for error in planned.errors:
        console.print(f"[red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)


@app.command()
def why(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE.py[:FUNCTION]",
            help="A kernel by its name, whose binaries are on disk; or a program to run, and which of its kernels.",
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="The program's own arguments, after --.")] = None,
) -> None:
    """Say of each binary of a kernel why it was compiled: which fact is new against the nearest one before it.

    A program is run, and its kernels are watched; of a kernel by its name the cache on disk is read.

    Ends with 0, with 1 if the program failed or nothing is on disk, with 2 for a mistake in what was asked.
    """
    from gridpact.errors import ContractValueError

    console = Console(soft_wrap=True, highlight=False)
    file, _, function = kernel.partition(":") if ".py:" in kernel else (kernel, "", "")
    if not file.endswith(".py"):
        raise typer.Exit(_print_stored(console, kernel))
    if not Path(file).is_file():
        raise _mistake(console, ContractValueError("file", "expected a Python program that exists", file))
    seen: list[Any] = []
    others: set[str] = set()

    def tell(compiled: Any) -> None:
        others.add(compiled.kernel)
        if function in ("", compiled.kernel):
            seen.append(compiled)
            console.print(f"[bold]{compiled.kernel}[/]{escape(str(compiled).removeprefix(compiled.kernel))}")

    failed = _run_watched(Path(file), arguments or [], tell)
    if seen or not others:
        _print_causes(console, seen)
    if failed:
        console.print(f"[red]{escape(Path(file).name)}: {escape(failed)}[/]")
    elif not seen and others:
        failed = f"kernel {function!r}: no launch of it was seen. {nearest_name(function, others)}"
        console.print(f"[red]{escape(failed)}[/]")
    if failed:
        raise typer.Exit(1)


def _run_watched(path: Path, arguments: list[str], tell: Callable[[Any], None]) -> str:
    """Run a program whose compiles are told; give how it failed, or nothing."""
    from gridpact import hooks
    from gridpact.asked import in_a_line

    before = sys.argv, sys.path
    sys.argv, sys.path = [str(path), *arguments], [str(path.parent.absolute()), *sys.path]
    try:
        with hooks.observe(compiled=tell):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        return "" if ended.code in (None, 0) else f"ended with {ended.code}"
    except Exception as error:
        return in_a_line(error)
    finally:
        sys.argv, sys.path = before
    return ""


def _print_stored(console: Console, name: str) -> int:
    """Print why each binary of a kernel that is on disk was compiled; gives the exit code."""
    from gridpact import compiles, stored
    from gridpact.identity import Key

    entries = sorted(stored.known(name), key=lambda entry: entry.compiled)
    if not entries:
        others = {entry.name for entry in stored.all_stored()}
        remedy = nearest_name(name, others) if others else "Name a program, FILE.py, to watch it."
        console.print(f"[red]kernel {escape(repr(name))}: no binary of it is on disk. {escape(remedy)}[/]")
        return 1
    known: list[Key] = []
    for entry in entries:
        key, when = Key(entry.facts), datetime.fromtimestamp(entry.compiled).strftime("%Y-%m-%d %H:%M:%S")
        changes = compiles.nearest(key, known)
        why = "; ".join(map(str, changes)) if changes else "the first on disk"
        console.print(f"[bold]{escape(name)}[/] for {escape(entry.target)}, {when}: {escape(why)}")
        known.append(key)
    return 0


def _print_causes(console: Console, seen: list[Any]) -> None:
    """Print, for each kernel, how many binaries it got, and which facts made them."""
    from gridpact import compiles

    if not seen:
        console.print("No kernel needed a binary: no launch was seen.")
    for name in dict.fromkeys(each.kernel for each in seen):
        mine = [each for each in seen if each.kernel == name]
        seconds = sum(each.elapsed_ns for each in mine) / 1e9
        console.print(f"\n[bold]{escape(name)}[/]: {len(mine)} binaries in {seconds:.2f} s")
        made: dict[str, list[Any]] = {}
        for change in (change for each in mine for change in each.changes):
            made.setdefault(change.name, []).append(change)
        table = Table.grid(padding=(0, 2))
        for fact, changes in sorted(made.items(), key=lambda item: -len(item[1])):
            is_storm = len(changes) >= compiles.STORM
            remedy = f"[yellow]a storm. {escape(compiles.remedy_for(changes[-1]))}[/]" if is_storm else ""
            table.add_row(f"  {escape(fact)}", f"made {len(changes)}", remedy)
        console.print(table)


@app.command()
def variants(
    kernel: _Kernel,
    target: _Target = None,
    signature: _Signature = "",
    option: _Option = None,
    json: Annotated[Path | None, typer.Option(help="Write what was found to this file.")] = None,
) -> None:
    """Show which specializations of a kernel really differ in machine code on each target, with no device.

    Each class of the arguments is compiled: pointers aligned to 16 bytes or not, integers divisible by 16 or not, or 1.

    Ends with 0 if every target could be compiled for, with 1 if one could not, with 2 for a mistake in what was asked.
    """
    from gridpact import asked as asking
    from gridpact.errors import ContractError, LaunchError
    from gridpact.plan import platform_of
    from gridpact.variants import list_variants, record

    console, found, failed = Console(), [], 0
    try:
        _check_place("--json", json)
        asked, options = asking.read_launch(kernel, signature), asking.read_options(option or [])
        _print_asked(console, asked)
        for name in dict.fromkeys(target or ["xpu"]):
            console.print(f"\n[bold]{name}[/]", highlight=False)
            try:
                listed = list_variants(asked, platform_of(name).device, options)
            except ContractError:
                raise
            except LaunchError as error:
                console.print(f"  [red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
                failed += 1
            else:
                _print_variants(console, listed)
                found.append(record(listed))
                failed += listed.variants[0].code is None
    except (LaunchError, ValueError) as error:
        raise _mistake(console, error) from error
    if json is not None:
        triton = toolchain.installed()
        told = {
            "kernel": asked.kernel.__name__,
            "arguments": asked.spelled,
            "versions": {triton.distribution: triton.full_version, "gridpact": gridpact.__version__},
            "targets": found,
        }
        try:
            json.write_text(dumps(told, indent=1) + "\n")
        except OSError as error:
            console.print(f"[red]--json: {escape(str(error))}[/]", highlight=False, soft_wrap=True)
            raise typer.Exit(2) from error
    raise typer.Exit(1 if failed else 0)


def _print_variants(console: Console, listed: Any) -> None:
    """Print a row for each variant, errors of those that do not compile, and the answer."""
    triton = toolchain.installed()
    told = (
        f"  {listed.form} by {triton.distribution} {triton.full_version}; loads and stores: instructions x bytes each"
    )
    console.print(told, highlight=False)
    table = Table("variant", box=SIMPLE_HEAD)
    for column in ("code, bytes", "global loads", "global stores"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("same code as")
    for variant in listed.variants:
        name = (
            f"{escape(variant.name)} [dim](this launch)[/]" if variant.name == listed.launched else escape(variant.name)
        )
        if variant.code is None:
            table.add_row(name, "", "", "", "[red]does not compile[/]")
            continue
        size = "" if variant.code.size is None else f"{variant.code.size:,}"
        accesses = (_widths(variant.code.loads), _widths(variant.code.stores))
        table.add_row(name, size, *accesses, escape(variant.same_as))
    console.print(table)
    for variant in listed.variants:
        if variant.error:
            console.print(f"  [red]{escape(variant.name)}: {escape(variant.error)}[/]", highlight=False, soft_wrap=True)
    console.print(f"  {escape(listed.answer)}", highlight=False, soft_wrap=True)


def _widths(accesses: Mapping[int, int]) -> str:
    return ", ".join(f"{count} x {bits // 8}" for bits, count in sorted(accesses.items(), reverse=True)) or "none"


@app.command()
def verify(
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject", "-s", help="Whom to ask; may be repeated. NAME@FOLDER lives in that virtual environment."
        ),
    ] = None,
    clause: Annotated[
        list[str] | None, typer.Option("--clause", "-c", help="A clause, such as GRID-4 or HOOK-*.")
    ] = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="Address of a case; * is a wildcard.")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="quick (default) or slow; repeat for both.")] = None,
    json: Annotated[Path | None, typer.Option(help="Append the records to this file, one JSON line a case.")] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write what pytest makes of the run to this file, as JUnit's XML.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List subjects and addresses, and ask nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print each clause with what its cases ask.")] = False,
    saboteur: Annotated[
        str, typer.Option(help="Break our launcher in this way and watch the suite find it; 'list' lists them.")
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The summary alone.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every violation in full.")] = False,
) -> None:
    """Ask launchers the clauses of the contract, and prove the answers by what kernels wrote.

    Ends with 0 if each of our own subjects passed all that is not on the list of allowed unsupported cases; violations
    by others are findings. Ends with 1 if not, or if there was nothing to ask; with 2 for a mistake in the options.
    """
    from gridpact.conformance import model, saboteurs, subjects

    console = Console()
    try:
        for option, path in (("--json", json), ("--junit", junit)):  # now, and not when all is asked
            if path is not None and path.is_dir():
                raise ValueError(f"{option}: expected a file, got the folder '{path}'.")
        chosen = _chosen(subject or [], subjects.available(), saboteur, saboteurs.SABOTEURS, tier or [])
        cases = model.select(clause or (), case or (), tier or ("quick",))  # type: ignore[arg-type]
    except ValueError as error:
        console.print(f"[red]{escape(str(error))}[/]", highlight=False)
        raise typer.Exit(2) from error
    if saboteur == "list":
        _list_saboteurs(console, saboteurs.SABOTEURS)
    elif list_:
        for name in chosen if subject or saboteur else subjects.available():
            console.print(name, highlight=False)
        for entry in cases:
            console.print(entry.id, highlight=False, soft_wrap=True)
    elif plan:
        _print_plan(console, cases)
    else:
        asked = {"clause": clause, "case": case, "tier": tier, "subject": chosen if subject or saboteur else None}
        options = [f"--{name}={value}" for name, values in asked.items() for value in values or ()]
        if junit is not None:
            options.append(f"--junitxml={junit.absolute()}")
        raise typer.Exit(_run(console, [*options, f"--saboteur={saboteur}"], json, quiet, verbose))


def _chosen(
    given: list[str], known: dict[str, str], saboteur: str, saboteurs: dict[str, Any], tiers: list[str]
) -> list[str]:
    """Give the subjects to ask, or say which name is unknown."""
    from gridpact.conformance.isolation import interpreter
    from gridpact.conformance.subjects import NAMED_ONLY

    for spelled in given:
        name, _, folder = spelled.partition("@")
        if name not in known:
            raise ValueError(f"subject {name!r}: not known. {nearest_name(name, known)}")
        if folder and not interpreter(folder).is_file():
            raise ValueError(f"subject {spelled!r}: no Python at {interpreter(folder)}. Name a virtual environment.")
    for tier in tiers:
        if tier not in ("quick", "slow"):
            raise ValueError(f"tier {tier!r}: not known. Known: quick, slow.")
    if saboteur and saboteur != "list":
        if saboteur not in saboteurs:
            raise ValueError(f"saboteur {saboteur!r}: not known. {nearest_name(saboteur, saboteurs)}")
        broken = str(saboteurs[saboteur].subject)
        if given and given != [broken]:
            raise ValueError(
                f"saboteur {saboteur!r}: it breaks {broken}, got --subject {' '.join(given)}. Leave that out."
            )
        return [broken]
    return given or [name for name in known if name not in NAMED_ONLY]


def _list_saboteurs(console: Console, saboteurs: dict[str, Any]) -> None:
    table = Table(title="Saboteurs: launchers that are broken in one way", title_justify="left")
    for column in ("name", "subject", "breaks", "how"):
        table.add_column(column, no_wrap=column in ("name", "subject"))
    for name, broken in saboteurs.items():
        table.add_row(name, broken.subject, ", ".join(sorted(broken.clauses)), broken.how)
    console.print(table)


def _print_plan(console: Console, cases: list[Any]) -> None:
    from gridpact.conformance.model import CLAUSES

    for number, entered in CLAUSES.items():
        mine = [case for case in cases if case.clause == number]
        if not mine:
            continue
        console.print(f"\n[bold]{number}[/] [dim]({entered.basis})[/] {escape(entered.sentence)}", highlight=False)
        if entered.why:
            console.print(f"  [dim]Without it: {escape(entered.why)}[/]", highlight=False)
        for name in dict.fromkeys(case.name for case in mine):
            same = [case for case in mine if case.name == name]
            told = f"  {same[0].kind}, {same[0].tier}: {same[0].plan} [dim]{number}:{name}, {len(same)} cases[/]"
            console.print(told, highlight=False)


def _run(console: Console, asked: list[str], json: Path | None, quiet: bool, verbose: bool) -> int:
    """Run the suite on pytest with a display of our own; `asked` are options of its plugin."""
    import pytest

    from gridpact.conformance import evidence, report

    with tempfile.TemporaryDirectory(prefix="gridpact-verify-") as folder:
        records = json or Path(folder) / "records.jsonl"
        before = records.stat().st_size if records.exists() else 0
        options = [
            *("-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-p", "no:terminalreporter"),
            *("-p", "no:faulthandler", "-p", "gridpact.conformance.plugin", "--records", str(records)),
            *asked,
            str(files("gridpact.contract").joinpath("__init__.py")),
        ]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if not quiet:
            console.print(f"gridpact {gridpact.__version__}, Python {platform.python_version()}, {platform.platform()}")
        display = _Display(console, quiet)
        code = int(pytest.main(options, plugins=[display]))
        with records.open("rb") as file:
            file.seek(before)
            (new := Path(folder) / "new.jsonl").write_bytes(file.read())
        found = evidence.apart(list(evidence.read(new)))
    subjects = list(dict.fromkeys(record.subject for record in found))
    if not quiet and found:
        report.show(console, found, subjects, limit=10**6 if verbose else 6)
    for name, reason in display.not_run.items():
        console.print(
            f"[yellow]NOT RUN[/] {escape(name)}: {escape(report.visible(reason))}", highlight=False, soft_wrap=True
        )
    for text in display.failed:
        console.print(f"[red]FAILED[/] {escape(report.visible(text))}", highlight=False, soft_wrap=True)
    console.print(report.summary(found, len(display.failed)), highlight=False, soft_wrap=True)
    return 0 if code == 0 and found else 1


@app.command()
def report(
    evidence: Annotated[
        list[Path], typer.Argument(help="Files of records (gridpact verify --json FILE), and folders of *.jsonl.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; report.html if not given.", metavar="FILE.html")
    ] = None,
    picture: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json",
            help="Draw this into the page: what `gridpact bench --json` or "
            "`python -m gridpact.conformance.page.demonstration` wrote. May be repeated.",
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what changed from the first EVIDENCE to the second; no page is made.")
    ] = False,
) -> None:
    """Make a page of records: one file of HTML that needs no network. Of each case the last answer counts.

    Ends with 0, with --diff with 1 if something changed, and with 2 for a mistake in what was asked.
    """
    from gridpact.conformance import evidence as records

    console = Console()
    try:
        if diff:
            if len(evidence) != 2:
                raise ValueError(f"--diff: expected two places of evidence, OLD NEW, got {len(evidence)}.")
            if output is not None or picture:
                raise ValueError("--diff: it prints what changed and makes no page. Leave --output and --picture out.")
            old, new = (records.latest(records.gather([place])) for place in evidence)
            raise typer.Exit(_print_changes(console, old, new))
        for name in ("jinja2", *(["matplotlib"] if picture else [])):
            if find_spec(name) is None:
                raise ValueError(f"report: {name} is not installed. Run: pip install 'gridpact[report]'.")
        place = output or Path("report.html")
        _check_place("--output", place)
        from gridpact.conformance.page import build, pictures

        found = records.latest(records.gather(evidence))
        page = build(found, [drawn for path in picture or () for drawn in pictures.draw(path)])
    except ValueError as error:
        raise _mistake(console, error) from error
    place.write_bytes(page)
    told = f"{len(found)} cases of {len(records.subjects_of(found))} subjects, {_bytes(len(page))}"
    console.print(f"{escape(str(place))}: {told}", highlight=False, soft_wrap=True)


def _print_changes(console: Console, old: list[Any], new: list[Any]) -> int:
    """Print the cases whose verdict differs between two runs, a table for each subject; gives the exit code."""
    from gridpact.conformance.changes import changes
    from gridpact.conformance.report import SIGNS, visible

    def told(verdict: str) -> str:
        sign, colour = SIGNS.get(verdict, ("", "dim"))
        return f"[{colour}]{sign} {verdict}[/]" if sign else "[dim]not asked[/]"

    found = changes(old, new)
    asked = {record.subject for record in old}, {record.subject for record in new}
    for subject in dict.fromkeys(change.subject for change in found):
        mine = [change for change in found if change.subject == subject]
        if not all(subject in subjects for subjects in asked):
            console.print(f"[bold]{escape(visible(subject))}[/]  {mine[0].kind}: {len(mine)} cases", highlight=False)
            continue
        table = Table(title=escape(visible(subject)), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        table.add_column("case", overflow="fold")
        for column in ("before", "now"):
            table.add_column(column, no_wrap=True)
        table.add_column("seen", overflow="fold")
        for change in mine:
            case, seen = escape(visible(change.case)), escape(visible(change.seen))
            table.add_row(case, told(change.before), told(change.now), seen)
        console.print(table)
    kinds = {"changed": 0, "new": 0, "gone": 0}
    for change in found:
        kinds[change.kind] += 1
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    console.print(f"{len(old)} cases before, {len(new)} now: {counts}", highlight=False, soft_wrap=True)
    return 1 if found else 0


cache_app: Final = typer.Typer(
    help="Show, verify or empty the cache of compiled kernels, built libraries and drivers' binaries.\n\n"
    f"A folder is held to {cache.BOUND_BYTES >> 20} MiB, all kinds together: where it is larger, what was not used for "
    "longest goes until 80 % are left; half-written files go after an hour. It is $XDG_CACHE_HOME/gridpact, else "
    "~/.cache/gridpact. GRIDPACT_KERNEL_CACHE names another absolute folder for compiled kernels, or says off.",
    no_args_is_help=True,
)
app.add_typer(cache_app, name="cache")


@cache_app.command("show")
def show_cache() -> None:
    """Show the folders with what is in them, and the compiled kernels."""
    from gridpact import stored

    console, now = Console(), time.time()
    for root, kinds in cache.folders().items():
        found = list(cache.entries(root))
        size = sum(entry.size for entry in found)
        bound = f"{_bytes(size)} of at most {cache.BOUND_BYTES >> 20} MiB"
        console.print(f"[bold]{escape(str(root))}[/]  {bound}", highlight=False, soft_wrap=True)
        table = Table(box=SIMPLE_HEAD)
        for column in ("kind", "entries", "size"):
            table.add_column(column, justify="left" if column == "kind" else "right")
        for kind in kinds:
            sizes = [entry.size for entry in found if entry.kind == kind]
            table.add_row(kind, str(len(sizes)), _bytes(sum(sizes)))
        console.print(table)
    if not cache.keeps("kernels"):
        console.print("No compiled kernel is kept: GRIDPACT_KERNEL_CACHE says so.", highlight=False)
    kernels = sorted(stored.all_stored(), key=lambda kernel: -kernel.compiled)
    if kernels:
        table = Table("kernel", "target", "identity", box=SIMPLE_HEAD)
        for column in ("size", "compiled"):
            table.add_column(column, justify="right")
        for kernel in kernels:
            told = (escape(kernel.name), escape(kernel.target), kernel.digest[:12])
            table.add_row(*told, _bytes(kernel.size), _age(now - kernel.compiled))
        console.print(table)


@cache_app.command("verify")
def verify_cache(
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is damaged.")] = False,
) -> None:
    """Read every entry and name those that are damaged, which a launch would take for missing.

    Ends with 1 if there are any, removed or not.
    """
    console, damaged, count = Console(), 0, 0
    for root in cache.folders():
        for entry in cache.entries(root):
            if entry.path.name.startswith(cache.HALF_WRITTEN):
                continue  # somebody may be writing it
            count += 1
            if cache.content_of(entry.path) is None:
                damaged += 1
                console.print(f"[red]damaged[/] {escape(str(entry.path))}", highlight=False, soft_wrap=True)
                if remove:
                    with suppress(OSError):  # another process may have replaced it, or the folder be read-only
                        entry.path.unlink()
    told = ", removed" if damaged and remove else ""
    console.print(f"{count} entries, {damaged} damaged{told}", highlight=False)
    raise typer.Exit(1 if damaged else 0)


@cache_app.command("prune")
def prune_cache(
    to: Annotated[
        float | None, typer.Option(metavar="MIB", help="Hold each folder to so many MiB, what was used last.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Remove every entry.")] = False,
) -> None:
    """Remove what is over the bound, or over --to, and half-written files that are older than an hour."""
    console = Console()
    if all_ and to is not None:
        console.print("[red]--to and --all: expected one of them.[/]", highlight=False)
        raise typer.Exit(2)
    if to is not None and not 0 <= to < 2**40:
        console.print(f"[red]--to: expected a number of MiB from 0 on, got {to}.[/]", highlight=False)
        raise typer.Exit(2)
    bound = 0 if all_ else cache.BOUND_BYTES if to is None else int(to * 2**20)
    removed = [entry for root in cache.folders() for entry in cache.prune(root, bound)]
    console.print(f"{len(removed)} entries removed, {_bytes(sum(entry.size for entry in removed))}", highlight=False)


def _bytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"


@app.command()
def bench(
    device: Annotated[
        str,
        typer.Option(metavar="cuda:0|sycl:cpu|null", help="null is a CUDA driver that runs nothing: host cost alone."),
    ] = "null",
    arguments: Annotated[
        list[str] | None, typer.Option(metavar="0|1|4|8|19|58", help="Numbers of arguments; all if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; each times everybody.")] = 25,
    launches: Annotated[int, typer.Option(min=10, help="Launches of each in a round.")] = 400,
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="A virtual environment with another Triton to measure in, too; may be repeated."),
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Time imports and first launches as well.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write what was measured to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG; needs matplotlib.")] = None,
) -> None:
    """Time launches beside the driver's own call and beside others, in turn and in one process.

    Without --beside, `--device null` looks for the environments that `make verify-upstream` makes in .nox.
    """
    from gridpact import bench as benching
    from gridpact.conformance.isolation import interpreter
    from gridpact.errors import LaunchError

    console = Console()
    counts = list(dict.fromkeys(arguments or benching.COUNTS))
    folders = (
        beside if beside is not None else sorted(Path(".nox").glob("upstream-triton-*")) if device == "null" else []
    )
    try:
        for count in counts:
            if count not in benching.COUNTS:
                raise ValueError(f"--arguments: expected one of {', '.join(benching.COUNTS)}, got {count!r}.")
        for folder in folders:
            if not interpreter(str(folder)).is_file():
                raise ValueError(f"--beside: no Python at {interpreter(str(folder))}. Name a virtual environment.")
        if cold and device == "null":
            raise ValueError("--cold: a first launch loads its kernel, which takes a device that runs some.")
        for option, path in (("--json", json), ("--plot", plot)):  # now, and not when all is measured
            _check_place(option, path)
        if plot is not None and plot.suffix != ".png":
            raise ValueError(f"--plot: expected the name of a PNG, got '{plot}'.")
        if plot is not None and find_spec("matplotlib") is None:
            raise ValueError("--plot: matplotlib is not installed. Run: pip install 'gridpact[report]'.")
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("rounds", total=rounds)
            result = benching.measure(
                device, counts, rounds, launches, lambda done, total: progress.update(task, completed=done)
            )
            others = {}
            for folder in folders:
                progress.update(task, description=folder.name)
                others[folder.name] = benching.measure_beside(
                    interpreter(str(folder)), device, counts, rounds, launches
                )
            if cold:
                progress.update(task, description="cold starts")
                result.cold = benching.cold_start(device)
    except (LaunchError, ValueError) as error:
        raise _mistake(console, error) from error
    benching.best_beside(result, others)
    result.command = shlex.join(["gridpact", *sys.argv[1:]])
    _print_costs(console, result)
    if json is not None:
        json.write_text(result.text())
    if plot is not None:
        benching.plot(result, plot)


def _print_costs(console: Console, result: Any) -> None:
    """Print a row for each who launches, a column for each number of arguments: the cost, then its ratio."""
    from gridpact.bench import COUNTS, TRITON

    counts = [count for count in COUNTS if any(row.arguments == count for row in result.rows)]
    console.print(f"[bold]{escape(result.device)}[/]  {escape(result.machine)}", highlight=False, soft_wrap=True)
    console.print(" ".join(f"{name} {version}" for name, version in result.versions.items()), highlight=False)
    rows = [vars(row) for row in result.rows]
    for other in result.beside:
        version = other["versions"].get("triton", "")
        theirs = (row for row in other["rows"] if row["what"].startswith(TRITON.partition(" ")[0]))
        rows += [{**row, "what": row["what"].replace("triton", f"triton {version}")} for row in theirs]
    for title, column in (("Host time of a launch, us", "us"), ("By the bare driver call's", "ratio_to_driver")):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("arguments", no_wrap=True)
        for count in counts:
            table.add_column(count, justify="right", no_wrap=True)
        for what in dict.fromkeys(row["what"] for row in rows):
            found = {row["arguments"]: row[column] for row in rows if row["what"] == what}
            told = [found.get(count) for count in counts]
            if any(told):
                table.add_row(escape(what), *("" if cost is None else f"{cost:#.3g}" for cost in told))
        console.print(table)
    if result.ratio_to_triton:
        ratios = ", ".join(f"{count}: {ratio:.3f}" for count, ratio in result.ratio_to_triton.items())
        console.print(f"Ours by Triton's own kernel\\[grid]: {ratios}", highlight=False, soft_wrap=True)
    elif result.device == "null":
        console.print("No upstream Triton here to compare with: `make verify-upstream` sets two up.", highlight=False)
    for what, seconds in result.cold.items():
        console.print(f"{escape(what)}: {seconds:.3f} s", highlight=False)


class _Display:
    """What pytest's own reporter would be, in our form: progress while it runs, failures kept for the end."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.failed: list[str] = []
        self.not_run: dict[str, str] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)

    def pytest_sessionstart(self) -> None:
        self._progress.start()

    def pytest_collection_finish(self, session: Any) -> None:
        from gridpact.conformance.plugin import WORKERS

        for name, worker in session.config.stash[WORKERS].items():
            if not worker.facts.get("ready"):
                self.not_run[name] = worker.facts.get("reason", "")
        self._progress.update(self._task, total=len(session.items))

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        width = max(20, shutil.get_terminal_size().columns - 50)
        self._progress.update(self._task, description=location[2][:width].ljust(width))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            self._progress.advance(self._task)
        if report.failed:
            self.failed.append(f"{report.location[2]}\n  {report.longreprtext}")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        self._progress.stop()


if __name__ == "__main__":
    app()
