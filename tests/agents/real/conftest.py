"""Real agents, installed by `openforge agents install`, on the small model's tokenizer.

With OPENFORGE_AGENT_RUNS=DIR each test leaves its run directory there, for `openforge agents report DIR`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))

from hermes import Play
from stage import Performance, perform

from openforge.agents import ADAPTERS, Installation, agents_folder

collect_ignore = ["project"]
MODEL = Path(__file__).parents[3] / "models" / "smollm2-135m-instruct"


def _need(there: bool, what: str) -> None:
    if not there:
        (pytest.fail if os.environ.get("OPENFORGE_REQUIRE") == "all" else pytest.skip)(what)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    _need((MODEL / "tokenizer.json").exists(), "the real model's tokenizer is not in models/")
    return AutoTokenizer.from_pretrained(MODEL)


Stage = Callable[..., Awaitable[Performance]]


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Stage:
    """`stage(adapter, play, …)`: one rollout of the agent with a model that plays."""
    kept = os.environ.get("OPENFORGE_AGENT_RUNS")
    run_dir = Path(kept).absolute() / request.node.name if kept else tmp_path / "run"

    async def run(adapter: str, play: Callable[[Path], Play], **options: Any) -> Performance:
        _need(Installation(ADAPTERS[adapter], agents_folder()).complete, f"not installed: openforge agents install {adapter}")
        shutil.rmtree(run_dir, ignore_errors=True)
        return await perform(adapter, play, run_dir=run_dir, scratch=tmp_path, tokenizer=tokenizer, model=MODEL, **options)

    return run
