// SPDX-License-Identifier: Apache-2.0
#ifndef DT_DT_HPP
#define DT_DT_HPP
/**
 * @file
 * dt for C++17 programs: move-only owners over dt.h, whose comments are the reference. Each method
 * is the C function of the same name; what differs:
 *
 *  1. A status that is not DT_OK is thrown as dt::Error. Destructors and close() never throw.
 *  2. Out flags are bool or std::optional results.
 *  3. Collectives take views: a vector, an array, a span, or {pointer, count} of a type that
 *     dtype_of knows; of other memory {pointer, count, dtype}. Counts and dtypes that do not fit
 *     together are an Error before anything moves. A view of an array's part is view.part().
 *  4. Collectives come in two forms: `allreduce` returns when the result is there, or on a CUDA
 *     communicator when it is ordered on the stream; `allreduce_async` returns a Work.
 *  5. Buffers belong to dt from the call to the completion of its Work, also if the Work object is
 *     destroyed before.
 *  6. An object that was moved from or closed holds NULL, which is refused with
 *     DT_ERR_INVALID_ARGUMENT, also where the C function takes NULL for none.
 */

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dt/dt.h"

namespace dt {
// The library itself lives in namespace dt too. The inline namespace keeps these names apart for
// the linker when a program holds both.
inline namespace client {

/** A failed call, as data. Copies share the data, so copying cannot throw. */
class Error : public std::exception {
 public:
  /** `message` may be longer than the one inside `info`, which is cut. */
  Error(dt_status status, const dt_error_info& info, std::string message)
      : data_(std::make_shared<const Data>(
            Data{status, info.rank, info.pid, info.sequence, info.host, info.operation,
                 message.empty() ? std::string(dt_status_name(status)) : std::move(message)})) {}

  /** What the program should do about it: see the table at dt_status. */
  dt_status status() const noexcept { return data_->status; }
  /** World rank behind the failure, -1 unknown. */
  int32_t rank() const noexcept { return data_->rank; }
  /** That rank's host, empty unknown. */
  const std::string& host() const noexcept { return data_->host; }
  /** That rank's process, 0 unknown. */
  int64_t pid() const noexcept { return data_->pid; }
  /** "allreduce", empty none. */
  const std::string& operation() const noexcept { return data_->operation; }
  /** Of the operation on its communicator, -1 none. */
  int64_t sequence() const noexcept { return data_->sequence; }
  /** What, where, why, what to do next. */
  const char* what() const noexcept override { return data_->message.c_str(); }

 private:
  struct Data {
    dt_status status;
    int32_t rank;
    int64_t pid;
    int64_t sequence;
    std::string host;
    std::string operation;
    std::string message;
  };
  std::shared_ptr<const Data> data_;
};

/** The dt_dtype of an element type. Specialise it for your own 16-bit float types. */
template <class T>
struct dtype_of;

template <dt_dtype D>
struct dtype_constant {
  static constexpr dt_dtype value = D;
};
template <>
struct dtype_of<signed char> : dtype_constant<DT_I8> {};
template <>
struct dtype_of<unsigned char> : dtype_constant<DT_U8> {};
template <>
struct dtype_of<char> : dtype_constant<DT_U8> {};
template <>
struct dtype_of<std::byte> : dtype_constant<DT_U8> {};
template <>
struct dtype_of<bool> : dtype_constant<DT_BOOL> {};
template <>
struct dtype_of<short> : dtype_constant<DT_I16> {};
template <>
struct dtype_of<unsigned short> : dtype_constant<DT_U16> {};
template <>
struct dtype_of<int> : dtype_constant<DT_I32> {};
template <>
struct dtype_of<unsigned int> : dtype_constant<DT_U32> {};
template <>
struct dtype_of<long> : dtype_constant<sizeof(long) == 8 ? DT_I64 : DT_I32> {};
template <>
struct dtype_of<unsigned long> : dtype_constant<sizeof(long) == 8 ? DT_U64 : DT_U32> {};
template <>
struct dtype_of<long long> : dtype_constant<DT_I64> {};
template <>
struct dtype_of<unsigned long long> : dtype_constant<DT_U64> {};
template <>
struct dtype_of<float> : dtype_constant<DT_F32> {};
template <>
struct dtype_of<double> : dtype_constant<DT_F64> {};

namespace detail {

/** A struct of dt.h as its dt_..._init() leaves it. */
template <class Struct>
Struct made(void (*init)(Struct*)) {
  Struct filled;
  init(&filled);
  return filled;
}

/** What is known of an error that no peer caused. */
inline dt_error_info no_info() {
  auto info = detail::made(dt_error_info_init);
  info.rank = -1;
  info.sequence = -1;
  return info;
}

inline void check(dt_status status) {
  if (status == DT_OK) return;
  dt_error_info info = no_info();
  if (dt_last_error_info(&info) != DT_OK) info = no_info();
  throw Error(status, info, dt_last_error());
}

[[noreturn]] inline void refuse(const std::string& message) {
  throw Error(DT_ERR_INVALID_ARGUMENT, no_info(), message);
}

/** For a function that takes text up to the first NUL: it would read a shorter one. */
inline const char* c_text(const std::string& text) {
  if (text.find('\0') != std::string::npos)
    refuse("a text has a NUL after \"" + std::string(text.c_str()) + "\"; give one without");
  return text.c_str();
}

/** Where NULL would mean none, and a closed object is a mistake. */
template <class T>
T* opened(T* handle, const char* what) {
  if (handle == nullptr) refuse(std::string(what) + " was closed or moved from");
  return handle;
}

/** Calls `read(buffer, capacity_bytes, &whole_bytes)` until everything fits; it may grow meanwhile.
 */
template <class Read>
std::string read_all(Read read) {
  std::string text(256, '\0');
  for (;;) {
    int64_t whole_bytes = 0;
    detail::check(read(text.data(), static_cast<int64_t>(text.size()), &whole_bytes));
    const auto whole = static_cast<std::size_t>(whole_bytes);
    const bool fits = whole <= text.size();
    text.resize(whole);
    if (fits) return text;
  }
}

/** The same for text that dt ends with a NUL. */
inline std::string without_nul(std::string text) {
  if (!text.empty()) text.pop_back();
  return text;
}
template <class Read>
std::string read_text(Read read) {
  return without_nul(read_all(read));
}

inline std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size());
  for (const std::string& text : strings) pointers.push_back(detail::c_text(text));
  return pointers;
}

/** An array with one for each of `count`, or NULL where there is none; else throws what to do. */
template <class T>
const T* one_each(const std::vector<T>& values, std::size_t count, const char* what_to_do) {
  if (values.empty()) return nullptr;
  if (values.size() != count) throw std::invalid_argument(what_to_do);
  return values.data();
}

/** dt checks the range; a count that int32_t cannot hold becomes one that dt refuses. */
inline int32_t count32(std::size_t count) noexcept {
  return count > 0x7fffffff ? -1 : static_cast<int32_t>(count);
}

/** Owns one C handle. */
template <class T, void (*Destroy)(T*)>
class Handle {
 public:
  /** Takes the handle. */
  explicit Handle(T* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      close();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Handle() { close(); }

  void close() noexcept { Destroy(std::exchange(handle_, nullptr)); }
  T* get_handle() const noexcept { return handle_; }
  /** Gives the handle away. */
  T* release() noexcept { return std::exchange(handle_, nullptr); }

 protected:
  Handle() noexcept = default;
  /** Calls a function of dt.h that takes the handle first. */
  template <class Function, class... Args>
  void call(Function function, Args... args) const {
    detail::check(function(handle_, args...));
  }
  /** One whose last parameter gives the result. */
  template <class Value, class Function, class... Args>
  Value ask(Function function, Args... args) const {
    Value value{};
    detail::check(function(handle_, args..., &value));
    return value;
  }
  /** One whose last parameter is a struct, which `init` prepares. */
  template <class Struct, class Function, class... Args>
  Struct fill(void (*init)(Struct*), Function function, Args... args) const {
    auto filled = detail::made(init);
    detail::check(function(handle_, args..., &filled));
    return filled;
  }
  /** One that ends with a buffer, its capacity and where it says how many bytes there are. */
  template <class Function, class... Args>
  std::string read(Function function, Args... args) const {
    return read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
      return function(handle_, args..., buffer, capacity_bytes, out_bytes);
    });
  }

  T* handle_ = nullptr;
};

/** Numbers to have for so many channels; what dt refuses needs no memory. */
inline std::size_t channel_room(int64_t channels) {
  return channels > 0 && channels <= int64_t{1} << 24 ? static_cast<std::size_t>(channels) : 1;
}

/** Whether T* is memory of elements that a `Void*` may point to. */
template <class T, class Void, class = decltype(dtype_of<std::remove_cv_t<T>>::value)>
using if_elements = std::enable_if_t<std::is_convertible<T*, Void*>::value>;
/** What `Range` holds one behind the other. */
template <class Range>
using element_of = std::remove_pointer_t<decltype(std::declval<Range&>().data())>;

}  // namespace detail

