// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/wait.h"

namespace dt::test {
namespace {

constexpr int64_t kFinishMs = 60'000;
constexpr int kPollsPerLook = 256;
constexpr int kSkipped = 77;

void on_alarm(int) {
  static constexpr char kText[] = "not done in time; giving up\n";
  const ssize_t ignored = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(ignored < 0 ? 2 : 1);
}

Result<std::shared_ptr<cuda::Runtime>> gpu_of(dt_comm* comm) {
  void* memory = nullptr;
  DT_TRY(status_of(dt_mem_alloc(comm, 256, &memory)));
  DT_TRY_VALUE(const auto any, cuda::open_device(0));
  const auto info = any->pointer_info(memory);
  dt_mem_free(comm, memory);
  DT_TRY(info.status());
  return cuda::open_device(info.value().device);
}

template <class T>
T needed(Result<T> result) {
  need(result.status());
  return std::move(result).value();
}

}  // namespace

std::unique_ptr<Session> Session::join(const char* program, bool cuda, unsigned limit_s) {
  signal(SIGALRM, on_alarm);
  alarm(limit_s);
  const Status reason = cuda ? cuda::explain(cuda::ask()) : Status();
  if (!reason.ok()) {
    std::printf("skipped: %s: %s\n", program, reason.message().c_str());
    std::fflush(stdout);
    std::_Exit(kSkipped);
  }
  dt_config* config = nullptr;
  need(dt_config_create(nullptr, &config));
  need(dt_config_set(config, "backend.name", cuda ? "nccl" : "host"));
  dt_job* job = nullptr;
  need(dt_init(config, &job));
  dt_config_destroy(config);
  dt_comm* comm = nullptr;
  need(dt_comm_world(job, &comm));
  auto session = std::make_unique<Session>(job, comm, cuda ? needed(gpu_of(comm)) : nullptr);
  session->owns_ = true;
  return session;
}

Session::Session(dt_job* job, dt_comm* comm, std::shared_ptr<cuda::Runtime> gpu)
    : job_(job), comm_(comm), gpu_(std::move(gpu)) {
  dt_place_init(&place_);
  need(dt_rank_info(job_, &place_));
  if (gpu_ != nullptr) {
    stream_ = needed(gpu_->create_stream(cuda::StreamPriority::kNormal));
    end_ = needed(gpu_->create_event(false));
  }
  scratch_ = memory(64);
}

Session::~Session() {
  if (finish().ok()) {
    for (void* each : memory_) dt_mem_free(comm_, each);
    if (gpu_ != nullptr) {
      static_cast<void>(gpu_->destroy_event(end_));
      static_cast<void>(gpu_->destroy_stream(stream_));
    }
  }
  if (!owns_) return;
  dt_comm_destroy(comm_);
  dt_job_destroy(job_);
}

void Session::leave() {
  need(finish());
  need(dt_finalize(job_, -1));
}

void* Session::memory(int64_t bytes) {
  void* pointer = nullptr;
  need(dt_mem_alloc(comm_, std::max<int64_t>(bytes, 1), &pointer));
  memory_.push_back(pointer);
  return pointer;
}

void Session::write(void* to, const void* from, int64_t bytes) {
  if (gpu_ == nullptr) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  need(gpu_->copy(to, from, bytes, stream_));
  need(finish());
}

void Session::read(void* to, const void* from, int64_t bytes) { write(to, from, bytes); }

Status Session::finish() {
  if (gpu_ == nullptr) return {};
  DT_TRY(gpu_->record(end_, stream_));
  const Deadline deadline = Deadline::after_ms(kFinishMs);
  for (int polls = 1;; ++polls) {
    DT_TRY_VALUE(const bool passed, gpu_->passed(end_));
    if (passed) return status_of(dt_comm_check(comm_));
    if (polls % kPollsPerLook != 0) continue;
    DT_TRY(status_of(dt_comm_check(comm_)));
    if (deadline.passed()) return Status(Code::kTimeout, "the GPU does not finish within a minute");
    sched_yield();
  }
}

void Session::barrier() {
  need(dt_barrier(comm_, stream_, nullptr));
  need(finish());
}

double Session::combine(double value, dt_reduce_op op) {
  write(scratch_, &value, sizeof value);
  need(dt_allreduce(comm_, scratch_, scratch_, 1, DT_F64, op, stream_, nullptr));
  need(finish());
  read(&value, scratch_, sizeof value);
  return value;
}

std::string Session::spread(const std::string& name, const std::string& of_rank_0) {
  if (rank() == 0) {
    need(dt_store_set(job_, name.c_str(), of_rank_0.data(), static_cast<int64_t>(of_rank_0.size()),
                      -1));
    return of_rank_0;
  }
  std::string text(4096, '\0');
  int64_t bytes = 0;
  need(
      dt_store_get(job_, name.c_str(), -1, text.data(), static_cast<int64_t>(text.size()), &bytes));
  text.resize(static_cast<size_t>(std::min<int64_t>(bytes, 4096)));
  return text;
}

Status status_of(dt_status status) {
  if (status == DT_OK) return {};
  return Status(static_cast<Code>(status), dt_last_error());
}

void need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::_Exit(1);
}

void need(dt_status status) { need(status_of(status)); }

Figures figures(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<size_t>(std::max(place, 1.0)) - 1];
  };
  return {at(0.5), values.front(), values.back(), at(0.99)};
}

double now_us() { return static_cast<double>(monotonic_ns()) * 1e-3; }

}  // namespace dt::test
