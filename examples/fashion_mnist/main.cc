// SPDX-License-Identifier: Apache-2.0
//
// Trains on Fashion-MNIST on one rank or many:
//
//   $ fashion_mnist
//   $ dt run -n 2 fashion_mnist
//   [0] epoch 1/3  loss 0.706  acc 75.8 %  test 87.05 %  8344 images/s  waited 1 %  0:07
//   ...
//   [0] parameters equal on all 2 ranks (hash bcd222c06ddb3bf6)
//
// What distributed training adds to a trainer is in trainer.cc; the other files know nothing of dt.

#include <cblas.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "options.h"
#include "trainer.h"

namespace {

std::atomic<dt_job*> stoppable{nullptr};  // lock-free, so a signal handler may read it
volatile std::sig_atomic_t interrupted = 0;

void ask_to_stop(int signal) {
  if (signal == SIGINT) interrupted = 1;
  (void)dt_request_stop(stoppable);
}

/// All ranks finish the same step and save before they end.
void catch_signals(dt_job* job) {
  stoppable = job;
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // a second one ends the program at once
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

/// To the end, with --survive also without ranks that are lost on the way.
void train_to_end(const fashion::Options& options, std::unique_ptr<fashion::Trainer>* trainer) {
  for (;;) {
    std::string why;
    try {
      (*trainer)->run();
      return;
    } catch (const dt::Error& error) {
      if (!options.survive || error.status() != DT_ERR_PEER_LOST) throw;
      why = error.what();
    }
    *trainer = fashion::Trainer::of_survivors(trainer->get(), why);
  }
}

[[noreturn]] void fail(int rank, const char* message) {
  if (rank >= 0) {
    std::fprintf(stderr, "fashion_mnist: rank %d: %s\n", rank, message);
  } else {
    std::fprintf(stderr, "fashion_mnist: %s\n", message);
  }
  // Not a return: the trainer's buffers may still be in use by operations that never ended.
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  fashion::Options options;
  int exit_code = 0;
  if (!fashion::parse_options(argc, argv, &options, &exit_code)) return exit_code;
  openblas_set_num_threads(1);  // one rank per core; more threads would only take turns

  fashion::Dataset train, test;
  std::optional<dt::Job> job;
  std::unique_ptr<fashion::Trainer> trainer;
  int rank = -1;
  try {
    job.emplace();
    const dt::Place place = job->place();
    rank = place.rank;
    if (!options.compute_only) catch_signals(job->get_handle());
    fashion::Error error;
    if (rank == 0) error = fashion::check_outputs(options);
    if (error.empty()) error = fashion::read_fashion_mnist(options.data, &train, &test);
    if (options.limit > 0) train.keep_first(options.limit);
    if (error.empty()) {
      error =
          fashion::check_batch(options.batch, place.world_size, train.count(), options.accumulate);
    }
    if (!error.empty()) throw std::runtime_error(error);
    trainer = std::make_unique<fashion::Trainer>(options, &*job, train, test);
    train_to_end(options, &trainer);
    trainer.reset();
    job->finalize();
    // A pre-emption is no failure: what was saved is resumed by the next start.
    return interrupted != 0 ? 128 + SIGINT : 0;
  } catch (const dt::Error& error) {
    fail(rank, error.what());
  } catch (const std::exception& error) {
    // The other ranks end with this message too, instead of hearing of a death.
    if (job) dt_abort(job->get_handle(), error.what());
    fail(rank, error.what());
  }
}
