// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * What SWIG reads: dt.hpp in the few types that Python, Java and C# have in common. The public
 * classes of each language stand on these functions, which nobody else sees. Communicators and what
 * runs on them are in raw_comm.h.
 *
 *  - Handles and addresses are int64_t. A handle of dt is a number that is looked up, so a closed
 *    or foreign one is an error and nothing here is freed under a racing call.
 *  - Errors are thrown as dt::Error, and dt.i turns them into the language's exception.
 *  - Bytes are (DATA, BYTES) in and Bytes out. Lists are one Bytes each, items as Packer writes
 *    them.
 */
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "dt/dt.hpp"

namespace dt::raw {

/** Bytes that need not be text. */
struct Bytes {
  std::string data;
};

/** Receives log messages on dt's threads. Never destroyed by dt. */
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void log(int32_t level, const std::string& message) = 0;
};

/** A function of the language's, which keeps it as long as dt may call it. Any thread. */
class Upcall {
 public:
  virtual ~Upcall() = default;
  /** What the numbers mean, and the result, is up to the kind of function. Throws nothing. */
  virtual int32_t call(int64_t first, int64_t second, int64_t third) = 0;
};

#ifndef SWIG

template <class T>
T* handle(int64_t number) {
  return reinterpret_cast<T*>(static_cast<intptr_t>(number));
}
inline int64_t number(const void* pointer) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer));
}
inline void* memory(int64_t address) { return handle<void>(address); }
/** Calls `create` and gives the handle that it makes. */
template <class T, class F>
int64_t made(F&& create) {
  T* out = nullptr;
  detail::check(create(&out));
  return number(out);
}

/** A list inside Bytes: for each item its size as an int64_t in native order, -1 absent, then it.
 */
