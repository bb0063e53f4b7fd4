"""Defines the critic of CQN-AS over sequences of actions, whose discretisation is refined level by
level.

- `config`: its sizes; imports no torch.
- `bins`: actions as bins of every level.
- `critic`: the critic, and the actions of highest value.
"""
