"""LeRobot's answers beside those of a `vla` that starts from what LeRobot saves."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.families.vla import VlaPolicy
from policies.families.vla_checkpoint import padded_noise
from policies.policy import ObservationTensors
from policies.samplers.flow_matching import flow_example
from tests.policies.families.test_vla import noise, obs, policy

SENTENCES = ("go", "lift the cup and put it on the plate")
CAMERAS = 2
GIVEN = """
given = {name: torch.from_numpy(part) for name, part in np.load(folder / "given.npz").items()}
cameras = sorted(name for name in given if name.startswith("camera"))
features = {
    f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, tuple(given[name].shape[1:]))
    for name in cameras
}
features["observation.state"] = PolicyFeature(FeatureType.STATE, (given["state"].shape[1],))
"""
"""Reads in LeRobot's environment what `compared` writes into `folder`; names the features."""
SAVED = """
with torch.no_grad():
    for name, part in policy.named_parameters():
        # Their initialisation at 0 or 1 would hide a forgotten one, and small weights a rotary one.
        if part.ndim == 1:
            part.add_(0.1 * torch.randn_like(part))
        elif "embed" not in name and part.ndim == 2:
            part.normal_(std=1.5 * part.shape[1] ** -0.5)
policy.save_pretrained(folder)
batch = {f"observation.images.{name}": given[name].float() / 255.0 for name in cameras}
batch["observation.state"] = given["state"]
batch["observation.language.tokens"] = given["tokens"]
batch["observation.language.attention_mask"] = given["mask"]
"""
"""Gives `policy` random weights and saves it; makes the batch."""


class Compared(NamedTuple):
    """Answers of LeRobot and of a policy that starts from its checkpoint."""

    lerobot: dict[str, np.ndarray]
    own: dict[str, np.ndarray]

    def largest_difference(self) -> dict[str, float]:
        return {
            name: float(np.abs(part - self.own[name]).max()) for name, part in self.lerobot.items()
        }


def observation() -> ObservationTensors:
    return obs(len(SENTENCES), CAMERAS)._replace(instructions=SENTENCES)


def compared(
    python: Path, script: str, words: list[str], folder: Path, entries: int, **options: Any
) -> Compared:
    """Lets LeRobot write a tiny checkpoint of random weights and answer, then answers from it.

    Args:
        python: that of LeRobot's environment.
        script: takes the folder and `words`, and writes the answers into the folder.
        words: its further arguments.
        folder: with the files of the backbone in `backbone`.
        entries: entries to which actions are padded.
        options: options of the policy.
    """
    tokens = policy(folder / "backbone").tokens(SENTENCES)
    given, rows = observation(), len(SENTENCES)
    clean, time = noise(rows, 1), torch.tensor([0.3, 0.9])
    padded = torch.tensor([[False] * 4, [False, False, True, True]])
    wide = padded_noise(noise(rows), entries)
    arrays: dict[str, Any] = {
        "state": given.vector_BTO[:, 0],
        "tokens": tokens.token_BL,
        "mask": tokens.mask_BL,
        "noise": wide,
        "actions": clean,
        "padded": padded,
        "time": time,
    }
    arrays |= {name: part[:, -1].movedim(-1, 1) for name, part in given.sensors.items()}
    np.savez(folder / "given.npz", **{name: part.numpy() for name, part in arrays.items()})
    subprocess.run([python, "-c", script, folder, *words], check=True)
    with np.load(folder / "answers.npz") as answers:
        lerobot = dict(answers)
    module = policy(folder / "backbone", CAMERAS, checkpoint=str(folder), **options).eval()
    with torch.no_grad():
        # The chunk of the flow has half the deviation that LeRobot's has.
        own = {"chunk": 2.0 * module.sample(given, noise(rows))}
        own["loss"] = velocity_loss(module, clean, wide, time, padded)
    return Compared(lerobot, {name: part.numpy() for name, part in own.items()})


def velocity_loss(
    module: VlaPolicy, clean: Tensor, wide: Tensor, time: Tensor, padded: Tensor
) -> Tensor:
    """The mean squared error of the velocity, as `VlaPolicy.loss` computes it, for given noise."""
    entries = (0, wide.shape[2] - clean.shape[2])
    noisy, velocity = flow_example(torch.nn.functional.pad(clean, entries), wide, time)
    error = module.denoise(module.expert_context(observation()))(noisy, time) - velocity
    return error[..., : clean.shape[2]].square().mean(dim=-1)[~padded].mean()
