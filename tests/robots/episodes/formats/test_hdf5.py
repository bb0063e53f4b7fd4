import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.formats.containers import hdf5_arrays
from robots.episodes.formats.containers.hdf5 import open_hdf5, peek
from robots.errors import HandoffError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["secret"] = np.arange(4.0)
    return tmp_path / "data.hdf5"


def read(path: Path, name: str) -> np.ndarray:
    with open_hdf5(path) as file:
        return file.array(name).rows()


def error(path: Path, name: str = "x") -> str:
    with pytest.raises(HandoffError) as caught:
        read(path, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nested_arrays_have_names_with_slashes(path):
    with h5py.File(path, "w") as file:
        file["b/c/deep"] = np.arange(3)
        file["a"] = np.arange(2)
    with open_hdf5(path) as file:
        assert list(file.arrays()) == ["a", "b/c/deep"]
        assert list(file.arrays(skip=("b",))) == ["a"]
        np.testing.assert_array_equal(file.group("b").array("c/deep").rows(1, 3), [1, 2])


def test_numbers_come_in_native_byte_order_and_truth_values_stay(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3, dtype=">f4")
        file["y"] = np.array([True, False])
    with open_hdf5(path) as file:
        assert file.array("x").rows().dtype.str == "<f4"
        assert file.array("y").rows().dtype == np.bool_


def test_a_soft_link_inside_the_file_is_followed(path):
    with h5py.File(path, "w") as file:
        file["a/y"] = np.arange(3)
        file["x"] = h5py.SoftLink("/a/y")
        file["a/z"] = h5py.SoftLink("y")
    with open_hdf5(path) as file:
        np.testing.assert_array_equal(file.array("x").rows(), [0, 1, 2])
        np.testing.assert_array_equal(file.array("a/z").rows(), [0, 1, 2])


def test_an_external_link_is_refused(path):
    with h5py.File(path, "w") as file:
        file["x"] = h5py.ExternalLink("other.hdf5", "/secret")
    assert "x is a link to the file 'other.hdf5', outside the data set" in error(path)


def test_a_soft_link_over_an_external_link_is_refused(path):
    with h5py.File(path, "w") as file:
        file["out"] = h5py.ExternalLink("other.hdf5", "/")
        file["x"] = h5py.SoftLink("/out/secret")
    assert "out is a link to the file 'other.hdf5'" in error(path)


def test_links_in_a_circle_are_refused(path):
    with h5py.File(path, "w") as file:
        file["x"] = h5py.SoftLink("/y")
        file["y"] = h5py.SoftLink("/x")
    assert "is a chain of more than 16 links" in error(path)


def test_a_virtual_data_set_is_refused(path):
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource(path.with_name("other.hdf5"), "secret", shape=(4,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    assert "x lies in other files" in error(path)


def test_external_storage_is_refused(path):
    path.with_name("raw").write_bytes(bytes(32))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4,), "f8", external=[("raw", 0, 32)])
    assert "x lies in other files" in error(path)


def test_a_group_that_contains_itself_is_refused(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("a")
        group["a"] = group
    with (
        open_hdf5(path) as file,
        pytest.raises(HandoffError, match="Do its groups contain themselves"),
    ):
        file.arrays()


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "b"], dtype="S1"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([1 + 2j]),
    ],
)
def test_what_are_no_numbers_is_refused(path, values):
    with h5py.File(path, "w") as file:
        file["x"] = values
    assert "expected numbers" in error(path)


def test_rows_of_their_own_lengths_are_no_numbers(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2,), h5py.vlen_dtype(np.float32))
    assert "expected numbers" in error(path)


def test_references_are_no_numbers(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2,), h5py.ref_dtype)
    assert "expected numbers" in error(path)


def test_an_array_larger_than_the_memory_is_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**40,), "f8", chunks=(1024,))[:4] = 1
    assert "the limit is 9 GB per episode" in error(path)


def test_an_array_larger_than_the_file_can_hold_is_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**28,), "f8", chunks=(1024,))[:4] = 1
    assert "MB, stored in 0.0 MB" in error(path)


def test_an_array_that_was_never_written_is_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (100,), "f8", chunks=(10,))
    assert "x (100,) was never written. Was the recording interrupted?" in error(path)


