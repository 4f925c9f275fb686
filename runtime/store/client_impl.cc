// SPDX-License-Identifier: Apache-2.0
#include "store/client_impl.h"

#include <algorithm>
#include <random>

#include "net/address.h"
#include "net/interfaces.h"
#include "store/relay.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kMaxUntold = 64;
constexpr size_t kUnseenMax = 65'536;  // frames; far above what a job tells while it starts

uint64_t random_nonce() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

Client::Impl::Impl(net::Loop* loop, ClientOptions given)
    : options(std::move(given)),
      address(net::host_port_text(options.host, options.port) +
              (options.relay_port == 0
                   ? ""
                   : format(" (by this host's relay, port %u)", unsigned{options.relay_port}))),
      self{options.rank, options.host_name, options.pid},
      loop_(loop) {}

std::string Client::Impl::server_text() const {
  if (welcome.server.rank < 0) {
    return format("the store's process (dt run, host %s pid %lld)", welcome.server.host.c_str(),
                  static_cast<long long>(welcome.server.pid));
  }
  return welcome.server.text() + ", which serves the store,";
}

void Client::Impl::start(std::shared_ptr<Call> ready, Deadline deadline) {
  Hello hello;
  hello.protocol = kProtocolVersion;
  hello.job_id = options.job_id;
  hello.attempt = options.attempt;
  hello.member = self;
  hello.world_size = options.world_size;
  hello.nonce = random_nonce();
  hello.dialled = address;
  // Events may be the last to hold the client, whose end must not free us under our feet.
  const std::weak_ptr<Impl> weak = weak_from_this();
  LinkEvents events;
  events.on_ready = [weak, ready = std::move(ready)](Status status) {
    const auto impl = weak.lock();
    if (impl == nullptr) return;
    if (status.ok()) {
      impl->welcome = impl->link_->welcome();
      const bool relayed = impl->options.relay_port != 0;
      impl->peer_host = relayed ? impl->options.store_address : impl->link_->peer_host();
    }
    finish(ready.get(), std::move(status), {});
  };
  events.on_frame = [weak](Frame frame) {
    if (const auto impl = weak.lock()) impl->on_frame(std::move(frame));
  };
  events.on_lost = [weak](const std::string& reason) {
    if (const auto impl = weak.lock()) impl->on_lost(reason);
  };
  const bool relayed = options.relay_port != 0;
  link_ = std::make_unique<Link>(loop_, relayed ? net::loopback_host() : options.host,
                                 relayed ? options.relay_port : options.port, std::move(hello),
                                 options.security, options.logger, std::move(events),
                                 options.greeting_ms, deadline);
  link_->start();
}

std::string Client::Impl::give_up() {
  const std::string progress = link_->progress();
  close();
  return progress;
}

void Client::Impl::close() {
  callback_ = nullptr;
  observers_ = {};
  beat_timer_ = nullptr;
  dumper_ = nullptr;
  if (link_ != nullptr) {
    link_->stop();
    // We may be inside one of its events.
    loop_->post([link = std::shared_ptr<Link>(std::move(link_))] {});
  }
  lost_ = true;
  finish_all(Status(Code::kInvalidState, "the connection to the store was closed by this process"));
}

// ---- calls ----

void Client::Impl::finish(Call* call, Status status, std::string payload) {
  if (call->done.is_set()) return;
  call->status = std::move(status);
  call->payload = std::move(payload);
  call->done.set();
}

void Client::Impl::finish_all(const Status& status) {
  std::map<uint64_t, std::shared_ptr<Call>> calls;
  calls.swap(pending_);
  for (const auto& entry : calls) finish(entry.second.get(), status, {});
}

void Client::Impl::begin(const std::shared_ptr<Call>& call, FrameType type,
                         const std::string& payload) {
  if (lost_) {
    finish(call.get(),
           type == FrameType::kGather && !obstacle().ok() ? obstacle()
           : broken_.ok() ? Status(Code::kInvalidState, "the connection to the store at " +
                                                            address + " is closed; make a new job")
                          : broken_,
           {});
    return;
  }
  const bool is_goodbye = type == FrameType::kGoodbye;
  call->bears_deaths = type == FrameType::kGather;
  call->joins = type == FrameType::kJoin;
  const bool allowed_when_broken = (call->bears_deaths && obstacle().ok()) || is_goodbye ||
                                   type == FrameType::kAbort || type == FrameType::kReportFailure;
  if (!broken_.ok() && !allowed_when_broken) {
    finish(call.get(), broken_, {});
    return;
  }
  call->id = ++last_id_;
  if (is_goodbye) {
    goodbye_id_ = call->id;
    tell_orders(true);  // so that the store knows what others wait for in vain
  }
  if (type == FrameType::kReportFailure) tell_orders(false);  // so that it knows who is behind
  link_->send(type, call->id, payload);
  if (!broken_.ok() && is_goodbye) {
    // Said, so that our end is no second death; but there is nothing left to agree on.
    goodbye_ended_ = true;
    finish(call.get(), broken_, {});
    return;
  }
  pending_.emplace(call->id, call);
}

