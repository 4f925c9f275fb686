/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DT_DT_H
#define DT_DT_H
/**
 * @file
 * dt: distributed training for programs that are linked, not scripted.
 *
 * Conventions, said once:
 *
 *  1. Status. Every function that can fail returns dt_status; 0 is success and every other value is
 *     an error ("not done yet" is an output, never a status). A call that fails did nothing: no
 *     handle was made, nothing was enqueued, outputs are untouched.
 *  2. Errors. dt_last_error() is the calling thread's message: what, where, why, what to do next.
 *     dt_last_error_info() is the same as data. A failed work has its own: dt_work_error_info().
 *  3. Handles are numbers in the shape of pointers, looked up in a table: a closed, foreign, racing
 *     or NULL handle is DT_ERR_INVALID_ARGUMENT, never a crash. A handle keeps alive what it needs,
 *     so any order of destruction is safe. Destroying NULL is allowed.
 *  4. Ownership. *Borrows*: dt reads the memory during the call, or where said until completion.
 *     *Gives*: the caller must destroy the handle. Strings in are UTF-8 and copied; strings out are
 *     valid as long as the comment says.
 *  5. Threads. Each function has a @thread line. Calls on one communicator are serialised inside,
 *     but their order must match on all ranks: issue them from one thread per communicator. Two
 *     threads in functions of a reducer or sampler that say "one at a time": the later one gets
 *     DT_ERR_INVALID_STATE. pthread_cancel() of a thread inside a call takes effect after it;
 *     dt_abort() ends a call that blocks. Threads of PTHREAD_CANCEL_ASYNCHRONOUS must not call dt.
 *  6. Time. timeout_ms < 0 waits as long as the operation's own limits allow, 0 only looks.
 *  7. Growth. A struct whose first field is struct_size may grow at its end; zero means "default".
 *     Fill it with its *_init() function. Structs without struct_size are frozen.
 *  8. Counts are elements, never bytes; what is in bytes says so in its name.
 *  9. fork(): a forked child must not use dt; its handles are refused with DT_ERR_INVALID_STATE.
 *  10. dt installs no signal handler, never exits, never writes to stdout, and writes to stderr
 *      only through the log sink.
 */

#include <stdint.h>
#include <string.h>

#include "dt/version.h"

#if defined(__GNUC__)
/** Marks what libdt exports. */
#define DT_API __attribute__((visibility("default")))
#else
#define DT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status -------------------------------------------------------------------------------- */

/**
 * What a failed call asks of the program.
 *
 * | group | codes |
 * | --- | --- |
 * | fix the call | INVALID_ARGUMENT, INVALID_STATE, UNSUPPORTED, VERSION |
 * | fix the machine | CONFIG, OUT_OF_MEMORY, SYSTEM, CUDA, NCCL |
 * | go on with dt_comm_shrink(), or start again | TIMEOUT, PEER_LOST, MISMATCH, ABORTED |
 * | report a bug | INTERNAL |
 *
 * After an error of the third group from an operation its communicator is broken for good: later
 * calls return that first error. Until dt_comm_shrink() has returned, other ranks of the host may
 * still read and write the buffers of an operation that failed, where these lie in memory of
 * dt_mem_alloc(), of a reducer or of a shard: leave them as they are. Unknown future values are
 * legal; treat them by dt_status_name().
 */
typedef enum dt_status {
  DT_OK = 0,
  DT_ERR_INVALID_ARGUMENT = 1,
  DT_ERR_INVALID_STATE = 2,
  DT_ERR_UNSUPPORTED = 3,
  DT_ERR_VERSION = 4,
  DT_ERR_CONFIG = 11,
  DT_ERR_OUT_OF_MEMORY = 12,
  DT_ERR_SYSTEM = 13,
  DT_ERR_CUDA = 14,
  DT_ERR_NCCL = 15,
  DT_ERR_TIMEOUT = 21,
  DT_ERR_PEER_LOST = 22,
  DT_ERR_MISMATCH = 23,
  DT_ERR_ABORTED = 24,
  DT_ERR_INTERNAL = 31,
  DT_STATUS_FORCE32 = 0x7fffffff
} dt_status;

/** An error as data. */
typedef struct dt_error_info {
  uint32_t struct_size; /**< set by the *_init() function */
  dt_status status;     /**< DT_OK: no error */
  int32_t rank;         /**< world rank behind the failure, -1 unknown */
  int32_t reserved;     /**< zero */
  int64_t pid;          /**< that rank's process, 0 unknown */
  int64_t sequence;     /**< of the operation on its communicator, -1 none */
  char host[256];       /**< that rank's host, empty unknown */
  char operation[64];   /**< "allreduce", empty none */
  char message[2048];   /**< what dt_last_error() says, cut at the end if longer */
} dt_error_info;

/** Sets struct_size and zeroes the rest. @param info may not be NULL. @thread any */
static inline void dt_error_info_init(dt_error_info* info) {
  memset(info, 0, sizeof *info);
  info->struct_size = (uint32_t)sizeof *info;
}

/**
 * Name of a status: "DT_ERR_PEER_LOST"; "DT_ERR_UNKNOWN" for values this library does not know.
 * @param status any value.
 * @return static text.
 * @thread any
 * @since ABI 0
 */
DT_API const char* dt_status_name(dt_status status);

/**
 * Message of the last failed call on the calling thread.
 * @return text owned by the thread, valid until its next failed dt call; empty before the first.
 * @thread any
 * @since ABI 0
 */
DT_API const char* dt_last_error(void);

/**
 * The last failed call on the calling thread, as data.
 * @param out_info initialised by dt_error_info_init().
 * @return DT_OK, or DT_ERR_INVALID_ARGUMENT for NULL or a struct_size that is no dt_error_info's;
 *         status is DT_OK inside when no call failed yet.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_last_error_info(dt_error_info* out_info);

/* ---- Version ------------------------------------------------------------------------------- */

/**
 * The ABI this library implements; compare with DT_ABI_VERSION of the header.
 * @return DT_ABI_VERSION of the library's own build.
 * @thread any
 * @since ABI 0
 */
DT_API int32_t dt_abi_version(void);

/**
 * Release of the library: "0.1.0".
 * @return static text.
 * @thread any
 * @since ABI 0
 */
DT_API const char* dt_version(void);

/**
 * How the library was built: one "name: value" line each for compiler, backends, instruction sets,
 * libraries.
 * @return static text.
 * @thread any
 * @since ABI 0
 */
DT_API const char* dt_build_info(void);

/* ---- Handles ------------------------------------------------------------------------------- */

/** Settings of a job before it starts. @thread any */
typedef struct dt_config dt_config;
/** This process's (or thread's) membership in a distributed run. @thread any */
typedef struct dt_job dt_job;
/** An ordered set of ranks that runs collectives. @thread any; see convention 5 */
typedef struct dt_comm dt_comm;
/** One asynchronous operation. @thread any */
typedef struct dt_work dt_work;
/** Gradients reduced in buckets while the backward pass runs. @thread see dt_reducer_ready() */
typedef struct dt_reducer dt_reducer;
/** Parameters of which each rank updates its own pieces. @thread as its reducer */
typedef struct dt_shard dt_shard;
/** Updates this rank's pieces of a shard. @thread as the shard's reducer */
typedef struct dt_optimizer dt_optimizer;
/** Operations that ranks submit by name, each in its own order. @thread any */
typedef struct dt_named dt_named;
/** Brings ranks that train by themselves together now and then. @thread one at a time */
typedef struct dt_outer dt_outer;
/** A worker's connection to the parameter servers of its job. @thread any */
typedef struct dt_ps dt_ps;
/** A parameter server that this process is. @thread any */
typedef struct dt_ps_server dt_ps_server;
/** Which samples of a data set this rank sees, in which order. @thread one at a time */
typedef struct dt_sampler dt_sampler;
/** A store served by this process for others. @thread any */
typedef struct dt_store_server dt_store_server;

/** A CUDA stream; ignored by a host communicator. NULL is CUDA's default stream, not "host". */
typedef void* dt_stream;

/** Element types. */
typedef enum dt_dtype {
  DT_I8 = 0,
  DT_U8 = 1,
  DT_I32 = 2,
  DT_U32 = 3,
  DT_I64 = 4,
  DT_U64 = 5,
  DT_F16 = 6,  /**< IEEE binary16 */
  DT_BF16 = 7, /**< upper half of a binary32 */
  DT_F32 = 8,
  DT_F64 = 9,
  DT_BOOL = 10, /**< one byte, 0 or 1; has no average */
  DT_I16 = 11,
  DT_U16 = 12,
  DT_F8E4M3 = 13, /**< 8-bit floats, of any variant: only moved, never reduced */
  DT_F8E5M2 = 14,
  DT_DTYPE_FORCE32 = 0x7fffffff
} dt_dtype;

/**
 * Size of an element.
 * @param dtype any value.
 * @return bytes; 0 for a value that is no dtype.
 * @thread any
 */
static inline int64_t dt_dtype_bytes(dt_dtype dtype) {
  switch (dtype) {
    case DT_I8:
    case DT_U8:
    case DT_BOOL:
    case DT_F8E4M3:
    case DT_F8E5M2: return 1;
    case DT_F16:
    case DT_BF16:
    case DT_I16:
    case DT_U16: return 2;
    case DT_I32:
    case DT_U32:
    case DT_F32: return 4;
    case DT_I64:
    case DT_U64:
    case DT_F64: return 8;
    default: return 0;
  }
}

/**
 * Reductions. On one host each element is combined in rank order; over several hosts first over the
 * ranks of each host, then over the hosts, in an order that follows from the number of elements and
 * the place of the element (network.algorithm). So every rank gets the same bits, whatever the
 * timing; other placements of the ranks may round differently. f16 and bf16 accumulate in f32 and
 * are rounded at the end and each time a host passes a sum on to another one: once, or as often as
 * the number of hosts can be halved. NCCL rounds each sum of two f16 or bf16 to their type, unless
 * NVLink's switches add them (NVLS). Integers wrap. NaN propagates through min and max. Of bool sum
 * and max are "or", prod and min are "and". NCCL has neither i16 and u16 nor bits of integers: over
 * GPUs their reduction is DT_ERR_UNSUPPORTED.
 */
typedef enum dt_reduce_op {
  DT_SUM = 0,
  DT_AVG = 1, /**< 1/N of each value, then the sum; of integers the sum / N, truncated */
  DT_PROD = 2,
  DT_MIN = 3,
  DT_MAX = 4,
  DT_BAND = 5, /**< bitwise and, for integers and bool */
  DT_BOR = 6,  /**< bitwise or */
  DT_BXOR = 7, /**< bitwise exclusive or */
  DT_REDUCE_OP_FORCE32 = 0x7fffffff
} dt_reduce_op;

/** Operations of a communicator. */
typedef enum dt_kind {
  DT_KIND_ALLREDUCE = 0,
  DT_KIND_REDUCE = 1,
  DT_KIND_BROADCAST = 2,
  DT_KIND_ALLGATHER = 3,
  DT_KIND_REDUCE_SCATTER = 4,
  DT_KIND_BARRIER = 5,
  DT_KIND_SEND = 6,
  DT_KIND_RECV = 7,
  DT_KIND_ALLTOALL = 8,
  DT_KIND_ALLTOALLV = 9,
  DT_KIND_GATHER = 10,
  DT_KIND_GATHERV = 11,
  DT_KIND_SCATTER = 12,
  DT_KIND_SCATTERV = 13,
  DT_KIND_ALLGATHERV = 14,
  DT_KIND_REDUCE_SCATTERV = 15, /**< counted and traced as the reduces that it is made of */
  DT_KIND_FORCE32 = 0x7fffffff
} dt_kind;

/** Severity of a log message. */
typedef enum dt_log_level {
  DT_LOG_ERROR = 0,
  DT_LOG_WARNING = 1,
  DT_LOG_INFO = 2,
  DT_LOG_DEBUG = 3,
  DT_LOG_LEVEL_FORCE32 = 0x7fffffff
} dt_log_level;

/**
 * Receives log messages.
 * @param user_data what was given with the sink.
 * @param level     severity.
 * @param message   one line without a newline, valid during the call.
 * @thread any, also dt's own; must not call dt and must not throw.
 */
typedef void (*dt_log_sink)(void* user_data, dt_log_level level, const char* message);

/* ---- Config -------------------------------------------------------------------------------- */

/**
 * Reads all sources of configuration once: environment, dt.toml files, defaults. docs/config.md
 * lists the keys; precedence: dt_config_set, DT_* environment, ./dt.toml (or the file DT_CONFIG
 * names), ~/.config/dt/dt.toml, /etc/dt/dt.toml, what the launcher says, default.
 * @param path       a file to read instead of ./dt.toml, or NULL.
 * @param out_config gives the handle; dt_config_destroy().
 * @return DT_OK; DT_ERR_CONFIG with file, line, column and the nearest known key.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_config_create(const char* path, dt_config** out_config);

/**
 * Sets one key; this wins over every other source.
 * @param config the handle.
 * @param key    as in docs/config.md: "reducer.bucket_cap_bytes".
 * @param value  as it would be written in an environment variable: "26214400", "true", "debug".
 * @return DT_OK; DT_ERR_CONFIG: unknown key, wrong type, out of range; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_config_set(dt_config* config, const char* key, const char* value);

/**
 * Reads one key's merged value as text.
 * @param config         the handle.
 * @param key            as in docs/config.md.
 * @param buffer         receives the text with its final NUL, cut to capacity_bytes; may be NULL if
 *                       0.
 * @param capacity_bytes of buffer, >= 0.
 * @param out_bytes      length of the whole text with its final NUL; more than capacity_bytes: cut.
 * @return DT_OK; DT_ERR_CONFIG: unknown key; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_config_get(const dt_config* config, const char* key, char* buffer,
                               int64_t capacity_bytes, int64_t* out_bytes);

/**
 * Every key with its value and the source it came from, as JSON: {key: {"value":, "source":}}.
 * @param config         the handle.
 * @param buffer         as in dt_config_get().
 * @param capacity_bytes as in dt_config_get().
 * @param out_bytes      as in dt_config_get().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_config_dump(const dt_config* config, char* buffer, int64_t capacity_bytes,
                                int64_t* out_bytes);

/**
 * Sends the log messages of what is made from this config (jobs, stores, parameter servers and
 * connections to them) to `sink` instead of stderr, also those of a call that then fails.
 * @param config    the handle.
 * @param sink      NULL: stderr again.
 * @param user_data passed to the sink; borrowed until all of them are destroyed.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_config_set_log_sink(dt_config* config, dt_log_sink sink, void* user_data);

/** Drops the handle; jobs made from it are unaffected. @param config may be NULL. @thread any
 * @since ABI 0 */
DT_API void dt_config_destroy(dt_config* config);

/* ---- Job ----------------------------------------------------------------------------------- */

/** Where a rank stands. */
typedef struct dt_place {
  uint32_t struct_size;  /**< set by the *_init() function */
  int32_t rank;          /**< in [0, world_size) */
  int32_t world_size;    /**< number of ranks */
  int32_t local_rank;    /**< in [0, local_size): index on this host */
  int32_t local_size;    /**< ranks on this host */
  int32_t node_rank;     /**< in [0, node_count) */
  int32_t node_count;    /**< hosts of the job */
  int32_t attempt;       /**< how often the job was started before */
  int32_t master_port;   /**< where the store is served; 0 at world size 1 */
  char master_addr[256]; /**< likewise; empty at world size 1 */
  char job_id[272];      /**< equal on all ranks */
  char host[256];        /**< this host's name */
  /** who started the process: "dt run", "config", "env", "torchrun", "horovod", "jsrun", "pals",
      "flux", "mvapich2", "openmpi", "hydra", "slurm", "lightning", "vertex", "tf_config",
      "sagemaker", "aws-batch", "k8s-indexed", "single" */
  char launcher[32];
} dt_place;

/** Sets struct_size and zeroes the rest. @param place may not be NULL. @thread any */
static inline void dt_place_init(dt_place* place) {
  memset(place, 0, sizeof *place);
  place->struct_size = (uint32_t)sizeof *place;
}

/**
 * Joins the job that started this process and makes the world communicator.
 *
 * Collective: every rank of the job calls it. Returns when all ranks are there. A process that
 * nobody launched becomes rank 0 of 1 and opens no socket. Several jobs can live in one process,
 * and threads can be ranks: give each its own config with job.rank, job.world_size,
 * job.master_addr, job.master_port (see dt_store_serve()). Under `dt run` and with dt_store_serve()
 * the same ranks can make one job after the other: the next dt_init() waits until all ranks have
 * left the job before by dt_finalize(), and finds none of its keys. After a death or dt_abort() it
 * is DT_ERR_CONFIG at once.
 * @param config  borrowed during the call; NULL: dt_config_create(NULL).
 * @param out_job gives the handle; dt_finalize(), then dt_job_destroy().
 * @return DT_OK; DT_ERR_CONFIG: bad settings, or refused with both sides named (foreign job, stale
 *         attempt, duplicate rank, other world size); DT_ERR_TIMEOUT: names the ranks that are
 *         missing after rendezvous.timeout_ms; DT_ERR_PEER_LOST; DT_ERR_SYSTEM;
 *         DT_ERR_OUT_OF_MEMORY.
 * @thread any
 * @cost one round trip to the store and one hand-over per local rank.
 * @since ABI 0
 */
DT_API dt_status dt_init(const dt_config* config, dt_job** out_job);

/**
 * Where this rank stands.
 * @param job       the handle.
 * @param out_place initialised by dt_place_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_rank_info(dt_job* job, dt_place* out_place);

/**
 * Fails the job on every rank with DT_ERR_ABORTED and this message, naming this rank. Blocked calls
 * of all ranks return. Returns at once. Of several calls the first one's message counts.
 * @param job     the handle.
 * @param message why; may be NULL.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any, any time
 * @since ABI 0
 */
DT_API dt_status dt_abort(dt_job* job, const char* message);

/**
 * This rank will be away on purpose, as for a checkpoint or an evaluation: until dt_busy_end(), at
 * most for `max_ms`, the others wait for it instead of timing out, its silence is no death, and the
 * report of a stall says what it is busy with. After that operations have their whole time-out
 * again. Replaces an earlier one of this rank.
 * @param job    the handle.
 * @param what   for texts: "checkpoint"; may be NULL.
 * @param max_ms how long at most; > 0.
 * @return DT_OK when the store knows; DT_ERR_INVALID_ARGUMENT; what broke the job; DT_ERR_TIMEOUT
 *         when the store does not answer.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_busy_begin(dt_job* job, const char* what, int64_t max_ms);

/**
 * This rank is back. Without a dt_busy_begin() before it does nothing.
 * @param job the handle.
 * @return as dt_busy_begin().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_busy_end(dt_job* job);

/**
 * A vote of all ranks, as whether a step is kept: true where every rank says so. Over host memory,
 * also where the communicators are on GPUs. Cost: one small allreduce.
 * @param job       the handle.
 * @param agreed    this rank's vote: 0 no, other values yes.
 * @param out_agreed 1 when all said yes, else 0; the same on all ranks.
 * @return DT_OK; else as dt_allreduce() on the communicator of all ranks.
 * @thread any, in the same order on all ranks as other operations of the communicator of all ranks
 * @since ABI 0
 */
DT_API dt_status dt_agree(dt_job* job, int32_t agreed, int32_t* out_agreed);

/**
 * Asks all ranks to stop: their dt_stop_requested() says so from the next call on. Safe in a signal
 * handler: it takes no lock, allocates nothing, leaves errno and dt_last_error() alone.
 * @param job the handle.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any, also in a signal handler
 * @since ABI 0
 */
DT_API dt_status dt_request_stop(dt_job* job);

/**
 * Whether to stop, in the same step on all ranks: 1 when any rank called dt_request_stop(), or
 * `dt run` was told to stop (SIGTERM, as before a pre-emption), before the ranks met in this call.
 * A program that calls it between its steps has run.stop_grace_ms from that signal on to save
 * its state and end; without any call the signal goes to the ranks at once. Cost: one small
 * allreduce over host memory; the first call also reports to dt run, which takes 5 s at most.
 * @param job      the handle.
 * @param out_stop 1 or 0; the same on all ranks.
 * @return DT_OK; else as dt_allreduce() on the communicator of all ranks.
 * @thread any, in the same order on all ranks as other operations of the communicator of all ranks
 * @since ABI 0
 */
DT_API dt_status dt_stop_requested(dt_job* job, int32_t* out_stop);

