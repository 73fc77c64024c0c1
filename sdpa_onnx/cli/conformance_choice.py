"""Select features: match names and patterns of the command line with the features that exist."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from sdpa_onnx.errors import PlanError

__all__ = ["pick_features", "pick_names"]


def pick_features(patterns: Sequence[str], groups: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features that match a name, pattern or group, in table order; () if there are no patterns.

    Args:
        groups: Feature -> its group.

    Raises:
        PlanError: If a name or pattern matches none; the message suggests the closest one.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = [slug for slug, group in groups.items() if pattern == group or _matches(pattern, slug)]
        if not matches:
            raise PlanError(f"There is no feature '{pattern}'.", hint=_suggestion(pattern, list(groups), "See --list."))
        chosen.update(matches)
    return tuple(slug for slug in groups if slug in chosen)


def pick_names(noun: str, names: Sequence[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """Return the requested operators or element types without duplicates.

    Raises:
        PlanError: If a name is unknown; the message suggests the closest one.
    """
    known = list(dict.fromkeys(all_names))
    for name in names:
        if name not in known:
            raise PlanError(
                f"There is no {noun} '{name}'.", hint=_suggestion(name, known, f"Known: {', '.join(known)}.")
            )
    return tuple(dict.fromkeys(names))


def _matches(pattern: str, slug: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), slug) is not None


def _suggestion(name: str, known: Sequence[str], otherwise: str) -> str:
    """Suggest the closest name by spelling, else one that ends in or contains the typed text."""
    bare = name.strip("*")
    near = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
    near += [one for one in known if bare and one.lower().endswith(bare.lower())]
    near += [one for one in known if bare and bare.lower() in one.lower()]
    return f"Did you mean '{near[0]}'?" if near else otherwise
