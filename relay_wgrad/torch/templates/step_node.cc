
// A compiled step as a node of autograd, for `relay_wgrad.torch.step_node`: what
// `torch.autograd.Function` does for a function in Python, without a loop of Python's over
// parameters.  Operands that are kept are watched by their versions, and gradients are cut out of
// few tensors.

namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = decltype(torch::autograd::Edge::function);

// ---- gradients in few tensors ------------------------------------------------------------------

// Where a tensor lies: in which of some, from which element on, or that one itself.
struct Cut {
  size_t of;
  bool is_whole;
  int64_t offset;
  std::vector<int64_t> sizes, strides;
};

using Cuts = std::vector<Cut>;

std::vector<int64_t> numbers(PyObject* tuple) {
  std::vector<int64_t> made;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
    made.push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
  }
  if (PyErr_Occurred()) throw python_error();
  return made;
}

// Of tuples (of, offset, sizes, strides), or (of,) for a whole one.
PyObject* take_cuts(PyObject* const* given) {
  auto made = std::make_unique<Cuts>();
  for (Py_ssize_t i = 0; i < count_of(given[0]); ++i) {
    PyObject* said = PyTuple_GET_ITEM(given[0], i);
    const size_t of = PyLong_AsSize_t(PyTuple_GetItem(said, 0));
    if (count_of(said) == 1) {
      made->push_back({of, true, 0, {}, {}});
    } else {
      made->push_back({of, false, PyLong_AsLongLong(PyTuple_GetItem(said, 1)),
                       numbers(PyTuple_GetItem(said, 2)), numbers(PyTuple_GetItem(said, 3))});
    }
  }
  if (PyErr_Occurred()) throw python_error();
  return as_object(std::move(made));
}

// No view to autograd: it shares memory, and has a version of its own.
at::Tensor cut(const at::Tensor& of, const Cut& said) {
  if (said.is_whole) return of;
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(of.storage()), of.key_set(), of.dtype());
  at::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(of.storage_offset() + said.offset);
  impl->set_sizes_and_strides(said.sizes, said.strides);
  return made;
}

variable_list cut_all(const Cuts& cuts, PyObject* tensors) {
  check_tensors(tensors);
  variable_list made;
  made.reserve(cuts.size());
  for (const Cut& said : cuts) {
    TORCH_CHECK_INDEX(said.of < static_cast<size_t>(count_of(tensors)), "a tensor is missing");
    made.push_back(cut(tensor_at(tensors, said.of), said));
  }
  return made;
}

PyObject* cut_tensors(PyObject* const* given) {
  return THPVariable_WrapList(cut_all(*of_object<Cuts>(given[0]), given[1]));
}

// ---- the node ----------------------------------------------------------------------------------

// An object of Python's, given up with Python's lock held: autograd gives nodes up without it.
class Held {
 public:
  explicit Held(PyObject* object) : object_(Py_NewRef(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { reset(); }

  PyObject* get() const { return object_; }

  void reset() {
    if (object_ == nullptr || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire lock;
    Py_CLEAR(object_);
  }

 private:
  PyObject* object_;
};

// Raises as Python has done.
[[noreturn]] void raise_again() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// A backward pass of Python's: `function(saved, *gradients)` gives (gradients, None), or what they
// are cut out of and how.
//
// saved : a tuple of tensors.  Who changes one in place is refused the backward pass.
// number : of the function, which tells it from others to compiled autograd.
class StepNode : public Node {
 public:
  StepNode(torch::autograd::edge_list&& edges, std::string name, PyObject* function,
           PyObject* saved, uint64_t number)
      : Node(std::move(edges)), name_(std::move(name)), function_(function), saved_(saved),
        number_(number) {
    watched_.reserve(count_of(saved));
    for (Py_ssize_t i = 0; i < count_of(saved); ++i) {
      const at::Tensor& tensor = tensor_at(saved, i);
      if (tensor.is_inference()) SavedVariable(tensor, false);  // says that it cannot be
      watched_.push_back({tensor.unsafeGetTensorImpl(), tensor._version()});
    }
  }

  std::string name() const override { return name_; }

  void release_variables() override {
    pybind11::gil_scoped_acquire lock;
    saved_.reset();
    function_.reset();
  }

  variable_list apply(variable_list&& gradients) override {
    pybind11::gil_scoped_acquire lock;
    if (saved_.get() == nullptr) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    for (size_t i = 0; i < watched_.size(); ++i) check_version(i);
    return call(saved_.get(), std::move(gradients));
  }

  // ---- compiled autograd: its trace has tensors without values in the saved ones' places

  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    pybind11::gil_scoped_acquire lock;
    if (saved_.get() == nullptr) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    traced_.clear();
    for (Py_ssize_t i = 0; i < count_of(saved_.get()); ++i) {
      traced_.emplace_back(tensor_at(saved_.get(), i), false);
    }
    args.collect(name_);
    args.collect(number_);
    args.collect(traced_, false);
  }

  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::autograd::SwapSavedVariables& saved) override {
    pybind11::gil_scoped_acquire lock;
    saved.before(traced_);
    pybind11::tuple tensors(traced_.size());
    for (size_t i = 0; i < traced_.size(); ++i) {
      tensors[i] = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(traced_[i].unpack()));
    }
    variable_list made = call(tensors.ptr(), variable_list(gradients));
    saved.after(traced_);
    return made;
  }

