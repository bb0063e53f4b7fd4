"""Trains diffusion and flow policies with Q-functions.

- `config`: options; imports no torch.
- `behaviour_model`: a generative model of the action chunks in the data.
- `expo`: EXPO, learned edits of a base policy's actions.
- `q_chunking`: Q-chunking, Q-functions over action chunks.
"""
