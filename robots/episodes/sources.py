"""Finds the push-T demonstrations by searching places in a fixed order."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

from robots.config import config
from robots.episodes.demonstrations import TITLES, find_format, identify
from robots.episodes.formats.pusht import content_digest
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.storage.durable import temporary_beside, write_atomically
from robots.storage.location import Bucket, Location, bucket_of
from robots.storage.parsed_sources import cache_folder

PUSHT_URL = "https://diffusion-policy.cs.columbia.edu/data/training/pusht.zip"
"""The archive that the authors of Diffusion Policy publish."""

PUBLISHED = {PUSHT_URL: "40f82e55e40712c4d2b8a5ef694476fd13407be4369f1b4a741e1f74f7082aaf"}
"""`robots.episodes.formats.pusht.content_digest` of the published archives, by their address."""
LARGEST_DOWNLOAD = 2**27
"""Largest size of a download [bytes]; the published archive has 31 MB."""

STORE = "store.zarr"
"""Name of the store in the artifact of a stage."""
NOT_SET = "???"
"""Value of `data` in recipes that leave it to the user, as in Hydra and OmegaConf."""

Kind = Literal["argument", "environment", "cache", "download", "shipped"]

_NAMES = {
    "pusht": (
        "pusht/pusht_cchi_v7_replay.zarr.zip",
        "pusht_cchi_v7_replay.zarr.zip",
        "pusht/pusht_cchi_v7_replay.zarr",
        "pusht_cchi_v7_replay.zarr",
        "pusht.zip",
    )
}
"""Paths at which each data set is searched in a folder of data sets."""


@config
class Source:
    """The demonstrations that were found."""

    kind: Kind
    """Place in which they were found, such as `environment` or `shipped`."""
    path: Path
    """File or folder of the demonstrations."""
    line: str
    """One sentence for reports: which demonstrations were used, and why no better ones."""


def find_demonstrations(
    *,
    name: str = "pusht",
    data: Path | None = None,
    cache: Path | None = None,
    download: bool = True,
    shipped: Path,
    url: str = PUSHT_URL,
    timeout_s: float = 5.0,
    progress: Progress = no_progress,
    form: str | None = None,
) -> Source:
    """Finds demonstrations: `data`, $HANDOFF_DATA, the cache, the published download, the shipped
    set. No place is searched that depends on the working directory alone, since anybody may be able
    to write there.

    Args:
        name: name of the data set; only `pusht` is known.
        data: file or folder that must contain it; None searches the other places.
        cache: folder for downloads; None takes the user's cache folder.
        download: whether the network may be used.
        shipped: the small data set that is part of Handoff (`*.zarr.zip`), beside its manifest
            (`*.json`).
        url: address of the published archive.
        timeout_s: longest time without data from the server [s].
        progress: called with the number of downloaded bytes.
        form: format outside Handoff, which reads `data` and nothing else.

    Raises:
        HandoffError: `data` or $HANDOFF_DATA has no such data, the data is damaged, or nothing was
            found.
    """
    if data is not None and str(data) == NOT_SET:
        raise HandoffError(
            "data: is not set. Give the file or folder of your demonstrations, such as demos.data=PATH for a stage "
            "called demos."
        )
    if data is not None and (bucket := bucket_of(data)) is not None:
        return _in_bucket(bucket, form)
    if form is not None:
        return _of_format(form, data)
    if name not in _NAMES:
        raise HandoffError(f"demonstrations '{name}': unknown, expected one of {sorted(_NAMES)}.")
    cache = cache or default_cache()
    if data is not None:
        return _source(
            "argument", _named_place(Path(data).expanduser(), name, "data="), "from data="
        )
    if environment := os.environ.get("HANDOFF_DATA"):
        return _source(
            "environment",
            _named_place(Path(environment), name, "$HANDOFF_DATA"),
            f"{name} from $HANDOFF_DATA",
        )
    if path := _inside(cache, name):
        return _source("cache", path, f"{name} from the cache of an earlier download")
    tried = f"nothing at data=, $HANDOFF_DATA or {cache}"
    if not download:
        return _shipped(shipped, f"{tried}; downloads are disabled")
    try:
        path = fetch(url, cache / f"{name}.zip", timeout_s, progress)
    except (OSError, http.client.HTTPException) as error:
        return _shipped(shipped, f"{tried}; {url}: {getattr(error, 'reason', None) or error}")
    return _source("download", path, f"{name} downloaded from {url}")


def fetch(url: str, path: Path, timeout_s: float, progress: Progress = no_progress) -> Path:
    """Downloads the zip at `url` to `path`; after an error there is no such file.

    Raises:
        OSError: the server cannot be reached or sends nothing for `timeout_s`, the download is
            incomplete, too large, no zip, or not the published one of that address, or the disk is
            full.
        http.client.HTTPException: an invalid response.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_beside(path)
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response, aside.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            done = 0
            if total > LARGEST_DOWNLOAD:
                raise OSError(f"the archive has {total} bytes, at most {LARGEST_DOWNLOAD} are read")
            while block := response.read(1 << 18):
                file.write(block)
                done += len(block)
                if done > LARGEST_DOWNLOAD:
                    raise OSError(f"the archive has more than {LARGEST_DOWNLOAD} bytes")
                progress(done, max(total, done), f"downloading {path.name}")
            file.flush()
            os.fsync(file.fileno())
        if done < total:
            raise OSError(f"download cut short at {done} of {total} bytes")
        if not zipfile.is_zipfile(aside):
            raise OSError("the server sent a file that is not a zip")
        _check_published(url, aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _check_published(url: str, file: Path) -> None:
    """Compares a download with the data set that its authors published, before it is decoded."""
    expected = PUBLISHED.get(url)
    if expected is None:
        return
    try:
        found = content_digest(file)
    except HandoffError as error:
        raise OSError(str(error)) from None
    if found != expected:
        raise OSError(
            f"its files have the sha256 {found[:12]}, those that were published {expected[:12]}"
        )


def source_digest(source: Source, cache: Path | None = None) -> str:
    """sha256 of the source's content; for a folder, of the names and contents of all files, and for
    a store in a bucket of its schema and index, which state every segment with its size.

    Digests of files are cached under `cache` by path, size and modification time.

    Raises:
        HandoffError: the source cannot be read.
    """
    if (bucket := bucket_of(source.path)) is not None:
        return index_digest(bucket)
    cache_file = (cache or default_cache()) / "digests.json"
    path = source.path.resolve()
    try:
        files = (
            sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        )
        stats = [(file.relative_to(path).as_posix(), file.stat()) for file in files]
        state = hashlib.sha256(
            repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats]).encode()
        ).hexdigest()
        cached = _read_digests(cache_file)
        if cached.get(str(path), {}).get("seen") == state:
            return cached[str(path)]["digest"]
        digest = _digest(path, files)
    except OSError as error:
        raise HandoffError(f"{path}: cannot be read ({error}). Was it moved?") from None
    # Without a writable cache, the next call computes the digest again.
    with suppress(OSError):
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        entry = {"seen": state, "digest": digest}
        text = json.dumps({**cached, str(path): entry})
        write_atomically(cache_file, text.encode())
    return digest


