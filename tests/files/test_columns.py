"""The columnar container: exact round trips, and hostile files refused in one sentence."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from soak import examples

from placewise.errors import InputError, ModelFileError, OutputError
from placewise.files.columns import ColumnReader, format_name, read_columns, string_arrays, write_columns
from placewise.files.records import Record


class Header(Record):
    format: Literal["placewise-test"] = "placewise-test"
    version: Literal[1] = 1
    rows: int = 0


GOOD = {"format": "placewise-test", "version": 1, "rows": 3}
HONEST = b"{'descr': '<f8', 'fortran_order': False, 'shape': %s, }"
HEADER_BYTES = json.dumps(GOOD).encode()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=(1, 0))
    return buffer.getvalue()


def claiming(header: bytes, data: bytes = b"") -> bytes:
    text = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def refused(path: Path, match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        read_columns(path, Header)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_round_trip_and_numpy_reads_it(tmp_path: Path) -> None:
    """Arrays come back equal and read-only; numpy itself opens the file; equal content makes equal bytes."""
    path, again = tmp_path / "a.npz", tmp_path / "b.npz"
    arrays = {"x": np.arange(6.0).reshape(3, 2).T, "x/flags": np.array([True, False]), "none": np.zeros(0, np.int32)}
    write_columns(path, Header(rows=2), arrays)
    header, read = read_columns(path, Header)
    assert header == Header(rows=2)
    assert np.array_equal(read.take("x", np.float64, 2, None), arrays["x"])
    assert not read.take("x", np.float64, 2, 3).flags.writeable
    assert read.under("x/").take("flags", np.bool_, 2).tolist() == [True, False]
    with np.load(path, allow_pickle=False) as plain:
        assert np.array_equal(plain["x"], arrays["x"])
    write_columns(again, Header(rows=2), arrays)
    assert path.read_bytes() == again.read_bytes()


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
@example(["", "é", "", "日本", "a\0b", "😀"])
def test_text_columns(rows: list[str]) -> None:
    """Any Unicode text survives, empty rows and several bytes per character included."""
    assert ColumnReader(string_arrays("name", rows)).strings("name", len(rows)) == tuple(rows)


def test_text_that_is_not_unicode_is_refused() -> None:
    """A lone surrogate cannot be written, and the message shows the text."""
    with pytest.raises(OutputError, match=r"a\\ud800"):
        string_arrays("name", ["a\ud800"])


@pytest.mark.parametrize(
    ("text", "offsets", "message"),
    [
        (b"abc", [0, 2], "do not rise from 0 to 3"),
        (b"abc", [1, 3], "do not rise"),
        (b"abc", [0, 2, 1, 3], "do not rise"),
        (b"abc", [0, 2**63 - 1, -(2**63), -1, 3], "do not rise"),
        (b"abc", [], "do not rise"),
        (b"\xff\xff", [0, 2], "not UTF-8"),
        ("é".encode(), [0, 1, 2], "splits a character"),
    ],
)
def test_bad_text_columns(text: bytes, offsets: list[int], message: str) -> None:
    """Offsets that fall, overflow, miss the end or cut a character, and bytes that are not UTF-8."""
    members = {"name.text": np.frombuffer(text, np.uint8), "name.offsets": np.array(offsets, np.int64)}
    with pytest.raises(ModelFileError, match=message):
        ColumnReader(members).strings("name", None)


def test_arrays_of_another_kind_are_refused() -> None:
    """A missing array, another element type, another byte order, another length."""
    arrays = ColumnReader({"x": np.zeros(3, np.int32)})
    with pytest.raises(ModelFileError, match="no array 'y'"):
        arrays.take("y", np.int32, 3)
    with pytest.raises(ModelFileError, match="holds int32 instead of int64"):
        arrays.take("x", np.int64, 3)
    with pytest.raises(ModelFileError, match="holds int32 instead of >i4"):
        arrays.take("x", ">i4", 3)
    with pytest.raises(ModelFileError, match=r"shape \(3,\) instead of 4"):
        arrays.take("x", np.int32, 4)
    with pytest.raises(ModelFileError, match=r"shape \(3,\) instead of any × 3"):
        arrays.take("x", np.int32, None, 3)


def test_files_that_are_no_container(tmp_path: Path) -> None:
    """Missing, a directory, empty, text, a truncated zip, and a zip with damage inside."""
    refused(tmp_path / "missing.npz", "cannot be read")
    refused(tmp_path, "cannot be read")
    path = tmp_path / "x.npz"
    for data in (b"", b"hello", b"PK\x05\x06", b"PK\x03\x04" * 100):
        path.write_bytes(data)
        refused(path, "not a complete columnar file")
    write_columns(path, Header(), {"x": np.arange(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "not a complete columnar file")
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    refused(path, "not a complete columnar file")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (json.dumps({**GOOD, "rows": float("nan")}).encode(), "not JSON"),
        (b"[]", "names no format"),
        (b"{}", "names no format"),
        (b'{"format": "other"}', "is a 'other' file, not a placewise-test file"),
        (json.dumps({"format": "x" * 10**6}).encode(), r"is a 'x+\.\.\.x+' file"),
        (b'{"format": "placewise-test"}', "names no version"),
        (b'{"format": "placewise-test", "version": "1"}', "names no version"),
        (b'{"format": "placewise-test", "version": 2}', "version 2, newer than 1; upgrade placewise"),
        (b'{"format": "placewise-test", "version": 1, "rows": "many"}', "'rows' must be a whole number"),
    ],
)
def test_bad_headers(tmp_path: Path, header: bytes, message: str) -> None:
    """Garbage, another format, no version, a version from the future, a field of the wrong type."""
    path = archive(tmp_path / "x.npz", {"header.json": header})
    refused(path, message)
    with pytest.raises(ModelFileError) as caught:
        read_columns(path, Header)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("array", [np.float64(3.0), np.zeros((2, 0, 3)), np.asfortranarray(np.arange(6).reshape(2, 3))])
def test_arrays_of_any_shape_that_numpy_writes(tmp_path: Path, array: Any) -> None:
    """Scalars, empty arrays and column-major ones of other writers are read as they are."""
    members = {"header.json": HEADER_BYTES, "x.npy": npy(array)}
    _, arrays = read_columns(archive(tmp_path / "y.npz", members), Header)
    assert np.array_equal(arrays.take("x", array.dtype, *array.shape), array)


def test_a_container_without_header(tmp_path: Path) -> None:
    """Any other ``.npz`` is refused for having no header."""
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    refused(tmp_path / "x.npz", "has no header.json")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (b"", "not an array of numbers"),
        (b"hello", "not an array of numbers"),
        (npy(np.array([{}], object)), "not an array of numbers"),
        (npy(np.array(["text"])), "not an array of numbers"),
        (npy(np.zeros(2, [("a", "i4")])), "not an array of numbers"),
        (claiming(b"(" * 100), "not an array of numbers"),
        (claiming(b"__import__('os').abort()"), "not an array of numbers"),
        (claiming(HONEST % b"(-1,)", b"12345678"), "not an array of numbers"),
        (claiming(HONEST % b"(1000000000000,)"), "does not have"),
        (claiming(HONEST % b"(9999999999999999999, 9999999999999999999)"), "does not have"),
        (claiming(HONEST % b"(1,)", b"123"), "does not have"),
        (claiming((HONEST % b"(1,)").replace(b"f8", b"f3"), b"123"), "does not have"),
        (claiming((HONEST % b"(1,)").replace(b"<f8", b"|b1"), b"\x02"), "neither true nor false"),
        (npy(np.zeros(3))[:-1], "does not have"),
    ],
)
def test_bad_arrays(tmp_path: Path, member: bytes, message: str) -> None:
    """Objects, texts, records, false claims of length, code in the place of a header, bools that are not."""
    refused(archive(tmp_path / "x.npz", {"header.json": HEADER_BYTES, "x.npy": member}), message)


def test_bombs_are_refused_unread(tmp_path: Path) -> None:
    """A megabyte that unpacks to a gigabyte, and members that share their bytes, by what they claim."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("header.json", HEADER_BYTES)
        with file.open("x.npy", "w") as member:
            for _ in range(256):
                member.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 19
    refused(path, "claims to hold 268435")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", HEADER_BYTES)
        file.writestr("x0.npy", bytes(1 << 20))
        for number in range(1, 400):
            twin = zipfile.ZipInfo(f"x{number}.npy")
            first = file.getinfo("x0.npy")
            twin.header_offset, twin.CRC = first.header_offset, first.CRC
            twin.file_size = twin.compress_size = first.file_size
            file.filelist.append(twin)
    refused(path, "claims to hold")