class Packer {
 public:
  void add(const std::string& item) {
    add_number(static_cast<int64_t>(item.size()));
    packed_.data += item;
  }
  void add_absent() { add_number(-1); }
  void add_number(int64_t value) {
    packed_.data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  Bytes take() { return std::move(packed_); }

 private:
  Bytes packed_;
};

/** Reads it back; only what the layers above packed, but a wrong size ends it, too. */
class Unpacker {
 public:
  Unpacker(const char* data, int64_t bytes) : at_(data), left_(bytes) {}
  bool more() const { return left_ > 0; }
  int64_t number() {
    int64_t value = 0;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  /** The same where dt takes 32 bits; `what`: as messages call the argument. */
  template <class T = int32_t>
  T number32(const char* what) {
    const int64_t value = number();
    if (value < INT32_MIN || value > INT32_MAX) {
      detail::refuse(std::string(what) + " is " + std::to_string(value) +
                     ", which does not fit in 32 bits; give one from -2147483648 to 2147483647");
    }
    return static_cast<T>(value);
  }
  /** None where it is absent. */
  std::optional<std::string> optional_item() {
    const int64_t bytes = number();
    if (bytes == -1) return std::nullopt;
    return std::string(take(bytes), static_cast<std::size_t>(bytes));
  }
  std::string item() { return optional_item().value(); }

 private:
  const char* take(int64_t bytes) {
    if (bytes < 0 || bytes > left_) throw std::length_error("a list was packed wrong");
    const char* const from = at_;
    at_ += bytes;
    left_ -= bytes;
    return from;
  }
  const char* at_;
  int64_t left_;
};

inline std::vector<std::string> unpack(const char* data, int64_t bytes) {
  Unpacker packed(data, bytes);
  std::vector<std::string> items;
  while (packed.more()) items.push_back(packed.item());
  return items;
}

/**
 * Between dt's threads and the language. A call holds the lock shared while it runs; once
 * stop_upcalls() has taken it alone, no call runs and none will: the language may end.
 */
struct UpcallGate {
  std::shared_mutex mutex;
  bool open = true;  ///< under mutex
};
inline UpcallGate& upcall_gate() {
  static auto* const gate = new UpcallGate;  // outlives dt's threads
  return *gate;
}
/** Runs `call`; false: the language has ended. */
template <class F>
bool enter_language(F&& call) {
  UpcallGate& gate = upcall_gate();
  const std::shared_lock lock(gate.mutex);
  if (!gate.open) return false;
  try {
    call();
  } catch (...) {
    // Nothing may be thrown through dt's frames; the language has said what went wrong.
  }
  return true;
}
inline void log_to_sink(void* sink, dt_log_level level, const char* message) {
  (void)enter_language([&] { static_cast<LogSink*>(sink)->log(level, message); });
}
/** As dt_combine; `upcall` takes the two addresses and the count. */
inline void combine_by_upcall(void* upcall, const void* in, void* inout, int64_t count) {
  if (enter_language(
          [&] { (void)static_cast<Upcall*>(upcall)->call(number(in), number(inout), count); })) {
    return;
  }
  for (;;) pause();  // a result without this part would be wrong on other ranks, too
}
/** As dt_bucket_hook; `upcall` takes the addresses of the bucket and of *out_work around the stage,
 * and gives a dt_status. */
inline dt_status hook_by_upcall(void* upcall, const dt_bucket* bucket, int32_t stage,
                                dt_work** out_work) {
  int32_t status = DT_ERR_ABORTED;
  (void)enter_language([&] {
    status = DT_ERR_INTERNAL;
    status = static_cast<Upcall*>(upcall)->call(number(bucket), stage, number(out_work));
  });
  return static_cast<dt_status>(status);
}

#endif  // SWIG

// ---- Build ----

inline std::string version() { return dt_version(); }
inline int32_t abi_version() { return dt_abi_version(); }
/** That of the header these bindings were built with. */
inline int32_t built_abi_version() { return DT_ABI_VERSION; }
inline std::string build_info() { return dt_build_info(); }
inline std::string status_name(int32_t status) {
  return dt_status_name(static_cast<dt_status>(status));
}

// ---- Config ----

/** `PATH` may be null. */
inline int64_t config_create(const char* PATH) {
  return made<dt_config>([&](dt_config** out) { return dt_config_create(PATH, out); });
}
inline void config_set(int64_t config, const std::string& key, const std::string& value) {
  detail::check(dt_config_set(handle<dt_config>(config), key.c_str(), value.c_str()));
}
inline std::string config_get(int64_t config, const std::string& key) {
  return detail::read_text([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return dt_config_get(handle<dt_config>(config), key.c_str(), buffer, capacity_bytes, out_bytes);
  });
}
inline std::string config_dump(int64_t config) {
  return detail::read_text([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return dt_config_dump(handle<dt_config>(config), buffer, capacity_bytes, out_bytes);
  });
}
/** The sink must live until stop_upcalls(); null: stderr again. */
inline void config_set_log_sink(int64_t config, LogSink* sink) {
  detail::check(dt_config_set_log_sink(handle<dt_config>(config),
                                       sink == nullptr ? nullptr : log_to_sink, sink));
}
/** Waits for calls that run. For the end of a language's virtual machine. */
inline void stop_upcalls() {
  const std::unique_lock lock(upcall_gate().mutex);
  upcall_gate().open = false;
}
/** For launch(). */
inline int64_t upcall_number(Upcall* upcall) { return number(upcall); }
inline void config_destroy(int64_t config) { dt_config_destroy(handle<dt_config>(config)); }

// ---- Job ----

/** `config` 0: what stands around the process. */
inline int64_t job_init(int64_t config) {
  return made<dt_job>([&](dt_job** out) { return dt_init(handle<dt_config>(config), out); });
}
/** rank, world_size, local_rank, local_size, node_rank, node_count, attempt, master_port as
 * numbers; master_addr, job_id, host, launcher as items. */
inline Bytes job_place(int64_t job) {
  dt_place c;
  dt_place_init(&c);
  detail::check(dt_rank_info(handle<dt_job>(job), &c));
  Packer packed;
  for (const int32_t value : {c.rank, c.world_size, c.local_rank, c.local_size, c.node_rank,
                              c.node_count, c.attempt, c.master_port}) {
    packed.add_number(value);
  }
  for (const char* const text : {c.master_addr, c.job_id, c.host, c.launcher}) packed.add(text);
  return packed.take();
}
inline int64_t job_world(int64_t job) {
  return made<dt_comm>([&](dt_comm** out) { return dt_comm_world(handle<dt_job>(job), out); });
}
/** A list of world ranks; `MESSAGE` is the name, and may be null. */
inline int64_t comm_create(int64_t job, const char* DATA, int64_t BYTES, const char* MESSAGE) {
  std::vector<int32_t> ranks;
  for (Unpacker packed(DATA, BYTES); packed.more();) {
    ranks.push_back(packed.number32("ranks"));
  }
  return made<dt_comm>([&](dt_comm** out) {
    return dt_comm_create(handle<dt_job>(job), ranks.data(), detail::count32(ranks.size()), MESSAGE,
                          out);
  });
}
/** `MESSAGE` may be null. */
inline void job_abort(int64_t job, const char* MESSAGE) {
  detail::check(dt_abort(handle<dt_job>(job), MESSAGE));
}
/** `MESSAGE` is the directory; null: trace.dir. */
inline void job_trace_dump(int64_t job, const char* MESSAGE) {
  detail::check(dt_trace_dump(handle<dt_job>(job), MESSAGE));
}
/** restarts, stalls, uncounted, steps, step_bytes, communication_ns, exposed_ns as numbers and
 * hidden_share as the bits of a double; then for each dt_kind operations, failures, bytes,
 * bus_bytes, busy_ns, and busbw_gbs as the bits of a double. */
inline Bytes job_stats(int64_t job) {
  dt_stats c;
  dt_stats_init(&c);
  detail::check(dt_job_stats(handle<dt_job>(job), &c));
  Packer packed;
  const auto add_real = [&](const double& value) {
    int64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    packed.add_number(bits);
  };
  for (const int64_t value : {int64_t{c.restarts}, c.stalls, c.uncounted, c.steps, c.step_bytes,
                              c.communication_ns, c.exposed_ns}) {
    packed.add_number(value);
  }
  add_real(c.hidden_share);
  for (int kind = DT_KIND_ALLREDUCE; kind <= DT_KIND_REDUCE_SCATTERV; ++kind) {
    dt_kind_stats one;
    detail::check(dt_job_kind_stats(handle<dt_job>(job), static_cast<dt_kind>(kind), &one));
    for (const int64_t value :
         {one.operations, one.failures, one.bytes, one.bus_bytes, one.busy_ns}) {
      packed.add_number(value);
    }
    add_real(one.busbw_gbs);
  }
  return packed.take();
}
/** waits, waited_ns as numbers. */
inline Bytes job_peer_stats(int64_t job, int32_t rank) {
  dt_peer_stats peer;
  detail::check(dt_job_peer_stats(handle<dt_job>(job), rank, &peer));
  Packer packed;
  packed.add_number(peer.waits);
  packed.add_number(peer.waited_ns);
  return packed.take();
}
/** `MESSAGE` may be null. */
inline void job_busy_begin(int64_t job, const char* MESSAGE, int64_t max_ms) {
  detail::check(dt_busy_begin(handle<dt_job>(job), MESSAGE, max_ms));
}
inline void job_busy_end(int64_t job) { detail::check(dt_busy_end(handle<dt_job>(job))); }
inline bool job_agree(int64_t job, bool agreed) {
  int32_t all = 0;
  detail::check(dt_agree(handle<dt_job>(job), agreed ? 1 : 0, &all));
  return all != 0;
}
inline void job_request_stop(int64_t job) {
  if (dt_request_stop(handle<dt_job>(job)) != DT_OK) (void)job_place(job);  // which says why
}
inline bool job_stop_requested(int64_t job) {
  int32_t stop = 0;
  detail::check(dt_stop_requested(handle<dt_job>(job), &stop));
  return stop != 0;
}
inline void job_finalize(int64_t job, int64_t timeout_ms) {
  detail::check(dt_finalize(handle<dt_job>(job), timeout_ms));
}
inline void job_destroy(int64_t job) { dt_job_destroy(handle<dt_job>(job)); }

// ---- Store ----

inline void store_set(int64_t job, const std::string& key, const char* DATA, int64_t BYTES,
                      int64_t timeout_ms) {
  detail::check(dt_store_set(handle<dt_job>(job), key.c_str(), DATA, BYTES, timeout_ms));
}
inline Bytes store_get(int64_t job, const std::string& key, int64_t timeout_ms) {
  return {detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return dt_store_get(handle<dt_job>(job), key.c_str(), timeout_ms, buffer, capacity_bytes,
                        out_bytes);
  })};
}
inline int64_t store_add(int64_t job, const std::string& key, int64_t delta, int64_t timeout_ms) {
  int64_t value = 0;
  detail::check(dt_store_add(handle<dt_job>(job), key.c_str(), delta, timeout_ms, &value));
  return value;
}
/** A list of keys. */
inline void store_wait(int64_t job, const char* DATA, int64_t BYTES, int64_t timeout_ms) {
  const std::vector<std::string> keys = unpack(DATA, BYTES);
  detail::check(dt_store_wait(handle<dt_job>(job), detail::pointers_to(keys).data(),
                              detail::count32(keys.size()), timeout_ms));
}
/** A list of two: what is expected, absent for an absent key, and what is desired. */
inline bool store_compare_set(int64_t job, const std::string& key, const char* DATA, int64_t BYTES,
                              int64_t timeout_ms) {
  Unpacker packed(DATA, BYTES);
  const std::optional<std::string> expected = packed.optional_item();
  const std::string desired = packed.item();
  int32_t swapped = 0;
  detail::check(
      dt_store_compare_set(handle<dt_job>(job), key.c_str(), expected ? expected->data() : nullptr,
                           expected ? static_cast<int64_t>(expected->size()) : 0, desired.data(),
                           static_cast<int64_t>(desired.size()), timeout_ms, &swapped));
  return swapped != 0;
}
inline bool store_delete(int64_t job, const std::string& key, int64_t timeout_ms) {
  int32_t existed = 0;
  detail::check(dt_store_delete(handle<dt_job>(job), key.c_str(), timeout_ms, &existed));
  return existed != 0;
}
/** Keys, each followed by a NUL. */
inline Bytes store_list(int64_t job, const std::string& prefix, int64_t timeout_ms) {
  return {detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return dt_store_list(handle<dt_job>(job), prefix.c_str(), timeout_ms, buffer, capacity_bytes,
                         out_bytes);
  })};
}
/** A list of key, value, key, value. */
inline void store_multi_set(int64_t job, const char* DATA, int64_t BYTES, int64_t timeout_ms) {
  const std::vector<std::string> items = unpack(DATA, BYTES);
  std::vector<const char*> keys;
  std::vector<const void*> values;
  std::vector<int64_t> bytes;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    keys.push_back(items[i].c_str());
    values.push_back(items[i + 1].data());
    bytes.push_back(static_cast<int64_t>(items[i + 1].size()));
  }
  detail::check(dt_store_multi_set(handle<dt_job>(job), keys.data(), values.data(), bytes.data(),
                                   detail::count32(keys.size()), timeout_ms));
}
/** A list of keys; gives the list of their values. */
inline Bytes store_multi_get(int64_t job, const char* DATA, int64_t BYTES, int64_t timeout_ms) {
  const std::vector<std::string> keys = unpack(DATA, BYTES);
  const std::vector<const char*> names = detail::pointers_to(keys);
  std::vector<int64_t> bytes(keys.size());
  const std::string all =
      detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
        return dt_store_multi_get(handle<dt_job>(job), names.data(), detail::count32(names.size()),
                                  timeout_ms, buffer, capacity_bytes, bytes.data(), out_bytes);
      });
  Packer packed;
  std::size_t at = 0;
  for (const int64_t value_bytes : bytes) {
    if (value_bytes < 0) {
      packed.add_absent();
      continue;
    }
    packed.add(all.substr(at, static_cast<std::size_t>(value_bytes)));
    at += static_cast<std::size_t>(value_bytes);
  }
  return packed.take();
}
inline void store_barrier(int64_t job, const std::string& name, int32_t count, int64_t timeout_ms) {
  detail::check(dt_store_barrier(handle<dt_job>(job), name.c_str(), count, timeout_ms));
}
inline int64_t store_serve(int64_t config) {
  return made<dt_store_server>(
      [&](dt_store_server** out) { return dt_store_serve(handle<dt_config>(config), out); });
}
inline int32_t store_server_port(int64_t server) {
  int32_t value = 0;
  detail::check(dt_store_server_port(handle<dt_store_server>(server), &value));
  return value;
}
inline void store_server_destroy(int64_t server) {
  dt_store_server_destroy(handle<dt_store_server>(server));
}

