"""Which groups carry no gradient."""

from __future__ import annotations

from collections.abc import Sequence


def zero_variance(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards are all equal, so that it carries no gradient (dynamic sampling of DAPO, arXiv 2503.14476, section 3.2)."""
    return len(set(rewards)) <= 1
