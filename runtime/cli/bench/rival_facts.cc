// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/rival_facts.h"

#include <cstdint>
#include <initializer_list>

#include "cli/bench/method.h"

namespace dt::cli::bench {
namespace {

// What a rival cannot do is kept here, so that it is said before anything runs.
struct Facts {
  const char* name;
  const char* packages;  // of Debian
  uint32_t dtypes;       // bits of bench_dtype
  uint32_t collectives;  // bits of bench_collective
};

constexpr uint32_t bits(std::initializer_list<int> numbers) {
  uint32_t set = 0;
  for (const int number : numbers) set |= uint32_t{1} << number;
  return set;
}

constexpr uint32_t kMpiDtypes =
    bits({BENCH_I8, BENCH_U8, BENCH_I32, BENCH_U32, BENCH_I64, BENCH_U64, BENCH_F32, BENCH_F64});
constexpr uint32_t kMpiCollectives =
    bits({BENCH_ALLREDUCE, BENCH_ALLGATHER, BENCH_REDUCE_SCATTER, BENCH_BROADCAST, BENCH_REDUCE,
          BENCH_ALLTOALL, BENCH_GATHER, BENCH_SCATTER, BENCH_BARRIER, BENCH_ALLTOALLV,
          BENCH_ALLGATHERV, BENCH_SENDRECV, BENCH_PINGPONG});
constexpr uint32_t kGlooCollectives = kMpiCollectives & ~bits({BENCH_REDUCE_SCATTER});
// Its gloo gathers only blocks of one size.
constexpr uint32_t kTorchCollectives = kGlooCollectives & ~bits({BENCH_ALLGATHERV});
constexpr Facts kRivals[] = {
    {"openmpi", "openmpi-bin libopenmpi-dev", kMpiDtypes, kMpiCollectives},
    {"mpich", "mpich libmpich-dev", kMpiDtypes, kMpiCollectives},
    {"gloo", "libgloo-dev g++", kMpiDtypes | bits({BENCH_F16}), kGlooCollectives},
    {"torch", "python3-torch",
     bits({BENCH_I8, BENCH_U8, BENCH_I32, BENCH_I64, BENCH_F16, BENCH_F32, BENCH_F64}),
     kTorchCollectives},
};

const Facts* facts_of(const std::string& name) {
  for (const Facts& facts : kRivals) {
    if (name == facts.name) return &facts;
  }
  return nullptr;
}

}  // namespace

const std::vector<std::string>& rival_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Facts& facts : kRivals) result.emplace_back(facts.name);
    return result;
  }();
  return names;
}

Status check_rival(const std::string& name, const Options& options) {
  const std::string option = "--compare " + name + ": ";
  const Facts* const facts = facts_of(name);
  if (facts == nullptr) {
    return Status(Code::kInvalidArgument, option + "there are openmpi, mpich, gloo and torch");
  }
  const bool has_dtype = (facts->dtypes >> options.dtype & 1) != 0;
  const bool has_op = options.op != BENCH_AVG;
  const bool has_collective = (facts->collectives >> options.collective & 1) != 0;
  if (has_dtype && has_op && has_collective) return {};
  if (!has_collective && options.collective != BENCH_REDUCE_SCATTER) {
    return Status(Code::kInvalidArgument, option + collective_name(options) + " of " + name +
                                              " is not measured; leave out one of the two");
  }
  const bool is_mpi = facts->dtypes == kMpiDtypes;
  const std::string lacks = !has_collective ? collective_name(options)
                            : !has_op       ? "avg"
                            : is_mpi        ? "f16 and bf16"
                                            : dtype_name(options);
  return Status(Code::kInvalidArgument, option + (is_mpi ? "MPI" : name) + " has no " + lacks +
                                            "; leave out one of the two");
}

const char* rival_packages(const std::string& name) {
  const Facts* const facts = facts_of(name);
  return facts != nullptr ? facts->packages : "";
}

}  // namespace dt::cli::bench
