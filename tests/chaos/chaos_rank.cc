// SPDX-License-Identifier: Apache-2.0
// A rank for chaos.py: collectives of all kinds in a loop, each element checked, until it is told
// to stop or an operation fails. It writes events to stdout, one JSON object a line, times by
// CLOCK_MONOTONIC, and takes commands from stdin between two steps:
//   stop            ask all ranks to stop
//   slow MS         be late once, inside the next step
//   absent          stay out of the next operation until "go" comes
//   wrong HOW       call the next operation with another count, op, dtype, kind, root, or skip it
//   leave N HOW     call dt_finalize before operation N of the next step, or inside it: it is begun
//                   and not waited for
//   checkpoint      write into CHAOS_DISK; abort the job when that fails
// chaos_rank SEED PACE_MS; ends with 0, with 9 after an error of dt, with 8 after a wrong value,
// with 3 at the end of stdin.
#include <dt/dt.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// `rest` begins with a comma or is empty.
void tell(const char* event, const std::string& rest) {
  const std::string line = std::string("{\"event\": \"") + event +
                           "\", \"at\": " + std::to_string(now_ns()) + rest + "}\n";
  fwrite(line.data(), 1, line.size(), stdout);
  fflush(stdout);
}

/// What this process holds: descriptors by what they lead to, shared memory, threads.
std::vector<std::string> held() {
  std::vector<std::string> all;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    if (target.find("/proc/") == 0) continue;  // the directory that is being read
    all.push_back(entry.path().filename().string() + " " + target);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find("/memfd:");
    if (at != std::string::npos) all.push_back("mapped " + line.substr(at));
  }
  int threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", none)) {
    threads += entry.exists(none) ? 1 : 0;
  }
  all.push_back(std::to_string(threads) + " threads");
  std::sort(all.begin(), all.end());
  return all;
}

/// What is held beyond `before`. A thread of the library that has dropped the last part of a job
/// ends by itself soon after.
std::vector<std::string> left_of(const std::vector<std::string>& before) {
  constexpr int kPatienceMs = 5000;
  std::vector<std::string> kept;
  for (int waited_ms = 0; waited_ms < kPatienceMs; ++waited_ms) {
    kept.clear();
    bool pipes_only = true;  // libuv's, which stays
    for (const std::string& one : held()) {
      if (std::binary_search(before.begin(), before.end(), one)) continue;
      kept.push_back(one);
      pipes_only &= one.find(" pipe:[") != std::string::npos;
    }
    if (pipes_only) break;
    poll(nullptr, 0, 1);
  }
  return kept;
}

std::string list_of(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? ", " : "") + quoted(text);
  return out + "]";
}

