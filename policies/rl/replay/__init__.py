"""Stores transitions for off-policy learning.

- `config`: size, discount and sampling.
- `buffer`: the buffer.
- `transitions`: minibatches of transitions.
- `episode_links`: steps of an episode, linked for n-step returns.
- `images`: camera images, stored once.
- `files`: a buffer on disk.
- `trajectory_weighting`: sampling by the return of trajectories.
"""
