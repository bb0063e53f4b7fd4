"""Tiny ONNX policies: action = scale * noise + the newest agent position, or deliberately broken;
one that reads."""

import hashlib
import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from robots.contract import CONTRACT_KEY
from robots.language.tokenizer import TOKENIZER_KEY, TokenizerSpec
from robots.storage.onnx_file import with_digest
from tests.real.fakes import contract

BATCH = "batch"


def write(path, model):
    """Writes the model with its digest, as the export does."""
    path.write_bytes(with_digest(model.SerializeToString()))


def constant(name, value, dtype):
    return numpy_helper.from_array(np.array(value, dtype=dtype), name)


def save_policy(path, *, scale=0.01, with_contract=True, horizon=16, loops=0, **changes):
    """Writes a policy of the contract's shapes; `horizon` of the graph alone, `loops` extra work to
    make it slow."""
    nodes = [
        helper.make_node("Slice", ["observation", "from", "to", "axes"], ["agent"]),
        helper.make_node("Mul", ["noise", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "agent"], ["action" if not loops else "busy0"]),
    ]
    for i in range(loops):
        nodes.append(
            helper.make_node(
                "MatMul", [f"busy{i}", "eye"], [f"busy{i + 1}" if i + 1 < loops else "action"]
            )
        )
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("observation", TensorProto.FLOAT, [BATCH, 2, 20]),
            helper.make_tensor_value_info("noise", TensorProto.FLOAT, [BATCH, horizon, 2]),
        ],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [BATCH, horizon, 2])],
        [
            constant("from", [1, 18], np.int64),
            constant("to", [2, 20], np.int64),
            constant("axes", [1, 2], np.int64),
            constant("scale", scale, np.float32),
            constant("eye", np.eye(2), np.float32),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if with_contract:
        helper.set_model_props(model, {CONTRACT_KEY: contract(**changes).to_json()})
    write(path, model)


def save_linear_policy(path, contract, weights):
    """Writes a policy of one step: action = the newest observation times `weights` (O, A), plus
    nothing of the noise.

    Args:
        path: of the ONNX file.
        contract: its contract, of one observation step and a horizon of one.
        weights: (O + 1, A); the last row is added.
    """
    size, actions = weights.shape[0] - 1, weights.shape[1]
    nodes = [
        helper.make_node("MatMul", ["observation", "weights"], ["moved"]),
        helper.make_node("Add", ["moved", "bias"], ["answer"]),
        helper.make_node("Mul", ["noise", "none"], ["silence"]),
        helper.make_node("Add", ["answer", "silence"], ["action"]),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("observation", TensorProto.FLOAT, [BATCH, 1, size]),
            helper.make_tensor_value_info("noise", TensorProto.FLOAT, [BATCH, 1, actions]),
        ],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [BATCH, 1, actions])],
        [
            constant("weights", weights[:-1], np.float32),
            constant("bias", weights[-1], np.float32),
            constant("none", 0.0, np.float32),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {CONTRACT_KEY: contract.to_json()})
    write(path, model)


