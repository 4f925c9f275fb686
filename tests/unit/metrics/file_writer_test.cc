// SPDX-License-Identifier: Apache-2.0
#include "metrics/file_writer.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/wait.h"

using dt::metrics::FileWriter;
using dt::metrics::path_of_rank;

namespace {

struct Folder {
  Folder() { REQUIRE(mkdtemp(path) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  char path[32] = "/tmp/dt-metrics-XXXXXX";
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

/// Warnings, counted.
struct Log {
  std::atomic<int> warnings{0};
  std::string last;  // read when the writer has ended
  dt::LoggerPtr logger = std::make_shared<dt::Logger>(dt::LogLevel::kWarning,
                                                      [this](dt::LogLevel, const char* message) {
                                                        last = message;
                                                        ++warnings;
                                                      });
};

}  // namespace

TEST_CASE("path_of_rank: ranks of one host never share a file") {
  CHECK(path_of_rank("/a/dt-{rank}.prom", 3, true) == "/a/dt-3.prom");
  CHECK(path_of_rank("/a/{rank}/dt-{rank}.prom", 12, false) == "/a/12/dt-12.prom");
  CHECK(path_of_rank("/a/dt.prom", 3, false) == "/a/dt.prom");
  CHECK(path_of_rank("/a/dt.prom", 3, true) == "/a/dt.3.prom");
  CHECK(path_of_rank("/a.b/dt", 3, true) == "/a.b/dt.3");
  CHECK(path_of_rank("/a/.dt", 3, true) == "/a/.dt.3");
  CHECK(path_of_rank("dt.prom", 0, true) == "dt.0.prom");
}

TEST_CASE("the file is whole whenever somebody looks, and holds the last text at the end") {
  const Folder folder;
  const std::string path = std::string(folder.path) + "/dt.prom";
  const auto made = std::make_shared<std::atomic<int>>(0);
  Log log;
  FileWriter::Options options;
  options.path = path;
  options.interval_ms = 1;
  options.text = [made] {
    const std::string number = std::to_string(++*made) + "\n";
    return number + std::string(100'000, 'x') + "\n" + number;
  };
  options.self = "rank 0 (here)";
  options.logger = log.logger;
  auto writer = std::move(FileWriter::start(std::move(options))).value();
  const dt::Deadline patience = dt::Deadline::after_ms(30'000);
  int last = 0;
  for (int seen = 0; seen < 20 && !patience.passed();) {
    const std::string text = content_of(path);
    if (text.empty()) continue;  // not yet there
    const int number = atoi(text.c_str());
    const std::string line = std::to_string(number) + "\n";
    REQUIRE(text == line + std::string(100'000, 'x') + "\n" + line);
    REQUIRE(number >= last);
    seen += number > last ? 1 : 0;
    last = number;
  }
  CHECK(last >= 20);
  writer = nullptr;
  CHECK(atoi(content_of(path).c_str()) == made->load());
  CHECK(files_in(folder.path) == 1);
  CHECK(log.warnings.load() == 0);
  struct stat facts {};
  REQUIRE(stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & S_IWOTH) == 0);
}

TEST_CASE("what cannot be written is told once, and written when it can be") {
  const Folder folder;
  const std::string inner = std::string(folder.path) + "/later";
  const auto made = std::make_shared<std::atomic<int>>(0);
  Log log;
  FileWriter::Options options;
  options.path = inner + "/dt.prom";
  options.interval_ms = 1;
  options.text = [made] { return std::to_string(++*made); };
  options.self = "rank 4 (here)";
  options.logger = log.logger;
  auto writer = std::move(FileWriter::start(std::move(options))).value();
  const dt::Deadline patience = dt::Deadline::after_ms(30'000);
  while (made->load() < 5 && !patience.passed()) std::this_thread::yield();
  CHECK(made->load() >= 5);
  CHECK(log.warnings.load() == 1);
  std::filesystem::create_directory(inner);
  while (content_of(inner + "/dt.prom").empty() && !patience.passed()) std::this_thread::yield();
  writer = nullptr;
  CHECK(atoi(content_of(inner + "/dt.prom").c_str()) == made->load());
  CHECK(log.warnings.load() == 1);
  CHECK(log.last.find("no metrics of rank 4 (here): cannot write " + inner + "/.dt.prom.") == 0);
  CHECK(log.last.find(": No such file or directory; choose another file (metrics.file). It is "
                      "tried again, without another word") != std::string::npos);
}

TEST_CASE("a device, a pipe or a folder is not replaced by the file") {
  const Folder folder;
  const std::string pipe = std::string(folder.path) + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {std::string(folder.path), pipe}) {
    Log log;
    FileWriter::Options options;
    options.path = path;
    options.text = [] { return std::string("text"); };
    options.self = "rank 0 (here)";
    options.logger = log.logger;
    auto writer = std::move(FileWriter::start(std::move(options))).value();
    const dt::Deadline patience = dt::Deadline::after_ms(30'000);
    while (log.warnings.load() == 0 && !patience.passed()) std::this_thread::yield();
    writer = nullptr;
    CHECK(log.last == "no metrics of rank 0 (here): cannot write " + path +
                          ": it is no regular file, and is not replaced; choose another file "
                          "(metrics.file). It is tried again, without another word");
    CHECK(files_in(folder.path) == 1);
  }
  struct stat facts {};
  CHECK((stat(pipe.c_str(), &facts) == 0 && S_ISFIFO(facts.st_mode)));
}
