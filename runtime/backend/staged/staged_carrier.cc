// SPDX-License-Identifier: Apache-2.0
#include "backend/staged/staged_carrier.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

namespace dt::backend {
namespace {

// Of one half of the pinned memory: while one chunk is reduced the next one comes from the GPU.
constexpr int64_t kChunkBytes = 4 << 20;
// Sends and receives under way together, and what each has of pinned memory. Both sides of a
// transfer cut it alike.
constexpr size_t kTransfersMax = 64;
constexpr int64_t kSliceBytes = 128 << 10;
constexpr int64_t kNapNs = 20'000;
constexpr int64_t kDrainMs = 5'000;

/// How many times `count` elements a kind takes and gives, in ranks' parts.
struct Shape {
  int64_t send_parts = 1;
  int64_t recv_parts = 1;
};

bool is_transfer(const Collective& collective) {
  return collective.kind == Kind::kSend || collective.kind == Kind::kRecv;
}

/// Chunks of a collective go through two halves of pinned memory: copy in, the host's operation,
/// copy out. The host is asked while the next chunk is copied in.
///
/// Sends and receives go each through a slice of their own, and none waits for another, but for
/// those of one peer and direction: these stay in order.
class StagedCarrier final : public Carrier {
 public:
  StagedCarrier(std::shared_ptr<DeviceThread> device, StagedOptions options)
      : device_(std::move(device)), options_(std::move(options)) {}
  ~StagedCarrier() override {
    // Memory that a stuck copy may touch is left behind.
    if (!device_->drained(Deadline::after_ms(kDrainMs))) return;
    for (Half& half : halves_) {
      if (half.memory != nullptr) (void)device_->runtime().release_pinned(half.memory);
      if (half.copied_in != nullptr) (void)device_->runtime().destroy_event(half.copied_in);
      if (half.copied_out != nullptr) (void)device_->runtime().destroy_event(half.copied_out);
    }
    if (slices_ != nullptr) (void)device_->runtime().release_pinned(slices_);
    for (const cuda::Event event : slice_events_) (void)device_->runtime().destroy_event(event);
  }

  Status open(const Wait&) override {
    cuda::Runtime& runtime = device_->runtime();
    for (Half& half : halves_) {
      DT_TRY_VALUE(half.memory, runtime.allocate_pinned(2 * kChunkBytes));
      DT_TRY_VALUE(half.copied_in, runtime.create_event(false));
      DT_TRY_VALUE(half.copied_out, runtime.create_event(false));
    }
    DT_TRY_VALUE(slices_, runtime.allocate_pinned(kTransfersMax * kSliceBytes));
    for (size_t i = 0; i < kTransfersMax; ++i) {
      DT_TRY_VALUE(slice_events_.emplace_back(), runtime.create_event(false));
    }
    return {};
  }

  Status enqueue(std::span<const Collective* const> operations, const Wait& wait) override;
  Status check() override { return options_.on_host->broken(); }
  void abort() override {
    options_.on_host->interrupt(Status(Code::kAborted, "the communicator on the device is broken"));
  }
  Result<bool> close() override { return true; }
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

  Status run_transfers(std::span<const Collective* const> operations, const Wait& wait);
  Result<bool> advance(Transfer* transfer, const Wait& wait);
  Status begin_copy(Transfer* transfer);
  Status begin_move(Transfer* transfer, const Wait& wait);
  char* slice(size_t index) const {
    return static_cast<char*>(slices_) + static_cast<int64_t>(index) * kSliceBytes;
  }
  Shape shape_of(const Collective& collective) const;
  Status run(const Collective& collective, const Wait& wait);
  Status copy_in(const Collective& collective, Chunk chunk, Half* half, const Wait& wait);
  Status carry_out(const Collective& collective, Chunk chunk, Half* half, const Wait& wait);
  Status await(cuda::Event event, const Wait& wait);
  bool has_result(const Collective& collective) const;
  bool gives(const Collective& collective) const;

