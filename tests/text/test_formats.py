"""Formats beyond plain text: Parquet, zstandard, folders, patterns, cleaning, hostile files."""

from __future__ import annotations

import gzip
import lzma
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headswap.errors import DataError, HeadswapError, ResourceError, StorageError
from headswap.text import files
from headswap.text.corpus import Reading, documents, labelled

pyarrow = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")


def parquet(path, columns):
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet(tmp_path):
    path = parquet(tmp_path / "a.parquet", {"text": ["one", "two"], "label": [1, 0]})
    assert [(row.text, row.label) for row in labelled(path)] == [("one", "1"), ("two", "0")]
    assert list(documents([path])) == ["one", "two"]


def test_parquet_without_the_column_or_without_being_one(tmp_path):
    path = parquet(tmp_path / "a.parquet", {"words": ["one"], "label": [1]})
    with pytest.raises(DataError, match=r"no text column \(found: 'words', 'label'\)"):
        list(labelled(path))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(DataError, match="not a readable Parquet"):
        list(labelled(tmp_path / "b.parquet"))
    with pytest.raises(StorageError, match="no such file"):
        list(labelled(tmp_path / "c.parquet"))


def test_zstandard(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one\ntwo\n"))
    assert list(documents([path])) == ["one", "two"]
    path.write_bytes(zstandard.compress(b"one\ntwo\n" * 500)[:-9])
    with pytest.raises(HeadswapError):
        list(documents([path]))
    path.write_bytes(b"junk junk junk")
    with pytest.raises(DataError, match="damaged"):
        list(documents([path]))


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.txt.zst"), ("pyarrow", "a.parquet")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ResourceError, match=r"pip install 'headswap\[formats\]'"):
        list(documents([tmp_path / name]))


def test_folders_and_patterns(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.jsonl.gz", "deep/c.txt", "notes.md"):
        (tmp_path / name).write_bytes(b"")
    found = files.expand([tmp_path])
    assert [path.name for path in found] == ["a.jsonl.gz", "b.txt", "c.txt"]
    assert [path.name for path in files.expand([tmp_path / "*.txt"])] == ["b.txt"]
    with pytest.raises(StorageError, match="no text files"):
        files.expand([tmp_path / "*.csv"])
    assert files.expand(["missing.txt"])[0].name == "missing.txt"


def test_cleaning(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "A <br />  b &amp; c<!-- hid\n<i>den</i>  1 < 2 &eacute;\n\nnext  one\n", "utf-8"
    )
    assert list(documents([path]))[1] == "next  one"
    clean = Reading(clean=("html", "whitespace"))
    assert list(documents([path], clean)) == ["A b & c<!-- hid den 1 < 2 é", "next one"]
    assert Reading(clean=("html",)).cleaned("<p>x</p> &lt;b&gt;") == " x  <b>"


def test_mixed_encodings_are_found_at_their_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("été\n".encode() * 3 + "été\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 4: invalid UTF-8"):
        list(documents([path]))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_decompression_bomb_is_defused(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(files, "BOMB_BYTES", 10_000)
    compress = gzip.compress if suffix == ".gz" else lzma.compress
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(compress(b"boom\n" * 10**6))
    with pytest.raises(DataError, match="bomb"):
        for _ in documents([path]):
            pass
    path.write_bytes(compress(b"boom\n" * 1000))
    assert len(list(documents([path]))) == 1000


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([".txt", ".jsonl", ".csv", ".tsv"]))
def test_readers_never_crash_on_random_bytes(tmp_path_factory, content, extension):
    path = tmp_path_factory.mktemp("fuzz") / f"a{extension}"
    path.write_bytes(content)
    for reader in (lambda: list(documents([path])), lambda: list(labelled(path))):
        try:
            reader()
        except HeadswapError as error:
            assert str(error)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([".gz", ".xz", ".zst", ".parquet"]), st.booleans())
def test_decompressors_never_crash_on_random_bytes(tmp_path_factory, content, suffix, genuine):
    path = tmp_path_factory.mktemp("fuzz") / f"a.txt{suffix}"
    if suffix == ".parquet":
        path = path.with_name("a.parquet")
    head = {".gz": b"\x1f\x8b\x08\0", ".xz": b"\xfd7zXZ\0", ".zst": b"\x28\xb5\x2f\xfd"}
    path.write_bytes((head.get(suffix, b"PAR1") if genuine else b"") + content)
    try:
        list(documents([path]))
    except HeadswapError as error:
        assert str(error)
