"""Trains students from teachers.

- `config`: options; imports no torch.
- `one_step`: a one-step student of a diffusion or flow policy.
- `regression`: regression on chunks from the same noise.
- `shortcut`: self-distillation of a flow, a step learning to be two of half its length.
- `on_policy`: distillation at the states that the student visits.
- `teachers`: teachers and their rows.
- `losses`: distillation losses per policy family.
"""
