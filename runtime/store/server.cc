// SPDX-License-Identifier: Apache-2.0
#include "store/server.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "net/refusal.h"
#include "store/server_impl.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr int64_t kNamesTimeoutMs = 1'000;
constexpr size_t kMinGuests = 16;
constexpr int kGuestKernelBytes = 256 << 10;  // each way

}  // namespace

// ---- life ----

Server::Impl::Impl(net::Loop* loop, ServerOptions options)
    : loop_(loop),
      options_(std::move(options)),
      budget_(MemoryBudget::of(static_cast<size_t>(options_.memory_bytes))),
      max_strangers_(net::stranger_limit(kMaxStrangers)),
      keyspace_(budget_.keys, budget_.guest_keys),
      torch_(&keyspace_, std::min(net::Connection::kMaxQueuedBytes / 2, budget_.one_guest)),
      joins_(join_setup()),
      gatherings_({options_.world_size, [this](int32_t rank) { return joins_.member(rank); },
                   random_session}) {}

Status Server::Impl::listen(const std::vector<net::Address>& addresses) {
  Status failure;
  for (const net::Address& address : addresses) {
    auto opened = net::Listener::open(
        loop_, address,
        [this](std::unique_ptr<net::Connection> connection) { accept(std::move(connection)); });
    if (!opened.ok()) {
      if (failure.ok()) failure = opened.status();
      continue;
    }
    listener_ = std::move(opened).value();
    bound_ = listener_->bound();
    start_timers();
    return {};
  }
  return failure.within("store");
}

void Server::Impl::start_timers() {
  timer_ = std::make_unique<net::Timer>(loop_, [this] { on_timer(); });
  news_timer_ = std::make_unique<net::Timer>(loop_, [this] { tell_news(); });
  uplinks_timer_ = std::make_unique<net::Timer>(loop_, [this] { flush_uplinks(); });
}

void Server::Impl::stop() {
  for (auto& [job_id, job] : other_jobs_) job.impl->stop();
  tell_news();
  listener_.reset();
  timer_.reset();
  news_timer_.reset();
  uplinks_timer_.reset();
  // Relays take the end of the uplink for that of its channels. If they answered an end of each, a
  // reset could overtake what they have not read yet.
  for (const auto& [id, uplink] : uplinks_) uplink->ended = true;
  sessions_.clear();
  uplinks_.clear();
  for (const auto& empty : empty_waiters_) empty->set();
  empty_waiters_.clear();
}

void Server::Impl::when_empty(std::shared_ptr<Event> empty) {
  if (dt_sessions_ == 0) {
    empty->set();
  } else {
    empty_waiters_.push_back(std::move(empty));
  }
}

std::vector<std::string> Server::Impl::connected() const {
  std::vector<std::string> names;
  for (const auto& entry : sessions_) {
    if (entry.second->peer != Peer::kDt) continue;
    names.push_back(entry.second->welcomed ? entry.second->member.text()
                                           : "a connection without hello");
  }
  return names;
}

// ---- connections ----

void Server::Impl::accept(std::unique_ptr<net::Connection> connection) {
  const uint64_t id = ++last_id_;
  Session* session = add_session(id, connection->peer_host());
  session->one_too_many = connections() >= options_.max_connections;
  net::SecureEvents events;
  events.on_open = [this, id] { opened(id); };
  events.on_bytes = [this, id](const char* data, size_t bytes) {
    impl_of(id)->received(id, data, bytes);
  };
  events.on_drained = [this, id] { impl_of(id)->proceed(id); };
  events.on_refused = [this, id](const Status& why, bool plain) { turned_away(id, why, plain); };
  events.on_close = [this, id](int error) { impl_of(id)->drop(id, error); };
  std::function<bool(char)> passes;
  if (options_.torch_compat) passes = may_begin_torch;
  session->connection = std::make_unique<Wire>(
      net::SecureConnection::accept(std::move(connection), options_.security, net::Purpose::kStore,
                                    std::move(passes), std::move(events)));
  if (session->connection->is_open()) settle(session, Peer::kDt);
  arm_timer();
}

Server::Impl::Session* Server::Impl::add_session(uint64_t id, std::string peer_host) {
  if (sessions_.size() - known_ - tolerated_ >= max_strangers_) evict_strangers();
  auto session = std::make_unique<Session>();
  session->id = id;
  session->peer_host = std::move(peer_host);
  strangers_.push_back({monotonic_ns() + options_.silence_ms * kNsPerMs, id});
  return sessions_.emplace(id, std::move(session)).first->second.get();
}

