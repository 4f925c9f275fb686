// SPDX-License-Identifier: Apache-2.0
// Real ranks over GPU memory: right results, and the loss of one amid operations. One GPU is
// enough: NCCL takes ranks with different NCCL_HOSTID for ranks of several hosts and connects them
// over loopback; without NCCL they exchange through the host. Ranks then take turns on the GPU, so
// that nothing here says how fast anything is. On host memory the same file tests itself.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "../multiprocess/dt_run.h"
#include "backend/nccl/library.h"
#include "cuda/runtime.h"

using dt::test::count_of;
using dt::test::lines_of;
using dt::test::Process;
using dt::test::required_variable;
using Strings = std::vector<std::string>;

namespace {

#ifdef DT_PEERS_ON_HOST
constexpr int kLimitMs = 2'000;  // of an operation
constexpr int kSlackMs = 3'000;  // until it is told
constexpr int kSilenceMs = 60'000;
#else
constexpr int kLimitMs = 6'000;
constexpr int kSlackMs = 9'000;      // an abort of NCCL has its own deadline
constexpr int kSilenceMs = 150'000;  // CUDA and NCCL start in seconds; twice with a restart
#endif

/// What carries the collectives.
struct Way {
  const char* name;
  const char* device;
  bool own_hosts;  ///< each rank is a host of its own to NCCL
  Strings environment;
};

#ifdef DT_PEERS_ON_HOST
std::vector<Way> ways() { return {{"host memory", "host", false, {}}}; }
#else
/// The first GPU that this process may see, for all ranks.
std::string one_gpu() {
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  const std::string list = visible != nullptr ? visible : "0";
  return "CUDA_VISIBLE_DEVICES=" + list.substr(0, list.find(','));
}

std::vector<Way> ways() {
  std::vector<Way> all = {
      {"staged on one GPU", "cuda", false, {one_gpu(), "DT_BACKEND_SHARED_GPU=host"}}};
  const char* const path = getenv("DT_NCCL_LIBRARY");
  const auto nccl = dt::nccl::Library::open(path != nullptr ? path : "");
  if (!nccl.ok()) {
    std::printf("not run: over NCCL: %s\n", nccl.status().message().c_str());
    return all;
  }
  all.push_back(
      {"NCCL on one GPU",
       "cuda",
       true,
       {one_gpu(), "NCCL_SOCKET_IFNAME=lo", "NCCL_NET=Socket", "NCCL_IB_DISABLE=1",
        "NCCL_MNNVL_ENABLE=0", "NCCL_NVLS_ENABLE=0", "NCCL_RAS_ENABLE=0", "NCCL_MAX_CTAS=4"}});
  const auto devices = dt::cuda::list_devices();
  if (devices.ok() && devices.value().size() >= 2) {
    all.push_back({"NCCL on two GPUs", "cuda", false, {}});
  } else {
    std::printf("not run: NCCL on two GPUs: there is one\n");
  }
  return all;
}
#endif

class Job {
 public:
  Job(const Way& way, int ranks, const Strings& options, const Strings& mode)
      : process_(command(way, ranks, options, mode), options_of(way)) {}

  Process& process() { return process_; }

 private:
  static Strings command(const Way& way, int ranks, const Strings& options, const Strings& mode) {
    Strings words = {required_variable("DT_COMMAND"), "run", "-n", std::to_string(ranks)};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    if (way.own_hosts) {
      words.insert(words.end(), {"sh", "-c", "NCCL_HOSTID=dt-$RANK exec \"$0\" \"$@\""});
    }
    words.insert(words.end(), {required_variable("RANK_PROGRAM"), way.device});
    words.insert(words.end(), mode.begin(), mode.end());
    return words;
  }
  static Process::Options options_of(const Way& way) {
    Process::Options options;
    options.environment = way.environment;
    options.silence_ms = kSilenceMs;
    return options;
  }

  Process process_;
};

/// Of "... after N ms: ..."; -1: there is none.
int ms_of(const std::string& line) {
  const size_t at = line.find(" after ");
  return at == std::string::npos ? -1 : atoi(line.c_str() + at + 7);
}

}  // namespace

TEST_CASE("each collective is right on 1, 2 and 3 ranks") {
  for (const Way& way : ways()) {
    for (const int ranks : {1, 2, 3}) {
      if (ranks == 3 && std::string(way.name) == "NCCL on two GPUs") continue;
      CAPTURE(std::string(way.name));
      CAPTURE(ranks);
      Job job(way, ranks, {}, {"check"});
      const int code = job.process().wait();
      INFO(job.process().err);
      CHECK(code == 0);
      CHECK(count_of(job.process().out, ": right\n") == static_cast<size_t>(ranks));
    }
  }
}

TEST_CASE("a rank that is killed, stopped or leaves is named in time; a new attempt works") {
  for (const Way& way : ways()) {
    for (const std::string end : {"KILL", "STOP", "LEAVE"}) {
      CAPTURE(std::string(way.name));
      CAPTURE(end);
      Job job(way, 2, {"--max-restarts", "1", "--grace-ms", "4000"},
              {"lose", "1", end, std::to_string(kLimitMs)});
      const int code = job.process().wait();
      INFO(job.process().out);
      INFO(job.process().err);
      CHECK(code == 0);
      CHECK(count_of(job.process().out, "ready ") == 2);
      int seen = 0;
      for (const std::string& line : lines_of(job.process().out)) {
        if (count_of(line, " saw DT_ERR_") == 0) continue;
        ++seen;
        MESSAGE(std::string(way.name) << ", " << end << ": " << line);
        CHECK(count_of(line, "rank 0 saw ") == 1);
        const bool lost = count_of(line, "DT_ERR_PEER_LOST of rank 1 ") == 1;
        // One that only stands still keeps its connections, so the operation's time must be over.
        const bool late = count_of(line, "DT_ERR_TIMEOUT of rank 1 ") == 1;
        CHECK((lost || (late && end == "STOP")));
        if (end == "LEAVE") CHECK(count_of(line, " has left the job with dt_finalize") == 1);
        CHECK(ms_of(line) >= 0);
        CHECK(ms_of(line) <= kLimitMs + kSlackMs);
      }
      CHECK(seen == 1);
      CHECK(count_of(job.process().out, ": right\n") == 2);
    }
  }
}
