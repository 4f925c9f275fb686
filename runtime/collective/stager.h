// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace dt::collective {

/// How a member writes contributions into its staging ring. Each member decides for itself.
enum class Staging : int32_t {
  kAuto = 0,   ///< whichever of the others measures faster
  kCached,     ///< usual stores
  kStreaming,  ///< stores past the caches
};

/// Which stores are faster at present, learnt from how long copies took.
///
/// A usual store first fetches the line from the reader's cache. That is quick where both
/// processors share one, and then the reader finds the data there; across two caches a streaming
/// store is several times faster. Where threads run changes while a job runs (under a hypervisor
/// nobody even tells), so the slower kind is tried again from time to time.
///
/// The first copies alternate. Then they are counted in rounds; the last two of a round use the
/// kind that is not chosen, and those and every fourth one are timed. A round is twice as long as
/// the one before while nothing changes: a try costs up to ten times what a copy does, and leaves
/// its part of the ring in the wrong cache. Another choice begins with the shortest one; and when
/// the chosen kind takes twice or half as long as before, the other one is tried at once. A single
/// long sample counts for nothing (the thread was preempted): the smaller of a kind's last two is
/// what it learns.
class StoreChoice {
 public:
  static constexpr int64_t kRoundMin = 8;
  static constexpr int64_t kRoundMax = 8192;
  static constexpr int64_t kLongTry = 40;  ///< copies, more than a ring of the usual size has slots
  static constexpr int64_t kTimedEvery = 4;

  struct Trial {
    bool streaming = false;
    bool timed = false;
  };
  /// What to do with the next copy.
  Trial next();
  /// How a timed copy went; `bytes` > 0.
  void learn(bool streaming, int64_t bytes, int64_t ns);
  bool streaming() const { return streaming_; }

 private:
  struct Kind {
    int64_t last = 0;      ///< picoseconds per byte; 0: none yet
    int64_t estimate = 0;  ///< as above
  };

  Kind& chosen() { return kinds_[streaming_ ? 1 : 0]; }
  void begin_round(int64_t copies);
  /// Of the chosen kind: is it still what it was when the round began?
  bool is_steady();

  std::array<Kind, 2> kinds_;  ///< usual, streaming
  int64_t first_ = 0;          ///< copies before the first round
  int64_t at_ = 0;             ///< in the round
  int64_t longer_ = 0;         ///< copies by which its try goes on
  bool prolonged_ = false;     ///< once in a round
  int64_t round_ = kRoundMin;
  int64_t usual_ = 0;  ///< estimate of the chosen kind at its begin; 0: none yet
  bool streaming_ = false;
};

/// Copies into the staging ring. Keeps a choice for each order of magnitude of operations, since
/// those differ in which cache their data lie in.
class Stager {
 public:
  explicit Stager(Staging staging) : staging_(staging) {}

  /// The copies that follow belong to an operation of so many bytes.
  void begin(int64_t operation_bytes);
  void copy(void* destination, const void* source, int64_t bytes);

 private:
  static constexpr std::array<int64_t, 3> kClassBytes = {256 << 10, 4 << 20, 64 << 20};

  const Staging staging_;
  std::array<StoreChoice, kClassBytes.size() + 1> choices_;
  StoreChoice* choice_ = &choices_[0];
};

}  // namespace dt::collective