 private:
  variable_list call(PyObject* saved, variable_list&& gradients) {
    pybind11::tuple given(1 + gradients.size());
    given[0] = pybind11::reinterpret_borrow<pybind11::object>(saved);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
      given[1 + i] = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(gradients[i]));
    }
    gradients.clear();
    auto found = pybind11::reinterpret_steal<pybind11::object>(
        PyObject_CallObject(function_.get(), given.ptr()));
    if (!found) raise_again();
    TORCH_CHECK(PyTuple_Check(found.ptr()) && count_of(found.ptr()) == 2, name_, ": no pair");
    PyObject* tensors = PyTuple_GET_ITEM(found.ptr(), 0);
    PyObject* cuts = PyTuple_GET_ITEM(found.ptr(), 1);
    variable_list made;
    if (cuts != Py_None) {
      made = cut_all(*of_object<Cuts>(cuts), tensors);
    } else {
      check_tensors(tensors);
      for (Py_ssize_t i = 0; i < count_of(tensors); ++i) made.push_back(tensor_at(tensors, i));
    }
    TORCH_CHECK(made.size() == num_outputs(), name_, ": ", made.size(), " gradients for ",
                num_outputs(), " operands");
    return made;
  }

  void check_version(size_t i) const {
    const at::Tensor& tensor = tensor_at(saved_.get(), i);
    const Watched& was = watched_[i];
    const bool is_same = tensor.unsafeGetTensorImpl() == was.tensor;
    if (is_same && tensor._version() == was.version) return;
    TORCH_CHECK(false,
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [", tensor.toString(), " ", tensor.sizes(), "] is at version ",
        tensor._version(), "; expected ", is_same ? "" : "another tensor of ", "version ",
        was.version, " instead, in ", name_, ".");
  }

  struct Watched {
    const at::TensorImpl* tensor;
    int64_t version;
  };

  std::string name_;
  Held function_, saved_;
  uint64_t number_;
  std::vector<Watched> watched_;
  mutable std::vector<SavedVariable> traced_;
};

template <class T, class Pointer, class... Given>
Pointer new_node(Given&&... given) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return Pointer(new T(std::forward<Given>(given)...), [](T* node) { deleteNode(node); });
  } else {  // since PyTorch 2.13
    return c10::make_intrusive<T>(std::forward<Given>(given)...);
  }
}

// Makes outputs, tensors that nobody has yet, the results of a function of operands: (name,
// backward function, its number, saved, operands, outputs).  Of operands None of which require a
// gradient, or without a gradients' mode, they stay as they are.
PyObject* record(PyObject* const* given) {
  PyObject *saved = given[3], *operands = given[4], *outputs = given[5];
  for (PyObject* tensors : {saved, operands, outputs}) check_tensors(tensors);
  torch::autograd::edge_list edges;
  edges.reserve(count_of(operands));
  bool is_wanted = false;
  for (Py_ssize_t i = 0; i < count_of(operands); ++i) {
    fetch_ahead(operands, i);
    edges.push_back(torch::autograd::impl::gradient_edge(tensor_at(operands, i)));
    is_wanted = is_wanted || edges.back().is_valid();
  }
  if (!is_wanted || !at::GradMode::is_enabled()) Py_RETURN_NONE;
  const char* name = PyUnicode_AsUTF8(given[0]);
  const uint64_t number = PyLong_AsUnsignedLongLong(given[2]);
  if (name == nullptr || PyErr_Occurred()) throw python_error();
  auto node = new_node<StepNode, NodePointer>(std::move(edges), std::string(name), given[1], saved,
                                              number);
  for (Py_ssize_t i = 0; i < count_of(outputs); ++i) {
    torch::autograd::set_history(tensor_at(outputs, i), node);
  }
  Py_RETURN_NONE;
}

// Tells autograd that tensors were changed in place.
PyObject* increment_versions(PyObject* const* given) {
  check_tensors(given[0]);
  for (Py_ssize_t i = 0; i < count_of(given[0]); ++i) {
    fetch_ahead(given[0], i);
    torch::autograd::impl::bump_version(tensor_at(given[0], i));
  }
  Py_RETURN_NONE;
}

}  // namespace
