from __future__ import annotations

import gzip
import json
import lzma

import pytest

from headswap.errors import DataError, HeadswapError, StorageError, UsageError
from headswap.text import files, stretches
from headswap.text.corpus import Reading, documents, labelled, texts


def write(tmp_path, name, content):
    path = tmp_path / name
    data = content if isinstance(content, bytes) else content.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".xz"):
        data = lzma.compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_text_is_split_at_blank_lines_or_one_a_line(tmp_path, suffix):
    blank = write(tmp_path, f"a.txt{suffix}", "\n\none\ntwo\n\n\nthree\n")
    assert list(documents([blank])) == ["one\ntwo", "three"]
    assert list(documents([blank], Reading("line"))) == ["one", "two", "three"]
    lines = write(tmp_path, f"b.txt{suffix}", "one\ntwo\r\nthree")
    assert list(documents([lines])) == ["one", "two", "three"]
    assert list(documents([lines], Reading("blank"))) == ["one\ntwo\nthree"]


def test_tables_of_every_kind_give_the_same_rows(tmp_path):
    rows = [('a, "b"', "x"), ("c", "y")]
    jsonl = "\n".join(json.dumps({"Text": t, "label": label}) for t, label in rows)
    table = 'id,text,label\n1,"a, ""b""",x\n2,c,y\n'
    tabbed = 'label\ttext\nx\ta, "b"\ny\tc\n'
    for name, content in (("a.jsonl.gz", jsonl), ("a.csv", table), ("a.tsv.xz", tabbed)):
        found = [(row.text, row.label) for row in labelled(write(tmp_path, name, content))]
        assert found == rows


def test_a_quoted_cell_may_hold_line_breaks(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one\ntwo",x\nthree,y\n')
    assert [row.text for row in labelled(path)] == ["one\ntwo", "three"]


def test_labels_are_names(tmp_path):
    rows = [{"text": "a", "label": value} for value in (1, "1", 1.0, True, " yes ")]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [row.label for row in labelled(path)] == ["1", "1", "1", "true", "yes"]


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path, "a.csv", "corps,avis,text\nbon,pos,zz\n")
    row = next(labelled(path, Reading(text="corps", label="avis")))
    assert (row.text, row.label) == ("bon", "pos")
    with pytest.raises(UsageError, match="did you mean 'corps'"):
        list(labelled(path, Reading(text="corp", label="avis")))


