"""Learns from every step once, as it is made: no replay buffer, no minibatches.

- `config`: options of stream AC(lambda); imports no torch.
- `networks`: sparsely initialised networks with eligibility traces.
- `obgd`: the optimiser whose steps do not overshoot (ObGD).
- `running_scales`: running normalisation of observations and scale of rewards.
- `stream_ac`: the learner.
"""
