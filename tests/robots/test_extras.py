from importlib.metadata import PackageNotFoundError

import pytest

from robots import extras
from robots.errors import describe
from robots.extras import install_hint, install_hints

REQUIRES = [
    "numpy<3,>=2.2",
    "pyyaml>=6",
    "torch<2.14,>=2.13; extra == 'everything'",
    "gym-pusht==0.1.8; extra == 'everything'",
    "gym-pusht==0.1.8; extra == 'laptop'",
    "torch<2.14,>=2.13; extra == 'laptop'",
    "Ray>=2; extra == 'everything'",
    "Ray>=2; extra == 'ray'",
    "franky-control==2.0.0; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'robot'",
]


@pytest.fixture(autouse=True)
def requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "requires", lambda name: REQUIRES)


@pytest.mark.parametrize(
    ("module", "install"),
    [
        ("torch", ".[laptop]"),
        ("gym_pusht.envs", ".[laptop]"),
        ("ray", ".[ray]"),
        ("franky", ".[robot]"),
        ("yaml", "."),
    ],
)
def test_the_smallest_extra_that_brings_a_package_is_named(module: str, install: str) -> None:
    name = module.partition(".")[0]
    assert install_hint(module) == (
        f"{name} is not installed. Install it in the checkout: pip install -c constraints.txt -e '{install}'."
    )


def test_several_packages_are_brought_by_one_extra_where_one_has_them_all() -> None:
    pip = "pip install -c constraints.txt -e"
    assert install_hints(["torch", "gym_pusht"]) == [
        f"torch and gym_pusht are not installed. Install them in the checkout: {pip} '.[laptop]'."
    ]
    assert install_hints(["torch", "ray", "gym-pusht"]) == [
        f"torch, ray and gym-pusht are not installed. Install them in the checkout: {pip} '.[everything]'."
    ]
    apart = ["ray", "franky"]
    assert install_hints(apart) == [install_hint("ray"), install_hint("franky")]
    assert install_hints(["ray"]) == [install_hint("ray")]
    assert install_hints([]) == []


def test_a_package_that_is_no_dependency_is_named_as_such() -> None:
    hint = install_hint("my_lab")
    assert hint == "my_lab is not installed, and Handoff does not depend on it."


def test_a_module_of_our_own_is_no_missing_package() -> None:
    assert install_hint("robots.no_such_module") is None


def test_a_checkout_that_was_never_installed_is_no_further_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", unknown)
    assert "torch is not installed" in (install_hint("torch") or "")


def test_a_missing_package_is_described_by_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as missing:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert describe(missing.value) == (
        "torch is not installed. Install it in the checkout: pip install -c constraints.txt -e '.[laptop]'."
    )


def test_a_missing_module_of_our_own_is_described_as_unexpected() -> None:
    error = ModuleNotFoundError("No module named 'flows.gone'", name="flows.gone")
    assert "flows.gone" in describe(error)
    assert "unexpected" in describe(error)
