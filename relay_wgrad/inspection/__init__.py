"""A training step as a report: its graph, convolutions, layout changes and memory.

`inspect_step(module, …)` gives an `Inspection`, which becomes JSON, Markdown, or one HTML file that
needs no network.  `python -m relay_wgrad inspect` makes one of a model.
"""

from .collect import Inspection, inspect_step

__all__ = ["Inspection", "inspect_step"]
