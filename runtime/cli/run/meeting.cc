// SPDX-License-Identifier: Apache-2.0
// How the agents of a job meet. The other half of Fleet.
#include <sys/eventfd.h>

#include <algorithm>

#include "base/number.h"
#include "base/thread.h"
#include "cli/run/fleet.h"
#include "net/host_port.h"
#include "net/interfaces.h"
#include "store/protocol.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr int64_t kMeetingAnswerMs = 10'000;  // for a store that has answered before
constexpr int64_t kMeetingTellMs = 2'000;     // it is only for the others' texts
constexpr int64_t kResolveAgainMs = 500;
constexpr size_t kMaxJobIdBytes = 1 << 10;
constexpr const char* kJobKey = "job";
constexpr const char* kRefusedKey = "refused";

std::string node_key(int node) { return "node/" + std::to_string(node); }

std::string process_text(const std::string& host, int64_t pid) {
  return format("host %s pid %lld", host.c_str(), static_cast<long long>(pid));
}

/// Of " a:1 b:2".
std::vector<std::string> split_addresses(const std::string& text) {
  std::vector<std::string> addresses;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin + 1), text.size());
    addresses.push_back(text.substr(begin + 1, end - begin - 1));
    begin = end;
  }
  return addresses;
}

std::string refusal_text(const std::optional<std::string>& refused) {
  return refused ? "; an agent was refused: " + *refused : std::string();
}

}  // namespace

Result<std::unique_ptr<Fleet>> Fleet::meet(net::Loop* loop, const FleetOptions& options,
                                           const Wait& wait) {
  std::unique_ptr<Fleet> fleet(new Fleet(loop, options));
  fleet->port_ = options.node.port;
  fleet->wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fleet->wake_.is_open()) {
    return Status(Code::kSystem, "cannot make an event descriptor: " + errno_text(errno));
  }
  if (fleet->node_rank() == 0) DT_TRY(fleet->serve(wait));
  DT_TRY(fleet->check_in(wait));
  DT_TRY(fleet->join(wait));
  // From here on the others count on this agent: a signal may come, but they must hear of it.
  DT_TRY(fleet->read_records(Wait{Deadline::after_ms(kMeetingAnswerMs), nullptr}));
  return fleet;
}

std::string Fleet::address() const { return net::host_port_text(options_.node.host, port_); }

std::string Fleet::self() const { return process_text(options_.host_name, options_.pid); }

std::string Fleet::bind_address() const { return server_->bound_address(); }

std::string Fleet::reachable_host() const {
  const std::string bound = server_->bound_address();
  return net::means_anywhere(bound) ? options_.node.host : bound;
}

std::string Fleet::host_seen_here(const std::string& told) const {
  return net::means_anywhere(told) ? options_.node.host : told;
}

Result<std::string> await_bind_host(const std::string& name, const LoggerPtr& logger,
                                    const Wait& wait) {
  for (bool told = false;; told = true) {
    auto host = net::bind_host(name);
    if (host.ok() || wait.deadline.passed() || wait.interrupted()) return host;
    if (!told && logger) {
      logger->log(LogLevel::kWarning, "%s; trying again for %s", host.status().message().c_str(),
                  store::seconds_text(wait.deadline.remaining_ms()).c_str());
    }
    Event nothing;
    nothing.wait({Deadline::after_ms(kResolveAgainMs).earlier(wait.deadline), wait.interrupt});
  }
}

Status Fleet::serve(const Wait& wait) {
  store::ServerOptions server;
  server.job_id = "agents " + options_.node.job_id;
  server.world_size = options_.node.node_count;
  server.server_rank = 0;
  server.host = options_.host_name;
  server.pid = options_.pid;
  server.port = options_.node.port;
  server.bind_address = options_.bind_address;
  server.security = options_.security;
  server.heartbeat_ms = options_.heartbeat_ms;
  server.heartbeat_timeout_ms = options_.heartbeat_timeout_ms;
  server.logger = options_.logger;
  server.on_verdict = options_.on_verdict;
  server.on_report = [this](const store::Failure& failure) { return hear_end(failure); };
  Status status;
  if (server.bind_address.empty()) {
    auto host = await_bind_host(options_.node.host, options_.logger, wait);
    status = host.status();
    if (host.ok()) server.bind_address = host.value();
  }
  if (status.ok()) {
    auto started = store::Server::start(loop_, server);
    status = started.status();
    if (started.ok()) server_ = std::move(started).value();
  }
  if (status.ok()) {
    port_ = server_->port();
    return options_.on_served ? options_.on_served(reachable_host(), port_) : Status();
  }
  if (wait.interrupted()) return wait.interrupt->status();
  return Status(status.code(),
                format("node 0 (%s) cannot serve the meeting of the nodes: %s; the rendezvous "
                       "(%s) must be an address of node 0 and a port that is free there: give "
                       "another with --rendezvous on every node",
                       self().c_str(), status.message().c_str(), address().c_str()));
}

