// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fashion {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);

/// `dt run` reads the ranks' output through pipes and says by DT_RUN_TTY that a terminal follows.
bool stdout_is_terminal() {
  const char* forwarded = std::getenv("DT_RUN_TTY");
  return isatty(STDOUT_FILENO) == 1 || (forwarded != nullptr && std::strcmp(forwarded, "1") == 0);
}

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* pattern, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace

std::string format_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  const int64_t hours = whole / 3600;
  const int minutes = static_cast<int>(whole / 60 % 60), rest = static_cast<int>(whole % 60);
  if (hours == 0) return format("%d:%02d", minutes, rest);
  return format("%lld:%02d:%02d", static_cast<long long>(hours), minutes, rest);
}

Progress::Progress(bool enabled, int64_t images_per_step)
    : enabled_(enabled),
      live_(enabled && stdout_is_terminal()),
      images_per_step_(images_per_step) {}

double Progress::trained_seconds() const {
  double seconds = earlier_seconds_;
  if (running_) seconds += std::chrono::duration<double>(Clock::now() - started_).count();
  return seconds;
}

void Progress::resume() {
  if (running_) return;
  running_ = true;
  started_ = Clock::now();
}

void Progress::pause() {
  earlier_seconds_ = trained_seconds();
  running_ = false;
}

std::string Progress::waited(const ProgressState& state) const {
  if (state.waited_seconds < 0) return {};
  return format("  waited %.0f %%", 100 * state.waited_seconds / std::max(trained_seconds(), 1e-9));
}

void Progress::draw(const std::string& line, bool end) {
  if (live_) std::fputs("\r", stdout);
  std::fputs(line.c_str(), stdout);
  if (live_) std::fputs("\x1b[K", stdout);
  if (end) std::fputs("\n", stdout);
  std::fflush(stdout);
  line_open_ = live_ && !end;
}

void Progress::step(const ProgressState& state) {
  ++steps_;
  if (!live_ || Clock::now() - last_drawn_ < kRedraw) return;
  last_drawn_ = Clock::now();
  const double seconds_per_step = trained_seconds() / static_cast<double>(steps_);
  // Short: with dt run's prefix it fits into 80 columns.
  std::string line = format(
      "epoch %lld/%lld  %lld %%  loss %.3f  acc %.0f %%", static_cast<long long>(state.epoch + 1),
      static_cast<long long>(state.epochs), static_cast<long long>(100 * state.step / state.steps),
      state.loss, 100 * state.accuracy);
  line += format("  %.0f img/s", static_cast<double>(images_per_step_) / seconds_per_step);
  line += waited(state);
  line += "  eta " + format_seconds(seconds_per_step * static_cast<double>(state.remaining_steps));
  draw(line, false);
}

void Progress::epoch_end(const ProgressState& state) {
  if (!enabled_) return;
  const double seconds = std::max(trained_seconds(), 1e-9);
  std::string line = format("epoch %lld/%lld", static_cast<long long>(state.epoch + 1),
                            static_cast<long long>(state.epochs));
  if (state.step < state.steps) {
    line += format("  step %lld/%lld", static_cast<long long>(state.step),
                   static_cast<long long>(state.steps));
  }
  line += format("  loss %.3f  acc %.1f %%", state.loss, 100 * state.accuracy);
  if (state.test_accuracy >= 0) line += format("  test %.2f %%", 100 * state.test_accuracy);
  line += format("  %.0f images/s", static_cast<double>(steps_ * images_per_step_) / seconds);
  line += waited(state);
  draw(line + "  " + format_seconds(seconds), true);
}

void Progress::say(const std::string& line) {
  if (!enabled_) return;
  if (line_open_) std::fputs("\n", stdout);
  line_open_ = false;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace fashion
