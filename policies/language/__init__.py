"""Encodes instructions with a pretrained sentence encoder.

- `config`: options of the encoder; imports no torch.
- `sentence_encoder`: the frozen encoder, which encodes every sentence once.
- `quiet_loading`: transformers without its messages.
- `instruction_features`: the trained projection of a sentence's embedding.
"""
