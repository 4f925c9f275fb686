// SPDX-License-Identifier: Apache-2.0
#include "metrics/exposition.h"

#include <doctest/doctest.h>

#include <set>
#include <sstream>
#include <string>

using dt::metrics::exposition;
using dt::metrics::Snapshot;

namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

Snapshot example() {
  Snapshot snapshot;
  snapshot.job_id = "night \"7\"";
  snapshot.host = "node1";
  snapshot.rank = 2;
  snapshot.world_size = 3;
  snapshot.restarts = 1;
  snapshot.uncounted = 5;
  snapshot.totals.kinds[0] = {10, 1, 4000, 5333, 2'000'000'001};
  snapshot.totals.peers = {{0, 0}, {7, 1'500'000'000}, {0, 0}};
  snapshot.totals.steps = {4, 800, 1'000'000'000, 250'000'000};
  snapshot.totals.stalls = 6;
  return snapshot;
}

}  // namespace

TEST_CASE("exposition: the whole text of a family") {
  const std::string text = exposition(example());
  const size_t begin = text.find("# HELP dt_operations_total");
  const size_t end = text.find("# HELP dt_operation_failures_total");
  REQUIRE(begin != text.npos);
  REQUIRE(end != text.npos);
  CHECK(text.substr(begin, end - begin) ==
        "# HELP dt_operations_total Operations that have ended, failures among them.\n"
        "# TYPE dt_operations_total counter\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"allreduce\"} 10\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"reduce\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"broadcast\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"allgather\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"reduce_scatter\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"barrier\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"send\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"recv\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"alltoall\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"alltoallv\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"gather\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"gatherv\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"scatter\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"scatterv\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"allgatherv\"} 0\n"
        "dt_operations_total{job=\"night \\\"7\\\"\",rank=\"2\",kind=\"reduce_scatterv\"} 0\n");
}

TEST_CASE("exposition: each value in base units, exactly") {
  Snapshot snapshot = example();
  snapshot.job_id = "j";
  const std::string text = exposition(snapshot);
  const std::string labels = "{job=\"j\",rank=\"2\"";
  for (const std::string& line : {
           "dt_job_info" + labels + ",host=\"node1\"} 1",
           "dt_world_size" + labels + "} 3",
           "dt_restarts_total" + labels + "} 1",
           "dt_operation_failures_total" + labels + ",kind=\"allreduce\"} 1",
           "dt_operation_bytes_total" + labels + ",kind=\"allreduce\"} 4000",
           "dt_operation_bus_bytes_total" + labels + ",kind=\"allreduce\"} 5333",
           "dt_operation_seconds_total" + labels + ",kind=\"allreduce\"} 2.000000001",
           "dt_operation_bus_bytes_per_second" + labels + ",kind=\"allreduce\"} 2666.5",
           "dt_operation_bus_bytes_per_second" + labels + ",kind=\"send\"} 0",
           "dt_operations_uncounted_total" + labels + "} 5",
           "dt_stalls_total" + labels + "} 6",
           "dt_peer_waits_total" + labels + ",peer=\"1\"} 7",
           "dt_peer_wait_seconds_total" + labels + ",peer=\"1\"} 1.500000000",
           "dt_reducer_steps_total" + labels + "} 4",
           "dt_reducer_bytes_total" + labels + "} 800",
           "dt_reducer_communication_seconds_total" + labels + "} 1.000000000",
           "dt_reducer_exposed_seconds_total" + labels + "} 0.250000000",
           "dt_reducer_hidden_ratio" + labels + "} 0.75",
       }) {
    CAPTURE(line);
    CHECK(has_line(text, line));
  }
  CHECK(text.find("peer=\"0\"") == text.npos);  // never waited for
}

TEST_CASE("exposition: each family has its help and type before its samples, once") {
  std::istringstream lines(exposition(example()));
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string first, second, third;
    words >> first >> second >> third;
    if (second == "HELP") {
      CHECK(families.insert(third).second);
      family = third;
    } else if (second == "TYPE") {
      CHECK(third == family);
      std::string type;
      words >> type;
      const bool counts = family.size() > 6 && family.substr(family.size() - 6) == "_total";
      CHECK(type == (counts ? "counter" : "gauge"));
    } else {
      CHECK(line.substr(0, family.size() + 1) == family + "{");
      CHECK(family.substr(0, 3) == "dt_");
    }
  }
  CHECK(families.size() == 18);
}

TEST_CASE("label_text: escapes what the format asks for, and nothing else") {
  CHECK(dt::metrics::label_text("a\\b\"c\nd") == "a\\\\b\\\"c\\nd");
  CHECK(dt::metrics::label_text("M\u00fcnchen\t{}") == "M\u00fcnchen\t{}");
  CHECK(dt::metrics::label_text("").empty());
}
