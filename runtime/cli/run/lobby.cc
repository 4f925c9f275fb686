// SPDX-License-Identifier: Apache-2.0
#include "cli/run/lobby.h"

#include <algorithm>

#include "base/number.h"
#include "cli/run/fleet.h"
#include "net/interfaces.h"
#include "store/protocol.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr int64_t kLobbyAnswerMs = 10'000;   // for a store of this process
constexpr int64_t kBeatMs = 1'000;           // how long the loss of the lead may stay unnoticed
constexpr int64_t kAliveNs = 8'000'000'000;  // without a sign, each kBeatMs, on a busy machine
constexpr int64_t kLobbyFarewellMs = 3'000;
constexpr size_t kMaxWhy = 1 << 14;
constexpr const char* kWaitingPrefix = "waiting/";
constexpr const char* kTextKey = "text";
constexpr const char* kStandingKey = "standing";

Wait wait_of(int64_t timeout_ms) { return {Deadline::after_ms(timeout_ms), nullptr}; }

std::string waiting_key(const Seat& seat) {
  return format("%s%016llx", kWaitingPrefix, static_cast<unsigned long long>(seat.nonce));
}

std::string beats_key(const Seat& seat) {
  return format("beats/%016llx", static_cast<unsigned long long>(seat.nonce));
}

std::string offer_key(const Presence& presence) {
  return format("offer/%016llx/%lld", static_cast<unsigned long long>(presence.seat.nonce),
                static_cast<long long>(presence.serial));
}

std::string lobby_id(const LobbyOptions& options) { return "agents " + options.node.job_id; }

std::string address_text(const LobbyOptions& options, int address) {
  const net::HostPort& at = options.node.addresses[static_cast<size_t>(address)];
  return net::host_port_text(at.host, at.port);
}

}  // namespace

Lobby::~Lobby() {
  client_.reset();
  if (server_ != nullptr) (void)server_->wait_empty(wait_of(kLobbyFarewellMs));
}

Result<std::shared_ptr<store::Client>> Lobby::connect(const std::string& host, uint16_t port,
                                                      const Wait& wait) const {
  store::ClientOptions client;
  client.host = host;
  client.port = port;
  client.job_id = lobby_id(options_);
  client.host_name = options_.host_name;
  client.pid = options_.pid;
  client.security = options_.security;
  return store::Client::connect(loop_, client, wait);
}

Result<std::unique_ptr<Lobby>> Lobby::open(net::Loop* loop, const LobbyOptions& options,
                                           const Wait& wait) {
  std::unique_ptr<Lobby> lobby(new Lobby(loop, options));
  const NodePlace& node = options.node;
  const net::HostPort& own = node.addresses[static_cast<size_t>(node.node_rank)];
  lobby->address_ = address_text(options, node.node_rank);
  store::ServerOptions server;
  server.job_id = lobby_id(options);
  server.world_size = node.node_count;
  server.server_rank = node.node_rank;
  server.host = options.host_name;
  server.pid = options.pid;
  server.port = own.port;
  server.bind_address = options.bind_address;
  server.security = options.security;
  server.logger = options.logger;
  Status status;
  if (server.bind_address.empty()) {
    auto host = await_bind_host(own.host, options.logger, wait);
    status = host.status();
    if (host.ok()) server.bind_address = host.value();
  }
  if (status.ok()) {
    auto started = store::Server::start(loop, server);
    status = started.status();
    if (started.ok()) lobby->server_ = std::move(started).value();
  }
  if (wait.interrupted()) return wait.interrupt->status();
  if (!status.ok()) {
    return Status(status.code(),
                  format("node %d (host %s pid %lld) cannot serve the meeting of the nodes: %s; "
                         "address %d of the rendezvous (%s) must be one of node %d, with a port "
                         "that is free there: give another with --rendezvous on every node",
                         node.node_rank, options.host_name.c_str(),
                         static_cast<long long>(options.pid), status.message().c_str(),
                         node.node_rank + 1, lobby->address_.c_str(), node.node_rank));
  }
  const std::string bound = lobby->server_->bound_address();
  DT_TRY_VALUE(lobby->client_, lobby->connect(net::means_anywhere(bound) ? own.host : bound,
                                              lobby->server_->port(), wait));
  return lobby;
}

Result<std::unique_ptr<Lobby>> Lobby::visit(net::Loop* loop, const LobbyOptions& options,
                                            int address, const Wait& wait) {
  std::unique_ptr<Lobby> lobby(new Lobby(loop, options));
  const NodePlace& node = options.node;
  const net::HostPort& at = node.addresses[static_cast<size_t>(address)];
  lobby->address_ = address_text(options, address);
  lobby->host_ = at.host;
  DT_TRY_VALUE(lobby->client_, lobby->connect(at.host, at.port, wait));
  const store::Welcome& welcome = lobby->client_->welcome();
  if (welcome.world_size == node.node_count) return lobby;
  return Status(
      Code::kConfig,
      format("node %d (host %s pid %lld) was started for %d nodes, this one (node %d, "
             "host %s pid %lld) for %d; give every agent the same --nnodes",
             welcome.server.rank, welcome.server.host.c_str(),
             static_cast<long long>(welcome.server.pid), welcome.world_size, node.node_rank,
             options.host_name.c_str(), static_cast<long long>(options.pid), node.node_count));
}

