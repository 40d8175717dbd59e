from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from openforge.agents import AgentSettings


@pytest.mark.parametrize(
    "section", [{"command": ["python", "agent.py"], "deadline": "2m"}, {"class": "agent.py:Solver"}, {"adapter": "codex"}]
)
def test_a_section_survives_being_written_and_read(section: dict[str, Any]) -> None:
    settings = AgentSettings.model_validate(section)
    assert AgentSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert AgentSettings.model_validate(settings.model_dump(mode="json", by_alias=True)) == settings


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "exactly one of 'command', 'class' and 'adapter'"),
        ({"command": ["true"], "class": "a.py:A"}, "exactly one of 'command', 'class' and 'adapter'"),
        ({"command": ["true"], "adapter": "codex"}, "exactly one of 'command', 'class' and 'adapter'"),
        ({"adapter": "cursor"}, "no adapter 'cursor'; there are: claude-code, codex"),
        ({"adapter": "codex", "dialect": "chat"}, "codex speaks responses"),
        ({"command": ["true"], "arguments": ["-x"]}, "'arguments' are an adapter's"),
        ({"adapter": "smolagents", "arguments": ["-x"]}, "smolagents is a library and takes no 'arguments'"),
        ({"command": "python agent.py"}, "command"),
        ({"command": ["true"], "deadline": "soon"}, "deadline"),
        ({"command": ["true"], "dialect": "smoke signals"}, "dialect"),
        ({"command": ["true"], "comand": []}, "comand"),
    ],
)
def test_mistakes_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AgentSettings.model_validate(section)
