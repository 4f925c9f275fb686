// SPDX-License-Identifier: Apache-2.0
// What `dt bench --tune` tries, takes and writes. Times are invented, files are texts.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/bench/method.h"
#include "cli/bench/tune_choice.h"
#include "cli/bench/tune_file.h"
#include "cli/bench/tune_plan.h"

using namespace dt::cli::bench;
using dt::Code;

namespace {

std::string text_with(const std::string& text, const Settings& settings) {
  const dt::Result<std::string> changed = with_settings(text, settings, "dt.toml");
  REQUIRE_MESSAGE(changed.ok(), changed.status().message());
  return changed.value();
}

std::string refusal(const std::string& text, const Settings& settings) {
  const dt::Result<std::string> changed = with_settings(text, settings, "dt.toml");
  REQUIRE(!changed.ok());
  CHECK(changed.status().code() == Code::kConfig);
  return changed.status().message();
}

const Settings kSlot = {{"host.slot_bytes", 131072}};
const Settings kTwo = {{"host.push_bytes", 262144}, {"host.slot_bytes", 131072}};
constexpr char kByHand[] =
    "dt.toml: host.* cannot be changed there without touching more than lines of \"key = value\"; "
    "write slot_bytes = 131072 into it by hand, in a section [host]";

struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dt-tune-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("tune: ratios are those of rounds that were measured side by side") {
  // The machine is half as fast in the second round, which hits both alike.
  const Trial present = {{100, 400}, {200, 800}, {100, 400}};
  const Trial other = {{50, 400}, {100, 800}, {50, 400}};
  const Comparison one = compare_trials(present, other);
  CHECK(one.median == doctest::Approx(1.41421));  // twice as fast at one of two points
  CHECK(one.low == doctest::Approx(1.41421));
  CHECK(one.high == doctest::Approx(1.41421));
  CHECK(one.worst == doctest::Approx(1));
  const Comparison none = compare_trials({}, {});
  CHECK(none.median == 1);
}

TEST_CASE("tune: a value is taken only when its gain exceeds the spread") {
  const Trial present = {{100}, {100}, {100}};
  const Trial quiet = {{100}, {101}, {99}};
  const Trial noisy = {{100}, {112}, {92}};
  const Trial tenth = {{91}, {90}, {91}};
  CHECK(choose(present, quiet, {tenth}).best == 0);
  CHECK(choose(present, noisy, {tenth}).best == -1);
  // The median is good, one round is not.
  CHECK(choose(present, quiet, {{{80}, {80}, {101}}}).best == -1);
  // As fast as the present value was against itself, once.
  CHECK(choose(present, quiet, {{{80}, {80}, {99}}}).best == -1);
  // Less than a fiftieth is not worth a line.
  CHECK(choose(present, present, {{{99}, {99}, {99}}}).best == -1);
  // Of five rounds one at either end may be an accident, of one as of the other; two may not.
  const Trial five = {{100}, {100}, {100}, {100}, {100}};
  const Trial hit = {{100}, {170}, {101}, {99}, {50}};
  CHECK(choose(five, hit, {{{80}, {80}, {300}, {80}, {80}}}).best == 0);
  CHECK(choose(five, hit, {{{80}, {80}, {300}, {101}, {80}}}).best == -1);
  // The best of several, not the first.
  CHECK(choose(present, quiet, {tenth, {{50}, {50}, {50}}, {{60}, {60}, {60}}}).best == 1);
  CHECK(choose(present, quiet, {}).best == -1);
}

TEST_CASE("tune: what was chosen before has to be faster in each round, and by more than noise") {
  const Comparison again{1, 0.9, 1.2, 1};
  CHECK(holds({1.3, 1.1, 1.4, 1}, again));
  CHECK_FALSE(is_better({1.3, 1.1, 1.4, 1}, again));
  CHECK_FALSE(holds({1.3, 0.99, 1.4, 1}, again));
  CHECK_FALSE(holds({1.19, 1.1, 1.4, 1}, again));
  CHECK_FALSE(holds({1.3, 1.1, 1.4, 0.8}, again));
}

TEST_CASE("tune: no size may pay for the others") {
  const Trial present = {{100, 100}, {100, 100}, {100, 100}};
  CHECK(choose(present, present, {{{50, 110}, {50, 110}, {50, 110}}}).best == -1);
  CHECK(choose(present, present, {{{50, 103}, {50, 103}, {50, 103}}}).best == 0);
}

TEST_CASE("tune: what is tried follows from the settings that are in force") {
  Options options;
  dt::Config config;
  const auto all = plan_tuning(options, config);
  REQUIRE(all.ok());
  for (const Knob& knob : all.value()) {
    CAPTURE(knob.key);
    CHECK(knob.present == config.integer(knob.key));
    CHECK(!knob.values.empty());
    CHECK(std::count(knob.values.begin(), knob.values.end(), knob.present) == 0);
    CHECK(!knob.probes.empty());
    CHECK(variable_of(knob.key).substr(0, 8) == "DT_HOST_");
    for (const int64_t value : knob.values) {
      CHECK(config.set(knob.key, std::to_string(value)).ok());
    }
    CHECK(config.set(knob.key, std::to_string(knob.present)).ok());
  }
  REQUIRE(config.set("host.slot_bytes", "32768").ok());
  options.tune_keys = {"slot_bytes", "host.exchange_ranks"};
  options.sizes_given = true;
  options.sizes_bytes = {4096};
  for (const int ranks : {2, 4}) {
    options.ranks = ranks;
    const auto some = plan_tuning(options, config);
    REQUIRE(some.ok());
    REQUIRE(some.value().size() == 2);
    CHECK(some.value()[0].key == "host.exchange_ranks");
    CHECK(some.value()[0].values == std::vector<int64_t>{ranks == 2 ? 1 : 4});
    CHECK(some.value()[1].present == 32768);
    CHECK(some.value()[1].values == std::vector<int64_t>{16384, 65536, 131072, 262144});
    CHECK(some.value()[1].probes[0].sizes_bytes == std::vector<int64_t>{4096});
  }
  options.tune_keys = {"spin_us"};
  const auto unknown = plan_tuning(options, config);
  REQUIRE(!unknown.ok());
  CHECK(unknown.status().message() ==
        "--tune-keys spin_us: there are inline_bytes, exchange_ranks, slot_bytes, segment_bytes, "
        "segments, ring_bytes, push_bytes, streaming_bytes, mapped_bytes");
}

TEST_CASE("tune: with --memory only what moves such buffers is tried") {
  Options options;
  dt::Config config;
  const auto keys = [&] {
    const auto plan = plan_tuning(options, config);
    REQUIRE(plan.ok());
    std::string text;
    for (const Knob& knob : plan.value()) {
      for (const Probe& probe : knob.probes) {
        CHECK((!options.memory_given || probe.shared == options.shared));
        CHECK((probe.collective == BENCH_SENDRECV) == (knob.key == "host.mapped_bytes"));
      }
      text += knob.key.substr(5) + " ";
    }
    return text;
  };
  CHECK(keys() ==
        "inline_bytes exchange_ranks slot_bytes segment_bytes segments ring_bytes push_bytes "
        "streaming_bytes mapped_bytes ");
  options.memory_given = true;
  options.shared = true;
  CHECK(keys() == "inline_bytes push_bytes streaming_bytes mapped_bytes ");
  options.shared = false;
  CHECK(keys() ==
        "inline_bytes exchange_ranks slot_bytes segment_bytes segments ring_bytes "
        "streaming_bytes ");
  options.tune_keys = {"push_bytes"};
  const auto none = plan_tuning(options, config);
  REQUIRE(!none.ok());
  CHECK(none.status().message() ==
        "--tune-keys push_bytes: --memory private is moved without it; leave out one of the two");
}

TEST_CASE("tune: a file that lacks everything gets a section") {
  CHECK(text_with("", kTwo) == "schema = 1\n\n[host]\npush_bytes = 262144\nslot_bytes = 131072\n");
  CHECK(text_with("# mine", kSlot) == "# mine\n\n[host]\nslot_bytes = 131072\n");
  CHECK(text_with("[log]\r\nlevel = \"info\"\r\n", kSlot) ==
        "[log]\r\nlevel = \"info\"\r\n\r\n[host]\r\nslot_bytes = 131072\r\n");
}

TEST_CASE("tune: lines are changed or added, and all else stays byte for byte") {
  const std::string before =
      "# a\tcomment with [host] in it\n"
      "schema = 1\n"
      "\n"
      "[ host ]  # this machine\n"
      "  slot_bytes   =   0x10000 # of old, slot_bytes = 7\n"
      "spin_us=20\n"
      "\n"
      "[reducer]\n"
      "rebuild = false";
  CHECK(text_with(before, kTwo) ==
        "# a\tcomment with [host] in it\n"
        "schema = 1\n"
        "\n"
        "[ host ]  # this machine\n"
        "push_bytes = 262144\n"
        "  slot_bytes   =   131072 # of old, slot_bytes = 7\n"
        "spin_us=20\n"
        "\n"
        "[reducer]\n"
        "rebuild = false");
  CHECK(text_with("[host]", kSlot) == "[host]\nslot_bytes = 131072\n");
  CHECK(text_with("[host]\nslot_bytes = 4096", kSlot) == "[host]\nslot_bytes = 131072");
  CHECK(text_with("[host]\nslot_bytes=4096# x\n", kSlot) == "[host]\nslot_bytes=131072# x\n");
  CHECK(text_with("host.spin_us = 1\n[log]\n", kTwo) ==
        "host.spin_us = 1\nhost.push_bytes = 262144\nhost.slot_bytes = 131072\n[log]\n");
  CHECK(text_with("host.slot_bytes = 4096\n", kSlot) == "host.slot_bytes = 131072\n");
  CHECK(text_with("lock = [\"host.slot_bytes\"]\nhost.slot_bytes = 4096\n", kSlot) ==
        "lock = [\"host.slot_bytes\"]\nhost.slot_bytes = 131072\n");
}

TEST_CASE("tune: what cannot be read or changed by lines is refused") {
  CHECK(refusal("[host\n", kSlot).substr(0, 10) == "dt.toml:1:");
  CHECK(refusal("[host]\nslots = 1\n", kSlot).substr(0, 12) == "dt.toml:2:1:");
  CHECK(refusal("host = { slot_bytes = 4096 }\n", kSlot) == kByHand);
  CHECK(refusal("host = { spin_us = 1 }\n", kSlot) == kByHand);
  CHECK(refusal("[host]\n\"slot_bytes\" = 4096\n", kSlot) == kByHand);
  // A header that is none.
  CHECK(refusal("[job]\nid = \"\"\"\n[host]\n\"\"\"\n", kSlot) == kByHand);
  CHECK(refusal("[\"host\"]\nspin_us = 1\n", kSlot) == kByHand);
}

TEST_CASE("tune: a file is replaced as a whole, with its permissions, through links") {
  const Folder folder;
  const std::string path = folder.path + "/dt.toml";
  const std::string link = folder.path + "/link.toml";
  std::filesystem::create_symlink(path, link);
  REQUIRE(check_settings_file(path, kSlot).ok());
  CHECK_FALSE(std::filesystem::exists(path));
  REQUIRE(write_settings(path, kSlot).ok());
  CHECK(content(path) == "schema = 1\n\n[host]\nslot_bytes = 131072\n");
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  REQUIRE(write_settings(link, {{"host.slot_bytes", 4096}}).ok());
  CHECK(content(path) == "schema = 1\n\n[host]\nslot_bytes = 4096\n");
  CHECK(std::filesystem::is_symlink(link));
  struct stat there {};
  REQUIRE(stat(path.c_str(), &there) == 0);
  CHECK((there.st_mode & 07777) == 0600);
  // Refused as it is, and nothing is left beside it.
  std::ofstream(path) << "[host\n";
  CHECK_FALSE(write_settings(path, kSlot).ok());
  CHECK(content(path) == "[host\n");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2);
  CHECK(write_settings("/dev/null", kSlot).message() ==
        "--tune-write /dev/null: it is no regular file");
  const std::string nowhere = folder.path + "/none/dt.toml";
  CHECK(check_settings_file(nowhere, kSlot).message() ==
        "--tune-write " + nowhere + ": No such file or directory");
  CHECK(write_settings(nowhere, kSlot).message() ==
        "--tune-write " + nowhere + ": No such file or directory");
}
