// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/host/host.h"
#include "backend/multihost/multihost.h"
#include "config/config.h"
#include "net/interfaces.h"
#include "store/messages.h"
#include "transport/tcp/mesh.h"

namespace dt::job {

/// The way from one rank to the ranks of other hosts. Opened before the join, because the join
/// carries its address; dropped after it when the job has one host.
class HostLinks {
 public:
  /// The store as a link needs it. Any thread.
  struct Store {
    /// One value for each key.
    std::function<Result<std::vector<std::optional<std::string>>>(
        const std::vector<std::string>& keys, const Wait& wait)>
        multi_get;
    /// Whether the process of a rank answers the store.
    std::function<Result<bool>(int32_t rank, const Wait& wait)> answers;
  };
  struct Self {
    int32_t rank = 0;
    std::string host_name;
    std::string network_id;
    net::Security security;           ///< of the connections
    std::vector<int32_t> processors;  ///< of the thread that moves their data; empty: as the caller
  };

  /// Chooses the address (network.interface, else by the route to the store, or to anywhere
  /// where the store's name leads to loopback) and listens there. `store_host`: as the job names
  /// it; `store_address`: numeric, where this rank found it.
  static Result<std::unique_ptr<HostLinks>> open(const Config& config, const Self& self,
                                                 const std::string& store_host,
                                                 const std::string& store_address);
  /// For the join: where this rank listens, or why it does not, which matters only where there are
  /// other hosts.
  static store::Reach reach_of(const Result<std::unique_ptr<HostLinks>>& opened, const Self& self);

  /// After the join: starts the mesh and greets a rank of the next host, so that all hosts form a
  /// ring. The error names the pair, and says whether the other side is up; the caller tells the
  /// other ranks.
  Status connect(const store::Verdict& verdict, Store store, const Wait& wait);
  /// The communicator of `ranks`, of several hosts. `local`: those of this host in that order, made
  /// as a part; `options.roster` has the name.
  Result<std::shared_ptr<backend::Backend>> among(const store::Verdict& verdict,
                                                  const std::vector<int32_t>& ranks,
                                                  std::shared_ptr<backend::Backend> local,
                                                  backend::MultihostOptions options);

 private:
  HostLinks(Self self, const Config& config, store::Reach reach, tcp::Socket listener)
      : self_(std::move(self)),
        congestion_(config.text("network.congestion")),
        connections_(static_cast<int32_t>(config.integer("network.connections"))),
        reach_(std::move(reach)),
        listener_(std::move(listener)) {}
  Status probe(int32_t rank, const Store& store, const Wait& wait);

  const Self self_;
  const std::string congestion_;  ///< network.congestion
  const int32_t connections_;     ///< network.connections
  const store::Reach reach_;
  tcp::Socket listener_;
  std::shared_ptr<tcp::Mesh> mesh_;
};

}  // namespace dt::job
