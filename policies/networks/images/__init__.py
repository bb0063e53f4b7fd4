"""Networks that see images.

- `image_encoder`: images as features.
- `image_size`: the part of a picture that an image encoder sees.
- `efficientnet_lite`: a trunk of image encoders with weights of ImageNet.
- `picture_features`: features of that trunk as entries of the observation vector.
"""
