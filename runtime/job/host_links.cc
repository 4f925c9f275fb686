// SPDX-License-Identifier: Apache-2.0
#include "job/host_links.h"

#include <unistd.h>

#include <algorithm>

#include "backend/host/host_backend.h"
#include "store/protocol.h"

namespace dt::job {
namespace {

constexpr uint32_t kRecordVersion = 1;
constexpr size_t kMaxTextBytes = 2048;
// A greeting takes milliseconds. Whoever drops packets is waited for this long, or for half of
// what the rendezvous still has: the other half is to tell everybody.
constexpr int64_t kProbeMs = 10'000;
constexpr int64_t kGraceMs = 300;  // for what the control plane has to say about a failure

Result<net::Address> address_of(const LinkRecord& record) {
  return net::literal_address(record.address, record.port);
}

std::string who(int32_t rank, const std::string& host, int64_t pid) {
  return format("rank %d (%s pid %lld)", rank, host.c_str(), static_cast<long long>(pid));
}

/// Records of ranks, and with them where they listen.
Result<std::vector<std::pair<store::JoinRecord, LinkRecord>>> read_records(
    const HostLinks::MultiGet& multi_get, const std::vector<int32_t>& ranks, const Wait& wait) {
  std::vector<std::string> keys;
  for (const int32_t rank : ranks) keys.push_back(store::join_record_key(rank));
  DT_TRY_VALUE(const auto values, multi_get(keys, wait));
  std::vector<std::pair<store::JoinRecord, LinkRecord>> result;
  for (size_t i = 0; i < ranks.size(); ++i) {
    store::JoinRecord record;
    LinkRecord links;
    if (i >= values.size() || !values[i] || !store::decode(*values[i], &record)) {
      return Status(
          Code::kInternal,
          format("the store has no record of rank %d, which has joined; report this", ranks[i]));
    }
    if (record.payload.empty()) {  // it tells everybody why, see cannot_open()
      return Status(Code::kConfig,
                    format("%s cannot be reached from other hosts; its own error says why",
                           who(record.rank, record.host_name, record.pid).c_str()));
    }
    if (!LinkRecord::decode(record.payload, &links)) {
      return Status(Code::kVersion,
                    format("%s did not say where it can be reached; run the same version of dt on "
                           "every host",
                           who(record.rank, record.host_name, record.pid).c_str()));
    }
    result.emplace_back(std::move(record), std::move(links));
  }
  return result;
}

/// The other rank may have failed first, and gone: then that is what happened.
Status first_cause(const Status& status, const Wait& wait) {
  (void)Event().wait(Wait{Deadline::after_ms(kGraceMs), wait.interrupt});
  return wait.interrupted() ? wait.interrupt->status() : status;
}

tcp::Mesh::LookUp make_look_up(HostLinks::MultiGet multi_get) {
  return [multi_get = std::move(multi_get)](const std::vector<int32_t>& ranks,
                                            const Wait& wait) -> Result<std::vector<tcp::Peer>> {
    DT_TRY_VALUE(const auto records, read_records(multi_get, ranks, wait));
    std::vector<tcp::Peer> peers;
    for (const auto& [record, links] : records) {
      DT_TRY_VALUE(const net::Address address, address_of(links));
      peers.push_back({record.rank, record.host_name, record.pid, address});
    }
    return peers;
  };
}

}  // namespace

std::string LinkRecord::encode() const {
  store::Writer writer;
  writer.u32(kRecordVersion).text(network_id).text(address).u32(port).text(interfaces);
  return writer.take();
}

bool LinkRecord::decode(std::string_view bytes, LinkRecord* out) {
  store::Reader reader(bytes);
  const uint32_t version = reader.u32();
  out->network_id = reader.text(kMaxTextBytes);
  out->address = reader.text(kMaxTextBytes);
  out->port = static_cast<uint16_t>(reader.u32());
  out->interfaces = reader.text(kMaxTextBytes);
  return reader.done() && version == kRecordVersion && out->port != 0;
}

Status check_addresses(const std::string& from, const LinkRecord& own, const std::string& to,
                       const LinkRecord& other) {
  if (own.network_id == other.network_id) return {};  // one network stack: any address will do
  DT_TRY_VALUE(const net::Address here, address_of(own));
  DT_TRY_VALUE(const net::Address there, address_of(other));
  const bool loopback = net::is_loopback(there) || net::is_loopback(here);
  if (!loopback && !net::same_host_address(here, there)) return {};
  const std::string what =
      loopback ? "a loopback address reaches no other host" : "two hosts gave the same address";
  return Status(Code::kConfig,
                format("%s: %s is at %s and %s at %s; the first host has %s; the second has %s; "
                       "choose with network.interface (a name, a network as 10.1.0.0/16, or an "
                       "address), and give a job.master_addr that is no loopback address",
                       what.c_str(), from.c_str(), own.address.c_str(), to.c_str(),
                       other.address.c_str(), own.interfaces.c_str(), other.interfaces.c_str()));
}

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
  DT_TRY_VALUE(auto listener, tcp::listen_on(address, ports));
  LinkRecord record;
  record.network_id = self.network_id;
  // Without the name of an interface, which means nothing on another host.
  record.address = address.host();
  record.address.resize(std::min(record.address.size(), record.address.find('%')));
  record.port = listener.local().port();
  record.interfaces = net::interfaces_text(interfaces);
  return std::unique_ptr<HostLinks>(new HostLinks(self, std::move(record), std::move(listener)));
}