std::optional<Standing> Lobby::standing_of(net::Loop* loop, const LobbyOptions& options,
                                           int address, const Wait& wait) {
  Lobby lobby(loop, options);
  const net::HostPort& at = options.node.addresses[static_cast<size_t>(address)];
  const auto tool = lobby.connect(at.host, at.port, wait);
  if (!tool.ok() || tool.value()->welcome().world_size != options.node.node_count) return {};
  const auto values = tool.value()->multi_get({kStandingKey}, wait);
  if (!values.ok() || !values.value()[0]) return {};
  store::Reader reader(*values.value()[0]);
  Standing standing;
  standing.attempt = reader.i32();
  standing.agents = reader.i32();
  return reader.done() ? std::optional(standing) : std::nullopt;
}

Status Lobby::present(const Presence& presence, const Wait& wait) {
  return client_->set(waiting_key(presence.seat), encode(presence), wait);
}

Result<Offer> Lobby::await_offer(const Presence& presence, const Wait& wait) {
  const std::string key = offer_key(presence);
  for (;;) {
    const Wait renewed{Deadline::after_ms(kBeatMs).earlier(wait.deadline), wait.interrupt};
    const Result<std::string> value = client_->get(key, renewed);
    if (value.ok()) {
      Offer offer;
      if (decode(value.value(), &offer)) {
        if (net::means_anywhere(offer.roster.host)) offer.roster.host = host_;
        return offer;
      }
      return Status(Code::kInternal, "the agent at " + address_ +
                                         " makes no sense; use the same "
                                         "release of dt on all nodes");
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (value.status().code() != Code::kTimeout) return value.status();
    const auto alive = client_->add(beats_key(presence.seat), 1,
                                    {Deadline::after_ms(options_.answer_ms), wait.interrupt});
    if (wait.interrupted()) return wait.interrupt->status();
    if (!alive.ok()) return Status(Code::kPeerLost, alive.status().message());
    if (wait.deadline.passed()) return value.status();
  }
}

void Lobby::on_lost(std::function<void()> lost) {
  if (!lost) return client_->on_failure({});
  client_->on_failure([lost = std::move(lost)](const store::Failure& failure) {
    if (failure.store_gone) lost();
  });
}

std::string Lobby::lead_text() {
  const auto values = client_->multi_get({kTextKey}, wait_of(kLobbyAnswerMs));
  return values.ok() ? values.value()[0].value_or("").substr(0, kMaxWhy) : std::string();
}

bool Lobby::is_alive(uint64_t nonce, const std::optional<std::string>& beats) {
  const int64_t now_ns = monotonic_ns();
  const int64_t count = parse_number<int64_t>(beats.value_or("0")).value_or(0);
  const auto [found, is_new] = signs_.try_emplace(nonce);
  Signs& signs = found->second;
  if (is_new) signs.order = signs_.size();
  if (is_new || count != signs.beats) signs.moved_ns = now_ns;
  signs.beats = count;
  return now_ns - signs.moved_ns <= kAliveNs;
}

Result<std::vector<Presence>> Lobby::waiting(const Wait& wait) {
  const Wait answer{Deadline::after_ms(kLobbyAnswerMs), wait.interrupt};
  DT_TRY_VALUE(const std::vector<std::string> keys, client_->list(kWaitingPrefix, answer));
  DT_TRY_VALUE(const auto values, client_->multi_get(keys, answer));
  std::vector<Presence> found;
  std::vector<std::string> beats;
  for (size_t i = 0; i < keys.size(); ++i) {
    Presence presence;
    if (!values[i] || !decode(*values[i], &presence)) continue;
    const bool in_range = presence.seat.node >= 0 && presence.seat.node < options_.node.node_count;
    if (!in_range || answered_.count({presence.seat.nonce, presence.serial}) != 0) continue;
    beats.push_back(beats_key(presence.seat));
    found.push_back(std::move(presence));
  }
  if (found.empty()) return found;
  DT_TRY_VALUE(const auto counts, client_->multi_get(beats, answer));
  std::vector<Presence> alive;
  for (size_t i = 0; i < found.size(); ++i) {
    const bool own = found[i].seat.nonce == options_.nonce;
    if (is_alive(found[i].seat.nonce, counts[i]) || own) alive.push_back(std::move(found[i]));
  }
  std::sort(alive.begin(), alive.end(), [&](const Presence& a, const Presence& b) {
    return signs_[a.seat.nonce].order < signs_[b.seat.nonce].order;
  });
  return alive;
}

Status Lobby::answer(const std::vector<Presence>& whom, const Offer& offer) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const std::string text = encode(offer);
  for (const Presence& each : whom) pairs.emplace_back(offer_key(each), text);
  // Those that may not have heard it wait still, and are answered again.
  DT_TRY(client_->multi_set(pairs, wait_of(kLobbyAnswerMs)));
  for (const Presence& each : whom) answered_.insert({each.seat.nonce, each.serial});
  return {};
}

void Lobby::tell(const std::string& text, const Standing& standing) {
  store::Writer writer;
  writer.i32(standing.attempt).i32(standing.agents);
  (void)client_->multi_set({{kTextKey, text}, {kStandingKey, writer.take()}},
                           wait_of(kLobbyAnswerMs));
}

}  // namespace dt::cli
