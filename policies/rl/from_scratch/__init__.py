"""Trains policies by RL from scratch in vectorised environments, on vectors and the features of
pictures.

- `config`: the algorithms and their options; imports no torch.
- `run`: what a run is given, and its parts.
- `train`: the entry point, and what all runs share on disk.
- `off_policy`: runs from a replay buffer: SAC, RLPD, FastTD3, PQL, MR.Q and
  CQN-AS.
- `experience`: steps, replay buffer and learner of these runs.
- `learners`: learners of these runs and their export.
- `replay_files`: the steps of a replay buffer in files.
- `demonstrations`: recorded episodes as steps of a replay buffer.
- `on_policy`: runs on the policy's own rollouts: PPO and PPO-Lagrangian.
- `streaming`: runs that learn from every step once: stream AC(lambda).
- `actor_critic`: Gaussian actor and critics on observation vectors.
- `rollout_env`: the environments as on-policy collection sees them.
- `device_env`: the same with tensors that stay on a device.
"""