/**
 * Writes the last operations of this rank into a file for the command `dt trace report`, replaced
 * as a whole: rank-00003.dttrace for rank 3, rank-00003.attempt-2.dttrace when the job was started
 * again twice. A failure writes it without a call where trace.dir is set.
 * @param job       the handle, also of a job that failed or was finalized.
 * @param directory where, made if it is not there; NULL: trace.dir.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT without a directory; DT_ERR_INVALID_STATE when
 *         record.entries is 0; DT_ERR_SYSTEM naming the file that cannot be written.
 * @thread any, any time; operations go on
 * @cost about a millisecond and 400 KiB for 4096 operations; blocks on the file system.
 * @since ABI 0
 */
DT_API dt_status dt_trace_dump(dt_job* job, const char* directory);

/** What this rank did in operations of one kind, on all communicators. */
typedef struct dt_kind_stats {
  int64_t operations; /**< that have ended, failures among them */
  int64_t failures;   /**< of these */
  int64_t bytes;      /**< of the larger of an operation's two buffers; of failures 0 */
  int64_t bus_bytes;  /**< the same times 2(N-1)/N for allreduce, 1 for broadcast, reduce, send and
                           recv, (N-1)/N for the others: what crosses the slowest link at least */
  int64_t busy_ns;    /**< summed from the start of each operation to its end, waits for other ranks
                           included. On GPUs from when it is enqueued there to when dt finds its end
                           passed */
  double busbw_gbs;   /**< bus_bytes / busy_ns: GB/s (1e9 bytes), as nccl-tests say it; 0 without */
} dt_kind_stats;

/** How long calls of this rank were held up by another one. */
typedef struct dt_peer_stats {
  int64_t waits;     /**< how often */
  int64_t waited_ns; /**< how long */
} dt_peer_stats;

/** What this rank did in a job so far. */
typedef struct dt_stats {
  uint32_t struct_size;     /**< set by the *_init() function */
  int32_t restarts;         /**< how often the job was started before */
  int64_t stalls;           /**< operations that took watchdog.stall_warn_ms or longer */
  int64_t uncounted;        /**< operations that the flight recorder had no room for */
  int64_t steps;            /**< of all reducers; as in dt_reducer_statistics, like the next four */
  int64_t step_bytes;       /**< gradient bytes */
  int64_t communication_ns; /**< at least one bucket was under way */
  int64_t exposed_ns;       /**< of that, the callers waited */
  double hidden_share;      /**< 1 - exposed / communication, in [0, 1] */
} dt_stats;

/** Sets struct_size and zeroes the rest. @param stats may not be NULL. @thread any */
static inline void dt_stats_init(dt_stats* stats) {
  memset(stats, 0, sizeof *stats);
  stats->struct_size = (uint32_t)sizeof *stats;
}

/**
 * What this rank did in the job so far, on all its communicators and in all its reducers.
 *
 * Counted are all operations, also those that dt runs itself (dt_agree(), making a reducer), from
 * the flight recorder: with record.entries = 0 steps and dt_job_kind_stats() stay zero. Calls on a
 * communicator that is broken already are not counted. Numbers of one operation may come into view
 * one after the other.
 * @param job       the handle, also of a job that failed or was finalized.
 * @param out_stats initialised by dt_stats_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any, any time; operations go on
 * @cost microseconds. Operations pay a few nanoseconds each for being counted.
 * @since ABI 0
 */
DT_API dt_status dt_job_stats(dt_job* job, dt_stats* out_stats);

/**
 * What this rank did in operations of one kind, on all its communicators; see dt_job_stats().
 * @param job      the handle, also of a job that failed or was finalized.
 * @param kind     which.
 * @param out_kind of that kind.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any, any time; operations go on
 * @cost microseconds
 * @since ABI 0
 */
DT_API dt_status dt_job_kind_stats(dt_job* job, dt_kind kind, dt_kind_stats* out_kind);

/**
 * How long this rank was held up by another one: blocking calls, dt_work_wait() and
 * dt_reducer_finish() in host memory that went to sleep, from when they began to poll. What ends
 * while they still poll (host.spin_us) is not counted, nor is what a GPU waits.
 *
 * Time for which several ranks were awaited counts for each of them. Between hosts a rank waits for
 * the one that it exchanges with, which may wait for another of its host; there waits of 20 ms or
 * longer are counted.
 * @param job      the handle, also of a job that failed or was finalized.
 * @param rank     world rank, in [0, world_size).
 * @param out_peer of that rank; zero of the caller's own.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any, any time; operations go on
 * @since ABI 0
 */
DT_API dt_status dt_job_peer_stats(dt_job* job, int32_t rank, dt_peer_stats* out_peer);

/**
 * Leaves the job together: returns when every rank has called it, so that nobody mistakes an end
 * for a death. What this rank has begun ends first, unless the job failed, or all ranks are here
 * and it does not move for five seconds. An operation of another rank that needs this one
 * afterwards fails at once with DT_ERR_PEER_LOST, "rank 1 (...) has left the job with dt_finalize";
 * over NCCL a collective within two of heartbeat.interval_ms, and not at all where that or
 * watchdog.check is off, a send or receive when it has kept the GPU waiting for three seconds,
 * unless it was launched together with others (dt_group_begin(), or one behind the other) that need
 * ranks which are still there. Later calls on the job and its communicators return
 * DT_ERR_INVALID_STATE. Idempotent.
 * @param job        the handle.
 * @param timeout_ms how long to wait for the others; < 0: job.finalize_timeout_ms.
 * @return DT_OK; DT_ERR_TIMEOUT naming who is still there, or the communicator on which operations
 *         of this rank did not end; DT_ERR_PEER_LOST or DT_ERR_ABORTED when the job failed. The job
 *         has ended in every case.
 * @thread any, once no other call on the job is in flight
 * @since ABI 0
 */
DT_API dt_status dt_finalize(dt_job* job, int64_t timeout_ms);

/** Drops the handle. Without dt_finalize() the other ranks hear of a death once the job's other
 * handles (communicators, works, reducers) are gone, too. Never waits for peers.
 * @param job may be NULL. @thread any @since ABI 0 */
DT_API void dt_job_destroy(dt_job* job);

/* ---- Communicators ------------------------------------------------------------------------- */

/**
 * The communicator of all ranks. Every call gives a new handle of the same communicator.
 * @param job      the handle.
 * @param out_comm gives the handle; dt_comm_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_INVALID_STATE after dt_finalize().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_comm_world(dt_job* job, dt_comm** out_comm);

/**
 * Ranks with equal color >= 0 form a new communicator, ordered by (key, rank).
 *
 * Collective over `comm`.
 * @param comm     the parent.
 * @param color    negative: this rank is in none.
 * @param key      order inside the new communicator.
 * @param out_comm gives the handle, or NULL where color is negative.
 * @return DT_OK; any communicator error.
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_comm_split(dt_comm* comm, int32_t color, int32_t key, dt_comm** out_comm);

/**
 * A communicator of some ranks, which they make by themselves: the other ranks are not asked and
 * may do anything meanwhile. Where all ranks of a communicator take part, dt_comm_split() is
 * quicker.
 *
 * Collective over those ranks, which meet at the store. Ranks that make several communicators make
 * them in the same order; communicators of the same ranks and name do not mix.
 * @param job      the handle.
 * @param ranks    world ranks, each once, equal on all of them: their order is that of the new
 *                 communicator; this rank is among them; borrowed during the call.
 * @param count    of ranks, >= 1.
 * @param name     in messages and traces, equal on all of them, at most 64 bytes; NULL: "comm".
 * @param out_comm gives the handle; dt_comm_destroy().
 * @return DT_OK; DT_ERR_TIMEOUT: names the ranks that did not come within collective.timeout_ms,
 *         or where that is 0 rendezvous.timeout_ms; DT_ERR_PEER_LOST: one of them is gone;
 *         DT_ERR_OUT_OF_MEMORY; DT_ERR_INVALID_STATE: another thread of this job makes a
 *         communicator at the moment, or after dt_finalize(); DT_ERR_INVALID_ARGUMENT.
 * @thread any; one call at a time in a job
 * @cost two exchanges with the store.
 * @since ABI 0
 */
DT_API dt_status dt_comm_create(dt_job* job, const int32_t* ranks, int32_t count, const char* name,
                                dt_comm** out_comm);

/**
 * The same ranks over host memory: in a job on GPUs for what lies there, as scalars, votes and
 * checkpoints. If `comm` is a host communicator, this gives another handle of it.
 *
 * No other rank is needed. Over GPUs it breaks together with `comm`, but has an order of its own:
 * the same on all ranks for all that is called on it and for dt_agree() and dt_comm_split() of
 * `comm`.
 * @param comm     the communicator.
 * @param out_host gives the handle; dt_comm_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_comm_host(dt_comm* comm, dt_comm** out_host);

/**
 * The ranks of `comm` that are left after a failure, as a communicator of their own, in the same
 * order: so a job outlives its ranks. `comm` stays broken; what is not broken can be shrunk, too,
 * and then gives a communicator of the same ranks, as it does after a time-out.
 *
 * Collective over the ranks that live: each of them calls it, also one whose operation ended well.
 * They agree through the store; who dies meanwhile is left out. A rank that lives and does not call
 * it is the error of all, DT_ERR_TIMEOUT naming it, at the communicator's time-out
 * (dt_comm_set_timeout(), else collective.timeout_ms; where that is 0, rendezvous.timeout_ms).
 * Other threads should have no operation on `comm`, and must have none on dt_mem_alloc()'s memory.
 *
 * When it returns, no rank writes any more into the buffers of operations on `comm` that failed.
 * The new communicator has memory and connections of its own, which a rank that was declared lost
 * and wakes up cannot reach; all its calls end with DT_ERR_ABORTED. Memory from dt_mem_alloc() and
 * of reducers of `comm` stays where it is, with its contents, and may be used on the new
 * communicator as ordinary memory; where a lost rank of this host has not ended, it is first copied
 * out of that one's reach.
 *
 * Once the world communicator is shrunk, dt_comm_world(), dt_agree() and dt_stop_requested() mean
 * the smaller one, and the store's functions and dt_finalize() no longer fail because of those that
 * are gone; ranks and world size of dt_rank_info() stay. Communicators that were split from `comm`
 * stay as they are. Works, reducers and groups belong to the communicator that they were made on.
 *
 * Needs the store: where a rank serves it and dies, the others get DT_ERR_PEER_LOST here. Under
 * dt run (--on-failure continue) its process serves it, and any rank may die, rank 0 too.
 * @param comm        the communicator, broken or not.
 * @param out_smaller gives the handle; dt_comm_destroy().
 * @return DT_OK; DT_ERR_TIMEOUT; DT_ERR_PEER_LOST without the store; DT_ERR_ABORTED after
 *         dt_abort(), or if this rank was declared lost; DT_ERR_INVALID_STATE inside a group, in a
 *         second thread, and after dt_finalize(). It can be called again after an error.
 * @thread any; one call at a time in a job
 * @cost two exchanges with the store, and new memory.
 * @since ABI 0
 */
DT_API dt_status dt_comm_shrink(dt_comm* comm, dt_comm** out_smaller);

/** This rank's index in the communicator. @param comm the handle. @param out_rank in [0, size).
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_comm_rank(dt_comm* comm, int32_t* out_rank);

/** Number of ranks in the communicator. @param comm the handle. @param out_size ranks.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_comm_size(dt_comm* comm, int32_t* out_size);

/**
 * World rank of a rank of this communicator.
 * @param comm           the handle.
 * @param rank           in [0, size).
 * @param out_world_rank in [0, world_size).
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_comm_world_rank(dt_comm* comm, int32_t rank, int32_t* out_world_rank);

/**
 * Limit of each later operation on this communicator; when it passes, the operation fails with
 * DT_ERR_TIMEOUT naming the ranks that did not arrive. Ranks may differ.
 * @param comm       the handle.
 * @param timeout_ms 0: no limit; < 0: collective.timeout_ms again.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_comm_set_timeout(dt_comm* comm, int64_t timeout_ms);

/**
 * Whether the communicator is whole. Call it before keeping a result that was only ordered on a
 * stream.
 * @param comm the handle.
 * @return DT_OK, or the error that broke it, within a few seconds, as dt_work_test() does.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_comm_check(dt_comm* comm);

/** Drops the handle; works in flight go on. Never waits for peers: those that go on using the
 * communicator get ABORTED with this rank's name when they meet it, on the same host TIMEOUT at
 * their deadline, over NCCL that or PEER_LOST. @param comm may be NULL. @thread any @since ABI 0 */
DT_API void dt_comm_destroy(dt_comm* comm);

/* ---- Collectives --------------------------------------------------------------------------- */
/*
 * With backend.name = "nccl" the communicators of a job are over GPU memory. Then, for all of
 * these:
 * - Buffers are memory of the rank's GPU, aligned to their element. `stream` produces `send` and
 * uses `recv`; a stream that records a CUDA graph is refused with INVALID_ARGUMENT.
 * - Without a work handle a call returns when the operation is enqueued, and later work of `stream`
 *   waits for it; with one, dt_work_wait_stream() orders any stream behind it. Neither waits for
 * the GPU, but where ranks share one and are staged through the host. Results of an operation that
 * fails afterwards are undefined: dt_comm_check() before one is kept.
 * - The communicator fails at the operation's deadline where a rank does not come. Counts, dtypes
 *   and ops are compared beforehand with watchdog.check = strict only. With lazy, the default, they
 *   are with each heartbeat, so ranks that disagree may get wrong results before DT_ERR_MISMATCH;
 *   with off, wrong results or a time-out.
 * - DT_AVG of dt_reduce() and dt_reduce_scatter(), and of integers, divides after the sum.
 * - A send may hold up what follows it until it is received: ranks that send to each other do so
 * inside a group, as dt_group_begin() says, or one receives first.
 * - dt_finalize() waits for what the GPU has under way; what dt_comm_destroy() leaves goes on until
 *   its deadline.
 * - Operations are launched in the order of the calls, also those of different communicators: all
 * ranks use their communicators in one order. With one rank the result is a copy.
 * - A work that failed is done when the GPU no longer uses its buffers, or a few seconds after the
 *   communicator broke, where the GPU does not come to an end.
 */

/**
 * Begins a group: the operations called on this communicator until dt_group_end(), by any thread,
 * are carried out as one, so that a send and a receive in it wait for each other's peers and not
 * for one another. Operations called without a work handle return at once; dt_group_end() waits for
 * them as they would have done, or gives one work for the whole group. Do not wait for the work of
 * an operation before dt_group_end().
 *
 * Sends and receives of a group stand side by side, with its collectives before or behind them.
 * Over host memory sends and receives do not hold each other up anyway: there a group is no harm.
 * @param comm the communicator.
 * @return DT_OK; DT_ERR_INVALID_STATE inside a group of this communicator, as from dt_comm_split()
 *         and the functions of a reducer; the error that broke it.
 * @thread any
 * @cost of NCCL one launch for the whole group.
 * @since ABI 0
 */
DT_API dt_status dt_group_begin(dt_comm* comm);

/**
 * Ends the group and carries it out.
 *
 * Its collectives are in the same order on all ranks.
 * @param comm     the communicator.
 * @param out_work NULL: waits for the operations that were called without a work handle. Otherwise
 *                 it does not wait, and gives one handle, dt_work_destroy(). That work is done when
 *                 all operations of the group are, also those with a handle of their own; until
 *                 then they borrow their buffers. Its error is that of the first operation, in the
 *                 order of the calls, that failed. Of a group without operations it is done at
 *                 once. On a GPU no stream waits for an operation without a handle, unless
 *                 dt_work_wait_stream() makes it wait for this work. dt_work_fd() counts the
 *                 operations, not this work.
 * @return DT_OK; DT_ERR_INVALID_STATE outside a group; the error that broke the communicator; with
 *         NULL the first error of an operation without a work handle. A failed call gives no work;
 *         if the communicator broke, the operations of the group have failed, too.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_group_end(dt_comm* comm, dt_work** out_work);

/**
 * Combines elements of the caller's: inout[i] = inout[i] op in[i].
 *
 * The operation is associative and commutative; on one host elements come in rank order. Pointers
 * are multiples of 8 if the buffers of all ranks are, and if element_bytes is.
 * @param user_data dt_collective.combine_data.
 * @param in        elements of another rank.
 * @param inout     what was combined so far.
 * @param count     of elements, >= 1; any part of those of the call.
 * @thread any that calls dt, or one of dt's own; of several operations, and of parts of one, at the
 *         same time. Must not call dt, throw or wait.
 */
typedef void (*dt_combine)(void* user_data, const void* in, void* inout, int64_t count);

/**
 * One operation of a communicator as data; dt_collective_launch() runs it. The named functions
 * below (dt_allreduce(), ...) fill it in. size: ranks of the communicator; rank: the caller's.
 *
 * | kind | send | recv | tables | peer | in place |
 * | --- | --- | --- | --- | --- | --- |
 * | allreduce | count | count | | | recv = send |
 * | reduce | count | count, root | | root | recv = send |
 * | broadcast | count, root | count, not root | | root | recv = send |
 * | allgather | count | size * count | | | send = recv + rank * count |
 * | reduce_scatter | size * count | count | | | recv = send + rank * count |
 * | reduce_scatterv | send table | send_counts[rank] | send | | recv = send + send_offsets[rank] |
 * | alltoall | size * count | size * count | | | no |
 * | alltoallv | send table | recv table | send, recv | | no |
 * | gather | count | size * count, root | | root | send = recv + rank * count |
 * | gatherv | count | recv table, root | recv, root | root | send = recv + recv_offsets[rank] |
 * | scatter | size * count, root | count | | root | recv = send + rank * count |
 * | scatterv | send table, root | count | send, root | root | recv = send + send_offsets[rank] |
 * | allgatherv | recv_counts[rank] | recv table | recv | | send = recv + recv_offsets[rank] |
 * | barrier | | | | | |
 * | send | count | | | the receiver | |
 * | recv | | count | | the sender | |
 *
 * "root" after a size: other ranks may leave it NULL, and dt does not look at it there. A table is
 * counts [size] and offsets [size], in elements, by rank; offsets NULL: the blocks lie one behind
 * the other, in rank order. Tables are read before the call returns; buffers are borrowed until the
 * operation is done.
 */
typedef struct dt_collective {
  uint32_t struct_size;       /**< set by the *_init() function */
  dt_kind kind;               /**< which operation */
  dt_dtype dtype;             /**< of the elements; ignored by a barrier */
  dt_reduce_op op;            /**< of the kinds that reduce; otherwise ignored */
  int32_t peer;               /**< rank in the communicator; see the table; otherwise ignored */
  int32_t caller_waits;       /**< 1: dt_work_wait() follows at once, so wake no thread; or 0 */
  int64_t count;              /**< elements, >= 0; see the table; otherwise ignored */
  int64_t timeout_ms;         /**< limit of this operation; 0: the communicator's; < 0: none */
  const char* name;           /**< in messages and traces, equal on all ranks; copied; NULL: none */
  const void* send;           /**< see the table */
  void* recv;                 /**< see the table */
  const int64_t* send_counts; /**< elements for each rank; NULL where the kind has none */
  const int64_t* send_offsets; /**< where they begin in `send`; NULL: one behind the other */
  const int64_t* recv_counts;  /**< elements from each rank; NULL where the kind has none */
  const int64_t* recv_offsets; /**< where they go in `recv`; NULL: one behind the other */
  dt_stream stream;            /**< CUDA stream that produces `send`; ignored over host memory */
  dt_combine combine;          /**< a reduction of the caller's; NULL: `op` of `dtype` */
  void* combine_data;          /**< passed to it; borrowed until completion */
  int64_t element_bytes;       /**< of `combine`: size of an element, 1 to 4095 */
} dt_collective;

/** Sets struct_size and zeroes the rest. @param collective may not be NULL. @thread any */
static inline void dt_collective_init(dt_collective* collective) {
  memset(collective, 0, sizeof *collective);
  collective->struct_size = (uint32_t)sizeof *collective;
}

