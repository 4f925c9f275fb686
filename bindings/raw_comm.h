// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Communicators, operations and works, in the types of raw.h.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "raw.h"

namespace dt::raw {

// ---- Communicators ----

inline int32_t comm_rank(int64_t comm) { return ask<dt_comm_rank, int32_t>(comm); }
inline int32_t comm_size(int64_t comm) { return ask<dt_comm_size, int32_t>(comm); }
inline int32_t comm_world_rank(int64_t comm, int32_t rank) {
  return ask<dt_comm_world_rank, int32_t>(comm, rank);
}
inline void comm_set_timeout(int64_t comm, int64_t timeout_ms) {
  run<dt_comm_set_timeout>(comm, timeout_ms);
}
inline void comm_check(int64_t comm) { run<dt_comm_check>(comm); }
/** An empty name: none. */
inline void check_equal(int64_t comm, int64_t data, int64_t bytes, const std::string& name,
                        int64_t stream) {
  run<dt_check_equal>(comm, data, bytes, name.empty() ? nullptr : name.c_str(), stream);
}
/** mean, variance and count: addresses that take the results. */
inline void batch_moments(int64_t comm, int64_t input, int64_t batch, int64_t channels,
                          int64_t spatial, int32_t dtype, int64_t mean, int64_t variance,
                          int64_t count, int64_t stream) {
  run<dt_batch_moments>(comm, input, batch, channels, spatial, dtype, mean, variance, count,
                        stream);
}
/** mean and variance: addresses that are read; sum and product: that take the results. */
inline void batch_gradient_sums(int64_t comm, int64_t input, int64_t gradient, int64_t batch,
                                int64_t channels, int64_t spatial, int32_t dtype, int64_t mean,
                                int64_t variance, double epsilon, int64_t sum, int64_t product,
                                int64_t stream) {
  run<dt_batch_gradient_sums>(comm, input, gradient, batch, channels, spatial, dtype, mean,
                              variance, epsilon, sum, product, stream);
}
/** 0 where `color` is negative. */
inline int64_t comm_split(int64_t comm, int32_t color, int32_t key) {
  return ask<dt_comm_split, int64_t>(comm, color, key);
}
inline int64_t comm_shrink(int64_t comm) { return ask<dt_comm_shrink, int64_t>(comm); }
inline int64_t comm_host(int64_t comm) { return ask<dt_comm_host, int64_t>(comm); }
inline void comm_destroy(int64_t comm) { dt_comm_destroy(handle<dt_comm>(comm)); }
inline int32_t work_fd(int64_t comm) { return ask<dt_work_fd, int32_t>(comm); }
inline int64_t mem_alloc(int64_t comm, int64_t bytes) {
  return ask<dt_mem_alloc, int64_t>(comm, bytes);
}
inline void mem_free(int64_t comm, int64_t address) { run<dt_mem_free>(comm, address); }
/**
 * Whether both are handles of one communicator: memory can be freed by any handle of the
 * communicator that it came from, and by no other. It comes from `other`: give one over host memory
 * there, because memory of a GPU costs more.
 */
inline bool same_comm(int64_t comm, int64_t other) {
  const int64_t address = mem_alloc(other, 1);
  if (dt_mem_free(handle<dt_comm>(comm), memory(address)) == DT_OK) return true;
  mem_free(other, address);
  (void)comm_rank(comm);  // not because another thread has closed it
  return false;
}
inline void group_begin(int64_t comm) { run<dt_group_begin>(comm); }
inline void group_end(int64_t comm) { run<dt_group_end>(comm, nullptr); }
inline int64_t group_end_async(int64_t comm) { return ask<dt_group_end, int64_t>(comm); }

// ---- Operations ----

#ifndef SWIG
/** Where blocks lie. */
class Tables {
 public:
  /** dt reads `size` of each list, so fewer must not reach it. */
  Tables(int64_t comm, const char* data, int64_t bytes, std::size_t lists)
      : lists_(lists), size_(static_cast<std::size_t>(comm_size(comm))) {
    for (Unpacker packed(data, bytes); packed.more();) numbers_.push_back(packed.number());
    const std::size_t counts = lists_ * size_;
    if (numbers_.size() != counts && numbers_.size() != 2 * counts) {
      throw std::length_error("the counts were packed wrong: each list needs one for each rank");
    }
  }
  const int64_t* counts(std::size_t list = 0) const { return part(list); }
  /** Null: one behind the other. */
  const int64_t* offsets(std::size_t list = 0) const { return part(lists_ + list); }