def test_a_member_that_hides_its_size(tmp_path: Path) -> None:
    """A directory that claims 100 bytes for a stream of 64 MiB gets no more than 100 bytes unpacked."""
    path = archive(tmp_path / "x.npz", {"header.json": HEADER_BYTES, "x.npy": bytes(1 << 26)}, zipfile.ZIP_DEFLATED)
    data = path.read_bytes().replace((1 << 26).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(data)
    refused(path, "not a complete columnar file")


def test_odd_members(tmp_path: Path) -> None:
    """Two members of one name, and a compression that we do not write."""
    path = tmp_path / "x.npz"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", HEADER_BYTES)
        file.writestr("header.json", HEADER_BYTES)
    refused(path, "two members of the same name")
    refused(archive(path, {"header.json": HEADER_BYTES}, zipfile.ZIP_BZIP2), "neither stored nor deflated")


@examples(60)
@given(st.data())
def test_any_damage_is_an_input_error(data: st.DataObject) -> None:
    """Bytes changed or cut anywhere, checksums mended or not: read whole, or refused with an InputError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npz"
        members = {"header.json": HEADER_BYTES, "x.npy": npy(np.arange(9)), "y.npy": npy(np.ones((2, 2), np.float32))}
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(members)))
            members[name] = _damaged(data, members[name])
            archive(path, members, data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
        else:
            path.write_bytes(_damaged(data, archive(path, members).read_bytes()))
        try:
            read_columns(path, Header)
        except InputError as error:
            assert str(error).startswith(str(path))
        assert format_name(path) == "" or format_name(path).startswith("placewise-")


def test_the_format_is_told_from_the_header_alone(tmp_path: Path) -> None:
    """Our own files say what they are, however damaged the rest; any other file is nothing of ours."""
    path = archive(tmp_path / "x.npz", {"header.json": HEADER_BYTES, "x.npy": b"no array"})
    assert format_name(path) == "placewise-test"
    for content in (b"", b"[]", b"{}", b'{"format": 3}', b'{"format": "other"}'):
        assert format_name(archive(path, {"header.json": content})) == ""
    assert format_name(archive(path, {"model.onnx": b""})) == ""
    path.write_bytes(b"\x08\x07")
    assert format_name(path) == ""
    assert format_name(tmp_path / "missing") == ""


def _damaged(data: st.DataObject, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.none() | st.integers(0, len(changed)))])


def test_a_failing_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An array that cannot be written (objects need pickles) leaves the old file whole and nothing else."""
    path = tmp_path / "x.npz"
    write_columns(path, Header(rows=1), {"x": np.arange(3)})
    before = zlib.crc32(path.read_bytes())
    with pytest.raises(ValueError, match="allow_pickle"):
        write_columns(path, Header(rows=2), {"x": np.arange(3), "y": np.array([{}], object)})
    assert zlib.crc32(path.read_bytes()) == before
    assert [*tmp_path.iterdir()] == [path]
