"""What an experiment plans: equal trials, fitted to the time, nothing made twice."""

from __future__ import annotations

import pytest

from headswap.errors import DataError
from headswap.experiment.plan import Arm, Base, Costs, Plan, curve, fit

ARMS = (
    Arm("linear", "linear"),
    Arm("scratch", "scratch", "base"),
    Arm("pretrained", "pretrained", "base", "scratch"),
    Arm("probe", "probe", "base", "scratch"),
)
PLAN = Plan(
    labels=("a", "b"),
    bases=(Base("base", "somewhere"),),
    arms=ARMS,
    sizes=(50, 200, 1000, 4000),
    reach=(8000,),
    seeds=5,
    epochs=8,
    rate=1e-3,
    workers=2,
    threads=1,
    minutes=1.0,
)
COSTS = Costs(step=0.05, text=0.001, batch=16, workers=2, valid=300, test=1000)


def test_every_neural_arm_gets_as_many_trials():
    trials = PLAN.trials()
    counts = {arm.name: sum(job.arm == arm for job in trials) for arm in ARMS if arm.neural}
    assert len(set(counts.values())) == 1 and set(counts.values()) == {3}
    assert all(job.seed == 0 and job.size == PLAN.tuned_at == 1000 for job in trials)


def test_one_trial_is_the_first_seed_and_is_not_made_again():
    rates = {arm.name: PLAN.rates(arm)[1] for arm in ARMS if arm.neural}
    both = set(PLAN.trials()) & set(PLAN.final(rates))
    for arm in ARMS:
        if arm.neural:
            assert sum(job.arm == arm for job in both) == 1
    assert {job.arm.name for job in PLAN.final(rates)} == {arm.name for arm in ARMS}


def test_only_arms_without_pretraining_reach_further():
    rates = {arm.name: PLAN.rates(arm)[0] for arm in ARMS if arm.neural}
    reaching = {job.arm.name for job in PLAN.final(rates) if job.size == 8000}
    assert reaching == {"linear", "scratch"}


def test_few_labels_are_read_more_often():
    assert PLAN.epochs_at(50) > PLAN.epochs_at(200) or PLAN.epochs_at(50) == 20
    assert PLAN.epochs_at(4000) == PLAN.epochs


def test_a_plan_is_cut_to_the_time_and_says_so():
    whole = COSTS.seconds(PLAN)
    assert fit(PLAN, COSTS, whole) == PLAN
    less = fit(PLAN, COSTS, whole / 4)
    assert COSTS.seconds(less) <= whole / 4
    assert less.sizes[-1] == 4000 and "to fit the time" in less.told[0]
    least = fit(PLAN, COSTS, 0.1)
    assert least.seeds == 1 and least.sizes == (4000,)
    assert "longer than asked" in least.told[-1]


def test_more_time_never_means_less():
    before = 0.0
    for seconds in range(100, 20_000, 500):
        now = COSTS.seconds(fit(PLAN, COSTS, seconds))
        assert now >= before
        before = now


def test_the_label_curve_ends_where_the_labels_do():
    assert curve(1600, ()) == ((100, 500, 1600), "")
    sizes, told = curve(300, (50, 1000))
    assert sizes == (50, 300) and "300 labels" in told
    assert curve(60, ())[0] == (60,)


def test_a_plan_survives_its_file():
    assert Plan.loads(PLAN.dumps(), "here") == PLAN
    with pytest.raises(DataError, match="damaged"):
        Plan.loads('{"arms": 1}', "here")
