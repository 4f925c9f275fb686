// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "net/address.h"
#include "ps/client_core.h"

namespace dt::ps {
namespace {

constexpr int64_t kFirstDelayMs = 20;
constexpr int64_t kLongestDelayMs = 1000;
constexpr int64_t kGreetingMs = 20'000;  // for a connection and its greetings

int64_t ms_since(int64_t ns) { return (monotonic_ns() - ns) / kNsPerMs; }

}  // namespace

ServerLink::ServerLink(ClientCore* core, net::Loop* loop, const Client::Options& options,
                       int32_t index)
    : core_(core), loop_(loop), options_(options), index_(index), retry_(loop, [this] {
        begin();
      }) {}

ServerLink::~ServerLink() { *alive_ = false; }

std::string ServerLink::text() const {
  const net::HostPort& at = options_.servers[static_cast<size_t>(index_)];
  const std::string who =
      host_.empty() ? std::string()
                    : format(" (%s pid %lld)", host_.c_str(), static_cast<long long>(pid_));
  return format("parameter server %d", index_) + who + " at " +
         net::host_port_text(at.host, at.port);
}

std::string ServerLink::state() const {
  if (connected()) return "it is connected and does not answer";
  if (lost_ns_ == 0) return "it is not there: " + reason_;
  return format("it was lost %lld ms ago: ", static_cast<long long>(ms_since(lost_ns_))) + reason_;
}

void ServerLink::begin() {
  if (phase_ == Phase::kClosed || !fatal_.ok()) return;
  phase_ = Phase::kDialling;
  heard_ns_ = monotonic_ns();
  ++tries_;
  const net::HostPort& at = options_.servers[static_cast<size_t>(index_)];
  // Anew each time: a server may come back with another address.
  net::resolve(loop_, at.host, at.port,
               [this, alive = alive_, mine = tries_](Result<std::vector<net::Address>> addresses) {
                 if (*alive && phase_ == Phase::kDialling && mine == tries_) resolved(addresses);
               });
}

void ServerLink::resolved(const Result<std::vector<net::Address>>& addresses) {
  if (!addresses.ok() || addresses.value().empty()) {
    return lose(addresses.ok() ? "its host has no address" : addresses.status().message());
  }
  addresses_ = addresses.value();
  dial();
}

void ServerLink::dial() {
  const net::Address& to = addresses_[address_++ % addresses_.size()];
  auto connecting = tcp::begin_connect(to, {});
  if (!connecting.ok()) return lose(connecting.status().message());
  tcp::Hello hello;
  hello.session = session_of(options_.job_id);
  hello.from = options_.worker;
  hello.to = index_;
  hello.communicator = kConnectionName;
  hello.connection = static_cast<int32_t>(options_.servers.size());
  handshake_ =
      tcp::Handshake::dial(loop_, std::move(connecting).value(), options_.security, hello,
                           [this, alive = alive_, mine = tries_](Result<tcp::Socket> result) {
                             if (*alive && phase_ == Phase::kDialling && mine == tries_)
                               dialled(std::move(result));
                           });
}

void ServerLink::dialled(Result<tcp::Socket> result) {
  const auto keep = std::move(handshake_);
  if (!result.ok()) {
    const Status& status = result.status();
    if (status.code() == Code::kConfig || status.code() == Code::kVersion) {
      fatal_ = status.within(text() + " and this process do not accept each other");
      fail_all(fatal_);
      return core_->on_state();
    }
    const bool refused = status.message().rfind(tcp::kRefuses, 0) == 0;
    return lose(status.message() +
                (refused ? format("; this process belongs to job \"%s\"", options_.job_id.c_str())
                         : std::string()));
  }
  phase_ = Phase::kEntering;
  heard_ns_ = monotonic_ns();
  signs_ = 0;
  link_ = std::make_shared<tcp::Link>(
      loop_,
      [this, alive = alive_](const std::string& reason) {
        if (*alive) lose(reason);
      },
      [this, alive = alive_](bool) {
        if (*alive) lose("it has closed the connection");
      });
  link_->open(std::move(result).value());
  Enter enter;
  enter.nonce = core_->nonce();
  enter.clock = clock_to_enter_with();
  enter.keeps_clock = options_.worker >= 0;
  enter.host = options_.host;
  enter.pid = options_.pid;
  auto request = std::make_shared<Request>();
  request->what = What::kEnter;
  request->payload = encode(enter);
  send(request);
  receive();
}

/// A clock without an answer comes again after the pushes before it: until then the server must not
/// count it.
int64_t ServerLink::clock_to_enter_with() const {
  for (const auto& [sequence, request] : unanswered_) {
    if (request->what == What::kClock) return std::max<int64_t>(request->count - 1, 0);
  }
  return core_->clock();
}

/// May end the connection, or bring an answer, before it returns.
void ServerLink::send(const std::shared_ptr<Request>& request) {
  if (link_ == nullptr) return;
  tcp::Header header;
  header.what = static_cast<uint32_t>(request->what);
  header.sequence = request->sequence;
  header.signature = request->signature;
  header.count = request->count;
  header.bytes = static_cast<int64_t>(request->payload.size());
  core_->room().statistics.with([&](Client::Statistics& all) { all.sent_bytes += header.bytes; });
  const char* const data = request->payload.data();
  link_->send(header, data, [request] {});
}

void ServerLink::receive() {
  if (link_ == nullptr) return;
  link_->receive(
      [this](const tcp::Header& header) -> void* {
        if (header.bytes > kMostBytes) {
          lose("it sends a message that is too long");
          return nullptr;
        }
        header_ = header;
        if (payload_.size() < static_cast<size_t>(header.bytes)) {
          payload_.resize(static_cast<size_t>(header.bytes));
        }
        return payload_.data();
      },
      [this, alive = alive_, link = std::weak_ptr(link_)] {
        if (!*alive || link.lock() != link_ || link_ == nullptr) return;
        on_message();
        if (*alive && link.lock() == link_ && link_ != nullptr) receive();
      });
}

void ServerLink::on_message() {
  core_->room().statistics.with(
      [&](Client::Statistics& all) { all.received_bytes += header_.bytes; });
  const std::string_view payload(payload_.data(), static_cast<size_t>(header_.bytes));
  const auto what = static_cast<What>(header_.what);
  if (phase_ == Phase::kEntering) {
    Welcome welcome;
    Refusal refusal;
    if (what == What::kWelcome && decode(payload, &welcome)) return on_welcome(welcome);
    if (what == What::kRefused && decode(payload, &refusal)) {
      if (refusal.code != Code::kVersion) return lose(refusal.text);
      fatal_ = Status(refusal.code, refusal.text);
      fail_all(fatal_);
      return core_->on_state();
    }
    return lose("what speaks there is no parameter server");
  }
  const auto found = unanswered_.find(header_.sequence);
  if (found == unanswered_.end()) return;  // a sign of life, or what nobody awaits any more
  const std::shared_ptr<Request> request = found->second;
  on_answer(request, what);
}

void ServerLink::on_answer(const std::shared_ptr<Request>& request, What what) {
  const std::string_view payload(payload_.data(), static_cast<size_t>(header_.bytes));
  const auto damaged = [&] { lose("it sends what is no answer to a request"); };
  Call& call = *request->call;
  switch (what) {
    case What::kWaiting:
      if (!decode(payload, &request->waiting)) damaged();
      return;
    case What::kDone:
      if (request->what == What::kPull) return damaged();
      if (request->what == What::kClock) {
        call.lowest_clock = std::min(call.lowest_clock, header_.count);
      }
      break;
    case What::kValues: {
      const int64_t bytes = call.columns * int64_t{4};
      if (request->what != What::kPull || header_.bytes != request->count * bytes) {
        return damaged();
      }
      if (call.ended) break;  // the memory is not the call's any more
      const char* from = payload.data();
      for (const Run& run : request->targets) {
        const auto length = static_cast<size_t>(run.count * bytes);
        memcpy(call.values + run.row * call.columns, from, length);
        from += length;
      }
      break;
    }
    case What::kRefused: {
      Refusal refusal;
      if (!decode(payload, &refusal)) return damaged();
      unanswered_.erase(request->sequence);
      const Status refused(refusal.code, call.what + ": " + refusal.text);
      if (!request->restores) return finish(request, refused);
      fatal_ = refused;  // values that this worker counts on are lost
      return fail_all(fatal_);
    }
    default: return damaged();
  }
  unanswered_.erase(request->sequence);
  finish(request, {});
}

void ServerLink::on_welcome(const Welcome& welcome) {
  phase_ = Phase::kOpen;
  delay_ms_ = 0;
  host_ = welcome.host;
  pid_ = welcome.pid;
  lowest_clock_ = welcome.lowest_clock;
  if (was_open_) {
    core_->room().statistics.with([](Client::Statistics& all) { ++all.reconnects; });
    if (options_.logger != nullptr) {
      options_.logger->log(LogLevel::kWarning, "%s is back after %lld ms", text().c_str(),
                           static_cast<long long>(ms_since(lost_ns_)));
    }
  }
  was_open_ = true;
  // What had taken effect, although the answer was lost.
  std::vector<std::shared_ptr<Request>> done;
  for (const auto& [sequence, request] : unanswered_) {
    const bool changes = request->what == What::kPush || request->what == What::kSet;
    if (changes && sequence <= welcome.last_change) done.push_back(request);
  }
  for (const auto& request : done) {
    unanswered_.erase(request->sequence);
    finish(request, {});
  }
  repeat();
  core_->on_state();
}

/// Everything again: variables first, since numbers hold for one connection.
void ServerLink::repeat() {
  std::erase_if(unanswered_, [](const auto& each) { return each.second->restores; });
  std::vector<std::shared_ptr<Request>> all;
  for (const auto& [number, variable] : variables_) {
    auto request = std::make_shared<Request>();
    request->call = std::make_shared<Call>();
    request->call->what = "after it came back";
    request->restores = true;
    request->what = What::kOpen;
    request->signature = number;
    request->payload = encode(OpenRequest{true, variable});
    request->sequence = ++last_sequence_;
    all.push_back(std::move(request));
  }
  for (const auto& [sequence, request] : unanswered_) all.push_back(request);
  for (const auto& request : all) unanswered_[request->sequence] = request;
  const auto link = link_;
  for (const auto& request : all) {
    if (link_ == link) send(request);
  }
}

void ServerLink::know(uint64_t number, std::string variable) {
  variables_[number] = std::move(variable);
}

void ServerLink::ask(std::shared_ptr<Request> request) {
  if (!fatal_.ok() || phase_ == Phase::kClosed) {
    return finish(request,
                  fatal_.ok() ? Status(Code::kAborted, request->call->what + ": closed") : fatal_);
  }
  if (request->what == What::kClock) replace_clocks();
  request->sequence = ++last_sequence_;
  unanswered_[request->sequence] = request;
  if (connected()) send(request);
}

/// A worker has one clock: an older one, which nobody waits for any more or another thread does,
/// will not be answered.
void ServerLink::replace_clocks() {
  std::vector<std::shared_ptr<Request>> older;
  for (const auto& [sequence, request] : unanswered_) {
    if (request->what == What::kClock) older.push_back(request);
  }
  for (const auto& request : older) {
    unanswered_.erase(request->sequence);
    finish(request, Status(Code::kAborted,
                           "clock: a later call took its place; call it from one "
                           "thread at a time"));
  }
}

void ServerLink::lose(const std::string& reason) {
  if (phase_ == Phase::kClosed) return;
  if (connected()) {
    lost_ns_ = monotonic_ns();
    if (options_.logger != nullptr) {
      options_.logger->log(LogLevel::kWarning,
                           "%s is lost: %s; %zu requests wait for it, and it is tried again",
                           text().c_str(), reason.c_str(), unanswered_.size());
    }
  }
  reason_ = reason;
  for (const auto& [sequence, request] : unanswered_) request->waiting = {};
  phase_ = Phase::kIdle;
  if (handshake_ != nullptr) handshake_->close();
  handshake_ = nullptr;
  if (const auto link = std::exchange(link_, nullptr)) link->close();
  retry_.start(delay_ms_);
  delay_ms_ = std::clamp(2 * delay_ms_, kFirstDelayMs, kLongestDelayMs);
}

void ServerLink::close() {
  phase_ = Phase::kClosed;
  retry_.stop();
  if (handshake_ != nullptr) handshake_->close();
  if (const auto link = std::exchange(link_, nullptr)) link->close();
  fail_all(Status(Code::kAborted, "the connection to the parameter servers was closed"));
}

void ServerLink::fail_all(const Status& status) {
  for (const auto& [sequence, request] : std::exchange(unanswered_, {})) finish(request, status);
}

void ServerLink::sign(int64_t now_ns) {
  if (phase_ == Phase::kIdle || phase_ == Phase::kClosed) return;
  if (link_ != nullptr) {
    const uint64_t signs = link_->signs();
    if (std::exchange(signs_, signs) != signs) heard_ns_ = now_ns;
  }
  const int64_t limit_ms = connected() ? options_.silence_ms : kGreetingMs;
  if (limit_ms > 0 && now_ns - heard_ns_ > limit_ms * kNsPerMs) {
    return lose(format("it has been silent for %lld ms", static_cast<long long>(limit_ms)));
  }
  if (options_.sign_ms == 0 || !connected() || now_ns - signed_ns_ < options_.sign_ms * kNsPerMs) {
    return;
  }
  signed_ns_ = now_ns;
  auto request = std::make_shared<Request>();
  request->what = What::kSign;
  request->sequence = UINT64_MAX;
  send(request);
}

void ServerLink::look_for_overdue() {
  std::vector<std::shared_ptr<Request>> overdue;
  for (const auto& [sequence, request] : unanswered_) {
    if (request->call->deadline.passed()) overdue.push_back(request);
  }
  for (const auto& request : overdue) {
    const Call& call = *request->call;
    // What was sent still takes room, here and there. Nobody needs the answer of a clock. The rest
    // is not sent any more: its call has failed, or does now.
    const bool stays = connected() && request->what != What::kClock;
    if (stays && call.ended) continue;
    ErrorInfo info;
    info.code = connected() ? Code::kTimeout : Code::kPeerLost;
    info.host = host_;
    info.pid = pid_;
    info.operation = call.what.substr(0, call.what.find(' '));
    info.message = format("%s: no answer of %s within %lld ms; ", call.what.c_str(), text().c_str(),
                          static_cast<long long>(call.deadline.limit_ms()));
    if (request->waiting.worker >= 0) {
      const Waiting& on = request->waiting;
      info.rank = on.worker;
      info.host = on.host;
      info.pid = on.pid;
      info.message = format(
          "%s: worker %d (%s pid %lld) is at step %lld and this one at %lld, and may be %lld "
          "ahead; it did not follow within %lld ms; look what it does, or end it: the others then "
          "go on",
          call.what.c_str(), on.worker, on.host.c_str(), static_cast<long long>(on.pid),
          static_cast<long long>(on.clock), static_cast<long long>(request->count),
          static_cast<long long>(request->signature),
          static_cast<long long>(call.deadline.limit_ms()));
    } else if (connected()) {
      info.message += state() + "; look what it does, or give the call more time";
    } else {
      info.message += state() + "; start it again: the workers then go on";
    }
    const Status late(std::move(info));
    if (stays) {
      tell(*request->call, late);
      continue;
    }
    unanswered_.erase(request->sequence);
    finish(request, late);
  }
}

void ServerLink::finish(const std::shared_ptr<Request>& request, const Status& status) {
  if (!request->restores) core_->end_request(*request);
  tell(*request->call, status);
}

void ServerLink::tell(Call& call, const Status& status) {
  if (call.ended) return;
  if (call.open > 0) --call.open;
  // The first failure ends the call: the others may never be answered.
  if (call.open > 0 && status.ok()) return;
  call.ended = true;
  if (call.work != nullptr) call.work->complete(status);
}

}  // namespace dt::ps
