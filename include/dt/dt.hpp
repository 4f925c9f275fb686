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
 *  3. Collectives come in two forms: `allreduce` returns when the result is there, or on a CUDA
 *     communicator when it is ordered on the stream; `allreduce_async` returns a Work. Both exist
 *     for typed pointers (dtype deduced by dtype_of) and for void pointers with a dt_dtype.
 *  4. Buffers belong to dt from the call to the completion of its Work, also if the Work object is
 *     destroyed before.
 *  5. An object that was moved from or closed holds NULL; dt refuses it with
 *     DT_ERR_INVALID_ARGUMENT.
 */

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
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

#ifndef SWIG
template <dt_dtype D>
struct dtype_constant {
  static constexpr dt_dtype value = D;
};
template <>
struct dtype_of<signed char> : dtype_constant<DT_I8> {};
template <>
struct dtype_of<unsigned char> : dtype_constant<DT_U8> {};
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

inline void check(dt_status status) {
  if (status == DT_OK) return;
  dt_error_info info;
  dt_error_info_init(&info);
  if (dt_last_error_info(&info) != DT_OK) {
    dt_error_info_init(&info);
    info.rank = -1;
    info.sequence = -1;
  }
  throw Error(status, info, dt_last_error());
}

/** Owns one C handle. */
template <class T, void (*Destroy)(T*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(T* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      close();
      handle_ = other.release();
    }
    return *this;
  }
  ~Handle() { close(); }

  T* get() const noexcept { return handle_; }
  T* release() noexcept { return std::exchange(handle_, nullptr); }
  void close() noexcept { Destroy(release()); }
  /** Where a create function puts its handle. */
  T** out() noexcept {
    close();
    return &handle_;
  }

 private:
  T* handle_ = nullptr;
};

/** Calls `read(buffer, capacity_bytes, &whole_bytes)` until everything fits; it may grow meanwhile.
 */
template <class Read>
std::string read_all(Read read) {
  std::string text(256, '\0');
  for (;;) {
    int64_t whole_bytes = 0;
    check(read(text.data(), static_cast<int64_t>(text.size()), &whole_bytes));
    const auto whole = static_cast<std::size_t>(whole_bytes);
    const bool fits = whole <= text.size();
    text.resize(whole);
    if (fits) return text;
  }
}

/** The same for text that dt ends with a NUL. */
template <class Read>
std::string read_text(Read read) {
  std::string text = read_all(read);
  if (!text.empty()) text.pop_back();
  return text;
}

inline std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size());
  for (const std::string& text : strings) pointers.push_back(text.c_str());
  return pointers;
}

/** dt checks the range; a count that int32_t cannot hold becomes one that dt refuses. */
inline int32_t count32(std::size_t count) noexcept {
  return count > 0x7fffffff ? -1 : static_cast<int32_t>(count);
}

template <class T>
struct identity {
  using type = T;
};

/** Numbers to have for so many channels; what dt refuses needs no memory. */
inline std::size_t channel_room(int64_t channels) {
  return channels > 0 && channels <= int64_t{1} << 24 ? static_cast<std::size_t>(channels) : 1;
}

}  // namespace detail
#endif  // SWIG

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
class Config {
 public:
  /** Reads all sources of configuration. */
  Config() { detail::check(dt_config_create(nullptr, handle_.out())); }
  /** Reads `path` instead of ./dt.toml. */
  explicit Config(const std::string& path) {
    detail::check(dt_config_create(path.c_str(), handle_.out()));
  }
  /** Takes the handle. */
  explicit Config(dt_config* handle) noexcept : handle_(handle) {}
  Config(Config&&) noexcept = default;
  Config& operator=(Config&&) noexcept = default;
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  void set(const std::string& key, const std::string& value) {
    detail::check(dt_config_set(get_handle(), key.c_str(), value.c_str()));
  }
  std::string get(const std::string& key) const {
    return detail::read_text([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
      return dt_config_get(get_handle(), key.c_str(), buffer, capacity_bytes, out_bytes);
    });
  }
  /** JSON: {key: {"value":, "source":}}. */
  std::string dump() const {
    return detail::read_text([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
      return dt_config_dump(get_handle(), buffer, capacity_bytes, out_bytes);
    });
  }
  /** The sink must not throw. `user_data` is borrowed until every job made from this is destroyed.
   */
  void set_log_sink(dt_log_sink sink, void* user_data) {
    detail::check(dt_config_set_log_sink(get_handle(), sink, user_data));
  }

