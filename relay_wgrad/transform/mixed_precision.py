"""Mixed precision: half-precision convolutions and matrix products in a float32 training graph.

Stock `ToMixedPrecision` knows float16 only, makes results of convolutions float32 whose gradients
then mix dtypes, and the stock gradient refuses bfloat16 parameters.  Here one pass does both half
types, before differentiation, by inserting casts:

* convolutions of the family and matmul take half operands and make a half result, and so does the
  addition of one value per channel to a convolution's, which is rounded to half either way: a
  library's kernel adds it before it rounds;
* relu and max pooling, whose results are roundings of nothing, take and make half;
* training normalization that is one operator takes and makes half tensors, a residual among
  them, beside float32 parameters and statistics; a layer's normalization of rows follows what it
  normalizes: of a residual sum it is float32, as PyTorch's autocast has it;
* reshaping, joining and splitting follow their operands, and so does average pooling but for one
  of whole images, which may be a network's result, and resampling (their sums are float32 in any
  case); what joins operands of both types is half where all that reads it takes half, which is
  rounded once either way;
* with `rounded_products` so does the addition of a bias to a product of matrices for each image or
  pixel, as PyTorch's autocast has it: what a block of linear layers does next is half then;
* with `promoted` sums, products and activations of half tensors alone, but for squares, are
  computed in float32 and rounded to half, as PyTorch's types promote: what a network keeps of
  residual sums is half then;
* everything else (normalization, means, softmax, loss, residual sums, biases of matrix
  products, always those of logits) is float32.

Parameters stay float32: their casts are part of the function, and the cast's gradient brings the
half-precision partials back.  So the family's ops have half operands in the backward part too.
After differentiation `accumulate_wide` makes the matrix products' sums and the biases' gradients
float32; the convolution kernels accumulate in float32 anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.rebuild import Writer, substitute, with_attrs_of, with_bindings, without_unused
from ..graph.walk import bindings_of, dataflow_block
from ..ir import op_name
from ..keys import SYMBOL
from ..layout_rules.in_layout import sizes_of
from ..ops import FAMILY
from ..ops.algebra import WGRADS, wgrad_call
from ..ops.resample import NAME as RESAMPLE
from ..ops.train_norm import FORWARDS, GROUP_FORWARD, is_of_rows
from .surface import check_relax_module

# Always in half precision.
_ALWAYS = frozenset({*FAMILY, "relax.matmul", "relax.nn.relu", "relax.nn.max_pool2d"})
_CONVOLUTIONS = frozenset(name for name, op in FAMILY.items() if not op.is_new)
# In half precision if all their tensors are.
_CONCAT = "relax.concat"
_FOLLOW = frozenset({
    "relax.reshape", "relax.permute_dims", _CONCAT, "relax.split", "relax.squeeze",
    "relax.expand_dims", "relax.strided_slice", "relax.flatten",
    "relax.grad.start_checkpoint", "relax.grad.end_checkpoint", "relax.grad.no_grad",
})  # fmt: skip


# What PyTorch computes of half tensors in float32 and rounds, one operator each there.
_PROMOTED = frozenset({
    "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.sigmoid", "relax.tanh",
    "relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.leakyrelu",
})  # fmt: skip


def mixed_precision(
    mod: tvm.IRModule,
    fn: str = "main",
    *,
    dtype: str,
    promoted: bool = False,
    rounded_products: bool = False,
) -> tvm.IRModule:
    """The module with `fn` in mixed precision; its parameters and results keep their types.

    Parameters
    ----------
    mod : `fn` has one dataflow block and computes in float32.
    dtype : "float16" or "bfloat16", that of the convolutions' and matrix products' operands.
    promoted : whether sums, products and activations of half tensors are rounded to half.
    rounded_products : whether matrix products of three axes and more are rounded to half once their
        bias is added.

    Returns
    -------
    tvm.IRModule : a new module; the one given is not changed.

    Raises
    ------
    ValueError : for another dtype, and where `fn` is no function of one dataflow block.
    """
    if dtype not in HALVES:
        raise ValueError(f"mixed_precision: dtype must be {' or '.join(HALVES)}, got {dtype!r}")
    check_relax_module("mixed_precision", mod)
    func = mod[fn]
    if dataflow_block(func) is None:
        raise ValueError(f"mixed_precision: {fn!r} must be one dataflow block")
    out = mod.clone()
    out[fn] = _Rewriter(dtype, promoted, rounded_products).function(func)
    return out


class _Rewriter:
    """Rebuilds a function binding by binding; each variable has a value in one dtype or in both."""

    def __init__(self, half: str, promoted: bool, rounded_products: bool) -> None:
        self.half, self.promoted, self.rounded_products = half, promoted, rounded_products
        self.builder = relax.BlockBuilder()
        self.users: Any = lambda var: []  # bindings that use an old variable
        self.value: dict[relax.Var, Any] = {}  # old variable -> new one, in its natural dtype
        self.casts: dict[tuple[Any, str], Any] = {}  # (new variable, dtype) -> its cast
        # The old result of a convolution or a product -> its axis of channels.
        self.channels: dict[relax.Var, int] = {}

    def function(self, func: relax.Function) -> relax.Function:
        bb = self.builder
        params = list(func.params)
        graph = Graph(func)
        self.users = lambda var: [] if var in graph.results else graph.users_of(var)
        self.value = {p: p for p in params}
        result = func.body.body
        fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        with bb.function("main", params):
            with bb.dataflow():
                for binding in bindings_of(func):
                    if op_name(binding.value) in _CONVOLUTIONS:
                        attrs = binding.value.attrs
                        layout = str(attrs.out_layout) or str(attrs.data_layout)
                        self.channels[binding.var] = layout.find("C")
                    elif self.rounds(binding.value):
                        self.channels[binding.var] = binding.var.ty.ndim - 1
                    self.value[binding.var] = bb.emit(
                        self.rebuild(binding.value, binding.var), name_hint=binding.var.name
                    )
                # A result is the binding of a variable of its own, in the type it had.
                outputs = [bb.emit_output(self.tensor(f, str(f.ty.dtype))) for f in fields]
            bb.emit_func_output(
                relax.Tuple(outputs) if isinstance(result, relax.Tuple) else outputs[0]
            )
        return with_attrs_of(_canonical(bb.get()["main"]), func)

    def rebuild(self, value: Any, var: relax.Var) -> Any:
        if isinstance(value, relax.TupleGetItem):
            source = self.value.get(value.tuple_value, value.tuple_value)
            return relax.TupleGetItem(source, value.index)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.tensor(f, "float32") for f in value.fields])
        if not isinstance(value, relax.Call):
            return self.value.get(value, value)
        name = op_name(value)
        if name in FORWARDS:
            half = self.half
            if name == GROUP_FORWARD and is_of_rows(value):  # a layer's follow what they normalize
                half = self.dtype_of(self.value.get(value.args[0], value.args[0]))
            args = [self.cast(arg, "float32" if arg.ty.ndim == 1 else half) for arg in value.args]
            return relax.Call(value.op, args, value.attrs, value.ty_args)
        if name == RESAMPLE:  # as PyTorch's autocast; its weights are float32 in any case
            x = self.value.get(value.args[0], value.args[0])
            return relax.Call(value.op, [x, *value.args[1:]], value.attrs, value.ty_args)
        if name in _ALWAYS or self.adds_bias(value):
            dtype = self.half
        elif name in _FOLLOW or _pools_parts(value):
            leaves = [leaf for arg in value.args for leaf in self.leaves(arg)]
            # Parameters' reshapings stay float32: they are cast where they are used.
            halves = [self.dtype_of(leaf) == self.half for leaf in leaves]
            narrow = bool(halves) and all(halves)
            narrow = narrow or (name == _CONCAT and any(halves) and self.is_read_in_half(var))
            dtype = self.half if narrow else "float32"
        else:
            dtype = "float32"
        args = [self.cast(arg, dtype) for arg in value.args]
        # The result's type is inferred anew from the operands.
        call = relax.Call(value.op, args, value.attrs, value.ty_args)
        if dtype == "float32" and self.promotes(value):
            return relax.op.astype(self.builder.emit(call), self.half)
        return call

    def promotes(self, call: relax.Call) -> bool:
        """Whether a call is of half tensors and numbers alone, and one that is rounded then.

        A square is not: it is summed for a norm, for which float16 has too few exponents.
        """
        if not self.promoted or op_name(call) not in _PROMOTED:
            return False
        if op_name(call) == "relax.multiply" and call.args[0].same_as(call.args[1]):
            return False
        leaves = [leaf for arg in call.args for leaf in self.leaves(arg)]
        tensors = [leaf for leaf in leaves if leaf.ty.ndim != 0]
        return bool(tensors) and all(self.dtype_of(leaf) == self.half for leaf in tensors)

    def is_read_in_half(self, var: relax.Var) -> bool:
        """Whether all that reads a variable takes it in half."""
        values = [user.value for user in self.users(var)]
        return bool(values) and all(
            op_name(v) in _ALWAYS or (op_name(v) in FORWARDS and not is_of_rows(v)) for v in values
        )

    def rounds(self, value: Any) -> bool:
        """Whether a value is a product that is rounded with its bias; logits have two axes."""
        return self.rounded_products and op_name(value) == "relax.matmul" and value.ty.ndim > 2

    def adds_bias(self, call: relax.Call) -> bool:
        """Whether a call adds one value per channel to a convolution's or a product's result."""
        if op_name(call) != "relax.add":
            return False
        for whole, bias in (tuple(call.args), tuple(call.args)[::-1]):
            axis = self.channels.get(whole) if isinstance(whole, relax.Var) else None
            sizes = sizes_of(bias.ty)
            if axis is not None and sizes is not None:
                aligned = [1] * (whole.ty.ndim - len(sizes)) + sizes
                wide = [i for i, size in enumerate(aligned) if size != 1]
                return wide in ([], [axis])
        return False

    def leaves(self, arg: Any) -> list[Any]:
        if isinstance(arg, relax.Tuple):
            return [leaf for field in arg.fields for leaf in self.leaves(field)]
        new = self.value.get(arg, arg) if isinstance(arg, relax.Var) else arg
        return [new] if isinstance(new.ty, relax.TensorType) else []

    @staticmethod
    def dtype_of(expr: Any) -> str:
        return str(expr.ty.dtype)

    def cast(self, arg: Any, dtype: str) -> Any:
        """An operand: float tensors in `dtype`, all else (shapes, labels) as it is."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self.cast(field, dtype) for field in arg.fields])
        if isinstance(arg.ty, relax.TensorType):
            return self.tensor(arg, dtype)
        return self.value.get(arg, arg) if isinstance(arg, relax.Var) else arg

    def tensor(self, expr: Any, dtype: str) -> Any:
        new = self.value.get(expr, expr) if isinstance(expr, relax.Var) else expr
        have = self.dtype_of(new)
        if have == dtype or have not in ("float32", self.half):
            return new
        if not isinstance(new, relax.Var):
            return self.builder.emit(relax.op.astype(new, dtype), name_hint="constant")
        key = (new, dtype)
        if key not in self.casts:
            self.casts[key] = self.builder.emit(
                relax.op.astype(new, dtype), name_hint=f"{new.name}_{dtype}"
            )
        return self.casts[key]


