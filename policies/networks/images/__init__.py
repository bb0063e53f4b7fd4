"""Networks that see images.

- `image_encoder`: images as features.
- `image_size`: the part of a picture that an image encoder sees.
- `efficientnet_lite`: a trunk of image encoders with weights of ImageNet.
- `image_model`: description of a pretrained image model in a local folder.
- `folder_trunk`: that model as a trunk of image encoders.
- `picture_features`: features of EfficientNet-Lite0 as entries of the observation vector.
- `onnx_function`: a frozen network run by ONNX Runtime.
"""
