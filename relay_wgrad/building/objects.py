"""Kernels for a CPU as object files: each by a digest of its loops, those that are new in parallel.

TVM lowers and compiles all kernels of a module in one thread, as one LLVM module, and its JIT makes
machine code of it when the program is loaded.  Here threads share them: TVM's passes and LLVM run
without Python's lock.  An object holds several kernels, because each of LLVM's modules takes 16 ms
of itself, as long as a small kernel; what is kept under a kernel's digest is which object has it.

Neither a kernel's name in its program nor those of its variables are in its digest, and its symbol
is made of that: a training step, an evaluation and a step for another batch share what is equal.
"""

from __future__ import annotations

import heapq
import json
import keyword
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tvm
from tvm import s_tir, tirx
from tvm.ir import GlobalVar
from tvm.target import Target
from tvm_ffi.structural import structural_equal, structural_hash, structural_walk

from ..cores import usable_cores
from ..graph.shared_tasks import shared_tasks
from ..keys import OP_PATTERN, OVERWRITES, SYMBOL
from ..output import working_folder
from .disk_cache import DiskCache, key_of
from .parts import outlined
from .versions import compilers

DEBUG = "RELAY_WGRAD_DEBUG"  # 1 and more: each kernel is told of on standard error
LOWERING = "7"  # of `lowering`, to be raised with it
ENTRY = "tirx.is_entry_func"
# A word that may be a variable's name: no attribute, no argument's name, nothing that is called.
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|(?<![\w.])[A-Za-z_]\w*(?![\w.(=])')
_OF_PASSES = (OP_PATTERN, OVERWRITES)  # what is said of kernels to passes that have been
_A_KERNEL, _A_PART = "kernel_", "part_"  # how their symbols begin
_AHEAD = 4  # kernels of one object that is made ahead
EACH, MOST = 4, 12  # objects for each core at least; kernels in one, more or less, at most
Told = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Object:
    """An object file of kernels.

    symbols : what the kernels of the program are called in it, by their names there; equal ones
        have one.  defined : all that it has, of other programs too.  needs : keys of the parts that
        these call.
    key : of what it was made of.  seconds : each symbol took; 0.0 where it was kept.
    """

    symbols: Mapping[str, str]
    defined: Sequence[str]
    needs: Sequence[str]
    key: str
    content: bytes
    seconds: Mapping[str, float]

    def described(self) -> Iterator[str]:
        """A line of each of its kernels, and whether it was compiled or kept."""
        for symbol in dict.fromkeys(self.symbols.values()):
            names = [name for name, own in self.symbols.items() if own == symbol]
            seconds = self.seconds[symbol]
            how = f"compiled in {seconds:.2f} s" if seconds else "from the cache"
            yield f"{', '.join(names)}: {how}"


@dataclass(frozen=True)
class _Unit:
    """What becomes a part of an object: its functions by their symbols, whether they look at their
    arguments, and how long their text is.  Those that call each other are one.

    parts : units of what they call in other objects (`parts`).
    """

    symbols: Mapping[str, str]
    key: str
    functions: Mapping[GlobalVar, tirx.PrimFunc]
    checks: bool
    length: int
    parts: Sequence[_Unit] = ()


def objects(
    kernels: Mapping[GlobalVar, tirx.PrimFunc],
    target: Target,
    kept: DiskCache,
    told: Told,
    unchecked: Collection[str] = (),
    ahead: Ahead | None = None,
) -> list[Object]:
    """The kernels' objects, in an order that is the same for the same kernels and cache.

    told : is given how many kernels there are, of how many, and how many of these were kept,
        whenever there are more.
    unchecked : names of kernels whose arguments are known to be what they should be.
    ahead : what was begun before; what of it has not begun is not.
    Raises what TVM raises for a kernel that it cannot compile.
    """
    groups, debugs = _groups(kernels), re.match(r"[1-9]", os.environ.get(DEBUG, "")) is not None
    work, cores = _Work(target, kept), len(usable_cores())

    def unit_of(group: Sequence[GlobalVar]) -> _Unit:
        if len(group) > 1:
            return work.together({var: kernels[var] for var in group})
        (var,) = group
        name, function = str(var.name_hint), kernels[var]
        checks = name not in unchecked
        same = ahead.unit_of(function) if ahead and not checks else None
        if same is None:
            return work.alone(name, function, checks)
        return replace(same, symbols=dict.fromkeys([name], *same.symbols.values()))

    with ThreadPoolExecutor(max(1, min(len(groups), cores))) as pool:
        try:
            units = _distinct(pool.map(unit_of, groups))
            begun, parts = (ahead.objects(), ahead.parts()) if ahead else ([], [])
            units = _distinct([*units, *(p for unit in units for p in unit.parts), *parts])
            found, rest = _kept(units, kept, begun)
            waiting = [pool.submit(work.made, some) for some in _shared(rest, cores)]
            known = sum(not seconds for each in found for seconds in each.seconds.values())
            done = len(units) - len(rest)
            if done:
                told(done, len(units), known)
            if debugs:
                _print(found)
            for one_more in as_completed(waiting):
                done += len(one_more.result().seconds)
                told(done, len(units), known)
                if debugs:
                    _print([one_more.result()])
            found += [each.result() for each in waiting]
        except BaseException:  # Ctrl-C too: what has not begun is not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _print(made: Iterable[Object]) -> None:
    for each in made:
        for line in each.described():
            print(line, file=sys.stderr)


class _Work:
    """Kernels compiled for a target in the pass context of whoever makes this, in any thread."""

    def __init__(self, target: Target, kept: DiskCache) -> None:
        self.target, self.kept = target, kept
        now = tvm.transform.PassContext.current()
        self._level, self._config = now.opt_level, dict(now.config)
        self._facts = ("kernel", LOWERING, *settings(target), *compilers())
        self._parts: dict[str, _Unit] = {}

    def alone(self, name: str, function: tirx.PrimFunc, checks: bool) -> _Unit:
        """A kernel."""
        parts: dict[str, _Unit] = {}

        def symbol_of(part: str, made: tirx.PrimFunc) -> str:
            if part not in self._parts:
                self._parts[part] = self._unit(part, _A_PART, made, checks=False)
            parts[part] = self._parts[part]
            return parts[part].symbols[part]

        for key in _OF_PASSES:
            function = function.without_attr(key)
        unit = self._unit(name, _A_KERNEL, outlined(function, symbol_of), checks)
        return replace(unit, parts=list(parts.values()))

    def _unit(self, name: str, kind: str, function: tirx.PrimFunc, checks: bool) -> _Unit:
        text, number = _nameless(function)
        key = key_of([*self._facts, str(checks), text, number])
        symbol = f"{kind}{key[:32]}"
        functions = {GlobalVar(symbol): function.with_attr(SYMBOL, symbol)}
        return _Unit({name: symbol}, key, functions, checks, len(text))

    def together(self, functions: Mapping[GlobalVar, tirx.PrimFunc]) -> _Unit:
        """Kernels that call each other by their names."""
        names = [str(var.name_hint) for var in functions]
        texts = [text for function in functions.values() for text in text_of(function)]
        key, length = key_of([*self._facts, *texts]), sum(map(len, texts))
        return _Unit({name: name for name in names}, key, functions, True, length)

    def made(self, units: Sequence[_Unit]) -> Object:
        """An object of these, which is kept."""
        # A thread has its own pass context, and none of the instruments of its caller's.
        own = tvm.transform.PassContext(opt_level=self._level, config=self._config)
        with own, self.target:
            content, seconds = _compiled(units, self.target)
        symbols = {name: symbol for unit in units for name, symbol in unit.symbols.items()}
        key = key_of(["object", *sorted(unit.key for unit in units)])
        needs = sorted({part.key for unit in units for part in unit.parts})
        put_object(self.kept, key, list(seconds), needs, content)
        for unit in units:
            self.kept.put(unit.key, key.encode())
        return Object(symbols, list(seconds), needs, key, content, seconds)


class _Named(NamedTuple):
    """A kernel under a name that all have, and its hash."""

    number: int
    function: tirx.PrimFunc


class Ahead:
    """Kernels that are as they will be, compiled while passes go over the rest of their program.

    To be left as a context: what has not begun then is not begun.  With one core there is nobody
    for it.
    """

    def __init__(self, target: Target, kept: DiskCache) -> None:
        self._work, self._others = _Work(target, kept), len(usable_cores()) - 1
        self._pool = ThreadPoolExecutor(max(1, self._others))
        self._given: set[int] = set()  # hashes of kernels
        self._waiting: list[_Named] = []
        self._units: dict[int, tuple[tirx.PrimFunc, _Unit]] = {}
        self._parts: list[Future[list[Object]]] = []

    def __enter__(self) -> Ahead:
        return self

    def begin(self, function: tirx.PrimFunc) -> None:
        """Some kernel, which knows its arguments and calls no other: when there are a few."""
        named = function.with_attr(SYMBOL, "kernel")
        number = structural_hash(named)
        if self._others and number not in self._given:
            self._given.add(number)
            self._waiting.append(_Named(number, named))
        if len(self._waiting) == _AHEAD:
            self.begin_rest()

    def begin_rest(self) -> None:
        """What waits for others."""
        if self._waiting:
            self._parts.append(self._pool.submit(self._made, self._waiting))
        self._waiting = []

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def unit_of(self, function: tirx.PrimFunc) -> _Unit | None:
        """That of a kernel which is the same up to names, if it was begun."""
        named = function.with_attr(SYMBOL, "kernel")
        same, unit = self._units.get(structural_hash(named), (None, None))
        return unit if same is not None and structural_equal(same, named) else None

    def wait(self) -> None:
        """Until all is made, or has failed."""
        wait(self._parts)

    def objects(self) -> list[Object]:
        """Those that were begun, when they are there; no more are begun."""
        begun = [part for part in self._parts if not part.cancel()]
        return [made for part in begun for made in part.result()]

    def parts(self) -> list[_Unit]:
        """Of all kernels that were begun, of whatever becomes of them: their objects call these."""
        return [part for _, unit in self._units.values() for part in unit.parts]

    def _made(self, part: Sequence[_Named]) -> list[Object]:
        units = []
        for number, function in part:
            units.append(self._work.alone(f"kernel_{number}", function, checks=False))
            self._units[number] = function, units[-1]
        found, rest = _kept(_distinct(units), self._work.kept)
        return [*found, self._work.made(rest)] if rest else found


_Stored = tuple[Sequence[str], Sequence[str], bytes]
"""Of an object file the symbols, the keys of the parts that it calls, and the content."""


def put_object(
    kept: DiskCache, key: str, symbols: Sequence[str], needs: Sequence[str], content: bytes
) -> None:
    """Keeps an object file of these, which calls parts of these keys."""
    kept.put(key, json.dumps([symbols, needs]).encode() + b"\n" + content)


def get_object(kept: DiskCache, key: str) -> _Stored | None:
    """What `put_object` kept."""
    found = kept.get(key)
    if found is None:
        return None
    line, _, content = found.partition(b"\n")
    return (*json.loads(line), content)


def _part(kept: DiskCache, key: str) -> Object | None:
    """The object of a part, if it is kept."""
    name = (kept.get(key) or b"").decode()
    found = get_object(kept, name) if name else None
    if found is None:
        return None
    symbols, needs, content = found
    same = {symbol: symbol for symbol in symbols}
    return Object(same, symbols, needs, name, content, dict.fromkeys(symbols, 0.0))


def _kept(
    units: Sequence[_Unit], kept: DiskCache, made: Sequence[Object] = ()
) -> tuple[list[Object], list[_Unit]]:
    """Objects that were made or kept, no two of which share a kernel, and what is in none.

    An object may have kernels of other programs, so parts that are no units are among them.
    """
    having = {symbol: each.key for each in made for symbol in each.defined}
    seconds = {symbol: time for each in made for symbol, time in each.seconds.items()}

    def object_of(unit: _Unit) -> str:
        (symbol, *_) = unit.symbols.values()
        return having.get(symbol) or (kept.get(unit.key) or b"").decode()

    keys = {unit.key: object_of(unit) for unit in units}
    stored: dict[str, _Stored] = {
        each.key: (each.defined, each.needs, each.content) for each in made
    }
    for key in dict.fromkeys(keys.values()):
        if key and key not in stored and (contents := get_object(kept, key)):
            stored[key] = contents
    defined: dict[str, str] = {}  # an object by its symbols
    parts: dict[str, Object | None] = {}  # that are no units, by their keys
    for unit in units:
        known = stored.get(keys[unit.key])
        wanted = set(unit.symbols.values())
        if known and wanted <= set(known[0]) and not defined.keys() & set(known[0]):
            others = [need for need in known[1] if need not in keys]
            parts |= {need: _part(kept, need) for need in others if need not in parts}
            if all(parts[need] for need in others):
                defined |= dict.fromkeys(known[0], keys[unit.key])
    found: dict[str, dict[str, str]] = {}
    rest = []
    for unit in units:
        if set(unit.symbols.values()) <= defined.keys():
            (symbol, *_) = unit.symbols.values()
            found[defined[symbol]] = {**found.get(defined[symbol], {}), **unit.symbols}
        else:
            rest.append(unit)
    needed = dict.fromkeys(need for key in found for need in stored[key][1])
    return [
        *(
            Object(
                symbols, *stored[key][:2], key, stored[key][2],
                {symbol: seconds.get(symbol, 0.0) for symbol in symbols.values()},
            )
            for key, symbols in found.items()
        ),
        *filter(None, map(parts.get, needed)),
    ], rest  # fmt: skip


def _shared(units: Sequence[_Unit], cores: int) -> list[list[_Unit]]:
    """Parts of about equal length, the longest first; enough of them that no core waits long."""

    def is_alone(unit: _Unit) -> bool:  # a part is with no program's kernels
        return len(unit.functions) > 1 or any(map(_is_part, unit.symbols.values()))

    alone = [[unit] for unit in units if is_alone(unit)]
    rest = sorted((u for u in units if not is_alone(u)), key=lambda u: (-u.length, u.key))
    count = min(len(rest), max(EACH * cores, math.ceil(len(rest) / MOST)))
    parts: list[list[_Unit]] = [[] for _ in range(count)]
    lengths = [(0, i) for i in range(count)]
    for unit in rest:
        length, i = heapq.heappop(lengths)
        parts[i].append(unit)
        heapq.heappush(lengths, (length + unit.length, i))
    return alone + parts


def _compiled(units: Sequence[_Unit], target: Target) -> tuple[bytes, dict[str, float]]:
    """An object file of units, and how much of a processor's time each symbol took: of what LLVM
    takes for all, a share by the length of its text."""
    functions: dict[GlobalVar, tirx.PrimFunc] = {}
    seconds: dict[str, float] = {}
    for unit in units:
        start = time.thread_time()
        functions |= lowered(tvm.IRModule(dict(unit.functions)), target, unit.checks)
        seconds |= dict.fromkeys(unit.symbols.values(), time.thread_time() - start)
    start = time.thread_time()
    content = content_of(library_of(functions, target))
    each = (time.thread_time() - start) / sum(unit.length for unit in units)
    for unit in units:
        for symbol in dict.fromkeys(unit.symbols.values()):
            seconds[symbol] += each * unit.length
    return content, seconds


def symbols_of(made: Iterable[Object]) -> dict[str, str]:
    """What all their kernels are called in them, by their names in the program; no parts."""
    return {
        name: symbol for each in made for name, symbol in each.symbols.items()
        if not _is_part(symbol)
    }  # fmt: skip


def _is_part(symbol: str) -> bool:
    return symbol.startswith(_A_PART)


def _distinct(units: Iterable[_Unit]) -> list[_Unit]:
    """Of equal kernels one, with the names of all."""
    found: dict[str, _Unit] = {}
    for unit in units:
        same = found.get(unit.key)
        found[unit.key] = (
            unit if same is None else replace(same, symbols={**same.symbols, **unit.symbols})
        )
    return list(found.values())


def text_of(function: Any) -> tuple[str, str]:
    """A function's text, and a hash of what a text may round or leave out."""
    return function.script(), str(structural_hash(function))


def _nameless(function: tirx.PrimFunc) -> tuple[str, str]:
    """As `text_of`, whatever the function and its variables are called: a variable's name is its
    place among them."""
    places: dict[str, str] = {}

    def place(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] == '"' or keyword.iskeyword(word):
            return word
        return places.setdefault(word, f"v{len(places)}")

    text, number = text_of(function.with_attr(SYMBOL, "kernel"))
    return _WORD.sub(place, text), number


def settings(target: Target) -> tuple[str, str, str]:
    """What decides how anything is compiled here: target and pass context, but its instruments."""
    now = tvm.transform.PassContext.current()
    return str(target), str(now.opt_level), repr(sorted(map(str, now.config.items())))


def compiled_library(module: tvm.IRModule, target: Target) -> Any:
    """LLVM's module of a module of kernels."""
    return library_of(lowered(module, target), target)


def lowered(
    module: tvm.IRModule, target: Target, checks: bool = True
) -> dict[GlobalVar, tirx.PrimFunc]:
    """A module's kernels as LLVM's code generator takes them.

    checks : whether they look at each argument's type, shape and strides.  That, and what they say
        where it is wrong, is three quarters of a small one's machine code.
    """
    made = lowering(target)(tirx.transform.BindTarget(target.with_host(target))(module))
    if not checks and not any(map(_asserts, module.functions.values())):
        made = tirx.transform.SkipAssert()(made)
    # A module's only function would be its entry, under one name for all.
    return {var: func.without_attr(ENTRY) for var, func in made.functions_items()}


def library_of(functions: Mapping[GlobalVar, tirx.PrimFunc], target: Target) -> Any:
    """LLVM's module of lowered kernels."""
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(dict(functions)), target)


