// Reads JPEGs into batches of a network, for `relay_wgrad.training.jpeg_reader`: a pool of threads, each of
// which opens a file, decodes the part that is wanted of it, resizes that and writes it as numbers.
//
// The decoder is the libjpeg-turbo that Pillow has loaded, found by name in its library; its headers
// need not be here.  Of a file the rows below the wanted part are not decoded at all, those above it
// and the columns beside it are not made into pixels.  Rows are resized before columns, in float32.

#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// ---- libjpeg's interface -------------------------------------------------------------------------
// What comes first in its two structures, which no release has changed; the library itself is told
// the size of the first one and refuses another than its own.

struct Errors {
  void (*exit)(void*);
  void (*emit)(void*, int);
  void (*output)(void*);
  void* others[2];
  int code;
  char parameters[80];
  int trace;
  long warnings;
  char rest[64];
};

struct Decoder {
  Errors* errors;
  void* memory[3];
  int states[2];
  void* source;
  unsigned width, height;
  int components, space, out_space;
  unsigned scale[2];
  double gamma;
  int options[12];
  unsigned out_width, out_height;
  int outs[4];
  void* colours;
  unsigned line;
  char rest[1024];
};

constexpr int kRgbx = 7;  // four bytes for a pixel: libjpeg-turbo's JCS_EXT_RGBX
constexpr int kEdge = 2;  // columns beside a part that have neighbours' colours too
constexpr int kRows = 4;  // that are asked for at a time
constexpr int64_t kPixels = 89478485;  // of more Pillow warns

struct Library {
  int version = 0;
  size_t size = 0;
  void (*create)(Decoder*, int, size_t);
  Errors* (*standard)(Errors*);
  void (*of_memory)(Decoder*, const uint8_t*, unsigned long);
  int (*header)(Decoder*, int);
  int (*start)(Decoder*);
  unsigned (*lines)(Decoder*, uint8_t**, unsigned);
  unsigned (*skip)(Decoder*, unsigned);
  void (*crop)(Decoder*, unsigned*, unsigned*);
  void (*destroy)(Decoder*);
};

struct Failure : Errors {
  jmp_buf place;
};

void failed(void* decoder) { longjmp(static_cast<Failure*>(static_cast<Decoder*>(decoder)->errors)->place, 1); }
void warned(void* decoder, int level) {
  if (level < 0) static_cast<Decoder*>(decoder)->errors->warnings++;
}
void silent(void*) {}

void begin(const Library& library, Decoder* decoder, Failure* failure) {
  decoder->errors = library.standard(failure);
  failure->exit = failed;
  failure->emit = warned;
  failure->output = silent;
}

bool is_of(const Library& library, int version, size_t size) {
  Decoder decoder;
  Failure failure;
  begin(library, &decoder, &failure);
  if (setjmp(failure.place)) return false;
  library.create(&decoder, version, size);
  library.destroy(&decoder);
  return true;
}

template <typename Function>
void take(void* handle, const std::string& path, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  if (*function == nullptr) TVM_FFI_THROW(RuntimeError) << path << " has no " << name;
}

// It stays loaded: its functions are used until the process ends.
Library loaded(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) TVM_FFI_THROW(RuntimeError) << dlerror();
  Library made;
  take(handle, path, "jpeg_CreateDecompress", &made.create);
  take(handle, path, "jpeg_std_error", &made.standard);
  take(handle, path, "jpeg_mem_src", &made.of_memory);
  take(handle, path, "jpeg_read_header", &made.header);
  take(handle, path, "jpeg_start_decompress", &made.start);
  take(handle, path, "jpeg_read_scanlines", &made.lines);
  take(handle, path, "jpeg_skip_scanlines", &made.skip);
  take(handle, path, "jpeg_crop_scanline", &made.crop);
  take(handle, path, "jpeg_destroy_decompress", &made.destroy);
  for (auto [version, size] : {std::pair<int, size_t>{62, 632}, {80, 656}}) {
    if (is_of(made, version, size)) {
      made.version = version;
      made.size = size;
      return made;
    }
  }
  TVM_FFI_THROW(RuntimeError) << path << " is of an interface that is not known here";
}