/**
 * Runs one operation. All ranks of the communicator launch the same operations in the same order;
 * ranks whose kind, dtype, op, count or root differ all get DT_ERR_MISMATCH with both sides, before
 * data moves. `timeout_ms` may differ.
 * @param comm       the communicator.
 * @param collective initialised by dt_collective_init(); read before the call returns.
 * @param out_work   NULL: the call returns when the result is there (on a GPU: when the operation
 *                   is enqueued). Otherwise it returns at once with one handle; dt_work_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT: no effect, the message names the field, and the function
 *         of the kind (dt_allreduce); any communicator error, see dt_status.
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_collective_launch(dt_comm* comm, const dt_collective* collective,
                                      dt_work** out_work);

/**
 * Sums (or averages, multiplies, ...) `count` elements over all ranks; every rank ends with the
 * same bits.
 *
 * Collective: all ranks call it in the same order with the same count, dtype and op; ranks that
 * disagree all get DT_ERR_MISMATCH with both sides, before data moves.
 * @param comm     the communicator.
 * @param send     [count] elements; may equal recv. Borrowed until the operation is done, like
 *                 recv.
 * @param recv     [count] elements, the result.
 * @param count    elements per rank, >= 0. Any alignment; more than 2^31 is fine.
 * @param dtype    of the elements.
 * @param op       the reduction.
 * @param stream   CUDA stream that produces `send`; ignored on a host communicator.
 * @param out_work NULL: the call returns when the result is there. Else gives one handle at once;
 *                 dt_work_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT: no effect; any communicator error, see dt_status.
 * @thread any; serialised per communicator
 * @cost buffers from dt_mem_alloc(): each rank reads 1/N of every peer's buffer and writes 1/N of
 *       every result, no copies. Others: one copy more through shared memory.
 * @since ABI 0
 */
DT_API dt_status dt_allreduce(dt_comm* comm, const void* send, void* recv, int64_t count,
                              dt_dtype dtype, dt_reduce_op op, dt_stream stream,
                              dt_work** out_work);

/**
 * As dt_allreduce(), with the result on `root` alone.
 * @param comm     the communicator.
 * @param send     [count] elements; on root it may equal recv.
 * @param recv     [count] elements on root; ignored elsewhere, may be NULL there.
 * @param count    elements per rank, >= 0.
 * @param dtype    of the elements.
 * @param op       the reduction.
 * @param root     rank in the communicator.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_reduce(dt_comm* comm, const void* send, void* recv, int64_t count,
                           dt_dtype dtype, dt_reduce_op op, int32_t root, dt_stream stream,
                           dt_work** out_work);

/**
 * Copies root's `buffer` into everybody's.
 * @param comm     the communicator.
 * @param buffer   [count] elements: read on root, written elsewhere. Borrowed until done.
 * @param count    elements, >= 0.
 * @param dtype    of the elements.
 * @param root     rank in the communicator.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_broadcast(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype,
                              int32_t root, dt_stream stream, dt_work** out_work);

/**
 * Gathers everybody's `count` elements, in rank order, on every rank.
 * @param comm     the communicator.
 * @param send     [count] elements; may be recv + rank * count.
 * @param recv     [size * count] elements: rank r's at r * count.
 * @param count    elements per rank, >= 0.
 * @param dtype    of the elements.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_allgather(dt_comm* comm, const void* send, void* recv, int64_t count,
                              dt_dtype dtype, dt_stream stream, dt_work** out_work);

/**
 * Reduces [size * count] elements over all ranks and leaves the r-th part on rank r.
 * @param comm     the communicator.
 * @param send     [size * count] elements.
 * @param recv     [count] elements; may be send + rank * count.
 * @param count    elements per rank of the result, >= 0.
 * @param dtype    of the elements.
 * @param op       the reduction.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_reduce_scatter(dt_comm* comm, const void* send, void* recv, int64_t count,
                                   dt_dtype dtype, dt_reduce_op op, dt_stream stream,
                                   dt_work** out_work);

/**
 * As dt_reduce_scatter(), with a count for each rank. All ranks name the same counts, or all get
 * DT_ERR_MISMATCH with both sides.
 * @param comm         the communicator.
 * @param send         the elements for all ranks.
 * @param send_counts  [size] elements that each rank gets, >= 0; read before the call returns, like
 *                     send_offsets.
 * @param send_offsets [size] where they begin in `send`, in elements; NULL: one behind the other,
 *                     in rank order. May differ between ranks.
 * @param recv         [send_counts[rank]] elements; may be send + send_offsets[rank] where no other
 *                     block overlaps this one.
 * @param dtype        of the elements.
 * @param op           the reduction.
 * @param stream       as in dt_allreduce().
 * @param out_work     as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @cost one reduce for each rank, which is how statistics and traces show it; on a GPU one launch.
 * @since ABI 0
 */
DT_API dt_status dt_reduce_scatterv(dt_comm* comm, const void* send, const int64_t* send_counts,
                                    const int64_t* send_offsets, void* recv, dt_dtype dtype,
                                    dt_reduce_op op, dt_stream stream, dt_work** out_work);

/**
 * Sends a block of `count` elements to each rank, and gets one from each.
 *
 * As for dt_allreduce() all ranks call it with the same count and dtype, or all get
 * DT_ERR_MISMATCH.
 * @param comm     the communicator.
 * @param send     [size * count] elements: rank r's at r * count. Not in place: `recv` may not
 *                 overlap it.
 * @param recv     [size * count] elements: from rank r at r * count.
 * @param count    elements for each pair of ranks, >= 0.
 * @param dtype    of the elements.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @cost a `send` from dt_mem_alloc() is read where it lies; else one copy more through shared
 *       memory. Between hosts each pair of ranks has a connection.
 * @since ABI 0
 */
DT_API dt_status dt_alltoall(dt_comm* comm, const void* send, void* recv, int64_t count,
                             dt_dtype dtype, dt_stream stream, dt_work** out_work);

/**
 * As dt_alltoall(), with a count for each pair of ranks. What a rank sends to another one is what
 * that one expects from it, or all ranks get DT_ERR_MISMATCH with both ranks and both counts.
 * @param comm         the communicator.
 * @param send         the blocks for all ranks; may be NULL if all are empty.
 * @param send_counts  [size] elements for each rank, >= 0; read before the call returns, like the
 *                     other arrays.
 * @param send_offsets [size] where they begin in `send`, in elements, >= 0; NULL: one behind the
 *                     other, in rank order.
 * @param recv         room for the blocks from all ranks; may not overlap `send`.
 * @param recv_counts  [size] elements from each rank; from oneself as many as to oneself.
 * @param recv_offsets [size] where they go in `recv`; no two overlap; NULL as for send_offsets.
 * @param dtype        of the elements.
 * @param stream       as in dt_allreduce().
 * @param out_work     as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_alltoallv(dt_comm* comm, const void* send, const int64_t* send_counts,
                              const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                              const int64_t* recv_offsets, dt_dtype dtype, dt_stream stream,
                              dt_work** out_work);

/**
 * Gathers everybody's `count` elements, in rank order, on `root`.
 * @param comm     the communicator.
 * @param send     [count] elements; on root it may be recv + root * count.
 * @param recv     [size * count] elements on root: rank r's at r * count; ignored elsewhere, may be
 *                 NULL there.
 * @param count    elements per rank, >= 0.
 * @param dtype    of the elements.
 * @param root     rank in the communicator.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_gather(dt_comm* comm, const void* send, void* recv, int64_t count,
                           dt_dtype dtype, int32_t root, dt_stream stream, dt_work** out_work);

/**
 * As dt_gather(), with a count for each rank. Where root expects another count from a rank than
 * that one sends, all ranks get DT_ERR_MISMATCH with both.
 * @param comm         the communicator.
 * @param send         [count] elements; on root it may be recv + recv_offsets[root].
 * @param count        elements of this rank, >= 0.
 * @param recv         room for all on root; ignored elsewhere, like recv_counts and recv_offsets.
 * @param recv_counts  [size] on root: elements of each rank; read before the call returns.
 * @param recv_offsets [size] on root: where they go in `recv`, in elements; no two overlap; NULL:
 *                     one behind the other, in rank order.
 * @param dtype        of the elements.
 * @param root         rank in the communicator.
 * @param stream       as in dt_allreduce().
 * @param out_work     as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_gatherv(dt_comm* comm, const void* send, int64_t count, void* recv,
                            const int64_t* recv_counts, const int64_t* recv_offsets, dt_dtype dtype,
                            int32_t root, dt_stream stream, dt_work** out_work);

/**
 * Gives each rank its `count` elements of root's.
 * @param comm     the communicator.
 * @param send     [size * count] elements on root: rank r's at r * count; ignored elsewhere, may be
 *                 NULL there.
 * @param recv     [count] elements; on root it may be send + root * count.
 * @param count    elements per rank, >= 0.
 * @param dtype    of the elements.
 * @param root     rank in the communicator.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_scatter(dt_comm* comm, const void* send, void* recv, int64_t count,
                            dt_dtype dtype, int32_t root, dt_stream stream, dt_work** out_work);

/**
 * As dt_scatter(), with a count for each rank. Where a rank expects another count than root has for
 * it, all ranks get DT_ERR_MISMATCH with both.
 * @param comm         the communicator.
 * @param send         the elements for all on root; ignored elsewhere, like send_counts and
 *                     send_offsets.
 * @param send_counts  [size] on root: elements for each rank; read before the call returns.
 * @param send_offsets [size] on root: where they begin in `send`, in elements; NULL: one behind the
 *                     other, in rank order.
 * @param recv         [count] elements; on root it may be send + send_offsets[root].
 * @param count        elements for this rank, >= 0.
 * @param dtype        of the elements.
 * @param root         rank in the communicator.
 * @param stream       as in dt_allreduce().
 * @param out_work     as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_scatterv(dt_comm* comm, const void* send, const int64_t* send_counts,
                             const int64_t* send_offsets, void* recv, int64_t count, dt_dtype dtype,
                             int32_t root, dt_stream stream, dt_work** out_work);

/**
 * As dt_allgather(), with a count for each rank. All ranks name the same counts, or all get
 * DT_ERR_MISMATCH with a rank and its count on both sides.
 * @param comm         the communicator.
 * @param send         [recv_counts[rank]] elements; may be recv + recv_offsets[rank].
 * @param recv         room for everybody's.
 * @param recv_counts  [size] elements of each rank, >= 0; read before the call returns, like
 *                     recv_offsets.
 * @param recv_offsets [size] where they go in `recv`, in elements; no two overlap; NULL: one behind
 *                     the other, in rank order. May differ between ranks.
 * @param dtype        of the elements.
 * @param stream       as in dt_allreduce().
 * @param out_work     as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_allgatherv(dt_comm* comm, const void* send, void* recv,
                               const int64_t* recv_counts, const int64_t* recv_offsets,
                               dt_dtype dtype, dt_stream stream, dt_work** out_work);

/**
 * Returns, or completes, when every rank has called it.
 * @param comm     the communicator.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_barrier(dt_comm* comm, dt_stream stream, dt_work** out_work);

/**
 * Sends to one peer, which calls dt_recv() with the same count and dtype. Adjacent sends and
 * receives with a work handle progress together, so two ranks may exchange in any order. To a rank
 * of another host the send is done when the network has the bytes; a receiver that expects another
 * count or dtype then fails with MISMATCH, and this rank's next operation with it.
 * @param comm     the communicator.
 * @param buffer   [count] elements, borrowed until done.
 * @param count    elements, >= 0.
 * @param dtype    of the elements.
 * @param peer     rank in the communicator, not this one.
 * @param stream   as in dt_allreduce().
 * @param out_work NULL: returns when the buffer may be reused, which may need the receiver.
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_send(dt_comm* comm, const void* buffer, int64_t count, dt_dtype dtype,
                         int32_t peer, dt_stream stream, dt_work** out_work);

/**
 * Receives what `peer` sends with dt_send().
 * @param comm     the communicator.
 * @param buffer   [count] elements, written.
 * @param count    elements, >= 0; the sender's.
 * @param dtype    of the elements.
 * @param peer     rank in the communicator, not this one.
 * @param stream   as in dt_allreduce().
 * @param out_work as in dt_allreduce().
 * @return as dt_allreduce().
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_recv(dt_comm* comm, void* buffer, int64_t count, dt_dtype dtype, int32_t peer,
                         dt_stream stream, dt_work** out_work);

/**
 * Whether all ranks hold the same bytes: compares their XXH64 hashes.
 *
 * Collective: all ranks call it in the same order beside the communicator's operations. It changes
 * nothing, and an answer of MISMATCH leaves the communicator usable.
 * @param comm   the communicator.
 * @param data   [bytes] bytes on the communicator's device, borrowed during the call; may be NULL
 *               if bytes is 0.
 * @param bytes  >= 0.
 * @param name   what it is, for messages: "fc.weight"; compared, too, in its first 35 bytes. NULL:
 *               none.
 * @param stream CUDA stream that produces `data`, which the call waits for; ignored on a host
 *               communicator.
 * @return DT_OK: the same on all ranks. DT_ERR_MISMATCH on all ranks, with both sides: it names the
 *         ranks that differ from the majority, and the first of them as data; where no side has
 *         more ranks than every other it names one of each. DT_ERR_INVALID_STATE inside a group;
 *         DT_ERR_SYSTEM: another rank could not read its data; any communicator error.
 * @thread any; serialised per communicator
 * @cost one pass over the data, on a GPU also a copy to the host through 8 MiB of pinned memory,
 *       and an allgather of 128 bytes per rank.
 * @since ABI 0
 */
DT_API dt_status dt_check_equal(dt_comm* comm, const void* data, int64_t bytes, const char* name,
                                dt_stream stream);

/* ---- Works --------------------------------------------------------------------------------- */

/**
 * Whether the work has completed. Costs one load; with host.progress = caller, where operations go
 * on inside calls of dt only, it advances what is queued. An error may cost a few seconds, as in
 * every call of a communicator: it is reported to the other ranks before it is returned.
 * @param work     the handle.
 * @param out_done 1 or 0.
 * @return DT_OK; the operation's error once it failed; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_test(dt_work* work, int32_t* out_done);

/**
 * Blocks the host until the work has completed or the time is over, which cancels nothing.
 * @param work       the handle.
 * @param timeout_ms < 0: as long as the operation's own limit.
 * @param out_done   1, or 0 when the time was over first. May be NULL.
 * @return DT_OK; the operation's error if it failed; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_wait(dt_work* work, int64_t timeout_ms, int32_t* out_done);

/**
 * Orders the work before later work on `stream`; waits at most until the work is enqueued. On a
 * host communicator, which has no streams, it is dt_work_wait() without a limit.
 * @param work   the handle.
 * @param stream CUDA stream.
 * @return as dt_work_wait().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_wait_stream(dt_work* work, dt_stream stream);

/**
 * Blocks until one of several works has completed, successfully or not.
 * @param works      [count] handles, of any communicators and jobs; none NULL.
 * @param count      in [1, 65536].
 * @param timeout_ms < 0: no limit of its own.
 * @param out_index  the first completed one in the order of `works`; -1 when the time was over
 *                   first.
 * @return DT_OK, also if that work failed (ask it); DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_wait_any(dt_work* const* works, int32_t count, int64_t timeout_ms,
                                  int32_t* out_index);

/**
 * An eventfd for epoll and the like: readable when works of the communicator have completed since
 * it was last read; each completion adds 1.
 * @param comm   the communicator.
 * @param out_fd owned by the communicator, the same at every call; do not close it.
 * @return DT_OK; DT_ERR_SYSTEM; DT_ERR_UNSUPPORTED with host.progress = caller, where nothing
 *         completes while nobody calls; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_fd(dt_comm* comm, int32_t* out_fd);

/**
 * Message of a failed work.
 * @param work the handle.
 * @return text owned by the calling thread, valid until its next dt_work_error(); empty while the
 *         work runs and when it succeeded.
 * @thread any
 * @since ABI 0
 */
DT_API const char* dt_work_error(dt_work* work);

/**
 * A work's outcome as data.
 * @param work     the handle.
 * @param out_info initialised by dt_error_info_init(); status DT_OK while running and on success.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_error_info(dt_work* work, dt_error_info* out_info);

/**
 * Another handle of the same work, for who gives one away and goes on with the other.
 * @param work      the handle.
 * @param out_other gives the other; dt_work_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_work_share(dt_work* work, dt_work** out_other);

/** Drops the handle. An unfinished work goes on and still borrows its buffers. @param work may be
 * NULL. @thread any @since ABI 0 */
DT_API void dt_work_destroy(dt_work* work);

/* ---- Memory -------------------------------------------------------------------------------- */

/**
 * Memory that all local ranks of the communicator can reach, so that reductions read it where it
 * lies; of a communicator over GPUs, memory of this rank's GPU.
 * @param comm        the communicator.
 * @param bytes       > 0.
 * @param out_pointer zeroed, aligned to 4096 bytes (on a GPU to 256); dt_mem_free(), or it goes
 *                    with the job, at world size 1 and on a GPU with the communicator.
 * @return DT_OK; DT_ERR_OUT_OF_MEMORY; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_mem_alloc(dt_comm* comm, int64_t bytes, void** out_pointer);

/**
 * Frees what dt_mem_alloc() gave, once no operation uses it.
 * @param comm    the communicator it came from, by any of its handles.
 * @param pointer may be NULL.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT: not from there, or freed already.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_mem_free(dt_comm* comm, void* pointer);

/* ---- Store --------------------------------------------------------------------------------- */
/*
 * Keys that begin with "torch/" are those of PyTorch's TCPStore: "torch/x" is what a client of it
 * calls "x" (through a PrefixStore("p"): "torch/p/x"). Ranks of dt and of PyTorch exchange values
 * by them; PyTorch's clients see no other key of dt. Where they lie:
 *  - in dt's store, when store.torch_compat is set where it is served (dt run, dt store serve,
 *    rank 0, dt_store_serve()): PyTorch's clients connect to the same port;
 *  - in a store that PyTorch serves, when store.torch_address names one, or under torchrun, whose
 *    agent serves one at MASTER_ADDR:MASTER_PORT. Ranks of dt also find each other there.
 * Else they are keys as any other. Python's env:// puts "/worker/attempt_N" in front of its keys
 * under torchrun up to 2.5, so "torch//worker/attempt_0/x" is its "x".
 * In a store that PyTorch serves: a value has at most 8 MiB; dt_store_multi_set() sets one key
 * after the other; dt_store_compare_set() takes an empty value for an absent key and counts a value
 * that is the desired one already as set; dt_store_list() of "torch/..." is DT_ERR_UNSUPPORTED
 * where PyTorch is too old to tell its keys, and an empty prefix lists dt's own alone; keys of both
 * kinds in one dt_store_multi_get() or dt_store_multi_set() are DT_ERR_INVALID_ARGUMENT.
 */

