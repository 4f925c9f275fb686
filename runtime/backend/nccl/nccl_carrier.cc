// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/nccl_carrier.h"

#include <atomic>
#include <cstring>
#include <map>

#include "collective/blocks.h"

namespace dt::backend {
namespace {

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
    // What is only moved has the size of these.
    case Dtype::kI16:
    case Dtype::kU16: return nccl::Type::kFloat16;
    case Dtype::kBool:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return nccl::Type::kUint8;
  }
  return nccl::Type::kUint8;
}

/// Truth values are 0 and 1.
nccl::Op op_of(Dtype dtype, ReduceOp op) {
  const bool is_bool = dtype == Dtype::kBool;
  switch (op) {
    case ReduceOp::kProd: return is_bool ? nccl::Op::kMin : nccl::Op::kProd;
    case ReduceOp::kBand:
    case ReduceOp::kMin: return nccl::Op::kMin;
    case ReduceOp::kBor:
    case ReduceOp::kMax: return nccl::Op::kMax;
    default: return is_bool ? nccl::Op::kMax : nccl::Op::kSum;
  }
}

constexpr int32_t kGroupAbort = 22200;        // the first version that can
constexpr int64_t kFinalizeLookNs = 200'000;  // how often a thread that ends one looks

class NcclCarrier final : public Carrier {
 public:
  NcclCarrier(std::shared_ptr<DeviceThread> device, NcclOptions options)
      : device_(std::move(device)), options_(std::move(options)) {}
  ~NcclCarrier() override {
    if (letter_work_ == nullptr || letter_work_->done()) return;
    // It writes to the letter.
    options_.on_host->interrupt(Status(Code::kAborted, "its communicator was not made"));
    (void)options_.on_host->wait(*letter_work_, Wait());
  }

  Status begin_open(Deadline deadline) override;
  Result<bool> is_open() override;
  Status begin(std::span<const Collective* const> operations) override;
  Status progress(std::vector<const Collective*>* ended) override;
  bool has_memory() const override;
  Result<void*> allocate(int64_t bytes) override;
  void free(void* pointer) override;
  Status check() override;
  void group_aborts(bool begin) override;
  void abort() override;
  bool has_end() const override { return comm_ != nullptr; }
  void end(const Wait& peace) override;
  bool release() override;
  const char* waits_for() const override { return waits_for_.load(std::memory_order_relaxed); }

 private:
  enum class Opening { kLetter, kConnecting, kFirstCall, kFirst, kDone };
  /// What rank 0 sends to all.
  struct Letter {
    int32_t code = 0;
    nccl::UniqueId id;
    char reason[256] = {};
  };

  const nccl::Functions& nccl() const { return options_.library->functions(); }
  Status begin_letter(Deadline deadline);
  void deregister(void* handle) {
    if (handle != nullptr) (void)nccl().comm_deregister(comm_, handle);
  }
  Result<bool> advance_opening();
  Status called(const char* call, nccl::Answer answer);
  Result<bool> settled();
  bool finalize(const Wait& wait);
  Status error(const char* call, nccl::Answer answer) const;
  Status enqueue_alone(const Collective& collective);
  Status scale_before(const Collective& collective);
  Status divide_after(const Collective& collective);
  bool scales_before(const Collective& collective) const;
  nccl::Answer enqueue(const Collective& collective, const char** call);
  Status copy_own_block(const Collective& collective);
  nccl::Answer enqueue_blocks(const Collective& collective, const char** call);
  int32_t divisor_of(const Collective& collective) const {
    return collective.divisor > 0 ? collective.divisor : options_.size;
  }
  int64_t bytes_of(const Collective& collective) const {
    return collective.count * dtype_bytes(collective.dtype);
  }

  const std::shared_ptr<DeviceThread> device_;
  NcclOptions options_;
  nccl::Comm comm_ = nullptr;
  void* scratch_ = nullptr;  ///< one element, for barriers and the first operation
  bool aborted_ = false;
  std::atomic<const char*> waits_for_ = "the other ranks";  ///< read by callers, for messages

