"""Encodes instructions with a pretrained sentence encoder.

- `config`: options of the encoder; imports no torch.
- `sentence_encoder`: the frozen encoder, which encodes every sentence once.
- `pretrained_folder`: weights of a transformers model from a local folder.
- `instruction_features`: the trained projection of a sentence's embedding.
"""
