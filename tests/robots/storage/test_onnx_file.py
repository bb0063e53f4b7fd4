"""The digest of an ONNX file covers all of it but the digest itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from robots.errors import HandoffError
from robots.storage.onnx_file import DIGEST_KEY, onnx_digest, onnx_metadata, with_digest
from tests.real.onnx_models import save_policy


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    save_policy(tmp_path / "policy.onnx")
    return (tmp_path / "policy.onnx").read_bytes()


def test_the_file_states_the_digest_of_its_content(data: bytes) -> None:
    assert onnx_metadata(data)[DIGEST_KEY] == onnx_digest(data)
    assert with_digest(data) == data


def test_the_digest_is_that_of_the_file_that_onnx_writes_without_the_entry(data: bytes) -> None:
    model = onnx.load_from_string(data)
    assert model.metadata_props[-1].key == DIGEST_KEY
    del model.metadata_props[-1]
    assert hashlib.sha256(model.SerializeToString()).hexdigest() == onnx_digest(data)


def test_metadata_are_those_that_onnx_reads(data: bytes) -> None:
    model = onnx.load_from_string(data)
    assert onnx_metadata(data) == {entry.key: entry.value for entry in model.metadata_props}


def quantised(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "scale":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.5, "scale"))


def rewired(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Sub"


def relabelled(model: onnx.ModelProto) -> None:
    model.metadata_props[0].value = model.metadata_props[0].value.replace("push_t", "reach")


def extended(model: onnx.ModelProto) -> None:
    extra = helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0])
    model.graph.initializer.append(extra)


@pytest.mark.parametrize("change", [quantised, rewired, relabelled, extended])
def test_any_change_of_weights_graph_or_metadata_changes_the_digest(data: bytes, change) -> None:
    model = onnx.load_from_string(data)
    change(model)
    changed = model.SerializeToString()
    assert onnx_metadata(changed)[DIGEST_KEY] == onnx_digest(data) != onnx_digest(changed)


def test_any_flipped_byte_is_noticed(data: bytes) -> None:
    for position in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1
        try:
            stated = onnx_metadata(bytes(flipped)).get(DIGEST_KEY)
        except HandoffError:
            continue  # no longer a file that can be read
        assert stated != onnx_digest(bytes(flipped)), f"byte {position}"


@pytest.mark.parametrize(
    "text", [b"\x08", b"PK\x03\x04 a zip", b"\x0a\xff\xff\xff\xff\x7f", b"\xff" * 20]
)
def test_other_files_are_refused(text: bytes) -> None:
    with pytest.raises(HandoffError, match="ONNX file: "):
        onnx_digest(text)
