// SPDX-License-Identifier: Apache-2.0
#include "metrics/exposition.h"

#include "base/status.h"
#include "collective/operation.h"

namespace dt::metrics {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr double kBytesPerGb = 1e9;

std::string number(int64_t value) { return std::to_string(value); }
std::string number(double value) { return format("%.9g", value); }

/// Exactly: a counter must never become less by rounding.
std::string seconds(int64_t ns) {
  return format("%lld.%09lld", static_cast<long long>(ns / kNsPerS),
                static_cast<long long>(ns % kNsPerS));
}

class Page {
 public:
  /// `common`: the labels of every sample, "job=\"a\",rank=\"0\"".
  explicit Page(std::string common) : common_(std::move(common)) {}

  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += format("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
  }
  void sample(const std::string& value, const std::string& label = {}) {
    text_ += name_ + "{" + common_ + (label.empty() ? "" : "," + label) + "} " + value + "\n";
  }
  void single(const char* name, const char* type, const char* help, const std::string& value) {
    family(name, type, help);
    sample(value);
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string common_;
  std::string name_;
  std::string text_;
};

/// One family with a sample for each kind of operation.
template <class Value>
void add_kinds(Page* page, const record::Totals& totals, const char* name, const char* type,
               const char* help, const Value& value_of) {
  page->family(name, type, help);
  for (int kind = 0; kind < kKindCount; ++kind) {
    page->sample(value_of(totals.kinds[static_cast<size_t>(kind)]),
                 format("kind=\"%s\"", kind_name(static_cast<collective::Kind>(kind))));
  }
}

void add_operations(Page* page, const record::Totals& totals) {
  using Kind = record::Totals::Kind;
  add_kinds(page, totals, "dt_operations_total", "counter",
            "Operations that have ended, failures among them.",
            [](const Kind& kind) { return number(kind.operations); });
  add_kinds(page, totals, "dt_operation_failures_total", "counter", "Operations that failed.",
            [](const Kind& kind) { return number(kind.failures); });
  add_kinds(page, totals, "dt_operation_bytes_total", "counter",
            "Bytes of the larger of an operation's two buffers.",
            [](const Kind& kind) { return number(kind.bytes); });
  add_kinds(page, totals, "dt_operation_bus_bytes_total", "counter",
            "The same times the factor of nccl-tests for a bus bandwidth.",
            [](const Kind& kind) { return number(kind.bus_bytes); });
  add_kinds(page, totals, "dt_operation_seconds_total", "counter",
            "Time from the start of each operation to its end.",
            [](const Kind& kind) { return seconds(kind.busy_ns); });
  add_kinds(page, totals, "dt_operation_bus_bytes_per_second", "gauge",
            "Bus bandwidth of all operations so far.",
            [](const Kind& kind) { return number(record::bus_bandwidth(kind) * kBytesPerGb); });
}

/// Of a large job most ranks are never waited for, and have no sample.
void add_peers(Page* page, const record::Totals& totals) {
  const auto add = [&](const char* name, const char* help, const auto& value_of) {
    page->family(name, "counter", help);
    for (size_t rank = 0; rank < totals.peers.size(); ++rank) {
      const record::Totals::Peer& peer = totals.peers[rank];
      if (peer.waits != 0) page->sample(value_of(peer), format("peer=\"%zu\"", rank));
    }
  };
  add("dt_peer_waits_total", "How often calls were held up by that rank.",
      [](const auto& peer) { return number(peer.waits); });
  add("dt_peer_wait_seconds_total", "How long calls were held up by that rank.",
      [](const auto& peer) { return seconds(peer.waited_ns); });
}

void add_steps(Page* page, const record::Totals::Steps& steps) {
  page->single("dt_reducer_steps_total", "counter", "Steps of all reducers.", number(steps.steps));
  page->single("dt_reducer_bytes_total", "counter", "Gradient bytes that were reduced.",
               number(steps.bytes));
  page->single("dt_reducer_communication_seconds_total", "counter",
               "Time in which at least one bucket was under way.", seconds(steps.communication_ns));
  page->single("dt_reducer_exposed_seconds_total", "counter",
               "The part of it for which the program waited.", seconds(steps.exposed_ns));
  page->single("dt_reducer_hidden_ratio", "gauge", "1 - exposed / communication, of all steps.",
               number(record::hidden_share(steps)));
}

}  // namespace

std::string label_text(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

std::string exposition(const Snapshot& snapshot) {
  Page page(format("job=\"%s\",rank=\"%d\"", label_text(snapshot.job_id).c_str(), snapshot.rank));
  page.family("dt_job_info", "gauge", "Always 1.");
  page.sample("1", format("host=\"%s\"", label_text(snapshot.host).c_str()));
  page.single("dt_world_size", "gauge", "Ranks of the job.", number(int64_t{snapshot.world_size}));
  page.single("dt_restarts_total", "counter", "How often the job was started before.",
              number(int64_t{snapshot.restarts}));
  add_operations(&page, snapshot.totals);
  page.single("dt_operations_uncounted_total", "counter",
              "Operations that the flight recorder had no room for.", number(snapshot.uncounted));
  page.single("dt_stalls_total", "counter",
              "Operations that took watchdog.stall_warn_ms or longer.",
              number(snapshot.totals.stalls));
  add_peers(&page, snapshot.totals);
  add_steps(&page, snapshot.totals.steps);
  return page.take();
}

}  // namespace dt::metrics
