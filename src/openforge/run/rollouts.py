"""One rollout, from its start to its outcome.

Invariant: whatever happens inside, a started rollout is ended durably with exactly one outcome, its gateway session is closed and its calls
are recorded before that. Only an agent that ran its course is scored; a failure of ours, of the environment or of the reward never is.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from openforge.agents import BASE_PATHS, Agent, AgentContext
from openforge.gateway import Access, Gateway, SessionSummary
from openforge.pool import Store
from openforge.rewards import RewardFunction, as_reward
from openforge.run.rundir import RunDir
from openforge.types import AgentResult, Outcome, Rollout, Sampling, Sandbox, SandboxError, Task

T = TypeVar("T")

CLEAN_UP_SECONDS = 30.0
"""How long `agent_postprocess` may take, also after the deadline."""


@dataclass(frozen=True, kw_only=True)
class RolloutRunner:
    """Runs rollouts of one agent behind one gateway. Stateless, so any number run at once."""

    agent: Agent
    reward: RewardFunction | None
    gateway: Gateway
    address: str
    """Where the gateway listens, e.g. `http://127.0.0.1:8000`."""
    store: Store
    sandbox: Sandbox
    model_name: str
    deadline: float
    """Seconds for the whole rollout: one deadline, wall clock."""
    run_dir: RunDir
    token_budget: int | None

    async def run(self, task: Task, rollout: Rollout, sampling: Sampling) -> Rollout:
        """Run one rollout and return it ended. Cancellation ends it as `cancelled`, with its message as the reason, and is then passed on.

        Raises what the call log failed with, once it has: a run that cannot record must stop.
        """
        rollout = replace(rollout, started_at=time.time())
        await self.store.start_rollout(rollout)
        access = self.gateway.open(rollout.id, sampling=sampling, token_budget=self.token_budget)
        try:
            ended = await self._attempt(task, rollout, access)
        except BaseException as stop:
            reason = next(iter(stop.args), None) if isinstance(stop, asyncio.CancelledError) else None
            # Shielded: a second Ctrl-C must not leave a session open or a rollout without its end.
            await asyncio.shield(self._finish(replace(rollout, outcome=Outcome.CANCELLED, detail=reason or "the run was stopped")))
            raise
        ended = await _to_the_end(self._finish(ended))
        if self.gateway.fault is not None:
            raise self.gateway.fault
        return ended

    def progress(self, rollout_id: str) -> dict[str, int] | None:
        """What the gateway counts of the rollout; None when its session is closed: its agent is done."""
        try:
            return self.gateway.progress(rollout_id)
        except KeyError:
            return None

    async def _attempt(self, task: Task, rollout: Rollout, access: Access) -> Rollout:
        """Run the hooks under the one deadline."""
        scoring = False
        try:
            async with asyncio.timeout(self.deadline), self._context(task, rollout, access) as context:
                result = await self._work(context)
                # The session closes before scoring: a verifier's calls are not the agent's.
                session = await self.gateway.close(rollout.id)
                _check_engine(session)
                scoring = True
                return await self._score(context, replace(rollout, output=result.output), result, session)
        except _Ended as end:
            return replace(rollout, outcome=end.outcome, detail=end.detail, output=end.output)
        except TimeoutError:
            detail = f"the deadline of {self.deadline:g} s passed while {'it was scored' if scoring else 'the agent ran'}"
            return replace(rollout, outcome=Outcome.ENV_ERROR if scoring else Outcome.TIMEOUT, detail=detail)
        except (OSError, SandboxError) as error:
            return replace(rollout, outcome=Outcome.ENV_ERROR, detail=_line("the sandbox", error))

    @asynccontextmanager
    async def _context(self, task: Task, rollout: Rollout, access: Access) -> AsyncIterator[AgentContext]:
        """The attempt's surroundings; its workspace is gone when it is over."""
        workspace = self.run_dir.workspaces / rollout.id
        workspace.mkdir(parents=True)
        try:
            yield AgentContext(
                task=task,
                rollout_id=rollout.id,
                workspace=workspace,
                base_url=self.address + access.path + BASE_PATHS[self.agent.settings.dialect],
                api_key=access.api_key,
                model=self.model_name,
                context_length=self.gateway.context_length,
                sandbox=self.sandbox,
                log_dir=self.run_dir.logs / rollout.id,
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)

    async def _work(self, context: AgentContext) -> AgentResult:
        """The agent's part."""
        try:
            with _ends(Outcome.ENV_ERROR, "agent_preprocess"):
                await self.agent.agent_preprocess(context)
            try:
                return await self.agent.agent_run(context)
            except SandboxError:
                raise
            except Exception as error:
                _check_engine(await self.gateway.close(context.rollout_id))
                raise _Ended(Outcome.AGENT_ERROR, _line("agent_run", error)) from error
        finally:
            with _ends(Outcome.ENV_ERROR, "agent_postprocess"):
                async with asyncio.timeout(CLEAN_UP_SECONDS):
                    await self.agent.agent_postprocess(context)

    async def _score(self, context: AgentContext, rollout: Rollout, result: AgentResult, session: SessionSummary) -> Rollout:
        """The outcome of an agent that ran its course, and its reward."""
        if result.exit_code != 0 and not session.truncated:
            last = result.stderr.strip().rsplit("\n", 1)[-1]
            raise _Ended(Outcome.AGENT_ERROR, f"the agent exited with code {result.exit_code}: {last}", result.output)
        with _ends(Outcome.ENV_ERROR, "the reward", result.output):
            reward = await self.agent.calculate_reward(context, result)
            if reward is None:
                assert self.reward is not None, "neither the agent nor the run file says how to score"
                reward = await self.reward(context.task, result)
            reward = as_reward(reward)
        return replace(rollout, outcome=Outcome.TRUNCATED if session.truncated else Outcome.FINISHED, reward=reward)

    async def _finish(self, rollout: Rollout) -> Rollout:
        await self.gateway.close(rollout.id)
        rollout = replace(rollout, ended_at=time.time())
        await self.store.end_rollout(rollout)
        return rollout


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Its result; a cancellation waits until it is there, for whoever cancelled is about to read what it records."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class _Ended(Exception):
    """A rollout that ends without a score."""

    def __init__(self, outcome: Outcome, detail: str, output: str = "") -> None:
        super().__init__(detail)
        self.outcome, self.detail, self.output = outcome, detail[:500], output


@contextmanager
def _ends(outcome: Outcome, where: str, output: str = "") -> Iterator[None]:
    """Turn an exception of a hook into the end of its rollout; the sandbox's own failures, and cancellation, pass through."""
    try:
        yield
    except SandboxError:
        raise
    except Exception as error:
        raise _Ended(outcome, _line(where, error), output) from error


def _check_engine(session: SessionSummary) -> None:
    """Whatever the agent made of it, a call that the engine failed is no fault of the agent's."""
    if session.error is not None:
        raise _Ended(Outcome.ENV_ERROR, f"the rollout engine failed a call: {session.error}")


def _line(where: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{where} failed: {type(error).__name__}: {text}"
