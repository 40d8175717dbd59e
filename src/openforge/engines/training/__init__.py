"""Training engines: token trees in, new weights out."""

from openforge.engines.training.engine import TrainEngine as TrainEngine
from openforge.engines.training.settings import TrainSettings as TrainSettings
