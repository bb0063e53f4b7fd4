"""Trains policies by CQN-AS: values of sequences of actions, whose discretisation is refined level
by level.

- `config`: options of CQN-AS; imports no torch.
- `bins`: actions as bins of every level.
- `networks`: the critic, and the actions of highest value.
- `learner`: losses and updates.
- `sequences`: minibatches with the actions that followed.
- `sequence_actor`: actions in environments by temporal ensembling.
"""
