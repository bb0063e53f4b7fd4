"""Stages: a function each, which turns artifact folders into the arguments of another package.

- `config`: options of those that simulate.
- `ingest`: demonstrations, wherever they come from.
- `scripted`: demonstrations by a task's scripted expert.
- `pretrain`: a policy that imitates demonstrations.
- `play`: play at a task's table, for a world model to learn from.
- `world_model`: a frozen model of that play.
- `finetune`: reinforcement learning of a pretrained policy.
- `reinforce`: reinforcement learning from nothing.
- `distil`: a diffusion policy to a one-step student.
- `teach`: on-policy distillation to a smaller student.
- `evaluate`: a policy under a protocol.
- `export`: a policy to an ONNX file with its contract.
- `gate`: the exported file compared with its teacher, and timed.
- `deploy`: the twin at the table of push-T.
- `deploy_task`: the twin at the table of a simulated task.
"""
