// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/world_size.h"

namespace dt::store {

/// Who a process is, as shown in texts.
struct Member {
  int32_t rank = -1;  ///< -1: a tool or an agent, no rank of the job
  std::string host;
  int64_t pid = 0;

  /// "rank 3 (hostB pid 4242)", or "a tool (hostB pid 4242)".
  std::string text() const;
};

/// First frame of every connection.
struct Hello {
  uint32_t protocol = 0;
  std::string job_id;    ///< empty: a tool that takes any job
  int32_t attempt = -1;  ///< -1: a tool that takes any attempt
  Member member;
  int32_t world_size = 0;
  uint64_t nonce = 0;   ///< random per client: tells a retry from a second process
  std::string dialled;  ///< the store's address as this client knows it, for texts
};

/// The server's answer to a good hello.
struct Welcome {
  uint32_t protocol = 0;
  std::string job_id;
  int32_t attempt = 0;
  int32_t world_size = 0;
  Member server;  ///< rank -1: an agent (dt run) serves
  /// How often both sides give a sign of life, and after how long a silence the other one counts as
  /// lost; 0: never.
  int64_t heartbeat_ms = 0;
  int64_t heartbeat_timeout_ms = 0;
};

/// How ranks of other hosts reach a rank.
struct Reach {
  std::string network_id;  ///< equal: one network stack, so any of its addresses will do; empty:
                           ///< the process is not to be reached by others, and nothing is compared
  std::string address;     ///< numeric, without a zone; empty: it listens nowhere
  uint16_t port = 0;
  std::vector<std::string> interfaces;  ///< of its host, as "eth0 10.0.0.1/24"
  std::string problem;                  ///< why it listens nowhere
};

/// What a rank tells the others when it joins.
struct JoinRecord {
  int32_t rank = -1;
  int32_t world_size = 0;
  std::string host_id;  ///< equal means: same host
  std::string host_name;
  int64_t pid = 0;
  int32_t local_rank = -1;  ///< the launcher's hint; -1 none
  int32_t node_rank = -1;   ///< the launcher's hint; -1 none
  std::string socket_name;  ///< abstract unix socket; opaque bytes
  std::vector<std::pair<std::string, std::string>> equal_config;  ///< must be equal on all ranks
  Reach reach;
  std::string payload;  ///< opaque bytes for the layers above
  /// The rank's whole time to meet the others, for messages: some of it has passed when it joins.
  /// -1: the time-out of the request.
  int64_t limit_ms = -1;
};

/// A rank of the reader's own host.
struct LocalRecord {
  int32_t rank = -1;
  int64_t pid = 0;
  std::string socket_name;
};

struct HostEntry {
  std::string host_name;
  int32_t node_rank = 0;
  std::vector<int32_t> ranks;  ///< ascending
};

/// What every rank gets when all have joined.
struct Verdict {
  int32_t attempt = 0;
  uint64_t session = 0;  ///< random, chosen by the server, equal on all ranks, never 0
  int32_t world_size = 0;
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t node_rank = 0;
  int32_t node_count = 0;
  std::vector<HostEntry> hosts;  ///< by node rank
  /// Ranks of the own host, itself included, ascending; its local ranks may have another order.
  std::vector<LocalRecord> locals;
};

/// What a rank is doing, as it tells with each heartbeat: an operation of one communicator.
struct Activity {
  bool inside = false;           ///< it is in the operation; else this was its last one
  bool stalled = false;          ///< for longer than watchdog.stall_warn_ms
  std::string communicator;      ///< empty: no operation yet
  std::string operation;         ///< "allreduce"
  int64_t sequence = 0;          ///< in the communicator
  std::string label;             ///< "bucket 3"; may be empty
  int64_t age_ms = 0;            ///< since it was entered, or left
  std::vector<int32_t> members;  ///< world ranks of the communicator, ascending; where stalled
  std::string refused;           ///< why the last call was refused; empty: it was not
};

/// A rank that is away on purpose, or is back.
struct Busy {
  int32_t rank = -1;
  std::string what;    ///< "checkpoint"
  int64_t max_ms = 0;  ///< at most so long from now on; 0: it is back
};

/// Ranks that have said goodbye.
struct Departed {
  std::vector<int32_t> ranks;
};

/// One collective of a communicator over devices.
struct Order {
  int64_t position = 0;  ///< among those, from 1
  uint64_t chain = 0;    ///< equal on ranks that have called the same up to this one
  int64_t sequence = 0;  ///< as messages number operations
  std::string call;      ///< "allreduce f32 sum x 1000"; empty: too long ago to be told
};

/// What a rank has called since it last told.
struct Orders {
  std::string communicator;
  int32_t size = 0;         ///< ranks of the communicator
  std::vector<Order> news;  ///< by position
};

/// Something that broke the job, or one communicator of it.
struct Failure {
  ErrorInfo info;
  std::string scope;    ///< empty: the whole job; else a communicator's id
  bool silent = false;  ///< a rank that may live, but has given no sign of it
  /// Made by a client that lost the store, so that it hears of nobody any more; never sent.
  bool store_gone = false;
};

/// What became of a request to a rank to write its trace.
struct DumpAnswer {
  enum class Outcome : uint8_t {
    kWritten = 0,
    kFailed = 1,
    kSilent = 2,  ///< it did not answer in time
    kAbsent = 3,  ///< it has no connection to the store
  };
  Member member;
  Outcome outcome = Outcome::kSilent;
  std::string text;  ///< the file, or why there is none
};

/// Who came to a gathering, the same for all of them.
struct GatherVerdict {
  uint64_t session = 0;  ///< random, never 0, of this gathering only
  uint64_t number = 0;   ///< counts the gatherings of this store: 1, 2, ...
  /// World ranks, in the order of the members, and what each said.
  std::vector<std::pair<int32_t, std::string>> present;
};

/// Where the server keeps the encoded JoinRecord of each rank once the verdict is out. Clients may
/// read below kJoinPrefix (multi_get), not write.
inline constexpr char kJoinPrefix[] = "dt.join/";
std::string join_record_key(int32_t rank);

/// What it takes in memory, which is more than its frame where it has many short entries.
size_t kept_bytes(const JoinRecord& record);
std::string encode(const JoinRecord& record);
std::string encode(const Verdict& verdict);
/// The two parts of that: what differs between ranks, and the table of hosts, the same for all.
std::string encode_without_hosts(const Verdict& verdict);
std::string encode_hosts(const Verdict& verdict);
std::string encode(const ErrorInfo& info);
std::string encode(const Failure& failure);
std::string encode(const Activity& activity);
std::string encode(const Busy& busy);
std::string encode(const Departed& departed);
std::string encode(const Orders& orders);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const std::vector<DumpAnswer>& answers);
std::string encode(const GatherVerdict& verdict);
/// False: the bytes are no such thing; `out` is then unspecified.
bool decode(std::string_view bytes, JoinRecord* out);
bool decode(std::string_view bytes, Verdict* out);
bool decode(std::string_view bytes, ErrorInfo* out);
bool decode(std::string_view bytes, Failure* out);
bool decode(std::string_view bytes, Activity* out);
bool decode(std::string_view bytes, Busy* out);
bool decode(std::string_view bytes, Departed* out);
bool decode(std::string_view bytes, Orders* out);
bool decode(std::string_view bytes, Hello* out);
bool decode(std::string_view bytes, Welcome* out);
bool decode(std::string_view bytes, std::vector<DumpAnswer>* out);
bool decode(std::string_view bytes, GatherVerdict* out);

}  // namespace dt::store
