"""A thread that looks again and again: when it begins, rests, is woken and ends."""

from __future__ import annotations

import threading

from headrace.runtime.periodic import Periodic
from headrace.runtime.waiting import eventually


class Counting(Periodic):
    def __init__(self, rest_s: float) -> None:
        super().__init__("counting")
        self.looks = 0
        self._rest_s = rest_s

    def poll(self) -> float:
        self.looks += 1
        return self._rest_s


def test_it_looks_as_long_as_the_block_lasts() -> None:
    with Counting(0.001) as counting:
        eventually(lambda: counting.looks >= 3, 10)
    assert counting._thread not in threading.enumerate()


def test_a_rest_ends_when_it_is_told_to_look() -> None:
    with Counting(3600) as counting:
        eventually(lambda: counting.looks == 1, 10)
        counting.poll_now()
        eventually(lambda: counting.looks == 2, 10)


def test_what_has_not_begun_can_be_stopped() -> None:
    counting = Counting(1)
    counting.stop()
    assert counting.looks == 0


def test_a_round_that_hangs_is_left_to_itself() -> None:
    released = threading.Event()

    class Hanging(Counting):
        def poll(self) -> float:
            released.wait(30)
            return super().poll()

    hanging = Hanging(0)
    hanging.start()
    hanging.stop(within_s=0.01)
    assert hanging.looks == 0
    released.set()
    eventually(lambda: hanging.looks == 1, 10)
