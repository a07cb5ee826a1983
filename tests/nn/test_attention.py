from __future__ import annotations

import warnings

import torch

from headswap.nn.attention import HeadNorm


def test_queries_and_keys_are_normed_in_their_own_precision():
    norm = HeadNorm(8, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, 8))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # two precisions at once warn, and take the slow way
        half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), wanted, rtol=2e-2, atol=2e-2)
