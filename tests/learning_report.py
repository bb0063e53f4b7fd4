"""Reports learning checks: how long they take before they run, a table at their end, and the scores
of every arm and seed as JSON, check by check.

A plugin of pytest that `make learn` loads. A check is a file of tests. Of checks that did not run,
the JSON keeps what an earlier run wrote.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.reports.run_records.computer import computer

OPTION = "--outcomes"
"""Option that names the JSON file."""
KEY = pytest.StashKey["LearningReport"]()
DIGITS = 4
"""Significant digits of a score that are kept."""


@dataclass
class Check:
    """One check as it ran."""

    passed: int = 0
    failed: int = 0
    cpu_minutes: float = 0.0
    """Processor time, with that of its processes [min]."""
    arms: dict[str, list[Any]] = field(default_factory=dict)
    """Results by arm, in the order of the seeds."""


class LearningReport:
    """Collects what checks give.

    Args:
        path: JSON file of outcomes; None writes none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._recorded = _read(path)
        self._checks: dict[str, Check] = {}

    @property
    def checks(self) -> Mapping[str, Check]:
        """Checks that ran, by name."""
        return self._checks

    def add_results(self, check: str, results: Mapping[str, Sequence[Any]]) -> None:
        """Keeps the results of arms that ran for a check."""
        arms = self._of(check).arms
        for arm, values in results.items():
            # Arms of one name that ran twice, such as for two tasks, stay apart.
            label, number = arm, 2
            while label in arms:
                label, number = f"{arm} ({number})", number + 1
            arms[label] = [plain(value) for value in values]

    def add_time(self, check: str, seconds: float) -> None:
        """Adds processor time [s]."""
        self._of(check).cpu_minutes += seconds / 60.0

    def add_outcome(self, check: str, *, passed: bool) -> None:
        """Counts a test of a check."""
        entry = self._of(check)
        entry.passed += passed
        entry.failed += not passed

    def expected(self, checks: Sequence[str]) -> str:
        """How long checks took when they were recorded, in one line."""
        known = [self._recorded[name]["cpu_minutes"] for name in checks if name in self._recorded]
        return f"learning checks: {len(checks)}, of which {len(known)} are recorded with {sum(known):.0f} CPU-minutes"

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Cells of the table: check, outcome of its tests, CPU-minutes, arms."""
        for name, check in self._checks.items():
            outcome = f"{check.passed} passed" + (
                f", {check.failed} FAILED" if check.failed else ""
            )
            arms = [
                f"{arm} {line}" for arm, values in check.arms.items() if (line := short(values))
            ]
            yield name, outcome, f"{check.cpu_minutes:.1f}", "; ".join(arms)

    def write(self) -> None:
        """Writes the outcomes of these checks over those of earlier runs."""
        if self._path is None or not self._checks:
            return
        made = {
            "commit": _commit(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "processor": computer()["processor"],
        }
        for name, check in self._checks.items():
            entry = asdict(check)
            entry["cpu_minutes"] = round(entry["cpu_minutes"], 1)
            self._recorded[name] = {**made, **entry}
        self._path.write_text(_lines(self._recorded))

    def _of(self, check: str) -> Check:
        return self._checks.setdefault(check, Check())


def plain(value: Any) -> Any:
    """A result as plain values with few digits; text for what has none."""
    if is_dataclass(value):
        return plain(asdict(value))  # pyright: ignore[reportArgumentType]  an object, no class
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, bool | str) or value is None:
        return value
    try:
        return float(f"{float(value):.{DIGITS}g}")
    except (TypeError, ValueError):
        return str(value)


def short(values: Sequence[Any]) -> str:
    """Mean and range of the results of an arm; empty unless they are numbers."""
    if not values or not all(isinstance(value, float) for value in values):
        return ""
    return f"{statistics.fmean(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def check_of(node: str) -> str:
    """The check to which a test belongs: its file without folders, `test_` and the ending."""
    return Path(node.partition("::")[0]).stem.removeprefix("test_")


def _commit() -> str:
    """The commit, with `+` where files are changed."""
    described = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    found = subprocess.run(described, cwd=Path(__file__).parent, capture_output=True, text=True)
    return found.stdout.strip()


def _read(path: Path | None) -> dict[str, Any]:
    return {} if path is None or not path.is_file() else json.loads(path.read_text())


def _lines(checks: Mapping[str, Any]) -> str:
    """JSON with one line per arm, so that a change of one is one line."""
    blocks = []
    for name in sorted(checks):
        entry = dict(checks[name])
        arms = entry.pop("arms")
        head = ", ".join(f"{json.dumps(key)}: {json.dumps(entry[key])}" for key in entry)
        lines = [f"   {json.dumps(arm)}: {json.dumps(arms[arm])}" for arm in arms]
        body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
        blocks.append(f' {json.dumps(name)}: {{\n  {head},\n  "arms": {body}\n }}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, default=None, help="JSON file of learning checks' scores.")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KEY] = LearningReport(config.getoption(OPTION))


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str:
    return config.stash[KEY].expected([*dict.fromkeys(check_of(item.nodeid) for item in items)])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    from tests.toy_envs.comparison import LISTENERS

    report, check = item.config.stash[KEY], check_of(item.nodeid)

    def listen(results: Mapping[str, Sequence[Any]]) -> None:
        report.add_results(check, results)

    LISTENERS.append(listen)
    began = _cpu_seconds()
    try:
        yield
    finally:
        report.add_time(check, _cpu_seconds() - began)
        LISTENERS.remove(listen)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # pyright: ignore[reportAttributeAccessIssue]
    if report.when == "call" or report.failed:
        item.config.stash[KEY].add_outcome(check_of(item.nodeid), passed=report.passed)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    report = config.stash[KEY]
    report.write()
    terminalreporter.section("learning checks")
    rows = [("check", "tests", "CPU-minutes", "mean [least, most] by arm"), *report.rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        terminalreporter.line("  ".join([*cells, row[3]]).rstrip())
    total = sum(check.cpu_minutes for check in report.checks.values())
    terminalreporter.line(f"{len(report.checks)} checks, {total:.0f} CPU-minutes")
