"""The house rules that no other test would notice: imports, cycles, sizes, rules of each op."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tvm

from relay_wgrad import keys, opdef
from relay_wgrad.ops import ALL, FAMILY

ROOT = Path(__file__).parent.parent
PACKAGES = ("relay_wgrad", "legalize", "byoc_cudnn")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Rooms, from the bottom of the house to its top.  A room imports rooms of the lines before its own,
# not those beside it; imports within functions count.  A file is of the room with the longest name
# that its path begins with.
ROOMS = (
    ("relay_wgrad",),  # the modules that are in no folder: problems, keys, records, threads
    ("relay_wgrad/graph",),
    ("relay_wgrad/facts.py",),  # of a module's functions
    ("relay_wgrad/ops",),
    ("relay_wgrad/registry.py",),
    ("relay_wgrad/transform",),
    ("relay_wgrad/pipeline", "relay_wgrad/building", "relay_wgrad/conventions"),
    ("relay_wgrad/frontend", "relay_wgrad/relay"),
    ("legalize", "byoc_cudnn"),
    ("byoc_cudnn/relay",),
    ("byoc_cudnn/partition.py",),  # which loads `relay` for Relay modules
    ("byoc_cudnn/__init__.py",),
    ("relay_wgrad/training",),
    ("relay_wgrad/inspection", "relay_wgrad/torch", "relay_wgrad/jax"),
    ("relay_wgrad/cli",),
    ("relay_wgrad/__main__.py",),
)
# One room in two folders: operators' homes bring their layout rules, which are made of
# `layout_rules`; and that reads the records of elementwise operators.
WITHIN = {"relay_wgrad/layout_rules": "relay_wgrad/ops"}
# What a package may import beside the standard library.
OURS = {"relay_wgrad", "legalize", "byoc_cudnn"}
BASE = {"tvm", "tvm_ffi", "numpy", "ml_dtypes", *OURS}
ALLOWED = {
    "relay_wgrad": BASE | {"lark", "lazy_loader", "onnx", "google", "rich"},
    "legalize": BASE,
    "byoc_cudnn": BASE | {"rich"},
}
STDLIB = frozenset(__import__("sys").stdlib_module_names)


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, which most tests here look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> Mapping[type[ast.AST], Sequence[Any]]:
    """A file's nodes by their type: a walk takes longer than what the tests then look at."""
    found = defaultdict[type[ast.AST], list[Any]](list)
    for node in ast.walk(parsed(path)):
        found[type(node)].append(node)
    return found


@pytest.fixture(scope="module", autouse=True)
def no_trees_after() -> Iterator[None]:
    """All of them take several hundred MB, which later tests need not carry.

    Nor need the collector look at them, as often as a quarter more have come.
    """
    gc.disable()
    yield
    gc.enable()
    for kept in (parsed, nodes, _texts):
        kept.cache_clear()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _source(path: Path, node: ast.ImportFrom) -> str:
    """The absolute name of the module that a file's `from … import` names."""
    package = list(path.relative_to(ROOT).parts[:-1])
    base = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The absolute module of every import, those within functions too."""
    found = [alias.name for node in nodes(path)[ast.Import] for alias in node.names]
    for node in nodes(path)[ast.ImportFrom]:
        source = _source(path, node)
        for alias in node.names:  # `from . import x` may name a module
            name = f"{source}.{alias.name}"
            file = ROOT / name.replace(".", "/")
            is_module = file.with_suffix(".py").exists() or (file / "__init__.py").exists()
            found.append(name if is_module else source)
    return tuple(found)


MODULES = {module_name(path): path for path in FILES}


DISTRIBUTED = [
    ROOT / "relay_wgrad" / "training" / f"{name}.py" for name in ("exchange", "processes")
]


def test_foreign_packages() -> None:
    for path in FILES:
        allowed = STDLIB | ALLOWED[path.relative_to(ROOT).parts[0]]
        if path.parent == ROOT / "relay_wgrad" / "torch" or path in DISTRIBUTED:
            allowed = allowed | {"torch"}  # an extra, which nothing else needs
        if path.parent == ROOT / "relay_wgrad" / "jax":
            allowed = allowed | {"jax", "jax_tvm_ffi"}  # so too
        foreign = {name.split(".")[0] for name in imports(path)} - allowed
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


PLACES = {room: line for line, rooms in enumerate(ROOMS) for room in rooms}


def _room(path: Path) -> str:
    """The room of a file: the longest name in the table that its path begins with."""
    file = path.relative_to(ROOT)
    names = [str(file), *map(str, file.parents)]
    return next(WITHIN.get(name, name) for name in names if name in PLACES or name in WITHIN)


def test_rooms_import_what_is_below_them() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in imports(path)
        if name in MODULES
        and (other := _room(MODULES[name])) != (room := _room(path))
        and PLACES[other] >= PLACES[room]
    ]
    assert not wrong


def test_the_table_of_rooms_is_whole() -> None:
    rooms = {_room(path) for path in FILES}
    assert rooms == set(PLACES)
    folders = {path.parent for path in FILES if len(path.relative_to(ROOT).parts) == 3}
    ours = {str(f.relative_to(ROOT)) for f in folders if f.parent.name == "relay_wgrad"}
    assert not ours - set(PLACES) - set(WITHIN), "folders without a place in the order"


def test_problem_imports_no_tvm() -> None:
    for name in ("problem.py", "layouts.py", "rules.py"):
        roots = {module.split(".")[0] for module in imports(ROOT / "relay_wgrad" / name)}
        assert "tvm" not in roots


# (importing module, imported): what Relay's API demands of tree nodes and patterns, methods that
# call what is built on them.  The list may only shrink.
CIRCLES = {
    ("relay_wgrad.relay.attributes", "relay_wgrad.relay.records"),  # call.attrs.strides: a default
    *(
        ("relay_wgrad.relay.expr_methods", f"relay_wgrad.relay.{name}")
        for name in ("ast", "make", "op.registration", "text.printer", "variables")
    ),  # x + y, str(x), x.astype(...)
    *(
        ("relay_wgrad.relay.dataflow_pattern.pattern", f"relay_wgrad.relay.dataflow_pattern.{name}")
        for name in ("matcher", "partition")
    ),  # pattern.match(x), pattern.partition(x)
}


def _graph() -> dict[str, set[str]]:
    """Module -> what it imports anywhere, of these packages; a package is not its own part's."""
    names = {module_name(path) for path in FILES}
    return {
        name: {
            other
            for other in imports(path)
            if other in names and other != name and not name.startswith(f"{other}.")
        }
        for path, name in ((path, module_name(path)) for path in FILES)
    }


