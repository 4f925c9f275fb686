// SPDX-License-Identifier: Apache-2.0
#include "store/server.h"

#include <cerrno>
#include <deque>
#include <functional>
#include <random>
#include <unordered_map>

#include "net/address.h"
#include "net/tcp.h"
#include "store/join.h"
#include "store/keyspace.h"
#include "store/protocol.h"
#include "store/text.h"

namespace dt::store {
namespace {

// A connection that says nothing, or that was refused and does not hang up, is closed after this.
constexpr int64_t kStrangerMs = 10'000;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNamesTimeoutMs = 1'000;

uint64_t random_session() {
  std::random_device random;
  const uint64_t session = (uint64_t{random()} << 32) | random();
  return session == 0 ? 1 : session;
}

}  // namespace

// Threads: everything runs on the loop's thread, except the constructor and what is const after
// start(). Callbacks capture `this`: connections, listener and timer are destroyed by stop(), on
// the loop's thread, and call nothing afterwards.
class Server::Impl {
 public:
  int32_t first_failed_rank() const { return first_failed_rank_.load(); }
  Impl(net::Loop* loop, ServerOptions options)
      : loop_(loop),
        options_(std::move(options)),
        joins_({options_.job_id, options_.attempt, options_.world_size, random_session(),
                options_.join_timeout_ms}) {}

  Status listen(const std::vector<net::Address>& addresses);
  void stop();
  void when_empty(std::shared_ptr<Event> empty);
  std::vector<std::string> connected() const;
  const net::Address& bound() const { return bound_; }

 private:
  struct Session {
    std::unique_ptr<net::Connection> connection;
    FrameParser parser{kMaxHelloBytes};
    Member member;
    bool welcomed = false;
    bool refused = false;  // waits for the other side to hang up, so that it can read why
  };

  void accept(std::unique_ptr<net::Connection> connection);
  void received(uint64_t id, const char* data, size_t bytes);
  void handle_frames(uint64_t id);
  void handle(uint64_t id, Session* session, const Frame& frame);
  void hello(uint64_t id, Session* session, const Request& request);
  void abort_job(uint64_t id, const Session& session, const Request& request);
  Result<std::string> answer_now(const Request& request, Answers* answers);
  void refuse(Session* session, const Status& status);
  void drop(uint64_t id, int error);
  void reply(Session* session, uint64_t request, const Result<std::string>& result);
  void deliver(const Answers& answers);
  void push(const Failure& failure, uint64_t except);
  void on_timer();
  void arm_timer();

  net::Loop* const loop_;
  const ServerOptions options_;
  net::Address bound_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Timer> timer_;
  int64_t armed_for_ns_ = kNeverNs;
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::deque<std::pair<int64_t, uint64_t>> strangers_;  // deadline_ns, session; in order
  Keyspace keyspace_;
  JoinTable joins_;
  int64_t join_deadline_ns_ = kNeverNs;  // of joins_; looked up only when it may have changed
  bool aborted_ = false;
  std::atomic<int32_t> first_failed_rank_{-1};  // written on the loop's thread, once
  std::vector<std::shared_ptr<Event>> empty_waiters_;
};

// ---- life ----

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
    timer_ = std::make_unique<net::Timer>(loop_, [this] { on_timer(); });
    return {};
  }
  return failure.within("store");
}

void Server::Impl::stop() {
  listener_.reset();
  timer_.reset();
  sessions_.clear();
  for (const auto& empty : empty_waiters_) empty->set();
  empty_waiters_.clear();
}

void Server::Impl::when_empty(std::shared_ptr<Event> empty) {
  if (sessions_.empty()) {
    empty->set();
  } else {
    empty_waiters_.push_back(std::move(empty));
  }
}

std::vector<std::string> Server::Impl::connected() const {
  std::vector<std::string> names;
  for (const auto& entry : sessions_) {
    names.push_back(entry.second->welcomed ? entry.second->member.text()
                                           : "a connection without hello");
  }
  return names;
}

// ---- connections ----

