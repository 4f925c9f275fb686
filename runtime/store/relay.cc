// SPDX-License-Identifier: Apache-2.0
#include "store/relay.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "net/address.h"
#include "net/dial_sequence.h"
#include "net/interfaces.h"
#include "net/refusal.h"
#include "net/secure_connection.h"
#include "store/text.h"
#include "store/uplink.h"

namespace dt::store {
namespace {

constexpr int64_t kFirstPauseMs = 20;  // between tries to reach the store
constexpr int64_t kMaxPauseMs = 2'000;
constexpr int64_t kGreetingMs = 10'000;  // of a rank that passes the guard
constexpr int64_t kLingerMs = 10'000;    // what a rank gets to take its last bytes
constexpr uint64_t kUplinkId = 1;
constexpr char kOrderly = '\0';
constexpr char kLost = '\1';

}  // namespace

class Relay::Impl {
 public:
  struct Begun {
    Event done;
    Status status;  // written before
  };

  Impl(net::Loop* loop, RelayOptions given)
      : options_(std::move(given)),
        address_(net::host_port_text(options_.host, options_.port)),
        loop_(loop) {}

  void begin(std::shared_ptr<Begun> begun, Deadline deadline);
  void close();
  std::string progress() const {
    return format("%d %s, the last: %s", tries_, tries_ == 1 ? "try" : "tries",
                  last_reason_.c_str());
  }
  const std::string& address() const { return address_; }

  // Written before start() returns, constant afterwards.
  uint16_t port = 0;
  std::string store_address;

 private:
  /// A rank's connection. With `channel` 0 it has not passed the guard, or is no rank's any more.
  struct Local {
    std::unique_ptr<net::SecureConnection> connection;
    std::unique_ptr<net::Timer> timer;  // of its greeting, then of its end
    uint64_t channel = 0;
    bool paused = false;  // the store was told: what it sends next would not be taken
    bool over = false;    // nothing of what it says is passed on
    std::string held;     // what it said while paused
  };

  // The way to the store.
  void attempt();
  void dial(const net::Address& to);
  void fail_try(std::string reason);
  void finish(const Status& status);
  void heard(const char* data, size_t bytes);
  void handle(Frame frame);
  void handle_greeting(const Frame& frame);
  void lost(const std::string& reason);
  void say(FrameType type, uint64_t channel, std::string_view payload);
  void pause_locals(bool paused);

  // The ranks.
  Status listen();
  void accept(std::unique_ptr<net::Connection> connection);
  void open_channel(uint64_t id);
  void said(uint64_t id, const char* data, size_t bytes);
  void pass_on(uint64_t channel, std::string_view bytes);
  void drained(uint64_t id);
  void turned_away(uint64_t id, const Status& why, bool plain);
  void gone(uint64_t id, int error);
  void dismiss(Local* local, uint64_t id);
  void limit(Local* local, uint64_t id, int64_t after_ms);