Status HostLinks::cannot_open(const Status& why, int32_t rank, const std::string& host_name) {
  ErrorInfo info = why.info();
  info.rank = rank;
  info.host = host_name;
  info.pid = getpid();
  info.operation = "dt_init";
  info.message = "dt_init: " + who(rank, host_name, info.pid) + ": " + info.message;
  return Status(std::move(info));
}

Status HostLinks::connect(const store::Verdict& verdict, MultiGet multi_get, const Wait& wait) {
  tcp::Mesh::Options options;
  options.session = verdict.session;
  options.rank = self_.rank;
  options.host = self_.host_name;
  options.look_up = make_look_up(multi_get);
  DT_TRY_VALUE(mesh_, tcp::Mesh::start(std::move(listener_), std::move(options)));
  for (size_t host = 0; host < verdict.hosts.size(); ++host) {
    const auto& ranks = verdict.hosts[host].ranks;
    const auto mine = std::find(ranks.begin(), ranks.end(), self_.rank);
    if (mine == ranks.end()) continue;
    const auto& next = verdict.hosts[(host + 1) % verdict.hosts.size()].ranks;
    return probe(next[static_cast<size_t>(mine - ranks.begin()) % next.size()], multi_get, wait);
  }
  return Status(Code::kInternal,
                format("rank %d is on no host of the verdict; report this", self_.rank));
}

Status HostLinks::probe(int32_t rank, const MultiGet& multi_get, const Wait& wait) {
  const auto found = read_records(multi_get, {rank}, wait);
  if (!found.ok()) return first_cause(found.status(), wait);
  const auto& [next, links] = found.value()[0];
  const std::string to = who(next.rank, next.host_name, next.pid);
  Status status = check_addresses(format("rank %d (%s)", self_.rank, self_.host_name.c_str()),
                                  record_, to, links);
  if (status.ok()) {
    const Deadline limit = Deadline::after_ms(
        std::min(kProbeMs, std::max<int64_t>(wait.deadline.remaining_ms() / 2, 1)));
    status = mesh_->probe(rank, Wait{limit, wait.interrupt});
  }
  if (status.ok()) return status;
  ErrorInfo info = first_cause(status, wait).info();
  if (wait.interrupted()) return Status(std::move(info));
  // The rank lives: it has just joined. What fails is the way to it.
  if (info.code == Code::kTimeout || info.code == Code::kPeerLost) {
    info.code = Code::kSystem;
    info.message += format(" (%s does answer on the store, so its host is up)", to.c_str());
  }
  info.rank = next.rank;
  info.host = next.host_name;
  info.pid = next.pid;
  info.operation = "dt_init";
  info.message = "dt_init: " + info.message;
  return Status(std::move(info));
}

Result<std::shared_ptr<backend::Backend>> HostLinks::world(const store::Verdict& verdict,
                                                           std::shared_ptr<backend::Backend> local,
                                                           backend::MultihostOptions options,
                                                           Deadline deadline) {
  backend::Roster& roster = options.roster;
  roster.rank = self_.rank;
  std::vector<int32_t> hosts(static_cast<size_t>(verdict.world_size));
  for (size_t host = 0; host < verdict.hosts.size(); ++host) {
    for (const int32_t rank : verdict.hosts[host].ranks) {
      if (rank >= 0 && rank < verdict.world_size) hosts[rank] = static_cast<int32_t>(host);
    }
  }
  roster.topology = collective::Topology::of(hosts);
  for (int32_t rank = 0; rank < verdict.world_size; ++rank) roster.world_ranks.push_back(rank);
  for (const auto& members : roster.topology.hosts) {
    roster.host_names.push_back(verdict.hosts[hosts[members[0]]].host_name);
  }
  options.mesh = mesh_;
  // A launcher may number local ranks as it likes; the schedule wants them in the order of ranks.
  auto part = std::static_pointer_cast<backend::HostBackend>(std::move(local));
  const bool ascending = std::is_sorted(
      verdict.locals.begin(), verdict.locals.end(),
      [](const store::LocalRecord& a, const store::LocalRecord& b) { return a.rank < b.rank; });
  if (!ascending) {
    DT_TRY_VALUE(auto ordered, part->split_as(true, 0, self_.rank, roster.name, deadline));
    part = std::static_pointer_cast<backend::HostBackend>(ordered.backend);
  }
  options.local = std::move(part);
  return backend::create_multihost(std::move(options));
}

}  // namespace dt::job
