"""A ReAct agent on LangGraph, with ChatOpenAI or ChatAnthropic.

Usage: langgraph_agent.py chat|messages INSTRUCTION, with the OPENAI_* or ANTHROPIC_* variables set.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from langchain.agents import create_agent
from tools import edit_file, read_file, run_command


def model(dialect: str) -> Any:
    if dialect == "messages":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model=os.environ["ANTHROPIC_MODEL"], max_tokens=4096)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=os.environ["OPENAI_MODEL"])


_, dialect, instruction = sys.argv
agent = create_agent(model(dialect), tools=[read_file, edit_file, run_command])
state = agent.invoke({"messages": [{"role": "user", "content": instruction}]}, {"recursion_limit": 100})
print(state["messages"][-1].text)
