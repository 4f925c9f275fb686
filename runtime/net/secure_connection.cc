// SPDX-License-Identifier: Apache-2.0
#include "net/secure_connection.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string_view>
#include <utility>

namespace dt::net {

namespace {

constexpr size_t kSealedBytes = 256 << 10;  // at a time

}  // namespace

/// Bytes that are to be encrypted, and shared ones behind them.
struct Unsealed {
  std::string bytes;
  SharedBytes shared;

  size_t own_bytes() const { return sizeof *this + bytes.capacity(); }
  size_t size() const { return bytes.size() + shared.size(); }
};

struct SecureConnection::State : std::enable_shared_from_this<SecureConnection::State> {
  State(const Security& security, Purpose purpose, Side side, SecureEvents given)
      : guard(std::make_unique<Guard>(security, purpose, side)), events(std::move(given)) {}

  std::unique_ptr<Guard> guard;  // null once it is over
  std::unique_ptr<Tls> tls;
  SecureEvents events;
  std::unique_ptr<Connection> connection;
  std::function<bool(char)> passes;
  /// What waits until the peer has taken what is in front of it: encrypted bytes are each
  /// connection's own, so shared ones stay shared for as long as they can.
  std::deque<Unsealed> unsealed;
  size_t unsealed_bytes = 0;  // all of them
  size_t unsealed_kept = 0;   // without shared bytes
  size_t sealed = 0;          // of the first of them
  bool ending = false;        // shutdown() waits for them
  bool open = false;
  bool passed = false;
  bool refused = false;

  /// The connection outlives this while one of its callbacks runs, not the other way round.
  ConnectionEvents wire_events() {
    const std::weak_ptr<State> weak = weak_from_this();
    ConnectionEvents wire;
    wire.on_open = [weak] {
      if (const auto self = weak.lock()) self->connected();
    };
    wire.on_bytes = [weak](const char* data, size_t bytes) {
      if (const auto self = weak.lock()) self->received(data, bytes);
    };
    wire.on_drained = [weak] {
      const auto self = weak.lock();
      if (self == nullptr || !self->open) return;
      self->seal();
      if (self->events.on_drained && !self->congested()) self->events.on_drained();
    };
    wire.on_close = [weak](int error) {
      if (const auto self = weak.lock(); self != nullptr && self->events.on_close) {
        self->events.on_close(error);
      }
    };
    return wire;
  }

  void connected() { go_on(); }

  void received(const char* data, size_t bytes) {
    if (refused || bytes == 0) return;
    if (guard != nullptr && passes && !open) {
      const bool foreign = passes(*data);
      passes = nullptr;
      if (foreign) {
        passed = open = true;
        guard = nullptr;
      }
    }
    while (guard != nullptr && bytes > 0 && guard->wanted() > 0) {
      const size_t taken = std::min(bytes, guard->wanted());
      guard->feed(data, taken);
      data += taken;
      bytes -= taken;
      const std::string held = guard->take_held();
      go_on();
      if (connection == nullptr || refused) return;
      if (!held.empty()) deliver(held.data(), held.size());
      if (connection == nullptr) return;
    }
    if (bytes > 0 && open) deliver(data, bytes);
  }

  void deliver(const char* data, size_t bytes) {
    if (tls == nullptr) {
      if (events.on_bytes) events.on_bytes(data, bytes);
      return;
    }
    std::string plain;
    const Status status = tls->open(data, bytes, &plain);
    if (!plain.empty() && events.on_bytes) events.on_bytes(plain.data(), plain.size());
    if (!status.ok() && connection != nullptr) broken();
  }

  bool congested() const {
    return connection != nullptr && (connection->congested() || !unsealed.empty());
  }

  void write(std::string bytes, SharedBytes shared) {
    if (tls == nullptr) return connection->write(std::move(bytes), std::move(shared));
    if (ending) return;
    Unsealed next{std::move(bytes), std::move(shared)};
    unsealed_bytes += next.size();
    unsealed_kept += next.own_bytes();
    unsealed.push_back(std::move(next));
    if (connection->kept_bytes() + unsealed_kept > Connection::kMaxQueuedBytes) {
      forget_unsealed();
      return connection->give_up(ENOBUFS);
    }
    seal();
  }

