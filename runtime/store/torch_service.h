// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "store/keyspace.h"
#include "store/torch_protocol.h"

namespace dt::store {

/// The keys of PyTorch's clients lie in the same Keyspace, below names of their own: no key of
/// theirs, whatever its bytes, means a key of a rank or of the store itself. What a client calls
/// "x" is "/x" on the wire and "torch/x" here, and ranks of dt may use it by that name.
inline constexpr char kTorchPrefix[] = "torch/";
/// Wire keys that do not begin with a slash, such as the counter of clients.
inline constexpr char kTorchBarePrefix[] = "dt.torch/";
/// Who waits in a barrier waits for a key of this name, which nobody sets.
inline constexpr char kTorchBarrierPrefix[] = "dt.torch.barrier/";
std::string torch_key(std::string_view wire_key);
/// The inverse.
std::string torch_wire_key(std::string_view key);

/// What goes out at once.
struct TorchAnswer {
  struct Piece {
    std::string bytes;
    SharedText shared = nullptr;  ///< behind them
  };
  std::vector<Piece> pieces;

  std::string whole() const;
};

/// Answers PyTorch's clients as its own servers do. Pure state on top of a Keyspace; one thread.
/// Where those differ, like the server that the client's dialect belongs to; a compare_set always
/// wakes who waits.
class TorchService {
 public:
  /// An answer that takes more than `max_answer_bytes`, values that it shares with the keys aside,
  /// is an error.
  explicit TorchService(Keyspace* keyspace, size_t max_answer_bytes = kMaxTorchRequestBytes);
  TorchService(const TorchService&) = delete;
  TorchService& operator=(const TorchService&) = delete;

  /// The reply. What waits is answered later through `answers`, see reply_to_wait(). An error: no
  /// reply, the connection is to be closed, as PyTorch's servers do it.
  Result<TorchAnswer> handle(uint64_t client, TorchDialect dialect, TorchRequest request,
                             Answers* answers);
  /// The client is gone. Its waits are the Keyspace's to drop.
  void drop(uint64_t client);
  /// What an Answer means on the wire.
  static std::string reply_to_wait(const Answer& answer);
  /// Changes of watched keys since the last call, for their watchers.
  Answers take_events();

 private:
  Result<std::string> answer(uint64_t client, TorchRequest* request, Answers* answers);
  Result<TorchAnswer> values(TorchDialect dialect, const std::vector<std::string>& keys);
  Result<std::string> add(const std::string& key, int64_t delta, Answers* answers);
  Result<std::string> compare_set(TorchRequest* request, Answers* answers);
  Status append(const std::string& key, const std::string& tail, Answers* answers);
  Status multi_set(TorchRequest* request, Answers* answers);
  Status push(const std::string& key, std::string value, Answers* answers);
  std::string pop(const std::string& key);
  Status barrier(uint64_t client, const std::string& key, int64_t count, Answers* answers);
  Status wait(uint64_t client, std::vector<std::string> keys, Answers* answers);
  Status watch(uint64_t client, const std::string& key);
  Result<std::string> list() const;
  bool exists(const std::string& key) const;
  void changed(const std::string& key, const std::string* before, const std::string* after);

  Keyspace* const keyspace_;
  const size_t max_answer_bytes_;
  uint64_t last_wait_ = 0;
  std::unordered_map<std::string, std::deque<std::string>> queues_;  // none is empty
  std::unordered_map<std::string, std::set<uint64_t>> watchers_;     // key -> clients
  std::map<uint64_t, std::set<std::string>> watched_by_;
  Answers events_;
};

}  // namespace dt::store
