"""Trains policies by CQN-AS: values of sequences of actions, whose discretisation is refined level
by level (`policies.networks.coarse_to_fine`).

- `config`: options of CQN-AS; imports no torch.
- `learner`: losses and updates.
- `sequences`: minibatches with the actions that followed.
- `sequence_actor`: actions in environments by temporal ensembling.
"""