  const std::shared_ptr<DeviceThread> device_;
  const StagedOptions options_;
  std::array<Half, 2> halves_;
  void* slices_ = nullptr;
  std::vector<cuda::Event> slice_events_;
};

Shape StagedCarrier::shape_of(const Collective& collective) const {
  switch (collective.kind) {
    case Kind::kAllgather: return {1, options_.size};
    case Kind::kReduceScatter: return {options_.size, 1};
    case Kind::kSend: return {1, 0};
    case Kind::kRecv: return {0, 1};
    case Kind::kBarrier: return {0, 0};
    default: return {1, 1};
  }
}

bool StagedCarrier::gives(const Collective& collective) const {
  if (collective.kind == Kind::kBroadcast) return collective.root == options_.rank;
  return shape_of(collective).send_parts > 0;
}

bool StagedCarrier::has_result(const Collective& collective) const {
  if (collective.kind == Kind::kReduce) return collective.root == options_.rank;
  return shape_of(collective).recv_parts > 0;
}

Status StagedCarrier::enqueue(std::span<const Collective* const> operations, const Wait& wait) {
  if (!is_transfer(*operations[0])) return run(*operations[0], wait);
  for (size_t begin = 0; begin < operations.size(); begin += kTransfersMax) {
    DT_TRY(run_transfers(
        operations.subspan(begin, std::min(kTransfersMax, operations.size() - begin)), wait));
  }
  return {};
}

// ---- sends and receives ----

Status StagedCarrier::run_transfers(std::span<const Collective* const> operations,
                                    const Wait& wait) {
  std::vector<Transfer> transfers(operations.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    transfers[i].collective = operations[i];
    transfers[i].slice = i;
  }
  size_t done = 0;
  while (done < transfers.size()) {
    bool progressed = false;
    std::set<std::pair<Kind, int32_t>> busy;
    for (Transfer& each : transfers) {
      if (each.phase == Transfer::Phase::kDone) continue;
      if (!busy.insert({each.collective->kind, each.collective->root}).second) continue;
      DT_TRY_VALUE(const bool moved, advance(&each, wait));
      progressed |= moved;
      if (each.phase == Transfer::Phase::kDone) ++done;
    }
    if (progressed) continue;
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout, "a peer did not send or receive");
    }
    (void)dt::Event().wait({Deadline::after_ns(kNapNs)});
  }
  return {};
}

