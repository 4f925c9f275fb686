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
  CLI::Option* tune = app->add_option("--tune-steps", out->tune_steps,
                                      "Steps with each of some bucket sizes, of which the fastest "
                                      "stays")
                          ->check(CLI::Range(int64_t{3}, int64_t{1'000'000}));
  app->add_option("--text-bytes", out->text_bytes, "Read no more text than this")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("--accumulate", out->accumulate,
                  "Backward passes of a step, each over a part of its batch")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  app->add_option("--wire", out->wire, "What gradients of f32 travel as")
      ->check(CLI::IsMember({"same", "f16", "bf16", "8bit"}));
  app->add_option("--powersgd", out->power_sgd,
                  "Gradients of f32 travel as matrices of this rank; 0: not")
      ->check(CLI::Range(int64_t{0}, int64_t{64}));
  app->add_option("--clip", out->clip, "Scale gradients to at most this norm; 0: not")
      ->check(CLI::Range(0.0, 1e30))
      ->check(refuse_nan);
  CLI::Option* zero =
      app->add_option(
             "--zero", out->zero,
             "Stage of ZeRO: 1 optimizer state in shards, 2 gradients too, 3 parameters too; "
             "0: all whole")
          ->check(CLI::Range(int64_t{0}, int64_t{3}))
          ->excludes(tune);
  app->add_option("--offload", out->offload,
                  "Directory on a disk for what a rank keeps of the state, with --zero 3 of the "
                  "parameters too (on GPUs these are in memory of the host)")
      ->needs(zero);
  app->add_flag("--memory", out->memory, "Measure a rank's memory in the last step");
  app->add_option("--loss-log", out->loss_log, "CSV file: step,loss");
  CLI::Option* apart = app->add_flag(
      "--apart", out->apart,
      "Exchange no gradients, so that ranks drift apart: the speed without communication");
  CLI::Option* outer =
      app->add_option("--outer", out->outer,
                      "Groups of ranks train by themselves, and come together after so many steps "
                      "(DiLoCo), over host memory; 0: not")
          ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
          ->excludes(apart);
  app->add_option("--group", out->group, "Ranks of a group, which exchange gradients in each step")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->needs(outer);
  app->add_option("--outer-delay", out->outer_delay, "Steps that go on while groups come together")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->needs(outer);
  app->add_option("--outer-format", out->outer_format, "What travels between groups")
      ->check(CLI::IsMember({"f32", "bf16", "8bit", "4bit"}))
      ->needs(outer);
  app->add_option(
      "--checkpoint", out->checkpoint,
      "What is saved, and what a job that is started again goes on from, on a disk that all ranks "
      "share. With --outer a file that is replaced each time groups have come together; with "
      "--zero FILE.STEP, each --interval steps in place of the one before");
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

std::string check_batch(int64_t batch, int64_t world_size, int64_t passes) {
  const int64_t parts = world_size * passes;
  if (batch % parts == 0) return {};
  const int64_t below = batch / parts * parts;
  std::string next = std::to_string(below + parts);
  if (below > 0) next = std::to_string(below) + " or " + next;
  return "--batch " + std::to_string(batch) + " cannot be dealt evenly to " +
         std::to_string(world_size) + " ranks" +
         (passes > 1 ? " with --accumulate " + std::to_string(passes) : "") + "; choose " + next;
}

std::string check_outer(const Options& options, bool is_gpu, int64_t world_size) {
  if (options.outer == 0) {
    if (options.checkpoint.empty()) return {};
    if (options.apart) return "--apart has ranks that share nothing; leave --checkpoint out";
    if (options.zero) return {};
    return "--checkpoint needs shards (--zero 0 to 3) or groups that come together (--outer)";
  }
  if (is_gpu) return "--outer is for host memory only; use --device cpu, or leave it out";
  if (options.zero) return "--outer has no shards in this program; leave --zero out";
  if (world_size % options.group != 0) {
    return "--group " + std::to_string(options.group) + " does not divide the " +
           std::to_string(world_size) + " ranks; choose a divisor";
  }
  if (options.outer_delay >= options.outer) {
    return "--outer-delay must be less than --outer, which is " + std::to_string(options.outer);
  }
  return {};
}

std::string check_exchange(const Options& options, Precision precision) {
  if (options.power_sgd > 0 && precision == Precision::kBf16) {
    return "--powersgd is for gradients of f32; use --dtype f32, or leave it out";
  }
  if (options.power_sgd > 0 && options.wire == "8bit") {
    return "--powersgd does not go with --wire 8bit; use --wire bf16";
  }
  if (options.wire == "8bit" && options.zero) {
    return "--wire 8bit does not go with --zero; use --wire bf16";
  }
  if (options.wire != "same" && precision == Precision::kBf16) {
    return "--wire " + options.wire + " is for gradients of f32; use --dtype f32, or leave it out";
  }
  return {};
}

double learning_rate_at(double peak, int64_t step, int64_t steps) {
  const double pi = 3.14159265358979323846;
  const int64_t rising = std::min(kMostWarmupSteps, steps / 3 + 1);
  const double warmup = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rising));
  const double done = static_cast<double>(step) / static_cast<double>(std::max<int64_t>(steps, 1));
  return peak * warmup * warmup * (0.1 + 0.9 * 0.5 * (1 + std::cos(pi * done)));
}

std::string describe(const Options& options, Precision precision, uint64_t text_hash) {
  char text[500];
  const Shape& shape = options.shape;
  std::snprintf(
      text, sizeof text,
      "%s, layers %" PRId64 ", channels %" PRId64 ", heads %" PRId64 ", length %" PRId64
      ", %s head, batch %" PRId64 ", steps %" PRId64 ", lr %g, decay %g, seed %" PRId64
      ", interval %" PRId64 ", accumulate %" PRId64 ", wire %s, powersgd %" PRId64
      ", clip %g, zero %s%s%s%s, outer %" PRId64 " %" PRId64 " %" PRId64 " %s%s, text %016" PRIx64,
      precision == Precision::kBf16 ? "bf16" : "f32", shape.layers, shape.channels, shape.heads,
      shape.length, shape.tied ? "tied" : "untied", options.batch, options.steps, options.rate,
      options.decay, options.seed, options.interval, options.accumulate, options.wire.c_str(),
      options.power_sgd, options.clip,
      options.zero ? std::to_string(*options.zero).c_str() : "none",
      options.memory ? ", memory measured" : "", options.loss_log.empty() ? "" : " and a log",
      options.apart ? ", apart" : "", options.outer, options.group, options.outer_delay,
      options.outer_format.c_str(), options.checkpoint.empty() ? "" : " saved", text_hash);
  return text;
}

}  // namespace gpt