  void close() noexcept { handle_.close(); }
  dt_config* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_config, dt_config_destroy> handle_;
};

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
class Work {
 public:
  /** Takes the handle. */
  explicit Work(dt_work* handle) noexcept : handle_(handle) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /** Whether it has completed; throws once it failed. */
  bool test() const {
    int32_t done = 0;
    detail::check(dt_work_test(get_handle(), &done));
    return done != 0;
  }
  /** False when the time was over first, which cancels nothing; throws if the operation failed. */
  bool wait(int64_t timeout_ms = -1) const {
    int32_t done = 0;
    detail::check(dt_work_wait(get_handle(), timeout_ms, &done));
    return done != 0;
  }
  /** Orders the work before later work on `stream` and returns at once. */
  void wait_stream(dt_stream stream) const {
    detail::check(dt_work_wait_stream(get_handle(), stream));
  }
  /** Why it failed; none while it runs and on success. */
  std::optional<Error> error() const {
    dt_error_info info;
    dt_error_info_init(&info);
    detail::check(dt_work_error_info(get_handle(), &info));
    if (info.status == DT_OK) return std::nullopt;
    return Error(info.status, info, dt_work_error(get_handle()));
  }

  void close() noexcept { handle_.close(); }
  dt_work* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_work, dt_work_destroy> handle_;
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
class Comm {
 public:
  /** Takes the handle. */
  explicit Comm(dt_comm* handle) noexcept : handle_(handle) {}
  Comm(Comm&&) noexcept = default;
  Comm& operator=(Comm&&) noexcept = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int32_t rank() const {
    int32_t value = 0;
    detail::check(dt_comm_rank(get_handle(), &value));
    return value;
  }
  int32_t size() const {
    int32_t value = 0;
    detail::check(dt_comm_size(get_handle(), &value));
    return value;
  }
  int32_t world_rank(int32_t comm_rank) const {
    int32_t value = 0;
    detail::check(dt_comm_world_rank(get_handle(), comm_rank, &value));
    return value;
  }
  /** 0: no limit; < 0: collective.timeout_ms again. */
  void set_timeout(int64_t timeout_ms) {
    detail::check(dt_comm_set_timeout(get_handle(), timeout_ms));
  }
  /** Throws the error that broke the communicator. */
  void check() const { detail::check(dt_comm_check(get_handle())); }
  /** Collective. None where `color` is negative. */
  std::optional<Comm> split(int32_t color, int32_t key) {
    detail::Handle<dt_comm, dt_comm_destroy> part;
    detail::check(dt_comm_split(get_handle(), color, key, part.out()));
    if (part.get() == nullptr) return std::nullopt;
    return Comm(part.release());
  }
  /** Collective over the ranks that live: they go on after a failure. See dt_comm_shrink(). */
  Comm shrink() {
    detail::Handle<dt_comm, dt_comm_destroy> smaller;
    detail::check(dt_comm_shrink(get_handle(), smaller.out()));
    return Comm(smaller.release());
  }
  /** An eventfd owned by the communicator: readable when works have completed. */
  int32_t work_fd() const {
    int32_t fd = -1;
    detail::check(dt_work_fd(get_handle(), &fd));
    return fd;
  }
  /** Zeroed memory that all local ranks reach: reductions copy nothing. Ends with mem_free(). */
  void* mem_alloc(int64_t bytes) {
    void* pointer = nullptr;
    detail::check(dt_mem_alloc(get_handle(), bytes, &pointer));
    return pointer;
  }
  void mem_free(void* pointer) { detail::check(dt_mem_free(get_handle(), pointer)); }

  void group_begin() { detail::check(dt_group_begin(get_handle())); }
  void group_end() { detail::check(dt_group_end(get_handle())); }
  /** What `operations` calls on this communicator is carried out as one. */
  template <class F>
  void group(F&& operations) {
    group_begin();
    try {
      std::forward<F>(operations)();
    } catch (...) {
      (void)dt_group_end(get_handle());
      throw;
    }
    group_end();
  }

  // Each collective: blocking, then with a Work.

  void allreduce(const void* send, void* recv, int64_t count, dt_dtype dtype,
                 dt_reduce_op op = DT_SUM, dt_stream stream = nullptr) {
    detail::check(dt_allreduce(get_handle(), send, recv, count, dtype, op, stream, nullptr));
  }
  Work allreduce_async(const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_reduce_op op = DT_SUM, dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_allreduce(get_handle(), send, recv, count, dtype, op, stream, &work));
    return Work(work);
  }

