// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace gpt {
namespace {

// The rate rises with the square of the step: with a full rate from the start AdamW turns gradients
// that are only rounding differences into whole steps, and those between numbers of ranks grow.
constexpr int64_t kMostWarmupSteps = 100;

std::string refuse_nan(const std::string& text) {  // a range lets nan through
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "give a number" : "";
}

DeviceKind device_of(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  return name == "cuda" ? DeviceKind::kCuda : DeviceKind::kAuto;
}

void add_options(CLI::App* app, Options* out, std::string* device, bool* untied) {
  app->add_option("files", out->files, "Text to learn; none: this system's licence texts");
  app->add_option("--device", *device, "auto: cuda where backend.name is nccl, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app->add_option("--dtype", out->dtype, "Of activations and gradients; auto: bf16 on cuda")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  app->add_option("--layers", out->shape.layers, "Transformer blocks")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  app->add_option("--channels", out->shape.channels, "Width of the network")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app->add_option("--heads", out->shape.heads, "Attention heads; they divide --channels")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  app->add_option("--length", out->shape.length, "Bytes that the network sees at once")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app->add_flag("--untied", *untied, "Give the head weights of its own");
  app->add_option("--batch", out->batch, "Sequences per step over all ranks")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  app->add_option("--steps", out->steps, "Steps to train")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  app->add_option("--lr", out->rate, "Peak learning rate")
      ->check(CLI::Range(0.0, 100.0))
      ->check(refuse_nan);
  app->add_option("--decay", out->decay, "AdamW's weight decay")
      ->check(CLI::Range(0.0, 100.0))
      ->check(refuse_nan);
  app->add_option("--seed", out->seed, "Of the weights and of the batches");
  app->add_option("--interval", out->interval, "Steps between two lines of output")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  app->add_option("--bucket-bytes", out->bucket_bytes,
                  "Gradients reduced together; 0: a sixth of all, at most 25 MiB")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--text-bytes", out->text_bytes, "Read no more text than this")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("--loss-log", out->loss_log, "CSV file: step,loss");
  app->add_flag(
      "--apart", out->apart,
      "Exchange no gradients, so that ranks drift apart: the speed without communication");
  app->add_flag("--quiet", out->quiet, "Print errors only");
}

}  // namespace

bool parse_options(int argc, char** argv, Options* out, int* out_exit_code) {
  CLI::App app(
      "Trains a small GPT on the bytes of text files, on as many ranks as it is started on:\n"
      "  gpt                                              one process\n"
      "  dt run -n 4 gpt                                  four\n"
      "  DT_BACKEND_NAME=nccl dt run -n 4 gpt             four GPUs");
  app.option_defaults()->always_capture_default();
  std::string device = "auto";
  bool untied = false;
  add_options(&app, out, &device, &untied);
  std::string complaint;
  try {
    app.parse(argc, argv);
    if (out->shape.channels % out->shape.heads != 0) {
      complaint = "--channels " + std::to_string(out->shape.channels) +
                  " cannot be dealt to --heads " + std::to_string(out->shape.heads) +
                  "; choose channels that the heads divide";
    } else if (device == "cpu" && out->dtype == "bf16") {
      complaint = "--dtype bf16 needs a GPU; use --dtype f32 with --device cpu";
    }
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      *out_exit_code = app.exit(error);
      return false;
    }
    complaint = error.what();
  }
  if (!complaint.empty()) {
    std::fprintf(stderr, "gpt: %s; see gpt --help\n", complaint.c_str());
    *out_exit_code = 2;
    return false;
  }
  out->device = device_of(device);
  out->shape.tied = !untied;
  return true;
}

std::string check_batch(int64_t batch, int64_t world_size) {
  if (batch % world_size == 0) return {};
  const int64_t below = batch / world_size * world_size;
  std::string next = std::to_string(below + world_size);
  if (below > 0) next = std::to_string(below) + " or " + next;
  return "--batch " + std::to_string(batch) + " cannot be dealt evenly to " +
         std::to_string(world_size) + " ranks; choose " + next;
}

double learning_rate_at(double peak, int64_t step, int64_t steps) {
  const double pi = 3.14159265358979323846;
  const int64_t rising = std::min(kMostWarmupSteps, steps / 3 + 1);
  const double warmup = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rising));
  const double done = static_cast<double>(step) / static_cast<double>(std::max<int64_t>(steps, 1));
  return peak * warmup * warmup * (0.1 + 0.9 * 0.5 * (1 + std::cos(pi * done)));
}

std::string describe(const Options& options, Precision precision, uint64_t text_hash) {
  char text[400];
  const Shape& shape = options.shape;
  std::snprintf(text, sizeof text,
                "%s, layers %" PRId64 ", channels %" PRId64 ", heads %" PRId64 ", length %" PRId64
                ", %s head, batch %" PRId64 ", steps %" PRId64 ", lr %g, decay %g, seed %" PRId64
                ", interval %" PRId64 "%s%s, text %016" PRIx64,
                precision == Precision::kBf16 ? "bf16" : "f32", shape.layers, shape.channels,
                shape.heads, shape.length, shape.tied ? "tied" : "untied", options.batch,
                options.steps, options.rate, options.decay, options.seed, options.interval,
                options.loss_log.empty() ? "" : " and a log", options.apart ? ", apart" : "",
                text_hash);
  return text;
}

}  // namespace gpt
