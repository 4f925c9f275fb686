// SPDX-License-Identifier: Apache-2.0
// How a NamedThread carries out what rank 0 has listed.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "training/named_thread.h"

namespace dt::training {
namespace {

constexpr int64_t kLeastMemory = 1 << 20;  // for putting tensors together

/// Of two time-outs of operations; 0: as the communicator says, which is `standard_ms`.
int64_t longer(int64_t a_ms, int64_t b_ms, int64_t standard_ms) {
  const auto limit = [&](int64_t ms) {
    if (ms == 0) ms = standard_ms;
    return ms > 0 ? ms : std::numeric_limits<int64_t>::max();
  };
  if (limit(a_ms) == limit(b_ms)) return a_ms == 0 ? a_ms : b_ms;
  return limit(a_ms) > limit(b_ms) ? a_ms : b_ms;
}

}  // namespace

/// `withheld`: why this rank cannot give its part of one of them; empty if it can.
std::vector<NamedThread::Part> NamedThread::take_parts(
    const std::vector<NamedAnswer::Operation>& operations, const NamedBatch& batch,
    std::string* withheld) {
  std::vector<Part> parts;
  state_.with([&](State& state) {
    for (const size_t at : batch) {
      Part part{operations[at].name, operations[at].call, {}, nullptr};
      const auto found = state.pending.find(part.name);
      if (found != state.pending.end() && found->second.told) {
        found->second.running = true;
        part.collective = found->second.collective;
        part.work = found->second.work;
      } else if (state.join != Join::kTold || state.closing) {
        // Rank 0 did not know yet that it has ended here.
        *withheld = state.failed.ok() ? "it has no \"" + part.name + "\"" : state.failed.message();
      }
      parts.push_back(std::move(part));
    }
    ++state.statistics.operations;
    for (const Part& part : parts) {
      ++state.statistics.tensors;
      if (parts.size() == 1) continue;
      ++state.statistics.fused_tensors;
      state.statistics.fused_bytes += part.call.bytes();
    }
  });
  return parts;
}

void NamedThread::run_batch(const std::vector<NamedAnswer::Operation>& operations,
                            const NamedBatch& batch) {
  std::string withheld;
  std::vector<Part> parts = take_parts(operations, batch, &withheld);
  Status status = run_parts(parts, withheld);
  // Only what a rank withholds fails so: its handle is gone, or it has no memory. It says which.
  if (status.code() == Code::kInvalidState) {
    ErrorInfo info = status.info();
    info.code = Code::kAborted;
    status = Status(std::move(info));
  }
  for (const Part& part : parts) {
    if (part.work == nullptr) continue;
    complete(part.name, status.ok() ? status : status.within("\"" + part.name + "\""));
  }
  if (const Status broken = data_->broken(); !broken.ok()) fail(broken.within(where_));
}

Status NamedThread::run_parts(std::vector<Part>& parts, const std::string& withheld) {
  // The caller may have changed it. An own grace at the beginning remains where nothing changed.
  const int64_t standard_ms = comm_->timeout_ms();
  if (data_->timeout_ms() != standard_ms) data_->set_timeout_ms(standard_ms);
  const Part& first = parts[0];
  backend::Collective collective = first.collective;
  if (first.work == nullptr) {
    collective.kind = first.call.kind;
    collective.dtype = first.call.dtype;
    collective.op = first.call.op;
    collective.root = first.call.root;
    collective.name = first.name;
  }
  collective.count = 0;
  for (const Part& part : parts) {
    collective.count += part.call.count;
    if (part.work != nullptr) {
      collective.timeout_ms =
          longer(collective.timeout_ms, part.collective.timeout_ms, standard_ms);
    }
  }
  if (parts.size() > 1) collective.name += format(" and %zu more", parts.size() - 1);
  if (!withheld.empty()) {
    collective.withheld = std::make_shared<const std::string>(withheld);
    return data_->run(collective);
  }
  if (parts.size() == 1 && first.work != nullptr) return data_->run(collective);
  return run_together(parts, collective);
}

/// Allreduces, in memory that lies where ranks read it fastest. A rank that has joined has zeros.
Status NamedThread::run_together(std::vector<Part>& parts, backend::Collective& collective) {
  const auto at = memory(collective.count * collective.element_bytes());
  if (!at.ok()) {
    collective.withheld = std::make_shared<const std::string>(at.status().message());
    return data_->run(collective);
  }
  char* to = at.value();
  for (const Part& part : parts) {
    const auto bytes = static_cast<size_t>(part.call.bytes());
    if (bytes == 0) continue;
    if (part.work != nullptr) {
      std::memcpy(to, part.collective.send, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
    to += bytes;
  }
  collective.send = collective.recv = at.value();
  DT_TRY(data_->run(collective));
  const char* from = at.value();
  for (const Part& part : parts) {
    const auto bytes = static_cast<size_t>(part.call.bytes());
    if (part.work != nullptr && bytes > 0) std::memcpy(part.collective.recv, from, bytes);
    from += bytes;
  }
  return {};
}

Result<char*> NamedThread::memory(int64_t bytes) {
  if (memory_bytes_ >= bytes && memory_ != nullptr) return memory_;
  int64_t wanted = std::max(kLeastMemory, bytes);
  // It grows as twice what it was, up to what is put together at most.
  wanted = std::max(wanted, std::min(2 * memory_bytes_, options_.fuse_bytes));
  (void)data_->backend().release(std::exchange(memory_, nullptr));
  memory_bytes_ = 0;
  DT_TRY_VALUE(void* const made, data_->backend().allocate(wanted));
  memory_ = static_cast<char*>(made);
  memory_bytes_ = wanted;
  return memory_;
}

}  // namespace dt::training
