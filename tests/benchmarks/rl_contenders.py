"""Runs one contender of `tests.benchmarks.rl`: a process that makes updates on one core on request.

    PYTHON tests/benchmarks/rl_contenders.py NAME

It prints `ready`, then reads numbers of updates from its input, one per line, makes them and prints
one JSON object: seconds of processor time and by the clock. `sb3` and `sbx` need nothing of Handoff
and run in a separate environment; the others are run from the root of the repository.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

BATCH, OBSERVATION, ACTION, HIDDEN = 256, 20, 7, (256, 256)
STORED = 10_000
WARM_UP = 30


def main() -> None:
    """Prepares the contender named on the command line, and makes updates on request."""
    one_core()
    advance = contenders()[sys.argv[1]]()
    advance(WARM_UP)
    print("ready", flush=True)
    for line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        advance(int(line))
        spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        print(json.dumps(spent), flush=True)


def one_core() -> None:
    """Restricts all libraries to one thread on the last core that this process may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    for library in ("OMP", "MKL", "OPENBLAS"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


def contenders() -> dict[str, Callable[[], Callable[[int], Any]]]:
    """Factories by name, each of a function that makes the given number of updates."""
    return {
        "handoff": lambda: handoff("plain", critics=2),
        "handoff_hil_serl": lambda: handoff("hil_serl", critics=2),
        "handoff_alone": lambda: handoff("plain", critics=2, sampling=False),
        "handoff_ten": lambda: handoff("hil_serl", critics=10, sampling=False),
        "handoff_ten_rlpd": lambda: handoff("rlpd", critics=10, sampling=False),
        "torch_adam": lambda: torch_adam("plain"),
        "torch_adam_hil_serl": lambda: torch_adam("hil_serl"),
        "compiled": lambda: compiled("plain"),
        "compiled_hil_serl": lambda: compiled("hil_serl"),
        "handoff_hil_serl_alone": lambda: handoff("hil_serl", critics=2, sampling=False),
        "loop_ten": lambda: loop("hil_serl", 10, joint=False),
        "loop_ten_joint": lambda: loop("hil_serl", 10, joint=True),
        "loop_ten_rlpd": lambda: loop("rlpd", 10, joint=False),
        "products": lambda: products(critics=2, fastest=True),
        "products_mm": lambda: products(critics=2, fastest=False),
        "sb3": lambda: stable_baselines("stable_baselines3"),
        "sbx": lambda: stable_baselines("sbx"),
        "sbx_loop": lambda: stable_baselines("sbx", at_once=True),
    }


def handoff(form: str, critics: int, sampling: bool = True) -> Callable[[int], None]:
    """Ours. `plain` is SAC as the peers have it (ReLU, entropy in the target, minimum for the
    actor).

    Args:
        form: plain, rlpd (ReLU, LayerNorm in the critics, no entropy, mean) or hil_serl (tanh,
            LayerNorm in all).
        critics: members of the ensemble; of ten, two are used for the target.
        sampling: whether the minibatches are drawn from a replay, as the peers' are, or there is
            one for all updates.
    """
    learner = _sac(form, critics)
    replay, draw = _replay(), np.random.default_rng(0)
    batch = replay.sample(BATCH, draw)

    def advance(updates: int) -> None:
        for _ in range(updates):
            learner.update([replay.sample(BATCH, draw) if sampling else batch])

    return advance


def loop(form: str, critics: int, joint: bool) -> Callable[[int], None]:
    """The same update with every critic a separate module, written in the usual way with torch's
    layers.

    Args:
        form: rlpd or hil_serl.
        critics: modules.
        joint: whether they share one loss, one backward pass and one optimiser, and are only asked
            one after another; or every one of them has its own, as a single critic has.
    """
    import torch
    from torch import Tensor, nn

    from policies.rl.networks.ensemble import move_towards

    class Loop(nn.Module):
        """Critics as separate stacks of torch's layers."""

        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList(self._member() for _ in range(critics))

        def _member(self) -> nn.Module:
            layers: list[nn.Module] = []
            for before, after in pairwise((OBSERVATION + ACTION, *HIDDEN)):
                layers.append(nn.Linear(before, after))
                layers += [
                    nn.LayerNorm(after, eps=1e-6),
                    nn.ReLU() if form == "rlpd" else nn.Tanh(),
                ]
            return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

        def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
            chosen = range(critics) if members is None else members.tolist()
            return torch.stack([self.members[i](inputs) for i in chosen])

    learner = _sac(form, critics)
    net: Any = learner.networks
    net.critic, net.critic_target = Loop(), Loop().requires_grad_(False)
    learner.optimizers["critic"] = torch.optim.Adam(net.critic.parameters(), 3e-4, fused=True)
    optimizers = [
        torch.optim.Adam(member.parameters(), 3e-4, fused=True) for member in net.critic.members
    ]
    batch = _replay().sample(BATCH, np.random.default_rng(0))

    def update_critics(batch: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            value_B = learner.next_value(learner.features(batch.next_obs))
            target_B = batch.reward_B + batch.discount_B * value_B
        inputs = torch.cat([learner.features(batch.obs), batch.action_BA], dim=1)
        for member, slow, optimizer in zip(
            net.critic.members, net.critic_target.members, optimizers, strict=True
        ):
            loss = nn.functional.mse_loss(member(inputs)[:, 0], target_B)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            move_towards(slow, member, learner.config.tau)
        return {}

    if not joint:
        learner._update_critic = update_critics

    def advance(updates: int) -> None:
        for _ in range(updates):
            learner.update([batch])

    return advance


def torch_adam(form: str) -> Callable[[int], None]:
    """Ours with torch's own optimiser and its fused kernel.

    Args:
        form: see `handoff`.
    """
    import torch

    from policies.rl.off_policy import fused_sac, sac

    learner = _sac(form, critics=2)
    for name, own in list(learner.optimizers.items()):
        learner.optimizers[name] = torch.optim.Adam(own.parameters, own.learning_rate, fused=True)
    # Steps by hand are made with one class of optimiser, by whatever name it goes.
    sac.Adam = fused_sac.Adam = torch.optim.Adam  # type: ignore[misc, assignment]
    assert learner._fused_steps() is not None
    batch = _replay().sample(BATCH, np.random.default_rng(0))

    def advance(updates: int) -> None:
        for _ in range(updates):
            learner.update([batch])

    return advance


def compiled(form: str) -> Callable[[int], None]:
    """The same update with the losses in torch's own operations, forward and backward by
    `torch.compile`; optimiser and targets are ours.

    Args:
        form: see `handoff`; two critics.
    """
    import torch
    from torch import Tensor

    from policies.rl.networks.ensemble import EnsembleMlp, batched_forward, move_towards
    from policies.rl.off_policy.tanh_gaussian import tanh_normal_log_prob

    learner = _sac(form, critics=2)
    net, config = learner.networks, learner.config
    batch = _replay().sample(BATCH, np.random.default_rng(0))
    seen_BF, after_BF = learner.features(batch.obs), learner.features(batch.next_obs)

    def ask(network: EnsembleMlp, inputs: Tensor) -> Tensor:
        return batched_forward(network.sizes, network.layers(), True, inputs, None)

    def sample(features_BF: Tensor, noise_BA: Tensor) -> tuple[Tensor, Tensor]:
        mean_BA, log_std_BA = ask(net.actor.network, features_BF)[0].chunk(2, dim=1)
        log_std_BA = log_std_BA.clamp(*net.actor.bounds)
        raw_BA = mean_BA + log_std_BA.exp() * noise_BA
        return torch.tanh(raw_BA), tanh_normal_log_prob(noise_BA, log_std_BA, raw_BA)

    @torch.compile(fullgraph=True, dynamic=False)
    def critic_loss(noise_BA: Tensor) -> Tensor:
        with torch.no_grad():
            action_BA, log_prob_B = sample(after_BF, noise_BA)
            inputs = torch.cat([after_BF, action_BA], dim=1)
            value_B = ask(net.critic_target, inputs)[..., 0].amin(dim=0)
            if config.backup_entropy:
                value_B = value_B - net.log_temperature.exp() * log_prob_B
            target_B = batch.reward_B + batch.discount_B * value_B
        inputs = torch.cat([seen_BF, batch.action_BA], dim=1)
        return (ask(net.critic, inputs)[..., 0] - target_B).square().mean()

    @torch.compile(fullgraph=True, dynamic=False)
    def actor_loss(noise_BA: Tensor) -> tuple[Tensor, Tensor]:
        action_BA, log_prob_B = sample(seen_BF, noise_BA)
        value_EB = ask(net.critic, torch.cat([seen_BF, action_BA], dim=1))[..., 0]
        value_B = value_EB.mean(dim=0) if config.actor_value == "mean" else value_EB.amin(dim=0)
        temperature = net.log_temperature.detach().exp()
        return (temperature * log_prob_B - value_B).mean(), -log_prob_B.detach().mean()

    def advance(updates: int) -> None:
        for _ in range(updates):
            learner._step("critic", critic_loss(learner._noise(BATCH)))
            move_towards(net.critic_target, net.critic, config.tau)
            net.critic.requires_grad_(False)
            loss, entropy = actor_loss(learner._noise(BATCH))
            learner._step("actor", loss)
            net.critic.requires_grad_(True)
            learner.step_temperature(net.log_temperature.detach().exp(), entropy)

    return advance


def _sac(form: str, critics: int) -> Any:
    import torch

    from policies.rl.networks.config import MlpSizes
    from policies.rl.off_policy.config import SacConfig
    from policies.rl.off_policy.sac import Sac
    from policies.rl.replay.transitions import Sizes

    torch.set_num_threads(1)
    subset = 2 if critics > 2 else None
    if form == "hil_serl":
        config = SacConfig(critics=critics, subset=subset)
    elif form == "rlpd":
        critic = MlpSizes(hidden=HIDDEN, activation="relu")
        actor = MlpSizes(hidden=HIDDEN, activation="relu", layer_norm=False)
        config = SacConfig(critic=critic, actor=actor, critics=critics, subset=subset)
    else:
        sizes = MlpSizes(hidden=HIDDEN, activation="relu", layer_norm=False)
        config = SacConfig(
            critic=sizes,
            actor=sizes,
            critics=critics,
            subset=subset,
            actor_value="min",
            backup_entropy=True,
        )
    return Sac(config, Sizes(observation=OBSERVATION, action=ACTION), seed=0)


def _replay() -> Any:
    from policies.rl.replay.buffer import Replay
    from policies.rl.replay.config import ReplayConfig
    from robots.wire.steps import plain_steps

    draw = np.random.default_rng(0)
    replay = Replay(ReplayConfig(capacity=STORED), OBSERVATION, ACTION)
    seen = draw.standard_normal((STORED + 1, OBSERVATION)).astype(np.float32)
    nothing = np.zeros(STORED, bool)
    replay.append(
        plain_steps(
            episode=np.arange(STORED) // 100,
            number=np.arange(STORED) % 100,
            observation=seen[:-1],
            action=draw.uniform(-1.0, 1.0, (STORED, ACTION)),
            reward=draw.standard_normal(STORED),
            next_observation=seen[1:],
            terminated=nothing,
            truncated=np.arange(STORED) % 100 == 99,
        )
    )
    return replay


def products(critics: int, fastest: bool) -> Callable[[int], None]:
    """The matrix products of an update of the plain form and nothing else, in float32: what no
    update can beat.

    Args:
        critics: members of the ensemble.
        fastest: takes for every product the faster of `torch.mm` and the one that the learner uses;
            or `torch.mm`.
    """
    import torch

    from policies.rl.networks.fused_mlp import fused_linear

    torch.set_num_threads(1)
    critic = list(pairwise((OBSERVATION + ACTION, *HIDDEN, 1)))
    actor = list(pairwise((OBSERVATION, *HIDDEN, 2 * ACTION)))

    def forward(layers: list[tuple[int, int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(BATCH, i), torch.randn(i, n)) for i, n in layers]

    def of_weights(layers: list[tuple[int, int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(BATCH, i).t(), torch.randn(BATCH, n)) for i, n in layers]

    def of_inputs(layers: list[tuple[int, int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(BATCH, n), torch.randn(i, n).t()) for i, n in layers]

    pairs = forward(actor) + of_weights(actor) + of_inputs(actor[1:]) + forward(actor)
    for _ in range(critics):
        pairs += forward(critic) + forward(critic) + of_weights(critic) + of_inputs(critic[1:])
        # Of the first layer's inputs the actor needs the actions' gradient only.
        pairs += forward(critic) + of_inputs([(ACTION, HIDDEN[0]), *critic[1:]])
    calls: list[Callable[[], torch.Tensor]] = []
    for left, right in pairs:
        out = torch.empty(left.shape[0], right.shape[1])
        plain = _call(torch.mm, left, right, out)
        own = _call(fused_linear, left, right, None)
        calls.append(min((plain, own), key=_seconds) if fastest else plain)

    def advance(updates: int) -> None:
        with torch.inference_mode():
            for _ in range(updates):
                for call in calls:
                    call()

    return advance


def _call(multiply: Callable[..., Any], left: Any, right: Any, out: Any) -> Callable[[], Any]:
    return (
        (lambda: multiply(left, right)) if out is None else (lambda: multiply(left, right, out=out))
    )


def _seconds(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of several runs."""
    took = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(10):
            call()
        took.append(time.process_time() - began)
    return min(took)


def stable_baselines(library: str, at_once: bool = False) -> Callable[[int], None]:
    """SAC of stable-baselines3 (PyTorch) or SBX (JAX), as they come; their default networks are
    256, 256, ReLU.

    Args:
        library: its package.
        at_once: whether all updates are one call, which SBX compiles to one loop; or a call each,
            as both do when they update once per step of the environment, their default.
    """
    import gymnasium
    import torch

    torch.set_num_threads(1)

    class Nothing(gymnasium.Env[Any, Any]):
        """An environment of the right sizes."""

        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(OBSERVATION, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(OBSERVATION, np.float32), 0.0, False, False, {}

    sac, logger = import_module(library).SAC, import_module("stable_baselines3.common.logger")
    model = sac("MlpPolicy", Nothing(), buffer_size=STORED, batch_size=BATCH, seed=0, device="cpu")
    model.set_logger(logger.configure(None, []))
    draw = np.random.default_rng(0)
    for _ in range(STORED):
        seen = draw.standard_normal((2, 1, OBSERVATION)).astype(np.float32)
        action = draw.uniform(-1.0, 1.0, (1, ACTION)).astype(np.float32)
        model.replay_buffer.add(
            seen[0], seen[1], action, draw.standard_normal(1), np.zeros(1), [{}]
        )

    def advance(updates: int) -> None:
        for _ in range(1 if at_once else updates):
            model.train(gradient_steps=updates if at_once else 1, batch_size=BATCH)

    return advance


if __name__ == "__main__":
    main()
