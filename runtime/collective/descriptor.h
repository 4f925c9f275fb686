// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/group.h"
#include "collective/operation.h"

namespace dt::collective {

/// A signature packs what members must agree on, {kind, dtype, op, root, bytes of a
/// caller's element}, and flags that may
/// differ.
namespace flag {
inline constexpr uint64_t kSendShared = uint64_t{1} << 24;  ///< send lies in the arena
inline constexpr uint64_t kRecvShared = uint64_t{1} << 25;  ///< recv lies in the arena
inline constexpr uint64_t kInPlace = uint64_t{1} << 26;     ///< send and recv overlap
inline constexpr uint64_t kNamed = uint64_t{1} << 27;
inline constexpr uint64_t kWithheld = uint64_t{1} << 28;
/// Of moved blocks: they travel with the announcement, in the inline area or in the head.
inline constexpr uint64_t kInlined = uint64_t{1} << 29;
inline constexpr uint64_t kInHead = uint64_t{1} << 30;
inline constexpr uint64_t kAll = uint64_t{0xff} << 24;
}  // namespace flag

/// Fields that a kind does not use are zero in it.
uint64_t signature_of(const Collective& collective);
/// Elements that a member puts in.
int64_t contribution(const Collective& collective, int32_t members);

/// `allreduce f32 sum x 1000, "bucket 3"`.
std::string describe(uint64_t signature, int64_t count, const std::string& name);

/// A text of an announcement, cut if long.
template <size_t N>
void put_text(char (&target)[N], const std::string& text) {
  const size_t length = std::min(text.size(), N - 1);
  memcpy(target, text.data(), length);
  target[length] = '\0';
}
/// The peer may be broken in any way: its text need not end.
template <size_t N>
std::string get_text(const char (&source)[N]) {
  return std::string(source, strnlen(source, N));
}

/// ` "bucket 3"`, cut if long; empty without a name.
std::string label_text(const std::string& name);
/// `rank 3 (node7, pid 4711)`; the rank is the member's rank in the communicator, the world rank
/// stands behind where it differs.
std::string member_text(const Group& group, int32_t rank);

/// What each member announced, by rank.
struct Announced {
  uint64_t signature = 0;
  int64_t count = 0;
  std::string name;
  std::string withheld;
};
Status mismatch(const Group& group, const Collective& collective, int64_t sequence,
                const std::vector<Announced>& announced);
Status nothing_to_give(const Group& group, const Collective& collective, int64_t sequence,
                       const std::vector<Announced>& announced);
/// `missing`: ranks of the communicator; `verb`: "has not arrived", "has not finished".
Status timed_out(const Group& group, const Collective& collective, int64_t sequence,
                 const std::vector<int32_t>& missing, const char* verb);
/// What holds up a queue: `allreduce #5, which waits for rank 1 (pid 4711) and has no deadline`, or
/// `recv from rank 1 (pid 4711), which has a later deadline`. `sequence`: of a collective; `peers`:
/// those that it waits for.
std::string obstacle_text(const Collective& collective, int64_t sequence,
                          const std::vector<std::string>& peers);
/// Why an operation timed out before it began; `obstacles`: of obstacle_text().
std::string timed_out_behind(const std::vector<std::string>& obstacles);
/// `rank` has left the job, and the operation still needs it.
Status left_behind(const Group& group, const Collective& collective, int64_t sequence,
                   int32_t rank);
/// An ErrorInfo about `culprit` (a rank of the communicator, or -1), whose message begins with
/// `allreduce "bucket 3" #812 on comm "world", rank 2: `; without `#812` if `sequence` is -1: the
/// operation has not begun.
Status failure(const Group& group, Code code, const Collective& collective, int64_t sequence,
               int32_t culprit, const std::string& message);

}  // namespace dt::collective
