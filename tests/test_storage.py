from __future__ import annotations

import errno
import random
import subprocess
import sys

import pytest

from headswap import storage
from headswap.errors import StorageError


def make(folder):
    with storage.new_folder(folder) as staged:
        (staged / "a.bin").write_bytes(bytes(range(256)))
        (staged / "b.txt").write_text("hello")
    return folder


def test_a_whole_folder_has_no_problem(tmp_path):
    assert storage.problem(make(tmp_path / "x")) is None


def test_every_flipped_or_cut_byte_is_found(tmp_path):
    folder = make(tmp_path / "x")
    draw = random.Random(0)
    for name in ("a.bin", "b.txt", storage.MANIFEST):
        path = folder / name
        whole = path.read_bytes()
        for _ in range(60):
            place = draw.randrange(len(whole))
            damaged = bytearray(whole)
            if draw.random() < 0.7:
                damaged[place] ^= 1 << draw.randrange(8)
            else:
                damaged = damaged[:place]
            path.write_bytes(damaged)
            assert storage.problem(folder) is not None, (name, place)
        path.write_bytes(whole)
    assert storage.problem(folder) is None
    (folder / "a.bin").unlink()
    assert "missing" in storage.problem(folder)


def test_a_failure_leaves_neither_the_folder_nor_its_staging(tmp_path):
    with pytest.raises(RuntimeError), storage.new_folder(tmp_path / "x") as staged:
        (staged / "a").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_clear_line_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "file"
    storage.write(path, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        storage.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_manifest_cannot_reach_outside(tmp_path):
    folder = make(tmp_path / "x")
    (tmp_path / "secret").write_text("s")
    entries = {"../secret": storage._entry(tmp_path / "secret")}
    (folder / storage.MANIFEST).write_text(storage._render(entries))
    assert "outside" in storage.problem(folder)


def test_sweep_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / f"{storage.STAGING}step-1-999").mkdir()
    (tmp_path / f"{storage.STAGING}file").write_text("")
    storage.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_however_the_library_says_it(tmp_path):
    from safetensors import SafetensorError

    full = SafetensorError("Error while serializing: I/O error: No space left (os error 28)")
    with pytest.raises(StorageError, match="the disk is full"), storage.explained(tmp_path):
        raise full
    with pytest.raises(SafetensorError), storage.explained(tmp_path):
        raise SafetensorError("the header is wrong")
    with pytest.raises(ValueError, match="os error"), storage.explained(tmp_path):
        raise ValueError("os error 28 in a text")


def test_one_process_at_a_time_works_on_a_folder(tmp_path, monkeypatch):
    holding = "import sys, time; from pathlib import Path; from headswap import storage\n"
    holding += "with storage.alone(Path(sys.argv[1]), print):\n"
    holding += "    print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", holding, str(tmp_path)]
    told = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        monkeypatch.setattr(storage, "WAIT_S", 0.2)
        with (
            pytest.raises(StorageError, match="another process is working on it"),
            storage.alone(tmp_path, told.append),
        ):
            raise AssertionError("two at once")
        assert len(told) == 1
        other.kill()
    with storage.alone(tmp_path, told.append), storage.alone(tmp_path.parent, told.append):
        assert len(told) == 1  # what a killed process held is free


def test_what_a_library_writes_for_itself_alone_is_an_ordinary_file(tmp_path):
    (tmp_path / "plain").touch()
    path = tmp_path / "written"
    with storage.ordinary(path):
        path.unlink()
        path.touch(mode=0o600)
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
