/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout that compiled programs and bindings have built in. A line here changes only together
 * with the soname (docs/abi.md); a field at the end of a struct with struct_size is a new line.
 * check_layout.py demands that nothing of dt.h is missing here.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "dt/dt.h"

#define DT_JOIN2(a, b) a##b
#define DT_JOIN(a, b) DT_JOIN2(a, b)
/* C99 has no _Static_assert; an array of negative size is refused as well. */
#define DT_ASSERT(condition) typedef char DT_JOIN(assert_, __LINE__)[(condition) ? 1 : -1]
#define DT_SIZE(type, bytes) DT_ASSERT(sizeof(type) == (bytes))
#define DT_FIELD(type, field, offset, bytes) \
  DT_ASSERT(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (bytes))
#define DT_VALUE(name, value) DT_ASSERT((name) == (value))
#define DT_TEXT2(x) #x
#define DT_TEXT(x) DT_TEXT2(x)

DT_SIZE(dt_error_info, 2400);
DT_FIELD(dt_error_info, struct_size, 0, 4);
DT_FIELD(dt_error_info, status, 4, 4);
DT_FIELD(dt_error_info, rank, 8, 4);
DT_FIELD(dt_error_info, reserved, 12, 4);
DT_FIELD(dt_error_info, pid, 16, 8);
DT_FIELD(dt_error_info, sequence, 24, 8);
DT_FIELD(dt_error_info, host, 32, 256);
DT_FIELD(dt_error_info, operation, 288, 64);
DT_FIELD(dt_error_info, message, 352, 2048);

DT_SIZE(dt_collective, 128);
DT_FIELD(dt_collective, struct_size, 0, 4);
DT_FIELD(dt_collective, kind, 4, 4);
DT_FIELD(dt_collective, dtype, 8, 4);
DT_FIELD(dt_collective, op, 12, 4);
DT_FIELD(dt_collective, peer, 16, 4);
DT_FIELD(dt_collective, caller_waits, 20, 4);
DT_FIELD(dt_collective, count, 24, 8);
DT_FIELD(dt_collective, timeout_ms, 32, 8);
DT_FIELD(dt_collective, name, 40, 8);
DT_FIELD(dt_collective, send, 48, 8);
DT_FIELD(dt_collective, recv, 56, 8);
DT_FIELD(dt_collective, send_counts, 64, 8);
DT_FIELD(dt_collective, send_offsets, 72, 8);
DT_FIELD(dt_collective, recv_counts, 80, 8);
DT_FIELD(dt_collective, recv_offsets, 88, 8);
DT_FIELD(dt_collective, stream, 96, 8);
DT_FIELD(dt_collective, combine, 104, 8);
DT_FIELD(dt_collective, combine_data, 112, 8);
DT_FIELD(dt_collective, element_bytes, 120, 8);

DT_SIZE(dt_place, 852);
DT_FIELD(dt_place, struct_size, 0, 4);
DT_FIELD(dt_place, rank, 4, 4);
DT_FIELD(dt_place, world_size, 8, 4);
DT_FIELD(dt_place, local_rank, 12, 4);
DT_FIELD(dt_place, local_size, 16, 4);
DT_FIELD(dt_place, node_rank, 20, 4);
DT_FIELD(dt_place, node_count, 24, 4);
DT_FIELD(dt_place, attempt, 28, 4);
DT_FIELD(dt_place, master_port, 32, 4);
DT_FIELD(dt_place, master_addr, 36, 256);
DT_FIELD(dt_place, job_id, 292, 272);
DT_FIELD(dt_place, host, 564, 256);
DT_FIELD(dt_place, launcher, 820, 32);

DT_SIZE(dt_kind_stats, 48);
DT_FIELD(dt_kind_stats, operations, 0, 8);
DT_FIELD(dt_kind_stats, failures, 8, 8);
DT_FIELD(dt_kind_stats, bytes, 16, 8);
DT_FIELD(dt_kind_stats, bus_bytes, 24, 8);
DT_FIELD(dt_kind_stats, busy_ns, 32, 8);
DT_FIELD(dt_kind_stats, busbw_gbs, 40, 8);

DT_SIZE(dt_peer_stats, 16);
DT_FIELD(dt_peer_stats, waits, 0, 8);
DT_FIELD(dt_peer_stats, waited_ns, 8, 8);