/**
 * Sets a key, replacing its value.
 * @param job         the handle.
 * @param key         1 to 1024 bytes of UTF-8.
 * @param value       [value_bytes] bytes, borrowed during the call.
 * @param value_bytes 0 to 16 MiB.
 * @param timeout_ms  < 0: rendezvous.timeout_ms; as in all store calls.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_TIMEOUT; the job's error once it failed; as in all
 *         store calls.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_set(dt_job* job, const char* key, const void* value, int64_t value_bytes,
                              int64_t timeout_ms);

/**
 * Waits until the key exists and copies its value.
 * @param job            the handle.
 * @param key            as in dt_store_set().
 * @param timeout_ms     as in dt_store_set().
 * @param buffer         receives min(capacity_bytes, size) bytes; may be NULL if capacity_bytes is
 *                       0.
 * @param capacity_bytes of buffer, >= 0.
 * @param out_bytes      size of the whole value; more than capacity_bytes: cut.
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_get(dt_job* job, const char* key, int64_t timeout_ms, void* buffer,
                              int64_t capacity_bytes, int64_t* out_bytes);

/**
 * Adds to a number kept as decimal text; an absent key counts as 0.
 * @param job        the handle.
 * @param key        as in dt_store_set().
 * @param delta      may be negative.
 * @param timeout_ms as in dt_store_set().
 * @param out_value  after the addition.
 * @return as dt_store_set(); DT_ERR_INVALID_ARGUMENT also when the value is no number.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_add(dt_job* job, const char* key, int64_t delta, int64_t timeout_ms,
                              int64_t* out_value);

/**
 * Waits until all keys exist.
 * @param job        the handle.
 * @param keys       [count] keys.
 * @param count      in [1, 65536].
 * @param timeout_ms as in dt_store_set().
 * @return as dt_store_set(); the message of DT_ERR_TIMEOUT names missing keys.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_wait(dt_job* job, const char* const* keys, int32_t count,
                               int64_t timeout_ms);

/**
 * Sets a key only if its value is the expected one.
 * @param job            the handle.
 * @param key            as in dt_store_set().
 * @param expected       [expected_bytes] bytes; NULL: the key must be absent.
 * @param expected_bytes >= 0; 0 with a NULL expected.
 * @param desired        [desired_bytes] bytes.
 * @param desired_bytes  as value_bytes of dt_store_set().
 * @param timeout_ms     as in dt_store_set().
 * @param out_swapped    1 if set, 0 if the value was another.
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_compare_set(dt_job* job, const char* key, const void* expected,
                                      int64_t expected_bytes, const void* desired,
                                      int64_t desired_bytes, int64_t timeout_ms,
                                      int32_t* out_swapped);

/**
 * Removes a key.
 * @param job         the handle.
 * @param key         as in dt_store_set().
 * @param timeout_ms  as in dt_store_set().
 * @param out_existed 1 or 0. May be NULL.
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_delete(dt_job* job, const char* key, int64_t timeout_ms,
                                 int32_t* out_existed);

/**
 * Keys that begin with a prefix, in byte order, each followed by a NUL.
 * @param job            the handle.
 * @param prefix         may be empty.
 * @param timeout_ms     as in dt_store_set().
 * @param buffer         as in dt_store_get().
 * @param capacity_bytes as in dt_store_get().
 * @param out_bytes      as in dt_store_get().
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_list(dt_job* job, const char* prefix, int64_t timeout_ms, char* buffer,
                               int64_t capacity_bytes, int64_t* out_bytes);

/**
 * Sets several keys at once: others see all of them or none.
 * @param job         the handle.
 * @param keys        [count] keys.
 * @param values      [count] pointers.
 * @param value_bytes [count] sizes, together at most 32 MiB.
 * @param count       in [1, 65536].
 * @param timeout_ms  as in dt_store_set().
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_multi_set(dt_job* job, const char* const* keys, const void* const* values,
                                    const int64_t* value_bytes, int32_t count, int64_t timeout_ms);

/**
 * Reads several keys in one round trip, without waiting for absent ones.
 * @param job             the handle.
 * @param keys            [count] keys.
 * @param count           in [1, 65536].
 * @param timeout_ms      as in dt_store_set().
 * @param buffer          the values that exist, back to back, cut at capacity_bytes.
 * @param capacity_bytes  of buffer, >= 0.
 * @param out_value_bytes [count] sizes, -1 for an absent key.
 * @param out_bytes       sum of the sizes, at most 32 MiB; more than capacity_bytes: cut.
 * @return as dt_store_set().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_multi_get(dt_job* job, const char* const* keys, int32_t count,
                                    int64_t timeout_ms, void* buffer, int64_t capacity_bytes,
                                    int64_t* out_value_bytes, int64_t* out_bytes);

/**
 * Returns when `count` callers have reached the barrier of this name. Needs no communicator.
 * @param job        the handle.
 * @param name       as a key.
 * @param count      callers, >= 1; 0: the world size.
 * @param timeout_ms as in dt_store_set().
 * @return as dt_store_set(); the message of DT_ERR_TIMEOUT says how many came.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_barrier(dt_job* job, const char* name, int32_t count, int64_t timeout_ms);

/**
 * Serves a store for a job whose ranks are threads of this process or are started by it. The ranks
 * get job.master_addr = 127.0.0.1 (or store.bind), job.master_port = the port, job.store_served =
 * true.
 * One server serves any number of jobs one after the other, and up to 65 at the same time if their
 * job.id differs; each finds only its own keys. A job follows one of the same job.id and
 * job.attempt when all ranks have left that by dt_finalize(). After a death, dt_abort() or a failed
 * join it needs a higher job.attempt: the ranks of the attempt before then get DT_ERR_ABORTED, and
 * a late one gets DT_ERR_CONFIG at once.
 * @param config     job.id, job.attempt, job.world_size of the first job; another job.id is served
 *                   as its first rank says. store.bind, job.master_port (0: the kernel chooses);
 *                   borrowed during the call; NULL: dt_config_create(NULL).
 * @param out_server gives the handle; dt_store_server_destroy().
 * @return DT_OK; DT_ERR_SYSTEM: the address cannot be bound; DT_ERR_CONFIG.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_store_serve(const dt_config* config, dt_store_server** out_server);

/** Port of the served store. @param server the handle. @param out_port in [1, 65535].
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_store_server_port(dt_store_server* server, int32_t* out_port);

/** Stops serving; ranks still joined hear of a lost store. @param server may be NULL. @thread any
 * @since ABI 0 */
DT_API void dt_store_server_destroy(dt_store_server* server);

/* ---- Reducer ------------------------------------------------------------------------------- */

/** One parameter, in the order of registration. Frozen. */
typedef struct dt_param {
  int64_t count;    /**< elements, >= 0 */
  const char* name; /**< for messages; may be NULL */
  dt_dtype dtype;   /**< of its gradient */
  int32_t uses;     /**< calls of dt_reducer_ready() in a step, each with a part of the gradient,
                         which are summed; 0: one */
} dt_param;

/** What gradients of DT_F32 travel as, where links are slow; others travel as they are. In 16 bits
 * each is rounded on the way there, the sums are in f32 and are rounded once more, between hosts once
 * for each host, and with several replicas of a shard once for each. NCCL: see dt_reduce_op. */
typedef enum dt_wire {
  DT_WIRE_SAME = 0, /**< as they are */
  DT_WIRE_F16 = 1,  /**< of less than 65520: what is larger becomes infinite */
  DT_WIRE_BF16 = 2,
  DT_WIRE_8BIT = 3, /**< Blocks of 64 elements, each with a scale of f32, summed in f32 and rounded
                         twice, whatever the number of ranks. What a rank's rounding leaves out is
                         added to its next gradient (error feedback), which takes 4 bytes an element;
                         that of a parameter which it does not use waits until it does. A block with
                         a NaN or an infinity in any rank's gradient is NaN in the result, and leaves
                         that rank's errors as they were. Without a shard. */
  DT_WIRE_FORCE32 = 0x7fffffff
} dt_wire;

/** How a reducer works. Zero is the default of every field. */
typedef struct dt_reducer_options {
  uint32_t struct_size;       /**< set by the *_init() function */
  int32_t sum;                /**< 1: sum gradients instead of averaging them */
  int64_t bucket_cap_bytes;   /**< a bucket closes when it reaches this; default from the config */
  int64_t first_bucket_bytes; /**< cap of the first bucket of each dtype; default from the config */
  int32_t keep_plan;          /**< 1: never rebuild by arrival order */
  int32_t find_unused;        /**< 1: a parameter may have no gradient, see dt_reducer_unused(); the
                                   plan is then not rebuilt by itself */
  int32_t divide_by_users;    /**< 1: an average is over the ranks that had a gradient, and not over
                                   all; with find_unused or static_graph, without sum */
  dt_wire wire;               /**< what gradients of DT_F32 travel as */
  double predivide;           /**< gradients of floating-point numbers are divided by this before
                                   they are summed, and the sums by what is missing from the number
                                   of ranks (or multiplied by it); 0: as dt_allreduce() averages */
  const int32_t* order;       /**< [count of parameters] dt_reducer_order() of an earlier run, the
                                   same on all ranks, so that step 1 overlaps as the others do; the
                                   plan then stays. Borrowed during the call; NULL: as
                                   dt_reducer_create() says */
  int32_t static_graph;       /**< 1: each step has the gradients of step 1, each of them in as many
                                   parts: dt_param.uses is learned there, and so are the parameters
                                   that a rank never uses, for which it makes no call. Step 1
                                   sends all in dt_reducer_finish(). Where ranks use different
                                   parameters the plan is rebuilt by dt_reducer_rebuild() only.
                                   Without find_unused, and not of a shard */
  int32_t tune_steps;         /**< > 2: the reducer looks for the best bucket_cap_bytes. It uses the
                                   given cap, a quarter, a sixteenth and four times of it for this
                                   number of steps each, and keeps the one whose steps took the
                                   least time on the slowest rank. The first two steps with each
                                   cap are not timed. If dt_reducer_grad() was called on any rank,
                                   or a step has left an average that lies in a bucket only, a cap
                                   changes in dt_reducer_rebuild() only; with `grads` it always may.
                                   Not with keep_plan or a shard. 0: the cap does not change */
  const int64_t* row_elements; /**< [count of parameters], borrowed during the call: > 0: the
                                   parameter is a matrix with rows of so many elements, and its
                                   gradient comes by dt_reducer_ready_rows(), as that of an
                                   embedding of which a step uses some rows; 0: it is dense. Not of
                                   a shard. NULL: all are dense */
  void* const* grads;          /**< [count of parameters], borrowed during the call: where each
                                   gradient lies in memory of the caller, such as one array of all.
                                   dt_reducer_grad() gives this, and it is reduced there, without a
                                   copy. A bucket is one range of memory: it also ends where the
                                   next parameter of its dtype in the order of the plan is not
                                   adjacent, on all ranks. What travels in `wire` is copied, and may
                                   lie anywhere. The plan follows `order`, or else the reverse order
                                   of registration; only tune_steps changes its caps. On GPUs:
                                   memory of the rank's GPU. The reducer owns all of these places
                                   from the first dt_reducer_ready() of a step until
                                   dt_reducer_finish() returns, on GPUs until its stream has come
                                   there, see also dt_reducer_destroy(). A parameter without a
                                   gradient in a step gets zeros there, or the average. After a
                                   failed step they are undefined. Not for a shard. An entry may be
                                   NULL if the parameter has no elements or comes as rows. If the
                                   pointer itself is NULL, gradients lie in dt's memory */
} dt_reducer_options;

/** Sets struct_size and zeroes the rest. @param options may not be NULL. @thread any */
static inline void dt_reducer_options_init(dt_reducer_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
}

/** What a reducer did. Times in nanoseconds of this rank. */
typedef struct dt_reducer_statistics {
  uint32_t struct_size;           /**< set by the *_init() function */
  int32_t bucket_count;           /**< of the plan in use */
  int64_t steps;                  /**< finished steps; on GPUs see dt_reducer_stats() */
  int64_t bytes;                  /**< gradient bytes reduced in the last step */
  int64_t communication_ns;       /**< last step: time in which at least one bucket was under way */
  int64_t exposed_ns;             /**< last step: time that dt_reducer_finish() waited; on GPUs,
                                       that its stream waited */
  int64_t total_bytes;            /**< all steps */
  int64_t total_communication_ns; /**< all steps */
  int64_t total_exposed_ns;       /**< all steps */
  double hidden_share;            /**< all steps: 1 - exposed / communication, in [0, 1] */
  int32_t rebuilt;                /**< 1 once the plan follows the arrival order */
  int32_t tuned;                  /**< 1 once tune_steps has found bucket_cap_bytes */
  int64_t memory_bytes;           /**< of the buckets now, of a shard's parameters, and of errors of
                                       DT_WIRE_8BIT; not what dt_reducer_power_sgd() takes */
  int64_t total_gather_ns;        /**< all steps, of a shard: that parameters were waited for, in
                                       dt_shard_gather() and wherever a piece is needed; on GPUs
                                       only until they were enqueued */
  int64_t bucket_cap_bytes;       /**< of the plan in use */
} dt_reducer_statistics;

/** Sets struct_size and zeroes the rest. @param statistics may not be NULL. @thread any */
static inline void dt_reducer_statistics_init(dt_reducer_statistics* statistics) {
  memset(statistics, 0, sizeof *statistics);
  statistics->struct_size = (uint32_t)sizeof *statistics;
}

/**
 * Plans buckets over the parameters and checks on all ranks that the model is the same. Broadcasts
 * nothing.
 *
 * Collective over `comm`. Buckets follow PyTorch's DDP: per dtype, in reverse order of
 * registration, 1 MiB first, then 25 MiB. They are reduced in a fixed order, each as soon as it is
 * full. On a communicator over GPUs the buckets are GPU memory.
 * @param comm        the communicator.
 * @param params      [count] parameters, borrowed during the call.
 * @param count       in [1, 1048576].
 * @param options     NULL: defaults.
 * @param out_reducer gives the handle; dt_reducer_destroy().
 * @return DT_OK; DT_ERR_MISMATCH on all ranks, with the first parameter that differs and both
 *         sides; DT_ERR_OUT_OF_MEMORY; any communicator error.
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_reducer_create(dt_comm* comm, const dt_param* params, int32_t count,
                                   const dt_reducer_options* options, dt_reducer** out_reducer);

/**
 * Memory where gradient `index` is to be written: it lies inside its bucket, so nothing is copied.
 * @param reducer     the handle.
 * @param index       of the parameter.
 * @param stream      CUDA stream that will write there; ignored over host memory. With a shard of
 *                    stage 2 or 3 it waits for the reduction that used the memory before in this
 *                    step. Call this for each stream that writes, and before it does.
 * @param out_pointer [count] elements, aligned to 256 bytes, valid until dt_reducer_rebuild() says
 *                    that it changed, or the reducer is destroyed; or what dt_reducer_options.grads
 *                    says. With a shard of stage 2 or 3 the memory is valid until the step's last
 *                    dt_reducer_ready() of the gradient, and its values are undefined before the
 *                    first, so call this in each step; over host memory the call may wait for an
 *                    earlier bucket's reduction.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; from stage 2 on DT_ERR_INVALID_STATE after
 *         dt_reducer_ready() of it in this step, DT_ERR_OUT_OF_MEMORY, any communicator error, and
 *         on GPUs DT_ERR_INVALID_ARGUMENT for a stream that records a CUDA graph.
 * @thread the one that calls dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_reducer_grad(dt_reducer* reducer, int32_t index, dt_stream stream,
                                 void** out_pointer);

/**
 * Says that gradient `index` of this step is complete. When its bucket is full and all before it
 * are under way, the bucket is launched; the caller goes on with its backward pass. The end of
 * step 1 re-plans by its arrival order on rank 0 (not once dt_reducer_grad() was called). With a
 * shard of stage 2 or 3 the call may wait for the reduction of an earlier bucket.
 *
 * On GPUs the gradient is complete when `stream` comes to this call: an event is recorded there,
 * and the bucket's operation waits for it on the GPU, not for what the stream is given later.
 * @param reducer the handle.
 * @param index   of the parameter; once per step, or as often as its dt_param.uses.
 * @param grad    [count] elements to copy in; dt_reducer_finish() copies the result back to the
 *                last one, so that is borrowed until then, and what was added before is read in
 *                this call. NULL: it was written, or added, where dt_reducer_grad() said. On GPUs:
 *                memory of the rank's GPU, aligned to its element, borrowed until the stream of
 *                dt_reducer_finish() has come to it.
 * @param stream  CUDA stream that produces the gradient, any of this GPU and another each time;
 *                ignored on a host communicator.
 * @return DT_OK; DT_ERR_INVALID_STATE: ready twice in one step, with static_graph more often than in
 *         step 1, or beside a call that must be alone; DT_ERR_INVALID_ARGUMENT, also for a stream
 *         that records a CUDA graph; any communicator error. With a shard of stage 2 or 3 also DT_ERR_INVALID_STATE for NULL
 *         without dt_reducer_grad() in this step, and DT_ERR_OUT_OF_MEMORY, after which
 *         dt_reducer_finish() fails on all ranks.
 * @thread any, but none while dt_reducer_finish(), _rebuild() or _accumulate() runs
 * @cost on GPUs microseconds, without a wait for the GPU. For gradients by pointer the bucket takes
 *       one kernel to gather and one to scatter them, over a list of the pointers that is kept
 *       while they stay the same from step to step; the call that launches a bucket with other
 *       pointers makes the list anew, which allocates memory and may wait for the GPU. Integers are
 *       copied one by one. Without pointers nothing is launched beside the operation, in which an
 *       average of floating-point numbers has one pass over the bucket to scale it; the gather does
 *       that where all gradients of a bucket come by pointer, but for f64.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_ready(dt_reducer* reducer, int32_t index, void* grad, dt_stream stream);

/**
 * Turns accumulation on or off, so that a step may have several backward passes.
 *
 * While it is on, dt_reducer_ready() adds to what the parameter has of this step, and nothing is
 * sent: the calls of one parameter may be any number, and differ between ranks. Turn it off before
 * the last pass: its calls add once more, and complete the gradients. Sums are in the parameter's
 * dtype. A gradient that is written in place is the caller's to add, and to zero before a step.
 * @param reducer the handle.
 * @param on      1 or 0, which it is at first.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_INVALID_STATE while another call runs.
 * @thread one at a time
 * @cost in dt_reducer_ready() a copy or a sum of the gradient, on GPUs by a kernel of `stream`,
 *       which waits for the streams of the step's other parts of the bucket.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_accumulate(dt_reducer* reducer, int32_t on);

/**
 * Adds rows to the gradient of a parameter with dt_reducer_options.row_elements. Rows may come in
 * any order, several times, and in several calls of a step, also while the reducer accumulates: what
 * has the same index is summed. dt_reducer_finish() sums them over the ranks, which it does while
 * the buckets are under way; each rank calls this at least once per step, with row_count 0 if it
 * has none, or the reducer has find_unused or static_graph. They travel as they are, whatever
 * `wire`, `predivide` and hooks say.
 *
 * With a reducer on GPUs rows are in host memory, too, and so are their results, as for an embedding
 * that stays there: dt_reducer_finish() exchanges them over the host, for which it waits for the
 * other ranks, but not for the GPU. dt_reducer_clip_norm() is then UNSUPPORTED.
 * @param reducer   the handle.
 * @param index     of the parameter.
 * @param rows      [row_count] indices of rows.
 * @param row_count >= 0.
 * @param values    [row_count][row_elements] elements; copied during the call, like `rows`.
 * @return DT_OK; DT_ERR_INVALID_STATE for a dense parameter; DT_ERR_INVALID_ARGUMENT: a row that the
 *         matrix does not have, or values in a GPU's memory; then nothing is added;
 *         DT_ERR_OUT_OF_MEMORY.
 * @thread any, as dt_reducer_ready()
 * @cost a copy. In dt_reducer_finish(): a sort of the rows, an allgather of 8 bytes for each such
 *       parameter, and then of the rows of all ranks; where these are more than the matrix has, an
 *       allreduce of the whole matrix instead.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_ready_rows(dt_reducer* reducer, int32_t index, const int64_t* rows,
                                       int64_t row_count, const void* values);

/**
 * The rows that any rank gave in the last step, each once and in ascending order, with their average
 * (or sum): the same bits on all ranks. Where an allreduce of the whole matrix was made, all rows.
 * @param reducer    the handle.
 * @param index      of a parameter with dt_reducer_options.row_elements.
 * @param out_rows   gives [out_count] indices.
 * @param out_values gives [out_count][row_elements] elements, which the caller may change. Both are
 *                   valid until the next step's first dt_reducer_ready_rows() or its
 *                   dt_reducer_finish().
 * @param out_count  gives how many.
 * @return DT_OK; DT_ERR_INVALID_STATE for a dense parameter, or without results;
 *         DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_rows(dt_reducer* reducer, int32_t index, const int64_t** out_rows,
                                 void** out_values, int64_t* out_count);

/** A full bucket, as a hook sees it: borrowed during the call. */
typedef struct dt_bucket {
  uint32_t struct_size;  /**< of the library's struct, which may be larger */
  int32_t index;         /**< in launch order */
  int32_t is_last;       /**< 1: of the step */
  int32_t param_count;   /**< parameters in it */
  const int32_t* params; /**< [param_count] their indices, in the order of memory */
  void* data;            /**< [count] elements: gradients, each at a multiple of 256 bytes, and
                              padding of any value between them; with dt_reducer_options.grads one
                              behind the other */
  int64_t count;         /**< elements, with padding */
  dt_stream stream;      /**< on GPUs: the gradients are complete in its order, and what the hook
                              enqueues there is in order with its works; else NULL */
  dt_dtype dtype;        /**< of the elements */
  int32_t reserved;      /**< zero */
} dt_bucket;

/**
 * Reduces buckets in a reducer's place, such as compressed or over some of the ranks. Called with
 * stage 0 as soon as a bucket is full and all before it are launched. It may start an operation,
 * give its work away in `out_work`, and is then called for that bucket with the next stage once
 * the work is done, in dt_reducer_finish(), until it gives none. `data` must then hold the result,
 * divided as the caller wants it. In each stage the buckets come in launch order, so operations of
 * all ranks match.
 *
 * It runs on a thread inside dt_reducer_ready(), dt_reducer_unused() or dt_reducer_finish(), one
 * call at a time, and calls no function of the reducer; an exception must not leave it. On GPUs it
 * enqueues and does not wait: a work is done for it when `stream` waits for the work.
 * @param user_data as given to dt_reducer_set_hook().
 * @param bucket    the bucket; the same memory in every stage of a step.
 * @param stage     0, 1, 2, ...
 * @param out_work  NULL at first, which says that the result is in `data`.
 * @return DT_OK. Otherwise the step fails with this status and dt_last_error(), and the reducer's
 *         communicator breaks. The error of the other ranks names this rank. In host memory they get
 *         it as a DT_ERR_MISMATCH of their next operation there; ranks that come to none within 5
 *         seconds, and those on GPUs, get it with this status. It ends their waits for works of
 *         hooks, whose communicators then break; a hook that waits itself hangs until its time-out.
 *         Ranks that need no others may be in a later step by then.
 */
