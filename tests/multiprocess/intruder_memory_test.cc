// SPDX-License-Identifier: Apache-2.0
// Connections of all kinds that make a job's store keep bytes, many at a time, where there is
// little memory: the job goes on, and whoever belongs to it comes in beside them.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../sanitizers.h"
#include "intruder.h"
#include "store/torch_protocol.h"

using dt::store::encode_torch;
using dt::store::TorchDialect;
using dt::store::TorchOp;
using namespace dt::test;
using namespace dt::test::intruder;

namespace {

// Sanitizers make the store slow, and need memory themselves.
constexpr bool kSanitized = dt::test::kAddressSanitizer || dt::test::kThreadSanitizer;
constexpr int kCrowd = dt::test::kThreadSanitizer ? 20 : dt::test::kAddressSanitizer ? 50 : 200;
constexpr size_t kMib = 1 << 20;
constexpr int64_t kGroupBytes = (kSanitized ? 4096 : 256) * kMib;

bool write_file(const std::string& path, const std::string& text) {
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = fputs(text.c_str(), file) >= 0;
  return fclose(file) == 0 && written;
}

std::string own_group(const std::string& mark) {
  char line[4096];
  std::string path;
  FILE* file = fopen("/proc/self/cgroup", "r");
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
    const std::string text(line);
    const size_t at = text.find(mark);
    if (at != std::string::npos)
      path = text.substr(at + mark.size(), text.find('\n') - at - mark.size());
  }
  if (file != nullptr) fclose(file);
  return path == "/" ? "" : path;
}

/// A cgroup with a limit of its own, where this process may make one.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t bytes) {
    const std::string name = "/dt-test-" + std::to_string(getpid());
    const std::pair<std::string, const char*> places[] = {
        {"/sys/fs/cgroup" + own_group("0::") + name, "/memory.max"},
        {"/sys/fs/cgroup/memory" + own_group(":memory:") + name, "/memory.limit_in_bytes"}};
    for (const auto& [path, limit] : places) {
      if (mkdir(path.c_str(), 0755) != 0) continue;
      const bool is_group = access((path + "/cgroup.procs").c_str(), W_OK) == 0;
      if (is_group && write_file(path + limit, std::to_string(bytes))) {
        path_ = path;
        return;
      }
      rmdir(path.c_str());
    }
  }
  ~MemoryGroup() {
    if (!path_.empty()) CHECK(rmdir(path_.c_str()) == 0);
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;  // empty: there is none
};

std::string torch(TorchOp op, std::vector<std::string> texts) {
  return encode_torch({op, std::move(texts)}, TorchDialect::kOld);
}
std::string new_torch(TorchOp op, std::vector<std::string> texts) {
  return encode_torch({op, std::move(texts)}, TorchDialect::kNew);
}
std::string handshake() {
  return encode_torch({TorchOp::kValidate, {}, dt::store::kTorchMagic}, TorchDialect::kNew);
}

/// The store may have closed the connection, or take no more: that is its right. Nothing is read.
void press(const Raw& raw, const std::string& bytes, int times = 1) {
  for (int i = 0; i < times && raw.push(bytes); ++i) {
  }
}

struct Attack {
  const char* name;
  std::function<void(const Raw& raw, int i)> with;
  std::function<void(uint16_t port)> then = {};  // by one more, once the crowd is there
};