DT_SIZE(dt_stats, 64);
DT_FIELD(dt_stats, struct_size, 0, 4);
DT_FIELD(dt_stats, restarts, 4, 4);
DT_FIELD(dt_stats, stalls, 8, 8);
DT_FIELD(dt_stats, uncounted, 16, 8);
DT_FIELD(dt_stats, steps, 24, 8);
DT_FIELD(dt_stats, step_bytes, 32, 8);
DT_FIELD(dt_stats, communication_ns, 40, 8);
DT_FIELD(dt_stats, exposed_ns, 48, 8);
DT_FIELD(dt_stats, hidden_share, 56, 8);

DT_SIZE(dt_param, 24);
DT_FIELD(dt_param, count, 0, 8);
DT_FIELD(dt_param, name, 8, 8);
DT_FIELD(dt_param, dtype, 16, 4);
DT_FIELD(dt_param, uses, 20, 4);

DT_SIZE(dt_bucket, 56);
DT_FIELD(dt_bucket, struct_size, 0, 4);
DT_FIELD(dt_bucket, index, 4, 4);
DT_FIELD(dt_bucket, is_last, 8, 4);
DT_FIELD(dt_bucket, param_count, 12, 4);
DT_FIELD(dt_bucket, params, 16, 8);
DT_FIELD(dt_bucket, data, 24, 8);
DT_FIELD(dt_bucket, count, 32, 8);
DT_FIELD(dt_bucket, stream, 40, 8);
DT_FIELD(dt_bucket, dtype, 48, 4);
DT_FIELD(dt_bucket, reserved, 52, 4);

DT_SIZE(dt_power_sgd_options, 48);
DT_FIELD(dt_power_sgd_options, struct_size, 0, 4);
DT_FIELD(dt_power_sgd_options, rank, 4, 4);
DT_FIELD(dt_power_sgd_options, start_step, 8, 8);
DT_FIELD(dt_power_sgd_options, min_compression, 16, 8);
DT_FIELD(dt_power_sgd_options, no_error_feedback, 24, 4);
DT_FIELD(dt_power_sgd_options, cold_start, 28, 4);
DT_FIELD(dt_power_sgd_options, seed, 32, 8);
DT_FIELD(dt_power_sgd_options, wire, 40, 4);
DT_FIELD(dt_power_sgd_options, reserved, 44, 4);

DT_SIZE(dt_reducer_options, 80);
DT_FIELD(dt_reducer_options, struct_size, 0, 4);
DT_FIELD(dt_reducer_options, sum, 4, 4);
DT_FIELD(dt_reducer_options, bucket_cap_bytes, 8, 8);
DT_FIELD(dt_reducer_options, first_bucket_bytes, 16, 8);
DT_FIELD(dt_reducer_options, keep_plan, 24, 4);
DT_FIELD(dt_reducer_options, find_unused, 28, 4);
DT_FIELD(dt_reducer_options, divide_by_users, 32, 4);
DT_FIELD(dt_reducer_options, wire, 36, 4);
DT_FIELD(dt_reducer_options, predivide, 40, 8);
DT_FIELD(dt_reducer_options, order, 48, 8);
DT_FIELD(dt_reducer_options, static_graph, 56, 4);
DT_FIELD(dt_reducer_options, tune_steps, 60, 4);
DT_FIELD(dt_reducer_options, row_elements, 64, 8);
DT_FIELD(dt_reducer_options, grads, 72, 8);

