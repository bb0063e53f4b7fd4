"""Virtual environments are found by name or folder, and their packages by version."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from robots.errors import HandoffError
from sim.make import EnvConfig, make_vec_env
from sim.servers.config import ServerConfig
from sim.servers.packages import installed_versions
from sim.servers.venvs import (
    ENVS_VARIABLE,
    check_place,
    server_python,
    venv_names,
    venvs_folder,
)


def make(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    (folder / "bin" / "python").write_text("")
    return folder / "bin" / "python"


def test_the_folder_is_that_of_the_variable_or_of_the_users_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ENVS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert venvs_folder() == Path("/data/handoff/envs")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert venvs_folder() == Path.home() / ".local/share/handoff/envs"
    monkeypatch.setenv(ENVS_VARIABLE, "/envs")
    assert venvs_folder() == Path("/envs")


def test_a_venv_is_found_by_name_and_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ENVS_VARIABLE, str(tmp_path))
    assert venv_names() == []
    with pytest.raises(HandoffError, match=r"there is none.*handoff envs create gym_hil"):
        server_python(ServerConfig(venv="gym_hil"))
    one = make(tmp_path / "gym_hil")
    other = make(tmp_path / "deeper" / "other")
    assert venv_names() == ["gym_hil"]
    assert server_python(ServerConfig(venv="gym_hil")) == str(one)
    assert server_python(ServerConfig(venv=str(tmp_path / "deeper/other"))) == str(other)
    with pytest.raises(HandoffError, match="did you mean 'gym_hil'"):
        server_python(ServerConfig(venv="gymhil"))


def test_a_python_that_is_none_is_refused(tmp_path: Path):
    for wrong in (tmp_path, tmp_path / "python"):
        with pytest.raises(HandoffError, match="is no program"):
            server_python(ServerConfig(python=str(wrong)))


@pytest.mark.parametrize(
    "config",
    [ServerConfig(), ServerConfig(venv="a", python="b"), ServerConfig(address="a:1", venv="b")],
)
def test_a_server_has_one_place(config: ServerConfig):
    with pytest.raises(HandoffError, match="expected exactly one of venv, python and address"):
        check_place(config)
    with pytest.raises(HandoffError, match="exactly one"):
        make_vec_env(EnvConfig(engine="server", server=config), 1)


def test_variables_of_another_machine_are_refused():
    with pytest.raises(HandoffError, match="for servers of this machine"):
        check_place(ServerConfig(address="a:1", variables={"A": "b"}))


def test_versions_are_those_of_the_other_python():
    config = ServerConfig(python=sys.executable)
    assert installed_versions(config, ["handoff", "NumPy", "typing_extensions", "nothing"]) == {
        "NumPy": version("numpy"),
        "typing_extensions": version("typing_extensions"),
        "nothing": "",
    }


def test_a_program_that_is_no_python_cannot_list_its_packages():
    with pytest.raises(HandoffError, match="does not list its packages"):
        installed_versions(ServerConfig(python="/bin/false"), ["numpy"])


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"gym": {"success": "never"}, "server": {"engine": "isaaclab"}}, "gym"),
        ({"randomized": True, "server": {"engine": "gym"}}, "randomized"),
        ({"randomized": True, "server": {"engine": "my_lab.lamp"}}, "randomized"),
    ],
)
def test_options_that_the_served_engine_ignores_are_refused(options: dict, ignored: str):
    from robots.config import validate

    config = validate(EnvConfig, {"engine": "server", **options})
    with pytest.raises(HandoffError, match=rf"ignores \['{ignored}'\]"):
        make_vec_env(config, 1)


def test_options_of_a_server_are_refused_without_one():
    config = EnvConfig(engine="mujoco", server=ServerConfig(venv="gym_hil"))
    with pytest.raises(HandoffError, match=r"ignores \['server'\]"):
        make_vec_env(config, 1)
