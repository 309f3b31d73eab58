"""KEY: what is the same kernel."""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from typing import Any, Final

from gridpact.conformance.check import POISON, launch, launch_arrived, own_rule, poisoned, require, same
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.processes import DAMAGES, Folder, Told
from gridpact.conformance.subjects import Subject

clause(
    "KEY-1",
    "triton",
    "One key holds all that can change the binary: source of the kernel and of everything that it reaches, "
    "captured constants, types and specialization classes, constexpr values with their types (1, True, 1.0 "
    "differ; 0.0 and -0.0 differ; NaN equals itself), options after defaults are resolved, target and toolchain. "
    "Neither the order of options nor spelling a default out changes it.",
    "Two launches that share a key by mistake run the first one's constants, without an error.",
)

clause(
    "KEY-2",
    "triton",
    "The key is the same in every process and run: independent of option order, hash seed, object addresses, visit "
    "order, and of spelling a default out.",
    "A key that changes from run to run compiles again what is on disk, in every process of a job.",
)

clause(
    "KEY-3",
    "triton",
    "A damaged, half-written, foreign or racing cache entry is a miss, never a crash and never a wrong kernel. A cache "
    "folder that another user can write to is not used; this is said once and the launch goes on (our own rule).",
    "Caches lie on disks that fill up and on file systems that many machines share, and jobs are killed.",
)

# Constants that are equal, or look alike as text, and what `constant` writes for each.
_ALIKE: Final = {
    "an_int": (1, 1),
    "a_bool": (True, 2),
    "a_float": (1.0, 3),
}

# Two constants each, and what `constants` writes for them.
_PAIRS: Final = {
    "dashes": [(("a-b", "c"), 1), (("a", "b-c"), 2)],
    "number_and_text": [((1, None), 3), (("1", None), 4)],
    "none_and_text": [((1, None), 3), ((1, "None"), 5)],
    "bool_and_text": [((True, "None"), 6), (("True", "None"), 7)],
}


def _check_apart(subject: Subject, program: str, launches: list[tuple[tuple[Any, ...], int]]) -> None:
    """Launch one kernel with each set of constants, twice over, and demand that each run sees its own.

    Where a subject tells which binary ran, each set has to have one of its own.
    """
    kernel = subject.kernel(program, fresh=True)
    identities: dict[int, set[str]] = {}
    modules: dict[int, set[str]] = {}  # that the driver was called with, where nothing runs
    for constants, due in launches * 2:
        seen = poisoned(2)
        result = launch(subject, program, (1,), seen, *constants, kernel=kernel)
        if subject.runs:
            same(subject, f"{program} of {constants}", [due, POISON], seen)
        if "binaries" in subject.abilities:
            identities.setdefault(due, set()).add(subject.identity(result))
        if not subject.runs:
            modules.setdefault(due, set()).add(subject.last_call().binary)
    _check_binaries(subject, list(identities.values()))
    if not subject.runs:
        _check_binaries(subject, list(modules.values()))


def _check_binaries(subject: Subject, identities: list[set[str]]) -> None:
    """Demand one binary for each entry, and no two alike."""
    if "binaries" in subject.abilities:
        same(subject, "binaries of each", [1] * len(identities), [len(each) for each in identities])
        same(subject, "binaries of all", len(identities), len(set[str]().union(*identities)))


@case("KEY-1", order={"-".join(names): names for names in itertools.permutations(_ALIKE)})
def equal_constants_of_other_types_differ(subject: Subject, order: tuple[str, ...]) -> None:
    """1, True and 1.0 in any order are three kernels, and each launch sees its own."""
    _check_apart(subject, "constant", [((_ALIKE[name][0],), _ALIKE[name][1]) for name in order])


@case("KEY-1", first=["plus", "minus"])
def zeros_of_other_signs_differ(subject: Subject, first: str) -> None:
    """0.0 and -0.0 are two kernels, whichever came first."""
    zeros: list[tuple[tuple[Any, ...], int]] = [((0.0,), 4), ((-0.0,), 5)]
    _check_apart(subject, "constant", zeros if first == "plus" else zeros[::-1])