void Server::Impl::accept(std::unique_ptr<net::Connection> connection) {
  const uint64_t id = ++last_id_;
  const bool full = sessions_.size() >= options_.max_connections;
  auto owned = std::make_unique<Session>();
  Session* session = owned.get();
  session->connection = std::move(connection);
  sessions_.emplace(id, std::move(owned));
  strangers_.push_back({monotonic_ns() + kStrangerMs * kNsPerMs, id});
  net::ConnectionEvents events;
  events.on_bytes = [this, id](const char* data, size_t bytes) { received(id, data, bytes); };
  events.on_drained = [this, id] { handle_frames(id); };
  events.on_close = [this, id](int error) { drop(id, error); };
  session->connection->open(std::move(events));
  if (full) {
    refuse(session, Status(Code::kSystem,
                           format("the store has %zu connections, its limit; raise it or start "
                                  "fewer ranks",
                                  options_.max_connections)));
  }
  arm_timer();
}

void Server::Impl::received(uint64_t id, const char* data, size_t bytes) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end() || session->second->refused) return;
  session->second->parser.feed(data, bytes);
  handle_frames(id);
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
      continue;
    }
    if (!session->parser.status().ok()) refuse(session, session->parser.status());
    break;
  }
  arm_timer();
}

void Server::Impl::refuse(Session* session, const Status& status) {
  session->refused = true;
  session->connection->write(encode_frame(FrameType::kError, 0, encode(status.info())));
  session->connection->shutdown();
}

void Server::Impl::drop(uint64_t id, int error) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const std::unique_ptr<Session> session = std::move(found->second);
  sessions_.erase(found);
  if (session->welcomed && options_.logger) {
    options_.logger->log(LogLevel::kDebug, "store: %s disconnected%s%s",
                         session->member.text().c_str(), error == 0 ? "" : ": ",
                         error == 0 ? "" : errno_text(error).c_str());
  }
  Answers answers;
  keyspace_.drop(id);
  const std::string reason = error == 0
                                 ? "closed its connection to the store"
                                 : "lost its connection to the store (" + errno_text(error) + ")";
  const std::optional<Failure> death = joins_.lost(id, reason, &answers);
  join_deadline_ns_ = joins_.next_deadline_ns();
  // The push comes before the answers: a goodbye that a death completes reports that death.
  // After an abort the ends of the others are its consequences, not news.
  if (death.has_value() && !aborted_) push(*death, id);
  deliver(answers);
  if (sessions_.empty()) {
    for (const auto& empty : empty_waiters_) empty->set();
    empty_waiters_.clear();
  }
  arm_timer();
}

// ---- requests ----

void Server::Impl::handle(uint64_t id, Session* session, const Frame& frame) {
  Result<Request> decoded = decode_request(frame);
  if (!session->welcomed) {
    if (!decoded.ok() || frame.type != FrameType::kHello) {
      refuse(session, decoded.ok() ? Status(Code::kInvalidArgument,
                                            "the first frame of a connection must be a hello")
                                   : decoded.status());
      return;
    }
    hello(id, session, decoded.value());
    return;
  }
  if (!decoded.ok()) {
    reply(session, frame.id, decoded.status());
    return;
  }
  Request& request = decoded.value();
  const Ticket ticket{id, request.id};
  const int64_t now_ns = monotonic_ns();
  const Patience patience = Patience::starting(now_ns, request.timeout_ms);
  Answers answers;
  switch (request.type) {
    case FrameType::kGet:
      keyspace_.wait(ticket, std::move(request.keys), true, patience, now_ns, &answers);
      break;
    case FrameType::kWait:
      keyspace_.wait(ticket, std::move(request.keys), false, patience, now_ns, &answers);
      break;
    case FrameType::kBarrier:
      keyspace_.barrier(ticket, session->member.text(), request.keys[0],
                        static_cast<int32_t>(request.number), patience, now_ns, &answers);
      break;
    case FrameType::kJoin:
      joins_.join(ticket, std::move(request.join), patience, now_ns, &answers);
      for (auto& [key, value] : joins_.take_records()) {
        // Cannot fail for want of room in practice; a rank would then find the key absent.
        [[maybe_unused]] const Status kept = keyspace_.set(key, std::move(value), &answers);
      }
      join_deadline_ns_ = joins_.next_deadline_ns();
      break;
    case FrameType::kGoodbye:
      joins_.goodbye(ticket, patience, now_ns, &answers);
      join_deadline_ns_ = joins_.next_deadline_ns();
      break;
    case FrameType::kCancel:
      keyspace_.cancel(ticket);
      joins_.cancel(ticket);
      join_deadline_ns_ = joins_.next_deadline_ns();
      break;
    case FrameType::kAbort:
      reply(session, request.id, std::string());
      abort_job(id, *session, request);
      break;
    case FrameType::kReportFailure:
      reply(session, request.id, std::string());
      push(request.failure, id);
      break;
    default: reply(session, request.id, answer_now(request, &answers)); break;
  }
  deliver(answers);
}

