"""OpDef: one record per operator, with all the rules that TVM keeps about it.

A record says which rules it brings; `registry.register` puts them into TVM's op registry, above
upstream's where there are any, and `registry.unregister` puts upstream's back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .attrs import ConvAttrs
from .conditions import Conditions
from .problem import ConvKind

Rule = Callable[..., Any]

# The keys under which TVM's op registry keeps rules, by the names used here.
INFER_TYPE = "FInferType"
GRADIENT = "FPrimalGradient"
LEGALIZE = "FLegalize"
INFER_LAYOUT = "FRelaxInferLayout"
PURITY = "FPurity"
MIXED_POLICY = "TMixedPrecisionPolicy"
MIXED_INFER = "FInferMixedPrecision"

FAMILY_LEGALIZER = "legalize.rules:legalize_rule"
# tvm::relax::MixedPrecisionPolicyKind: cast operands to the half type, or to float32
MIXED_ALWAYS, MIXED_NEVER = 0, 2


@dataclass(frozen=True)
class OpDef:
    """One operator: its name, its arguments, its rules.

    Attributes
    ----------
    name : the name in TVM's registry, such as `relax.nn.conv2d_backward_weight`.
    summary : one line.
    arguments : (name, type, meaning) of each argument; empty for an op that upstream owns.
    variadic : whether the last ones may be missing.
    rules : op registry key -> rule.
    kind, read_attrs : for the convolution family, which derivative it computes, and how its
        attributes read in the forward convolution's terms.
    legalizer : "module:function" of the rule's maker, which takes this record and upstream's rule.
        A name, since lowerings live above this package and are found when registering.
    sizes : the rules of a call's sizes, asked when it is legalized with what is left to the run.
    constructor : what becomes `tvm.relax.op.nn.<short name>`; None for upstream's ops.
    missing : op registry key -> why the op has no such rule (a test asks for the reason).
    """

    name: str
    summary: str
    rules: dict[str, Any]
    arguments: tuple[tuple[str, str, str], ...] = ()
    variadic: bool = False
    kind: ConvKind | None = None
    read_attrs: Callable[[Any], ConvAttrs] | None = None
    legalizer: str | None = None
    sizes: Callable[[Any, Conditions], object] | None = None
    constructor: Rule | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """`conv2d_backward_weight` of `relax.nn.conv2d_backward_weight`."""
        return self.name.rpartition(".")[2]

    @property
    def is_new(self) -> bool:
        """Whether the op is ours, not upstream's with rules of ours."""
        return self.constructor is not None