@case("KEY-1")
def nan_equals_itself(subject: Subject) -> None:
    """NaN is one kernel, also where it is another object each time."""
    _check_apart(subject, "constant", [((math.nan,), 6), ((float("nan"),), 6)])


@case("KEY-1", pairs=_PAIRS, order=["as_listed", "reversed"])
def constants_that_look_alike_differ(subject: Subject, pairs: list[tuple[tuple[Any, ...], int]], order: str) -> None:
    """Constants whose text is the same when it is joined, or without its quotes, are two kernels."""
    _check_apart(subject, "constants", pairs if order == "as_listed" else pairs[::-1])


@case("KEY-1", order=["as_listed", "reversed"])
def integers_of_other_widths_differ(subject: Subject, order: str) -> None:
    """Integers of 32 bits, 64 bits and 64 bits without a sign are three kernels, and each arrives whole."""
    values = [3, 2**40 + 1, 2**63 + 1]
    kernel = subject.kernel("arrived", fresh=True)
    identities: dict[int, set[str]] = {}
    for value in (values if order == "as_listed" else values[::-1]) * 2:
        result = launch_arrived(subject, kernel, value, "u8")
        if "binaries" in subject.abilities:
            identities.setdefault(value, set()).add(subject.identity(result))
    _check_binaries(subject, list(identities.values()))


def _identity(subject: Subject, program: str, kernel: Any, due: int, *args: Any, **options: Any) -> str:
    """Launch a program that writes one number, and name the binary that ran."""
    seen = poisoned(2)
    result = launch(subject, program, (1,), seen, *args, kernel=kernel, **options)
    if subject.runs:
        same(subject, f"{program} of {args} {options}", [due, POISON], seen)
    return subject.identity(result)


@case("KEY-1")
def spelled_out_default_changes_nothing(subject: Subject) -> None:
    """A default of a parameter that is spelled out is the same kernel as one that is left out."""
    require(subject, "binaries")
    kernel = subject.kernel("constant", fresh=True)
    left_out = _identity(subject, "constant", kernel, 1, 1)
    spelled_out = _identity(subject, "constant", kernel, 1, 1, "default")
    by_name = _identity(subject, "constant", kernel, 1, D="default", C=1)
    same(subject, "binaries", [left_out] * 2, [spelled_out, by_name])


@case("KEY-1")
def spelled_out_default_of_an_option_changes_nothing(subject: Subject) -> None:
    """An option that is given its default is the same kernel as one that is left out."""
    for ability in ("binaries", "compiled", "num_warps"):
        require(subject, ability)
    kernel = subject.kernel("constant", fresh=True)
    seen = poisoned(2)
    result = launch(subject, "constant", (1,), seen, 1, kernel=kernel)
    spelled_out = _identity(subject, "constant", kernel, 1, 1, num_warps=result.metadata.num_warps)
    same(subject, "binaries", subject.identity(result), spelled_out)


@case("KEY-1")
def options_are_in_the_key(subject: Subject) -> None:
    """One warp and two are two kernels, in whichever order they come again."""
    for ability in ("binaries", "num_warps"):
        require(subject, ability)
    kernel = subject.kernel("constant", fresh=True)
    ran = [_identity(subject, "constant", kernel, 1, 1, num_warps=count) for count in (1, 2, 1, 2)]
    _check_binaries(subject, [set(ran[::2]), set(ran[1::2])])


@case("KEY-1")
def order_of_options_changes_nothing(subject: Subject) -> None:
    """The same options in another order are the same kernel."""
    for ability in ("binaries", "num_warps"):
        require(subject, ability)
    kernel = subject.kernel("constant", fresh=True)
    one = _identity(subject, "constant", kernel, 1, 1, num_warps=2, num_stages=2)
    other = _identity(subject, "constant", kernel, 1, 1, num_stages=2, num_warps=2)
    same(subject, "binaries", one, other)


