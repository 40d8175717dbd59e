"""Agents: the programs that use the model, and the four hooks around one attempt.

Invariant: an agent learns where its model is and nothing else; that it is being trained shows nowhere in what it sees.
"""

from openforge.agents.adapters import ADAPTERS as ADAPTERS
from openforge.agents.adapters.install import Installation as Installation
from openforge.agents.adapters.install import agents_folder as agents_folder
from openforge.agents.command import CommandAgent as CommandAgent
from openforge.agents.context import AgentContext as AgentContext
from openforge.agents.environment import BASE_PATHS as BASE_PATHS
from openforge.agents.hooks import Agent as Agent
from openforge.agents.load import load_agent as load_agent
from openforge.agents.settings import AgentSettings as AgentSettings
