"""Networks of ACT (Zhao et al., RSS 2023): a chunk to its latent, and observation and latent to a
chunk.

Where the paper differs, this follows the released act code and LeRobot's ACT, which was written to
match it: one decoder layer (the code builds the paper's 7 and uses the output of the first) and, as
in DETR (Carion et al. 2020), on which the code is based, post-normalisation and positions added to
queries and keys of every layer but not to the values. Unlike there, every camera has a separate
trunk with GroupNorm and random initialisation; the released code shares one trunk with frozen
BatchNorm pretrained on ImageNet.

Shape suffixes: B batch, L tokens, W width, O observation, H horizon, A action, Z latent, R rows and
C columns of an image or feature map, D colour channels, E entries of a position.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.chunk_policy_config import EncodedPolicyConfig
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.field_modules import FieldModules
from policies.networks.images.image_encoder import ResNet18
from policies.networks.memory import WindowMemory
from policies.networks.mlp import sinusoidal_embedding
from policies.networks.observation_encoder import ObservationEncoder, instruction_features
from policies.policy import ObservationTensors
from policies.policy_config import ActConfig
from robots.errors import HandoffError

_MAPS = 512
"""Channels of the trunk's feature maps."""


class LatentEncoder(nn.Module):
    """Encoder of the variational autoencoder: mean and log variance of the latent of a demonstrated
    chunk.

    Args:
        config: sizes.
        shapes: sizes given by the data; without an observation vector there is no token for it.
    """

    position_LW: Tensor

    def __init__(self, config: ActConfig, shapes: Shapes) -> None:
        super().__init__()
        self.summary_W = nn.Parameter(torch.randn(config.width))
        self.observation = (
            nn.Linear(shapes.observation, config.width) if shapes.observation else None
        )
        self.action = nn.Linear(shapes.action, config.width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.latent_layers))
        self.output = nn.Linear(config.width, 2 * config.latent)
        tokens = 1 + bool(shapes.observation) + config.horizon
        self.register_buffer(
            "position_LW", sinusoidal_embedding(tokens, config.width), persistent=False
        )

    def forward(
        self, vector_BO: Tensor, chunk_BHA: Tensor, padded_BH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and log variance, each (B, Z), in float32.

        Args:
            vector_BO: normalised.
            chunk_BHA: normalised.
            padded_BH: True for actions that the encoder must ignore.
        """
        action_BHW = self.action(chunk_BHA)
        first = [self.summary_W.expand(len(chunk_BHA), 1, -1).to(action_BHW.dtype)]
        if self.observation is not None:
            first.append(self.observation(vector_BO)[:, None])
        hidden_BLW = torch.cat([*first, action_BHW], dim=1)
        ignored_BL = torch.cat([padded_BH.new_zeros(len(padded_BH), len(first)), padded_BH], dim=1)
        for layer in self.layers:
            hidden_BLW = layer(hidden_BLW, self.position_LW, ignored_BL)
        mean_BZ, log_variance_BZ = self.output(hidden_BLW[:, 0]).float().chunk(2, dim=-1)
        return mean_BZ, log_variance_BZ


class ChunkTransformer(nn.Module):
    """Decoder from latent and observation to a chunk: one token each for the latent, the
    observation vector and what a memory tells of those before, every point cloud and the
    instruction, and one per position in every camera's feature map.

    Args:
        config: sizes, cameras and point clouds.
        shapes: sizes given by the data; without an observation vector there is no token for it.
        sentences: sentence encoder of a policy with `language`.

    Raises:
        HandoffError: a point cloud without data, or no sentence encoder for a policy with
            `language`.
    """

    def __init__(
        self, config: ActConfig, shapes: Shapes, sentences: SentenceEncoder | None = None
    ) -> None:
        super().__init__()
        width, point = config.width, config.point_encoder
        self.trunks = FieldModules({name: ResNet18() for name in config.image_fields})
        self.places = FieldModules({name: nn.Linear(_MAPS, width) for name in config.image_fields})
        self.points = FieldModules()
        for name in config.point_fields:
            point_config = EncodedPolicyConfig(
                observation_fields=(), point_fields=(name,), point_encoder=point
            )
            self.points[name] = ObservationEncoder(point_config, shapes)
        self.clouds = FieldModules(
            {name: nn.Linear(point.features, width) for name in config.point_fields}
        )
        self.latent = nn.Linear(config.latent, width)
        entries = shapes.observation
        self.memory = None
        if config.memory is not None:
            self.memory = WindowMemory(config.memory, config.n_obs_steps, entries)
            entries += config.memory.features
        self.observation = nn.Linear(entries, width) if entries else None
        self.language = instruction_features(config, sentences)
        self.words = None if config.language is None else nn.Linear(config.language.features, width)
        single = 1 + bool(shapes.observation) + len(self.points) + (self.words is not None)
        self.position_LW = nn.Parameter(torch.randn(single, width))
        self.query_HW = nn.Parameter(torch.randn(config.horizon, width))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, shapes.action)
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        # As released, the first self-attention has zero inputs, so only the bias of its values has
        # an effect.
        self.get_parameter("decoder.0.own.in_proj_weight").requires_grad_(False)

    def forward(
        self,
        latent_BZ: Tensor,
        obs: ObservationTensors,
        generator: np.random.Generator | None = None,
    ) -> Tensor:
        """Normalised chunk (B, H, A).

        Args:
            latent_BZ: zeros at inference.
            obs: see `ObservationTensors`, normalised, of which the newest step is used, and by a
                memory the vectors of all.
            generator: source of noise on the instruction's embedding; None adds none.

        Raises:
            HandoffError: images that are not uint8, or see `InstructionFeatures.forward`.
        """
        vector_BO, sensors = obs.vector_BTO[:, -1], obs.sensors
        single = [self.latent(latent_BZ)]
        if self.observation is not None:
            known_BO = vector_BO if self.memory is None else self.memory(obs.vector_BTO)[:, 0]
            single.append(self.observation(known_BO))
        newest = {name: sensors[name][:, -1:] for name in self.points}
        clouds = ObservationTensors(vector_BO[:, None, :0], newest)
        single += [
            self.clouds[name](encoder(clouds)[:, 0]) for name, encoder in self.points.items()
        ]
        if self.language is not None and self.words is not None:
            features_BF = self.language(
                obs.instructions, vector_BO.shape[0], obs.embedding_BW, generator
            )
            single.append(self.words(features_BF))
        tokens: list[Tensor] = [torch.stack(single, dim=1)]
        positions: list[Tensor] = [self.position_LW]
        for name, trunk in self.trunks.items():
            maps_BWRC = trunk(_scaled(name, sensors[name][:, -1]))
            rows, columns = maps_BWRC.shape[2:]
            tokens.append(self.places[name](maps_BWRC.flatten(2).transpose(1, 2)))
            positions.append(
                plane_positions(rows, columns, self.position_LW.shape[1]).to(maps_BWRC.device)
            )
        memory_BLW, position_LW = torch.cat(tokens, dim=1), torch.cat(positions)
        for layer in self.encoder:
            memory_BLW = layer(memory_BLW, position_LW)
        hidden_BHW = memory_BLW.new_zeros(memory_BLW.shape[0], *self.query_HW.shape)
        for layer in self.decoder:
            hidden_BHW = layer(hidden_BHW, self.query_HW, memory_BLW, position_LW)
        return self.output(self.norm(hidden_BHW))


class EncoderLayer(nn.Module):
    """Post-norm transformer encoder layer: self-attention and a feed-forward network."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.attention = _attention(config)
        self.feedforward = _feedforward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden_BLW: Tensor, position_LW: Tensor, ignored_BL: Tensor | None = None
    ) -> Tensor:
        """(B, L, W) to (B, L, W).

        Args:
            hidden_BLW: tokens.
            position_LW: added to queries and keys.
            ignored_BL: True for tokens that are masked out.
        """
        positioned_BLW = hidden_BLW + position_LW
        attended_BLW, _ = self.attention(
            positioned_BLW, positioned_BLW, hidden_BLW, ignored_BL, need_weights=False
        )
        hidden_BLW = self.norms[0](hidden_BLW + self.dropout(attended_BLW))
        return self.norms[1](hidden_BLW + self.dropout(self.feedforward(hidden_BLW)))


