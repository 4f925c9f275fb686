// SPDX-License-Identifier: Apache-2.0
// `dt bench --tune`. A value is measured beside the present one, in rounds: in each round the
// present value, every other and the present value once more do one short run over the probes. What
// was found for all settings is then measured anew as a whole, since the best of many samples is
// flattered by chance.
#include "cli/bench/tune.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "cli/bench/child.h"
#include "cli/bench/compare.h"
#include "cli/bench/report.h"
#include "cli/bench/tune_choice.h"
#include "cli/bench/tune_file.h"
#include "cli/bench/tune_plan.h"
#include "config/config.h"

namespace dt::cli::bench {
namespace {

using Monotonic = std::chrono::steady_clock;
using Keyed = std::map<std::string, int64_t>;

constexpr int kLooks = 3;  // in one run: the median of them is a sample

class Tuner {
 public:
  Tuner(const Options& options, const Files& files, std::vector<Knob> knobs)
      : options_(options), files_(files), knobs_(std::move(knobs)) {
    for (const Knob& knob : knobs_) before_[knob.key] = knob.present;
    after_ = before_;
    ends_ = Monotonic::now() + std::chrono::seconds(options.tune_seconds);
  }

  /// What is to be set; empty: nothing.
  Result<Settings> run() {
    for (size_t i = 0; i < knobs_.size(); ++i) {
      DT_TRY(try_knob(knobs_[i], static_cast<int64_t>(knobs_.size() - i + 1)));
    }
    if (after_ == before_) return Settings();
    DT_TRY_VALUE(const bool holds, verify());
    Settings settings;
    for (const auto& [key, value] : after_) {
      if (holds && value != before_.at(key)) settings.emplace_back(key, value);
    }
    return settings;
  }

 private:
  /// The rounds of `values`, in turn, until `parts` have had their share of the time.
  Result<std::vector<Trial>> rounds(const std::vector<Keyed>& values,
                                    const std::vector<Probe>& probes, int64_t parts) const {
    const auto began = Monotonic::now();
    const auto share = (ends_ - began) / parts;
    std::vector<Trial> trials(values.size());
    for (int round = 0; round < options_.rounds; ++round) {
      if (round >= kTuneRoundsMin && Monotonic::now() - began > share) break;
      for (size_t i = 0; i < values.size(); ++i) {
        // There and back: a machine that gets slower favours nobody.
        const size_t at = round % 2 == 0 ? i : values.size() - 1 - i;
        DT_TRY_VALUE(auto points, sample(values[at], probes));
        trials[at].push_back(std::move(points));
      }
    }
    return trials;
  }

  /// One run of each probe: microseconds by point.
  Result<std::vector<double>> sample(const Keyed& values, const std::vector<Probe>& probes) const {
    std::vector<double> points;
    for (const Probe& probe : probes) {
      Options once = for_collective(options_, probe.collective);
      once.sizes_bytes = probe.sizes_bytes;
      ChildPlan plan = own_run(once, files_, probe.shared, kLooks);
      for (const auto& [key, value] : values) {
        plan.environment.push_back(variable_of(key) + "=" + std::to_string(value));
      }
      DT_TRY_VALUE(const std::string output, run_child(plan));
      Program program;
      program.name = "dt bench --tune";
      DT_TRY(add_output(output, once, kLooks, &program));
      if (wrong_elements(program.rows) > 0) {
        return Status(Code::kInternal, "wrong results with " + settings_text(values));
      }
      for (const Row& row : program.rows) {
        for (int in_place = 0; in_place < (probe.in_place ? 2 : 1); ++in_place) {
          points.push_back(spread(row.places[in_place].us).median);
        }
      }
    }
    return points;
  }

