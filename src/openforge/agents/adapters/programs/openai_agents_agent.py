"""An agent on the OpenAI Agents SDK; it speaks the Responses API by default.

Usage: openai_agents_agent.py INSTRUCTION, with OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL set.
"""

from __future__ import annotations

import os
import sys

from tools import edit_file, read_file, run_command

from agents import Agent, Runner, function_tool

agent = Agent(
    name="coder",
    instructions="Work in the current directory with your tools. Stop when the task is done.",
    model=os.environ["OPENAI_MODEL"],
    tools=[function_tool(read_file), function_tool(edit_file), function_tool(run_command)],
)
print(Runner.run_sync(agent, sys.argv[1], max_turns=30).final_output)
