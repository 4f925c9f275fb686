// SPDX-License-Identifier: Apache-2.0
#include "fake_nccl_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "elements.h"

namespace dt::test {

using nccl::Op;
using nccl::Type;

namespace {

template <class T>
void fold(void* into, const void* from, int64_t from_index, int64_t count, Op op) {
  for (int64_t i = 0; i < count; ++i) {
    using Value = Arithmetic<T>;
    const Value a = load<T>(into, i);
    const Value b = load<T>(from, from_index + i);
    Value result = a;
    if constexpr (std::is_integral_v<Value>) {
      const auto x = static_cast<uint64_t>(a);
      const auto y = static_cast<uint64_t>(b);
      if (op == Op::kSum) result = static_cast<Value>(x + y);
      if (op == Op::kProd) result = static_cast<Value>(x * y);
    } else {
      if (op == Op::kSum) result = a + b;
      if (op == Op::kProd) result = a * b;
      if ((op == Op::kMax || op == Op::kMin) && std::isnan(b)) result = b;
    }
    if (op == Op::kMax && b > a) result = b;
    if (op == Op::kMin && b < a) result = b;
    store<T>(into, i, result);
  }
}

void fold_any(Type type, void* into, const void* from, int64_t from_index, int64_t count, Op op) {
  switch (type) {
    case Type::kInt8: return fold<int8_t>(into, from, from_index, count, op);
    case Type::kUint8: return fold<uint8_t>(into, from, from_index, count, op);
    case Type::kInt32: return fold<int32_t>(into, from, from_index, count, op);
    case Type::kUint32: return fold<uint32_t>(into, from, from_index, count, op);
    case Type::kInt64: return fold<int64_t>(into, from, from_index, count, op);
    case Type::kUint64: return fold<uint64_t>(into, from, from_index, count, op);
    case Type::kFloat16: return fold<F16>(into, from, from_index, count, op);
    case Type::kBfloat16: return fold<Bf16>(into, from, from_index, count, op);
    case Type::kFloat32: return fold<float>(into, from, from_index, count, op);
    case Type::kFloat64: return fold<double>(into, from, from_index, count, op);
  }
}

bool same(const Task& a, const Task& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.root == b.root;
}

/// Gives a rank its result of a round in which all have their pieces.
void put_result(int rank, const Task& task, const Round& round) {
  const size_t bytes = task.count * type_bytes(task.type);
  if (bytes == 0) return;
  const auto put = [&](size_t offset, const Bytes& from) {
    memcpy(static_cast<char*>(task.recv) + offset, from.data(), bytes);
  };
  if (task.kind == Kind::kBroadcast) return put(0, round.pieces[static_cast<size_t>(task.root)]);
  if (task.kind == Kind::kAllGather) {
    for (size_t i = 0; i < round.pieces.size(); ++i) put(i * bytes, round.pieces[i]);
    return;
  }
  if (task.kind == Kind::kReduce && task.root != rank) return;
  const auto count = static_cast<int64_t>(task.count);
  const int64_t first = task.kind == Kind::kReduceScatter ? rank * count : 0;
  Bytes result(bytes);
  memcpy(result.data(), round.pieces[0].data() + first * int64_t(type_bytes(task.type)), bytes);
  for (size_t i = 1; i < round.pieces.size(); ++i) {
    fold_any(task.type, result.data(), round.pieces[i].data(), first, count, task.op);
  }
  put(0, result);
}

}  // namespace

size_t type_bytes(Type type) {
  switch (type) {
    case Type::kInt8:
    case Type::kUint8: return 1;
    case Type::kFloat16:
    case Type::kBfloat16: return 2;
    case Type::kInt32:
    case Type::kUint32:
    case Type::kFloat32: return 4;
    case Type::kInt64:
    case Type::kUint64:
    case Type::kFloat64: return 8;
  }
  return 0;
}

std::string shown(const Task& task) {
  return text("%s of %zu elements (type %d, op %d, root %d)", task.function, task.count,
              static_cast<int>(task.type), static_cast<int>(task.op), task.root);
}

void World::arrive(int rank, const Task& task) {
  const size_t bytes = task.count * type_bytes(task.type);
  const auto copied = [&](size_t length) {
    const char* from = static_cast<const char*>(task.send);
    return length == 0 ? Bytes() : Bytes(from, from + length);
  };
  if (task.kind == Kind::kRecv) return;
  if (task.kind == Kind::kSend) {
    mail[{rank, task.root}].push_back({copied(bytes), task.taken});
    return;
  }
  Round& round = rounds[task.sequence];
  if (round.arrived++ == 0) {
    round.first = task;
    round.first_rank = rank;
    round.pieces.resize(static_cast<size_t>(size));
  } else if (!same(round.first, task)) {
    round.broken = true;
    misuses->push_back(text("rank %d calls %s, rank %d %s", rank, shown(task).c_str(),
                            round.first_rank, shown(round.first).c_str()));
  }
  size_t pieces = 1;
  if (task.kind == Kind::kReduceScatter) pieces = static_cast<size_t>(size);
  if (task.kind == Kind::kBroadcast && task.root != rank) pieces = 0;
  round.pieces[static_cast<size_t>(rank)] = copied(pieces * bytes);
}

bool World::take(int rank, const Task& task) {
  if (task.kind == Kind::kSend) return *task.taken;
  if (task.kind == Kind::kRecv) return take_message(rank, task);
  Round& round = rounds[task.sequence];
  if (round.broken || round.arrived < size) return false;
  put_result(rank, task, round);
  if (++round.left == size) rounds.erase(task.sequence);
  return true;
}

bool World::take_message(int rank, const Task& task) {
  auto& messages = mail[{task.root, rank}];
  if (messages.empty()) return false;
  const Message message = std::move(messages.front());
  messages.pop_front();
  const size_t bytes = task.count * type_bytes(task.type);
  if (message.bytes.size() != bytes) {
    misuses->push_back(text("rank %d receives %zu bytes, rank %d sent %zu", rank, bytes, task.root,
                            message.bytes.size()));
  }
  const size_t length = std::min(bytes, message.bytes.size());
  if (length > 0) memcpy(task.recv, message.bytes.data(), length);
  *message.taken = true;
  return true;
}

}  // namespace dt::test
