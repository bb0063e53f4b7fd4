"""Loads demonstrations as training batches.

- `demonstrations`: a store's episodes as arrays, with their statistics.
- `windows`: windows of observations and actions.
- `mixture`: batches from several stores.
- `frames`: camera images, decoded once.
- `streamed_frames`: camera images, read from the stores when a batch needs them.
- `stored_maps`: the feature maps of all recorded pictures by a frozen trunk.
- `encoded_steps`: the features of all recorded steps, for trainings that keep the encoders.
- `visited_states`: states that a policy visited in fine-tuning or distillation.
"""
