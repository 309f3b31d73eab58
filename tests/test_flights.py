"""What launches in flight keep alive, until they are over and no longer, whoever gets in between."""

import threading

import pytest

from gridpact.backends.flights import Flights
from gridpact.errors import BackendError


class Mark:
    def __init__(self, is_over=False, meanwhile=lambda: None):
        self.is_over, self.meanwhile = is_over, meanwhile

    def is_complete(self):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return self.is_over

    def wait(self):
        raise NotImplementedError


class Kept:
    def __init__(self, dropped, name, at_end=lambda: None):
        self.dropped, self.name, self.at_end = dropped, name, at_end

    def __del__(self):
        self.dropped.append(self.name)
        self.at_end()


@pytest.fixture
def dropped():
    return []


def test_a_stream_lets_go_in_order_and_is_forgotten_when_nothing_is_left(dropped):
    flights, marks = Flights(), [Mark(), Mark(is_over=True)]
    for name, mark in zip("ab", marks, strict=True):
        flights.add(1, mark, (Kept(dropped, name),))
    flights.let_go()
    assert (dropped, flights.marks(1), 1 in flights) == ([], marks, True)  # b is behind a
    marks[0].is_over = True
    flights.let_go([2])
    assert dropped == []
    flights.let_go([1])
    assert (sorted(dropped), 1 in flights, bool(flights)) == (["a", "b"], False, False)


def test_who_lets_go_meanwhile_takes_no_flight_twice(dropped):
    """As the garbage collector does it: a destructor that launches runs while the first flight is being asked."""
    flights = Flights()
    flights.add(1, Mark(is_over=True, meanwhile=lambda: flights.let_go()), (Kept(dropped, "over"),))
    flights.add(1, Mark(), (Kept(dropped, "in flight"),))
    flights.let_go()
    assert dropped == ["over"]
    assert len(flights.marks(1)) == 1


def test_what_is_let_go_may_launch_on_another_thread(dropped):
    """It is dropped after the lock is: else this would wait for ever."""
    flights, second = Flights(), Mark()

    def launch():
        thread = threading.Thread(target=flights.add, args=(2, second, ()))
        thread.start()
        thread.join(10)
        dropped.extend(["waited in vain"] * thread.is_alive())

    flights.add(1, Mark(is_over=True), (Kept(dropped, "first", at_end=launch),))
    flights.add(1, Mark(is_over=True), (Kept(dropped, "last"),))
    flights.let_go()
    assert (dropped, flights.marks()) == (["first", "last"], [second])


def test_a_flight_that_failed_is_over(dropped):
    """Its error is told by who waits for the stream, and not by a later launch."""

    def fail():
        raise BackendError("cuda", "cuEventQuery", "an illegal memory access")

    flights = Flights()
    flights.add(1, Mark(meanwhile=fail), (Kept(dropped, "failed"),))
    flights.let_go()
    assert (dropped, bool(flights)) == (["failed"], False)