  Opening opening_ = Opening::kLetter;
  Status own_letter_;
  Letter letter_;
  std::shared_ptr<Work> letter_work_;
  std::shared_ptr<Launch> first_;  ///< behind the first operation

  std::map<void*, void*> registered_;  ///< allocated memory, and NCCL's handle of it or null

  const char* call_ = "";                 ///< the last one
  bool in_progress_ = false;              ///< and NCCL has not ended it
  std::vector<const Collective*> begun_;  ///< to be ended when it has
};

// ---- life ----

Status NcclCarrier::begin_open(Deadline deadline) {
  if (options_.size == 1) {
    opening_ = Opening::kDone;
    return {};
  }
  // All ranks go through this, whatever goes wrong with one of them afterwards.
  waits_for_ = "rank 0's unique id of NCCL";
  DT_TRY(begin_letter(deadline));
  cuda::Runtime& runtime = device_->runtime();
  DT_TRY_VALUE(scratch_, runtime.allocate(sizeof(float)));
  return runtime.fill_zero(scratch_, sizeof(float), device_->side_stream());
}

/// From rank 0, which must outlive the connecting, to all.
Status NcclCarrier::begin_letter(Deadline deadline) {
  if (options_.rank == 0) {
    const nccl::Answer answer = nccl().get_unique_id(&letter_.id);
    if (answer != nccl::Answer::kSuccess) {
      own_letter_ = options_.library->error("ncclGetUniqueId", answer);
      letter_.code = static_cast<int32_t>(own_letter_.code());
      strncpy(letter_.reason, own_letter_.message().c_str(), sizeof letter_.reason - 1);
    }
  }
  Collective broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.send = broadcast.recv = &letter_;
  broadcast.count = sizeof(Letter);
  broadcast.deadline = deadline;
  broadcast.name = "NCCL id";
  const auto work = std::make_shared<Work>();
  DT_TRY(options_.on_host->submit(broadcast, work));
  letter_work_ = work;
  return {};
}

Result<bool> NcclCarrier::is_open() {
  for (;;) {
    const Opening before = opening_;
    DT_TRY_VALUE(const bool open, advance_opening());
    if (open || opening_ == before) return open;
  }
}

Result<bool> NcclCarrier::advance_opening() {
  cuda::Runtime& runtime = device_->runtime();
  switch (opening_) {
    case Opening::kLetter: {
      if (!options_.on_host->wait(*letter_work_, Wait{Deadline::after_ms(0), nullptr}))
        return false;
      DT_TRY(letter_work_->status());
      DT_TRY(own_letter_);
      if (letter_.code != 0) {
        return Status(static_cast<Code>(letter_.code), format("rank 0: %.255s", letter_.reason));
      }
      waits_for_ =
          "ncclCommInitRankConfig, which connects the ranks; NCCL_SOCKET_IFNAME names its "
          "interface";
      options_.config.blocking = 0;
      options_.config.comm_name = options_.name.c_str();
      DT_TRY(called("ncclCommInitRankConfig",
                    nccl().comm_init_rank_config(&comm_, options_.size, letter_.id, options_.rank,
                                                 &options_.config)));
      opening_ = Opening::kConnecting;
      return false;
    }
    case Opening::kConnecting: {
      DT_TRY_VALUE(const bool ended, settled());
      if (!ended) return false;
      // The first operation makes NCCL's connections: better now than in a training step.
      waits_for_ = "NCCL's first operation";
      DT_TRY(called("ncclAllReduce",
                    nccl().all_reduce(scratch_, scratch_, 1, nccl::Type::kFloat32, nccl::Op::kSum,
                                      comm_, device_->side_stream())));
      opening_ = Opening::kFirstCall;
      return false;
    }
    case Opening::kFirstCall: {
      DT_TRY_VALUE(const bool ended, settled());
      if (!ended) return false;
      DT_TRY_VALUE(first_, device_->take_launch());
      DT_TRY(runtime.record(first_->done, device_->side_stream()));
      opening_ = Opening::kFirst;
      return false;
    }
    case Opening::kFirst: {
      DT_TRY(check());
      DT_TRY_VALUE(const bool passed, runtime.passed(first_->done));
      if (!passed) return false;
      first_ = nullptr;
      waits_for_ = "the other ranks' part, in NCCL";
      opening_ = Opening::kDone;
      return true;
    }
    case Opening::kDone: return true;
  }
  return true;
}

