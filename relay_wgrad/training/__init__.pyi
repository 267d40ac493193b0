from .trainer import OPTIMIZERS as OPTIMIZERS
from .trainer import Compiled as Compiled
from .trainer import Trainer as Trainer
from .trainer import compile_module as compile_module
from .trainer import default_lr as default_lr
from .update import Update as Update
