// SPDX-License-Identifier: Apache-2.0
// How the server watches over the members of the job.
#include <algorithm>

#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kNamedMax = 8;       // ranks of a time-out
constexpr int64_t kDepartedMs = 200;  // from the first goodbye to the news of it

}  // namespace

/// Once the verdict is out.
void Server::Impl::begin_watch(int64_t now_ns) {
  if (options_.heartbeat_ms == 0 || look_at_ns_ != kNeverNs || !joins_.decided()) return;
  for (const Member& member : joins_.members()) vitals_.begin(member, now_ns);
  if (!vitals_.empty()) look_at_ns_ = now_ns + options_.heartbeat_ms * kNsPerMs;
}

void Server::Impl::beat(uint64_t id, Session* session, Request* request, int64_t now_ns) {
  // One that does not take our answers gets no more of them.
  if (!session->connection->congested()) {
    send(session, encode_frame(FrameType::kBeat, 0, {}));
    session->beat_ns = now_ns;
  }
  const int32_t rank = session->member.rank;
  if (joins_.client_of(rank) != id) return;
  tell_disagreements(now_ns);
  const auto stall = vitals_.tell(rank, std::move(request->activity), now_ns);
  if (stall.has_value()) notice(*stall);
}

/// A large request may take longer to come than a client waits for a sign of life, and the client's
/// own ones, which would be answered, are behind it. So it is given them while its bytes come.
void Server::Impl::beat_unasked(Session* session) {
  if (options_.heartbeat_ms == 0 || !session->welcomed || !session->parser.has_part()) return;
  const int64_t now_ns = monotonic_ns();
  if (now_ns - session->beat_ns < options_.heartbeat_ms * kNsPerMs) return;
  session->beat_ns = now_ns;
  send(session, encode_frame(FrameType::kBeat, 0, {}));
}

/// A rank whose uplink is not read is given signs of life unasked: its own ones, which would be
/// answered, are behind it. One with something to come gets that in its turn.
void Server::Impl::beat_neighbours(int64_t now_ns) {
  for (const auto& [id, session] : sessions_) {
    const Channel* const channel = session->connection->channel();
    if (channel == nullptr || !session->welcomed || session->refused || channel->paused()) continue;
    if (channel->kept_bytes() > 0) continue;
    if (channel->carrier().queued_bytes() < net::Connection::kHighWaterBytes / 2) continue;
    send(session.get(), encode_frame(FrameType::kBeat, 0, {}));
    session->beat_ns = now_ns;
  }
}

/// Reading stops where a queue grows beyond the high-water mark, and resumes at half of it. Until
/// then the signs of life of its ranks wait in the kernel, or at the relay. A rank that takes bytes
/// of that queue lives; over an uplink, some rank of that host does. A stopped rank takes none once
/// what the two kernels hold for it is full. A channel that its relay has paused gets none of them.
void Server::Impl::note_deliveries(int64_t now_ns) {
  for (const auto& [id, session] : sessions_) {
    if (!session->welcomed || session->member.rank < 0) continue;
    const net::SecureConnection& carrier = session->connection->carrier();
    const Channel* const channel = session->connection->channel();
    const bool unread = carrier.queued_bytes() >= net::Connection::kHighWaterBytes / 2 &&
                        (channel == nullptr || !channel->paused());
    std::optional<uint64_t> delivered;
    if (unread) delivered = carrier.delivered_bytes();
    const auto before = std::exchange(session->delivered_bytes, delivered);
    // The first look at a long queue does not tell since when its bytes have been taken.
    if (!before || before == delivered || !delivered || session->refused) continue;
    vitals_.heard(session->member.rank, now_ns);
  }
}

void Server::Impl::compare_orders(uint64_t id, const Session& session, const Request& request,
                                  int64_t now_ns) {
  if (joins_.client_of(session.member.rank) != id) return;
  orders_.tell(session.member, request.orders, now_ns);
  tell_disagreements(now_ns);
}

