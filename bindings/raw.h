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
#include <tuple>
#include <type_traits>

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
/** An argument as dt's function takes it: handles and addresses are numbers here. */
template <class To, class From>
To as(const From& from) {
  if constexpr (std::is_pointer_v<To> && std::is_same_v<From, int64_t>) {
    return reinterpret_cast<To>(static_cast<intptr_t>(from));
  } else if constexpr (std::is_same_v<From, std::string>) {
    return from.c_str();
  } else {
    return static_cast<To>(from);
  }
}
/** Calls a function of dt. It is a template's argument and no pointer, so that it is looked up when
 * it is called: a libdt that lacks it can still be loaded and say its version. */
template <auto Function, class... To, class... From>
dt_status call_as(dt_status (*)(To...), const From&... arguments) {
  return Function(as<To>(arguments)...);
}
template <auto Function, class... From>
dt_status status_of(const From&... arguments) {
  return call_as<Function>(decltype(Function)(nullptr), arguments...);
}
template <auto Function, class... From>
void run(const From&... arguments) {
  detail::check(status_of<Function>(arguments...));
}
template <class... To>
std::remove_pointer_t<std::tuple_element_t<sizeof...(To) - 1, std::tuple<To...>>> last_of(
    dt_status (*)(To...));
/** The same of one that gives its answer in its last argument. */
template <auto Function, class Answer, class... From>
Answer ask(const From&... arguments) {
  decltype(last_of(Function)) out{};
  run<Function>(arguments..., &out);
  if constexpr (std::is_pointer_v<decltype(out)>) {
    return number(out);
  } else {
    return static_cast<Answer>(out);
  }
}
/** The same of one whose last arguments are the buffer, capacity and size of what it gives. */
template <auto Function, class... From>
std::string ask_bytes(const From&... arguments) {
  return detail::read_all([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return status_of<Function>(arguments..., buffer, capacity_bytes, out_bytes);
  });
}
template <auto Function, class... From>
std::string ask_text(const From&... arguments) {
  return detail::read_text([&](char* buffer, int64_t capacity_bytes, int64_t* out_bytes) {
    return status_of<Function>(arguments..., buffer, capacity_bytes, out_bytes);
  });
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
  /** Its bits as a number. */
  void add_real(double value) {
    packed_.data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class List = std::initializer_list<int64_t>>
  void add_numbers(const List& values) {
    for (const auto value : values) add_number(value);
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
  /** What add_real() packed. */
  double real() {
    double value = 0;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  /** As many numbers as the next one says. */
  template <class T>
  std::vector<T> numbers(const char* what) {
    std::vector<T> values(static_cast<std::size_t>(number()));
    for (T& value : values) {
      if constexpr (sizeof(T) == sizeof(int32_t)) {
        value = number32<T>(what);
      } else {
        value = as<T>(number());
      }
    }
    return values;
  }

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

/** Numbers one behind the other. */
inline Bytes numbers(std::initializer_list<int64_t> values) {
  Packer packed;
  packed.add_numbers(values);
  return packed.take();
}
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
inline int64_t config_create(const char* PATH) { return ask<dt_config_create, int64_t>(PATH); }
inline void config_set(int64_t config, const std::string& key, const std::string& value) {
  run<dt_config_set>(config, key, value);
}
inline std::string config_get(int64_t config, const std::string& key) {
  return ask_text<dt_config_get>(config, key);
}
inline std::string config_dump(int64_t config) { return ask_text<dt_config_dump>(config); }
/** The sink must live until stop_upcalls(); null: stderr again. */
inline void config_set_log_sink(int64_t config, LogSink* sink) {
  run<dt_config_set_log_sink>(config, sink == nullptr ? nullptr : log_to_sink, sink);
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
inline int64_t job_init(int64_t config) { return ask<dt_init, int64_t>(config); }
/** rank, world_size, local_rank, local_size, node_rank, node_count, attempt, master_port as
 * numbers; master_addr, job_id, host, launcher as items. */
inline Bytes job_place(int64_t job) {
  auto c = detail::made(dt_place_init);
  run<dt_rank_info>(job, &c);
  Packer packed;
  packed.add_numbers({c.rank, c.world_size, c.local_rank, c.local_size, c.node_rank, c.node_count,
                      c.attempt, c.master_port});
  for (const char* const text : {c.master_addr, c.job_id, c.host, c.launcher}) packed.add(text);
  return packed.take();
}
inline int64_t job_world(int64_t job) { return ask<dt_comm_world, int64_t>(job); }
/** A list of world ranks; `MESSAGE` is the name, and may be null. */
inline int64_t comm_create(int64_t job, const char* DATA, int64_t BYTES, const char* MESSAGE) {
  std::vector<int32_t> ranks;
  for (Unpacker packed(DATA, BYTES); packed.more();) {
    ranks.push_back(packed.number32("ranks"));
  }
  return ask<dt_comm_create, int64_t>(job, ranks.data(), detail::count32(ranks.size()), MESSAGE);
}
/** `MESSAGE` may be null. */
inline void job_abort(int64_t job, const char* MESSAGE) { run<dt_abort>(job, MESSAGE); }
/** `MESSAGE` is the directory; null: trace.dir. */
inline void job_trace_dump(int64_t job, const char* MESSAGE) { run<dt_trace_dump>(job, MESSAGE); }
/** restarts, stalls, uncounted, steps, step_bytes, communication_ns, exposed_ns as numbers and
 * hidden_share as the bits of a double; then for each dt_kind operations, failures, bytes,
 * bus_bytes, busy_ns, and busbw_gbs as the bits of a double. */
inline Bytes job_stats(int64_t job) {
  auto c = detail::made(dt_stats_init);
  run<dt_job_stats>(job, &c);
  Packer packed;
  packed.add_numbers(
      {c.restarts, c.stalls, c.uncounted, c.steps, c.step_bytes, c.communication_ns, c.exposed_ns});
  packed.add_real(c.hidden_share);
  for (int kind = DT_KIND_ALLREDUCE; kind <= DT_KIND_REDUCE_SCATTERV; ++kind) {
    dt_kind_stats one;
    run<dt_job_kind_stats>(job, kind, &one);
    packed.add_numbers({one.operations, one.failures, one.bytes, one.bus_bytes, one.busy_ns});
    packed.add_real(one.busbw_gbs);
  }
  return packed.take();
}
/** waits, waited_ns as numbers. */
inline Bytes job_peer_stats(int64_t job, int32_t rank) {
  dt_peer_stats peer;
  run<dt_job_peer_stats>(job, rank, &peer);
  return numbers({peer.waits, peer.waited_ns});
}
/** `MESSAGE` may be null. */
inline void job_busy_begin(int64_t job, const char* MESSAGE, int64_t max_ms) {
  run<dt_busy_begin>(job, MESSAGE, max_ms);
}
inline void job_busy_end(int64_t job) { run<dt_busy_end>(job); }
inline bool job_agree(int64_t job, bool agreed) { return ask<dt_agree, bool>(job, agreed); }
inline void job_request_stop(int64_t job) {
  if (dt_request_stop(handle<dt_job>(job)) != DT_OK) (void)job_place(job);  // which says why
}
inline bool job_stop_requested(int64_t job) { return ask<dt_stop_requested, bool>(job); }
inline void job_finalize(int64_t job, int64_t timeout_ms) { run<dt_finalize>(job, timeout_ms); }
inline void job_destroy(int64_t job) { dt_job_destroy(handle<dt_job>(job)); }

// ---- Store ----

inline void store_set(int64_t job, const std::string& key, const char* DATA, int64_t BYTES,
                      int64_t timeout_ms) {
  run<dt_store_set>(job, key, DATA, BYTES, timeout_ms);
}
inline Bytes store_get(int64_t job, const std::string& key, int64_t timeout_ms) {
  return {ask_bytes<dt_store_get>(job, key, timeout_ms)};
}
inline int64_t store_add(int64_t job, const std::string& key, int64_t delta, int64_t timeout_ms) {
  return ask<dt_store_add, int64_t>(job, key, delta, timeout_ms);
}
/** A list of keys. */
inline void store_wait(int64_t job, const char* DATA, int64_t BYTES, int64_t timeout_ms) {
  const std::vector<std::string> keys = unpack(DATA, BYTES);
  run<dt_store_wait>(job, detail::pointers_to(keys).data(), detail::count32(keys.size()),
                     timeout_ms);
}
/** A list of two: what is expected, absent for an absent key, and what is desired. */
inline bool store_compare_set(int64_t job, const std::string& key, const char* DATA, int64_t BYTES,
                              int64_t timeout_ms) {
  Unpacker packed(DATA, BYTES);
  const std::optional<std::string> expected = packed.optional_item();
  const std::string desired = packed.item();
  return ask<dt_store_compare_set, bool>(job, key, expected ? expected->data() : nullptr,
                                         expected ? static_cast<int64_t>(expected->size()) : 0,
                                         desired.data(), static_cast<int64_t>(desired.size()),
                                         timeout_ms);
}
inline bool store_delete(int64_t job, const std::string& key, int64_t timeout_ms) {
  return ask<dt_store_delete, bool>(job, key, timeout_ms);
}
/** Keys, each followed by a NUL. */
inline Bytes store_list(int64_t job, const std::string& prefix, int64_t timeout_ms) {
  return {ask_bytes<dt_store_list>(job, prefix, timeout_ms)};
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
  run<dt_store_multi_set>(job, keys.data(), values.data(), bytes.data(),
                          detail::count32(keys.size()), timeout_ms);
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
  run<dt_store_barrier>(job, name, count, timeout_ms);
}
inline int64_t store_serve(int64_t config) { return ask<dt_store_serve, int64_t>(config); }
inline int32_t store_server_port(int64_t server) {
  return ask<dt_store_server_port, int32_t>(server);
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
    options_.predivide = packed.real();
    options_.static_graph = packed.number32("static_graph");
    options_.tune_steps = packed.number32("tune_steps");
    order_ = packed.numbers<int32_t>("order");
    row_elements_ = packed.numbers<int64_t>("row_elements");
    grads_ = packed.numbers<void*>("grads");
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
    options_.order = for_each_param(order_, -1);
    options_.row_elements = for_each_param(row_elements_, int64_t{-1});
    options_.grads = for_each_param(grads_, static_cast<void*>(nullptr));
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!names_[i].empty()) params_[i].name = names_[i].c_str();
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const dt_param* params() const { return params_.data(); }
  int32_t count() const { return detail::count32(params_.size()); }
  const dt_reducer_options& options() const { return options_; }
  /** None, or one for each parameter; another number of them becomes `refused`, as dt does. */
  template <class T>
  T* for_each_param(std::vector<T>& values, T refused) const {
    if (values.empty()) return nullptr;
    if (values.size() != params_.size()) values.assign(params_.size(), refused);
    return values.data();
  }
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
  return ask<dt_reducer_create, int64_t>(comm, model.params(), model.count(), &model.options());
}
inline int64_t reducer_grad(int64_t reducer, int32_t index, int64_t stream) {
  return ask<dt_reducer_grad, int64_t>(reducer, index, stream);
}
/** `gradient` 0: it was written where reducer_grad() said. */
inline void reducer_ready(int64_t reducer, int32_t index, int64_t gradient, int64_t stream) {
  run<dt_reducer_ready>(reducer, index, gradient, stream);
}
/** `rows` and `values` are addresses. */
inline void reducer_ready_rows(int64_t reducer, int32_t index, int64_t rows, int64_t row_count,
                               int64_t values) {
  run<dt_reducer_ready_rows>(reducer, index, rows, row_count, values);
}
/** The number of rows, their indices, and an item with their values. */
inline Bytes reducer_rows(int64_t reducer, int32_t index, int64_t row_bytes) {
  const int64_t* rows = nullptr;
  void* values = nullptr;
  int64_t count = 0;
  run<dt_reducer_rows>(reducer, index, &rows, &values, &count);
  Packer packed;
  packed.add_number(count);
  packed.add_numbers(std::vector<int64_t>(rows, rows + count));
  packed.add(
      std::string(static_cast<const char*>(values), static_cast<std::size_t>(count * row_bytes)));
  return packed.take();
}
/** `function` is a dt_bucket_hook, which gets `data`; 0: none. */
inline void reducer_set_hook(int64_t reducer, int64_t function, int64_t data) {
  run<dt_reducer_set_hook>(reducer, function, data);
}
/** The same with an upcall of hook_by_upcall(); 0: none. */
inline void reducer_set_hook_upcall(int64_t reducer, int64_t upcall) {
  run<dt_reducer_set_hook>(reducer, upcall == 0 ? nullptr : hook_by_upcall, upcall);
}
/** Index, is_last, data, count, dtype, stream, then the params. */
inline Bytes bucket_fields(int64_t bucket) {
  const dt_bucket& from = *handle<dt_bucket>(bucket);
  Packer packed;
  packed.add_numbers(
      {from.index, from.is_last, number(from.data), from.count, from.dtype, number(from.stream)});
  packed.add_numbers(std::vector<int32_t>(from.params, from.params + from.param_count));
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
  auto options = detail::made(dt_power_sgd_options_init);
  options.rank = packed.number32("rank");
  options.start_step = packed.number();
  options.min_compression = packed.real();
  options.no_error_feedback = packed.number32("no_error_feedback");
  options.cold_start = packed.number32("cold_start");
  options.seed = static_cast<uint64_t>(packed.number());
  options.wire = packed.number32<dt_wire>("wire");
  std::vector<int64_t> rows;
  while (packed.more()) rows.push_back(packed.number());
  run<dt_reducer_power_sgd>(reducer, rows.data(), &options);
}
inline void reducer_save(int64_t reducer, const char* PATH) { run<dt_reducer_save>(reducer, PATH); }
inline void reducer_load(int64_t reducer, const char* PATH) { run<dt_reducer_load>(reducer, PATH); }
inline void reducer_accumulate(int64_t reducer, bool on) {
  run<dt_reducer_accumulate>(reducer, on);
}
/** `gradient` 0: the average is wanted where reducer_grad() says. */
inline void reducer_unused(int64_t reducer, int32_t index, int64_t gradient, int64_t stream) {
  run<dt_reducer_unused>(reducer, index, gradient, stream);
}
inline bool reducer_used(int64_t reducer, int32_t index) {
  return ask<dt_reducer_used, bool>(reducer, index);
}
inline int32_t reducer_active(int64_t reducer) { return ask<dt_reducer_active, int32_t>(reducer); }
/** `data` 0: it is no longer watched. */
inline void reducer_watch(int64_t reducer, int32_t index, int64_t data, int64_t bytes) {
  run<dt_reducer_watch>(reducer, index, data, bytes);
}
inline void reducer_finish(int64_t reducer, int64_t stream) {
  run<dt_reducer_finish>(reducer, stream);
}
/** `out` 0: returns the norm; else it is the address of an f32 of the GPU, which receives it. */
inline double reducer_clip_norm(int64_t reducer, double max_norm, double norm_type, int64_t out,
                                int64_t stream) {
  float norm = 0;
  run<dt_reducer_clip_norm>(reducer, max_norm, norm_type, stream,
                            out == 0 ? &norm : as<float*>(out));
  return static_cast<double>(norm);
}
inline bool reducer_rebuild(int64_t reducer) { return ask<dt_reducer_rebuild, bool>(reducer); }
/** Of `count` parameters. */
inline Bytes reducer_order(int64_t reducer, int32_t count) {
  std::vector<int32_t> order(static_cast<std::size_t>(count));
  run<dt_reducer_order>(reducer, order.data());
  Packer packed;
  packed.add_numbers(order);
  return packed.take();
}
inline int32_t reducer_bucket(int64_t reducer, int32_t index) {
  return ask<dt_reducer_bucket, int32_t>(reducer, index);
}
/** bucket_count, steps, bytes, communication_ns, exposed_ns, total_bytes, total_communication_ns,
 * total_exposed_ns, rebuilt, tuned, memory_bytes, total_gather_ns, bucket_cap_bytes as numbers,
 * then hidden_share as the bits of a double. */
inline Bytes reducer_stats(int64_t reducer) {
  auto c = detail::made(dt_reducer_statistics_init);
  run<dt_reducer_stats>(reducer, &c);
  Packer packed;
  packed.add_numbers({c.bucket_count, c.steps, c.bytes, c.communication_ns, c.exposed_ns,
                      c.total_bytes, c.total_communication_ns, c.total_exposed_ns, c.rebuilt,
                      c.tuned, c.memory_bytes, c.total_gather_ns, c.bucket_cap_bytes});
  packed.add_real(c.hidden_share);
  return packed.take();
}
inline void reducer_destroy(int64_t reducer) { dt_reducer_destroy(handle<dt_reducer>(reducer)); }

// ---- Shard ----

/** The numbers stage, prefetch and shard_ranks, how many granules there are (none, or one for each
 * parameter), those, the same of units, and a Model. PATH: dt_shard_options.offload. */
inline int64_t shard_create(int64_t comm, const char* DATA, int64_t BYTES, const char* PATH) {
  Unpacker packed(DATA, BYTES);
  auto options = detail::made(dt_shard_options_init);
  options.stage = packed.number32("stage");
  options.prefetch = packed.number32("prefetch");
  options.shard_ranks = packed.number32("shard_ranks");
  std::vector<int64_t> granules = packed.numbers<int64_t>("granules");
  std::vector<int32_t> units = packed.numbers<int32_t>("units");
  const Model model(packed);
  options.granules = model.for_each_param(granules, int64_t{-1});
  options.units = model.for_each_param(units, -1);
  options.offload = PATH;
  options.reducer = &model.options();
  options.dims = model.dims();
  options.shapes = model.shapes();
  return ask<dt_shard_create, int64_t>(comm, model.params(), model.count(), &options);
}
/** Gives a handle of its own. */
inline int64_t shard_reducer(int64_t shard) { return ask<dt_shard_reducer, int64_t>(shard); }
inline int64_t shard_param(int64_t shard, int32_t index) {
  return ask<dt_shard_param, int64_t>(shard, index);
}
inline void shard_set(int64_t shard, int32_t index, int64_t values, int64_t stream) {
  run<dt_shard_set>(shard, index, values, stream);
}
/** offset, count, and where the parameter's and the gradient's elements lie: 0 is nowhere. */
inline Bytes shard_piece(int64_t shard, int32_t index, int64_t stream) {
  auto piece = detail::made(dt_piece_init);
  run<dt_shard_piece>(shard, index, stream, &piece);
  return numbers({piece.offset, piece.count, number(piece.param), number(piece.grad)});
}
/** offset and count of each of `ranks` ranks. */
inline Bytes shard_plan(int64_t shard, int32_t index, int32_t ranks) {
  std::vector<int64_t> offsets(static_cast<size_t>(ranks));
  std::vector<int64_t> counts(offsets.size());
  run<dt_shard_plan>(shard, index, offsets.data(), counts.data());
  Packer packed;
  for (size_t i = 0; i < offsets.size(); ++i) packed.add_numbers({offsets[i], counts[i]});
  return packed.take();
}
inline void shard_full_grad(int64_t shard, int32_t index, int64_t values, int64_t stream) {
  run<dt_shard_full_grad>(shard, index, stream, values);
}
inline void shard_updated(int64_t shard, int64_t stream) { run<dt_shard_updated>(shard, stream); }
inline void shard_gather(int64_t shard, int32_t unit, int64_t stream) {
  run<dt_shard_gather>(shard, unit, stream);
}
inline void shard_release(int64_t shard, int32_t unit, int64_t stream) {
  run<dt_shard_release>(shard, unit, stream);
}
/** optimizer: 0 is none. */
inline void shard_save(int64_t shard, int64_t optimizer, const char* PATH) {
  run<dt_shard_save>(shard, optimizer, PATH);
}
inline void shard_load(int64_t shard, int64_t optimizer, const char* PATH) {
  run<dt_shard_load>(shard, optimizer, PATH);
}
inline void shard_destroy(int64_t shard) { dt_shard_destroy(handle<dt_shard>(shard)); }

// ---- Optimizer ----

#ifndef SWIG
inline std::vector<double> reals(Unpacker& packed) {
  std::vector<double> values;
  while (packed.more()) values.push_back(packed.real());
  return values;
}
#endif

/** beta1, beta2, epsilon and weight_decay as the bits of doubles, the number skip_non_finite, then
 * the weight decay of each parameter, or nothing. */
inline int64_t optimizer_adamw(int64_t shard, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  auto options = detail::made(dt_adamw_options_init);
  options.beta1 = packed.real();
  options.beta2 = packed.real();
  options.epsilon = packed.real();
  options.weight_decay = packed.real();
  options.skip_non_finite = packed.number32("skip_non_finite");
  const std::vector<double> decays = reals(packed);
  options.weight_decays = decays.empty() ? nullptr : decays.data();
  return ask<dt_optimizer_adamw, int64_t>(shard, &options);
}
/** momentum, dampening and weight_decay likewise, the numbers nesterov and skip_non_finite, and
 * weight decays. */
inline int64_t optimizer_sgd(int64_t shard, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  auto options = detail::made(dt_sgd_options_init);
  options.momentum = packed.real();
  options.dampening = packed.real();
  options.weight_decay = packed.real();
  options.nesterov = packed.number32("nesterov");
  options.skip_non_finite = packed.number32("skip_non_finite");
  const std::vector<double> decays = reals(packed);
  options.weight_decays = decays.empty() ? nullptr : decays.data();
  return ask<dt_optimizer_sgd, int64_t>(shard, &options);
}
inline void optimizer_step(int64_t optimizer, double rate, int64_t stream) {
  run<dt_optimizer_step>(optimizer, rate, stream);
}
inline int64_t optimizer_skipped(int64_t optimizer, int32_t behind) {
  return ask<dt_optimizer_skipped, int64_t>(optimizer, behind);
}
inline void optimizer_destroy(int64_t optimizer) {
  dt_optimizer_destroy(handle<dt_optimizer>(optimizer));
}

// ---- Outer optimizer ----

/** The numbers sync_every, fragments, delay, nesterov and format, the bits of alpha, rate and
 * momentum; then of each parameter its address, count, dtype, and name as an item. */
inline int64_t outer_create(int64_t comm, const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  auto options = detail::made(dt_outer_options_init);
  options.sync_every = packed.number();
  options.fragments = packed.number32("fragments");
  options.delay = packed.number();
  options.nesterov = packed.number32("nesterov");
  options.format = packed.number32<dt_outer_format>("format");
  options.alpha = packed.real();
  options.rate = packed.real();
  options.momentum = packed.real();
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
  return ask<dt_outer_create, int64_t>(comm, params.data(), detail::count32(params.size()),
                                       &options);
}
/** Whether it has changed parameters. */
inline bool outer_step(int64_t outer) { return ask<dt_outer_step, bool>(outer); }
inline void outer_sync(int64_t outer) { run<dt_outer_sync>(outer); }
inline int64_t outer_steps(int64_t outer) { return ask<dt_outer_steps, int64_t>(outer); }
inline void outer_move(int64_t outer, int64_t comm) { run<dt_outer_move>(outer, comm); }
inline void outer_save(int64_t outer, const char* PATH) { run<dt_outer_save>(outer, PATH); }
inline void outer_load(int64_t outer, const char* PATH) { run<dt_outer_load>(outer, PATH); }
inline void outer_destroy(int64_t outer) { dt_outer_destroy(handle<dt_outer>(outer)); }

// ---- Sampler ----

/** Weights as doubles in native order, as many as samples, or none. */
inline int64_t sampler_create(int32_t world_size, int32_t rank, int64_t size, int64_t seed,
                              bool sequential, bool drop_last, bool whole_batches, int64_t block,
                              int64_t window, const char* DATA, int64_t BYTES, int64_t draws) {
  std::vector<double> weights(static_cast<std::size_t>(BYTES) / sizeof(double));
  if (!weights.empty()) memcpy(weights.data(), DATA, weights.size() * sizeof(double));
  auto options = detail::made(dt_sampler_options_init);
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
  return ask<dt_sampler_create, int64_t>(&options);
}
inline void sampler_set_epoch(int64_t sampler, int64_t epoch) {
  run<dt_sampler_set_epoch>(sampler, epoch);
}
inline int64_t sampler_length(int64_t sampler) { return ask<dt_sampler_length, int64_t>(sampler); }
/** Indices as int64_t in native order. */
inline Bytes sampler_indices(int64_t sampler, int64_t first, int64_t count) {
  // What dt refuses needs no memory, also where another thread has made the epoch longer by then.
  const bool fits = count > 0 && count <= sampler_length(sampler);
  std::vector<int64_t> indices(fits ? static_cast<std::size_t>(count) : 0);
  run<dt_sampler_indices>(sampler, first, count, fits ? indices.data() : nullptr);
  return {std::string(reinterpret_cast<const char*>(indices.data()),
                      count > 0 ? static_cast<std::size_t>(count) * sizeof(int64_t) : 0)};
}
/** Indices as int64_t in native order; none at the end. */
inline Bytes sampler_next(int64_t sampler, int64_t count) {
  count = std::min(count, sampler_length(sampler) + 1);  // there are no more
  std::vector<int64_t> indices(count > 0 ? static_cast<std::size_t>(count) : 1);
  int64_t given = 0;
  run<dt_sampler_next>(sampler, count, indices.data(), &given);
  return {std::string(reinterpret_cast<const char*>(indices.data()),
                      static_cast<std::size_t>(given) * sizeof(int64_t))};
}
/** epoch, consumed, size, order. */
inline Bytes sampler_save(int64_t sampler, int64_t taken) {
  auto state = detail::made(dt_sampler_state_init);
  run<dt_sampler_save>(sampler, taken, &state);
  return numbers({state.epoch, state.consumed, state.size, state.order});
}
inline void sampler_resume(int64_t sampler, int64_t epoch, int64_t consumed, int64_t size,
                           int64_t order) {
  auto state = detail::made(dt_sampler_state_init);
  state.epoch = epoch;
  state.consumed = consumed;
  state.size = size;
  state.order = order;
  run<dt_sampler_resume>(sampler, &state);
}
inline void sampler_check(int64_t sampler, int64_t comm) { run<dt_sampler_check>(sampler, comm); }
inline void sampler_destroy(int64_t sampler) { dt_sampler_destroy(handle<dt_sampler>(sampler)); }

}  // namespace dt::raw
