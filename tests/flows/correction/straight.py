"""A hand-written actor of `reach`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from policies.card import PolicyCard
from policies.families.rl_actor import save_actor
from policies.policy_config import LearnedActorConfig
from robots.wire.actor_card import ActorCard, MlpCard
from robots.wire.learner import Parameters


def straight_to_the_goal(folder: Path, speed: float = 1.0) -> None:
    """Saves an actor that solves `reach`: the speed of every axis is proportional to its distance
    from the goal.

    Args:
        folder: folder of the policy.
        speed: factor on the speed; -1 flees the goal.
    """
    from sim.make import find_task

    specs = {name: term.spec for name, term in find_task("reach").observations.items()}
    observed = {name: specs[name] for name in ("q", "dq", "grasp_pose", "goal")}
    # 7 joints, 7 speeds, 6 of the pose, 3 of the goal; behind them the goal less the position, in
    # decimetres.
    weight = np.zeros((26, 6), np.float32)
    weight[23:26, :3] = speed * np.eye(3)
    network = MlpCard(layers=(26, 6), activation="tanh", layer_norm=False)
    card = ActorCard(
        observation=23,
        action=3,
        relative_features=((20, 14, 3, 0.1),),
        actor=network,
        log_std_min=-5.0,
        log_std_max=2.0,
    )
    model = LearnedActorConfig(observation_fields=tuple(observed), card=card)
    action = replace(specs["goal"], frame="", about="x, y, z", unit="1")
    policy = PolicyCard(
        task="reach", rate_hz=20.0, observation=observed, action=action, model=model
    )
    arrays = {
        "centre": np.zeros(23, np.float32),
        "half_range": np.ones(23, np.float32),
        "actor.0.weight": weight,
        "actor.0.bias": np.zeros(6, np.float32),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_actor(folder, policy, Parameters(0, card, arrays))