/** Release of the library: "0.1.0". */
inline std::string version() { return dt_version(); }
/** The ABI the library implements; compare with DT_ABI_VERSION. */
inline int32_t abi_version() { return dt_abi_version(); }
/** One "name: value" line each. */
inline std::string build_info() { return dt_build_info(); }
/** "DT_ERR_PEER_LOST". */
inline std::string status_name(dt_status status) { return dt_status_name(status); }
/** Message of this thread's last failed call; an Error carries its own. */
inline std::string last_error() { return dt_last_error(); }

/** Settings of a job before it starts. */
class Config : public detail::Handle<dt_config, dt_config_destroy> {
 public:
  using Handle::Handle;
  /** Reads all sources of configuration. */
  Config() { detail::check(dt_config_create(nullptr, &handle_)); }
  /** Reads `path` instead of ./dt.toml. */
  explicit Config(const std::string& path) {
    detail::check(dt_config_create(detail::c_text(path), &handle_));
  }

  void set(const std::string& key, const std::string& value) {
    call(dt_config_set, detail::c_text(key), detail::c_text(value));
  }
  std::string get(const std::string& key) const {
    return detail::without_nul(read(dt_config_get, detail::c_text(key)));
  }
  /** JSON: {key: {"value":, "source":}}. */
  std::string dump() const { return detail::without_nul(read(dt_config_dump)); }
  /** The sink must not throw. `user_data` is borrowed until every job made from this is destroyed.
   */
  void set_log_sink(dt_log_sink sink, void* user_data) {
    call(dt_config_set_log_sink, sink, user_data);
  }
};

namespace detail {
/** `config` may be null: none. */
inline dt_config* handle_of(const Config* config, const char* what) {
  return config == nullptr ? nullptr : detail::opened(config->get_handle(), what);
}
}  // namespace detail

/** Where a rank stands; fields as in dt_place. */
struct Place {
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node_rank = 0;
  int32_t node_count = 1;
  int32_t attempt = 0;
  int32_t master_port = 0;
  std::string master_addr;
  std::string job_id;
  std::string host;
  std::string launcher;
};

/** One asynchronous operation. Destroying it detaches the operation, which still borrows its
 * buffers. */
class Work : public detail::Handle<dt_work, dt_work_destroy> {
 public:
  using Handle::Handle;

  /** Whether it has completed; throws once it failed. */
  bool test() const { return ask<int32_t>(dt_work_test) != 0; }
  /** False when the time was over first, which cancels nothing; throws if the operation failed. */
  bool wait(int64_t timeout_ms = -1) const { return ask<int32_t>(dt_work_wait, timeout_ms) != 0; }
  /** Orders the work before later work on `stream` and returns at once. */
  void wait_stream(dt_stream stream) const { call(dt_work_wait_stream, stream); }
  /** The same work once more, to give one away. */
  Work share() const { return Work(ask<dt_work*>(dt_work_share)); }
  /** Why it failed; none while it runs and on success. */
  std::optional<Error> error() const {
    const auto info = fill(dt_error_info_init, dt_work_error_info);
    if (info.status == DT_OK) return std::nullopt;
    return Error(info.status, info, dt_work_error(handle_));
  }
};

/** Index of the first completed work, failed or not (ask it); none when the time was over first. */
inline std::optional<int32_t> wait_any(const std::vector<const Work*>& works,
                                       int64_t timeout_ms = -1) {
  std::vector<dt_work*> handles;
  handles.reserve(works.size());
  for (const Work* work : works) handles.push_back(work == nullptr ? nullptr : work->get_handle());
  int32_t index = -1;
  detail::check(
      dt_work_wait_any(handles.data(), detail::count32(handles.size()), timeout_ms, &index));
  if (index < 0) return std::nullopt;
  return index;
}

/**
 * Elements of one dtype in memory that lives elsewhere. Made of what has data() and size(), of an
 * array, or of a pointer and a count. View is memory that may be written, ConstView is only read.
 */
template <class Void>
struct BasicView {
  Void* data = nullptr;
  int64_t count = 0;                 /**< elements */
  dt_dtype dtype = DT_DTYPE_FORCE32; /**< DT_DTYPE_FORCE32: no view */

  /** None: where a rank's view is ignored. One that has nothing is {nullptr, 0, dtype}. */
  BasicView() noexcept = default;
  BasicView(Void* memory, int64_t elements, dt_dtype type) noexcept
      : data(memory), count(elements), dtype(type) {}
  template <class T, class Count, class = detail::if_elements<T, Void>,
            class = std::enable_if_t<std::is_integral<Count>::value>>
  BasicView(T* memory, Count elements) noexcept
      : BasicView(memory, static_cast<int64_t>(elements), dtype_of<std::remove_cv_t<T>>::value) {}
  template <class T, std::size_t N, class = detail::if_elements<T, Void>>
  BasicView(T (&array)[N]) noexcept : BasicView(array, N) {}
  template <class Range, class T = detail::element_of<Range>, class = detail::if_elements<T, Void>>
  BasicView(Range&& range) : BasicView(range.data(), range.size()) {}
  template <class Other, class = std::enable_if_t<!std::is_same<Other, Void>::value &&
                                                  std::is_convertible<Other*, Void*>::value>>
  BasicView(const BasicView<Other>& other) noexcept
      : BasicView(other.data, other.count, other.dtype) {}

  /** `elements` of it from `first` on: an own part, for an operation in place. */
  BasicView part(int64_t first, int64_t elements) const {
    if (first < 0 || elements < 0 || first > count - elements) {
      detail::refuse("part: elements " + std::to_string(first) + " to " +
                     std::to_string(first + elements) + " of a view of " + std::to_string(count));
    }
    using Byte = std::conditional_t<std::is_const<Void>::value, const char, char>;
    return {static_cast<Byte*>(data) + first * dt_dtype_bytes(dtype), elements, dtype};
  }
};
using View = BasicView<void>;
using ConstView = BasicView<const void>;

/** How many elements each rank has in a view, and where they begin; without offsets they lie one
 * behind the other, in rank order. Made of the counts alone, or of {counts, offsets}. */
struct Blocks {
  ConstView counts;  /**< an int64_t for each rank */
  ConstView offsets; /**< likewise, or empty */

  /** Of ranks that are not the root. */
  Blocks() noexcept = default;
  template <class Counts,
            class = std::enable_if_t<std::is_convertible<const Counts&, ConstView>::value>>
  Blocks(const Counts& block_counts, ConstView block_offsets = {})
      : counts(block_counts), offsets(block_offsets) {}
};

/** What an operation may be told besides its data. */
struct CallOptions {
  const char* name = nullptr; /**< in messages and traces, equal on all ranks */
  int64_t timeout_ms = 0;     /**< limit of this operation; 0: the communicator's; < 0: none */
  dt_stream stream = nullptr; /**< CUDA stream that produces what is sent */
};
inline CallOptions on_stream(dt_stream stream) { return {nullptr, 0, stream}; }

/** Makes `one` a reduction of elements T: combine(const T& in, T& inout), which lives until the
    operation is done. See dt_combine. */
template <class T, class Function>
void combine_by(dt_collective& one, const Function& combine) {
  static_assert(std::is_trivially_copyable<T>::value, "elements are copied as bytes");
  static_assert(alignof(T) <= 8, "elements lie at multiples of 8 bytes");
  one.element_bytes = sizeof(T);
  one.combine_data = const_cast<Function*>(&combine);
  one.combine = [](void* data, const void* in, void* inout, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      (*static_cast<const Function*>(data))(static_cast<const T*>(in)[i],
                                            static_cast<T*>(inout)[i]);
    }
  };
}

template <class T, class Function>
void combine_by(dt_collective& one, const Function&& combine) = delete;  // it would be gone

/** Of each channel, over all ranks, as dt_batch_moments() gives them. */
struct BatchMoments {
  std::vector<double> mean;
  std::vector<double> variance; /**< without Bessel's correction */
  int64_t count = 0;            /**< elements of each channel */
};

/** Of each channel, over all ranks, as dt_batch_gradient_sums() gives them. */
struct BatchGradientSums {
  std::vector<double> sum;     /**< of the gradient */
  std::vector<double> product; /**< of the gradient times the normalised input */
};

/** An ordered set of ranks that runs collectives. Counts are elements, never bytes. */
class Comm : public detail::Handle<dt_comm, dt_comm_destroy> {
 public:
  using Handle::Handle;

