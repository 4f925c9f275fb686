// SPDX-License-Identifier: Apache-2.0
// Several jobs at one store: of the same ranks one after the other, the attempts of a job, and jobs
// of other names at the same time.
#include <algorithm>
#include <random>
#include <vector>

#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {
namespace {

// Next to the first one. Each may keep kShareOfJob of the memory of the first one.
constexpr size_t kMaxOtherJobs = 64;
constexpr size_t kShareOfJob = 8;

}  // namespace

uint64_t random_session() {
  std::random_device random;
  const uint64_t session = (uint64_t{random()} << 32) | random();
  return session == 0 ? 1 : session;
}

JoinSetup Server::Impl::join_setup() const {
  JoinSetup setup;
  setup.job_id = options_.job_id;
  setup.attempt = options_.attempt;
  setup.world_size = options_.world_size;
  setup.session = random_session();
  setup.timeout_ms = options_.join_timeout_ms;
  setup.several_jobs = options_.several_jobs;
  setup.any_job = options_.any_job;
  setup.warn_ms = options_.join_warn_ms;
  return setup;
}

/// The first rank that comes back when all have left.
bool Server::Impl::begins_next_job(const Hello& hello) const {
  return options_.several_jobs && hello.member.rank >= 0 && joins_.is_over() && !aborted_ &&
         first_rank_.load() < 0 && joins_.check_identity(hello).ok();
}

/// Nothing of the job before is left: no key, no connection of its ranks, no word of theirs. What
/// PyTorch's clients keep here is theirs and stays.
void Server::Impl::begin_next_job() {
  std::vector<uint64_t> ended;
  for (const auto& [id, session] : sessions_) {
    if (session->welcomed && session->member.rank >= 0) ended.push_back(id);
  }
  for (const uint64_t id : ended) {
    Session* const session = sessions_.at(id).get();
    keyspace_.drop(id);
    drop_questions(id);
    session->member.rank = -1;  // its end says nothing of the rank that comes
    session->heeds_stop = false;
    session->refused = true;
    session->connection->shutdown();
  }
  keyspace_.erase_of(Owner::kMembers);
  const Status first_ended = joins_.first_ended();
  joins_ = JoinTable(join_setup());
  joins_.set_first_ended(first_ended);
  vitals_ = Vitals();
  orders_ = OrderTable();
  late_comms_.clear();
  departed_.clear();
  join_deadline_ns_ = look_at_ns_ = tell_departed_ns_ = kNeverNs;
  late_rank_.store(-1);
  heeds_stop_.store(false);
}

// ---- attempts ----

bool Server::Impl::begins_next_attempt(const Hello& hello) const {
  if (!options_.any_job || hello.protocol != kProtocolVersion || hello.job_id != options_.job_id ||
      hello.world_size < 1 || hello.world_size > kMaxWorldSize) {
    return false;
  }
  if (hello.attempt > options_.attempt) return true;
  // The next job of another number of ranks.
  return hello.attempt == options_.attempt && hello.member.rank >= 0 &&
         hello.world_size != options_.world_size && joins_.is_over() && !aborted_ &&
         first_rank_.load() < 0;
}

/// Ranks of the attempt before hear that it is over. Nothing of it is left.
void Server::Impl::begin_next_attempt(const Hello& hello) {
  Failure over;
  over.info.code = Code::kAborted;
  over.info.rank = hello.member.rank;
  over.info.host = hello.member.host;
  over.info.pid = hello.member.pid;
  over.info.message = format(
      "attempt %d of job %s is over: %s has begun attempt %d; end this process", options_.attempt,
      quoted(options_.job_id).c_str(), hello.member.text().c_str(), hello.attempt);
  if (!joins_.is_over()) {
    push(over, 0);
    Answers answers;
    joins_.fail_join(Status(over.info), &answers);
    deliver(answers);
  }
  options_.attempt = hello.attempt;
  options_.world_size = hello.world_size;
  begin_next_job();
  joins_.set_first_ended({});
  gatherings_ = GatherTable(
      {options_.world_size, [this](int32_t rank) { return joins_.member(rank); }, random_session});
  dumping_.reset();
  first_is_silent_.store(false);
  first_rank_.store(-1);
  aborted_ = false;
}

// ---- jobs of other names ----

/// Who serves this session.
Server::Impl* Server::Impl::impl_of(uint64_t id) {
  const auto found = handed_over_.find(id);
  return found == handed_over_.end() ? this : found->second;
}

/// Null: it belongs to the first job, or to none that could be.
Result<Server::Impl*> Server::Impl::find_other_job(const Hello& hello) {
  const bool is_tool = hello.member.rank < 0 && hello.job_id.empty();
  if (hello.job_id == options_.job_id || is_tool) return nullptr;
  const auto found = other_jobs_.find(hello.job_id);
  if (found != other_jobs_.end()) return found->second.impl.get();
  const bool sound = hello.protocol == kProtocolVersion && hello.attempt >= 0 &&
                     hello.world_size >= 1 && hello.world_size <= kMaxWorldSize;
  if (!sound) return nullptr;
  if (other_jobs_.size() >= kMaxOtherJobs) evict_ended_job();
  if (other_jobs_.size() >= kMaxOtherJobs) {
    return refusal(hello.member,
                   format("the store at %s serves %zu jobs already, its limit, and ranks of all of "
                          "them are connected: job %s cannot begin; end one of them, or serve "
                          "another store",
                          hello.dialled.c_str(), kMaxOtherJobs + 1, quoted(hello.job_id).c_str()));
  }
  ServerOptions options = options_;
  options.job_id = hello.job_id;
  options.attempt = hello.attempt;
  options.world_size = hello.world_size;
  options.torch_compat = false;
  options.memory_bytes = static_cast<int64_t>(
      std::max(std::min(budget_.keys, MemoryBudget::kMinBytes), budget_.keys / kShareOfJob));
  OtherJob& job = other_jobs_[hello.job_id];
  job.order = ++last_order_;
  job.impl = std::make_unique<Impl>(loop_, std::move(options));
  job.impl->front_ = this;
  job.impl->start_timers();
  return job.impl.get();
}

/// The oldest of those that have no connections. Until then its late ranks hear that it is over.
void Server::Impl::evict_ended_job() {
  auto oldest = other_jobs_.end();
  for (auto job = other_jobs_.begin(); job != other_jobs_.end(); ++job) {
    if (!job->second.impl->sessions_.empty()) continue;
    if (oldest == other_jobs_.end() || job->second.order < oldest->second.order) oldest = job;
  }
  if (oldest == other_jobs_.end()) return;
  oldest->second.impl->stop();
  other_jobs_.erase(oldest);
}

/// From here on the connection's bytes and its end go there.
void Server::Impl::hand_over(uint64_t id, Impl* job, const Request& request) {
  const auto found = sessions_.find(id);
  std::unique_ptr<Session> session = std::move(found->second);
  sessions_.erase(found);
  gone(*session);
  handed_over_[id] = job;
  tell_if_empty();
  job->adopt(std::move(session), request);
}

void Server::Impl::adopt(std::unique_ptr<Session> session, const Request& request) {
  const uint64_t id = session->id;
  session->noted_bytes = 0;
  ++dt_sessions_;
  strangers_.push_back({monotonic_ns() + options_.silence_ms * kNsPerMs, id});
  Session* const adopted = sessions_.emplace(id, std::move(session)).first->second.get();
  hello(id, adopted, request);
  proceed(id);
}

}  // namespace dt::store