void Client::Impl::withdraw(const std::shared_ptr<Call>& call) {
  if (pending_.erase(call->id) == 0) return;
  if (call->id == goodbye_id_) goodbye_ended_ = true;
  if (link_ != nullptr) link_->send(FrameType::kCancel, call->id, {});
}

void Client::Impl::on_frame(Frame frame) {
  if (frame.type == FrameType::kFailure) {
    Failure failure;
    if (decode(frame.payload, &failure)) fail(failure);
    return;
  }
  if (frame.type == FrameType::kDumpTrace) return on_dump_request(frame);
  if (frame.type == FrameType::kPing) return link_->send(FrameType::kHere, frame.id, {});
  if (frame.type == FrameType::kBeat) return;  // Link knows that something came
  switch (frame.type) {
    case FrameType::kBusy:
    case FrameType::kDeparted:
    case FrameType::kStop:
    case FrameType::kNotice: return on_news(std::move(frame));
    default: break;
  }
  const auto found = pending_.find(frame.id);
  if (found == pending_.end()) return;  // withdrawn meanwhile
  const std::shared_ptr<Call> call = std::move(found->second);
  pending_.erase(found);
  if (frame.id == goodbye_id_) goodbye_ended_ = true;
  ErrorInfo info;
  if (frame.type == FrameType::kReply) {
    // The store watches over this rank from the verdict on, and the start may take long from here:
    // the connections between hosts, the GPU, NCCL.
    if (call->joins) begin_beats();
    finish(call.get(), {}, std::move(frame.payload));
  } else if (frame.type == FrameType::kError && decode(frame.payload, &info)) {
    finish(call.get(), Status(std::move(info)), {});
  } else {
    finish(call.get(), Status(Code::kInternal, "the store's answer makes no sense"), {});
  }
}

// ---- traces ----

void Client::Impl::on_dump_request(const Frame& frame) {
  Reader reader(frame.payload);
  const std::string directory = reader.text(kMaxTextBytes);
  if (!reader.done()) return;
  if (!dumper_) {
    return answer_dump(frame.id, Status(Code::kInvalidState, "this process records nothing"));
  }
  const auto dumper = dumper_;
  dumper(directory, [weak = weak_from_this(), post = loop_->poster(),
                     id = frame.id](const Result<std::string>& written) {
    post([weak, id, written] {
      if (const auto impl = weak.lock()) impl->answer_dump(id, written);
    });
  });
}

void Client::Impl::answer_dump(uint64_t id, const Result<std::string>& written) {
  if (link_ == nullptr || lost_) return;
  Request request;
  request.type = FrameType::kTraceDumped;
  request.number = written.ok() ? 1 : 0;
  request.text = written.ok() ? written.value() : written.status().message();
  link_->send(FrameType::kTraceDumped, id, encode_request(request));
}

// ---- failures ----

void Client::Impl::set_observers(Observers observers) {
  observers_ = std::move(observers);
  observed_ = true;
  for (Frame& frame : std::exchange(unseen_, {})) on_news(std::move(frame));
}

/// What other ranks do may become known before this one has made the communicators that its
/// observers speak to.
void Client::Impl::on_news(Frame frame) {
  Busy busy;
  const bool is_busy = frame.type == FrameType::kBusy && decode(frame.payload, &busy);
  if (is_busy && busy.rank == welcome.server.rank) {
    excused_until_ns_ = monotonic_ns() + busy.max_ms * kNsPerMs;
  }
  if (!observed_) {
    if (unseen_.size() < kUnseenMax) unseen_.push_back(std::move(frame));
    return;
  }
  if (is_busy && observers_.busy) observers_.busy(busy);
  if (frame.type == FrameType::kDeparted && observers_.departed) {
    Departed departed;
    if (decode(frame.payload, &departed)) observers_.departed(departed.ranks);
  }
  if (frame.type == FrameType::kStop && observers_.stop) observers_.stop();
  if (frame.type == FrameType::kNotice && observers_.notice) observers_.notice(frame.payload);
}

void Client::Impl::begin_beats() {
  if (lost_ || welcome.heartbeat_ms <= 0) return;
  if (beat_timer_ == nullptr) awake_ns_ = monotonic_ns();  // before that nothing had to come
  beat_timer_ = std::make_unique<net::Timer>(loop_, [this] { on_beat(); });
  on_beat();
}

