"""PyTorch's exporter comes without networkx, which is there for whoever wants it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from relay_wgrad.frontend.torch.exporter import load_exporter

networkx = pytest.importorskip("networkx")

_CUTS = "torch._functorch._activation_checkpointing"
# In a process of its own: another has loaded all of it.
_SCRIPT = f"""
import sys
import torch._dynamo
from relay_wgrad.frontend.torch.exporter import load_exporter
load_exporter()
print("torch.export._trace" in sys.modules, "networkx" in sys.modules)
from {_CUTS} import graph_info_provider, knapsack_evaluator
graph = graph_info_provider.nx.DiGraph([(1, 2), (2, 3)])
print(list(knapsack_evaluator.nx.topological_sort(graph)))
import networkx
from networkx.algorithms import dag
print(graph_info_provider.nx.DiGraph is networkx.DiGraph, type(networkx).__name__)
"""


def test_it_comes_late_and_whole() -> None:
    """What was loaded with the stand-in calls networkx when it is called; so does everybody."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True False", "[1, 2, 3]", "True module"]


@pytest.fixture
def exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """The name of a module of that text, which nobody has loaded."""
    name = f"exporter_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text(request.param, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


NOT_YET = (
    'import sys, networkx\nlate = type(networkx).__name__\nassert not hasattr(networkx, "__x")\n'
)


@pytest.mark.parametrize("exporter", [NOT_YET], indirect=True)
def test_one_that_is_loaded_stays(exporter: str) -> None:
    load_exporter(exporter)
    assert sys.modules[exporter].late == "module"
    assert sys.modules["networkx"] is networkx


@pytest.mark.parametrize("exporter", [NOT_YET], indirect=True)
def test_what_only_names_it_does_not_load_it(
    exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "networkx")
    load_exporter(exporter)
    assert sys.modules[exporter].late != "module"
    assert "networkx" not in sys.modules


USES = {
    "an attribute": "import networkx\nsize = networkx.DiGraph([(1, 2)]).size()\n",
    "a name": "from networkx import DiGraph\nsize = DiGraph([(1, 2)]).size()\n",
    "a module": "import networkx.classes as c\nsize = c.DiGraph([(1, 2)]).size()\n",
    "a version": "import networkx\nsize = int(networkx.__version__ > '')\n",
}


@pytest.mark.parametrize("exporter", USES.values(), ids=USES, indirect=True)
def test_what_uses_it_loads_it(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "networkx")
    load_exporter(exporter)
    assert sys.modules[exporter].size == 1
    assert type(sys.modules["networkx"]) is ModuleType


@pytest.mark.parametrize("exporter", ["import networkx\nraise ImportError('no exporter')\n"],
                         indirect=True)  # fmt: skip
def test_an_error_leaves_nothing(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "networkx")
    with pytest.raises(ImportError, match="no exporter"):
        load_exporter(exporter)
    assert "networkx" not in sys.modules
