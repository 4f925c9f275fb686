// SPDX-License-Identifier: Apache-2.0
#include "ways.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "allocations.h"
#include "base/wait.h"

namespace dt::test {
namespace {

constexpr double kGoalUs = 3;
constexpr int64_t kSettleMs = 120'000;  // NCCL itself retries a connection for a minute

struct Work {
  dt_work* handle = nullptr;
  ~Work() { dt_work_destroy(handle); }
};

}  // namespace

Way dt_way(Session* session, const Sum* sum) {
  const auto work = std::make_shared<Work>();
  Way way;
  way.name = "dt";
  way.call = [session, sum, work] {
    return status_of(dt_allreduce(session->comm(), sum->send, sum->recv, sum->count, DT_F32, DT_SUM,
                                  session->stream(), &work->handle));
  };
  way.order = [session, work] {
    return status_of(dt_work_wait_stream(work->handle, session->stream()));
  };
  way.finish = [session, work]() -> Status {
    int32_t done = 0;
    DT_TRY(status_of(dt_work_wait(work->handle, -1, &done)));
    dt_work_destroy(std::exchange(work->handle, nullptr));
    return session->finish();
  };
  return way;
}

RawNccl::RawNccl(Session* session, std::shared_ptr<const nccl::Library> library, std::string name,
                 bool blocking)
    : session_(session),
      library_(std::move(library)),
      name_(std::move(name)),
      blocking_(blocking) {}

RawNccl::~RawNccl() {
  // Only after a failure: end() leaves none.
  if (comm_ != nullptr) static_cast<void>(library_->functions().comm_abort(comm_));
}

Result<std::unique_ptr<RawNccl>> RawNccl::create(Session* session,
                                                 std::shared_ptr<const nccl::Library> library,
                                                 const std::string& name, bool blocking) {
  const nccl::Functions& nccl = library->functions();
  nccl::UniqueId id;
  if (session->rank() == 0) DT_TRY(library->error("ncclGetUniqueId", nccl.get_unique_id(&id)));
  const std::string text =
      session->spread("overhead/" + name, std::string(id.bytes, sizeof id.bytes));
  std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof id.bytes));
  std::unique_ptr<RawNccl> raw(new RawNccl(session, std::move(library), name, blocking));
  nccl::Config config;
  config.blocking = blocking ? 1 : 0;
  DT_TRY(raw->settle(
      "ncclCommInitRankConfig",
      nccl.comm_init_rank_config(&raw->comm_, session->ranks(), id, session->rank(), &config)));
  return raw;
}

Status RawNccl::end() {
  const nccl::Functions& nccl = library_->functions();
  DT_TRY(settle("ncclCommFinalize", nccl.comm_finalize(comm_)));
  return library_->error("ncclCommDestroy", nccl.comm_destroy(std::exchange(comm_, nullptr)));
}

/// Until what a call began on a communicator that does not block has been enqueued.
Status RawNccl::settle(const char* call, nccl::Answer answer) {
  const Deadline deadline = Deadline::after_ms(kSettleMs);
  while (answer == nccl::Answer::kInProgress) {
    const auto asked = library_->functions().comm_get_async_error(comm_, &answer);
    DT_TRY(library_->error("ncclCommGetAsyncError", asked));
    if (answer != nccl::Answer::kInProgress) break;
    if (deadline.passed()) return Status(Code::kTimeout, std::string(call) + " does not get done");
    sched_yield();
  }
  return library_->error(call, answer);
}

Way RawNccl::way(const Sum* sum) {
  // The answer of the call, for what follows it.
  const auto answer = std::make_shared<nccl::Answer>(nccl::Answer::kSuccess);
  Way way;
  way.name = name_;
  way.call = [this, sum, answer]() -> Status {
    *answer = library_->functions().all_reduce(
        sum->send, sum->recv, static_cast<size_t>(sum->count), nccl::Type::kFloat32, nccl::Op::kSum,
        comm_, session_->stream());
    if (*answer == nccl::Answer::kInProgress) return {};
    return library_->error("ncclAllReduce", *answer);
  };
  way.order = [this, answer] { return settle("ncclAllReduce", *answer); };
  way.finish = [this] { return session_->finish(); };
  return way;
}

