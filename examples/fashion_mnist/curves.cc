// SPDX-License-Identifier: Apache-2.0
#include "curves.h"

#include <cairo/cairo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

namespace fashion {
namespace {

constexpr int kWidth = 1200, kHeight = 900;  // pixels
constexpr double kLeft = 90, kRight = 36;    // margins of the panels
constexpr double kTop = 122, kBottom = 76, kGap = 50;
constexpr int kSmoothing = 25;  // steps in the running mean
const char kFont[] = "sans-serif";

struct Color {
  double red, green, blue;
};
constexpr Color kInk = {0.13, 0.15, 0.18}, kMuted = {0.42, 0.45, 0.50}, kGrid = {0.90, 0.91, 0.93};
constexpr Color kFrame = {0.70, 0.72, 0.75};
constexpr Color kBlue = {0.12, 0.42, 0.75}, kOrange = {0.88, 0.43, 0.08};

struct Point {
  double x, y;
};
using Line = std::vector<Point>;

struct DestroySurface {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
};
struct DestroyContext {
  void operator()(cairo_t* context) const { cairo_destroy(context); }
};

/// Numbers on an axis: first, first + step, ... up to last; one, two or five times a power of ten.
struct Ticks {
  double first, last, step;
};

Ticks choose_ticks(double low, double high, int most) {
  const double span = std::max(high - low, 1e-12);
  const double rough = span / most;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

std::string format_tick(double value, double step) {
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", decimals, std::fabs(value) < step * 1e-6 ? 0 : value);
  return text;
}

enum class Align { kBegin, kMiddle, kEnd };

/// The picture; panels draw through it.
class Canvas {
 public:
  Canvas()
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, kWidth, kHeight)),
        context_(cairo_create(surface_.get())) {
    cairo_set_source_rgb(cr(), 1, 1, 1);
    cairo_paint(cr());
    cairo_set_line_join(cr(), CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(cr(), CAIRO_LINE_CAP_ROUND);
  }

  cairo_t* cr() const { return context_.get(); }

  void set_color(Color color, double opacity = 1) {
    cairo_set_source_rgba(cr(), color.red, color.green, color.blue, opacity);
  }

  double text_width(const std::string& text) {
    cairo_text_extents_t extents;
    cairo_text_extents(cr(), text.c_str(), &extents);
    return extents.x_advance;
  }

  void set_font(double size, bool bold = false) {
    cairo_select_font_face(cr(), kFont, CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr(), size);
  }

  /// `y` is the base line.
  void text(double x, double y, Align align, const std::string& text) {
    if (align == Align::kMiddle) x -= text_width(text) / 2;
    if (align == Align::kEnd) x -= text_width(text);
    cairo_move_to(cr(), x, y);
    cairo_show_text(cr(), text.c_str());
  }

  void turned_text(double x, double y, const std::string& words) {
    cairo_save(cr());
    cairo_translate(cr(), x, y);
    cairo_rotate(cr(), -std::acos(-1.0) / 2);
    text(0, 0, Align::kMiddle, words);
    cairo_restore(cr());
  }

  /// A line of one pixel, exactly on the pixels.
  void hairline(double x1, double y1, double x2, double y2) {
    cairo_set_line_width(cr(), 1);
    cairo_move_to(cr(), std::floor(x1) + 0.5, std::floor(y1) + 0.5);
    cairo_line_to(cr(), std::floor(x2) + 0.5, std::floor(y2) + 0.5);
    cairo_stroke(cr());
  }

  Error write(const std::string& path) {
    cairo_status_t status = cairo_status(cr());
    if (status == CAIRO_STATUS_SUCCESS) {
      status = cairo_surface_write_to_png(surface_.get(), path.c_str());
    }
    if (status == CAIRO_STATUS_SUCCESS) return {};
    return "cannot write the curves to " + path + ": " + cairo_status_to_string(status) +
           "; give --curves a file in a directory you may write to";
  }

 private:
  std::unique_ptr<cairo_surface_t, DestroySurface> surface_;
  std::unique_ptr<cairo_t, DestroyContext> context_;
};

/// One system of axes.
class Panel {
 public:
  Panel(Canvas* canvas, double top, double bottom, Ticks x, Ticks y)
      : canvas_(*canvas), top_(top), bottom_(bottom), x_(x), y_(y) {}

