// SPDX-License-Identifier: Apache-2.0
#include "backend/staged/staged_carrier.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "backend/staged/parts.h"

namespace dt::backend {
namespace {

// Of one half of the pinned memory: while one chunk is reduced the next one comes from the GPU.
constexpr int64_t kChunkBytes = 4 << 20;
// Sends and receives under way together, and what each has of pinned memory. Both sides of a
// transfer cut it alike.
constexpr size_t kTransfersMax = 64;
constexpr int64_t kSliceBytes = 128 << 10;
// The host's operation has the same deadline, and names who is missing.
constexpr int64_t kGraceMs = 1'000;

/// Chunks of a collective go through two halves of pinned memory: copy in, the host's operation,
/// copy out. The next chunk is copied in while the host works.
///
/// Sends and receives go each through a slice of their own, and none waits for another, but for
/// those of one peer and direction: these stay in order. New ones may join those under way.
///
/// What was begun waits in `todo_`: its head, one collective or all sends and receives up to the
/// next collective, is under way.
class StagedCarrier final : public Carrier {
 public:
  StagedCarrier(std::shared_ptr<DeviceThread> device, StagedOptions options)
      : device_(std::move(device)),
        options_(std::move(options)),
        parts_(options_.rank, options_.size) {}

  Status begin_open(Deadline deadline) override;
  Result<bool> is_open() override { return true; }
  Status begin(std::span<const Collective* const> operations) override {
    todo_.insert(todo_.end(), operations.begin(), operations.end());
    return {};
  }
  bool takes(const Collective& next) const override { return next.is_transfer(); }
  Status progress(std::vector<const Collective*>* ended) override;
  int64_t grace_ms() const override { return kGraceMs; }
  Status check() override { return options_.on_host->broken(); }
  void abort() override {
    todo_.clear();
    options_.on_host->interrupt(Status(Code::kAborted, "the communicator on the device is broken"));
  }
  bool release() override;
  const char* waits_for() const override { return "the other ranks' part, over host memory"; }

 private:
  struct Half {
    void* memory = nullptr;  ///< what goes to the host's operation, then what comes from it
    cuda::Event copied_in = nullptr;
    cuda::Event copied_out = nullptr;
    bool in_use = false;  ///< copied_out was recorded
  };
  /// A chunk of an operation: `count` elements from `begin` of each part.
  struct Chunk {
    int64_t begin = 0;
    int64_t count = 0;
  };
  /// The collective under way.
  struct Flow {
    const Collective* collective = nullptr;
    int64_t count = 0;    ///< elements of the longest part
    int64_t step = 1;     ///< elements of a chunk
    int64_t fetched = 0;  ///< elements that are copied in, or on their way
    int64_t at = 0;       ///< the chunk that the host has or gets next
    int turn = 0;         ///< its half
    bool marked = false;  ///< without elements: copied_in was recorded, to wait for the stream
    std::shared_ptr<Work> work;  ///< the host has it
    // Of an irregular operation: what all ranks expect of each other, before anything else.
    bool compared = true;
    std::vector<int64_t> table;
    std::vector<int64_t> tables;
  };
  /// A send: from the GPU, then to the peer; a receive the other way; chunk by chunk.
  struct Transfer {
    enum class Phase { kBegin, kCopying, kMoving, kDone };
    const Collective* collective = nullptr;
    size_t slice = 0;
    int64_t at = 0;     ///< first element of the chunk
    int64_t count = 0;  ///< its elements
    Phase phase = Phase::kBegin;
    std::shared_ptr<Work> work;
  };

  void begin_flow(const Collective* collective);
  Result<bool> compare_counts();
  Result<bool> advance_flow();
  Status fetch();
  Status give_to_host();
  Status copy_in(const Collective& collective, Chunk chunk, Half* half);
  Status copy_out(const Collective& collective, Chunk chunk, Half* half);
  void take_transfers();
  Status advance_transfers(std::vector<const Collective*>* ended);
  Result<bool> advance(Transfer* transfer);
  Status begin_copy(Transfer* transfer);
  Status begin_move(Transfer* transfer);
  Result<bool> host_has_done(const Work& work) const;
  Chunk chunk_at(int64_t begin) const { return {begin, std::min(flow_.step, flow_.count - begin)}; }
  char* slice(size_t index) const {
    return static_cast<char*>(slices_) + static_cast<int64_t>(index) * kSliceBytes;
  }