/// The same numbers on all ranks, other ones in each step.
uint64_t mixed(uint64_t seed, uint64_t step, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + step * 0xbf58476d1ce4e5b9ull + index + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// What came of a call; kOk goes on.
enum class Went { kOk, kFailed, kWrong, kLeave };

class Rank {
 public:
  Rank(uint64_t seed, int pace_ms) : seed_(seed), pace_ms_(pace_ms) {}

  int run() {
    const std::vector<std::string> before = held();
    Went went = live();
    if (went == Went::kFailed) tell_again();
    if (went == Went::kLeave) went = leave();
    for (dt_work* work : works_) dt_work_destroy(work);
    if (memory_ != nullptr) dt_mem_free(world_, memory_);
    dt_comm_destroy(half_);
    dt_comm_destroy(world_);
    const int64_t began = now_ns();
    const dt_status left = job_ != nullptr ? dt_finalize(job_, -1) : DT_OK;
    const std::string how = left == DT_OK ? "" : dt_last_error();
    dt_job_destroy(job_);
    const std::vector<std::string> kept = left_of(before);
    tell("end", ", \"finalize\": " + quoted(dt_status_name(left)) + ", \"why\": " + quoted(how) +
                    ", \"took_ms\": " + std::to_string((now_ns() - began) / 1'000'000) +
                    ", \"steps\": " + std::to_string(step_) + ", \"kept\": " + list_of(kept) +
                    ", \"disk\": " + list_of(disk()));
    return went == Went::kOk ? left == DT_OK ? 0 : 9 : went == Went::kFailed ? 9 : 8;
  }

 private:
  Went live() {
    dt_place place;
    dt_place_init(&place);
    if (!good(dt_init(nullptr, &job_), "init")) return Went::kFailed;
    if (!good(dt_rank_info(job_, &place), "rank_info")) return Went::kFailed;
    rank_ = place.rank;
    size_ = place.world_size;
    if (!good(dt_comm_world(job_, &world_), "comm_world")) return Went::kFailed;
    if (!good(dt_comm_split(world_, rank_ % 2, 0, &half_), "comm_split")) return Went::kFailed;
    void* memory = nullptr;
    if (!good(dt_mem_alloc(world_, kBurst * kBurstCount * 8, &memory), "mem_alloc")) {
      return Went::kFailed;
    }
    memory_ = static_cast<double*>(memory);
    for (;; ++step_) {
      int32_t stop = 0;
      if (step_ > 0 && !good(dt_stop_requested(job_, &stop), "stop_requested")) {
        return Went::kFailed;
      }
      if (stop != 0) return Went::kOk;
      const Went went = one_step();
      if (went != Went::kOk) return went;
      if (step_ == 0) tell("ready", ", \"pid\": " + std::to_string(getpid()));
      if (!obey()) return Went::kFailed;
    }
  }

  /// The first two of a step are those that a wrong call spoils.
  Went one_step() {
    for (int i = 0; i < kOperations; ++i) {
      const bool leaves = i == leaves_at_;
      if (leaves && !leaves_inside_) return Went::kLeave;
      waits_ = !leaves;
      const Went went = operation(static_cast<uint64_t>(i));
      if (went != Went::kOk) return went;
      if (leaves) return Went::kLeave;
      if (i == 0 && late_ms_ > 0) poll(nullptr, 0, std::exchange(late_ms_, 0));
    }
    return Went::kOk;
  }

  Went operation(uint64_t index) {
    static constexpr int64_t kCounts[] = {1, 7, 1000, 5003, 70'001};
    const uint64_t choice = mixed(seed_, static_cast<uint64_t>(step_), index);
    const int64_t count = kCounts[choice / 16 % 5];
    if (index == 0) return allreduce<float>(DT_F32, index, 1000);
    if (index == 1) return broadcast(index);
    switch (choice % 9) {
      case 0: return allreduce<double>(DT_F64, index, count);
      case 1: return allreduce<int64_t>(DT_I64, index, count);
      case 2: return allgather(count);
      case 3: return reduce_scatter(count);
      case 4: return reduce(index, count);
      case 5: return ring(count);
      case 6: return burst();
      case 7: return among_half(count);
      default:
        return good(dt_barrier(world_, nullptr, nullptr), "barrier") ? Went::kOk : Went::kFailed;
    }
  }

  /// The others go on without this rank. What it has begun must be right all the same.
  Went leave() {
    tell("fault", "");
    const int64_t began = now_ns();
    const dt_status status = dt_finalize(job_, -1);
    const int64_t at = now_ns();
    const std::string why = status == DT_OK ? "" : dt_last_error();
    tell("left", ", \"returned\": " + std::to_string(at) +
                     ", \"took_ms\": " + std::to_string((at - began) / 1'000'000) +
                     ", \"status\": " + quoted(dt_status_name(status)) +
                     ", \"why\": " + quoted(why));
    if (!wait_works()) return Went::kFailed;
    return check_begun_ ? check_begun_() : Went::kOk;
  }

  /// Small whole numbers, in which ranks, steps and neighbours differ.
  int value(int rank, int64_t index) const {
    return rank + 3 * static_cast<int>((index + step_) % 11) + 1;
  }
  int sum(int64_t index) const {
    return size_ * (size_ - 1) / 2 + size_ * (3 * static_cast<int>((index + step_) % 11) + 1);
  }

  template <typename T>
  Went allreduce(dt_dtype dtype, uint64_t index, int64_t count) {
    const std::string wrong = index == 0 && wrong_ != "root" ? std::exchange(wrong_, "") : "";
    if (!wrong.empty()) tell("fault", "");
    if (wrong == "skip") return Went::kOk;
    std::vector<T> send(static_cast<size_t>(count) + 1);
    std::vector<T> recv(send.size() * 2);  // also as other dtype
    for (int64_t i = 0; i < count; ++i) send[static_cast<size_t>(i)] = T(value(rank_, i));
    if (wrong == "kind") {
      return good(dt_barrier(world_, nullptr, nullptr), "barrier") ? Went::kOk : Went::kFailed;
    }
    if (!waits_) return begin_allreduce(std::move(send), count, dtype);
    if (!good(dt_allreduce(world_, send.data(), recv.data(), count + (wrong == "count" ? 1 : 0),
                           wrong == "dtype" ? DT_I32 : dtype, wrong == "op" ? DT_MAX : DT_SUM,
                           nullptr, nullptr),
              "allreduce")) {
      return Went::kFailed;
    }
    return check("allreduce", recv.data(), count, [&](int64_t i) { return sum(i); });
  }

  template <typename T>
  Went begin_allreduce(std::vector<T> send, int64_t count, dt_dtype dtype) {
    const auto data = std::make_shared<std::vector<T>>(std::move(send));
    check_begun_ = [this, data, count] {
      return check("allreduce", data->data(), count, [&](int64_t i) { return sum(i); });
    };
    dt_work* work = nullptr;
    if (!good(
            dt_allreduce(world_, data->data(), data->data(), count, dtype, DT_SUM, nullptr, &work),
            "allreduce")) {
      return Went::kFailed;
    }
    works_.push_back(work);
    return Went::kLeave;
  }

  Went broadcast(uint64_t index) {
    auto root = static_cast<int32_t>(mixed(seed_, static_cast<uint64_t>(step_), index) % size());
    if (wrong_ == "root") {
      wrong_.clear();
      tell("fault", "");
      root = (root + 1) % size_;
    }
    std::vector<int32_t> data(777);
    for (int64_t i = 0; i < 777; ++i) {
      data[static_cast<size_t>(i)] = rank_ == root ? value(root, i) : -1;
    }
    if (!good(dt_broadcast(world_, data.data(), 777, DT_I32, root, nullptr, nullptr),
              "broadcast")) {
      return Went::kFailed;
    }
    return check("broadcast", data.data(), 777, [&](int64_t i) { return value(root, i); });
  }

  Went allgather(int64_t count) {
    std::vector<int32_t> send(static_cast<size_t>(count));
    std::vector<int32_t> recv(send.size() * size());
    for (int64_t i = 0; i < count; ++i) send[static_cast<size_t>(i)] = value(rank_, i);
    if (!good(dt_allgather(world_, send.data(), recv.data(), count, DT_I32, nullptr, nullptr),
              "allgather")) {
      return Went::kFailed;
    }
    return check("allgather", recv.data(), count * size_,
                 [&](int64_t i) { return value(static_cast<int>(i / count), i % count); });
  }

  Went reduce_scatter(int64_t count) {
    std::vector<float> send(static_cast<size_t>(count) * size());
    std::vector<float> recv(static_cast<size_t>(count));
    for (size_t i = 0; i < send.size(); ++i) {
      send[i] = static_cast<float>(value(rank_, static_cast<int64_t>(i)));
    }
    if (!good(dt_reduce_scatter(world_, send.data(), recv.data(), count, DT_F32, DT_SUM, nullptr,
                                nullptr),
              "reduce_scatter")) {
      return Went::kFailed;
    }
    return check("reduce_scatter", recv.data(), count,
                 [&](int64_t i) { return sum(rank_ * count + i); });
  }

  Went reduce(uint64_t index, int64_t count) {
    const auto root =
        static_cast<int32_t>(mixed(seed_, static_cast<uint64_t>(step_), index + 100) % size());
    std::vector<double> send(static_cast<size_t>(count));
    std::vector<double> recv(send.size());
    for (int64_t i = 0; i < count; ++i) send[static_cast<size_t>(i)] = value(rank_, i);
    if (!good(dt_reduce(world_, send.data(), recv.data(), count, DT_F64, DT_SUM, root, nullptr,
                        nullptr),
              "reduce")) {
      return Went::kFailed;
    }
    return check("reduce", recv.data(), rank_ == root ? count : 0,
                 [&](int64_t i) { return sum(i); });
  }

  /// To the next rank, from the one before.
  Went ring(int64_t count) {
    const int from = (rank_ + size_ - 1) % size_;
    std::vector<int32_t>& send = kept_send_;  // a failed work may still read it
    send.assign(static_cast<size_t>(count), 0);
    std::vector<int32_t> recv(send.size());
    for (int64_t i = 0; i < count; ++i) send[static_cast<size_t>(i)] = value(rank_, i);
    dt_work* work = nullptr;
    if (!good(dt_send(world_, send.data(), count, DT_I32, (rank_ + 1) % size_, nullptr, &work),
              "send")) {
      return Went::kFailed;
    }
    works_.push_back(work);
    if (!waits_) return Went::kLeave;
    if (!good(dt_recv(world_, recv.data(), count, DT_I32, from, nullptr, nullptr), "recv") ||
        !wait_works()) {
      return Went::kFailed;
    }
    return check("recv", recv.data(), count, [&](int64_t i) { return value(from, i); });
  }

  /// Several under way at once, in memory that local ranks share.
  Went burst() {
    for (int part = 0; part < kBurst; ++part) {
      double* data = memory_ + part * kBurstCount;
      for (int64_t i = 0; i < kBurstCount; ++i) data[i] = value(rank_, i) * (part + 1);
      dt_work* work = nullptr;
      if (!good(dt_allreduce(world_, data, data, kBurstCount, DT_F64, DT_SUM, nullptr, &work),
                "allreduce")) {
        return Went::kFailed;
      }
      works_.push_back(work);
    }
    if (!waits_) {
      check_begun_ = [this] { return check_burst(); };
      return Went::kLeave;
    }
    return wait_works() ? check_burst() : Went::kFailed;
  }

  Went check_burst() {
    for (int part = 0; part < kBurst; ++part) {
      const Went went = check("allreduce", memory_ + part * kBurstCount, kBurstCount,
                              [&](int64_t i) { return sum(i) * (part + 1); });
      if (went != Went::kOk) return went;
    }
    return Went::kOk;
  }

  /// Even ranks and odd ranks, each among themselves.
  Went among_half(int64_t count) {
    std::vector<int64_t> data(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = value(rank_, i);
    const dt_status status =
        dt_allreduce(half_, data.data(), data.data(), count, DT_I64, DT_SUM, nullptr, nullptr);
    half_timed_out_ = status == DT_ERR_TIMEOUT;
    half_left_ = status == DT_ERR_PEER_LOST && strstr(dt_last_error(), "has left the job");
    half_broke_ = status == DT_ERR_PEER_LOST && strstr(dt_last_error(), " broke: ");
    if (!good(status, "allreduce of a half")) return Went::kFailed;
    return check("allreduce of a half", data.data(), count, [&](int64_t i) {
      int total = 0;
      for (int rank = rank_ % 2; rank < size_; rank += 2) total += value(rank, i);
      return total;
    });
  }

  template <typename T, typename Expected>
  Went check(const char* what, const T* found, int64_t count, Expected expected) {
    for (int64_t i = 0; i < count; ++i) {
      if (found[i] == T(expected(i))) continue;
      tell("wrong", ", \"message\": " +
                        quoted(std::string(what) + " x " + std::to_string(count) + " in step " +
                               std::to_string(step_) + ": element " + std::to_string(i) + " is " +
                               std::to_string(found[i]) + ", not " + std::to_string(expected(i))));
      return Went::kWrong;
    }
    return Went::kOk;
  }

  bool wait_works() {
    for (dt_work* work : works_) {
      int32_t done = 0;
      if (!good(dt_work_wait(work, -1, &done), "work_wait")) return false;
    }
    for (dt_work* work : works_) dt_work_destroy(work);
    works_.clear();
    return true;
  }

  bool good(dt_status status, const char* call) {
    if (status == DT_OK) return true;
    const int64_t at = now_ns();
    dt_error_info info;
    dt_error_info_init(&info);
    dt_last_error_info(&info);
    tell("error", ", \"returned\": " + std::to_string(at) + ", \"call\": " + quoted(call) +
                      fields(status, info));
    return false;
  }

  std::string fields(dt_status status, const dt_error_info& info) const {
    return ", \"status\": " + quoted(dt_status_name(status)) +
           ", \"rank\": " + std::to_string(info.rank) + ", \"host\": " + quoted(info.host) +
           ", \"pid\": " + std::to_string(info.pid) + ", \"operation\": " + quoted(info.operation) +
           ", \"sequence\": " + std::to_string(info.sequence) +
           ", \"step\": " + std::to_string(step_) + ", \"message\": " + quoted(info.message);
  }

  /// A broken communicator says what broke it, again and at once. A time-out of a half breaks that
  /// half alone: ranks that wait for this one elsewhere are given the time to find that out, since
  /// another call on the communicator of all ranks would only be a wrong one. So it would after a
  /// half has failed because of a rank that has left, or of a connection of its own, where nobody
  /// has died.
  void tell_again() {
    if (world_ == nullptr) return;
    const int breaks_ms = half_timed_out_ ? kBreaksMs : half_broke_ ? kHeardMs : 0;
    for (int ms = 0; ms < breaks_ms && dt_comm_check(world_) == DT_OK; ++ms) poll(nullptr, 0, 1);
    const bool half_alone =
        half_timed_out_ || half_left_ || (half_broke_ && dt_comm_check(world_) == DT_OK);
    const int64_t began = now_ns();
    const dt_status status = dt_barrier(half_alone ? half_ : world_, nullptr, nullptr);
    dt_error_info info;
    dt_error_info_init(&info);
    if (status != DT_OK) dt_last_error_info(&info);
    tell("again",
         ", \"took_ms\": " + std::to_string((now_ns() - began) / 1'000'000) + fields(status, info));
  }

  /// False when a command led to an error.
  bool obey() {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    while (poll(&input, 1, pace_ms_) > 0) {
      const std::string line = read_line();
      if (line == "stop") return good(dt_request_stop(job_), "request_stop");
      if (line == "checkpoint") return checkpoint();
      if (line.rfind("slow ", 0) == 0) late_ms_ = atoi(line.c_str() + 5);
      if (line.rfind("wrong ", 0) == 0) wrong_ = line.substr(6);
      if (line.rfind("leave ", 0) == 0) {
        leaves_at_ = atoi(line.c_str() + 6);
        leaves_inside_ = line.find("inside") != std::string::npos;
      }
      if (line == "absent") {
        tell("fault", "");
        (void)read_line();  // until "go"
        return true;
      }
    }
    return true;
  }

  static std::string read_line() {
    std::string line;
    char c = 0;
    ssize_t got = 0;
    while ((got = read(STDIN_FILENO, &c, 1)) == 1 && c != '\n') line += c;
    if (got == 0) _exit(3);  // whoever commands is gone
    return line;
  }

  /// Others wait for this rank meanwhile; what it cannot write ends the job with its name.
  bool checkpoint() {
    if (!good(dt_busy_begin(job_, "checkpoint", 20'000), "busy_begin")) return false;
    const std::string path = std::string(getenv("CHAOS_DISK")) + "/checkpoint";
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const std::vector<char> page(4096, 'x');
    int problem = file < 0 ? errno : 0;
    for (int i = 0; i < 64 && problem == 0; ++i) {
      if (write(file, page.data(), page.size()) < 0) problem = errno;
    }
    if (file >= 0) close(file);
    unlink(path.c_str());
    if (problem == 0) return good(dt_busy_end(job_), "busy_end");
    tell("fault", "");
    const std::string why = "checkpoint.bin cannot be written: " + std::string(strerror(problem));
    return good(dt_abort(job_, why.c_str()), "abort");
  }

  static std::vector<std::string> disk() {
    std::vector<std::string> files;
    std::error_code none;
    if (const char* path = getenv("CHAOS_DISK"); path != nullptr) {
      for (const auto& entry : std::filesystem::directory_iterator(path, none)) {
        files.push_back(entry.path().filename().string());
      }
    }
    return files;
  }

  size_t size() const { return static_cast<size_t>(size_); }

  static constexpr int kBreaksMs = 8000;  // above the limit of operations
  static constexpr int kHeardMs = 500;    // the store tells of a death sooner
  static constexpr int kOperations = 6;   // of a step
  static constexpr int kBurst = 4;
  static constexpr int64_t kBurstCount = 3001;

  const uint64_t seed_;
  const int pace_ms_;
  dt_job* job_ = nullptr;
  dt_comm* world_ = nullptr;
  dt_comm* half_ = nullptr;
  double* memory_ = nullptr;  // [kBurst * kBurstCount]
  std::vector<dt_work*> works_;
  std::vector<int32_t> kept_send_;
  int rank_ = -1;
  int size_ = 0;
  int64_t step_ = 0;
  std::string wrong_;
  int late_ms_ = 0;
  int leaves_at_ = -1;  // before or inside this operation of a step
  bool leaves_inside_ = false;
  bool waits_ = true;                  // false: the present operation is begun only
  std::function<Went()> check_begun_;  // of such a one
  bool half_left_ = false;             // by one of its ranks
  bool half_broke_ = false;            // a connection
  bool half_timed_out_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: chaos_rank SEED PACE_MS\n");
    return 2;
  }
  return Rank(strtoull(argv[1], nullptr, 10), atoi(argv[2])).run();
}
