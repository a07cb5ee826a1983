from __future__ import annotations

import numpy as np

from conftest import STACKS
from headswap.objectives import Causal, Context
from headswap.text.loader import Window


def context(tokens):
    return Context(STACKS["modern"], tokens, np.random.default_rng(0))


def test_reads_the_start_and_predicts_the_end(tokens):
    a, b, c = 10, 11, 12
    window = Window(np.array([tokens.bos, a, b, c, tokens.eos]))
    batch = Causal().batch([window], context(tokens))
    assert batch.inputs.ids_BT.tolist() == [[tokens.bos, a, b, c]]
    assert batch.targets["causal"].answers_N.tolist() == [a, b, c, tokens.eos]
    assert batch.counts == {"causal": 4.0} and batch.tokens == 4


def test_the_start_of_the_next_document_is_not_scored(tokens):
    ids = np.array([tokens.bos, 10, tokens.eos, tokens.bos, 11, tokens.eos])
    batch = Causal().batch([Window(ids)], context(tokens))
    assert batch.targets["causal"].answers_N.tolist() == [10, tokens.eos, 11, tokens.eos]
    assert batch.targets["causal"].rows_N.tolist() == [0, 1, 3, 4]
    assert batch.inputs.positions_BT.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.inputs.visibility.documents_BS.tolist() == [[0, 0, 0, 1, 1]]


def test_a_short_window_is_padded_and_its_padding_not_scored(tokens):
    rows = [Window(np.array([tokens.bos, 10, 11, 12])), Window(np.array([9, 8]))]
    batch = Causal().batch(rows, context(tokens))
    assert batch.inputs.ids_BT.tolist() == [[tokens.bos, 10, 11], [9, 8, tokens.pad]]
    assert batch.targets["causal"].answers_N.tolist() == [10, 11, 12, 8]
