"""What is registered for other compilers."""

from .register import get_pattern_table as get_pattern_table
from .register import register_pattern_table as register_pattern_table
from .register import unregister_pattern_table as unregister_pattern_table