DT_SIZE(dt_shard_options, 64);
DT_FIELD(dt_shard_options, struct_size, 0, 4);
DT_FIELD(dt_shard_options, stage, 4, 4);
DT_FIELD(dt_shard_options, reducer, 8, 8);
DT_FIELD(dt_shard_options, granules, 16, 8);
DT_FIELD(dt_shard_options, units, 24, 8);
DT_FIELD(dt_shard_options, prefetch, 32, 4);
DT_FIELD(dt_shard_options, shard_ranks, 36, 4);
DT_FIELD(dt_shard_options, offload, 40, 8);
DT_FIELD(dt_shard_options, dims, 48, 8);
DT_FIELD(dt_shard_options, shapes, 56, 8);
DT_SIZE(dt_adamw_options, 48);
DT_FIELD(dt_adamw_options, struct_size, 0, 4);
DT_FIELD(dt_adamw_options, skip_non_finite, 4, 4);
DT_FIELD(dt_adamw_options, beta1, 8, 8);
DT_FIELD(dt_adamw_options, beta2, 16, 8);
DT_FIELD(dt_adamw_options, epsilon, 24, 8);
DT_FIELD(dt_adamw_options, weight_decay, 32, 8);
DT_FIELD(dt_adamw_options, weight_decays, 40, 8);
DT_SIZE(dt_outer_param, 32);
DT_FIELD(dt_outer_param, data, 0, 8);
DT_FIELD(dt_outer_param, count, 8, 8);
DT_FIELD(dt_outer_param, name, 16, 8);
DT_FIELD(dt_outer_param, dtype, 24, 4);
DT_FIELD(dt_outer_param, reserved, 28, 4);
DT_SIZE(dt_outer_options, 56);
DT_FIELD(dt_outer_options, struct_size, 0, 4);
DT_FIELD(dt_outer_options, fragments, 4, 4);
DT_FIELD(dt_outer_options, sync_every, 8, 8);
DT_FIELD(dt_outer_options, delay, 16, 8);
DT_FIELD(dt_outer_options, alpha, 24, 8);
DT_FIELD(dt_outer_options, rate, 32, 8);
DT_FIELD(dt_outer_options, momentum, 40, 8);
DT_FIELD(dt_outer_options, nesterov, 48, 4);
DT_FIELD(dt_outer_options, format, 52, 4);
DT_SIZE(dt_ps_place, 24);
DT_FIELD(dt_ps_place, struct_size, 0, 4);
DT_FIELD(dt_ps_place, role, 4, 4);
DT_FIELD(dt_ps_place, index, 8, 4);
DT_FIELD(dt_ps_place, servers, 12, 4);
DT_FIELD(dt_ps_place, workers, 16, 4);
DT_FIELD(dt_ps_place, attempt, 20, 4);
DT_SIZE(dt_ps_server_options, 40);
DT_FIELD(dt_ps_server_options, struct_size, 0, 4);
DT_FIELD(dt_ps_server_options, reserved, 4, 4);
DT_FIELD(dt_ps_server_options, checkpoint, 8, 8);
DT_FIELD(dt_ps_server_options, save_every_ms, 16, 8);
DT_FIELD(dt_ps_server_options, absent_ms, 24, 8);
DT_FIELD(dt_ps_server_options, arrival_ms, 32, 8);
DT_SIZE(dt_ps_server_statistics, 56);
DT_FIELD(dt_ps_server_statistics, struct_size, 0, 4);
DT_FIELD(dt_ps_server_statistics, workers, 4, 4);
DT_FIELD(dt_ps_server_statistics, pushes, 8, 8);
DT_FIELD(dt_ps_server_statistics, pulls, 16, 8);
DT_FIELD(dt_ps_server_statistics, pushed_rows, 24, 8);
DT_FIELD(dt_ps_server_statistics, pulled_rows, 32, 8);
DT_FIELD(dt_ps_server_statistics, saves, 40, 8);
DT_FIELD(dt_ps_server_statistics, busy_ns, 48, 8);
DT_SIZE(dt_ps_options, 32);
DT_FIELD(dt_ps_options, struct_size, 0, 4);
DT_FIELD(dt_ps_options, worker, 4, 4);
DT_FIELD(dt_ps_options, connect_ms, 8, 8);
DT_FIELD(dt_ps_options, timeout_ms, 16, 8);
DT_FIELD(dt_ps_options, queue_bytes, 24, 8);
DT_SIZE(dt_ps_spec, 96);
DT_FIELD(dt_ps_spec, struct_size, 0, 4);
DT_FIELD(dt_ps_spec, columns, 4, 4);
DT_FIELD(dt_ps_spec, rows, 8, 8);
DT_FIELD(dt_ps_spec, name, 16, 8);
DT_FIELD(dt_ps_spec, optimizer, 24, 4);
DT_FIELD(dt_ps_spec, nesterov, 28, 4);
DT_FIELD(dt_ps_spec, rate, 32, 8);
DT_FIELD(dt_ps_spec, momentum, 40, 8);
DT_FIELD(dt_ps_spec, beta1, 48, 8);
DT_FIELD(dt_ps_spec, beta2, 56, 8);
DT_FIELD(dt_ps_spec, epsilon, 64, 8);
DT_FIELD(dt_ps_spec, initial_value, 72, 8);
DT_FIELD(dt_ps_spec, seed, 80, 8);
DT_FIELD(dt_ps_spec, initial, 88, 4);
DT_FIELD(dt_ps_spec, reserved, 92, 4);
DT_SIZE(dt_ps_statistics, 80);
DT_FIELD(dt_ps_statistics, struct_size, 0, 4);
DT_FIELD(dt_ps_statistics, reserved, 4, 4);
DT_FIELD(dt_ps_statistics, pushes, 8, 8);
DT_FIELD(dt_ps_statistics, pulls, 16, 8);
DT_FIELD(dt_ps_statistics, pushed_rows, 24, 8);
DT_FIELD(dt_ps_statistics, pulled_rows, 32, 8);
DT_FIELD(dt_ps_statistics, sent_bytes, 40, 8);
DT_FIELD(dt_ps_statistics, received_bytes, 48, 8);
DT_FIELD(dt_ps_statistics, reconnects, 56, 8);
DT_FIELD(dt_ps_statistics, clock, 64, 8);
DT_FIELD(dt_ps_statistics, most_ahead, 72, 8);
DT_SIZE(dt_sgd_options, 48);
DT_FIELD(dt_sgd_options, struct_size, 0, 4);
DT_FIELD(dt_sgd_options, nesterov, 4, 4);
DT_FIELD(dt_sgd_options, momentum, 8, 8);
DT_FIELD(dt_sgd_options, dampening, 16, 8);
DT_FIELD(dt_sgd_options, weight_decay, 24, 8);
DT_FIELD(dt_sgd_options, weight_decays, 32, 8);
DT_FIELD(dt_sgd_options, skip_non_finite, 40, 4);
DT_FIELD(dt_sgd_options, reserved, 44, 4);
DT_SIZE(dt_piece, 40);
DT_FIELD(dt_piece, struct_size, 0, 4);
DT_FIELD(dt_piece, reserved, 4, 4);
DT_FIELD(dt_piece, offset, 8, 8);
DT_FIELD(dt_piece, count, 16, 8);
DT_FIELD(dt_piece, param, 24, 8);
DT_FIELD(dt_piece, grad, 32, 8);