void Client::Impl::on_beat() {
  if (lost_) return;  // due between lose() and the timer's end
  const int64_t now_ns = monotonic_ns();
  const int64_t limit_ms = welcome.heartbeat_timeout_ms;
  const int64_t late_ms = beat_at_ns_ == 0 ? 0 : (now_ns - beat_at_ns_) / kNsPerMs;
  // This process was stopped, or its machine was: what came meanwhile is not read yet.
  if (late_ms > limit_ms / 2) awake_ns_ = now_ns;
  const int64_t silence_ms =
      (now_ns - std::max({link_->heard_ns(), awake_ns_, excused_until_ns_})) / kNsPerMs;
  if (limit_ms > 0 && silence_ms > limit_ms) return on_silence(silence_ms);
  tell_orders(false);  // before the beat, with which the store takes a rank's calls as told
  Request request;
  request.type = FrameType::kBeat;
  if (observers_.activity) request.activity = observers_.activity();
  link_->send(FrameType::kBeat, 0, encode_request(request));
  beat_at_ns_ = now_ns + welcome.heartbeat_ms * kNsPerMs;
  beat_timer_->start(welcome.heartbeat_ms);
}

void Client::Impl::tell_orders(bool all) {
  if (!observers_.orders) return;
  Request request;
  request.type = FrameType::kOrders;
  for (Orders& each : observers_.orders(all)) {
    request.orders = std::move(each);
    link_->send(FrameType::kOrders, 0, encode_request(request));
  }
}

void Client::Impl::on_silence(int64_t silence_ms) {
  lose(
      format("has given no sign of life for %s at %s: its process is stopped, or its host or "
             "network is down, or the network of this host; look at both, then start the job again",
             seconds_text(silence_ms).c_str(), address.c_str()),
      true);
  if (link_ != nullptr) link_->stop();
}

void Client::Impl::on_lost(const std::string& reason) {
  lose(
      format("%s at %s without a goodbye: the process ended, was killed, or lost its network; "
             "look at its log, then start the job again",
             reason.c_str(), address.c_str()));
}

void Client::Impl::lose(const std::string& what, bool silent) {
  lost_ = true;
  // We may be inside its event.
  if (beat_timer_ != nullptr) {
    loop_->post([timer = std::shared_ptr<net::Timer>(std::move(beat_timer_))] { timer->stop(); });
  }
  Failure failure;
  failure.info.code = Code::kPeerLost;
  failure.info.message = server_text() + " " + what;
  failure.info.rank = welcome.server.rank;
  failure.info.host = welcome.server.host;
  failure.info.pid = welcome.server.pid;
  failure.silent = silent;
  failure.store_gone = true;
  store_gone_ = Status(failure.info);
  if (goodbye_ended_) {
    // As agreed. Calls that still wait get the reason, but nobody is alarmed.
    if (broken_.ok()) broken_ = Status(failure.info);
    finish_all(broken_);
    return;
  }
  fail(failure);
}

void Client::Impl::know(const ErrorInfo& info) {
  failures_.emplace_back(info);
  broken_ = failures_.front();
  fail_calls();
}

void Client::Impl::fail(const Failure& failure) {
  const bool breaks_calls = lost_ || (failure.scope.empty() && self.rank >= 0);
  if (breaks_calls) {
    failures_.emplace_back(failure.info);
    broken_ = failures_.front();
  }
  // The callback first: whoever sees a call fail may rely on the failure being known.
  if (callback_) {
    const auto callback = callback_;  // it may replace itself
    callback(failure);
  } else if (untold_.size() < kMaxUntold) {
    untold_.push_back(failure);
  }
  if (breaks_calls) fail_calls();
}

/// Pending ones. Who gathers wants to know of nothing but the end of the store or of the job.
void Client::Impl::fail_calls() {
  if (pending_.count(goodbye_id_) != 0) goodbye_ended_ = true;
  const Status why = obstacle();
  std::map<uint64_t, std::shared_ptr<Call>> calls;
  calls.swap(pending_);
  for (const auto& [id, call] : calls) {
    if (!call->bears_deaths) {
      finish(call.get(), broken_, {});
    } else if (why.ok()) {
      pending_.emplace(id, call);
    } else {
      finish(call.get(), why, {});
    }
  }
}

/// Why survivors cannot gather; deaths are no reason.
Status Client::Impl::obstacle() const {
  for (const Status& each : failures_) {
    if (each.code() != Code::kPeerLost) return each;
  }
  if (store_gone_.ok()) return {};
  ErrorInfo info = store_gone_.info();
  info.message = format("%s: the ranks that are left can agree on nothing without the store, %s",
                        info.message.c_str(),
                        welcome.server.rank < 0
                            ? "so this job is over"
                            : "which a rank served; under dt run its own process does, and a job "
                              "outlives each of its ranks");
  return Status(std::move(info));
}

void Client::Impl::forgive(const std::vector<int32_t>& ranks) {
  if (lost_) return;
  std::erase_if(failures_, [&](const Status& each) {
    const ErrorInfo& info = each.info();
    return info.code == Code::kPeerLost &&
           std::find(ranks.begin(), ranks.end(), info.rank) != ranks.end();
  });
  broken_ = failures_.empty() ? Status() : failures_.front();
}

void Client::Impl::set_callback(std::function<void(const Failure&)> callback) {
  callback_ = std::move(callback);
  if (!callback_) return;
  const auto tell = callback_;
  std::vector<Failure> untold;
  untold.swap(untold_);
  for (const Failure& failure : untold) tell(failure);
}

}  // namespace dt::store
