"""Instructions in other words: the sets for tests have no sentence of the training."""

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.language.text import decode
from sim.make import EnvConfig, find_task, make_vec_env
from sim.phrasings import PHRASINGS, SYNONYMS, sentences
from sim.tasks.pick_by_name import NAMES
from sim.tasks.task import with_phrasing

SEEDS = list(range(24))
TESTED = sorted(PHRASINGS.keys() - {"trained"})


def all_sentences(phrasing: str) -> set[str]:
    return {line for name in NAMES for line in sentences(phrasing, name, NAMES)}


@pytest.mark.parametrize("phrasing", TESTED)
def test_no_sentence_of_a_test_is_one_of_the_training(phrasing: str) -> None:
    assert not all_sentences(phrasing) & all_sentences("trained")


def test_unseen_sentences_have_other_forms_and_the_same_colours() -> None:
    assert not set(PHRASINGS["unseen"]) & set(PHRASINGS["trained"])
    for name in NAMES:
        assert all(name in line for line in sentences("unseen", name, NAMES))


def test_synonyms_are_new_words_in_sentences_of_the_training() -> None:
    words = {word for several in SYNONYMS.values() for word in several}
    assert set(PHRASINGS["synonyms"]) <= set(PHRASINGS["trained"])
    assert not words & {word for line in all_sentences("trained") for word in line.split()}
    assert SYNONYMS.keys() == set(NAMES)


def test_a_negated_sentence_names_the_goal_and_another_colour() -> None:
    for name in NAMES:
        for line in sentences("negated", name, NAMES):
            assert name in line
            assert sum(other in line for other in NAMES) == 2


def test_a_nameless_sentence_is_the_same_for_every_goal() -> None:
    assert len({sentences("nameless", name, NAMES) for name in NAMES}) == 1
    assert not any(name in line for name in NAMES for line in all_sentences("nameless"))


@pytest.mark.parametrize("phrasing", sorted(PHRASINGS))
def test_episodes_have_sentences_of_the_set_and_starts_are_otherwise_the_same(
    phrasing: str,
) -> None:
    usual = make_vec_env(EnvConfig(task="reach_by_name"), len(SEEDS))
    other = make_vec_env(EnvConfig(task="reach_by_name", phrasing=phrasing), len(SEEDS))
    named, said = usual.reset(SEEDS), other.reset(SEEDS)
    usual.close()
    other.close()
    lines = decode(said["instruction"])
    targets = [line.split()[2] for line in decode(named["instruction"])]
    assert len(set(lines)) > 1
    for line, target in zip(lines, targets, strict=True):
        assert line in sentences(phrasing, target, NAMES)
    for name in named.keys() - {"instruction"}:
        np.testing.assert_array_equal(named[name], said[name])


def test_one_instruction_may_be_put_in_other_words() -> None:
    config = EnvConfig(
        task="reach_by_name", instruction="reach the blue marker", phrasing="negated"
    )
    env = make_vec_env(config, len(SEEDS))
    lines = set(decode(env.reset(SEEDS)["instruction"]))
    env.close()
    assert lines <= set(sentences("negated", "blue", NAMES))


def test_an_unknown_phrasing_and_a_task_without_any_are_refused() -> None:
    with pytest.raises(HandoffError, match="phrasing 'unsen', did you mean"):
        with_phrasing(find_task("reach_by_name"), "unsen")
    with pytest.raises(HandoffError, match="reach: phrasing 'unseen', the task has none"):
        with_phrasing(find_task("reach"), "unseen")
