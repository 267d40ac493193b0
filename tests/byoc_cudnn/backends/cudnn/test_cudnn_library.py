"""The library of all convolutions: it compiles, checks what it is given, and is built once."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi

from byoc_cudnn.backends.cudnn import loaded as cudnn_library
from byoc_cudnn.backends.cudnn.check import Options
from byoc_cudnn.backends.cudnn.loaded import CONVOLUTION, arguments, source
from byoc_cudnn.building import fixed_source
from byoc_cudnn.building.toolchain import ToolchainError, find
from relay_wgrad.building import disk_cache
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.torch import cuda_kernels
from tests.support.children import run_code

ROOT = Path(__file__).parents[4]
PROBLEM = ConvProblem.parse("wgrad n=2 c=8 h=9 w=8 k=16 r=3 s=3 stride=2,1 pad=1,2,1,2 groups=2")

# Stand-ins for the compiler; they note how they were called.
CALLS = '#!/bin/sh\necho "$@" >> "{log}"\n'
REAL = CALLS + 'exec {cxx} "$@" -O0\n'
COPIES = CALLS + (
    'case "$*" in *--version) echo "version {version}"; exit 0;; esac\n'
    '{first}\nwhile [ "$1" != -o ]; do shift; done\nexec cp "{library}" "$2"\n'
)


@dataclass(frozen=True)
class Setting:
    """A cache and a compiler of their own."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        cache, compiler = self.root / "cache", self.root / "c++"
        return {**os.environ, "RELAY_WGRAD_CACHE": str(cache), "CXX": f"{compiler} -Wall -Werror"}

    @property
    def folder(self) -> Path:
        return self.root / "cache" / "cudnn-library"

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def compiler(self, text: str, **values: Any) -> None:
        program = self.root / "c++"
        program.write_text(text.format(log=self.root / "log", **values))
        program.chmod(0o755)

    def load(self) -> Any:
        return cudnn_library.LIBRARY.load(self.environ)

    @property
    def compilations(self) -> int:
        log = self.root / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return sum("-shared" in line for line in lines)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, Any]:
    """The real library, without a warning."""
    if text := find().missing():
        pytest.skip(text)
    setting = Setting(tmp_path_factory.mktemp("real"))
    setting.compiler(REAL, cxx=" ".join(find().compiler))
    return setting, setting.load()


@pytest.fixture
def copied(real: tuple[Setting, Any], tmp_path: Path) -> Setting:
    """Nothing built yet, and a compiler that copies what was built."""
    setting = Setting(tmp_path)
    setting.compiler(COPIES, version=1, first="", library=real[0].files[0])
    return setting


