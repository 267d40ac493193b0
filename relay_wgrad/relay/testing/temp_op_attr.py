"""An operator's attribute for the time of a `with`."""

from __future__ import annotations

from typing import Any

from .. import op as reg


class TempOpAttr:
    """`with TempOpAttr("nn.conv2d", "FTVMLegalize", function):` sets it, and takes it back."""

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self.op = reg.get(op_name)
        self.attr_key = attr_key
        self.attr_value = attr_value

    def __enter__(self) -> TempOpAttr:
        was = self.op.get_attr(self.attr_key)
        self.op.reset_attr(self.attr_key)
        # The package's own stays, so only what a user set is put back.
        self._older = was if was is not self.op.get_attr(self.attr_key) else None
        self.op.set_attr(self.attr_key, self.attr_value)
        return self

    def __exit__(self, *exc: object) -> None:
        self.op.reset_attr(self.attr_key)
        if self._older is not None:
            self.op.set_attr(self.attr_key, self._older)
