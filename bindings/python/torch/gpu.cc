// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <torch/csrc/utils/pybind.h>

namespace dt::torch {

dt_stream StreamHandles::of(const c10::Stream& stream) {
  const std::pair key(stream.device_index(), stream.id());
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  const pybind11::gil_scoped_acquire gil;
  using namespace pybind11::literals;
  const auto python = pybind11::module_::import("torch.cuda")
                          .attr("Stream")("stream_id"_a = stream.id(),
                                          "device_index"_a = int{stream.device_index()},
                                          "device_type"_a = static_cast<int>(stream.device_type()));
  auto* const handle = reinterpret_cast<dt_stream>(python.attr("cuda_stream").cast<uintptr_t>());
  const std::lock_guard lock(mutex_);
  known_[key] = handle;
  return handle;
}

GpuWork::GpuWork(int rank, c10d::OpType type, const char* title,
                 const std::vector<at::Tensor>& inputs, Tensors tensors,
                 std::shared_ptr<StreamHandles> handles, c10::Stream behind)
    : c10d::Work(rank, type, title, inputs),
      handles_(std::move(handles)),
      behind_(behind),
      tensors_(std::move(tensors)) {}

GpuWork::~GpuWork() {
  for (dt_work* const each : works_) dt_work_destroy(each);
}

void GpuWork::launch(dt_comm* comm, dt_collective one) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  one.stream = handles_->of(cuda.getStream(behind_.device()));
  dt_work* work = nullptr;
  check(dt_collective_launch(comm, &one, &work));
  works_.push_back(work);
}

void GpuWork::order() {
  const dt_stream behind = handles_->of(behind_);
  for (dt_work* const each : works_) check(dt_work_wait_stream(each, behind));
  {
    const c10::StreamGuard guard(behind_);
    const at::AutoDispatchBelowADInplaceOrView plain;
    for (auto& [to, from] : tensors_.copies) to.copy_(from);
  }
  settle(nullptr);
}

void GpuWork::give_up(std::exception_ptr error) { settle(std::move(error)); }

void GpuWork::settle(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    tensors_.copies.clear();
    try {
      end_.emplace(c10::DeviceType::CUDA);
      end_->record(behind_);
    } catch (...) {  // an earlier error of the GPU
      end_.reset();
      if (!error) error = std::current_exception();
    }
    ordered_ = true;
    if (error) finish(error);
    future = future_;
  }
  if (future) complete(*future);
}

void GpuWork::complete(c10::ivalue::Future& future) {
  if (const std::exception_ptr error = exception()) {
    future.setErrorIfNeeded(error);
    return;
  }
  // The future records its events on the current stream.
  const c10::StreamGuard guard(behind_);
  future.markCompleted(c10::IValue(tensors_.results));
}

bool GpuWork::isCompleted() {
  // Destroyed after the lock is released: the destructor of a tensor may take Python's lock.
  std::vector<at::Tensor> unused;
  const std::lock_guard lock(mutex_);
  if (done_) return true;
  if (!ordered_) return false;
  std::exception_ptr error = exception();
  for (dt_work* const each : works_) {
    if (!is_done(each, error)) return false;
  }
  try {
    if (end_ && !end_->query()) return false;
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  unused.swap(tensors_.used);
  done_ = true;
  finish(error);
  return true;
}

bool GpuWork::isSuccess() const {
  const_cast<GpuWork*>(this)->isCompleted();
  return exception() == nullptr;
}

bool GpuWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  {
    const std::lock_guard lock(mutex_);
    if (!ordered_) return true;  // the batch's work waits for it
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    if (end_) end_->block(cuda.getStream(behind_.device()));
  }
  const auto end = end_after(timeout);
  for (dt_work* const each : works_) {
    if (timeout == kNoTimeout) break;
    const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
    int32_t done = 0;
    check(dt_work_wait(each, std::max<int64_t>(left.count(), 0), &done));
    if (done == 0) {
      throw_error(DT_ERR_TIMEOUT, c10d::opTypeToString(retrieveOpType()) + " after " +
                                      std::to_string(timeout.count()) +
                                      " ms; the operation itself goes on");
    }
  }
  std::exception_ptr error = exception();
  for (dt_work* const each : works_) {
    if (!error) (void)is_done(each, error);
  }
  if (error) std::rethrow_exception(error);
  return true;
}

void GpuWork::abort() {
  throw_error(DT_ERR_UNSUPPORTED, "one work of dt cannot be aborted; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> GpuWork::getFuture() {
  bool ordered = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector{behind_.device()});
    ordered = ordered_;
  }
  if (ordered) complete(*future_);
  return future_;
}

}  // namespace dt::torch