def test_large_chunks_are_refused(path, monkeypatch):
    monkeypatch.setattr(hdf5_arrays, "LARGEST_CHUNK", 2**20)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**18,), "f8", chunks=(2**18,), compression="gzip")[:4] = 1
    assert "chunks of 2 MB, the limit is 1 MB" in error(path)


def test_a_decompressor_of_the_computer_is_refused(path):
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(307, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist)
    assert "compressed by the HDF5 filter 307, expected one of deflate" in error(path)


def test_a_collection_of_words_at_which_the_library_never_ends_is_refused(path):
    with h5py.File(path, "w") as file:
        file.attrs["words"] = "hello"
    content = bytearray(path.read_bytes())
    start = content.index(b"GCOL") + 16
    # The word takes 16 + 8 bytes; the free space behind it says that it has 0.
    assert content[start + 24 : start + 26] == b"\0\0"
    content[start + 32 : start + 40] = bytes(8)
    path.write_bytes(content)
    with (
        open_hdf5(path) as file,
        pytest.raises(HandoffError, match="has an entry without a size"),
    ):
        file.attribute("words")


def test_an_attribute_whose_type_does_not_fit_its_bytes_is_left_out(path):
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = np.bool_(True)
    content = bytearray(path.read_bytes())
    # The class 8 of the type, an enumeration, becomes 9, numbers of any length; reading them, the
    # library crashes.
    place = content.index(b"\x18\x02\0\0\x01\0\0\0")
    content[place] = 0x19
    path.write_bytes(content)
    with open_hdf5(path) as file:
        assert file.attribute("sim") is None


def test_attributes_are_plain_values(path):
    with h5py.File(path, "w") as file:
        file.attrs.update({"a": 3, "b": "word", "c": np.array([1.5, 2.5]), "d": np.bool_(False)})
        file.attrs.update({"e": np.float32("nan"), "f": np.arange(99), "g": np.bytes_(b"w")})
    with open_hdf5(path) as file:
        assert file.attributes() == {"a": 3, "b": "word", "c": [1.5, 2.5], "d": False, "g": "w"}


def test_words_of_one_length_and_of_their_own_are_read(path):
    with h5py.File(path, "w") as file:
        file["fixed"] = np.array([b"a", b"bcd"])
        file.create_dataset("free", data=["ä", ""], dtype=h5py.string_dtype())
        file["one"] = "open the drawer"
    with open_hdf5(path) as file:
        assert file.array("fixed").words() == ["a", "bcd"]
        assert file.array("free").words() == ["ä", ""]
        assert file.array("one").words() == ["open the drawer"]


def test_one_long_word_many_times_is_refused(path, monkeypatch):
    monkeypatch.setattr(hdf5_arrays, "LARGEST_WORDS", 10_000)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=["a" * 1000] * 20, dtype=h5py.string_dtype())
    with (
        open_hdf5(path) as file,
        pytest.raises(HandoffError, match="more than 0 MB of words"),
    ):
        file.array("x").words()


def test_a_name_that_cannot_be_printed_is_refused(path):
    with h5py.File(path, "w") as file:
        file["a\nb"] = np.arange(3)
    with open_hdf5(path) as file, pytest.raises(HandoffError, match="printable characters"):
        file.arrays()


def test_a_name_that_is_no_utf_8_is_refused(path):
    with h5py.File(path, "w") as file:
        file[b"a\xff"] = np.arange(3)
    with open_hdf5(path) as file, pytest.raises(HandoffError, match="printable characters"):
        file.arrays()


def test_peeking_at_other_files_and_folders_raises_nothing(tmp_path):
    (tmp_path / "text.hdf5").write_text("no")
    (tmp_path / "half.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5))
    for file in (tmp_path / "text.hdf5", tmp_path / "half.hdf5", tmp_path, tmp_path / "none"):
        assert peek(file, "data") == [None]


def test_no_descriptor_is_left_open(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    path.with_name("half.hdf5").write_bytes(path.read_bytes()[:300])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert peek(path, "x") == [False]
        peek(path.with_name("half.hdf5"), "x")
    assert len(os.listdir("/proc/self/fd")) == before
