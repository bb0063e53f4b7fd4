"""Trains students from teachers.

- `config`: options; imports no torch.
- `one_step`: a one-step student of a diffusion policy.
- `regression`: regression on chunks from the same noise.
- `on_policy`: distillation at the states that the student visits.
- `teachers`: teachers and their rows.
- `losses`: distillation losses per policy family.
"""