@case("KEY-1", how=["another_order", "a_default_spelled_out"])
def options_that_say_the_same_make_one_binary(subject: Subject, how: str) -> None:
    """Options in another order, or one that is given its default, give back the compiled kernel that there is."""
    for ability in ("binaries", "compiled", "num_warps"):
        require(subject, ability)
    kernel = subject.kernel("constant", fresh=True)
    said: list[dict[str, Any]] = [{"num_warps": 2, "num_stages": 2}, {"num_stages": 2, "num_warps": 2}]
    if how == "a_default_spelled_out":
        first = launch(subject, "constant", (1,), poisoned(2), 1, kernel=kernel)
        said = [{}, {"num_warps": first.metadata.num_warps}]
    compiled = [launch(subject, "constant", (1,), poisoned(2), 1, kernel=kernel, **options) for options in said]
    with own_rule(subject):
        same(subject, "compiled kernels", 1, len({id(each) for each in compiled}))


def check_captured(
    subject: Subject, program: str, kernel: Any, value: int, is_changed: bool, binaries: dict[int, str]
) -> None:
    """Demand that a kernel writes what it captured; after a change a refusal is as good.

    Where no kernel runs, another value has to be another binary.
    """
    seen = poisoned(2)
    try:
        result = subject.launch(program, (1,), seen, kernel=kernel)
    except Exception as error:
        if is_changed and (seen == POISON).all():
            subject.asked.note(f"{value}, or a refusal", f"{type(error).__name__}: {error}")
            return
        raise Violated(f"{program} with {value} captured", "a launch", f"{type(error).__name__}: {error}") from error
    if subject.runs:
        same(subject, f"{program} with {value} captured", [value, POISON], seen)
        return
    ran = binaries.setdefault(value, subject.identity(result))
    others = sum(binary == ran for binary in binaries.values())
    same(subject, f"captured values whose binary ran with {value} captured", 1, others)


@case("KEY-1")
def changed_global_is_seen(subject: Subject) -> None:
    """A kernel whose captured global changed is compiled anew or refused, and is right when it is changed back."""
    program = subject.source("captured")
    kernel = subject.kernel("captured", fresh=True)
    before = program.__globals__["CAPTURED"]
    binaries: dict[int, str] = {}
    try:
        check_captured(subject, "captured", kernel, 3, False, binaries)
        program.__globals__["CAPTURED"] = type(before)(5)
        subject.asked.script.constant("CAPTURED", type(before)(5))
        check_captured(subject, "captured", kernel, 5, True, binaries)
    finally:
        program.__globals__["CAPTURED"] = before
    subject.asked.script.constant("CAPTURED", before)
    check_captured(subject, "captured", kernel, 3, True, binaries)


def _capturing(subject: Subject, value: int) -> tuple[Any, Any]:
    """Make a function that captures a value in its closure, and a kernel of it."""
    make, script = subject.source("closure"), subject.asked.script
    function = make(value)
    kernel = subject.jit(function)
    script.write(f"function_{value} = closure({value})")
    script.make(kernel, function, f"capturing_{value}", f"{subject.language.jit}(function_{value})")
    return function, kernel


def _write_closure(subject: Subject) -> None:
    make, script = subject.source("closure"), subject.asked.script
    script.constant("CAPTURED", make.__globals__["CAPTURED"])
    script.write(f"\n{inspect.getsource(make)}\n")


@case("KEY-1")
def changed_closure_is_seen(subject: Subject) -> None:
    """A kernel reads its closure before a global of that name, and sees that the closure's value changed."""
    _write_closure(subject)
    function, kernel = _capturing(subject, 7)
    cell = function.__closure__[0]
    binaries: dict[int, str] = {}
    check_captured(subject, "closure", kernel, 7, False, binaries)
    cell.cell_contents = type(cell.cell_contents)(9)
    subject.asked.script.constant("function_7.__closure__[0].cell_contents", cell.cell_contents)
    check_captured(subject, "closure", kernel, 9, True, binaries)