// ---- Reducer ----

#ifndef SWIG
/** Parameters and options: the numbers sum, keep_plan, find_unused, bucket_cap_bytes,
 * first_bucket_bytes, divide_by_users, wire, predivide as the bits of a double, static_graph,
 * tune_steps, how many the order has, and those, how many have row_elements, and those, how many
 * gradients the caller has, and their addresses; then of each parameter its count, dtype, uses, how
 * many dimensions its shape has, and those, and its name as an item. */
class Model {
 public:
  explicit Model(Unpacker& packed) {
    dt_reducer_options_init(&options_);
    options_.sum = packed.number32("sum");
    options_.keep_plan = packed.number32("keep_plan");
    options_.find_unused = packed.number32("find_unused");
    options_.bucket_cap_bytes = packed.number();
    options_.first_bucket_bytes = packed.number();
    options_.divide_by_users = packed.number32("divide_by_users");
    options_.wire = packed.number32<dt_wire>("wire");
    const int64_t predivide = packed.number();
    memcpy(&options_.predivide, &predivide, sizeof predivide);
    options_.static_graph = packed.number32("static_graph");
    options_.tune_steps = packed.number32("tune_steps");
    order_.resize(static_cast<std::size_t>(packed.number()));
    for (int32_t& index : order_) index = packed.number32("order");
    row_elements_.resize(static_cast<std::size_t>(packed.number()));
    for (int64_t& elements : row_elements_) elements = packed.number();
    grads_.resize(static_cast<std::size_t>(packed.number()));
    for (void*& grad : grads_) grad = memory(packed.number());
    while (packed.more()) {
      dt_param param = {};
      param.count = packed.number();
      param.dtype = packed.number32<dt_dtype>("dtype");
      param.uses = packed.number32("uses");
      dims_.push_back(packed.number32("shape"));
      for (int32_t i = 0; i < dims_.back(); ++i) shapes_.push_back(packed.number());
      params_.push_back(param);
      names_.push_back(packed.item());
    }
    if (!order_.empty() && order_.size() != params_.size()) {
      order_.assign(params_.size(), -1);  // refused
    }
    options_.order = order_.empty() ? nullptr : order_.data();
    if (!row_elements_.empty() && row_elements_.size() != params_.size()) {
      row_elements_.assign(params_.size(), -1);  // refused
    }
    options_.row_elements = row_elements_.empty() ? nullptr : row_elements_.data();
    if (!grads_.empty() && grads_.size() != params_.size()) {
      grads_.assign(params_.size(), nullptr);  // refused
    }
    options_.grads = grads_.empty() ? nullptr : grads_.data();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!names_[i].empty()) params_[i].name = names_[i].c_str();
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const dt_param* params() const { return params_.data(); }
  int32_t count() const { return detail::count32(params_.size()); }
  const dt_reducer_options& options() const { return options_; }
  const int32_t* dims() const { return dims_.data(); }
  const int64_t* shapes() const { return shapes_.data(); }

