"""Synthetic agent rollouts, and the three ways to train them.

Invariant: the three ways hold the same contributions: the same targets behind the same tokens, with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openforge.trees import build
from openforge.types import BoolArray, FloatArray, IntArray, LineageKind, TokenTree, Trajectory

GIVEN, SAMPLED = 3, 3
"""Tokens of a turn, which is one call: what the environment says, then what the model answers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree of tokens. Each leaf is a rollout; only the tokens of leaves hold samples."""

    name: str
    levels: tuple[tuple[int, int], ...]
    """From the root down: (children of each node, tokens of each child)."""

    @property
    def leaves(self) -> int:
        return math.prod(children for children, _ in self.levels)

    @property
    def path(self) -> int:
        """Tokens of a rollout."""
        return sum(length for _, length in self.levels)

    @property
    def shared(self) -> int:
        """How many of them it shares."""
        return self.path - self.levels[-1][1]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts of one shape with random tokens, advantages and log-probabilities."""

    shape: Shape
    vocabulary: int
    sequences: list[IntArray]
    logprobs: FloatArray
    """[rollouts, path]"""
    advantages: dict[str, float]

    @classmethod
    def random(cls, shape: Shape, vocabulary: int, seed: int = 0) -> Rollouts:
        generator = np.random.default_rng(seed)
        paths = [np.empty(0, np.int32)]
        for children, length in shape.levels:
            paths = [np.concatenate([p, generator.integers(0, vocabulary, length, np.int32)]) for p in paths for _ in range(children)]
        # near what a model with random weights says of its samples, so that no importance weight is clipped
        logprobs = generator.normal(-math.log(vocabulary), 0.1, (len(paths), shape.path)).astype(np.float32)
        advantages = {str(rollout): float(value) for rollout, value in enumerate(generator.standard_normal(len(paths)))}
        return cls(shape, vocabulary, paths, logprobs, advantages)

    def tree(self) -> list[TokenTree]:
        """Every distinct prefix once."""
        return [self._build(range(len(self.sequences)), self._sampled())]

    def rows(self) -> list[TokenTree]:
        """Every rollout a sequence of its own."""
        return [self._build([rollout], self._sampled()) for rollout in range(len(self.sequences))]

    def calls(self) -> list[TokenTree]:
        """Every call a sequence of its own, with all of its prompt."""
        return [self._build([rollout], call) for rollout in range(len(self.sequences)) for call in self._calls()]

    def _sampled(self) -> BoolArray:
        own = np.arange(self.shape.path) - self.shape.shared
        mask: BoolArray = (own >= 0) & (own % (GIVEN + SAMPLED) >= GIVEN)
        return mask

    def _calls(self) -> Iterator[BoolArray]:
        """Per call, which tokens it sampled."""
        own = np.arange(self.shape.path) - self.shape.shared
        for call in range(math.ceil(self.shape.levels[-1][1] / (GIVEN + SAMPLED))):
            yield self._sampled() & (own // (GIVEN + SAMPLED) == call)

    def _build(self, rollouts: Sequence[int], trained: BoolArray) -> TokenTree:
        weight: FloatArray = np.float32(1 / (len(self.sequences) * self._sampled().sum())) * trained.astype(np.float32)
        return build([self._trajectory(rollout, trained) for rollout in rollouts], self.advantages, [weight] * len(rollouts))

    def _trajectory(self, rollout: int, trained: BoolArray) -> Trajectory:
        return Trajectory(
            rollout_id=str(rollout),
            kind=LineageKind.MAIN,
            call_ids=[],
            ends=np.empty(0, np.int32),
            tokens=self.sequences[rollout],
            sampled=trained,
            trained=trained,
            logprobs=self.logprobs[rollout],
            versions=np.zeros(self.shape.path, np.int32),
            masked={},
        )
