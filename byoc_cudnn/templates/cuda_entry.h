// ---- how TVM's calls reach `run` ---------------------------------------------------------------------

namespace {

// Which operand an argument is.
enum Role { kDataArg, kWeightArg, kGradArg, kBiasArg, kMaskArg, kArgs };

// What the exported functions share: TVM FFI's calling convention, read once and not in a template
// for each of them, which took most of the time of building a large module.
__attribute__((noinline)) int call(const Conv& conv, std::initializer_list<Role> roles,
                                   const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  if (count != static_cast<int32_t>(roles.size())) {
    TVM_FFI_THROW(TypeError) << conv.problem << ": expected " << roles.size() << " tensors, got "
                             << count << " arguments";
  }
  const auto* views = reinterpret_cast<const tvm::ffi::AnyView*>(args);
  std::optional<TensorView> tensors[kArgs];
  for (Role role : roles) tensors[role] = (views++)->cast<TensorView>();
  auto pointer = [&](Role role) { return tensors[role] ? &*tensors[role] : nullptr; };
  run(conv, {pointer(kDataArg), pointer(kWeightArg), pointer(kGradArg), pointer(kBiasArg),
             pointer(kMaskArg)});
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
