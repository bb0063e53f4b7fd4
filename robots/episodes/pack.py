"""Packs an episode store into one zip file."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

from robots.episodes.formats.containers.zarr_v2 import check_zip_size
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, sync_tree, temporary_beside

_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack_store(store: Path, out_zip: Path) -> str:
    """Writes the committed episodes of `store` to `out_zip` and returns the sha256 of the zip;
    equal stores give equal zips.

    Raises:
        HandoffError: the store cannot be read, or the disk is full.
    """
    EpisodeStore.open(store, "r")
    committed = [
        path for path in sorted(store.rglob("*")) if path.is_file() and not _private(path, store)
    ]
    aside = temporary_beside(out_zip)
    with explain_write_errors(out_zip, "the store was not packed"):
        try:
            with zipfile.ZipFile(aside, "w") as archive:
                for path in committed:
                    entry = zipfile.ZipInfo(path.relative_to(store).as_posix(), date_time=_EPOCH)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
            os.replace(aside, out_zip)
        finally:
            aside.unlink(missing_ok=True)
    return hashlib.sha256(out_zip.read_bytes()).hexdigest()


def unpack_store(packed: Path, out: Path) -> Path:
    """Extracts a packed store to the new folder `out` and returns `out`; after an error there is no
    such folder.

    Raises:
        HandoffError: the file is no packed store or damaged, its content is many times its size,
            `out` exists, or the disk is full.
    """
    if out.exists():
        raise HandoffError(f"{out}: already exists; choose another path.")
    aside = temporary_beside(out)
    with explain_write_errors(out, f"{packed} was not unpacked"):
        try:
            with zipfile.ZipFile(packed) as archive:
                check_zip_size(packed, archive)
                archive.extractall(aside)
        except zipfile.BadZipFile as error:
            raise HandoffError(
                f"{packed}: cannot be read as a zip ({error}), expected a folder or a zip. Was the download cut short?"
            ) from None
        else:
            EpisodeStore.open(aside, "r")
            sync_tree(aside)
            os.rename(aside, out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return out


def _private(path: Path, store: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(store).parts)
