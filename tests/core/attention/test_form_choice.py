"""Which form wins: ties go to the simpler one, and two forms in one file must pay."""

import pytest

from sdpa_onnx.core.attention.form_choice import (
    LengthSplit,
    RacedArm,
    best_overall,
    fastest_simple_arm,
    split_by_length,
)


def _raced(**ratios: float) -> tuple[RacedArm, ...]:
    return tuple(RacedArm(arm=arm, ratio=ratio, ratio_low=ratio - 0.01) for arm, ratio in ratios.items())


@pytest.mark.parametrize(("ratio", "expected"), [(1.029, "attention"), (1.032, "blocked")])
def test_a_tie_goes_to_the_simpler_form(ratio: float, expected: str) -> None:
    """Just inside two per cent, and just outside."""
    assert fastest_simple_arm(_raced(attention=ratio, blocked=1.0)).arm == expected


def test_the_fastest_wins_whatever_its_interval_is() -> None:
    """One arm is always left."""
    assert fastest_simple_arm([RacedArm(arm="attention", ratio=1.0, ratio_low=1.5)]).arm == "attention"


def test_one_form_for_all_lengths_has_the_least_mean() -> None:
    """A little loss at one length is worth a large gain at another, ties are simple, and all lengths count."""
    races = {64: _raced(attention=1.0, blocked=1.1, rare=0.5), 2048: _raced(attention=1.8, blocked=1.0)}
    assert best_overall(races) == "blocked"
    assert (
        best_overall({64: _raced(attention=1.02, blocked=1.0), 128: _raced(attention=1.0, blocked=1.0)}) == "attention"
    )


def test_two_forms_are_worth_it_where_the_winner_changes() -> None:
    """Up to half-way between the lengths, in the sense of a product, the one, beyond it the other."""
    races = {64: _raced(attention=1.0, blocked=1.3), 1024: _raced(attention=1.6, blocked=1.0)}
    split = split_by_length(races)
    assert split == LengthSplit(short="attention", long="blocked", at=256, gain=pytest.approx(1.3))


@pytest.mark.parametrize(("ratio", "is_split"), [(1.06, True), (1.04, False)])
def test_a_gain_of_five_per_cent_is_asked_for(ratio: float, is_split: bool) -> None:
    """Just above, and just below."""
    races = {64: _raced(attention=1.0, blocked=ratio), 1024: _raced(attention=1.6, blocked=1.0)}
    assert (split_by_length(races) is not None) == is_split


def test_nothing_is_split_where_one_form_wins_everywhere() -> None:
    """Nor with one arm, nor at one length."""
    always = {64: _raced(attention=1.0, blocked=1.3), 1024: _raced(attention=1.0, blocked=1.2)}
    assert split_by_length(always) is None
    assert split_by_length({64: _raced(attention=1.0, blocked=1.3)}) is None
    assert split_by_length({64: _raced(attention=1.0), 1024: _raced(attention=1.0)}) is None


def test_arms_that_failed_at_some_length_are_not_chosen_for_all() -> None:
    """And where no arm ran everywhere there is none."""
    races = {64: _raced(attention=1.0), 1024: _raced(blocked=1.0)}
    assert best_overall(races) is None
    assert split_by_length(races) is None