@case("KEY-1")
def kernels_of_one_name_differ_by_their_closures(subject: Subject) -> None:
    """Two kernels of the same text and name, with other values in their closures, are two kernels."""
    _write_closure(subject)
    kernels = {value: _capturing(subject, value)[1] for value in (7, 9)}
    binaries: dict[int, str] = {}
    for value in (7, 9, 7):
        check_captured(subject, "closure", kernels[value], value, False, binaries)


# ------------------------------------------------------------------------------------ KEY-2 and KEY-3: new processes

_LOOP: Final = "num_warps"  # what only subjects that compile have
_CELLS: Final = 4  # of the memory of a launch, of which a kernel writes the first ones


def _folder(subject: Subject, number: str, ability: str = "compiled") -> Folder:
    """Make a folder for programs of a case of a clause."""
    require(subject, ability)
    require(subject, "binaries")
    if "processes" in subject.lacks:
        raise Unsupported(subject.lacks["processes"])
    if subject.saboteur and number not in subject.broken:
        raise Unsupported("its saboteur breaks this process alone")
    return Folder(subject.asked.script)


def _program(subject: Subject, number: str, *lines: str) -> str:
    """Write a program that makes kernels and tells of launches."""
    language = subject.language
    head = [
        language.head.strip(),
        "import os\nimport sys\n\nfrom gridpact.conformance.processes import spoilings, tell\n",
        'os.environ["TRITON_CACHE_DIR"] = sys.argv[1]',
    ]
    if not subject.runs:  # binaries are compared, and ptxas writes a file's time into line information
        head.append('os.environ["TRITON_DISABLE_LINE_INFO"] = "1"')
    if subject.name.endswith(":python"):
        head.append('gridpact.native.turn("off", True)')
    if number in subject.broken:
        head.append(f"from gridpact.conformance.saboteurs import break_process\n\nbreak_process({subject.saboteur!r})")
    return "\n".join([*head, "", *lines]) + "\n"


def _kernel(subject: Subject, program: str) -> str:
    """Give the text of a probe program as a kernel."""
    return f"\n@{subject.language.jit}\n{inspect.getsource(subject.source(program))}\n"


def _launched(subject: Subject, launch: str, when: str = "") -> str:
    """Give a line that tells of a launch whose kernel writes into the memory `seen`."""
    memory = subject.language.tensor.format(f"np.full({_CELLS}, {POISON}, 'i4')")
    return f"tell(lambda seen: {launch}, {memory}{f', {when}' if when else ''})"


def _check_launches(
    subject: Subject, told: list[Told], due: list[int], fresh: list[Told], asked: str = "the program"
) -> None:
    """Demand that launches wrote what is due, as they did in a process with a cache of its own.

    Where nothing runs, what that process handed to the driver is what is due.
    """
    _identities(fresh)
    is_right = [one.wrote[0] for one in fresh] == due if subject.runs else len({one.wrote for one in fresh}) == len(due)
    if not is_right:
        raise Unsupported("with an empty cache it goes wrong, too, which other clauses tell")
    for count, one in enumerate(told):
        if one.has_died:
            raise Violated(f"{asked}, {one.when}", "its end", one.error)
        index = count % len(due)
        wanted = [due[index], *[POISON] * (_CELLS - 1)] if subject.runs else f"binary {fresh[index].wrote}"
        found = one.wrote if subject.runs else f"binary {one.wrote}"
        what = f"launch {index + 1} of {asked}" + (f", with {one.when}" if one.when else "")
        if one.error:
            raise Violated(what, wanted, one.error)
        same(subject, what, wanted, found)
    if len(told) % len(due) or not told:
        raise Violated("launches of the program", f"{len(due)} in each turn", f"{len(told)} in all")


def _identities(told: list[Told]) -> list[str]:
    """Give what binaries are called, of launches that were made."""
    for one in told:
        if one.error:
            raise Violated("a program that launches", "a launch", one.error)
    return [one.identity for one in told]


# ---------------------------------------------------------------------------------------------------------------- KEY-2


