// SPDX-License-Identifier: Apache-2.0
// What ranks bring to the join: names, hints of the launcher, settings that must be equal,
// addresses. Up to three ranks, whose records are cut out of the input. Properties: no crash, each
// rank is answered once, all get a verdict or none does, and the verdict is one that they can read
// and that places each rank once.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/join.h"
#include "store/protocol.h"

namespace {

using namespace dt::store;

void require_join(bool holds) {
  if (!holds) std::abort();
}

void check_verdict(const Answer& answer, int32_t rank, int32_t world_size) {
  Verdict verdict;
  require_join(answer.shared != nullptr && decode(answer.payload + *answer.shared, &verdict));
  require_join(verdict.world_size == world_size && verdict.local_rank >= 0 &&
               verdict.local_rank < verdict.local_size && verdict.node_rank >= 0 &&
               verdict.node_rank < verdict.node_count);
  std::set<int32_t> placed;
  for (const HostEntry& host : verdict.hosts) {
    for (const int32_t each : host.ranks) require_join(placed.insert(each).second);
  }
  require_join(placed.size() == static_cast<size_t>(world_size) && *placed.begin() == 0 &&
               *placed.rbegin() == world_size - 1);
  require_join(verdict.locals.size() == static_cast<size_t>(verdict.local_size));
  int32_t before = -1;
  bool here = false;
  for (const LocalRecord& local : verdict.locals) {
    require_join(local.rank > before);
    before = local.rank;
    here |= local.rank == rank;
  }
  require_join(here);
}

}  // namespace

/// The first byte says how many ranks, then each record follows its length of two bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const int32_t world_size = 1 + data[0] % 3;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  JoinSetup setup;
  setup.world_size = world_size;
  JoinTable table(setup);
  Answers answers;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (rest.size() < 2) return 0;
    const size_t length = static_cast<uint8_t>(rest[0]) | size_t{static_cast<uint8_t>(rest[1])}
                                                              << 8;
    JoinRecord record;
    if (!decode(rest.substr(2, length), &record)) return 0;
    const std::string written = encode(record);
    JoinRecord again;
    require_join(decode(written, &again) && encode(again) == written);
    rest.remove_prefix(rest.size() < 2 + length ? rest.size() : 2 + length);
    record.rank = rank;  // the server has it from the hello
    record.world_size = world_size;
    Hello hello;
    hello.protocol = kProtocolVersion;
    hello.attempt = 0;
    hello.world_size = world_size;
    hello.member = {rank, record.host_name, record.pid};
    std::optional<uint64_t> superseded;
    const uint64_t client = 100 + static_cast<uint64_t>(rank);
    require_join(table.admit(hello, client, &superseded).ok());
    table.join({client, 1}, std::move(record), Patience::starting(0, 1000), 0, &answers);
  }
  require_join(answers.size() == static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const Answer& answer = answers[static_cast<size_t>(rank)];
    require_join(answer.status.ok() == answers[0].status.ok());
    if (answer.status.ok()) check_verdict(answer, rank, world_size);
  }
  require_join(table.decided() == answers[0].status.ok());
  return 0;
}
