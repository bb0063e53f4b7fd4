"""Evaluates policies under versioned protocols.

- `protocol`: task, seeds and rules.
- `evaluate`: episodes, scores and their intervals.
- `rollout`: one batch of episodes.
- `episode_journal`: finished batches of an evaluation, from which an interrupted one goes on.
- `agent`: policies, experts and servers as agents.
- `intervals`: intervals of means and paired differences.
- `comparison`: paired comparisons.
- `groups`: comparisons of groups of evaluations over seeds.
- `groups_report`: page, chart and figures of such a comparison.
- `robustness`: success as a function of displaced cameras, light and distractors.
- `robustness_report`: page, chart and figures of such a measurement.
- `adastop`: sequential comparisons (AdaStop).
- `charts`: charts of an evaluation.
- `failure_videos`: videos of failed episodes.
- `report`: the HTML report.
"""
