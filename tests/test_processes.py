"""Programs of cases in processes of their own: what they tell, how they die, and what is damaged before them."""

import pytest

from gridpact.conformance.processes import DAMAGES, Folder, Told, spoilings
from gridpact.conformance.script import Language, Script

TELLING = """
import sys
from types import SimpleNamespace
from pathlib import Path
import numpy as np
from gridpact.conformance.processes import tell

def launch(seen):
    seen[0] = 5
    (Path(sys.argv[1]).mkdir(exist_ok=True), (Path(sys.argv[1]) / "entry").write_text("content"))
    return SimpleNamespace(hash="one")

tell(launch, np.zeros(2, "i4"))
"""


def test_program_tells_of_its_launches():
    folder = Folder()
    folder.write("program.py", TELLING)
    assert folder.run("program.py") == [Told("one", [5, 0])]
    assert folder.run("program.py", processes=3) == [Told("one", [5, 0])] * 3
    assert [path.name for path in folder.files("cache")] == ["entry"]


def test_refused_launch_and_death_of_the_process_are_told():
    folder = Folder()
    died = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    folder.write("program.py", f"{TELLING}tell(lambda seen: 1 / 0, None, 'damage')\n{died}")
    launched, refused, end = folder.run("program.py")
    assert (launched.identity, refused.error) == ("one", "ZeroDivisionError: division by zero")
    assert (end.error, end.when, end.has_died) == ("died of SIGSEGV", "after damage", True)


def test_program_is_killed_after_its_first_file():
    folder = Folder()
    folder.write("program.py", f"{TELLING}while True:\n    pass\n")
    folder.kill("program.py", "cache", after_s=0.0)
    assert [path.name for path in folder.files("cache")] == ["entry"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_file_is_damaged_at_a_time(tmp_path, damage):
    contents = {"a/add.bin": b"binary" * 9, "a/add.json": b"json" * 9, "b/add.bin": b"other", "c/library.so": b"so"}
    for name, content in contents.items():
        (tmp_path / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / name).write_bytes(content)
    seen = set()
    for _ in spoilings(str(tmp_path / "cache"), damage, "add"):
        now = {name: (tmp_path / "cache" / name).read_bytes() for name in contents}
        (changed,) = (name for name in contents if now[name] != contents[name])
        seen.add(changed)
    assert seen == {"a/add.bin", "a/add.json", "b/add.bin"}


def test_what_is_done_is_written_down_as_a_program(tmp_path, capsys, monkeypatch):
    script = Script(Language())
    folder = Folder(script)
    folder.write("program.py", TELLING)
    folder.run("program.py", seed=3)
    exec(compile(script.text, "finding.py", "exec"), {})
    assert capsys.readouterr().out == "[5, 0] by one\n"
