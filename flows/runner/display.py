"""Shows progress on a terminal: one bar per running stage, or plain lines if it is not
interactive."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from robots.interfaces import Progress

LINE_SECONDS = 20.0
"""Time between two plain lines of one stage when the output is not a terminal [s]."""


class Display:
    """Shows the progress of every stage. A context manager; thread-safe."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            ProgressColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars
        from rich.table import Column
        from rich.text import Text

        class NoteColumn(ProgressColumn):
            """The note of a stage, cut where the terminal ends."""

            def render(self, task: Task) -> Text:
                return Text(task.fields["note"], style="dim", no_wrap=True, overflow="ellipsis")

        # Of a narrow terminal, bar and note give way; the other columns keep their width.
        fixed = Column(no_wrap=True)

        self._console = Console(stderr=True, soft_wrap=True)
        self._live = self._console.is_terminal
        self._bars = Bars(
            TextColumn("{task.fields[mark]} {task.description:<17}"),
            BarColumn(16),
            MofNCompleteColumn(table_column=fixed),
            TimeElapsedColumn(table_column=fixed),
            TimeRemainingColumn(table_column=fixed),
            NoteColumn(),
            console=self._console,
            refresh_per_second=4,
            disable=not self._live,
        )
        self._tasks: dict[str, Any] = {}
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, stage: str, note: str = "") -> Progress:
        """Announces a stage, with a phrase about its begin, and returns the `Progress` that reports
        for it."""
        with self._lock:
            self._tasks[stage] = self._bars.add_task(stage, total=None, mark="[cyan]▸", note=note)
            self._last[stage] = time.monotonic()
        self._line(f"▸ {stage}  {note}".rstrip())

        def progress(done: int, total: int, note: str = "") -> None:
            with self._lock:
                self._bars.update(self._tasks[stage], completed=done, total=total, note=note)
                due = time.monotonic() - self._last[stage] >= LINE_SECONDS
                if due:
                    self._last[stage] = time.monotonic()
            if due:
                self._line(f"  {stage}  {done}/{total}  {note}")

        return progress

    def finished(self, stage: str, note: str, mark: str = "✓") -> None:
        """Marks a stage as done or failed, with a closing note; a failure is shown in full."""
        from rich.text import Text

        colour = {"✓": "[green]", "✗": "[red]"}.get(mark, "[dim]")
        with self._lock:
            bar = self._tasks[stage]
            if mark == "✓":
                total = self._bars.tasks[bar].total or 1
                self._bars.update(bar, total=total, completed=total)
            self._bars.update(bar, mark=colour + mark, note=note)
            self._bars.stop_task(bar)
        if self._live and mark == "✗":
            # The bar's note is cut where the terminal ends.
            self._bars.console.print(Text(f"{mark} {stage}  {note}", style="red"))
        self._line(f"{mark} {stage}  {note}")

    def warn(self, stage: str, text: str) -> None:
        """Shows a sentence about a stage that a person should read, above the bars."""
        if self._live:
            self._bars.console.print(
                f"! {stage}  {text}", style="yellow", highlight=False, markup=False
            )
        self._line(f"! {stage}  {text}")

    def _line(self, text: str) -> None:
        if not self._live:
            print(text, file=sys.stderr, flush=True)  # noqa: T201  the plain form of the display
