// SPDX-License-Identifier: Apache-2.0
#include "trainer.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "curves.h"

namespace fashion {
namespace {

// The network's gradients are 0.8 MB in all, less than one default bucket. This cap gives two: the
// large one of the dense layers travels while the convolutions go backward.
constexpr int64_t kBucketBytes = 256 * 1024;
constexpr int64_t kRecentSteps = 25;  // that a live progress line averages

void require(const Error& error) {
  if (!error.empty()) throw std::runtime_error(error);
}

std::vector<dt::Param> describe(const Network& network) {
  std::vector<dt::Param> params;
  for (const Parameter& parameter : network.layout()) {
    params.push_back({parameter.count, DT_F32, parameter.name});
  }
  return params;
}

std::vector<int64_t> shape_of(const Network& network) {
  std::vector<int64_t> shape;
  for (const Parameter& parameter : network.layout()) shape.push_back(parameter.count);
  return shape;
}

dt::SamplerOptions sampler_options(const dt::Comm& comm, int64_t images, int64_t seed) {
  dt::SamplerOptions options;
  options.world_size = comm.size();
  options.rank = comm.rank();
  options.size = images;
  options.seed = seed;
  return options;
}

}  // namespace

// Batch k of rank r of W is every W-th image of the epoch's order from (k * local_batch) * W + r
// on. All ranks together thus take images [k * batch, (k + 1) * batch) of that order, whatever W
// is, and the loss curve does not depend on the number of ranks.
Trainer::Trainer(const Options& options, dt::Job* job, const Dataset& train, const Dataset& test)
    : options_(options),
      train_(train),
      test_(test),
      job_(*job),
      comm_(job->world()),
      rank_(comm_.rank()),
      world_size_(comm_.size()),
      local_batch_(options.batch / world_size_),
      pass_images_(local_batch_ / options.accumulate),
      steps_per_epoch_(train_.count() / options.batch),
      network_(static_cast<int>(pass_images_), static_cast<int>(options.accumulate)),
      optimizer_(options.optimizer, static_cast<int64_t>(network_.parameters().size())),
      sampler_(sampler_options(comm_, train_.count(), options.seed)),
      progress_(rank_ == 0 && !options.quiet, options.batch) {
  network_.initialise(static_cast<uint64_t>(options.seed));
  state_.optimizer = options.optimizer;
  state_.seed = options.seed;
  state_.batch = options.batch;
  state_.shape = shape_of(network_);
  gradients_.resize(network_.layout().size());
  if (options.compute_only || options.accumulate > 1) {
    own_gradients_.resize(network_.parameters().size());
  }
  if (!options.compute_only) {
    make_reducer();
    sampler_.check(comm_);
  }
  read_gradient_pointers();
}

void Trainer::make_reducer() {
  dt::ReducerOptions reducer_options;
  reducer_options.first_bucket_bytes = kBucketBytes;
  reducer_options.bucket_cap_bytes = kBucketBytes;
  const dt_wire wire = options_.wire == "bf16"   ? DT_WIRE_BF16
                       : options_.wire == "f16"  ? DT_WIRE_F16
                       : options_.wire == "8bit" ? DT_WIRE_8BIT
                                                 : DT_WIRE_SAME;
  if (options_.power_sgd == 0) reducer_options.wire = wire;
  reducer_.emplace(comm_, describe(network_), reducer_options);
  if (options_.power_sgd == 0) return;
  // A weight is a matrix with a column for each output, as many as the bias behind it has.
  std::vector<int64_t> rows;
  for (size_t i = 0; i < network_.layout().size(); i += 2) {
    rows.push_back(network_.layout()[i].count / network_.layout()[i + 1].count);
    rows.push_back(0);
  }
  dt::PowerSgdOptions power_sgd;
  power_sgd.rank = options_.power_sgd;
  power_sgd.wire = wire;
  reducer_->power_sgd(rows, power_sgd);
}

void Trainer::read_gradient_pointers() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i] = own_gradients_.empty() ? reducer_->grad_as<float>(static_cast<int32_t>(i))
                                           : own_gradients_.data() + network_.layout()[i].offset;
  }
}