 private:
  std::vector<dt_param> params_;
  std::vector<std::string> names_;
  std::vector<int32_t> dims_;
  std::vector<int64_t> shapes_;
  std::vector<int32_t> order_;
  std::vector<int64_t> row_elements_;
  std::vector<void*> grads_;
  dt_reducer_options options_;
};
#endif

/** A Model. */
inline int64_t reducer_create(int64_t comm, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  const Model model(packed);
  return made<dt_reducer>([&](dt_reducer** out) {
    return dt_reducer_create(handle<dt_comm>(comm), model.params(), model.count(), &model.options(),
                             out);
  });
}
inline int64_t reducer_grad(int64_t reducer, int32_t index, int64_t stream) {
  return made<void>([&](void** out) {
    return dt_reducer_grad(handle<dt_reducer>(reducer), index, memory(stream), out);
  });
}
/** `gradient` 0: it was written where reducer_grad() said. */
inline void reducer_ready(int64_t reducer, int32_t index, int64_t gradient, int64_t stream) {
  detail::check(
      dt_reducer_ready(handle<dt_reducer>(reducer), index, memory(gradient), memory(stream)));
}
/** `rows` and `values` are addresses. */
inline void reducer_ready_rows(int64_t reducer, int32_t index, int64_t rows, int64_t row_count,
                               int64_t values) {
  detail::check(dt_reducer_ready_rows(handle<dt_reducer>(reducer), index,
                                      static_cast<const int64_t*>(memory(rows)), row_count,
                                      memory(values)));
}
/** The number of rows, their indices, and an item with their values. */
inline Bytes reducer_rows(int64_t reducer, int32_t index, int64_t row_bytes) {
  const int64_t* rows = nullptr;
  void* values = nullptr;
  int64_t count = 0;
  detail::check(dt_reducer_rows(handle<dt_reducer>(reducer), index, &rows, &values, &count));
  Packer packed;
  packed.add_number(count);
  for (int64_t i = 0; i < count; ++i) packed.add_number(rows[i]);
  packed.add(
      std::string(static_cast<const char*>(values), static_cast<std::size_t>(count * row_bytes)));
  return packed.take();
}
/** `function` is a dt_bucket_hook, which gets `data`; 0: none. */
inline void reducer_set_hook(int64_t reducer, int64_t function, int64_t data) {
  detail::check(dt_reducer_set_hook(handle<dt_reducer>(reducer),
                                    reinterpret_cast<dt_bucket_hook>(memory(function)),
                                    memory(data)));
}
/** The same with an upcall of hook_by_upcall(); 0: none. */
inline void reducer_set_hook_upcall(int64_t reducer, int64_t upcall) {
  detail::check(dt_reducer_set_hook(handle<dt_reducer>(reducer),
                                    upcall == 0 ? nullptr : hook_by_upcall, memory(upcall)));
}
/** Index, is_last, data, count, dtype, stream, then the params. */
inline Bytes bucket_fields(int64_t bucket) {
  const dt_bucket& from = *handle<dt_bucket>(bucket);
  Packer packed;
  for (const int64_t value : {int64_t{from.index}, int64_t{from.is_last}, number(from.data),
                              from.count, int64_t{from.dtype}, number(from.stream)}) {
    packed.add_number(value);
  }
  for (int32_t i = 0; i < from.param_count; ++i) packed.add_number(from.params[i]);
  return packed.take();
}
/** Gives the handle to the reducer. */
inline void bucket_give(int64_t out_work, int64_t work) {
  *handle<dt_work*>(out_work) = handle<dt_work>(work);
}
/** Rank, start_step, min_compression as the bits of a double, no_error_feedback, cold_start, seed,
 * wire, then the rows of all parameters. */
