// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fashion {
namespace {

/// A file that is replaced needs a directory that can be written, one that is rewritten does not.
std::string check_output(const std::string& option, const std::string& path, bool replaced) {
  if (path.empty()) return {};
  const std::string what = "cannot write " + option + " " + path + ": ";
  struct stat status = {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) return what + "it is a directory; add a file's name";
  if (exists && replaced && !S_ISREG(status.st_mode)) {
    return what + "it is no regular file; name another one";
  }
  const size_t slash = path.rfind('/');
  std::string directory = ".";
  if (slash != std::string::npos) directory = slash == 0 ? "/" : path.substr(0, slash);
  const std::string written = exists && !replaced ? path : directory;
  if (access(written.c_str(), W_OK) == 0) return {};
  return what + written + ": " + std::strerror(errno) + "; name a file that you may write";
}

}  // namespace

bool parse_options(int argc, char** argv, Options* out, int* out_exit_code) {
  CLI::App app(
      "Trains a small convolutional network on Fashion-MNIST, on as many ranks as it is started "
      "on:\n  fashion_mnist                 one rank\n  dt run -n 4 fashion_mnist     four");
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", out->epochs, "Passes over the training images")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}));
  app.add_option("--batch", out->batch, "Images per step over all ranks")
      ->check(CLI::Range(int64_t{1}, int64_t{60'000}));
  app.add_option("--lr", out->rate, "Peak learning rate; 0: 0.05 for sgd, 0.002 for adamw")
      ->check(CLI::Range(0.0, 100.0))
      ->check([](const std::string& text) {  // a range lets nan through
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "give a number from 0 to 100" : "";
      });
  app.add_option("--seed", out->seed, "Of the weights and of the order of images");
  std::string optimizer = optimizer_name(out->optimizer);
  app.add_option("--optimizer", optimizer, "Rule that updates the weights")
      ->check(CLI::IsMember(
          {optimizer_name(OptimizerKind::kSgd), optimizer_name(OptimizerKind::kAdamW)}));
  app.add_option("--data", out->data, "Directory with the four .gz files");
  app.add_option("--limit", out->limit, "Use only the first so many training images; 0: all")
      ->check(CLI::NonNegativeNumber);
  CLI::Option* save =
      app.add_option("--save", out->save, "Checkpoint, written after each epoch and at the end");
  app.add_option("--save-every", out->save_every, "Also save each time after so many steps")
      ->check(CLI::NonNegativeNumber)
      ->needs(save);
  app.add_option("--resume", out->resume,
                 "Go on from this checkpoint; if it is --save's file and absent, start over");
  app.add_option("--loss-log", out->loss_log, "CSV file: step,loss");
  app.add_option("--curves", out->curves, "Picture of the curves; empty: none");
  app.add_option("--steps", out->steps, "Stop after so many steps in all; 0: after all epochs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--eval-every", out->eval_every, "Also evaluate each time after so many steps")
      ->check(CLI::NonNegativeNumber);
  CLI::Option* accumulate =
      app.add_option("--accumulate", out->accumulate,
                     "Backward passes in a step, each over a part of the rank's images")
          ->check(CLI::Range(int64_t{1}, int64_t{60'000}));
  app.add_option("--wire", out->wire, "What gradients travel as; in 8 bits without --powersgd")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "8bit"}));
  app.add_option("--powersgd", out->power_sgd,
                 "Gradients travel as matrices of this rank; 0: as they are")
      ->check(CLI::Range(int32_t{0}, int32_t{64}));
  app.add_option("--clip", out->clip, "Largest norm of the gradients; 0: any")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--survive", out->survive,
               "Go on without ranks that are lost; with dt run --on-failure continue");
  app.add_flag("--no-eval", out->no_eval, "Do not evaluate on the test images");
  app.add_flag("--quiet", out->quiet, "Print errors only");
  app.add_flag("--compute-only", out->compute_only,
               "For benchmarks: the same work without communication; ranks drift apart")
      ->excludes(accumulate);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *out_exit_code = error.get_exit_code() == 0 ? app.exit(error) : 2;
    if (*out_exit_code != 0) {
      std::fprintf(stderr, "fashion_mnist: %s; see fashion_mnist --help\n", error.what());
    }
    return false;
  }
  out->optimizer = optimizer == optimizer_name(OptimizerKind::kAdamW) ? OptimizerKind::kAdamW
                                                                      : OptimizerKind::kSgd;
  if (out->rate == 0) out->rate = default_learning_rate(out->optimizer);
  return true;
}

std::string check_outputs(const Options& options) {
  std::string error = check_output("--save", options.save, true);
  if (error.empty()) error = check_output("--loss-log", options.loss_log, false);
  if (error.empty()) error = check_output("--curves", options.curves, false);
  return error;
}

std::string check_batch(int64_t batch, int64_t world_size, int64_t images, int64_t passes) {
  if (batch > images) {
    return "--batch " + std::to_string(batch) + " is more than the " + std::to_string(images) +
           " training images; choose a smaller one";
  }
  const int64_t parts = world_size * passes;
  if (batch % parts == 0) return {};
  const int64_t below = batch / parts * parts;
  std::string next = std::to_string(below + parts);
  if (below > 0) next = std::to_string(below) + " or " + next;
  return "--batch " + std::to_string(batch) + " cannot be dealt evenly to " +
         std::to_string(world_size) + " ranks" +
         (passes > 1 ? ", in " + std::to_string(passes) + " passes each" : "") + "; choose " + next;
}

}  // namespace fashion