  /// As much as the peer takes. A connection that is congested will tell when it is drained.
  void seal() {
    while (!unsealed.empty() && !connection->congested()) {
      const Unsealed& first = unsealed.front();
      std::string wire;
      size_t room = kSealedBytes;
      size_t at = sealed;
      for (std::string_view part : {std::string_view(first.bytes), first.shared.view()}) {
        const size_t skipped = std::min(at, part.size());
        at -= skipped;
        part = part.substr(skipped, room);
        room -= part.size();
        if (!tls->seal(part, &wire).ok()) {
          forget_unsealed();
          return broken();
        }
      }
      const size_t done = kSealedBytes - room;
      sealed += done;
      unsealed_bytes -= done;
      if (sealed == first.size()) {
        unsealed_kept -= first.own_bytes();
        unsealed.pop_front();
        sealed = 0;
      }
      connection->write(std::move(wire));
    }
    if (unsealed.empty() && std::exchange(ending, false)) connection->shutdown();
  }

  void forget_unsealed() {
    unsealed.clear();
    unsealed_bytes = unsealed_kept = sealed = 0;
  }

  /// What came or would go makes no sense any more.
  void broken() { connection->give_up(EPROTO); }

  /// After each step of the guard.
  void go_on() {
    if (std::string output = guard->take_output(); !output.empty()) {
      connection->write(std::move(output));
    }
    if (guard->established()) return opened();
    if (guard->failure().ok()) return;
    refused = true;
    const Status why = guard->failure();
    const bool plain = guard->met_plain();
    guard = nullptr;
    if (events.on_refused) events.on_refused(why, plain);
  }

  void opened() {
    tls = guard->take_tls();
    guard = nullptr;
    const bool told = std::exchange(open, true);
    if (!told && events.on_open) events.on_open();
  }
};

Result<std::unique_ptr<SecureConnection>> SecureConnection::dial(Loop* loop, const Address& address,
                                                                 const Security& security,
                                                                 Purpose purpose,
                                                                 SecureEvents events) {
  auto state = std::make_shared<State>(security, purpose, Side::kClient, std::move(events));
  DT_TRY_VALUE(state->connection, Connection::dial(loop, address, state->wire_events()));
  return std::unique_ptr<SecureConnection>(new SecureConnection(std::move(state)));
}

std::unique_ptr<SecureConnection> SecureConnection::accept(std::unique_ptr<Connection> connection,
                                                           const Security& security,
                                                           Purpose purpose,
                                                           std::function<bool(char)> passes,
                                                           SecureEvents events) {
  auto state = std::make_shared<State>(security, purpose, Side::kServer, std::move(events));
  state->passes = std::move(passes);
  state->open = security.mode == SecurityMode::kNone && !state->passes;
  state->connection = std::move(connection);
  state->connection->open(state->wire_events());
  return std::unique_ptr<SecureConnection>(new SecureConnection(std::move(state)));
}

SecureConnection::~SecureConnection() {
  state_->connection = nullptr;  // the rest may be in use further up
}

bool SecureConnection::is_open() const { return state_->open; }

bool SecureConnection::passed() const { return state_->passed; }

void SecureConnection::write(std::string bytes) { write(std::move(bytes), {}); }

void SecureConnection::write(std::string bytes, SharedBytes shared) {
  if (!state_->open || state_->connection == nullptr) return;
  state_->write(std::move(bytes), std::move(shared));
}

void SecureConnection::hold() {
  if (state_->connection != nullptr) state_->connection->hold();
}

void SecureConnection::release() {
  if (state_->connection != nullptr) state_->connection->release();
}

void SecureConnection::pause(bool paused) {
  if (state_->connection != nullptr) state_->connection->pause(paused);
}

void SecureConnection::shutdown() {
  if (state_->connection == nullptr) return;
  state_->ending = !state_->unsealed.empty();
  if (!state_->ending) state_->connection->shutdown();
}

bool SecureConnection::congested() const { return state_->congested(); }

size_t SecureConnection::queued_bytes() const {
  if (state_->connection == nullptr) return 0;
  return state_->connection->queued_bytes() + state_->unsealed_bytes;
}

uint64_t SecureConnection::delivered_bytes() const {
  return state_->connection == nullptr ? 0 : state_->connection->delivered_bytes();
}

size_t SecureConnection::kept_bytes() const {
  if (state_->connection == nullptr) return 0;
  const size_t tls_kept = state_->tls == nullptr ? 0 : state_->tls->kept_bytes();
  return state_->connection->kept_bytes() + state_->unsealed_kept + tls_kept;
}

void SecureConnection::limit_kernel_buffers(int bytes) {
  if (state_->connection != nullptr) state_->connection->limit_kernel_buffers(bytes);
}

std::string SecureConnection::peer_host() const {
  return state_->connection == nullptr ? "" : state_->connection->peer_host();
}

void SecureConnection::write_plain(std::string bytes) {
  if (state_->refused && state_->connection != nullptr) state_->connection->write(std::move(bytes));
}

}  // namespace dt::net
