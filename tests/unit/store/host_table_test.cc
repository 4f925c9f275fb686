// SPDX-License-Identifier: Apache-2.0
#include "store/host_table.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../../sanitizers.h"

using namespace dt;
using namespace dt::store;

namespace {

std::string hosts_written(const std::vector<HostEntry>& hosts) {
  Writer writer;
  write_hosts(hosts, &writer);
  return writer.take();
}

bool hosts_read(const std::string& bytes, int64_t max_ranks, std::vector<HostEntry>* out) {
  Reader reader(bytes);
  return read_hosts(&reader, max_ranks, out) && reader.done();
}

/// Written and read again, they are the same. The bytes that they cost.
size_t cost_of(const std::vector<HostEntry>& hosts, int64_t ranks) {
  const std::string bytes = hosts_written(hosts);
  std::vector<HostEntry> copy;
  REQUIRE(hosts_read(bytes, ranks, &copy));
  REQUIRE(copy.size() == hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) {
    CHECK(copy[i].host_name == hosts[i].host_name);
    CHECK(copy[i].node_rank == hosts[i].node_rank);
    CHECK(copy[i].ranks == hosts[i].ranks);
  }
  // One rank fewer is too few, and refused; so is every piece of it.
  std::vector<HostEntry> refused;
  CHECK_FALSE(hosts_read(bytes, ranks - 1, &refused));
  const size_t stride = bytes.size() / 64 + 1;
  for (size_t cut = 0; cut < bytes.size(); cut += stride) {
    refused.clear();
    CHECK_FALSE(hosts_read(bytes.substr(0, cut), ranks, &refused));
  }
  return bytes.size();
}

/// Host i has ranks i * each, i * each + 1, ...
std::vector<HostEntry> hosts_in_blocks(int count, int each, std::string (*name)(int)) {
  std::vector<HostEntry> hosts;
  for (int i = 0; i < count; ++i) {
    HostEntry& host = hosts.emplace_back(HostEntry{name(i), i, {}});
    for (int rank = 0; rank < each; ++rank) host.ranks.push_back(i * each + rank);
  }
  return hosts;
}

}  // namespace

TEST_CASE("host table: thousands of hosts that are numbered on cost as much as one") {
  CHECK(cost_of(hosts_in_blocks(8192, 8, [](int i) { return "node" + std::to_string(i); }), 65536) <
        32);
  CHECK(cost_of(hosts_in_blocks(1000, 4, [](int i) { return format("gpu%04d.hall2.net", i); }),
                4000) < 48);
  // From 7 to 1006: the number grows by digits, in the middle of the name.
  CHECK(cost_of(hosts_in_blocks(1000, 1, [](int i) { return format("n%d-ib0", i + 7); }), 1000) <
        32);
  // Dealt out like cards: the step is 1.
  std::vector<HostEntry> dealt;
  for (int32_t i = 0; i < 100; ++i) {
    dealt.push_back({format("node%02d", i), i, {i, 100 + i, 200 + i}});
  }
  CHECK(cost_of(dealt, 300) < 32);
}

TEST_CASE("host table: hosts without order cost what differs in their names") {
  const auto address = [](int host) {
    const auto i = static_cast<uint32_t>(host);
    return format("ip-10-%u-%u-%u", i * 7919 % 4, i * 104729 % 251, i * 1299709 % 241);
  };
  const auto hosts = hosts_in_blocks(2000, 8, address);
  CHECK(cost_of(hosts, 16000) < 2000 * 18);
  // What is the same in all is no number that counts on.
  CHECK(cost_of(hosts_in_blocks(50, 2, [](int) { return std::string("pod"); }), 100) < 50 * 9);
}

TEST_CASE("host table: uneven hosts, odd names and node ranks come through") {
  std::vector<HostEntry> none;
  CHECK((hosts_read(hosts_written({}), 0, &none) && none.empty()));
  cost_of({{"", 0, {0}}, {"", 1, {1}}}, 2);
  cost_of({{"a9", 5, {7, 3, 100}}, {"a10", 6, {8, 4, 101}}, {"a11", 2, {0}}}, 7);
  cost_of({{"9", 0, {0}}, {"10", 1, {1}}, {"11", 2, {3}}, {"12", 3, {5}}}, 4);
  cost_of({{"x999999999", INT32_MIN, {INT32_MAX - 1}}, {"x1000000000", INT32_MAX, {0}}}, 2);
  cost_of({{"x1000000000", 0, {0}}, {"x1000000001", 1, {1}}}, 2);
  cost_of({{"1-1", 0, {0}}, {"1-2", 1, {1}}, {"2-2", 2, {2}}, {"3-2", 3, {3}}, {"3-3", 4, {4}}}, 5);
  cost_of({{std::string("\0\xff", 2), 0, {0}}, {std::string(1024, '7'), 1, {1}}}, 2);
}

TEST_CASE("host table: a few bytes do not unfold to more than was allowed" *
          doctest::skip(dt::test::kThreadSanitizer)) {
  std::vector<HostEntry> out;
  const auto refused = [&](const Writer& written) {
    Writer writer = written;
    out.clear();
    return !hosts_read(writer.take(), 1 << 20, &out);
  };
  // {hosts, repeat, number's end, step, shared, name, node rank, runs, first, length}
  const auto series = [](uint64_t hosts, uint64_t end, uint64_t step, std::string_view name,
                         uint64_t first, uint64_t length) {
    Writer writer;
    writer.varint(hosts).varint(hosts).varint(end).varint(step).varint(0);
    writer.varint(name.size()).raw(name).varint(0).varint(1).varint(first).varint(length);
    return writer;
  };
  CHECK_FALSE(refused(series(1000, 2, 2, "n0", 0, 1)));
  CHECK(out.size() == 1000);
  CHECK(refused(series(uint64_t{1} << 40, 2, 2, "n0", 0, 1)));        // hosts
  CHECK(refused(series(2, 2, 2, "n0", 0, uint64_t{1} << 40)));        // ranks
  CHECK(refused(series(1 << 12, 2, 2, "n0", 0, 1 << 12)));            // both together
  CHECK(refused(series(2, 3, 2, "n0", 0, 1)));                        // a number beyond the name
  CHECK(refused(series(2, 1, 2, "n0", 0, 1)));                        // no number there
  CHECK(refused(series(2, 2, 1, "n0", 0, 1)));                        // below rank 0
  CHECK(refused(series(2, 2, uint64_t{INT32_MAX} * 2, "n0", 2, 1)));  // above all ranks
  CHECK(refused(series(1 << 17, 1024, 2, std::string(1024, '0'), 0, 1)));       // no such number
  CHECK(refused(series(1 << 17, 1000, 2, std::string(999, 'n') + "0", 0, 1)));  // bytes of names
  CHECK(refused(Writer().varint(1).varint(0)));  // an entry of no host
  // A number that does not end.
  CHECK(refused(Writer().raw(std::string(11, '\xff'))));
}