// ---- which part ----------------------------------------------------------------------------------
// As `part` of images.py says, number by number.

enum Augment { kNone, kFlip, kCrop };
constexpr int kTries = 10, kDraws = 2 * kTries + 3;

struct Part {
  double left, top, right, bottom;
};

Part random_part(const double* draws, int width, int height) {
  const double least = std::log(3.0 / 4), most = std::log(4.0 / 3);
  for (int i = 0; i < kTries; ++i) {
    double area = (double)width * height * (0.08 + (1.0 - 0.08) * draws[2 * i]);
    double ratio = std::exp(least + (most - least) * draws[2 * i + 1]);
    double w = std::nearbyint(std::sqrt(area * ratio)), h = std::nearbyint(std::sqrt(area / ratio));
    if (0 < w && w <= width && 0 < h && h <= height) {
      double left = std::floor((width - w + 1) * draws[2 * kTries]);
      double top = std::floor((height - h + 1) * draws[2 * kTries + 1]);
      return {left, top, left + w, top + h};
    }
  }
  double w = std::min<double>(width, std::nearbyint(height * 4.0 / 3));
  double h = std::min<double>(height, std::nearbyint(width * 4.0 / 3));
  double left = std::floor((width - w) / 2), top = std::floor((height - h) / 2);
  return {left, top, left + w, top + h};
}

Part middle(int width, int height, int rows, int columns) {
  double scale = std::min((double)width / columns, (double)height / rows) / (256.0 / 224);
  double w = columns * scale, h = rows * scale, left = (width - w) / 2, top = (height - h) / 2;
  return {left, top, left + w, top + h};
}

Part part_of(Augment augment, const double* draws, int width, int height, int rows, int columns) {
  return augment == kCrop ? random_part(draws, width, height) : middle(width, height, rows, columns);
}

// ---- resizing ------------------------------------------------------------------------------------

typedef float F8 __attribute__((vector_size(32)));
typedef int I8 __attribute__((vector_size(32)));
typedef int16_t S8 __attribute__((vector_size(16)));
typedef uint8_t B8 __attribute__((vector_size(8)));
// Loops of these are compiled for AVX2 as well, and chosen when the library is loaded.
#if defined(__x86_64__)
#define CLONED __attribute__((target_clones("avx2", "default")))
#else
#define CLONED
#endif

// Which pixels of an axis make each of `count`, from `from` to `to`, and with which weights:
// triangles as wide as a pixel of the result, as Pillow's BILINEAR, which also looks beyond the part.
struct Axis {
  int first, last, most;
  std::vector<int> at, taps;
  std::vector<float> weights;

  void set(float from, float to, int size, int count) {
    double scale = ((double)to - from) / count, wide = std::max(scale, 1.0);
    most = 2 * (int)std::ceil(wide) + 1;
    at.resize(count);
    taps.resize(count);
    weights.assign((size_t)count * most, 0);
    first = size;
    last = 0;
    for (int i = 0; i < count; ++i) {
      double centre = from + (i + 0.5) * scale, sum = 0;
      int low = std::max(0, (int)(centre - wide + 0.5));
      int high = std::min({size, (int)(centre + wide + 0.5), low + most});
      auto weight = [&](int k) { return std::max(0.0, 1 - std::abs((k - centre + 0.5) / wide)); };
      for (int k = low; k < high; ++k) sum += weight(k);
      for (int k = low; k < high; ++k) weights[(size_t)i * most + k - low] = (float)(weight(k) / sum);
      at[i] = low;
      taps[i] = high - low;
      first = std::min(first, low);
      last = std::max(last, high);
    }
  }
};

