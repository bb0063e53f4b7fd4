"""A language-conditioned policy in the robot process: 1, 2 and 3 are the tokens of a, b and c, 10 that of a
newline."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.language.text import INSTRUCTION, encode, text_field
from robots.language.tokenizer import TokenizerSpec
from tests.real.deploy.test_loop import Setup
from tests.real.fakes import contract
from tests.real.onnx_models import save_language_policy, save_policy

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = contract(instruction=True)
OBSERVATION, NOISE = np.zeros((2, 2, 20), np.float32), np.ones((2, 16, 2), np.float32)


@pytest.fixture
def policy_file(tmp_path):
    save_language_policy(tmp_path / "policy.onnx", CONTRACT)
    return tmp_path / "policy.onnx"


def answered(policy, *instructions):
    """What the policy answers to two rows, a number each."""
    chunk = policy(PolicyInput(OBSERVATION, {}, instructions), NOISE)
    assert chunk.shape == (2, 16, 2)
    assert np.ptp(chunk, axis=(1, 2)).max() == 0.0
    return chunk[:, 0, 0] * 1000.0


def test_every_row_is_answered_by_its_own_sentence_which_ends_with_a_newline(policy_file):
    np.testing.assert_allclose(
        answered(OnnxPolicy(policy_file), "a", "abc"), [11.0, 16.0], rtol=1e-6
    )


def test_a_newline_that_is_there_is_not_doubled(policy_file):
    np.testing.assert_allclose(
        answered(OnnxPolicy(policy_file), "b\n", "b"), [12.0, 12.0], rtol=1e-6
    )


def test_sentences_are_padded_behind_to_the_longest(policy_file):
    reader = OnnxPolicy(policy_file).tokenizer
    assert reader is not None
    tokens = reader.tokens(("c", "ab", "c"), 3)
    assert tokens.token_BL.tolist() == [[3, 10, 0], [1, 2, 10], [3, 10, 0]]
    assert tokens.mask_BL.tolist() == [[True, True, False], [True] * 3, [True, True, False]]


def test_unspoken_words_are_the_policys_own(tmp_path):
    save_language_policy(tmp_path / "policy.onnx", CONTRACT, said="bc")
    policy = OnnxPolicy(tmp_path / "policy.onnx")
    np.testing.assert_allclose(policy(OBSERVATION, NOISE), np.full((2, 16, 2), 0.015), rtol=1e-6)


def test_as_many_sentences_as_rows_are_expected(policy_file):
    policy = OnnxPolicy(policy_file)
    with pytest.raises(HandoffError, match="0 instructions for 2 observations, expected one each"):
        policy(OBSERVATION, NOISE)
    with pytest.raises(HandoffError, match="3 instructions for 2 observations"):
        answered(policy, "a", "b", "c")


def test_a_sentence_too_long_is_named_with_its_length(policy_file):
    policy = OnnxPolicy(policy_file)
    np.testing.assert_allclose(answered(policy, "aaaaa", "a"), [15.0, 11.0], rtol=1e-6)
    with pytest.raises(HandoffError, match="instruction 'aaabbb' has 7 tokens, limit 6"):
        answered(policy, "a", "aaabbb")


def test_a_bundle_without_its_tokenizer_is_refused(policy_file):
    policy_file.with_name("tokenizer.json").unlink()
    with pytest.raises(HandoffError, match=r"has no tokenizer\.json\. Was the bundle copied"):
        OnnxPolicy(policy_file)


def test_a_tokenizer_of_another_bundle_is_refused(tmp_path):
    save_language_policy(tmp_path / "policy.onnx", CONTRACT, exchanged=True)
    with pytest.raises(
        HandoffError, match=r"its graph needs 000000000000\. Are graph and tokenizer"
    ):
        OnnxPolicy(tmp_path / "policy.onnx")


def test_a_graph_that_does_not_name_its_tokenizer_is_refused(tmp_path):
    save_language_policy(tmp_path / "policy.onnx", CONTRACT, silent=True)
    with pytest.raises(HandoffError, match=r"names no tokenizer \(metadata 'handoff\.tokenizer'\)"):
        OnnxPolicy(tmp_path / "policy.onnx")


def test_a_graph_that_has_no_place_for_words_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", instruction=True)
    with pytest.raises(
        HandoffError,
        match=r"expected \['action', 'noise', 'observation', 'tokens', 'tokens_mask'\]",
    ):
        OnnxPolicy(tmp_path / "policy.onnx")


def test_a_machine_without_the_library_is_told_what_to_install(policy_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        HandoffError, match=r"pip install -c constraints.txt -e '\.\[vla\]', or tokenizers alone"
    ):
        OnnxPolicy(policy_file)


def test_reading_takes_neither_torch_nor_transformers(policy_file):
    code = (
        "import sys; from pathlib import Path; from real.deploy.onnx_policy import OnnxPolicy\n"
        "print(OnnxPolicy(Path(sys.argv[1])).tokenizer.tokens(('ab',), 1).token_BL.tolist())\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, str(policy_file)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.splitlines() == ["[[1, 2, 10]]", "[]"]


def test_damaged_words_about_the_tokenizer_are_refused():
    with pytest.raises(HandoffError, match="tokenizer spec: not JSON"):
        TokenizerSpec.from_json("{")
    with pytest.raises(HandoffError, match=r"missing key 'tokenizer\.max_tokens'"):
        TokenizerSpec.from_json('{"tokenizer": "0"}')


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"instructions": ("a", "a")}, "an instruction"),
        ({"sensors": {"front": np.zeros((2, 2, 4, 4, 3), np.uint8)}}, "front"),
        ({"goal": np.zeros((2, 20), np.float32)}, "a goal"),
    ],
)
def test_a_policy_is_not_shown_what_it_does_not_take(tmp_path, changes, what):
    save_policy(tmp_path / "policy.onnx")
    with pytest.raises(HandoffError, match=f"received {what}, which it does not take"):
        OnnxPolicy(tmp_path / "policy.onnx")(PolicyInput(OBSERVATION, **changes), NOISE)


def parity(tmp_path, **changes):
    save_language_policy(tmp_path / "policy.onnx", CONTRACT)
    instructions = ("a", "abc", "b")
    action = np.broadcast_to(np.array([0.011, 0.016, 0.012], np.float32)[:, None, None], (3, 16, 2))
    golden = {
        "observation": np.zeros((3, 2, 20), np.float32),
        "noise": np.ones((3, 16, 2), np.float32),
        "action": action,
        "action_scale": np.ones((16, 2)),
        INSTRUCTION: encode(instructions, 3),
        **changes,
    }
    np.savez(
        tmp_path / "golden.npz",
        **{name: array for name, array in golden.items() if array is not None},
    )
    golden = read_golden(tmp_path / "golden.npz")
    return golden_parity(OnnxPolicy(tmp_path / "policy.onnx"), golden).normalised


def test_the_policy_gets_the_recorded_sentences(tmp_path):
    assert parity(tmp_path) <= 1e-8


def test_an_answer_to_another_sentence_differs(tmp_path):
    changed = parity(tmp_path, **{INSTRUCTION: encode(("a", "abc", "a"), 3)})
    assert changed == pytest.approx(1e-3, rel=1e-3)


def test_golden_examples_without_sentences_are_refused(tmp_path):
    with pytest.raises(
        HandoffError, match=r"is language-conditioned, .*golden\.npz lacks 'instruction'"
    ):
        parity(tmp_path, **{INSTRUCTION: None})


class Listening(Setup):
    """A setup whose observations ask for something, which the policy takes down."""

    def __init__(self, said=()):
        super().__init__(instruction=True)
        self.said, self.heard = list(said), []

    def observe(self, state):
        words = (
            {INSTRUCTION: encode([self.said.pop(0)], text_field(8).shape[0])[0]}
            if self.said
            else {}
        )
        return {**super().observe(state), **words}

    def listen(self, observation, noise):
        assert isinstance(observation, PolicyInput)
        self.heard.append(observation.instructions)
        return self.still(observation.vector, noise)


def test_the_loop_tells_the_policy_the_newest_words():
    setup = Listening(["a"] * 8 + ["ü"] * 9)
    record = setup.run(setup.listen, steps=17)
    assert setup.heard == [("a",), ("ü",), ("ü",)]
    assert np.stack(record.policy[INSTRUCTION]).shape == (17, 8)


def test_where_nobody_speaks_the_loop_leaves_the_policy_to_its_own_words():
    setup = Listening()
    record = setup.run(setup.listen, steps=9)
    assert setup.heard == [(), ()]
    assert INSTRUCTION not in record.policy


def test_a_policy_that_does_not_read_is_told_nothing():
    setup = Listening(["a"] * 3)
    setup.contract = replace(setup.contract, instruction=False)
    setup.run(setup.still, steps=3)
    assert len(setup.calls) == 1


def test_a_file_that_reads_drives_the_arm(tmp_path):
    setup = Listening(["abc"] * 2)
    save_language_policy(tmp_path / "policy.onnx", CONTRACT, scale=0.0156)
    record = setup.run(OnnxPolicy(tmp_path / "policy.onnx"), steps=2)
    np.testing.assert_allclose(record.policy["action_proposed"][0], [0.2496, 0.2496], rtol=1e-5)