  int32_t rank() const { return ask<int32_t>(dt_comm_rank); }
  int32_t size() const { return ask<int32_t>(dt_comm_size); }
  int32_t world_rank(int32_t comm_rank) const {
    return ask<int32_t>(dt_comm_world_rank, comm_rank);
  }
  /** 0: no limit; < 0: collective.timeout_ms again. */
  void set_timeout(int64_t timeout_ms) { call(dt_comm_set_timeout, timeout_ms); }
  /** Throws the error that broke the communicator. */
  void check() const { call(dt_comm_check); }
  /** Collective. None where `color` is negative. */
  std::optional<Comm> split(int32_t color, int32_t key) {
    Comm part(ask<dt_comm*>(dt_comm_split, color, key));
    if (part.get_handle() == nullptr) return std::nullopt;
    return part;
  }
  /** The same ranks over host memory. See dt_comm_host(). */
  Comm host() { return Comm(ask<dt_comm*>(dt_comm_host)); }
  /** Collective over the ranks that live: they go on after a failure. See dt_comm_shrink(). */
  Comm shrink() { return Comm(ask<dt_comm*>(dt_comm_shrink)); }
  /** An eventfd owned by the communicator: readable when works have completed. */
  int32_t work_fd() const { return ask<int32_t>(dt_work_fd); }
  /** Zeroed memory that all local ranks reach: reductions copy nothing. Ends with mem_free(). */
  void* mem_alloc(int64_t bytes) { return ask<void*>(dt_mem_alloc, bytes); }
  template <class T>
  T* alloc(int64_t count) {
    constexpr auto kElementBytes = static_cast<int64_t>(sizeof(T));
    // A product that does not fit becomes a size that dt refuses.
    return static_cast<T*>(
        mem_alloc(count < 0 || count > INT64_MAX / kElementBytes ? -1 : count * kElementBytes));
  }
  void mem_free(void* pointer) { call(dt_mem_free, pointer); }

  void group_begin() { call(dt_group_begin); }
  void group_end() { call(dt_group_end, static_cast<dt_work**>(nullptr)); }
  /** Without waiting: one work for all operations of the group. */
  Work group_end_async() { return Work(ask<dt_work*>(dt_group_end)); }
  /** What `operations` calls on this communicator is carried out as one. */
  template <class F>
  void group(F&& operations) {
    call_in_group(std::forward<F>(operations));
    group_end();
  }
  /** Likewise without waiting, with one work for all. */
  template <class F>
  Work group_async(F&& operations) {
    call_in_group(std::forward<F>(operations));
    return group_end_async();
  }

  // Each collective: blocking, then with a Work. In place is the form with one view; else a rank's
  // own part, view.part(), may lie where dt_collective says.

  /** Any operation, as dt.h describes it. */
  void launch(const dt_collective& one) { call(dt_collective_launch, &one, nullptr); }
  Work launch_async(const dt_collective& one) {
    return Work(ask<dt_work*>(dt_collective_launch, &one));
  }