inline void reducer_power_sgd(int64_t reducer, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = packed.number32("rank");
  options.start_step = packed.number();
  const int64_t min_compression = packed.number();
  memcpy(&options.min_compression, &min_compression, sizeof min_compression);
  options.no_error_feedback = packed.number32("no_error_feedback");
  options.cold_start = packed.number32("cold_start");
  options.seed = static_cast<uint64_t>(packed.number());
  options.wire = packed.number32<dt_wire>("wire");
  std::vector<int64_t> rows;
  while (packed.more()) rows.push_back(packed.number());
  detail::check(dt_reducer_power_sgd(handle<dt_reducer>(reducer), rows.data(), &options));
}
inline void reducer_save(int64_t reducer, const char* PATH) {
  detail::check(dt_reducer_save(handle<dt_reducer>(reducer), PATH));
}
inline void reducer_load(int64_t reducer, const char* PATH) {
  detail::check(dt_reducer_load(handle<dt_reducer>(reducer), PATH));
}
inline void reducer_accumulate(int64_t reducer, bool on) {
  detail::check(dt_reducer_accumulate(handle<dt_reducer>(reducer), on ? 1 : 0));
}
/** `gradient` 0: the average is wanted where reducer_grad() says. */
inline void reducer_unused(int64_t reducer, int32_t index, int64_t gradient, int64_t stream) {
  detail::check(
      dt_reducer_unused(handle<dt_reducer>(reducer), index, memory(gradient), memory(stream)));
}
inline bool reducer_used(int64_t reducer, int32_t index) {
  int32_t used = 0;
  detail::check(dt_reducer_used(handle<dt_reducer>(reducer), index, &used));
  return used != 0;
}
inline int32_t reducer_active(int64_t reducer) {
  int32_t ranks = 0;
  detail::check(dt_reducer_active(handle<dt_reducer>(reducer), &ranks));
  return ranks;
}
/** `data` 0: it is no longer watched. */
inline void reducer_watch(int64_t reducer, int32_t index, int64_t data, int64_t bytes) {
  detail::check(dt_reducer_watch(handle<dt_reducer>(reducer), index, memory(data), bytes));
}
inline void reducer_finish(int64_t reducer, int64_t stream) {
  detail::check(dt_reducer_finish(handle<dt_reducer>(reducer), memory(stream)));
}
/** `out` 0: returns the norm; else it is the address of an f32 of the GPU, which receives it. */
inline double reducer_clip_norm(int64_t reducer, double max_norm, double norm_type, int64_t out,
                                int64_t stream) {
  float norm = 0;
  detail::check(dt_reducer_clip_norm(handle<dt_reducer>(reducer), max_norm, norm_type,
                                     memory(stream),
                                     out == 0 ? &norm : static_cast<float*>(memory(out))));
  return static_cast<double>(norm);
}
inline bool reducer_rebuild(int64_t reducer) {
  int32_t changed = 0;
  detail::check(dt_reducer_rebuild(handle<dt_reducer>(reducer), &changed));
  return changed != 0;
}
/** Of `count` parameters. */
inline Bytes reducer_order(int64_t reducer, int32_t count) {
  std::vector<int32_t> order(static_cast<std::size_t>(count));
  detail::check(dt_reducer_order(handle<dt_reducer>(reducer), order.data()));
  Packer packed;
  for (const int32_t index : order) packed.add_number(index);
  return packed.take();
}
inline int32_t reducer_bucket(int64_t reducer, int32_t index) {
  int32_t value = 0;
  detail::check(dt_reducer_bucket(handle<dt_reducer>(reducer), index, &value));
  return value;
}
/** bucket_count, steps, bytes, communication_ns, exposed_ns, total_bytes, total_communication_ns,
 * total_exposed_ns, rebuilt, tuned, memory_bytes, total_gather_ns, bucket_cap_bytes as numbers,
 * then hidden_share as the bits of a double. */