  void draw_axes(const std::string& title, const std::string& x_label, const std::string& y_label) {
    canvas_.set_font(15);
    for (int i = 0; y_.first + i * y_.step <= y_.last + y_.step / 2; ++i) {
      const double value = y_.first + i * y_.step;
      canvas_.set_color(kGrid);
      canvas_.hairline(kLeft, y(value), kWidth - kRight, y(value));
      canvas_.set_color(kMuted);
      canvas_.text(kLeft - 12, y(value) + 5, Align::kEnd, format_tick(value, y_.step));
    }
    for (int i = 0; x_.first + i * x_.step <= x_.last * (1 + 1e-9); ++i) {
      const double value = x_.first + i * x_.step;
      canvas_.set_color(kGrid);
      canvas_.hairline(x(value), top_, x(value), bottom_);
      canvas_.set_color(kFrame);
      canvas_.hairline(x(value), bottom_, x(value), bottom_ + 6);
      if (x_label.empty()) continue;
      canvas_.set_color(kMuted);
      canvas_.text(x(value), bottom_ + 25, Align::kMiddle, format_tick(value, x_.step));
    }
    canvas_.set_color(kFrame);
    canvas_.hairline(kLeft, bottom_, kWidth - kRight, bottom_);
    canvas_.hairline(kLeft, top_, kLeft, bottom_);
    canvas_.set_color(kInk);
    canvas_.set_font(16, true);
    canvas_.text(kLeft, top_ - 14, Align::kBegin, title);
    canvas_.set_color(kMuted);
    canvas_.set_font(15);
    canvas_.turned_text(30, (top_ + bottom_) / 2, y_label);
    canvas_.text((kLeft + kWidth - kRight) / 2, bottom_ + 54, Align::kMiddle, x_label);
  }

  void draw_line(const Line& line, Color color, double opacity, double width) {
    if (line.empty()) return;
    begin_clip();
    canvas_.set_color(color, opacity);
    cairo_set_line_width(canvas_.cr(), width);
    cairo_new_path(canvas_.cr());
    for (const Point& point : line) cairo_line_to(canvas_.cr(), x(point.x), y(point.y));
    cairo_stroke(canvas_.cr());
    cairo_restore(canvas_.cr());
  }

  void draw_markers(const Line& line, Color color) {
    for (const Point& point : line) draw_marker(x(point.x), y(point.y), color);
  }

  void draw_label(const Point& at, const std::string& words) {
    canvas_.set_font(15, true);
    canvas_.set_color(kOrange);
    const bool at_edge = x(at.x) > kWidth - kRight - 60;
    canvas_.text(at_edge ? x(at.x) : x(at.x) + 12, y(at.y) + 28,
                 at_edge ? Align::kEnd : Align::kBegin, words);
  }

  struct LegendEntry {
    std::string name;
    Color color;
    bool marker;
  };

  /// In one row, right above the panel.
  void draw_legend(const std::vector<LegendEntry>& entries) {
    canvas_.set_font(15);
    double right = kWidth - kRight;
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      const double start = right - canvas_.text_width(entry->name);
      canvas_.set_color(kInk);
      canvas_.text(start, top_ - 14, Align::kBegin, entry->name);
      canvas_.set_color(entry->color);
      cairo_set_line_width(canvas_.cr(), 3);
      cairo_move_to(canvas_.cr(), start - 40, top_ - 19);
      cairo_line_to(canvas_.cr(), start - 12, top_ - 19);
      cairo_stroke(canvas_.cr());
      if (entry->marker) draw_marker(start - 26, top_ - 19, entry->color);
      right = start - 68;
    }
  }

 private:
  double x(double value) const {
    return kLeft + (value - x_.first) / (x_.last - x_.first) * (kWidth - kRight - kLeft);
  }
  double y(double value) const {
    return bottom_ - (value - y_.first) / (y_.last - y_.first) * (bottom_ - top_);
  }
  void begin_clip() {
    cairo_save(canvas_.cr());
    cairo_rectangle(canvas_.cr(), kLeft, top_ - 2, kWidth - kRight - kLeft + 2, bottom_ - top_ + 2);
    cairo_clip(canvas_.cr());
  }
  void draw_marker(double center_x, double center_y, Color color) {
    cairo_new_path(canvas_.cr());
    cairo_arc(canvas_.cr(), center_x, center_y, 5.5, 0, 2 * std::acos(-1.0));
    canvas_.set_color({1, 1, 1});
    cairo_fill_preserve(canvas_.cr());
    canvas_.set_color(color);
    cairo_set_line_width(canvas_.cr(), 2.5);
    cairo_stroke(canvas_.cr());
  }

