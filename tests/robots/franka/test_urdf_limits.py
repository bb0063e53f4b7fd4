"""The URDF of a connected arm against the robot that is configured."""

from __future__ import annotations

import pytest

from robots.errors import SafetyError
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS
from robots.franka.urdf_limits import check_urdf
from tests.robots.franka.urdfs import urdf_of

FR3 = find_robot("fr3")


@pytest.mark.parametrize("name", ROBOTS)
def test_robot_agrees_with_its_own_urdf(name: str) -> None:
    check_urdf(find_robot(name), urdf_of(find_robot(name)))


def test_joints_are_found_behind_a_prefix() -> None:
    check_urdf(FR3, urdf_of(FR3, prefix="fr3_"))


def test_name_that_no_robot_has_says_nothing() -> None:
    check_urdf(FR3, urdf_of(FR3, name="left arm"))


def test_another_robot_of_equal_limits_is_refused_by_its_name() -> None:
    with pytest.raises(SafetyError, match="fr3: the connected arm is 'fr3v2'"):
        check_urdf(FR3, urdf_of(find_robot("fr3v2")))


def test_older_firmware_is_refused_with_both_figures() -> None:
    old = urdf_of(FR3).replace('upper="2.9007"', 'upper="2.7437"')
    with pytest.raises(
        SafetyError, match=r"upper limit of joint1 is 2.7437 .* 2.9007 .* older firmware"
    ):
        check_urdf(FR3, old)


def test_velocity_limit_is_compared() -> None:
    slow = urdf_of(FR3).replace('velocity="4.18"', 'velocity="2.61"')
    with pytest.raises(SafetyError, match=r"velocity limit of joint6 is 2.6100 .* 4.1800"):
        check_urdf(FR3, slow)


def test_digits_beyond_those_of_the_published_table_pass() -> None:
    check_urdf(FR3, urdf_of(FR3).replace('upper="2.9007"', 'upper="2.90074"'))


def test_arm_with_a_joint_less_is_refused() -> None:
    with pytest.raises(SafetyError, match="has no lower limit of joint7"):
        check_urdf(FR3, urdf_of(FR3).replace("joint7", "finger"))


def test_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(SafetyError, match="upper limit of joint1 is nan"):
        check_urdf(FR3, urdf_of(FR3).replace('upper="2.9007"', 'upper="nan"', 1))


@pytest.mark.parametrize("text", ["panda", urdf_of(FR3).replace("2.9007", "wide")])
def test_text_that_is_no_urdf_is_refused(text: str) -> None:
    with pytest.raises(SafetyError, match="cannot be read"):
        check_urdf(FR3, text)
