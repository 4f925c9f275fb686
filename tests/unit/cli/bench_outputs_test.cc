// SPDX-License-Identifier: Apache-2.0
// What dt bench makes of its figures: expectations and pictures.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/bench/expectation.h"
#include "cli/bench/method.h"
#include "cli/bench/outputs.h"
#include "cli/bench/plot.h"

using namespace dt::cli::bench;
using dt::Code;

namespace {

Machine machine_of(const char* cpu) { return {"h", cpu, 2, "2026-01-01T00:00:00Z"}; }

Program program_of(const char* name, bool is_rival, double us) {
  Program program{name, "version <1>", is_rival, {}};
  for (const int64_t bytes : {0, 8, 65536}) {
    Row row;
    row.bytes = bytes;
    row.count = bytes / 4;
    const double scale = bytes > 8 ? 10 : 1;
    for (Series& series : row.places) series.us = {us * scale, us * scale * 2, us * scale * 3};
    program.rows.push_back(row);
  }
  return program;
}

Measured measured_of(double us) {
  Options options;
  options.collective = BENCH_ALLREDUCE;
  options.dtype = BENCH_F32;
  options.rounds = 3;
  return {options, {program_of("dt-shared", false, us), program_of("openmpi-tuned", true, 4)}};
}

size_t times_in(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// Tags close in the order in which they were opened; attributes are quoted.
bool is_well_formed(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (times_in(tag, "\"") % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
  }
  return open.empty();
}

}  // namespace

TEST_CASE("bench: an expectation has dt's rows, and is read as it was written") {
  const Machine machine = machine_of("a \"fast\" cpu");
  const Expectation expectation = make_expectation(machine, {measured_of(5)});
  REQUIRE(expectation.rows.size() == 3 * 2);  // no rivals
  CHECK(expectation.rows[3].name() == "dt-shared allreduce float sum, 2 ranks, 8 B, in place");
  CHECK(expectation.rows[3].us == 10);
  const auto read = parse_expectation(expectation_text(machine, expectation), "e.json");
  REQUIRE(read.ok());
  CHECK(read.value().cpu == machine.cpu);
  CHECK(read.value().version == "version <1>");
  REQUIRE(read.value().rows.size() == 6);
  CHECK(read.value().rows[5].name() == expectation.rows[5].name());
  CHECK(judge(read.value(), expectation, 1).missed == 0);

  for (const char* text : {"", "{", "[]", "{\"dt_bench_expectation\": 2}",
                           "{\"dt_bench_expectation\": 1, \"machine\": {\"cpu\": 3}}"}) {
    CAPTURE(std::string(text));
    const auto refused = parse_expectation(text, "e.json");
    REQUIRE(!refused.ok());
    CHECK(refused.status().code() == Code::kConfig);
    CHECK(times_in(refused.status().message(), "e.json is no expectation of dt bench: ") == 1);
    CHECK(times_in(refused.status().message(), "write a new one with --save-expectation") == 1);
  }
}

TEST_CASE("bench: a missed expectation names the row and by how much") {
  const Machine machine = machine_of("cpu");
  const Expectation expected = make_expectation(machine, {measured_of(5)});
  CHECK(judge(expected, make_expectation(machine, {measured_of(7.4)}), 1.5).text ==
        "# Expectation           : 0 of 6 rows missed OK\n");
  const Verdict slow = judge(expected, make_expectation(machine, {measured_of(10)}), 1.5);
  CHECK(slow.missed == 6);
  CHECK(times_in(slow.text,
                 "# expectation missed: dt-shared allreduce float sum, 2 ranks, 65536 B, out of "
                 "place: 200.00 us, 2.00 times the expected 100.00 us (at most 1.50 times)\n") ==
        1);
  CHECK(times_in(slow.text, "# Expectation           : 6 of 6 rows missed FAILED\n") == 1);

  Expectation fewer = make_expectation(machine_of("other"), {measured_of(5)});
  fewer.rows.pop_back();
  const Verdict missing = judge(expected, fewer, 1.5);
  CHECK(missing.missed == 1);
  CHECK(times_in(missing.text, "65536 B, in place: not measured\n") == 1);
  CHECK(times_in(missing.text, "# expectation: it is of another machine, cpu cpu\n") == 1);
  const Verdict more = judge(fewer, expected, 1.5);
  CHECK(more.missed == 0);
  CHECK(times_in(more.text, "# expectation: it says nothing of 1 measured rows\n") == 1);
}

TEST_CASE("bench: a picture has every series, both limits and the machine") {
  Measured measured = measured_of(5);
  measured.options.sizes_bytes = {0, 8, 65536};
  const std::vector<CopyLimit> copies = {{0, 0.1}, {8, 0.1}, {65536, 5}};
  const std::string svg = svg_of({{&measured, copies, 10}, {&measured, {}, 0}}, machine_of("a&b"));
  CHECK(is_well_formed(svg));
  CHECK(svg.compare(0, 5, "<svg ") == 0);
  for (const char* series : {"dt-shared", "openmpi-tuned"}) {
    CAPTURE(std::string(series));
    CHECK(times_in(svg, "<title>" + std::string(series) + "</title>") == 4);
  }
  CHECK(times_in(svg, "<title>copy, no partner</title>") == 2);
  CHECK(times_in(svg, "<title>wire, 10 Gbit/s</title>") == 2);
  CHECK(times_in(svg, "<circle ") == 2 * 4 * 2);  // a size of 0 has no place on the axis
  CHECK(times_in(svg, ">allreduce, float sum, 2 ranks<") == 2);
  CHECK(times_in(svg, ">64 KiB<") + times_in(svg, ">32 KiB<") > 0);
  CHECK(times_in(svg, "version &lt;1&gt;") == 4);
  CHECK(times_in(svg, "a&amp;b, 2 cores") == 1);
  CHECK(times_in(svg, "nan") + times_in(svg, "inf") == 0);
  // The wire has its line also where no copies were measured.
  const std::string no_copies = svg_of({{&measured, {}, 10}}, machine_of("a&b"));
  CHECK(times_in(no_copies, "<title>wire, 10 Gbit/s</title>") == 2);
  CHECK(times_in(no_copies, "<title>copy, no partner</title>") == 0);
}

TEST_CASE("bench: a picture of nothing but an empty message is still one") {
  Measured measured = measured_of(5);
  for (Program& program : measured.programs) program.rows.resize(1);
  const std::string svg = svg_of({{&measured, {}, 0}}, machine_of("cpu"));
  CHECK(is_well_formed(svg));
  CHECK(times_in(svg, "nan") + times_in(svg, "inf") == 0);
}

TEST_CASE("bench: copies are measured for each size") {
  const std::vector<CopyLimit> copies = measure_copies(2, {0, 8, 65536});
  REQUIRE(copies.size() == 3);
  CHECK(copies[2].bytes == 65536);
  CHECK(copies[2].us > 0);
  // Without those for which there is no memory.
  CHECK(measure_copies(2, {8, int64_t{1} << 60}).size() == 1);
  CHECK(measure_copies(2, {int64_t{1} << 60}).empty());
}

TEST_CASE("bench: a file that cannot be written stays as it was") {
  std::string folder = (std::filesystem::temp_directory_path() / "dt-bench-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string file = folder + "/a.json";
  const std::string link = folder + "/link.json";
  REQUIRE(symlink(file.c_str(), link.c_str()) == 0);
  REQUIRE(write_text(file, "old").ok());
  REQUIRE(chmod(file.c_str(), 0640) == 0);
  const auto text = [&] {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  // A disk that holds 4 bytes.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const dt::Status full = write_text(file, "longer");
  const dt::Status absent = write_text(folder + "/b.json", "longer");
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(full.message() == "cannot write " + file + ": File too large");
  CHECK(!absent.ok());
  CHECK(text() == "old");
  CHECK(write_text(link, "longer").ok());
  CHECK(text() == "longer");
  CHECK(std::filesystem::is_symlink(link));
  CHECK((std::filesystem::status(file).permissions() == std::filesystem::perms(0640)));
  CHECK(write_text("/dev/null", "gone").ok());
  CHECK(write_text("/dev/full", "gone").message() ==
        "cannot write /dev/full: No space left on device");
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 2);
  std::filesystem::remove_all(folder);
}

TEST_CASE("bench: a wire is a number or an interface") {
  CHECK(parse_wire("10").value() == 10);
  CHECK(parse_wire("2.5").value() == 2.5);
  for (const char* text : {"", "-1", "0", "10G", "../x", "no_such_interface"}) {
    CAPTURE(std::string(text));
    const auto refused = parse_wire(text);
    REQUIRE(!refused.ok());
    CHECK(refused.status().message() ==
          "--wire " + std::string(text) +
              ": write Gbit/s (10, 2.5) or an interface whose speed the kernel knows");
  }
}