std::vector<Attack> attacks() {
  const std::string large(kMib, 'x');
  const auto change = [](const std::string& value, int times) {
    return [value, times](uint16_t port) {
      const Raw writer(port);
      for (int i = 0; i < times; ++i) {
        if (!writer.say(torch(TorchOp::kSet, {"/watched", value + std::to_string(i)}))) break;
      }
    };
  };
  const auto watches = [](const Raw& raw, int) {
    press(raw, torch(TorchOp::kWatch, {"/watched"}));
  };
  return {
      {"silent", [](const Raw&, int) {}},
      {"one byte", [](const Raw& raw, int) { press(raw, std::string(1, '\0')); }},
      {"half a hello",
       [](const Raw& raw, int) {
         press(raw,
               encode_header(dt::store::FrameType::kHello, 1, 16 << 10) + std::string(16'000, 'x'));
       }},
      {"half a greeting", [](const Raw& raw, int) { press(raw, "dtg"); }},
      {"half a request",
       [&, large](const Raw& raw, int) {
         const std::string whole = torch(TorchOp::kSet, {"/half", std::string(4 * kMib, 'x')});
         (void)raw.say(whole.substr(0, 2 * kMib));
       }},
      {"waits",
       [](const Raw& raw, int) {
         press(raw, torch(TorchOp::kWait, {"/never/" + std::string(1000, 'x')}), 2000);
       }},
      {"watches",
       [](const Raw& raw, int i) {
         for (int k = 0; k < 60; ++k) {
           press(raw, torch(TorchOp::kWatch,
                            {"/" + std::to_string(100 * i + k) + std::string(8000, 'x')}));
         }
       }},
      {"watchers of large values", watches, change(large, 100)},
      {"watchers of many changes", watches, change("", 10'000)},
      {"answers that nobody reads",
       [large](const Raw& raw, int) {
         (void)raw.say(torch(TorchOp::kSet, {"/answer", large}));
         press(raw, torch(TorchOp::kGet, {"/answer"}), 8);
       }},
      {"long answers that nobody reads",
       [large](const Raw& raw, int) {
         (void)raw.say(handshake() + new_torch(TorchOp::kSet, {"/answer", large}));
         press(raw, new_torch(TorchOp::kMultiGet, {"/answer", "/answer", "/answer", "/answer"}), 4);
       }},
      // What these leave behind stays.
      {"keys",
       [large](const Raw& raw, int i) {
         for (int k = 0; k < 4; ++k) {
           (void)raw.say(torch(TorchOp::kSet,
                               {"/key/" + std::to_string(i) + "/" + std::to_string(k), large}));
         }
       }},
      {"empty keys",
       [](const Raw& raw, int i) {
         std::string sets;
         for (int k = 0; k < 2000; ++k) {
           sets += torch(TorchOp::kSet, {"/" + std::to_string(i) + "/" + std::to_string(k), ""});
         }
         press(raw, sets);
       }},
      {"queues",
       [large](const Raw& raw, int i) {
         (void)raw.say(handshake());
         for (int k = 0; k < 4; ++k) {
           (void)raw.say(new_torch(TorchOp::kQueuePush, {"/queue/" + std::to_string(i), large}));
         }
       }},
  };
}

}  // namespace

TEST_CASE("intruders: many connections of each kind leave the store the memory that it needs") {
  const MemoryGroup group(kGroupBytes);
  if (group.path().empty()) MESSAGE("no cgroup can be made here: only the process is looked at");
  RunningJob job({"DT_STORE_TORCH_COMPAT=1", "DT_STORE_MEMORY_MB=64"}, group.path());
  const int64_t before = job.server_bytes();
  for (const Attack& attack : attacks()) {
    CAPTURE(std::string(attack.name));
    std::vector<Raw> crowd;
    for (int i = 0; i < kCrowd; ++i) {
      crowd.emplace_back(job.port());
      attack.with(crowd.back(), i);
    }
    if (attack.then) attack.then(job.port());
    const dt::Status known = knock(job.port(), secure(dt::net::SecurityMode::kAuth, kToken));
    INFO(known.message());
    CHECK(known.ok());
    const int64_t growth = job.server_bytes() - before;
    MESSAGE(std::string(attack.name) << ": the server grew by " << growth / 1024 << " KiB");
    CHECK(growth < static_cast<int64_t>(kGroupBytes / 2));
    crowd.clear();
  }
  job.end_well();
  CHECK(count_of(job.process().err,
                 "store: closed the connection of a client without the token on 127.0.0.1") >= 1);
  CHECK(count_of(job.process().err, "or raise store.memory_mb") >= 1);
}