void Server::Impl::hello(uint64_t id, Session* session, const Request& request) {
  std::optional<uint64_t> superseded;
  const Status admitted = joins_.admit(request.hello, id, &superseded);
  if (!admitted.ok()) {
    refuse(session, admitted);
    return;
  }
  if (superseded.has_value()) {
    keyspace_.drop(*superseded);
    sessions_.erase(*superseded);
  }
  session->member = request.hello.member;
  session->welcomed = true;
  session->parser.set_max_payload(kMaxPayloadBytes);
  Welcome welcome;
  welcome.protocol = kProtocolVersion;
  welcome.job_id = options_.job_id;
  welcome.attempt = options_.attempt;
  welcome.world_size = options_.world_size;
  welcome.server = Member{options_.server_rank, options_.host, options_.pid};
  reply(session, request.id, encode(welcome));
}

void Server::Impl::abort_job(uint64_t id, const Session& session, const Request& request) {
  aborted_ = true;
  Failure failure;
  failure.info.code = Code::kAborted;
  failure.info.message =
      format("%s aborted the job: %s", session.member.text().c_str(), request.text.c_str());
  failure.info.rank = session.member.rank;
  failure.info.host = session.member.host;
  failure.info.pid = session.member.pid;
  push(failure, 0);
  Answers answers;
  joins_.leave(id, &answers);
  deliver(answers);
}

Result<std::string> Server::Impl::answer_now(const Request& request, Answers* answers) {
  const bool writes = request.type == FrameType::kSet || request.type == FrameType::kAdd ||
                      request.type == FrameType::kCompareSet || request.type == FrameType::kErase ||
                      request.type == FrameType::kMultiSet;
  for (const std::string& key : request.keys) {
    if (writes && key.rfind(kJoinPrefix, 0) == 0) {
      return Status(Code::kInvalidArgument,
                    format("key %s: names below %s belong to the store; choose another name",
                           quoted(key).c_str(), quoted(kJoinPrefix).c_str()));
    }
  }
  Writer writer;
  size_t total_bytes = 0;
  switch (request.type) {
    case FrameType::kSet: DT_TRY(keyspace_.set(request.keys[0], request.values[0], answers)); break;
    case FrameType::kAdd: {
      DT_TRY_VALUE(const int64_t sum, keyspace_.add(request.keys[0], request.number, answers));
      writer.i64(sum);
      break;
    }
    case FrameType::kCompareSet: {
      DT_TRY_VALUE(const CompareSet result, keyspace_.compare_set(request.keys[0], request.expected,
                                                                  request.values[0], answers));
      writer.u8(result.swapped ? 1 : 0).u8(result.current.has_value() ? 1 : 0);
      writer.text(result.current.value_or(""));
      break;
    }
    case FrameType::kErase: writer.u8(keyspace_.erase(request.keys[0]) ? 1 : 0); break;
    case FrameType::kList: {
      const std::vector<std::string> keys = keyspace_.list(request.keys[0]);
      for (const std::string& key : keys) total_bytes += key.size() + sizeof(uint32_t);
      if (total_bytes > kMaxPayloadBytes / 2) break;
      writer.u32(static_cast<uint32_t>(keys.size()));
      for (const std::string& key : keys) writer.text(key);
      break;
    }
    case FrameType::kMultiGet: {
      for (const std::string& key : request.keys) {
        const std::string* value = keyspace_.find(key);
        total_bytes += (value == nullptr ? 0 : value->size()) + 8;
      }
      if (total_bytes > kMaxPayloadBytes / 2) break;
      writer.u32(static_cast<uint32_t>(request.keys.size()));
      for (const std::string& key : request.keys) {
        const std::string* value = keyspace_.find(key);
        writer.u8(value == nullptr ? 0 : 1).text(value == nullptr ? "" : *value);
      }
      break;
    }
    case FrameType::kMultiSet:
      DT_TRY(keyspace_.multi_set(request.keys, request.values, answers));
      break;
    case FrameType::kPing: break;
    default:
      return Status(Code::kInvalidArgument, format("request type %d is not served at this point",
                                                   static_cast<int>(request.type)));
  }
  if (total_bytes > kMaxPayloadBytes / 2) {
    return Status(Code::kInvalidArgument,
                  format("the answer of %zu bytes is over the limit of %zu bytes; ask for fewer "
                         "keys at a time",
                         total_bytes, kMaxPayloadBytes / 2));
  }
  return writer.take();
}