constexpr int kWide = 32;  // bytes of rows that are added up at a time
constexpr int kGroup = 4;  // rows of which columns are added up at a time, by the same weights

// made[i] = sum of weights[k] * rows[k * stride + i], of the pixels i of four bytes of `count` bytes and
// up to kWide - 1 more.  In `made` stands a pixel of a group's next row behind each.
CLONED void add_rows(const uint8_t* rows, size_t stride, const float* weights, int taps, int count,
                     float* made) {
  for (int j = 0; j < count; j += kWide) {
    F8 sums[kWide / 8] = {};
    for (int k = 0; k < taps; ++k) {
      const uint8_t* row = rows + k * stride + j;
#pragma GCC unroll 4
      for (int i = 0; i < kWide / 8; ++i) {
        B8 bytes;
        std::memcpy(&bytes, row + 8 * i, 8);
        // By and by: GCC converts each number by itself where the width grows more than twofold.
        I8 levels = __builtin_convertvector(__builtin_convertvector(bytes, S8), I8);
        sums[i] += weights[k] * __builtin_convertvector(levels, F8);
      }
    }
    float pixels[kWide];
    std::memcpy(pixels, sums, sizeof sums);
#pragma GCC unroll 8
    for (int i = 0; i < kWide / 4; ++i) {
      std::memcpy(made + kGroup * (j + 4 * i), pixels + 4 * i, 16);
    }
  }
}

// Of `count` rows of a group a row each of three planes, as the table says of 0 to 255.
CLONED void add_columns(const float* group, int count, const Axis& axis, bool flips,
                        const float* table, size_t plane, float* made) {
  const int across = (int)axis.at.size();
  for (int i = 0; i < across; ++i) {
    const float* pixels = group + 4 * kGroup * (axis.at[i] - axis.first);
    const float* weights = axis.weights.data() + (size_t)i * axis.most;
    F8 sums[kGroup / 2] = {};
    for (int k = 0; k < axis.taps[i]; ++k) {
#pragma GCC unroll 2
      for (int r = 0; r < kGroup / 2; ++r) {
        F8 pair;
        std::memcpy(&pair, pixels + 4 * kGroup * k + 8 * r, 32);
        sums[r] += weights[k] * pair;
      }
    }
    int level[4 * kGroup];
#pragma GCC unroll 2
    for (int r = 0; r < kGroup / 2; ++r) {
      I8 levels = __builtin_convertvector(sums[r] + 0.5f, I8);
      std::memcpy(level + 8 * r, &levels, sizeof levels);
    }
    float* to = made + (flips ? across - 1 - i : i);
    for (int r = 0; r < count; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < 3; ++c) {
        to[c * plane + r * across] = table[256 * c + (level[4 * r + c] & 255)];
      }
    }
  }
}

// ---- one file ------------------------------------------------------------------------------------

struct Scratch {  // of a thread
  std::vector<uint8_t> file, pixels;
  std::vector<float> rows;
  Axis x, y;
};

// How many bytes a JPEG has, which are read; 0 of another file, and of one that cannot be read.
size_t contents(const char* path, std::vector<uint8_t>* file) {
  int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return 0;
  struct stat info;
  bool is_whole = fstat(opened, &info) == 0 && S_ISREG(info.st_mode);
  size_t size = is_whole ? info.st_size : 0, got = 0;
  if (file->size() < size) file->resize(size);
  while (is_whole && got < size) {
    ssize_t more = read(opened, file->data() + got, size - got);
    is_whole = more > 0;
    got += is_whole ? more : 0;
  }
  close(opened);
  // From its first marker to its last: who ends sooner is cut off.
  const uint8_t* bytes = file->data();
  bool is_jpeg = is_whole && size > 4 && bytes[0] == 0xff && bytes[1] == 0xd8 &&
                 bytes[size - 2] == 0xff && bytes[size - 1] == 0xd9;
  return is_jpeg ? size : 0;
}

