from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from forest_cases import CONFIGS, float64_model
from transformers import PreTrainedModel

# two stand for all in `make check`: a dense one, and one with experts
QUICK = ("llama", "qwen3_moe")
MODELS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]


@pytest.fixture(scope="session", params=MODELS)
def model64(request: pytest.FixtureRequest) -> PreTrainedModel:
    return float64_model(request.param)