def test_no_cycles() -> None:
    """Imports within functions count: they are what hides a circle."""
    graph = _graph()
    state: dict[str, int] = {}

    def visit(name: str, trail: list[str]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, " -> ".join([*trail[trail.index(name) :], name])
        state[name] = 1
        for target in sorted(graph[name]):
            if (name, target) not in CIRCLES:
                visit(target, [*trail, name])
        state[name] = 2

    for name in graph:
        visit(name, [])


def test_allowed_circles_are_there() -> None:
    graph = _graph()
    assert not [pair for pair in sorted(CIRCLES) if pair[1] not in graph[pair[0]]]


# ---- a name has one path -------------------------------------------------------------------------


def _gathers(path: Path) -> bool:
    """Whether a file may show what is others': packages their parts, Relay's surface its paths."""
    return path.name == "__init__.py" or path.is_relative_to(ROOT / "relay_wgrad" / "relay")


def test_every_module_has_something_of_its_own() -> None:
    for path in FILES:
        own = [
            node
            for node in parsed(path).body
            if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr))
            and not ast.unparse(node).startswith("__all__")
        ]
        assert own or _gathers(path), f"{path.relative_to(ROOT)} only imports"


def test_names_are_imported_from_their_homes() -> None:
    brought = {
        module_name(path): {
            alias.asname or alias.name
            for node in parsed(path).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for path in FILES
        if not _gathers(path)
    }
    for path in [*FILES, *TESTS, *(ROOT / "benchmarks").rglob("*.py")]:
        for node in nodes(path)[ast.ImportFrom]:
            names = {alias.name for alias in node.names} & brought.get(_source(path, node), set())
            assert not names, f"{path.relative_to(ROOT)}: {names} come from elsewhere"


# ---- switches of the process ---------------------------------------------------------------------

SWITCHES = {
    "relay_wgrad/ambient.py",  # how many threads are out of `parametrize.cached`
    "relay_wgrad/registry.py",  # whether it is registered
    "relay_wgrad/threads.py",  # what a child of fork begins anew
    "relay_wgrad/jax/choice.py",  # set_measured
    "relay_wgrad/torch/cuda_kernels.py",  # set_backends
    "relay_wgrad/torch/kernels.py",  # allow_winograd; who listens which kernels ran
    "relay_wgrad/torch/ops.py",  # no_weight_gradients
}
"""The list may only shrink: files with functions that rebind a global.  The map has the reasons."""


def test_switches_of_the_process_are_known() -> None:
    found = {str(path.relative_to(ROOT)) for path in FILES if nodes(path)[ast.Global]}
    assert found == SWITCHES


# ---- tests ---------------------------------------------------------------------------------------

# Folders of tests that mirror no package.
ASIDE = {"support", "fuzz", "gpu", "golden", "fixtures", "upstream"}


def test_tests_mirror_the_packages() -> None:
    """A folder of tests is named as what it tests, and holds tests alone."""
    for path in TESTS:
        room = path.parent.relative_to(ROOT / "tests")
        if room.parts and room.parts[0] not in ASIDE:
            assert (ROOT / room).is_dir(), f"{path.relative_to(ROOT)}: there is no {room}"
            alone = path.name.startswith("test_") or path.name in ("__init__.py", "conftest.py")
            assert alone, f"{path.relative_to(ROOT)}: what tests share is in tests/support"


def test_no_test_is_imported() -> None:
    for path in [*TESTS, *(ROOT / "benchmarks").rglob("*.py")]:
        found = [name for name in imports(path) if name.split(".")[-1].startswith("test_")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}: move that to tests/support"


def _private(node: ast.expr) -> bool:
    """Whether an expression is a path with a private name in it, `module._name.field`."""
    names = [part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    return any(re.match(r"_(?!_)", name) for name in names)


def _patched(path: Path, ours: set[str]) -> list[str]:
    """Private names of modules of ours that a file puts something in the place of."""
    of = nodes(path)
    targets = [target for node in of[ast.Assign] for target in node.targets]
    targets += [node.target for node in (*of[ast.AugAssign], *of[ast.AnnAssign])]
    found = [target for target in targets if _private(target)]
    for node in of[ast.Call]:
        if ast.unparse(node.func).endswith(
            ("setattr", "setitem", "delattr", "patch", "patch.object")
        ):
            words = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            private = any(re.search(r"(^|\.)_(?!_)", str(word)) for word in words)
            if node.args and (private or _private(node.args[0])):
                found.append(node.args[0])
    # What a path begins with, also where it is a string.
    roots = ((ast.unparse(path).strip("'\"").split(".")[0], path) for path in found)
    return [ast.unparse(path) for root, path in roots if root in ours]


def test_no_test_patches_a_private_name() -> None:
    """What a test replaces is a seam: it is named without an underscore, and says what it is."""
    for path in TESTS:
        ours = set(PACKAGES)
        for node in (*nodes(path)[ast.Import], *nodes(path)[ast.ImportFrom]):
            module = getattr(node, "module", None) or node.names[0].name
            if module.split(".")[0] in PACKAGES:
                ours |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        found = _patched(path, ours)
        assert not found, f"{path.relative_to(ROOT)} patches a private name: {found}"


# ---- operators, the map --------------------------------------------------------------------------


def test_every_op_has_every_rule_or_a_reason() -> None:
    required = (
        opdef.INFER_TYPE, opdef.GRADIENT, opdef.INFER_LAYOUT, opdef.PURITY, opdef.MIXED_POLICY,
        opdef.MIXED_INFER,
    )  # fmt: skip
    assert all(definition.kind is not None for definition in FAMILY.values())
    new = [definition for definition in ALL if definition.is_new]
    for definition in {d.name: d for d in (*FAMILY.values(), *new)}.values():
        assert definition.legalizer or opdef.LEGALIZE in definition.rules, definition.name
        never = definition.rules.get(opdef.MIXED_POLICY) == opdef.MIXED_NEVER
        for key in required:
            if key == opdef.MIXED_INFER and never:
                continue  # what is never cast has no type after a cast
            assert key in definition.rules or definition.missing.get(key), (definition.name, key)
    names = [definition.name for definition in ALL]
    assert len(set(names)) == len(names)
    assert all(definition.summary for definition in ALL)


def test_the_map_names_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:relay_wgrad|legalize|byoc_cudnn|tests)(?:/[\w.]+)*/?)`", text))
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
    rooms = {path.parent for path in FILES if path.name == "__init__.py"}
    top = {str(p.relative_to(ROOT)) for p in rooms if p.parent in (ROOT / "relay_wgrad", ROOT)}
    assert not top - {name.rstrip("/") for name in named}, "rooms that the map does not show"


# ---- a backend is known in its folder alone ------------------------------------------------------

_FOLDERS = (ROOT / "byoc_cudnn" / "backends").iterdir()
BACKENDS = sorted(folder.name for folder in _FOLDERS if (folder / "__init__.py").exists())
NAMING = {
    "byoc_cudnn/backends/__init__.py",  # the list of them
    "byoc_cudnn/partition.py",  # partition_for_cudnn, partition_for_cutlass: public
    "byoc_cudnn/building/components.py",  # a component of the toolchain: cuDNN's headers
    "relay_wgrad/cli/emit.py",  # programs of cuDNN alone
    "relay_wgrad/jax/targets.py",  # JAX's convolutions on CUDA are cuDNN's
    "relay_wgrad/torch/cuda_kernels.py",  # PyTorch's functions on CUDA are cuDNN's
    "relay_wgrad/conventions/__init__.py",  # cuDNN's words for a problem, which no backend needs
}
"""The list may only shrink: files that name a backend whose folder they are not in."""


@cache
def _texts(path: Path) -> frozenset[str]:
    """Strings, but for docstrings and the defaults of functions and of the command line."""
    of = nodes(path)
    defaults = [d for node in of[ast.arguments] for d in (*node.defaults, *node.kw_defaults) if d]
    defaults += [node.value for node in of[ast.keyword] if node.arg in ("default", "choices")]
    aside = {id(node.value) for node in of[ast.Expr]}
    aside |= {id(part) for default in defaults for part in ast.walk(default)}
    found = (c for c in of[ast.Constant] if isinstance(c.value, str) and id(c) not in aside)
    return frozenset(c.value for c in found)


def _backends_named(path: Path) -> set[str]:
    """The backends that a file outside their folders imports, or has as a string."""
    words = {word for text in _texts(path) for word in text.split(",")}
    root = "byoc_cudnn.backends."
    modules = (name.removeprefix(root) for name in imports(path) if name.startswith(root))
    words |= {module.split(".")[0] for module in modules}
    own = path.relative_to(ROOT).parts[:3]
    return {b for b in words.intersection(BACKENDS) if own != ("byoc_cudnn", "backends", b)}


def test_a_backend_is_known_in_its_folder_alone() -> None:
    assert BACKENDS
    naming = {str(path.relative_to(ROOT)): _backends_named(path) for path in FILES}
    found = {name: names for name, names in naming.items() if names}
    assert set(found) == NAMING, {n: found.get(n) for n in set(found) ^ NAMING}


# ---- a key is said once --------------------------------------------------------------------------

KEYS = {value: name for name, value in vars(keys).items() if name.isupper()}
SPELLING = {
    "legalize/composite.py",  # a pass that has a key's name
    "relay_wgrad/inspection/dataflow.py",  # a field of that name
    "relay_wgrad/relay/transform/__init__.py",  # a pass that has a key's name
}
"""The list may only shrink: files that have a key of `relay_wgrad/keys.py` as a string."""


def test_attribute_keys_are_said_once() -> None:
    assert len(KEYS) > 15
    spelt = {str(path.relative_to(ROOT)): _texts(path) for path in FILES}
    found = {name: texts & set(KEYS) for name, texts in spelt.items()}
    assert {name for name, some in found.items() if some} == {"relay_wgrad/keys.py"} | SPELLING


# ---- operators go by names that TVM has ---------------------------------------------------------

NO_OPERATORS = {
    "relax.op.nn.conv2d", "relax.op.nn.conv2d_transpose", "relax.ext.",  # packed functions
    "relax.force_pure", "tirx.is_entry_func", "tirx.disable_cse_tir",  # attributes, and an option
}  # fmt: skip


@pytest.mark.usefixtures("registered")
def test_operators_are_named_as_they_are() -> None:
    """A name that no operator has is a rule that never holds, in silence: TVM renamed
    `tirx.if_then_else`, and choices in bfloat16 were no choices."""
    known = [*map(str, tvm.ir.Op.list_op_names()), *KEYS]
    named = re.compile(r"(relax|tirx|tir|s_tir|prim)\.[a-z_0-9.]+")
    texts = {text for path in FILES for text in _texts(path) if named.fullmatch(text)}
    # Some are beginnings of names.
    assert {x for x in texts if not any(name.startswith(x) for name in known)} == NO_OPERATORS


# ---- a Relax function is walked and written in one room ------------------------------------------


def _walks(path: Path) -> bool:
    """Whether a file reads the blocks of a body: `func.body.blocks`, or `body.blocks`."""
    of_blocks = (node for node in nodes(path)[ast.Attribute] if node.attr == "blocks")
    return any(ast.unparse(node.value).rpartition(".")[2] == "body" for node in of_blocks)


def _builds(path: Path) -> bool:
    calls = (ast.unparse(node.func) for node in nodes(path)[ast.Call])
    return any(name in ("relax.Function", "relax.SeqExpr") for name in calls)


def test_functions_are_walked_and_written_in_one_room() -> None:
    room = {path for path in FILES if path.is_relative_to(ROOT / "relay_wgrad" / "graph")}
    assert {path for path in room if _walks(path) or _builds(path)}
    assert not [path for path in set(FILES) - room if _walks(path)]
    assert not [path for path in set(FILES) - room if _builds(path)]