void Server::Impl::opened(uint64_t id) {
  const auto found = sessions_.find(id);
  if (found != sessions_.end() && found->second->peer == Peer::kUnknown) {
    settle(found->second.get(), Peer::kDt);
  }
}

/// Its guard has told it, unless it speaks without one: then it may understand a frame.
void Server::Impl::turned_away(uint64_t id, const Status& why, bool plain) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session* session = found->second.get();
  session->refused = true;
  // A flood of them must not fill the log.
  if (std::has_single_bit(++turned_away_) && options_.logger) {
    options_.logger->log(LogLevel::kWarning,
                         "store: refused a connection from %s (%llu so far): %s",
                         session->peer_host.c_str(), static_cast<unsigned long long>(turned_away_),
                         why.message().c_str());
  }
  if (plain) {
    ErrorInfo info = why.info();
    info.message =
        "the store refuses this connection: " + net::plain_refusal(options_.security.mode);
    session->connection->write_plain(encode_frame(FrameType::kError, 0, encode(info)));
  }
  session->connection->shutdown();
}

/// How many connections PyTorch's clients may have. They need no token, so this leaves a descriptor
/// to each rank, whether it is connected already or not, and half of all to this process's own work
/// and to strangers. Two of them for each rank fit where the ranks are up to a quarter of it.
size_t Server::Impl::guest_limit() const {
  const size_t taken = max_strangers_ + static_cast<size_t>(options_.world_size);
  const size_t left = open_files_ > taken ? open_files_ - taken : 0;
  return std::max(std::min(open_files_ / 2, left), kMinGuests);
}

/// PyTorch's clients up to 1.13 open two connections, of which one may stay silent for good: it is
/// let be as long as its host has one that speaks, and as one of the guests.
Server::Impl::Standing Server::Impl::standing(const Session& session,
                                              const std::set<std::string>& torch_hosts) const {
  if (session.refused || session.one_too_many) return Standing::kStranger;
  if (session.peer == Peer::kTorch) return Standing::kKnown;
  if (session.peer == Peer::kDt) return session.welcomed ? Standing::kKnown : Standing::kStranger;
  const bool fits = session.tolerated || guests() < guest_limit();
  return fits && torch_hosts.count(session.peer_host) != 0 ? Standing::kTolerated
                                                           : Standing::kStranger;
}

void Server::Impl::tolerate(Session* session) {
  if (!std::exchange(session->tolerated, true)) ++tolerated_;
}

std::set<std::string> Server::Impl::torch_hosts() const {
  std::set<std::string> hosts;
  if (!options_.torch_compat) return hosts;
  for (const auto& [id, session] : sessions_) {
    if (session->peer == Peer::kTorch) hosts.insert(session->peer_host);
  }
  return hosts;
}

/// The oldest ones go, a part at a time, so that whoever comes has the time that many others need
/// to come: an honest side needs one round trip.
void Server::Impl::evict_strangers() {
  const std::set<std::string> hosts = torch_hosts();
  std::vector<uint64_t> oldest;
  for (const auto& [deadline_ns, id] : strangers_) {
    if (oldest.size() >= std::max<size_t>(max_strangers_ / 4, 1)) break;
    const auto session = sessions_.find(id);
    if (session == sessions_.end() || session->second->known()) continue;
    const Standing found = standing(*session->second, hosts);
    if (found == Standing::kStranger) oldest.push_back(id);
    if (found == Standing::kTolerated) tolerate(session->second.get());
  }
  for (const uint64_t id : oldest) drop(id, ETIMEDOUT);
  std::erase_if(strangers_, [&](const auto& each) {
    const auto session = sessions_.find(each.second);
    return session == sessions_.end() || session->second->known();
  });
}

void Server::Impl::drop_strangers(int64_t now_ns) {
  if (strangers_.empty() || strangers_.front().first > now_ns) return;
  const std::set<std::string> torch_hosts = this->torch_hosts();
  while (!strangers_.empty() && strangers_.front().first <= now_ns) {
    const uint64_t id = strangers_.front().second;
    strangers_.pop_front();
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) continue;
    const Standing found = standing(*session->second, torch_hosts);
    if (found == Standing::kStranger) drop(id, ETIMEDOUT);
    if (found == Standing::kTolerated) {
      tolerate(session->second.get());
      strangers_.push_back({now_ns + options_.silence_ms * kNsPerMs, id});
    }
  }
}

