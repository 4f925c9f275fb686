// SPDX-License-Identifier: Apache-2.0
// What dt_allreduce() costs its caller beside a raw ncclAllReduce: in one process for each rank,
// call by call in turns, on one stream and the same memory.
//   [dt run -n N] nccl_overhead [--device cuda|host] [--samples N] [--without-nccl]
// call: the caller's time inside the call, which gives a work handle; ordered: until the stream is
// ordered behind it, so that the next call may follow; done: until the host has seen the result.
// alloc: the most allocations by operator new of one call, on the calling thread. With one rank dt
// copies by itself and does not ask NCCL. --device host times dt alone, over host memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ways.h"

using namespace dt::test;

namespace {

constexpr unsigned kLimitS = 500;
constexpr int64_t kSizes[] = {8, 4 << 10, 64 << 10, 1 << 20, 16 << 20};
constexpr int64_t kFewerFrom = 1 << 20;  // bytes, from which a tenth of the samples must do

struct Options {
  bool cuda = true;
  bool nccl = true;
  int64_t samples = 1000;
};

/// False: they are not understood.
bool parse(int count, char** words, Options* options) {
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const std::string value = i + 1 < count ? words[i + 1] : "";
    if (word == "--without-nccl") {
      options->nccl = false;
    } else if (word == "--device" && (value == "cuda" || value == "host")) {
      options->cuda = words[++i] == std::string("cuda");
    } else if (word == "--samples" && std::atoll(value.c_str()) > 0) {
      options->samples = std::atoll(words[++i]);
    } else {
      return false;
    }
  }
  options->nccl = options->nccl && options->cuda;
  return true;
}

/// The file that dt itself is to open.
std::string library_path() {
  dt_config* config = nullptr;
  need(dt_config_create(nullptr, &config));
  char path[4097] = "";
  int64_t bytes = 0;
  need(dt_config_get(config, "nccl.library", path, sizeof path, &bytes));
  dt_config_destroy(config);
  return path;
}

void print_header(const Session& session, const dt::nccl::Library* library) {
  if (session.rank() != 0) return;
  const char* where =
      session.gpu() != nullptr ? session.gpu()->device().name.c_str() : "host memory";
  std::printf("# nccl_overhead: dt %s, %s, %d rank%s, %s%s; figures of rank 0, in us\n",
              dt_version(), where, session.ranks(), session.ranks() == 1 ? "" : "s",
              library != nullptr ? "NCCL " : "without NCCL",
              library != nullptr ? library->version_text().c_str() : "");
  std::fputs(way_header().c_str(), stdout);
}

void run(Session* session, const Options& options) {
  const auto bytes = kSizes[std::size(kSizes) - 1];
  Sum sum;
  sum.send = static_cast<const float*>(session->memory(bytes));
  sum.recv = static_cast<float*>(session->memory(bytes));
  std::unique_ptr<RawNccl> raws[2];
  std::shared_ptr<const dt::nccl::Library> library;
  if (options.nccl) {
    auto opened = dt::nccl::Library::open(library_path());
    need(opened.status());
    library = opened.value();
    for (int blocking = 0; blocking < 2; ++blocking) {
      auto raw = RawNccl::create(session, library, blocking == 1 ? "NCCL" : "NCCL, no blocking",
                                 blocking == 1);
      need(raw.status());
      raws[blocking] = std::move(raw).value();
    }
  }
  print_header(*session, library.get());
  std::string goal;
  for (const int64_t size : kSizes) {
    sum.count = size / static_cast<int64_t>(sizeof(float));
    std::vector<Way> ways = {dt_way(session, &sum)};
    for (const auto& raw : raws) {
      if (raw != nullptr) ways.push_back(raw->way(&sum));
    }
    need(verify(session, &ways, sum));
    session->barrier();
    Samples samples;
    samples.count = size < kFewerFrom ? options.samples : (options.samples + 9) / 10;
    need(measure(&ways, samples));
    if (session->rank() != 0) continue;
    std::fputs(way_lines(sum, ways).c_str(), stdout);
    std::fflush(stdout);
    if (goal.empty()) goal = goal_line(ways[0]);
  }
  std::fputs(goal.c_str(), stdout);
  for (const auto& raw : raws) {
    if (raw != nullptr) need(raw->end());
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  Options options;
  if (!parse(argument_count, arguments, &options)) {
    std::fprintf(stderr, "nccl_overhead [--device cuda|host] [--samples N] [--without-nccl]\n");
    return 2;
  }
  const auto session = Session::join("nccl_overhead", options.cuda, kLimitS);
  run(session.get(), options);
  session->leave();
  return 0;
}