inline Bytes reducer_stats(int64_t reducer) {
  dt_reducer_statistics c;
  dt_reducer_statistics_init(&c);
  detail::check(dt_reducer_stats(handle<dt_reducer>(reducer), &c));
  Packer packed;
  for (const int64_t value :
       {int64_t{c.bucket_count}, c.steps, c.bytes, c.communication_ns, c.exposed_ns, c.total_bytes,
        c.total_communication_ns, c.total_exposed_ns, int64_t{c.rebuilt}, int64_t{c.tuned},
        c.memory_bytes, c.total_gather_ns, c.bucket_cap_bytes}) {
    packed.add_number(value);
  }
  int64_t bits = 0;
  memcpy(&bits, &c.hidden_share, sizeof bits);
  packed.add_number(bits);
  return packed.take();
}
inline void reducer_destroy(int64_t reducer) { dt_reducer_destroy(handle<dt_reducer>(reducer)); }

// ---- Shard ----

/** The numbers stage, prefetch and shard_ranks, how many granules there are (none, or one for each
 * parameter), those, the same of units, and a Model. PATH: dt_shard_options.offload. */
inline int64_t shard_create(int64_t comm, const char* DATA, int64_t BYTES, const char* PATH) {
  Unpacker packed(DATA, BYTES);
  dt_shard_options options;
  dt_shard_options_init(&options);
  options.stage = packed.number32("stage");
  options.prefetch = packed.number32("prefetch");
  options.shard_ranks = packed.number32("shard_ranks");
  std::vector<int64_t> granules(static_cast<std::size_t>(packed.number()));
  for (int64_t& granule : granules) granule = packed.number();
  std::vector<int32_t> units(static_cast<std::size_t>(packed.number()));
  for (int32_t& unit : units) unit = packed.number32("units");
  const Model model(packed);
  const auto count = static_cast<std::size_t>(model.count());
  if (!granules.empty() && granules.size() != count) granules.assign(count, -1);  // refused
  if (!units.empty() && units.size() != count) units.assign(count, -1);
  options.granules = granules.empty() ? nullptr : granules.data();
  options.units = units.empty() ? nullptr : units.data();
  options.offload = PATH;
  options.reducer = &model.options();
  options.dims = model.dims();
  options.shapes = model.shapes();
  return made<dt_shard>([&](dt_shard** out) {
    return dt_shard_create(handle<dt_comm>(comm), model.params(), model.count(), &options, out);
  });
}
/** Gives a handle of its own. */
inline int64_t shard_reducer(int64_t shard) {
  return made<dt_reducer>(
      [&](dt_reducer** out) { return dt_shard_reducer(handle<dt_shard>(shard), out); });
}
inline int64_t shard_param(int64_t shard, int32_t index) {
  return made<void>(
      [&](void** out) { return dt_shard_param(handle<dt_shard>(shard), index, out); });
}
inline void shard_set(int64_t shard, int32_t index, int64_t values, int64_t stream) {
  detail::check(dt_shard_set(handle<dt_shard>(shard), index, memory(values), memory(stream)));
}
/** offset, count, and where the parameter's and the gradient's elements lie: 0 is nowhere. */
inline Bytes shard_piece(int64_t shard, int32_t index, int64_t stream) {
  dt_piece piece;
  dt_piece_init(&piece);
  detail::check(dt_shard_piece(handle<dt_shard>(shard), index, memory(stream), &piece));
  Packer packed;
  packed.add_number(piece.offset);
  packed.add_number(piece.count);
  packed.add_number(number(piece.param));
  packed.add_number(number(piece.grad));
  return packed.take();
}
/** offset and count of each of `ranks` ranks. */
inline Bytes shard_plan(int64_t shard, int32_t index, int32_t ranks) {
  std::vector<int64_t> offsets(static_cast<size_t>(ranks));
  std::vector<int64_t> counts(offsets.size());
  detail::check(dt_shard_plan(handle<dt_shard>(shard), index, offsets.data(), counts.data()));
  Packer packed;
  for (size_t i = 0; i < offsets.size(); ++i) {
    packed.add_number(offsets[i]);
    packed.add_number(counts[i]);
  }
  return packed.take();
}
inline void shard_full_grad(int64_t shard, int32_t index, int64_t values, int64_t stream) {
  detail::check(dt_shard_full_grad(handle<dt_shard>(shard), index, memory(stream), memory(values)));
}
inline void shard_updated(int64_t shard, int64_t stream) {
  detail::check(dt_shard_updated(handle<dt_shard>(shard), memory(stream)));
}
inline void shard_gather(int64_t shard, int32_t unit, int64_t stream) {
  detail::check(dt_shard_gather(handle<dt_shard>(shard), unit, memory(stream)));
}
inline void shard_release(int64_t shard, int32_t unit, int64_t stream) {
  detail::check(dt_shard_release(handle<dt_shard>(shard), unit, memory(stream)));
}
/** optimizer: 0 is none. */
inline void shard_save(int64_t shard, int64_t optimizer, const char* PATH) {
  detail::check(dt_shard_save(handle<dt_shard>(shard), handle<dt_optimizer>(optimizer), PATH));
}
inline void shard_load(int64_t shard, int64_t optimizer, const char* PATH) {
  detail::check(dt_shard_load(handle<dt_shard>(shard), handle<dt_optimizer>(optimizer), PATH));
}
inline void shard_destroy(int64_t shard) { dt_shard_destroy(handle<dt_shard>(shard)); }