Result<std::shared_ptr<store::Client>> Fleet::connect(int rank, const Wait& wait) const {
  store::ClientOptions client;
  client.host = server_ != nullptr ? reachable_host() : options_.node.host;
  client.port = port_;
  client.job_id = "agents " + options_.node.job_id;
  client.rank = rank;
  client.world_size = options_.node.node_count;
  client.host_name = options_.host_name;
  client.pid = options_.pid;
  client.security = options_.security;
  return store::Client::connect(loop_, client, wait);
}

/// An agent that is started rightly may still come in this one's place, so the others go on
/// waiting; when they say for whom, they say this too.
Status Fleet::refused(const std::string& why) const {
  (void)keys_->set(kRefusedKey, why, Wait{Deadline::after_ms(kMeetingTellMs), nullptr});
  return Status(Code::kConfig, why);
}

/// Compares what every agent was given, and takes this node's place.
Status Fleet::check_in(const Wait& wait) {
  const NodePlace& node = options_.node;
  auto keys = connect(-1, wait);
  if (!keys.ok()) {
    if (wait.interrupted()) return keys.status();
    return keys.status().within(
        format("node %d (%s) cannot join the agent of node 0", node.node_rank, self().c_str()));
  }
  keys_ = std::move(keys).value();
  const store::Welcome& welcome = keys_->welcome();
  const std::string server = process_text(welcome.server.host, welcome.server.pid);
  if (welcome.world_size != node.node_count) {
    return refused(format(
        "node 0 (%s) was started for %d nodes, this one (node %d, %s) for %d; give "
        "every agent the same --nnodes",
        server.c_str(), welcome.world_size, node.node_rank, self().c_str(), node.node_count));
  }
  auto member = connect(node.node_rank, wait);
  if (!member.ok() && member.status().code() == Code::kConfig) {
    // Job, attempt and size are right, so somebody else is this node.
    const Wait answer{Deadline::after_ms(kMeetingAnswerMs), wait.interrupt};
    DT_TRY_VALUE(const auto taken, keys_->multi_get({node_key(node.node_rank)}, answer));
    return refused(
        format("node rank %d is taken by another agent (%s); this one (%s) is refused; "
               "give every node its own --node-rank",
               node.node_rank, taken[0].value_or("it has just come").c_str(), self().c_str()));
  }
  if (!member.ok()) return member.status();
  member_ = std::move(member).value();
  if (node.node_rank == 0) {
    store::Writer job;
    job.text(options_.job_id).i32(options_.max_restarts);
    DT_TRY(keys_->set(kJobKey, job.take(), wait));
  }
  return keys_->set(node_key(node.node_rank), self(), wait);
}

Status Fleet::join(const Wait& wait) {
  store::JoinRecord record;
  record.rank = node_rank();
  record.world_size = options_.node.node_count;
  record.host_name = options_.host_name;
  record.host_id = options_.host_name;
  record.pid = options_.pid;
  record.payload = std::to_string(options_.local_size);
  if (options_.open_servers) {
    DT_TRY_VALUE(const std::vector<std::string> servers, options_.open_servers(wait));
    for (const std::string& address : servers) record.payload += " " + address;
  }
  member_->on_failure([this](const store::Failure& failure) { hear(failure); });
  Event joined;
  DT_TRY_VALUE(std::thread reminder,
               start_thread("says which nodes are missing", [&] { remind(joined); }));
  if (options_.on_join) options_.on_join();
  const Result<store::Verdict> verdict = member_->join(record, wait);
  joined.set();
  reminder.join();
  if (verdict.ok()) {
    for (const auto& client : {member_, keys_}) {
      store::Client::Observers observers;
      observers.activity = [] { return store::Activity(); };
      client->observe(std::move(observers));
    }
    return {};
  }
  if (verdict.status().code() != Code::kTimeout || wait.interrupted()) return verdict.status();
  return missing_nodes(verdict.status(), wait);
}

