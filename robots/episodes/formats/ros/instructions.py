"""Reads the instructions that a recording of ROS has on a topic of words: one sentence for the
episode, or one for every step where the sentence changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from robots.episodes.formats.ros.bags import Bag, BagMessage
from robots.errors import HandoffError
from robots.language.text import encode

WORDS = "std_msgs/msg/String"
"""Type of the messages."""
LONGEST = 2**12
"""Largest size of a sentence [bytes]."""
_TOPICS = ("instruction", "language_instruction", "task", "prompt")
_SMALLEST = 64
"""Smallest size of the text field [bytes]."""


class Spoken(NamedTuple):
    """A sentence, from the time of its message on."""

    log_ns: int
    """Time of recording [ns]."""
    sentence: str


def is_instruction(topic: str) -> bool:
    """Whether the last part of a topic's name is one for instructions."""
    return topic.rpartition("/")[2] in _TOPICS


def decoded_words(bag: Bag, message: BagMessage) -> str:
    """The words of a message of the type `WORDS`; a recording may define it otherwise.

    Raises:
        HandoffError: it is damaged.
    """
    return str(getattr(bag.types.decode(message.type_name, message.data, message.ros1), "data", ""))


def add_sentence(
    spoken: dict[str, list[Spoken]],
    bag: Bag,
    message: BagMessage,
    *,
    longest: int = LONGEST,
    empty: bool = False,
) -> int:
    """Adds the sentence of a message to those of its topic, and returns its size [bytes].

    Args:
        spoken: sentences by topic.
        bag: the recording.
        message: one of its messages.
        longest: largest size of a sentence [bytes].
        empty: whether empty sentences are added.

    Raises:
        HandoffError: it is longer than `longest`.
    """
    sentence = decoded_words(bag, message)
    size = len(sentence.encode(errors="replace"))
    if size > longest or "\0" in sentence:
        raise HandoffError(
            f"{bag.path}: {message.topic} has a sentence of {size} bytes, the limit is {longest}, none of them 0. Is "
            "it an instruction?"
        )
    if sentence or empty:
        spoken.setdefault(message.topic, []).append(Spoken(message.log_ns, sentence))
    # An entry of the list takes about 100 bytes beside its words.
    return 100 + size


def chosen(spoken: Mapping[str, list[Spoken]]) -> list[Spoken]:
    """The sentences of the topic that spoke first, in the order of their times; empty if none
    did."""
    first = next(iter(spoken.values()), [])
    return sorted(first, key=lambda entry: entry.log_ns)


def text_size(bags: Iterable[Bag]) -> int:
    """Size of the text field with the sentence of every step [bytes]; 0 if no recording changes its
    sentence. Every recording is read, of which the words alone are decoded.

    Raises:
        HandoffError: a recording is damaged, or a sentence is too long.
    """
    longest, changes = _SMALLEST, False
    for bag in bags:
        spoken: dict[str, list[Spoken]] = {}
        for message in bag.messages():
            if message.type_name == WORDS and is_instruction(message.topic):
                add_sentence(spoken, bag, message)
        sentences = {entry.sentence for entry in chosen(spoken)}
        changes |= len(sentences) > 1
        longest = max(longest, *(len(sentence.encode()) for sentence in sentences), 0)
    return longest if changes else 0


def sampled(
    spoken: Sequence[Spoken], start_ns: int, ends: tuple[float, float], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sentences as samples of a field that covers the whole recording: the first one holds from
    the beginning, and the last one to the end.

    Args:
        spoken: at least one sentence, in the order of their times.
        start_ns: time of recording at which the capture times are 0 [ns].
        ends: smallest and largest capture time of the other fields [s].
        size: size of the text field [bytes].

    Returns:
        `(T, size)` uint8, and `(T,)` capture times [s].
    """
    times = [1e-9 * (entry.log_ns - start_ns) for entry in spoken]
    sentences = [entry.sentence for entry in spoken]
    seconds = np.array([min(ends[0], times[0]), *times, max(ends[1], times[-1])])
    return encode([sentences[0], *sentences, sentences[-1]], size), seconds
