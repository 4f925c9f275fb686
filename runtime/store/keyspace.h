// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dt::store {

/// A request that waits for its answer: which connection, which request on it.
using Ticket = std::pair<uint64_t, uint64_t>;

/// Kept once, for all who are to be told it. Null: nothing.
using SharedText = std::shared_ptr<const std::string>;

struct Answer {
  Ticket ticket;
  Status status;
  std::string payload;          ///< when the status is ok
  SharedText shared = nullptr;  ///< comes behind the payload
};
using Answers = std::vector<Answer>;

/// Makes shared texts and knows how many bytes of them somebody still needs. One thread.
class SharedTexts {
 public:
  SharedText keep(std::string text);
  size_t bytes() const { return *bytes_; }

 private:
  const std::shared_ptr<size_t> bytes_ = std::make_shared<size_t>(0);  // the texts may live longer
};

/// Who makes the store keep something. PyTorch's clients need no token, so they have a limit of
/// their own, below that of all.
enum class Owner { kMembers, kGuests };

inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

/// Until when the server waits on behalf of a request, and for how long that was, for the text.
struct Patience {
  int64_t deadline_ns = kNeverNs;  ///< monotonic
  int64_t timeout_ms = -1;

  static Patience starting(int64_t now_ns, int64_t timeout_ms);
  bool ended(int64_t now_ns) const { return now_ns >= deadline_ns; }
};

/// What a pending wait gets, and what ends it.
enum class WaitKind {
  kValue,    ///< the value of its only key
  kExists,   ///< nothing
  kNoticed,  ///< nothing; notice() counts as the key's coming too
};

struct CompareSet {
  bool swapped = false;
  std::optional<std::string> current;
};

/// Keys, values, and who waits for them. Pure state: no clock, no I/O; time comes in as a
/// parameter, answers to requests that waited go out through an Answers list. One thread.
class Keyspace {
 public:
  static constexpr size_t kMaxBytes = size_t{4} << 30;  ///< keys, values and waits together
  static constexpr size_t kMaxWaitsPerClient = 4096;
  /// What a key, a wait or a key that is waited for takes beside its bytes.
  static constexpr size_t kItemBytes = 256;

  explicit Keyspace(size_t max_bytes = kMaxBytes, size_t max_guest_bytes = kMaxBytes)
      : max_bytes_(max_bytes), max_guest_bytes_(max_guest_bytes) {}

  Status set(const std::string& key, std::string value, Answers* released);
  Status multi_set(const std::vector<std::string>& keys, std::vector<std::string> values,
                   Answers* released);
  const std::string* find(const std::string& key) const { return share(key).get(); }
  /// Null: the key is not there.
  const SharedText& share(const std::string& key) const;
  Result<int64_t> add(const std::string& key, int64_t delta, Answers* released);
  Result<CompareSet> compare_set(const std::string& key, const std::optional<std::string>& expected,
                                 const std::string& desired, Answers* released);
  bool erase(const std::string& key);
  /// Erases every key of the owner. Nobody waits for one of them any more.
  void erase_of(Owner owner);
  std::vector<std::string> list(const std::string& prefix) const;
  size_t count(const std::string& prefix) const;
  /// Moves with each change of a value.
  uint64_t version() const { return version_; }

  /// Answers `ticket` once every key has been there (each at some time since the call). At once
  /// where that holds already.
  void wait(Ticket ticket, std::vector<std::string> keys, WaitKind kind, Patience patience,
            int64_t now_ns, Answers* answers);
  /// Tells up to `count` waits of kind kNoticed that `key` has come, without setting it.
  void notice(const std::string& key, size_t count, Answers* released);
  /// `who` arrives; the `count`th arrival answers all of them.
  void barrier(Ticket ticket, const std::string& who, const std::string& name, int32_t count,
               Patience patience, int64_t now_ns, Answers* answers);

  void cancel(Ticket ticket);
  /// The client is gone, and with it its waits and arrivals.
  void drop(uint64_t client);
  /// Answers what has run out of patience.
  void expire(int64_t now_ns, Answers* answers);
  int64_t next_deadline_ns() const;
  size_t pending() const { return waits_.size(); }

  /// Charges bytes that a guest makes somebody keep beside the keys against the same limits.
  Status reserve(size_t bytes);
  void give_back(size_t bytes) { charge(Owner::kGuests, 0, bytes); }
  /// Makes texts that are kept once, such as an answer to many.
  SharedTexts& texts(Owner owner) { return texts_[static_cast<size_t>(owner)]; }
  /// Bytes of texts() that no key has: answers that are on their way, or values of before.
  size_t loose_bytes(Owner owner) const {
    return texts_[static_cast<size_t>(owner)].bytes() - value_bytes_[static_cast<size_t>(owner)];
  }
  /// Hears of each change of a value, before it happens: null before a creation, or for a deletion.
  using OnChange = std::function<void(const std::string& key, const std::string* before,
                                      const std::string* after)>;
  void set_on_change(OnChange on_change) { on_change_ = std::move(on_change); }

 private:
  struct PendingWait {
    std::set<std::string> missing;  // a get or wait
    size_t key_count = 0;
    WaitKind kind = WaitKind::kExists;
    std::string barrier;  // its name, when it is a barrier
    std::string who;
    Patience patience;
    Owner owner = Owner::kMembers;
    size_t bytes = 0;  // charged
  };
  struct BarrierState {
    int32_t count = 0;
    std::vector<Ticket> arrived;
  };
  using Waits = std::map<Ticket, PendingWait>;

  Status admit(Ticket ticket, Owner owner, size_t bytes) const;
  void put(const std::string& key, std::string value, Answers* released);
  /// One key less to wait for; the last one ends the wait.
  void release(Waits::iterator wait, const std::string& key, const SharedText& value,
               Answers* released);
  Status check_room(Owner owner, size_t added, size_t removed) const;
  void charge(Owner owner, size_t added, size_t removed);
  void insert(Ticket ticket, PendingWait wait);
  /// Takes the wait out of every index.
  PendingWait remove(Waits::iterator position);
  Status timeout_status(const PendingWait& wait) const;

  const size_t max_bytes_;
  const size_t max_guest_bytes_;
  size_t bytes_ = 0;
  size_t guest_bytes_ = 0;  // of those
  SharedTexts texts_[2];    // by owner; also of values
  size_t value_bytes_[2] = {};
  uint64_t version_ = 0;
  std::map<std::string, SharedText> values_;  // ordered, for list()
  Waits waits_;
  std::unordered_map<std::string, std::set<Ticket>> waiting_for_;  // key -> who waits
  std::map<std::string, BarrierState> barriers_;
  std::set<std::pair<int64_t, Ticket>> deadlines_;
  std::unordered_map<uint64_t, size_t> waits_of_client_;
  OnChange on_change_;
};

}  // namespace dt::store