@pytest.mark.longer("compiles C++")
def test_another_process_compiles_nothing(real: tuple[Setting, Any]) -> None:
    setting, _ = real
    (path,) = setting.files
    before = path.stat()
    code = (
        "from byoc_cudnn.backends.cudnn import loaded as it;"
        "from byoc_cudnn.backends.cudnn.check import Options;"
        "from relay_wgrad.problem import ConvProblem;"
        f"print(it.convolution(ConvProblem.parse({PROBLEM.repro()!r}), Options()), it.plans())"
    )
    done = run_code(code, env=setting.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")
    assert setting.compilations == 1
    assert setting.files == [path]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert stat.S_IMODE(setting.folder.stat().st_mode) == 0o700
    assert not stat.S_IMODE(before.st_mode) & 0o077


TABLE: list[tuple[int, Any, type[Exception], str]] = [
    (1, "conv", ValueError, "kind must be one of fprop, dgrad, wgrad, got conv"),
    (2, "NCHW/OIHW/NHWC", ValueError, "layouts must be one of NCHW/OIHW/NCHW, NHWC/OHWI/NHWC, NC"),
    (2, "NCDHW/OIDHW/NCDHW", ValueError, "strides must have 3 values, got 2"),
    (3, ("float32",) * 2, ValueError, "dtypes must have 3 values, got 2"),
    (3, ("float32", "float64", "float32"), ValueError, "one of float16, bfloat16, float32, got fl"),
    (4, (1, 0), ValueError, "strides must be at least 1 and less than 2147483648, got 0"),
    (4, (2**31, 1), ValueError, "strides must be at least 1 and less than .*, got 2147483648"),
    (4, (1, 1, 1), ValueError, "strides must have 2 values, got 3"),
    (4, (2**64, 1), TypeError, "argument #4"),
    (5, (0, 1, 1, 1), ValueError, r"padding must be symmetric, got \(0, 1, 1, 1\)"),
    (5, (0, -1, 0, -1), ValueError, "padding must be at least 0 and less than .*, got -1"),
    (5, (0, 0), ValueError, "padding must have 4 values, got 2"),
    (6, (-(2**40), 1), ValueError, "dilation must be at least 1 and less than .*, got -1099511627"),
    (7, 0, ValueError, "groups must be at least 1 and less than 2147483648, got 0"),
    (7, "1", TypeError, "argument #7"),
    (8, ["fast"], ValueError, "one of allow_tf32, deterministic, benchmark, got fast"),
    (9, -2, ValueError, "workspace_limit must be at least 0, or -1 for none, got -2"),
]


@pytest.mark.parametrize(("place", "value", "kind", "message"), TABLE)
def test_attributes_are_checked(
    place: int, value: Any, kind: type[Exception], message: str, real: tuple[Setting, Any]
) -> None:
    given = list(arguments(PROBLEM, Options(benchmark=True, workspace_limit=0)))
    given[place] = value
    with pytest.raises(kind, match=message):
        real[1][CONVOLUTION](*given)


def test_the_text_alone_does_not_tell_convolutions_apart(real: tuple[Setting, Any]) -> None:
    given = list(arguments(PROBLEM, Options()))
    tensors = [torch.zeros(PROBLEM.shape(role)) for role in PROBLEM.roles]
    for place, value, kind, message in (
        (7, 2, ValueError, "data is not on the CUDA device"),
        (3, ("float16",) * 3, TypeError, "another dtype"),
        (1, "dgrad", ValueError, "not on the CUDA device"),
    ):
        changed = [*given[:place], value, *given[place + 1 :]]
        with pytest.raises(kind, match=message):
            real[1][CONVOLUTION](*changed)(*tensors)


class _OnADevice:
    """A tensor that says that it is on a CUDA device, for what is found before memory is read."""

    def __init__(self, tensor: Any) -> None:
        self.made = tensor.__dlpack__()
        self.keep = tensor
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # struct DLTensor: the data's address, then the device's type.
        place = pointer(self.made, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(place).value = 2

    def __dlpack__(self, **_: Any) -> Any:
        return self.made

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


KINDS = pytest.mark.parametrize("kind", ConvKind)


@KINDS
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"n": 3}, "N=3"), ({"h": 12}, "H=12"), ({"c": 10}, "C=10"), ({"k": 18}, "K=18"),
    ],
)  # fmt: skip
def test_shapes_are_checked(
    kind: ConvKind, changed: dict[str, int], says: str, real: tuple[Setting, Any]
) -> None:
    """One tensor of another problem: all sizes are in the error, with what was expected."""
    problem = replace(PROBLEM, kind=kind)
    function = real[1][CONVOLUTION](*arguments(problem, Options()))
    role = "weight" if "k" in changed else "data"
    shapes = {each: problem.shape(each) for each in problem.roles}
    shapes[role] = replace(problem, **changed).shape(role)
    tensors = [tvm_ffi.from_dlpack(_OnADevice(torch.zeros(shapes[each]))) for each in problem.roles]
    message = f"^{problem.repro()}: shapes that do not fit each other: .*{says}.*expected P="
    with pytest.raises(ValueError, match=message):
        function(*tensors)


@KINDS
@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "OHWI")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_calls_are_checked(
    kind: ConvKind, layouts: tuple[str, str], dtype: str, real: tuple[Setting, Any]
) -> None:
    """Each tensor is read as what it is; then it is found that none is on a device."""
    data, weight = layouts
    problem = replace(
        PROBLEM, kind=kind, data_layout=data, kernel_layout=weight, grad_layout=data,
        data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
    )  # fmt: skip
    function = real[1][CONVOLUTION](*arguments(problem, Options()))
    tensors = [torch.zeros(problem.shape(r), dtype=getattr(torch, dtype)) for r in problem.roles]
    with pytest.raises(ValueError, match=rf"^{problem.repro()}: data is not on the CUDA device"):
        function(*tensors)
    place = problem.roles.index("data")
    tensors[place] = tensors[place].double()
    with pytest.raises(TypeError, match="data has another dtype"):
        function(*tensors)
    with pytest.raises(TypeError, match="expected 3 tensors, got 2 arguments"):
        function(*tensors[:2])
    with pytest.raises(TypeError, match="Tensor"):
        function(tensors[0], 1, tensors[2])