  void reduce(const void* send, void* recv, int64_t count, dt_dtype dtype, dt_reduce_op op,
              int32_t root, dt_stream stream = nullptr) {
    detail::check(dt_reduce(get_handle(), send, recv, count, dtype, op, root, stream, nullptr));
  }
  Work reduce_async(const void* send, void* recv, int64_t count, dt_dtype dtype, dt_reduce_op op,
                    int32_t root, dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_reduce(get_handle(), send, recv, count, dtype, op, root, stream, &work));
    return Work(work);
  }

  void broadcast(void* buffer, int64_t count, dt_dtype dtype, int32_t root,
                 dt_stream stream = nullptr) {
    detail::check(dt_broadcast(get_handle(), buffer, count, dtype, root, stream, nullptr));
  }
  Work broadcast_async(void* buffer, int64_t count, dt_dtype dtype, int32_t root,
                       dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_broadcast(get_handle(), buffer, count, dtype, root, stream, &work));
    return Work(work);
  }

  /** `recv` holds size() * count elements. */
  void allgather(const void* send, void* recv, int64_t count, dt_dtype dtype,
                 dt_stream stream = nullptr) {
    detail::check(dt_allgather(get_handle(), send, recv, count, dtype, stream, nullptr));
  }
  Work allgather_async(const void* send, void* recv, int64_t count, dt_dtype dtype,
                       dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_allgather(get_handle(), send, recv, count, dtype, stream, &work));
    return Work(work);
  }

  /** `send` holds size() * count elements. */
  void reduce_scatter(const void* send, void* recv, int64_t count, dt_dtype dtype,
                      dt_reduce_op op = DT_SUM, dt_stream stream = nullptr) {
    detail::check(dt_reduce_scatter(get_handle(), send, recv, count, dtype, op, stream, nullptr));
  }
  Work reduce_scatter_async(const void* send, void* recv, int64_t count, dt_dtype dtype,
                            dt_reduce_op op = DT_SUM, dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_reduce_scatter(get_handle(), send, recv, count, dtype, op, stream, &work));
    return Work(work);
  }

  /** Both hold size() * count elements and may not overlap. */
  void alltoall(const void* send, void* recv, int64_t count, dt_dtype dtype,
                dt_stream stream = nullptr) {
    detail::check(dt_alltoall(get_handle(), send, recv, count, dtype, stream, nullptr));
  }
  Work alltoall_async(const void* send, void* recv, int64_t count, dt_dtype dtype,
                      dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_alltoall(get_handle(), send, recv, count, dtype, stream, &work));
    return Work(work);
  }

  /** The arrays have size() entries; offsets may be NULL: one behind the other, in rank order. */
  void alltoallv(const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                 void* recv, const int64_t* recv_counts, const int64_t* recv_offsets,
                 dt_dtype dtype, dt_stream stream = nullptr) {
    detail::check(dt_alltoallv(get_handle(), send, send_counts, send_offsets, recv, recv_counts,
                               recv_offsets, dtype, stream, nullptr));
  }
  Work alltoallv_async(const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                       void* recv, const int64_t* recv_counts, const int64_t* recv_offsets,
                       dt_dtype dtype, dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_alltoallv(get_handle(), send, send_counts, send_offsets, recv, recv_counts,
                               recv_offsets, dtype, stream, &work));
    return Work(work);
  }

  /** On root `recv` holds size() * count elements; elsewhere it may be NULL. */
  void gather(const void* send, void* recv, int64_t count, dt_dtype dtype, int32_t root,
              dt_stream stream = nullptr) {
    detail::check(dt_gather(get_handle(), send, recv, count, dtype, root, stream, nullptr));
  }
  Work gather_async(const void* send, void* recv, int64_t count, dt_dtype dtype, int32_t root,
                    dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_gather(get_handle(), send, recv, count, dtype, root, stream, &work));
    return Work(work);
  }

  /** recv, counts and offsets matter on root alone. */
  void gatherv(const void* send, int64_t send_count, void* recv, const int64_t* counts,
               const int64_t* offsets, dt_dtype dtype, int32_t root, dt_stream stream = nullptr) {
    detail::check(dt_gatherv(get_handle(), send, send_count, recv, counts, offsets, dtype, root,
                             stream, nullptr));
  }
  Work gatherv_async(const void* send, int64_t send_count, void* recv, const int64_t* counts,
                     const int64_t* offsets, dt_dtype dtype, int32_t root,
                     dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_gatherv(get_handle(), send, send_count, recv, counts, offsets, dtype, root,
                             stream, &work));
    return Work(work);
  }

  /** On root `send` holds size() * count elements; elsewhere it may be NULL. */
  void scatter(const void* send, void* recv, int64_t count, dt_dtype dtype, int32_t root,
               dt_stream stream = nullptr) {
    detail::check(dt_scatter(get_handle(), send, recv, count, dtype, root, stream, nullptr));
  }
  Work scatter_async(const void* send, void* recv, int64_t count, dt_dtype dtype, int32_t root,
                     dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_scatter(get_handle(), send, recv, count, dtype, root, stream, &work));
    return Work(work);
  }

  /** send, counts and offsets matter on root alone. */
  void scatterv(const void* send, const int64_t* counts, const int64_t* offsets, void* recv,
                int64_t recv_count, dt_dtype dtype, int32_t root, dt_stream stream = nullptr) {
    detail::check(dt_scatterv(get_handle(), send, counts, offsets, recv, recv_count, dtype, root,
                              stream, nullptr));
  }
  Work scatterv_async(const void* send, const int64_t* counts, const int64_t* offsets, void* recv,
                      int64_t recv_count, dt_dtype dtype, int32_t root,
                      dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_scatterv(get_handle(), send, counts, offsets, recv, recv_count, dtype, root,
                              stream, &work));
    return Work(work);
  }

  /** `counts` has size() entries, the same on all ranks; offsets may be NULL. */
  void allgatherv(const void* send, void* recv, const int64_t* counts, const int64_t* offsets,
                  dt_dtype dtype, dt_stream stream = nullptr) {
    detail::check(dt_allgatherv(get_handle(), send, recv, counts, offsets, dtype, stream, nullptr));
  }
  Work allgatherv_async(const void* send, void* recv, const int64_t* counts, const int64_t* offsets,
                        dt_dtype dtype, dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_allgatherv(get_handle(), send, recv, counts, offsets, dtype, stream, &work));
    return Work(work);
  }

  void barrier(dt_stream stream = nullptr) {
    detail::check(dt_barrier(get_handle(), stream, nullptr));
  }
  Work barrier_async(dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_barrier(get_handle(), stream, &work));
    return Work(work);
  }

  void send(const void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
            dt_stream stream = nullptr) {
    detail::check(dt_send(get_handle(), buffer, count, dtype, peer, stream, nullptr));
  }
  Work send_async(const void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_send(get_handle(), buffer, count, dtype, peer, stream, &work));
    return Work(work);
  }

  void recv(void* buffer, int64_t count, dt_dtype dtype, int32_t peer, dt_stream stream = nullptr) {
    detail::check(dt_recv(get_handle(), buffer, count, dtype, peer, stream, nullptr));
  }
  Work recv_async(void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                  dt_stream stream = nullptr) {
    dt_work* work = nullptr;
    detail::check(dt_recv(get_handle(), buffer, count, dtype, peer, stream, &work));
    return Work(work);
  }

  /** Throws on all ranks unless they hold the same bytes. Collective. */
  void check_equal(const void* data, int64_t bytes, const std::string& name = {},
                   dt_stream stream = nullptr) {
    detail::check(
        dt_check_equal(get_handle(), data, bytes, name.empty() ? nullptr : name.c_str(), stream));
  }

  /** Of each channel, over the batches of all ranks: [batch, channels, spatial] elements here. */
  BatchMoments batch_moments(const void* input, int64_t batch, int64_t channels, int64_t spatial,
                             dt_dtype dtype) {
    BatchMoments out;
    out.mean.resize(detail::channel_room(channels));
    out.variance.resize(out.mean.size());
    detail::check(dt_batch_moments(get_handle(), input, batch, channels, spatial, dtype,
                                   out.mean.data(), out.variance.data(), &out.count));
    return out;
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
    detail::check(dt_batch_gradient_sums(
        get_handle(), input, gradient, batch, static_cast<int64_t>(moments.mean.size()), spatial,
        dtype, moments.mean.data(), variance.data(), epsilon, out.sum.data(), out.product.data()));
    return out;
  }

