// SPDX-License-Identifier: Apache-2.0
// How much of a reducer's communication a backward pass hides.
//   [dt run -n N] overlap [--device cuda|host] [--layers N] [--count PARAMETERS_OF_A_LAYER]
//     [--ratio COMPUTE_TO_COMMUNICATION] [--blocks N] [--rounds N]
// Each round has a step of compute alone, one of communication alone and one of both, in turns. A
// layer's compute is a kernel that spins on all but 32 multiprocessors, so long that a step of
// compute alone takes --ratio times one of communication alone. Ranks that share a GPU
// (backend.shared_gpu = host) take turns on it and so say little of hiding.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

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

Training::Compute compute_of(const Session& session, int32_t blocks) {
  if (session.gpu() == nullptr) {
    return [](const Layer& layer) {
      run_layer(layer);
      return dt::Status();
    };
  }
  const dt::cuda::DeviceInfo& device = session.gpu()->device();
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
                 "[--blocks N] [--rounds N]\n");
    return 2;
  }
  const auto session = Session::join("overlap", options.cuda, kLimitS);
  {
    auto made =
        Training::create(session.get(), options.training, compute_of(*session, options.blocks));
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
