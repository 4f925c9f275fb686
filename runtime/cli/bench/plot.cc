// SPDX-License-Identifier: Apache-2.0
// Draws measurements as SVG, which is text: a reader can search it and scale it. A panel has two
// logarithmic axes; x is the size in bytes, by powers of two.
#include "cli/bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace dt::cli::bench {
namespace {

// Pixels.
constexpr double kWidth = 1320;
constexpr double kPanelWidth = 430;
constexpr double kPanelHeight = 330;
constexpr double kLeft = 80;
constexpr double kGap = 90;     // between the panels of a row
constexpr double kTitle = 74;   // above the panels
constexpr double kBottom = 70;  // below
constexpr double kRowHeight = kTitle + kPanelHeight + kBottom;
constexpr double kLegendX = kLeft + 2 * kPanelWidth + kGap + 34;
constexpr int kMostTicks = 9;

/// A line of a panel; y in microseconds or GB/s.
struct Curve {
  struct Point {
    double x = 0;  // bytes
    double y = 0, low = 0, high = 0;
  };
  std::string name;
  std::string color;
  std::string dash;
  double width = 1.8;
  bool has_marks = true;
  std::vector<Point> points;
};

struct Range {
  double low = 0;  // logarithms
  double high = 1;
};

struct Panel {
  double x = 0, y = 0;  // of the upper left corner
  Range sizes;          // log2
  Range values;         // log10
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result;
}

std::string text_at(double x, double y, const char* anchor, const char* style,
                    const std::string& text) {
  return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor,
                style) +
         escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& more) {
  return format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" ", x1, y1, x2, y2) + more +
         "/>\n";
}

// The palette of Okabe and Ito, which colour-blind readers tell apart; tuned rivals are dashed.
Curve curve_for(const std::string& program) {
  struct Look {
    const char* name;
    const char* color;
  };
  static constexpr Look kLooks[] = {{"dt-shared", "#0072B2"}, {"dt-private", "#56B4E9"},
                                    {"dt-cuda", "#0072B2"},   {"openmpi", "#D55E00"},
                                    {"mpich", "#E69F00"},     {"gloo", "#009E73"},
                                    {"torch", "#CC79A7"}};
  Curve curve;
  curve.name = program;
  curve.color = "#000000";
  for (const Look& look : kLooks) {
    if (program.compare(0, std::string(look.name).size(), look.name) == 0) curve.color = look.color;
  }
  if (program.find("-tuned") != std::string::npos) curve.dash = "6 4";
  if (program.compare(0, 3, "dt-") == 0) curve.width = 3;
  return curve;
}

// `gbps`: bandwidth instead of time, of which the fastest round is the upper end.
std::vector<Curve> curves_of(const Plot& plot, bool gbps) {
  const Options& options = plot.measured->options;
  const auto y_of = [gbps](double bytes, double us) { return gbps ? bytes / us * 1e-3 : us; };
  std::vector<Curve> curves;
  for (const Program& program : plot.measured->programs) {
    Curve curve = curve_for(program.name);
    for (const Row& row : program.rows) {
      const Spread us = spread(row.places[0].us);
      const auto bytes = static_cast<double>(row.bytes);
      if (row.bytes <= 0 || us.min <= 0) continue;
      const double ends[] = {y_of(bytes, us.min), y_of(bytes, us.max)};
      curve.points.push_back(
          {bytes, y_of(bytes, us.median), std::min(ends[0], ends[1]), std::max(ends[0], ends[1])});
    }
    curves.push_back(std::move(curve));
  }
  const auto add_limit = [&curves](Curve curve) {
    curve.width = 1.5;
    curve.has_marks = false;
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  };
  Curve copies{"copy, no partner", "#555555", "2 3", 0, false, {}};
  Curve wire{format("wire, %g Gbit/s", plot.wire_gbps), "#000000", "9 3 2 3", 0, false, {}};
  const double factor = std::max(bus_factor(options, options.ranks), 1e-9);
  for (const CopyLimit& copy : plot.copies) {
    const auto bytes = static_cast<double>(copy.bytes);
    if (copy.bytes <= 0 || copy.us <= 0) continue;
    const double y = y_of(bytes, copy.us);
    copies.points.push_back({bytes, y, y, y});
  }
  for (const int64_t size : options.sizes_bytes) {
    if (size <= 0 || plot.wire_gbps <= 0 || options.ranks < 2) continue;
    const auto bytes = static_cast<double>(size);
    const double y = y_of(bytes, bytes * factor * 8 / (plot.wire_gbps * 1e3));
    wire.points.push_back({bytes, y, y, y});
  }
  add_limit(std::move(copies));
  add_limit(std::move(wire));
  return curves;
}

