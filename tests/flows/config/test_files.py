"""Files in `configs/`: found by name, composed over the defaults of a class; errors name the path
of a key."""

from __future__ import annotations

import pytest

from flows.config.files import available, check_overrides, compose_file
from flows.deployment.config import DeploySession
from flows.hil.compose import compose_hil
from flows.recipes.compose import compose
from robots.config import config
from robots.errors import HandoffError


@config
class Part:
    steps: int = 3


@config
class Whole:
    part: Part = Part()
    rate: float = 0.5


def test_the_shipped_groups_list_their_files() -> None:
    assert {"demo", "smoke"} <= set(available())
    assert available("deploy") == ["push_t"]


def test_values_of_the_file_override_the_defaults_of_the_class() -> None:
    session = compose_file(DeploySession, "push_t", ["loop.max_steps=7"], group="deploy")
    assert session.loop.max_steps == 7
    assert session.supervision == DeploySession().supervision


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "supervision.sped=0.1",
            "unknown key 'supervision.sped', did you mean 'supervision.speed'?",
        ),
        ("supervision.speed=fast", "'supervision.speed' is 'fast'"),
        ("supervision.speed", "has no '='"),
    ],
)
def test_an_invalid_override_is_named_by_its_path(override: str, message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        compose_file(DeploySession, "push_t", [override], group="deploy")
    assert message in str(caught.value)


def test_a_missing_file_is_answered_with_the_nearest() -> None:
    with pytest.raises(HandoffError, match=r"configs/deploy/pusht\.yaml .*did you mean 'push_t'\?"):
        compose_file(DeploySession, "pusht", group="deploy")


def test_an_unknown_key_of_a_session_is_answered_with_the_nearest() -> None:
    with pytest.raises(HandoffError, match=r"did you mean 'train\.sac\.critics'\?"):
        compose_hil("reach", ["train.sac.crittics=2"])


def test_an_option_of_the_session_cannot_be_set_for_a_stage() -> None:
    with pytest.raises(HandoffError, match=r"Could not override 'train\.env\.task'"):
        compose_hil("reach", ["train.env.task=pick_cube"])


def test_overrides_may_choose_from_a_group_that_is_named() -> None:
    check_overrides(Whole, ["part.steps=1", "~part", "+policy=unet"], ["policy"])
    with pytest.raises(HandoffError, match="unknown key '\\+policy'"):
        check_overrides(Whole, ["+policy=unet"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+policy=flwo", r"policy: no option 'flwo', did you mean 'flow'\?"),
        ("+finetune=dpo", r"finetune: no option 'dpo', did you mean 'dppo'\?"),
        ("+protocol=elsewhere", r"protocol: no option 'elsewhere', there are cable_route, "),
    ],
)
def test_an_unknown_option_of_a_group_is_answered_with_those_that_exist(
    override: str, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        compose("demo", [override])


def test_a_key_of_the_file_that_the_choice_does_not_have_is_named_with_the_file() -> None:
    with pytest.raises(
        HandoffError, match=r"smoke\.yaml with \['finetune=dppo'\]: .*unknown key .*samples"
    ):
        compose("smoke", ["finetune=dppo"])