#ifndef SWIG
  // The same with the dtype deduced from the pointers.

  template <class T>
  T* alloc(int64_t count) {
    constexpr auto kElementBytes = static_cast<int64_t>(sizeof(T));
    // A product that does not fit becomes a size that dt refuses.
    return static_cast<T*>(
        mem_alloc(count > INT64_MAX / kElementBytes ? -1 : count * kElementBytes));
  }
  template <class T>
  void allreduce(const T* send, T* recv, int64_t count, dt_reduce_op op = DT_SUM,
                 dt_stream stream = nullptr) {
    allreduce(send, recv, count, dtype_of<T>::value, op, stream);
  }
  template <class T>
  Work allreduce_async(const T* send, T* recv, int64_t count, dt_reduce_op op = DT_SUM,
                       dt_stream stream = nullptr) {
    return allreduce_async(send, recv, count, dtype_of<T>::value, op, stream);
  }
  /** `recv` may be NULL where this rank is not the root. */
  template <class T>
  void reduce(const T* send, typename detail::identity<T>::type* recv, int64_t count,
              dt_reduce_op op, int32_t root, dt_stream stream = nullptr) {
    reduce(send, recv, count, dtype_of<T>::value, op, root, stream);
  }
  template <class T>
  Work reduce_async(const T* send, typename detail::identity<T>::type* recv, int64_t count,
                    dt_reduce_op op, int32_t root, dt_stream stream = nullptr) {
    return reduce_async(send, recv, count, dtype_of<T>::value, op, root, stream);
  }
  template <class T>
  void broadcast(T* buffer, int64_t count, int32_t root, dt_stream stream = nullptr) {
    broadcast(buffer, count, dtype_of<T>::value, root, stream);
  }
  template <class T>
  Work broadcast_async(T* buffer, int64_t count, int32_t root, dt_stream stream = nullptr) {
    return broadcast_async(buffer, count, dtype_of<T>::value, root, stream);
  }
  template <class T>
  void allgather(const T* send, T* recv, int64_t count, dt_stream stream = nullptr) {
    allgather(send, recv, count, dtype_of<T>::value, stream);
  }
  template <class T>
  Work allgather_async(const T* send, T* recv, int64_t count, dt_stream stream = nullptr) {
    return allgather_async(send, recv, count, dtype_of<T>::value, stream);
  }
  template <class T>
  void reduce_scatter(const T* send, T* recv, int64_t count, dt_reduce_op op = DT_SUM,
                      dt_stream stream = nullptr) {
    reduce_scatter(send, recv, count, dtype_of<T>::value, op, stream);
  }
  template <class T>
  Work reduce_scatter_async(const T* send, T* recv, int64_t count, dt_reduce_op op = DT_SUM,
                            dt_stream stream = nullptr) {
    return reduce_scatter_async(send, recv, count, dtype_of<T>::value, op, stream);
  }
  template <class T>
  void alltoall(const T* send, T* recv, int64_t count, dt_stream stream = nullptr) {
    alltoall(send, recv, count, dtype_of<T>::value, stream);
  }
  template <class T>
  Work alltoall_async(const T* send, T* recv, int64_t count, dt_stream stream = nullptr) {
    return alltoall_async(send, recv, count, dtype_of<T>::value, stream);
  }
  template <class T>
  void alltoallv(const T* send, const int64_t* send_counts, const int64_t* send_offsets, T* recv,
                 const int64_t* recv_counts, const int64_t* recv_offsets,
                 dt_stream stream = nullptr) {
    alltoallv(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype_of<T>::value,
              stream);
  }
  /** `recv` may be NULL where this rank is not the root. */
  template <class T>
  void gather(const T* send, typename detail::identity<T>::type* recv, int64_t count, int32_t root,
              dt_stream stream = nullptr) {
    gather(send, recv, count, dtype_of<T>::value, root, stream);
  }
  template <class T>
  Work gather_async(const T* send, typename detail::identity<T>::type* recv, int64_t count,
                    int32_t root, dt_stream stream = nullptr) {
    return gather_async(send, recv, count, dtype_of<T>::value, root, stream);
  }
  /** `send` may be NULL where this rank is not the root. */
  template <class T>
  void scatter(const typename detail::identity<T>::type* send, T* recv, int64_t count, int32_t root,
               dt_stream stream = nullptr) {
    scatter(send, recv, count, dtype_of<T>::value, root, stream);
  }
  template <class T>
  Work scatter_async(const typename detail::identity<T>::type* send, T* recv, int64_t count,
                     int32_t root, dt_stream stream = nullptr) {
    return scatter_async(send, recv, count, dtype_of<T>::value, root, stream);
  }
  template <class T>
  void allgatherv(const T* send, T* recv, const int64_t* counts, const int64_t* offsets,
                  dt_stream stream = nullptr) {
    allgatherv(send, recv, counts, offsets, dtype_of<T>::value, stream);
  }
  template <class T>
  void send(const T* buffer, int64_t count, int32_t peer, dt_stream stream = nullptr) {
    send(buffer, count, dtype_of<T>::value, peer, stream);
  }
  template <class T>
  Work send_async(const T* buffer, int64_t count, int32_t peer, dt_stream stream = nullptr) {
    return send_async(buffer, count, dtype_of<T>::value, peer, stream);
  }
  template <class T>
  void recv(T* buffer, int64_t count, int32_t peer, dt_stream stream = nullptr) {
    recv(buffer, count, dtype_of<T>::value, peer, stream);
  }
  template <class T>
  Work recv_async(T* buffer, int64_t count, int32_t peer, dt_stream stream = nullptr) {
    return recv_async(buffer, count, dtype_of<T>::value, peer, stream);
  }
