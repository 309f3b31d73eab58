"""Cases about streams as programs: each runs by hand, to its end, and shows what the case saw."""

import subprocess
import sys

import pytest

WRITE = """
import sys
from gridpact.conformance import model
from gridpact.conformance.check import Asked
from gridpact.conformance.subjects import open_subject

model.load_contract()
subject, asked = open_subject(sys.argv[1]), Asked()
subject.begin(asked)
model.CASES[sys.argv[2]].run(subject)
open(sys.argv[3], "w").write(asked.script.text)
"""

EVENT = "STREAM-3:event_orders_two_streams:on="


@pytest.mark.parametrize(
    ("subject", "case", "shown"),
    [
        *(
            ("triton:active", f"{EVENT}{kind}", ["[7 1]", "[7]"])
            for kind in ("gridpact", "dpctl", "handle", "unordered")
        ),
        ("intel:launcher", f"{EVENT}torch", ["[7 1]", "[7]"]),
        ("intel:launcher", "STREAM-1:launch_goes_to_its_stream:how=current;on=torch", ["[7 1]", "[5]", "[6]"]),
        ("triton:active", "STREAM-1:inner_stream_wins_and_ends_with_its_block", ["[6]", "[5]", "[4]"]),
        ("gridpact:sycl:cpu", "STREAM-1:launch_goes_to_its_stream:how=option;on=dpctl", ["[7 1]", "[5]", "[6]"]),
        ("gridpact:sycl:cpu", "STREAM-1:memory_goes_to_the_stream_of_its_library:on=dpctl", ["[7 1]", "Usm([0])"]),
        ("gridpact:sycl:cpu", "DEVICE-1:stream_tells_the_device:how=option", ["[5]"]),
        ("gridpact:reference", "STREAM-3:chain_goes_from_stream_to_stream:on=gridpact;streams=2", ["[5]"]),
    ],
)
def test_program_of_a_case_runs_to_its_end(sycl, subject, case, shown, tmp_path):
    program = tmp_path / "program.py"
    written = subprocess.run([sys.executable, "-c", WRITE, subject, case, program], capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    last = [line.partition(" ")[2] for line in lines[len(lines) - len({line.split()[0] for line in lines}) :]]
    assert [value for value in shown if value not in last] == [], ran.stdout
