"""Opens the policy of a release, a gate or an approval, after checking what it is and who signed
it.

What runs is a private copy of the bytes that were checked: what happens to the folder afterwards
changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.deployment.release import released_bundle
from flows.deployment.release_folder import RELEASE_FILE, check_release, is_release
from flows.runner.artifact import read_manifest
from robots.contract import CONTRACT_KEY, ONNX_FILE, Contract
from robots.errors import HandoffError
from robots.signing.folder import Examination, copied_digest, examine_folder, read_files
from robots.signing.statement import root_digest
from robots.signing.trust_store import keys_folder, read_trust_store
from robots.storage.onnx_file import onnx_metadata

PREFIX = "handoff-release-"
"""Beginning of the names of the private copies."""


def release_entries(folder: Path) -> dict[str, str]:
    """Returns what an episode states about the release that acted: `release`, its name, and
    `release_digest`, which its signature covers; nothing for the policy of a gate or an approval.

    Args:
        folder: a folder that `verified_policy` yields.
    """
    file = folder / RELEASE_FILE
    if not file.is_file():
        return {}
    name = json.loads(file.read_bytes())["name"]
    return {"release": name, "release_digest": root_digest(read_files(folder)[0])}


def task_of_release(path: Path) -> str | None:
    """Name of the task of a release's policy, by which the options of a session are chosen before
    anything is verified; nothing of the policy is run. None for what cannot be read, which
    `verified_policy` or the loading of the policy refuses.

    Args:
        path: release folder, or artifact of a gate or an approval.
    """
    try:
        file = (path if is_release(path) else released_bundle(path)) / ONNX_FILE
        return Contract.from_json(onnx_metadata(file.read_bytes())[CONTRACT_KEY]).task
    except (HandoffError, OSError, KeyError):
        return None


@contextmanager
def verified_policy(path: Path, *, arm: str | None, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yields a private folder with the verified files of a policy, which is deleted afterwards.

    A real arm takes a release folder alone, which a trusted key signed, with a valid approval, and
    whose gate had no looser limits than the defaults. A simulated arm also takes what is not
    signed, with a warning. Neither takes what was altered or revoked, nor a policy that did not
    pass its gate.

    Args:
        path: release folder, or artifact of a gate or an approval.
        arm: name of the real arm; None for a simulated one.
        warn: called with one line about what is not signed.

    Raises:
        HandoffError: see above.
    """
    with TemporaryDirectory(prefix=PREFIX) as folder:
        copy = Path(folder)
        if is_release(path):
            examination = examine_folder(path, read_trust_store(keys_folder()), copy)
            _check(examination, copy, arm, warn)
        else:
            bundle = released_bundle(path)
            if arm is not None:
                raise HandoffError(
                    f"{arm}: {path} is not signed; a real arm takes a signed release alone. Where it was made: handoff "
                    f"sign {path}"
                )
            warn(f"warning  {path} is not signed; a real arm would refuse it.")
            _copy_bundle(bundle, copy)
        yield copy


def _check(
    examination: Examination, copy: Path, arm: str | None, warn: Callable[[str], None]
) -> None:
    examination.require_intact()
    if arm is not None:
        examination.require_trusted()
    release = check_release(copy, examination.files, examination.folder)
    if arm is not None:
        release.check_for_arm()
    elif examination.doubt:
        warn(
            f"warning  release {examination.folder}: {examination.doubt}. A real arm would refuse it."
        )


def _copy_bundle(bundle: Path, copy: Path) -> None:
    """Copies a bundle that was verified, and compares what was copied."""
    for name, entry in read_manifest(bundle)["files"].items():
        if copied_digest(bundle / name, copy / name) != entry["sha256"]:
            raise HandoffError(f"{bundle}: {name} was changed while it was read. Try again.")
