// SPDX-License-Identifier: Apache-2.0
#include "store/order_table.h"

#include <algorithm>

#include "base/disagreement.h"

namespace dt::store {
namespace {

// Hostile or many ranks must not fill the memory.
constexpr size_t kMaxComms = 1024;
constexpr size_t kMaxPoints = 1024;  // of a communicator
constexpr size_t kMaxMinds = 64;     // of a point

}  // namespace

OrderTable::Comm& OrderTable::comm_of(const Orders& orders, int64_t now_ns) {
  if (comms_.count(orders.communicator) == 0 && comms_.size() >= kMaxComms) {
    comms_.erase(std::min_element(comms_.begin(), comms_.end(), [](const auto& a, const auto& b) {
      return a.second.heard_ns < b.second.heard_ns;
    }));
  }
  Comm& comm = comms_[orders.communicator];
  comm.size = orders.size;
  comm.heard_ns = now_ns;
  return comm;
}

void OrderTable::tell(const Member& member, const Orders& orders, int64_t now_ns) {
  Comm& comm = comm_of(orders, now_ns);
  if (comm.over) return;
  Teller& teller = comm.tellers[member.rank];
  teller.member = member;
  for (const Order& each : orders.news) {
    teller.reached = std::max(teller.reached, each.position);
    add(&comm, member.rank, each, now_ns);
  }
  if (gone_.count(member.rank) != 0) note_leaver(&comm, member.rank);
}

void OrderTable::leave(int32_t rank) {
  gone_.insert(rank);
  for (auto& [name, comm] : comms_) note_leaver(&comm, rank);
}

void OrderTable::note_leaver(Comm* comm, int32_t rank) {
  const auto teller = comm->tellers.find(rank);
  if (teller == comm->tellers.end()) return;
  int32_t& first = comm->left_first;
  if (first < 0 || teller->second.reached < comm->tellers.at(first).reached) first = rank;
}

void OrderTable::add(Comm* comm, int32_t rank, const Order& order, int64_t now_ns) {
  // Nothing behind a difference tells more than the difference.
  if (comm->differs_at > 0 && order.position > comm->differs_at) return;
  if (comm->points.size() >= kMaxPoints && comm->points.count(order.position) == 0) {
    if (order.position < comm->points.begin()->first) return;  // too late to be compared
    comm->points.erase(comm->points.begin());
  }
  Point& point = comm->points[order.position];
  // If a rank reports two chains for one position, the first counts: it must not be counted twice.
  const bool elsewhere = std::any_of(point.begin(), point.end(), [&](const Mind& each) {
    return each.chain != order.chain &&
           std::find(each.ranks.begin(), each.ranks.end(), rank) != each.ranks.end();
  });
  if (elsewhere) return;
  auto mind = std::find_if(point.begin(), point.end(),
                           [&](const Mind& each) { return each.chain == order.chain; });
  if (mind == point.end()) {
    if (point.size() >= kMaxMinds) return;
    mind = point.insert(point.end(), Mind{order.chain, 0, {}, now_ns, {}});
  }
  if (mind->call.empty()) {
    mind->sequence = order.sequence;
    mind->call = order.call;
  }
  if (std::find(mind->ranks.begin(), mind->ranks.end(), rank) == mind->ranks.end()) {
    mind->ranks.push_back(rank);
  }
  if (point.size() > 1) {
    if (comm->differs_at == 0) comm->differs_since_ns = now_ns;
    comm->differs_at = order.position;
  } else if (mind->ranks.size() >= static_cast<size_t>(std::max(comm->size, 1))) {
    comm->points.erase(order.position);
  }
}

std::optional<OrderTable::Laggards> OrderTable::laggards(const std::string& communicator,
                                                         int32_t reporter,
                                                         const std::string& operation,
                                                         int64_t sequence,
                                                         const std::vector<Member>& job) const {
  const auto known = comms_.find(communicator);
  if (known == comms_.end() || known->second.over || known->second.differs_at > 0) {
    return std::nullopt;
  }
  const Comm& comm = known->second;
  Laggards found;
  found.nobody = comm.points.empty() && std::ssize(comm.tellers) == comm.size;
  // Numbers count sends and receives, too, and so differ between ranks.
  const auto point = std::find_if(comm.points.begin(), comm.points.end(), [&](const auto& each) {
    const Mind& mind = each.second[0];
    return mind.sequence == sequence && mind.call.substr(0, mind.call.find(' ')) == operation &&
           std::find(mind.ranks.begin(), mind.ranks.end(), reporter) != mind.ranks.end();
  });
  if (point == comm.points.end()) return found;
  found.since_ns = point->second[0].told_ns;
  for (const auto& [rank, teller] : comm.tellers) {
    if (teller.reached < point->first) found.ranks.push_back(teller.member);
  }
  if (std::ssize(job) == comm.size) {
    for (const Member& member : job) {
      if (comm.tellers.count(member.rank) == 0) found.ranks.push_back(member);
    }
  }
  return found;
}

std::vector<Failure> OrderTable::verdicts(int64_t now_ns, int64_t patience_ns) {
  std::vector<Failure> found;
  for (auto& [name, comm] : comms_) {
    if (comm.over) continue;
    if (auto failure = left_behind(name, comm); failure.has_value()) {
      found.push_back(std::move(*failure));
      comm.over = true;
      comm.points.clear();
      continue;
    }
    if (comm.differs_at == 0) continue;
    size_t came = 0;
    for (const Mind& mind : comm.points.at(comm.differs_at)) came += mind.ranks.size();
    const bool all = came >= static_cast<size_t>(std::max(comm.size, 1));
    if (!all && now_ns - comm.differs_since_ns < patience_ns) continue;
    found.push_back(failure_of(name, comm));
    comm.over = true;
    comm.points.clear();
  }
  return found;
}

/// `what` is said of the operation at `position`, which `mind` names; `culprit` is to blame.
Failure OrderTable::failure_at(const std::string& name, int64_t position, const Mind& mind,
                               Code code, const Member& culprit, const std::string& what) {
  Failure failure;
  failure.scope = name;
  ErrorInfo& info = failure.info;
  info.code = code;
  info.rank = culprit.rank;
  info.host = culprit.host;
  info.pid = culprit.pid;
  info.operation = mind.call.substr(0, mind.call.find(' '));
  info.sequence = mind.call.empty() ? -1 : mind.sequence;
  const std::string operation =
      mind.call.empty()
          ? format("collective %lld", static_cast<long long>(position))
          : format("%s #%lld", info.operation.c_str(), static_cast<long long>(mind.sequence));
  info.message = format("%s on comm \"%s\": %s", operation.c_str(), name.c_str(), what.c_str());
  return failure;
}

/// A point that a rank which has left never came to: the others wait for it there.
std::optional<Failure> OrderTable::left_behind(const std::string& name, const Comm& comm) {
  if (comm.left_first < 0 || comm.points.empty()) return std::nullopt;
  const Teller& teller = comm.tellers.at(comm.left_first);
  const auto& [position, point] = *comm.points.rbegin();
  if (position <= teller.reached) return std::nullopt;
  const Member& leaver = teller.member;
  return failure_at(name, position, point[0], Code::kPeerLost, leaver, leaver.text() + kHasLeft);
}

Failure OrderTable::failure_of(const std::string& name, const Comm& comm) {
  const Point& point = comm.points.at(comm.differs_at);
  const bool same_calls = std::all_of(point.begin(), point.end(),
                                      [&](const Mind& each) { return each.call == point[0].call; });
  std::map<int32_t, const Mind*> minds;
  for (const Mind& mind : point) {
    for (const int32_t rank : mind.ranks) minds[rank] = &mind;
  }
  std::vector<CallOfRank> calls;
  std::vector<const Member*> members;
  for (const auto& [rank, mind] : minds) {
    const Member& member = comm.tellers.at(rank).member;
    CallOfRank call;
    call.who = format("rank %d (%s, pid %lld)", rank, member.host.c_str(),
                      static_cast<long long>(member.pid));
    call.key = mind->chain;
    call.call = mind->call.empty() ? "operations that are too long ago to be told" : mind->call;
    if (same_calls && !mind->call.empty()) call.call += ", after other operations than the others";
    calls.push_back(std::move(call));
    members.push_back(&member);
  }
  const Disagreement found = disagreement(calls);
  return failure_at(name, comm.differs_at, *minds.begin()->second, Code::kMismatch,
                    *members[found.culprit], found.text);
}

}  // namespace dt::store
