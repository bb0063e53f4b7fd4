"""Learns success classifiers and rewards from image-text models.

- `config`: options; imports no torch.
- `relabel`: copies of stores with other rewards.
- `labelled_steps`: labelled steps of recorded episodes, and their split.
- `labels`: reward and success of recorded episodes.
- `image_text_model`: image-text models in a local folder.
- `success_classifier`: the classifier's network.
- `success_ensemble`: several classifiers with one pessimistic score.
- `success_files`: files and ONNX export of a classifier.
- `train_success_classifier`: its training and calibration.
- `refresh_success`: further training on the states that a session's policy visits.
- `vision_language`: rewards from images and text.
"""
