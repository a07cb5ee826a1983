import torch

from conftest import STACKS
from headswap.nn.backbone import Backbone
from headswap.nn.visibility import PADDING, Inputs, Visibility

CPU = torch.device("cpu")


def test_causal_allows_the_past_and_the_present_only():
    allowed = Visibility("causal").allowed(1, 5, 5, CPU)[0]
    assert torch.equal(allowed, torch.ones(5, 5).tril().bool())


def test_full_with_lengths_hides_padding_from_real_tokens():
    seen = Visibility.of_lengths("full", torch.tensor([3, 5]), 5).allowed(2, 5, 5, CPU)
    assert seen[0, :3, :3].all() and not seen[0, :3, 3:].any()
    assert seen[1].all()


def test_no_row_is_ever_empty():
    documents = torch.tensor([[0, 0, 1, 1, PADDING, PADDING]])
    for rule in ("causal", "full"):
        assert Visibility(rule, documents).allowed(1, 6, 6, CPU).any(-1).all()


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[0, 0, 1, 1, 2]])
    allowed = Visibility("full", documents).allowed(1, 5, 5, CPU)[0]
    assert torch.equal(allowed, documents[0][:, None] == documents[0][None, :])


def test_the_kernel_gets_the_same_rule():
    """What the kernel is told and what a picture would show are one thing."""
    documents = torch.tensor([[0, 0, 1, PADDING], [0, 1, 1, 1]])
    for visibility in (
        Visibility("causal"),
        Visibility("full"),
        Visibility("causal", documents),
        Visibility("full", documents),
        Visibility("causal", places_BT=torch.tensor([[2], [3]])),
    ):
        queries = 1 if visibility.places_BT is not None else 4
        shown = visibility.allowed(2, queries, 4, CPU)
        kernel = visibility.kernel(queries, 4, CPU)
        used = torch.ones(2, queries, 4, dtype=torch.bool)
        if kernel.causal:
            used = used.tril()
        if kernel.mask_B1TS is not None:
            used = used & kernel.mask_B1TS[:, 0]
        assert torch.equal(shown, used)


def test_twice_is_every_row_again():
    documents = torch.tensor([[0, 0], [0, PADDING]])
    source = Inputs(torch.tensor([[4, 5], [6, 0]]), Visibility("full", documents))
    both = Inputs(torch.tensor([[1], [2]]), Visibility("causal"), source=source).twice()
    assert both.ids_BT.tolist() == [[1], [2], [1], [2]]
    assert both.source is not None
    assert both.source.ids_BT.tolist() == [[4, 5], [6, 0], [4, 5], [6, 0]]
    assert both.source.visibility.documents_BS.tolist() == [[0, 0], [0, -1]] * 2


def test_a_prefix_is_seen_by_all_and_the_kernel_agrees():
    rule = Visibility("causal", prefix_B=torch.tensor([3, 1]))
    allowed = rule.allowed(2, 5, 5, torch.device("cpu"))
    assert allowed[0, 0].tolist() == [True, True, True, False, False]
    assert allowed[1, 0].tolist() == [True, False, False, False, False]
    torch.manual_seed(0)
    model = Backbone(STACKS["modern"], 20).eval()
    inside = Visibility("causal", prefix_B=torch.tensor([3]))
    with torch.no_grad():
        one, prefix, late = (
            model(Inputs(torch.tensor([ids]), inside))[0]
            for ids in ([5, 6, 7, 8, 9], [5, 6, 4, 8, 9], [5, 6, 7, 8, 4])
        )
    assert not torch.allclose(one[0], prefix[0])
    assert torch.equal(one[:4], late[:4])