/// Members tell what they called with each sign of life, so that two of those are patience enough.
void Server::Impl::tell_disagreements(int64_t now_ns) {
  for (const Failure& failure : orders_.verdicts(now_ns, 2 * options_.heartbeat_ms * kNsPerMs)) {
    push(failure, 0);
  }
}

/// Adds to a time-out that blames nobody which ranks have not called the operation. Whether the
/// ranks of that communicator tell what they call.
bool Server::Impl::name_laggards(Failure* failure, int32_t reporter, int64_t now_ns) const {
  ErrorInfo& info = failure->info;
  if (failure->scope.empty() || info.code != Code::kTimeout || info.rank >= 0) return false;
  // Ranks do not report their sends and receives.
  if (info.sequence < 0 || info.operation == "send" || info.operation == "recv") return false;
  std::vector<Member> job = joins_.members();
  if (std::ssize(job) != options_.world_size)
    job.clear();  // some have left: who is whose is not known
  const auto laggards =
      orders_.laggards(failure->scope, reporter, info.operation, info.sequence, job);
  if (!laggards.has_value()) return false;
  std::vector<const Member*> late;
  std::vector<std::string> texts;
  for (const Member& member : laggards->ranks) {
    const int64_t silence_ms = vitals_.silence_ms(member.rank, now_ns);
    const bool silent = silence_ms > 2 * options_.heartbeat_ms;
    // One that told nothing since may have called it meanwhile.
    if (!silent && vitals_.told_ns(member.rank) <= laggards->since_ns) continue;
    late.push_back(&member);
    if (late.size() > kNamedMax) continue;
    std::string text = member.text();
    if (const std::string where = vitals_.whereabouts(member.rank, now_ns); !where.empty()) {
      text += ", which " + where;
    }
    if (silent) text += " and has given no sign of life for " + seconds_text(silence_ms);
    texts.push_back(std::move(text));
  }
  if (late.size() > kNamedMax) texts.push_back(format("%zu more", late.size() - kNamedMax));
  if (late.size() == 1) {
    info.rank = late[0]->rank;
    info.host = late[0]->host;
    info.pid = late[0]->pid;
  }
  if (!texts.empty()) {
    info.message += "; not known to be called by " + item_list(texts);
  } else if (laggards->nobody) {
    info.message += "; all ranks have called it, so look at the network and the GPUs";
  }
  return true;
}

/// Usually all ranks leave at about the same time. A message to each rank about each other one
/// would be the square of their number, so the store waits kDepartedMs and then sends one message
/// about all that have left to those that have not.
void Server::Impl::note_departure(int32_t rank, int64_t now_ns) {
  orders_.leave(rank);
  departed_.push_back(rank);
  if (tell_departed_ns_ == kNeverNs) tell_departed_ns_ = now_ns + kDepartedMs * kNsPerMs;
  tell_disagreements(now_ns);
}

void Server::Impl::tell_departed(int64_t now_ns) {
  if (tell_departed_ns_ > now_ns) return;
  tell_departed_ns_ = kNeverNs;
  Departed departed{std::exchange(departed_, {})};
  std::sort(departed.ranks.begin(), departed.ranks.end());
  const std::string frame = encode_frame(FrameType::kDeparted, 0, encode(departed));
  for (const Member& member : joins_.members()) {
    const auto found = sessions_.find(joins_.client_of(member.rank));
    if (found != sessions_.end() && !found->second->refused) send(found->second.get(), frame);
  }
}

void Server::Impl::set_busy(Session* session, Request* request, int64_t now_ns) {
  Busy& busy = request->busy;
  busy.rank = session->member.rank;
  vitals_.busy(busy, now_ns);
  tell_members(encode_frame(FrameType::kBusy, 0, encode(busy)));
  // Behind the push, so that the rank itself knows when its call returns.
  reply(session, request->id, std::string());
}