@case("KEY-2", seed=[1, 2])
def hash_seed_changes_no_identity(subject: Subject, seed: int) -> None:
    """A process whose hashes have another seed gives the same kernels the same identities."""
    folder = _folder(subject, "KEY-2")
    launches = ("constants[(1,)](seen, 'a', None)", "constant[(1,)](seen, 1.5)", "defaults[(1,)](seen, 5)")
    kernels = [_kernel(subject, name) for name in ("constants", "constant", "defaults")]
    lines = [_launched(subject, launch) for launch in launches]
    folder.write("program.py", _program(subject, "KEY-2", *kernels, *lines))
    one, other = (folder.run("program.py", f"cache_{i}", seed=i) for i in (0, seed))
    same(subject, "identities of three kernels in two processes", _identities(one), _identities(other))


@case("KEY-2")
def order_and_defaults_change_no_identity(subject: Subject) -> None:
    """Options in another order, and defaults that are spelled out, give the same identity in another process."""
    folder = _folder(subject, "KEY-2", _LOOP)
    kernel = _kernel(subject, "constant")
    for name, given in (
        ("one", "1, num_warps=2, num_stages=2"),
        ("other", "num_stages=2, D='default', num_warps=2, C=1"),
    ):
        line = _launched(subject, f"constant[(1,)](seen, {given})")
        folder.write(f"{name}/program.py", _program(subject, "KEY-2", kernel, line))
    one, other = (folder.run(f"{name}/program.py", f"cache_{name}") for name in ("one", "other"))
    same(subject, "identities in two processes", _identities(one), _identities(other))


def _helpers(subject: Subject, plus: int = 1, times: int = 2) -> str:
    """Give kernels that share helpers, which they use in another order; both write 8, or 11 with another number."""
    jit = f"@{subject.language.jit}"
    return f"""
PLUS = tl.constexpr({plus})

{jit}
def inner(x):
    return x + PLUS

{jit}
def outer(x):
    return inner(x) * {times}

{jit}
def both(seen):
    tl.store(seen, inner(1) + outer(2))

{jit}
def outer_first(seen):
    tl.store(seen, outer(2) + inner(1))
"""


@case("KEY-2")
def order_of_visits_changes_no_identity(subject: Subject) -> None:
    """A kernel whose helpers were used by another one before has the identity that it has alone."""
    folder = _folder(subject, "KEY-2", _LOOP)
    launches = [_launched(subject, f"{name}[(1,)](seen)") for name in ("outer_first", "both")]
    helpers = _helpers(subject)
    folder.write("alone/program.py", _program(subject, "KEY-2", helpers, launches[1]))
    folder.write("later/program.py", _program(subject, "KEY-2", helpers, *launches))
    alone, later = (folder.run(f"{name}/program.py", f"cache_{name}") for name in ("alone", "later"))
    same(subject, "identity of the kernel, alone and later", _identities(alone), _identities(later)[1:])


@case("KEY-2")
def kernel_that_is_defined_twice_has_one_identity(subject: Subject) -> None:
    """A kernel that a function defines anew in each call, with the same values captured, is one kernel."""
    folder = _folder(subject, "KEY-2")
    before = subject.source("closure").__globals__["CAPTURED"]
    captured = f"tl.constexpr({before.value})" if hasattr(before, "value") else repr(before)
    made = inspect.getsource(subject.source("closure"))
    jit = subject.language.jit
    lines = [f"\nCAPTURED = {captured}\n\n{made}\n", *[_launched(subject, f"{jit}(closure(7))[(1,)](seen)")] * 2]
    folder.write("program.py", _program(subject, "KEY-2", *lines))
    one, other = _identities(folder.run("program.py"))
    same(subject, "identities of a kernel that is defined twice", one, other)