Panel panel_for(double x, double y, const std::vector<Curve>& curves) {
  Panel panel{x, y, {1e9, -1e9}, {1e9, -1e9}};
  for (const Curve& curve : curves) {
    for (const Curve::Point& point : curve.points) {
      panel.sizes.low = std::min(panel.sizes.low, std::log2(point.x));
      panel.sizes.high = std::max(panel.sizes.high, std::log2(point.x));
      panel.values.low = std::min(panel.values.low, std::floor(std::log10(point.low)));
      panel.values.high = std::max(panel.values.high, std::ceil(std::log10(point.high)));
    }
  }
  if (panel.sizes.high < panel.sizes.low) panel.sizes = {0, 1}, panel.values = {0, 1};
  panel.sizes.low -= 0.5;
  panel.sizes.high += 0.5;
  if (panel.values.high - panel.values.low < 1) panel.values.high = panel.values.low + 1;
  return panel;
}

double x_at(const Panel& panel, double bytes) {
  return panel.x +
         kPanelWidth * (std::log2(bytes) - panel.sizes.low) / (panel.sizes.high - panel.sizes.low);
}

double y_at(const Panel& panel, double value) {
  return panel.y + kPanelHeight * (panel.values.high - std::log10(value)) /
                       (panel.values.high - panel.values.low);
}

std::string size_label(int power) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  return format("%d %s", 1 << (power % 10), kUnits[std::min(power / 10, 4)]);
}

std::string time_label(int power) {
  static constexpr const char* kUnits[] = {"ns", "\u00b5s", "ms", "s"};
  const int in_ns = std::clamp(power + 3, 0, 11);
  return format("%d ", in_ns % 3 == 0 ? 1 : in_ns % 3 == 1 ? 10 : 100) + kUnits[in_ns / 3];
}

std::string frame(const Panel& panel, bool gbps) {
  std::string svg;
  const double right = panel.x + kPanelWidth;
  const double bottom = panel.y + kPanelHeight;
  const int first = static_cast<int>(std::ceil(panel.sizes.low));
  const int last = static_cast<int>(std::floor(panel.sizes.high));
  const int step = std::max(1, (last - first + kMostTicks) / kMostTicks);
  for (int power = std::max(first, 0); power <= last; power += step) {
    const double x = x_at(panel, std::exp2(power));
    svg += line(x, panel.y, x, bottom, "class=\"grid\"");
    svg += text_at(x, bottom + 18, "middle", "tick", size_label(power));
  }
  for (int power = static_cast<int>(panel.values.low); power <= static_cast<int>(panel.values.high);
       ++power) {
    const double y = y_at(panel, std::pow(10.0, power));
    svg += line(panel.x, y, right, y, "class=\"grid\"");
    svg += text_at(panel.x - 8, y + 4, "end", "tick",
                   gbps ? format("%g", std::pow(10.0, power)) : time_label(power));
  }
  svg += format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"frame\"/>\n",
                panel.x, panel.y, kPanelWidth, kPanelHeight);
  svg += text_at(panel.x + kPanelWidth / 2, bottom + 42, "middle", "axis", "size");
  return svg + text_at(panel.x, panel.y - 10, "start", "axis",
                       gbps ? "algorithm bandwidth, GB/s" : "time of one operation");
}