/// What NCCL does not end at once is looked at by settled().
Status NcclCarrier::called(const char* call, nccl::Answer answer) {
  call_ = call;
  in_progress_ = answer == nccl::Answer::kInProgress;
  if (in_progress_ || answer == nccl::Answer::kSuccess) return {};
  return error(call, answer);
}

Result<bool> NcclCarrier::settled() {
  if (!in_progress_) return true;
  if (comm_ == nullptr) return Status(Code::kNccl, std::string(call_) + " gave no communicator");
  nccl::Answer answer = nccl::Answer::kSuccess;
  if (const nccl::Answer asked = nccl().comm_get_async_error(comm_, &answer);
      asked != nccl::Answer::kSuccess) {
    return error("ncclCommGetAsyncError", asked);
  }
  DT_TRY(called(call_, answer));
  return !in_progress_;
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

void NcclCarrier::group_aborts(bool begin) {
  // Before 2.22 NCCL knows no group of aborts.
  if (options_.library == nullptr || options_.library->version() < kGroupAbort) return;
  (void)(begin ? nccl().group_start() : nccl().group_end());
}

void NcclCarrier::abort() {
  begun_.clear();
  for (auto& [pointer, handle] : registered_) handle = nullptr;  // they go with the communicator
  aborted_ = true;
}

/// ncclCommAbort and ncclCommDestroy wait inside, also for non-blocking communicators: until the
/// stream has passed all operations of the communicator, and all in front of them (an operation
/// that has not started does not see the abort); for memory that they free, until the whole GPU
/// is idle; and, where ranks of one host use each other's proxy threads, until these peers have
/// finalized or aborted theirs.
void NcclCarrier::end(const Wait& peace) {
  if (comm_ == nullptr) return;
  const bool finalized = !aborted_ && finalize(peace);
  const nccl::Comm comm = std::exchange(comm_, nullptr);
  (void)(finalized ? nccl().comm_destroy(comm) : nccl().comm_abort(comm));
}

bool NcclCarrier::finalize(const Wait& wait) {
  for (auto& [pointer, handle] : registered_) deregister(std::exchange(handle, nullptr));
  nccl::Answer answer = nccl().comm_finalize(comm_);
  while (answer == nccl::Answer::kInProgress) {
    if (wait.interrupted() || wait.deadline.passed()) return false;
    (void)Event().wait({Deadline::after_ns(kFinalizeLookNs)});
    if (nccl().comm_get_async_error(comm_, &answer) != nccl::Answer::kSuccess) return false;
  }
  return answer == nccl::Answer::kSuccess;
}

bool NcclCarrier::release() {
  if (scratch_ != nullptr) (void)device_->runtime().release(std::exchange(scratch_, nullptr));
  return true;
}

// ---- memory ----

bool NcclCarrier::has_memory() const {
  return options_.register_memory && options_.size > 1 && nccl().mem_alloc != nullptr &&
         nccl().mem_free != nullptr;
}

Result<void*> NcclCarrier::allocate(int64_t bytes) {
  void* pointer = nullptr;
  nccl::Answer answer = nccl().mem_alloc(&pointer, static_cast<size_t>(bytes));
  if (answer != nccl::Answer::kSuccess) return options_.library->no_memory(answer, bytes);
  void* handle = nullptr;
  if (nccl().comm_register != nullptr && nccl().comm_deregister != nullptr) {
    answer = nccl().comm_register(comm_, pointer, static_cast<size_t>(bytes), &handle);
    if (answer != nccl::Answer::kSuccess && answer != nccl::Answer::kInProgress) {
      (void)nccl().mem_free(pointer);
      return error("ncclCommRegister", answer);
    }
  }
  registered_[pointer] = handle;
  return pointer;
}

void NcclCarrier::free(void* pointer) {
  const auto found = registered_.find(pointer);
  if (found == registered_.end()) return;
  deregister(found->second);
  registered_.erase(found);
  (void)nccl().mem_free(pointer);
}

// ---- operations ----

Status NcclCarrier::begin(std::span<const Collective* const> operations) {
  begun_.assign(operations.begin(), operations.end());
  in_progress_ = false;
  if (options_.size == 1) {
    for (const Collective* each : operations) {
      DT_TRY(moves_blocks(each->kind) ? copy_own_block(*each) : enqueue_alone(*each));
    }
    return {};
  }
  for (const Collective* each : operations) {
    DT_TRY(scale_before(*each));
    if (moves_blocks(each->kind)) DT_TRY(copy_own_block(*each));
  }
  const char* call = "";
  if (operations.size() == 1 && !moves_blocks(operations[0]->kind)) {
    const nccl::Answer answer = enqueue(*operations[0], &call);
    return called(call, answer);
  }
  DT_TRY(called("ncclGroupStart", nccl().group_start()));
  nccl::Answer answer = nccl::Answer::kSuccess;
  for (const Collective* each : operations) {
    answer = moves_blocks(each->kind) ? enqueue_blocks(*each, &call) : enqueue(*each, &call);
    if (answer != nccl::Answer::kSuccess && answer != nccl::Answer::kInProgress) break;
  }
  const nccl::Answer ended = nccl().group_end();
  DT_TRY(called(call, answer));
  return called("ncclGroupEnd", ended);
}

Status NcclCarrier::progress(std::vector<const Collective*>* ended) {
  DT_TRY_VALUE(const bool enqueued, settled());
  if (!enqueued) return {};
  for (const Collective* each : begun_) {
    if (options_.size > 1) DT_TRY(divide_after(*each));
    ended->push_back(each);
  }
  begun_.clear();
  return {};
}

/// One rank: its own part is the result.
Status NcclCarrier::enqueue_alone(const Collective& collective) {
  if (collective.is_transfer() || collective.send == collective.recv || collective.count == 0 ||
      collective.recv == nullptr) {
    return {};
  }
  return device_->runtime().copy(collective.recv, collective.send, bytes_of(collective),
                                 device_->stream());
}

nccl::Answer NcclCarrier::enqueue(const Collective& collective, const char** call) {
  const cuda::Stream stream = device_->stream();
  const auto count = static_cast<size_t>(collective.count);
  const nccl::Type type = type_of(collective.dtype);
  const nccl::Op op = op_of(collective.dtype, collective.op);
  if (collective.kind == Kind::kBarrier) {
    *call = "ncclAllReduce";
    return nccl().all_reduce(scratch_, scratch_, 1, nccl::Type::kFloat32, nccl::Op::kSum, comm_,
                             stream);
  }
  if (count == 0) return nccl::Answer::kSuccess;
  switch (collective.kind) {
    case Kind::kSend:
      *call = "ncclSend";
      return nccl().send(collective.send, count, type, collective.root, comm_, stream);
    case Kind::kRecv:
      *call = "ncclRecv";
      return nccl().recv(collective.recv, count, type, collective.root, comm_, stream);
    case Kind::kBroadcast:
      *call = "ncclBroadcast";
      return nccl().broadcast(collective.send, collective.recv, count, type, collective.root, comm_,
                              stream);
    case Kind::kAllgather:
      *call = "ncclAllGather";
      return nccl().all_gather(collective.send, collective.recv, count, type, comm_, stream);
    case Kind::kReduceScatter:
      *call = "ncclReduceScatter";
      return nccl().reduce_scatter(collective.send, collective.recv, count, type, op, comm_,
                                   stream);
    case Kind::kReduce:
      *call = "ncclReduce";
      return nccl().reduce(collective.send, collective.recv, count, type, op, collective.root,
                           comm_, stream);
    default:
      *call = "ncclAllReduce";
      return nccl().all_reduce(scales_before(collective) ? collective.recv : collective.send,
                               collective.recv, count, type, op, comm_, stream);
  }
}

/// The block that a rank has for itself does not go through NCCL.
Status NcclCarrier::copy_own_block(const Collective& collective) {
  const int32_t me = options_.rank;
  const collective::Extent from = collective::outgoing(collective, me, options_.size, me);
  const collective::Extent to = collective::incoming(collective, me, options_.size, me);
  if (from.count == 0) return {};
  const int64_t element = dtype_bytes(collective.dtype);
  const char* source = static_cast<const char*>(collective.send) + from.offset * element;
  char* target = static_cast<char*>(collective.recv) + to.offset * element;
  if (source == target) return {};
  return device_->runtime().copy(target, source, from.count * element, device_->stream());
}

/// Sends and receives inside a group, each rank beginning with the one behind it.
nccl::Answer NcclCarrier::enqueue_blocks(const Collective& collective, const char** call) {
  const int32_t me = options_.rank;
  const int32_t size = options_.size;
  const int64_t element = dtype_bytes(collective.dtype);
  const nccl::Type type = type_of(collective.dtype);
  nccl::Answer answer = nccl::Answer::kSuccess;
  const auto fine = [&] {
    return answer == nccl::Answer::kSuccess || answer == nccl::Answer::kInProgress;
  };
  for (int32_t i = 1; i < size && fine(); ++i) {
    const int32_t to = (me + i) % size;
    const int32_t from = (me + size - i) % size;
    const collective::Extent out = collective::outgoing(collective, me, size, to);
    const collective::Extent in = collective::incoming(collective, me, size, from);
    if (out.count > 0) {
      *call = "ncclSend";
      answer = nccl().send(static_cast<const char*>(collective.send) + out.offset * element,
                           static_cast<size_t>(out.count), type, to, comm_, device_->stream());
    }
    if (in.count > 0 && fine()) {
      *call = "ncclRecv";
      answer = nccl().recv(static_cast<char*>(collective.recv) + in.offset * element,
                           static_cast<size_t>(in.count), type, from, comm_, device_->stream());
    }
  }
  return answer;
}

/// An average of an allreduce is the sum of each rank's part times 1/N, so that it cannot overflow;
/// of integers, and where the result has no room for all scaled parts, the sum is divided. NCCL's
/// own average rounds its factor to the dtype and switches off its fast paths.
bool NcclCarrier::scales_before(const Collective& collective) const {
  return collective.op == ReduceOp::kAvg && collective.kind == Kind::kAllreduce &&
         !is_integer(collective.dtype) && collective.count > 0;
}

Status NcclCarrier::scale_before(const Collective& collective) {
  if (!scales_before(collective)) return {};
  if (collective.send != collective.recv) {
    DT_TRY(device_->runtime().copy(collective.recv, collective.send, bytes_of(collective),
                                   device_->stream()));
  }
  return options_.kernels->divide(collective.recv, collective.dtype, collective.count,
                                  divisor_of(collective), device_->stream());
}

Status NcclCarrier::divide_after(const Collective& collective) {
  const bool has_sum = reduces(collective.kind) && (!traits(collective.kind).recv.root_only ||
                                                    collective.root == options_.rank);
  if (!has_sum || collective.op != ReduceOp::kAvg || collective.count == 0 ||
      scales_before(collective)) {
    return {};
  }
  return options_.kernels->divide(collective.recv, collective.dtype, collective.count,
                                  divisor_of(collective), device_->stream());
}

}  // namespace

std::shared_ptr<Carrier> make_nccl_carrier(std::shared_ptr<DeviceThread> device,
                                           NcclOptions options) {
  return std::make_shared<NcclCarrier>(std::move(device), std::move(options));
}

}  // namespace dt::backend