DT_SIZE(dt_named_options, 32);
DT_FIELD(dt_named_options, struct_size, 0, 4);
DT_FIELD(dt_named_options, cache, 4, 4);
DT_FIELD(dt_named_options, fuse_bytes, 8, 8);
DT_FIELD(dt_named_options, stall_ms, 16, 8);
DT_FIELD(dt_named_options, cycle_us, 24, 8);
DT_SIZE(dt_named_statistics, 64);
DT_FIELD(dt_named_statistics, struct_size, 0, 4);
DT_FIELD(dt_named_statistics, reserved, 4, 4);
DT_FIELD(dt_named_statistics, answers, 8, 8);
DT_FIELD(dt_named_statistics, tensors, 16, 8);
DT_FIELD(dt_named_statistics, operations, 24, 8);
DT_FIELD(dt_named_statistics, fused_tensors, 32, 8);
DT_FIELD(dt_named_statistics, fused_bytes, 40, 8);
DT_FIELD(dt_named_statistics, cache_hits, 48, 8);
DT_FIELD(dt_named_statistics, stalls, 56, 8);

DT_SIZE(dt_reducer_statistics, 104);
DT_FIELD(dt_reducer_statistics, struct_size, 0, 4);
DT_FIELD(dt_reducer_statistics, bucket_count, 4, 4);
DT_FIELD(dt_reducer_statistics, steps, 8, 8);
DT_FIELD(dt_reducer_statistics, bytes, 16, 8);
DT_FIELD(dt_reducer_statistics, communication_ns, 24, 8);
DT_FIELD(dt_reducer_statistics, exposed_ns, 32, 8);
DT_FIELD(dt_reducer_statistics, total_bytes, 40, 8);
DT_FIELD(dt_reducer_statistics, total_communication_ns, 48, 8);
DT_FIELD(dt_reducer_statistics, total_exposed_ns, 56, 8);
DT_FIELD(dt_reducer_statistics, hidden_share, 64, 8);
DT_FIELD(dt_reducer_statistics, rebuilt, 72, 4);
DT_FIELD(dt_reducer_statistics, tuned, 76, 4);
DT_FIELD(dt_reducer_statistics, memory_bytes, 80, 8);
DT_FIELD(dt_reducer_statistics, total_gather_ns, 88, 8);
DT_FIELD(dt_reducer_statistics, bucket_cap_bytes, 96, 8);

