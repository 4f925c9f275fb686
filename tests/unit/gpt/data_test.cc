// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "options.h"

using namespace gpt;

namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/dt-gpt-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string write(const std::string& name, const std::string& content) {
    files_.push_back(path_ + "/" + name);
    std::ofstream(files_.back()) << content;
    return files_.back();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

}  // namespace

TEST_CASE("text is the files one after the other, up to the limit") {
  Folder folder;
  const std::vector<std::string> paths = {folder.write("b", "first "), folder.write("empty", ""),
                                          folder.write("a", "second")};
  std::string text;
  CHECK(read_text(paths, 100, &text).empty());
  CHECK(text == "first second");
  CHECK(read_text(paths, 12, &text).empty());
  CHECK(text == "first second");
  CHECK(read_text(paths, 8, &text).empty());
  CHECK(text == "first se");
}

TEST_CASE("a file that cannot be read is named") {
  Folder folder;
  std::string text;
  const std::string absent = folder.path() + "/absent";
  CHECK(read_text({absent}, 100, &text).find(absent) != std::string::npos);
  CHECK(read_text({folder.path()}, 100, &text).find("directory") != std::string::npos);
}

TEST_CASE("the default files are in order and exist") {
  const std::vector<std::string> paths = default_files();
  CHECK(std::is_sorted(paths.begin(), paths.end()));
  std::string text;
  CHECK(read_text(paths, 1000, &text).empty());
}

TEST_CASE("a text must be longer than a sequence") {
  CHECK(check_length(5, 4).empty());
  CHECK(check_length(4, 4).find("at least 5") != std::string::npos);
  CHECK(!check_length(0, 1).empty());
}

TEST_CASE("any number of ranks sees the same global batch") {
  std::string text;
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>(i * 37 % 251));
  const std::vector<uint8_t> whole = cut_batch(text, 3, 17, 0, 12, 9);
  REQUIRE(whole.size() == 12 * 10);
  for (const int64_t ranks : {2, 3, 4, 12}) {
    std::vector<uint8_t> joined;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto part = cut_batch(text, 3, 17, rank * 12 / ranks, 12 / ranks, 9);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    CHECK(joined == whole);
  }
  CHECK(cut_batch(text, 3, 18, 0, 12, 9) != whole);
  CHECK(cut_batch(text, 4, 17, 0, 12, 9) != whole);
}

TEST_CASE("sequences begin everywhere") {
  std::set<int64_t> starts;
  for (int64_t i = 0; i < 400; ++i) starts.insert(sequence_start(1, i / 8, i % 8, 10));
  CHECK(starts.size() == 10);
  CHECK(*starts.begin() == 0);
  CHECK(*starts.rbegin() == 9);
  // The only place of a text of length + 1 bytes.
  CHECK(cut_batch("abc", 1, 0, 0, 1, 2) == std::vector<uint8_t>{'a', 'b', 'c'});
}

TEST_CASE("a batch that cannot be dealt names those that can") {
  CHECK(check_batch(16, 4, 1).empty());
  CHECK(check_batch(16, 3, 1).find("15 or 18") != std::string::npos);
  CHECK(check_batch(2, 3, 1).find("choose 3") != std::string::npos);
  CHECK(check_batch(24, 3, 4).empty());
  CHECK(check_batch(16, 2, 4).empty());
  CHECK(check_batch(20, 2, 4).find("2 ranks with --accumulate 4; choose 16 or 24") !=
        std::string::npos);
}

TEST_CASE("what gradients cannot travel as is refused, with what can") {
  Options options;
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    CHECK(check_exchange(options, precision).empty());
  }
  options.power_sgd = 4;
  CHECK(check_exchange(options, Precision::kF32).empty());
  CHECK(check_exchange(options, Precision::kBf16).find("--powersgd is for gradients of f32") !=
        std::string::npos);
  options.wire = "bf16";
  CHECK(check_exchange(options, Precision::kF32).empty());
  options.wire = "8bit";
  CHECK(check_exchange(options, Precision::kF32).find("--powersgd does not go with --wire 8bit") !=
        std::string::npos);
  options.power_sgd = 0;
  CHECK(check_exchange(options, Precision::kF32).empty());
  CHECK(check_exchange(options, Precision::kBf16).find("is for gradients of f32") !=
        std::string::npos);
  options.zero = 1;
  CHECK(check_exchange(options, Precision::kF32).find("does not go with --zero") !=
        std::string::npos);
  options.wire = "same";
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    CHECK(check_exchange(options, precision).empty());
  }
  options.offload = "/var/tmp";
  CHECK(check_exchange(options, Precision::kF32).empty());
  options.offload.clear();
  options.zero.reset();
  options.wire = "f16";
  CHECK(check_exchange(options, Precision::kF32).empty());
  CHECK(check_exchange(options, Precision::kBf16).find("--wire f16 is for gradients of f32") !=
        std::string::npos);
}

TEST_CASE("groups that come together must be of one size, and meet in host memory") {
  Options options;
  options.group = 3;
  CHECK(check_outer(options, true, 4).empty());
  options.checkpoint = "file";
  CHECK(check_outer(options, false, 4) ==
        "--checkpoint needs shards (--zero 0 to 3) or groups that come together (--outer)");
  options.apart = true;
  CHECK(check_outer(options, false, 4) ==
        "--apart has ranks that share nothing; leave --checkpoint out");
  options.apart = false;
  options.zero = 3;
  CHECK(check_outer(options, true, 4).empty());
  options.zero.reset();
  options.outer = 5;
  CHECK(check_outer(options, true, 4).find("--outer is for host memory only") == 0);
  CHECK(check_outer(options, false, 4) ==
        "--group 3 does not divide the 4 ranks; choose a divisor");
  options.group = 2;
  CHECK(check_outer(options, false, 4).empty());
  options.outer_delay = 5;
  CHECK(check_outer(options, false, 4).find("--outer-delay must be less than --outer") == 0);
  options.outer_delay = 0;
  options.zero = 1;
  CHECK(check_outer(options, false, 4).find("leave --zero out") != std::string::npos);
}

TEST_CASE("the learning rate rises to its peak and falls to a tenth") {
  double largest = 0;
  for (int64_t step = 0; step < 1000; ++step) {
    largest = std::max(largest, learning_rate_at(2.0, step, 1000));
  }
  CHECK(learning_rate_at(2.0, 0, 1000) < 0.001);
  CHECK(largest > 1.9);
  CHECK(largest <= 2.0);
  CHECK(learning_rate_at(2.0, 999, 1000) == doctest::Approx(0.2).epsilon(0.01));
}
