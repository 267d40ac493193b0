"""What structural equality compares besides programs."""

import pytest

from relay_wgrad import relay

TYPES = (
    relay.TensorType((2, 3)),
    relay.TensorType((2, 3), "float16"),
    relay.TupleType((relay.TensorType((2, 3)),)),
    relay.FuncType((relay.TensorType((2, 3)),), relay.TensorType((2, 3))),
)


X, Y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(2, 3))
SUM = relay.add(X, Y)
SPLIT = relay.split(X, 2, axis=0)
FIRST = SPLIT[0]


def _function(body, **attrs):
    return relay.Function((X, Y), body, attrs=attrs)


PROGRAMS = {
    "sum": _function(SUM),
    "other-order": relay.Function((Y, X), SUM),
    "shared": _function(relay.multiply(SUM, SUM)),
    "twice": _function(relay.multiply(relay.add(X, Y), relay.add(X, Y))),
    "attribute": _function(SUM, Primitive=1),
    "float-attribute": _function(SUM, Primitive=1.0),
    "result": relay.Function((X, Y), SUM, relay.TensorType((2, 3))),
    "fields": _function(relay.add(SPLIT[0], SPLIT[1])),
    "field-twice": _function(relay.add(FIRST, FIRST)),
    "let": _function(relay.Let(relay.var("z"), SUM, X)),
    "let-used": _function((lambda z: relay.Let(z, SUM, z))(relay.var("z"))),
    "constant": _function(relay.add(X, relay.const(1.0))),
    "other-constant": _function(relay.add(X, relay.const(1.0, "float16"))),
    "if": _function(relay.If(relay.const(True), X, Y)),
    "empty": _function(relay.Tuple(())),
    "free": relay.Function((X,), SUM),
    "global": _function(relay.Call(relay.GlobalVar("f"), (X,))),
    "type-arguments": _function(relay.Call(X, (X,), type_args=(TYPES[0],))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hashes_differ_where_programs_do(name):
    for other, program in PROGRAMS.items():
        same = relay.structural_hash(program) == relay.structural_hash(PROGRAMS[name])
        assert same == relay.structural_equal(program, PROGRAMS[name]) == (other == name), other


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (_function(relay.add(FIRST, FIRST)), _function(relay.add(SPLIT[0], SPLIT[0]))),
        (
            _function(relay.Tuple((relay.Tuple(()), relay.Tuple(())))),
            _function((lambda unit: relay.Tuple((unit, unit)))(relay.Tuple(()))),
        ),
        (_function(SUM, a=(1, 0.0)), _function(SUM, a=[1, -0.0])),
        (_function(SUM, a=1, b=2), _function(SUM, b=2, a=1)),
    ],
)
def test_equal_programs_have_one_hash(a, b):
    assert relay.structural_equal(a, b)
    assert relay.structural_hash(a) == relay.structural_hash(b)


def test_hashes_of_free_variables_and_modules():
    a, b = relay.exp(X), relay.exp(relay.var("other", shape=(2, 3)))
    assert relay.structural_hash(a) != relay.structural_hash(b)
    assert relay.structural_hash(a, True) == relay.structural_hash(b, map_free_vars=True)
    mod = relay.IRModule.from_expr(PROGRAMS["sum"])
    again = relay.fromtext(mod.astext())
    assert relay.structural_hash(mod) == relay.structural_hash(again)
    assert relay.structural_hash(mod) != relay.structural_hash(mod.with_attr("a", 1))
    assert relay.structural_hash(mod) != relay.structural_hash(relay.IRModule({"f": mod["main"]}))
    with pytest.raises(TypeError, match="expected a Relay program, got 3"):
        relay.structural_hash(3)


@pytest.mark.parametrize("a", TYPES, ids=str)
def test_types(a):
    for b in TYPES:
        assert relay.structural_equal(a, b) == (a is b)
        assert (relay.structural_hash(a) == relay.structural_hash(b)) == (a is b)
    assert not relay.structural_equal(a, relay.var("x", a))


def test_attributes_that_are_maps_from_variables() -> None:
    def function(by_id: bool, which: int = 0) -> relay.Function:
        params = [relay.var(name, shape=(2,)) for name in "xy"]
        key = params[which].vid if by_id else params[which]
        return relay.Function(params, relay.add(*params)).with_attr("given", {key: 1})

    for by_id in (False, True):
        assert relay.structural_equal(function(by_id), function(by_id))
        assert relay.structural_hash(function(by_id)) == relay.structural_hash(function(by_id))
        assert not relay.structural_equal(function(by_id), function(by_id, 1))
    assert not relay.structural_equal(function(True), function(False))
