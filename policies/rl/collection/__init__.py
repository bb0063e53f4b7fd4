"""Collects rollouts by alternating between policy and environments.

- `interfaces`: protocols of environments and actors, and their results.
- `chunk_env`: environments that execute action chunks.
- `device_chunk_env`: the same with tensors that stay on a device.
- `device_episodes`: initial states and shaped rewards of environments on a device.
- `split_chunk_env`: the same in parts that are stepped independently.
- `state_env`: environments that execute single actions.
- `collector`: rollouts valued by a separate critic.
- `chunk_collector`: rollouts of chunks with a log-probability per entry.
- `pipelined_collector`: inference for one part while others are simulated.
- `async_actor`: rollouts by an earlier copy of the policy.
- `admission`: the limit on how stale a rollout may be.
- `reward_shaping`: shaping terms on top of the task reward.
- `episode_statistics`: success, return and length of recent episodes.
- `seeds`: episode seeds with a count of those used.
- `placement_profile`: measured times and predicted speed per placement.
"""
