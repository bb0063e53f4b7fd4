"""Defines the stages, functions that pass artifact folders to functions of other packages.

- `config`: options of the stages that simulate.
- `ingest`: converts demonstrations to an episode store.
- `scripted`: records demonstrations by a task's scripted expert.
- `pretrain`: imitation learning.
- `play`: records play data for a world model.
- `world_model`: trains a world model on play data.
- `finetune`: RL fine-tuning of a pretrained policy.
- `reinforce`: RL from scratch.
- `distil`: distils a diffusion policy to a one-step student.
- `teach`: on-policy distillation to a smaller student.
- `evaluate`: evaluates a policy under a protocol.
- `export`: exports a policy to an ONNX file with its contract.
- `gate`: checks an exported policy's outputs and latency.
- `deploy`: runs a policy on the twin at the push-T table.
- `deploy_task`: runs a policy on the twin at the table of a simulated task.
"""
