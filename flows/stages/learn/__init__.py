"""Defines the stages that make policies and other models.

- `config`: options of these stages.
- `pretrain`: imitation learning.
- `world_model`: trains a world model on play data.
- `offline`: offline RL on a recorded store.
- `finetune`: RL fine-tuning of a pretrained policy.
- `reinforce`: RL from scratch.
- `classify`: trains a success classifier.
- `correct`: RL with a person's corrections.
- `distill`: distils a policy to a student.
- `tune`: fits the simulated arm to recorded motions.
"""