typedef dt_status (*dt_bucket_hook)(void* user_data, const dt_bucket* bucket, int32_t stage,
                                    dt_work** out_work);

/**
 * Has a hook reduce the buckets, the same on all ranks. A gradient that is missing at
 * dt_reducer_finish() breaks the communicator then.
 * @param reducer   the handle, made without wire, predivide and divide_by_users.
 * @param hook      NULL: none, as at first.
 * @param user_data given to it; borrowed until another hook is set and the reducer is gone.
 * @return DT_OK; DT_ERR_INVALID_STATE inside a step, or with one of those options.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_set_hook(dt_reducer* reducer, dt_bucket_hook hook, void* user_data);

/** How gradients are compressed by PowerSGD. Zero is the default of every field. */
typedef struct dt_power_sgd_options {
  uint32_t struct_size;   /**< set by the *_init() function */
  int32_t rank;           /**< columns of the two matrices that travel, in [1, 64]; 0: 1 */
  int64_t start_step;     /**< steps before it are averaged as they are, such as 1000 */
  double min_compression; /**< a matrix of n x m is compressed where n m is at least this many times
                                  (n + m) rank; 0: 2 */
  int32_t
      no_error_feedback; /**< 1: what a step leaves out is forgotten, and not added to the next */
  int32_t cold_start;    /**< 1: each step begins with random matrices, and not with the last */
  uint64_t seed;         /**< of the random matrices */
  dt_wire wire;          /**< what the two matrices and all other gradients of DT_F32 are rounded to
                              on the way; not DT_WIRE_8BIT. Error feedback includes the rounding of
                              a matrix; that of other gradients is lost. With DT_WIRE_F16 a row whose
                              norm is above 65504 makes the results of its step NaN; DT_WIRE_BF16
                              has the range of DT_F32. */
  int32_t reserved;      /**< zero */
} dt_power_sgd_options;

/** Sets struct_size and zeroes the rest. @param options may not be NULL. @thread any */
static inline void dt_power_sgd_options_init(dt_power_sgd_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
}

/**
 * Has gradients travel as products of two thin matrices (PowerSGD), for slow networks. A hook of
 * dt's: it takes the place of one, and dt_reducer_set_hook() with NULL ends it, on GPUs after up to
 * a second in which it waits for them. The same call on all ranks; on GPUs it is collective.
 * Matrices of DT_F32 are compressed where that gains; results are the same on all ranks, but are not
 * the averages. A NaN or an infinity in any rank's gradient makes the results of that matrix NaN in
 * this step alone: what is added to the next step stays as it was.
 * @param reducer the handle, made without sum, predivide, divide_by_users and wire, which `options`
 *                has here.
 * @param rows    [parameters of the reducer], borrowed during the call: the rows of each as a matrix
 *                of rows by count / rows; 0 or 1: it is none.
 * @param options NULL: defaults.
 * @return DT_OK; DT_ERR_INVALID_STATE inside a step, or with one of those options;
 *         DT_ERR_OUT_OF_MEMORY; DT_ERR_CUDA; DT_ERR_INVALID_ARGUMENT. Then nothing has changed.
 * @thread one at a time
 * @cost memory as large as the gradients of DT_F32, on GPUs allocated in this call, with a wire and
 *       a start_step half as much again; in a step for each matrix about 4 rank passes over it.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_power_sgd(dt_reducer* reducer, const int64_t* rows,
                                      const dt_power_sgd_options* options);

/**
 * Writes what the reducer carries from step to step to a file in the layout of safetensors: the
 * errors of DT_WIRE_8BIT, "error.<name>" of each parameter of DT_F32, or of PowerSGD the errors and
 * the matrices "q.<name>" that the next step begins with. Without such state the file has no tensors.
 * It replaces `path` once all is on the disk.
 *
 * These errors are the rank's own: each rank needs a path of its own. Not collective, but all ranks
 * save after the same step. A job that goes on from there has the same bits as one that was never
 * interrupted if it also has the same plan: give dt_reducer_order() to dt_reducer_options.order.
 *
 * On GPUs it waits for the last step there, at most as long as the communicator's time-out.
 * @param reducer the handle.
 * @param path    UTF-8.
 * @return DT_OK; DT_ERR_INVALID_STATE inside a step; DT_ERR_SYSTEM with the path and the system's
 *         reason; DT_ERR_INVALID_ARGUMENT, also where two parameters have one name, or `path` is a
 *         directory, a device or a pipe; on GPUs also DT_ERR_TIMEOUT if the GPU has not finished
 *         the last step in the communicator's time-out, DT_ERR_CUDA, DT_ERR_OUT_OF_MEMORY and any
 *         communicator error.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_save(dt_reducer* reducer, const char* path);

/**
 * Reads what dt_reducer_save() wrote on this rank: call it before the first step, behind
 * dt_reducer_power_sgd() if that is used. Collective.
 * @param reducer the handle, made for the same model with the same options, on as many ranks.
 * @param path    UTF-8; of this rank.
 * @return DT_OK; on all ranks, with the text of the first rank that failed: DT_ERR_SYSTEM;
 *         DT_ERR_INVALID_ARGUMENT where dt_reducer_save() did not write the file, or it was cut short;
 *         DT_ERR_MISMATCH where it is of another rank, number of ranks, model or compression, or where
 *         ranks read files of different steps; DT_ERR_VERSION; DT_ERR_INVALID_STATE inside a step; any
 *         communicator error. Then nothing has changed, unless a copy to a GPU failed.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_load(dt_reducer* reducer, const char* path);

/**
 * Says that this rank has no gradient for parameter `index` in this step, as one of a branch that
 * was not taken. It takes part with zeros, so that the average is that over all ranks. A parameter
 * of which that was never said, and that was not ready, counts as unused at dt_reducer_finish().
 *
 * Needs dt_reducer_options.find_unused; ranks then tell each other in dt_reducer_finish() what they
 * used. With static_graph, where that is known from step 1 on, it only says where the average goes,
 * as often as it is called before dt_reducer_finish(), in whose stream the average is written.
 * @param reducer the handle.
 * @param index   of the parameter; instead of dt_reducer_ready().
 * @param grad    [count] elements: receives the average if another rank has a gradient, and stays
 *                as it is if none has; else as of dt_reducer_ready(). NULL, or what
 *                dt_reducer_grad() gives: the average is there, or zeros.
 * @param stream  as of dt_reducer_ready().
 * @return DT_OK; DT_ERR_INVALID_STATE without find_unused and static_graph, or with find_unused
 *         the second time in a step, for a parameter that has gradients in a static graph, or that
 *         comes as rows; DT_ERR_INVALID_ARGUMENT; any communicator error.
 * @thread any; different parameters at the same time
 * @cost as dt_reducer_ready(), with its waits. In dt_reducer_finish() an allreduce of 4 bytes for
 *       each parameter, over host memory also on GPUs: there it waits for the other ranks' calls.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_unused(dt_reducer* reducer, int32_t index, void* grad,
                                   dt_stream stream);

/**
 * Whether any rank had a gradient for the parameter in the last finished step, or with static_graph
 * has one in each.
 * @param reducer  the handle.
 * @param index    of the parameter.
 * @param out_used 1 or 0; 1 before the first step.
 * @return DT_OK; DT_ERR_INVALID_STATE without find_unused and static_graph;
 *         DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_used(dt_reducer* reducer, int32_t index, int32_t* out_used);

/**
 * How many ranks had a gradient at all in the last finished step: for ranks with different numbers
 * of batches. One that has run out goes on with dt_reducer_finish() alone, so that the others do
 * not wait for it, and applies the same results; all leave the loop in the step that has 0. With
 * divide_by_users averages are over the ranks that still had batches.
 * @param reducer   the handle.
 * @param out_ranks in [0, size of the communicator]; all before the first step.
 * @return DT_OK; DT_ERR_INVALID_STATE without find_unused; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_active(dt_reducer* reducer, int32_t* out_ranks);

/**
 * Has dt_reducer_finish() compare a parameter between ranks, by its XXH64 hash: in the reducer's
 * first step and in each step whose number is a multiple of reducer.check_steps. Where that is 0,
 * as by default, nothing is compared. All ranks watch the same parameters.
 * @param reducer the handle.
 * @param index   of the parameter.
 * @param data    [bytes] bytes of the parameter itself, not of its gradient, on the communicator's
 *                device: borrowed until another call for it or the end of the reducer. NULL: it is
 *                no longer watched.
 * @param bytes   >= 0.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @cost in a step that compares: a pass over what is watched, on a GPU also its copy to the host
 *       and a wait for the stream, and an allgather of 128 bytes per rank.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_watch(dt_reducer* reducer, int32_t index, const void* data,
                                  int64_t bytes);

/**
 * Ends the step: waits until every bucket is reduced.
 *
 * Collective. On GPUs it makes `stream` wait instead: it returns when the operations are enqueued,
 * while the GPU may be far behind. (Staged through the host, enqueueing is most of the work.) The
 * first call may re-plan, and then waits for the GPU, under the deadline of operations. With
 * tune_steps, the steps at which timing begins and ends wait for the GPU, too. Where a rank has no
 * memory for a new plan, all ranks keep the old one, and that rank's log says so.
 * @param reducer the handle.
 * @param stream  CUDA stream that will use the gradients; ignored on a host communicator. Other
 *                streams are to be ordered behind it.
 * @return DT_OK; DT_ERR_INVALID_STATE on all ranks when a gradient is missing anywhere, naming
 *         ranks and parameters (the reducer stays usable, this step's gradients are undefined), and
 *         in step 1 of static_graph when a rank had a gradient only while it accumulated;
 *         DT_ERR_OUT_OF_MEMORY for rows, INVALID_STATE on the other ranks;
 *         DT_ERR_MISMATCH on all ranks when a parameter of dt_reducer_watch() differs, as
 *         dt_check_equal() says it (the gradients are reduced, and reducer and communicator stay
 *         usable); any communicator error. With replicas of a shard DT_ERR_PEER_LOST also where
 *         another replica has failed: it names why, and each later step fails, too. On GPUs a
 *         missing gradient, or a bucket that a rank cannot launch, breaks the communicator: that
 *         rank gets the error here, the others in this call or, where theirs has returned, in the
 *         next one. dt_comm_check() before a result is kept.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_finish(dt_reducer* reducer, dt_stream stream);

/**
 * Scales the gradients of the last step so that their norm over all parameters is at most
 * `max_norm`: all by max_norm / (norm + 1e-6) where that is less than 1, as PyTorch's
 * clip_grad_norm_ does. Where the norm, as an f32, is not finite nothing is scaled: the caller may
 * pass over the step. Integers, and parameters that no rank used, do not count.
 *
 * Not collective: every rank has the same gradients, adds in the same order and gets the same bits.
 * Gradients given by pointer must still be there. With the reducer of a shard, but for stage 0, it
 * is collective, with the same arguments on all ranks.
 * @param reducer   the handle.
 * @param max_norm  > 0; infinity only asks for the norm.
 * @param norm_type >= 1, as 2, or infinity for the largest.
 * @param stream    CUDA stream behind that of dt_reducer_finish(); ignored on a host communicator.
 * @param out_norm  gives the norm of before; may be NULL. On GPUs one f32 of the GPU, written when
 *                  the stream comes to it, so that the host need not wait.
 * @return DT_OK; DT_ERR_INVALID_STATE without a finished step, once the next has begun, or where
 *         dt_reducer_rebuild() has changed the memory that gradients lie in; DT_ERR_UNSUPPORTED on
 *         GPUs where gradients come as rows; with a shard DT_ERR_MISMATCH on all ranks where
 *         arguments differ, on GPUs as watchdog.check finds it, and any communicator error;
 *         DT_ERR_INVALID_ARGUMENT, also for a stream that records a CUDA graph; on GPUs
 *         DT_ERR_OUT_OF_MEMORY and DT_ERR_CUDA, which with a shard break the communicator, but for
 *         stage 0.
 * @thread one at a time
 * @cost one pass over the gradients, and a second one to scale them; one more with a shard, and on
 *       GPUs where norm_type is not 2. With a shard two allreduces of a few bytes. On GPUs the first
 *       call, and one after gradients lie elsewhere, may wait for the GPU.
 * @since ABI 0
 */
DT_API dt_status dt_reducer_clip_norm(dt_reducer* reducer, double max_norm, double norm_type,
                                      dt_stream stream, float* out_norm);

/**
 * Re-plans the buckets by the order in which gradients arrived on rank 0 in the last step. With
 * tune_steps it also takes the next cap, once the steps with the cap in use are over. Between steps,
 * for callers of dt_reducer_grad().
 *
 * Collective. On GPUs it waits for the buckets' operations, under the deadline of operations; work
 * of the caller that uses the old memory must be done: synchronise its streams before.
 * @param reducer     the handle.
 * @param out_changed 1: pointers of dt_reducer_grad() must be read again. May be NULL.
 * @return DT_OK; DT_ERR_INVALID_STATE inside a step; DT_ERR_OUT_OF_MEMORY on all ranks, which keep
 *         the old plan; any communicator error.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_rebuild(dt_reducer* reducer, int32_t* out_changed);

/**
 * In which bucket a parameter lies.
 * @param reducer    the handle.
 * @param index      of the parameter.
 * @param out_bucket in launch order; -1: in none, since its gradient comes as rows.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_bucket(dt_reducer* reducer, int32_t index, int32_t* out_bucket);

/**
 * The order by which the plan in use was made: after a rebuild, that in which gradients came. To be
 * kept, with a checkpoint say, for dt_reducer_options.order of a later run.
 * @param reducer   the handle.
 * @param out_order [count of parameters] gives their indices.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_reducer_order(dt_reducer* reducer, int32_t* out_order);

/**
 * What the reducer did so far. What is hidden was not waited for; over host memory it took
 * processors, though, and so time of a backward pass that uses all of them itself. On GPUs times
 * are those of events on the GPU, and follow it: a step is counted once its events are found
 * passed, by this call or a dt_reducer_finish(). Its communication is the sum over the buckets,
 * each from when its inputs were there and the one before had ended; exposed is from where the
 * stream came to dt_reducer_finish() to the end of the last. A step that begins while the GPU is 8
 * steps behind is counted at once, without times.
 * @param reducer        the handle.
 * @param out_statistics initialised by dt_reducer_statistics_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_reducer_stats(dt_reducer* reducer, dt_reducer_statistics* out_statistics);

/** Drops the handle; memory given by dt_reducer_grad() goes with it, so work of the caller that
 * uses it must be done. What operations still use after a second, inside a step or after an error,
 * stays with the communicator until that is gone. Where that is the caller's memory
 * (dt_reducer_options.grads), it waits for the second; the communicator then breaks on all ranks,
 * so that the memory is the caller's again, once no other call on the handle runs. Memory of the
 * GPU and of dt_mem_alloc() must live as long as the communicator: others may still write there.
 * @param reducer may be NULL. @thread any @since ABI 0 */
DT_API void dt_reducer_destroy(dt_reducer* reducer);

/* ---- Shard --------------------------------------------------------------------------------- */

/** What each rank keeps, and how gradients are reduced. Zero is the default of every field but
 * `stage` and `prefetch`, which dt_shard_options_init() sets. */
typedef struct dt_shard_options {
  uint32_t struct_size;              /**< set by the *_init() function */
  int32_t stage;                     /**< 1, the default: each rank updates its own pieces, and
                                          keeps what an optimizer knows of those alone; 0: every
                                          rank updates all parameters; 2: as 1, and gradients have
                                          memory until they are reduced only, but for a rank's
                                          pieces; 3: as 2, and parameters have memory from
                                          dt_shard_gather() to dt_shard_release() only, but for a
                                          rank's pieces. All end with the same bits on one host,
                                          on GPUs as far as NCCL adds in one order */
  const dt_reducer_options* reducer; /**< of the gradients; the plan stays as it is, and its first
                                          bucket is like the others. Borrowed during the call, like
                                          the next two; NULL: defaults */
  const int64_t* granules;           /**< [count of parameters] elements: a parameter is cut at
                                          multiples of its granule only; 0 is 1; NULL: all 1 */
  const int32_t* units;              /**< [count of parameters] >= 0: those with the same number are
                                          gathered together, and lie side by side; NULL: all 0 */
  int32_t prefetch;                  /**< >= 0, of stage 3: units that are gathered ahead of
                                          dt_shard_gather(), as it was called in the step before;
                                          dt_shard_options_init() sets 1 */
  int32_t shard_ranks;               /**< so many ranks, one after the other in the communicator,
                                          have all pieces among them, and the next ones the same
                                          again: a divisor of its size; 0: all ranks. Of no
                                          account with stage 0 */
  const char* offload;               /**< UTF-8, a directory on a disk of this host, borrowed during
                                          the call: the state of this shard's optimizers, and with
                                          stage 3 over host memory this rank's pieces of the
                                          parameters, lie in files there, without a name, which go
                                          with the process; the system writes them and reads them
                                          back as it needs memory. A disk that fails then ends the
                                          process (SIGBUS), and so does a full one whose file system
                                          gives no room in advance. On GPUs the host's processor
                                          updates the pieces, with the same bits, while they pass
                                          through its memory, and dt_optimizer_step() waits for
                                          that; with stage 3 the pieces are in the host's memory,
                                          pinned, so that kernels reach them too, and
                                          dt_shard_gather() brings them to the GPU; a directory in
                                          memory, as /dev/shm, keeps the state there. It may differ
                                          between ranks. NULL: in memory */
  const int32_t* dims;               /**< [count of parameters] in [0, 64]: how many dimensions each
                                          has in the file of dt_shard_save(); 0: one, of all its
                                          elements. Borrowed during the call, like the next; NULL:
                                          all 0 */
  const int64_t* shapes;             /**< [sum of dims] the sizes of these dimensions, in the order
                                          of the parameters; the product of a parameter's is its
                                          count */
} dt_shard_options;

/** Sets struct_size, stage = 1 and prefetch = 1, and zeroes the rest. @param options may not be NULL.
 * @thread any */
static inline void dt_shard_options_init(dt_shard_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->stage = 1;
  options->prefetch = 1;
}

/** The part of a parameter that this rank updates. */
typedef struct dt_piece {
  uint32_t struct_size; /**< set by the *_init() function */
  uint32_t reserved;    /**< zero */
  int64_t offset;       /**< elements from the parameter's start */
  int64_t count;        /**< elements; 0: this rank has none of the parameter */
  void* param;          /**< [count] elements of the parameter, valid as long as the shard; on GPUs
                             in their memory, or as dt_shard_options.offload says, where the host
                             may use it once the stream has passed dt_shard_piece(); NULL where
                             count is 0 */
  void* grad;           /**< [count] elements of the gradient, valid from dt_reducer_finish() to the
                             next step; NULL before the first, and where count is 0 */
} dt_piece;

/** Sets struct_size and zeroes the rest. @param piece may not be NULL. @thread any */
static inline void dt_piece_init(dt_piece* piece) {
  memset(piece, 0, sizeof *piece);
  piece->struct_size = (uint32_t)sizeof *piece;
}

