// Whether what a compiled step goes by is as it was, for `relay_wgrad.torch.as_it_was`: tensors,
// objects and dictionaries of Python, hundreds of each, looked at between two steps.
//
// What such a look costs is memory: a step has driven all of it out of the caches.  So each object
// is asked all there is to ask at once, and those that come next are fetched meanwhile: a hint,
// which harms nothing where it names memory that is another's by now.
//
// All is called with Python's lock held, which may be given up and taken again meanwhile; callers
// keep what is looked at alive.

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

// Of Python's stable interface, whose header need not be here.
struct PythonObject;
using Object = PythonObject*;
extern "C" {
Object PyObject_CallFunctionObjArgs(Object, ...);
Object PyObject_GenericGetDict(Object, void*);
Object PyObject_GetAttr(Object, Object);
Object PyObject_Type(Object);
Object PyTuple_GetItem(Object, std::intptr_t);
std::intptr_t PyTuple_Size(Object);
void PyErr_Clear();
void Py_DecRef(Object);
}

namespace {

constexpr int AHEAD = 8;  // objects: what a processor fetches at once
constexpr int LINE = 64;  // bytes
constexpr int LINES = 4;  // of what a tensor is to PyTorch

enum Answer { NO = 0, YES = 1, UNKNOWN = -1 };

template <class T>
T* at(int64_t address) {
  return reinterpret_cast<T*>(address);
}

void fetch(const void* place) { __builtin_prefetch(place, 0, 3); }

// An object that nothing is wanted of but which it is: others have it too.
Object let_go(Object object) {
  if (object != nullptr) Py_DecRef(object);
  return object;
}

// ---- tensors -----------------------------------------------------------------------------------

// What Python and PyTorch say of tensors.
struct Asked {
  const DLPackExchangeAPI* tensors;
  Object requires_grad, is_neg, yes;  // an attribute's name, a function, True
};

// Where a tensor's own memory is: Python's, PyTorch's, that of what it shares with its views.
struct Places {
  const char *object, *tensor, *storage;
};

struct Tensor {
  Places places;
  Object type;
  void* data;
  DLDataType dtype;
  DLDevice device;
  int32_t dimensions;
  bool requires_grad;
  size_t sizes;  // where those, and the strides behind them, begin among all

  bool is_like(const Tensor& other) const {
    return type == other.type && data == other.data && dtype.code == other.dtype.code &&
           dtype.bits == other.dtype.bits && dtype.lanes == other.dtype.lanes &&
           device.device_type == other.device.device_type &&
           device.device_id == other.device.device_id && dimensions == other.dimensions &&
           requires_grad == other.requires_grad;
  }
};

class Tensors {
 public:
  explicit Tensors(Asked asked) : asked_(asked) {}

  // Takes what they are now for what they were.  Whether all can be said of them.
  bool take(Object tuple, const Places* places) {
    for (std::intptr_t i = 0; i < PyTuple_Size(tuple); ++i) {
      DLTensor said;
      Tensor tensor;
      Object object = PyTuple_GetItem(tuple, i);
      if (!ask(object, PyObject_Type(object), &said, &tensor)) return false;
      let_go(tensor.type);
      tensor.places = places[i];
      tensor.sizes = sizes_.size();
      sizes_.insert(sizes_.end(), said.shape, said.shape + said.ndim);
      sizes_.insert(sizes_.end(), said.strides, said.strides + said.ndim);
      tensors_.push_back(tensor);
    }
    return true;
  }

  Answer hold(Object tuple) const {
    const size_t count = tensors_.size();
    if (PyTuple_Size(tuple) != static_cast<std::intptr_t>(count)) return NO;
    for (size_t i = 0; i < count; ++i) {
      if (i + AHEAD < count) fetch_all(tensors_[i + AHEAD].places);
      const Tensor& was = tensors_[i];
      Object object = PyTuple_GetItem(tuple, i), type = let_go(PyObject_Type(object));
      if (type != was.type) return NO;  // which need not be one of PyTorch's at all
      DLTensor said;
      Tensor now;
      if (!ask(object, type, &said, &now)) return UNKNOWN;
      const size_t bytes = sizeof(int64_t) * said.ndim;
      const int64_t* sizes = sizes_.data() + was.sizes;
      if (!now.is_like(was) || std::memcmp(said.shape, sizes, bytes) != 0 ||
          std::memcmp(said.strides, sizes + said.ndim, bytes) != 0) {
        return NO;
      }
    }
    return YES;
  }

 private:
  // All but where it is kept; negated views are of no use.
  bool ask(Object object, Object type, DLTensor* said, Tensor* tensor) const {
    if (asked_.tensors->dltensor_from_py_object_no_sync(object, said) != 0) return fail();
    Object grad = let_go(PyObject_GetAttr(object, asked_.requires_grad));
    Object negated = let_go(PyObject_CallFunctionObjArgs(asked_.is_neg, object, nullptr));
    if (grad == nullptr || negated == nullptr) return fail();
    if (negated == asked_.yes) return false;
    tensor->type = type;
    tensor->data = said->data;
    tensor->dtype = said->dtype;
    tensor->device = said->device;
    tensor->dimensions = said->ndim;
    tensor->requires_grad = grad == asked_.yes;
    return true;
  }

