// SPDX-License-Identifier: Apache-2.0
#include "job/host_links.h"

#include <algorithm>

#include "backend/host/host_backend.h"
#include "base/processors.h"
#include "store/protocol.h"

namespace dt::job {
namespace {

// A greeting takes milliseconds. Whoever drops packets is waited for this long, or for half of
// what the rendezvous still has: the other half is to tell everybody.
constexpr int64_t kProbeMs = 10'000;
constexpr int64_t kAnswerMs = 2'000;  // of a process that runs, through the store
constexpr int64_t kGraceMs = 300;     // for what the control plane has to say about a failure

/// The other rank may have failed first, and gone: then that is what happened.
Status first_cause(const Status& status, const Wait& wait) {
  (void)Event().wait(Wait{Deadline::after_ms(kGraceMs), wait.interrupt});
  return wait.interrupted() ? wait.interrupt->status() : status;
}

tcp::Mesh::LookUp make_look_up(const HostLinks::Store& store) {
  return [multi_get = store.multi_get](const std::vector<int32_t>& ranks,
                                       const Wait& wait) -> Result<std::vector<tcp::Peer>> {
    std::vector<std::string> keys;
    for (const int32_t rank : ranks) keys.push_back(store::join_record_key(rank));
    DT_TRY_VALUE(const auto values, multi_get(keys, wait));
    std::vector<tcp::Peer> peers;
    for (size_t i = 0; i < ranks.size(); ++i) {
      store::JoinRecord record;
      if (i >= values.size() || !values[i] || !store::decode(*values[i], &record)) {
        return Status(
            Code::kInternal,
            format("the store has no record of rank %d, which has joined; report this", ranks[i]));
      }
      DT_TRY_VALUE(const net::Address address,
                   net::literal_address(record.reach.address, record.reach.port));
      peers.push_back({record.rank, record.host_name, record.pid, address});
    }
    return peers;
  };
}

}  // namespace

Result<std::unique_ptr<HostLinks>> HostLinks::open(const Config& config, const Self& self,
                                                   const std::string& store_host,
                                                   const std::string& store_address) {
  const std::vector<net::Interface> interfaces = net::list_interfaces();
  const std::string& wanted = config.text("network.interface");
  DT_TRY_VALUE(const auto ports, tcp::parse_port_range(config.text("network.port_range")));
  DT_TRY_VALUE(const net::Address rendezvous, net::literal_address(store_address, 0));
  DT_TRY_VALUE(net::Address address, net::choose_address(wanted, rendezvous, interfaces));
  if (wanted.empty() && net::is_loopback(address) && !net::means_loopback(store_host)) {
    // The name of this host leads to loopback here, and elsewhere to the network.
    if (auto source = net::default_route_source(); source.ok()) address = source.value();
  }
  DT_TRY(net::check_exposure(self.security, address, "this rank"));
  DT_TRY_VALUE(auto listener, tcp::listen_on(address, ports));
  DT_TRY(tcp::set_congestion(listener, config.text("network.congestion")));
  store::Reach reach;
  reach.network_id = self.network_id;
  // Without the name of an interface, which means nothing on another host.
  reach.address = address.host();
  reach.address.resize(std::min(reach.address.size(), reach.address.find('%')));
  reach.port = listener.local().port();
  reach.interfaces = net::interface_texts(interfaces);
  return std::unique_ptr<HostLinks>(
      new HostLinks(self, config, std::move(reach), std::move(listener)));
}

store::Reach HostLinks::reach_of(const Result<std::unique_ptr<HostLinks>>& opened,
                                 const Self& self) {
  if (opened.ok()) return opened.value()->reach_;
  store::Reach reach;
  reach.network_id = self.network_id;
  reach.problem = opened.status().message();
  return reach;
}

Status HostLinks::connect(const store::Verdict& verdict, Store store, const Wait& wait) {
  tcp::Mesh::Options options;
  options.session = verdict.session;
  options.world_size = verdict.world_size;
  options.rank = self_.rank;
  options.host = self_.host_name;
  options.security = self_.security;
  options.congestion = congestion_;
  options.connections = connections_;
  options.look_up = make_look_up(store);
  DT_TRY_VALUE(mesh_, tcp::Mesh::start(std::move(listener_), std::move(options)));
  mesh_->loop()->run([this] { (void)restrict_to(self_.processors); });  // they have been checked
  for (size_t host = 0; host < verdict.hosts.size(); ++host) {
    const auto& ranks = verdict.hosts[host].ranks;
    const auto mine = std::find(ranks.begin(), ranks.end(), self_.rank);
    if (mine == ranks.end()) continue;
    const auto& next = verdict.hosts[(host + 1) % verdict.hosts.size()].ranks;
    if (next.empty()) break;
    return probe(next[static_cast<size_t>(mine - ranks.begin()) % next.size()], store, wait);
  }
  return Status(Code::kInternal,
                format("rank %d finds no next host in the verdict; report this", self_.rank));
}

Status HostLinks::probe(int32_t rank, const Store& store, const Wait& wait) {
  const Deadline limit = Deadline::after_ms(
      std::min(kProbeMs, std::max<int64_t>(wait.deadline.remaining_ms() / 2, 1)));
  const Status status = mesh_->probe(rank, Wait{limit, wait.interrupt});
  if (status.ok()) return status;
  ErrorInfo info = first_cause(status, wait).info();
  if (wait.interrupted()) return Status(std::move(info));
  const tcp::Peer next = mesh_->peer(rank);
  if (info.code == Code::kTimeout || info.code == Code::kPeerLost) {
    const std::string who =
        format("rank %d (%s pid %lld)", rank, next.host.c_str(), static_cast<long long>(next.pid));
    const auto answers = store.answers(rank, Wait{Deadline::after_ms(kAnswerMs), wait.interrupt});
    if (wait.interrupted()) return wait.interrupt->status();
    if (!answers.ok()) {
      info.message += format("; whether %s is up is not known, because the store does not say: %s",
                             who.c_str(), answers.status().message().c_str());
    } else if (answers.value()) {
      info.code = Code::kSystem;
      info.message += format(
          "; %s does answer through the store, so its host is up and the way "
          "between the two is blocked",
          who.c_str());
    } else {
      info.code = Code::kPeerLost;
      info.message += format(
          "; %s does not answer through the store either: its process is "
          "stopped, or its host is down or off the network",
          who.c_str());
    }
  }
  info.rank = next.rank;
  info.host = next.host;
  info.pid = next.pid;
  info.operation = "dt_init";
  info.message = "dt_init: " + info.message;
  return Status(std::move(info));
}

Result<std::shared_ptr<backend::Backend>> HostLinks::among(const store::Verdict& verdict,
                                                           const std::vector<int32_t>& ranks,
                                                           std::shared_ptr<backend::Backend> local,
                                                           backend::MultihostOptions options) {
  backend::Roster& roster = options.roster;
  std::vector<int32_t> host_of(static_cast<size_t>(verdict.world_size));
  for (size_t host = 0; host < verdict.hosts.size(); ++host) {
    for (const int32_t rank : verdict.hosts[host].ranks) {
      if (rank >= 0 && rank < verdict.world_size) host_of[rank] = static_cast<int32_t>(host);
    }
  }
  std::vector<int32_t> hosts;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == self_.rank) roster.rank = static_cast<int32_t>(i);
    hosts.push_back(host_of[ranks[i]]);
  }
  roster.topology = collective::Topology::of(hosts);
  roster.world_ranks = ranks;
  for (const auto& members : roster.topology.hosts) {
    roster.host_names.push_back(verdict.hosts[hosts[members[0]]].host_name);
  }
  options.mesh = mesh_;
  options.local = std::static_pointer_cast<backend::HostBackend>(std::move(local));
  return backend::create_multihost(std::move(options));
}

}  // namespace dt::job
