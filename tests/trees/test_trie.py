"""How much runs in Python while a trie is made: what trajectories and nodes ask for, whatever the tokens between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from forest_cases import trajectory

from openforge.trees import trie
from openforge.trees.trie import Trie
from openforge.types import Trajectory


def lines_run(trajectories: list[Trajectory]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == trie.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        made = Trie(trajectories)
        for item in trajectories:
            made.positions(item, (item.shared + np.flatnonzero(item.trained) - 1).astype(np.int32))
    finally:
        sys.settrace(before)
    return count


def new(rollout: str, seed: int, length: int, parent: Trajectory | None = None, shared: int = 0) -> Trajectory:
    tokens = np.random.default_rng(seed).integers(0, 1000, length).tolist()
    return trajectory(rollout, tokens, [parent is not None] + [True] * (length - 1), parent=parent, shared=shared)


def chain(size: int, length: int) -> list[Trajectory]:
    """Each goes on from the end of the one before."""
    made = [new("r", 0, length)]
    for number in range(1, size):
        made.append(new("r", number, length, made[-1], length * number))
    return made


def fan(size: int, length: int) -> list[Trajectory]:
    """All leave the first, at places in no order."""
    first = new("r", 0, size * length)
    places = np.random.default_rng(1).permutation(np.arange(1, size)) * length
    return [first, *(new("r", number, length, first, int(place)) for number, place in enumerate(places, 1))]


def edits(size: int, length: int) -> list[Trajectory]:
    """Each drops the second half of what the one before said."""
    made = [new("r", 0, 2 * length)]
    for number in range(1, size):
        made.append(new("r", number, 2 * length, made[-1], made[-1].shared + length))
    return made


def twins(size: int, length: int) -> list[Trajectory]:
    """The same agent four times over, with a branch at every turn: nodes of the first are passed by the others."""
    made = []
    for rollout in range(4):
        first = new(str(rollout), 0, size * length)
        made += [first, *(new(str(rollout), place, length, first, place * length) for place in range(1, size))]
    return made


@pytest.mark.parametrize("shape", [chain, fan, edits, twins])
def test_work_grows_with_the_trajectories_and_not_with_their_tokens_or_depth(shape: Callable[[int, int], list[Trajectory]]) -> None:
    work = lines_run(shape(50, 20))
    assert lines_run(shape(50, 200)) == work
    assert lines_run(shape(100, 20)) < 2.1 * work
