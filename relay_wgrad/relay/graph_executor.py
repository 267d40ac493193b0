"""`graph_executor.GraphModule`: sets inputs, runs, gets outputs, as Relay's graph executor did."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from .. import threads
from ..argument_types import check_type, checked_integer
from .build import host_array
from .executor_factory import MAIN, Executor, ExecutorFactory, Input
from .memory import allocating
from .param_dict import load_param_dict

_FUNCTIONS = (
    "set_input", "set_input_zero_copy", "load_params", "run", "get_input", "get_input_index",
    "get_input_info", "get_num_inputs", "get_output", "get_num_outputs",
)  # fmt: skip


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per run, one for each repetition."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Seconds."""
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        """Seconds."""
        return min(self.results)

    @property
    def max(self) -> float:
        """Seconds."""
        return max(self.results)

    @property
    def std(self) -> float:
        """Seconds; the population's."""
        return statistics.pstdev(self.results)

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        return ", ".join(f"{name} {getattr(self, name) * 1e3:.4f} ms" for name in names)


def create(graph_json_str: str, libmod: ExecutorFactory, device: Any) -> GraphModule:
    """The executor of a library, from what `graph, lib, params = relay.build(…)` gives.

    Raises
    ------
    TypeError : for what is no library of `relay.build` or `relay.load_module`.
    ValueError : for another library's graph, and for more than one device.
    """
    if not isinstance(libmod, ExecutorFactory):
        raise TypeError(f"create: expected a library, got {type(libmod).__name__}")
    if graph_json_str != libmod.get_graph_json():
        raise ValueError("create: the graph is not the library's own")
    devices = list(device) if isinstance(device, (list, tuple)) else [device]
    return GraphModule(libmod[libmod.libmod_name](*devices))


