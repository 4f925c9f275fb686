// SPDX-License-Identifier: Apache-2.0
// The backend "dt" of torch.distributed, for the installed release of PyTorch. It runs on
// communicators that Python has made.
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cmath>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <type_traits>

#include "batch.h"
#include "gpu.h"
#include "group_messages.h"
#include "shapes.h"
#include "shared_memory.h"
#include "sparse.h"

namespace dt::torch {
namespace {

using at::Tensor;
using Tensors1 = std::vector<Tensor>;
using Tensors2 = std::vector<std::vector<Tensor>>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/** @param comm a Comm of Python. */
dt_comm* handle_of(const pybind11::handle& comm) {
  return reinterpret_cast<dt_comm*>(comm.attr("handle").cast<int64_t>());
}

class Backend final : public c10d::Backend {
 public:
  /** @param group holds the handles, and knows how it ends. @param messages of the job; null: there
   * is only this rank. @param ranks of the job, by rank of the group. @param number of this group
   * alone, the same on its ranks; even. */
  Backend(int rank, int size, pybind11::object group, std::shared_ptr<Messages> messages,
          std::vector<int> ranks, int64_t timeout_ms, std::string name, int64_t number)
      : c10d::Backend(rank, size),
        comm_(handle_of(group.attr("comm"))),
        messages_(std::move(messages), std::move(ranks), rank, name, number),
        options_(options_of(timeout_ms, name)),
        shared_memory_(std::make_shared<SharedMemory>(comm_, group.attr("comm"))),
        group_(group.release().ptr()),
        name_(std::move(name)) {}
  ~Backend() override {
    completions_->close();
    pending_->close();
    for (auto& each : pending_on_gpu_) {
      // dt still uses the tensors: they stay.
      if (!each->isCompleted()) (void)each.release();
    }
    if (!Py_IsInitialized()) return;  // the process ends
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(group_);
  }

  // Functions that the base class of an older release lacks have no `override` here.
  const std::string getBackendName() const override { return "dt"; }
  c10::intrusive_ptr<Options> getBackendOptions() { return options_; }
  void enableCollectivesTiming() {}  // profilers have the times already
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  void setTimeout(std::chrono::milliseconds timeout) {
    check(dt_comm_set_timeout(comm_, timeout.count()));
    if (gpu_opened_.load()) check(dt_comm_set_timeout(gpu_comm_, timeout.count()));
    options_->timeout = timeout;
  }

  WorkPtr broadcast(Tensors1& tensors, const c10d::BroadcastOptions& options) override {
    return operation(c10d::OpType::BROADCAST, "dt:broadcast", [&](Call& call) {
      for (const Tensor& each : tensors) {
        const Elements elements = moved(each);
        const bool root = rank_ == options.rootRank;
        auto& one = call.add(DT_KIND_BROADCAST, elements, each.numel(), options.rootRank);
        one.send = one.recv = call.memory(each, elements.type, root, !root);
      }
      return run(call, tensors, tensors, options);
    });
  }

