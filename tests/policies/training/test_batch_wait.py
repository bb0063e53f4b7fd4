import pytest

from policies.training.batch_wait import BatchWait, wait_note


class Clock:
    """A clock that advances by explicit calls only."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def pass_time(wait: BatchWait, clock: Clock, waiting: float, computing: float) -> None:
    with wait.waiting():
        clock.seconds += waiting
    clock.seconds += computing


def test_an_entry_has_the_fraction_since_the_one_before():
    clock = Clock()
    wait = BatchWait(clock)
    pass_time(wait, clock, 1.0, 3.0)
    assert wait.entry() == pytest.approx(0.25)
    pass_time(wait, clock, 1.0, 1.0)
    pass_time(wait, clock, 0.0, 8.0)
    assert wait.entry() == pytest.approx(0.1)
    assert wait.total() == pytest.approx(2 / 14)


def test_time_before_the_start_does_not_count():
    clock = Clock()
    wait = BatchWait(clock)
    pass_time(wait, clock, 5.0, 5.0)
    wait.start()
    pass_time(wait, clock, 1.0, 1.0)
    assert (wait.entry(), wait.total()) == (0.5, 0.5)


def test_a_wait_is_told_from_two_percent_on():
    assert (wait_note(0.019), wait_note(0.25)) == ("", "25% waiting for batches")