DT_SIZE(dt_sampler_options, 72);
DT_FIELD(dt_sampler_options, struct_size, 0, 4);
DT_FIELD(dt_sampler_options, world_size, 4, 4);
DT_FIELD(dt_sampler_options, rank, 8, 4);
DT_FIELD(dt_sampler_options, sequential, 12, 4);
DT_FIELD(dt_sampler_options, size, 16, 8);
DT_FIELD(dt_sampler_options, seed, 24, 8);
DT_FIELD(dt_sampler_options, drop_last, 32, 4);
DT_FIELD(dt_sampler_options, whole_batches, 36, 4);
DT_FIELD(dt_sampler_options, block, 40, 8);
DT_FIELD(dt_sampler_options, window, 48, 8);
DT_FIELD(dt_sampler_options, weights, 56, 8);
DT_FIELD(dt_sampler_options, draws, 64, 8);

DT_SIZE(dt_sampler_state, 40);
DT_FIELD(dt_sampler_state, struct_size, 0, 4);
DT_FIELD(dt_sampler_state, reserved, 4, 4);
DT_FIELD(dt_sampler_state, epoch, 8, 8);
DT_FIELD(dt_sampler_state, consumed, 16, 8);
DT_FIELD(dt_sampler_state, size, 24, 8);
DT_FIELD(dt_sampler_state, order, 32, 8);

DT_SIZE(dt_status, 4);
DT_VALUE(DT_OK, 0);
DT_VALUE(DT_ERR_INVALID_ARGUMENT, 1);
DT_VALUE(DT_ERR_INVALID_STATE, 2);
DT_VALUE(DT_ERR_UNSUPPORTED, 3);
DT_VALUE(DT_ERR_VERSION, 4);
DT_VALUE(DT_ERR_CONFIG, 11);
DT_VALUE(DT_ERR_OUT_OF_MEMORY, 12);
DT_VALUE(DT_ERR_SYSTEM, 13);
DT_VALUE(DT_ERR_CUDA, 14);
DT_VALUE(DT_ERR_NCCL, 15);
DT_VALUE(DT_ERR_TIMEOUT, 21);
DT_VALUE(DT_ERR_PEER_LOST, 22);
DT_VALUE(DT_ERR_MISMATCH, 23);
DT_VALUE(DT_ERR_ABORTED, 24);
DT_VALUE(DT_ERR_INTERNAL, 31);
DT_VALUE(DT_STATUS_FORCE32, 2147483647);

DT_SIZE(dt_dtype, 4);
DT_VALUE(DT_I8, 0);
DT_VALUE(DT_U8, 1);
DT_VALUE(DT_I32, 2);
DT_VALUE(DT_U32, 3);
DT_VALUE(DT_I64, 4);
DT_VALUE(DT_U64, 5);
DT_VALUE(DT_F16, 6);
DT_VALUE(DT_BF16, 7);
DT_VALUE(DT_F32, 8);
DT_VALUE(DT_F64, 9);
DT_VALUE(DT_BOOL, 10);
DT_VALUE(DT_I16, 11);
DT_VALUE(DT_U16, 12);
DT_VALUE(DT_F8E4M3, 13);
DT_VALUE(DT_F8E5M2, 14);
DT_VALUE(DT_DTYPE_FORCE32, 2147483647);

DT_SIZE(dt_wire, 4);
DT_VALUE(DT_WIRE_SAME, 0);
DT_VALUE(DT_WIRE_F16, 1);
DT_VALUE(DT_WIRE_BF16, 2);
DT_VALUE(DT_WIRE_8BIT, 3);
DT_VALUE(DT_WIRE_FORCE32, 2147483647);

