"""A reward that is a Python function of the user's.

Invariant: no function, however it hangs, keeps the event loop, other rewards or the end of the process waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from openforge.rewards.value import RewardFailed, as_reward
from openforge.types import AgentResult, Reward, Task


class FunctionReward:
    """Calls `function(task, result)`; a plain function in a thread of its own, an async one in the event loop."""

    def __init__(self, function: Callable[[Task, AgentResult], Any], name: str, timeout: float) -> None:
        self._function, self._name, self._timeout = function, name, timeout

    async def __call__(self, task: Task, result: AgentResult) -> Reward:
        """Raises `RewardFailed` where the function raises, takes too long or returns no finite number."""
        try:
            async with asyncio.timeout(self._timeout) as bound:
                if inspect.iscoroutinefunction(self._function):
                    value = await self._function(task, result)
                else:
                    value = await _in_thread(self._function, task, result)
                    if inspect.isawaitable(value):  # an object with an async __call__, a partial
                        value = await value
        except (Exception, SystemExit) as error:
            if bound.expired():
                raise RewardFailed(f"{self._name} took longer than {self._timeout:g} s") from error
            raise RewardFailed(f"{self._name} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
        try:
            return as_reward(value)
        except RewardFailed as error:
            raise RewardFailed(f"{self._name}: {error}") from error


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    # A daemon thread a call, not a pool: a thread cannot be killed, and one that hangs must neither fill the pool nor hold up the exit.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = function(*args)
        except StopIteration as error:  # a future cannot carry it
            failure = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: nobody waits
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=work, name="reward", daemon=True).start()
    return await future
