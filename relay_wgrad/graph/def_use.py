"""Who binds and who uses each variable of a function: def-use chains, in one walk over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tvm import relax

from ..ir import is_a, op_name
from .walk import blocks_of, bodies_of, result_of, variables_of

Expr = Any
ELSEWHERE = "the function's result or another block"


class Use(NamedTuple):
    """One use of a variable: the binding, and the argument of its call in which the variable is.

    0 for a value that is no call, -1 for the function that is called.

    place : the binding's among the function's.
    """

    binding: Any
    argument: int
    place: int


class Graph:
    """One view of a Relax function, as it is: it follows no changes.

    A branch's bindings are the function's too, in a block of their own; its `If` uses the
    condition.  A local function is one value, which uses what it captures.

    bindings : in the order of `blocks_of`; index : variable -> its binding's place among them.
    block : variable -> the number of its block; parameters have none.
    value : variable -> its value; none of `match_cast`, which gives a value another type.
    uses : variable -> its uses in program order, as often as an expression has it.
    results : what the function gives, and what a branch gives.
    """

    def __init__(self, func: relax.Function) -> None:
        self.func = func
        self.params = set(func.params[:])
        self.bindings: list[Any] = []
        self._variables: list[relax.Var] = []  # of the bindings
        self.block: dict[relax.Var, int] = {}
        self.value: dict[relax.Var, Expr] = {}
        self.uses: dict[relax.Var, list[Use]] = {}
        for number, block in enumerate(blocks_of(func)):
            for binding in block.bindings[:]:
                self._add(binding, number)
        self.index = {var: i for i, var in enumerate(self._variables)}
        bodies = bodies_of(func)
        self.results = {var for body in bodies for var in variables_of(result_of(body))}

    def _add(self, binding: Any, number: int) -> None:
        value, var, place = binding.value, binding.var, len(self.bindings)
        self.bindings.append(binding)
        self._variables.append(var)
        self.block[var] = number
        if is_a(binding, relax.VarBinding):
            self.value[var] = value
        is_call = is_a(value, relax.Call)
        parts = enumerate([value.op, *value.args[:]], -1) if is_call else ((0, value),)
        for argument, part in parts:
            for used in variables_of(part):
                self.uses.setdefault(used, []).append(Use(binding, argument, place))

    # ---- what binds ------------------------------------------------------------------------------

    def maker(self, expr: Expr) -> Any:
        """The binding of a variable; None for a parameter, and for what is no variable."""
        place = self.index.get(expr) if is_a(expr, relax.Var) else None
        return None if place is None else self.bindings[place]

    def resolved(self, expr: Expr) -> Expr:
        """What an expression is but for other names: the variable or value that was there first."""
        while is_a(expr, relax.Var) and is_a(named := self.value.get(expr), relax.Var):
            expr = named
        return expr

    def bound_to(self, expr: Expr) -> Expr:
        """The value that an expression stands for; a variable where that has none."""
        first = self.resolved(expr)
        return self.value.get(first, first)

    def call(self, expr: Expr, *names: str) -> relax.Call | None:
        """The call that a variable is bound to, if it is one of these operators'."""
        value = self.value.get(expr) if is_a(expr, relax.Var) else None
        return value if value is not None and op_name(value) in names else None

    def needed_for(
        self, exprs: Iterable[Expr], through: Callable[[relax.Var], bool] = lambda var: True
    ) -> set[relax.Var]:
        """The variables that expressions are made of, also by way of others; what one that is not
        `through` is made of is not looked for."""
        found: set[relax.Var] = set()
        rest = [var for expr in exprs for var in variables_of(expr)]
        while rest:
            var = rest.pop()
            if var not in found:
                found.add(var)
                made = self.maker(var)
                rest += variables_of(made.value) if made is not None and through(var) else []
        return found

    # ---- what uses -------------------------------------------------------------------------------

    def made_of(self, variables: Iterable[relax.Var]) -> set[relax.Var]:
        """The variables that are made of some of these, also by way of others."""
        found, rest = set[relax.Var](), list(variables)
        while rest:
            new = {self._variables[i] for i in self._places_using((rest.pop(),))} - found
            found |= new
            rest += new
        return found

    def users_of(self, *variables: relax.Var) -> list[Any]:
        """The bindings that use some of these variables, each once, in program order."""
        return [self.bindings[i] for i in self._places_using(variables)]

    def _places_using(self, variables: Iterable[relax.Var]) -> list[int]:
        """Their places."""
        return sorted({use.place for var in variables for use in self.uses.get(var, ())})

    def only_use(self, var: Expr) -> bool:
        """Whether an intermediate value is used once."""
        return isinstance(var, relax.DataflowVar) and len(self.uses.get(var, ())) == 1

    def sole_user(self, var: relax.Var) -> Any:
        """The binding that alone uses a variable, however often, if it stands in the same block."""
        users = self.users_of(var)
        if len(users) != 1 or var in self.results:
            return None
        return users[0] if self.block[users[0].var] == self.block.get(var) else None

    def sole_use(self, var: relax.Var) -> Any:
        """The sole user, if it uses the variable once."""
        return self.sole_user(var) if len(self.uses.get(var, ())) == 1 else None

    def sole_pair(self, var: relax.Var) -> tuple[Any, Any] | None:
        """The two bindings that alone use a variable, if only the second uses the first; all three
        in one block."""
        users = self.users_of(var)
        if len(users) != 2 or var in self.results or self.sole_user(users[0].var) is not users[1]:
            return None
        return (users[0], users[1]) if self.block[users[0].var] == self.block.get(var) else None

    def is_whole(self, var: relax.Var) -> bool:
        """Whether something uses a tuple as one, so that it has to stay what it is."""
        uses = self.uses.get(var, ())
        fields = all(isinstance(use.binding.value, relax.TupleGetItem) for use in uses)
        return var in self.results or not fields

    def fields_of(self, call: relax.Var) -> list[tuple[int, relax.Var]]:
        """The fields of a tuple, or of another name of it, that have variables: index, variable."""
        names = [call]
        for name in names:
            names += [b.var for b in self.users_of(name) if isinstance(b.value, relax.Var)]
        users = self.users_of(*names)
        items = [b for b in users if isinstance(b.value, relax.TupleGetItem)]
        return [(int(item.value.index), item.var) for item in items]

    def describe_uses(self, var: relax.Var) -> list[str]:
        """What uses a variable, for a reason: names of its own block, and whether others do."""
        users = self.users_of(var)
        here = [b.var for b in users if self.block[b.var] == self.block.get(var)]
        elsewhere = var in self.results or len(here) < len(users)
        return [*(str(v.name) for v in here), *([ELSEWHERE] if elsewhere else [])]
