"""Collects rollouts by alternating between policy and environments.

- `interfaces`: the environment of decisions, and its results.
- `chunk_env`: environments that execute chunks.
- `device_chunk_env`: the same on a device.
- `split_chunk_env`: the same in parts that are stepped apart.
- `state_env`: environments of single steps.
- `collector`: rollouts of single steps.
- `chunk_collector`: rollouts of chunks.
- `pipelined_collector`: simulation of one part while another is decided.
- `async_actor`: rollouts by older weights.
- `admission`: which stale rollouts are learned from.
- `reward_shaping`: rewards on top of the task's.
- `episode_statistics`: success, return and length of recent episodes.
- `seeds`: the seeds of starts, counted.
- `placement_profile`: measured rates, and predicted placements.
"""
