// SPDX-License-Identifier: Apache-2.0
#include "ps/client_core.h"

#include <algorithm>

namespace dt::ps {
namespace {

constexpr int64_t kClientTickMs = 50;

}  // namespace

ClientCore::ClientCore(const Client::Options& options, std::shared_ptr<Client::Room> room,
                       net::Loop* loop)
    : options_(options), room_(std::move(room)), timer_(loop, [this] { tick(); }) {
  for (size_t i = 0; i < options.servers.size(); ++i) {
    servers_.push_back(std::make_unique<ServerLink>(this, loop, options, static_cast<int32_t>(i)));
  }
}

ClientCore::~ClientCore() { close(); }

void ClientCore::close() {
  for (const auto& server : servers_) server->close();
}

Status ClientCore::begin() {
  DT_TRY(net::random_bytes(&nonce_, sizeof nonce_));
  for (const auto& server : servers_) server->begin();
  timer_.start(kClientTickMs);
  return {};
}

void ClientCore::ask(size_t server, std::shared_ptr<Request> request) {
  servers_[server]->ask(std::move(request));
}

void ClientCore::on_state() {
  if (ready.is_set()) return;
  int64_t clock = 0;
  for (const auto& server : servers_) {
    if (!server->fatal().ok()) {
      ready_status = server->fatal();
      return ready.set();
    }
    if (!server->connected()) return;
    clock = std::max(clock, server->lowest_clock());
  }
  if (options_.worker >= 0) clock_ = clock;
  ready.set();
}

void ClientCore::end_request(const Request& request) {
  room_->bytes -= static_cast<int64_t>(request.payload.size()) + request.answer_bytes;
  room_->bell.ring();
}

std::string ClientCore::missing() const {
  for (const auto& server : servers_) {
    if (!server->connected()) return server->text() + ": " + server->state();
  }
  return "all are there";
}

void ClientCore::tick() {
  const int64_t now = monotonic_ns();
  for (const auto& server : servers_) {
    server->sign(now);
    server->look_for_overdue();
  }
  timer_.start(kClientTickMs);
}

}  // namespace dt::ps
