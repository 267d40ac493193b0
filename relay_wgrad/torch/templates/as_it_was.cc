
// Whether what a compiled step goes by is as it was, for `relay_wgrad.torch.host_library`: tensors,
// objects and dictionaries of Python, hundreds of each, looked at between two steps.

namespace {

// ---- tensors -----------------------------------------------------------------------------------

struct TensorFacts {
  PyTypeObject* type;
  c10::DispatchKeySet keys;  // of which negated views, say, have one
  const void* data;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  size_t sizes, dimensions;  // where those, and the strides behind them, begin among all
};

const void* data_of(const at::TensorImpl* impl) {
  const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->data() == nullptr || impl->numel() == 0) return nullptr;
  return static_cast<const char*>(storage->data()) + impl->storage_offset() * impl->itemsize();
}

class Tensors {
 public:
  // Takes what they are now for what they were.  Whether all can be said of them.
  bool take(PyObject* tuple) {
    check_tensors(tuple);
    for (Py_ssize_t i = 0; i < count_of(tuple); ++i) {
      const at::TensorImpl* impl = impl_at(tuple, i);
      const bool is_plain = impl->layout() == at::kStrided && !impl->is_neg() &&
                            !impl->has_symbolic_sizes_strides() && !impl->is_python_dispatch() &&
                            impl->device_type() != at::kMeta;
      if (!is_plain) return false;
      tensors_.push_back({Py_TYPE(PyTuple_GET_ITEM(tuple, i)), impl->key_set(), data_of(impl),
                          impl->dtype(), impl->device(), impl->requires_grad(), sizes_.size(),
                          static_cast<size_t>(impl->dim())});
      sizes_.insert(sizes_.end(), impl->sizes().begin(), impl->sizes().end());
      sizes_.insert(sizes_.end(), impl->strides().begin(), impl->strides().end());
    }
    return true;
  }

  bool hold(PyObject* tuple) const {
    const Py_ssize_t count = tensors_.size();
    if (!PyTuple_Check(tuple) || count_of(tuple) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (i + 2 * AHEAD < count) fetch(PyTuple_GET_ITEM(tuple, i + 2 * AHEAD));
      // Which need not be one of PyTorch's at all.
      if (Py_TYPE(PyTuple_GET_ITEM(tuple, i)) != tensors_[i].type) return false;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
      fetch_ahead(tuple, i);
      const TensorFacts& was = tensors_[i];
      const at::TensorImpl* impl = impl_at(tuple, i);
      // Of the same keys it is a plain one, of which the rest may be asked.
      if (impl->key_set() != was.keys || impl->has_symbolic_sizes_strides()) return false;
      const size_t bytes = sizeof(int64_t) * was.dimensions;
      const int64_t* sizes = sizes_.data() + was.sizes;
      if (static_cast<size_t>(impl->dim()) != was.dimensions || data_of(impl) != was.data ||
          impl->dtype() != was.dtype || impl->device() != was.device ||
          impl->requires_grad() != was.requires_grad ||
          std::memcmp(impl->sizes().data(), sizes, bytes) != 0 ||
          std::memcmp(impl->strides().data(), sizes + was.dimensions, bytes) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<TensorFacts> tensors_;
  std::vector<int64_t> sizes_;
};

// None where it does not take them all.
PyObject* take_tensors(PyObject* const* given) {
  auto made = std::make_unique<Tensors>();
  if (!made->take(given[0])) Py_RETURN_NONE;
  return as_object(std::move(made));
}

PyObject* hold_tensors(PyObject* const* given) {
  return yes_or_no(of_object<Tensors>(given[0])->hold(given[1]));
}

// ---- objects -----------------------------------------------------------------------------------

// Whether each of some objects is of the class that it was of, and has the dictionary that it had:
// three tuples.
PyObject* hold_objects(PyObject* const* given) {
  PyObject *objects = given[0], *types = given[1], *dictionaries = given[2];
  for (Py_ssize_t i = 0; i < count_of(objects); ++i) {
    if (i + AHEAD < count_of(objects)) {
      const char* object = reinterpret_cast<const char*>(PyTuple_GET_ITEM(objects, i + AHEAD));
      fetch(object - 1);  // where its dictionary's place is, in some versions
      fetch(object);
      fetch(PyTuple_GET_ITEM(dictionaries, i + AHEAD));
    }
    PyObject* object = PyTuple_GET_ITEM(objects, i);
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != PyTuple_GET_ITEM(types, i)) Py_RETURN_FALSE;
    PyObject* attributes = PyObject_GenericGetDict(object, nullptr);
    if (attributes == nullptr) PyErr_Clear();
    Py_XDECREF(attributes);  // others have it too
    if (attributes != PyTuple_GET_ITEM(dictionaries, i)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// ---- dictionaries ------------------------------------------------------------------------------

// Up to Python 3.11 a dictionary has behind its type and its size a number that is another one
// after each change, and no other dictionary's (PEP 509).
constexpr int TAG = 24;  // bytes

struct Tags {
  std::vector<const char*> places;
  std::vector<uint64_t> tags;

  uint64_t now(size_t i) const {
    uint64_t tag;
    std::memcpy(&tag, places[i] + TAG, sizeof tag);
    return tag;
  }
};

// Of a tuple of dictionaries; `set_tags` takes their numbers.
PyObject* take_tags(PyObject* const* given) {
  auto made = std::make_unique<Tags>();
  for (Py_ssize_t i = 0; i < count_of(given[0]); ++i) {
    made->places.push_back(reinterpret_cast<const char*>(PyTuple_GET_ITEM(given[0], i)));
    made->tags.push_back(0);
  }
  return as_object(std::move(made));
}

PyObject* set_tags(PyObject* const* given) {
  Tags* tags = of_object<Tags>(given[0]);
  for (size_t i = 0; i < tags->tags.size(); ++i) tags->tags[i] = tags->now(i);
  Py_RETURN_NONE;
}

PyObject* hold_tags(PyObject* const* given) {
  const Tags* tags = of_object<Tags>(given[0]);
  const size_t count = tags->tags.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + 2 * AHEAD < count) fetch(tags->places[i + 2 * AHEAD] + TAG);
    if (tags->tags[i] != tags->now(i)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

}  // namespace
