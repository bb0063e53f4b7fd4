"""Records episodes in simulation.

- `task_rewards`: rewards of a task for recorded episodes, by replaying them.
- `rollouts`: successful rollouts of a policy.
- `config`: options.
- `batches`: batches of episodes, and the store they are written to.
- `demonstrations`: demonstrations of scripted experts.
- `play`: play data for a world model.
- `simulated_operator`: an operator with delays and errors.
- `hard_negatives`: episodes close to success.
"""
