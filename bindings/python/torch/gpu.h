// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Tensors in GPU memory: works that order streams, and what a process group has on its GPU.
 *
 * Of streams and events this uses what PyTorch has for any device, so that it compiles without
 * CUDA's headers.
 */
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <optional>

#include "tensors.h"

namespace dt::torch {

/** CUDA's handles of PyTorch's streams. Any thread. */
class StreamHandles {
 public:
  /** Python is asked the first time. */
  dt_stream of(const c10::Stream& stream);

 private:
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, dt_stream> known_;
};

/**
 * The work of a call on tensors in GPU memory. wait() makes the current stream wait, and not the
 * caller; with a time-out it makes the caller wait, too.
 *
 * Whoever made it calls launch(), then order(), before anybody else has it, or inside a batch;
 * after that any thread may use it.
 */
class GpuWork final : public c10d::Work {
 public:
  /** @param behind the stream that is ordered behind the operations. */
  GpuWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
          Tensors tensors, std::shared_ptr<StreamHandles> handles, c10::Stream behind);
  ~GpuWork() override;

  void launch(dt_comm* comm, dt_collective one);
  /** Orders the stream; returns when the operations are enqueued, so not inside dt_group_begin().
   */
  void order();
  /** A call has failed, so that nobody gets the work. */
  void give_up(std::exception_ptr error);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return tensors_.results; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void settle(std::exception_ptr error);
  void complete(c10::ivalue::Future& future);

  const std::shared_ptr<StreamHandles> handles_;
  const c10::Stream behind_;
  std::vector<dt_work*> works_;
  Tensors tensors_;
  std::mutex mutex_;
  bool ordered_ = false;                            ///< under mutex_, like all that follows
  bool done_ = false;                               ///< known to be
  std::optional<c10::Event> end_;                   ///< on behind_, after the operations
  c10::intrusive_ptr<c10::ivalue::Future> future_;  ///< once somebody wants it
};

}  // namespace dt::torch