void Trainer::run() {
  if (!options_.resume.empty()) resume();
  open_loss_log();
  while (!is_over()) {
    train_epoch();
    if (state_.position == steps_per_epoch_) finish_epoch();
  }
  // After a whole epoch everything has been shown already.
  if (state_.position != 0 && steps_here_ > 0) {
    progress_.epoch_end(progress_state(state_.position));
  }
  save();
  if (loss_log_ && std::fflush(loss_log_.get()) != 0) {
    throw std::runtime_error("cannot write " + options_.loss_log + ": " + std::strerror(errno));
  }
  write_curves();
  if (reducer_ && world_size_ > 1) {
    check_equal();
    const std::vector<float>& parameters = network_.parameters();
    const uint64_t hash = hash_bytes(parameters.data(), parameters.size() * sizeof(float));
    char line[96];
    std::snprintf(line, sizeof line, "parameters equal on all %d ranks (hash %016" PRIx64 ")",
                  world_size_, hash);
    progress_.say(line);
  }
  require(save_error_);  // a warning before, but now what was learnt would be lost
  if (stopped_) {
    progress_.say("stopped after step " + std::to_string(state_.step) +
                  (options_.save.empty() ? "; nothing saved, as --save was not given"
                                         : "; go on with --resume " + options_.save));
  }
}

bool Trainer::is_over() const {
  return stopped_ || state_.epoch >= options_.epochs ||
         (options_.steps > 0 && state_.step >= options_.steps);
}

void Trainer::train_epoch() {
  sampler_.set_epoch(state_.epoch);
  std::vector<int64_t> indices(static_cast<size_t>(local_batch_));
  progress_.resume();
  finish_step();  // where a rank was lost right after a step
  while (state_.position < steps_per_epoch_ && !is_over()) {
    sampler_.indices(state_.position * local_batch_, local_batch_, indices.data());
    train_step(indices.data());
    progress_.step(progress_state(kRecentSteps));
    finish_step();
  }
  progress_.pause();
}

/// What is due between two steps of an epoch.
void Trainer::finish_step() {
  if (state_.position == 0 || state_.position == steps_per_epoch_) return;
  const int64_t evaluated = state_.evaluations.empty() ? -1 : state_.evaluations.back().step;
  if (options_.eval_every > 0 && state_.step % options_.eval_every == 0 &&
      evaluated != state_.step) {
    evaluate();
  }
  if (options_.save_every > 0 && state_.step % options_.save_every == 0) save();
}

void Trainer::train_step(const int64_t* indices) {
  totals_[0] = totals_[1] = 0;
  std::optional<dt::Work> totals_done;
  for (int64_t pass = 0; pass < options_.accumulate; ++pass) {
    const bool last = pass + 1 == options_.accumulate;
    const Score score =
        network_.forward(train_, indices + pass * pass_images_, static_cast<int>(pass_images_));
    totals_[0] += score.loss_sum;
    totals_[1] += static_cast<double>(score.correct);
    if (reducer_ && last) totals_done = comm_.allreduce_async(totals_);
    if (reducer_) reducer_->accumulate(!last);
    // Each gradient goes straight into its bucket, or with several passes is added there. In the
    // last pass full buckets travel while this goes on.
    network_.backward(gradients_, [this](int parameter) {
      float* const own =
          own_gradients_.empty() ? nullptr : gradients_[static_cast<size_t>(parameter)];
      if (reducer_) reducer_->ready(parameter, own);
    });
  }
  if (reducer_) reducer_->finish();
  if (reducer_ && options_.clip > 0) reducer_->clip_norm(options_.clip);
  if (totals_done) totals_done->wait();

  const double rate =
      learning_rate_at(options_.rate, state_.step, options_.epochs * steps_per_epoch_);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const Parameter& parameter = network_.layout()[i];
    optimizer_.update(state_.step, rate, parameter.offset, parameter.count, gradients_[i],
                      network_.parameters().data() + parameter.offset);
  }
  const auto images = static_cast<double>(reducer_ ? options_.batch : local_batch_);
  const StepRecord record = {static_cast<float>(totals_[0] / images),
                             static_cast<float>(totals_[1] / images)};
  if (!std::isfinite(record.loss)) {
    throw std::runtime_error("the loss is no longer finite at step " +
                             std::to_string(state_.step + 1) + "; choose a smaller --lr");
  }
  ++state_.step;
  ++state_.position;
  state_.history.push_back(record);
  log_loss(state_.step, record.loss);
  const bool first = steps_here_++ == 0;
  if (!reducer_) return;
  // The arrival order is known after one step; later steps keep the plan.
  if (first && reducer_->rebuild()) read_gradient_pointers();
  stopped_ = job_.stop_requested();
}

