"""Divides the seeds of episodes among their uses, so that no policy is judged on a start that it
has learned from.

| range            | seeds               | drawn by                                               |
|------------------|---------------------|--------------------------------------------------------|
| `DEMONSTRATIONS` | 0 to 19,999         | scripted demonstrations (`flows.stages.scripted`),     |
|                  |                     | those of a correction session, and a session at an arm |
| `CLASSIFIER`     | 20,000 to 39,999    | the success classifier of a correction session         |
| `ROLLOUTS`       | 40,000 to 99,999    | rollouts from which a correction session learns        |
| `EVALUATION`     | 100,000 to 199,999  | protocols (`sim.evaluation.protocol`), and             |
|                  |                     | deployments on the twin                                |
| `PLAY`           | 200,000 to 499,999  | play from which a world model learns                   |
| `RECORDING`      | 500,000 to 999,999  | recorded rollouts of a policy, such as the push-T set  |
|                  |                     | that ships with Handoff                                |
| `TRAINING`       | 1,000,000 to 2^31-1 | fine-tuning, on-policy distillation, RL from scratch   |

A stage counts up from the first seed of its range. Nothing stops a configuration with more episodes
than its range holds, but for recordings, which refuse the seeds of evaluations. An environment that
resets itself goes on from a hash of its seed that may be any number below 2^31; so do the episodes
of a correction session's actor.

A correction session with another seed takes the same ranges `SESSION_SPACING` further on, for each
seed; those lie in `TRAINING`, from which no correction session draws.
"""

from __future__ import annotations

DEMONSTRATIONS = range(0, 20_000)
CLASSIFIER = range(20_000, 40_000)
ROLLOUTS = range(40_000, 100_000)
EVALUATION = range(100_000, 200_000)
"""It begins where the published push-T evaluation does (Chi et al., RSS 2023)."""
PLAY = range(200_000, 500_000)
RECORDING = range(500_000, 1_000_000)
TRAINING = range(1_000_000, 1 << 31)

SESSION_SPACING = 1_000_000
"""Seeds between the episodes of two correction sessions whose own seeds follow one another."""
