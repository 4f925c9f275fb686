// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/nccl_carrier.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace dt::backend {
namespace {

// NCCL answers "in progress" until a thread of its own has launched the kernel: some 50 us.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kNapNs = 100'000;
constexpr int64_t kDrainMs = 5'000;

nccl::Type type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI8: return nccl::Type::kInt8;
    case Dtype::kU8: return nccl::Type::kUint8;
    case Dtype::kI32: return nccl::Type::kInt32;
    case Dtype::kU32: return nccl::Type::kUint32;
    case Dtype::kI64: return nccl::Type::kInt64;
    case Dtype::kU64: return nccl::Type::kUint64;
    case Dtype::kF16: return nccl::Type::kFloat16;
    case Dtype::kBf16: return nccl::Type::kBfloat16;
    case Dtype::kF32: return nccl::Type::kFloat32;
    case Dtype::kF64: return nccl::Type::kFloat64;
  }
  return nccl::Type::kUint8;
}

nccl::Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd: return nccl::Op::kProd;
    case ReduceOp::kMin: return nccl::Op::kMin;
    case ReduceOp::kMax: return nccl::Op::kMax;
    default: return nccl::Op::kSum;
  }
}

bool is_integer(Dtype dtype) { return dtype <= Dtype::kU64; }

class NcclCarrier final : public Carrier {
 public:
  NcclCarrier(std::shared_ptr<DeviceThread> device, NcclOptions options)
      : device_(std::move(device)), options_(std::move(options)) {}
  ~NcclCarrier() override {
    // Memory that a stuck kernel may touch is left behind.
    if (scratch_ == nullptr || !device_->drained(Deadline::after_ms(kDrainMs))) return;
    (void)device_->runtime().release(scratch_);
  }

  Status open(const Wait& wait) override;
  Status enqueue(std::span<const Collective* const> operations, const Wait& wait) override;
  Status check() override;
  void abort() override;
  Result<bool> close() override;
  const char* waits_for() const override { return waits_for_.load(std::memory_order_relaxed); }

 private:
  const nccl::Functions& nccl() const { return options_.library->functions(); }
  Status make_id(nccl::UniqueId* id, const Wait& wait);
  Status connect(const nccl::UniqueId& id, const Wait& wait);
  Status settle(const char* call, nccl::Answer answer, const Wait& wait);
  Status error(const char* call, nccl::Answer answer) const;
  Status enqueue_alone(const Collective& collective);
  Status enqueue_one(const Collective& collective, const Wait& wait);
  Status reduce(const Collective& collective, const Wait& wait);
  nccl::Answer transfer(const Collective& collective, const char** call);
  int64_t bytes_of(const Collective& collective) const {
    return collective.count * dtype_bytes(collective.dtype);
  }

  const std::shared_ptr<DeviceThread> device_;
  NcclOptions options_;
  nccl::Comm comm_ = nullptr;
  void* scratch_ = nullptr;  ///< one element, for barriers and the first operation
  bool finalizing_ = false;
  std::atomic<const char*> waits_for_ = "the other ranks";  ///< read by callers, for messages
};

// ---- life ----

Status NcclCarrier::open(const Wait& wait) {
  if (options_.size == 1) return {};
  // All ranks go through this, whatever goes wrong with one of them afterwards.
  nccl::UniqueId id;
  waits_for_ = "rank 0's unique id of NCCL";
  DT_TRY(make_id(&id, wait));
  DT_TRY_VALUE(scratch_, device_->runtime().allocate(sizeof(float)));
  DT_TRY(device_->runtime().fill_zero(scratch_, sizeof(float), device_->stream()));
  waits_for_ = "NCCL, which connects the ranks; its interface is NCCL_SOCKET_IFNAME's";
  DT_TRY(connect(id, wait));
  // The first operation makes NCCL's connections: better now than in a training step.
  waits_for_ = "NCCL's first operation";
  DT_TRY(settle("ncclAllReduce",
                nccl().all_reduce(scratch_, scratch_, 1, nccl::Type::kFloat32, nccl::Op::kSum,
                                  comm_, device_->stream()),
                wait));
  DT_TRY_VALUE(const auto launch, device_->take_launch());
  cuda::Runtime& runtime = device_->runtime();
  DT_TRY(runtime.record(launch->done, device_->stream()));
  for (;;) {
    DT_TRY_VALUE(const bool passed, runtime.passed(launch->done));
    if (passed) break;
    DT_TRY(check());
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) return Status(Code::kTimeout, "NCCL's first operation timed out");
    (void)dt::Event().wait({Deadline::after_ns(kNapNs)});
  }
  waits_for_ = "the other ranks' part, in NCCL";
  return {};
}

