// SPDX-License-Identifier: Apache-2.0
// An entry: repeat; where that is not 1: the end of the number in the name, the step of the ranks;
// letters shared with the name before, the rest of the name; node rank; runs of ranks. Numbers are
// varints, and those that may fall are steps from what is expected.
#include "store/host_table.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace dt::store {
namespace {

constexpr size_t kMaxHostNameBytes = 1024;  // as in the records of the join
constexpr size_t kMaxDigits = 9;            // of a number in a name: it fits 32 bits

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
uint64_t fold(int64_t step) {
  return (static_cast<uint64_t>(step) << 1) ^ (step < 0 ? ~uint64_t{0} : 0);
}
int64_t unfold(uint64_t folded) {
  return static_cast<int64_t>(folded >> 1) ^ -static_cast<int64_t>(folded & 1);
}

/// `name` with the number that ends before `end` counted on; "09" becomes "10", "9" as well.
std::optional<std::string> counted_on(const std::string& name, size_t end) {
  if (end > name.size()) return std::nullopt;
  size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  if (begin == end || end - begin > kMaxDigits) return std::nullopt;
  std::string number = std::to_string(std::stoul(name.substr(begin, end - begin)) + 1);
  if (number.size() < end - begin) number.insert(0, end - begin - number.size(), '0');
  return name.substr(0, begin) + number + name.substr(end);
}

/// Where the number ends whose counting on makes `next` of `name`; none: no number does.
std::optional<size_t> counted_number(const std::string& name, const std::string& next) {
  size_t end = static_cast<size_t>(
      std::mismatch(name.begin(), name.end(), next.begin(), next.end()).first - name.begin());
  while (end < name.size() && is_digit(name[end])) ++end;
  return counted_on(name, end) == next ? std::optional(end) : std::nullopt;
}

/// {first, length} each: ranks of a host nearly always follow each other.
struct Run {
  int64_t first = 0;
  int64_t length = 0;
};

std::vector<Run> runs_of(const std::vector<int32_t>& ranks) {
  std::vector<Run> runs;
  for (const int32_t rank : ranks) {
    if (!runs.empty() && runs.back().first + runs.back().length == rank) {
      ++runs.back().length;
    } else {
      runs.push_back({rank, 1});
    }
  }
  return runs;
}

/// Whether `next` has the ranks of `host`, each `step` higher.
bool shifted(const HostEntry& host, const HostEntry& next, int64_t step) {
  if (host.ranks.size() != next.ranks.size()) return false;
  for (size_t i = 0; i < host.ranks.size(); ++i) {
    if (int64_t{host.ranks[i]} + step != next.ranks[i]) return false;
  }
  return true;
}

/// Hosts from `hosts[at]` on that are one entry, and what makes them one.
struct Series {
  size_t length = 1;
  size_t number_end = 0;
  int64_t step = 0;
};

Series series_at(const std::vector<HostEntry>& hosts, size_t at) {
  Series series;
  for (size_t next = at + 1; next < hosts.size(); ++next, ++series.length) {
    const HostEntry& before = hosts[next - 1];
    const HostEntry& host = hosts[next];
    if (before.ranks.empty() || host.ranks.empty()) break;
    if (int64_t{before.node_rank} + 1 != host.node_rank) break;
    const auto end = counted_number(before.host_name, host.host_name);
    const int64_t step = int64_t{host.ranks.front()} - before.ranks.front();
    if (!end.has_value() || !shifted(before, host, step)) break;
    if (series.length == 1) {
      series.number_end = *end;
      series.step = step;
    } else {
      // Its end moves with each digit that the number has gained.
      const size_t gained = before.host_name.size() - hosts[at].host_name.size();
      if (step != series.step || *end != series.number_end + gained) break;
    }
  }
  return series;
}

}  // namespace

void write_hosts(const std::vector<HostEntry>& hosts, Writer* writer) {
  writer->varint(hosts.size());
  std::string name_before;
  int64_t expected_node = 0;
  int64_t expected_rank = 0;
  for (size_t at = 0; at < hosts.size();) {
    const HostEntry& host = hosts[at];
    const Series series = series_at(hosts, at);
    writer->varint(series.length);
    if (series.length > 1) writer->varint(series.number_end).varint(fold(series.step));
    const std::string& name = host.host_name;
    const auto shared = static_cast<size_t>(
        std::mismatch(name.begin(), name.end(), name_before.begin(), name_before.end()).first -
        name.begin());
    writer->varint(shared).varint(name.size() - shared).raw(std::string_view(name).substr(shared));
    writer->varint(fold(host.node_rank - expected_node));
    const std::vector<Run> runs = runs_of(host.ranks);
    writer->varint(runs.size());
    for (const Run& run : runs) {
      writer->varint(fold(run.first - expected_rank)).varint(static_cast<uint64_t>(run.length));
      expected_rank = run.first + run.length;
    }
    at += series.length;
    const HostEntry& last = hosts[at - 1];
    name_before = last.host_name;
    expected_node = int64_t{last.node_rank} + 1;
    if (!last.ranks.empty()) expected_rank = int64_t{last.ranks.back()} + 1;
  }
}

