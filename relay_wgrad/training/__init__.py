"""Training: the trainer, its step, data, states, optimizers."""

from .trainer import OPTIMIZERS, Compiled, Trainer, compile_module, default_lr

__all__ = ["OPTIMIZERS", "Compiled", "Trainer", "compile_module", "default_lr"]
