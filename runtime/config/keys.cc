// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/status.h"

namespace dt::config {
namespace {

constexpr int64_t kDay = 24 * 3600 * 1000;  // ms
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

constexpr Key kKeys[] = {
    {"backend.name", Type::kChoice, "", 0, 0, "auto", "auto|host", Scope::kEqual, false, nullptr,
     "What runs collectives; auto takes the host backend."},
    {"collective.timeout_ms", Type::kInteger, "ms", 0, 7 * kDay, "600000", "", Scope::kMayDiffer,
     false, nullptr,
     "Limit of each operation; 0: none. When it passes, the missing ranks are named."},
    {"host.inline_bytes", Type::kInteger, "bytes", 64, 64 << 10, "8192", "", Scope::kEqual, false,
     nullptr, "Largest contribution that travels with its descriptor, in one synchronisation."},
    {"host.slot_bytes", Type::kInteger, "bytes", 4096, 16 << 20, "65536", "", Scope::kEqual, false,
     nullptr, "Segment of an ordinary buffer that is staged through shared memory at once."},
    {"host.spin_us", Type::kInteger, "us", 0, 1'000'000, "50", "", Scope::kMayDiffer, false,
     nullptr, "How long a waiting thread polls before it sleeps."},
    {"job.attempt", Type::kInteger, "", 0, 1'000'000, "0", "", Scope::kMayDiffer, false,
     "DT_ATTEMPT", "How often the job was started before; given by the launcher."},
    {"job.finalize_timeout_ms", Type::kInteger, "ms", 0, 7 * kDay, "30000", "", Scope::kMayDiffer,
     false, nullptr, "How long dt_finalize waits for the other ranks."},
    {"job.host_id", Type::kText, "", 0, 256, "", "", Scope::kMayDiffer, false, "DT_HOST_ID",
     "Overrides what tells hosts apart; ranks with equal values share memory."},
    {"job.id", Type::kText, "", 0, 256, "", "", Scope::kMayDiffer, false, "DT_JOB_ID",
     "Name of the job; a store refuses ranks of another."},
    {"job.local_rank", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false,
     "DT_LOCAL_RANK", "Index of the rank on its host; -1: found out in the join."},
    {"job.local_size", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false,
     "DT_LOCAL_SIZE", "Ranks on this host; -1: found out in the join."},
    {"job.master_addr", Type::kText, "", 0, 255, "", "", Scope::kMayDiffer, false, "DT_MASTER_ADDR",
     "Host name or address of the store."},
    {"job.master_port", Type::kInteger, "", 0, 65535, "0", "", Scope::kMayDiffer, false,
     "DT_MASTER_PORT", "Port of the store; 0: not given."},
    {"job.node_count", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false,
     "DT_NODE_COUNT", "Hosts of the job; -1: found out in the join."},
    {"job.node_rank", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false,
     "DT_NODE_RANK", "Index of this host; -1: found out in the join."},
    {"job.rank", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false, "DT_RANK",
     "Index of this rank; -1: the launcher's environment says it."},
    {"job.store_served", Type::kBool, "", 0, 0, "false", "", Scope::kMayDiffer, false,
     "DT_STORE_SERVED", "The launcher serves the store already: rank 0 does not."},
    {"job.world_size", Type::kInteger, "", -1, kMaxRanks, "-1", "", Scope::kMayDiffer, false,
     "DT_WORLD_SIZE", "Number of ranks; -1: the launcher's environment says it."},
    {"log.level", Type::kChoice, "", 0, 0, "warning", "error|warning|info|debug", Scope::kMayDiffer,
     false, nullptr, "Least severe messages that are logged."},
    {"reducer.bucket_cap_bytes", Type::kInteger, "bytes", 1, 64 * kGiB, "26214400", "",
     Scope::kEqual, false, nullptr, "A bucket of gradients closes when it reaches this."},
    {"reducer.first_bucket_bytes", Type::kInteger, "bytes", 1, 64 * kGiB, "1048576", "",
     Scope::kEqual, false, nullptr,
     "Cap of the first bucket of each dtype: small, so that communication starts early."},
    {"reducer.rebuild", Type::kBool, "", 0, 0, "true", "", Scope::kEqual, false, nullptr,
     "Re-plan the buckets by the arrival order of step 1."},
    {"rendezvous.timeout_ms", Type::kInteger, "ms", 0, 7 * kDay, "300000", "", Scope::kMayDiffer,
     false, nullptr, "How long dt_init waits for the other ranks; also the limit of store calls."},
    {"run.grace_ms", Type::kInteger, "ms", 0, kDay, "15000", "", Scope::kMayDiffer, false, nullptr,
     "dt run: how long the other ranks may take to end after the first failure."},
    {"run.prefix", Type::kBool, "", 0, 0, "true", "", Scope::kMayDiffer, false, nullptr,
     "dt run: put \"[rank] \" in front of each line."},
    {"run.show_lines", Type::kInteger, "lines", 0, 10000, "30", "", Scope::kMayDiffer, false,
     nullptr, "dt run: last lines of the failing rank that are shown again."},
    {"store.bind", Type::kText, "", 0, 255, "", "", Scope::kMayDiffer, false, nullptr,
     "Address that rank 0 serves the store on; empty: job.master_addr."},
    {"store.max_connections", Type::kInteger, "connections", 1, 1 << 20, "16384", "",
     Scope::kMayDiffer, false, nullptr, "Connections that a served store accepts."},
};

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool is_choice(const std::string& choices, const std::string& text) {
  size_t begin = 0;
  while (begin <= choices.size()) {
    const size_t end = std::min(choices.find('|', begin), choices.size());
    if (choices.compare(begin, end - begin, text) == 0) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::span<const Key> known_keys() { return kKeys; }

const Key* find_key(std::span<const Key> keys, const std::string& name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return name == key.name; });
  return found == keys.end() ? nullptr : &*found;
}

const Key* nearest_key(std::span<const Key> keys, const std::string& name) {
  if (name.size() > 128) return nullptr;
  const Key* nearest = nullptr;
  size_t least = std::max<size_t>(3, name.size() / 3) + 1;  // farther is no likely slip
  for (const Key& key : keys) {
    const std::string full = key.name;
    // also the bare key under a wrong section
    const size_t distance = std::min(
        edit_distance(name, full),
        edit_distance(name.substr(name.rfind('.') + 1), full.substr(full.rfind('.') + 1)) + 1);
    if (distance < least) {
      least = distance;
      nearest = &key;
    }
  }
  return nearest;
}

std::string variable_of(const Key& key) {
  if (key.variable != nullptr) return key.variable;
  std::string variable = "DT_";
  for (const char* c = key.name; *c != '\0'; ++c) {
    variable += *c == '.' ? '_' : static_cast<char>(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
  }
  return variable;
}

std::string expectation(const Key& key) {
  switch (key.type) {
    case Type::kBool: return "true or false";
    case Type::kInteger:
      return format("an integer in [%lld, %lld]%s%s", static_cast<long long>(key.minimum),
                    static_cast<long long>(key.maximum), *key.unit != '\0' ? " " : "", key.unit);
    case Type::kText:
      return format("a text of at most %lld bytes", static_cast<long long>(key.maximum));
    case Type::kChoice: return format("one of %s", key.choices);
  }
  return {};
}

std::string check_value(const Key& key, const std::string& text) {
  bool good = false;
  switch (key.type) {
    case Type::kBool: good = text == "true" || text == "false"; break;
    case Type::kInteger: {
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      good = error == std::errc() && end == text.data() + text.size() && value >= key.minimum &&
             value <= key.maximum;
      break;
    }
    case Type::kText:
      good =
          static_cast<int64_t>(text.size()) <= key.maximum && text.find('\0') == std::string::npos;
      break;
    case Type::kChoice: good = is_choice(key.choices, text); break;
  }
  if (good) return {};
  return format("is \"%.64s\"%s; it must be %s", text.c_str(), text.size() > 64 ? "..." : "",
                expectation(key).c_str());
}

}  // namespace dt::config