  WorkPtr allreduce(Tensors1& tensors, const c10d::AllreduceOptions& options) override {
    return operation(c10d::OpType::ALLREDUCE, "dt:all_reduce", [&](Call& call) {
      for (const Tensor& each : tensors) {
        if (each.layout() == at::kSparse) {
          add_sparse(call, comm_, rank_, size_, each, options.reduceOp, limit_ms(options));
          continue;
        }
        const Elements elements = reduced(each, options.reduceOp);
        auto& one = call.add(DT_KIND_ALLREDUCE, elements, each.numel());
        call.in_place(one, each, elements, true);
      }
      return run(call, tensors, tensors, options);
    });
  }
  WorkPtr allreduce_sparse(Tensors1& tensors, const c10d::AllreduceOptions& options) {
    return allreduce(tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors1& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkPtr reduce(Tensors1& tensors, const c10d::ReduceOptions& options) override {
    return operation(c10d::OpType::REDUCE, "dt:reduce", [&](Call& call) {
      for (const Tensor& each : tensors) {
        const Elements elements = reduced(each, options.reduceOp);
        auto& one = call.add(DT_KIND_REDUCE, elements, each.numel(), options.rootRank);
        call.in_place(one, each, elements, rank_ == options.rootRank);
      }
      return run(call, tensors, tensors, options);
    });
  }

  WorkPtr allgather(Tensors2& outputs, Tensors1& inputs,
                    const c10d::AllgatherOptions& options) override {
    return operation(c10d::OpType::ALLGATHER, "dt:all_gather", [&](Call& call) {
      check_one(call.title, outputs.size() == 1 && inputs.size() == 1);
      gather_all(call, outputs[0], inputs[0]);
      return run(call, inputs, outputs[0], options);
    });
  }
  WorkPtr allgather_coalesced(Tensors2& outputs, Tensors1& inputs,
                              const c10d::AllgatherOptions& options) override {
    return operation(c10d::OpType::ALLGATHER_COALESCED, "dt:all_gather", [&](Call& call) {
      Tensors1 results;
      for (size_t i = 0; i < inputs.size(); ++i) {
        Tensors1 parts;
        for (const Tensors1& each : outputs) parts.push_back(each.at(i));  // outputs by rank
        gather_all(call, parts, inputs[i]);
        results.insert(results.end(), parts.begin(), parts.end());
      }
      return run(call, inputs, results, options);
    });
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    Tensors1 outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors1& outputs, Tensors1& inputs,
                                          const c10d::AllgatherOptions& options) {
    return operation(c10d::OpType::_ALLGATHER_BASE, "dt:_all_gather_base", [&](Call& call) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Elements elements = moved(inputs[i]);
        check_sizes(call, size_, outputs.at(i), inputs[i]);
        auto& one = call.add(DT_KIND_ALLGATHER, elements, inputs[i].numel());
        one.send = call.memory(inputs[i], elements.type, true, false);
        one.recv = call.memory(outputs[i], elements.type, false, true);
      }
      return run(call, inputs, outputs, options);
    });
  }

  WorkPtr gather(Tensors2& outputs, Tensors1& inputs, const c10d::GatherOptions& options) override {
    return operation(c10d::OpType::GATHER, "dt:gather", [&](Call& call) {
      const bool root = rank_ == options.rootRank;
      check_one(call.title, inputs.size() == 1 && outputs.size() == (root ? 1 : 0));
      const Elements elements = moved(inputs[0]);
      auto& one = call.add(DT_KIND_GATHER, elements, inputs[0].numel(), options.rootRank);
      one.send = call.memory(inputs[0], elements.type, true, false);
      if (root) {
        check_list(call, size_, outputs[0], inputs[0], true);
        one.recv = call.memory(outputs[0], elements.type, false, true);
      }
      return run(call, inputs, root ? outputs[0] : Tensors1(), options);
    });
  }

  WorkPtr scatter(Tensors1& outputs, Tensors2& inputs,
                  const c10d::ScatterOptions& options) override {
    return operation(c10d::OpType::SCATTER, "dt:scatter", [&](Call& call) {
      const bool root = rank_ == options.rootRank;
      check_one(call.title, outputs.size() == 1 && inputs.size() == (root ? 1 : 0));
      const Elements elements = moved(outputs[0]);
      auto& one = call.add(DT_KIND_SCATTER, elements, outputs[0].numel(), options.rootRank);
      one.recv = call.memory(outputs[0], elements.type, false, true);
      if (root) {
        check_list(call, size_, inputs[0], outputs[0], true);
        one.send = call.memory(inputs[0], elements.type, true, false);
      }
      return run(call, root ? inputs[0] : Tensors1(), outputs, options);
    });
  }

  WorkPtr reduce_scatter(Tensors1& outputs, Tensors2& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return operation(c10d::OpType::REDUCE_SCATTER, "dt:reduce_scatter", [&](Call& call) {
      check_one(call.title, outputs.size() == 1 && inputs.size() == 1);
      const Elements elements = reduced(outputs[0], options.reduceOp);
      check_list(call, size_, inputs[0], outputs[0], false);
      check_own(call, rank_, inputs[0], outputs[0]);
      auto& one = call.add(DT_KIND_REDUCE_SCATTERV, elements);
      Tensors1 sent;
      for (const Tensor& each : inputs[0]) sent.push_back(elements.scaled(each));
      one.send_counts = call.counts(sent, elements);
      one.send = call.memory(sent, elements.type, true, false);
      one.recv = call.memory(outputs[0], elements.type, false, true);
      return run(call, inputs[0], outputs, options);
    });
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Tensors1 outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors1& outputs, Tensors1& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    return operation(
        c10d::OpType::_REDUCE_SCATTER_BASE, "dt:_reduce_scatter_base", [&](Call& call) {
          for (size_t i = 0; i < inputs.size(); ++i) {
            const Elements elements = reduced(inputs[i], options.reduceOp);
            check_sizes(call, size_, inputs[i], outputs.at(i));
            auto& one = call.add(DT_KIND_REDUCE_SCATTER, elements, outputs[i].numel());
            one.send = call.memory(elements.scaled(inputs[i]), elements.type, true, false);
            one.recv = call.memory(outputs[i], elements.type, false, true);
          }
          return run(call, inputs, outputs, options);
        });
  }

