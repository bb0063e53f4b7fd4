"""How ManiSkill's tasks are found, and which Vulkan driver draws them; nothing here needs one."""

import sys

import pytest

from robots.errors import HandoffError
from sim.engines.maniskill import ManiSkillEngine
from sim.engines.maniskill_task import software_vulkan


def drivers(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def test_without_gpu_the_software_driver_is_chosen(tmp_path):
    icd = drivers(tmp_path / "icd.d", "intel_icd.json", "lvp_icd.json")
    assert software_vulkan({}, icd, tmp_path) == icd / "lvp_icd.json"


def test_a_driver_that_was_chosen_stays(tmp_path):
    icd = drivers(tmp_path / "icd.d", "lvp_icd.json")
    assert software_vulkan({"VK_ICD_FILENAMES": "/mine.json"}, icd, tmp_path) is None
    assert software_vulkan({"VK_DRIVER_FILES": "/mine.json"}, icd, tmp_path) is None


def test_a_gpu_is_left_its_own_driver(tmp_path):
    icd = drivers(tmp_path / "icd.d", "lvp_icd.json")
    drivers(tmp_path / "dri", "renderD128")
    assert software_vulkan({}, icd, tmp_path) is None


def test_missing_package_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mani_skill", None)
    with pytest.raises(HandoffError, match=r"pip install -c constraints.txt -e '\.\[maniskill\]'"):
        ManiSkillEngine("PickCube-v1", 1)
