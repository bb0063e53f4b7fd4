"""Versions of Python, of packages against a file of constraints, and extras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.doctor.packages import (
    CONSTRAINTS,
    DeclaredPackages,
    declared_packages,
    extras,
    pinned_versions,
    python_version,
    required_packages,
)

DECLARED = DeclaredPackages(
    [
        "numpy<3,>=2.2",
        "torch>=2.13; extra == 'laptop'",
        "prefect>=3.8; extra == 'laptop'",
        "onnx>=1.23; extra == 'laptop'",
        "viser>=1.1; extra == 'laptop'",
        "ray>=2.60; extra == 'ray'",
        "mani-skill>=3; sys_platform == 'no such system' and extra == 'maniskill'",
    ],
    ["laptop", "ray", "maniskill"],
)


def having(**versions: str) -> Callable[[str], str | None]:
    """A machine with these distributions."""
    return versions.get


@pytest.mark.parametrize(
    ("running", "status"), [("3.10.14", "failed"), ("3.11.7", "ok"), ("3.14.0", "failed")]
)
def test_python_is_compared_with_the_supported_versions(running: str, status: str) -> None:
    assert python_version(running, "<3.14,>=3.11").status == status


def test_an_unsupported_python_is_named_with_what_is_supported() -> None:
    check = python_version("3.10.14", "<3.14,>=3.11")
    assert check.found == "3.10.14, expected <3.14,>=3.11"
    assert check.advice


def pinned(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "constraints.txt"
    file.write_text(text)
    return file


def test_packages_with_other_versions_than_the_pinned_ones_are_named(tmp_path: Path) -> None:
    file = pinned(tmp_path, "# The tested versions.\nnumpy==2.3.1\nrich==14.3.4\nray==2.60.0\n")
    check = pinned_versions(file, having(numpy="2.2.0", rich="14.3.4"))
    assert check.status == "warning"
    assert check.found.startswith("numpy 2.2.0 (==2.3.1)")
    assert "rich" not in check.found
    assert check.advice == "Give `pip install -c constraints.txt numpy`."


def test_a_package_that_is_not_installed_is_no_difference(tmp_path: Path) -> None:
    file = pinned(tmp_path, "numpy==2.3.1\nray==2.60.0\n")
    check = pinned_versions(file, having(numpy="2.3.1"))
    assert (check.status, check.found) == ("ok", "1 have the versions of constraints.txt")


def test_the_cpu_build_has_the_pinned_version(tmp_path: Path) -> None:
    file = pinned(tmp_path, "torch==2.13.0\n")
    assert pinned_versions(file, having(torch="2.13.0+cpu")).status == "ok"


def test_the_first_eight_differing_packages_are_named_and_the_others_counted(
    tmp_path: Path,
) -> None:
    names = [f"package{index}" for index in range(10)]
    file = pinned(tmp_path, "".join(f"{name}==2\n" for name in names))
    check = pinned_versions(file, lambda name: "1")
    assert "package7 1 (==2) and 2 more: " in check.found
    assert check.advice.endswith("package8 package9`.")


def test_without_a_file_of_constraints_versions_are_not_checked(tmp_path: Path) -> None:
    assert pinned_versions(tmp_path / "constraints.txt").status == "not checked"


def test_the_file_of_constraints_is_that_of_the_checkout() -> None:
    assert CONSTRAINTS.is_file()


def test_a_missing_or_old_mandatory_package_is_a_failure() -> None:
    assert required_packages(DECLARED, having(numpy="2.4.0")).status == "ok"
    missing = required_packages(DECLARED, having())
    assert (missing.status, missing.found) == ("failed", "lacking numpy")
    old = required_packages(DECLARED, having(numpy="2.1.0"))
    assert (old.status, old.found) == ("failed", "lacking numpy <3,>=2.2, installed is 2.1.0")


def test_extras_that_are_not_installed_are_no_failure_and_name_what_they_lack() -> None:
    check = extras(DECLARED, having(numpy="2.4.0", ray="2.60.1"))
    assert check.status == "ok"
    assert check.found == (
        "installed: ray; not installed: laptop (torch, prefect, onnx and 1 more); "
        "not for this machine: maniskill"
    )


def test_the_installed_handoff_declares_its_packages() -> None:
    declared = declared_packages()
    assert {"laptop", "robot", "dev"} <= set(declared.extras)
    assert required_packages(declared).status == "ok"