class DecoderLayer(nn.Module):
    """Post-norm transformer decoder layer: self-attention over actions, cross-attention to the
    observation, and a feed-forward network."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.own = _attention(config)
        self.cross = _attention(config)
        self.feedforward = _feedforward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden_BHW: Tensor, query_HW: Tensor, memory_BLW: Tensor, position_LW: Tensor
    ) -> Tensor:
        """(B, H, W) to (B, H, W).

        Args:
            hidden_BHW: tokens of the actions, zeros before the first layer.
            query_HW: their learned positions.
            memory_BLW: encoded observation tokens.
            position_LW: positions of the observation tokens.
        """
        positioned_BHW = hidden_BHW + query_HW
        attended_BHW, _ = self.own(positioned_BHW, positioned_BHW, hidden_BHW, need_weights=False)
        hidden_BHW = self.norms[0](hidden_BHW + self.dropout(attended_BHW))
        attended_BHW, _ = self.cross(
            hidden_BHW + query_HW, memory_BLW + position_LW, memory_BLW, need_weights=False
        )
        hidden_BHW = self.norms[1](hidden_BHW + self.dropout(attended_BHW))
        return self.norms[2](hidden_BHW + self.dropout(self.feedforward(hidden_BHW)))


def plane_positions(rows: int, columns: int, size: int) -> Tensor:
    """Two-dimensional position embeddings (rows * columns, size) of a feature map (DETR).

    The first half of the entries encodes the row, the second the column. A row or column index is
    scaled so that the last one is 2 pi, and multiplied by geometric frequencies from 1 down; the
    sine and cosine of each frequency alternate.

    Args:
        rows: rows of the map.
        columns: columns of the map.
        size: entries of an embedding, a multiple of 4.
    """
    frequency = torch.exp(torch.arange(size // 4) * (-math.log(1e4) / (size // 4)))
    halves = []
    for count in (rows, columns):
        angle = torch.arange(1, count + 1)[:, None] * (2 * math.pi / count) * frequency
        halves.append(torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1))
    row_RCE = halves[0][:, None].expand(-1, columns, -1)
    column_RCE = halves[1][None].expand(rows, -1, -1)
    return torch.cat([row_RCE, column_RCE], dim=-1).flatten(0, 1)


def _scaled(name: str, image_BRCD: Tensor) -> Tensor:
    """Images (B, 3, height, width) scaled to [-1, 1]; ACT uses no crops."""
    if image_BRCD.dtype != torch.uint8:
        raise HandoffError(
            f"act: images of '{name}' are {image_BRCD.dtype}, expected uint8. Were they scaled?"
        )
    return (image_BRCD.float() * (2.0 / 255.0) - 1.0).permute(0, 3, 1, 2)


def _attention(config: ActConfig) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(config.width, config.heads, config.dropout, batch_first=True)


def _feedforward(config: ActConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(config.width, config.feedforward),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.feedforward, config.width),
    )
