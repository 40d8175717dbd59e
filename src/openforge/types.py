"""The nouns every layer shares.

Invariant: this module holds data and protocols only. It imports no other module of the package, so that every room may import it, and
nothing here computes anything.

Units: times are seconds since the epoch unless a name says otherwise; log-probabilities are natural logarithms.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import torch

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Weights = Mapping[str, "torch.Tensor"]
"""Parameter name, as in the model's `state_dict`, to tensor."""


class UserError(Exception):
    """A mistake the user can mend. The message is one line: what is wrong, where, and how to mend it."""


class Settings(BaseModel):
    """Base of every section of a run file. Each room declares its own section next to the code it steers."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- tasks, rollouts, rewards -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work for an agent. `data` is whatever the reward needs (an answer, a test command); the agent never sees it."""

    id: str
    instruction: str
    domain: str = "default"
    data: dict[str, Any] = field(default_factory=dict)


class Outcome(enum.StrEnum):
    """How a rollout ended; every started rollout ends in exactly one of these."""

    FINISHED = "finished"
    """The agent ended by itself with exit code 0 (or `agent_run` returned)."""
    TRUNCATED = "truncated"
    """The model ran into the context length or the rollout's token budget."""
    AGENT_ERROR = "agent_error"
    """The agent's own program failed: non-zero exit, an exception in `agent_run`."""
    ENV_ERROR = "env_error"
    """Infrastructure or the reward failed. Never a score of 0: the rollout has no reward at all."""
    TIMEOUT = "timeout"
    """The rollout's one deadline passed."""
    CANCELLED = "cancelled"
    """The run was stopped, or the head deadline passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A rollout's scalar reward, with its named parts for the report. Finite by contract."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What an agent left behind: input to the reward."""

    output: str = ""
    """Its standard output (or what a white-box `agent_run` returned as text); bytes that are not UTF-8 become U+FFFD."""
    stderr: str = ""
    """What its program wrote to standard error: for people who ask why it failed."""
    exit_code: int | None = 0
    workspace: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt of an agent at a task. `unit` numbers the unit of scheduling in launch order (-1 for evaluation): its prompt group, or,
    where single rollouts are the units, itself."""

    id: str
    task_id: str
    unit: int
    index: int
    """Place in the unit, from 0."""
    attempt: int = 0
    """How often this place of this unit was started before; a crash restarts it as the next attempt."""
    split: str = "train"
    started_at: float = 0.0
    ended_at: float | None = None
    outcome: Outcome | None = None
    reward: Reward | None = None
    detail: str = ""
    """One line on why, where the outcome is not `finished`."""
    output: str = ""


# --- sampling and the rollout engine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the engine samples. The recorded log-probability is that of the distribution these settings define."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    temperature: float = 1.0
    """0 means greedy; the log-probabilities recorded are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Strings that end the reply; the tokens up to and including the one that completes the string are sampled tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the reply (the format's end-of-turn token); the id itself is a sampled token."""
    seed: int | None = None


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    """The client went away or the rollout was closed; what was sampled until then is recorded."""
    ERROR = "error"
    """The engine failed; what was sampled until then is recorded."""


class VersionPolicy(enum.StrEnum):
    """What an engine does with a request in flight when the weights change. No policy lets old keys and values serve new weights."""

    RECOMPUTE = "recompute"
    """Prefill the request's tokens again under the new weights and go on; later tokens carry the new version."""
    DRAIN = "drain"
    """The update waits until the request has finished under its old weights."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    id: int
    logprob: float
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChunk:
    """A piece of a generation: zero or more tokens; `finish` is set on the last chunk and only there."""

    tokens: tuple[SampledToken, ...] = ()
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    version: int
    running: int
    waiting: int
    prompt_tokens: int
    """Prompt tokens of all requests so far."""
    cached_tokens: int
    """Of these, tokens whose keys and values came from the prefix cache."""
    sampled_tokens: int


class RolloutEngine(Protocol):
    """Token ids in, token ids out. Knows nothing of agents, HTTP or messages."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and reply together that fit."""
        ...

    def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncIterator[GenerationChunk]:
        """Stream a generation. Closing the iterator (or cancelling its task) cancels the request in the engine.

        Raises `PromptTooLong` when prompt and at least one new token do not fit the context.
        """
        ...

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Install new weights between two steps; tokens sampled afterwards carry `version`. Versions only grow."""
        ...

    async def pause(self) -> None:
        """Stop stepping; requests stay queued."""
        ...

    async def resume(self) -> None: ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


class PromptTooLong(Exception):
    """The prompt leaves no room for a new token in the model's context."""


# --- calls ------------------------------------------------------------------------------------------------------------------------------


class Fork(enum.StrEnum):
    """Why a call's prompt is not the straight continuation of the lineage it could have continued."""

    ROOT = "root"
    """The rollout has earlier calls, but shares no message boundary with any of them: a sub-agent, a side call."""
    BRANCH = "branch"
    """It extends a call that another call has extended already."""
    EDITED = "edited"
    """The client changed, dropped or inserted something in history that was recorded before."""
    RETRY = "retry"
    """The same prompt as an earlier call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """What a client's own headers and fields tell of who is speaking. Evidence only; empty where it tells nothing."""

    session: str | None = None
    """The client's conversation."""
    agent: str | None = None
    """The sub-agent; None where the client names none, which is how it names its main agent."""
    parent: str | None = None
    """The agent that started it; None where that is the session's main agent, or not said."""
    purpose: str | None = None
    """What the call is for, in one word: `count_tokens`, `compact`, `review`, `memory`, `auxiliary`, `prewarm`."""
    retry: int = 0
    """How often the client's SDK has tried this request before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call, as recorded: append-only, and O(new tokens) in size.

    The prompt is `(parent.prompt + parent.sampled)[:shared] + delta`; without a parent, `shared` is 0 and `delta` is the whole prompt.
    A call that an upstream API answered is known as text only: its token fields are empty, never invented.
    A call with a parent and no `fork` has `shared == len(parent.prompt) + len(parent.sampled)`: it literally begins with its parent's ids.
    """

    id: str
    rollout_id: str
    index: int
    """Arrival order in the rollout; for display, never evidence of lineage."""
    parent_id: str | None
    shared: int
    delta: list[int]
    sampled: list[int]
    logprobs: list[float]
    versions: list[int]
    fork: Fork | None = None
    finish: FinishReason
    sampling: Sampling
    dialect: str
    request: dict[str, Any]
    """The client's request without what the parent already stores: `messages_shared` counts the leading messages left out. The agent's own
    sampling parameters and unknown fields stay in it, recorded and not obeyed."""
    response: dict[str, Any]
    """The reply as a canonical message: role, content, reasoning, tool_calls."""
    speaker: Speaker = Speaker()
    upstream: dict[str, Any] = field(default_factory=dict)
    """What an upstream API told of the reply that it gave: `model`, `finish`, `usage`. Empty where the engine sampled the reply."""
    error: str | None = None
    started_at: float
    first_token_at: float | None = None
    ended_at: float


class CallLog(Protocol):
    """Where the gateway puts calls."""

    async def append(self, call: Call) -> None:
        """Return only when the call is durable. Appending the same id again is a no-op."""
        ...


# --- trajectories and trees ---------------------------------------------------------------------------------------------------------------


class LineageKind(enum.StrEnum):
    MAIN = "main"
    SUB_AGENT = "sub_agent"
    CONTINUATION = "continuation"
    SIDE = "side"
    RETRY = "retry"
    ORPHAN = "orphan"


class MaskReason(enum.StrEnum):
    """Why a sampled token is not trained on."""

    RETRY = "retry"
    """Its call was answered again; only the answer the agent went on with is trained."""
    ABORTED = "aborted"
    ERROR = "error"
    SIDE = "side"
    NO_REWARD = "no_reward"
    """The rollout has no reward: environment error, timeout without score, cancelled."""
    ZERO_VARIANCE = "zero_variance"
    """All rollouts of the group have the same reward: no gradient."""
    CONTEXT_LENGTH = "context_length"
    """It lies beyond the model's context, where the trainer cannot compute what the sampler did."""
    NO_LOGPROB = "no_logprob"
    """Its behaviour log-probability is missing, or is no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """What one lineage adds to its rollout's token tree. L tokens, and only new ones.

    Its whole sequence is `parent`'s whole sequence [:shared] + `tokens`. `shared` reaches into the parent's own tokens (it is more than
    the parent shares itself, and at most the length of the parent's whole sequence); it is 0 without a parent. A sampled token is in
    exactly one trajectory.
    """

    rollout_id: str
    kind: LineageKind
    parent: Trajectory | None = field(default=None, repr=False)
    """Context: it need not be trained itself."""
    shared: int = 0
    call_ids: list[str]
    """Its lineage's calls; each brought the tokens behind the call before."""
    ends: IntArray
    """int32 [len(call_ids)]: how many tokens there are with each call's reply."""
    tokens: IntArray
    """int32 [L]"""
    sampled: BoolArray
    """bool [L]: sampled by the policy."""
    trained: BoolArray
    """bool [L]: sampled and not masked."""
    logprobs: FloatArray
    """float32 [L]: behaviour log-probability where sampled, else 0."""
    versions: IntArray
    """int32 [L]: behaviour weight version where sampled, else -1."""
    masked: dict[MaskReason, int]
    """How many sampled tokens each reason keeps from training; sum(sampled) == sum(trained) + sum(masked.values())."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """Trajectories with shared prefixes stored once. N positions in S segments; C contributions.

    A segment is a run of positions without a branch. Segments are in depth-first order, so a parent comes before its children, and each
    one's positions are contiguous in `tokens`. Positions and contributions are separate: a position can be context for one rollout and
    sampled by two others.
    """

    tokens: IntArray
    """int32 [N]"""
    starts: IntArray
    """int32 [S + 1]: segment s owns positions starts[s] … starts[s+1] - 1."""
    parents: IntArray
    """int32 [S]: parent segment, -1 for a root."""
    depths: IntArray
    """int32 [S]: position id (distance from the root) of the segment's first token."""
    at: IntArray
    """int32 [C]: the position whose output predicts the target (the target token's predecessor on its path)."""
    targets: IntArray
    """int32 [C]: token id."""
    logprobs: FloatArray
    """float32 [C]: behaviour log-probability."""
    versions: IntArray
    """int32 [C]: behaviour weight version."""
    advantages: FloatArray
    """float32 [C]"""
    weights: FloatArray
    """float32 [C]: the loss is the sum over contributions of weight times token loss; normalised over the whole optimizer batch before
    packing, so that packing cannot change it."""
    rows: IntArray
    """int32 [C]: index of the rollout in `rollout_ids`."""
    rollout_ids: list[str]


# --- running things -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int | None
    """None when it was killed at the deadline; negative signal number when a signal ended it."""
    stdout: bytes
    """The first and last bytes, bounded, with a note between them of what was dropped."""
    stderr: bytes
    timed_out: bool
    seconds: float


class SandboxError(Exception):
    """A command could not be run, or not be ended: the program or folder is missing, or the sandbox itself failed. One line."""


class Sandbox(Protocol):
    """Where an agent's commands run."""

    async def exec(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None, log_dir: Path | None = None
    ) -> ExecResult:
        """Run to its end or to `timeout` seconds; nothing it started is alive afterwards. Output is bounded in memory and on disk.

        Raises `SandboxError`.
        """
        ...

    async def close(self) -> None: ...
