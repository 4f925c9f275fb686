// SPDX-License-Identifier: Apache-2.0
// What the flight recorder and the counters cost: an operation written into the bare ring, without
// and with the counters, and dt_allreduce of one element on one rank with record.entries 0 (which
// counts nothing either) and 4096, in turn. Also with a work handle, which adds the time when the
// operation starts.
// Median [5 %-95 %] of the rounds, which are short, so that most are not interrupted.
//   record_cost [rounds] [calls]
#include <dt/dt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "record/recorder.h"

namespace {

[[noreturn]] void fail() {
  fprintf(stderr, "%s\n", dt_last_error());
  exit(1);
}

struct Alone {
  explicit Alone(const char* entries) {
    dt_config* config = nullptr;
    const bool good = dt_config_create(nullptr, &config) == DT_OK &&
                      dt_config_set(config, "record.entries", entries) == DT_OK &&
                      dt_config_set(config, "job.rank", "0") == DT_OK &&
                      dt_config_set(config, "job.world_size", "1") == DT_OK &&
                      dt_init(config, &job) == DT_OK && dt_comm_world(job, &comm) == DT_OK;
    if (!good) fail();
    dt_config_destroy(config);
  }
  ~Alone() {
    (void)dt_finalize(job, -1);
    dt_comm_destroy(comm);
    dt_job_destroy(job);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  dt_job* job = nullptr;
  dt_comm* comm = nullptr;
};

void blocking(dt_comm* comm) {
  float value = 1;
  if (dt_allreduce(comm, &value, &value, 1, DT_F32, DT_SUM, nullptr, nullptr) != DT_OK) fail();
}

void with_handle(dt_comm* comm) {
  float value = 1;
  dt_work* work = nullptr;
  if (dt_allreduce(comm, &value, &value, 1, DT_F32, DT_SUM, nullptr, &work) != DT_OK ||
      dt_work_wait(work, -1, nullptr) != DT_OK) {
    fail();
  }
  dt_work_destroy(work);
}

/// Between the twentieth part of the rounds that were fastest and the one that were slowest: a busy
/// machine stops some rounds for milliseconds.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t edge = values.size() / 20;
  return {values[edge], values[values.size() / 2], values[values.size() - 1 - edge]};
}

double ns_per_call(int calls, const std::function<void()>& body) {
  const int64_t begin = dt::monotonic_ns();
  body();
  return static_cast<double>(dt::monotonic_ns() - begin) / calls;
}

void print(const char* what, const Spread& spread) {
  printf("%-44s %7.1f [%.1f-%.1f] ns\n", what, spread.median, spread.low, spread.high);
}

void bare(const char* what, std::shared_ptr<dt::record::Meter> meter, const std::string* label,
          int rounds, int calls) {
  const auto recorder = dt::record::Recorder::create(4096, std::move(meter));
  const auto track = recorder->open({"world", 0, {0}, 0, false, false});
  dt::record::Call call;
  call.dtype = 8;
  call.count = 1;
  call.label = label;
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    times.push_back(ns_per_call(calls, [&] {
      for (int i = 0; i < calls; ++i) {
        recorder->complete(recorder->begin(*track, call), dt::Code::kOk);
      }
    }));
  }
  print(what, spread_of(times));
}

void compare(const char* what, void (*call)(dt_comm*), int rounds, int calls) {
  const Alone off("0");
  const Alone on("4096");
  std::vector<double> times[2];
  std::vector<double> differences;
  for (int round = -1; round < rounds; ++round) {
    double took[2];
    for (int k = 0; k < 2; ++k) {
      const int which = (round + k) & 1;  // each goes first as often as the other
      dt_comm* const comm = which == 0 ? off.comm : on.comm;
      took[which] = ns_per_call(calls, [&] {
        for (int i = 0; i < calls; ++i) call(comm);
      });
    }
    if (round < 0) continue;
    times[0].push_back(took[0]);
    times[1].push_back(took[1]);
    differences.push_back(took[1] - took[0]);
  }
  const Spread without = spread_of(times[0]);
  const Spread with = spread_of(times[1]);
  printf("%s\n", what);
  print("  record.entries = 0", without);
  print("  record.entries = 4096", with);
  print("  difference of a round", spread_of(differences));
  printf("  ratio of the medians: %.3f\n", with.median / without.median);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 3001;
  const int calls = argc > 2 ? atoi(argv[2]) : 2000;
  const std::string label = "bucket 3";
  bare("bare ring", nullptr, nullptr, rounds, calls);
  bare("bare ring, with a label", nullptr, &label, rounds, calls);
  bare("bare ring and counters", std::make_shared<dt::record::Meter>(1), nullptr, rounds, calls);
  const dt::record::Clock clock;
  int64_t sum = 0;
  print("  of that: two readings of the clock", spread_of({ns_per_call(calls, [&] {
          for (int i = 0; i < calls; ++i) sum += clock.ticks() ^ clock.ticks();
        })}));
  if (sum == 1) puts("");  // keeps the loop
  compare("dt_allreduce, one rank, one element, blocking", blocking, rounds, calls);
  compare("the same with a work handle", with_handle, rounds, calls / 4);
  return 0;
}
