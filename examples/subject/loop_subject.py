"""A third party's subject: a launcher of one's own under the conformance suite of gridpact.

It is an entry point of the group `gridpact.subjects`; in the pyproject.toml of its package:

    [project.entry-points."gridpact.subjects"]
    "example:loop" = "loop_subject:Loop"

Then `gridpact verify --subject example:loop` asks it every clause. This launcher loops over the grid on the host, and
has a fault that the suite finds: it drops a fourth axis.
"""

import itertools

from gridpact.backends import reference
from gridpact.conformance.subjects import Subject
from gridpact.contract import reference_programs


class LoopKernel:
    """What one would import from the package under proof: `kernel[grid](*args)`."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            axes = grid(kwargs) if callable(grid) else grid
            x, y, z = (*axes, 1, 1)[:3]
            reference._running.grid = (x, y, z)
            for k, j, i in itertools.product(range(z), range(y), range(x)):
                reference._running.coordinates = (i, j, k)
                self.function(*args, **kwargs)

        return launch


class Loop(Subject):
    """How the suite asks it."""

    name = "example:loop"
    device = "a loop on the host"
    programs_in_case = 20_000

    def __init__(self):
        super().__init__()
        self.lacks = {"num_warps": "a loop has no warps", "limits": "it has none"}

    def source(self, program):
        return getattr(reference_programs, program)

    def jit(self, function, **options):
        return LoopKernel(function)
