"""Trains students from teachers.

- `config`: options; imports no torch.
- `one_step`: a one-step student of a diffusion policy.
- `regression`: regression on chunks from the same noise.
- `on_policy`: students that learn at the states they visit.
- `teachers`: losses and inputs per kind of policy.
- `online_student`: a student trained beside its teacher.
"""
