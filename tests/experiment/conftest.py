"""One small experiment that several tests look at."""

from __future__ import annotations

import os

import pytest

from experiment.small import design, files
from headswap.experiment import conduct
from headswap.progress import Silent


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    os.environ["HEADSWAP_CACHE"] = str(folder / "cache")
    report = Silent()
    wanted = design(files(folder), objectives=("causal", "masked"), labels=(20, 60), reach=(120,))
    conduct.start(wanted, folder / "out", report)
    return folder / "out", report