  WorkPtr alltoall(Tensors1& outputs, Tensors1& inputs,
                   const c10d::AllToAllOptions& options) override {
    return operation(c10d::OpType::ALLTOALL, "dt:all_to_all", [&](Call& call) {
      check_list(call, size_, outputs, outputs.at(0), false);
      check_list(call, size_, inputs, outputs[0], false);
      const Elements elements = moved(inputs[0]);
      auto& one = call.add(DT_KIND_ALLTOALLV, elements);
      one.send_counts = call.counts(inputs, elements);
      one.recv_counts = call.counts(outputs, elements);
      one.send = call.memory(inputs, elements.type, true, false);
      one.recv = call.memory(outputs, elements.type, false, true);
      return run(call, inputs, outputs, options);
    });
  }
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return operation(c10d::OpType::ALLTOALL_BASE, "dt:all_to_all", [&](Call& call) {
      if (output.scalar_type() != input.scalar_type()) bad_types(call);
      const Elements elements = moved(input);
      auto& one = call.add(DT_KIND_ALLTOALLV, elements);
      one.send_counts = rows(call, size_, input, input_splits, elements);
      one.recv_counts = rows(call, size_, output, output_splits, elements);
      const Tensor sent = input.is_alias_of(output) ? input.detach().clone() : input;
      one.send = call.memory(sent, elements.type, true, false);
      one.recv = call.memory(output, elements.type, false, true);
      return run(call, {input}, {output}, options);
    });
  }

  WorkPtr send(Tensors1& tensors, int peer, int tag) override {
    return operation(c10d::OpType::SEND, "dt:send", [&](Call& call) {
      if (!tensors.empty() && tensors[0].is_cuda()) return transfer(call, tensors, peer, true);
      return begun(messages_.send(call, tensors, peer, tag, options_->timeout));
    });
  }
  WorkPtr recv(Tensors1& tensors, int peer, int tag) override {
    return operation(c10d::OpType::RECV, "dt:recv", [&](Call& call) {
      if (!tensors.empty() && tensors[0].is_cuda()) return transfer(call, tensors, peer, false);
      if (peer < 0) peer = size_;  // no rank
      return begun(messages_.receive(call, tensors, peer, tag, options_->timeout));
    });
  }
  WorkPtr recvAnysource(Tensors1& tensors, int tag) override {
    return operation(c10d::OpType::RECVANYSOURCE, "dt:recv", [&](Call& call) {
      if (!tensors.empty() && tensors[0].is_cuda()) {
        throw_error(DT_ERR_UNSUPPORTED,
                    "dt:recv: a tensor on a GPU is received from a rank that is named; give src");
      }
      return begun(messages_.receive(call, tensors, -1, tag, options_->timeout));
    });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override {
    const bool unset = options.timeout == c10d::kUnsetTimeout;
    ending_batch([&] {
      messages_.monitored_barrier(unset ? options_->timeout : options.timeout, wait_for_all);
    });
  }

  bool supportsCoalescing() const { return true; }
  void startCoalescing() override {
    // One may be open: torch does not end a batch after an exception in it.
    end_batch(error_of(DT_ERR_INVALID_STATE, "a batch was not ended before the next one began"));
    const std::lock_guard lock(keeping_);
    batch_ = std::make_shared<std::atomic<bool>>(true);
    batching_thread_ = this_thread_number();
    batch_error_ = nullptr;
  }
  void endCoalescing(std::vector<WorkPtr>& /*works*/) { endCoalescing(); }  // of 2.0
  WorkPtr endCoalescing() {
    std::vector<c10::intrusive_ptr<GpuWork>> grouped;
    Batch::Works works;
    {
      const std::lock_guard lock(keeping_);
      if (batch_ && batching_thread_ != this_thread_number()) {
        throw_error(DT_ERR_INVALID_STATE,
                    "the batch of this thread is over, because another thread has begun one");
      }
      if (batch_error_) std::rethrow_exception(std::exchange(batch_error_, nullptr));
      if (!batch_) {
        throw_error(DT_ERR_INVALID_STATE,
                    "this thread has no open batch: it began none, or one that was begun since, in "
                    "this thread or another, has ended it");
      }
      *batch_ = false;
      batch_.reset();
      works = std::exchange(batched_, {});
      grouped = std::exchange(grouped_, {});
    }
    const dt_status ended = grouped.empty() ? DT_OK : dt_group_end(gpu_comm_, nullptr);
    std::exception_ptr error = ended == DT_OK ? nullptr : error_of(ended, dt_last_error());
    for (const auto& each : grouped) {
      try {
        if (error) std::rethrow_exception(error);
        each->order();
      } catch (...) {
        error = std::current_exception();
        each->give_up(error);
      }
    }
    if (error) std::rethrow_exception(error);
    if (works.size() == 1) return works[0];
    return c10::make_intrusive<Batch>(rank_, std::move(works));
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE  // in releases that have split() with these arguments
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
    const pybind11::gil_scoped_acquire gil;
    return pybind11::handle(group_)
        .attr("split")(store, ranks, options->group_name, options->timeout.count())
        .cast<c10::intrusive_ptr<Backend>>();
  }
#endif

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return operation(c10d::OpType::BARRIER, "dt:barrier", [&](Call& call) {
      if (gpu_opened_.load()) check(dt_comm_check(gpu_comm_));
      call.add(DT_KIND_BARRIER, {at::kByte, DT_U8, 1});
      return run(call, {}, {}, options);
    });
  }

