"""Stores transitions for off-policy learning.

- `config`: capacity, discount, n-step returns and priorities; imports no torch.
- `buffer`: the replay buffer.
- `device_buffer`: the steps of environments that stay on a device.
- `transitions`: minibatches of transitions.
- `episode_links`: complete chunks and Monte-Carlo returns of episodes.
- `images`: storage of camera images, each once.
- `files`: crash-safe storage of a buffer on disk.
- `priorities`: prioritised sampling by temporal-difference errors (LAP).
- `whole_episodes`: the steps of running episodes until they end.
- `unrolls`: sequences of consecutive steps.
- `trajectory_weighting`: sampling weights by the return of trajectories.
"""
