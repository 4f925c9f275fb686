// SPDX-License-Identifier: Apache-2.0
#include "store/messages.h"

#include <algorithm>

#include "store/host_table.h"
#include "store/protocol.h"

namespace dt::store {
namespace {

constexpr size_t kMaxOrders = 1024;  // told at once
constexpr size_t kMaxCallBytes = 256;
constexpr size_t kMaxNameBytes = 1024;           // job ids, host names, host ids, scopes
constexpr size_t kMaxRecordBytes = 1 << 20;      // a join record's payload
constexpr size_t kMaxConfigTextBytes = 4 << 10;  // one configuration value

std::string_view cut(std::string_view text, size_t bytes) { return text.substr(0, bytes); }

void put(Writer* writer, const Member& member) {
  writer->i32(member.rank).text(cut(member.host, kMaxNameBytes)).i64(member.pid);
}

Member get_member(Reader* reader) {
  Member member;
  member.rank = reader->i32();
  member.host = reader->text(kMaxNameBytes);
  member.pid = reader->i64();
  return member;
}

// As runs {first, length}: the ranks of a communicator nearly always follow each other.
void put_ranks(Writer* writer, const std::vector<int32_t>& ranks) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const int32_t rank : ranks) {
    if (!runs.empty() && runs.back().first + runs.back().second == rank) {
      ++runs.back().second;
    } else {
      runs.push_back({rank, 1});
    }
  }
  writer->u32(static_cast<uint32_t>(runs.size()));
  for (const auto& run : runs) writer->i32(run.first).i32(run.second);
}

// `budget`: ranks that may still be named; keeps a false length from costing memory.
bool get_ranks(Reader* reader, int64_t* budget, std::vector<int32_t>* out) {
  const size_t runs = reader->count(2 * sizeof(int32_t));
  for (size_t i = 0; i < runs; ++i) {
    const int32_t first = reader->i32();
    const int32_t length = reader->i32();
    *budget -= length;
    if (first < 0 || length < 1 || *budget < 0 || first > INT32_MAX - length) return false;
    for (int32_t rank = first; rank < first + length; ++rank) out->push_back(rank);
  }
  return reader->ok();
}

void put(Writer* writer, const ErrorInfo& info) {
  writer->i32(static_cast<int32_t>(info.code))
      .text(cut(info.message, kMaxTextBytes))
      .i32(info.rank)
      .text(cut(info.host, kMaxNameBytes))
      .i64(info.pid)
      .text(cut(info.operation, kMaxNameBytes))
      .i64(info.sequence);
}

ErrorInfo get_info(Reader* reader) {
  ErrorInfo info;
  info.code = static_cast<Code>(reader->i32());
  info.message = reader->text(kMaxTextBytes);
  info.rank = reader->i32();
  info.host = reader->text(kMaxNameBytes);
  info.pid = reader->i64();
  info.operation = reader->text(kMaxNameBytes);
  info.sequence = reader->i64();
  // A failure that says OK would be taken for success.
  if (info.code == Code::kOk) info.code = Code::kInternal;
  return info;
}

}  // namespace

std::string Member::text() const {
  const std::string who = rank >= 0 ? format("rank %d", rank) : "a tool";
  if (pid == 0) return format("%s (%s)", who.c_str(), host.c_str());  // it was never started
  return format("%s (%s pid %lld)", who.c_str(), host.c_str(), static_cast<long long>(pid));
}

std::string join_record_key(int32_t rank) { return kJoinPrefix + std::to_string(rank); }

size_t kept_bytes(const JoinRecord& record) {
  size_t bytes = record.host_id.size() + record.host_name.size() + record.socket_name.size() +
                 record.reach.problem.size() + record.payload.size();
  for (const auto& entry : record.equal_config) {
    bytes += sizeof entry + entry.first.size() + entry.second.size();
  }
  for (const std::string& each : record.reach.interfaces)
    bytes += sizeof(std::string) + each.size();
  return bytes;
}

std::string encode(const JoinRecord& record) {
  Writer writer;
  writer.i32(record.rank).i32(record.world_size).text(record.host_id).text(record.host_name);
  writer.i64(record.pid).i32(record.local_rank).i32(record.node_rank).text(record.socket_name);
  writer.u32(static_cast<uint32_t>(record.equal_config.size()));
  for (const auto& entry : record.equal_config) writer.text(entry.first).text(entry.second);
  const Reach& reach = record.reach;
  writer.text(reach.network_id).text(reach.address).u32(reach.port);
  writer.u32(static_cast<uint32_t>(reach.interfaces.size()));
  for (const std::string& each : reach.interfaces) writer.text(cut(each, kMaxNameBytes));
  writer.text(cut(reach.problem, kMaxConfigTextBytes)).text(record.payload);
  writer.i64(record.limit_ms);
  return writer.take();
}