struct Wanted {
  int rows, columns;
  std::vector<float> table;  // 3 of 256
};

// Whether it was read; what was not is for Pillow, which may do it or says what is wrong.
// No object with a destructor is made after `setjmp`.
bool decoded(const Library& library, const uint8_t* bytes, size_t size, Augment augment,
             const double* draws, const Wanted& wanted, Scratch* scratch, unsigned* left, size_t* stride) {
  Decoder decoder;
  Failure failure;
  begin(library, &decoder, &failure);
  if (setjmp(failure.place)) {
    library.destroy(&decoder);
    return false;
  }
  library.create(&decoder, library.version, library.size);
  library.of_memory(&decoder, bytes, size);
  library.header(&decoder, 1);
  int width = decoder.width, height = decoder.height;
  bool is_read = decoder.components <= 3 && (int64_t)width * height <= kPixels;
  if (is_read) {
    Part part = part_of(augment, draws, width, height, wanted.rows, wanted.columns);
    scratch->x.set(part.left, part.right, width, wanted.columns);
    scratch->y.set(part.top, part.bottom, height, wanted.rows);
    decoder.out_space = kRgbx;
    library.start(&decoder);
    int top = scratch->y.first, bottom = scratch->y.last;
    *left = std::max(0, scratch->x.first - kEdge);
    unsigned across = std::min(width, scratch->x.last + kEdge) - *left;
    library.crop(&decoder, left, &across);  // which begins and ends where blocks do
    *stride = 4 * (size_t)across;
    size_t need = *stride * (bottom - top) + kWide;
    if (scratch->pixels.size() < need) scratch->pixels.resize(need);
    if (top) library.skip(&decoder, top);
    while ((int)decoder.line < bottom) {
      uint8_t* lines[kRows];
      int count = std::min<int>(kRows, bottom - decoder.line);
      for (int i = 0; i < count; ++i) {
        lines[i] = scratch->pixels.data() + *stride * (decoder.line - top + i);
      }
      library.lines(&decoder, lines, count);
    }
    is_read = failure.warnings == 0;
  }
  library.destroy(&decoder);
  return is_read;
}

bool read_image(const Library& library, const char* path, Augment augment, const double* draws,
                const Wanted& wanted, Scratch* scratch, float* made) {
  unsigned left;
  size_t stride;
  size_t size = contents(path, &scratch->file);
  if (!size || !decoded(library, scratch->file.data(), size, augment, draws, wanted, scratch, &left,
                        &stride)) {
    return false;
  }
  const Axis &x = scratch->x, &y = scratch->y;
  const int across = 4 * (x.last - x.first);
  const size_t group = kGroup * (size_t)((across + kWide - 1) / kWide * kWide);
  if (scratch->rows.size() < group) scratch->rows.resize(group);
  const bool flips = augment != kNone && draws[kDraws - 1] < 0.5;
  const size_t plane = (size_t)wanted.rows * wanted.columns;
  const uint8_t* pixels = scratch->pixels.data() + 4 * (x.first - left);
  for (int i = 0; i < wanted.rows; i += kGroup) {
    const int count = std::min(kGroup, wanted.rows - i);
    for (int r = 0; r < count; ++r) {
      add_rows(pixels + stride * (y.at[i + r] - y.first), stride,
               y.weights.data() + (size_t)(i + r) * y.most, y.taps[i + r], across,
               scratch->rows.data() + 4 * r);
    }
    add_columns(scratch->rows.data(), count, x, flips, wanted.table.data(), plane,
                made + (size_t)i * wanted.columns);
  }
  return true;
}

// ---- batches -------------------------------------------------------------------------------------

// All memory is the caller's, who keeps it until `wait` says that the job is over, or `drop` returns.
struct Job {
  Augment augment;
  int64_t count, next = 0, left;
  const char* names;
  const int64_t* starts;
  const double* draws;
  float* const* made;
  uint8_t* is_read;
};