// ---- answers ----

void Server::Impl::reply(Session* session, uint64_t request, const Result<std::string>& result) {
  session->connection->write(
      result.ok() ? encode_frame(FrameType::kReply, request, result.value())
                  : encode_frame(FrameType::kError, request, encode(result.status().info())));
}

void Server::Impl::deliver(const Answers& answers) {
  for (const Answer& answer : answers) {
    const auto session = sessions_.find(answer.ticket.first);
    if (session == sessions_.end()) continue;
    reply(session->second.get(), answer.ticket.second,
          answer.status.ok() ? Result<std::string>(answer.payload)
                             : Result<std::string>(answer.status));
  }
}

void Server::Impl::push(const Failure& failure, uint64_t except) {
  int32_t none = -1;
  if (failure.scope.empty()) first_failed_rank_.compare_exchange_strong(none, failure.info.rank);
  const std::string frame = encode_frame(FrameType::kFailure, 0, encode(failure));
  for (const auto& entry : sessions_) {
    const Session& session = *entry.second;
    if (entry.first == except || !session.welcomed || session.refused) continue;
    session.connection->write(frame);
  }
}

// ---- time ----

void Server::Impl::on_timer() {
  armed_for_ns_ = kNeverNs;
  const int64_t now_ns = monotonic_ns();
  Answers answers;
  keyspace_.expire(now_ns, &answers);
  joins_.expire(now_ns, &answers);
  join_deadline_ns_ = joins_.next_deadline_ns();
  deliver(answers);
  while (!strangers_.empty() && strangers_.front().first <= now_ns) {
    const uint64_t id = strangers_.front().second;
    strangers_.pop_front();
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) continue;
    if (!session->second->welcomed || session->second->refused) drop(id, ETIMEDOUT);
  }
  arm_timer();
}

void Server::Impl::arm_timer() {
  int64_t next = std::min(keyspace_.next_deadline_ns(), join_deadline_ns_);
  if (!strangers_.empty()) next = std::min(next, strangers_.front().first);
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

int32_t Server::first_failed_rank() const { return impl_->first_failed_rank(); }

Status Server::wait_empty(const Wait& wait) {
  const auto empty = std::make_shared<Event>();
  if (loop_->on_thread() || !loop_->post([this, empty] { impl_->when_empty(empty); })) {
    return Status(Code::kInvalidState, "store: cannot wait on the I/O thread or after its end");
  }
  const int64_t timeout_ms = wait.deadline.remaining_ms();
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
                       seconds_text(timeout_ms).c_str(), item_list(*names).c_str()));
}

}  // namespace dt::store