// ---- Optimizer ----

/** The next double of what is packed, which travels as its bits. */
#ifndef SWIG
inline double real(Unpacker& packed) {
  const int64_t bits = packed.number();
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::vector<double> reals(Unpacker& packed) {
  std::vector<double> values;
  while (packed.more()) values.push_back(real(packed));
  return values;
}
#endif

/** beta1, beta2, epsilon and weight_decay as the bits of doubles, the number skip_non_finite, then
 * the weight decay of each parameter, or nothing. */
inline int64_t optimizer_adamw(int64_t shard, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  dt_adamw_options options;
  dt_adamw_options_init(&options);
  options.beta1 = real(packed);
  options.beta2 = real(packed);
  options.epsilon = real(packed);
  options.weight_decay = real(packed);
  options.skip_non_finite = packed.number32("skip_non_finite");
  const std::vector<double> decays = reals(packed);
  options.weight_decays = decays.empty() ? nullptr : decays.data();
  return made<dt_optimizer>([&](dt_optimizer** out) {
    return dt_optimizer_adamw(handle<dt_shard>(shard), &options, out);
  });
}
/** momentum, dampening and weight_decay likewise, the numbers nesterov and skip_non_finite, and
 * weight decays. */
inline int64_t optimizer_sgd(int64_t shard, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  dt_sgd_options options;
  dt_sgd_options_init(&options);
  options.momentum = real(packed);
  options.dampening = real(packed);
  options.weight_decay = real(packed);
  options.nesterov = packed.number32("nesterov");
  options.skip_non_finite = packed.number32("skip_non_finite");
  const std::vector<double> decays = reals(packed);
  options.weight_decays = decays.empty() ? nullptr : decays.data();
  return made<dt_optimizer>(
      [&](dt_optimizer** out) { return dt_optimizer_sgd(handle<dt_shard>(shard), &options, out); });
}
inline void optimizer_step(int64_t optimizer, double rate, int64_t stream) {
  detail::check(dt_optimizer_step(handle<dt_optimizer>(optimizer), rate, memory(stream)));
}
inline int64_t optimizer_skipped(int64_t optimizer, int32_t behind) {
  int64_t skipped = 0;
  detail::check(dt_optimizer_skipped(handle<dt_optimizer>(optimizer), behind, &skipped));
  return skipped;
}
inline void optimizer_destroy(int64_t optimizer) {
  dt_optimizer_destroy(handle<dt_optimizer>(optimizer));
}

// ---- Outer optimizer ----

/** The numbers sync_every, fragments, delay, nesterov and format, the bits of alpha, rate and
 * momentum; then of each parameter its address, count, dtype, and name as an item. */
inline int64_t outer_create(int64_t comm, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  dt_outer_options options;
  dt_outer_options_init(&options);
  options.sync_every = packed.number();
  options.fragments = packed.number32("fragments");
  options.delay = packed.number();
  options.nesterov = packed.number32("nesterov");
  options.format = packed.number32<dt_outer_format>("format");
  options.alpha = real(packed);
  options.rate = real(packed);
  options.momentum = real(packed);
  std::vector<dt_outer_param> params;
  params.reserve(1);  // an empty list is none of NULL
  std::vector<std::string> names;
  while (packed.more()) {
    dt_outer_param param = {};
    param.data = memory(packed.number());
    param.count = packed.number();
    param.dtype = packed.number32<dt_dtype>("dtype");
    params.push_back(param);
    names.push_back(packed.item());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) params[i].name = names[i].c_str();
  }
  return made<dt_outer>([&](dt_outer** out) {
    return dt_outer_create(handle<dt_comm>(comm), params.data(), detail::count32(params.size()),
                           &options, out);
  });
}
/** Whether it has changed parameters. */
inline bool outer_step(int64_t outer) {
  int32_t changed = 0;
  detail::check(dt_outer_step(handle<dt_outer>(outer), &changed));
  return changed != 0;
}
inline void outer_sync(int64_t outer) { detail::check(dt_outer_sync(handle<dt_outer>(outer))); }
inline int64_t outer_steps(int64_t outer) {
  int64_t steps = 0;
  detail::check(dt_outer_steps(handle<dt_outer>(outer), &steps));
  return steps;
}
inline void outer_move(int64_t outer, int64_t comm) {
  detail::check(dt_outer_move(handle<dt_outer>(outer), handle<dt_comm>(comm)));
}
inline void outer_save(int64_t outer, const char* PATH) {
  detail::check(dt_outer_save(handle<dt_outer>(outer), PATH));
}
inline void outer_load(int64_t outer, const char* PATH) {
  detail::check(dt_outer_load(handle<dt_outer>(outer), PATH));
}
inline void outer_destroy(int64_t outer) { dt_outer_destroy(handle<dt_outer>(outer)); }