/// Node 0 says from time to time whom it waits for: the others only know that it is there.
void Fleet::remind(Event& joined) const {
  if (node_rank() != 0 || options_.logger == nullptr) return;
  std::vector<std::string> keys;
  for (int node = 0; node < options_.node.node_count; ++node) keys.push_back(node_key(node));
  keys.push_back(kRefusedKey);
  while (!joined.wait({Deadline::after_ms(options_.remind_ms)})) {
    const auto there = keys_->multi_get(keys, Wait{Deadline::after_ms(kMeetingAnswerMs), nullptr});
    std::vector<int32_t> missing;
    for (size_t node = 0; there.ok() && node + 1 < keys.size(); ++node) {
      if (!there.value()[node]) missing.push_back(static_cast<int32_t>(node));
    }
    if (missing.empty()) continue;
    options_.logger->log(LogLevel::kWarning, "%zu of %d nodes have not come to %s yet: %s %s%s",
                         missing.size(), options_.node.node_count, address().c_str(),
                         missing.size() == 1 ? "node" : "nodes", store::rank_list(missing).c_str(),
                         refusal_text(there.value().back()).c_str());
  }
}

/// `joined` is the store's own word; this one names nodes.
Status Fleet::missing_nodes(const Status& joined, const Wait& wait) const {
  std::vector<std::string> keys;
  for (int node = 0; node < options_.node.node_count; ++node) keys.push_back(node_key(node));
  keys.push_back(kRefusedKey);
  const auto there =
      keys_->multi_get(keys, Wait{Deadline::after_ms(kMeetingAnswerMs), wait.interrupt});
  if (!there.ok()) return joined;
  std::vector<std::string> came;
  std::vector<int32_t> missing;
  for (int32_t node = 0; node < options_.node.node_count; ++node) {
    const std::optional<std::string>& who = there.value()[static_cast<size_t>(node)];
    const bool left = who && node == joined.info().rank;
    if (!who || left) missing.push_back(node);
    if (who) came.push_back(format("%d (%s%s)", node, who->c_str(), left ? ", left again" : ""));
  }
  return Status(Code::kTimeout,
                format("%zu of %d nodes did not come to %s within %s: missing %s %s; there: %s%s; "
                       "start dt run there with the same --rendezvous and --nnodes, or raise "
                       "rendezvous.timeout_ms",
                       missing.size(), options_.node.node_count, address().c_str(),
                       store::seconds_text(options_.timeout_ms).c_str(),
                       missing.size() == 1 ? "node" : "nodes", store::rank_list(missing).c_str(),
                       store::item_list(came).c_str(), refusal_text(there.value().back()).c_str()));
}

/// The ranks of all nodes go on without one that failed, or those of none.
Status Fleet::check_servers() const {
  for (size_t node = 1; node < nodes_.size(); ++node) {
    if (nodes_[node].servers.empty() == nodes_[0].servers.empty()) continue;
    return Status(
        Code::kConfig,
        format("node 0 (%s) was started with --servers %zu, node %zu (%s) with --servers "
               "%zu; give every node some parameter servers, or none",
               process_text(nodes_[0].host, nodes_[0].pid).c_str(), nodes_[0].servers.size(), node,
               process_text(nodes_[node].host, nodes_[node].pid).c_str(),
               nodes_[node].servers.size()));
  }
  return {};
}

Status Fleet::read_records(const Wait& wait) {
  std::vector<std::string> keys{kJobKey};
  for (int node = 0; node < options_.node.node_count; ++node) {
    keys.push_back(store::join_record_key(node));
  }
  DT_TRY_VALUE(const auto values, keys_->multi_get(keys, wait));
  const Status nonsense(Code::kInternal, "what the agents say of themselves makes no sense");
  const std::string described = values[0].value_or("");
  store::Reader job(described);
  job_id_ = job.text(kMaxJobIdBytes);
  max_restarts_ = job.i32();
  if (!job.done()) return nonsense;
  int first_rank = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    store::JoinRecord record;
    if (!values[i] || !decode(*values[i], &record)) return nonsense;
    NodeRecord node;
    node.host = record.host_name;
    node.pid = record.pid;
    const size_t space = std::min(record.payload.find(' '), record.payload.size());
    node.local_size = parse_number<int>(record.payload.substr(0, space)).value_or(0);
    node.servers = split_addresses(record.payload.substr(space));
    node.first_rank = first_rank;
    if (node.local_size < 1 || node.local_size > kMaxLocalRanks) return nonsense;
    if (node.servers.size() > static_cast<size_t>(kMaxLocalRanks)) return nonsense;
    for (std::string& address : node.servers) {
      const auto parsed = net::parse_host_port(address);
      if (!parsed.ok()) return nonsense;
      if (i != 1) continue;  // the other nodes know where they reach node 0 from
      address = net::host_port_text(host_seen_here(parsed.value().host), parsed.value().port);
    }
    first_rank += node.local_size;
    nodes_.push_back(std::move(node));
  }
  DT_TRY(check_servers());
  if (first_rank <= kMaxWorldSize) return {};
  return Status(Code::kInvalidArgument,
                format("%d ranks on %zu nodes are more than a job may have (%d)", first_rank,
                       nodes_.size(), kMaxWorldSize));
}

}  // namespace dt::cli
