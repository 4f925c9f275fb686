// SPDX-License-Identifier: Apache-2.0
// How a Conductor fails: time-outs, broken links, and what is left to complete.
#include <algorithm>
#include <utility>

#include "backend/multihost/conductor.h"
#include "base/disagreement.h"
#include "collective/descriptor.h"

namespace dt::backend {
namespace {

// A connection often ends because its peer died. The control plane, which knows why, is given
// this long to say so.
constexpr int64_t kCutGraceMs = 1000;
// The local backend keeps the deadline of its own steps; this is for when it does not.
constexpr int64_t kBackstopMs = 3000;
// Who waits for a host with several ranks, or for several hosts, may wait for ranks that are there
// and wait themselves. Those that are at the break have the same deadline, and are given this long
// to tell.
constexpr int64_t kBystanderMs = 1000;
// Who waits for data, all ranks being there, knows even less: those that wait for a rank's arrival
// tell before, and whoever called later has a deadline that is as much later (see skew_ms_).
constexpr int64_t kSpectatorMs = 1500;
// The thread that tells the control plane is never busy for long.
constexpr int64_t kTellMs = 2000;

}  // namespace

const Conductor::Operation* Conductor::present() const {
  if (active_ != nullptr) return active_.get();
  return transfers_.empty() ? nullptr : transfers_.begin()->get();
}

const Conductor::Operation* Conductor::queued() const {
  const Operation* urgent = nullptr;
  Deadline soonest = Deadline::never();
  for (const OperationPtr& each : queue_) {
    const Deadline deadline = excuse_.apply(each->collective.deadline);
    if (urgent == nullptr || deadline.before(soonest)) {
      urgent = each.get();
      soonest = deadline;
    }
  }
  return urgent;
}

/// A collective concerns all peers, a transfer the one.
bool Conductor::concerns_present(int32_t peer) const {
  if (active_ != nullptr) return true;
  const Operation* transfer = present();
  return transfer != nullptr && transfer->collective.root == peer;
}

Status Conductor::failure_of(const Operation* operation, Code code, int32_t culprit,
                             const std::string& message) const {
  const Kind kind = operation != nullptr ? operation->collective.kind : Kind::kBarrier;
  const int64_t pid = culprit >= 0 ? mesh_.peer(roster_.world_ranks[culprit]).pid : 0;
  const bool numbered = operation != nullptr && operation == active_.get();
  return roster_.failure(code, kind, numbered ? sequence_ : -1, culprit, pid, message,
                         operation != nullptr ? operation->collective.name : std::string());
}

std::string Conductor::peer_text(int32_t peer) const {
  return roster_.member_text(peer, mesh_.peer(roster_.world_ranks[peer]).pid);
}

void Conductor::broke(int32_t peer, const std::string& reason) {
  const tcp::Peer there = mesh_.peer(roster_.world_ranks[peer]);
  const std::string text = format(
      "the connection between %s and %s broke: %s; look at the network between the hosts "
      "and at the log of that rank, then start the job again",
      mesh_.own_text().c_str(), there.text().c_str(), reason.c_str());
  suspect(peer, failure(Code::kPeerLost, peer, text));
}

void Conductor::unreachable(int32_t peer, const Status& status) {
  if (status.code() == Code::kSystem) {  // of this process
    return break_with(failure(status.code(), roster_.rank, status.message()));
  }
  const bool refused = status.code() == Code::kConfig || status.code() == Code::kVersion;
  suspect(peer, failure(refused ? status.code() : Code::kPeerLost, peer, status.message()));
}

/// Found where an operation needs the peer. A rank that dies of an error of its own often destroys
/// its communicators before it goes, as destructors do: then the death is the news.
void Conductor::left(int32_t peer, bool finalized) {
  const Operation* operation = active_.get();
  for (const OperationPtr& each : transfers_) {
    if (operation == nullptr && each->collective.root == peer) operation = each.get();
  }
  if (finalized) {
    return break_with(failure_of(operation, Code::kPeerLost, peer, peer_text(peer) + kHasLeft));
  }
  const std::string text = format(
      "%s has destroyed this communicator; let all ranks end their operations on a communicator "
      "before one of them destroys it, then make a new one with dt_comm_split",
      peer_text(peer).c_str());
  suspect(peer, failure_of(operation, Code::kAborted, peer, text));
}

void Conductor::leave() {
  if (!broken_) (void)take_leave(true);
  left_ = true;
}

void Conductor::peer_left(int32_t peer) {
  absent_.insert(peer);
  if (!broken_ && will_not_dial(peer)) left(peer, true);
}

Status Conductor::left_behind(Kind kind, int64_t sequence, int32_t peer,
                              const std::string& label) const {
  return roster_.failure(Code::kPeerLost, kind, sequence, peer,
                         mesh_.peer(roster_.world_ranks[peer]).pid, peer_text(peer) + kHasLeft,
                         label);
}

/// The peer with the lower rank dials. Where that is this rank, the answer to its call says whether
/// the peer has left; what the peer sent before may still lie in the connection.
bool Conductor::will_not_dial(int32_t peer) const {
  const auto known = links_.find(peer);
  return absent_.count(peer) != 0 && known != links_.end() && !known->second->is_open() &&
         roster_.world_ranks[peer] < roster_.world_ranks[roster_.rank];
}

/// False: some peer could not be told on its link.
bool Conductor::take_leave(bool finalized) {
  tcp::Header last;
  last.what = finalized ? tcp::Header::kFinalized : tcp::Header::kLeft;
  bool all_told = true;
  for (const auto& [peer, link] : std::exchange(links_, {})) {
    std::vector<tcp::Socket> sockets = link->leave();
    all_told &= !sockets.empty();
    mesh_.part(std::move(sockets), last);
  }
  mesh_.forget(roster_.name, finalized ? tcp::Mesh::End::kFinalized : tcp::Mesh::End::kDestroyed);
  return all_told;
}

Status Conductor::destroyed() const {
  ErrorInfo info;
  info.code = Code::kAborted;
  info.rank = roster_.world_ranks[roster_.rank];
  info.host = roster_.host_name(roster_.rank);
  info.pid = pid_;
  info.message = format(
      "communicator \"%s\" was destroyed while operations were queued, by %s; wait for their ends "
      "before, then make a new one with dt_comm_split",
      roster_.name.c_str(), roster_.member_text(roster_.rank, info.pid).c_str());
  return Status(std::move(info));
}

void Conductor::suspect(int32_t peer, Status status) {
  if (broken_ || !suspicion_.ok()) return;
  suspicion_ = std::move(status);
  suspect_ = peer;
  grace_timer_->start(kCutGraceMs);
}

/// What a link has to do with an operation that does not end.
Conductor::Blame Conductor::blame(const tcp::Link& link) const {
  if (!link.is_open()) return link.receiving() || link.sending() ? Blame::kCutOff : Blame::kNone;
  if (link.cut_off()) return Blame::kCutOff;
  return link.receiving() || link.sending() ? Blame::kWaits : Blame::kNone;
}

bool Conductor::any_link(Blame wanted) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& entry) {
    return blame(*entry.second) == wanted && concerns_present(entry.first);
  });
}