  // DDP and FSDP2 ask here for memory where the program wishes it, since 2.7.
  bool supportsTensorAlloc(c10::DeviceIndex device) { return size_ > 1 && device < 0; }
  Tensor allocateTensor(long size, at::TensorOptions options) {
    return shared_memory_->allocate(size, options);
  }

  void abort() { call_group("abort"); }
  void shutdown() { call_group("shutdown"); }

 private:
  void gather_all(Call& call, const Tensors1& outputs, const Tensor& input) const {
    check_list(call, size_, outputs, input, false);
    check_own(call, rank_, outputs, input);
    const Elements elements = moved(input);
    auto& one = call.add(DT_KIND_ALLGATHERV, elements);
    one.recv_counts = call.counts(outputs, elements);
    one.send = call.memory(input, elements.type, true, false);
    one.recv = call.memory(outputs, elements.type, false, true);
  }
  /**
   * Carries the call out: all of it, where the caller would wait for it anyway. In a batch, too,
   * because a batch that an exception has left is still open, and torch's wait() would not wait
   * then. It waits for nothing but what it waits for outside of a batch: what stands before it in
   * the batch has begun, sends and receives included, and the collectives of a group have one
   * order.
   */
  template <class SomeOptions>
  WorkPtr run(Call& call, const Tensors1& inputs, const Tensors1& results,
              const SomeOptions& options) {
    call.tensors.results = results;
    for (dt_collective& each : call.operations) each.timeout_ms = limit_ms(options);
    if (call.on_gpu()) return run_on_gpu(call, inputs, is_async(options));
    auto work = c10::make_intrusive<Work>(rank_, call.type, call.title, inputs,
                                          std::move(call.tensors), completions_, pending_);
    pending_->sweep();
    sequence_ += call.operations.size();
    if (!is_async(options)) {
      for (const auto& each : call.operations) check(dt_collective_launch(comm_, &each, nullptr));
      work->settle(nullptr);
      return work;  // no part of a batch, which an exception may have left open for ever
    }
    try {
      for (const auto& each : call.operations) work->launch(comm_, each);
    } catch (...) {
      work->drop_results();
      keep(work);  // dt uses the tensors of the operations before the failed one
      throw;
    }
    keep(work);
    return work;
  }

  /** Without `async` the current stream itself waits for the operations. */
  WorkPtr run_on_gpu(Call& call, const Tensors1& inputs, bool async) {
    dt_comm* const comm = comm_on(*call.device);
    sweep_gpu();
    sequence_ += call.operations.size();
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    const bool batching = is_batching();
    if (!batching) check_no_group(call);
    const c10::Stream behind = async || batching ? *side_stream_ : cuda.getStream(*call.device);
    auto work = c10::make_intrusive<GpuWork>(rank_, call.type, call.title, inputs,
                                             std::move(call.tensors), handles_, behind);
    if (batching) {
      const std::lock_guard lock(keeping_);
      if (grouped_.empty()) check(dt_group_begin(comm));
      grouped_.push_back(work);
      batched_.push_back(work);
      pending_on_gpu_.push_back(work);
    } else {
      const std::lock_guard lock(keeping_);
      pending_on_gpu_.push_back(work);
    }
    try {
      for (const auto& each : call.operations) work->launch(comm, each);
      if (!batching) work->order();
    } catch (...) {
      if (!batching) work->give_up(std::current_exception());
      throw;
    }
    return work;
  }

