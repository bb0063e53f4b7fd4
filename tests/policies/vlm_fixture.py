"""Tiny checkpoints of vision-language models in the format of the real ones, with random
weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = (
    "push the red block to the left",
    "push the blue block to the right",
    "lift the cup and put it on the plate\n",
    "open the drawer",
)
"""What the tokenizer learns its pairs from."""

TEXT = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
}
GEMMA = {"model_type": "gemma", "num_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh"}
"""What PaliGemma's text layers have otherwise."""
VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
}
"""16 patches, of which the connector makes 4 tokens, that of PaliGemma 16."""


def write_tokenizer(folder: Path) -> int:
    """Writes `tokenizer.json`, byte pairs as SmolVLM's, into `folder`; returns the size of the
    vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def write_backbone(
    folder: Path,
    *,
    family: str = "smolvlm",
    tied: bool = False,
    shard: str = "1GB",
    dtype: torch.dtype = torch.float32,
    vision_layers: int = 2,
    **text: Any,
) -> Path:
    """Writes a tiny model into `folder`, in the layout of a downloaded one.

    Args:
        folder: created if missing.
        family: `smolvlm`, `idefics3` or `paligemma`.
        tied: whether embedding and language head share their weights.
        shard: greatest size of a weights file, such as `50KB`.
        dtype: of the saved weights.
        vision_layers: layers of the vision model.
        text: settings of the text layers that replace those of `TEXT`.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    words = TEXT | ids | {"vocab_size": vocabulary, "tie_word_embeddings": tied}
    seeing = VISION | {"num_hidden_layers": vision_layers}
    if family == "paligemma":
        seeing |= {"model_type": "siglip_vision_model", "vision_use_head": False}
        own = {"projection_dim": TEXT["hidden_size"], "image_token_index": 1}
    else:
        own = {"scale_factor": 2, "image_token_id": 1, "pad_token_id": 0}
    words |= (GEMMA if family == "paligemma" else {}) | text
    config = AutoConfig.for_model(
        family, text_config=words, vision_config=seeing, tie_word_embeddings=tied, **own
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for module in model.modules():
                # Transformers starts biases and norms at 0 and 1, at which a forgotten one would go
                # unnoticed.
                if isinstance(getattr(module, "bias", None), torch.nn.Parameter):
                    module.bias.normal_(std=0.1)
                if type(module).__name__.endswith("Norm"):
                    module.weight.normal_(mean=1.0, std=0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    pictures = {
        "image_processor_type": "Idefics3ImageProcessor",
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"longest_edge": VISION["image_size"]},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    return folder
