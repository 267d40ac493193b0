from .collect import Inspection as Inspection
from .collect import inspect_step as inspect_step