namespace {

bool is_int32(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }
/// Between any two of those.
bool is_step(int64_t value) { return value >= -(int64_t{1} << 33) && value <= int64_t{1} << 33; }

/// Limits on what a table may unfold to.
struct Budget {
  int64_t ranks = 0;
  size_t name_bytes = kMaxPayloadBytes;

  bool pay(const HostEntry& host) {
    const auto count = static_cast<int64_t>(host.ranks.size());
    if (count < 1 || count > ranks || host.host_name.size() > name_bytes) return false;
    ranks -= count;
    name_bytes -= host.host_name.size();
    return true;
  }
};

/// The ranks of the first host of an entry.
bool read_ranks(Reader* reader, int64_t max_ranks, int64_t expected, std::vector<int32_t>* out) {
  const uint64_t runs = reader->varint();
  for (uint64_t i = 0; i < runs; ++i) {
    const int64_t step = unfold(reader->varint());
    const uint64_t length = reader->varint();
    if (!reader->ok() || !is_int32(step) || length < 1 ||
        length > static_cast<uint64_t>(max_ranks) - out->size()) {
      return false;
    }
    const int64_t first = expected + step;
    expected = first + static_cast<int64_t>(length);
    if (first < 0 || expected > INT32_MAX) return false;
    for (int64_t rank = first; rank < expected; ++rank) out->push_back(static_cast<int32_t>(rank));
  }
  return reader->ok();
}

/// Host and ranks behind `before` in a series.
bool count_on(const HostEntry& before, size_t number_end, int64_t step, HostEntry* out) {
  std::optional<std::string> name = counted_on(before.host_name, number_end);
  if (!name.has_value() || name->size() > kMaxHostNameBytes) return false;
  if (before.node_rank == INT32_MAX) return false;
  out->host_name = std::move(*name);
  out->node_rank = before.node_rank + 1;
  for (const int32_t rank : before.ranks) {
    if (!is_int32(rank + step) || rank + step < 0) return false;
    out->ranks.push_back(static_cast<int32_t>(rank + step));
  }
  return true;
}

}  // namespace

bool read_hosts(Reader* reader, int64_t max_ranks, std::vector<HostEntry>* out) {
  Budget budget{std::max<int64_t>(max_ranks, 0)};
  const uint64_t hosts = reader->varint();
  int64_t expected_node = 0;
  int64_t expected_rank = 0;
  std::string name_before;
  while (reader->ok() && out->size() < hosts) {
    const uint64_t length = reader->varint();
    if (length < 1 || length > hosts - out->size()) return false;
    const uint64_t number_end = length > 1 ? reader->varint() : 0;
    const int64_t step = length > 1 ? unfold(reader->varint()) : 0;
    HostEntry host;
    const uint64_t shared = reader->varint();
    const std::string rest = reader->bytes(kMaxHostNameBytes);
    const int64_t node = unfold(reader->varint());
    if (!reader->ok() || shared > name_before.size() || !is_int32(step) || !is_step(node)) {
      return false;
    }
    host.host_name = name_before.substr(0, shared) + rest;
    if (host.host_name.size() > kMaxHostNameBytes || !is_int32(expected_node + node)) return false;
    host.node_rank = static_cast<int32_t>(expected_node + node);
    if (!read_ranks(reader, budget.ranks, expected_rank, &host.ranks)) return false;
    if (!budget.pay(host)) return false;
    size_t end = number_end;
    for (uint64_t i = 1; i < length; ++i) {
      HostEntry next;
      // What is refused for its length is refused before it is made.
      if (static_cast<int64_t>(host.ranks.size()) > budget.ranks ||
          !count_on(host, end, step, &next) || !budget.pay(next)) {
        return false;
      }
      end += next.host_name.size() - host.host_name.size();
      out->push_back(std::move(host));
      host = std::move(next);
    }
    name_before = host.host_name;
    expected_node = int64_t{host.node_rank} + 1;
    expected_rank = int64_t{host.ranks.back()} + 1;
    out->push_back(std::move(host));
  }
  return reader->ok();
}

}  // namespace dt::store
