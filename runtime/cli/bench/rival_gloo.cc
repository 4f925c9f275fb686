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
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
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
void operate(Rank* rank, const bench_case& c) {
  T* const send = reinterpret_cast<T*>(bench_send(&c));
  T* const recv = reinterpret_cast<T*>(bench_recv(&c));
  const auto count = static_cast<size_t>(c.count);
  switch (c.collective) {
    case BENCH_ALLREDUCE: allreduce(rank, send, recv, count, c.op); break;
    case BENCH_ALLGATHER: {
      gloo::AllgatherOptions options(rank->context);
      if (!c.in_place) options.setInput(send, count);
      options.setOutput(reinterpret_cast<T*>(c.b), count * static_cast<size_t>(c.ranks));
      options.setTag(rank->tag++);
      gloo::allgather(options);
      break;
    }
    case BENCH_BROADCAST: {
      gloo::BroadcastOptions options(rank->context);
      options.setOutput(recv, count);
      options.setRoot(0);
      options.setTag(rank->tag++);
      gloo::broadcast(options);
      break;
    }
    case BENCH_REDUCE: {
      gloo::ReduceOptions options(rank->context);
      if (!c.in_place) options.setInput(send, count);
      options.setOutput(recv, count);
      options.setReduceFunction(reduce_function<T>(c.op));
      options.setRoot(0);
      options.setTag(rank->tag++);
      gloo::reduce(options);
      break;
    }
    default: throw std::runtime_error("gloo does not have this collective");
  }
}

void operate(Rank* rank, const bench_case& c) {
  if (c.count == 0) return;
  switch (c.dtype) {
    case BENCH_I8: return operate<int8_t>(rank, c);
    case BENCH_U8: return operate<uint8_t>(rank, c);
    case BENCH_I32: return operate<int32_t>(rank, c);
    case BENCH_U32: return operate<uint32_t>(rank, c);
    case BENCH_I64: return operate<int64_t>(rank, c);
    case BENCH_U64: return operate<uint64_t>(rank, c);
    case BENCH_F16: return operate<gloo::float16>(rank, c);
    case BENCH_F32: return operate<float>(rank, c);
    case BENCH_F64: return operate<double>(rank, c);
    default: throw std::runtime_error("gloo does not have this dtype");
  }
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
  return total / static_cast<double>(iterations);
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
  if (c.rank == 0) {
    printf("dt-bench-library gloo %d.%d.%d over TCP\n", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
           GLOO_VERSION_PATCH);
  }
  for (int i = kFirstSize; i < argc; ++i) {
    c.count = bench_count(c.collective, c.dtype, c.ranks, atoll(argv[i]));
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
