// SPDX-License-Identifier: Apache-2.0
#include "training/digester.h"

#include <sched.h>

#include <algorithm>

#include "base/xxh64.h"

namespace dt::training {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // one is copied while the other is hashed
constexpr int kEagerLooks = 256;          // before each look costs a short sleep
constexpr int64_t kLookNs = 50'000;

}  // namespace

struct Digester::Staging {
  explicit Staging(std::shared_ptr<cuda::Runtime> of) : runtime(std::move(of)) {}
  ~Staging() {
    for (const Half& half : halves) {
      if (half.copied != nullptr) (void)runtime->destroy_event(half.copied);
      if (half.memory != nullptr) (void)runtime->release_pinned(half.memory);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  struct Half {
    void* memory = nullptr;
    cuda::Event copied = nullptr;
  };
  const std::shared_ptr<cuda::Runtime> runtime;
  Half halves[2];
};

Status Digester::begin_staging() {
  if (staging_ != nullptr) return {};
  auto staging = std::make_shared<Staging>(comm_->backend().device());
  for (Staging::Half& half : staging->halves) {
    DT_TRY_VALUE(half.memory, staging->runtime->allocate_pinned(kPieceBytes));
    DT_TRY_VALUE(half.copied, staging->runtime->create_event(/*timed=*/false));
  }
  staging_ = std::move(staging);
  return {};
}

Status Digester::await_piece(cuda::Event copied, Deadline deadline) {
  for (int look = 0;; ++look) {
    DT_TRY_VALUE(const bool there, staging_->runtime->passed(copied));
    if (there) return {};
    DT_TRY(comm_->broken());
    if (deadline.passed()) {
      return Status(Code::kTimeout,
                    "the GPU has not come to the data within the time-out of operations; look at "
                    "what its stream waits for, or raise collective.timeout_ms");
    }
    if (look < kEagerLooks) {
      sched_yield();
    } else {
      Event nothing;
      (void)nothing.wait({Deadline::after_ns(kLookNs), nullptr});
    }
  }
}

Result<uint64_t> Digester::hash_on_device(const char* data, int64_t bytes, cuda::Stream stream) {
  DT_TRY(begin_staging());
  const Deadline deadline = comm_->deadline();
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto piece_bytes = [&](int64_t i) {
    return std::min(kPieceBytes, bytes - i * kPieceBytes);
  };
  Xxh64 hash;
  Status status;
  for (int64_t i = 0; i <= pieces && status.ok(); ++i) {
    if (i < pieces) {
      const Staging::Half& half = staging_->halves[i % 2];
      status = staging_->runtime->copy(half.memory, data + i * kPieceBytes, piece_bytes(i), stream);
      if (status.ok()) status = staging_->runtime->record(half.copied, stream);
    }
    if (i == 0 || !status.ok()) continue;
    const Staging::Half& before = staging_->halves[(i - 1) % 2];
    status = await_piece(before.copied, deadline);
    if (status.ok()) hash.update(before.memory, static_cast<size_t>(piece_bytes(i - 1)));
  }
  if (status.ok()) return hash.digest();
  // The GPU may still write there: not released before nothing of the job can run any more.
  comm_->backend().keep(std::move(staging_));
  staging_ = nullptr;
  return status;
}

Result<uint64_t> Digester::hash(const void* data, int64_t bytes, cuda::Stream stream) {
  const auto runtime = comm_->backend().device();
  if (runtime == nullptr || bytes == 0) return xxh64(data, static_cast<size_t>(bytes));
  DT_TRY_VALUE(const bool capturing, runtime->is_capturing(stream));
  if (capturing) {
    return Status(Code::kInvalidArgument,
                  "the stream records a CUDA graph, and dt cannot be part of one; end the capture "
                  "before, or give another stream");
  }
  return hash_on_device(static_cast<const char*>(data), bytes, stream);
}

}  // namespace dt::training
