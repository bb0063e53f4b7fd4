"""Names the addresses at which the files of a run are served, for links on Prefect's web page."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

URL = "HANDOFF_RESULTS_URL"
"""Environment variable with the address at which the folder of results is served."""
FOLDER = "HANDOFF_RESULTS_FOLDER"
"""Environment variable with that folder."""


def served_at(path: Path) -> str | None:
    """Returns the address of a file or folder of results; None if it is not served."""
    base, folder = os.environ.get(URL), os.environ.get(FOLDER)
    if not base or not folder:
        return None
    # Links to artifacts stay links: the address of a run is that of its name.
    absolute, root = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    if not absolute.is_relative_to(root):
        return None
    return f"{base.rstrip('/')}/{quote(absolute.relative_to(root).as_posix())}"
