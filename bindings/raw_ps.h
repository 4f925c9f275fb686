// SPDX-License-Identifier: Apache-2.0
#pragma once
/** @file Parameter servers and their workers: see raw.h. */
#include "raw_comm.h"

namespace dt::raw {

#ifndef SWIG
inline PsVariable::Rows ps_chosen(int64_t rows, int64_t row_count) {
  if (row_count < 0) return std::nullopt;
  return ConstView(memory(rows), row_count, DT_I64);
}
#endif

/** In the order of dt_ps_place. */
inline Bytes ps_info(int64_t config) {
  auto at = detail::made(dt_ps_place_init);
  run<dt_ps_info>(config, &at);
  return numbers({at.role, at.index, at.servers, at.workers, at.attempt});
}

inline int64_t ps_serve(int64_t config, const char* PATH, int64_t save_every_ms, int64_t absent_ms,
                        int64_t arrival_ms) {
  PsServerOptions options;
  options.checkpoint = PATH;
  options.save_every_ms = save_every_ms;
  options.absent_ms = absent_ms;
  options.arrival_ms = arrival_ms;
  return ask<dt_ps_serve, int64_t>(config, &options);
}
inline int32_t ps_server_port(int64_t server) { return ask<dt_ps_server_port, int32_t>(server); }
/** False when the time was over first. */
inline bool ps_server_wait(int64_t server, int64_t timeout_ms) {
  return ask<dt_ps_server_wait, bool>(server, timeout_ms);
}
/** In the order of dt_ps_server_statistics. */
inline Bytes ps_server_stats(int64_t server) {
  auto c = detail::made(dt_ps_server_statistics_init);
  run<dt_ps_server_stats>(server, &c);
  return numbers({c.workers, c.pushes, c.pulls, c.pushed_rows, c.pulled_rows, c.saves, c.busy_ns});
}
inline void ps_server_destroy(int64_t server) {
  dt_ps_server_destroy(handle<dt_ps_server>(server));
}

inline int64_t ps_connect(int64_t config, int32_t worker, int64_t connect_ms, int64_t timeout_ms,
                          int64_t queue_bytes) {
  PsOptions options;
  options.worker = worker;
  options.connect_ms = connect_ms;
  options.timeout_ms = timeout_ms;
  options.queue_bytes = queue_bytes;
  return ask<dt_ps_connect, int64_t>(config, &options);
}
/** optimizer, nesterov, initial and seed as numbers, then the bits of rate, momentum, beta1, beta2,
 * epsilon and initial_value. */
inline int32_t ps_variable(int64_t ps, const std::string& name, int64_t rows, int32_t columns,
                           const char* DATA, int64_t BYTES) {
  Unpacker packed(DATA, BYTES);
  PsSpec spec;
  spec.name = name.c_str();
  spec.rows = rows;
  spec.columns = columns;
  spec.optimizer = packed.number32<dt_ps_optimizer>("optimizer");
  spec.nesterov = packed.number32("nesterov");
  spec.initial = packed.number32<dt_ps_initial>("initial");
  spec.seed = static_cast<uint64_t>(packed.number());
  spec.rate = packed.real();
  spec.momentum = packed.real();
  spec.beta1 = packed.real();
  spec.beta2 = packed.real();
  spec.epsilon = packed.real();
  spec.initial_value = packed.real();
  return ask<dt_ps_variable, int32_t>(ps, &spec);
}
/** Pushes, pulls (action 1) or sets (2) `count` elements at `values`; row_count -1: all rows. */
inline void ps_rows(int64_t ps, int32_t variable, int64_t variable_rows, int32_t columns,
                    int32_t action, int64_t rows, int64_t row_count, int64_t values, int64_t count,
                    int32_t dtype, double rate) {
  PsVariable one(handle<dt_ps>(ps), variable, variable_rows, columns);
  const PsVariable::Rows chosen = ps_chosen(rows, row_count);
  const View view(memory(values), count, static_cast<dt_dtype>(dtype));
  if (action == 0) one.push(view, chosen, rate);
  if (action == 1) one.pull(view, chosen);
  if (action == 2) one.set(view, chosen);
}
/** The same without waiting; gives a work. */
inline int64_t ps_rows_async(int64_t ps, int32_t variable, int64_t variable_rows, int32_t columns,
                             int32_t action, int64_t rows, int64_t row_count, int64_t values,
                             int64_t count, int32_t dtype, double rate) {
  PsVariable one(handle<dt_ps>(ps), variable, variable_rows, columns);
  const PsVariable::Rows chosen = ps_chosen(rows, row_count);
  const View view(memory(values), count, static_cast<dt_dtype>(dtype));
  Work work = action == 0   ? one.push_async(view, chosen, rate)
              : action == 1 ? one.pull_async(view, chosen)
                            : one.set_async(view, chosen);
  return number(work.release());
}
inline void ps_clock(int64_t ps, int64_t ahead) { run<dt_ps_clock>(ps, ahead); }
inline void ps_save(int64_t ps) { run<dt_ps_save>(ps); }
inline void ps_leave(int64_t ps) { run<dt_ps_leave>(ps); }
inline int32_t ps_fd(int64_t ps) { return ask<dt_ps_fd, int32_t>(ps); }
/** In the order of dt_ps_statistics. */
inline Bytes ps_stats(int64_t ps) {
  auto c = detail::made(dt_ps_statistics_init);
  run<dt_ps_stats>(ps, &c);
  return numbers({c.pushes, c.pulls, c.pushed_rows, c.pulled_rows, c.sent_bytes, c.received_bytes,
                  c.reconnects, c.clock, c.most_ahead});
}
inline void ps_destroy(int64_t ps) { dt_ps_destroy(handle<dt_ps>(ps)); }

}  // namespace dt::raw
