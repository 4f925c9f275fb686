// SPDX-License-Identifier: Apache-2.0
//
// Trains a small GPT on the bytes of text files, on one rank or many, on CPUs or GPUs:
//
//   $ gpt
//   $ dt run -n 4 gpt README.md
//   $ DT_BACKEND_NAME=nccl dt run -n 4 gpt --layers 12 --channels 768 --heads 12 --length 1024
//
// What distributed training adds to a trainer is in trainer.cc, and in sharded.cc for parameters in
// shards; the other files know nothing of dt.

#include <cblas.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "data.h"
#include "device_cpu.h"
#include "device_cuda.h"
#include "options.h"
#include "trainer.h"

namespace {

[[noreturn]] void fail(int rank, const char* message) {
  if (rank >= 0) {
    std::fprintf(stderr, "gpt: rank %d: %s\n", rank, message);
  } else {
    std::fprintf(stderr, "gpt: %s\n", message);
  }
  // Not a return: the trainer's buffers may still be in use by operations that never ended.
  std::_Exit(1);
}

/// Settles where to compute, and that dt's communicator is there too.
bool choose_gpu(gpt::DeviceKind wanted, dt::Config* config) {
  bool gpu = wanted == gpt::DeviceKind::kCuda;
  if (wanted == gpt::DeviceKind::kAuto) gpu = config->get("backend.name") == "nccl";
  if (gpu && !gpt::has_cuda()) gpt::make_cuda_device(0, gpt::Precision::kF32);  // throws
  if (wanted != gpt::DeviceKind::kAuto) config->set("backend.name", gpu ? "nccl" : "host");
  return gpu;
}

std::unique_ptr<gpt::Device> make_device(bool gpu, const std::string& dtype,
                                         const dt::Config& config, int local_rank) {
  if (!gpu) {
    return gpt::make_cpu_device(dtype == "bf16" ? gpt::Precision::kBf16 : gpt::Precision::kF32);
  }
  const int chosen = std::atoi(config.get("backend.device").c_str());
  return gpt::make_cuda_device(chosen >= 0 ? chosen : local_rank,
                               dtype == "f32" ? gpt::Precision::kF32 : gpt::Precision::kBf16);
}

}  // namespace

int main(int argc, char** argv) {
  gpt::Options options;
  int exit_code = 0;
  if (!gpt::parse_options(argc, argv, &options, &exit_code)) return exit_code;
  openblas_set_num_threads(1);  // one rank per core; more threads would only take turns

  std::optional<dt::Job> job;
  std::unique_ptr<gpt::Trainer> trainer;
  int rank = -1;
  try {
    dt::Config config;
    const bool gpu = choose_gpu(options.device, &config);
    job.emplace(config);
    const dt::Place place = job->place();
    rank = place.rank;
    std::string text;
    gpt::Error error = gpt::check_batch(options.batch, place.world_size, options.accumulate);
    if (error.empty()) {
      error = gpt::read_text(options.files.empty() ? gpt::default_files() : options.files,
                             options.text_bytes, &text);
    }
    if (error.empty()) {
      error = gpt::check_length(static_cast<int64_t>(text.size()), options.shape.length);
    }
    if (!error.empty()) throw std::runtime_error(error);
    trainer = std::make_unique<gpt::Trainer>(
        options, &*job, make_device(gpu, options.dtype, config, place.local_rank), std::move(text));
    trainer->run();
    trainer.reset();
    job->finalize();
    return 0;
  } catch (const dt::Error& error) {
    fail(rank, error.what());
  } catch (const std::exception& error) {
    // The other ranks end with this message too, instead of hearing of a death.
    if (job) dt_abort(job->get_handle(), error.what());
    fail(rank, error.what());
  }
}