/// Whether it waits for a rank that speaks for others of its host.
bool Conductor::awaits_several() const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& entry) {
    return blame(*entry.second) == Blame::kWaits &&
           roster_.topology.hosts[roster_.topology.host[entry.first]].size() > 1;
  });
}

void Conductor::count_wait(int64_t ns) {
  if (broken_ || present() == nullptr) return;
  bool known = false;
  for (const auto& [peer, link] : links_) {
    if (blame(*link) == Blame::kNone || !concerns_present(peer)) continue;
    options_->meter->waited(roster_.world_ranks[peer], ns);
    known = true;
  }
  if (!known) local_.count_wait(ns);
}

std::string Conductor::doing(int32_t peer, const tcp::Link& link) const {
  if (!link.is_open()) return mesh_.progress(roster_.name, roster_.world_ranks[peer]);
  if (link.cut_off()) {
    return "does not acknowledge what was sent: the network between the hosts is cut, or its host "
           "is down";
  }
  if (active_ == nullptr) return link.receiving() ? "has not sent" : "has not received";
  return phase_ == Phase::kExchange ? "has not arrived" : "has not finished";
}

/// Nobody explained why the link ended. A peer that timed out because of a third one may have gone:
/// where the way to that one is cut here too, that is the news. If the peer has left the job, it
/// may have left before or after the link ended, so the error says both.
void Conductor::on_grace() {
  if (broken_) return;
  const bool overdue =
      present() != nullptr && excuse_.apply(present()->collective.deadline).passed();
  const bool cut = std::any_of(links_.begin(), links_.end(),
                               [](const auto& entry) { return entry.second->cut_off(); });
  if (overdue && cut) return break_with(timed_out());
  if (absent_.count(suspect_) == 0) return break_with(suspicion_);
  ErrorInfo info = suspicion_.info();
  info.message += "; besides, " + peer_text(suspect_) + kHasLeft;
  break_with(Status(std::move(info)));
}

Status Conductor::timed_out() const {
  std::string text;
  int32_t culprit = -1;
  size_t listed = 0;
  const Blame wanted = any_link(Blame::kCutOff) ? Blame::kCutOff : Blame::kWaits;
  for (const auto& [peer, link] : links_) {
    if (blame(*link) != wanted || !concerns_present(peer)) continue;
    if (culprit < 0) culprit = peer;
    if (listed++ >= kListedMax) continue;
    text += format("%s%s at %s %s", text.empty() ? "" : ", ", peer_text(peer).c_str(),
                   mesh_.peer(roster_.world_ranks[peer]).address.text().c_str(),
                   doing(peer, *link).c_str());
  }
  if (listed > kListedMax) text += format(", and %zu more", listed - kListedMax);
  if (text.empty()) text = "the ranks of this host did not finish";
  return failure(Code::kTimeout, culprit,
                 format("timed out: %s; look at what these ranks do and at the network to them, or "
                        "raise collective.timeout_ms",
                        text.c_str()));
}

