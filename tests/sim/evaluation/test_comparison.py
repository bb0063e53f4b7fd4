import json
from dataclasses import replace

import pytest

from robots.errors import HandoffError
from sim.evaluation.comparison import compare, compare_all, read_result
from sim.evaluation.protocol import Protocol, digest, protocol_statement

ASKED = Protocol(name="p", engine="gym", task="t", first_seed=5, episodes=3, max_steps=9)


def write(folder, scores, protocol=ASKED):
    """A result whose episodes are solved where the score is 1."""
    folder.mkdir()
    statement = protocol_statement(protocol)
    episodes = [
        {"seed": 5 + i, "score": score, "success": score == 1.0} for i, score in enumerate(scores)
    ]
    table = {"protocol": statement, "protocol_digest": digest(statement), "episodes": episodes}
    (folder / "episodes.json").write_text(json.dumps(table))
    return read_result(folder)


def test_difference_is_the_agent_minus_the_reference(tmp_path):
    first, second = (
        write(tmp_path / "first", [0.0, 0.5, 1.0]),
        write(tmp_path / "second", [1.0, 1.0, 0.4]),
    )
    comparison = compare(first, second)
    assert (comparison.reference, comparison.agent) == ("first", "second")
    assert comparison.score["mean"] == pytest.approx(0.3)
    assert comparison.success == {"only_first": 1, "only_second": 2, "p_value": 1.0}
    assert compare(first, first).score == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_every_other_result_is_held_against_the_first(tmp_path):
    results = [
        write(tmp_path / name, [score, 0.0, 0.0])
        for name, score in (("a", 0.0), ("b", 0.3), ("c", 0.6))
    ]
    assert [(c.reference, c.agent, c.score["mean"]) for c in compare_all(results)] == [
        ("a", "b", pytest.approx(0.1)),
        ("a", "c", pytest.approx(0.2)),
    ]


def test_comparison_refuses_another_protocol_and_names_the_keys(tmp_path):
    first = write(tmp_path / "first", [0.0, 0.0, 0.0])
    second = write(
        tmp_path / "second", [0.0, 0.0, 0.0], replace(ASKED, max_steps=8, success="at_end")
    )
    with pytest.raises(
        HandoffError, match=r"first and second differ in \['max_steps', 'success'\]"
    ):
        compare(first, second)


def test_edited_protocol_is_refused(tmp_path):
    write(tmp_path / "first", [0.0, 0.0, 0.0])
    path = tmp_path / "first" / "episodes.json"
    path.write_text(path.read_text().replace('"max_steps": 9', '"max_steps": 99'))
    with pytest.raises(HandoffError, match="Was it edited"):
        read_result(tmp_path / "first")


def test_missing_episodes_are_refused(tmp_path):
    with pytest.raises(HandoffError, match="2 episodes, but its protocol has 3"):
        write(tmp_path / "first", [0.0, 0.0])


def test_missing_table_is_named(tmp_path):
    with pytest.raises(HandoffError, match=r"episodes\.json"):
        read_result(tmp_path)