  Canvas& canvas_;
  const double top_, bottom_;
  const Ticks x_, y_;
};

/// Mean over the last kSmoothing points.
Line smooth(const Line& line) {
  Line result;
  double sum = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    sum += line[i].y;
    if (i >= kSmoothing) sum -= line[i - kSmoothing].y;
    const auto window = static_cast<double>(std::min<size_t>(i + 1, kSmoothing));
    result.push_back({line[i].x, sum / window});
  }
  return result;
}

/// Keeps values drawable, whatever training did.
double bounded(double value) { return std::isfinite(value) ? std::clamp(value, 0.0, 1e6) : 1e6; }

double highest(const Line& line) {
  double result = 0;
  for (const Point& point : line) result = std::max(result, point.y);
  return result;
}

/// The lowest value once the first steps are over: they would squeeze the rest.
double lowest_settled(const Line& smoothed, const Line& tests) {
  double result = 100;
  for (size_t i = std::min<size_t>(smoothed.size() / 12, 100); i < smoothed.size(); ++i) {
    result = std::min(result, smoothed[i].y);
  }
  for (const Point& point : tests) result = std::min(result, point.y);
  return result;
}

}  // namespace

Error draw_curves(const std::string& path, const std::string& subtitle,
                  const std::vector<StepRecord>& history,
                  const std::vector<EvalRecord>& evaluations) {
  Line loss, accuracy, test_loss, test_accuracy;
  for (size_t i = 0; i < history.size(); ++i) {
    const auto step = static_cast<double>(i + 1);
    loss.push_back({step, bounded(history[i].loss)});
    accuracy.push_back({step, bounded(100.0 * static_cast<double>(history[i].accuracy))});
  }
  for (const EvalRecord& evaluation : evaluations) {
    const auto step = static_cast<double>(evaluation.step);
    test_loss.push_back({step, bounded(evaluation.loss)});
    test_accuracy.push_back({step, bounded(100 * evaluation.accuracy)});
  }
  const Line smooth_loss = smooth(loss), smooth_accuracy = smooth(accuracy);

  Canvas canvas;
  canvas.set_color(kInk);
  canvas.set_font(25, true);
  canvas.text(kLeft, 42, Align::kBegin, "Fashion-MNIST, trained with dt");
  canvas.set_color(kMuted);
  canvas.set_font(15);
  canvas.text(kLeft, 68, Align::kBegin, subtitle);

  const double panel_height = (kHeight - kTop - kBottom - kGap) / 2;
  const auto steps = static_cast<double>(std::max<size_t>(history.size(), 1));
  Ticks x = choose_ticks(0, steps, 10);
  x.last = steps;
  Ticks loss_ticks =
      choose_ticks(0, std::max({highest(smooth_loss) / 2, highest(test_loss), 0.1}), 6);
  loss_ticks.first = 0;
  Panel upper(&canvas, kTop, kTop + panel_height, x, loss_ticks);
  upper.draw_axes("Loss", "", "cross entropy (nats)");
  upper.draw_line(loss, kBlue, 0.22, 1);
  upper.draw_line(smooth_loss, kBlue, 1, 2.5);
  upper.draw_line(test_loss, kOrange, 1, 2.5);
  upper.draw_markers(test_loss, kOrange);

  const double low = std::min(lowest_settled(smooth_accuracy, test_accuracy), 95.0);
  Ticks accuracy_ticks = choose_ticks(low, 100, 6);
  accuracy_ticks.last = 100;
  Panel lower(&canvas, kTop + panel_height + kGap, kHeight - kBottom, x, accuracy_ticks);
  lower.draw_axes("Accuracy", "training step", "images classified correctly (%)");
  lower.draw_line(accuracy, kBlue, 0.22, 1);
  lower.draw_line(smooth_accuracy, kBlue, 1, 2.5);
  lower.draw_line(test_accuracy, kOrange, 1, 2.5);
  lower.draw_markers(test_accuracy, kOrange);
  if (!test_accuracy.empty()) {
    lower.draw_label(test_accuracy.back(), format_tick(test_accuracy.back().y, 0.01) + " %");
  }
  const std::vector<Panel::LegendEntry> legend = {
      {"training, mean of " + std::to_string(kSmoothing) + " steps", kBlue, false},
      {"test set", kOrange, true}};
  upper.draw_legend(legend);
  lower.draw_legend(legend);
  return canvas.write(path);
}

}  // namespace fashion