void Server::Impl::settle(Session* session, Peer peer) {
  session->peer = peer;
  if (std::exchange(session->tolerated, false)) --tolerated_;
  if (peer == Peer::kDt) ++dt_sessions_;
  if (peer == Peer::kTorch) {
    session->one_too_many =
        guests() >= guest_limit() || connections() + guests() >= options_.max_connections;
    ++guests_;
    session->torch = std::make_unique<TorchParser>();
    session->connection->limit_kernel_buffers(kGuestKernelBytes);
    ++known_;
  }
  if (peer == Peer::kDt && session->one_too_many) {
    refuse(session, Status(Code::kSystem,
                           format("the store has %zu connections, its limit; raise it or start "
                                  "fewer ranks",
                                  options_.max_connections)));
  }
}

void Server::Impl::received(uint64_t id, const char* data, size_t bytes) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    const auto uplink = uplinks_.find(id);
    if (uplink == uplinks_.end()) return;
    uplink->second->parser.feed(data, bytes);
    return handle_uplink(id);
  }
  Session* session = found->second.get();
  if (session->peer == Peer::kUnknown) {
    settle(session, session->connection->passed() ? Peer::kTorch : Peer::kDt);
  }
  if (session->refused) return;
  if (session->peer == Peer::kDt) {
    if (session->welcomed) vitals_.heard(session->member.rank, monotonic_ns());
    session->parser.feed(data, bytes);
  } else if (session->one_too_many) {
    return turn_away_guest(id, *session);
  } else {
    session->torch->feed(data, bytes);
  }
  proceed(id);
}

/// Its protocol has no words for a refusal.
void Server::Impl::turn_away_guest(uint64_t id, const Session& session) {
  // A flood of them must not fill the log.
  if (std::has_single_bit(++turned_away_guests_) && options_.logger) {
    options_.logger->log(
        LogLevel::kWarning,
        "store: refused a PyTorch client on %s (%llu so far): there are %zu connections of such "
        "clients and %zu others, and the limits are %zu of such clients and %zu in all; start "
        "fewer of them, or raise this process's limit of open files (ulimit -n) and "
        "store.max_connections",
        session.peer_host.c_str(), static_cast<unsigned long long>(turned_away_guests_),
        guests() - 1, connections(), guest_limit(), options_.max_connections);
  }
  drop(id, ECONNREFUSED);
}

void Server::Impl::proceed(uint64_t id) {
  tell_news();
  auto session = sessions_.find(id);
  if (session == sessions_.end()) return uplink_drained(id);
  // Answers to questions that came in one piece go out in one.
  session->second->connection->hold();
  if (session->second->peer == Peer::kTorch) {
    handle_torch(id);
  } else {
    handle_frames(id);
  }
  session = sessions_.find(id);
  if (session != sessions_.end()) {
    session->second->connection->release();
    note(session->second.get());
  }
  keep_within_budget();
}

// One answer can be 300,000 times longer than its question, so questions wait in the parser while
// the answers before them are not taken.
void Server::Impl::handle_frames(uint64_t id) {
  for (;;) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) break;
    Session* session = found->second.get();
    if (session->refused || session->connection->congested()) break;
    Frame frame;
    if (session->parser.next(&frame)) {
      handle(id, session, frame);
      keep_within_budget();
      continue;
    }
    if (session->parser.status().ok()) {
      beat_unasked(session);
    } else {
      refuse(session, session->parser.status());
    }
    break;
  }
  arm_timer();
}

void Server::Impl::refuse(Session* session, const Status& status) {
  session->refused = true;
  send(session, encode_frame(FrameType::kError, 0, encode(status.info())));
  session->connection->shutdown();
}

void Server::Impl::drop(uint64_t id, int error) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    end_uplink(id, error);
    return;
  }
  const std::unique_ptr<Session> session = std::move(found->second);
  sessions_.erase(found);
  const Channel* const channel = session->connection->channel();
  const std::string relay = channel == nullptr ? "" : channel->lost_relay();
  session->connection = nullptr;  // what follows may end its uplink
  gone(*session);
  if (session->known() && options_.logger) {
    const std::string who =
        session->welcomed ? session->member.text() : "a PyTorch client on " + session->peer_host;
    options_.logger->log(LogLevel::kDebug, "store: %s disconnected%s%s", who.c_str(),
                         error == 0 ? "" : ": ", error == 0 ? "" : errno_text(error).c_str());
  }
  Answers answers;
  keyspace_.drop(id);
  torch_.drop(id);
  drop_questions(id);
  Ending ending;
  std::string& ended = ending.what;
  ended = error == 0 ? "closed its connection to the store"
                     : "lost its connection to the store (" + errno_text(error) + ")";
  ended += " without a goodbye: the process ended, was killed, or lost its network";
  if (!relay.empty()) {
    ended = "was lost with the relay of its host " + quoted(relay) +
            (error == 0 ? ", which closed its connection to the store"
                        : ", which lost its connection to the store (" + errno_text(error) + ")") +
            ": the host failed, or the relay's process ended, was killed, or lost its network";
  }
  add_last_words(*session, &ending);
  const std::optional<Failure> death = joins_.lost(id, ending, &answers);
  vitals_.end(session->member.rank);
  join_deadline_ns_ = joins_.next_deadline_ns();
  // The push comes before the answers: a goodbye that a death completes reports that death.
  // After an abort the ends of the others are its consequences, not news.
  if (death.has_value() && !aborted_) push_soon(*death);
  deliver(answers);
  review_gatherings();
  tell_if_empty();
  arm_timer();
}

