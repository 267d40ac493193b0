"""Training: the trainer, its step, data, states, optimizers."""

from .trainer import OPTIMIZERS, Compiled, Trainer, compile_module, default_lr
from .update import Update

__all__ = ["OPTIMIZERS", "Compiled", "Trainer", "Update", "compile_module", "default_lr"]
