// ---- tensors that come from outside ---------------------------------------------------------------------

namespace {

inline char* pointer_of(const tvm::ffi::TensorView* t) {
  return t == nullptr ? nullptr : static_cast<char*>(t->data_ptr()) + t->byte_offset();
}

// On the device of the others, without gaps.
inline void expect_on_device(const char* problem, const char* name, const tvm::ffi::TensorView& t,
                             const tvm::ffi::TensorView& like) {
  if (t.device().device_type != kDLCUDA || t.device().device_id != like.device().device_id) {
    TVM_FFI_THROW(ValueError) << problem << ": " << name << " is not on the CUDA device of "
                              << "the other tensors";
  }
  if (!t.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << problem << ": " << name << " is not contiguous";
  }
}

// And of the dtype that the code was generated for.
inline void expect_tensor(const char* problem, const char* name, const tvm::ffi::TensorView& t,
                          int code, int bits, const tvm::ffi::TensorView& like) {
  const DLDataType d = t.dtype();
  if (d.code != code || d.bits != bits || d.lanes != 1) {
    TVM_FFI_THROW(TypeError) << problem << ": " << name << " has another dtype than the one"
                             << " that the code was generated for";
  }
  expect_on_device(problem, name, t, like);
}

// On a device, with TVM's stream of it; a failure becomes an error that names the problem.
template <typename Work>
void on_stream(const char* problem, int device, Work work) {
  try {
    OnDevice on(device);
    work(static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device)));
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << problem;
  }
}

}  // namespace
