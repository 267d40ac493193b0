
// The library's functions, as Python calls them.

namespace {

template <PyObject* (*function)(PyObject* const*), Py_ssize_t count>
PyObject* called(PyObject*, PyObject* const* given, Py_ssize_t size) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(size == count, "takes ", count, " arguments, got ", size);
  return function(given);
  END_HANDLE_TH_ERRORS
}

template <PyObject* (*function)(PyObject* const*), Py_ssize_t count>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(called<function, count>)),
          METH_FASTCALL, nullptr};
}

PyMethodDef all[] = {
    method<take_tensors, 1>("take_tensors"), method<hold_tensors, 2>("hold_tensors"),
    method<hold_objects, 3>("hold_objects"), method<take_tags, 1>("take_tags"),
    method<set_tags, 1>("set_tags"),         method<hold_tags, 1>("hold_tags"),
    method<take_cuts, 1>("take_cuts"),       method<cut_tensors, 2>("cut_tensors"),
    method<record, 6>("record"),             method<increment_versions, 1>("increment_versions"),
};

}  // namespace

// As TVM FFI calls it: the address of a dictionary of them, which Python's lock has to be held for.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_relay_wgrad_functions(
    void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  PyObject* found = PyDict_New();
  for (PyMethodDef& method : all) {
    PyObject* function = PyCFunction_New(&method, nullptr);
    if (found == nullptr || function == nullptr ||
        PyDict_SetItemString(found, method.ml_name, function) != 0) {
      return -1;
    }
    Py_DECREF(function);
  }
  result->type_index = kTVMFFIInt;
  result->v_int64 = reinterpret_cast<int64_t>(found);
  return 0;
}