def _pools_parts(call: relax.Call) -> bool:
    """Whether a call is an average pooling of parts of images."""
    if op_name(call) != "relax.nn.avg_pool2d":
        return False
    sizes, layout = sizes_of(call.ty), str(call.attrs.out_layout) or str(call.attrs.layout)
    return sizes is not None and [sizes[layout.find(c)] for c in "HW"] != [1, 1]


_DIRECT = frozenset({"relax.matmul", *WGRADS.values()})
_COLLAPSE = "relax.collapse_sum_to"
_SUMS = frozenset({_COLLAPSE})
# TVM 0.27 cannot lower its reduction over (index, value) pairs for bfloat16.
_POOL = "relax.grad.max_pool2d_backward"


def accumulate_wide(mod: tvm.IRModule, fn: str, *, weight_gradients: bool = True) -> tvm.IRModule:
    """Half-precision matrix products and weight gradients of `fn` summed and given in float32.

    For a differentiated function.  The stock matmul sums in its result's dtype, so it gets float32
    as that, and a cast where a half result is wanted.  A cast to float32 right after wgrad is
    folded into it: no gradient of a weight is rounded, or overflows, on the way.  Without
    `weight_gradients` results of both stay half, as PyTorch's autocast has them: this package's
    rules for either sum in float32 all the same, and libraries are much faster at it.  Gradients of
    biases are float32 sums in either case.
    """
    func = mod[fn]
    out = mod.clone()
    out[fn] = _widened(func, _SUMS | _DIRECT if weight_gradients else _SUMS)
    return out


