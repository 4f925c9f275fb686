// SPDX-License-Identifier: Apache-2.0
// After a failure the ranks that are left go on in a communicator of their own.
//
// 1. Gather at the store: its answer says who is left, the same to all. A rank that is lost is told
//    so by the store and gets no such answer, should it wake up.
// 2. Build, from nothing that a lost rank can reach: a new arena, whose listener it never hears of,
//    and other connections between hosts. It may have the old arena mapped as long as its process
//    exists; so where that is not known to have ended, this rank's data there is withdrawn.
// 3. Gather again: either all that were there have built it, and it is handed out; or somebody
//    ended meanwhile, and all begin again without that one; or somebody could not, which is the
//    error of all.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "job/job.h"
#include "job/outcome.h"
#include "store/protocol.h"

namespace dt::job {
namespace {

constexpr char kShrink[] = "dt_comm_shrink";
constexpr int64_t kEndMs = 500;  // for a process whose connections are closed already

bool has(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// True: that process has ended, and with it all its mappings.
bool has_ended(int64_t pid) {
  if (pid == getpid()) return false;  // a thread beside this one
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd < 0) return errno == ESRCH;
  pollfd ended{fd, POLLIN, 0};
  const bool gone = poll(&ended, 1, static_cast<int>(kEndMs)) == 1;
  close(fd);
  return gone;
}

/// "world~2" of "world" or "world~1".
std::string smaller_name(const std::string& name, uint64_t number) {
  std::string base = name;
  const size_t mark = base.rfind('~');
  if (mark != std::string::npos && mark + 1 < base.size() &&
      base.find_first_not_of("0123456789", mark + 1) == std::string::npos) {
    base.resize(mark);
  }
  return format("%s~%llu", base.c_str(), static_cast<unsigned long long>(number));
}

}  // namespace

Interrupt* Job::failed() {
  return failed_.with([](std::deque<Interrupt>& all) { return &all.back(); });
}

std::shared_ptr<comm::Communicator> Job::present_world() const {
  return smaller_world_.with([&](const auto& smaller) { return smaller ? smaller : world_; });
}

Result<std::shared_ptr<comm::Communicator>> Job::shrink(
    const std::shared_ptr<comm::Communicator>& comm) {
  DT_TRY(comm->check_ungrouped("dt_comm_shrink"));
  if (local_store_ != nullptr) {
    DT_TRY(comm->broken());
    return comm->split(0, 0);
  }
  const auto client = control_->client();
  if (client == nullptr) return ended();
  const std::string what = format("dt_comm_shrink of comm \"%s\"", comm->name().c_str());
  const int64_t limit_ms = comm->timeout_ms() > 0 ? comm->timeout_ms() : rendezvous_timeout_ms_;
  const Deadline deadline = Deadline::after_ms(limit_ms);
  std::unique_lock lock(making_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return Status(Code::kInvalidState,
                  what + ": another thread makes a communicator of this job; one at a time");
  }
  if (!comm->broken().ok() && !comm->backend().quiesce(Wait{deadline, nullptr})) {
    return named(Status(Code::kTimeout, "operations of this rank on it do not end"), what, kShrink);
  }
  for (;;) {
    Smaller smaller;
    Result<bool> done = shrink_once(*client, *comm, what, deadline, &smaller);
    if (!done.ok()) return named(done.status(), what, kShrink);
    if (!done.value()) continue;  // without those that ended meanwhile; ends with the deadline
    local_.with([&](LocalPeers& local) { local.newer.push_back(smaller.engine); });
    smaller.engine->peers_left(board_->left());  // those that it was not told of
    forgive(*client, comm->world_ranks(), smaller.ranks);
    auto communicator = comm::Communicator::create(
        options_of(smaller.name, smaller.ranks, std::move(smaller.backend)));
    if (comm == present_world()) {
      smaller_world_.with([&](auto& world) { world = communicator; });
    }
    return communicator;
  }
}

/// False: somebody ended meanwhile.
Result<bool> Job::shrink_once(store::Client& client, comm::Communicator& comm,
                              const std::string& what, Deadline deadline, Smaller* out) {
  DT_TRY_VALUE(auto listener, shm::ArenaListener::create());
  DT_TRY_VALUE(const store::GatherVerdict met,
               client.gather(what, comm.world_ranks(), listener.name(), Wait{deadline, nullptr}));
  Smaller smaller;
  smaller.name = smaller_name(comm.name(), met.number);
  for (const auto& [rank, socket_name] : met.present) smaller.ranks.push_back(rank);
  if (!has(smaller.ranks, place_.rank)) {
    return Status(Code::kInternal, "the store's answer leaves this rank out; report this");
  }
  std::vector<int32_t> gone = comm.world_ranks();
  std::erase_if(gone, [&](int32_t rank) { return has(smaller.ranks, rank); });
  client.forgive(gone);

  Interrupt interrupt;  // fired when one of those that are left is lost, too
  meeting_.with([&](Meeting& meeting) { meeting = {&interrupt, smaller.ranks}; });
  if (const Status known = board_->concerning(smaller.ranks); !known.ok()) interrupt.fire(known);
  const Wait wait{deadline, &interrupt};
  Status made = withdraw_from(gone);
  if (made.ok()) made = build(comm, met, std::move(listener), wait, &smaller);
  const std::string question = what + format(" as \"%s\"", smaller.name.c_str());
  const auto built =
      client.gather(question, smaller.ranks, told(made), Wait{deadline.plus_ms(kTellMs), nullptr});
  meeting_.with([](Meeting& meeting) { meeting = {}; });
  if (!built.ok()) {
    if (!made.ok() && !interrupt.fired()) return made;
    return built.status();
  }
  if (built.value().present.size() != smaller.ranks.size()) return false;
  DT_TRY(outcome(built.value().present, made));
  *out = std::move(smaller);
  return true;
}

/// So that none of them can change this rank's data, should it wake up.
Status Job::withdraw_from(const std::vector<int32_t>& gone) {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  const auto own_namespace = local.engine->arena()->own_header().pid_namespace;
  bool all_ended = true;
  for (size_t i = 0; i < local.records.size() && all_ended; ++i) {
    const store::LocalRecord& record = local.records[i];
    if (!has(gone, record.rank)) continue;
    // In another namespace the number means another process.
    const auto& header = local.engine->arena()->header(static_cast<int32_t>(i));
    all_ended = header.pid_namespace == own_namespace && has_ended(record.pid);
  }
  if (all_ended) return {};
  DT_TRY(local.engine->arena()->withdraw());
  for (const auto& engine : local.newer) DT_TRY(engine->arena()->withdraw());
  return {};
}

Status Job::build(comm::Communicator& comm, const store::GatherVerdict& met,
                  shm::ArenaListener listener, const Wait& wait, Smaller* out) {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  backend::HostEngine::Options options = local.engine->options();
  options.session = met.session;
  options.world_ranks.clear();
  options.pids.clear();
  backend::HostWorldOptions world;
  world.name = out->name;
  tell_failures(&world);
  for (size_t i = 0; i < met.present.size(); ++i) {
    const auto& [rank, socket_name] = met.present[i];
    const auto record = std::find_if(local.records.begin(), local.records.end(),
                                     [rank = rank](const auto& each) { return each.rank == rank; });
    if (record == local.records.end()) continue;
    if (options.world_ranks.empty()) options.leader_name = socket_name;
    if (rank == place_.rank) options.local_rank = static_cast<int32_t>(options.world_ranks.size());
    options.world_ranks.push_back(rank);
    options.pids.push_back(record->pid);
    world.whole_ranks.push_back(static_cast<int32_t>(i));
  }
  options.local_size = static_cast<int32_t>(options.world_ranks.size());
  world.part = options.world_ranks.size() != met.present.size();
  DT_TRY_VALUE(auto engine, backend::HostEngine::create(std::move(listener), options, wait));
  DT_TRY_VALUE(out->backend, backend::create_host_world(engine, world, wait));
  if (world.part) {
    backend::MultihostOptions over_hosts = multihost_options(engine);
    over_hosts.roster.name = out->name;
    DT_TRY_VALUE(out->backend, links_->among(verdict_, out->ranks, std::move(out->backend),
                                             std::move(over_hosts)));
  }
  const auto rank = static_cast<int32_t>(
      std::find(out->ranks.begin(), out->ranks.end(), place_.rank) - out->ranks.begin());
  DT_TRY_VALUE(out->backend, comm.backend().among(std::move(out->backend), out->name, rank,
                                                  static_cast<int32_t>(out->ranks.size()), wait));
  out->engine = std::move(engine);
  return {};
}

/// Those of `members` that are not left are no failure of this job any more. On the I/O thread, so
/// that fail() finds all of it or nothing.
void Job::forgive(store::Client& client, const std::vector<int32_t>& members,
                  const std::vector<int32_t>& left) {
  std::vector<int32_t> gone = members;
  std::erase_if(gone, [&](int32_t rank) { return has(left, rank); });
  loop_->run([&] {
    board_->forgive(gone);
    local_.with([](const LocalPeers& local) { local.engine->arena()->own_header().blames = 0; });
    failed_.with([&](std::deque<Interrupt>& all) {
      if (!all.back().fired() || !board_->first().ok()) return;
      all.emplace_back();
    });
  });
  client.forgive(gone);  // again: of whom this rank itself has seen the end since
}

}  // namespace dt::job