class GraphModule:
    """A library on a device, with its inputs and outputs.

    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("data", data)
    module.run()
    module.get_output(0).numpy()
    """

    def __init__(self, module: Executor) -> None:
        if not isinstance(module, Executor):
            raise TypeError(
                f"GraphModule takes lib['default'](device), got {type(module).__name__}"
            )
        self._executor = module
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] | None = None

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Sets one input by its name or index, and others by name; arrays are copied.

        As in Relay, numbers of another width become the input's, but no fractions are dropped; a
        TVM tensor must have its dtype.

        Raises ValueError for a name or an index that is none, and for another shape or dtype than
        the input's.
        """
        if key is not None:
            self._set(self._name(key), value)
        for name, array in params.items():
            self._set(self._name(name), array)

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Sets one input to a TVM tensor itself: what its owner writes later, a run reads.

        Raises ValueError as `set_input`, and for a tensor of another device.
        """
        name = self._name(key)
        if not isinstance(value, tvm.runtime.Tensor):
            raise TypeError(f"set_input_zero_copy: {name!r} must be a TVM tensor, got {value!r}")
        self._executor.inputs[name].check("set_input_zero_copy", value)
        if value.device != self._executor.device:
            raise ValueError(
                f"set_input_zero_copy: {name!r} is on {value.device}, not {self._executor.device}"
            )
        self._inputs[name] = value

    @property
    def module(self) -> Mapping[str, Callable[..., Any]]:
        """The methods by their names, as the functions of Relay's module."""
        return {name: getattr(self, name) for name in _FUNCTIONS}

    def load_params(self, params_bytes: bytes) -> None:
        """Sets inputs from what `relay.save_param_dict` wrote; names of no input are ignored."""
        params = load_param_dict(params_bytes)
        self.set_input(
            None, None, **{n: v for n, v in params.items() if n in self._executor.inputs}
        )

    def run(self, **input_dict: Any) -> None:
        """Runs, after setting the inputs given; one that the program does not use need not be set.

        Raises ValueError naming inputs that have not been set, and MemoryError naming the
        program's largest tensor where there is no room.
        """
        self.set_input(None, None, **input_dict)
        for name, given in self._executor.inputs.items():
            if not given.used and name not in self._inputs:
                sizes = tuple(size or 0 for size in given.shape)
                self._inputs[name] = tvm.runtime.empty(sizes, given.dtype, self._executor.device)
        missing = [name for name in self._executor.inputs if name not in self._inputs]
        if missing:
            raise ValueError(f"run: inputs that are not set: {', '.join(missing)}")
        main = self._executor.machine[MAIN]
        inputs = (self._inputs[name] for name in self._executor.inputs)
        on_cpu = str(self._executor.device.type) == "cpu"
        with allocating("run", self._executor.widest):
            self._outputs = _flat(threads.run(main, *inputs) if on_cpu else main(*inputs))

    def get_num_inputs(self) -> int:
        """Inputs that are not parameters of the library."""
        return len(self._executor.inputs)

    def get_num_outputs(self) -> int:
        """Tensors of the result, nested tuples flattened from left to right; needs a run."""
        return len(self._results())

    def get_input(self, index: int | str, out: Any = None) -> Any:
        """An input that has been set; copied into `out` if that is given."""
        name = self._name(index)
        if name not in self._inputs:
            raise ValueError(f"get_input: {name!r} is not set")
        return _copied(self._inputs[name], out)

    def get_input_info(self) -> tuple[dict[str, tuple[int | None, ...]], dict[str, str]]:
        """The inputs' shapes by name, with None for a size that is `?`, and their dtypes."""
        inputs = self._executor.inputs.values()
        return {i.name: _shape(i) for i in inputs}, {i.name: i.dtype for i in inputs}

    def get_input_index(self, name: str) -> int:
        """The place of an input, −1 if there is none of that name."""
        inputs = list(self._executor.inputs)
        return inputs.index(name) if name in inputs else -1

    def get_output(self, index: int, out: Any = None) -> Any:
        """A tensor of the last run's result; copied into `out` if that is given."""
        results = self._results()
        if not 0 <= index < len(results):
            raise ValueError(f"get_output: index {index} of {len(results)} outputs")
        return _copied(results[index], out)

    def benchmark(
        self,
        device: Any,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        end_to_end: bool = False,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Seconds per run, over `repeat` repetitions of `number` runs each, after one run.

        With `min_repeat_ms` a repetition has as many runs as take that long.  `inputs` are set
        before; with `end_to_end` before each run, and its outputs are copied to the host, in the
        time that is measured.

        Raises ValueError for another function than "run" and for counts under 1, TypeError for
        counts that are no integers and what is no device.
        """
        check_type("benchmark: device", device, tvm.runtime.Device, "a device, as tvm.cpu()")
        repeat = checked_integer("benchmark: repeat", repeat, 1)
        number = checked_integer("benchmark: number", number, 1)
        if func_name != "run":
            raise ValueError(f"benchmark: only func_name='run', got {func_name!r}")
        self.run(**inputs)
        device.sync()
        times = []
        for _ in range(repeat):
            runs, start = 0, time.perf_counter()
            while True:
                for _ in range(number):
                    if not end_to_end:
                        self.run()
                        continue
                    self.run(**inputs)
                    for output in self._results():
                        output.numpy()
                device.sync()
                runs += number
                spent = time.perf_counter() - start
                if min_repeat_ms is None or spent * 1e3 >= min_repeat_ms:
                    break
            times.append(spent / runs)
        return BenchmarkResult(tuple(times))

    def _name(self, key: str | int) -> str:
        inputs = list(self._executor.inputs)
        if isinstance(key, str) and key in inputs:
            return key
        if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(inputs):
            return inputs[key]
        raise ValueError(f"no input {key!r}; there are {', '.join(inputs) or 'none'}")

    def _set(self, name: str, value: Any) -> None:
        wanted = self._executor.inputs[name]
        array = host_array("set_input", name, value)
        with allocating("set_input", f"%{name} has {array.nbytes:,} bytes"):
            if not hasattr(value, "numpy") and (
                np.can_cast(array.dtype, wanted.dtype, "same_kind")
                or _is_whole(array, wanted.dtype)
            ):
                array = array.astype(wanted.dtype, copy=False)
            wanted.check("set_input", array)
            # A copy on the executor's device: what the caller does to its own changes nothing here.
            self._inputs[name] = tvm.runtime.tensor(np.array(array), self._executor.device)

    def _results(self) -> list[Any]:
        if self._outputs is None:
            raise ValueError("there are no outputs before run()")
        return self._outputs


def _shape(given: Input) -> tuple[int | None, ...]:
    known: Any = given.shape
    return known if None in known else tvm.runtime.ShapeTuple(known)


def _is_whole(array: Any, dtype: str) -> bool:
    """Whether floats are numbers of a type of integers too: 2.0 is an int32's."""
    if array.dtype.kind != "f" or not dtype.startswith(("int", "uint")):
        return False
    with np.errstate(all="ignore"):
        return bool((array.astype(dtype) == array).all())


def _flat(value: Any) -> list[Any]:
    tensors, left = [], [value]
    while left:
        part = left.pop()
        if hasattr(part, "numpy"):
            tensors.append(part)
        else:
            left += reversed(list(part))
    return tensors


def _copied(tensor: Any, out: Any) -> Any:
    return tensor if out is None else tensor.copyto(out)


__all__ = ["BenchmarkResult", "GraphModule", "create"]