  void allreduce(ConstView send, View recv, dt_reduce_op op = DT_SUM,
                 const CallOptions& options = {}) {
    run(in_parts(DT_KIND_ALLREDUCE, send, 1, recv, 1, 0, options), op);
  }
  Work allreduce_async(ConstView send, View recv, dt_reduce_op op = DT_SUM,
                       const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_ALLREDUCE, send, 1, recv, 1, 0, options), op);
  }
  void allreduce(View values, dt_reduce_op op = DT_SUM, const CallOptions& options = {}) {
    allreduce(values, values, op, options);
  }
  Work allreduce_async(View values, dt_reduce_op op = DT_SUM, const CallOptions& options = {}) {
    return allreduce_async(values, values, op, options);
  }

  /** Where this rank is not the root, `recv` is ignored and may be {}. */
  void reduce(ConstView send, View recv, int32_t root, dt_reduce_op op = DT_SUM,
              const CallOptions& options = {}) {
    run(in_parts(DT_KIND_REDUCE, send, 1, recv, at(root), root, options), op);
  }
  Work reduce_async(ConstView send, View recv, int32_t root, dt_reduce_op op = DT_SUM,
                    const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_REDUCE, send, 1, recv, at(root), root, options), op);
  }
  void reduce(View values, int32_t root, dt_reduce_op op = DT_SUM,
              const CallOptions& options = {}) {
    reduce(values, values, root, op, options);
  }
  Work reduce_async(View values, int32_t root, dt_reduce_op op = DT_SUM,
                    const CallOptions& options = {}) {
    return reduce_async(values, values, root, op, options);
  }

  void broadcast(View values, int32_t root, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_BROADCAST, values, 1, values, 1, root, options));
  }
  Work broadcast_async(View values, int32_t root, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_BROADCAST, values, 1, values, 1, root, options));
  }

  /** `recv` is size() times as large as `send`. */
  void allgather(ConstView send, View recv, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_ALLGATHER, send, 1, recv, size(), 0, options));
  }
  Work allgather_async(ConstView send, View recv, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_ALLGATHER, send, 1, recv, size(), 0, options));
  }

  /** `send` is size() times as large as `recv`. */
  void reduce_scatter(ConstView send, View recv, dt_reduce_op op = DT_SUM,
                      const CallOptions& options = {}) {
    run(in_parts(DT_KIND_REDUCE_SCATTER, send, size(), recv, 1, 0, options), op);
  }
  Work reduce_scatter_async(ConstView send, View recv, dt_reduce_op op = DT_SUM,
                            const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_REDUCE_SCATTER, send, size(), recv, 1, 0, options), op);
  }

  /** `to` has the same counts on all ranks. */
  void reduce_scatterv(ConstView send, const Blocks& to, View recv, dt_reduce_op op = DT_SUM,
                       const CallOptions& options = {}) {
    run(in_blocks(DT_KIND_REDUCE_SCATTERV, send, &to, recv, nullptr, 0, options), op);
  }
  Work reduce_scatterv_async(ConstView send, const Blocks& to, View recv, dt_reduce_op op = DT_SUM,
                             const CallOptions& options = {}) {
    return start(in_blocks(DT_KIND_REDUCE_SCATTERV, send, &to, recv, nullptr, 0, options), op);
  }

  /** Both have a part for each rank and may not overlap. */
  void alltoall(ConstView send, View recv, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_ALLTOALL, send, size(), recv, size(), 0, options));
  }
  Work alltoall_async(ConstView send, View recv, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_ALLTOALL, send, size(), recv, size(), 0, options));
  }
  void alltoallv(ConstView send, const Blocks& to, View recv, const Blocks& from,
                 const CallOptions& options = {}) {
    run(in_blocks(DT_KIND_ALLTOALLV, send, &to, recv, &from, 0, options));
  }
  Work alltoallv_async(ConstView send, const Blocks& to, View recv, const Blocks& from,
                       const CallOptions& options = {}) {
    return start(in_blocks(DT_KIND_ALLTOALLV, send, &to, recv, &from, 0, options));
  }

  /** On the root `recv` is size() times as large as `send`; elsewhere it is ignored. */
  void gather(ConstView send, View recv, int32_t root, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_GATHER, send, 1, recv, at(root) * size(), root, options));
  }
  Work gather_async(ConstView send, View recv, int32_t root, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_GATHER, send, 1, recv, at(root) * size(), root, options));
  }
  /** `recv` and `from` matter on the root alone. */
  void gatherv(ConstView send, View recv, const Blocks& from, int32_t root,
               const CallOptions& options = {}) {
    run(in_blocks(DT_KIND_GATHERV, send, nullptr, recv, at(root) ? &from : nullptr, root, options));
  }
  Work gatherv_async(ConstView send, View recv, const Blocks& from, int32_t root,
                     const CallOptions& options = {}) {
    return start(
        in_blocks(DT_KIND_GATHERV, send, nullptr, recv, at(root) ? &from : nullptr, root, options));
  }

  /** On the root `send` is size() times as large as `recv`; elsewhere it is ignored. */
  void scatter(ConstView send, View recv, int32_t root, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_SCATTER, send, at(root) * size(), recv, 1, root, options));
  }
  Work scatter_async(ConstView send, View recv, int32_t root, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_SCATTER, send, at(root) * size(), recv, 1, root, options));
  }
  /** `send` and `to` matter on the root alone. */
  void scatterv(ConstView send, const Blocks& to, View recv, int32_t root,
                const CallOptions& options = {}) {
    run(in_blocks(DT_KIND_SCATTERV, send, at(root) ? &to : nullptr, recv, nullptr, root, options));
  }
  Work scatterv_async(ConstView send, const Blocks& to, View recv, int32_t root,
                      const CallOptions& options = {}) {
    return start(
        in_blocks(DT_KIND_SCATTERV, send, at(root) ? &to : nullptr, recv, nullptr, root, options));
  }

  /** `from` has the same counts on all ranks. */
  void allgatherv(ConstView send, View recv, const Blocks& from, const CallOptions& options = {}) {
    run(in_blocks(DT_KIND_ALLGATHERV, send, nullptr, recv, &from, 0, options));
  }
  Work allgatherv_async(ConstView send, View recv, const Blocks& from,
                        const CallOptions& options = {}) {
    return start(in_blocks(DT_KIND_ALLGATHERV, send, nullptr, recv, &from, 0, options));
  }

  void barrier(const CallOptions& options = {}) {
    run(in_parts(DT_KIND_BARRIER, {}, 0, {}, 0, 0, options));
  }
  Work barrier_async(const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_BARRIER, {}, 0, {}, 0, 0, options));
  }

  void send(ConstView values, int32_t peer, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_SEND, values, 1, {}, 0, peer, options));
  }
  Work send_async(ConstView values, int32_t peer, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_SEND, values, 1, {}, 0, peer, options));
  }
  void recv(View values, int32_t peer, const CallOptions& options = {}) {
    run(in_parts(DT_KIND_RECV, {}, 0, values, 1, peer, options));
  }
  Work recv_async(View values, int32_t peer, const CallOptions& options = {}) {
    return start(in_parts(DT_KIND_RECV, {}, 0, values, 1, peer, options));
  }

  /** Throws on all ranks unless they hold the same bytes. Collective. */
  void check_equal(const void* data, int64_t bytes, const std::string& name = {},
                   dt_stream stream = nullptr) {
    call(dt_check_equal, data, bytes, name.empty() ? nullptr : detail::c_text(name), stream);
  }

  /** Of each channel, over the batches of all ranks: [batch, channels, spatial] elements here. */
  BatchMoments batch_moments(const void* input, int64_t batch, int64_t channels, int64_t spatial,
                             dt_dtype dtype) {
    BatchMoments out;
    out.mean.resize(detail::channel_room(channels));
    out.variance.resize(out.mean.size());
    call(dt_batch_moments, input, batch, channels, spatial, dtype, out.mean.data(),
         out.variance.data(), &out.count, nullptr);
    return out;
  }
  /** The same into arrays of the communicator's memory, over GPUs in the order of `stream`. */
  void batch_moments(const void* input, int64_t batch, int64_t channels, int64_t spatial,
                     dt_dtype dtype, double* mean, double* variance, int64_t* count,
                     dt_stream stream) {
    call(dt_batch_moments, input, batch, channels, spatial, dtype, mean, variance, count, stream);
  }
  /** Likewise of a gradient. `moments` are those of the input; their channels are its channels. */
  BatchGradientSums batch_gradient_sums(const void* input, const void* gradient, int64_t batch,
                                        int64_t spatial, dt_dtype dtype,
                                        const BatchMoments& moments, double epsilon = 1e-5) {
    std::vector<double> variance = moments.variance;
    variance.resize(moments.mean.size());  // never read past a vector that is too short
    BatchGradientSums out;
    out.sum.resize(moments.mean.size());
    out.product.resize(moments.mean.size());
    call(dt_batch_gradient_sums, input, gradient, batch, static_cast<int64_t>(moments.mean.size()),
         spatial, dtype, moments.mean.data(), variance.data(), epsilon, out.sum.data(),
         out.product.data(), nullptr);
    return out;
  }
  /** The same into arrays of the communicator's memory, over GPUs in the order of `stream`. */
  void batch_gradient_sums(const void* input, const void* gradient, int64_t batch, int64_t channels,
                           int64_t spatial, dt_dtype dtype, const double* mean,
                           const double* variance, double epsilon, double* sum, double* product,
                           dt_stream stream) {
    call(dt_batch_gradient_sums, input, gradient, batch, channels, spatial, dtype, mean, variance,
         epsilon, sum, product, stream);
  }

 private:
  template <class F>
  void call_in_group(F&& operations) {
    group_begin();
    try {
      std::forward<F>(operations)();
    } catch (...) {
      (void)dt_group_end(get_handle(), nullptr);
      throw;
    }
  }
  [[noreturn]] static void refuse(dt_kind kind, const std::string& message) {
    constexpr const char* kNames[] = {
        "allreduce", "reduce",   "broadcast",  "allgather",      "reduce_scatter", "barrier",
        "send",      "recv",     "alltoall",   "alltoallv",      "gather",         "gatherv",
        "scatter",   "scatterv", "allgatherv", "reduce_scatterv"};
    detail::refuse(kNames[kind] + (": " + message));
  }
  /** 1 on the root, 0 elsewhere. */
  int64_t at(int32_t root) const { return rank() == root ? 1 : 0; }

  static dt_collective describe(dt_kind kind, ConstView send, View recv, int32_t peer,
                                const CallOptions& options) {
    auto one = detail::made(dt_collective_init);
    one.kind = kind;
    const bool sends = send.dtype != DT_DTYPE_FORCE32;
    const bool receives = recv.dtype != DT_DTYPE_FORCE32;
    one.dtype = sends ? send.dtype : receives ? recv.dtype : DT_U8;
    one.peer = peer;
    one.timeout_ms = options.timeout_ms;
    one.name = options.name;
    one.send = send.data;
    one.recv = recv.data;
    one.stream = options.stream;
    if ((!sends && send.data != nullptr) || (!receives && recv.data != nullptr)) {
      refuse(kind, "a view has data but no dtype; give it one");
    }
    if (sends && receives && send.dtype != recv.dtype) {
      refuse(kind, "send and recv have elements of different dtypes");
    }
    return one;
  }
  /** A view that has 0 parts is none of this rank's. */
  dt_collective in_parts(dt_kind kind, ConstView send, int64_t send_parts, View recv,
                         int64_t recv_parts, int32_t peer, const CallOptions& options) const {
    if (send_parts == 0) send = {};
    if (recv_parts == 0) recv = {};
    dt_collective one = describe(kind, send, recv, peer, options);
    one.count =
        send_parts > 0 ? send.count / send_parts : recv.count / std::max(recv_parts, int64_t{1});
    if (send.count != one.count * send_parts || recv.count != one.count * recv_parts) {
      refuse(kind, "send has " + std::to_string(send.count) + " elements and recv " +
                       std::to_string(recv.count) + "; they are " + std::to_string(send_parts) +
                       " and " + std::to_string(recv_parts) + " parts of one size");
    }
    return one;
  }
  /** The same for kinds with tables; a table that is null is none of this rank's. */
  dt_collective in_blocks(dt_kind kind, ConstView send, const Blocks* to, View recv,
                          const Blocks* from, int32_t peer, const CallOptions& options) const {
    dt_dtype dtype = send.dtype != DT_DTYPE_FORCE32 ? send.dtype : recv.dtype;
    if (kind == DT_KIND_GATHERV && from == nullptr) recv = {};
    if (kind == DT_KIND_SCATTERV && to == nullptr) send = {};
    dt_collective one = describe(kind, send, recv, peer, options);
    if (send.dtype == DT_DTYPE_FORCE32 && recv.dtype == DT_DTYPE_FORCE32) {
      if (dtype == DT_DTYPE_FORCE32) {
        refuse(kind,
               "no view has a dtype, which is to be that of the other ranks; of nothing "
               "give {nullptr, 0, DT_F32}");
      }
      one.dtype = dtype;
    }
    one.count = kind == DT_KIND_SCATTERV ? recv.count : send.count;
    if (to != nullptr) {
      one.send_counts = table(kind, *to, send.count);
      one.send_offsets = static_cast<const int64_t*>(to->offsets.data);
    }
    if (from != nullptr) {
      one.recv_counts = table(kind, *from, recv.count);
      one.recv_offsets = static_cast<const int64_t*>(from->offsets.data);
    }
    if (kind == DT_KIND_ALLGATHERV) own_block(kind, "send", one.recv_counts, send.count);
    if (kind == DT_KIND_REDUCE_SCATTERV) own_block(kind, "recv", one.send_counts, recv.count);
    return one;
  }
  /** The block of this rank has no count of its own in dt_collective. */
  void own_block(dt_kind kind, const char* view, const int64_t* counts, int64_t elements) const {
    if (counts[rank()] == elements) return;
    refuse(kind, std::string(view) + " has " + std::to_string(elements) +
                     " elements, but this rank's count is " + std::to_string(counts[rank()]));
  }
  /** The counts, once it is clear that all blocks lie in a view of so many elements. */
  const int64_t* table(dt_kind kind, const Blocks& blocks, int64_t elements) const {
    const int64_t ranks = size();
    for (const ConstView* list : {&blocks.counts, &blocks.offsets}) {
      if (list == &blocks.offsets && list->data == nullptr) continue;
      if (list->dtype != DT_I64 || list->count != ranks) {
        refuse(kind, "counts and offsets are an int64_t for each of the " + std::to_string(ranks) +
                         " ranks");
      }
    }
    const auto* const counts = static_cast<const int64_t*>(blocks.counts.data);
    const auto* const offsets = static_cast<const int64_t*>(blocks.offsets.data);
    int64_t end = 0;
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t begin = offsets == nullptr ? end : offsets[i];
      // What is negative dt refuses.
      if (counts[i] > 0 && begin >= 0 && begin > elements - counts[i]) {
        refuse(kind, "the block of rank " + std::to_string(i) + " ends behind the " +
                         std::to_string(elements) + " elements of its view");
      }
      end = begin + std::max(counts[i], int64_t{0});
    }
    return counts;
  }
  void run(dt_collective one, dt_reduce_op op = DT_SUM) {
    one.op = op;
    launch(one);
  }
  Work start(dt_collective one, dt_reduce_op op = DT_SUM) {
    one.op = op;
    return launch_async(one);
  }
};

/**
 * Membership in a distributed run, with its store. Destroying a job that did not finalize() is a
 * death to the other ranks.
 */
class Job : public detail::Handle<dt_job, dt_job_destroy> {
 public:
  using Handle::Handle;
  /** Joins with the settings that stand around the process. Collective. */
  Job() { detail::check(dt_init(nullptr, &handle_)); }
  /** Joins. Collective. */
  explicit Job(const Config& config) {
    detail::check(dt_init(detail::opened(config.get_handle(), "Job: config"), &handle_));
  }

