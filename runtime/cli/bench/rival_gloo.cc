// SPDX-License-Identifier: Apache-2.0
// The gloo side of `dt bench --compare`, compiled on demand against the installed libgloo: measures
// one collective as dt's worker does (method.h), over TCP, and prints lines for compare.cc:
//
//   dt-bench-library TEXT
//   dt-bench-row SIZE_BYTES COUNT OUT_OF_PLACE_US IN_PLACE_US OUT_OF_PLACE_WRONG IN_PLACE_WRONG
//
// rival_gloo DIRECTORY ADDRESS WAY COLLECTIVE DTYPE OP WARMUP ITERATIONS BUDGET_US TIMEOUT_S
// BYTES...
//
// The ranks meet in files of DIRECTORY, which all of them see, under the name DT_JOB_ID ("job" when
// it is not set); a name is used once. RANK and WORLD_SIZE are the environment's. ADDRESS is this
// rank's own: an IP address or an interface. WAY is default (what gloo::allreduce chooses: the
// ring) or tuned (of each size, the fastest of ring, bcube and halving-doubling on this machine).
#include <gloo/algorithm.h>
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "method.h"

namespace {

using Reduce = gloo::AllreduceOptions::Func;
using Algorithm = gloo::AllreduceOptions::Algorithm;

enum Argument {
  kDirectory = 1,
  kAddress,
  kWay,
  kCollective,
  kDtype,
  kOp,
  kWarmup,
  kIterations,
  kBudgetUs,
  kTimeoutS,
  kFirstSize
};

enum class Way { kDefault, kRing, kBcube, kHalvingDoubling };

struct Rank {
  std::shared_ptr<gloo::rendezvous::Context> context;
  uint32_t tag = 0;
  Way way = Way::kDefault;
  // Of the case at hand; it works in place on c.b.
  std::unique_ptr<gloo::Algorithm> halving_doubling;
};

template <class T>
Reduce reduce_function(int op) {
  using Function = void (*)(void*, const void*, const void*, size_t);
  switch (op) {
    case BENCH_PROD: return static_cast<Function>(&gloo::product<T>);
    case BENCH_MIN: return static_cast<Function>(&gloo::min<T>);
    case BENCH_MAX: return static_cast<Function>(&gloo::max<T>);
    default: return static_cast<Function>(&gloo::sum<T>);
  }
}

template <class T>
void allreduce(Rank* rank, const T* send, T* recv, size_t count, int op) {
  if (rank->way == Way::kHalvingDoubling && rank->halving_doubling != nullptr) {
    if (send != recv) memcpy(recv, send, count * sizeof(T));
    rank->halving_doubling->run();
    return;
  }
  gloo::AllreduceOptions options(rank->context);
  if (rank->way == Way::kRing) options.setAlgorithm(Algorithm::RING);
  if (rank->way == Way::kBcube) options.setAlgorithm(Algorithm::BCUBE);
  if (send != recv) options.setInput(const_cast<T*>(send), count);
  options.setOutput(recv, count);
  options.setReduceFunction(reduce_function<T>(op));
  options.setTag(rank->tag++);
  gloo::allreduce(options);
}

void barrier(Rank* rank) {
  gloo::BarrierOptions options(rank->context);
  options.setTag(rank->tag++);
  gloo::barrier(options);
}

// What all ranks measured: the sum or the largest.
template <class T>
T combine(Rank* rank, T value, int op) {
  const Way way = rank->way;
  rank->way = Way::kDefault;
  allreduce<T>(rank, &value, &value, 1, op);
  rank->way = way;
  return value;
}

template <class T>
void reduce(Rank* rank, const bench_case& c) {
  T* const send = reinterpret_cast<T*>(bench_send(&c));
  T* const recv = reinterpret_cast<T*>(bench_recv(&c));
  const auto count = static_cast<size_t>(c.count);
  if (c.collective == BENCH_ALLREDUCE) return allreduce(rank, send, recv, count, c.op);
  gloo::ReduceOptions options(rank->context);
  if (!c.in_place) options.setInput(send, count);
  options.setOutput(recv, count);
  options.setReduceFunction(reduce_function<T>(c.op));
  options.setRoot(0);
  options.setTag(rank->tag++);
  gloo::reduce(options);
}

void reduce(Rank* rank, const bench_case& c) {
  switch (c.dtype) {
    case BENCH_I8: return reduce<int8_t>(rank, c);
    case BENCH_U8: return reduce<uint8_t>(rank, c);
    case BENCH_I32: return reduce<int32_t>(rank, c);
    case BENCH_U32: return reduce<uint32_t>(rank, c);
    case BENCH_I64: return reduce<int64_t>(rank, c);
    case BENCH_U64: return reduce<uint64_t>(rank, c);
    case BENCH_F16: return reduce<gloo::float16>(rank, c);
    case BENCH_F32: return reduce<float>(rank, c);
    case BENCH_F64: return reduce<double>(rank, c);
    default: throw std::runtime_error("gloo does not have this dtype");
  }
}

// Around the ring: at once, or one rank after the other.
void pass_on(Rank* rank, const bench_case& c, size_t bytes) {
  constexpr uint8_t kPrefix = 0x40;  // none of gloo's own
  const gloo::Slot slot = gloo::Slot::build(kPrefix, rank->tag++);
  const auto from = rank->context->createUnboundBuffer(c.a, bytes);
  const auto to = rank->context->createUnboundBuffer(c.b, bytes);
  const int next = (c.rank + 1) % c.ranks;
  to->recv((c.rank + c.ranks - 1) % c.ranks, slot);
  if (c.collective == BENCH_PINGPONG && c.rank != 0) to->waitRecv();
  from->send(next, slot);
  if (c.collective != BENCH_PINGPONG || c.rank == 0) to->waitRecv();
  from->waitSend();
}

template <class Int>
std::vector<Int> bytes_of_blocks(const bench_case& c) {
  std::vector<Int> bytes;
  for (int peer = 0; peer < c.ranks; ++peer) {
    bytes.push_back(static_cast<Int>(c.counts[peer] * bench_dtype_bytes[c.dtype]));
  }
  return bytes;
}

// What only changes its place is bytes.
void move(Rank* rank, const bench_case& c) {
  char* const send = bench_send(&c);
  char* const recv = bench_recv(&c);
  const auto bytes = static_cast<size_t>(c.count) * bench_dtype_bytes[c.dtype];
  const auto ranks = static_cast<size_t>(c.ranks);
  const auto go = [rank](auto* options, void (*collective)(decltype(*options))) {
    options->setTag(rank->tag++);
    collective(*options);
  };
  switch (c.collective) {
    case BENCH_ALLGATHER: {
      gloo::AllgatherOptions options(rank->context);
      if (!c.in_place) options.setInput(send, bytes);
      options.setOutput(c.b, bytes * ranks);
      return go(&options, gloo::allgather);
    }
    case BENCH_ALLGATHERV: {
      gloo::AllgathervOptions options(rank->context);
      if (!c.in_place) options.setInput(send, bytes_of_blocks<size_t>(c)[rank->context->rank]);
      options.setOutput(c.b, bytes_of_blocks<size_t>(c));
      return go(&options, gloo::allgatherv);
    }
    case BENCH_BROADCAST: {
      gloo::BroadcastOptions options(rank->context);
      options.setOutput(recv, bytes);
      options.setRoot(0);
      return go(&options, gloo::broadcast);
    }
    case BENCH_ALLTOALL: {
      gloo::AlltoallOptions options(rank->context);
      options.setInput(send, bytes * ranks);
      options.setOutput(recv, bytes * ranks);
      return go(&options, gloo::alltoall);
    }
    case BENCH_ALLTOALLV: {
      gloo::AlltoallvOptions options(rank->context);
      options.setInput(send, bytes_of_blocks<int64_t>(c));
      options.setOutput(recv, bytes_of_blocks<int64_t>(c));
      return go(&options, gloo::alltoallv);
    }
    case BENCH_GATHER: {
      gloo::GatherOptions options(rank->context);
      options.setInput(send, bytes);
      if (c.rank == 0) options.setOutput(recv, bytes * ranks);
      options.setRoot(0);
      return go(&options, gloo::gather);
    }
    case BENCH_SCATTER: {
      gloo::ScatterOptions options(rank->context);
      std::vector<char*> parts;
      for (size_t i = 0; i < ranks && c.rank == 0; ++i) parts.push_back(send + i * bytes);
      if (c.rank == 0) options.setInputs(parts, bytes);
      options.setOutput(recv, bytes);
      options.setRoot(0);
      return go(&options, gloo::scatter);
    }
    case BENCH_SENDRECV:
    case BENCH_PINGPONG:
      if (c.ranks > 1) return pass_on(rank, c, bytes);
      memcpy(recv, send, bytes);
      return;
    default: throw std::runtime_error("gloo does not have this collective");
  }
}

void operate(Rank* rank, const bench_case& c) {
  if (c.collective == BENCH_BARRIER) return barrier(rank);
  if (c.count == 0) return;
  const bool reduces = c.collective == BENCH_ALLREDUCE || c.collective == BENCH_REDUCE;
  return reduces ? reduce(rank, c) : move(rank, c);
}

// Microseconds per operation on this rank.
double time_operations(Rank* rank, const bench_case& c, int64_t iterations, int64_t bytes) {
  double total = 0;
  if (bytes < BENCH_FRESH_BYTES) {
    barrier(rank);
    const double start = bench_now_us();
    for (int64_t i = 0; i < iterations; ++i) operate(rank, c);
    total = bench_now_us() - start;
  } else {
    for (int64_t i = 0; i < iterations; ++i) {
      bench_rewrite(&c);
      barrier(rank);
      const double start = bench_now_us();
      operate(rank, c);
      total += bench_now_us() - start;
    }
  }
  return bench_per_operation_us(&c, total, iterations);
}

// f32 and f64 only: each dtype is another copy of the algorithm to be compiled.
void make_halving_doubling(Rank* rank, const bench_case& c) {
  rank->halving_doubling.reset();
  if (c.collective != BENCH_ALLREDUCE || c.op != BENCH_SUM || c.count == 0) return;
  const int count = static_cast<int>(c.count);
  if (c.dtype == BENCH_F32) {
    rank->halving_doubling.reset(new gloo::AllreduceHalvingDoubling<float>(
        rank->context, {reinterpret_cast<float*>(c.b)}, count));
  }
  if (c.dtype == BENCH_F64) {
    rank->halving_doubling.reset(new gloo::AllreduceHalvingDoubling<double>(
        rank->context, {reinterpret_cast<double*>(c.b)}, count));
  }
}

// The way of this case that takes the least time on the slowest rank: the same one on all ranks.
Way fastest_way(Rank* rank, const bench_case& c, int64_t iterations, int64_t bytes) {
  std::vector<Way> ways = {Way::kRing, Way::kBcube};
  make_halving_doubling(rank, c);
  if (rank->halving_doubling != nullptr) ways.push_back(Way::kHalvingDoubling);
  Way best = Way::kRing;
  double best_us = 0;
  bench_rewrite(&c);
  for (const Way way : ways) {
    rank->way = way;
    const double us = combine(rank, time_operations(rank, c, iterations, bytes), BENCH_MAX);
    if (best_us == 0 || us < best_us) best = way;
    if (best_us == 0 || us < best_us) best_us = us;
  }
  return best;
}

long long verify(Rank* rank, const bench_case& c) {
  bench_prepare(&c);
  barrier(rank);
  operate(rank, c);
  return combine<int64_t>(rank, bench_wrong(&c), BENCH_SUM);
}

std::unique_ptr<char, void (*)(void*)> allocate(int64_t bytes) {
  void* area = nullptr;
  if (posix_memalign(&area, 4096, static_cast<size_t>(bytes) + 64) != 0) {
    throw std::runtime_error("not enough memory");
  }
  memset(area, 0, static_cast<size_t>(bytes));
  return {static_cast<char*>(area), free};
}

int number_in(const char* name) {
  const char* const text = getenv(name);
  if (text == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return atoi(text);
}

std::shared_ptr<gloo::rendezvous::Context> connect(char** argv) {
  gloo::transport::tcp::attr own;
  const std::string address = argv[kAddress];
  (address.find_first_of(".:") == std::string::npos ? own.iface : own.hostname) = address;
  auto device = gloo::transport::tcp::CreateDevice(own);
  const char* const job = getenv("DT_JOB_ID");
  gloo::rendezvous::FileStore files(argv[kDirectory]);
  gloo::rendezvous::PrefixStore store(job != nullptr ? job : "job", files);
  auto context =
      std::make_shared<gloo::rendezvous::Context>(number_in("RANK"), number_in("WORLD_SIZE"));
  context->setTimeout(std::chrono::seconds(atoi(argv[kTimeoutS])));
  context->connectFullMesh(store, device);
  return context;
}

void measure(int argc, char** argv) {
  Rank rank;
  rank.context = connect(argv);
  bench_case c = {};
  c.collective = atoi(argv[kCollective]);
  c.dtype = atoi(argv[kDtype]);
  c.op = atoi(argv[kOp]);
  c.rank = rank.context->rank;
  c.ranks = rank.context->size;
  const bool tuned = strcmp(argv[kWay], "tuned") == 0;
  const int64_t warmup = atoll(argv[kWarmup]);
  const int64_t iterations = atoll(argv[kIterations]);
  const double budget_us = atof(argv[kBudgetUs]);
  int64_t largest = 0;
  for (int i = kFirstSize; i < argc; ++i) largest = std::max<int64_t>(largest, atoll(argv[i]));
  const auto a = allocate(largest);
  const auto b = allocate(largest);
  c.a = a.get();
  c.b = b.get();
  std::vector<int64_t> counts(static_cast<size_t>(c.ranks));
  c.counts = counts.data();
  if (c.rank == 0) {
    printf("dt-bench-library gloo %d.%d.%d over TCP\n", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
           GLOO_VERSION_PATCH);
  }
  for (int i = kFirstSize; i < argc; ++i) {
    c.count = bench_count(c.collective, c.dtype, c.ranks, atoll(argv[i]));
    bench_set_counts(&c);
    const int64_t bytes = bench_bytes(c.collective, c.dtype, c.ranks, c.count);
    double us[2];
    long long wrong[2];
    for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
      rank.way = tuned && c.collective == BENCH_ALLREDUCE ? fastest_way(&rank, c, warmup, bytes)
                                                          : Way::kDefault;
      wrong[c.in_place] = verify(&rank, c);
      bench_rewrite(&c);
      const double slowest = combine(&rank, time_operations(&rank, c, warmup, bytes), BENCH_MAX);
      const int64_t wanted = iterations > 0 ? iterations : bench_iterations(slowest, budget_us);
      us[c.in_place] =
          combine(&rank, time_operations(&rank, c, wanted, bytes), BENCH_SUM) / c.ranks;
    }
    if (c.rank == 0) {
      printf("dt-bench-row %lld %lld %.4f %.4f %lld %lld\n", static_cast<long long>(bytes),
             static_cast<long long>(c.count), us[0], us[1], wrong[0], wrong[1]);
    }
  }
  fflush(stdout);
  barrier(&rank);  // nobody closes a connection that another one still reads from
}

}  // namespace

int main(int argc, char** argv) {
  if (argc <= kFirstSize) {
    fprintf(stderr, "rival_gloo: it is started by dt bench --compare gloo\n");
    return 2;
  }
  alarm(static_cast<unsigned>(atoi(argv[kTimeoutS])));  // whatever becomes of what started it
  try {
    measure(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "rival_gloo: %s\n", error.what());
    return 1;
  }
  return 0;
}
