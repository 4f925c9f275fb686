// SPDX-License-Identifier: Apache-2.0
#include "backend/staged/staged_carrier.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dt::backend {
namespace {

// Of one half of the pinned memory: while one chunk is reduced the next one comes from the GPU.
constexpr int64_t kChunkBytes = 4 << 20;
constexpr int64_t kNapNs = 20'000;

/// How many times `count` elements a kind takes and gives, in ranks' parts.
struct Shape {
  int64_t send_parts = 1;
  int64_t recv_parts = 1;
};

/// Chunks go through two halves of pinned memory: copy in, the host's operation, copy out. The host
/// is asked while the next chunk is copied; the copies of a half are ordered by the stream.
class StagedCarrier final : public Carrier {
 public:
  StagedCarrier(std::shared_ptr<DeviceEngine> engine, StagedOptions options)
      : engine_(std::move(engine)), options_(std::move(options)) {}
  ~StagedCarrier() override {
    for (Half& half : halves_) {
      if (half.memory != nullptr) (void)engine_->runtime().release_pinned(half.memory);
      if (half.copied_in != nullptr) (void)engine_->runtime().destroy_event(half.copied_in);
      if (half.copied_out != nullptr) (void)engine_->runtime().destroy_event(half.copied_out);
    }
  }

  Status open(const Wait&) override {
    cuda::Runtime& runtime = engine_->runtime();
    for (Half& half : halves_) {
      DT_TRY_VALUE(half.memory, runtime.allocate_pinned(2 * kChunkBytes));
      DT_TRY_VALUE(half.copied_in, runtime.create_event(false));
      DT_TRY_VALUE(half.copied_out, runtime.create_event(false));
    }
    return {};
  }

  Status enqueue(std::span<const Collective* const> operations, const Wait& wait) override;
  Status check() override { return options_.on_host->broken(); }
  void abort() override {
    options_.on_host->interrupt(
        Status(Code::kAborted, "the communicator on the device is broken"));
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

  Shape shape_of(const Collective& collective) const;
  Status run(const Collective& collective, const Wait& wait);
  Status copy_in(const Collective& collective, Chunk chunk, Half* half, const Wait& wait);
  Status carry_out(const Collective& collective, Chunk chunk, Half* half, const Wait& wait);
  Status await(cuda::Event event, const Wait& wait);
  bool has_result(const Collective& collective) const;
  bool gives(const Collective& collective) const;

  const std::shared_ptr<DeviceEngine> engine_;
  const StagedOptions options_;
  std::array<Half, 2> halves_;
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
  for (const Collective* each : operations) DT_TRY(run(*each, wait));
  return {};
}

Status StagedCarrier::run(const Collective& collective, const Wait& wait) {
  const Shape shape = shape_of(collective);
  const int64_t parts = std::max<int64_t>({shape.send_parts, shape.recv_parts, 1});
  const int64_t step =
      std::max<int64_t>(1, kChunkBytes / parts / dtype_bytes(collective.dtype));
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
  cuda::Runtime& runtime = engine_->runtime();
  if (half->in_use) DT_TRY(await(half->copied_out, wait));
  half->in_use = false;
  const int64_t element = dtype_bytes(collective.dtype);
  if (gives(collective)) {
    for (int64_t part = 0; part < shape_of(collective).send_parts; ++part) {
      const int64_t from = (part * collective.count + chunk.begin) * element;
      DT_TRY(runtime.copy(static_cast<char*>(half->memory) + part * chunk.count * element,
                          static_cast<const char*>(collective.send) + from, chunk.count * element,
                          engine_->stream()));
    }
  }
  return runtime.record(half->copied_in, engine_->stream());
}

Status StagedCarrier::carry_out(const Collective& collective, Chunk chunk, Half* half,
                                const Wait& wait) {
  cuda::Runtime& runtime = engine_->runtime();
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
                        chunk.count * element, engine_->stream()));
  }
  half->in_use = true;
  return runtime.record(half->copied_out, engine_->stream());
}

Status StagedCarrier::await(cuda::Event event, const Wait& wait) {
  for (;;) {
    DT_TRY_VALUE(const bool passed, engine_->runtime().passed(event));
    if (passed) return {};
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout, "a copy between the GPU and host memory did not end");
    }
    (void)dt::Event().wait({Deadline::after_ns(kNapNs)});
  }
}

}  // namespace

std::shared_ptr<Carrier> make_staged_carrier(std::shared_ptr<DeviceEngine> engine,
                                             StagedOptions options) {
  return std::make_shared<StagedCarrier>(std::move(engine), std::move(options));
}

}  // namespace dt::backend
