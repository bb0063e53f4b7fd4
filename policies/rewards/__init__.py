"""Learns success classifiers and rewards from image-text models.

- `config`: options; imports no torch.
- `success_classifier`: the classifier.
- `train_success_classifier`: its training and calibration.
- `vision_language`: rewards from images and text.
"""
