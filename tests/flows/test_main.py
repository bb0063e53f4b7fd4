"""The command line: accepted and refused arguments."""

import pytest

from flows.__main__ import _parse, main


@pytest.mark.parametrize(
    "words",
    [
        ["hil", "reach", "corrected.steps=5", "clone.training.steps=3", "--operator", "simulated"],
        ["hil", "--operator", "simulated", "reach", "corrected.steps=5", "clone.training.steps=3"],
        ["hil", "reach", "--operator", "simulated", "corrected.steps=5", "clone.training.steps=3"],
        ["hil", "reach", "corrected.steps=5", "--operator", "simulated", "clone.training.steps=3"],
    ],
)
def test_overrides_may_stand_before_and_behind_options(words: list[str]) -> None:
    options = _parse(words)
    assert (options.task, options.operator) == ("reach", "simulated")
    assert options.overrides == ["corrected.steps=5", "clone.training.steps=3"]


@pytest.mark.parametrize(
    "words",
    [
        ["hil", "reach", "--oparator", "simulated"],
        ["run", "demo", "--debug", "a=1", "--fast"],
        ["explain", "somewhere", "a=1"],
    ],
)
def test_what_is_unknown_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "unrecognized" in capsys.readouterr().err
