from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from forest_cases import CONFIGS, float64_model
from transformers import PreTrainedModel


@pytest.fixture(scope="session", params=list(CONFIGS))
def model64(request: pytest.FixtureRequest) -> PreTrainedModel:
    return float64_model(request.param)