DT_SIZE(dt_outer_format, 4);
DT_VALUE(DT_OUTER_F32, 0);
DT_VALUE(DT_OUTER_BF16, 1);
DT_VALUE(DT_OUTER_8BIT, 2);
DT_VALUE(DT_OUTER_4BIT, 3);
DT_VALUE(DT_OUTER_FORCE32, 2147483647);

DT_SIZE(dt_ps_role, 4);
DT_VALUE(DT_PS_WORKER, 0);
DT_VALUE(DT_PS_SERVER, 1);
DT_VALUE(DT_PS_EVALUATOR, 2);
DT_VALUE(DT_PS_ROLE_FORCE32, 2147483647);

DT_SIZE(dt_ps_optimizer, 4);
DT_VALUE(DT_PS_SGD, 0);
DT_VALUE(DT_PS_MOMENTUM, 1);
DT_VALUE(DT_PS_ADAGRAD, 2);
DT_VALUE(DT_PS_ADAM, 3);
DT_VALUE(DT_PS_OPTIMIZER_FORCE32, 2147483647);

DT_SIZE(dt_ps_initial, 4);
DT_VALUE(DT_PS_CONSTANT, 0);
DT_VALUE(DT_PS_UNIFORM, 1);
DT_VALUE(DT_PS_NORMAL, 2);
DT_VALUE(DT_PS_INITIAL_FORCE32, 2147483647);

DT_SIZE(dt_reduce_op, 4);
DT_VALUE(DT_SUM, 0);
DT_VALUE(DT_AVG, 1);
DT_VALUE(DT_PROD, 2);
DT_VALUE(DT_MIN, 3);
DT_VALUE(DT_MAX, 4);
DT_VALUE(DT_BAND, 5);
DT_VALUE(DT_BOR, 6);
DT_VALUE(DT_BXOR, 7);
DT_VALUE(DT_REDUCE_OP_FORCE32, 2147483647);

DT_SIZE(dt_log_level, 4);
DT_VALUE(DT_LOG_ERROR, 0);
DT_VALUE(DT_LOG_WARNING, 1);
DT_VALUE(DT_LOG_INFO, 2);
DT_VALUE(DT_LOG_DEBUG, 3);
DT_VALUE(DT_LOG_LEVEL_FORCE32, 2147483647);

DT_SIZE(dt_kind, 4);
DT_VALUE(DT_KIND_ALLREDUCE, 0);
DT_VALUE(DT_KIND_REDUCE, 1);
DT_VALUE(DT_KIND_BROADCAST, 2);
DT_VALUE(DT_KIND_ALLGATHER, 3);
DT_VALUE(DT_KIND_REDUCE_SCATTER, 4);
DT_VALUE(DT_KIND_BARRIER, 5);
DT_VALUE(DT_KIND_SEND, 6);
DT_VALUE(DT_KIND_RECV, 7);
DT_VALUE(DT_KIND_ALLTOALL, 8);
DT_VALUE(DT_KIND_ALLTOALLV, 9);
DT_VALUE(DT_KIND_GATHER, 10);
DT_VALUE(DT_KIND_GATHERV, 11);
DT_VALUE(DT_KIND_SCATTER, 12);
DT_VALUE(DT_KIND_SCATTERV, 13);
DT_VALUE(DT_KIND_ALLGATHERV, 14);
DT_VALUE(DT_KIND_REDUCE_SCATTERV, 15);
DT_VALUE(DT_KIND_FORCE32, 2147483647);

DT_SIZE(dt_stream, sizeof(void*));
DT_SIZE(dt_log_sink, sizeof(void (*)(void)));
DT_VALUE(DT_ABI_VERSION, 0);

/* The release moves without the ABI: it is only compared with the build's own. */
int main(void) {
  const char* composed =
      DT_TEXT(DT_VERSION_MAJOR) "." DT_TEXT(DT_VERSION_MINOR) "." DT_TEXT(DT_VERSION_PATCH);
  if (strcmp(DT_VERSION, composed) != 0 || strcmp(DT_VERSION, DT_PROJECT_VERSION) != 0) {
    fprintf(stderr, "version.h says \"%s\" and %s, meson.build says %s: make them equal\n",
            DT_VERSION, composed, DT_PROJECT_VERSION);
    return 1;
  }
  return 0;
}
