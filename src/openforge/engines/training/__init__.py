"""Training engines: token trees in, new weights out."""

from openforge.engines.training.checkpoint import verify as verify_checkpoint
from openforge.engines.training.engine import TrainEngine
from openforge.engines.training.settings import TrainSettings

__all__ = ["TrainEngine", "TrainSettings", "verify_checkpoint"]