Status Conductor::timed_out_in_queue(const Operation& operation) const {
  std::vector<std::string> obstacles;
  int32_t culprit = -1;
  if (active_ != nullptr) {
    std::vector<std::string> awaited;
    for (const auto& [peer, link] : links_) {
      if (blame(*link) == Blame::kNone) continue;
      if (culprit < 0) culprit = peer;
      awaited.push_back(peer_text(peer));
    }
    obstacles.push_back(collective::obstacle_text(active_->collective, sequence_, awaited));
  } else {
    for (const OperationPtr& each : transfers_) {
      const int32_t peer = each->collective.root;
      if (culprit < 0) culprit = peer;
      obstacles.push_back(collective::obstacle_text(each->collective, -1, {peer_text(peer)}));
    }
  }
  return failure_of(&operation, Code::kTimeout, culprit, collective::timed_out_behind(obstacles));
}

/// The first to break it tells the control plane, before callers or pollers hear of it.
void Conductor::break_with(const Status& status) {
  if (broken_) return;
  broken_ = true;
  const bool first = !interrupt_->fired();
  if (first) tell(status);
  interrupt_->fire(status);
  local_.interrupt(interrupt_->status());
  drive();
}

void Conductor::tell(const Status& status) {
  if (!options_->on_broken) return;
  telling_ = true;
  options_->on_broken(
      roster_.name, status,
      [post = loop_->poster(), weak = std::weak_ptr<Conductor>(shared_from_this())] {
        (void)post([weak] {
          if (const auto self = weak.lock()) self->on_handed_over();
        });
      });
}

void Conductor::on_handed_over() {
  if (!std::exchange(telling_, false)) return;
  drive();
}

/// From now on no link touches a buffer; the local operations were interrupted and end soon.
void Conductor::drain() {
  for (const auto& [peer, link] : std::exchange(links_, {})) link->close();
  mesh_.forget(roster_.name, tcp::Mesh::End::kBroken);
  if (grace_timer_ != nullptr) grace_timer_->stop();
  if (timer_ != nullptr) {
    timer_->stop();
    if (telling_) timer_->start(kTellMs);
  }
  if (local_count_ > 0 || telling_) return;
  const Status status = interrupt_->status();
  if (const OperationPtr operation = std::exchange(active_, nullptr)) complete(*operation, status);
  for (const OperationPtr& each : std::exchange(transfers_, {})) complete(*each, status);
  for (const OperationPtr& each : std::exchange(queue_, {})) complete(*each, status);
  if (ended_ == nullptr) return;
  timer_ = nullptr;
  grace_timer_ = nullptr;
  local_watcher_ = nullptr;
  std::exchange(ended_, nullptr)->set();
}

void Conductor::set_timer() {
  if (active_ == nullptr && transfers_.empty()) soonest_ = Deadline::never();  // so is the queue
  if (soonest_.is_never()) return timer_->stop();
  timer_->start(std::max<int64_t>(soonest_.remaining_ms(), 0));
}

void Conductor::look_at_deadlines() {
  if (timer_ != nullptr && !telling_ && !broken_) on_timer();
}

void Conductor::on_timer() {
  if (telling_) return on_handed_over();
  if (broken_) return;
  if (!excuse_.over() && !soonest_.is_never()) {
    return timer_->start(std::max<int64_t>(excuse_.remaining_ms(), 0));
  }
  const Operation* operation = present();
  const Operation* next = queued();
  const auto deadline_of = [&](const Operation* each) {
    return each != nullptr ? excuse_.apply(each->collective.deadline) : Deadline::never();
  };
  const Deadline deadline = deadline_of(operation);
  soonest_ = deadline.earlier(deadline_of(next));
  if (operation == nullptr || !soonest_.passed()) return set_timer();
  if (!deadline.passed()) {  // so it is the queued one
    if (suspicion_.ok()) break_with(timed_out_in_queue(*next));
    return;
  }
  const int64_t overdue_ms = -deadline.remaining_ns() / 1'000'000;
  const bool cut_off = any_link(Blame::kCutOff);
  const bool on_network = cut_off || any_link(Blame::kWaits);
  int64_t patience_ms = 0;
  if (!on_network && local_count_ > 0) {
    patience_ms = kBackstopMs + skew_ms_;
  } else if (active_ != nullptr && !cut_off) {
    const bool arriving = phase_ != Phase::kMove;
    if (!arriving) patience_ms = kSpectatorMs + skew_ms_;
    if (arriving && (links_.size() > 1 || awaits_several())) patience_ms = kBystanderMs;
  }
  if (overdue_ms < patience_ms) return timer_->start(patience_ms - overdue_ms);
  if (suspicion_.ok()) break_with(timed_out());  // else the control plane has its time
}

}  // namespace dt::backend
