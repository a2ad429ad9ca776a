"""The kernel that only reads: that it reads everything, each number once."""

import pytest
import torch
from helpers.kernels import MARKS, draw

pytestmark = MARKS


def test_every_number_is_in_the_sum_of_its_part() -> None:
    from vase_cli.kernels.reading import SPAN_BYTES, sum_of

    parts, span = 3, SPAN_BYTES // 4
    numbers = draw(parts * span)
    expected = numbers.double().view(parts, span).sum(1)
    torch.testing.assert_close(sum_of(numbers).double(), expected, rtol=0.0, atol=0.05)
    at_the_ends = torch.zeros(parts * span, device=numbers.device)
    at_the_ends[[0, span - 1, span, -1]] = torch.tensor([1.0, 2.0, 4.0, 8.0], device=numbers.device)
    assert sum_of(at_the_ends).tolist() == pytest.approx([3.0, 4.0, 8.0])
