"""Fine-tunes a frozen policy by RL tokens: a small actor refines its chunks.

- `config`: options; imports no torch.
- `token_training`: the RL token, learned by reconstruction of the policy's features.
- `learner`: actor and critics of refined chunks.
- `finetuning`: the run.
"""
