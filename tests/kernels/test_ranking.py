import torch

from vase_cli.kernels.ranking import best, best_mask


def test_order_is_by_score_then_by_index():
    scores = torch.tensor([2.0, -torch.inf, 2.0, 0.0, -0.0, torch.inf, -3.5, 1e-40, 3e38])
    assert best(scores, 9).tolist() == [5, 8, 0, 2, 7, 3, 4, 6, 1]


def test_what_must_be_kept_comes_before_any_score():
    scores = torch.tensor([[5.0, torch.inf, -torch.inf, 1.0]])
    must_keep = torch.tensor([[False, False, True, True]])
    assert best(scores, 3, must_keep=must_keep).tolist() == [[3, 2, 1]]
    assert best_mask(scores, 3, must_keep=must_keep).tolist() == [[False, True, True, True]]
    assert best_mask(scores, 1).tolist() == [[False, True, False, False]]


def test_agrees_with_sorting_on_random_scores():
    scores = torch.randn(50, 333, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    expected = scores.double().sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(best(scores, 333), expected)
