"""What `verify` reports while it runs: the part, the sizes that are done, and the share of the work."""

import pytest

from sdpa_onnx.workflows.verify.verify_parts import VerifyPart, VerifyParts, planned_parts


def test_parts_and_sizes_are_shares_of_the_work() -> None:
    """Eight runs at other sizes, and five of work behind them; two more sizes make the share of those smaller."""
    steps, shares = list[str](), list[float]()
    of = planned_parts(is_drawn=True, proves=False, has_axes=True)
    parts = VerifyParts(of=of, on_step=steps.append, on_share=shares.append)
    parts.reach(VerifyPart.AXES)
    parts.reach_size(4, 8)
    parts.reach_size(9, 10)
    parts.reach(VerifyPart.OUTPUTS)
    parts.reach(VerifyPart.STATE)
    assert steps == [
        "step 1 of 4, other sizes",
        "step 1 of 4, other sizes, 4 of 8",
        "step 1 of 4, other sizes, 9 of 10",
        "step 2 of 4, outputs",
        "step 4 of 4, runs after runs",
    ]
    assert shares == pytest.approx([0.0, 4 / 13, 9 / 15, 8 / 13, 11 / 13])


def test_given_inputs_leave_two_parts_out() -> None:
    """The axes are not tried, and no run follows another; planted faults are a part of their own."""
    assert planned_parts(is_drawn=False, proves=False, has_axes=False) == (VerifyPart.OUTPUTS,)
    assert planned_parts(is_drawn=False, proves=True, has_axes=False) == (
        VerifyPart.OUTPUTS,
        VerifyPart.ALONE,
        VerifyPart.FAULTS,
    )