def save_seeing_policy(path, contract, camera, gain=0.02, metadata=None):
    """Writes a policy of one observation step whose chunk is the agent's position plus `gain` times
    the mean of the newest picture, 0..1.

    Args:
        path: of the ONNX file.
        contract: its contract, whose observation ends with the agent's position.
        camera: name of the sensor.
        gain: see above.
        metadata: further metadata of the file.
    """
    steps, size = contract.n_obs_steps, contract.observation_size
    nodes = [
        helper.make_node("Slice", ["observation", "from", "to", "axes"], ["agent"]),
        helper.make_node("Slice", [camera, "newest", "last", "time"], ["picture"]),
        helper.make_node("Cast", ["picture"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3, 4], keepdims=1),
        helper.make_node("Squeeze", ["mean", "flat"], ["grey"]),
        helper.make_node("Mul", ["grey", "gain"], ["moved"]),
        helper.make_node("Mul", ["noise", "none"], ["silence"]),
        helper.make_node("Add", ["silence", "agent"], ["still"]),
        helper.make_node("Add", ["still", "moved"], ["action"]),
    ]
    chunk = [BATCH, contract.horizon, *contract.action.shape]
    sensors = {name: [BATCH, steps, *spec.shape] for name, spec in contract.sensors.items()}
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("observation", TensorProto.FLOAT, [BATCH, steps, size]),
            helper.make_tensor_value_info("noise", TensorProto.FLOAT, chunk),
            *(
                helper.make_tensor_value_info(name, TensorProto.UINT8, shape)
                for name, shape in sensors.items()
            ),
        ],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, chunk)],
        [
            constant("from", [steps - 1, size - 2], np.int64),
            constant("to", [steps, size], np.int64),
            constant("axes", [1, 2], np.int64),
            constant("newest", [steps - 1], np.int64),
            constant("last", [steps], np.int64),
            constant("time", [1], np.int64),
            constant("flat", [3, 4], np.int64),
            constant("gain", gain / 255.0, np.float32),
            constant("none", 0.0, np.float32),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {CONTRACT_KEY: contract.to_json(), **(metadata or {})})
    write(path, model)


LETTERS = {"a": 1, "b": 2, "c": 3, "Ċ": 10}
"""Tokens of the tokenizer below; that of a newline is written so."""


def save_language_policy(
    path, contract, *, said=None, longest=6, scale=0.001, exchanged=False, silent=False
):
    """Writes a policy whose every entry of an action is `scale` times the sum of its instruction's
    tokens, and the tokenizer beside it: `LETTERS`, all others unread.

    Args:
        path: of the ONNX file.
        contract: its contract.
        said: the policy's own words.
        longest: most tokens of a sentence.
        scale: see above.
        exchanged: the file says that another tokenizer belongs to it.
        silent: it says nothing of any.
    """
    chunk = [BATCH, contract.horizon, *contract.action.shape]
    nodes = [
        helper.make_node("Cast", ["tokens"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["tokens_mask"], ["counts"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["number", "counts"], ["read"]),
        helper.make_node("ReduceSum", ["read", "along"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "scale"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "along"], ["meant"]),
        helper.make_node("Mul", ["noise", "none"], ["silence"]),
        helper.make_node("Add", ["silence", "meant"], ["action"]),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info(
                "observation",
                TensorProto.FLOAT,
                [BATCH, contract.n_obs_steps, contract.observation_size],
            ),
            helper.make_tensor_value_info("noise", TensorProto.FLOAT, chunk),
            helper.make_tensor_value_info("tokens", TensorProto.INT64, [BATCH, "words"]),
            helper.make_tensor_value_info("tokens_mask", TensorProto.BOOL, [BATCH, "words"]),
        ],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, chunk)],
        [
            constant("along", [1], np.int64),
            constant("scale", scale, np.float32),
            constant("none", 0.0, np.float32),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tokenizer = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            # Settings of a batch of dialogues, as some published files have them; nobody is to
            # follow them here.
            "truncation": {
                "max_length": 2,
                "strategy": "LongestFirst",
                "stride": 0,
                "direction": "Right",
            },
            "padding": {
                "strategy": {"Fixed": 5},
                "direction": "Right",
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "a",
            },
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {"type": "BPE", "vocab": LETTERS, "merges": []},
        }
    ).encode()
    digest = "0" * 64 if exchanged else hashlib.sha256(tokenizer).hexdigest()
    reading = TokenizerSpec(tokenizer=digest, max_tokens=longest, default_instruction=said)
    props = {
        CONTRACT_KEY: contract.to_json(),
        **({} if silent else {TOKENIZER_KEY: reading.to_json()}),
    }
    helper.set_model_props(model, props)
    write(path, model)
    path.with_name("tokenizer.json").write_bytes(tokenizer)
