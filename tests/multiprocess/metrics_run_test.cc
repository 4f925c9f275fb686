// SPDX-License-Identifier: Apache-2.0
// What processes of dt run count, and write for Prometheus.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "dt_run.h"

using namespace dt::test;

namespace {}  // namespace

TEST_CASE("a restart is counted, and the files of the ranks hold the last attempt") {
  char folder[] = "/tmp/dt-metrics-run-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  Process::Options options;
  options.environment = {std::string("DT_METRICS_FILE=") + folder + "/dt-{rank}.prom"};
  Process run(dt_run({"-n", "2", "--max-restarts", "1"}, {}), options);
  CHECK(run.wait() == 0);
  INFO(run.out);
  INFO(run.err);
  CHECK(count_of(run.out, "restarts 1 barriers 1") == 2);
  for (const char* rank : {"0", "1"}) {
    const std::string text = content_of(std::string(folder) + "/dt-" + rank + ".prom");
    const std::string labels = std::string("rank=\"") + rank + "\"";
    CAPTURE(text);
    CHECK(count_of(text, labels + "} 1\n") >= 1);
    CHECK(count_of(text, labels + ",kind=\"barrier\"} 1\n") == 1);
    const size_t restarts = text.find("dt_restarts_total{");
    REQUIRE(restarts != text.npos);
    CHECK(text.substr(text.find("} ", restarts), 4) == "} 1\n");
  }
  std::filesystem::remove_all(folder);
}
