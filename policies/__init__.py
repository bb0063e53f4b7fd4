"""Learns policies with torch: imitation, reinforcement learning, distillation, export.

- `chunk_policy_config`: properties that every policy family declares.
- `learned_policy_config`: configurations of policies that reinforcement learners save.
- `policy_config`: the families' configurations and their union.
- `policy`: the class of all policies that predict chunks.
- `card`: the metadata saved with a policy's weights.
- `normalize`: normalisers that travel with the weights.
- `checkpoint`: policies and training states on disk.
- `load`: loads a saved policy as its family's class.
- `serve`: the policy server.
- `random_streams`: the random streams of training, by name.
- `language`: the frozen sentence encoder of instructions.
- `networks`: torch modules.
- `samplers`: denoising schedules and chains.
- `families`: the policy families.
- `data`: demonstrations as windows and batches.
- `training`: one resumable training loop.
- `imitation`: pretraining from demonstrations.
- `rl`: reinforcement learning.
- `distillation`: one-step and on-policy students.
- `world_model`: a world model and imagined environments.
- `rewards`: success classifiers, and rewards from images and text.
- `export`: ONNX with a contract.
"""
