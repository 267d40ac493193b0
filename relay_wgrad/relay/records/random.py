"""Random numbers by a key: Threefry, as Relay 0.19 computes it, number for number.

A key is ten words: four are the key proper, two the path of splits, two the counter, two the place
in the path of the next split.  The numbers are hashes of key, path and counter (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3"; Claessen and Palka, "Splittable pseudorandom number
generators using cryptographic hashing").  The hash is Relay's: without the last addition of the
key, and with a count that is added to each word of path and counter.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from ..types import TensorType, TupleType, Type
from .facts import OPAQUE
from .loops import kernel, loops, when
from .table import REQUIRED, Attr, Call, Site, define, show
from .te import choice, count, program

R = relax.op
_WORD = "uint64"
KEY = TensorType((10,), _WORD)
_ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
_PARITY = 0x1BD11BDAA9FC1A22
_ROUNDS, _WORDS = 20, 4


def _word(value: int) -> Any:
    """A constant of 64 bits, which TVM takes in two halves where it has no sign."""
    if value < 1 << 63:
        return tirx.const(value, _WORD)
    low = tirx.const(value & 0xFFFFFFFF, _WORD)
    return (tirx.const(value >> 32, _WORD) << tirx.const(32, _WORD)) | low


def _words(count: int) -> Any:
    return T.buffer_proxy(T.alloc_buffer((count,), _WORD, scope="local"))


def _hash(key: Any, first: int, counter: Any, x: Any) -> None:
    """Into `x` the hash of `counter`, four expressions, by the four words of a key from `first`."""
    full = _words(_WORDS + 1)
    full[_WORDS] = _word(_PARITY)
    for j in range(_WORDS):
        full[j] = key[first + j]
        full[_WORDS] = full[_WORDS] ^ key[first + j]
        x[j] = counter[j]
    for start in range(_ROUNDS // 4):
        for j in range(_WORDS):
            given = full[(start + j) % (_WORDS + 1)]
            x[j] = x[j] + (given + _word(start) if j == _WORDS - 1 else given)
        for k in range(4):
            for j, turn in enumerate(_ROTATIONS[(start * 4 + k) % len(_ROTATIONS)]):
                a, b = 2 * j, 2 * j + 1
                x[a] = x[a] + x[b]
                x[b] = x[a] ^ ((x[b] << _word(turn)) | (x[b] >> _word(64 - turn)))
            held = _words(1)
            held[0] = x[1]
            x[1] = x[3]
            x[3] = held[0]


def _next(a: Any, b: Any) -> tuple[Any, Any]:
    """The place in the path after this one: a bit to the right in two words."""
    none, one = _word(0), _word(1)
    empty = a == none
    last = a == one
    first = tirx.Select(tirx.any(empty, last), none, a >> one)
    second = tirx.Select(last, _word(1 << 63), tirx.Select(empty, b >> one, none))
    return first, second


def _is_full(key: Any) -> Any:
    """Whether the path has no place left."""
    return tirx.all(key[8] == _word(0), key[9] == _word(0))


def _key(call: Call) -> None:
    if call.tensor(0) != KEY:
        call.fail(f"key must be {show(KEY)}, got {show(call.tensor(0))}")


def _generate_type(call: Call) -> Type:
    _key(call)
    shape = call.attrs["out_shape"]
    if min(shape, default=1) < 1:
        call.fail(f"out_shape must be positive, got {list(shape)}")
    return TupleType((KEY, TensorType(tuple(shape), _WORD)))


def generated(s: Site, key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """(the next key, numbers of 64 bits)."""
    total = math.prod(shape)

    def compute(s: Site, key: Any) -> Any:
        def body(ins: list[Any], outs: list[Any]) -> None:
            (given,), (after, out) = ins, outs
            own = _words(10)
            for j in range(10):
                own[j] = given[j]
            with when(given[7] >= tirx.bitwise_not(_word(0)) - _word(total)):
                # No room in the counter: the path goes on, or there is a new key.
                for j in (6, 7):
                    own[j] = _word(0)
                for j, place in enumerate(_next(given[8], given[9])):
                    own[8 + j], own[4 + j] = place, given[4 + j] | given[8 + j]
                with when(_is_full(given)):
                    x = _words(_WORDS)
                    _hash(given, 0, [tirx.bitwise_not(_word(0))] * 4, x)
                    for j in range(_WORDS):
                        own[j] = x[j]
                    for j in (4, 5, 9):
                        own[j] = _word(0)
                    own[8] = _word(1 << 63)
            with loops(total // _WORDS) as i:
                x = _words(_WORDS)
                _hash(own, 0, [own[4 + j] + i.astype(_WORD) for j in range(_WORDS)], x)
                for j in range(_WORDS):
                    out[i * _WORDS + j] = x[j]
            if total % _WORDS:
                own[7] = own[7] + _word(total // _WORDS * _WORDS)
                x = _words(_WORDS)
                _hash(own, 0, [own[4 + j] for j in range(_WORDS)], x)
                for j in range(total % _WORDS):
                    out[total // _WORDS * _WORDS + j] = x[j]
            for j in range(10):
                after[j] = own[j]
            after[6] = _word(0)
            after[7] = own[7] + _word(_WORDS if total % _WORDS else total)

        return kernel("threefry", [key], [((10,), _WORD), ((total,), _WORD)], body)

    made = s.emit(program(s, compute, key))
    after, flat = (s.emit(relax.TupleGetItem(made, i)) for i in range(2))
    return after, s.emit(R.reshape(flat, list(shape)))


def _split_type(call: Call) -> Type:
    _key(call)
    return TupleType((KEY, KEY))


def _split(s: Site, key: Any) -> Any:
    """The key with a zero at the end of its path, and with a one."""

    def body(ins: list[Any], outs: list[Any]) -> None:
        (given,), (left, right) = ins, outs
        places = _next(given[8], given[9])
        for j in range(8):
            left[j] = given[j]
            right[j] = given[j] | given[j + 4] if j in (4, 5) else given[j]
        for j, place in enumerate(places):
            left[8 + j], right[8 + j] = place, place
        with when(_is_full(given)):
            x = _words(_WORDS)
            _hash(given, 0, [given[4 + j] for j in range(_WORDS)], x)
            for out, first in ((left, 0), (right, 1 << 63)):
                for j in range(10):
                    out[j] = x[j] if j < _WORDS else _word({4: first, 8: 1 << 62}.get(j, 0))

    return kernel("threefry_split", [key], [((10,), _WORD)] * 2, body)


def _real_type(call: Call) -> Type:
    _key(call)
    dtype = choice(call, "out_dtype", ("float32", "float64"))
    for index in (1, 2):
        if call.tensor(index) != TensorType((), dtype):
            call.fail(f"{call.inputs[index]} must be of {dtype}, got {show(call.tensor(index))}")
    count(call, "out_shape", len(call.attrs["out_shape"] or ()))
    return TupleType((KEY, TensorType(tuple(call.attrs["out_shape"]), dtype)))


def _unit(bits: Any, dtype: str) -> Any:
    """Bits as a number in [0, 1): the fraction of one in [1, 2)."""
    word, size, fraction, one = {
        "float32": ("uint32", 32, 23, 127), "float64": (_WORD, 64, 52, 1023),
    }[dtype]  # fmt: skip
    made = bits.astype(word) >> tirx.const(size - fraction, word)
    made = made | (tirx.const(one, word) << tirx.const(fraction, word))
    return tirx.reinterpret(dtype, made) - tirx.const(1.0, dtype)


def _uniform(s: Site) -> Any:
    dtype = s.attrs["out_dtype"]
    after, bits = generated(s, s.args[0], tuple(s.attrs["out_shape"]))

    def spread(s: Site, bits: Any, low: Any, high: Any) -> Any:
        return te.compute(
            bits.shape, lambda *i: _unit(bits[i], dtype) * (high[()] - low[()]) + low[()]
        )

    return relax.Tuple([after, s.emit(program(s, spread, bits, *s.args[1:]))])


def _normal(s: Site) -> Any:
    """Box and Muller's: of two uniform numbers one normal one."""
    dtype, shape = s.attrs["out_dtype"], tuple(s.attrs["out_shape"])
    after, bits = generated(s, s.args[0], (2, *shape))

    def bell(s: Site, bits: Any, mean: Any, scale: Any) -> Any:
        one, two = tirx.const(1.0, dtype), tirx.const(-2.0, dtype)
        turn = tirx.const(2 * math.pi, dtype)

        def at(*i: Any) -> Any:
            places = [(tirx.const(k, "int64"), *i) for k in range(2)]
            a, b = (_unit(bits[place], dtype) for place in places)
            made = te.sqrt(two * te.log(one - a)) * te.sin(turn * b)
            return made * scale[()] + mean[()]

        return te.compute(shape, at)

    return relax.Tuple([after, s.emit(program(s, bell, bits, *s.args[1:]))])


