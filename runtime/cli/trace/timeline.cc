// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "cli/trace/report.h"
#include "cli/trace/words.h"

namespace dt::cli::trace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLanes = 64;  // of one communicator; more operations at once share the last

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

Json named(const char* what, int32_t rank, int64_t thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

/// The rows of one communicator: an operation goes into the first in which the one before has
/// ended, since what overlaps in one row is drawn as nested.
struct Lanes {
  std::vector<int64_t> free_at_ns;

  int64_t take(int64_t begin_ns, int64_t end_ns) {
    for (size_t i = 0; i < free_at_ns.size(); ++i) {
      if (free_at_ns[i] > begin_ns) continue;
      free_at_ns[i] = end_ns;
      return static_cast<int64_t>(i);
    }
    if (free_at_ns.size() < static_cast<size_t>(kLanes)) free_at_ns.push_back(end_ns);
    return static_cast<int64_t>(free_at_ns.size()) - 1;
  }
};

Json arguments_of(const record::Entry& entry) {
  Json json;
  json["operation"] = signature_text(entry);
  json["sequence"] = entry.position;
  json["count"] = entry.count;
  json["bytes"] = entry.bytes;
  json["dtype"] = dtype_name(static_cast<Dtype>(entry.dtype));
  if (entry.root >= 0) json[record::is_transfer(entry.kind) ? "peer" : "root"] = entry.root;
  json["status"] = entry.state == record::State::kDone ? code_name(entry.status) : "not completed";
  json["queued_us"] =
      entry.started_ns > entry.enqueued_ns ? microseconds(entry.started_ns - entry.enqueued_ns) : 0;
  return json;
}

void add_rank(const record::Trace& trace, int64_t origin_ns, Json* events) {
  const int32_t rank = trace.identity.rank;
  events->push_back(named("process_name", rank, 0, rank_text(trace)));
  Json order = named("process_sort_index", rank, 0, "");
  order["args"] = {{"sort_index", rank}};
  events->push_back(std::move(order));
  std::vector<Lanes> lanes(trace.recorded.communicators.size());
  for (const record::Entry& entry : trace.recorded.entries) {
    const bool done = entry.state == record::State::kDone;
    const int64_t begin = std::max(entry.started_ns, entry.enqueued_ns);
    const int64_t end = std::max(done ? entry.completed_ns : trace.recorded.monotonic_ns, begin);
    Lanes& rows = lanes[entry.communicator];
    const size_t before = rows.free_at_ns.size();
    const int64_t lane = rows.take(begin, end);
    const int64_t thread = entry.communicator * kLanes + lane + 1;
    if (rows.free_at_ns.size() > before) {
      std::string name = trace.recorded.communicators[entry.communicator].name;
      if (lane > 0) name += format(" (%lld)", static_cast<long long>(lane + 1));
      events->push_back(named("thread_name", rank, thread, name));
    }
    events->push_back({{"name", entry.label.empty() ? kind_text(entry.kind) : entry.label},
                       {"cat", trace.recorded.communicators[entry.communicator].name},
                       {"ph", "X"},
                       {"pid", rank},
                       {"tid", thread},
                       {"ts", microseconds(realtime_of(trace, begin) - origin_ns)},
                       {"dur", microseconds(end - begin)},
                       {"args", arguments_of(entry)}});
  }
}

}  // namespace

std::string timeline_json(const std::vector<record::Trace>& traces) {
  int64_t origin_ns = std::numeric_limits<int64_t>::max();
  for (const record::Trace& trace : traces) {
    for (const record::Entry& entry : trace.recorded.entries) {
      origin_ns = std::min(origin_ns, realtime_of(trace, entry.enqueued_ns));
    }
  }
  Json events = Json::array();
  for (const record::Trace& trace : traces) add_rank(trace, origin_ns, &events);
  Json json;
  json["displayTimeUnit"] = "ms";
  json["otherData"] = {{"job", traces.empty() ? "" : traces[0].identity.job_id},
                       {"origin_ns_since_1970", traces.empty() ? 0 : origin_ns}};
  json["traceEvents"] = std::move(events);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dt::cli::trace
