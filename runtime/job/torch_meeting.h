// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "config/config.h"
#include "launch/discover.h"
#include "net/host_port.h"
#include "net/loop.h"
#include "store/torch_client.h"

namespace dt::job {

/// The store that PyTorch serves for this job, and how the ranks of dt meet there: rank 0 serves
/// dt's own store on a port that the kernel chooses and publishes its address under a key made of
/// job and attempt; the others read it.
class TorchMeeting {
 public:
  /// Joins the store that store.torch_address names, or torchrun's agent. Holds no client when
  /// there is neither, or when the agent's store cannot be used (said in the log).
  static Result<TorchMeeting> join(net::Loop* loop, const Config& config,
                                   const launch::Place& place, const LoggerPtr& logger,
                                   const Wait& wait);

  /// Joins the store of PyTorch that listens where dt's own was to be: a rank of PyTorch in the
  /// same process serves it there. UNSUPPORTED or TIMEOUT: none does.
  static Result<TorchMeeting> join_at_master(net::Loop* loop, const launch::Place& place,
                                             const LoggerPtr& logger, const Wait& wait);

  const std::shared_ptr<store::TorchClient>& client() const { return client_; }
  /// The ranks find dt's own store through it: the launcher serves none.
  bool finds_store() const { return client_ != nullptr && finds_store_; }

  /// Where rank 0 serves.
  struct Serving {
    std::string bind_address;  ///< empty: all interfaces
    std::string host;          ///< what the others are told
  };
  Serving serving(const Config& config) const;
  Status publish(const std::string& host, int32_t port, const Wait& wait) const;
  Result<net::HostPort> find(const Wait& wait) const;
  /// When all have read it: a later job of the same processes must not find it.
  void withdraw(const Wait& wait) const;

 private:
  Status connect(net::Loop* loop, store::TorchClientOptions options, const launch::Place& place,
                 const Wait& wait);

  std::shared_ptr<store::TorchClient> client_;
  bool finds_store_ = false;
  std::string key_;
  std::string master_addr_;
  bool may_span_hosts_ = false;
};

}  // namespace dt::job