#endif  // SWIG

  void close() noexcept { handle_.close(); }
  dt_comm* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_comm, dt_comm_destroy> handle_;
};

/**
 * Membership in a distributed run, with its store. Destroying a job that did not finalize() is a
 * death to the other ranks.
 */
class Job {
 public:
  /** Joins with the settings that stand around the process. Collective. */
  Job() { detail::check(dt_init(nullptr, handle_.out())); }
  /** Joins. Collective. */
  explicit Job(const Config& config) { detail::check(dt_init(config.get_handle(), handle_.out())); }
  /** Takes the handle. */
  explicit Job(dt_job* handle) noexcept : handle_(handle) {}
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) noexcept = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Place place() const {
    dt_place c;
    dt_place_init(&c);
    detail::check(dt_rank_info(get_handle(), &c));
    return Place{c.rank,    c.world_size,  c.local_rank,  c.local_size, c.node_rank, c.node_count,
                 c.attempt, c.master_port, c.master_addr, c.job_id,     c.host,      c.launcher};
  }
  /** A new owner of the communicator of all ranks. */
  Comm world() {
    dt_comm* comm = nullptr;
    detail::check(dt_comm_world(get_handle(), &comm));
    return Comm(comm);
  }
  /** Fails the job on every rank, with this message. */
  void abort(const std::string& message) { detail::check(dt_abort(get_handle(), message.c_str())); }
  /** Away on purpose for at most max_ms, until busy_end(): the others wait. */
  void busy_begin(const std::string& what, int64_t max_ms) {
    detail::check(dt_busy_begin(get_handle(), what.c_str(), max_ms));
  }
  void busy_end() { detail::check(dt_busy_end(get_handle())); }
  /** True on all ranks when every rank says true. */
  bool agree(bool agreed) {
    int32_t all = 0;
    detail::check(dt_agree(get_handle(), agreed ? 1 : 0, &all));
    return all != 0;
  }
  /** Asks all ranks to stop; for signal handlers: dt_request_stop() with the handle. */
  void request_stop() {
    if (dt_request_stop(get_handle()) != DT_OK) (void)place();  // which says what the handle is
  }
  /** Whether to stop, in the same step on all ranks. */
  bool stop_requested() {
    int32_t stop = 0;
    detail::check(dt_stop_requested(get_handle(), &stop));
    return stop != 0;
  }
  /** Writes the last operations of this rank into a file below `directory`; empty: trace.dir. */
  void trace_dump(const std::string& directory = {}) {
    detail::check(dt_trace_dump(get_handle(), directory.empty() ? nullptr : directory.c_str()));
  }
  /** What this rank did so far, on all communicators and in all reducers. */
  dt_stats stats() const {
    dt_stats stats;
    dt_stats_init(&stats);
    detail::check(dt_job_stats(get_handle(), &stats));
    return stats;
  }
  /** How long calls of this rank were held up by that one. */
  dt_peer_stats peer_stats(int32_t rank) const {
    dt_peer_stats peer;
    detail::check(dt_job_peer_stats(get_handle(), rank, &peer));
    return peer;
  }
  /** Leaves together; < 0: job.finalize_timeout_ms. The job has ended also if this throws. */
  void finalize(int64_t timeout_ms = -1) { detail::check(dt_finalize(get_handle(), timeout_ms)); }

  // The store. timeout_ms < 0: rendezvous.timeout_ms. Values are bytes.

  void store_set(const std::string& key, const std::string& value, int64_t timeout_ms = -1) {
    detail::check(dt_store_set(get_handle(), key.c_str(), value.data(),
                               static_cast<int64_t>(value.size()), timeout_ms));
  }
  /** Waits until the key exists. */
  std::string store_get(const std::string& key, int64_t timeout_ms = -1) {
    return detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
      return dt_store_get(get_handle(), key.c_str(), timeout_ms, buffer, capacity_bytes, out_bytes);
    });
  }
  /** The number after the addition. */
  int64_t store_add(const std::string& key, int64_t delta, int64_t timeout_ms = -1) {
    int64_t value = 0;
    detail::check(dt_store_add(get_handle(), key.c_str(), delta, timeout_ms, &value));
    return value;
  }
  void store_wait(const std::vector<std::string>& keys, int64_t timeout_ms = -1) {
    const std::vector<const char*> names = detail::pointers_to(keys);
    detail::check(
        dt_store_wait(get_handle(), names.data(), detail::count32(names.size()), timeout_ms));
  }
  /** Whether it was set. No `expected`: the key must be absent. */
  bool store_compare_set(const std::string& key, const std::optional<std::string>& expected,
                         const std::string& desired, int64_t timeout_ms = -1) {
    int32_t swapped = 0;
    detail::check(
        dt_store_compare_set(get_handle(), key.c_str(), expected ? expected->data() : nullptr,
                             expected ? static_cast<int64_t>(expected->size()) : 0, desired.data(),
                             static_cast<int64_t>(desired.size()), timeout_ms, &swapped));
    return swapped != 0;
  }
  /** Whether the key was there. */
  bool store_delete(const std::string& key, int64_t timeout_ms = -1) {
    int32_t existed = 0;
    detail::check(dt_store_delete(get_handle(), key.c_str(), timeout_ms, &existed));
    return existed != 0;
  }
  /** Keys that begin with `prefix`, in byte order. */
  std::vector<std::string> store_list(const std::string& prefix, int64_t timeout_ms = -1) {
    const std::string text =
        detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
          return dt_store_list(get_handle(), prefix.c_str(), timeout_ms, buffer, capacity_bytes,
                               out_bytes);
        });
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
    detail::check(dt_store_multi_set(get_handle(), names.data(), data.data(), bytes.data(), count,
                                     timeout_ms));
  }
  /** The values that exist, without waiting. */
  std::vector<std::optional<std::string>> store_multi_get(const std::vector<std::string>& keys,
                                                          int64_t timeout_ms = -1) {
    const std::vector<const char*> names = detail::pointers_to(keys);
    std::vector<int64_t> bytes(keys.size());
    const std::string all =
        detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
          return dt_store_multi_get(get_handle(), names.data(), detail::count32(names.size()),
                                    timeout_ms, buffer, capacity_bytes, bytes.data(), out_bytes);
        });
    std::vector<std::optional<std::string>> values;
    values.reserve(bytes.size());
    std::size_t at = 0;
    for (const int64_t value_bytes : bytes) {
      if (value_bytes < 0) {
        values.emplace_back(std::nullopt);
        continue;
      }
      values.emplace_back(all.substr(at, static_cast<std::size_t>(value_bytes)));
      at += static_cast<std::size_t>(value_bytes);
    }
    return values;
  }
  /** `count` 0: the world size. */
  void store_barrier(const std::string& name, int32_t count = 0, int64_t timeout_ms = -1) {
    detail::check(dt_store_barrier(get_handle(), name.c_str(), count, timeout_ms));
  }

  void close() noexcept { handle_.close(); }
  dt_job* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_job, dt_job_destroy> handle_;
};