class Pool {
 public:
  Pool(Library library, Wanted wanted, int threads) : library_(library), wanted_(std::move(wanted)) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {  // no more of them may be made
        break;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (threads_.empty()) TVM_FFI_THROW(RuntimeError) << "no thread could be made to read images";
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
      queue_.clear();
    }
    more_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int64_t begin(Job job) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t id = ++last_;
    auto made = std::make_shared<Job>(job);
    jobs_[id] = made;
    if (made->count) queue_.push_back(made);
    more_.notify_all();
    return id;
  }

  bool wait(int64_t id, int64_t milliseconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<Job> job = jobs_.at(id);
    bool is_over = done_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                  [&] { return job->left == 0; });
    if (is_over) jobs_.erase(id);
    return is_over;
  }

  void drop(int64_t id) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<Job> job = jobs_.at(id);
    job->left -= job->count - job->next;
    job->next = job->count;
    queue_.erase(std::remove(queue_.begin(), queue_.end(), job), queue_.end());
    done_.wait(lock, [&] { return job->left == 0; });
    jobs_.erase(id);
  }

 private:
  void work() {
    Scratch scratch;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      more_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (ends_) return;
      std::shared_ptr<Job> job = queue_.front();
      int64_t i = job->next++;
      if (job->next == job->count) queue_.pop_front();
      lock.unlock();
      bool is_read = false;
      try {
        is_read = read_image(library_, job->names + job->starts[i], job->augment,
                             job->draws + i * kDraws, wanted_, &scratch, job->made[i]);
      } catch (const std::bad_alloc&) {  // Pillow says so
      }
      job->is_read[i] = is_read;
      lock.lock();
      if (--job->left == 0) done_.notify_all();
    }
  }

  const Library library_;
  const Wanted wanted_;
  std::mutex mutex_;
  std::condition_variable more_, done_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::map<int64_t, std::shared_ptr<Job>> jobs_;
  std::vector<std::thread> threads_;
  int64_t last_ = 0;
  bool ends_ = false;
};

Pool* pool_at(int64_t address) { return reinterpret_cast<Pool*>(address); }

int64_t check_library(tvm::ffi::String path) { return loaded(path).version; }

int64_t open_pool(tvm::ffi::String path, int64_t threads, int64_t rows, int64_t columns, int64_t table) {
  const float* levels = reinterpret_cast<const float*>(table);
  Wanted wanted{(int)rows, (int)columns, std::vector<float>(levels, levels + 3 * 256)};
  return reinterpret_cast<int64_t>(new Pool(loaded(path), std::move(wanted), (int)threads));
}

int64_t begin_job(int64_t pool, int64_t count, int64_t augment, int64_t names, int64_t starts,
                  int64_t draws, int64_t made, int64_t is_read) {
  return pool_at(pool)->begin(
      {(Augment)augment, count, 0, count, reinterpret_cast<const char*>(names),
       reinterpret_cast<const int64_t*>(starts), reinterpret_cast<const double*>(draws),
       reinterpret_cast<float* const*>(made), reinterpret_cast<uint8_t*>(is_read)});
}

bool wait_job(int64_t pool, int64_t job, int64_t milliseconds) {
  return pool_at(pool)->wait(job, milliseconds);
}

void drop_job(int64_t pool, int64_t job) { pool_at(pool)->drop(job); }

void close_pool(int64_t pool) { delete pool_at(pool); }

void find_part(int64_t augment, int64_t draws, int64_t width, int64_t height, int64_t rows,
               int64_t columns, int64_t made) {
  Part part = part_of((Augment)augment, reinterpret_cast<const double*>(draws), (int)width, (int)height,
                      (int)rows, (int)columns);
  std::memcpy(reinterpret_cast<void*>(made), &part, sizeof part);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_check, check_library);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_open, open_pool);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_begin, begin_job);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_wait, wait_job);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_drop, drop_job);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_close, close_pool);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_jpeg_part, find_part);