bool decode(std::string_view bytes, JoinRecord* out) {
  Reader reader(bytes);
  out->rank = reader.i32();
  out->world_size = reader.i32();
  out->host_id = reader.text(kMaxNameBytes);
  out->host_name = reader.text(kMaxNameBytes);
  out->pid = reader.i64();
  out->local_rank = reader.i32();
  out->node_rank = reader.i32();
  out->socket_name = reader.text(kMaxNameBytes);
  const size_t entries = reader.count(2 * sizeof(uint32_t));
  for (size_t i = 0; i < entries && reader.ok(); ++i) {
    std::string key = reader.text(kMaxNameBytes);
    out->equal_config.emplace_back(std::move(key), reader.text(kMaxConfigTextBytes));
  }
  Reach& reach = out->reach;
  reach.network_id = reader.text(kMaxNameBytes);
  reach.address = reader.text(kMaxNameBytes);
  const uint32_t port = reader.u32();
  reach.port = static_cast<uint16_t>(port);
  const size_t interfaces = reader.count(sizeof(uint32_t));
  for (size_t i = 0; i < interfaces && reader.ok(); ++i) {
    reach.interfaces.push_back(reader.text(kMaxNameBytes));
  }
  reach.problem = reader.text(kMaxConfigTextBytes);
  out->payload = reader.text(kMaxRecordBytes);
  out->limit_ms = reader.i64();
  return reader.done() && port <= UINT16_MAX;
}

std::string encode_hosts(const Verdict& verdict) {
  Writer writer;
  write_hosts(verdict.hosts, &writer);
  return writer.take();
}

std::string encode_without_hosts(const Verdict& verdict) {
  Writer writer;
  writer.i32(verdict.attempt).u64(verdict.session).i32(verdict.world_size);
  writer.i32(verdict.local_rank).i32(verdict.local_size);
  writer.i32(verdict.node_rank).i32(verdict.node_count);
  writer.u32(static_cast<uint32_t>(verdict.locals.size()));
  for (const LocalRecord& local : verdict.locals) {
    writer.i32(local.rank).i64(local.pid).text(local.socket_name);
  }
  return writer.take();
}

std::string encode(const Verdict& verdict) {
  return encode_without_hosts(verdict) + encode_hosts(verdict);
}

bool decode(std::string_view bytes, Verdict* out) {
  Reader reader(bytes);
  out->attempt = reader.i32();
  out->session = reader.u64();
  out->world_size = reader.i32();
  out->local_rank = reader.i32();
  out->local_size = reader.i32();
  out->node_rank = reader.i32();
  out->node_count = reader.i32();
  const size_t locals = reader.count(4 * sizeof(uint32_t));
  for (size_t i = 0; i < locals && reader.ok(); ++i) {
    LocalRecord local;
    local.rank = reader.i32();
    local.pid = reader.i64();
    local.socket_name = reader.text(kMaxNameBytes);
    out->locals.push_back(std::move(local));
  }
  const int32_t max_ranks = std::min(out->world_size, kMaxWorldSize);
  return read_hosts(&reader, max_ranks, &out->hosts) && reader.done();
}

std::string encode(const ErrorInfo& info) {
  Writer writer;
  put(&writer, info);
  return writer.take();
}

bool decode(std::string_view bytes, ErrorInfo* out) {
  Reader reader(bytes);
  *out = get_info(&reader);
  return reader.done();
}

std::string encode(const Failure& failure) {
  Writer writer;
  writer.text(failure.scope).u8(failure.silent ? 1 : 0);
  put(&writer, failure.info);
  return writer.take();
}

bool decode(std::string_view bytes, Failure* out) {
  Reader reader(bytes);
  out->scope = reader.text(kMaxNameBytes);
  out->silent = reader.u8() != 0;
  out->info = get_info(&reader);
  return reader.done();
}

std::string encode(const Activity& activity) {
  Writer writer;
  writer.u8(activity.inside ? 1 : 0).u8(activity.stalled ? 1 : 0);
  writer.text(cut(activity.communicator, kMaxNameBytes));
  writer.text(cut(activity.operation, kMaxNameBytes)).i64(activity.sequence);
  writer.text(cut(activity.label, kMaxNameBytes)).i64(activity.age_ms);
  put_ranks(&writer, activity.members);
  writer.text(cut(activity.refused, kMaxCallBytes));
  return writer.take();
}

bool decode(std::string_view bytes, Activity* out) {
  Reader reader(bytes);
  out->inside = reader.u8() != 0;
  out->stalled = reader.u8() != 0;
  out->communicator = reader.text(kMaxNameBytes);
  out->operation = reader.text(kMaxNameBytes);
  out->sequence = reader.i64();
  out->label = reader.text(kMaxNameBytes);
  out->age_ms = reader.i64();
  int64_t budget = kMaxWorldSize;
  if (!get_ranks(&reader, &budget, &out->members)) return false;
  out->refused = reader.text(kMaxCallBytes);
  return reader.done();
}

std::string encode(const Busy& busy) {
  Writer writer;
  writer.i32(busy.rank).text(cut(busy.what, kMaxNameBytes)).i64(busy.max_ms);
  return writer.take();
}

