"""Tiny sentence encoders in the format of the real ones, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = ("go", "to", "the", "red", "blue", "marker", "reach", "please", "now", "not", ",")
"""Words of the tokenizer; every other one is unknown."""
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
MEAN = {
    "word_embedding_dimension": 24,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
}
FIRST = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def write_encoder(
    folder: Path,
    pooling: dict[str, Any] | None = None,
    modules: tuple[str, ...] = (),
    seed: int = 0,
    layers: int = 2,
) -> Path:
    """Writes a tiny encoder into `folder`, in the layout of sentence-transformers.

    Args:
        folder: created if missing.
        pooling: contents of `1_Pooling/config.json`; None writes none.
        modules: class names of `modules.json`; none writes no such file.
        seed: seed of the weights.
        layers: of the encoder.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    vocabulary = {word: n for n, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As in the released files, which would pad every sentence.
    tokenizer.enable_padding(length=16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = BertConfig(vocab_size=len(vocabulary), pad_token_id=0, **SIZES)
        config.num_hidden_layers = layers
        model = BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if modules:
        entries = [{"type": f"sentence_transformers.models.{name}"} for name in modules]
        (folder / "modules.json").write_text(json.dumps(entries))
    return folder
