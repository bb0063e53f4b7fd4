"""Steps, replay buffer and learner of runs from a replay buffer.

- `host`: on the host, from uniform minibatches.
- `device`: in environments that stay on a device.
- `mrq`: of MR.Q, with a prioritised replay buffer.
- `cqn_as`: of CQN-AS, with a replay buffer of whole episodes.
"""