@KINDS
@pytest.mark.parametrize("pad", ["1,1,1,1", "0,1,2,0"])
def test_pytorchs_kernels(
    kind: ConvKind, pad: str, real: tuple[Setting, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the library's, lopsided padding or not; nothing is compiled for them."""
    monkeypatch.setattr(cudnn_library.LIBRARY, "loaded", real[1])
    monkeypatch.setattr(fixed_source, "run_tool", None)
    problem = ConvProblem.parse(f"{kind.value} n=1 c=4 h=5 w=6 k=2 r=2 s=2 pad={pad}")
    asked = cuda_kernels.Asked(False, True, True)
    name, kernel = cuda_kernels.kernel(problem, torch.device("cuda"), asked)
    assert name == "cudnn"
    top, left, bottom, right = problem.padding
    inner = problem if (top, left) == (bottom, right) else cuda_kernels._unpadded(problem)
    with pytest.raises(ValueError, match=rf"^{inner.repro()}: data is not on the CUDA device"):
        kernel(*(torch.zeros(problem.shape(role)) for role in problem.roles))


def test_a_library_is_built_once(copied: Setting) -> None:
    for _ in range(2):
        copied.load()
    assert copied.compilations == 1
    assert len(copied.files) == 1


def test_the_key_has_what_the_library_depends_on(copied: Setting) -> None:
    found, text = find(copied.environ), source()
    digests = [
        fixed_source.digest(text, found),
        fixed_source.digest(text + "\n", found),
        fixed_source.digest(text, replace(found, compiler=(*found.compiler, "-O3"))),
        fixed_source.digest(text, replace(found, cudnn=replace(found.cudnn, version=(9, 99)))),
        fixed_source.digest(text, replace(found, cuda=replace(found.cuda, version=(13, 9)))),
        fixed_source.digest(text, replace(found, cuda=replace(found.cuda, includes=()))),
    ]
    copied.compiler(COPIES, version=2, first="", library="")
    digests.append(fixed_source.digest(text, found))
    assert len(set(digests)) == len(digests)
    assert fixed_source.digest(text, found) == digests[-1]


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "longer", "link", "not a file"])
def test_a_damaged_library_is_built_anew(damage: str, copied: Setting) -> None:
    copied.load()
    (path,) = copied.files
    content = path.read_bytes()
    path.unlink()  # it is in use, so its bytes must stay
    middle = len(content) // 2
    damaged = {
        "empty": b"",
        "short": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "longer": content + b"\0",
    }
    if damage == "link":
        (copied.root / "elsewhere").write_bytes(content)
        path.symlink_to(copied.root / "elsewhere")
    elif damage == "not a file":
        path.mkdir()
        with pytest.warns(RuntimeWarning, match=rf"built anew in each process: {path}: Is a dir"):
            copied.load()
        path.rmdir()
    else:
        path.write_bytes(damaged[damage])
    calls = copied.compilations
    copied.load()
    assert copied.compilations == calls + 1
    assert copied.files == [path]
    assert not path.is_symlink()
    assert path.read_bytes() == content


@pytest.mark.parametrize("fault", ["foreign", "writable", "link", "file"])
def test_a_folder_that_cannot_be_trusted(
    fault: str, copied: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is loaded: what has the right name there is no library.  All else works."""
    copied.load()
    (path,) = copied.files
    path.unlink()
    library = b"no library"
    disk_cache.write(path, library)
    message = "the folder must be yours alone"
    if fault == "foreign":
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    elif fault == "writable":
        copied.folder.chmod(0o770)
    elif fault == "link":
        copied.folder.rename(copied.root / "elsewhere")
        copied.folder.symlink_to(copied.root / "elsewhere")
    else:
        shutil.rmtree(copied.folder)
        copied.folder.write_text("")
        message = "set RELAY_WGRAD_CACHE to a folder that you may write"
    with pytest.warns(RuntimeWarning, match=message) as caught:
        module = copied.load()
    assert str(caught[0].message).startswith("cuDNN's library is built anew in each process")
    assert module[CONVOLUTION](*arguments(PROBLEM, Options())) is not None
    assert copied.compilations == 2
    if fault != "file":
        assert path.read_bytes().startswith(library)


def test_what_the_compiler_says_is_in_the_error(copied: Setting) -> None:
    copied.compiler(COPIES, version=1, first="echo 'no such luck' >&2; exit 2", library="")
    with pytest.raises(ToolchainError, match=r"the compiler failed:\n[^\n]+\nno such luck"):
        copied.load()
    assert copied.files == []
    (copied.root / "c++").write_text("#!/bin/nothing\n")
    with pytest.raises(ToolchainError, match="No such file"):
        copied.load()


def test_builders_at_the_same_time(copied: Setting, real: tuple[Setting, Any]) -> None:
    """`load` has no lock: these are as two processes are."""
    copied.compiler(COPIES, version=1, first="sleep 0.3", library=real[0].files[0])
    with ThreadPoolExecutor(3) as pool:
        modules = list(pool.map(lambda _: copied.load(), range(3)))
    assert copied.compilations == 3
    assert len(copied.files) == 1
    assert all(m[CONVOLUTION](*arguments(PROBLEM, Options())) is not None for m in modules)
    copied.load()
    assert copied.compilations == 3


def test_threads_build_it_once(real: tuple[Setting, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def load() -> Any:
        loads.append(threading.get_ident())
        time.sleep(0.1)
        return real[1]

    monkeypatch.setattr(cudnn_library.LIBRARY, "loaded", None)
    monkeypatch.setattr(cudnn_library.LIBRARY, "load", load)
    assert cudnn_library.plans() == []
    with ThreadPoolExecutor(4) as pool:
        problems = [replace(PROBLEM, n=n) for n in (1, 1, 2, 2)]
        functions = list(pool.map(lambda p: cudnn_library.convolution(p, Options()), problems))
    assert len(loads) == 1
    assert len(functions) == 4
    assert cudnn_library.plans() == []
