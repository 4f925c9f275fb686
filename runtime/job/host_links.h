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

/// What a rank tells ranks of other hosts in its join record.
struct LinkRecord {
  std::string network_id;  ///< equal: same network stack, so loopback reaches it
  std::string address;     ///< numeric
  uint16_t port = 0;
  std::string interfaces;  ///< all of its host's, for messages

  std::string encode() const;
  static bool decode(std::string_view bytes, LinkRecord* out);
};

/// Whether the first of two ranks can be told to reach the second at its address: ok, or CONFIG
/// with the interfaces of both sides when that is a loopback address or the first's own.
Status check_addresses(const std::string& from, const LinkRecord& own, const std::string& to,
                       const LinkRecord& other);

/// The way from one rank to the ranks of other hosts. Opened before the join, because the join
/// carries its address; dropped after it when the job has one host.
class HostLinks {
 public:
  /// Reads records of the store: one value for each key.
  using MultiGet = std::function<Result<std::vector<std::optional<std::string>>>(
      const std::vector<std::string>& keys, const Wait& wait)>;
  struct Self {
    int32_t rank = 0;
    std::string host_name;
    std::string network_id;
  };

  /// Chooses the address (network.interface, else by the route to the store, or to anywhere
  /// where the store's name leads to loopback) and listens there. `store_host`: as the job names
  /// it; `store_address`: numeric, where this rank found it.
  static Result<std::unique_ptr<HostLinks>> open(const Config& config, const Self& self,
                                                 const std::string& store_host,
                                                 const std::string& store_address);
  /// What a rank that could not open its links tells the others, when there are other hosts.
  static Status cannot_open(const Status& why, int32_t rank, const std::string& host_name);
  std::string payload() const { return record_.encode(); }

  /// After the join: starts the mesh and greets a rank of the next host, so that all hosts form a
  /// ring. The error names the pair; the caller tells the other ranks.
  Status connect(const store::Verdict& verdict, MultiGet multi_get, const Wait& wait);
  /// The communicator of all ranks. `local`: the ranks of this host by local rank, made as a part.
  Result<std::shared_ptr<backend::Backend>> world(const store::Verdict& verdict,
                                                  std::shared_ptr<backend::Backend> local,
                                                  backend::MultihostOptions options,
                                                  Deadline deadline);

 private:
  HostLinks(Self self, LinkRecord record, tcp::Socket listener)
      : self_(std::move(self)), record_(std::move(record)), listener_(std::move(listener)) {}
  Status probe(int32_t rank, const MultiGet& multi_get, const Wait& wait);

  const Self self_;
  const LinkRecord record_;
  tcp::Socket listener_;
  std::shared_ptr<tcp::Mesh> mesh_;
};

}  // namespace dt::job
