// SPDX-License-Identifier: Apache-2.0
// What the server keeps for its connections, and whom it lets go when that is too much.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/memory_limit.h"
#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {

namespace {

/// The least that a connection takes: its own state and the kernel's.
constexpr size_t kConnectionBytes = 8 << 10;
constexpr size_t kShareOfMemory = 4;

/// What is free again after connections were let go, so that the next look at all of them is far.
size_t relaxed(size_t limit) { return limit - limit / 4; }

}  // namespace

MemoryBudget MemoryBudget::of(size_t bytes) {
  if (bytes == 0) {
    bytes = std::clamp(static_cast<size_t>(memory_limit().available_bytes) / kShareOfMemory,
                       kMinBytes, kMaxBytes);
  }
  MemoryBudget budget;
  budget.connections = budget.keys = bytes;
  budget.guests = bytes / 2;
  budget.one_guest = budget.guest_keys = bytes / 4;
  return budget;
}

void Server::Impl::send(Session* session, std::string bytes, net::SharedBytes shared) {
  session->connection->write(std::move(bytes), std::move(shared));
  note(session);
}

/// What the tables keep of what this rank told.
size_t Server::Impl::told_bytes(const Session& session) const {
  const int32_t rank = session.member.rank;
  if (!session.welcomed || rank < 0 || joins_.client_of(rank) != session.id) return 0;
  return joins_.kept_bytes(rank) + gatherings_.kept_bytes(rank) + vitals_.kept_bytes(rank);
}

void Server::Impl::note(Session* session) {
  const size_t now = kConnectionBytes + session->connection->kept_bytes() +
                     session->parser.kept_bytes() + told_bytes(*session) +
                     (session->torch == nullptr ? 0 : session->torch->kept_bytes());
  noted_bytes_[static_cast<size_t>(session->owner())] += now - session->noted_bytes;
  session->noted_bytes = now;
  if (session->owner() == Owner::kGuests && now > budget_.one_guest) {
    overfull_.push_back(session->id);
  }
}

void Server::Impl::note(Uplink* uplink) {
  const size_t now =
      kConnectionBytes + uplink->connection->kept_bytes() + uplink->parser.kept_bytes();
  noted_bytes_[static_cast<size_t>(Owner::kMembers)] += now - uplink->noted_bytes;
  uplink->noted_bytes = now;
}

/// With what it keeps for its channels.
size_t Server::Impl::noted_for(const Uplink& uplink) const {
  size_t bytes = uplink.noted_bytes;
  for (const auto& [number, session] : uplink.channels) bytes += sessions_.at(session)->noted_bytes;
  return bytes;
}

void Server::Impl::count_anew() {
  for (const auto& [id, session] : sessions_) note(session.get());
  for (const auto& [id, uplink] : uplinks_) note(uplink.get());
}

/// With the answers that several connections share.
size_t Server::Impl::kept_for(Owner owner) const {
  return noted_bytes_[static_cast<size_t>(owner)] + keyspace_.loose_bytes(owner);
}

/// After everything that makes the store keep more. Those without a token go first, the largest
/// ones of them; members only where that was not enough: the end of one is a failure of the job,
/// but the end of this process would be one of all.
void Server::Impl::keep_within_budget() {
  for (const uint64_t id : std::exchange(overfull_, {})) {
    let_go(id, "a connection without the token", budget_.one_guest);
  }
  const auto fits = [this](size_t guests, size_t all) {
    const size_t kept = kept_for(Owner::kGuests);
    return kept <= guests && kept + kept_for(Owner::kMembers) <= all;
  };
  if (fits(budget_.guests, budget_.connections)) return;
  count_anew();
  overfull_.clear();
  for (const Owner owner : {Owner::kGuests, Owner::kMembers}) {
    const auto enough = [&] {
      return owner == Owner::kGuests ? fits(relaxed(budget_.guests), relaxed(budget_.connections))
                                     : fits(SIZE_MAX, budget_.connections);
    };
    if (enough()) return;
    std::vector<std::pair<size_t, uint64_t>> largest;
    for (const auto& [id, session] : sessions_) {
      if (session->owner() != owner || session->connection->channel() != nullptr) continue;
      largest.emplace_back(session->noted_bytes + session->connection->queued_bytes(), id);
    }
    for (const auto& [id, uplink] : uplinks_) {
      if (owner == Owner::kMembers) largest.emplace_back(noted_for(*uplink), id);
    }
    std::sort(largest.rbegin(), largest.rend());
    for (const auto& [bytes, id] : largest) {
      if (enough()) break;
      if (owner == Owner::kGuests) {
        let_go(id, "all connections without the token", budget_.guests);
      } else {
        let_go(id, "all connections", budget_.connections);
      }
    }
  }
}

void Server::Impl::let_go(uint64_t id, const char* whose, size_t limit) {
  const auto session = sessions_.find(id);
  const auto uplink = uplinks_.find(id);
  if (session == sessions_.end() && uplink == uplinks_.end()) return;
  // A flood of them must not fill the log; a member's end is never left out.
  const bool guest = session != sessions_.end() && session->second->owner() == Owner::kGuests;
  if (options_.logger && (std::has_single_bit(++let_go_) || !guest)) {
    std::string who;
    size_t bytes = 0;
    if (session != sessions_.end()) {
      who = guest ? "a client without the token on " + session->second->peer_host
                  : session->second->member.text();
      bytes = session->second->noted_bytes + session->second->connection->queued_bytes();
    } else {
      who = "the relay of host " + quoted(uplink->second->host);
      bytes = noted_for(*uplink->second);
    }
    options_.logger->log(
        LogLevel::kWarning,
        "store: closed the connection of %s, for which %zu bytes were kept (%llu such ends so "
        "far): %s may make the store keep %zu bytes of questions and answers; let it read its "
        "answers, or raise store.memory_mb",
        who.c_str(), bytes, static_cast<unsigned long long>(let_go_), whose, limit);
  }
  drop(id, ENOBUFS);
}

}  // namespace dt::store