/// True: it went on.
Result<bool> StagedCarrier::advance(Transfer* transfer, const Wait& wait) {
  using Phase = Transfer::Phase;
  const bool sends = transfer->collective->kind == Kind::kSend;
  switch (transfer->phase) {
    case Phase::kBegin:
      transfer->count = std::min(kSliceBytes / dtype_bytes(transfer->collective->dtype),
                                 transfer->collective->count - transfer->at);
      DT_TRY(sends ? begin_copy(transfer) : begin_move(transfer, wait));
      return true;
    case Phase::kCopying: {
      DT_TRY_VALUE(const bool passed, device_->runtime().passed(slice_events_[transfer->slice]));
      if (!passed) return false;
      if (sends) {
        DT_TRY(begin_move(transfer, wait));
        return true;
      }
      break;
    }
    case Phase::kMoving:
      if (!options_.on_host->wait(*transfer->work, Wait{Deadline::after_ms(0), nullptr})) {
        return false;
      }
      DT_TRY(transfer->work->status());
      if (!sends) {
        DT_TRY(begin_copy(transfer));
        return true;
      }
      break;
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

Status StagedCarrier::begin_move(Transfer* transfer, const Wait& wait) {
  Collective collective = *transfer->collective;
  collective.send = collective.recv = slice(transfer->slice);
  collective.count = transfer->count;
  collective.deadline = wait.deadline;
  transfer->work = std::make_shared<Work>();
  transfer->phase = Transfer::Phase::kMoving;
  return options_.on_host->submit(collective, transfer->work);
}

// ---- collectives ----

Status StagedCarrier::run(const Collective& collective, const Wait& wait) {
  const Shape shape = shape_of(collective);
  const int64_t parts = std::max<int64_t>({shape.send_parts, shape.recv_parts, 1});
  const int64_t step = std::max<int64_t>(1, kChunkBytes / parts / dtype_bytes(collective.dtype));
  if (collective.count == 0 || collective.kind == Kind::kBarrier) {
    return carry_out(collective, {}, &halves_[0], wait);
  }
  const auto chunk_at = [&](int64_t begin) {
    return Chunk{begin, std::min(step, collective.count - begin)};
  };
  DT_TRY(copy_in(collective, chunk_at(0), &halves_[0], wait));
  int turn = 0;
  for (int64_t begin = 0; begin < collective.count; begin += step, turn ^= 1) {
    if (begin + step < collective.count) {
      DT_TRY(copy_in(collective, chunk_at(begin + step), &halves_[turn ^ 1], wait));
    }
    DT_TRY(carry_out(collective, chunk_at(begin), &halves_[turn], wait));
  }
  return {};
}

/// The half may still be copied out of.
Status StagedCarrier::copy_in(const Collective& collective, Chunk chunk, Half* half,
                              const Wait& wait) {
  cuda::Runtime& runtime = device_->runtime();
  if (half->in_use) DT_TRY(await(half->copied_out, wait));
  half->in_use = false;
  const int64_t element = dtype_bytes(collective.dtype);
  if (gives(collective)) {
    for (int64_t part = 0; part < shape_of(collective).send_parts; ++part) {
      const int64_t from = (part * collective.count + chunk.begin) * element;
      DT_TRY(runtime.copy(static_cast<char*>(half->memory) + part * chunk.count * element,
                          static_cast<const char*>(collective.send) + from, chunk.count * element,
                          device_->stream()));
    }
  }
  return runtime.record(half->copied_in, device_->stream());
}

Status StagedCarrier::carry_out(const Collective& collective, Chunk chunk, Half* half,
                                const Wait& wait) {
  cuda::Runtime& runtime = device_->runtime();
  if (chunk.count > 0) DT_TRY(await(half->copied_in, wait));
  char* const given = static_cast<char*>(half->memory);
  char* const got = given + kChunkBytes;
  Collective on_host = collective;
  on_host.send = given;
  on_host.recv = collective.kind == Kind::kBroadcast ? given : got;
  on_host.count = chunk.count;
  on_host.deadline = wait.deadline;
  DT_TRY(options_.on_host->run(on_host));
  if (chunk.count == 0 || !has_result(collective)) return {};
  const int64_t element = dtype_bytes(collective.dtype);
  for (int64_t part = 0; part < shape_of(collective).recv_parts; ++part) {
    const int64_t to = (part * collective.count + chunk.begin) * element;
    DT_TRY(runtime.copy(static_cast<char*>(collective.recv) + to,
                        static_cast<const char*>(on_host.recv) + part * chunk.count * element,
                        chunk.count * element, device_->stream()));
  }
  half->in_use = true;
  return runtime.record(half->copied_out, device_->stream());
}

Status StagedCarrier::await(cuda::Event event, const Wait& wait) {
  DT_TRY_VALUE(const bool passed, device_->await(event, wait));
  if (passed) return {};
  if (wait.interrupted()) return wait.interrupt->status();
  return Status(Code::kTimeout, "a copy between the GPU and host memory did not end");
}

}  // namespace

std::shared_ptr<Carrier> make_staged_carrier(std::shared_ptr<DeviceThread> device,
                                             StagedOptions options) {
  return std::make_shared<StagedCarrier>(std::move(device), std::move(options));
}

}  // namespace dt::backend