  /**
   * Ends the open batch, if any; endCoalescing() then raises `error`. torch calls endCoalescing()
   * only if no exception left the batch, and in an open batch messages, and all on GPUs, return
   * before they are done.
   * Only the calls of the thread that began a batch stand in it.
   */
  void end_batch(const std::exception_ptr& error) {
    std::vector<c10::intrusive_ptr<GpuWork>> grouped;
    Batch::Works works;  // destroyed without the lock, like tensors of a Work
    {
      const std::lock_guard lock(keeping_);
      if (!batch_) return;
      *batch_ = false;
      batch_.reset();
      batch_error_ = error;
      works = std::exchange(batched_, {});
      grouped = std::exchange(grouped_, {});
    }
    if (grouped.empty()) return;
    (void)dt_group_end(gpu_comm_, nullptr);  // `error` came first
    for (const auto& each : grouped) each->give_up(error);
  }
  /** function(), whose exception ends an open batch of this thread. */
  template <class Function>
  std::invoke_result_t<const Function&> ending_batch(const Function& function) {
    try {
      return function();
    } catch (...) {
      if (is_batching()) end_batch(std::current_exception());
      throw;
    }
  }
  /** A call that `function` carries out. */
  template <class Function>
  WorkPtr operation(c10d::OpType type, const char* title, const Function& function) {
    Call call(type, title);
    return ending_batch([&] { return function(call); });
  }

  WorkPtr transfer(Call& call, const Tensors1& tensors, int peer, bool sends) {
    for (const Tensor& each : tensors) {
      const Elements elements = moved(each);
      auto& one = call.add(sends ? DT_KIND_SEND : DT_KIND_RECV, elements, each.numel(), peer);
      void* const memory = call.memory(each, elements.type, sends, !sends);
      if (sends)
        one.send = memory;
      else
        one.recv = memory;
    }
    call.tensors.results = tensors;
    return run_on_gpu(call, tensors, true);
  }

  /** The communicator over the GPU, which all ranks make with their first tensor there. */
  dt_comm* comm_on(c10::Device device) {
    if (!gpu_opened_.load()) {
      const pybind11::gil_scoped_acquire gil;
      const auto handle =
          pybind11::handle(group_).attr("open_gpu")(int{device.index()}).cast<int64_t>();
      if (!gpu_opened_.load()) {  // under Python's lock for this
        const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
        side_stream_ = cuda.getStreamFromGlobalPool(device, true);
        gpu_comm_ = reinterpret_cast<dt_comm*>(handle);
        check(dt_comm_set_timeout(gpu_comm_, options_->timeout.count()));
        gpu_opened_.store(true);
      }
    }
    if (side_stream_->device() != device) {
      throw_error(DT_ERR_INVALID_ARGUMENT,
                  "the process group is on " + side_stream_->device().str() +
                      ", and the tensor on " + device.str() +
                      "; each rank has one GPU: choose it by torch.cuda.set_device()");
    }
    return gpu_comm_;
  }

  void call_group(const char* method) {
    const pybind11::gil_scoped_acquire gil;
    pybind11::handle(group_).attr(method)();
  }

