"""The documentation: every command, option, path, link and import that it names exists."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flows.commands.app import parse
from flows.config.files import recipes
from flows.recipes.recipe import STAGE_KEYS, Recipe, read_recipe
from robots.errors import HandoffError
from tests.documents import (
    DOCS,
    ROOT,
    Block,
    anchors,
    blocks,
    commands,
    generated,
    hook,
    left_open,
    links,
    name_of,
    pages,
    prose,
    spans,
)
from tests.test_architecture import BY_A_PAGE

PAGES = pages()
SITE = [page for page in PAGES if DOCS in page.parents]
PACKAGES = ("flows", "robots", "policies", "sim", "real", "configs", "tests", "docs")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|yaml|yml|md|toml|xml|zip|json))")
MODULE = re.compile(r"(?:flows|robots|policies|sim|real|tests)(?:\.\w+)+")
KEY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)+)(?:: .*|=.*)?")
FILE = re.compile(r".*\.(?:jsonl?|png|md|py|ya?ml|zarr|onnx|npz|html|mp4|safetensors)")

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
every_page_of_the_site = pytest.mark.parametrize("page", SITE, ids=name_of)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in the documentation are given in the root of the checkout."""
    monkeypatch.chdir(ROOT)


def check_command(words: list[str]) -> None:
    """Parses a call of `handoff`, and looks up the protocol or task that it names.

    Recipes and overrides are composed by `tests/flows/test_documented_overrides.py`.

    Raises:
        HandoffError: the command is not understood, or there is no such protocol or task.
    """
    values = parse(words).values
    match words[0]:
        case "evaluate":
            from flows.config.protocols import read_protocol

            read_protocol(values["protocol"])
        case "console":
            from real.teleop.takeover import check_actions
            from sim.make import find_task

            task = find_task(values.get("task", "pick_cube"))
            check_actions(task.actions.spec(task.robot), "console")