def _widened(func: relax.Function, direct_ops: frozenset[str]) -> relax.Function:
    bindings = bindings_of(func)
    products = {b.var for b in bindings if op_name(b.value) == "relax.matmul"}
    direct = {
        b.var: b.value
        for b in bindings
        if op_name(b.value) in direct_ops
        and str(b.value.ty.dtype) in HALVES
        # A weight's gradient, as a sum over images of products, becomes one product.
        and not (op_name(b.value) == _COLLAPSE and b.value.args[0] in products)
    }
    writer = Writer(dataflow_block(func))
    value: dict[relax.Var, Any] = {}
    wide: dict[relax.Var, Any] = {}  # a result of `direct` in float32
    for binding in bindings:
        var, expr = binding.var, binding.value
        if var in direct:
            wide[var] = writer.emit(var.name, _wide(substitute(expr, value), writer))
            writer.bind(var, relax.op.astype(wide[var], str(expr.ty.dtype)), binding.span)
        elif (
            op_name(expr) == "relax.astype"
            and expr.args[0] in wide
            and str(expr.ty.dtype) == "float32"
        ):
            value[var] = wide[expr.args[0]]
            writer.bind(var, value[var], binding.span)
        elif op_name(expr) == _POOL and str(expr.ty.dtype) == "bfloat16":
            args = [writer.emit("wide", relax.op.astype(a, "float32")) for a in expr.args]
            made = writer.emit("pooled", relax.Call(expr.op, args, expr.attrs, expr.ty_args))
            writer.bind(var, relax.op.astype(made, "bfloat16"), binding.span)
        else:
            writer.keep(binding, value)
    return _canonical(without_unused(with_bindings(func, writer.bindings)))


def _wide(call: relax.Call, writer: Writer) -> relax.Expr:
    args = list(call.args)
    if op_name(call) == "relax.matmul":
        return relax.op.matmul(*args, out_dtype="float32")
    if op_name(call) == _COLLAPSE:
        return relax.op.collapse_sum_to(
            writer.emit("wide", relax.op.astype(args[0], "float32")), args[1]
        )
    read = FAMILY[str(op_name(call))].read_attrs
    assert read is not None
    return wgrad_call(args[0], args[1], replace(read(call), out_dtype="float32"))


def _canonical(func: relax.Function) -> relax.Function:
    """Without the bindings of one variable to another that outputs leave behind."""
    symbol = func.attrs[SYMBOL]
    module = relax.transform.CanonicalizeBindings()(tvm.IRModule({symbol: func}))
    return module[symbol]
