"""Records the small set of demonstrations that ships with Handoff: successful rollouts of a trained
policy, with provenance."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from flows.evaluation.agents import chunking_of, load_agent
from flows.reports.explain import find_artifact
from flows.runner.artifact import load_artifact, write_json
from flows.runner.display import Display
from robots.code_version import code_version
from robots.config import to_plain
from sim.evaluation.protocol import Sampling


def record(policy: Path, out: Path) -> str:
    """Records rollouts of the policy artifact and packs them to `out/rollouts.zarr.zip`, with
    `out/rollouts.json`.

    Returns:
        A summary, one line.
    """
    from robots.episodes.pack import pack_store
    from sim.recording.rollouts import RecordConfig, record_rollouts

    artifact = load_artifact(find_artifact(policy))
    config = RecordConfig(
        policy=artifact.digest,
        code_version=code_version("flows.record"),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        workers=2,
    )
    with tempfile.TemporaryDirectory(prefix="handoff-record-") as folder, Display() as display:
        scratch = Path(folder)
        progress = display.started("record")
        chunking = chunking_of(artifact.path)
        load = partial(load_agent, artifact.path, None, chunking, Sampling())
        provenance = record_rollouts(config, load, scratch, progress, to_plain(chunking))
        archive = out / "rollouts.zarr.zip"
        digest = pack_store(scratch / "store.zarr", archive)
        display.finished("record", f"{provenance['episodes']} episodes")
    trained_from = {
        "policy": artifact.digest,
        "commit": artifact.manifest["environment"]["commit"],
        "demonstrations": artifact.manifest["inputs"]["demos"],
    }
    size = archive.stat().st_size
    write_json(
        out / "rollouts.json",
        {**provenance, "taught_by": trained_from, "sha256": digest, "bytes": size},
    )
    return f"{archive}: {provenance['episodes']} episodes, {provenance['frames']} frames, {size / 1e6:.2f} MB"