@every_page
def test_every_handoff_command_is_understood(page: Path) -> None:
    refused = []
    for words in commands(page.read_text(), "handoff"):
        try:
            parse(words) if left_open(words) else check_command(words)
        except HandoffError as error:
            refused.append(f"handoff {' '.join(words)}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    "line",
    [
        "runn demo",
        "run demo --fast",
        "explain runs/demo --verfy",
        "hil reach --operator nobody",
        "evaluate push_tt --policy expert --out runs/x",
        "console push_tt",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises(HandoffError):
        check_command(line.split())


@every_page
def test_every_row_of_a_table_stands_below_another(page: Path) -> None:
    """Behind an empty line a row is shown as text."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    parted = re.findall(r"^\|.*\|\n\n(\|.*)\n(?!\|[-: |]+\|$)", text, re.MULTILINE)
    assert parted == []


@every_page
def test_every_target_of_make_exists(page: Path) -> None:
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    asked = {words[0] for words in commands(text, "make") if words} | set(
        re.findall(r"`make ([\w-]+)", text)
    )
    assert asked - rules == set()


@every_page
def test_every_path_in_backticks_exists(page: Path) -> None:
    named = [span for span in spans(page.read_text()) if PATH.fullmatch(span)]
    ours = [span for span in named if span.split("/")[0] in PACKAGES or span == "CONTRIBUTING.md"]
    assert [span for span in ours if not (ROOT / span).exists()] == []


@every_page
def test_every_module_in_backticks_exists(page: Path) -> None:
    text = page.read_text()
    named = {span for span in spans(text) if MODULE.fullmatch(span)} | set(
        re.findall(r"python -m ([\w.]+)", text)
    )
    assert sorted(name for name in named if not is_defined(name)) == []


def is_defined(name: str) -> bool:
    """Whether `a.b.c` is a module, or `c` is defined at the top of the module `a.b`."""
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
        return True
    module = path.parent.with_suffix(".py")
    if not module.is_file():
        return False
    nodes = ast.parse(module.read_text()).body
    return path.name in {
        node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


@every_page
def test_every_option_in_backticks_exists(page: Path) -> None:
    named = (KEY.fullmatch(span) for span in spans(page.read_text()) if not FILE.fullmatch(span))
    keys = {match[1] for match in named if match and match[1].split(".")[0] in roots()}
    assert sorted(key for key in keys if not is_option(key)) == []


@cache
def roots() -> set[str]:
    """First parts of options: stages of recipes, shared options, options of kinds of stages."""
    from dataclasses import fields

    found = {field.name for session in sessions() for field in fields(session)}
    for recipe in shipped():
        found |= {*recipe.stages, *recipe.shared}
    return found


@cache
def is_option(key: str) -> bool:
    """Whether a stage of a recipe, its shared options, or a session at an arm has the option."""
    from robots.config import key_paths

    first, _, rest = key.partition(".")
    if any(key in key_paths(session) for session in sessions()):
        return True
    for recipe in shipped():
        entry = recipe.stages.get(first)
        if entry is not None and (
            rest.split(".")[0] in STAGE_KEYS or rest in keys_of_stage(entry.uses)
        ):
            return True
        if first in recipe.shared or first == "shared":
            wanted = rest if first == "shared" else key
            if any(wanted in keys_of_stage(stage.uses) for stage in recipe.stages.values()):
                return True
    return False


def sessions() -> tuple[type[Any], ...]:
    """Classes of the options of sessions at an arm."""
    from flows.deployment.config import DeploySession
    from flows.deployment.demonstrations.config import DemonstrationSession

    return DeploySession, DemonstrationSession


@cache
def shipped() -> tuple[Recipe, ...]:
    """The recipes of the repository."""
    return tuple(read_recipe(name) for name in recipes())


@cache
def keys_of_stage(kind: str) -> frozenset[str]:
    """Options of a kind of stage."""
    from flows.runner.signature import find_kind
    from robots.config import key_paths

    return frozenset(key_paths(find_kind(kind).config))


@every_page_of_the_site
def test_every_yaml_block_is_accepted(page: Path) -> None:
    for block in of_language(page, "yaml"):
        check_yaml(block.text)


BASE: dict[str, Any] = {
    "defaults": ["_finetuned"],
    "shared": {"protocol": "push_t_fr3"},
    "stages": {
        "pretrained": {"with": {"policy": {"observation_fields": ["*"], "anchor_field": None}}}
    },
}
"""Recipe of which a part is built: the demo, with fine-tuning and all fields of its demonstrations."""


def check_yaml(text: str) -> None:
    """Builds a recipe, validates a claim, a protocol, factors, faults, a fence or deviations, or builds a part
    of a recipe in place of the demo's.

    Raises:
        HandoffError: a key or a value that is not accepted.
    """
    import tempfile

    import yaml

    from flows.claims.claim import Claim
    from flows.claims.repeat import check_stages
    from flows.config.options import build
    from flows.config.protocols import read_protocol
    from flows.evaluation.config import SensitivityPoliciesConfig, WorstCasePolicyConfig
    from flows.recipes.graph import stages
    from flows.recipes.recipe import KEYS, read_recipe
    from flows.session.twin_faults import Faults
    from flows.virtual_envs.recipe import VenvRecipe
    from real.motion.fence import FenceConfig
    from robots.config import validate
    from sim.environment_families.worst_case import check_worst_case
    from sim.evaluation.protocol import Protocol
    from sim.scene.deviations import Deviations
    from sim.sensitivity.measure import check_study

    values = yaml.safe_load(text)
    if isinstance(values, list):
        validate(Faults, {"faults": values}, "faults")
        return
    if {"planes", "boxes"} & set(values):
        validate(FenceConfig, values, "fence")
        return
    if "install" in values:
        validate(VenvRecipe, values, "virtual environment")
        return
    if set(values) <= {"arm", "objects"}:
        validate(Deviations, values, "deviations")
        return
    if {"factors", "search"} <= set(values):
        searched = build(WorstCasePolicyConfig, values, "factors")
        check_worst_case(read_protocol("reach"), searched.study)
        return
    if "factors" in values:
        study = build(SensitivityPoliciesConfig, values, "factors")
        check_study(read_protocol("pick_cube"), study.study)
        return
    if "figures" in values:
        claim = build(Claim, values, "claim")
        check_stages("", claim, read_recipe(claim.recipe, claim.overrides))
        return
    if "engine" in values:
        validate(Protocol, values, "protocol")
        return
    if not set(values) <= set(KEYS):
        # Entries of `stages:`, without the rest of the recipe.
        values = {"stages": values}
    if "defaults" not in values and not is_whole(values):
        values["defaults"] = ["base"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "base.yaml").write_text(yaml.safe_dump(BASE))
        file = Path(folder) / "page.yaml"
        file.write_text(yaml.safe_dump(values))
        stages(read_recipe(str(file)), fetch=False)


def is_whole(values: Mapping[str, Any]) -> bool:
    """Whether every stage and every input of a recipe stands in the file."""
    entries = values.get("stages") or {}
    needed = [
        name
        for entry in entries.values()
        for source in (entry or {}).get("inputs", {}).values()
        for name in ([source] if isinstance(source, str) else source)
    ]
    complete = all((entry or {}).get("uses") for entry in entries.values())
    return bool(entries) and complete and {name.split("@")[0] for name in needed} <= set(entries)


@every_page_of_the_site
def test_every_python_block_compiles_and_its_imports_exist(page: Path) -> None:
    missing = [
        name
        for block in of_language(page, "python")
        for name in imported(block.text)
        if not exists(name)
    ]
    assert missing == []


def of_language(page: Path, language: str) -> list[Block]:
    """The code blocks of a page in `language`, but those that `tests/test_extend.py` runs."""
    return [
        block
        for block in blocks(page.read_text())
        if block.language == language and not block.title
    ]


def imported(code: str) -> Iterator[str]:
    """Dotted names of what a piece of Python imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def exists(name: str) -> bool:
    """Whether a module, or something that a module defines, is there."""
    if name.split(".")[0] not in PACKAGES:
        return find_spec(name.split(".")[0]) is not None
    module, _, attribute = name.rpartition(".")
    if is_defined(name) or not module:
        return True
    text = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return (
        text.is_file() and re.search(rf"^{attribute}\b", text.read_text(), re.MULTILINE) is not None
    )


@every_page
def test_every_internal_link_leads_somewhere(page: Path) -> None:
    text, broken = page.read_text(), []
    for target in links(text):
        file, _, anchor = target.partition("#")
        there = page if not file else (page.parent / file)
        found = there.exists() or generated(there) is not None
        if found and anchor:
            found = anchor in anchors(generated(there) or there.read_text())
        if not found:
            broken.append(target)
    assert broken == []


@every_page_of_the_site
def test_every_page_begins_with_what_the_reader_can_do_after_it(page: Path) -> None:
    if page.name in ("limits.md", "features.md") or page == DOCS / "results" / "README.md":
        pytest.skip("a list, not a guide")
    lines = prose(page.read_text()).split("\n# ", 1)[-1].splitlines()[1:]
    first = next(line for line in lines if line)
    assert first.startswith("After this page you ")


def site() -> dict[str, Any]:
    """The configuration of the site."""
    import yaml

    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_navigation_names_every_page_once() -> None:
    def files(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from files(part)

    written = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(files(site()["nav"])) == sorted([*written, *hook().pages()])


def test_the_site_asks_no_other_machine_for_anything() -> None:
    configuration = site()
    assert configuration["theme"]["font"] is False
    assert {"repo_url", "extra_javascript"} & configuration.keys() == set()
    assert [file for file in configuration["extra_css"] if not (DOCS / file).is_file()] == []
    # Without a polyfill of this name the offline plugin takes one from another machine.
    assert configuration["extra"]["polyfills"] == ["javascripts/iframe-worker.js"]
    foreign = re.compile(
        r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b[^>]*https?:|^ *```mermaid",
        re.MULTILINE,
    )
    assert [name_of(page) for page in DOCS.rglob("*.md") if foreign.search(page.read_text())] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; a broken link fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_built_pages_load_nothing_from_another_machine(built: Path) -> None:
    """Links may lead elsewhere; scripts, styles, fonts and images may not."""
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]*\bsrc="(?:https?:)?//|<link[^>]*\bhref="https?://'
    )
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 30
    assert {page.name for page in pages if loaded.search(page.read_text())} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_learning_check_that_is_named_exists(page: Path) -> None:
    """`make learn ONLY=NAME` runs the slow tests whose file or function contains NAME."""
    text = page.read_text()
    named = re.findall(r"ONLY=([a-z]\w*)|\(`(learning_\w+)`", text)
    checks = (*recipes(), *slow_checks())
    unknown = {
        name for pair in named for name in pair if not any(name in check for check in checks)
    }
    assert unknown == set()


@cache
def slow_checks() -> tuple[str, ...]:
    """Files and functions of the slow tests."""
    files = [
        path for path in (ROOT / "tests").rglob("test_*.py") if "mark.slow" in path.read_text()
    ]
    functions = [
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    return (*(path.stem for path in files), *functions)


def test_every_recipe_has_a_row_in_the_guide() -> None:
    guide = (DOCS / "guides" / "pipelines.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w/]+)`", row.split("|")[1])}
    assert set(recipes()) - named == set()


def test_a_module_without_a_command_is_shown_on_its_page() -> None:
    for name, page in BY_A_PAGE.items():
        assert f"from {name} import" in (ROOT / page).read_text()