void Server::Impl::tell_if_empty() {
  if (dt_sessions_ != 0) return;
  for (const auto& empty : empty_waiters_) empty->set();
  empty_waiters_.clear();
}

void Server::Impl::gone(const Session& session) {
  if (front_ != nullptr) front_->handed_over_.erase(session.id);
  if (session.peer == Peer::kDt) --dt_sessions_;
  if (session.known()) --known_;
  if (session.peer == Peer::kTorch) --guests_;
  if (session.tolerated) --tolerated_;
  if (session.relayed && session.welcomed) --relayed_;
  if (session.heeds_stop) {
    heeds_stop_.store(std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& each) {
      return each.first != session.id && each.second->heeds_stop;
    }));
  }
  noted_bytes_[static_cast<size_t>(session.owner())] -= session.noted_bytes;
}

// ---- answers ----

void Server::Impl::reply(Session* session, uint64_t request, const Result<std::string>& result) {
  tell_news();
  send(session, result.ok()
                    ? encode_frame(FrameType::kReply, request, result.value())
                    : encode_frame(FrameType::kError, request, encode(result.status().info())));
}

void Server::Impl::deliver(const Answers& answers) {
  if (!answers.empty()) tell_news();
  for (const Answer& answer : answers) {
    const auto found = sessions_.find(answer.ticket.first);
    if (found == sessions_.end()) continue;
    Session* session = found->second.get();
    if (session->peer == Peer::kTorch) {
      send(session, TorchService::reply_to_wait(answer));
      continue;
    }
    if (answer.status.ok() && answer.shared != nullptr) {
      const size_t bytes = answer.payload.size() + answer.shared->size();
      send(session, encode_header(FrameType::kReply, answer.ticket.second, bytes) + answer.payload,
           answer.shared);
      continue;
    }
    reply(session, answer.ticket.second,
          answer.status.ok() ? Result<std::string>(answer.payload)
                             : Result<std::string>(answer.status));
  }
  for (const Answer& event : torch_.take_events()) {
    const auto found = sessions_.find(event.ticket.first);
    if (found != sessions_.end()) send(found->second.get(), event.payload, event.shared);
  }
}

void Server::Impl::note_first(const Failure& failure) {
  if (first_rank_.load() >= 0) return;
  first_is_silent_.store(failure.silent);
  first_rank_.store(failure.info.rank);
}

void Server::Impl::note_late(const Failure& failure) {
  if (failure.scope.empty() || failure.info.code != Code::kTimeout) return;
  if (late_rank_.load() < 0) late_rank_.store(failure.info.rank);
}

void Server::Impl::push(const Failure& failure, uint64_t except) {
  tell_news();
  if (failure.scope.empty()) note_first(failure);
  tell_members(encode_frame(FrameType::kFailure, 0, encode(failure)), except);
}

void Server::Impl::tell_members(std::string frame, uint64_t except) {
  const SharedText shared = keyspace_.texts(Owner::kMembers).keep(std::move(frame));
  for (const auto& [id, session] : sessions_) {
    if (id != except && session->welcomed && !session->refused) send(session.get(), {}, shared);
  }
}

/// Where many end at once, each of the others is told of all of them in one piece, and those that
/// are about to end as well are told nothing: one by one it would be the square of the ranks.
void Server::Impl::push_soon(const Failure& death) {
  note_first(death);
  if (news_.empty() && news_timer_ != nullptr) news_timer_->start(0);
  news_.push_back(encode_frame(FrameType::kFailure, 0, encode(death)));
}

void Server::Impl::tell_news() {
  if (news_.empty()) return;
  const std::vector<std::string> news = std::exchange(news_, {});
  news_timer_->stop();
  std::string frames;
  for (const std::string& each : news) frames += each;
  tell_members(std::move(frames));
}

// ---- time ----