@case("KEY-2", place=["another_folder", "another_line"])
def place_of_the_file_changes_no_identity(subject: Subject, place: str) -> None:
    """The same kernel in a file of another folder, or further down in its file, is the same kernel."""
    folder = _folder(subject, "KEY-2")
    kernel, line = _kernel(subject, "constant"), _launched(subject, "constant[(1,)](seen, 1)")
    folder.write("one/program.py", _program(subject, "KEY-2", kernel, line))
    moved = "elsewhere/program.py" if place == "another_folder" else "one/further_down.py"
    folder.write(moved, _program(subject, "KEY-2", "\n\n" * (place == "another_line"), kernel, line))
    one, other = (folder.run(name, f"cache_{i}") for i, name in enumerate(("one/program.py", moved)))
    with own_rule(subject):
        same(subject, f"identities in {place.replace('_', ' ')}", _identities(one), _identities(other))


# ---------------------------------------------------------------------------------------------------------------- KEY-3

# Launches, and what they write.
_TWO: Final = {"constant[(1,)](seen, 1)": 1, "constant[(1,)](seen, 0.0)": 4}


@case("KEY-3", damage={damage.replace(" ", "_").replace("'", ""): damage for damage in DAMAGES}, limit_s=120)
def damaged_entry_is_a_miss(subject: Subject, damage: str) -> None:
    """Whatever file of an entry is damaged, wherever: the launch does what it does with an empty cache."""
    folder = _folder(subject, "KEY-3", _LOOP)
    kernel = _kernel(subject, "constant")
    folder.write("program.py", _program(subject, "KEY-3", kernel, *[_launched(subject, launch) for launch in _TWO]))
    fresh = folder.run("program.py")
    _check_launches(subject, fresh, [*_TWO.values()], fresh)
    anew = f"constant = {subject.language.jit}(constant.fn)"
    loop = [f"for spoiled in spoilings(sys.argv[1], {damage!r}, 'constant'):", f"    {anew}"]
    loop += [f"    {_launched(subject, launch, 'spoiled')}" for launch in _TWO]
    program = _program(subject, "KEY-3", kernel, *loop)
    folder.write("program.py", program)  # in its place: a file's name may be part of the key
    _check_launches(subject, folder.run("program.py"), [*_TWO.values()], fresh)


@case("KEY-3", processes=[6], limit_s=120)
def processes_race_on_an_empty_cache(subject: Subject, processes: int) -> None:
    """Processes that launch the same kernels at once with an empty cache each get theirs, and a later one, too."""
    folder = _folder(subject, "KEY-3", _LOOP)
    kernel = _kernel(subject, "constant")
    folder.write("program.py", _program(subject, "KEY-3", kernel, *[_launched(subject, launch) for launch in _TWO]))
    told = folder.run("program.py", processes=processes)
    fresh, later = folder.run("program.py", "fresh"), folder.run("program.py")
    _check_launches(subject, [*told, *later], [*_TWO.values()], fresh)


@case("KEY-3", limit_s=120)
def killed_writer_leaves_no_wrong_entry(subject: Subject) -> None:
    """After processes were killed while they wrote to the cache, launches do what they do with an empty one."""
    folder = _folder(subject, "KEY-3", _LOOP)
    kernel = _kernel(subject, "constant")
    lines = [_launched(subject, launch) for launch in _TWO]
    folder.write("program.py", _program(subject, "KEY-3", kernel, *lines))
    for after_ms in (0, 1, 3, 8):
        folder.kill("program.py", "cache", after_ms / 1000)
    fresh = folder.run("program.py", "fresh")
    _check_launches(subject, folder.run("program.py"), [*_TWO.values()], fresh)


def _check_warm(subject: Subject, programs: list[tuple[str, int]], files: list[tuple[str, str]] | None = None) -> None:
    """Run programs of one name one after another with one cache, and demand that each launch sees its own.

    Parameters
    ----------
    programs
        Text, and what is due.
    files
        Name and text of a file to write before each.
    """
    folder = _folder(subject, "KEY-3", _LOOP)
    handed: list[Any] = []
    for count, (text, due) in enumerate(programs):
        if files:
            folder.write(*files[count])
        folder.write("program.py", _program(subject, "KEY-3", text))
        told, fresh = folder.run("program.py"), folder.run("program.py", f"fresh_{count}")
        which = "the second program, with the cache of the first" if count else "the first program"
        _check_launches(subject, told, [due], fresh, which)
        handed += [one.wrote for one in told]
    if not subject.runs:
        same(subject, "binaries that the driver was handed", len(programs), len(set(handed)))


