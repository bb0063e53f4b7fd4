import numpy as np
import pytest

from robots.errors import HandoffError
from robots.language.text import decode, encode, text_field
from robots.spec import check_field


def test_sentences_come_back_as_they_were() -> None:
    sentences = ("pick up the red cube", "", "hebe den grünen Würfel")
    text = encode(sentences, 32)
    assert text.shape == (3, 32)
    assert decode(text) == sentences
    check_field("instruction", text_field(32), text)


def test_a_byte_is_a_byte_and_the_rest_is_zero() -> None:
    np.testing.assert_array_equal(encode(["ab"], 4), [[97, 98, 0, 0]])


def test_a_sentence_may_fill_the_field_and_no_more() -> None:
    assert decode(encode(["ü" * 4], 8)) == ("ü" * 4,)
    with pytest.raises(HandoffError, match="has 10 bytes, expected at most 8"):
        encode(["ü" * 5], 8)


def test_a_zero_within_a_sentence_is_refused() -> None:
    with pytest.raises(HandoffError, match="has a zero byte"):
        encode(["a\0b"], 8)


def test_numbers_that_are_no_words_are_refused() -> None:
    with pytest.raises(HandoffError, match="not UTF-8"):
        decode(np.full((1, 4), 255, np.uint8))
