// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/torch_protocol.h"

namespace dt::store {

struct TorchClientOptions {
  std::string host;  ///< literal or name of the store's host
  uint16_t port = 0;
  LoggerPtr logger;  ///< may be null
};

/// A client of a store that PyTorch serves: torchrun's agent, or a rank of PyTorch. Keys have the
/// names that they have in dt's own store: "torch/x" is what a client of PyTorch calls "x".
///
/// Any thread may call, except the loop's own; calls of several threads go side by side, each on a
/// connection of its own, because a connection carries one request at a time. A call that ends by
/// its deadline drops its connection: with older servers the answer might come later and be taken
/// for another.
class TorchClient {
 public:
  /// Tries until the deadline, finds out the dialect and counts itself among the store's clients.
  /// UNSUPPORTED: what listens there speaks no dialect that is known here.
  static Result<std::shared_ptr<TorchClient>> connect(net::Loop* loop, TorchClientOptions options,
                                                      const Wait& wait);
  ~TorchClient();
  TorchClient(const TorchClient&) = delete;
  TorchClient& operator=(const TorchClient&) = delete;

  TorchDialect dialect() const;
  /// The numeric address of this host from which the store is reached.
  std::string local_host() const;
  /// "PyTorch's store at 10.0.0.5:29500"
  const std::string& text() const;

  Status set(const std::string& key, const std::string& value, const Wait& wait);
  /// Blocks until the key exists.
  Result<std::string> get(const std::string& key, const Wait& wait);
  Result<int64_t> add(const std::string& key, int64_t delta, const Wait& wait);
  /// Blocks until all keys exist.
  Status wait_for(const std::vector<std::string>& keys, const Wait& wait);
  /// As that store does it: an empty value counts as absent, and a value that is the desired one
  /// already as swapped.
  Result<Swap> compare_set(const std::string& key, const std::optional<std::string>& expected,
                           const std::string& desired, const Wait& wait);
  Result<bool> erase(const std::string& key, const Wait& wait);
  /// Never blocks for a key: nullopt where there is none.
  Result<std::vector<std::optional<std::string>>> multi_get(const std::vector<std::string>& keys,
                                                            const Wait& wait);
  /// Keys that begin with the prefix, in byte order. UNSUPPORTED: that store cannot list its keys.
  Result<std::vector<std::string>> list(const std::string& prefix, const Wait& wait);
  /// One after the other.
  Status multi_set(const std::vector<std::pair<std::string, std::string>>& pairs, const Wait& wait);

 private:
  class Impl;
  struct Call;
  TorchClient(net::Loop* loop, std::shared_ptr<Impl> impl) : loop_(loop), impl_(std::move(impl)) {}

  Status begin(const std::shared_ptr<Call>& call);
  /// Sends and waits. True: answered. False: the deadline; `call` is dropped.
  Result<bool> run(const std::shared_ptr<Call>& call, const Wait& wait);
  Status find_dialect(const Wait& wait);
  Status find_number_seven(const Wait& wait);
  /// Sends all in one piece and collects the answers, whose shapes are `shape`.
  Result<TorchReply> ask(const std::vector<TorchRequest>& requests, std::string shape,
                         const std::string& what, const Wait& wait);

  net::Loop* const loop_;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace dt::store