/**
 * Lays the parameters out, cuts them into a piece for each rank, and checks on all ranks that the
 * model is the same: the stages of ZeRO (Rajbhandari et al. 2020).
 *
 * Collective over `comm`. Parameters lie in dt's memory, that of the rank's GPU where `comm` is
 * over GPUs, but for pieces as `offload` says, and start as zeros. A step is that of
 * dt_shard_reducer(), whose dt_reducer_finish() gives a rank the gradients of its pieces only; then
 * each rank updates its pieces and calls dt_shard_updated(). List parameters as the forward pass
 * comes to them: gradients come in the reverse order, and parameters are sent in this one. Buckets
 * hold parameters of one unit and dtype; each is cut into equal parts, or, where a parameter has a
 * granule, at the granules nearest to them, which costs a reduction for each rank instead of one.
 *
 * With stage 2 a bucket has memory from its first gradient in a step to the end of its reduction.
 * Two reductions may be under way while further buckets fill; then dt_reducer_ready() waits for the
 * first of them, on GPUs the stream that writes into the bucket. While the reducer accumulates, and
 * with a hook, buckets keep their memory until dt_reducer_finish(). With stage 3 the forward and the backward pass each gather a unit before they
 * use its parameters, and release it behind that.
 *
 * On GPUs only dt_shard_save() and dt_shard_load() wait for the GPU, and with `offload`
 * dt_optimizer_step(), with stage 3 then dt_shard_set() of values in the host's memory, too.
 * Reductions and gathers take turns on the GPU in the order of the calls: with stage 3 all ranks
 * must call dt_shard_gather() at the same points between the gradients of a step, and
 * dt_reducer_unused() where others give the gradient.
 *
 * With `shard_ranks` the ranks of a host, say, have all pieces among them, and each host is a replica
 * of the others (hybrid shards, HSDP): parameters are then gathered within the host, and between
 * hosts go the gradients alone, each rank's own part of a bucket behind its reduction within the
 * host. It pays with stage 3. Where ranks are not in the order of their hosts, dt_comm_split()
 * makes a communicator in which they are.
 * @param comm      the communicator.
 * @param params    [count] parameters, borrowed during the call. dt_param.dtype is that of the
 *                  parameter and of its gradient.
 * @param count     in [1, 1048576].
 * @param options   NULL: defaults.
 * @param out_shard gives the handle; dt_shard_destroy().
 * @return DT_OK; DT_ERR_MISMATCH on all ranks, with the first parameter that differs and both
 *         sides; on all ranks, with the text of the first rank that failed, DT_ERR_OUT_OF_MEMORY,
 *         and DT_ERR_SYSTEM where the directory of `offload` takes no files or has no room; any
 *         communicator error.
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_shard_create(dt_comm* comm, const dt_param* params, int32_t count,
                                 const dt_shard_options* options, dt_shard** out_shard);

/**
 * The reducer of its gradients, for everything that a step needs: dt_reducer_ready(),
 * _accumulate(), _unused(), _finish(), _clip_norm() and hooks, which may run as long as the shard
 * or any handle of the reducer is there. It differs from others: results are in dt_piece.grad, and
 * nothing is copied back to what dt_reducer_ready() or dt_reducer_unused() was given;
 * dt_reducer_clip_norm() is collective but for stage 0, and its norm has the same bits whatever the
 * stage and the size of buckets; a hook reduces whole buckets still, and so does PowerSGD.
 * @param shard       the handle.
 * @param out_reducer gives a handle of its own; dt_reducer_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_shard_reducer(dt_shard* shard, dt_reducer** out_reducer);

/**
 * Where a parameter lies, whole, for the forward and the backward pass.
 * @param shard       the handle.
 * @param index       of the parameter.
 * @param out_pointer [count] elements, aligned to 256 bytes, valid as long as the shard. After
 *                    dt_shard_updated() their values are valid from dt_shard_gather() of its unit.
 *                    With stage 3 valid from there to dt_shard_release() or dt_shard_updated().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; with stage 3 DT_ERR_INVALID_STATE where its unit is not
 *         gathered.
 * @thread any; with stage 3 as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_param(dt_shard* shard, int32_t index, void** out_pointer);

/**
 * Copies a parameter in, whole: its first values, or those of a checkpoint. On this rank only, so
 * give the same on all; from stage 1 on a dt_shard_updated() behind it gives all ranks what the
 * pieces' owners have. Waits for what is still sent of it.
 * @param shard  the handle.
 * @param index  of the parameter.
 * @param values [count] elements; for a shard on GPUs in any memory, borrowed until `stream` has
 *               passed the call, or, if it is memory of the host that is not pinned, until this
 *               returns.
 * @param stream CUDA stream that copies, behind what it holds; ignored over host memory.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_set(dt_shard* shard, int32_t index, const void* values, dt_stream stream);

/**
 * What this rank updates of a parameter. With stage 0 that is all of it. Waits for what is still
 * sent of it, so that it may be written at once.
 * @param shard     the handle.
 * @param index     of the parameter.
 * @param stream    CUDA stream that will write it, and waits instead of the call; ignored over host
 *                  memory.
 * @param out_piece initialised by dt_piece_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_piece(dt_shard* shard, int32_t index, dt_stream stream,
                                dt_piece* out_piece);

/**
 * Which part of a parameter each rank updates, as the plan has it: a function of the parameters'
 * counts, dtypes, granules and units, dt_reducer_options.order and bucket_cap_bytes, the number of
 * ranks, shard_ranks, and whether the stage is 0. So every rank finds the same.
 * @param shard       the handle.
 * @param index       of the parameter.
 * @param out_offsets [size of the communicator] gives elements from the parameter's start. Pieces lie
 *                    in the order of ranks; with shard_ranks those of each replica.
 * @param out_counts  [size of the communicator] gives elements; 0: none. With stage 0 each rank has
 *                    all of it.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_shard_plan(dt_shard* shard, int32_t index, int64_t* out_offsets,
                               int64_t* out_counts);

/**
 * Collects a whole gradient of the last step from the ranks' pieces, to look at or to check it.
 * Collective.
 * @param shard      the handle.
 * @param index      of the parameter, the same on all ranks.
 * @param stream     CUDA stream behind that of dt_reducer_finish(), which will use `out_values`;
 *                   ignored over host memory.
 * @param out_values [count] elements; of a shard on GPUs in the GPU's memory.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_INVALID_STATE without gradients; any communicator
 *         error.
 * @thread as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_full_grad(dt_shard* shard, int32_t index, dt_stream stream,
                                    void* out_values);

/**
 * Says that this rank has updated its pieces: begins to send them to all ranks, and to receive
 * theirs, while the caller goes on; first the parameters that were listed first. A parameter may
 * not be written from here to dt_shard_gather() of its unit or dt_shard_piece() of itself. With
 * stage 3 it releases all units, and begins to gather those that the next step needs first.
 * Collective.
 * @param shard  the handle.
 * @param stream CUDA stream behind which the pieces are written, and the parameters as they were
 *               are used no longer; ignored over host memory.
 * @return DT_OK; any communicator error, after which parameters may be torn: the later calls fail
 *         alike.
 * @thread as its reducer's dt_reducer_finish()
 * @cost an allgather of each bucket, which dt_reducer_stats() does not count; with stage 0 nothing;
 *       with stage 3 each dt_shard_gather() has that cost instead
 * @since ABI 0
 */
DT_API dt_status dt_shard_updated(dt_shard* shard, dt_stream stream);

/**
 * Waits until the parameters of a unit are those of dt_shard_updated() on all ranks: to be called
 * before they are used, in the forward pass or for a checkpoint. With stage 3 collective: all ranks
 * gather and release the same units in the same order, in the backward pass, too; and units that
 * were gathered next in the step before are begun here, while the caller uses this one.
 * @param shard  the handle.
 * @param unit   one of dt_shard_options.units; a second call waits for nothing.
 * @param stream CUDA stream that will use them, and waits instead of the call; ignored over host
 *               memory.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_gather(dt_shard* shard, int32_t unit, dt_stream stream);

/**
 * With stage 3 says that a unit's parameters are not used until the next dt_shard_gather() of it:
 * their memory serves other units. Below stage 3 it does nothing.
 * @param shard  the handle.
 * @param unit   one of dt_shard_options.units, gathered or not.
 * @param stream CUDA stream behind which they are used no longer; ignored over host memory.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @since ABI 0
 */
DT_API dt_status dt_shard_release(dt_shard* shard, int32_t unit, dt_stream stream);

/**
 * Writes a checkpoint: one file with the whole parameters and, given an optimizer, its state. Each
 * rank writes its own pieces. The file has the layout of safetensors, so other programs read it,
 * and dt_shard_load() reads it with any number of ranks, stage, bucket size, granules and units.
 *
 * Collective, between steps; no dt_shard_gather() is needed before. Bytes go to `path`.partial,
 * which takes the place of `path` once all of them are on the disk. A save that fails, or a job
 * that is killed, leaves the older file as it was, or has put the new one, whole, in its place; the
 * next save overwrites what is left behind.
 * Tensors have the shapes of dt_shard_options. Their names are dt_param.name or "param.<index>";
 * those of the state "optimizer.exp_avg.<name>", "optimizer.exp_avg_sq.<name>",
 * "optimizer.momentum_buffer.<name>", "optimizer.master.<name>" for the f32 values of DT_F16 and
 * DT_BF16, and "optimizer.step.<name>", the number of steps of the parameter.
 *
 * On GPUs it waits until the streams of the last dt_shard_updated() or dt_optimizer_step(), and of
 * each dt_shard_set() since then, have passed that call.
 * @param shard     the handle.
 * @param optimizer of this shard; NULL: parameters alone. The same on all ranks.
 * @param path      UTF-8, of one file on a file system that all ranks share.
 * @return DT_OK; on all ranks, with the text of the first rank that failed: DT_ERR_SYSTEM with the
 *         path and the system's reason, also where a rank does not find the file of rank 0;
 *         DT_ERR_INVALID_ARGUMENT for a name that two tensors would have; DT_ERR_UNSUPPORTED where
 *         names take more than 100 MB; DT_ERR_MISMATCH where ranks would save different tensors. On
 *         the caller's rank alone DT_ERR_INVALID_ARGUMENT for its arguments, and
 *         DT_ERR_INVALID_STATE inside a step. Any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @cost its pieces and their state once, to the disk, which has room for the old file and the new
 *       one; some allreduces of a few bytes, under whose time-out ranks wait for the slowest
 * @since ABI 0
 */
DT_API dt_status dt_shard_save(dt_shard* shard, dt_optimizer* optimizer, const char* path);

/**
 * Reads what dt_shard_save() wrote, or another file of safetensors that has tensors with the names,
 * dtypes and counts of the parameters. Each rank reads its own pieces, and does what
 * dt_shard_updated() does: parameters are whole from dt_shard_gather() of their unit.
 *
 * Collective, between steps. Tensors that the model does not have are ignored. If the file lacks
 * the f32 values of a DT_F16 or DT_BF16 parameter, they become those of the parameter. The file
 * does not have the options of the optimizer. On GPUs work of the caller that uses the parameters
 * must be done.
 * @param shard     the handle.
 * @param optimizer of this shard, and of the kind that was saved; NULL: parameters alone. The same
 *                  on all ranks.
 * @param path      UTF-8; the same file on all ranks.
 * @return DT_OK; on all ranks, with the text of the first rank that failed: DT_ERR_SYSTEM with the
 *         path and the system's reason; DT_ERR_INVALID_ARGUMENT for a file that is cut short or not
 *         of this layout, and for a tensor that is missing or has another dtype or count;
 *         DT_ERR_VERSION; DT_ERR_MISMATCH where ranks read different files, compared by header and
 *         by the first and last 4 KiB of each tensor. These change nothing, unless reading fails on
 *         the way: then load another file. On the caller's rank alone DT_ERR_INVALID_ARGUMENT for
 *         its arguments, and DT_ERR_INVALID_STATE inside a step. Any communicator error.
 * @thread as its reducer's dt_reducer_finish()
 * @cost its pieces and their state once, from the disk, with stage 0 all of both; at most 8 KiB of
 *       each tensor on each rank; what dt_shard_updated() costs
 * @since ABI 0
 */
DT_API dt_status dt_shard_load(dt_shard* shard, dt_optimizer* optimizer, const char* path);

/** Drops the handle; its parameters go with it, so work of the caller that uses them must be done.
 * What operations still use after a second stays with the communicator until that is gone.
 * @param shard may be NULL. @thread any @since ABI 0 */
DT_API void dt_shard_destroy(dt_shard* shard);

/* ---- Optimizer ----------------------------------------------------------------------------- */

/** AdamW (Loshchilov and Hutter 2019), as PyTorch's. */
typedef struct dt_adamw_options {
  uint32_t struct_size;        /**< set by the *_init() function */
  int32_t skip_non_finite;     /**< 1: see dt_optimizer_step(); 0 by default */
  double beta1;                /**< in [0, 1); 0.9 by default */
  double beta2;                /**< in [0, 1); 0.999 by default */
  double epsilon;              /**< >= 0, added to the root; 1e-8 by default */
  double weight_decay;         /**< >= 0, times the rate; 0.01 by default */
  const double* weight_decays; /**< [count of parameters] of each, instead of weight_decay; borrowed
                                    during the call; NULL: that for all */
} dt_adamw_options;

/** Sets struct_size and the defaults. @param options may not be NULL. @thread any */
static inline void dt_adamw_options_init(dt_adamw_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->beta1 = 0.9;
  options->beta2 = 0.999;
  options->epsilon = 1e-8;
  options->weight_decay = 0.01;
}

/** SGD, as PyTorch's. Zero is the default of every field. */
typedef struct dt_sgd_options {
  uint32_t struct_size;        /**< set by the *_init() function */
  int32_t nesterov;            /**< 1: Nesterov's momentum; then momentum > 0 and dampening = 0 */
  double momentum;             /**< >= 0 */
  double dampening;            /**< of the gradient in the momentum, from the second step on */
  double weight_decay;         /**< >= 0, added to the gradient */
  const double* weight_decays; /**< [count of parameters] of each, instead of weight_decay; borrowed
                                    during the call; NULL: that for all */
  int32_t skip_non_finite;     /**< 1: see dt_optimizer_step() */
  int32_t reserved;            /**< zero */
} dt_sgd_options;

/** Sets struct_size and zeroes the rest. @param options may not be NULL. @thread any */
static inline void dt_sgd_options_init(dt_sgd_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
}

/**
 * Makes an optimizer of a shard's pieces. Its state is for these alone: of AdamW two moments of f32
 * an element (of f64 for DT_F64), of SGD one with a momentum; for DT_F16 and DT_BF16 an f32 value
 * of each element besides, which is what is updated, and then rounded into the parameter. It follows
 * dt_shard_set(), dt_shard_load(), and what the caller writes to a dt_piece.param before
 * dt_shard_updated().
 * @param shard         the handle, which may be destroyed before the optimizer.
 * @param options       NULL: defaults. The same on all ranks.
 * @param out_optimizer gives the handle; dt_optimizer_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_UNSUPPORTED where a parameter has another dtype than
 *         DT_F16, DT_BF16, DT_F32 and DT_F64; on this rank alone DT_ERR_OUT_OF_MEMORY, any error of
 *         CUDA, and DT_ERR_SYSTEM where the directory of dt_shard_options.offload has no room.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_optimizer_adamw(dt_shard* shard, const dt_adamw_options* options,
                                    dt_optimizer** out_optimizer);

/** The same, of SGD. See dt_optimizer_adamw(). @param shard the handle. @param options NULL:
 * defaults. @param out_optimizer gives the handle. @return as dt_optimizer_adamw(). @thread any
 * @since ABI 0 */
DT_API dt_status dt_optimizer_sgd(dt_shard* shard, const dt_sgd_options* options,
                                  dt_optimizer** out_optimizer);

/**
 * Updates this rank's pieces by their gradients, and then does what dt_shard_updated() does. A
 * parameter that no rank had a gradient for stays as it is. To pass over a step, do not call it; a
 * second call uses the same gradients again. Collective.
 *
 * With skip_non_finite a step changes nothing, and counts for no parameter, if the norm of all
 * gradients is not finite, because a gradient on some rank is not, or because f32 cannot hold the
 * norm. If dt_reducer_clip_norm() was called for this step, its norm is used; otherwise this call
 * finds it. On GPUs the kernels read the norm, and the host only waits for the step 8 before; with
 * dt_shard_options.offload it waits for the norm of this step.
 * @param optimizer the handle.
 * @param rate      the learning rate, finite, the same on all ranks.
 * @param stream    CUDA stream that updates them, behind that of dt_reducer_finish(); otherwise as
 *                  of dt_shard_updated().
 * @return DT_OK; DT_ERR_INVALID_STATE without gradients; DT_ERR_INVALID_ARGUMENT, also for a stream
 *         that records a CUDA graph; as dt_shard_updated(). What fails on a GPU breaks the
 *         communicator.
 * @thread as the reducer's dt_reducer_finish()
 * @cost one pass over pieces and state; what dt_shard_updated() costs; with skip_non_finite and no
 *       dt_reducer_clip_norm() before, what that costs to find a norm; with `offload` on GPUs the
 *       way of gradients and parameters to the host and back, with stage 3 that of gradients
 *       alone, under the communicator's time-out
 * @since ABI 0
 */
DT_API dt_status dt_optimizer_step(dt_optimizer* optimizer, double rate, dt_stream stream);

/**
 * How many steps skip_non_finite has skipped since the optimizer was made, not counting the last
 * `behind` steps: the same number on all ranks, so that all of them lower the scale of a loss in the
 * same step. On GPUs it waits until the counted steps are over; with `behind` > 0 that is soon.
 * @param optimizer   the handle.
 * @param behind      0 to 7: steps that do not count yet.
 * @param out_skipped gives the number; 0 without skip_non_finite.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; on GPUs DT_ERR_TIMEOUT if the GPU has not finished these
 *         steps in the communicator's time-out, and any communicator error.
 * @thread as dt_optimizer_step()
 * @since ABI 0
 */
DT_API dt_status dt_optimizer_skipped(dt_optimizer* optimizer, int32_t behind,
                                      int64_t* out_skipped);

/** Drops the handle with the state. What a GPU still uses after a second stays with the communicator
 * until that is gone. @param optimizer may be NULL. @thread any @since ABI 0 */
DT_API void dt_optimizer_destroy(dt_optimizer* optimizer);

/* ---- Named submission ---------------------------------------------------------------------- */

/** dt_named_options_init() sets the defaults; zero means zero. The same on all ranks. */
typedef struct dt_named_options {
  uint32_t struct_size; /**< set by the *_init() function */
  int32_t cache;        /**< names whose description does not travel again, >= 0; 1024 */
  int64_t fuse_bytes;   /**< >= 0: allreduces of one dtype and op are put together up to so many;
                             67108864. 0: each is alone */
  int64_t stall_ms;     /**< >= 0: rank 0 logs a warning of a name that waits for other ranks for so
                             long; 60000. 0: none */
  int64_t cycle_us;     /**< >= 0: how long rank 0 waits for more names once all ranks have one,
                             while others are half there; 1000 */
} dt_named_options;

/** Sets struct_size and the defaults. @param options may not be NULL. @thread any */
static inline void dt_named_options_init(dt_named_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->cache = 1024;
  options->fuse_bytes = 67108864;
  options->stall_ms = 60000;
  options->cycle_us = 1000;
}

/** Of this rank, since dt_named_create(). */
typedef struct dt_named_statistics {
  uint32_t struct_size;  /**< set by the *_init() function */
  uint32_t reserved;     /**< zero */
  int64_t answers;       /**< lists of operations from rank 0 that were carried out */
  int64_t tensors;       /**< names in these */
  int64_t operations;    /**< of the communicator that they became */
  int64_t fused_tensors; /**< that shared an operation with others */
  int64_t fused_bytes;   /**< of these */
  int64_t cache_hits;    /**< submissions whose description did not travel */
  int64_t stalls;        /**< of rank 0: names that were warned of */
} dt_named_statistics;

/** Sets struct_size and zeroes the rest. @param statistics may not be NULL. @thread any */
static inline void dt_named_statistics_init(dt_named_statistics* statistics) {
  memset(statistics, 0, sizeof *statistics);
  statistics->struct_size = (uint32_t)sizeof *statistics;
}

/**
 * Makes an object to which ranks submit operations by name, from any thread and in any order, as in
 * Horovod. Collective over `comm`, which is over host memory.
 *
 * Rank 0 hears which names each rank has submitted, and answers with the list of those that all
 * have. Every rank carries out the list in its order, over communicators of its own, so `comm` may
 * be used for other things meanwhile. A thread of dt ("dt-named") does both, also where
 * host.progress is "caller"; there it looks every millisecond, otherwise it sleeps while nothing
 * happens. After a time-out or the loss of a rank all works end with that error, and so do later
 * calls: make a new one.
 * @param comm      the communicator.
 * @param options   NULL: defaults. The same on all ranks.
 * @param out_named gives the handle; dt_named_destroy(), before or after dt_finalize().
 * @return DT_OK; DT_ERR_MISMATCH on all ranks where options differ; DT_ERR_UNSUPPORTED on a
 *         communicator over GPUs; DT_ERR_INVALID_ARGUMENT; DT_ERR_SYSTEM without a thread; any
 *         communicator error.
 * @thread any; serialised per communicator
 * @since ABI 0
 */