// ---- Sampler ----

/** Weights as doubles in native order, as many as samples, or none. */
inline int64_t sampler_create(int32_t world_size, int32_t rank, int64_t size, int64_t seed,
                              bool sequential, bool drop_last, bool whole_batches, int64_t block,
                              int64_t window, const char* DATA, int64_t BYTES, int64_t draws) {
  std::vector<double> weights(static_cast<std::size_t>(BYTES) / sizeof(double));
  if (!weights.empty()) memcpy(weights.data(), DATA, weights.size() * sizeof(double));
  dt_sampler_options options;
  dt_sampler_options_init(&options);
  options.world_size = world_size;
  options.rank = rank;
  options.size = size;
  options.seed = seed;
  options.sequential = sequential ? 1 : 0;
  options.drop_last = drop_last ? 1 : 0;
  options.whole_batches = whole_batches ? 1 : 0;
  options.block = block;
  options.window = window;
  options.weights = weights.empty() ? nullptr : weights.data();
  options.draws = draws;
  return made<dt_sampler>([&](dt_sampler** out) { return dt_sampler_create(&options, out); });
}
inline void sampler_set_epoch(int64_t sampler, int64_t epoch) {
  detail::check(dt_sampler_set_epoch(handle<dt_sampler>(sampler), epoch));
}
inline int64_t sampler_length(int64_t sampler) {
  int64_t value = 0;
  detail::check(dt_sampler_length(handle<dt_sampler>(sampler), &value));
  return value;
}
/** Indices as int64_t in native order. */
inline Bytes sampler_indices(int64_t sampler, int64_t first, int64_t count) {
  // What dt refuses needs no memory.
  std::vector<int64_t> indices(
      count > 0 && count <= sampler_length(sampler) ? static_cast<std::size_t>(count) : 1);
  detail::check(dt_sampler_indices(handle<dt_sampler>(sampler), first, count, indices.data()));
  return {std::string(reinterpret_cast<const char*>(indices.data()),
                      count > 0 ? static_cast<std::size_t>(count) * sizeof(int64_t) : 0)};
}
/** Indices as int64_t in native order; none at the end. */
inline Bytes sampler_next(int64_t sampler, int64_t count) {
  count = std::min(count, sampler_length(sampler) + 1);  // there are no more
  std::vector<int64_t> indices(count > 0 ? static_cast<std::size_t>(count) : 1);
  int64_t given = 0;
  detail::check(dt_sampler_next(handle<dt_sampler>(sampler), count, indices.data(), &given));
  return {std::string(reinterpret_cast<const char*>(indices.data()),
                      static_cast<std::size_t>(given) * sizeof(int64_t))};
}
/** epoch, consumed, size, order. */
inline Bytes sampler_save(int64_t sampler, int64_t taken) {
  dt_sampler_state state;
  dt_sampler_state_init(&state);
  detail::check(dt_sampler_save(handle<dt_sampler>(sampler), taken, &state));
  Packer packed;
  for (const int64_t value : {state.epoch, state.consumed, state.size, state.order}) {
    packed.add_number(value);
  }
  return packed.take();
}
inline void sampler_resume(int64_t sampler, int64_t epoch, int64_t consumed, int64_t size,
                           int64_t order) {
  dt_sampler_state state;
  dt_sampler_state_init(&state);
  state.epoch = epoch;
  state.consumed = consumed;
  state.size = size;
  state.order = order;
  detail::check(dt_sampler_resume(handle<dt_sampler>(sampler), &state));
}
inline void sampler_check(int64_t sampler, int64_t comm) {
  detail::check(dt_sampler_check(handle<dt_sampler>(sampler), handle<dt_comm>(comm)));
}
inline void sampler_destroy(int64_t sampler) { dt_sampler_destroy(handle<dt_sampler>(sampler)); }

}  // namespace dt::raw