void Trainer::evaluate() {
  if (options_.no_eval || options_.compute_only) return;
  progress_.pause();
  const int64_t first = test_.count() * rank_ / world_size_;
  const int64_t last = test_.count() * (rank_ + 1) / world_size_;
  double totals[2] = {};
  std::vector<int64_t> indices;
  for (int64_t begin = first; begin < last; begin += pass_images_) {
    indices.clear();
    for (int64_t i = begin; i < std::min(begin + pass_images_, last); ++i) indices.push_back(i);
    const Score score = network_.forward(test_, indices.data(), static_cast<int>(indices.size()));
    totals[0] += score.loss_sum;
    totals[1] += static_cast<double>(score.correct);
  }
  comm_.allreduce(totals);
  const auto images = static_cast<double>(test_.count());
  state_.evaluations.push_back({state_.step, totals[0] / images, totals[1] / images});
  progress_.resume();
}

void Trainer::finish_epoch() {
  evaluate();
  progress_.pause();
  ProgressState shown = progress_state(steps_per_epoch_);
  if (!state_.evaluations.empty() && state_.evaluations.back().step == state_.step) {
    shown.test_accuracy = state_.evaluations.back().accuracy;
  }
  progress_.epoch_end(shown);
  ++state_.epoch;
  state_.position = 0;
  save();
}

/// Throws on all ranks where one has another step, parameter or optimizer state; names both.
void Trainer::check_equal() {
  const std::vector<float>& parameters = network_.parameters();
  const std::vector<float>& moments = optimizer_.state();
  comm_.check_equal(&state_.step, sizeof state_.step, "step " + std::to_string(state_.step));
  for (const Parameter& parameter : network_.layout()) {
    const auto bytes = parameter.count * static_cast<int64_t>(sizeof(float));
    comm_.check_equal(parameters.data() + parameter.offset, bytes, parameter.name);
    for (size_t moment = 0; moment < moments.size(); moment += parameters.size()) {
      comm_.check_equal(moments.data() + moment + parameter.offset, bytes,
                        std::string("optimizer state of ") + parameter.name);
    }
  }
}

void Trainer::open_loss_log() {
  if (options_.loss_log.empty() || rank_ != 0) return;
  loss_log_.reset(std::fopen(options_.loss_log.c_str(), "we"));
  if (!loss_log_) {
    throw std::runtime_error("cannot write " + options_.loss_log + ": " + std::strerror(errno));
  }
  std::fputs("step,loss\n", loss_log_.get());
  // A resumed run's log is whole: it begins with the steps in the checkpoint.
  for (size_t i = 0; i < state_.history.size(); ++i) {
    log_loss(static_cast<int64_t>(i) + 1, state_.history[i].loss);
  }
}

void Trainer::log_loss(int64_t step, float loss) {
  if (!loss_log_) return;
  std::fprintf(loss_log_.get(), "%" PRId64 ",%.9g\n", step, static_cast<double>(loss));
}

void Trainer::write_curves() {
  if (options_.curves.empty() || rank_ != 0 || state_.history.empty()) return;
  const std::string subtitle =
      std::to_string(world_size_) + (world_size_ == 1 ? " rank" : " ranks") + ", batch " +
      std::to_string(options_.batch) + ", " + optimizer_name(options_.optimizer) + ", seed " +
      std::to_string(options_.seed) + ", " + std::to_string(network_.parameters().size()) +
      " parameters";
  require(draw_curves(options_.curves, subtitle, state_.history, state_.evaluations));
}

ProgressState Trainer::progress_state(int64_t window) const {
  ProgressState shown;
  shown.epoch = state_.epoch;
  shown.epochs = options_.epochs;
  shown.step = state_.position;
  shown.steps = steps_per_epoch_;
  const int64_t total = options_.epochs * steps_per_epoch_;
  shown.remaining_steps =
      (options_.steps > 0 ? std::min(options_.steps, total) : total) - state_.step;
  const size_t count = std::min(static_cast<size_t>(window), state_.history.size());
  for (size_t i = state_.history.size() - count; i < state_.history.size(); ++i) {
    shown.loss += static_cast<double>(state_.history[i].loss) / static_cast<double>(count);
    shown.accuracy += static_cast<double>(state_.history[i].accuracy) / static_cast<double>(count);
  }
  if (reducer_ && world_size_ > 1) {
    shown.waited_seconds = static_cast<double>(reducer_->stats().total_exposed_ns) / 1e9;
  }
  return shown;
}

}  // namespace fashion