  static c10::intrusive_ptr<Options> options_of(int64_t timeout_ms, const std::string& name) {
    auto made = c10::make_intrusive<Options>("dt", std::chrono::milliseconds(timeout_ms));
    set_group_name(*made, name);
    return made;
  }
  /** Since 2.5. */
  template <class SomeOptions>
  static void set_group_name(SomeOptions& options, const std::string& name) {
    if constexpr (requires { options.group_name; }) options.group_name = name;
  }
  /** Whether the program goes on before the operation is done. Older releases do not tell all
   * operations, and then wait() instead. */
  template <class SomeOptions>
  static bool is_async(const SomeOptions& options) {
    if constexpr (requires { options.asyncOp; }) return options.asyncOp;
    return true;
  }
  /** 0: the communicator's. */
  template <class SomeOptions>
  static int64_t limit_ms(const SomeOptions& options) {
    return std::max<int64_t>(0, options.timeout.count());
  }
  /** With keeping_ held: whether this thread's calls stand in a batch. */
  bool in_batch() const { return batch_ && batching_thread_ == this_thread_number(); }
  bool is_batching() {
    const std::lock_guard lock(keeping_);
    return in_batch();
  }
  /** A group of operations on a GPU includes the calls of all threads. */
  void check_no_group(const Call& call) {
    const std::lock_guard lock(keeping_);
    if (grouped_.empty()) return;
    throw_error(DT_ERR_INVALID_STATE,
                std::string(call.title) + " on rank " + std::to_string(rank_) + " of group \"" +
                    name_ +
                    "\": another thread has begun a batch of operations on the GPU; call this "
                    "after its end, or in another group");
  }
  /** With keeping_ held. */
  void add_to_batch(const c10::intrusive_ptr<Work>& work) {
    if (!in_batch()) return;
    work->join(batch_);
    batched_.push_back(work);
  }
  /** A message has begun. */
  WorkPtr begun(const c10::intrusive_ptr<Message>& message) {
    ++sequence_;
    const std::lock_guard lock(keeping_);
    add_to_batch(message);
    return message;
  }
  void keep(const c10::intrusive_ptr<Work>& work) {
    pending_->add(work);
    const std::lock_guard lock(keeping_);
    add_to_batch(work);
  }
  /** Forgets works on the GPU that are done. */
  void sweep_gpu() {
    for (;;) {
      WorkPtr oldest;  // destroyed without the lock, like tensors of a Work
      {
        const std::lock_guard lock(keeping_);
        if (pending_on_gpu_.empty()) return;
        oldest = pending_on_gpu_.front();
      }
      if (!oldest->isCompleted()) return;  // without the lock: its callbacks may use the group
      const std::lock_guard lock(keeping_);
      if (!pending_on_gpu_.empty() && pending_on_gpu_.front() == oldest) {
        pending_on_gpu_.pop_front();
      }
    }
  }

  dt_comm* const comm_;
  GroupMessages messages_;
  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<SharedMemory> shared_memory_;
  PyObject* const group_;  ///< a Group of _process_group.py
  const std::string name_;
  const std::shared_ptr<Completions> completions_ = std::make_shared<Completions>();
  const std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();  ///< in host memory
  std::mutex keeping_;
  std::deque<WorkPtr> pending_on_gpu_;        ///< under keeping_; holds tensors in use
  std::shared_ptr<std::atomic<bool>> batch_;  ///< under keeping_; null: none is open
  uint64_t batching_thread_ = 0;              ///< under keeping_; the one that began batch_
  Batch::Works batched_;                      ///< under keeping_
  std::exception_ptr batch_error_;  ///< under keeping_; why the last batch was ended early
  std::vector<c10::intrusive_ptr<GpuWork>> grouped_;  ///< under keeping_; of the open batch
  std::atomic<uint64_t> sequence_ = 0;
  // Set once, before gpu_opened_.
  std::atomic<bool> gpu_opened_ = false;
  dt_comm* gpu_comm_ = nullptr;
  std::optional<c10::Stream> side_stream_;  ///< behind operations that nobody has waited for yet
  const std::shared_ptr<StreamHandles> handles_ = std::make_shared<StreamHandles>();
};

}  // namespace

PYBIND11_MODULE(dt_c10d, module) {
  using pybind11::gil_scoped_release;
  pybind11::module_::import("torch.distributed");
  pybind11::class_<Messages, std::shared_ptr<Messages>>(module, "Messages")
      .def(pybind11::init([](const pybind11::object& comm) {
        return std::make_shared<Messages>(handle_of(comm), comm.attr("rank").cast<int>(),
                                          comm.attr("size").cast<int>());
      }))
      .def("leave",
           [](Messages& messages, const pybind11::object& world, double timeout_s,
              const std::string& why) {
             dt_comm* const comm = handle_of(world);
             const gil_scoped_release release;
             messages.leave(comm, std::llround(1000 * timeout_s), why);
           })
      .def("close", &Messages::close, pybind11::call_guard<gil_scoped_release>());
  pybind11::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def(pybind11::init<int, int, pybind11::object, std::shared_ptr<Messages>, std::vector<int>,
                          int64_t, std::string, int64_t>())
      // The base class has these two only since 2.7.
      .def("abort", &Backend::abort)
      .def("shutdown", &Backend::shutdown)
      // torch calls it on ranks outside of a new group; they have nothing to do.
      .def("perform_nocolor_split", [](Backend&, const pybind11::object&) {});
}

}  // namespace dt::torch
