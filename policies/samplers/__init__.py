"""Samplers that denoise chunks step by step, with the log-probability of each step.

- `chain`: chains of Gaussian steps and their log-probability.
- `ddim`: diffusion with a squared-cosine schedule, DDIM and DDPM.
- `flow_matching`: flow matching, as ODE and SDE.
- `edm`: the sampler of EDM, which BESO uses.
- `noise_actor`: an actor that chooses the initial noise.
- `chunk_actor`: an actor that refines the sampled chunk.
"""
