from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from conftest import corpus_text
from headswap.errors import DataError, StorageError, UsageError
from headswap.text import tokenizer
from headswap.text.tokenizer import MASK, SEP, TokenizerPlan


def test_round_trip(tokens):
    for text in ("the book was superb.", "Écoute, 漢字 \N{GRINNING FACE}!"):
        (ids,) = tokens.encode([text])
        assert tokens.decode(ids) == text
        assert tokens.unk not in ids


def test_specials_are_distinct_and_never_come_from_text(tokens):
    names = [tokens.pad, tokens.bos, tokens.eos, tokens.unk]
    names += [tokens.special(MASK), tokens.special(SEP)]
    assert len(set(names)) == 6 and None not in names
    (ids,) = tokens.encode(["<s> </s> <pad> <mask> <sep> <unk>"])
    assert not set(ids) & set(names)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes_in_any_process(tmp_path, kind):
    code = (
        "import sys, hashlib; from headswap.text import tokenizer as t;"
        "text = open(sys.argv[1]).read().split('\\n\\n');"
        f"made = t.train(text, t.TokenizerPlan(kind='{kind}', vocabulary=400));"
        "print(made.fingerprint)"
    )
    prints = []
    for number, cores in enumerate(("1", "2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"text{number}.txt"
        path.write_text(corpus_text())
        command = [sys.executable, "-c", code, str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": cores, "PYTHONHASHSEED": str(number)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        prints.append(done.stdout)
    assert len(prints[0]) > 60 and prints[0] == prints[1]


def test_long_lines_are_split_and_not_dropped():
    long = " ".join(["marvellous"] * 3000)
    made = tokenizer.train([long, *corpus_text().split("\n\n")], TokenizerPlan(vocabulary=400))
    (ids,) = made.encode(["marvellous"])
    assert len(ids) <= 2


def test_the_sample_is_bounded_and_fixed():
    texts = [f"sentence number {i} of many" for i in range(1000)]
    sample = tokenizer._sample(texts, 5000)
    assert sum(map(len, sample)) <= 5000 < sum(map(len, texts))
    assert sample == tokenizer._sample(texts, 5000)
    assert sample == [text for text in texts if text in set(sample)]


def test_a_vocabulary_too_large_is_capped_and_too_small_refused():
    made = tokenizer.train(["a few words only"] * 3, TokenizerPlan(vocabulary=5000))
    assert made.size < 5000
    with pytest.raises(UsageError, match=r"set tokenizer\.vocabulary to"):
        tokenizer.train(["a few words only"], TokenizerPlan(vocabulary=50))


def test_saved_and_loaded(tokens, tmp_path):
    tokens.save(tmp_path)
    again = tokenizer.load(tmp_path)
    assert again.fingerprint == tokens.fingerprint
    assert list(again.encode(["the hero"])[0]) == list(tokens.encode(["the hero"])[0])


def course_pair(tokens, tmp_path):
    """A model and a fairseq-style dictionary that numbers its pieces in another order."""
    tokens.save(tmp_path)
    pieces = [name for name in tokens.pieces(range(tokens.size)) if not name.startswith("<")]
    pieces.reverse()
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("".join(f"{piece} 1\n" for piece in pieces), "utf-8")
    return tmp_path / tokenizer.MODEL_FILE, dictionary, pieces


def test_the_courses_pair_of_model_and_dictionary(tokens, tmp_path):
    model, dictionary, pieces = course_pair(tokens, tmp_path)
    made = tokenizer.load_model(model, dictionary)
    assert made.size == len(pieces) + 4
    assert (made.bos, made.pad, made.eos, made.unk) == (0, 1, 2, 3)
    (ids,) = made.encode(["the book was superb"])
    assert [pieces[i - 4] for i in ids] == made.pieces(ids)
    assert made.decode(ids) == "the book was superb"
    assert made.encode(["\N{GRINNING FACE}"])[0][-1] == made.unk


def test_missing_specials_are_appended(tokens, tmp_path):
    model, dictionary, _ = course_pair(tokens, tmp_path)
    made = tokenizer.load_model(model, dictionary)
    assert made.special(MASK) is None
    more = made.with_specials([MASK])
    assert more.size == made.size + 1 and more.special(MASK) == made.size
    assert more.fingerprint != made.fingerprint
    assert made.with_specials([]) is made
    folder = tmp_path / "saved"
    folder.mkdir()
    more.save(folder)
    assert tokenizer.load(folder).special(MASK) == made.size


def test_what_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "x.model"
    path.write_bytes(b"junk junk junk")
    with pytest.raises(DataError, match=r"x\.model: not a sentencepiece model"):
        tokenizer.load_model(path)
    with pytest.raises(StorageError, match="cannot read"):
        tokenizer.load_model(tmp_path / "nothing.model")
    (tmp_path / tokenizer.META_FILE).write_text(json.dumps({"kind": 1}))
    (tmp_path / tokenizer.MODEL_FILE).write_bytes(b"")
    with pytest.raises(DataError, match="damaged"):
        tokenizer.load(tmp_path)


def test_a_line_of_any_length_is_cut_at_spaces_and_nothing_is_lost():
    """In time that grows with it: every rest used to be copied for every cut."""
    long = "word " * 2_000_000 + "x" * 9_000 + " end"
    began = time.monotonic()
    cuts = list(tokenizer._sentences(["first\n" + long, "  ", "last"]))
    assert time.monotonic() - began < 1
    assert cuts[0] == "first" and cuts[-1] == "last"
    assert max(map(len, cuts)) <= tokenizer.LONGEST_SENTENCE
    assert "".join("".join(cuts[1:-1]).split()) == "".join(long.split())
