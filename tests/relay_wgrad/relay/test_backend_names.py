"""Names of `relay.backend` that scripts import."""

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.backend import name_transforms as names
from relay_wgrad.relay.backend.executor import Executor
from relay_wgrad.relay.backend.runtime import Runtime
from relay_wgrad.relay.backend.utils import mangle_module_name


def test_modules_have_their_classes():
    assert (Executor, Runtime) == (relay.backend.Executor, relay.backend.Runtime)


def test_c_names():
    assert names.to_c_function_style("TVM_run_All") == "TVMRunAll"
    assert names.to_c_function_style(names.prefix_generated_name(["my", "Op"])) == "TVMGenMyOp"
    assert names.to_c_variable_style("TVM_run_All") == "tvm_run_all"
    assert names.to_c_constant_style("TVM_run") == "TVM_RUN"
    assert names.prefix_name("run") == names.prefix_name(["run"]) == "TVM_run"
    assert names.sanitize_name("a+b:c d_1") == "a_b_c_d_1"


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (names.to_c_function_style, "", "Function name is empty"),
        (names.to_c_variable_style, "run", "Variable not TVM prefixed: 'run'"),
        (names.to_c_constant_style, "", "Constant name is empty"),
        (names.prefix_name, "", "Name is empty"),
        (names.prefix_name, [], "Name segments empty"),
        (names.prefix_generated_name, ["a", ""], "Name segment is empty"),
        (names.sanitize_name, "", "Name is empty"),
        (mangle_module_name, "tvmgen_a", "must not start with tvmgen"),
        (mangle_module_name, "\u018e", "must be ASCII"),
    ],
)
def test_refused(make, given, message):
    with pytest.raises(ValueError, match=message):
        make(given)


def test_mangled():
    assert mangle_module_name("default") == "tvmgen_default"
    assert mangle_module_name(None) == mangle_module_name("") == "tvmgen"
