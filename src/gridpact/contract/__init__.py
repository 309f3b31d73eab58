"""The launch contract as data: a module per family with its clauses and the cases that prove them.

A *grid* counts programs; a *program* has coordinates `program_id(0..2)`; a *subject* is something that launches.
*Refused* always means: a typed error before any driver call, which names the subject of the fault, the rule, the
value, the remedy and the clause. Judged in this order: arguments and options bind; grid type, length, sign, limit;
then emptiness.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import FunctionType, SimpleNamespace


@cache
def kernels(language: str) -> SimpleNamespace:
    """Give the probe programs as kernels of gridpact, by name.

    Parameters
    ----------
    language
        `triton`, or `reference` for the reference backend.
    """
    import gridpact

    functions = vars(importlib.import_module(f"gridpact.contract.{language}_programs")).values()
    own = [f for f in functions if isinstance(f, FunctionType) and f.__module__.endswith("_programs")]
    return SimpleNamespace(**{f.__name__: gridpact.jit(f, **getattr(f, "options", {})) for f in own})