std::string draw(const Panel& panel, const Curve& curve) {
  std::string svg = "<g stroke=\"" + curve.color + "\" fill=\"none\"" +
                    format(" stroke-width=\"%.1f\"", curve.width) +
                    (curve.dash.empty() ? "" : " stroke-dasharray=\"" + curve.dash + "\"") +
                    "><title>" + escaped(curve.name) + "</title>\n<polyline points=\"";
  for (const Curve::Point& point : curve.points) {
    svg += format("%.1f,%.1f ", x_at(panel, point.x), y_at(panel, point.y));
  }
  svg += "\"/>\n</g>\n";
  if (!curve.has_marks) return svg;
  svg += "<g stroke=\"" + curve.color + "\" fill=\"" + curve.color + "\">\n";
  for (const Curve::Point& point : curve.points) {
    const double x = x_at(panel, point.x);
    svg += line(x, y_at(panel, point.low), x, y_at(panel, point.high),
                "stroke-width=\"1\" stroke-opacity=\"0.5\"");
    svg += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", x, y_at(panel, point.y),
                  curve.width > 2 ? 3.2 : 2.4);
  }
  return svg + "</g>\n";
}

std::string legend(const Plot& plot, const std::vector<Curve>& curves, double top) {
  std::string svg;
  double y = top + 8;
  for (const Curve& curve : curves) {
    std::string look =
        "stroke=\"" + curve.color + "\"" + format(" stroke-width=\"%.1f\"", curve.width);
    if (!curve.dash.empty()) look += " stroke-dasharray=\"" + curve.dash + "\"";
    svg += line(kLegendX, y, kLegendX + 36, y, look);
    svg += text_at(kLegendX + 46, y + 4, "start", "series", curve.name);
    const auto& programs = plot.measured->programs;
    const auto program = std::find_if(programs.begin(), programs.end(),
                                      [&](const Program& one) { return one.name == curve.name; });
    if (program != programs.end()) {
      svg += text_at(kLegendX + 46, y + 18, "start", "note", program->version);
    }
    y += program != programs.end() ? 38 : 26;
  }
  return svg;
}

std::string row_of(const Plot& plot, double top) {
  const Options& options = plot.measured->options;
  std::string svg =
      text_at(kLeft, top + 24, "start", "title",
              format("%s, %s %s, %d rank%s", collective_name(options), dtype_name(options),
                     op_name(options), options.ranks, options.ranks == 1 ? "" : "s"));
  svg += text_at(kLeft, top + 42, "start", "note",
                 format("out of place; median of %d rounds, bars from the fastest to the slowest",
                        options.rounds));
  for (const bool gbps : {false, true}) {
    const std::vector<Curve> curves = curves_of(plot, gbps);
    const Panel panel = panel_for(gbps ? kLeft + kPanelWidth + kGap : kLeft, top + kTitle, curves);
    svg += frame(panel, gbps);
    for (const Curve& curve : curves) svg += draw(panel, curve);
    if (!gbps) svg += legend(plot, curves, top + kTitle);
  }
  return svg;
}

}  // namespace

std::string svg_of(const std::vector<Plot>& plots, const Machine& machine) {
  const double height = kRowHeight * static_cast<double>(plots.size()) + 34;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\">\n",
      kWidth, height, kWidth, height);
  svg +=
      "<style>text{font-family:Helvetica,Arial,sans-serif;fill:#222}.title{font-size:18px;"
      "font-weight:bold}.axis{font-size:13px}.tick{font-size:11.5px}.series{font-size:13px}"
      ".note{font-size:11px;fill:#666}.grid{stroke:#e3e3e3;stroke-width:1}"
      ".frame{fill:none;stroke:#999;stroke-width:1}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  double top = 0;
  for (const Plot& plot : plots) {
    svg += row_of(plot, top);
    top += kRowHeight;
  }
  svg += text_at(kLeft, height - 14, "start", "note",
                 "dt bench on " + machine.host + ", " + machine.cpu +
                     format(", %d cores, ", machine.cores) + machine.date);
  return svg + "</svg>\n";
}

Result<double> parse_wire(const std::string& text) {
  char* end = nullptr;
  const double gbps = strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && gbps > 0 && gbps < 1e6) return gbps;
  const std::string path = "/sys/class/net/" + text + "/speed";
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      text.find('/') == std::string::npos ? fopen(path.c_str(), "re") : nullptr, fclose);
  double mbps = 0;
  if (file != nullptr && fscanf(file.get(), "%lf", &mbps) == 1 && mbps > 0) return mbps / 1e3;
  return Status(
      Code::kInvalidArgument,
      "--wire " + text + ": write Gbit/s (10, 2.5) or an interface whose speed the kernel knows");
}

}  // namespace dt::cli::bench
