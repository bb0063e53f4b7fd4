"""Learns rewards.

- `config`: options; imports no torch.
- `success_classifier`: the classifier.
- `train_success_classifier`: its training and calibration.
- `vision_language`: rewards from images and text.
"""