def index_digest(store: Location) -> str:
    """sha256 of schema and index of the episode store at `store`, hex.

    Raises:
        HandoffError: there is no store, or it cannot be read.
    """
    digest = hashlib.sha256()
    for name in ("zarr.json", "index.json"):
        try:
            digest.update(hashlib.sha256(store.read(name)).digest())
        except FileNotFoundError:
            raise HandoffError(f"{store}: not an episode store, it has no {name}.") from None
    return digest.hexdigest()


def default_cache() -> Path:
    """Folder of downloads and digests."""
    return cache_folder()


def _in_bucket(bucket: Bucket, form: str | None) -> Source:
    """An episode store in a bucket."""
    if form not in (None, "episode_store"):
        raise HandoffError(
            f"data={bucket}: format '{form}' is read from files; in a bucket, only episode stores are read."
        )
    index_digest(bucket)
    line = f"recorded episodes, from data= ({bucket})"
    return Source(kind="argument", path=Path(str(bucket)), line=line)


def _of_format(form: str, data: Path | None) -> Source:
    """Data of a format outside Handoff."""
    if data is None:
        raise HandoffError(f"format '{form}': no data. Set data= to the file or folder it reads.")
    if form not in TITLES:
        find_format(form)
    path = data.expanduser()
    if not path.exists():
        raise HandoffError(f"data={path}: no such file or folder. Is the path misspelt?")
    line = f"recorded episodes, format {form} from data= ({path.name})"
    return Source(kind="argument", path=path, line=line)


def _source(kind: Kind, path: Path, description: str) -> Source:
    form = identify(path)
    about = {
        "push_t": "official human demonstrations",
        "episode_store": "recorded episodes",
    }.get(form, f"demonstrations in the format {TITLES[form]}")
    return Source(kind=kind, path=path, line=f"{about}, {description} ({path.name})")


def _named_place(place: Path, name: str, setting: str) -> Path:
    """The data set in a place that the user named with `setting`."""
    if not place.exists():
        raise HandoffError(
            f"{setting}{'' if setting.endswith('=') else '='}{place}: no such file or folder. Is the path misspelt?"
        )
    if place.is_file():
        return place
    if (place / STORE / "index.json").is_file():
        return place / STORE
    return _inside(place, name) or place


def _inside(folder: Path, name: str) -> Path | None:
    return next((folder / known for known in _NAMES[name] if (folder / known).exists()), None)


def _shipped(shipped: Path, tried: str) -> Source:
    manifest = shipped.with_name(shipped.name.removesuffix(".zarr.zip") + ".json")
    if not shipped.exists() or not manifest.exists():
        missing = shipped if not shipped.exists() else manifest
        raise HandoffError(
            f"push-T demonstrations: none found ({tried}; {missing} is missing). "
            "Set data= or $HANDOFF_DATA to pusht_cchi_v7_replay.zarr.zip, or allow the download."
        )
    try:
        stated = json.loads(manifest.read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HandoffError(
            f"{manifest}: no readable entry 'sha256' ({error}). Was it edited?"
        ) from None
    actual = _digest(shipped, [shipped])
    if actual != stated:
        raise HandoffError(
            f"{shipped}: sha256 is {actual}, its manifest says {stated}. Was one updated without the other?"
        )
    identify(shipped)
    return Source(
        kind="shipped",
        path=shipped,
        line=f"Handoff's own small state-only rollouts ({shipped.name}), not the human demonstrations: {tried}",
    )


def _digest(root: Path, files: list[Path]) -> str:
    """sha256 of the file `root`, or of the names and digests of `files` below it."""
    if files == [root]:
        with root.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(root).as_posix()}\0{_digest(file, [file])}\n".encode())
    return total.hexdigest()


def _read_digests(cache_file: Path) -> dict[str, dict[str, str]]:
    """The cached digests; empty if the file is missing or damaged."""
    try:
        cached = json.loads(cache_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return cached if isinstance(cached, dict) else {}