  Place place() const {
    const auto c = fill(dt_place_init, dt_rank_info);
    return Place{c.rank,    c.world_size,  c.local_rank,  c.local_size, c.node_rank, c.node_count,
                 c.attempt, c.master_port, c.master_addr, c.job_id,     c.host,      c.launcher};
  }
  /** A new owner of the communicator of all ranks. */
  Comm world() { return Comm(ask<dt_comm*>(dt_comm_world)); }
  /** Collective over these world ranks alone. See dt_comm_create(). */
  Comm create_comm(const std::vector<int32_t>& ranks, const std::string& name = "comm") {
    return Comm(ask<dt_comm*>(dt_comm_create, ranks.data(), static_cast<int32_t>(ranks.size()),
                              detail::c_text(name)));
  }
  /** Fails the job on every rank, with this message. */
  void abort(const std::string& message) { call(dt_abort, message.c_str()); }
  /** Away on purpose for at most max_ms, until busy_end(): the others wait. */
  void busy_begin(const std::string& what, int64_t max_ms) {
    call(dt_busy_begin, what.c_str(), max_ms);
  }
  void busy_end() { call(dt_busy_end); }
  /** True on all ranks when every rank says true. */
  bool agree(bool agreed) { return ask<int32_t>(dt_agree, agreed ? 1 : 0) != 0; }
  /** Asks all ranks to stop; for signal handlers: dt_request_stop() with the handle. */
  void request_stop() {
    if (dt_request_stop(handle_) != DT_OK) (void)place();  // which says what the handle is
  }
  /** Whether to stop, in the same step on all ranks. */
  bool stop_requested() { return ask<int32_t>(dt_stop_requested) != 0; }
  /** Writes the last operations of this rank into a file below `directory`; empty: trace.dir. */
  void trace_dump(const std::string& directory = {}) {
    call(dt_trace_dump, directory.empty() ? nullptr : detail::c_text(directory));
  }
  /** What this rank did so far, on all communicators and in all reducers. */
  dt_stats stats() const { return fill(dt_stats_init, dt_job_stats); }
  /** What this rank did in operations of that kind, on all communicators. */
  dt_kind_stats kind_stats(dt_kind kind) const {
    return ask<dt_kind_stats>(dt_job_kind_stats, kind);
  }
  /** How long calls of this rank were held up by that one. */
  dt_peer_stats peer_stats(int32_t rank) const {
    return ask<dt_peer_stats>(dt_job_peer_stats, rank);
  }
  /** Leaves together; < 0: job.finalize_timeout_ms. The job has ended also if this throws. */
  void finalize(int64_t timeout_ms = -1) { call(dt_finalize, timeout_ms); }

  // The store. timeout_ms < 0: rendezvous.timeout_ms. Values are bytes.

  void store_set(const std::string& key, const std::string& value, int64_t timeout_ms = -1) {
    call(dt_store_set, detail::c_text(key), value.data(), static_cast<int64_t>(value.size()),
         timeout_ms);
  }
  /** Waits until the key exists. */
  std::string store_get(const std::string& key, int64_t timeout_ms = -1) {
    return read(dt_store_get, detail::c_text(key), timeout_ms);
  }
  /** The number after the addition. */
  int64_t store_add(const std::string& key, int64_t delta, int64_t timeout_ms = -1) {
    return ask<int64_t>(dt_store_add, detail::c_text(key), delta, timeout_ms);
  }
  void store_wait(const std::vector<std::string>& keys, int64_t timeout_ms = -1) {
    const std::vector<const char*> names = detail::pointers_to(keys);
    call(dt_store_wait, names.data(), detail::count32(names.size()), timeout_ms);
  }
  /** Whether it was set. No `expected`: the key must be absent. */
  bool store_compare_set(const std::string& key, const std::optional<std::string>& expected,
                         const std::string& desired, int64_t timeout_ms = -1) {
    return ask<int32_t>(dt_store_compare_set, detail::c_text(key),
                        expected ? expected->data() : nullptr,
                        expected ? static_cast<int64_t>(expected->size()) : 0, desired.data(),
                        static_cast<int64_t>(desired.size()), timeout_ms) != 0;
  }
  /** Whether the key was there. */
  bool store_delete(const std::string& key, int64_t timeout_ms = -1) {
    return ask<int32_t>(dt_store_delete, detail::c_text(key), timeout_ms) != 0;
  }
  /** Keys that begin with `prefix`, in byte order. */
  std::vector<std::string> store_list(const std::string& prefix, int64_t timeout_ms = -1) {
    const std::string text = read(dt_store_list, detail::c_text(prefix), timeout_ms);
    std::vector<std::string> keys;
    for (std::size_t at = 0; at < text.size(); at += keys.back().size() + 1) {
      keys.emplace_back(text.c_str() + at);
    }
    return keys;
  }
  /** All at once; values[i] is that of keys[i]. */
  void store_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                       int64_t timeout_ms = -1) {
    const std::vector<const char*> names = detail::pointers_to(keys);
    std::vector<const void*> data;
    std::vector<int64_t> bytes;
    for (const std::string& value : values) {
      data.push_back(value.data());
      bytes.push_back(static_cast<int64_t>(value.size()));
    }
    // Unequal lengths become a count that dt refuses.
    const int32_t count = keys.size() == values.size() ? detail::count32(keys.size()) : -1;
    call(dt_store_multi_set, names.data(), data.data(), bytes.data(), count, timeout_ms);
  }
  /** The values that exist, without waiting. */
  std::vector<std::optional<std::string>> store_multi_get(const std::vector<std::string>& keys,
                                                          int64_t timeout_ms = -1) {
    const std::vector<const char*> names = detail::pointers_to(keys);
    std::vector<int64_t> bytes(keys.size());
    const std::string all =
        detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
          return dt_store_multi_get(handle_, names.data(), detail::count32(names.size()),
                                    timeout_ms, buffer, capacity_bytes, bytes.data(), out_bytes);
        });
    std::vector<std::optional<std::string>> values;
    values.reserve(bytes.size());
    std::size_t at = 0;
    for (const int64_t value_bytes : bytes) {
      values.emplace_back();
      if (value_bytes < 0) continue;
      values.back() = all.substr(at, static_cast<std::size_t>(value_bytes));
      at += values.back()->size();
    }
    return values;
  }
  /** `count` 0: the world size. */
  void store_barrier(const std::string& name, int32_t count = 0, int64_t timeout_ms = -1) {
    call(dt_store_barrier, detail::c_text(name), count, timeout_ms);
  }
};

/** A store served for ranks that are threads or children of this process. */
class StoreServer : public detail::Handle<dt_store_server, dt_store_server_destroy> {
 public:
  using Handle::Handle;
  explicit StoreServer(const Config& config) {
    detail::check(
        dt_store_serve(detail::opened(config.get_handle(), "StoreServer: config"), &handle_));
  }

  int32_t port() const { return ask<int32_t>(dt_store_server_port); }
};

/** One parameter, in the order of registration. */
struct Param {
  int64_t count = 0;       /**< elements */
  dt_dtype dtype = DT_F32; /**< of its gradient */
  std::string name;        /**< for messages; may be empty */
  int32_t uses = 1;        /**< calls of ready() in a step, each with a part of the gradient */
  std::vector<int64_t> shape = {}; /**< in the file of Shard::save(); empty: one dimension */
};

/** The vectors take the place of the pointers. */
struct ReducerOptions : dt_reducer_options {
  ReducerOptions() noexcept { dt_reducer_options_init(this); }
  std::vector<int32_t> order;        /**< empty: none */
  std::vector<int64_t> row_elements; /**< empty: all are dense */
  std::vector<void*> grads;          /**< empty: gradients lie in dt's memory */
};

/** With the defaults. */
struct PowerSgdOptions : dt_power_sgd_options {
  PowerSgdOptions() noexcept { dt_power_sgd_options_init(this); }
};

/** Gradients reduced in buckets while the backward pass runs. */
class Reducer : public detail::Handle<dt_reducer, dt_reducer_destroy> {
 public:
  /** None yet. */
  explicit Reducer(std::nullptr_t) noexcept : Handle(nullptr) {}
  /** Collective over `comm`. */
  Reducer(const Comm& comm, const std::vector<Param>& params,
          const ReducerOptions& options = ReducerOptions()) {
    param_count_ = params.size();
    const std::vector<dt_param> c_params = to_c(params);
    const dt_reducer_options c_options = to_c(options, params.size());
    detail::check(dt_reducer_create(comm.get_handle(), c_params.data(),
                                    detail::count32(c_params.size()), &c_options, &handle_));
  }

