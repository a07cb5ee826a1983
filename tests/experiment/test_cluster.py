"""An experiment on a Ray cluster of several nodes, all on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from experiment.small import design, files
from headswap.errors import HeadswapError, ResourceError, UsageError
from headswap.experiment import cluster, conduct
from headswap.experiment.design import Folder
from headswap.experiment.jobs import Tasks
from headswap.progress import Silent

RESULTS = ("model.safetensors", "metrics.jsonl", "scores.json", "predictions/test.jsonl")


class Watched(Silent):
    def __init__(self):
        super().__init__()
        self.facts = []

    def update(self, share, facts):
        self.facts.append(facts)


@pytest.fixture(scope="module")
def nodes():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    ray.shutdown()
    made.shutdown()
    del os.environ["RAY_ADDRESS"]


def workers():
    """The processes of this test's cluster that are at work."""
    parents, named = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if b"ray::headswap" in (path / "cmdline").read_bytes():
                named.append(int(path.name))
        except OSError:
            continue

    def ours(pid):
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return [pid for pid in named if ours(pid)]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_cluster_gives_what_one_machine_gives(nodes, tmp_path):
    paths = files(tmp_path)
    wanted = design(paths, labels=(20, 60), seeds=2)
    folder = conduct.start(wanted, tmp_path / "here", Silent())
    there = tmp_path / "there"
    shutil.copytree(folder.path, there, ignore=shutil.ignore_patterns("runs", "best", "report.*"))
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            if (there / "runs").exists() and (some := workers()):
                os.kill(some[0], signal.SIGKILL)
                killed.append(some[0])
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    report = Watched()
    conduct.conduct(Folder(there), report, on="ray")
    killer.join()
    assert killed, "a worker was killed, and its run was made again"
    assert any("on 2 hosts" in facts for facts in report.facts)
    found = [json.loads((path / "report.json").read_text()) for path in (folder.path, there)]
    assert [row["accuracy_by_seed"] for row in found[0]["arms"]] == [
        row["accuracy_by_seed"] for row in found[1]["arms"]
    ]
    runs = sorted(path.name for path in (folder.path / "runs").iterdir())
    assert runs == sorted(path.name for path in (there / "runs").iterdir())
    for name in runs:
        for file in RESULTS:
            one, two = folder.path / "runs" / name / file, there / "runs" / name / file
            assert one.exists() == two.exists(), (name, file)
            assert not one.exists() or one.read_bytes() == two.read_bytes(), (name, file)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_whole_experiment_and_what_goes_wrong(nodes, tmp_path):
    paths = files(tmp_path)
    wanted = design(paths, labels=(20,), seeds=1, on="ray", probe=False)
    folder = conduct.start(wanted, tmp_path / "out", Silent())
    assert (folder.path / "report.html").exists() and conduct.workshop(folder).plan.workers == 2
    assert cluster.share_out(1, 0.0) == (2, 1)
    with pytest.raises(ResourceError, match="no host of the cluster has 64 CPUs"):
        cluster.share_out(64, 0.0)
    with pytest.raises(ResourceError, match="1 CPUs and 1 GPUs"):
        cluster.share_out(1, 1.0)

    def fails(item):
        raise UsageError("no such thing", where="here", fix="give up")

    with (
        cluster.Cluster(1, 0.0, 1, tmp_path, Silent()) as hosts,
        pytest.raises(HeadswapError, match="here: no such thing; give up"),
    ):
        hosts.each("failing", Tasks(fails, [1, 2], lambda _: 1.0))
    with (
        cluster.Cluster(1, 0.0, 1, tmp_path / "nowhere", Silent()) as hosts,
        pytest.raises(HeadswapError, match="does not see it"),
    ):
        hosts.each("looking", Tasks(print, [1], lambda _: 1.0))


def test_without_ray(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    wanted = design(files(tmp_path), on="ray")
    with pytest.raises(ResourceError, match=r"pip install 'headswap\[scale\]'"):
        conduct.start(wanted, tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_no_cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.MonkeyPatch.context() as other:
        other.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with pytest.raises(ResourceError, match=r"no Ray cluster can be reached.*refused"):
            cluster.connected()
    monkeypatch.setattr(ray, "init", lambda **given: (_ for _ in ()).throw(ConnectionError("none")))
    with pytest.raises(ResourceError, match=r"no Ray cluster can be reached.*ray start --head"):
        cluster.connected()


@pytest.mark.parametrize("given", [{"cpus": 0}, {"gpus": -1.0}, {"on": "ray", "device": "cuda"}])
def test_bad_shares(given, tmp_path):
    with pytest.raises(UsageError):
        design(files(tmp_path), **given)
