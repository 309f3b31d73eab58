"""The package as a whole: what importing it costs, and that its documents are true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gridpact
from gridpact import backends
from gridpact.conformance import model
from gridpact.contract import kernels

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_import_opens_neither_triton_nor_a_driver():
    program = (
        "import sys, gridpact, gridpact.cli\n"
        "foreign = {'triton', 'torch', 'dpctl', 'cuda', 'cupy'} & {name.partition('.')[0] for name in sys.modules}\n"
        "drivers = ('libsycl', 'OpenCL', 'libcuda')\n"
        "opened = [line for line in open('/proc/self/maps') if any(driver in line for driver in drivers)]\n"
        "print(foreign or opened or 'clean')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "clean\n"


def test_public_names_are_written_out():
    assert sorted(gridpact.__all__) == gridpact.__all__
    for name in gridpact.__all__:
        assert hasattr(gridpact, name), name


def test_readme_begins_with_the_two_commands():
    commands = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    assert commands[:2] == ["make verify", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) >= {command.split()[1] for command in commands}


def test_links_of_the_documents_lead_somewhere():
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/alignment.md", "docs/identity.md"):
        prose = re.sub(r"`[^`\n]*`|^    .*$", "", (ROOT / document).read_text(), flags=re.MULTILINE)
        for link in re.findall(r"\]\(([^)#\s]+)\)", prose):
            assert link.startswith("https://") or (ROOT / document).parent.joinpath(link).exists(), (
                f"{document}: {link}"
            )


def test_support_table_has_every_backend():
    for name, module in backends.BACKENDS.items():
        assert f"](src/{module.replace('.', '/')}.py)" in README, name


def test_readme_shows_each_clause_that_verify_proves():
    model.load_contract()
    for clause in model.CLAUSES:
        assert re.search(rf"│ {clause} +│", README), clause


def test_launches_in_the_readme_run(sycl, tmp_path):
    parts = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(parts) == 4
    path = tmp_path / "readme.py"
    path.write_text("".join(parts))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = re.findall(r"(?:print\(.*\)  # |  # prints )(.*)", "".join(parts))
    assert ran.stdout.splitlines() == shown


def test_errors_that_the_readme_shows_are_the_real_ones(sycl):
    import numpy as np

    shown = re.findall(r"^    >>> (.*)\n    (\w+): (.*)$", README, re.MULTILINE)
    assert len(shown) >= 4
    names = {"kernel": kernels("triton").coordinates, "x": np.zeros(64, np.int32)}
    for call, kind, text in shown:
        with pytest.raises(gridpact.LaunchError) as caught:
            eval(call, names)
        assert type(caught.value).__name__ == kind, call
        assert str(caught.value) == text, call


def test_clauses_that_the_code_names_exist():
    numbers = {
        "GRID": 11,
        "STREAM": 5,
        "DEVICE": 2,
        "CAPTURE": 1,
        "META": 6,
        "HOOK": 6,
        "KEY": 4,
        "STATE": 3,
        "SPEC": 3,
    }
    numbers |= {"ARG": 3, "THREAD": 3}
    for path in (ROOT / "src").rglob("*.py"):
        for family, number in re.findall(r"\b([A-Z]{3,7})-(\d+)\b", path.read_text()):
            if family in numbers:
                assert 1 <= int(number) <= numbers[family], f"{path.name}: {family}-{number}"
