"""Trains policies by reinforcement learning.

- `actor_export`: actors as named arrays for a robot without torch.
- `networks`: ensembles, critics and image encoders.
- `replay`: replay buffers in memory and on disk.
- `on_policy`: PPO and GRPO over any actor with log-probabilities.
- `collection`: rollouts of policies in environments.
- `off_policy`: SAC, FastTD3 and their variants.
- `mrq`: MR.Q.
- `coarse_to_fine`: CQN-AS, values of sequences of actions.
- `streaming`: stream AC(lambda), one update per step without a buffer.
- `offline`: IQL, Cal-QL and offline PPO.
- `generative`: Q-learning over diffusion and flow policies.
- `hil`: the learner of human-in-the-loop sessions.
- `from_scratch`: RL from scratch on vectors and the features of pictures.
- `finetuning`: fine-tuning of pretrained policies.
"""
