"""Defines the neural networks of policies.

- `config`: sizes of all networks; imports no torch.
- `mlp`: residual MLP denoiser, and plain MLPs.
- `unet`: one-dimensional U-Net denoiser.
- `transformer`: transformer denoiser.
- `decided_actions`: actions that are decided before a chunk is predicted.
- `goal_transformer`: the transformer of BESO.
- `act`: the transformer and latent of ACT.
- `action_expert`: the action expert of a flow-matching VLA.
- `vlm`: vision-language backbones.
- `vlm_files`: configuration and tokenizer files of backbones.
- `observation_encoder`: observations as one vector.
- `field_estimator`: vectors that are not observed, estimated from the observation.
- `memory`: summaries of the observed steps.
- `field_modules`: one module per observation field.
- `coarse_to_fine`: the critic of CQN-AS over sequences of actions.
- `images`: image encoders.
- `point_encoder`: point clouds as features.
"""