  /** Where gradient `index` is to be written; valid until rebuild() says true. `stream` will write
   * there; with a shard of stage 2 or 3 it waits for what used the memory before. */
  void* grad(int32_t index, dt_stream stream = nullptr) {
    return ask<void*>(dt_reducer_grad, index, stream);
  }
  template <class T>
  T* grad_as(int32_t index, dt_stream stream = nullptr) {
    return static_cast<T*>(grad(index, stream));
  }
  /** `gradient` NULL: it was written where grad() said. Else borrowed until finish(), on GPUs until
   * the stream of finish() has come to it. `stream` produces the gradient. */
  void ready(int32_t index, void* gradient = nullptr, dt_stream stream = nullptr) {
    with_hook([&] { call(dt_reducer_ready, index, gradient, stream); });
  }
  /** hook(bucket, stage) reduces buckets in the reducer's place, see dt_bucket_hook, and gives what
   * it has started, or an empty Work. What it throws comes out of ready(), unused() or finish(). */
  void set_hook(std::function<Work(const dt_bucket&, int32_t)> hook) {
    auto kept = std::make_unique<Hook>(std::move(hook));
    call(dt_reducer_set_hook, kept->function ? &Hook::run : nullptr,
         static_cast<void*>(kept.get()));
    hook_ = std::move(kept);
  }
  /** Compresses gradients by PowerSGD. `rows`: of each parameter as a matrix; 0: it is none. */
  void power_sgd(const std::vector<int64_t>& rows,
                 const PowerSgdOptions& options = PowerSgdOptions()) {
    if (rows.size() != param_count_) {
      throw std::invalid_argument("Reducer::power_sgd: give as many rows as there are parameters");
    }
    call(dt_reducer_power_sgd, rows.data(), &options);
  }
  /** Errors that steps carry on; each rank needs a path of its own. load() is collective. */
  void save(const std::string& path) { call(dt_reducer_save, detail::c_text(path)); }
  void load(const std::string& path) { call(dt_reducer_load, detail::c_text(path)); }
  /** On: until it is off again, ready() adds to what the parameter has of this step, and completes
   * nothing. */
  void accumulate(bool on) { call(dt_reducer_accumulate, on ? 1 : 0); }
  /** This rank has none in this step. `gradient` receives the average if another rank has one. */
  void unused(int32_t index, void* gradient = nullptr, dt_stream stream = nullptr) {
    with_hook([&] { call(dt_reducer_unused, index, gradient, stream); });
  }
  /** Adds rows to a gradient of ReducerOptions::row_elements; `values`: of these rows. */
  void ready_rows(int32_t index, const std::vector<int64_t>& rows, const void* values) {
    call(dt_reducer_ready_rows, index, rows.data(), static_cast<int64_t>(rows.size()), values);
  }
  /** Rows of a matrix, in the reducer's memory until the next step. */
  struct Rows {
    const int64_t* rows;
    void* values;
    int64_t count;
  };
  Rows rows(int32_t index) const {
    Rows found = {};
    call(dt_reducer_rows, index, &found.rows, &found.values, &found.count);
    return found;
  }
  /** Whether any rank had a gradient for it in the last step. */
  bool used(int32_t index) const { return ask<int32_t>(dt_reducer_used, index) != 0; }
  /** Ranks that had a gradient at all in the last step; 0: all have run out of batches. */
  int32_t active() const { return ask<int32_t>(dt_reducer_active); }
  /** finish() compares these bytes of parameter `index` between ranks, as often as
   * reducer.check_steps says; NULL: no longer. Borrowed. */
  void watch(int32_t index, const void* data, int64_t bytes) {
    call(dt_reducer_watch, index, data, bytes);
  }
  /** Ends the step. Collective. On GPUs `stream` waits, the caller does not. */
  void finish(dt_stream stream = nullptr) {
    with_hook([&] { call(dt_reducer_finish, stream); });
  }
  /** Scales the last step's gradients to a norm of at most `max_norm`; the norm of before. On GPUs
   * give `on_gpu`, an f32 of the GPU that receives it; then 0 is returned. */
  float clip_norm(double max_norm, double norm_type = 2, dt_stream stream = nullptr,
                  float* on_gpu = nullptr) {
    float norm = 0;
    call(dt_reducer_clip_norm, max_norm, norm_type, stream, on_gpu != nullptr ? on_gpu : &norm);
    return norm;
  }
  /** True: read the pointers of grad() again. Collective. */
  bool rebuild() { return ask<int32_t>(dt_reducer_rebuild) != 0; }
  /** By which the plan in use was made, for ReducerOptions::order of a later run. */
  std::vector<int32_t> order() const {
    std::vector<int32_t> order(param_count_);
    call(dt_reducer_order, order.data());
    return order;
  }
  /** In launch order. */
  int32_t bucket(int32_t index) const { return ask<int32_t>(dt_reducer_bucket, index); }
  dt_reducer_statistics stats() const { return fill(dt_reducer_statistics_init, dt_reducer_stats); }

  dt_reducer* release() = delete;  // the hook would stay behind

 private:
  friend class Shard;
  Reducer(dt_reducer* handle, std::size_t param_count)
      : Handle(handle), param_count_(param_count) {}
  static std::vector<dt_param> to_c(const std::vector<Param>& params) {
    std::vector<dt_param> c_params;
    c_params.reserve(params.size());
    for (const Param& param : params) {
      c_params.push_back(dt_param{param.count,
                                  param.name.empty() ? nullptr : detail::c_text(param.name),
                                  param.dtype, param.uses});
    }
    return c_params;
  }
  static dt_reducer_options to_c(const ReducerOptions& options, std::size_t param_count) {
    dt_reducer_options c_options = options;
    c_options.order = detail::one_each(options.order, param_count,
                                       "ReducerOptions::order: give each parameter once");
    c_options.row_elements =
        detail::one_each(options.row_elements, param_count,
                         "ReducerOptions::row_elements: give a number for each parameter");
    c_options.grads = detail::one_each(options.grads, param_count,
                                       "ReducerOptions::grads: give a place for each parameter");
    return c_options;
  }
  struct Hook {
    explicit Hook(std::function<Work(const dt_bucket&, int32_t)> hook)
        : function(std::move(hook)) {}

    std::function<Work(const dt_bucket&, int32_t)> function;
    std::mutex mutex;  // of what threads that are in ready() leave and take
    std::exception_ptr thrown;

    static dt_status run(void* self, const dt_bucket* bucket, int32_t stage, dt_work** out_work) {
      auto& hook = *static_cast<Hook*>(self);
      try {
        *out_work = hook.function(*bucket, stage).release();
        return DT_OK;
      } catch (const Error& error) {
        hook.keep(std::current_exception());
        return error.status();
      } catch (...) {
        hook.keep(std::current_exception());
        return DT_ERR_ABORTED;
      }
    }
    void keep(std::exception_ptr exception) {
      const std::lock_guard<std::mutex> lock(mutex);
      thrown = std::move(exception);
    }
    std::exception_ptr take() {
      const std::lock_guard<std::mutex> lock(mutex);
      return std::exchange(thrown, nullptr);
    }
  };
  template <class Function>
  void with_hook(Function function) {
    try {
      function();
    } catch (const Error&) {
      const std::exception_ptr thrown = hook_ == nullptr ? nullptr : hook_->take();
      if (thrown == nullptr) throw;
      std::rethrow_exception(thrown);
    }
  }
  std::size_t param_count_ = 0;
  std::unique_ptr<Hook> hook_;  // its address stays when this object moves
};

/** The members below take the place of the C struct's pointers. */
struct ShardOptions : dt_shard_options {
  ShardOptions() noexcept { dt_shard_options_init(this); }
  ReducerOptions reducer;
  std::vector<int64_t> granules; /**< empty: all 1 */
  std::vector<int32_t> units;    /**< empty: all 0 */
  std::string offload;           /**< empty: in memory */
};

class Optimizer;

/** Parameters of which each rank updates its own pieces. */
class Shard : public detail::Handle<dt_shard, dt_shard_destroy> {
 public:
  /** None yet. */
  explicit Shard(std::nullptr_t) noexcept : Handle(nullptr) {}
  /** Collective over `comm`. On GPUs parameters and gradients lie in the GPU's memory. */
  Shard(const Comm& comm, const std::vector<Param>& params,
        const ShardOptions& options = ShardOptions()) {
    const std::vector<dt_param> c_params = Reducer::to_c(params);
    const dt_reducer_options gradients = Reducer::to_c(options.reducer, params.size());
    constexpr const char* kOneEach = "ShardOptions: give each parameter one granule and one unit";
    dt_shard_options c_options = options;
    c_options.reducer = &gradients;
    c_options.granules = detail::one_each(options.granules, params.size(), kOneEach);
    c_options.units = detail::one_each(options.units, params.size(), kOneEach);
    c_options.offload = options.offload.empty() ? nullptr : detail::c_text(options.offload);
    std::vector<int32_t> dims;
    std::vector<int64_t> shapes;
    for (const Param& param : params) {
      dims.push_back(detail::count32(param.shape.size()));
      shapes.insert(shapes.end(), param.shape.begin(), param.shape.end());
    }
    c_options.dims = dims.data();
    c_options.shapes = shapes.data();
    detail::check(dt_shard_create(comm.get_handle(), c_params.data(),
                                  detail::count32(c_params.size()), &c_options, &handle_));
    reducer_ = Reducer(ask<dt_reducer*>(dt_shard_reducer), params.size());
    ranks_ = static_cast<size_t>(comm.size());
  }