  static bool fail() {
    PyErr_Clear();
    return false;
  }

  static void fetch_all(const Places& places) {
    fetch(places.object);
    for (int i = 0; i < LINES; ++i) fetch(places.tensor + i * LINE);
    fetch(places.storage);
  }

  Asked asked_;
  std::vector<Tensor> tensors_;
  std::vector<int64_t> sizes_;
};

// 0 where PyTorch's interface is another one, or does not take them all.
int64_t take_tensors(int64_t interface, int64_t requires_grad, int64_t is_neg, int64_t yes,
                     int64_t tuple, int64_t places) {
  auto* tensors = at<const DLPackExchangeAPI>(interface);
  if (tensors->header.version.major != DLPACK_MAJOR_VERSION ||
      tensors->dltensor_from_py_object_no_sync == nullptr) {
    return 0;
  }
  Asked asked{tensors, at<PythonObject>(requires_grad), at<PythonObject>(is_neg), at<PythonObject>(yes)};
  auto made = std::make_unique<Tensors>(asked);
  if (!made->take(at<PythonObject>(tuple), at<const Places>(places))) return 0;
  return reinterpret_cast<int64_t>(made.release());
}

int64_t hold_tensors(int64_t tensors, int64_t tuple) {
  return at<const Tensors>(tensors)->hold(at<PythonObject>(tuple));
}

int64_t drop_tensors(int64_t tensors) {
  delete at<Tensors>(tensors);
  return 0;
}

// ---- objects -----------------------------------------------------------------------------------

struct Thing {
  Object object, type, attributes;
};

// Whether each is of the class that it was of, and has the dictionary that it had.
int64_t hold_objects(int64_t count, int64_t things) {
  const Thing* all = at<const Thing>(things);
  for (int64_t i = 0; i < count; ++i) {
    if (i + AHEAD < count) {
      const char* object = reinterpret_cast<const char*>(all[i + AHEAD].object);
      fetch(object - 1);  // where its dictionary's place is, in some versions
      fetch(object);
      fetch(all[i + AHEAD].attributes);
    }
    const Thing& thing = all[i];
    if (let_go(PyObject_Type(thing.object)) != thing.type) return NO;
    Object attributes = let_go(PyObject_GenericGetDict(thing.object, nullptr));
    if (attributes == nullptr) PyErr_Clear();
    if (attributes != thing.attributes) return NO;
  }
  return YES;
}

// ---- dictionaries ------------------------------------------------------------------------------

// Up to Python 3.11 a dictionary has behind its type and its size a number that is another one
// after each change, and no other dictionary's (PEP 509).
constexpr int TAG = 24;  // bytes

struct Dictionary {
  const char* place;
  uint64_t tag;

  uint64_t now() const {
    uint64_t tag;
    std::memcpy(&tag, place + TAG, sizeof tag);
    return tag;
  }
};

int64_t take_tags(int64_t count, int64_t dictionaries) {
  Dictionary* all = at<Dictionary>(dictionaries);
  for (int64_t i = 0; i < count; ++i) all[i].tag = all[i].now();
  return count;
}

int64_t hold_tags(int64_t count, int64_t dictionaries) {
  const Dictionary* all = at<const Dictionary>(dictionaries);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 2 * AHEAD < count) fetch(all[i + 2 * AHEAD].place + TAG);
    if (all[i].tag != all[i].now()) return NO;
  }
  return YES;
}

// ---- as TVM FFI calls them ---------------------------------------------------------------------
// All are of numbers.  By its interface in C, whose header takes a tenth of the time of that in C++.

template <class... T, size_t... I>
int call(int64_t (*function)(T...), const TVMFFIAny* given, int32_t count, TVMFFIAny* result,
         std::index_sequence<I...>) {
  if (count != sizeof...(T)) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "another number of arguments is taken");
    return -1;
  }
  result->type_index = kTVMFFIInt;
  result->v_int64 = function(given[I].v_int64...);
  return 0;
}

template <class... T>
int call(int64_t (*function)(T...), const TVMFFIAny* given, int32_t count, TVMFFIAny* result) {
  return call(function, given, count, result, std::index_sequence_for<T...>());
}

}  // namespace

#define EXPORTED(name)                                                                      \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_relay_wgrad_##name(                           \
      void*, const TVMFFIAny* given, int32_t count, TVMFFIAny* result) {                    \
    return call(name, given, count, result);                                                \
  }

EXPORTED(take_tensors)
EXPORTED(hold_tensors)
EXPORTED(drop_tensors)
EXPORTED(hold_objects)
EXPORTED(take_tags)
EXPORTED(hold_tags)