/** A store served for ranks that are threads or children of this process. */
class StoreServer {
 public:
  explicit StoreServer(const Config& config) {
    detail::check(dt_store_serve(config.get_handle(), handle_.out()));
  }
  /** Takes the handle. */
  explicit StoreServer(dt_store_server* handle) noexcept : handle_(handle) {}
  StoreServer(StoreServer&&) noexcept = default;
  StoreServer& operator=(StoreServer&&) noexcept = default;
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int32_t port() const {
    int32_t value = 0;
    detail::check(dt_store_server_port(get_handle(), &value));
    return value;
  }

  void close() noexcept { handle_.close(); }
  dt_store_server* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_store_server, dt_store_server_destroy> handle_;
};

/** One parameter, in the order of registration. */
struct Param {
  int64_t count = 0;       /**< elements */
  dt_dtype dtype = DT_F32; /**< of its gradient */
  std::string name;        /**< for messages; may be empty */
};

/** Fields as in dt_reducer_options; zero is the default of each. */
struct ReducerOptions {
  bool sum = false;
  bool keep_plan = false;
  int64_t bucket_cap_bytes = 0;
  int64_t first_bucket_bytes = 0;
};

/** Gradients reduced in buckets while the backward pass runs. */
class Reducer {
 public:
  /** Collective over `comm`. */
  Reducer(const Comm& comm, const std::vector<Param>& params,
          const ReducerOptions& options = ReducerOptions()) {
    std::vector<dt_param> c_params;
    c_params.reserve(params.size());
    for (const Param& param : params) {
      c_params.push_back(
          dt_param{param.count, param.name.empty() ? nullptr : param.name.c_str(), param.dtype, 0});
    }
    dt_reducer_options c_options;
    dt_reducer_options_init(&c_options);
    c_options.sum = options.sum ? 1 : 0;
    c_options.keep_plan = options.keep_plan ? 1 : 0;
    c_options.bucket_cap_bytes = options.bucket_cap_bytes;
    c_options.first_bucket_bytes = options.first_bucket_bytes;
    detail::check(dt_reducer_create(comm.get_handle(), c_params.data(),
                                    detail::count32(c_params.size()), &c_options, handle_.out()));
  }
  /** Takes the handle. */
  explicit Reducer(dt_reducer* handle) noexcept : handle_(handle) {}
  Reducer(Reducer&&) noexcept = default;
  Reducer& operator=(Reducer&&) noexcept = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /** Where gradient `index` is to be written; valid until rebuild() says true. */
  void* grad(int32_t index) {
    void* pointer = nullptr;
    detail::check(dt_reducer_grad(get_handle(), index, &pointer));
    return pointer;
  }
#ifndef SWIG
  template <class T>
  T* grad_as(int32_t index) {
    return static_cast<T*>(grad(index));
  }
#endif
  /** `gradient` NULL: it was written where grad() said. Else borrowed until finish(), on GPUs until
   * the stream of finish() has come to it. `stream` produces the gradient. */
  void ready(int32_t index, void* gradient = nullptr, dt_stream stream = nullptr) {
    detail::check(dt_reducer_ready(get_handle(), index, gradient, stream));
  }
  /** finish() compares these bytes of parameter `index` between ranks, as often as
   * reducer.check_steps says; NULL: no longer. Borrowed. */
  void watch(int32_t index, const void* data, int64_t bytes) {
    detail::check(dt_reducer_watch(get_handle(), index, data, bytes));
  }
  /** Ends the step. Collective. On GPUs `stream` waits, the caller does not. */
  void finish(dt_stream stream = nullptr) {
    detail::check(dt_reducer_finish(get_handle(), stream));
  }
  /** True: read the pointers of grad() again. Collective. */
  bool rebuild() {
    int32_t changed = 0;
    detail::check(dt_reducer_rebuild(get_handle(), &changed));
    return changed != 0;
  }
  /** In launch order. */
  int32_t bucket(int32_t index) const {
    int32_t value = 0;
    detail::check(dt_reducer_bucket(get_handle(), index, &value));
    return value;
  }
  dt_reducer_statistics stats() const {
    dt_reducer_statistics statistics;
    dt_reducer_statistics_init(&statistics);
    detail::check(dt_reducer_stats(get_handle(), &statistics));
    return statistics;
  }

