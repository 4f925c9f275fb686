// SPDX-License-Identifier: Apache-2.0
// How much of a reducer's communication a backward pass hides.
//   [dt run -n N] overlap [--device cuda|host] [--layers N] [--count PARAMETERS_OF_A_LAYER]
//     [--ratio COMPUTE_TO_COMMUNICATION] [--blocks N] [--rounds N] [--compute work|wait]
// Each round has a step of compute alone, one of communication alone, one of both, and one of both
// after each other, in turns. A layer's compute is so long that a step of compute alone takes
// --ratio times one of communication alone. On a GPU it is a kernel that spins on all but 32
// multiprocessors; over host memory a fixed amount of work in registers, which takes longer where
// communication uses the same processor, or with --compute wait a sleep, as of a program that waits
// for something else. Ranks that share a GPU (backend.shared_gpu = host) take
// turns on it and so say little of hiding.
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "training.h"

using namespace dt::test;

namespace {

constexpr unsigned kLimitS = 500;
constexpr int kSkipped = 77;
constexpr int kWarmUp = 3;
constexpr int32_t kLeftFree = 32;          // multiprocessors, as many as NCCL takes at most
constexpr int64_t kLeastLayerNs = 20'000;  // where communication takes nothing

struct Options {
  bool cuda = true;
  Training::Options training;
  double ratio = 2;
  bool waits = false;
  int32_t blocks = 0;  // 0: all but kLeftFree multiprocessors
  int rounds = 15;
};

bool parse(int count, char** words, Options* options) {
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string word = words[i];
    const std::string value = words[i + 1];
    const double number = std::strtod(value.c_str(), nullptr);
    if (word == "--device" && (value == "cuda" || value == "host")) {
      options->cuda = value == "cuda";
    } else if (word == "--compute" && (value == "work" || value == "wait")) {
      options->waits = value == "wait";
    } else if (number <= 0) {
      return false;
    } else if (word == "--layers") {
      options->training.layers = static_cast<int32_t>(number);
    } else if (word == "--count") {
      options->training.layer_count = static_cast<int64_t>(number);
    } else if (word == "--ratio") {
      options->ratio = number;
    } else if (word == "--blocks") {
      options->blocks = static_cast<int32_t>(number);
    } else if (word == "--rounds") {
      options->rounds = static_cast<int>(number);
    } else {
      return false;
    }
  }
  return count % 2 == 1;
}

/// Work that needs nothing of a processor but its arithmetic.
/// Its result is above zero.
double spend(int64_t units) {
  std::array<double, 16> x;
  x.fill(1);
  for (int64_t i = 0; i < units; ++i) {
    for (double& each : x) each = each * 0.999 + 0.001;
  }
  return std::accumulate(x.begin(), x.end(), 0.0);
}

/// The kernel wakes the thread, as it does when a device is done.
void wait_for_timer(int64_t duration_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  static const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  itimerspec when{};
  when.it_value = {duration_ns / kSecond, std::max<int64_t>(duration_ns % kSecond, 1)};
  uint64_t times = 0;
  if (timerfd_settime(timer, 0, &when, nullptr) != 0 ||
      read(timer, &times, sizeof times) != static_cast<ssize_t>(sizeof times)) {
    need(dt::Status(dt::Code::kSystem, "no timer: " + dt::errno_text(errno)));
  }
}

/// Of a processor that does nothing else: the best of some samples.
double units_per_ns() {
  constexpr int kSamples = 50;
  constexpr int64_t kUnits = 20'000;
  double best = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double begin_us = now_us();
    const bool done = spend(kUnits) > 0;
    const double ns = (now_us() - begin_us) * 1e3;
    if (done && ns > 0) best = std::max(best, static_cast<double>(kUnits) / ns);
  }
  return best;
}

Training::Compute compute_of(const Session& session, const Options& options) {
  if (session.gpu() == nullptr && options.waits) {
    return [](Layer layer) {
      wait_for_timer(layer.duration_ns);
      layer.duration_ns = 0;
      run_layer(layer);
      return dt::Status();
    };
  }
  if (session.gpu() == nullptr) {
    return [speed = units_per_ns()](Layer layer) {
      const double units = static_cast<double>(layer.duration_ns) * speed;
      layer.duration_ns = 0;
      if (spend(static_cast<int64_t>(units)) <= 0) layer.value = 0;  // never
      run_layer(layer);
      return dt::Status();
    };
  }
  const dt::cuda::DeviceInfo& device = session.gpu()->device();
  int32_t blocks = options.blocks;
  if (blocks == 0) blocks = std::max(1, device.multiprocessors - kLeftFree);
  return [index = device.index, stream = session.stream(), blocks](const Layer& layer) {
    const int32_t error = launch_layer(layer, index, stream, blocks);
    if (error == 0) return dt::Status();
    return dt::Status(dt::Code::kCuda, dt::format("a layer's kernel is not launched: %d", error));
  };
}

/// So that compute alone takes `ratio` times communication alone.
void settle(Session* session, Training* training, double ratio) {
  for (int i = 0; i < kWarmUp; ++i) {
    for (const Part part : kParts) need(training->step(part).status());
  }
  std::vector<double> alone_us;
  for (int i = 0; i < kWarmUp; ++i) {
    auto times = training->step(Part::kCommunicate);
    need(times.status());
    alone_us.push_back(times.value().gpu_us);
  }
  const double layer_ns = figures(alone_us).median * 1e3 * ratio / training->layers();
  training->set_layer_ns(std::max(kLeastLayerNs, static_cast<int64_t>(layer_ns)));
  session->barrier();
}

void print_header(const Session& session, const Options& options, const Training& training) {
  const char* where =
      session.gpu() != nullptr ? session.gpu()->device().name.c_str() : "host memory";
  std::printf(
      "# overlap: dt %s, %s, %d rank%s; %d layers of %lld f32, %d buckets; %.1f us of "
      "compute per layer; %d rounds in turns\n",
      dt_version(), where, session.ranks(), session.ranks() == 1 ? "" : "s",
      options.training.layers, static_cast<long long>(options.training.layer_count),
      training.statistics().bucket_count, static_cast<double>(training.layer_ns()) * 1e-3,
      options.rounds);
}

}  // namespace

int main(int argument_count, char** arguments) {
  Options options;
  if (!parse(argument_count, arguments, &options)) {
    std::fprintf(stderr,
                 "overlap [--device cuda|host] [--layers N] [--count N] [--ratio X] "
                 "[--blocks N] [--rounds N] [--compute work|wait]\n");
    return 2;
  }
  const auto session = Session::join("overlap", options.cuda, kLimitS);
  {
    auto made = Training::create(session.get(), options.training, compute_of(*session, options));
    if (made.status().code() == dt::Code::kUnsupported) {
      std::printf("skipped: overlap: %s\n", made.status().message().c_str());
      return kSkipped;
    }
    need(made.status());
    Training* const training = made.value().get();
    need(training->verify());
    settle(session.get(), training, options.ratio);
    const auto measured = measure(session.get(), training, options.rounds);
    need(measured.status());
    if (session->rank() == 0) {
      print_header(*session, options, *training);
      std::fputs(overlap_table(measured.value(), options.cuda).c_str(), stdout);
      std::fputs(goal_line(measured.value(), session->ranks()).c_str(), stdout);
    }
  }
  session->leave();
  return 0;
}
