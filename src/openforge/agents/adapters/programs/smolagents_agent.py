"""An agent on smolagents: `ToolCallingAgent` with an OpenAI-compatible model.

Usage: smolagents_agent.py INSTRUCTION, with OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL set.
"""

from __future__ import annotations

import os
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool
from tools import edit_file, read_file, run_command

model = OpenAIModel(os.environ["OPENAI_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[tool(read_file), tool(edit_file), tool(run_command)], model=model, max_steps=30)
print(agent.run(sys.argv[1]))
