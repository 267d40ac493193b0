"""Training: the trainer, its step, data, states, optimizers."""

from ..lazy_package import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
