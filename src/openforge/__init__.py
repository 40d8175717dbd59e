"""OpenForge: agent-native reinforcement learning."""

__version__ = "0.1.0"
