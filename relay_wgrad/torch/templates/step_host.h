// What the files of this library share: objects of Python, tensors among them.
//
// A step has driven all that is looked at here out of the caches: hundreds of tensors, objects and
// dictionaries.  So those that come next are fetched while one is looked at: a hint, which harms
// nothing where it names memory that is another's by now.
//
// All is called with Python's lock held; callers keep what is looked at alive.

#include <ATen/core/Tensor.h>
#include <dlpack/dlpack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int AHEAD = 8;  // objects: what a processor fetches at once
constexpr int LINE = 64;  // bytes

void fetch(const void* place) { __builtin_prefetch(place, 0, 3); }

// ---- tuples of tensors -------------------------------------------------------------------------

Py_ssize_t count_of(PyObject* tuple) { return PyTuple_GET_SIZE(tuple); }

const at::Tensor& tensor_at(PyObject* tuple, Py_ssize_t i) {
  return THPVariable_Unpack(PyTuple_GET_ITEM(tuple, i));
}

at::TensorImpl* impl_at(PyObject* tuple, Py_ssize_t i) {
  return tensor_at(tuple, i).unsafeGetTensorImpl();
}

// Raises TypeError where something of a tuple is no tensor: others' memory is not to be read.
void check_tensors(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple of tensors");
  for (Py_ssize_t i = 0; i < count_of(tuple); ++i) {
    if (i + 2 * AHEAD < count_of(tuple)) fetch(PyTuple_GET_ITEM(tuple, i + 2 * AHEAD));
    PyObject* object = PyTuple_GET_ITEM(tuple, i);
    TORCH_CHECK_TYPE(THPVariable_Check(object), "expected tensors, got ", Py_TYPE(object)->tp_name);
  }
}

// Fetches what is read of the tensors behind the i-th, of which each step says where the next is.
void fetch_ahead(PyObject* tuple, Py_ssize_t i) {
  if (i + 2 * AHEAD < count_of(tuple)) {
    const char* impl = reinterpret_cast<const char*>(impl_at(tuple, i + 2 * AHEAD));
    for (size_t at = 0; at < sizeof(at::TensorImpl); at += LINE) fetch(impl + at);
  }
  if (i + AHEAD < count_of(tuple)) {
    at::TensorImpl* impl = impl_at(tuple, i + AHEAD);
    fetch(impl->unsafe_storage().unsafeGetStorageImpl());
    fetch(impl->autograd_meta());
  }
}

// ---- what Python holds of ours -----------------------------------------------------------------

template <class T>
PyObject* as_object(std::unique_ptr<T> made) {
  PyObject* object = PyCapsule_New(made.get(), nullptr, [](PyObject* of) {
    delete static_cast<T*>(PyCapsule_GetPointer(of, nullptr));
  });
  if (object != nullptr) made.release();
  return object;
}

template <class T>
T* of_object(PyObject* object) {
  void* found = PyCapsule_GetPointer(object, nullptr);
  if (found == nullptr) throw python_error();
  return static_cast<T*>(found);
}

PyObject* yes_or_no(bool is_yes) { return PyBool_FromLong(is_yes); }

}  // namespace