void Server::Impl::on_timer() {
  tell_news();
  armed_for_ns_ = kNeverNs;
  const int64_t now_ns = monotonic_ns();
  Answers answers;
  keyspace_.expire(now_ns, &answers);
  joins_.expire(now_ns, &answers);
  gatherings_.expire(now_ns, &answers);
  const std::string late = joins_.late(now_ns);
  if (!late.empty() && options_.logger) {
    options_.logger->log(LogLevel::kWarning, "store: still waiting for ranks to join: %s",
                         late.c_str());
  }
  join_deadline_ns_ = joins_.next_deadline_ns();
  deliver(answers);
  end_questions([now_ns](const Question& each) { return each.deadline_ns <= now_ns; });
  if (dumping_.has_value() && dumping_->deadline_ns <= now_ns) end_dumping();
  drop_strangers(now_ns);
  look_for_silence(now_ns);
  tell_departed(now_ns);
  keep_within_budget();
  arm_timer();
}

void Server::Impl::arm_timer() {
  int64_t next =
      std::min({keyspace_.next_deadline_ns(), join_deadline_ns_, gatherings_.next_deadline_ns()});
  if (!strangers_.empty()) next = std::min(next, strangers_.front().first);
  next = std::min({next, look_at_ns_, tell_departed_ns_});
  if (dumping_.has_value()) next = std::min(next, dumping_->deadline_ns);
  for (const auto& [question, each] : questions_) next = std::min(next, each.deadline_ns);
  if (next == armed_for_ns_ || timer_ == nullptr) return;
  armed_for_ns_ = next;
  if (next == kNeverNs) {
    timer_->stop();
    return;
  }
  // Rounded up: a timer that fires before the deadline would only be armed again.
  const int64_t left_ns = std::max<int64_t>(next - monotonic_ns(), 0);
  timer_->start((left_ns + kNsPerMs - 1) / kNsPerMs);
}

// ---- Server ----

Result<std::unique_ptr<Server>> Server::start(net::Loop* loop, ServerOptions options) {
  if (options.world_size < 1 || options.world_size > kMaxWorldSize || options.server_rank < -1 ||
      options.server_rank >= options.world_size) {
    return Status(Code::kInvalidArgument,
                  format("store: world size %d with server rank %d; a job has 1 to %d "
                         "ranks, counted from 0",
                         options.world_size, options.server_rank, kMaxWorldSize));
  }
  if (loop->on_thread()) {
    return Status(Code::kInvalidState, "store: a server cannot be started on the loop's thread");
  }
  DT_TRY_VALUE(const std::vector<net::Address> addresses,
               net::resolve_now(options.bind_address, options.port, true));
  for (const net::Address& address : addresses) {
    DT_TRY(net::check_exposure(options.security, address, "the store"));
  }
  auto impl = std::make_shared<Impl>(loop, std::move(options));
  Status listening;
  if (!loop->run([&] { listening = impl->listen(addresses); })) {
    return Status(Code::kInvalidState, "store: the I/O thread has stopped");
  }
  DT_TRY(listening);
  return std::unique_ptr<Server>(new Server(loop, std::move(impl)));
}

Server::~Server() {
  loop_->run([this] { impl_->stop(); });
}

uint16_t Server::port() const { return impl_->bound().port(); }

std::string Server::bound_address() const { return impl_->bound().host(); }

FirstFailure Server::first_failure() const { return impl_->first_failure(); }

void Server::process_ended(const Member& rank, const std::string& how) {
  loop_->post([impl = impl_, rank, how] { impl->process_ended(rank, how); });
}

bool Server::heeds_stop() const { return impl_->heeds_stop(); }

void Server::request_stop() {
  loop_->post([impl = impl_] { impl->push_stop(); });
}

Status Server::wait_empty(const Wait& wait) {
  const auto empty = std::make_shared<Event>();
  if (loop_->on_thread() || !loop_->post([this, empty] { impl_->when_empty(empty); })) {
    return Status(Code::kInvalidState, "store: cannot wait on the I/O thread or after its end");
  }
  if (empty->wait(wait)) return {};
  if (wait.interrupted()) return wait.interrupt->status();
  const auto names = std::make_shared<std::vector<std::string>>();
  const auto named = std::make_shared<Event>();
  loop_->post([impl = impl_, names, named] {
    *names = impl->connected();
    named->set();
  });
  if (!named->wait({Deadline::after_ms(kNamesTimeoutMs)})) {
    return Status(Code::kTimeout, "store: the I/O thread does not answer");
  }
  return Status(Code::kTimeout,
                format("store: %zu clients are still connected after %s: %s", names->size(),
                       seconds_text(wait.deadline.limit_ms()).c_str(), item_list(*names).c_str()));
}

}  // namespace dt::store