  /** The reducer of its gradients. */
  Reducer& reducer() { return reducer_; }
  /** Whole; after updated() its values are valid from gather() of its unit. */
  void* param(int32_t index) const { return ask<void*>(dt_shard_param, index); }
  template <class T>
  T* param_as(int32_t index) const {
    return static_cast<T*>(param(index));
  }
  /** Copies all elements of a parameter in, on this rank. For GPUs `values` may lie in either
   * memory; in the GPU's they are borrowed until `stream` has passed the call. */
  void set(int32_t index, const void* values, dt_stream stream = nullptr) {
    call(dt_shard_set, index, values, stream);
  }
  /** What this rank updates of it, on `stream`. */
  dt_piece piece(int32_t index, dt_stream stream = nullptr) const {
    return fill(dt_piece_init, dt_shard_piece, index, stream);
  }
  /** Offset and count of what each rank of the communicator updates of it. */
  std::vector<std::pair<int64_t, int64_t>> plan(int32_t index) const {
    std::vector<int64_t> offsets(ranks_), counts(ranks_);
    call(dt_shard_plan, index, offsets.data(), counts.data());
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (size_t rank = 0; rank < ranks_; ++rank) pieces.emplace_back(offsets[rank], counts[rank]);
    return pieces;
  }
  /** A whole gradient of the last step, from the pieces of all ranks. Collective. */
  void full_grad(int32_t index, void* out_values, dt_stream stream = nullptr) const {
    call(dt_shard_full_grad, index, stream, out_values);
  }
  /** This rank's pieces are updated on `stream`: begins to send them to all ranks. Collective. */
  void updated(dt_stream stream = nullptr) { call(dt_shard_updated, stream); }
  /** Waits until the unit's parameters are whole; on GPUs `stream` waits instead. */
  void gather(int32_t unit, dt_stream stream = nullptr) { call(dt_shard_gather, unit, stream); }
  /** Its parameters are not used until the next gather() of it, behind what `stream` holds; does
   * something in stage 3. */
  void release(int32_t unit, dt_stream stream = nullptr) { call(dt_shard_release, unit, stream); }
  /** Writes the parameters to a file in the layout of safetensors. Collective. */
  void save(const std::string& path) {
    call(dt_shard_save, static_cast<dt_optimizer*>(nullptr), detail::c_text(path));
  }
  /** The same, with the state of the shard's optimizer. */
  void save(const std::string& path, const Optimizer& optimizer);
  /** Reads what save() wrote, with whatever number of ranks; gather() follows. Collective. */
  void load(const std::string& path) {
    call(dt_shard_load, static_cast<dt_optimizer*>(nullptr), detail::c_text(path));
  }
  /** The same, with the state of the shard's optimizer. */
  void load(const std::string& path, Optimizer& optimizer);

 private:
  friend class Optimizer;
  const double* each(const std::vector<double>& values) const {
    return detail::one_each(values, reducer_.param_count_,
                            "weight_decays: give each parameter one");
  }
  Reducer reducer_{nullptr};
  size_t ranks_ = 0;
};

/** The vector takes the place of the pointer. */
struct AdamWOptions : dt_adamw_options {
  AdamWOptions() noexcept { dt_adamw_options_init(this); }
  std::vector<double> weight_decays; /**< empty: weight_decay for all */
};

/** The vector takes the place of the pointer. */
struct SgdOptions : dt_sgd_options {
  SgdOptions() noexcept { dt_sgd_options_init(this); }
  std::vector<double> weight_decays; /**< empty: weight_decay for all */
};

/** Updates this rank's pieces of a shard. */
class Optimizer : public detail::Handle<dt_optimizer, dt_optimizer_destroy> {
 public:
  using Handle::Handle;
  static Optimizer adamw(const Shard& shard, const AdamWOptions& options = AdamWOptions()) {
    dt_adamw_options c_options = options;
    c_options.weight_decays = shard.each(options.weight_decays);
    return Optimizer(shard.ask<dt_optimizer*>(dt_optimizer_adamw, &c_options));
  }
  static Optimizer sgd(const Shard& shard, const SgdOptions& options = SgdOptions()) {
    dt_sgd_options c_options = options;
    c_options.weight_decays = shard.each(options.weight_decays);
    return Optimizer(shard.ask<dt_optimizer*>(dt_optimizer_sgd, &c_options));
  }
  /** Behind finish() of the reducer; then does what Shard::updated() does. Collective. */
  void step(double rate, dt_stream stream = nullptr) { call(dt_optimizer_step, rate, stream); }
  /** How many steps skip_non_finite has skipped, but for the last `behind`, 0 to 7. */
  int64_t skipped(int32_t behind = 0) const { return ask<int64_t>(dt_optimizer_skipped, behind); }
};

inline void Shard::save(const std::string& path, const Optimizer& optimizer) {
  call(dt_shard_save, detail::opened(optimizer.get_handle(), "Shard::save: optimizer"),
       detail::c_text(path));
}
inline void Shard::load(const std::string& path, Optimizer& optimizer) {
  call(dt_shard_load, detail::opened(optimizer.get_handle(), "Shard::load: optimizer"),
       detail::c_text(path));
}

/** With the defaults. */
struct NamedOptions : dt_named_options {
  NamedOptions() noexcept { dt_named_options_init(this); }
};

/** Operations that ranks submit by name, each in its own order. */
class Named : public detail::Handle<dt_named, dt_named_destroy> {
 public:
  using Handle::Handle;
  /** Collective over `comm`, which is over host memory. */
  explicit Named(const Comm& comm, const NamedOptions& options = NamedOptions()) {
    detail::check(dt_named_create(comm.get_handle(), &options, &handle_));
  }

  /** Returns when it is done; `one` is filled in as for Comm::launch(). */
  void submit(const std::string& name, const dt_collective& one) {
    call(dt_named_submit, detail::c_text(name), &one, static_cast<dt_work**>(nullptr));
  }
  Work submit_async(const std::string& name, const dt_collective& one) {
    return Work(ask<dt_work*>(dt_named_submit, detail::c_text(name), &one));
  }
  /** In place. */
  void allreduce(const std::string& name, View data, dt_reduce_op op = DT_SUM) {
    submit(name, describe(data, op));
  }
  Work allreduce_async(const std::string& name, View data, dt_reduce_op op = DT_SUM) {
    return submit_async(name, describe(data, op));
  }
  /** Released together; a work for each. */
  std::vector<Work> submit_group_async(const std::vector<std::string>& names,
                                       const std::vector<dt_collective>& all) {
    if (names.size() != all.size()) {
      throw std::invalid_argument("Named: give each operation of the group one name");
    }
    const std::vector<const char*> c_names = detail::pointers_to(names);
    std::vector<const dt_collective*> c_all;
    for (const dt_collective& one : all) c_all.push_back(&one);
    std::vector<dt_work*> handles(all.size());
    std::vector<Work> works;
    works.reserve(all.size());
    call(dt_named_submit_group, c_names.data(), c_all.data(), detail::count32(all.size()),
         handles.data());
    for (dt_work* handle : handles) works.emplace_back(handle);
    return works;
  }
  /** The rank that joined last; none while not all have, and this rank stays joined. */
  std::optional<int32_t> join(int64_t timeout_ms = -1) {
    const auto last = ask<int32_t>(dt_named_join, timeout_ms);
    if (last < 0) return std::nullopt;
    return last;
  }
  /** What waits for other ranks, a line each. */
  std::string report(int64_t timeout_ms = -1) const {
    return detail::without_nul(read(dt_named_report, timeout_ms));
  }
  dt_named_statistics statistics() const { return fill(dt_named_statistics_init, dt_named_stats); }

 private:
  static dt_collective describe(const View& data, dt_reduce_op op) {
    auto one = detail::made(dt_collective_init);
    one.kind = DT_KIND_ALLREDUCE;
    one.dtype = data.dtype;
    one.op = op;
    one.count = data.count;
    one.send = one.recv = data.data;
    return one;
  }
};

/** Fields as in dt_outer_param. */
struct OuterParam {
  void* data = nullptr;
  int64_t count = 0;
  dt_dtype dtype = DT_F32;
  std::string name;
};

/** With the defaults. */
struct OuterOptions : dt_outer_options {
  OuterOptions() noexcept { dt_outer_options_init(this); }
};

/** Ranks that train by themselves and come together now and then (DiLoCo). */
class Outer : public detail::Handle<dt_outer, dt_outer_destroy> {
 public:
  using Handle::Handle;
  /** Collective over `comm`, which is over host memory. The parameters' data is borrowed. */
  Outer(const Comm& comm, const std::vector<OuterParam>& params,
        const OuterOptions& options = OuterOptions()) {
    std::vector<dt_outer_param> c_params;
    for (const OuterParam& param : params) {
      c_params.push_back({param.data, param.count, detail::c_text(param.name), param.dtype, 0});
    }
    detail::check(dt_outer_create(comm.get_handle(), c_params.data(),
                                  detail::count32(c_params.size()), &options, &handle_));
  }
  /** Behind each step of the inner optimizer. True: it has changed parameters. */
  bool step() { return ask<int32_t>(dt_outer_step) != 0; }
  /** Every rank has the global parameters behind it. */
  void sync() { call(dt_outer_sync); }
  /** How many there were, also those of the file that load() read. */
  int64_t steps() const { return ask<int64_t>(dt_outer_steps); }
  /** Goes on over another communicator. */
  void move(const Comm& comm) { call(dt_outer_move, comm.get_handle()); }
  void save(const std::string& path) { call(dt_outer_save, detail::c_text(path)); }
  void load(const std::string& path) { call(dt_outer_load, detail::c_text(path)); }
};

