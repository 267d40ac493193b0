"""TVM's schedule of a kernel, without the checks of its arguments' types.

Each method of TVM's is wrapped in one that binds its arguments and holds them against its type
hints, in Python: two fifths of a schedule's time, which our own calls of it do not need.
"""

from __future__ import annotations

from tvm import s_tir


class QuickSchedule(s_tir.Schedule):
    """What the wrapped methods are; TVM itself still refuses what is wrong for a kernel."""


for _name, _method in vars(s_tir.Schedule).items():
    if (_own := getattr(_method, "__wrapped__", None)) is not None:
        setattr(QuickSchedule, _name, _own)