/// From rank 0, which must outlive the connecting, to all.
Status NcclCarrier::make_id(nccl::UniqueId* id, const Wait& wait) {
  struct Letter {
    int32_t code = 0;
    nccl::UniqueId id;
    char reason[256] = {};
  } letter;
  Status mine;
  if (options_.rank == 0) {
    const nccl::Answer answer = nccl().get_unique_id(&letter.id);
    if (answer != nccl::Answer::kSuccess) {
      mine = options_.library->error("ncclGetUniqueId", answer);
      letter.code = static_cast<int32_t>(mine.code());
      strncpy(letter.reason, mine.message().c_str(), sizeof letter.reason - 1);
    }
  }
  Collective broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.send = broadcast.recv = &letter;
  broadcast.count = sizeof letter;
  broadcast.deadline = wait.deadline;
  broadcast.name = "NCCL id";
  DT_TRY(options_.on_host->run(broadcast));
  if (!mine.ok()) return mine;
  if (letter.code != 0) {
    return Status(static_cast<Code>(letter.code), format("rank 0: %.255s", letter.reason));
  }
  *id = letter.id;
  return {};
}

Status NcclCarrier::connect(const nccl::UniqueId& id, const Wait& wait) {
  options_.config.blocking = 0;
  options_.config.comm_name = options_.name.c_str();
  const nccl::Answer answer =
      nccl().comm_init_rank_config(&comm_, options_.size, id, options_.rank, &options_.config);
  return settle("ncclCommInitRankConfig", answer, wait);
}

Status NcclCarrier::settle(const char* call, nccl::Answer answer, const Wait& wait) {
  const int64_t began_ns = monotonic_ns();
  while (answer == nccl::Answer::kInProgress) {
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout, std::string(call) + " did not come to an end");
    }
    if (monotonic_ns() - began_ns < kSpinNs) {
      sched_yield();
    } else {
      (void)dt::Event().wait({Deadline::after_ns(kNapNs)});
    }
    if (comm_ == nullptr) return Status(Code::kNccl, std::string(call) + " gave no communicator");
    if (const nccl::Answer asked = nccl().comm_get_async_error(comm_, &answer);
        asked != nccl::Answer::kSuccess) {
      return error("ncclCommGetAsyncError", asked);
    }
  }
  if (answer == nccl::Answer::kSuccess) return {};
  return error(call, answer);
}

Status NcclCarrier::check() {
  if (comm_ == nullptr) return {};
  nccl::Answer answer = nccl::Answer::kSuccess;
  const nccl::Answer asked = nccl().comm_get_async_error(comm_, &answer);
  if (asked != nccl::Answer::kSuccess) return error("ncclCommGetAsyncError", asked);
  if (answer == nccl::Answer::kSuccess || answer == nccl::Answer::kInProgress) return {};
  return error("NCCL in the background", answer);
}

/// A connection that a peer closed: most often because its process ended.
Status NcclCarrier::error(const char* call, nccl::Answer answer) const {
  ErrorInfo info = options_.library->error(call, answer).info();
  if (answer == nccl::Answer::kRemoteError) info.code = Code::kPeerLost;
  return Status(std::move(info));
}

void NcclCarrier::abort() {
  if (comm_ == nullptr) return;
  (void)nccl().comm_abort(std::exchange(comm_, nullptr));
}

Result<bool> NcclCarrier::close() {
  if (comm_ == nullptr) return true;
  nccl::Answer answer = nccl::Answer::kInProgress;
  if (!std::exchange(finalizing_, true)) {
    answer = nccl().comm_finalize(comm_);
  } else if (const nccl::Answer asked = nccl().comm_get_async_error(comm_, &answer);
             asked != nccl::Answer::kSuccess) {
    return error("ncclCommGetAsyncError", asked);
  }
  if (answer == nccl::Answer::kInProgress) return false;
  if (answer != nccl::Answer::kSuccess) return options_.library->error("ncclCommFinalize", answer);
  answer = nccl().comm_destroy(std::exchange(comm_, nullptr));
  if (answer != nccl::Answer::kSuccess) return options_.library->error("ncclCommDestroy", answer);
  return true;
}

// ---- operations ----

Status NcclCarrier::enqueue(std::span<const Collective* const> operations, const Wait& wait) {
  if (options_.size == 1) {
    for (const Collective* each : operations) DT_TRY(enqueue_alone(*each));
    return {};
  }
  const bool transfers = operations[0]->kind == Kind::kSend || operations[0]->kind == Kind::kRecv;
  if (!transfers) return enqueue_one(*operations[0], wait);
  DT_TRY(settle("ncclGroupStart", nccl().group_start(), Wait()));
  const char* call = "";
  nccl::Answer answer = nccl::Answer::kSuccess;
  for (const Collective* each : operations) {
    if (answer != nccl::Answer::kSuccess && answer != nccl::Answer::kInProgress) break;
    answer = transfer(*each, &call);
  }
  const nccl::Answer ended = nccl().group_end();
  if (answer != nccl::Answer::kSuccess && answer != nccl::Answer::kInProgress) {
    return error(call, answer);
  }
  return settle("ncclGroupEnd", ended, wait);
}

