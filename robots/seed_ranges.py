"""Divides episode seeds into one range per use, so that no policy is evaluated on an initial state
that it was trained on.

| range            | seeds               | used by                                                |
|------------------|---------------------|--------------------------------------------------------|
| `DEMONSTRATIONS` | 0 to 19,999         | scripted demonstrations, those of a person, and those  |
|                  |                     | of a correction session, and a session at an arm |
| `CLASSIFIER`     | 20,000 to 39,999    | the success classifier of a correction session         |
| `ROLLOUTS`       | 40,000 to 99,999    | rollouts on which a correction session trains          |
| `EVALUATION`     | 100,000 to 199,999  | protocols (`sim.evaluation.protocol`), and             |
|                  |                     | deployments on the twin                                |
| `PLAY`           | 200,000 to 449,999  | play data on which a world model is trained            |
| `WORST_CASE`     | 450,000 to 499,999  | the search for the worst parameters of environments    |
| `RECORDING`      | 500,000 to 999,999  | recorded rollouts of a policy, such as the push-T set  |
|                  |                     | that ships with Handoff                                |
| `TRAINING`       | 1,000,000 to 2^31-1 | fine-tuning, on-policy distillation, RL from scratch   |

A stage counts up from the first seed of its range. More episodes than a range holds are not
rejected, except that recordings reject the seeds of evaluations. After an automatic reset, an
environment continues from a hash of its seed, which may be any number below 2^31; the episodes of a
correction session's actor do the same.

The seed s of a recipe, or of a copy of a stage, shifts the ranges of its demonstrations and
trainings by s times `SESSION_SPACING`; those of evaluations stay (`flows.recipes.seeds`).
"""

from __future__ import annotations

DEMONSTRATIONS = range(0, 20_000)
CLASSIFIER = range(20_000, 40_000)
ROLLOUTS = range(40_000, 100_000)
EVALUATION = range(100_000, 200_000)
"""Begins at the first seed of the published push-T evaluation (Chi et al., RSS 2023)."""
PLAY = range(200_000, 450_000)
WORST_CASE = range(450_000, 500_000)
RECORDING = range(500_000, 1_000_000)
TRAINING = range(1_000_000, 1 << 31)

SESSION_SPACING = 1_000_000
"""Distance between the first seeds of a stage with consecutive seeds of the recipe."""