void Server::Impl::look_for_silence(int64_t now_ns) {
  if (look_at_ns_ > now_ns) return;
  const int64_t late_ms = (now_ns - look_at_ns_) / kNsPerMs;
  look_at_ns_ = vitals_.empty() ? kNeverNs : now_ns + options_.heartbeat_ms * kNsPerMs;
  const int64_t limit_ms = options_.heartbeat_timeout_ms;
  if (limit_ms == 0) return;
  // This process was stopped, or its machine was: what came meanwhile is not read yet.
  if (late_ms > limit_ms / 2) return vitals_.excuse_all(now_ns);
  note_deliveries(now_ns);
  beat_neighbours(now_ns);
  const std::vector<int32_t> silent = vitals_.silent(now_ns, limit_ms);
  if (silent.empty()) return;
  // Those whose signs of life are due a little later than the first one's are silent, too.
  const int64_t unheard_ms = std::max(limit_ms - 2 * options_.heartbeat_ms, limit_ms / 2);
  const int32_t unheard = vitals_.unheard_elsewhere(options_.host, now_ns, unheard_ms);
  std::string doubt;
  if (unheard > 1) {
    doubt = format(
        "; none of the %d ranks on other hosts is heard by %s any more, so look at its own "
        "network first",
        unheard, options_.host.c_str());
  }
  for (const int32_t rank : silent) declare_lost(rank, doubt, now_ns);
}

void Server::Impl::declare_lost(int32_t rank, const std::string& doubt, int64_t now_ns) {
  const uint64_t id = joins_.client_of(rank);
  const auto found = sessions_.find(id);
  const std::string silence = seconds_text(vitals_.silence_ms(rank, now_ns));
  if (found == sessions_.end()) return vitals_.end(rank);
  Session* session = found->second.get();
  Ending ending;
  ending.what = format(
      "has given no sign of life for %s: its process is stopped, or its host or network is down",
      silence.c_str());
  add_last_words(*session, &ending);
  ending.what += doubt;
  vitals_.end(rank);
  Answers answers;
  std::optional<Failure> death = joins_.lost(id, ending, &answers);
  join_deadline_ns_ = joins_.next_deadline_ns();
  if (death.has_value()) death->silent = true;
  if (death.has_value() && options_.on_silent) options_.on_silent(rank);
  if (death.has_value() && !aborted_) push(*death, id);
  deliver(answers);
  review_gatherings();
  // Should it wake up, it learns that the others went on without it.
  Failure farewell;
  farewell.info.code = Code::kAborted;
  farewell.info.rank = rank;
  farewell.info.host = session->member.host;
  farewell.info.pid = session->member.pid;
  farewell.info.message = format(
      "%s was declared lost: the store heard nothing of it for %s, so the other ranks go on "
      "without it; end this process, and start the job again or let them end",
      session->member.text().c_str(), silence.c_str());
  send(session, encode_frame(FrameType::kFailure, 0, encode(farewell)));
  session->refused = true;
  session->connection->shutdown();
}

/// What the rank said of itself, as far as anything is known.
void Server::Impl::add_last_words(const Session& session, Ending* ending) const {
  if (!session.welcomed || session.member.rank < 0) return;
  const std::string where = vitals_.whereabouts(session.member.rank, monotonic_ns());
  if (!where.empty()) ending->what += "; last heard: " + where;
  const Activity* const activity = vitals_.last_told(session.member.rank);
  if (activity == nullptr || activity->communicator.empty()) return;
  ending->operation = activity->operation;
  ending->sequence = activity->sequence;
}

void Server::Impl::process_ended(const Member& rank, const std::string& how) {
  Answers answers;
  joins_.process_ended(rank, how, &answers);
  join_deadline_ns_ = joins_.next_deadline_ns();
  deliver(answers);
  arm_timer();
}

void Server::Impl::push_stop() {
  tell_news();
  tell_members(encode_frame(FrameType::kStop, 0, {}));
}

/// To the log of rank 0, or of the store where rank 0 is not there.
void Server::Impl::notice(const std::string& text) {
  const auto first = sessions_.find(joins_.client_of(0));
  if (first != sessions_.end() && !first->second->refused) {
    send(first->second.get(), encode_frame(FrameType::kNotice, 0, text));
  } else if (options_.logger) {
    options_.logger->log(LogLevel::kWarning, "%s", text.c_str());
  }
}

}  // namespace dt::store