  void close() noexcept { handle_.close(); }
  dt_reducer* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_reducer, dt_reducer_destroy> handle_;
};

/** Fields as in dt_sampler_options. */
struct SamplerOptions {
  int32_t world_size = 1;
  int32_t rank = 0;
  int64_t size = 0;
  int64_t seed = 0;
  bool sequential = false;
  bool drop_last = false;
  bool whole_batches = false;
  int64_t block = 0;
  int64_t window = 0;
  const double* weights = nullptr; /**< [size], borrowed while the sampler is made */
  int64_t draws = 0;
};

/** Fields as in dt_sampler_state. */
struct SamplerState {
  int64_t epoch = 0;
  int64_t consumed = 0;
  int64_t size = 0;
  int64_t order = 0;
};

/** Which samples of a data set this rank sees, in which order. */
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) {
    dt_sampler_options c_options;
    dt_sampler_options_init(&c_options);
    c_options.world_size = options.world_size;
    c_options.rank = options.rank;
    c_options.size = options.size;
    c_options.seed = options.seed;
    c_options.sequential = options.sequential ? 1 : 0;
    c_options.drop_last = options.drop_last ? 1 : 0;
    c_options.whole_batches = options.whole_batches ? 1 : 0;
    c_options.block = options.block;
    c_options.window = options.window;
    c_options.weights = options.weights;
    c_options.draws = options.draws;
    detail::check(dt_sampler_create(&c_options, handle_.out()));
  }
  /** Takes the handle. */
  explicit Sampler(dt_sampler* handle) noexcept : handle_(handle) {}
  Sampler(Sampler&&) noexcept = default;
  Sampler& operator=(Sampler&&) noexcept = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /** The epoch that is chosen already goes on where it is, unless all of it was taken. */
  void set_epoch(int64_t epoch) { detail::check(dt_sampler_set_epoch(get_handle(), epoch)); }
  int64_t length() const {
    int64_t value = 0;
    detail::check(dt_sampler_length(get_handle(), &value));
    return value;
  }
  /** Throws on all ranks unless their samplers belong together. Collective over `comm`. */
  void check(const Comm& comm) const {
    detail::check(dt_sampler_check(get_handle(), comm.get_handle()));
  }
  /** Copies [first, first + count) into `out`, [count] long. */
  void indices(int64_t first, int64_t count, int64_t* out) const {
    detail::check(dt_sampler_indices(get_handle(), first, count, out));
  }
  /** The next batch, shorter only at the end (with whole_batches never); empty: the epoch has
   * ended. */
  std::vector<int64_t> next(int64_t count) {
    count = std::min(count, length() + 1);  // what dt refuses or cannot give needs no memory
    std::vector<int64_t> out(count > 0 ? static_cast<std::size_t>(count) : 1);
    int64_t given = 0;
    detail::check(dt_sampler_next(get_handle(), count, out.data(), &given));
    out.resize(static_cast<std::size_t>(given));
    return out;
  }
  /** Where the job is, for a checkpoint. `taken`: samples that this rank has used; -1: all that
   * next() gave. */
  SamplerState save(int64_t taken = -1) const {
    dt_sampler_state state;
    dt_sampler_state_init(&state);
    detail::check(dt_sampler_save(get_handle(), taken, &state));
    return {state.epoch, state.consumed, state.size, state.order};
  }
  /** Goes on there; the number of ranks may be another one. */
  void resume(const SamplerState& state) {
    dt_sampler_state c_state;
    dt_sampler_state_init(&c_state);
    c_state.epoch = state.epoch;
    c_state.consumed = state.consumed;
    c_state.size = state.size;
    c_state.order = state.order;
    detail::check(dt_sampler_resume(get_handle(), &c_state));
  }
  /** From `first` to the end of the epoch. */
  std::vector<int64_t> indices(int64_t first = 0) const {
    const int64_t rest = length() - first;
    std::vector<int64_t> out(rest > 0 ? static_cast<std::size_t>(rest) : 0);
    indices(first, rest, out.data());
    return out;
  }

  void close() noexcept { handle_.close(); }
  dt_sampler* get_handle() const noexcept { return handle_.get(); }

 private:
  detail::Handle<dt_sampler, dt_sampler_destroy> handle_;
};

}  // namespace client
}  // namespace dt

#endif  // DT_DT_HPP
