"""Every saboteur breaks exactly the clauses that it names: no case is blind to it, no other one is upset."""

import pytest

from gridpact.conformance import model
from gridpact.conformance.isolation import Worker
from gridpact.conformance.saboteurs import SABOTEURS


def failing_clauses(subject, saboteur):
    worker = Worker(subject, saboteur=saboteur)
    failed = {}
    try:
        assert worker.start()["ready"], worker.facts
        for case in model.select():
            answer = worker.ask(case.id, 60)
            if case.ends_worker:
                worker.stop()
            if answer["verdict"] not in ("pass", "unsupported"):
                failed.setdefault(case.clause, (case.id, answer["verdict"], answer["observed"]))
    finally:
        worker.close()
    return failed


@pytest.mark.parametrize("name", SABOTEURS)
def test_saboteur_fails_exactly_its_clauses(name, request):
    saboteur = SABOTEURS[name]
    if saboteur.subject == "gridpact:sycl:cpu":
        request.getfixturevalue("sycl")
    if saboteur.subject == "gridpact:cuda:fake":
        pytest.importorskip("triton")  # cuda-bindings come with what the tests need: without them it fails
    failed = failing_clauses(saboteur.subject, name)
    assert set(failed) == set(saboteur.clauses), failed
    assert all(verdict == "violated" for _, verdict, _ in failed.values()), failed


def test_every_clause_has_a_saboteur():
    model.load_contract()
    broken = set().union(*(saboteur.clauses for saboteur in SABOTEURS.values()))
    assert set(model.CLAUSES) == broken


def test_some_saboteurs_are_native():
    assert sum(name.startswith("native-") for name in SABOTEURS) >= 2
