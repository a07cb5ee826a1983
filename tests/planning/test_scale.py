"""The paper plan: what must hold whatever the numbers, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from headswap import settings
from headswap.cli import main as run
from headswap.errors import UsageError
from headswap.planning import advice, devices, memory, rates, scale
from headswap.planning.rings import WAYS, Fleet, exposed

H100 = devices.named("H100")
TINY = settings.resolve("causal", "tiny", [{"train": {"batch": 1_024, "steps": 500}}])
SPEEDS = st.floats(0.01, 1_000)
FLEETS = st.builds(
    Fleet,
    nodes=st.sampled_from([2, 8, 128]),
    gpus=st.sampled_from([1, 2, 8]),
    link=SPEEDS,
    fabric=SPEEDS,
    price=st.floats(0, 10),
    overlap=st.floats(0, 1),
)
SOME = hypothesis(max_examples=30, deadline=None)


def planned(fleet, made=TINY, **given):
    found = scale.make(made, [], given.get("place"), given.get("named", H100), fleet)
    return found, {way: [r for r in found["rows"] if r["way"] == way] for way in WAYS}


@SOME
@given(FLEETS)
def test_efficiency_is_at_most_one_and_falls_with_more_gpus(fleet):
    _, ways = planned(fleet)
    for rows in ways.values():
        assert [row["gpus"] for row in rows] == fleet.sizes()
        assert rows[0]["efficiency"] == pytest.approx(1)
        for one, two in pairwise(rows):
            assert two["efficiency"] <= one["efficiency"] * (1 + 1e-9) <= 1 + 2e-9
            assert two["sent_between"] >= one["sent_between"]


@SOME
@given(FLEETS)
def test_memory_falls_with_ranks_and_sharding_never_holds_more_of_the_model(fleet):
    _, ways = planned(fleet)
    for rows in ways.values():
        for one, two in pairwise(rows):
            assert two["bytes"] < one["bytes"]
    large = settings.resolve(
        "causal", "base", [{"train": {"batch": 1_024}, "model": {"width": 1_024, "layers": 8}}]
    )
    need = memory.needed(large, 16_000, torch.bfloat16, "cuda", 1)
    weight = need.weights // 2
    held = [scale.sharded_bytes(need, large, weight, world) for world in (1, 2, 8, 64, 1_024)]
    assert held == sorted(held, reverse=True) and held[-1] < need.total / 4


@SOME
@given(FLEETS)
def test_cost_is_price_times_gpus_times_hours(fleet):
    for row in planned(fleet)[0]["rows"]:
        assert row["cost"] == pytest.approx(fleet.price * row["gpus"] * row["hours"])
        assert row["hours"] == pytest.approx(500 * row["step_seconds"] / 3600)


@SOME
@given(FLEETS, st.floats(1, 1e12), st.floats(1e-3, 10))
def test_the_rings(fleet, content, compute):
    gpus, nodes = fleet.gpus, fleet.nodes
    sent, late = exposed("ddp", content, content / 2, 1, compute, fleet)
    assert sent.inside == pytest.approx(2 * content * (gpus - 1) / gpus)
    assert sent.between == pytest.approx(2 * content * (nodes - 1) / nodes)
    seconds = sent.inside / fleet.link / 1e9 + sent.between / fleet.fabric / 1e9
    assert late == pytest.approx(max(0, seconds - fleet.overlap * compute * 2 / 3))
    shard, late = exposed("sharded", content, content / 2, 1, compute, fleet)
    assert shard.between == pytest.approx(2 * content * (nodes - 1) / nodes)
    assert late <= shard.seconds(fleet)
    more, _ = exposed("sharded", content, content / 2, 3, compute, fleet)
    assert more.inside == pytest.approx(4 * content * (gpus - 1) / gpus), "gathered for each part"


def test_one_gpu_is_the_plan_without_communication():
    for fleet in (Fleet(), Fleet(nodes=4, gpus=2, link=1, fabric=1)):
        found, ways = planned(fleet)
        (row,) = advice.make(TINY, [], None, H100)["elsewhere"]
        for rows in ways.values():
            assert rows[0]["sent_inside"] == rows[0]["sent_between"] == 0
            assert rows[0]["waiting_seconds"] == 0
            assert rows[0]["hours"] == pytest.approx(row["minutes"] / 60)
            assert rows[0]["step_seconds"] == found["step_seconds"]
    eight, _ = planned(Fleet(), named=devices.named("8xP100"))
    (row,) = advice.make(TINY, [], None, devices.named("8xP100"))["elsewhere"]
    assert eight["rows"][0]["hours"] == pytest.approx(8 * row["minutes"] / 60)


def test_a_machine_that_is_here_is_measured(monkeypatch):
    points = ((64.0, 1e-6), (128.0, 4e-6))
    told = rates.Rates("cpu", points, 0.0, points, 1e-9, 1e-4)
    monkeypatch.setattr(rates, "measure", lambda *given: told)
    place = torch.device("cpu")
    made = settings.resolve("causal", "tiny", [{"train": {"steps": 100}}])
    found, _ = planned(Fleet(nodes=4, fabric=1), made, place=place, named=None)
    here = advice.make(made, [], place, None)["here"]
    assert found["measured"] and found["step_seconds"] == pytest.approx(here["step_seconds"])
    assert [row["efficiency"] <= 1 for row in found["rows"]]


def test_a_batch_that_does_not_fit_is_cut_into_parts():
    small = dataclasses.replace(H100, memory_gib=0.5)
    found, ways = planned(Fleet(nodes=8, gpus=8, link=450, fabric=50), named=small)
    for rows in ways.values():
        assert all(row["fits"] for row in rows)
        parts = [row["parts"] for row in rows]
        assert parts[0] > 1 and parts == sorted(parts, reverse=True)
    found, _ = planned(Fleet(), named=dataclasses.replace(H100, memory_gib=0.02))
    assert not found["rows"][0]["fits"] and "more than a GPU has" in "\n".join(scale.lines(found))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"gpus": -1}, "--gpus-per-node -1"),
        ({"gpus": 2, "link": -5.0}, "--link -5"),
        ({"gpus": 2}, "how fast is --link"),
        ({"nodes": 2, "fabric": 0.0}, "--fabric 0"),
        ({"nodes": 2, "fabric": float("nan")}, "--fabric nan"),
        ({"nodes": 2}, "how fast is --fabric"),
        ({"price": -1.0}, "--price"),
        ({"overlap": 1.5}, "--overlap"),
    ],
)
def test_refusals(given, told):
    with pytest.raises(UsageError, match=told):
        Fleet(**given)


def test_sizes():
    assert Fleet(nodes=128, gpus=8, link=1, fabric=1).sizes() == [2**power for power in range(11)]
    assert Fleet(nodes=3, gpus=6, link=1, fabric=1).sizes() == [1, 2, 4, 6, 12, 18]
    assert Fleet().sizes() == [1]
    assert Fleet(nodes=4, fabric=1).sizes() == [1, 2, 4]


def test_the_command(capsys):
    def told(*arguments):
        with pytest.raises(SystemExit) as stop:
            run(["plan", "tiny", *arguments])
        return stop.value.code or 0, capsys.readouterr()

    fleet = ["--nodes", "2", "--gpus-per-node", "4", "--link", "300", "--fabric", "25"]
    more = ["--device", "A100", "--steps", "10", "--price", "2"]
    code, shown = told(*fleet, *more, "--json")
    found = json.loads(shown.out)
    assert code == 0 and found["estimate"] and len(found["rows"]) == 2 * 4
    code, shown = told(*fleet, *more)
    assert code == 0 and "assumptions:" in shown.out and "$" in shown.out
    for bad, word in (
        (["--nodes", "3", "--fabric", "1", *more], "evenly; give --batch"),
        ([*fleet, "--device", "B9000"], "unknown device 'B9000'"),
        (["--link", "3"], "--link goes with --nodes"),
        (["--nodes", "0"], "--nodes 0"),
    ):
        code, shown = told(*bad)
        assert code == 2 and word in shown.err and shown.err.count("\n") == 1, shown.err