bool decode(std::string_view bytes, Busy* out) {
  Reader reader(bytes);
  out->rank = reader.i32();
  out->what = reader.text(kMaxNameBytes);
  out->max_ms = reader.i64();
  return reader.done() && out->max_ms >= 0 && out->max_ms <= INT64_MAX / 4'000'000;
}

std::string encode(const Departed& departed) {
  Writer writer;
  put_ranks(&writer, departed.ranks);
  return writer.take();
}

bool decode(std::string_view bytes, Departed* out) {
  Reader reader(bytes);
  int64_t budget = kMaxWorldSize;
  return get_ranks(&reader, &budget, &out->ranks) && reader.done();
}

std::string encode(const Orders& orders) {
  Writer writer;
  writer.text(cut(orders.communicator, kMaxNameBytes)).i32(orders.size);
  writer.u32(static_cast<uint32_t>(orders.news.size()));
  for (const Order& each : orders.news) {
    writer.i64(each.position)
        .u64(each.chain)
        .i64(each.sequence)
        .text(cut(each.call, kMaxCallBytes));
  }
  return writer.take();
}

bool decode(std::string_view bytes, Orders* out) {
  Reader reader(bytes);
  out->communicator = reader.text(kMaxNameBytes);
  out->size = reader.i32();
  const size_t count = reader.count(3 * sizeof(int64_t) + sizeof(uint32_t));
  if (count > kMaxOrders) return false;
  out->news.clear();
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    Order order;
    order.position = reader.i64();
    order.chain = reader.u64();
    order.sequence = reader.i64();
    order.call = reader.text(kMaxCallBytes);
    if (order.position < 1) return false;
    out->news.push_back(std::move(order));
  }
  return reader.done() && out->size >= 1 && out->size <= kMaxWorldSize;
}

std::string encode(const Hello& hello) {
  Writer writer;
  writer.u32(hello.protocol).text(hello.job_id).i32(hello.attempt);
  put(&writer, hello.member);
  writer.i32(hello.world_size).u64(hello.nonce).text(cut(hello.dialled, kMaxNameBytes));
  return writer.take();
}

bool decode(std::string_view bytes, Hello* out) {
  Reader reader(bytes);
  out->protocol = reader.u32();
  out->job_id = reader.text(kMaxNameBytes);
  out->attempt = reader.i32();
  out->member = get_member(&reader);
  out->world_size = reader.i32();
  out->nonce = reader.u64();
  out->dialled = reader.text(kMaxNameBytes);
  return reader.done();
}

std::string encode(const Welcome& welcome) {
  Writer writer;
  writer.u32(welcome.protocol).text(welcome.job_id).i32(welcome.attempt).i32(welcome.world_size);
  put(&writer, welcome.server);
  writer.i64(welcome.heartbeat_ms).i64(welcome.heartbeat_timeout_ms);
  return writer.take();
}

bool decode(std::string_view bytes, Welcome* out) {
  Reader reader(bytes);
  out->protocol = reader.u32();
  out->job_id = reader.text(kMaxNameBytes);
  out->attempt = reader.i32();
  out->world_size = reader.i32();
  out->server = get_member(&reader);
  out->heartbeat_ms = reader.i64();
  out->heartbeat_timeout_ms = reader.i64();
  return reader.done();
}

std::string encode(const std::vector<DumpAnswer>& answers) {
  Writer writer;
  writer.u32(static_cast<uint32_t>(answers.size()));
  for (const DumpAnswer& each : answers) {
    put(&writer, each.member);
    writer.u8(static_cast<uint8_t>(each.outcome)).text(cut(each.text, kMaxNameBytes));
  }
  return writer.take();
}

bool decode(std::string_view bytes, std::vector<DumpAnswer>* out) {
  Reader reader(bytes);
  const size_t answers = reader.count(4 + 4 + 8 + 1 + 4);
  for (size_t i = 0; i < answers && reader.ok(); ++i) {
    DumpAnswer& each = out->emplace_back();
    each.member = get_member(&reader);
    const uint8_t outcome = reader.u8();
    if (outcome > static_cast<uint8_t>(DumpAnswer::Outcome::kAbsent)) return false;
    each.outcome = static_cast<DumpAnswer::Outcome>(outcome);
    each.text = reader.text(kMaxNameBytes);
  }
  return reader.done();
}

std::string encode(const GatherVerdict& verdict) {
  Writer writer;
  writer.u64(verdict.session).u64(verdict.number);
  writer.u32(static_cast<uint32_t>(verdict.present.size()));
  for (const auto& [rank, says] : verdict.present) writer.i32(rank).text(says);
  return writer.take();
}

bool decode(std::string_view bytes, GatherVerdict* out) {
  Reader reader(bytes);
  out->session = reader.u64();
  out->number = reader.u64();
  const size_t present = reader.count(4 + 4);
  for (size_t i = 0; i < present && reader.ok(); ++i) {
    const int32_t rank = reader.i32();
    out->present.emplace_back(rank, reader.text(kMaxPayloadBytes));
  }
  return reader.done();
}

}  // namespace dt::store
