"""Families of direct calls: what their generated C++ names, their templates declare.

Only a machine with nvcc compiles it, and renaming one of the two is easily half done.  And names
of kernels, which are read back.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from byoc_cudnn.building.compiled import FAMILIES
from byoc_cudnn.codegen.direct import Family
from byoc_cudnn.codegen.kernel_names import name_of, words_of
from byoc_cudnn.codegen.templates import shared


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.has_kernels], ids=lambda family: family.room
)
def test_names_are_declared(family: Family) -> None:
    call = family.template(f"{family.room}_call.h")
    host = family.template(f"{family.room}_host.h")
    exported = family.exported("kernel", [], "function")
    folder = Path("byoc_cudnn") / family.room / "templates"
    used = "\n".join([exported, family.kernel_type, *(p.read_text() for p in folder.iterdir())])
    call += "".join(shared(f"{part}_call.h") for part in family.shares)
    declared = set(re.findall(r"(?:struct|using) (RelayWgrad\w+)(?: \{| =)", call))
    assert set(re.findall(r"\bRelayWgrad\w+", used)) <= declared
    assert f"struct {family.row} {{" in host


def test_all_are_here() -> None:
    homes = {path.parents[1].name for path in Path("byoc_cudnn").glob("*/templates/*_call.h")}
    assert {family.room for family in FAMILIES} == homes


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.room)
def test_names_are_read_back(family: Family) -> None:
    choices = [values if values is not None else ("3x1",) for values in family.words.values()]
    for words in itertools.product(*choices):
        call = SimpleNamespace(**dict(zip(family.words, words, strict=True)))
        name = name_of(family.codegen, call, family.words)
        assert words_of(family.codegen, name, family.words) == (*words, "")
        assert words_of(family.codegen, f"{name}_tail", family.words) == (*words, "_tail")
        assert words_of(family.codegen, f"{name}\n", family.words) is None
    with pytest.raises(ValueError, match="is no kernel of"):
        family.source_of(f"{name}_tail")
    with pytest.raises(ValueError, match="is no kernel of"):
        family.source_of(name.replace("float", "int"))
