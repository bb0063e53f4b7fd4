"""Every picture of an episode is sent once, and comes back before and after its steps."""

from __future__ import annotations

import numpy as np

from robots.wire.shared_pictures import RECEIVED_EPISODES, SENT_EPISODES, SharedPictures
from robots.wire.steps import Steps, plain_steps


def episode(number: int, first: int, last: int, end: bool = False) -> Steps:
    """Steps `first` to `last` of an episode; the picture before step i is 10 e + i everywhere."""
    index = np.arange(first, last + 1)
    n = len(index)
    before = np.full((n, 1, 1, 3), 0, np.uint8) + (10 * number + index)[:, None, None, None]
    steps = plain_steps(
        np.full(n, number),
        index,
        np.zeros((n, 1)),
        np.zeros((n, 1)),
        np.zeros(n),
        np.zeros((n, 1)),
        (index == last) & end,
        np.zeros(n, bool),
    )
    before = before.astype(np.uint8)
    return steps._replace(pictures={"front": before}, next_pictures={"front": before + 1})


def sent(sender: SharedPictures, steps: Steps) -> tuple[Steps, np.ndarray]:
    own = sender.own_rows(steps)
    return steps._replace(pictures={"front": steps.pictures["front"][own]}), own


def before(steps: Steps) -> list[int]:
    return steps.pictures["front"][:, 0, 0, 0].tolist()


def test_only_the_first_picture_of_an_episode_is_sent_beside_those_after_its_steps() -> None:
    sender, receiver = SharedPictures(SENT_EPISODES), SharedPictures(RECEIVED_EPISODES)
    own, received = [], []
    for steps in (episode(1, 0, 2), episode(1, 3, 3), episode(1, 4, 5, end=True), episode(2, 0, 0)):
        message, rows = sent(sender, steps)
        own.append(rows.tolist())
        received += before(receiver.complete(message, rows))
    assert own == [[0], [], [], [0]]
    assert received == [10, 11, 12, 13, 14, 15, 20]


def test_a_picture_that_differs_from_the_one_after_the_preceding_step_is_sent() -> None:
    sender = SharedPictures(SENT_EPISODES)
    sender.own_rows(episode(1, 0, 1))
    moved = episode(1, 2, 2)
    assert sender.own_rows(moved._replace(pictures={"front": moved.pictures["front"] + 5})) == [0]


def test_a_receiver_goes_on_from_its_saved_state() -> None:
    sender, receiver = SharedPictures(SENT_EPISODES), SharedPictures(RECEIVED_EPISODES)
    receiver.complete(*sent(sender, episode(1, 0, 1)))
    resumed = SharedPictures(RECEIVED_EPISODES)
    resumed.load_state_dict(receiver.state_dict())
    assert before(resumed.complete(*sent(sender, episode(1, 2, 3)))) == [12, 13]


def test_a_step_whose_picture_was_lost_with_the_entry_before_it_is_left_out() -> None:
    sender, receiver = SharedPictures(SENT_EPISODES), SharedPictures(RECEIVED_EPISODES)
    sender.own_rows(episode(1, 0, 1))
    steps = receiver.complete(*sent(sender, episode(1, 2, 4)))
    assert steps.number.tolist() == [3, 4]
    assert before(steps) == [13, 14]
    nothing = SharedPictures(RECEIVED_EPISODES).complete(*sent(sender, episode(1, 5, 5)))
    assert nothing.rows == 0


def test_a_sender_forgets_the_oldest_episodes_and_sends_their_pictures_again() -> None:
    sender = SharedPictures(2)
    for number in (1, 2, 3):
        sender.own_rows(episode(number, 0, 0))
    assert sender.own_rows(episode(1, 1, 1)).tolist() == [0]
    assert sender.own_rows(episode(3, 1, 1)).tolist() == []
