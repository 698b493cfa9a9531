"""Returns-to-go and leave-one-out differences by hand."""

import pytest

from task_app.credit.returns import leave_one_out, mean, returns_to_go


def test_return_to_go_by_hand():
    # 1 + .5·(0 + .5·2) = 1.5, then 0 + .5·2 = 1, then 2
    assert returns_to_go([1.0, 0.0, 2.0], 0.5) == (1.5, 1.0, 2.0)
    assert returns_to_go([], 0.9) == ()


def test_leave_one_out_by_hand():
    # 3 − (1 + 1 + 0)/3, 1 − (3 + 1 + 0)/3, …
    assert leave_one_out([3.0, 1.0, 1.0, 0.0]) == pytest.approx([7 / 3, -1 / 3, -1 / 3, -5 / 3])


@pytest.mark.parametrize("value", [0.35, 0.1, 1e9 + 0.1, -7.3])
@pytest.mark.parametrize("count", [2, 3, 7, 8, 64])
def test_equal_values_differ_by_rounding_at_most(value, count):
    assert max(map(abs, leave_one_out([value] * count))) <= 4e-16 * abs(value)


def test_too_few_values():
    with pytest.raises(ValueError, match="no values"):
        mean([])
    with pytest.raises(ValueError, match="two values, got 1"):
        leave_one_out([1.0])