  const std::shared_ptr<DeviceThread> device_;
  const StagedOptions options_;
  const Parts parts_;
  std::array<Half, 2> halves_;
  void* slices_ = nullptr;
  std::vector<cuda::Event> slice_events_;
  std::vector<size_t> free_slices_;
  std::deque<const Collective*> todo_;
  Flow flow_;
  std::vector<Transfer> transfers_;  ///< in the order of the calls
};

Status StagedCarrier::begin_open(Deadline) {
  cuda::Runtime& runtime = device_->runtime();
  for (Half& half : halves_) {
    DT_TRY_VALUE(half.memory, runtime.allocate_pinned(2 * kChunkBytes));
    DT_TRY_VALUE(half.copied_in, runtime.create_event(false));
    DT_TRY_VALUE(half.copied_out, runtime.create_event(false));
  }
  DT_TRY_VALUE(slices_, runtime.allocate_pinned(kTransfersMax * kSliceBytes));
  for (size_t i = 0; i < kTransfersMax; ++i) {
    DT_TRY_VALUE(slice_events_.emplace_back(), runtime.create_event(false));
    free_slices_.push_back(kTransfersMax - 1 - i);
  }
  return {};
}

bool StagedCarrier::release() {
  const auto busy = [&](const std::shared_ptr<Work>& work) {
    return work != nullptr && !work->done() &&
           !options_.on_host->wait(*work, Wait{Deadline::after_ms(0), nullptr});
  };
  if (busy(flow_.work)) return false;
  for (const Transfer& each : transfers_) {
    if (busy(each.work)) return false;
  }
  cuda::Runtime& runtime = device_->runtime();
  for (Half& half : halves_) {
    if (half.memory != nullptr) (void)runtime.release_pinned(half.memory);
    if (half.copied_in != nullptr) (void)runtime.destroy_event(half.copied_in);
    if (half.copied_out != nullptr) (void)runtime.destroy_event(half.copied_out);
    half = {};
  }
  if (slices_ != nullptr) (void)runtime.release_pinned(std::exchange(slices_, nullptr));
  for (const cuda::Event event : slice_events_) (void)runtime.destroy_event(event);
  slice_events_.clear();
  return true;
}

Status StagedCarrier::progress(std::vector<const Collective*>* ended) {
  for (;;) {
    if (flow_.collective != nullptr) {
      DT_TRY_VALUE(const bool done, advance_flow());
      if (!done) return {};
      ended->push_back(std::exchange(flow_.collective, nullptr));
    }
    take_transfers();
    if (!transfers_.empty()) {
      const size_t before = ended->size();
      DT_TRY(advance_transfers(ended));
      if (ended->size() == before) return {};
      continue;
    }
    if (todo_.empty()) return {};
    begin_flow(todo_.front());
    todo_.pop_front();
  }
}

Result<bool> StagedCarrier::host_has_done(const Work& work) const {
  if (!work.done() &&
      !options_.on_host->wait(const_cast<Work&>(work), Wait{Deadline::after_ms(0), nullptr})) {
    return false;
  }
  DT_TRY(work.status());
  return true;
}

// ---- sends and receives ----

/// Each peer and direction has one at a time, and neither direction can take all slices: so a send
/// holds up no receive that its peer needs to go on.
void StagedCarrier::take_transfers() {
  if (todo_.empty() || !todo_.front()->is_transfer()) return;
  std::set<std::pair<Kind, int32_t>> busy;
  size_t sends = 0;
  for (const Transfer& each : transfers_) {
    busy.insert({each.collective->kind, each.collective->root});
    if (each.collective->kind == Kind::kSend) ++sends;
  }
  for (auto next = todo_.begin(); next != todo_.end() && (*next)->is_transfer();) {
    const Collective* const collective = *next;
    const bool is_send = collective->kind == Kind::kSend;
    const size_t used = is_send ? sends : transfers_.size() - sends;
    // Those behind it with the same peer stay behind it.
    const bool is_first = busy.insert({collective->kind, collective->root}).second;
    if (!is_first || used >= kTransfersMax / 2) {
      ++next;
      continue;
    }
    if (is_send) ++sends;
    Transfer& transfer = transfers_.emplace_back();
    transfer.collective = collective;
    transfer.slice = free_slices_.back();
    free_slices_.pop_back();
    next = todo_.erase(next);
  }
}

/// Each as far as it goes.
Status StagedCarrier::advance_transfers(std::vector<const Collective*>* ended) {
  for (Transfer& each : transfers_) {
    for (bool moved = true; moved && each.phase != Transfer::Phase::kDone;) {
      DT_TRY_VALUE(moved, advance(&each));
    }
    if (each.phase != Transfer::Phase::kDone) continue;
    ended->push_back(each.collective);
    free_slices_.push_back(each.slice);
  }
  std::erase_if(transfers_,
                [](const Transfer& each) { return each.phase == Transfer::Phase::kDone; });
  return {};
}

/// True: it went on.
Result<bool> StagedCarrier::advance(Transfer* transfer) {
  using Phase = Transfer::Phase;
  const bool sends = transfer->collective->kind == Kind::kSend;
  switch (transfer->phase) {
    case Phase::kBegin:
      transfer->count = std::min(kSliceBytes / dtype_bytes(transfer->collective->dtype),
                                 transfer->collective->count - transfer->at);
      DT_TRY(sends ? begin_copy(transfer) : begin_move(transfer));
      return true;
    case Phase::kCopying: {
      DT_TRY_VALUE(const bool passed, device_->runtime().passed(slice_events_[transfer->slice]));
      if (!passed) return false;
      if (sends) {
        DT_TRY(begin_move(transfer));
        return true;
      }
      break;
    }
    case Phase::kMoving: {
      DT_TRY_VALUE(const bool moved, host_has_done(*transfer->work));
      if (!moved) return false;
      if (!sends) {
        DT_TRY(begin_copy(transfer));
        return true;
      }
      break;
    }
    case Phase::kDone: return false;
  }
  transfer->at += transfer->count;
  transfer->phase = transfer->at < transfer->collective->count ? Phase::kBegin : Phase::kDone;
  return true;
}

Status StagedCarrier::begin_copy(Transfer* transfer) {
  const Collective& collective = *transfer->collective;
  const int64_t offset = transfer->at * dtype_bytes(collective.dtype);
  const int64_t bytes = transfer->count * dtype_bytes(collective.dtype);
  cuda::Runtime& runtime = device_->runtime();
  if (collective.kind == Kind::kSend) {
    DT_TRY(runtime.copy(slice(transfer->slice), static_cast<const char*>(collective.send) + offset,
                        bytes, device_->stream()));
  } else {
    DT_TRY(runtime.copy(static_cast<char*>(collective.recv) + offset, slice(transfer->slice), bytes,
                        device_->stream()));
  }
  transfer->phase = Transfer::Phase::kCopying;
  return runtime.record(slice_events_[transfer->slice], device_->stream());
}

Status StagedCarrier::begin_move(Transfer* transfer) {
  Collective collective = *transfer->collective;
  collective.steps = nullptr;
  collective.send = collective.recv = slice(transfer->slice);
  collective.count = transfer->count;
  // Kept only where it was submitted: another is never done.
  const auto work = std::make_shared<Work>();
  DT_TRY(options_.on_host->submit(collective, work));
  transfer->work = work;
  transfer->phase = Transfer::Phase::kMoving;
  return {};
}

// ---- collectives ----

void StagedCarrier::begin_flow(const Collective* collective) {
  flow_ = {};
  flow_.collective = collective;
  flow_.step =
      std::max<int64_t>(1, kChunkBytes / parts_.most(*collective) / dtype_bytes(collective->dtype));
  flow_.compared = !is_irregular(collective->kind);
  if (flow_.compared && collective->kind != Kind::kBarrier) flow_.count = collective->count;
}

/// True: all ranks know that every block is as long for its sender as for its receiver, and into
/// how many chunks the longest falls.
Result<bool> StagedCarrier::compare_counts() {
  if (flow_.work == nullptr) {
    flow_.table = parts_.table_of(*flow_.collective);
    flow_.tables.resize(flow_.table.size() * static_cast<size_t>(options_.size));
    Collective gather;
    gather.kind = Kind::kAllgather;
    gather.dtype = Dtype::kI64;
    gather.send = flow_.table.data();
    gather.recv = flow_.tables.data();
    gather.count = static_cast<int64_t>(flow_.table.size());
    gather.deadline = flow_.collective->deadline;
    gather.name = flow_.collective->name;
    const auto work = std::make_shared<Work>();
    DT_TRY(options_.on_host->submit(gather, work));
    flow_.work = work;
  }
  DT_TRY_VALUE(const bool done, host_has_done(*flow_.work));
  if (!done) return false;
  flow_.work = nullptr;
  DT_TRY_VALUE(flow_.count, parts_.longest(*flow_.collective, flow_.tables));
  flow_.compared = true;
  return true;
}

/// True: its last copy is enqueued.
Result<bool> StagedCarrier::advance_flow() {
  const Collective& collective = *flow_.collective;
  if (!flow_.compared) {
    DT_TRY_VALUE(const bool compared, compare_counts());
    if (!compared) return false;
  }
  const int64_t count = flow_.count;
  for (;;) {
    if (count > 0) DT_TRY(fetch());
    Half& half = halves_[static_cast<size_t>(flow_.turn)];
    if (flow_.work == nullptr) {
      if (count == 0 && !std::exchange(flow_.marked, true)) {
        DT_TRY(device_->runtime().record(half.copied_in, device_->stream()));
      }
      if (count > 0 && flow_.fetched <= flow_.at) return false;  // its half is not free yet
      DT_TRY_VALUE(const bool passed, device_->runtime().passed(half.copied_in));
      if (!passed) return false;
      DT_TRY(give_to_host());
    }
    DT_TRY_VALUE(const bool done, host_has_done(*flow_.work));
    if (!done) return false;
    flow_.work = nullptr;
    if (count == 0) return true;
    const Chunk chunk = chunk_at(flow_.at);
    DT_TRY(copy_out(collective, chunk, &half));
    flow_.at += chunk.count;
    flow_.turn ^= 1;
    if (flow_.at >= count) return true;
  }
}

/// Copies in the chunk of this turn and the next one, where their halves are free.
Status StagedCarrier::fetch() {
  const Collective& collective = *flow_.collective;
  while (flow_.fetched < flow_.count && flow_.fetched < flow_.at + 2 * flow_.step) {
    const size_t ahead = flow_.fetched > flow_.at ? 1 : 0;
    Half& half = halves_[static_cast<size_t>(flow_.turn) ^ ahead];
    if (half.in_use) {
      DT_TRY_VALUE(const bool passed, device_->runtime().passed(half.copied_out));
      if (!passed) return {};
      half.in_use = false;
    }
    const Chunk chunk = chunk_at(flow_.fetched);
    DT_TRY(copy_in(collective, chunk, &half));
    flow_.fetched += chunk.count;
  }
  return {};
}

Status StagedCarrier::give_to_host() {
  char* const given = static_cast<char*>(halves_[static_cast<size_t>(flow_.turn)].memory);
  Collective on_host = *flow_.collective;
  on_host.steps = nullptr;
  on_host.send = given;
  on_host.recv = on_host.kind == Kind::kBroadcast ? given : given + kChunkBytes;
  on_host.count = flow_.count == 0 ? 0 : chunk_at(flow_.at).count;
  if (is_irregular(on_host.kind)) {
    on_host.blocks = parts_.chunk_of(*flow_.collective, flow_.at, on_host.count);
  }
  const auto work = std::make_shared<Work>();
  DT_TRY(options_.on_host->submit(on_host, work));
  flow_.work = work;
  return {};
}

Status StagedCarrier::copy_in(const Collective& collective, Chunk chunk, Half* half) {
  cuda::Runtime& runtime = device_->runtime();
  const int64_t element = dtype_bytes(collective.dtype);
  const bool multicast = is_multicast(collective.kind);
  char* to = static_cast<char*>(half->memory);
  for (int64_t part = 0; part < (multicast ? 1 : parts_.sent(collective)); ++part) {
    const auto from = parts_.sent_at(collective, part, chunk.begin, chunk.count);
    if (from.count == 0) continue;
    DT_TRY(runtime.copy(to, static_cast<const char*>(collective.send) + from.offset * element,
                        from.count * element, device_->stream()));
    to += from.count * element;
  }
  return runtime.record(half->copied_in, device_->stream());
}

Status StagedCarrier::copy_out(const Collective& collective, Chunk chunk, Half* half) {
  if (parts_.received(collective) == 0) return {};
  cuda::Runtime& runtime = device_->runtime();
  const char* from =
      static_cast<char*>(half->memory) + (collective.kind == Kind::kBroadcast ? 0 : kChunkBytes);
  const int64_t element = dtype_bytes(collective.dtype);
  for (int64_t part = 0; part < parts_.received(collective); ++part) {
    const auto to = parts_.received_at(collective, part, chunk.begin, chunk.count);
    if (to.count == 0) continue;
    DT_TRY(runtime.copy(static_cast<char*>(collective.recv) + to.offset * element, from,
                        to.count * element, device_->stream()));
    from += to.count * element;
  }
  half->in_use = true;
  return runtime.record(half->copied_out, device_->stream());
}

}  // namespace

std::shared_ptr<Carrier> make_staged_carrier(std::shared_ptr<DeviceThread> device,
                                             StagedOptions options) {
  return std::make_shared<StagedCarrier>(std::move(device), std::move(options));
}

}  // namespace dt::backend