 private:
  const int64_t* part(std::size_t list) const {
    return list * size_ < numbers_.size() ? numbers_.data() + list * size_ : nullptr;
  }
  std::vector<int64_t> numbers_;
  std::size_t lists_;
  std::size_t size_;
};

inline dt_collective collective(int32_t kind, int32_t dtype, int32_t op, int32_t peer, int64_t send,
                                int64_t recv, int64_t count, int64_t stream, int64_t timeout_ms,
                                const char* name, int64_t upcall = 0, int64_t element_bytes = 0) {
  auto one = detail::made(dt_collective_init);
  one.kind = static_cast<dt_kind>(kind);
  one.dtype = static_cast<dt_dtype>(dtype);
  one.op = static_cast<dt_reduce_op>(op);
  one.peer = peer;
  one.send = memory(send);
  one.recv = memory(recv);
  one.count = count;
  one.stream = memory(stream);
  one.timeout_ms = timeout_ms;
  one.name = name;
  if (upcall != 0) {
    one.combine = combine_by_upcall;
    one.combine_data = memory(upcall);
    one.element_bytes = element_bytes;
  }
  return one;
}
/** dt_collective_launch(); with a `named` dt_named_submit() under the operation's name. */
inline dt_status launch_plain(int64_t comm, int64_t named, const dt_collective& one,
                              dt_work** out) {
  if (named == 0) return dt_collective_launch(handle<dt_comm>(comm), &one, out);
  return dt_named_submit(handle<dt_named>(named), one.name, &one, out);
}
/** Likewise of a kind with tables. */
inline dt_status launch_with_tables(int64_t comm, int64_t named, dt_collective& one,
                                    const char* data, int64_t bytes, dt_work** out) {
  const std::size_t lists = one.kind == DT_KIND_ALLTOALLV ? 2 : bytes == 0 ? 0 : 1;
  const Tables tables(comm, data, bytes, lists);
  const bool receives = one.kind != DT_KIND_SCATTERV && one.kind != DT_KIND_REDUCE_SCATTERV;
  const bool sends = one.kind == DT_KIND_ALLTOALLV || !receives;
  if (sends) {
    one.send_counts = tables.counts();
    one.send_offsets = tables.offsets();
  }
  if (receives) {
    one.recv_counts = tables.counts(sends ? 1 : 0);
    one.recv_offsets = tables.offsets(sends ? 1 : 0);
  }
  return launch_plain(comm, named, one, out);
}
#endif

/**
 * dt_collective_launch() of a kind without tables; unless `named` is 0, dt_named_submit() under
 * NAME, which may be null otherwise. With an upcall, which is upcall_number() or 0, elements are
 * combined by it; then `count` is of elements of element_bytes.
 */
inline void launch(int64_t comm, int64_t named, int32_t kind, int32_t dtype, int32_t op,
                   int32_t peer, int64_t send, int64_t recv, int64_t count, int64_t stream,
                   int64_t timeout_ms, const char* NAME, int64_t upcall, int64_t element_bytes) {
  const dt_collective one = collective(kind, dtype, op, peer, send, recv, count, stream, timeout_ms,
                                       NAME, upcall, element_bytes);
  detail::check(launch_plain(comm, named, one, nullptr));
}
/** The same without waiting; gives a work. */
inline int64_t launch_async(int64_t comm, int64_t named, int32_t kind, int32_t dtype, int32_t op,
                            int32_t peer, int64_t send, int64_t recv, int64_t count, int64_t stream,
                            int64_t timeout_ms, const char* NAME, int64_t upcall,
                            int64_t element_bytes) {
  const dt_collective one = collective(kind, dtype, op, peer, send, recv, count, stream, timeout_ms,
                                       NAME, upcall, element_bytes);
  dt_work* work = nullptr;
  detail::check(launch_plain(comm, named, one, &work));
  return number(work);
}
/**
 * dt_collective_launch() of a kind with tables: int64_t in native order, one list of `size` counts
 * (alltoallv two, what is sent before what is received), then nothing more or as many lists of
 * offsets. No bytes: this rank is not the root.
 */
inline void launch_blocks(int64_t comm, int64_t named, int32_t kind, int32_t dtype, int32_t op,
                          int32_t peer, int64_t send, int64_t recv, int64_t count, const char* DATA,
                          int64_t BYTES, int64_t stream, int64_t timeout_ms, const char* NAME,
                          int64_t upcall, int64_t element_bytes) {
  dt_collective one = collective(kind, dtype, op, peer, send, recv, count, stream, timeout_ms, NAME,
                                 upcall, element_bytes);
  detail::check(launch_with_tables(comm, named, one, DATA, BYTES, nullptr));
}
/** The same without waiting; gives a work. */
inline int64_t launch_blocks_async(int64_t comm, int64_t named, int32_t kind, int32_t dtype,
                                   int32_t op, int32_t peer, int64_t send, int64_t recv,
                                   int64_t count, const char* DATA, int64_t BYTES, int64_t stream,
                                   int64_t timeout_ms, const char* NAME, int64_t upcall,
                                   int64_t element_bytes) {
  dt_collective one = collective(kind, dtype, op, peer, send, recv, count, stream, timeout_ms, NAME,
                                 upcall, element_bytes);
  dt_work* work = nullptr;
  detail::check(launch_with_tables(comm, named, one, DATA, BYTES, &work));
  return number(work);
}

// ---- Named submission ----

/** fuse_bytes, cache, stall_ms and cycle_us. */
inline int64_t named_create(int64_t comm, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  auto options = detail::made(dt_named_options_init);
  options.fuse_bytes = packed.number();
  options.cache = packed.number32("cache");
  options.stall_ms = packed.number();
  options.cycle_us = packed.number();
  return ask<dt_named_create, int64_t>(comm, &options);
}
/** DATA has, for each operation, the numbers of launch() from `kind` to `count`, timeout_ms, upcall
 * and element_bytes, and its name as an item. Returns their works. */
inline Bytes named_submit_group(int64_t named, const char* DATA, int64_t BYTES) {
  std::vector<dt_collective> all;
  std::vector<std::string> names;
  for (Unpacker packed(DATA, BYTES); packed.more();) {
    const auto kind = packed.number32("kind"), dtype = packed.number32("dtype");
    const auto op = packed.number32("op"), peer = packed.number32("peer");
    int64_t fields[6];
    for (int64_t& field : fields) field = packed.number();
    all.push_back(collective(kind, dtype, op, peer, fields[0], fields[1], fields[2], 0, fields[3],
                             nullptr, fields[4], fields[5]));
    names.push_back(packed.item());
  }
  std::vector<const dt_collective*> pointers;
  for (const dt_collective& each : all) pointers.push_back(&each);
  std::vector<dt_work*> works(all.size());
  run<dt_named_submit_group>(named, detail::pointers_to(names).data(), pointers.data(),
                             detail::count32(all.size()), works.data());
  Packer packed;
  for (const dt_work* const work : works) packed.add_number(number(work));
  return packed.take();
}
inline int32_t named_join(int64_t named, int64_t timeout_ms) {
  return ask<dt_named_join, int32_t>(named, timeout_ms);
}
inline std::string named_report(int64_t named, int64_t timeout_ms) {
  return ask_text<dt_named_report>(named, timeout_ms);
}
/** In the order of dt_named_statistics. */
inline Bytes named_stats(int64_t named) {
  auto c = detail::made(dt_named_statistics_init);
  run<dt_named_stats>(named, &c);
  return numbers(
      {c.answers, c.tensors, c.operations, c.fused_tensors, c.fused_bytes, c.cache_hits, c.stalls});
}
inline void named_destroy(int64_t named) { dt_named_destroy(handle<dt_named>(named)); }

// ---- Works ----

/** Whether it has completed; throws once it failed. */
inline bool work_test(int64_t work) { return ask<dt_work_test, bool>(work); }
/** False when the time was over first; throws if it failed. */
inline bool work_wait(int64_t work, int64_t timeout_ms) {
  return ask<dt_work_wait, bool>(work, timeout_ms);
}
inline void work_wait_stream(int64_t work, int64_t stream) {
  run<dt_work_wait_stream>(work, stream);
}
/** `works` as int64_t in native order. Index of the first that has completed, -1 none in time. */
inline int32_t work_wait_any(const char* DATA, int64_t BYTES, int64_t timeout_ms) {
  std::vector<dt_work*> works;
  for (Unpacker packed(DATA, BYTES); packed.more();) {
    works.push_back(handle<dt_work>(packed.number()));
  }
  return ask<dt_work_wait_any, int32_t>(works.data(), detail::count32(works.size()), timeout_ms);
}
inline int64_t work_share(int64_t work) { return ask<dt_work_share, int64_t>(work); }
inline void work_destroy(int64_t work) { dt_work_destroy(handle<dt_work>(work)); }

/**
 * Sleeps until works may have completed, for a thread that hands completions to a language's
 * futures. It watches eventfds of works by edges and never reads them, so it takes
 * nothing from others who do. @thread wait(): one; the others: any.
 */
class Poller {
 public:
  Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (epoll_ < 0 || wake_ < 0 || !add(wake_)) {
      const std::string why = strerror(errno);
      close_all();
      throw std::runtime_error("a poller of works cannot be made: " + why);
    }
  }
  ~Poller() { close_all(); }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /** Watches an eventfd of works; twice is once. It ends with the eventfd. */
  void watch(int32_t fd) {
    if (!add(fd))
      throw std::runtime_error(std::string("works cannot be watched: ") + strerror(errno));
  }
  /** Returns when works may have completed, after wake(), or when the time is over. */
  void wait(int32_t timeout_ms) {
    epoll_event events[16];
    (void)epoll_wait(epoll_, events, 16, timeout_ms);
  }
  void wake() { (void)eventfd_write(wake_, 1); }

 private:
  bool add(int fd) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.fd = fd;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST;
  }
  void close_all() {
    if (epoll_ >= 0) close(epoll_);
    if (wake_ >= 0) close(wake_);
  }
  int epoll_;
  int wake_;
};

}  // namespace dt::raw