@case("KEY-3", pairs=_PAIRS)
def entry_of_constants_that_look_alike_is_foreign(subject: Subject, pairs: list[tuple[tuple[Any, ...], int]]) -> None:
    """Constants whose text is the same when it is joined, or without its quotes, have entries of their own."""
    texts = []
    for (first, second), due in pairs:
        line = _launched(subject, f"constants[(1,)](seen, {first!r}, {second!r})")
        texts.append((f"{_kernel(subject, 'constants')}{line}", due))
    _check_warm(subject, texts)


@case("KEY-3")
def entry_of_an_edited_module_is_foreign(subject: Subject) -> None:
    """A constant of a module that is edited between two processes is the new one in the second."""
    kernel = f"import constants\n\n@{subject.language.jit}\ndef read(seen):\n    tl.store(seen, constants.VALUE)\n\n"
    text = kernel + _launched(subject, "read[(1,)](seen)")
    given = [("constants.py", f"import triton.language as tl\n\nVALUE = tl.constexpr({due})\n") for due in (5, 9)]
    _check_warm(subject, [(text, 5), (text, 9)], given)


@case("KEY-3", edited=["helper", "constant_of_a_helper"])
def entry_of_an_edited_helper_is_foreign(subject: Subject, edited: str) -> None:
    """A helper that is edited between two processes, or a constant that it reads, is the new one in the second."""
    line = _launched(subject, "both[(1,)](seen)")
    changed = _helpers(subject, times=3) if edited == "helper" else _helpers(subject, plus=2)
    _check_warm(subject, [(_helpers(subject) + line, 8), (changed + line, 11)])


@case("KEY-3")
def entry_of_another_closure_is_foreign(subject: Subject) -> None:
    """A kernel whose closure holds another value in the second process is compiled anew there."""
    made, jit = inspect.getsource(subject.source("closure")), subject.language.jit
    texts = []
    for value in (7, 9):
        line = _launched(subject, f"{jit}(closure({value}))[(1,)](seen)")
        texts.append((f"\nCAPTURED = tl.constexpr(3)\n\n{made}\n{line}", value))
    _check_warm(subject, texts)


@case("KEY-3", mode={"anybody": 0o777, "the_group": 0o770})
def folder_that_others_can_write_to_is_not_used(subject: Subject, mode: int) -> None:
    """A cache folder that another user can write to is not used, this is said once, and the launch goes on."""
    folder = _folder(subject, "KEY-3", _LOOP)
    lines = [_launched(subject, launch) for launch in _TWO]
    folder.write("program.py", _program(subject, "KEY-3", _kernel(subject, "constant"), *lines))
    folder.permit("cache", mode)
    told, fresh = folder.run("program.py"), folder.run("program.py", "fresh")
    _check_launches(subject, told, [*_TWO.values()], fresh)
    with own_rule(subject):
        same(subject, "files in the folder", [], [path.name for path in folder.files("cache")])
        same(subject, "times that it is said", 1, told[0].said.count("other users can write to it"))


# ---------------------------------------------------------------------------------------------------------------- KEY-4

clause(
    "KEY-4",
    "gridpact",
    "A recompile can be explained: which fact differs from the nearest known kernel.",
    "A service that compiles under traffic for an hour, for a batch size that is a constexpr, looks like a slow GPU.",
)


def _explained(subject: Subject, program: str, kernel: Any, *args: Any, **options: Any) -> list[list[str]]:
    """Launch, and give for each new binary what its launcher says is new."""
    told: list[list[str]] = []
    with subject.explained(told):
        launch(subject, program, (1,), poisoned(2, "i8"), *args, kernel=kernel, **options)
    return told


