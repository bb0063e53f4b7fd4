"""Learns Q-functions over diffusion and flow policies.

- `config`: options; imports no torch.
- `behaviour_model`: the model of the data's chunks.
- `edp`: efficient diffusion policies.
- `expo`: EXPO: edits of a base policy's actions.
- `q_chunking`: Q-chunking.
- `open_loop`: chunks executed without replanning.
"""
