"""Image-text models in a local folder, with a tiny CLIP of random weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from policies.rewards.config import ImageTextRewardConfig
from policies.rewards.image_text_model import load_image_text_model
from policies.rewards.labels import new_labeller
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

WORDS = ("a</w>", "cube</w>", "table</w>", "<|startoftext|>", "<|endoftext|>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        CLIPTokenizer,
    )

    path = tmp_path_factory.mktemp("clip")
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), *WORDS[1:]]
    (path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(vocabulary)}))
    (path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(path / "vocab.json"), str(path / "merges.txt"))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2}
    end = vocabulary.index("<|endoftext|>")
    text = {**sizes, "vocab_size": len(vocabulary), "max_position_embeddings": 16}
    text |= {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    model.save_pretrained(path)
    size = {"height": 16, "width": 16}
    images = CLIPImageProcessor(size=size, crop_size=size)
    CLIPProcessor(images, tokenizer).save_pretrained(path)
    return path


def test_embeddings_are_unit_vectors_of_one_space(folder: Path):
    model = load_image_text_model(folder)
    images = np.random.default_rng(0).integers(0, 256, (70, 20, 24, 3), dtype=np.uint8)
    texts = model.texts(["a cube", "a table"])
    vectors = model.images(images)
    assert vectors.shape == (70, 8)
    assert texts.shape == (2, 8)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(70))
    assert np.linalg.norm(texts, axis=1) == pytest.approx(np.ones(2))
    assert np.abs(texts[0] - texts[1]).max() > 1e-3


def test_an_embedding_does_not_depend_on_its_batch(folder: Path):
    model = load_image_text_model(folder)
    images = np.random.default_rng(0).integers(0, 256, (66, 16, 16, 3), dtype=np.uint8)
    assert model.images(images)[65] == pytest.approx(model.images(images[65:])[0], abs=1e-5)


def test_a_store_with_pictures_is_labelled_by_two_sentences(folder: Path, tmp_path: Path):
    fields = {
        "image_front": FieldSpec(shape=(16, 16, 3), dtype="uint8", unit="u8"),
        "success": FieldSpec(shape=(), dtype="uint8"),
    }
    schema = EpisodeSchema(name="walk", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    columns = {"image_front": images, "success": np.array([0, 0, 1], np.uint8)}
    with EpisodeStore.create(tmp_path / "store.zarr", schema) as store:
        store.append({"policy": columns}, {})
    config = ImageTextRewardConfig(folder=str(folder), goal="a cube", baseline="a table", alpha=0.0)
    labels = new_labeller(config)(store, "policy", 0)
    # With alpha 0 the reward is the cosine of the image after the action and the goal.
    model = load_image_text_model(folder)
    cosine = model.images(images[[1, 2, 2]]) @ model.texts(["a cube"])[0]
    assert labels.reward_T == pytest.approx(cosine, abs=1e-5)
    assert labels.solved_T.tolist() == [False, False, True]
    least = float(np.sort(labels.reward_T)[1])
    above = ImageTextRewardConfig(
        folder=str(folder), goal="a cube", baseline="a table", alpha=0.0, success_above=least
    )
    solved = new_labeller(above)(store, "policy", 0).solved_T
    assert solved.sum() == 1
    assert np.argmax(solved) == np.argmax(labels.reward_T >= least)
