"""The networks of ACT (Zhao et al., RSS 2023): a chunk to its latent, and what is seen with a
latent to a chunk.

Followed is the released act, and LeRobot's ACT, which was made to agree with it, where they differ
from the paper: one decoder layer (the code builds the paper's 7 and reads the first one's answer),
and, as in DETR (Carion et al. 2020), from which the code stems, normalisation after every branch
and positions added to queries and keys of every layer but never to the values. Other than there,
every camera has a trunk of its own, with GroupNorm and untrained at first; the released code shares
one with frozen BatchNorm from ImageNet among them.

Shape suffixes: B batch, L tokens, W width, O observation, H horizon, A action, Z latent, R rows and
C columns of a picture or feature map, D colours, E entries of a position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.chunk_policy_config import EncodedPolicyConfig
from policies.networks.image_encoder import ResNet18
from policies.networks.mlp import sinusoidal_embedding
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.policy_config import ActConfig
from robots.errors import HandoffError

_MAPS = 512
"""Channels of the trunk's feature maps."""


class LatentEncoder(nn.Module):
    """Mean and log variance of the latent of a demonstrated chunk: the encoder of the variational
    autoencoder.

    Args:
        config: sizes.
        shapes: that the data give; without an observation vector there is no token for it.
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
            padded_BH: True for actions that the latent must not see.
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
    """A chunk from a latent and what is seen: one token each for the latent, the observation vector
    and every point cloud, one per place in every camera's feature map.

    Args:
        config: sizes, cameras and point clouds.
        shapes: that the data give; without an observation vector there is no token for it.

    Raises:
        HandoffError: a point cloud without data.
    """

    def __init__(self, config: ActConfig, shapes: Shapes) -> None:
        super().__init__()
        width, point = config.width, config.point_encoder
        self.trunks = nn.ModuleDict({name: ResNet18() for name in config.image_fields})
        self.places = nn.ModuleDict({name: nn.Linear(_MAPS, width) for name in config.image_fields})
        self.points = nn.ModuleDict()
        for name in config.point_fields:
            one = EncodedPolicyConfig(
                observation_fields=(), point_fields=(name,), point_encoder=point
            )
            self.points[name] = ObservationEncoder(one, shapes)
        self.clouds = nn.ModuleDict(
            {name: nn.Linear(point.features, width) for name in config.point_fields}
        )
        self.latent = nn.Linear(config.latent, width)
        self.observation = nn.Linear(shapes.observation, width) if shapes.observation else None
        self.position_LW = nn.Parameter(
            torch.randn(1 + bool(shapes.observation) + len(self.points), width)
        )
        self.query_HW = nn.Parameter(torch.randn(config.horizon, width))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, shapes.action)
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        # As released, the first layer's actions attend to zeros: all that comes of it is the bias
        # of the values.
        self.get_parameter("decoder.0.own.in_proj_weight").requires_grad_(False)

    def forward(
        self, latent_BZ: Tensor, vector_BO: Tensor, sensors: Mapping[str, Tensor]
    ) -> Tensor:
        """Normalised chunk (B, H, A).

        Args:
            latent_BZ: zeros when acting.
            vector_BO: normalised.
            sensors: see `ObservationTensors`, of one step.

        Raises:
            HandoffError: pictures that are not uint8.
        """
        single = [self.latent(latent_BZ)]
        if self.observation is not None:
            single.append(self.observation(vector_BO))
        clouds = ObservationTensors(vector_BO[:, None, :0], sensors)
        single += [
            self.clouds[name](encoder(clouds)[:, 0]) for name, encoder in self.points.items()
        ]
        tokens: list[Tensor] = [torch.stack(single, dim=1)]
        positions: list[Tensor] = [self.position_LW]
        for name, trunk in self.trunks.items():
            maps_BWRC = trunk(_scaled(name, sensors[name][:, 0]))
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
    """Self-attention and a feed-forward network, each added to its input and normalised after
    it."""

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
            ignored_BL: True for tokens that none may look at.
        """
        placed_BLW = hidden_BLW + position_LW
        seen_BLW, _ = self.attention(
            placed_BLW, placed_BLW, hidden_BLW, ignored_BL, need_weights=False
        )
        hidden_BLW = self.norms[0](hidden_BLW + self.dropout(seen_BLW))
        return self.norms[1](hidden_BLW + self.dropout(self.feedforward(hidden_BLW)))


class DecoderLayer(nn.Module):
    """Attention among the actions, attention to what is seen, and a feed-forward network; see
    `EncoderLayer`."""

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
            memory_BLW: what is seen, encoded.
            position_LW: positions in it.
        """
        placed_BHW = hidden_BHW + query_HW
        seen_BHW, _ = self.own(placed_BHW, placed_BHW, hidden_BHW, need_weights=False)
        hidden_BHW = self.norms[0](hidden_BHW + self.dropout(seen_BHW))
        seen_BHW, _ = self.cross(
            hidden_BHW + query_HW, memory_BLW + position_LW, memory_BLW, need_weights=False
        )
        hidden_BHW = self.norms[1](hidden_BHW + self.dropout(seen_BHW))
        return self.norms[2](hidden_BHW + self.dropout(self.feedforward(hidden_BHW)))


def plane_positions(rows: int, columns: int, size: int) -> Tensor:
    """(rows * columns, size): for every place of a map its row, then its column, half of the
    entries each (DETR).

    A row or column is an angle that ends at 2 pi with the last one, whatever their number, times
    geometric frequencies from 1 down; of each there is the sine, then the cosine.

    Args:
        rows: of the map.
        columns: of the map.
        size: a multiple of 4.
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
    """A whole picture (B, 3, height, width) from -1 to 1; ACT crops nothing."""
    if image_BRCD.dtype != torch.uint8:
        raise HandoffError(
            f"act: pictures of '{name}' are {image_BRCD.dtype}, expected uint8. Were they scaled?"
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
