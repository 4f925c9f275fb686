// SPDX-License-Identifier: Apache-2.0
#include "training.h"

#include <cmath>

#include "base/wait.h"

namespace dt::test {
namespace {

constexpr double kGoal = 0.95;
constexpr double kGoalRatio = 2;  // of compute to communication

double value_of(int rank, int ranks) { return (rank + 1) * ranks; }

std::vector<double> times_of(const Measured& measured, Part part, double StepTimes::*clock) {
  std::vector<double> values;
  for (const StepTimes& each : measured.steps[static_cast<int>(part)]) {
    values.push_back(each.*clock);
  }
  return values;
}

std::string line(const char* name, const Figures& all, const char* number) {
  const std::string form = std::string("%-34s ") + number + " " + number + " " + number + "\n";
  return format(form.c_str(), name, all.median, all.min, all.max);
}

}  // namespace

const char* part_name(Part part) {
  switch (part) {
    case Part::kCompute: return "compute alone";
    case Part::kCommunicate: return "communication alone";
    case Part::kBoth: return "both";
    case Part::kInTurn: return "compute, then communication";
  }
  return "?";
}

void run_layer(const Layer& layer) {
  const int64_t end = monotonic_ns() + layer.duration_ns;
  for (int64_t i = 0; i < layer.count; ++i) layer.gradient[i] = layer.value;
  while (monotonic_ns() < end) {
  }
}

Training::Training(Session* session, const Options& options, Compute compute)
    : session_(session), options_(options), compute_(std::move(compute)) {}

Training::~Training() {
  dt_reducer_destroy(reducer_);
  for (const cuda::Event event : {begin_, end_}) {
    if (event != nullptr) static_cast<void>(session_->gpu()->destroy_event(event));
  }
}

Result<std::unique_ptr<Training>> Training::create(Session* session, const Options& options,
                                                   Compute compute) {
  std::unique_ptr<Training> training(new Training(session, options, std::move(compute)));
  DT_TRY(training->begin());
  return training;
}

Status Training::begin() {
  const std::vector<dt_param> params(static_cast<size_t>(options_.layers),
                                     dt_param{options_.layer_count, "layer", DT_F32, 0});
  DT_TRY(status_of(
      dt_reducer_create(session_->comm(), params.data(), options_.layers, nullptr, &reducer_)));
  if (session_->gpu() != nullptr) {
    DT_TRY_VALUE(begin_, session_->gpu()->create_event(true));
    DT_TRY_VALUE(end_, session_->gpu()->create_event(true));
  }
  const double value = value_of(session_->rank(), session_->ranks());
  for (int32_t i = 0; i < options_.layers; ++i) {
    void* gradient = nullptr;
    DT_TRY(status_of(dt_reducer_grad(reducer_, i, nullptr, &gradient)));
    layers_.push_back(
        {static_cast<float*>(gradient), options_.layer_count, static_cast<float>(value), 0});
  }
  return {};
}

/// The last layer first, as a backward pass goes.
Status Training::enqueue(Part part) {
  for (int32_t i = options_.layers - 1; i >= 0; --i) {
    Layer& layer = layers_[static_cast<size_t>(i)];
    layer.duration_ns = layer_ns_;
    if (part != Part::kCommunicate) DT_TRY(compute_(layer));
    if (part == Part::kCompute || part == Part::kInTurn) continue;
    DT_TRY(status_of(dt_reducer_ready(reducer_, i, nullptr, session_->stream())));
  }
  if (part == Part::kCompute) return {};
  for (int32_t i = options_.layers - 1; i >= 0 && part == Part::kInTurn; --i) {
    DT_TRY(status_of(dt_reducer_ready(reducer_, i, nullptr, session_->stream())));
  }
  return status_of(dt_reducer_finish(reducer_, session_->stream()));
}

Result<StepTimes> Training::step(Part part) {
  const auto& gpu = session_->gpu();
  session_->barrier();
  StepTimes times;
  const double begin_us = now_us();
  if (gpu != nullptr) DT_TRY(gpu->record(begin_, session_->stream()));
  DT_TRY(enqueue(part));
  if (gpu != nullptr) DT_TRY(gpu->record(end_, session_->stream()));
  DT_TRY(session_->finish());
  times.wall_us = times.gpu_us = now_us() - begin_us;
  if (gpu != nullptr) {
    DT_TRY_VALUE(const float ms, gpu->elapsed_ms(begin_, end_));
    times.gpu_us = static_cast<double>(ms) * 1e3;
  }
  times.gpu_us = session_->combine(times.gpu_us, DT_MAX);
  times.wall_us = session_->combine(times.wall_us, DT_MAX);
  return times;
}

dt_reducer_statistics Training::statistics() const {
  dt_reducer_statistics statistics;
  dt_reducer_statistics_init(&statistics);
  need(dt_reducer_stats(reducer_, &statistics));
  return statistics;
}

Status Training::verify() {
  DT_TRY(step(Part::kBoth).status());
  double wanted = 0;  // the average
  for (int rank = 0; rank < session_->ranks(); ++rank) {
    wanted += value_of(rank, session_->ranks()) / session_->ranks();
  }
  std::vector<float> got(static_cast<size_t>(options_.layer_count));
  for (size_t i = 0; i < layers_.size(); ++i) {
    session_->read(got.data(), layers_[i].gradient, options_.layer_count * 4);
    for (size_t k = 0; k < got.size(); ++k) {
      // One rounding for each rank.
      if (std::abs(static_cast<double>(got[k]) - wanted) <= wanted * 1e-6 * session_->ranks()) {
        continue;
      }
      return Status(Code::kInternal, format("element %zu of layer %zu is %g, not %g", k, i,
                                            static_cast<double>(got[k]), wanted));
    }
  }
  return {};
}

Result<Measured> measure(Session* session, Training* training, int rounds) {
  Measured measured;
  for (int round = 0; round < rounds; ++round) {
    StepTimes times[kPartCount];
    double reducer = 0;
    double under_way_us = 0;
    double waited_us = 0;
    for (int turn = 0; turn < kPartCount; ++turn) {
      const int index = (round + turn) % kPartCount;
      DT_TRY_VALUE(times[index], training->step(kParts[index]));
      measured.steps[index].push_back(times[index]);
      if (kParts[index] != Part::kBoth) continue;
      const dt_reducer_statistics step = training->statistics();
      under_way_us = static_cast<double>(step.communication_ns) * 1e-3;
      waited_us = static_cast<double>(step.exposed_ns) * 1e-3;
      reducer = under_way_us > 0 ? 1 - waited_us / under_way_us : 1;
    }
    measured.hidden_by_gpu.push_back(
        hidden_share(times[0].gpu_us, times[1].gpu_us, times[2].gpu_us));
    measured.hidden_by_wall.push_back(
        hidden_share(times[0].wall_us, times[1].wall_us, times[2].wall_us));
    measured.under_way_us.push_back(session->combine(under_way_us, DT_MAX));
    measured.waited_us.push_back(session->combine(waited_us, DT_MAX));
    measured.hidden_by_reducer.push_back(session->combine(reducer, DT_MIN));
  }
  return measured;
}

double hidden_share(double compute, double alone, double both) {
  return alone > 0 ? 1 - (both - compute) / alone : 1;
}

std::string overlap_table(const Measured& measured, bool gpu) {
  std::string text = format("%-34s %10s %10s %10s\n", "of a step", "median", "min", "max");
  for (const Part part : kParts) {
    const std::string name = part_name(part);
    if (gpu) {
      text += line((name + ", us by events").c_str(),
                   figures(times_of(measured, part, &StepTimes::gpu_us)), "%10.1f");
    }
    text += line((name + ", us by clock").c_str(),
                 figures(times_of(measured, part, &StepTimes::wall_us)), "%10.1f");
  }
  if (gpu) text += line("hidden share, by events", figures(measured.hidden_by_gpu), "%10.3f");
  text += line("hidden share, by clock", figures(measured.hidden_by_wall), "%10.3f");
  text += line("of both, a bucket was under way, us", figures(measured.under_way_us), "%10.1f");
  text += line("of both, finish waited, us", figures(measured.waited_us), "%10.1f");
  text += line("hidden share, by dt_reducer_stats", figures(measured.hidden_by_reducer), "%10.3f");
  return text;
}

std::string goal_line(const Measured& measured, int ranks) {
  const double compute = figures(times_of(measured, Part::kCompute, &StepTimes::gpu_us)).median;
  const double alone = figures(times_of(measured, Part::kCommunicate, &StepTimes::gpu_us)).median;
  const std::string goal = format(
      "goal: at least %.0f %% hidden when compute is %.0f times "
      "communication: ",
      kGoal * 100, kGoalRatio);
  if (ranks == 1) return goal + "not judged, one rank has nothing to communicate\n";
  const double share = figures(measured.hidden_by_gpu).median;
  return goal + (share >= kGoal ? "reached" : "missed") +
         format(", %.1f %% at %.2f times\n", share * 100, alone > 0 ? compute / alone : 0);
}

}  // namespace dt::test