  Status try_knob(const Knob& knob, int64_t parts) {
    std::vector<Keyed> values = {after_};
    for (const int64_t value : knob.values) {
      values.push_back(after_);
      values.back()[knob.key] = value;
    }
    values.push_back(after_);
    DT_TRY_VALUE(std::vector<Trial> trials, rounds(values, knob.probes, parts));
    const size_t count = trials.front().size();
    const Trial present = std::move(trials.front());
    const Trial again = std::move(trials.back());
    trials.erase(trials.begin());
    trials.pop_back();
    const Choice choice = choose(present, again, trials);
    printf("%-22s %12lld  %s  the present value, again (%zu rounds)\n", knob.key.c_str(),
           static_cast<long long>(knob.present), text(choice.again).c_str(), count);
    for (size_t i = 0; i < trials.size(); ++i) {
      printf("%-22s %12lld  %s%s\n", "", static_cast<long long>(knob.values[i]),
             text(choice.others[i]).c_str(), static_cast<int>(i) == choice.best ? "  taken" : "");
    }
    fflush(stdout);
    if (choice.best >= 0) after_[knob.key] = knob.values[static_cast<size_t>(choice.best)];
    return {};
  }

  /// Whether all that was found is faster as a whole, too.
  Result<bool> verify() const {
    std::vector<Probe> probes;
    for (const Knob& knob : knobs_) {
      if (after_.at(knob.key) == knob.present) continue;
      probes.insert(probes.end(), knob.probes.begin(), knob.probes.end());
    }
    DT_TRY_VALUE(const std::vector<Trial> trials, rounds({before_, after_, before_}, probes, 1));
    const Comparison again = compare_trials(trials[0], trials[2]);
    const Comparison found = compare_trials(trials[0], trials[1]);
    const bool held = holds(found, again);
    printf("%-22s %12s  %s  the present values, again (%zu rounds)\n", "all, measured anew", "",
           text(again).c_str(), trials[0].size());
    printf("%-22s %12s  %s%s\n", "", "", text(found).c_str(), held ? "  taken" : "");
    return held;
  }

  static std::string settings_text(const Keyed& values) {
    std::string text;
    for (const auto& [key, value] : values) {
      text += (text.empty() ? "" : ", ") + key + " = " + std::to_string(value);
    }
    return text;
  }

  static std::string text(const Comparison& one) {
    return format("%5.2fx [%.2f-%.2f], worst %.2fx", one.median, one.low, one.high, one.worst);
  }

  const Options& options_;
  const Files& files_;
  const std::vector<Knob> knobs_;
  Keyed before_;
  Keyed after_;  ///< before_ with what was found so far
  Monotonic::time_point ends_;
};

void print_settings(const Settings& settings, const std::vector<Knob>& knobs) {
  if (settings.empty()) {
    printf("# nothing is faster for sure than the present values\n");
    return;
  }
  printf("[host]\n");
  for (const auto& [key, value] : settings) {
    const std::string& name = key;
    const auto knob = std::find_if(knobs.begin(), knobs.end(),
                                   [&](const Knob& each) { return each.key == name; });
    printf("%s = %lld  # was %lld\n", key.substr(key.find('.') + 1).c_str(),
           static_cast<long long>(value), static_cast<long long>(knob->present));
  }
}

/// Everything that may be found.
Settings likely(const std::vector<Knob>& knobs) {
  Settings settings;
  for (const Knob& knob : knobs) settings.emplace_back(knob.key, knob.present);
  return settings;
}

}  // namespace

Result<int> tune(const Options& options, const Files& files) {
  DT_TRY_VALUE(const Config config, Config::load(process_environment()));
  DT_TRY_VALUE(const std::vector<Knob> knobs, plan_tuning(options, config));
  if (!options.tune_write.empty()) {
    DT_TRY(check_settings_file(options.tune_write, likely(knobs)));
  }
  fputs(machine_line(read_machine()).c_str(), stdout);
  printf(
      "# dt bench --tune: allreduce %s %s, %d ranks, up to %d rounds in turn, about %d s\n"
      "# times as fast as the present value: median of the rounds [slowest-fastest, from 5 "
      "rounds on\n"
      "# without one at either end], and the size that does worst. Taken is what exceeds the "
      "present\n"
      "# value's own spread in each of these rounds.\n",
      dtype_name(options), op_name(options), options.ranks, options.rounds, options.tune_seconds);
  fflush(stdout);
  DT_TRY_VALUE(const Settings settings, Tuner(options, files, knobs).run());
  print_settings(settings, knobs);
  if (options.tune_write.empty() || settings.empty()) return 0;
  DT_TRY(write_settings(options.tune_write, settings));
  printf("# written to %s\n", options.tune_write.c_str());
  return 0;
}

}  // namespace dt::cli::bench
