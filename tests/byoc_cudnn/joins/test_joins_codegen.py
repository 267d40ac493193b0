"""The code of joins: what is taken, what is generated, what the loaded library checks."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi

from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from byoc_cudnn.joins import JOINS, JoinsCall, check, generate, kernels_of
from byoc_cudnn.joins.call import CHANNELS, Piece, Term

PIECE = Piece(8, (Term(0, 0), Term(1, 8)))
CALL = JoinsCall("f", "float16", (8, 16), ((PIECE, Piece(3, ())), (PIECE,)))


def of(*pieces: Piece) -> JoinsCall:
    return replace(CALL, results=(pieces,))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (replace(CALL, dtype="int8"), "dtype 'int8'; there are 'float16'"),
        (replace(CALL, symbol="f-g"), "symbol 'f-g' is no identifier"),
        (replace(CALL, results=()), "a result without channels"),
        (of(), "a result without channels"),
        (of(*[Piece(1, ())] * 41), "41 pieces of 0 terms, at most 40 of 96"),
        (of(Piece(1, (Term(0, 0),) * 97)), "1 pieces of 97 terms, at most 40 of 96"),
        (of(Piece(0, ())), "a piece of 0 channels"),
        (of(Piece(1, (Term(2, 0),))), "operand 2 of 2"),
        (of(Piece(8, (Term(1, 9),))), "channels 9 to 17 of 16"),
        (of(Piece(CHANNELS + 1, ())), f"more than {CHANNELS} channels"),
    ],
)
def test_refusals(call: JoinsCall, reason: str) -> None:
    assert check(call).reason.startswith(reason)
    with pytest.raises(ValueError, match=r"^.*: "):
        generate([call], 90)


def test_a_kernel_serves_all_calls_of_a_dtype() -> None:
    source = generate([CALL, replace(CALL, symbol="g", results=((PIECE,),))], 80)
    assert kernels_of(source) == [(80, "relay_wgrad_joins_float16")]
    assert "join float16 2 of 3 pieces, 4 terms" in source
    with pytest.raises(ValueError, match="is no kernel of tensors joined"):
        JOINS.source_of("relay_wgrad_joins_int8")


def test_what_stays_at_its_place() -> None:
    """All that is read of an operand is where the result has it, and nothing else reads it."""
    kept, more = Piece(8, (Term(0, 0),)), Piece(8, (Term(1, 8),))
    call = JoinsCall("f", "float16", (16, 24), ((kept, more),))
    assert call.overwrites == ((0, 0),)
    assert JOINS.overwrites_of(call) == [(2, 0)]
    for pieces in (
        (Piece(8, (Term(0, 8),)), more),  # from elsewhere
        (Piece(8, (Term(0, 0), Term(1, 0))), more),  # a sum
        (kept, Piece(8, (Term(0, 0),))),  # read once more
        (kept, more, Piece(1, ())),  # a wider result
    ):
        assert replace(call, results=(pieces,)).overwrites == ()
    assert replace(call, results=((kept, more), (kept,))).overwrites == ()


@pytest.mark.longer("compiles C++; of the libraries for convolutions stays")
def test_a_library_checks_its_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    if text := missing(find()):
        pytest.skip(text)
    folder = tmp_path_factory.mktemp("joins")
    path = folder / "joins.cc"
    path.write_text(generate([CALL], 90), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(folder / "cache"))
        command = library_command(path, folder / "joins.so")
    subprocess.run(command, check=True)
    library = tvm_ffi.load_module(str(folder / "joins.so"))
    x = tvm_ffi.from_dlpack(np.zeros((4, 8), "float16"))
    with pytest.raises(TypeError, match="3 pieces, 4 terms: expected 4 tensors, got 2 arguments"):
        library["f"](x, x)
    wide = tvm_ffi.from_dlpack(np.zeros((4, 8), "float32"))
    with pytest.raises(TypeError, match="a tensor must be float16, got float32"):
        library["f"](wide, x, x, x)
    with pytest.raises(ValueError, match="a tensor is not on the CUDA device"):
        library["f"](x, x, x, x)
    assert str(library["relay_wgrad_joins_plans"]()) == ""