DT_API dt_status dt_named_create(dt_comm* comm, const dt_named_options* options,
                                 dt_named** out_named);

/**
 * Submits one operation. It runs once every rank has submitted the same under this name; the works
 * of different names may end in any order.
 *
 * Kinds: allreduce, broadcast, allgather, reduce_scatter, alltoall, with dt's own reductions.
 * dt_collective.timeout_ms, or the communicator's time-out, limits the wait for the other ranks,
 * and then the operation itself. dt_collective.name and stream are not used.
 * @param named      the handle.
 * @param name       1 to 1000 bytes, copied. Free again once the work is done.
 * @param collective borrowed during the call; its buffers until the work is done.
 * @param out_work   gives the handle, for every dt_work function; dt_work_fd() of `comm` counts it. A
 *                   reducer's hook cannot give it. NULL: waits until it is done.
 * @return DT_OK. DT_ERR_INVALID_STATE where the name is not done yet on this rank, or the rank has
 *         joined; DT_ERR_UNSUPPORTED for other kinds; DT_ERR_INVALID_ARGUMENT. The work, or the
 *         call without one: DT_ERR_MISMATCH on all ranks, with both sides, where ranks describe it
 *         differently (other names go on); DT_ERR_TIMEOUT with the missing ranks; DT_ERR_ABORTED
 *         where a rank destroyed its handle before, or has no memory for its part; any communicator
 *         error.
 * @thread any
 * @cost a message to rank 0 and one back, shared by all that is submitted meanwhile; a tensor that
 *       is put together with others is copied twice
 * @since ABI 0
 */
DT_API dt_status dt_named_submit(dt_named* named, const char* name, const dt_collective* collective,
                                 dt_work** out_work);

/**
 * Submits several operations that run together: none before all ranks have submitted all of them.
 * Those that can be put together are, up to fuse_bytes. All ranks submit the same group.
 * @param named       the handle.
 * @param names       [count] as in dt_named_submit(), each once.
 * @param collectives [count] pointers, as in dt_named_submit().
 * @param count       in [1, 65536].
 * @param out_works   [count] gives a handle for each. NULL: waits until all are done.
 * @return as dt_named_submit(); where the call fails, none was submitted. Where one of the group
 *         fails because ranks differ, so do the others.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_named_submit_group(dt_named* named, const char* const* names,
                                       const dt_collective* const* collectives, int32_t count,
                                       dt_work** out_works);

/**
 * For uneven inputs: this rank has no more, and gives zeros to what the others submit, until all
 * ranks have called this. Works with allreduce of sum, avg, bor and bxor; other operations of the
 * others end with DT_ERR_UNSUPPORTED. An average still divides by all ranks.
 * @param named         the handle.
 * @param timeout_ms    of this call; < 0: none.
 * @param out_last_rank the rank that called it last, which has seen all inputs; -1: not all have
 *                      within timeout_ms. This rank stays joined then; call it again to go on
 *                      waiting.
 * @return DT_OK; DT_ERR_ABORTED where a rank destroyed its handle; any communicator error.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_named_join(dt_named* named, int64_t timeout_ms, int32_t* out_last_rank);

/**
 * Which names wait for other ranks, a line each: `"a" (allreduce f32 sum x 10) was submitted by rank
 * 0 and not by rank 1 (node7) for 1234 ms`. Rank 0 is asked, so all ranks get the same.
 * @param named          the handle.
 * @param timeout_ms     for the answer of rank 0, which comes behind the operation that it is in;
 *                       < 0: none.
 * @param buffer         receives the text with its final NUL, cut to capacity_bytes; may be NULL if
 *                       0.
 * @param capacity_bytes of buffer, >= 0.
 * @param out_bytes      length of the whole text with its final NUL; 1: nothing waits.
 * @return DT_OK; DT_ERR_TIMEOUT, which ends this call only; DT_ERR_INVALID_ARGUMENT; any
 *         communicator error.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_named_report(dt_named* named, int64_t timeout_ms, char* buffer,
                                 int64_t capacity_bytes, int64_t* out_bytes);

/**
 * Fills in what it did so far.
 * @param named          the handle.
 * @param out_statistics initialised by dt_named_statistics_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_named_stats(dt_named* named, dt_named_statistics* out_statistics);

/** Drops the handle. What is not yet carried out ends with DT_ERR_ABORTED, here and on the other
 * ranks; dt_finalize() does the same for handles that are open. Waits for nobody.
 * @param named may be NULL. @thread any @since ABI 0 */
DT_API void dt_named_destroy(dt_named* named);

/* ---- Outer optimizer ----------------------------------------------------------------------- */

/** What the mean over the ranks of an outer optimizer travels as. */
typedef enum dt_outer_format {
  DT_OUTER_F32 = 0,
  DT_OUTER_BF16 = 1,
  DT_OUTER_8BIT = 2, /**< blocks of 64 elements, each with a scale of f32; summed in f32 */
  DT_OUTER_4BIT = 3, /**< likewise */
  DT_OUTER_FORCE32 = 0x7fffffff
} dt_outer_format;

/** A parameter, or this rank's piece of one, in the caller's host memory. */
typedef struct dt_outer_param {
  void* data;        /**< [count] elements, borrowed as long as the handle */
  int64_t count;     /**< elements, >= 0 */
  const char* name;  /**< for messages and files, borrowed during the call; NULL: none */
  dt_dtype dtype;    /**< DT_F32, DT_F16 or DT_BF16 */
  uint32_t reserved; /**< zero */
} dt_outer_param;

/** How ranks come together. dt_outer_options_init() sets DiLoCo's (Douillard et al. 2023), but for
 * `sync_every`. Local SGD, the mean of the parameters, is rate = 1 and momentum = 0. */
typedef struct dt_outer_options {
  uint32_t struct_size; /**< set by the *_init() function */
  int32_t fragments;  /**< >= 1, a divisor of sync_every: the parameters are cut into so many parts,
                           which have their turns one after the other; 1 by default */
  int64_t sync_every; /**< >= 1: steps in which each part has its turn once; 1 by default */
  int64_t delay;      /**< in [0, sync_every / fragments): steps that go on while a mean is under
                           way; 0 by default */
  double alpha;       /**< in [0, 1]: how much of a rank's own parameters stays when the mean is
                           there; 0 by default */
  double rate;        /**< >= 0: of SGD on the global parameters; 0.7 by default */
  double momentum;    /**< in [0, 1); 0.9 by default */
  int32_t nesterov;   /**< 1, the default: Nesterov's; with momentum 0 of no account */
  dt_outer_format format; /**< DT_OUTER_F32 by default */
} dt_outer_options;

/** Sets struct_size and the defaults. @param options may not be NULL. @thread any */
static inline void dt_outer_options_init(dt_outer_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->fragments = 1;
  options->sync_every = 1;
  options->rate = 0.7;
  options->momentum = 0.9;
  options->nesterov = 1;
}

/**
 * Lets ranks train by themselves for some steps, and then brings their parameters together: local
 * SGD and DiLoCo, with fragments and a delay as in streaming DiLoCo (Douillard et al. 2025). For
 * slow networks: it sends 1 / sync_every of what a mean of all gradients does.
 *
 * Each rank of `comm` has an inner optimizer of its own. Where several ranks train one model
 * together, with a dt_reducer or a dt_shard over a communicator of theirs, `comm` joins those that
 * have the same parameters or pieces in different groups (dt_comm_split()). With a shard ask for
 * each dt_shard_piece(), which waits until it was sent, before dt_outer_step(), _sync(), _load()
 * and _move(), and call dt_shard_updated() behind the last three, and behind a step that has
 * changed parameters.
 *
 * This keeps the global parameters in f32, and a momentum. In a turn the mean over ranks of
 * (global - own) parameters is the gradient of a step of SGD on them, as PyTorch's SGD does it;
 * `delay` steps later a rank's own become alpha * own + (1 - alpha) * global. The global ones have
 * equal bits on all ranks. Collective over `comm`, which is over host memory.
 * @param comm      the communicator.
 * @param params    [count] parameters, with the same values on all ranks; borrowed during the call,
 *                  but for their data.
 * @param count     in [1, 1048576].
 * @param options   NULL: defaults. The same on all ranks.
 * @param out_outer gives the handle; dt_outer_destroy().
 * @return DT_OK; DT_ERR_MISMATCH on all ranks where parameters, options or first values differ;
 *         DT_ERR_UNSUPPORTED on a communicator over GPUs; DT_ERR_OUT_OF_MEMORY; any communicator
 *         error.
 * @thread any; serialised per communicator
 * @cost 8 bytes an element, 4 without momentum, and 4 to 8 for an element of a fragment
 * @since ABI 0
 */
DT_API dt_status dt_outer_create(dt_comm* comm, const dt_outer_param* params, int32_t count,
                                 const dt_outer_options* options, dt_outer** out_outer);

/**
 * To be called behind each step of the inner optimizer. Collective where it is a fragment's turn, or
 * a mean is due. A call that fails has changed nothing: parameters are those of before, and the
 * fragment has its next turn later. After the loss of a rank go on with dt_outer_move().
 * @param outer       the handle.
 * @param out_changed gives 1 where parameters were changed, else 0; may be NULL.
 * @return DT_OK; any communicator error.
 * @thread one at a time for a handle; nothing else writes to parameters meanwhile
 * @cost in a turn, a mean of the fragment over the ranks, of which `delay` steps hide as much as they
 *       last
 * @since ABI 0
 */
DT_API dt_status dt_outer_step(dt_outer* outer, int32_t* out_changed);

/**
 * Gives every fragment a turn at once, as before an evaluation or a checkpoint: behind it all ranks
 * have the global parameters. Collective; it counts no step. A fragment whose mean is zero keeps
 * its global parameters and its momentum, so that calling this twice changes nothing.
 * @param outer the handle.
 * @return DT_OK; any communicator error.
 * @thread as dt_outer_step()
 * @since ABI 0
 */
DT_API dt_status dt_outer_sync(dt_outer* outer);

/**
 * How many steps there were: dt_outer_step() adds one, dt_outer_load() sets what the file has, and
 * dt_outer_move() what the ranks have that are ahead. So a program knows where to go on.
 * @param outer     the handle.
 * @param out_steps gives the number.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread as dt_outer_step()
 * @since ABI 0
 */
DT_API dt_status dt_outer_steps(dt_outer* outer, int64_t* out_steps);

/**
 * Goes on over another communicator, such as that of the survivors of dt_comm_shrink(). Ranks that
 * have had fewer means than others get the global parameters, momentum and step of these, also as
 * their own parameters; a mean that was under way is dropped. Collective over `comm`.
 * @param outer the handle.
 * @param comm  over host memory.
 * @return DT_OK; DT_ERR_MISMATCH where ranks have different parameters or options;
 *         DT_ERR_UNSUPPORTED on a communicator over GPUs; DT_ERR_OUT_OF_MEMORY; any communicator
 *         error. Then the handle is as it was.
 * @thread as dt_outer_step()
 * @since ABI 0
 */
DT_API dt_status dt_outer_move(dt_outer* outer, dt_comm* comm);

/**
 * Writes the global parameters, the momentum and the number of steps to a file in the layout of
 * safetensors, as dt_shard_save() does: tensors of f32 called as the parameters, or
 * "param.<index>", "optimizer.momentum_buffer.<name>" and "optimizer.step.<name>". It replaces
 * `path` once all is on the disk. Not collective: all ranks of the communicator would write the
 * same, so let one do it.
 * @param outer the handle.
 * @param path  UTF-8.
 * @return DT_OK; DT_ERR_INVALID_STATE while a mean is under way (see dt_outer_sync());
 *         DT_ERR_SYSTEM with the path and the system's reason; DT_ERR_INVALID_ARGUMENT, also where
 *         `path` is a directory, a device or a pipe.
 * @thread as dt_outer_step()
 * @since ABI 0
 */
DT_API dt_status dt_outer_save(dt_outer* outer, const char* path);

/**
 * Reads what dt_outer_save() wrote; the global parameters become the rank's own as well. Any number
 * of ranks and any options may read it, but for a momentum where the file has none. Collective.
 * @param outer the handle.
 * @param path  UTF-8; the same file on all ranks.
 * @return DT_OK; on all ranks, with the text of the first rank that failed: DT_ERR_SYSTEM,
 *         DT_ERR_INVALID_ARGUMENT as dt_shard_load(), DT_ERR_MISMATCH where ranks read different
 *         files; any communicator error. Then nothing has changed.
 * @thread as dt_outer_step()
 * @since ABI 0
 */
DT_API dt_status dt_outer_load(dt_outer* outer, const char* path);

/** Drops the handle; parameters stay as they are. @param outer may be NULL. @thread any
 * @since ABI 0 */
DT_API void dt_outer_destroy(dt_outer* outer);

/* ---- Parameter server ---------------------------------------------------------------------- */

/*
 * Servers keep matrices of f32, the variables, and update them with the gradients that workers
 * push; workers pull values. Nobody waits for all: a worker that is lost disturbs no other one. The
 * rows of each variable go round the servers. A server is one thread's work: more servers, more
 * pushes.
 *
 * Nothing here needs dt_init(). A process finds its part by `dt run --servers N`, by the tasks ps,
 * chief, worker and evaluator of TF_CONFIG, or by ps.servers, ps.index and ps.workers; the token and
 * security.mode are those of dt_init(). All processes need the same list of servers.
 *
 * Equal rows in one push are added up before they take effect. Rows without a gradient stay as they
 * are, moments and all; DT_PS_ADAM counts the updates of each row. A push takes effect once on each
 * server, however often a connection breaks; pushes of one worker in their order. Once a server is
 * lost, nothing is left of the pushes that it answered after its last checkpoint; one that it had
 * not answered may count twice.
 */

/** What a process is in a job with parameter servers. */
typedef enum dt_ps_role {
  DT_PS_WORKER = 0,
  DT_PS_SERVER = 1,
  DT_PS_EVALUATOR = 2, /**< only pulls; workers do not wait for it */
  DT_PS_ROLE_FORCE32 = 0x7fffffff
} dt_ps_role;

/** How a server updates a variable; the formulas are those of PyTorch's SGD, Adagrad and Adam. */
typedef enum dt_ps_optimizer {
  DT_PS_SGD = 0,
  DT_PS_MOMENTUM = 1, /**< SGD with momentum, and nesterov */
  DT_PS_ADAGRAD = 2,  /**< epsilon */
  DT_PS_ADAM = 3,     /**< beta1, beta2, epsilon */
  DT_PS_OPTIMIZER_FORCE32 = 0x7fffffff
} dt_ps_optimizer;

/** What the elements of a variable begin with. They follow from seed, row and column alone. */
typedef enum dt_ps_initial {
  DT_PS_CONSTANT = 0, /**< initial_value */
  DT_PS_UNIFORM = 1,  /**< between -initial_value and initial_value */
  DT_PS_NORMAL = 2,   /**< with the standard deviation initial_value */
  DT_PS_INITIAL_FORCE32 = 0x7fffffff
} dt_ps_initial;

/** Where this process stands. */
typedef struct dt_ps_place {
  uint32_t struct_size; /**< set by the *_init() function */
  dt_ps_role role;      /**< what it is */
  int32_t index;        /**< of the server, the worker or the evaluator */
  int32_t servers;      /**< how many there are */
  int32_t workers;      /**< likewise, of workers; 0: not known */
  int32_t attempt;      /**< how often the job was started again */
} dt_ps_place;

/** Sets struct_size and zeroes the rest. @param place may not be NULL. @thread any */
static inline void dt_ps_place_init(dt_ps_place* place) {
  memset(place, 0, sizeof *place);
  place->struct_size = (uint32_t)sizeof *place;
}

/**
 * Says what this process is in a job with parameter servers. A program that is all of them calls
 * dt_ps_serve() or dt_ps_connect() by it.
 * @param config    borrowed during the call; NULL: dt_config_create(NULL).
 * @param out_place initialised by dt_ps_place_init().
 * @return DT_OK; DT_ERR_CONFIG: there are no parameter servers in this job, and how to have some.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_info(const dt_config* config, dt_ps_place* out_place);

/** dt_ps_server_options_init() sets the defaults; zero means zero. */
typedef struct dt_ps_server_options {
  uint32_t struct_size; /**< set by the *_init() function */
  uint32_t reserved;    /**< zero */
  /** A directory for this server's checkpoint, "server-1-of-4.safetensors", that is there; borrowed
   * during the call. A server that finds its file begins with it. NULL: a server that is lost takes
   * its values with it. */
  const char* checkpoint;
  int64_t save_every_ms; /**< >= 0: a checkpoint, while pushes come; the first one once there is a
                            variable; 60000. 0: at the end and by dt_ps_save() only */
  int64_t absent_ms;     /**< >= 0: how long the server waits for a lost worker once another has
                            left; 10000 */
  int64_t arrival_ms;    /**< >= 0: how long it waits for workers that have not come yet, and for
                            one to come back if all were lost; 300000 */
} dt_ps_server_options;

/** Sets struct_size and the defaults. @param options may not be NULL. @thread any */
static inline void dt_ps_server_options_init(dt_ps_server_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->save_every_ms = 60000;
  options->absent_ms = 10000;
  options->arrival_ms = 300000;
}

/** Counters of a server since its start. */
typedef struct dt_ps_server_statistics {
  uint32_t struct_size; /**< set by the *_init() function */
  int32_t workers;      /**< that are connected */
  int64_t pushes;       /**< requests: a call of a worker may be several */
  int64_t pulls;        /**< likewise */
  int64_t pushed_rows;  /**< in these */
  int64_t pulled_rows;  /**< likewise */
  int64_t saves;        /**< checkpoints that were written */
  int64_t busy_ns;      /**< of a processor, by the thread that serves */
} dt_ps_server_statistics;

/** Sets struct_size and zeroes the rest. @param statistics may not be NULL. @thread any */
static inline void dt_ps_server_statistics_init(dt_ps_server_statistics* statistics) {
  memset(statistics, 0, sizeof *statistics);
  statistics->struct_size = (uint32_t)sizeof *statistics;
}

/**
 * Serves as the parameter server that this process is. Returns once it listens: then
 * dt_ps_server_wait(). It listens on its own address of the list, if that is localhost or an address
 * of loopback, otherwise on its port of all addresses; or on the socket that `dt run` gave it.
 * @param config     ps.servers (port 0: the kernel chooses), ps.index, ps.workers, job.id; borrowed
 *                   during the call; NULL: dt_config_create(NULL).
 * @param options    NULL: defaults.
 * @param out_server gives the handle; dt_ps_server_destroy().
 * @return DT_OK; DT_ERR_CONFIG: this process is no server, or other hosts could reach it and there
 *         is no token, or the directory has files of other servers and not this one's;
 *         DT_ERR_INVALID_ARGUMENT: the checkpoint is damaged; DT_ERR_SYSTEM: the address cannot be
 *         bound, or the file not read.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_serve(const dt_config* config, const dt_ps_server_options* options,
                             dt_ps_server** out_server);

/** Port of the server. @param server the handle. @param out_port in [1, 65535].
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_ps_server_port(dt_ps_server* server, int32_t* out_port);

/**
 * Waits until all workers have left, or were lost for long. The last checkpoint is written then.
 * @param server     the handle.
 * @param timeout_ms < 0: for as long as it takes; 0: only looks.
 * @param out_ended  gives 1, or 0 where the time-out came first; may be NULL.
 * @return DT_OK; DT_ERR_TIMEOUT: no worker came within arrival_ms; DT_ERR_PEER_LOST: all were lost
 *         without a goodbye and none came back; DT_ERR_SYSTEM: the last checkpoint could not be
 *         written; DT_ERR_ABORTED: dt_ps_server_destroy() came first.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_server_wait(dt_ps_server* server, int64_t timeout_ms, int32_t* out_ended);

/** Reads a server's counters. @param server the handle.
 * @param out_statistics initialised by dt_ps_server_statistics_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_ps_server_stats(dt_ps_server* server, dt_ps_server_statistics* out_statistics);

/** Stops serving; workers then wait for a server at its address. A dt_ps_server_wait() of another
 * thread ends. @param server may be NULL. @thread any @since ABI 0 */
DT_API void dt_ps_server_destroy(dt_ps_server* server);