def _asserts(function: tirx.PrimFunc) -> bool:
    """Whether a kernel has conditions of its own (`relay_wgrad.conditions`)."""
    found: list[Any] = []
    structural_walk(function.body, (tirx.AssertStmt, found.append))
    return bool(found)


def content_of(library: Any) -> bytes:
    """The object file that LLVM makes of its module."""
    with working_folder() as folder:
        library.write_to_file(str(folder / "module.o"), "o")
        return (folder / "module.o").read_bytes()


def lowering(target: Target) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """TVM's lowering of loops for a CPU: its own list without the passes that are of GPUs alone,
    and without those whose work LLVM does again: common subexpressions, conditions that do not
    change in a loop, forms of quotients and remainders, and simplification before the last.  What
    LLVM then makes is 1 % larger, and each of them rewrites all of a convolution's unrolled tile.

    A kernel of loops over flat memory, a convolution's, has nothing for the passes over blocks and
    over memory's shapes, which take two fifths of its time: its machine code is the same without.

    With options for the lowering in the pass context it is TVM's own, whole.
    """
    config = tvm.transform.PassContext.current().config
    if any(str(name).startswith("tirx.") for name in config):
        passes, host, _ = tirx.get_default_tir_pipeline(target)
        return lambda module: host()(passes(module))
    loops, scalars = s_tir.transform, tirx.transform
    of_blocks = [loops.CompactBufferAllocation(), loops.LowerMatchBuffer()]
    passes = [
        loops.CanonicalizeLoop(), loops.LowerInitBlock(),
        loops.PlanAndUpdateBufferAllocationLocation(), loops.ConvertBlocksToOpaque(),
        *of_blocks, loops.AnnotateIrregularLoop(), loops.LowerOpaqueBlock(), shared_tasks(target),
        flatten := scalars.FlattenBuffer(),
        scalars.BF16ComputeLegalize(), scalars.NarrowDataType(32), loops.LoopPartition(),
        scalars.VectorizeLoop(True), scalars.StorageRewrite(), scalars.UnrollLoop(),
        scalars.StmtSimplify(), loops.RewriteUnsafeSelect(), scalars.FP8ComputeLegalize(),
        scalars.VerifyMemory(), scalars.SplitHostDevice(), scalars.MakePackedAPI(),
        scalars.FP8StorageLegalize(), scalars.BF16StorageLegalize(), scalars.LowerTVMBuiltin(),
        scalars.LowerIntrin(),
    ]  # fmt: skip

    def lower(module: tvm.IRModule) -> tvm.IRModule:
        idle = [*of_blocks, flatten] if all(map(_is_flat, module.functions.values())) else []
        needed = [each for each in passes if not any(each is one for one in idle)]
        return tvm.transform.Sequential(needed)(module)

    return lower


def _is_flat(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is loops over flat memory already, as a convolution's emitters write it."""
    blocks: list[Any] = []
    places: list[Any] = []
    structural_walk(function.body, (s_tir.SBlock, blocks.append))
    for kind in (tvm.ir.TensorLoad, tirx.BufferStore) if not blocks else ():
        structural_walk(function.body, (kind, places.append))
    return not blocks and all(len(each.indices) == 1 for each in places)


def _groups(kernels: Mapping[GlobalVar, tirx.PrimFunc]) -> list[list[GlobalVar]]:
    """Each kernel alone, by name; where one calls another, all together."""
    others: list[GlobalVar] = []
    for function in kernels.values():
        structural_walk(function.body, (GlobalVar, others.append))
    ordered = sorted(kernels, key=lambda var: str(var.name_hint))
    return [ordered] if others else [[var] for var in ordered]
