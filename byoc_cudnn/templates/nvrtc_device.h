// ---- what NVRTC has not: parts of the standard library, and CUDA's runtime for host code ------------------
//
// It knows the runtime's types, and std::initializer_list.
// With -default-device host functions are compiled too, and dropped since nobody calls them: that their
// launches name kernels is what makes those.

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

namespace std {

template <bool kFirst, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kFirst, typename A, typename B>
using conditional_t = typename conditional<kFirst, A, B>::type;

template <typename A, typename B>
constexpr bool is_same_v = false;
template <typename A>
constexpr bool is_same_v<A, A> = true;

template <typename T>
constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <typename T>
constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}
template <typename T>
constexpr T min(initializer_list<T> all) {
  T least = *all.begin();
  for (const T& one : all) least = one < least ? one : least;
  return least;
}
template <typename T>
constexpr T max(initializer_list<T> all) {
  T most = *all.begin();
  for (const T& one : all) most = most < one ? one : most;
  return most;
}

}  // namespace std

inline cudaError_t cudaGetDevice(int*) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) { return cudaSuccess; }
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t*, void (*)(Parameters...), Arguments...) {
  return cudaSuccess;
}
