from .compiled import Compiled as Compiled
from .compiled import compile_module as compile_module
from .optim import OPTIMIZERS as OPTIMIZERS
from .optim import default_lr as default_lr
from .trainer import Trainer as Trainer
from .update import Update as Update
