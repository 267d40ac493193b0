"""Objects of one process: a copy or a pickle of one is refused, by what to do instead.

TVM writes neither Relax functions nor compiled programs: it ends the process, or says something of
its own modules.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, SupportsIndex


class Uncopied:
    """`copy`, `deepcopy` and `pickle` raise TypeError, with the class's `instead`."""

    _instead: ClassVar[str]

    def __init_subclass__(cls, instead: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._instead = instead

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be copied or pickled, being one process's:"
            f" {self._instead}"
        )