/** dt_ps_options_init() sets the defaults; zero means zero. */
typedef struct dt_ps_options {
  uint32_t struct_size; /**< set by the *_init() function */
  int32_t worker;       /**< which worker this is, of no other process; -1: as dt_ps_info() says */
  int64_t connect_ms;   /**< >= 0: all servers must be there within; 300000 */
  int64_t timeout_ms;   /**< of each later call, within which a lost server may come back; < 0: no
                           limit; 1800000 */
  int64_t queue_bytes;  /**< >= 1: what calls may have under way; one with more waits for others;
                           268435456 */
} dt_ps_options;

/** Sets struct_size and the defaults. @param options may not be NULL. @thread any */
static inline void dt_ps_options_init(dt_ps_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
  options->worker = -1;
  options->connect_ms = 300000;
  options->timeout_ms = 1800000;
  options->queue_bytes = 268435456;
}

/** A variable. dt_ps_spec_init() sets the defaults; zero means zero. The same on all workers. */
typedef struct dt_ps_spec {
  uint32_t struct_size;      /**< set by the *_init() function */
  int32_t columns;           /**< >= 1; 1 */
  int64_t rows;              /**< >= 1; 1 */
  const char* name;          /**< borrowed during the call */
  dt_ps_optimizer optimizer; /**< DT_PS_SGD */
  int32_t nesterov;          /**< of DT_PS_MOMENTUM: 0 or 1; 0 */
  double rate;               /**< of learning, >= 0; 0.01 */
  double momentum;           /**< in [0, 1); 0 */
  double beta1;              /**< in [0, 1); 0.9 */
  double beta2;              /**< in [0, 1); 0.999 */
  double epsilon;            /**< >= 0; 1e-8 */
  double initial_value;      /**< 0 */
  uint64_t seed;             /**< 0 */
  dt_ps_initial initial;     /**< DT_PS_CONSTANT */
  int32_t reserved;          /**< zero */
} dt_ps_spec;

/** Sets struct_size and the defaults. @param spec may not be NULL. @thread any */
static inline void dt_ps_spec_init(dt_ps_spec* spec) {
  memset(spec, 0, sizeof *spec);
  spec->struct_size = (uint32_t)sizeof *spec;
  spec->columns = 1;
  spec->rows = 1;
  spec->rate = 0.01;
  spec->beta1 = 0.9;
  spec->beta2 = 0.999;
  spec->epsilon = 1e-8;
}

/** Counters of a worker since dt_ps_connect(). */
typedef struct dt_ps_statistics {
  uint32_t struct_size;   /**< set by the *_init() function */
  uint32_t reserved;      /**< zero */
  int64_t pushes;         /**< calls of dt_ps_push() and dt_ps_set() */
  int64_t pulls;          /**< calls of dt_ps_pull() */
  int64_t pushed_rows;    /**< as they were given */
  int64_t pulled_rows;    /**< likewise */
  int64_t sent_bytes;     /**< of requests, without headers */
  int64_t received_bytes; /**< of answers, likewise */
  int64_t reconnects;     /**< of servers that were lost */
  int64_t clock;          /**< of dt_ps_clock() */
  int64_t most_ahead;     /**< of the slowest worker, when dt_ps_clock() returned */
} dt_ps_statistics;

/** Sets struct_size and zeroes the rest. @param statistics may not be NULL. @thread any */
static inline void dt_ps_statistics_init(dt_ps_statistics* statistics) {
  memset(statistics, 0, sizeof *statistics);
  statistics->struct_size = (uint32_t)sizeof *statistics;
}

/**
 * Connects to all parameter servers of the job. A thread of dt ("dt-ps-client") talks with them; it
 * connects again to one that is lost, logs that, and repeats what was not answered.
 * @param config  as in dt_ps_info(), with the log sink.
 * @param options NULL: defaults.
 * @param out_ps  gives the handle; dt_ps_destroy().
 * @return DT_OK; DT_ERR_TIMEOUT: names a server that did not come; DT_ERR_CONFIG: there are none, or
 *         their security.mode or token differs; DT_ERR_INVALID_STATE: this process is a server.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_connect(const dt_config* config, const dt_ps_options* options,
                               dt_ps** out_ps);

/**
 * Makes a variable, or finds the one that another worker has made.
 * @param ps           the handle.
 * @param spec         initialised by dt_ps_spec_init(); borrowed during the call.
 * @param out_variable gives its number, which holds for this handle.
 * @return DT_OK; DT_ERR_MISMATCH: it is there with another spec; DT_ERR_OUT_OF_MEMORY: of a server;
 *         DT_ERR_INVALID_STATE after dt_ps_leave(); DT_ERR_PEER_LOST, DT_ERR_TIMEOUT,
 *         DT_ERR_ABORTED.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_variable(dt_ps* ps, const dt_ps_spec* spec, int32_t* out_variable);

/**
 * Gives the servers gradients, with which they update rows of a variable.
 * @param ps        the handle.
 * @param variable  as dt_ps_variable() gave it.
 * @param rows      [row_count] in any order, each in [0, spec.rows); NULL with row_count -1.
 * @param row_count of rows, >= 0; -1: all rows of the variable.
 * @param gradients [row_count][columns], or [spec.rows][columns]; copied before the call returns.
 * @param rate      of learning for this push, finite and >= 0; < 0: spec.rate.
 * @param out_work  gives the handle, dt_work_destroy(): done when all servers have updated theirs.
 *                  NULL: the call returns then.
 * @return DT_OK; DT_ERR_PEER_LOST: a server was lost and did not come back in time, or came back
 *         without what it had; DT_ERR_TIMEOUT; DT_ERR_INVALID_STATE after dt_ps_leave();
 *         DT_ERR_ABORTED: dt_ps_destroy() came first; DT_ERR_UNSUPPORTED from an evaluator.
 * @thread any; pushes of one thread take effect in their order
 * @since ABI 0
 */
DT_API dt_status dt_ps_push(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                            const float* gradients, double rate, dt_work** out_work);

/**
 * Reads rows of a variable, behind this worker's earlier pushes.
 * @param ps        the handle.
 * @param variable  as dt_ps_variable() gave it.
 * @param rows      as in dt_ps_push().
 * @param row_count as in dt_ps_push().
 * @param values    [row_count][columns], or [spec.rows][columns]; written until the work is done.
 * @param out_work  as in dt_ps_push().
 * @return as dt_ps_push(); also from an evaluator.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_pull(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                            float* values, dt_work** out_work);

/**
 * Writes rows of a variable, and leaves what the optimizer keeps of them. Of equal rows the last one
 * counts.
 * @param ps        the handle.
 * @param variable  as dt_ps_variable() gave it.
 * @param rows      as in dt_ps_push().
 * @param row_count as in dt_ps_push().
 * @param values    [row_count][columns], or [spec.rows][columns]; copied before the call returns.
 * @param out_work  as in dt_ps_push().
 * @return as dt_ps_push().
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_set(dt_ps* ps, int32_t variable, const int64_t* rows, int64_t row_count,
                           const float* values, dt_work** out_work);

/**
 * Ends a step of this worker: bounded staleness. Returns once no worker that is connected is more
 * than `ahead` steps behind; then a pull sees all that the others pushed up to that step. A worker
 * that joins later begins at the step of the slowest; one that is lost or has left holds nobody up.
 * After an error the step has not ended: the next call tries again.
 * @param ps    the handle.
 * @param ahead >= 0; 0: steps are in step. -1: counts the step and does not wait.
 * @return DT_OK; DT_ERR_TIMEOUT: names the slowest worker; DT_ERR_PEER_LOST: a server;
 *         DT_ERR_INVALID_STATE after dt_ps_leave(); DT_ERR_ABORTED: dt_ps_destroy() came first, or
 *         another thread's call; DT_ERR_UNSUPPORTED from an evaluator.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_ps_clock(dt_ps* ps, int64_t ahead);

/**
 * Makes every server write a checkpoint, and waits for that. Workers go on meanwhile: each row is as
 * it was at some time of the writing.
 * @param ps the handle.
 * @return DT_OK; DT_ERR_INVALID_STATE: a server has no directory, or after dt_ps_leave();
 *         DT_ERR_SYSTEM: the reason of the server; DT_ERR_PEER_LOST, DT_ERR_TIMEOUT, DT_ERR_ABORTED.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_save(dt_ps* ps);

/**
 * An eventfd for epoll and the like: readable when works of dt_ps_push() and its like have ended
 * since it was last read; each adds 1.
 * @param ps     the handle.
 * @param out_fd owned by the handle and its works, the same at every call; do not close it.
 * @return DT_OK; DT_ERR_SYSTEM; DT_ERR_INVALID_ARGUMENT.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_fd(dt_ps* ps, int32_t* out_fd);

/** Reads this worker's counters. @param ps the handle.
 * @param out_statistics initialised by dt_ps_statistics_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_ps_stats(dt_ps* ps, dt_ps_statistics* out_statistics);

/**
 * Says goodbye to the servers, after all that is under way. They end when all workers have. Calls
 * that follow give DT_ERR_INVALID_STATE, but for this one, which tries again after an error and then
 * does nothing, dt_ps_stats() and dt_ps_fd().
 * @param ps the handle.
 * @return DT_OK; DT_ERR_PEER_LOST, DT_ERR_TIMEOUT, DT_ERR_ABORTED.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_ps_leave(dt_ps* ps);

/** Ends what is under way with DT_ERR_ABORTED. Without dt_ps_leave() the servers take this worker
 * for lost. @param ps may be NULL. @thread any @since ABI 0 */
DT_API void dt_ps_destroy(dt_ps* ps);

/* ---- Sampler ------------------------------------------------------------------------------- */

/**
 * How a data set is dealt out. Zero is the default of the optional fields.
 *
 * | order | asked for by | memory |
 * | --- | --- | --- |
 * | torch.randperm | nothing | 8 bytes per sample |
 * | of the data set | sequential | none |
 * | blocks and samples inside a window | block | none |
 * | draws with replacement | weights | 8 bytes per sample |
 */
typedef struct dt_sampler_options {
  uint32_t struct_size;  /**< set by the *_init() function */
  int32_t world_size;    /**< >= 1 */
  int32_t rank;          /**< in [0, world_size) */
  int32_t sequential;    /**< 1: do not shuffle */
  int64_t size;          /**< samples of the data set, >= 0 */
  int64_t seed;          /**< equal on all ranks; taken modulo 2^64 */
  int32_t drop_last;     /**< 1: drop the tail instead of repeating samples from the front */
  int32_t whole_batches; /**< 1: dt_sampler_next() gives `count` samples or, at the end, none */
  int64_t block;         /**< > 0: shuffle blocks of so many consecutive samples, and the samples
                              within each window; 1: one shuffle of all samples */
  int64_t window;        /**< with block: samples of the order that mix; 0: those of 16 blocks */
  const double* weights; /**< not NULL: [size], >= 0, how often each sample is drawn */
  int64_t draws;         /**< with weights: of an epoch, over all ranks; 0: size */
} dt_sampler_options;

/** Sets struct_size and zeroes the rest. @param options may not be NULL. @thread any */
static inline void dt_sampler_options_init(dt_sampler_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = (uint32_t)sizeof *options;
}

/** Where a job is in its epoch: what a checkpoint holds. Does not depend on the world size. */
typedef struct dt_sampler_state {
  uint32_t struct_size; /**< set by the *_init() function */
  int32_t reserved;     /**< zero */
  int64_t epoch;        /**< >= 0 */
  int64_t consumed;     /**< samples of the epoch's order that all ranks together have taken */
  int64_t size;         /**< samples of the data set */
  int64_t order;        /**< tells another seed, order or weights apart */
} dt_sampler_state;

/** Sets struct_size and zeroes the rest. @param state may not be NULL. @thread any */
static inline void dt_sampler_state_init(dt_sampler_state* state) {
  memset(state, 0, sizeof *state);
  state->struct_size = (uint32_t)sizeof *state;
}

/**
 * Deals a data set out to ranks, index for index as PyTorch's DistributedSampler. Blocks and
 * weights give other orders (docs/sampler.md), dealt out in the same way.
 * @param options     borrowed during the call, with the weights.
 * @param out_sampler gives the handle, at epoch 0; dt_sampler_destroy().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_OUT_OF_MEMORY.
 * @thread any
 * @since ABI 0
 */
DT_API dt_status dt_sampler_create(const dt_sampler_options* options, dt_sampler** out_sampler);

/**
 * Chooses the epoch's order, and goes to its front. The epoch that is chosen already goes on where
 * it is, unless all of it was taken: a resumed job calls this in its loop as ever. Without the call
 * dt_sampler_indices() repeats the same order.
 * @param sampler the handle.
 * @param epoch   >= 0.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @cost O(1). Where the order is torch's: O(size) time and 8 bytes per sample, at the next call for
 *       indices.
 * @since ABI 0
 */
DT_API dt_status dt_sampler_set_epoch(dt_sampler* sampler, int64_t epoch);

/** Samples of this rank in the epoch, or in what was left of it where dt_sampler_resume() set in.
 * @param sampler the handle. @param out_length >= 0, equal on all ranks.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT. @thread any @since ABI 0 */
DT_API dt_status dt_sampler_length(dt_sampler* sampler, int64_t* out_length);

/**
 * Copies a range of this rank's sample indices, wherever dt_sampler_next() is.
 * @param sampler     the handle.
 * @param first       position in [0, length].
 * @param count       with first + count <= length.
 * @param out_indices [count] indices into the data set.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_OUT_OF_MEMORY.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_sampler_indices(dt_sampler* sampler, int64_t first, int64_t count,
                                    int64_t* out_indices);

/**
 * Copies this rank's next sample indices: a batch.
 * @param sampler     the handle.
 * @param count       how many, >= 1.
 * @param out_indices room for [count] indices into the data set.
 * @param out_count   how many there were, fewer than `count` only at the end; 0: the epoch has
 *                    ended. With whole_batches the samples of a last, shorter batch are left out:
 *                    length / count times `count`, then 0, on all ranks alike.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT; DT_ERR_INVALID_STATE when the end was told before, and
 *         dt_sampler_set_epoch() not called since; DT_ERR_OUT_OF_MEMORY.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_sampler_next(dt_sampler* sampler, int64_t count, int64_t* out_indices,
                                 int64_t* out_count);

/**
 * Where the job is, when every rank has taken as many samples as this one. The state of one rank
 * does for all.
 * @param sampler   the handle.
 * @param taken     samples that this rank has used, in [0, length], where a loader reads ahead;
 *                  -1: as many as dt_sampler_next() gave.
 * @param out_state initialised by dt_sampler_state_init().
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_sampler_save(dt_sampler* sampler, int64_t taken, dt_sampler_state* out_state);

/**
 * Goes on where a job was: what is left of the epoch's order is dealt out to the ranks of this
 * sampler, of which there may be more or fewer than before. Each sample that was left comes once,
 * but for the tail, which is filled up from the epoch's front or dropped as ever. With the same
 * world size every rank gets what it would have got.
 * @param sampler the handle; created with the options of the one that was saved, but for
 *                world_size, rank, drop_last and whole_batches.
 * @param state   borrowed during the call; the same on all ranks.
 * @return DT_OK; DT_ERR_INVALID_ARGUMENT, also for a state of another order.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_sampler_resume(dt_sampler* sampler, const dt_sampler_state* state);

/**
 * Whether the samplers of all ranks belong together: the same data set, seed, order, epoch and
 * place in it, and another part for each.
 *
 * Collective over `comm`, once the samplers are made, or after each dt_sampler_set_epoch() and
 * dt_sampler_resume().
 * @param sampler the handle.
 * @param comm    whose ranks deal the data set out; may be part of them.
 * @return DT_OK; DT_ERR_MISMATCH on all ranks, with the first difference and both sides (the
 *         communicator stays usable); DT_ERR_INVALID_STATE inside a group; any communicator error.
 * @thread one at a time
 * @since ABI 0
 */
DT_API dt_status dt_sampler_check(dt_sampler* sampler, dt_comm* comm);

/** Drops the handle. @param sampler may be NULL. @thread any @since ABI 0 */
DT_API void dt_sampler_destroy(dt_sampler* sampler);

/* ---- Batch statistics ---------------------------------------------------------------------- */

/**
 * Mean and variance of each channel over the batches of all ranks: the forward half of batch
 * normalisation with statistics of the whole batch (docs/batch_norm.md).
 *
 * Collective: all ranks call it in the same order beside the communicator's operations, with the
 * same channels and dtype; batch and spatial may differ. All ranks get the same bits.
 *
 * Over GPUs all arrays, results too, lie in the memory of the rank's GPU: the call enqueues on
 * `stream` and returns, and all of them stay borrowed until the stream has come to its end. Before
 * results are kept for good, dt_comm_check() tells whether they are right.
 * @param comm         the communicator.
 * @param input        [batch, channels, spatial] elements of this rank, borrowed during the call;
 *                     may be NULL if batch is 0. Like all arrays aligned to its element.
 * @param batch        samples of this rank, >= 0. With channels last, its rows.
 * @param channels     in [1, 2^24].
 * @param spatial      elements of a channel of one sample that lie together, >= 1; 1 where channels
 *                     are last.
 * @param dtype        of input: DT_F16, DT_BF16, DT_F32 or DT_F64.
 * @param out_mean     [channels] means.
 * @param out_variance [channels] variances without Bessel's correction; times count / (count - 1)
 *                     for a running variance as PyTorch keeps it.
 * @param out_count    elements of each channel, over all ranks.
 * @param stream       as in dt_allreduce().
 * @return DT_OK. Any argument that is not as above, and no element on any rank (on all ranks, and
 *         the communicator stays usable; over GPUs the count is 0 instead, means and variances are
 *         NaN): DT_ERR_INVALID_ARGUMENT. DT_ERR_MISMATCH: another dtype (the communicator stays
 *         usable; over GPUs it does not, and it is found as watchdog.check says) or other
 *         channels. DT_ERR_INVALID_STATE inside a group; any communicator error. Over GPUs
 *         DT_ERR_OUT_OF_MEMORY, and what else fails on a GPU, breaks the communicator. NaN and
 *         infinities give what they give in plain sums.
 * @thread any; serialised per communicator
 * @cost two passes over the input, in double precision, and one allgather of 16 bytes per channel
 *       and 24 more per rank; of 16-bit input memory for as many floats. Over GPUs one pass, 8 bytes
 *       more per rank, and no wait for the GPU unless ranks share one; but the first call, and one
 *       with more than 1024 and more channels than before, allocates GPU memory, 256 KiB and 16
 *       bytes per channel and rank, and may wait for it.
 * @since ABI 0
 */
DT_API dt_status dt_batch_moments(dt_comm* comm, const void* input, int64_t batch, int64_t channels,
                                  int64_t spatial, dt_dtype dtype, double* out_mean,
                                  double* out_variance, int64_t* out_count, dt_stream stream);

/**
 * Sums of each channel over the batches of all ranks that the gradient of batch normalisation's
 * input needs: the backward half.
 *
 * With normalised = (input - mean) / sqrt(variance + epsilon), out_sum is the sum of gradient,
 * out_product that of gradient * normalised; the gradient of input is weight / sqrt(variance +
 * epsilon) * (gradient - out_sum / count - normalised * out_product / count).
 *
 * Collective, as dt_batch_moments().
 * @param comm        the communicator.
 * @param input       [batch, channels, spatial] elements of this rank, as dt_batch_moments() had
 *                    them, borrowed during the call like gradient; NULL only if batch is 0.
 * @param gradient    [batch, channels, spatial] elements: of the loss, by the normalised input
 *                    after weight and bias.
 * @param batch       samples of this rank, >= 0.
 * @param channels    in [1, 2^24].
 * @param spatial     >= 1; 1 where channels are last.
 * @param dtype       of input and gradient: DT_F16, DT_BF16, DT_F32 or DT_F64.
 * @param mean        [channels], of dt_batch_moments().
 * @param variance    [channels], likewise.
 * @param epsilon     finite and >= 0.
 * @param out_sum     [channels] sums; the gradient of the bias over all ranks.
 * @param out_product [channels] sums; the gradient of the weight over all ranks.
 * @param stream      as in dt_allreduce().
 * @return as dt_batch_moments(); no element on any rank gives sums of 0.
 * @thread any; serialised per communicator
 * @cost one pass over both, in double precision, and one allgather as in dt_batch_moments().
 * @since ABI 0
 */
DT_API dt_status dt_batch_gradient_sums(dt_comm* comm, const void* input, const void* gradient,
                                        int64_t batch, int64_t channels, int64_t spatial,
                                        dt_dtype dtype, const double* mean, const double* variance,
                                        double epsilon, double* out_sum, double* out_product,
                                        dt_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* DT_DT_H */