def test_texts_keeps_empty_lines_so_that_results_line_up(tmp_path):
    path = write(tmp_path, "a.txt", "one\n\nthree\n")
    assert list(texts(path)) == ["one", "", "three"]


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = write(tmp_path, "a.txt", b"\xef\xbb\xbfhello\n")
    assert list(documents([path])) == ["hello"]
    path = write(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\na,b\n")
    assert next(labelled(path)).text == "a"


@pytest.mark.parametrize(
    ("name", "content", "message", "code"),
    [
        ("empty.txt", b"", "no text", 65),
        ("blank.txt", b"\n \n\n", "no text", 65),
        ("nul.txt", b"good\nbad\0\n", "line 2: .*NUL", 65),
        ("latin.txt", b"good\ncaf\xe9\n", "line 2: invalid UTF-8 .byte 0xe9 at column 4", 65),
        ("wide.txt", "hello".encode("utf-16"), "UTF-16.*iconv", 65),
        ("cut.txt.gz", gzip.compress(b"hello\n" * 999, mtime=0)[:-12], "damaged or cut short", 65),
        ("junk.txt.gz", b"this is not gzip", "damaged|cut", 65),
        ("junk.txt.xz", b"this is not xz", "damaged|cut", 65),
    ],
)
def test_bad_bytes_are_named_with_their_place(tmp_path, name, content, message, code):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(HeadswapError, match=message) as caught:
        list(documents([path]))
    assert caught.value.exit_code == code and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "{}", "no text column"),
        ("a.jsonl", '{"text": "a"}', "no label column .found: 'text'"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b", "category": "news"}',
            "line 2: the label is missing",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"review": "b", "label": 1}',
            "line 2: the text is missing",
        ),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1: the label is missing"),
        ("a.jsonl", '{"text": "a", "label": [1]}', "not a name"),
        ("a.jsonl", '{"text": 3, "label": 1}', "not a string"),
        ("a.jsonl", '{"text": "a\\u0000", "label": 1}', "NUL"),
        ("a.jsonl", '{"text": "a"', "not valid JSON"),
        ("a.jsonl", "[1, 2]", "not an object"),
        ("a.jsonl", "[" * 100_000, "not valid JSON"),
        ("a.csv", "text,label\na,b,c\n", "line 2: 3 cells where the header has 2"),
        ("a.csv", 'text,label\n"a,b\n', "not a valid table"),
        ("a.csv", "text,label\n", "no labelled rows"),
        ("a.csv", "", "no labelled rows"),
    ],
)
def test_bad_tables_are_data_errors(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        list(labelled(write(tmp_path, name, content)))


def test_missing_files_folders_and_wrong_kinds(tmp_path):
    with pytest.raises(StorageError, match="no such file"):
        list(documents([tmp_path / "nothing.txt"]))
    with pytest.raises(UsageError, match="is a folder"):
        list(documents([tmp_path]))
    with pytest.raises(UsageError, match=r"use one of \.jsonl"):
        list(labelled(write(tmp_path, "a.txt", "a")))


def test_a_very_long_line_is_refused_in_flat_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    path = write(tmp_path, "a.txt", "ok\n" + "x" * 5000)
    with pytest.raises(DataError, match="line 2: the line is longer"):
        list(documents([path]))


def test_half_an_emoji_is_replaced(tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_text('{"text": "so good \\ud83d", "label": "1"}\n{"text": "\\ud83d\\ude00"}\n')
    assert list(texts(path, Reading())) == ["so good \ufffd", "\U0001f600"]


def test_a_blank_line_at_the_end_separates_nothing(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\nthree\n\n")
    assert list(documents([path], Reading())) == ["one", "two", "three"]


def test_a_label_that_is_not_a_number_is_missing(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"text": "a", "label": NaN}\n')
    with pytest.raises(DataError, match="the label is missing"):
        list(labelled(path, Reading()))


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_other_separators_are_seen(tmp_path, sign):
    path = write(tmp_path, "a.csv", f"text{sign}label\none, two{sign}x\n")
    assert [(row.text, row.label) for row in labelled(path)] == [("one, two", "x")]
    excel = write(tmp_path, "b.csv", f"sep={sign}\ntext{sign}label\none{sign}x\n")
    assert [(row.text, row.label) for row in labelled(excel)] == [("one", "x")]


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", "text,text,label\na,b,c\n")
    with pytest.raises(DataError, match="two columns 'text'"):
        list(labelled(path))


def test_a_missing_header_is_told_in_a_line(tmp_path):
    path = write(tmp_path, "a.csv", f"{'a long review ' * 50},bad\nshort,good\n")
    with pytest.raises(DataError, match="row of names") as caught:
        list(labelled(path))
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("name", ["a.json", "a.xlsx", "a.pdf", "a.json.gz"])
def test_what_is_no_text_is_not_read_as_lines(tmp_path, name):
    path = write(tmp_path, name, '[\n{"text": "a"}\n]\n')
    for read in (lambda: list(texts(path)), lambda: list(documents([path]))):
        with pytest.raises(UsageError, match="not read as text"):
            read()


def test_half_a_character_in_a_label_is_mended(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a", "label": "pos\\ud83d"}\n')
    (row,) = labelled(path)
    assert row.label == "pos\ufffd"


def test_hidden_files_are_passed_over(tmp_path):
    for name in ("a.txt", ".b.txt", ".copies/c.txt", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, name, "text")
    assert [path.name for path in files.expand([tmp_path])] == ["a.txt", "d.txt"]
    assert [path.name for path in files.expand([tmp_path / "*.txt"])] == ["a.txt"]
    assert [path.name for path in files.expand([tmp_path / ".*.txt"])] == [".b.txt"]
    assert [path.name for path in files.expand([tmp_path / ".copies" / "*.txt"])] == ["c.txt"]


@pytest.mark.parametrize("split", ["line", "blank"])
def test_documents_that_cleaning_empties_are_left_out(tmp_path, split):
    path = tmp_path / "text.txt"
    path.write_text("good text\n\n<br>\n\n<p></p>\n\nmore\n")
    reading = Reading(split, clean=("html", "whitespace"))
    assert list(documents([path], reading)) == ["good text", "more"]
    assert list(stretches.documents_between(path, reading, 0, 10**6)) == ["good text", "more"]
    path.write_text("<br>\n")
    with pytest.raises(DataError, match="no text in it"):
        list(documents([path], reading))