# Two launches of `constant` or `arrived`, one after the other, and what is new in the second.
_REASONS: Final[dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...], str]]] = {
    "a_class": ("arrived", (16,), (17,), "argument value: not divisible by 16"),
    "equal_to_1": ("arrived", (17,), (1,), "argument value: i32 -> equal to 1"),
    "a_width": ("arrived", (17,), (2**40 + 1,), "argument value: i32 -> i64"),
    "a_type": ("arrived", (17,), (0.5,), "argument value: i32 -> fp32"),
    "a_constant": ("constant", (1,), (2,), "constexpr C: 1 -> 2"),
    "the_type_of_a_constant": ("constant", (1,), (1.0,), "constexpr C: 1 -> 1.0 (int -> float)"),
    "the_sign_of_zero": ("constant", (0.0,), (-0.0,), "constexpr C: 0.0 -> -0.0"),
}


@case("KEY-4", why=_REASONS)
def new_fact_is_told(subject: Subject, why: tuple[str, tuple[Any, ...], tuple[Any, ...], str]) -> None:
    """The first binary differs from nothing, a second in one fact, which is told, and the first again is none."""
    require(subject, "explained")
    program, first, second, due = why
    kernel = subject.kernel(program, fresh=True)
    same(subject, "what is new in the first", "[[]]", str(_explained(subject, program, kernel, *first)))
    same(subject, "what is new in the second", due, str(_one(_explained(subject, program, kernel, *second))))
    same(subject, "binaries of the first again", 0, len(_explained(subject, program, kernel, *first)))


def _one(told: list[list[str]]) -> str:
    return " and ".join("; ".join(changes) for changes in told)


@case("KEY-4")
def new_option_is_told(subject: Subject) -> None:
    """A launch with another number of warps tells that."""
    for ability in ("explained", "num_warps"):
        require(subject, ability)
    kernel = subject.kernel("constant", fresh=True)
    _explained(subject, "constant", kernel, 1, num_warps=2)
    told = _one(_explained(subject, "constant", kernel, 1, num_warps=8))
    same(subject, "what is new", "option num_warps: 2 -> 8", told)


@case("KEY-4")
def nearest_binary_is_compared(subject: Subject) -> None:
    """Of several binaries the one that differs in the fewest facts is compared, not the latest."""
    require(subject, "explained")
    kernel = subject.kernel("constant", fresh=True)
    for constants in ((1, "a"), (2, "b")):
        _explained(subject, "constant", kernel, *constants)
    told = _one(_explained(subject, "constant", kernel, 1, "c"))
    same(subject, "what is new", "constexpr D: 'a' -> 'c'", told)


@case("KEY-4", what=["captured", "helper"])
def new_state_is_told(subject: Subject, what: str) -> None:
    """A captured value that changed is told by its name, before and after; a rebound helper is told by its name."""
    for ability in ("explained", "state"):
        require(subject, ability)
    program = "captured" if what == "captured" else "asks_helper"
    name = "CAPTURED" if what == "captured" else "HELPER"
    names = subject.source(program).__globals__
    values = [subject.helper(subject.source(f"answers_{number}")) for number in (3, 5)]
    if what == "captured":
        values = [names["CAPTURED"], type(names["CAPTURED"])(5.0)]
    before = names.get(name)
    kernel = subject.kernel(program, fresh=True)
    try:
        names[name] = values[0]
        _explained(subject, program, kernel)
        names[name] = values[1]
        told = _one(_explained(subject, program, kernel))
    finally:
        names[name] = before
    due = "captured CAPTURED: 3 -> 5.0 (int -> float)" if what == "captured" else "helper HELPER edited"
    same(subject, "what is new", due, told)


@case("KEY-4")
def storm_of_recompiles_is_found(subject: Subject) -> None:
    """One fact that made 16 binaries of a kernel is warned of, once, by its name."""
    require(subject, "explained")
    kernel = subject.kernel("constant", fresh=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(20):
            _explained(subject, "constant", kernel, number + 2)
    told = [str(each.message) for each in caught if "[KEY-4]" in str(each.message)]
    same(subject, "warnings", 1, len(told))
    same(subject, "the warning names the fact", True, "constexpr C" in told[0] and "'constant'" in told[0])