/** What this process is in a job with parameter servers. */
inline dt_ps_place ps_info(const Config* config = nullptr) {
  auto place = detail::made(dt_ps_place_init);
  detail::check(dt_ps_info(detail::handle_of(config, "ps_info: config"), &place));
  return place;
}

/** With the defaults. */
struct PsServerOptions : dt_ps_server_options {
  PsServerOptions() noexcept { dt_ps_server_options_init(this); }
};

/** A parameter server that this process is. */
class PsServer : public detail::Handle<dt_ps_server, dt_ps_server_destroy> {
 public:
  using Handle::Handle;
  explicit PsServer(const Config* config = nullptr,
                    const PsServerOptions& options = PsServerOptions()) {
    detail::check(dt_ps_serve(detail::handle_of(config, "PsServer: config"), &options, &handle_));
  }
  int32_t port() const { return ask<int32_t>(dt_ps_server_port); }
  /** Until all workers have left. False: the time-out came first. */
  bool wait(int64_t timeout_ms = -1) { return ask<int32_t>(dt_ps_server_wait, timeout_ms) != 0; }
  dt_ps_server_statistics statistics() const {
    return fill(dt_ps_server_statistics_init, dt_ps_server_stats);
  }
};

/** With the defaults. */
struct PsSpec : dt_ps_spec {
  PsSpec() noexcept { dt_ps_spec_init(this); }
};

/** A variable of a Ps, of which it is to be used. `rows`: none: all; else a view of int64_t. */
class PsVariable {
 public:
  using Rows = std::optional<ConstView>;

  PsVariable(dt_ps* ps, int32_t number, int64_t rows, int32_t columns) noexcept
      : ps_(ps), number_(number), rows_(rows), columns_(columns) {}
  int32_t number() const noexcept { return number_; }
  int64_t rows() const noexcept { return rows_; }
  int32_t columns() const noexcept { return columns_; }

  /** The servers update rows with gradients. `rate` < 0: the variable's. */
  void push(ConstView gradients, const Rows& rows = std::nullopt, double rate = -1) {
    push(gradients, rows, rate, nullptr);
  }
  /** The gradients are copied before it returns. */
  Work push_async(ConstView gradients, const Rows& rows = std::nullopt, double rate = -1) {
    dt_work* work = nullptr;
    push(gradients, rows, rate, &work);
    return Work(work);
  }
  void pull(View values, const Rows& rows = std::nullopt) const { pull(values, rows, nullptr); }
  /** The values are written until it is done. */
  Work pull_async(View values, const Rows& rows = std::nullopt) const {
    dt_work* work = nullptr;
    pull(values, rows, &work);
    return Work(work);
  }
  void set(ConstView values, const Rows& rows = std::nullopt) { set(values, rows, nullptr); }
  /** The values are copied before it returns. */
  Work set_async(ConstView values, const Rows& rows = std::nullopt) {
    dt_work* work = nullptr;
    set(values, rows, &work);
    return Work(work);
  }

 private:
  struct Chosen {
    const int64_t* rows;
    int64_t count;
  };
  void push(ConstView gradients, const Rows& rows, double rate, dt_work** work) {
    const Chosen some = fit("dt_ps_push: gradients", gradients, rows);
    detail::check(dt_ps_push(ps_, number_, some.rows, some.count,
                             static_cast<const float*>(gradients.data), rate, work));
  }
  void pull(View values, const Rows& rows, dt_work** work) const {
    const Chosen some = fit("dt_ps_pull: values", values, rows);
    detail::check(
        dt_ps_pull(ps_, number_, some.rows, some.count, static_cast<float*>(values.data), work));
  }
  void set(ConstView values, const Rows& rows, dt_work** work) {
    const Chosen some = fit("dt_ps_set: values", values, rows);
    detail::check(dt_ps_set(ps_, number_, some.rows, some.count,
                            static_cast<const float*>(values.data), work));
  }
  Chosen fit(const std::string& what, const ConstView& values, const Rows& rows) const {
    if (values.count > 0 && values.dtype != DT_F32) {
      detail::refuse(what + " is not of f32; give float");
    }
    if (rows && rows->count > 0 && rows->dtype != DT_I64) {
      detail::refuse(what + " has rows that are not of i64; give int64_t");
    }
    const int64_t some = rows ? rows->count : rows_;
    // Divided, since the product may not fit.
    if (values.count % columns_ != 0 || values.count / columns_ != some) {
      detail::refuse(what + " has " + std::to_string(values.count) + " elements, but there are " +
                     std::to_string(some) + " rows of " + std::to_string(columns_) +
                     " columns; give one for each");
    }
    if (!rows) return {nullptr, -1};
    return {static_cast<const int64_t*>(rows->data), some};
  }

  dt_ps* ps_;
  int32_t number_;
  int64_t rows_;
  int32_t columns_;
};

/** With the defaults. */
struct PsOptions : dt_ps_options {
  PsOptions() noexcept { dt_ps_options_init(this); }
};

/** A worker's connection to the parameter servers of its job. */
class Ps : public detail::Handle<dt_ps, dt_ps_destroy> {
 public:
  using Handle::Handle;
  explicit Ps(const Config* config = nullptr, const PsOptions& options = PsOptions()) {
    detail::check(dt_ps_connect(detail::handle_of(config, "Ps: config"), &options, &handle_));
  }
  /** Name, rows and columns go before those of `spec`. */
  PsVariable variable(const std::string& name, int64_t rows, int32_t columns,
                      PsSpec spec = PsSpec()) {
    spec.name = detail::c_text(name);
    spec.rows = rows;
    spec.columns = columns;
    return {handle_, ask<int32_t>(dt_ps_variable, &spec), rows, columns};
  }
  /** Returns once no worker is more than `ahead` steps behind. */
  void clock(int64_t ahead) { call(dt_ps_clock, ahead); }
  /** Every server writes a checkpoint. */
  void save() { call(dt_ps_save); }
  /** Says goodbye: without it the servers take this worker for lost. */
  void leave() { call(dt_ps_leave); }
  int32_t work_fd() const { return ask<int32_t>(dt_ps_fd); }
  dt_ps_statistics statistics() const { return fill(dt_ps_statistics_init, dt_ps_stats); }
};

/** With the defaults, for a job of one rank. */
struct SamplerOptions : dt_sampler_options {
  SamplerOptions() noexcept {
    dt_sampler_options_init(this);
    world_size = 1;
  }
};

/** Where a sampler is; at first, at the beginning. */
struct SamplerState : dt_sampler_state {
  SamplerState() noexcept { dt_sampler_state_init(this); }
};

/** Which samples of a data set this rank sees, in which order. */
class Sampler : public detail::Handle<dt_sampler, dt_sampler_destroy> {
 public:
  using Handle::Handle;
  explicit Sampler(const SamplerOptions& options) {
    detail::check(dt_sampler_create(&options, &handle_));
  }

  /** The epoch that is chosen already goes on where it is, unless all of it was taken. */
  void set_epoch(int64_t epoch) { call(dt_sampler_set_epoch, epoch); }
  int64_t length() const { return ask<int64_t>(dt_sampler_length); }
  /** Throws on all ranks unless their samplers belong together. Collective over `comm`. */
  void check(const Comm& comm) const { call(dt_sampler_check, comm.get_handle()); }
  /** Copies [first, first + count) into `out`, [count] long. */
  void indices(int64_t first, int64_t count, int64_t* out) const {
    call(dt_sampler_indices, first, count, out);
  }
  /** The next batch, shorter only at the end (with whole_batches never); empty: the epoch has
   * ended. */
  std::vector<int64_t> next(int64_t count) {
    count = std::min(count, length() + 1);  // what dt refuses or cannot give needs no memory
    std::vector<int64_t> out(count > 0 ? static_cast<std::size_t>(count) : 1);
    out.resize(static_cast<std::size_t>(ask<int64_t>(dt_sampler_next, count, out.data())));
    return out;
  }
  /** Where the job is, for a checkpoint. `taken`: samples that this rank has used; -1: all that
   * next() gave. */
  SamplerState save(int64_t taken = -1) const {
    SamplerState state;
    call(dt_sampler_save, taken, &state);
    return state;
  }
  /** Goes on there; the number of ranks may be another one. */
  void resume(const SamplerState& state) { call(dt_sampler_resume, &state); }
  /** From `first` to the end of the epoch. */
  std::vector<int64_t> indices(int64_t first = 0) const {
    const int64_t rest = length() - first;
    std::vector<int64_t> out(rest > 0 ? static_cast<std::size_t>(rest) : 0);
    indices(first, rest, out.data());
    return out;
  }
};

}  // namespace client
}  // namespace dt

#endif  // DT_DT_HPP
