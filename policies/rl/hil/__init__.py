"""Learns while a person corrects.

- `config`: options; imports no torch.
- `make_learner`: learners and their data, from a session's options.
- `learner`: the learner's loop.
- `server`: its network side.
- `inbox`: steps of actors, taken exactly once.
- `rlif`: RLIF: interventions as rewards.
- `hg_dagger`: HG-DAgger.
"""