_SHAPE = Attr("out_shape", REQUIRED, "sizes")
_REAL = (_SHAPE, Attr("out_dtype", REQUIRED, "dtype", asked="float32"))
define("random.threefry_generate", "key", _generate_type,
       lambda s: relax.Tuple(list(generated(s, s.args[0], tuple(s.attrs["out_shape"])))), "numpy",
       _SHAPE,
       kind=OPAQUE, signature="key, shape: out_shape",
       doc="(the next key, random words of 64 bits); the key must not be used again.")  # fmt: skip
define("random.threefry_split", "key", _split_type, lambda s: program(s, _split, *s.args), "numpy",
       kind=OPAQUE,
       doc="Two keys, for numbers that have nothing to do with each other.")  # fmt: skip
for _name, _ends, _draw, _what in (
    ("uniform", ("low", "high"), _uniform, "numbers in [low, high)"),
    ("normal", ("mean", "scale"), _normal, "normal numbers"),
):
    define(f"random.{_name}", f"key {' '.join(_ends)}", _real_type, _draw, "numpy", *_REAL,
           kind=OPAQUE, numbers=dict.fromkeys(_ends, "out_dtype"),
           signature="key, shape: out_shape, dtype: out_dtype, "
                     f"{_ends[0]}=0.0, {_ends[1]}=1.0",
           doc=f"(the next key, {_what}).")  # fmt: skip