nccl::Answer NcclCarrier::transfer(const Collective& collective, const char** call) {
  const auto count = static_cast<size_t>(collective.count);
  const nccl::Type type = type_of(collective.dtype);
  const cuda::Stream stream = device_->stream();
  if (collective.kind == Kind::kSend) {
    *call = "ncclSend";
    return nccl().send(collective.send, count, type, collective.root, comm_, stream);
  }
  *call = "ncclRecv";
  return nccl().recv(collective.recv, count, type, collective.root, comm_, stream);
}

/// One rank: its own part is the result.
Status NcclCarrier::enqueue_alone(const Collective& collective) {
  if (collective.kind == Kind::kSend || collective.kind == Kind::kRecv ||
      collective.send == collective.recv || collective.count == 0 || collective.recv == nullptr) {
    return {};
  }
  return device_->runtime().copy(collective.recv, collective.send, bytes_of(collective),
                                 device_->stream());
}

Status NcclCarrier::enqueue_one(const Collective& collective, const Wait& wait) {
  const cuda::Stream stream = device_->stream();
  const auto count = static_cast<size_t>(collective.count);
  const nccl::Type type = type_of(collective.dtype);
  if (collective.kind == Kind::kBarrier) {
    return settle("ncclAllReduce",
                  nccl().all_reduce(scratch_, scratch_, 1, nccl::Type::kFloat32, nccl::Op::kSum,
                                    comm_, stream),
                  wait);
  }
  if (count == 0) return {};
  switch (collective.kind) {
    case Kind::kBroadcast:
      return settle("ncclBroadcast",
                    nccl().broadcast(collective.send, collective.recv, count, type, collective.root,
                                     comm_, stream),
                    wait);
    case Kind::kAllgather:
      return settle("ncclAllGather",
                    nccl().all_gather(collective.send, collective.recv, count, type, comm_, stream),
                    wait);
    default: return reduce(collective, wait);
  }
}

/// An average of an allreduce is the sum of each rank's part times 1/N, so that it cannot overflow;
/// of integers, and where the result has no room for all scaled parts, the sum is divided. NCCL's
/// own average rounds its factor to the dtype and switches off its fast paths.
Status NcclCarrier::reduce(const Collective& collective, const Wait& wait) {
  const cuda::Stream stream = device_->stream();
  const auto count = static_cast<size_t>(collective.count);
  const nccl::Type type = type_of(collective.dtype);
  const nccl::Op op = op_of(collective.op);
  const bool average = collective.op == ReduceOp::kAvg;
  const bool scale_first =
      average && collective.kind == Kind::kAllreduce && !is_integer(collective.dtype);
  const int32_t divisor = collective.divisor > 0 ? collective.divisor : options_.size;
  const void* send = collective.send;
  if (scale_first) {
    if (send != collective.recv) {
      DT_TRY(device_->runtime().copy(collective.recv, send, bytes_of(collective), stream));
    }
    DT_TRY(options_.kernels->divide(collective.recv, collective.dtype, collective.count, divisor,
                                    stream));
    send = collective.recv;
  }
  nccl::Answer answer = nccl::Answer::kSuccess;
  const char* call = "ncclAllReduce";
  if (collective.kind == Kind::kReduceScatter) {
    call = "ncclReduceScatter";
    answer = nccl().reduce_scatter(send, collective.recv, count, type, op, comm_, stream);
  } else if (collective.kind == Kind::kReduce) {
    call = "ncclReduce";
    answer = nccl().reduce(send, collective.recv, count, type, op, collective.root, comm_, stream);
  } else {
    answer = nccl().all_reduce(send, collective.recv, count, type, op, comm_, stream);
  }
  DT_TRY(settle(call, answer, wait));
  const bool has_result = collective.kind != Kind::kReduce || collective.root == options_.rank;
  if (!average || scale_first || !has_result) return {};
  return options_.kernels->divide(collective.recv, collective.dtype, collective.count, divisor,
                                  stream);
}

}  // namespace

std::shared_ptr<Carrier> make_nccl_carrier(std::shared_ptr<DeviceThread> device,
                                           NcclOptions options) {
  return std::make_shared<NcclCarrier>(std::move(device), std::move(options));
}

}  // namespace dt::backend
