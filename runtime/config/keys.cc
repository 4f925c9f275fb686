// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <algorithm>
#include <vector>

#include "base/status.h"

namespace dt::config {
namespace {

constexpr int64_t kNoMaximum = INT64_MAX;
constexpr int64_t kMaxRanks = INT32_MAX;
constexpr int64_t kMaxTimeoutMs = int64_t{365} * 24 * 3600 * 1000;  // a year
constexpr int64_t kMaxBucketBytes = int64_t{1} << 40;

constexpr Agreement kAny = Agreement::kMayDiffer;
constexpr Agreement kSame = Agreement::kEqual;
constexpr Agreement kJoin = Agreement::kJoined;

// clang-format off
// name, environment, type, unit, minimum, maximum, default, choices, agreement, guarded, description
constexpr Key kKeys[] = {
    {"job.id", "DT_JOB_ID", Type::kString, "", 0, 256, "", "", kJoin, false,
     "Name of the job; ranks that give another one are refused."},
    {"job.rank", "DT_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "This process's rank in [0, job.world_size); -1: ask the launcher."},
    {"job.world_size", "DT_WORLD_SIZE", Type::kInteger, "", -1, kMaxRanks, "-1", "", kJoin, false,
     "Number of ranks; -1: ask the launcher."},
    {"job.local_rank", "DT_LOCAL_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "Index of this rank on its host; -1: the launcher or the join says."},
    {"job.local_size", "DT_LOCAL_SIZE", Type::kInteger, "", -1, kMaxRanks, "-1", "", kAny, false,
     "Ranks on this host; -1: the launcher or the join says."},
    {"job.node_rank", "DT_NODE_RANK", Type::kInteger, "", -1, kMaxRanks - 1, "-1", "", kAny, false,
     "Index of this host; -1: the launcher or the join says."},
    {"job.node_count", "DT_NODE_COUNT", Type::kInteger, "", -1, kMaxRanks, "-1", "", kAny, false,
     "Number of hosts; -1: the launcher or the join says."},
    {"job.master_addr", "DT_MASTER_ADDR", Type::kString, "", 0, 255, "", "", kAny, false,
     "Host name or address where the store is served; empty: ask the launcher."},
    {"job.master_port", "DT_MASTER_PORT", Type::kInteger, "", 0, 65535, "0", "", kAny, false,
     "Port where the store is served; 0: ask the launcher."},
    {"job.attempt", "DT_ATTEMPT", Type::kInteger, "", 0, INT32_MAX, "0", "", kJoin, false,
     "How often the job was started before; ranks of another attempt are refused."},
    {"job.store_served", "DT_STORE_SERVED", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "The launcher serves the store at job.master_port, so rank 0 does not bind it."},
    {"job.host_id", "DT_HOST_ID", Type::kString, "", 0, 256, "", "", kAny, false,
     "Ranks with equal values count as one host; empty: boot id, host name and network namespace."},
    {"job.finalize_timeout_ms", "DT_JOB_FINALIZE_TIMEOUT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "30000", "", kAny, false, "How long the goodbye waits for the other ranks."},

    {"rendezvous.timeout_ms", "DT_RENDEZVOUS_TIMEOUT_MS", Type::kInteger, "ms", 1, kMaxTimeoutMs,
     "300000", "", kAny, false, "How long the join waits for all ranks."},
    {"collective.timeout_ms", "DT_COLLECTIVE_TIMEOUT_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs,
     "600000", "", kAny, false, "How long one operation may take; 0: for ever."},

    {"store.bind", "DT_STORE_BIND", Type::kString, "", 0, 255, "", "", kAny, false,
     "Address the store listens on; empty: the one that peers use, loopback with one host."},
    {"store.max_connections", "DT_STORE_MAX_CONNECTIONS", Type::kInteger, "", 1, 1 << 20, "16384", "",
     kAny, false, "Clients that the store serves at once; more are refused."},
    {"store.torch_compat", "DT_STORE_TORCH_COMPAT", Type::kBool, "", 0, 0, "false", "", kAny, false,
     "The store answers clients of PyTorch's TCPStore too; dt run points MASTER_PORT at it."},
    {"store.torch_address", "DT_STORE_TORCH_ADDRESS", Type::kString, "", 0, 270, "", "", kAny, false,
     "host:port of a store that PyTorch serves, where ranks meet; empty: torchrun's, if there is one."},

    {"network.interface", "DT_NETWORK_INTERFACE", Type::kString, "", 0, 255, "", "", kAny, false,
     "Name, network (10.1.0.0/16) or address for other hosts; empty: by the route to the store."},
    {"network.port_range", "DT_NETWORK_PORT_RANGE", Type::kString, "", 0, 11, "", "", kAny, false,
     "Ports where ranks listen for other hosts, as 29600-29699; empty: the kernel chooses."},

    {"host.spin_us", "DT_HOST_SPIN_US", Type::kInteger, "us", 0, 1000000, "50", "", kAny, false,
     "How long a wait for a local rank spins before it hands the core over."},
    {"host.inline_bytes", "DT_HOST_INLINE_BYTES", Type::kInteger, "bytes", 0, 16 << 20, "8192", "",
     kSame, false, "Largest message that goes through the slots in one shot."},
    {"host.slot_bytes", "DT_HOST_SLOT_BYTES", Type::kInteger, "bytes", 4096, 16777216, "65536", "",
     kSame, false, "Chunk in which longer messages are pipelined through the arena."},

    {"backend.name", "DT_BACKEND_NAME", Type::kEnum, "", 0, 0, "auto", "auto, host", kSame, false,
     "What carries the collectives out; auto: by the communicator's device."},

    {"reducer.bucket_cap_bytes", "DT_REDUCER_BUCKET_CAP_BYTES", Type::kInteger, "bytes", 1,
     kMaxBucketBytes, "26214400", "", kSame, false, "A bucket closes when it reaches this."},
    {"reducer.first_bucket_bytes", "DT_REDUCER_FIRST_BUCKET_BYTES", Type::kInteger, "bytes", 1,
     kMaxBucketBytes, "1048576", "", kSame, false,
     "The same for the first bucket, which is small so that communication starts early."},
    {"reducer.rebuild", "DT_REDUCER_REBUILD", Type::kBool, "", 0, 0, "true", "", kSame, false,
     "Order the buckets anew after the first step, as the gradients arrived on rank 0."},

    {"log.level", "DT_LOG_LEVEL", Type::kEnum, "", 0, 0, "warning", "error, warning, info, debug",
     kAny, false, "Messages up to this level are written."},

    {"run.grace_ms", "DT_RUN_GRACE_MS", Type::kInteger, "ms", 0, kMaxTimeoutMs, "15000", "", kAny,
     false, "How long dt run waits after SIGTERM before it kills."},
    {"run.prefix", "DT_RUN_PREFIX", Type::kBool, "", 0, 0, "true", "", kAny, false,
     "dt run puts the rank in front of each line."},
    {"run.show_lines", "DT_RUN_SHOW_LINES", Type::kInteger, "", 0, 100000, "30", "", kAny, false,
     "Last lines of the failing rank that dt run shows at the end."},
};
// clang-format on

/// Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, replaced});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string_view section_of(std::string_view name) { return name.substr(0, name.find('.')); }

/// Remembers the candidate that is closest so far and within a third of its letters.
struct Nearest {
  std::string_view wanted;
  size_t distance = SIZE_MAX;
  std::string name;

  void offer(std::string_view seen, std::string_view candidate) {
    const size_t found = edit_distance(wanted, seen);
    const size_t limit = std::max<size_t>(2, seen.size() / 3);
    if (found > limit || found >= distance) return;
    distance = found;
    name = candidate;
  }
};

std::string range_text(const Key& key) {
  std::string text;
  if (key.maximum == kNoMaximum) {
    text = format(" of at least %lld", static_cast<long long>(key.minimum));
  } else {
    text = format(" from %lld to %lld", static_cast<long long>(key.minimum),
                  static_cast<long long>(key.maximum));
  }
  return (*key.unit ? std::string(" in ") + key.unit : "") + text;
}

}  // namespace

std::span<const Key> keys() { return kKeys; }

const Key* find_key(std::span<const Key> table, std::string_view name) {
  for (const Key& key : table) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

std::string nearest_name(std::span<const Key> table, std::string_view name) {
  constexpr size_t kLongestName = 128;  // nobody mistypes a key at such a length
  if (name.empty() || name.size() > kLongestName) return {};
  Nearest nearest{name, SIZE_MAX, {}};
  if (name.find('.') == std::string_view::npos) {
    for (const Key& key : table) nearest.offer(section_of(key.name), section_of(key.name));
    // Also a key written without its section.
    for (const Key& key : table) {
      nearest.offer(std::string_view(key.name).substr(section_of(key.name).size() + 1), key.name);
    }
  } else {
    for (const Key& key : table) nearest.offer(key.name, key.name);
    if (!nearest.name.empty()) return nearest.name;
    // Right word in the wrong section.
    const std::string_view last = name.substr(name.rfind('.') + 1);
    for (const Key& key : table) {
      if (last == std::string_view(key.name).substr(section_of(key.name).size() + 1)) {
        return key.name;
      }
    }
  }
  return nearest.name;
}

std::string expectation(const Key& key) {
  switch (key.type) {
    case Type::kBool: return "true or false";
    case Type::kInteger: return "an integer" + range_text(key);
    case Type::kFloat: return "a number" + range_text(key);
    case Type::kString:
      return format("a string of at most %lld bytes", static_cast<long long>(key.maximum));
    case Type::kEnum: return std::string("one of ") + key.choices;
  }
  return {};
}

}  // namespace dt::config