Status measure(std::vector<Way>* ways, const Samples& samples) {
  const auto count = static_cast<int64_t>(ways->size());
  for (int64_t sample = -samples.warmup; sample < samples.count; ++sample) {
    for (int64_t turn = 0; turn < count; ++turn) {
      Way& way = (*ways)[static_cast<size_t>((sample + samples.warmup + turn) % count)];
      const int64_t allocated = allocations();
      const double begin = now_us();
      DT_TRY(way.call());
      const double called = now_us();
      const int64_t more = allocations() - allocated;
      DT_TRY(way.order());
      const double ordered = now_us();
      DT_TRY(way.finish());
      const double done = now_us();
      if (sample < 0) continue;
      way.called_us.push_back(called - begin);
      way.ordered_us.push_back(ordered - begin);
      way.done_us.push_back(done - begin);
      way.allocations = std::max(way.allocations, more);
    }
  }
  return {};
}

Status verify(Session* session, std::vector<Way>* ways, const Sum& sum) {
  const std::vector<float> mine(static_cast<size_t>(sum.count),
                                static_cast<float>(session->rank() + 1));
  const auto bytes = sum.count * static_cast<int64_t>(sizeof(float));
  const auto wanted = static_cast<float>(session->ranks() * (session->ranks() + 1) / 2);
  session->write(const_cast<float*>(sum.send), mine.data(), bytes);
  for (Way& way : *ways) {
    std::vector<float> got(mine.size(), -1);
    session->write(sum.recv, got.data(), bytes);
    DT_TRY(way.call());
    DT_TRY(way.order());
    DT_TRY(way.finish());
    session->read(got.data(), sum.recv, bytes);
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == wanted) continue;
      return Status(Code::kInternal,
                    format("%s: element %zu is %g, not %g", way.name.c_str(), i,
                           static_cast<double>(got[i]), static_cast<double>(wanted)));
    }
  }
  return {};
}

std::string way_header() {
  return format("%10s  %-18s %8s %8s %8s %8s  %8s %8s  %8s %8s %8s  %5s  %s\n", "size (B)", "way",
                "call p50", "p99", "min", "max", "ordered", "p99", "done p50", "p99", "max",
                "alloc", "call and done / NCCL");
}

std::string way_lines(const Sum& sum, const std::vector<Way>& ways) {
  std::string text;
  const Way& reference = ways.back();
  for (const Way& way : ways) {
    const Figures called = figures(way.called_us);
    const Figures ordered = figures(way.ordered_us);
    const Figures done = figures(way.done_us);
    text += format("%10lld  %-18s %8.2f %8.2f %8.2f %8.2f  %8.2f %8.2f  %8.2f %8.2f %8.2f  %5lld",
                   static_cast<long long>(sum.count) * 4, way.name.c_str(), called.median,
                   called.p99, called.min, called.max, ordered.median, ordered.p99, done.median,
                   done.p99, done.max, static_cast<long long>(way.allocations));
    const double call_of = figures(reference.called_us).median;
    const double done_of = figures(reference.done_us).median;
    if (&way != &reference && call_of > 0 && done_of > 0) {
      text += format("  %.2f %.2f", called.median / call_of, done.median / done_of);
    }
    text += "\n";
  }
  return text;
}

std::string goal_line(const Way& smallest) {
  const double median = figures(smallest.called_us).median;
  const bool reached = median < kGoalUs && smallest.allocations == 0;
  return format("goal: a call takes %.2f us and allocates %lld times; less than %g and 0: %s\n",
                median, static_cast<long long>(smallest.allocations), kGoalUs,
                reached ? "reached" : "missed");
}

}  // namespace dt::test
