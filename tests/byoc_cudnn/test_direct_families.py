"""Families of direct calls: what their generated C++ names, their templates declare.

Only a machine with nvcc compiles it, and renaming one of the two is easily half done.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from byoc_cudnn.building.compiled import FAMILIES
from byoc_cudnn.codegen.direct import Family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.room)
def test_names_are_declared(family: Family) -> None:
    call = family.template(f"{family.room}_call.h")
    host = family.template(f"{family.room}_host.h")
    exported = family.exported("kernel", [], "function")
    folder = Path("byoc_cudnn") / family.room / "templates"
    used = "\n".join([exported, family.kernel_type, *(p.read_text() for p in folder.iterdir())])
    declared = set(re.findall(r"(?:struct|using) (RelayWgrad\w+)(?: \{| =)", call))
    assert set(re.findall(r"\bRelayWgrad\w+", used)) <= declared
    assert f"struct {family.row} {{" in host


def test_all_are_here() -> None:
    homes = {path.parents[1].name for path in Path("byoc_cudnn").glob("*/templates/*_call.h")}
    assert {family.room for family in FAMILIES} == homes