  const RelayOptions options_;
  const std::string address_;
  net::Loop* const loop_;
  std::shared_ptr<Begun> begun_;  // null once start() was told
  std::unique_ptr<net::DialSequence> addresses_;
  int tries_ = 0;
  int64_t pause_ms_ = kFirstPauseMs;
  std::string last_reason_ = "the first try has not ended";
  std::unique_ptr<net::Timer> retry_timer_;
  std::unique_ptr<net::Timer> flush_timer_;  // the end of this turn of the loop
  std::unique_ptr<net::SecureConnection> uplink_;
  FrameParser parser_{kMaxDataBytes};
  bool greeted_ = false;
  bool touched_ = false;    // something waits for flush_timer_
  bool congested_ = false;  // the store takes no more at this moment: no rank is read
  std::unique_ptr<net::Listener> listener_;
  std::map<uint64_t, Local> locals_;
  std::map<uint64_t, uint64_t> by_channel_;  // open ones
  const size_t max_strangers_ = net::stranger_limit(kMaxStrangers);
  std::set<uint64_t> strangers_;  // locals that never had a channel, the oldest first
  uint64_t last_id_ = 0;
  uint64_t last_channel_ = 0;
};

// ---- the way to the store ----

void Relay::Impl::begin(std::shared_ptr<Begun> begun, Deadline deadline) {
  begun_ = std::move(begun);
  retry_timer_ = std::make_unique<net::Timer>(loop_, [this] { attempt(); });
  net::DialEvents events;
  events.on_address = [this](const net::Address& to) { dial(to); };
  events.on_unresolved = [this](const Status& why) { fail_try(why.message()); };
  events.on_late = [this] { fail_try(connection_problem(ETIMEDOUT)); };
  addresses_ = std::make_unique<net::DialSequence>(
      loop_, options_.host, options_.port, net::DialSequence::kMaxMs, deadline, std::move(events));
  flush_timer_ = std::make_unique<net::Timer>(loop_, [this] {
    touched_ = false;
    if (uplink_ != nullptr) uplink_->release();
  });
  attempt();
}

void Relay::Impl::close() {
  listener_ = nullptr;
  locals_.clear();
  uplink_ = nullptr;
  retry_timer_ = nullptr;
  addresses_ = nullptr;
  flush_timer_ = nullptr;
}

void Relay::Impl::attempt() {
  ++tries_;
  addresses_->begin();
}

void Relay::Impl::dial(const net::Address& to) {
  uplink_ = nullptr;
  parser_ = FrameParser(kMaxDataBytes);
  net::SecureEvents events;
  events.on_open = [this] {
    UplinkHello hello;
    hello.job_id = options_.job_id;
    hello.attempt = options_.attempt;
    hello.host = options_.host_name;
    uplink_->write(encode_frame(FrameType::kUplink, kUplinkId, encode(hello)));
  };
  events.on_bytes = [this](const char* data, size_t bytes) { heard(data, bytes); };
  events.on_drained = [this] { pause_locals(false); };
  events.on_refused = [this](const Status& why, bool) {
    is_final_refusal(why.code()) ? finish(why) : fail_try(why.message());
  };
  events.on_close = [this](int error) {
    if (greeted_) return lost(error == 0 ? "it closed the connection" : errno_text(error));
    if (!addresses_->next()) fail_try(connection_problem(error));
  };
  auto dialled = net::SecureConnection::dial(loop_, to, options_.security, net::Purpose::kStore,
                                             std::move(events));
  if (dialled.ok()) {
    uplink_ = std::move(dialled).value();
  } else if (!addresses_->next()) {
    fail_try(dialled.status().message());
  }
}

void Relay::Impl::fail_try(std::string reason) {
  uplink_ = nullptr;
  addresses_->end();
  last_reason_ = std::move(reason);
  retry_timer_->start(pause_ms_);
  pause_ms_ = std::min(2 * pause_ms_, kMaxPauseMs);
}

/// Tells start() how it went.
void Relay::Impl::finish(const Status& status) {
  addresses_->stop();
  if (!status.ok()) uplink_ = nullptr;
  if (begun_ == nullptr) return;
  begun_->status = status;
  std::exchange(begun_, nullptr)->done.set();
}

void Relay::Impl::heard(const char* data, size_t bytes) {
  parser_.feed(data, bytes);
  Frame frame;
  // A frame may end the uplink, or begin another try.
  while (uplink_ != nullptr && parser_.next(&frame)) handle(std::move(frame));
  if (uplink_ == nullptr || parser_.status().ok()) return;
  const std::string reason = "what it sends makes no sense: " + parser_.status().message();
  greeted_ ? lost(reason) : fail_try(reason);
}

void Relay::Impl::handle(Frame frame) {
  if (!greeted_) return handle_greeting(frame);
  if (frame.type != FrameType::kData && frame.type != FrameType::kClose) {
    ErrorInfo info;
    const bool says_why = frame.type == FrameType::kError && decode(frame.payload, &info);
    return lost(says_why ? info.message
                         : format("it sent a frame of type %d", static_cast<int>(frame.type)));
  }
  const auto channel = by_channel_.find(frame.id);
  if (channel == by_channel_.end()) return;  // it was on its way when the rank left
  const uint64_t id = channel->second;
  Local& local = locals_.at(id);
  if (frame.type == FrameType::kClose) {
    // Until it is answered the store keeps the channel, and the rank may take long to hang up. What
    // the rank says from now on is passed on no more.
    say(FrameType::kClose, frame.id, {&kOrderly, 1});
    return dismiss(&local, id);
  }
  local.connection->write(std::move(frame.payload));
  if (local.paused || !local.connection->congested()) return;
  local.paused = true;
  say(FrameType::kPause, local.channel, {});
}

void Relay::Impl::handle_greeting(const Frame& frame) {
  ErrorInfo info;
  if (frame.type == FrameType::kReply && frame.id == kUplinkId) {
    store_address = uplink_->peer_host();
    const Status listening = listen();
    greeted_ = listening.ok();
    finish(listening);
  } else if (frame.type == FrameType::kError && decode(frame.payload, &info)) {
    is_final_refusal(info.code) ? finish(Status(std::move(info))) : fail_try(info.message);
  } else {
    fail_try("what listens there is no store of this version");
  }
}

void Relay::Impl::lost(const std::string& reason) {
  uplink_ = nullptr;
  listener_ = nullptr;
  if (options_.logger) {
    // No warning: the ranks and the agents say it themselves, and who is to blame.
    options_.logger->log(
        LogLevel::kInfo,
        "relay: lost the store at %s: %s; the ranks of this host (%s) lose it, too",
        address_.c_str(), reason.c_str(), store::quoted(options_.host_name).c_str());
  }
  for (auto& [id, local] : locals_) {
    if (!local.over) dismiss(&local, id);
  }
}

/// What is said in one turn of the loop goes out together.
void Relay::Impl::say(FrameType type, uint64_t channel, std::string_view payload) {
  if (uplink_ == nullptr) return;
  if (!std::exchange(touched_, true)) {
    uplink_->hold();
    flush_timer_->start(0);
  }
  uplink_->write(encode_frame(type, channel, payload));
  if (!congested_ && uplink_->congested()) pause_locals(true);
}

void Relay::Impl::pause_locals(bool paused) {
  congested_ = paused;
  for (auto& [id, local] : locals_) local.connection->pause(paused);
}

// ---- the ranks ----

Status Relay::Impl::listen() {
  DT_TRY_VALUE(const net::Address loopback, net::literal_address(net::loopback_host(), 0));
  DT_TRY_VALUE(listener_,
               net::Listener::open(loop_, loopback, [this](std::unique_ptr<net::Connection> rank) {
                 accept(std::move(rank));
               }));
  port = listener_->bound().port();
  return {};
}

void Relay::Impl::accept(std::unique_ptr<net::Connection> connection) {
  // An honest rank needs one round trip, and tries again if many strangers push it out before.
  if (strangers_.size() >= max_strangers_) gone(*strangers_.begin(), ETIMEDOUT);
  // The store would end the whole uplink. Who is turned away here tries again.
  if (locals_.size() >= kMaxChannels) return connection->reset();
  const uint64_t id = ++last_id_;
  Local& local = locals_[id];
  strangers_.insert(id);
  net::SecureEvents events;
  events.on_open = [this, id] { open_channel(id); };
  events.on_bytes = [this, id](const char* data, size_t bytes) { said(id, data, bytes); };
  events.on_drained = [this, id] { drained(id); };
  events.on_refused = [this, id](const Status& why, bool plain) { turned_away(id, why, plain); };
  events.on_close = [this, id](int error) { gone(id, error); };
  local.connection = net::SecureConnection::accept(std::move(connection), options_.security,
                                                   net::Purpose::kStore, {}, std::move(events));
  if (congested_) local.connection->pause(true);
  local.connection->is_open() ? open_channel(id) : limit(&local, id, kGreetingMs);
}

void Relay::Impl::open_channel(uint64_t id) {
  Local& local = locals_.at(id);
  strangers_.erase(id);
  local.timer = nullptr;  // from now on the store limits what it says
  local.channel = ++last_channel_;
  by_channel_.emplace(local.channel, id);
  say(FrameType::kOpen, local.channel, {});
}

void Relay::Impl::said(uint64_t id, const char* data, size_t bytes) {
  Local& local = locals_.at(id);
  if (local.over || local.channel == 0) return;
  // Who does not read is not read, but for what was on its way.
  if (local.paused) return void(local.held.append(data, bytes));
  pass_on(local.channel, {data, bytes});
}

/// The store ends an uplink whose frames are longer than kMaxDataBytes.
void Relay::Impl::pass_on(uint64_t channel, std::string_view bytes) {
  while (!bytes.empty()) {
    say(FrameType::kData, channel, bytes.substr(0, kMaxDataBytes));
    bytes.remove_prefix(std::min(kMaxDataBytes, bytes.size()));
  }
}

void Relay::Impl::drained(uint64_t id) {
  Local& local = locals_.at(id);
  if (!std::exchange(local.paused, false) || local.over) return;
  say(FrameType::kResume, local.channel, {});
  const std::string held = std::exchange(local.held, {});
  said(id, held.data(), held.size());
}

/// It has not the job's token. It hears of it as from the store.
void Relay::Impl::turned_away(uint64_t id, const Status& why, bool plain) {
  Local& local = locals_.at(id);
  local.over = true;
  if (plain) {
    ErrorInfo info = why.info();
    info.message =
        "the store refuses this connection: " + net::plain_refusal(options_.security.mode);
    local.connection->write_plain(encode_frame(FrameType::kError, 0, encode(info)));
  }
  local.connection->shutdown();
  limit(&local, id, kLingerMs);
}

void Relay::Impl::gone(uint64_t id, int error) {
  const auto found = locals_.find(id);
  if (found == locals_.end()) return;
  const Local local = std::move(found->second);
  locals_.erase(found);
  strangers_.erase(id);
  if (by_channel_.erase(local.channel) == 0) return;
  // What it said last, and was not passed on while it did not read, counts; a goodbye above all.
  if (local.paused) {
    say(FrameType::kResume, local.channel, {});
    pass_on(local.channel, local.held);
  }
  const char how = error == 0 ? kOrderly : kLost;
  say(FrameType::kClose, local.channel, {&how, 1});
}

/// The store has nothing more to say to it, or is gone. It gets what was said before.
void Relay::Impl::dismiss(Local* local, uint64_t id) {
  by_channel_.erase(local->channel);
  local->over = true;
  local->held.clear();
  local->connection->shutdown();
  limit(local, id, kLingerMs);
}

void Relay::Impl::limit(Local* local, uint64_t id, int64_t after_ms) {
  local->timer = std::make_unique<net::Timer>(loop_, [this, id] { gone(id, ETIMEDOUT); });
  local->timer->start(after_ms);
}

// ---- Relay ----

Result<std::unique_ptr<Relay>> Relay::start(net::Loop* loop, RelayOptions options,
                                            const Wait& wait) {
  std::unique_ptr<Relay> relay(new Relay(loop, std::make_shared<Impl>(loop, std::move(options))));
  const auto begun = std::make_shared<Impl::Begun>();
  if (!loop->post([impl = relay->impl_, begun, deadline = wait.deadline] {
        impl->begin(begun, deadline);
      })) {
    return Status(Code::kInvalidState, "relay: the I/O thread has stopped");
  }
  const std::string& address = relay->impl_->address();
  if (!begun->done.wait(wait)) {
    std::string progress;
    loop->run([&] { progress = relay->impl_->progress(); });
    if (wait.interrupted()) return wait.interrupt->status();
    return Status(
        Code::kTimeout,
        format("relay: no store at %s within %s (%s); look whether this "
               "host reaches that address",
               address.c_str(), seconds_text(wait.deadline.limit_ms()).c_str(), progress.c_str()));
  }
  if (!begun->status.ok()) return begun->status.within("relay to the store at " + address);
  return relay;
}

Relay::~Relay() {
  loop_->run([this] { impl_->close(); });
}

uint16_t Relay::port() const { return impl_->port; }

const std::string& Relay::store_address() const { return impl_->store_address; }

}  // namespace dt::store
