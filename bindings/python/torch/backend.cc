// SPDX-License-Identifier: Apache-2.0
// The backend "dt" of torch.distributed, for the installed release of PyTorch. It runs on a
// communicator that Python has made.
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tensors.h"

namespace dt::torch {
namespace {

using at::Tensor;
using Tensors1 = std::vector<Tensor>;
using Tensors2 = std::vector<std::vector<Tensor>>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

void check_one(const char* title, bool one) {
  if (!one) throw_error(DT_ERR_INVALID_ARGUMENT, std::string(title) + ": needs one tensor");
}

class Backend final : public c10d::Backend {
 public:
  /** @param group holds the handles, and knows how it ends. */
  Backend(int rank, int size, int64_t comm, int64_t timeout_ms, std::string name,
          pybind11::object group)
      : c10d::Backend(rank, size),
        comm_(reinterpret_cast<dt_comm*>(comm)),
        options_(c10::make_intrusive<Options>("dt", std::chrono::milliseconds(timeout_ms))),
        group_(group.release().ptr()) {
    options_->group_name = std::move(name);
  }
  ~Backend() override {
    completions_->close();
    for (auto& each : pending_) {
      // dt still uses the tensors: they stay.
      if (!each->isCompleted()) (void)each.release();
    }
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(group_);
  }

  const std::string getBackendName() const override { return "dt"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  void setTimeout(std::chrono::milliseconds timeout) override {
    check(dt_comm_set_timeout(comm_, timeout.count()));
    options_->timeout = timeout;
  }

  WorkPtr broadcast(Tensors1& tensors, const c10d::BroadcastOptions& options) override {
    Call call(c10d::OpType::BROADCAST, "dt:broadcast");
    for (const Tensor& each : tensors) {
      const Elements elements = moved(each);
      const bool root = rank_ == options.rootRank;
      auto& one = call.add(DT_KIND_BROADCAST, elements, each.numel(), options.rootRank);
      one.send = one.recv = call.memory(each, elements.type, root, !root);
    }
    return run(call, tensors, tensors, options);
  }

  WorkPtr allreduce(Tensors1& tensors, const c10d::AllreduceOptions& options) override {
    Call call(c10d::OpType::ALLREDUCE, "dt:all_reduce");
    for (const Tensor& each : tensors) {
      const Elements elements = reduced(each, options.reduceOp);
      auto& one = call.add(DT_KIND_ALLREDUCE, elements, each.numel());
      one.send = one.recv = call.memory(each, elements.type, true, true);
    }
    return run(call, tensors, tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors1& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkPtr reduce(Tensors1& tensors, const c10d::ReduceOptions& options) override {
    Call call(c10d::OpType::REDUCE, "dt:reduce");
    for (const Tensor& each : tensors) {
      const Elements elements = reduced(each, options.reduceOp);
      const bool root = rank_ == options.rootRank;
      auto& one = call.add(DT_KIND_REDUCE, elements, each.numel(), options.rootRank);
      one.send = call.memory(each, elements.type, true, root);
      if (root) one.recv = const_cast<void*>(one.send);
    }
    return run(call, tensors, tensors, options);
  }

  WorkPtr allgather(Tensors2& outputs, Tensors1& inputs,
                    const c10d::AllgatherOptions& options) override {
    Call call(c10d::OpType::ALLGATHER, "dt:all_gather");
    check_one(call.title, outputs.size() == 1 && inputs.size() == 1);
    gather_all(call, outputs[0], inputs[0]);
    return run(call, inputs, outputs[0], options);
  }
  WorkPtr allgather_coalesced(Tensors2& outputs, Tensors1& inputs,
                              const c10d::AllgatherOptions& options) override {
    Call call(c10d::OpType::ALLGATHER_COALESCED, "dt:all_gather");
    Tensors1 results;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors1 parts;
      for (const Tensors1& each : outputs) parts.push_back(each.at(i));  // outputs by rank
      gather_all(call, parts, inputs[i]);
      results.insert(results.end(), parts.begin(), parts.end());
    }
    return run(call, inputs, results, options);
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    Tensors1 outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors1& outputs, Tensors1& inputs,
                                          const c10d::AllgatherOptions& options) override {
    Call call(c10d::OpType::_ALLGATHER_BASE, "dt:_all_gather_base");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Elements elements = moved(inputs[i]);
      check_sizes(call, outputs.at(i), inputs[i]);
      auto& one = call.add(DT_KIND_ALLGATHER, elements, inputs[i].numel());
      one.send = call.memory(inputs[i], elements.type, true, false);
      one.recv = call.memory(outputs[i], elements.type, false, true);
    }
    return run(call, inputs, outputs, options);
  }

  WorkPtr gather(Tensors2& outputs, Tensors1& inputs, const c10d::GatherOptions& options) override {
    Call call(c10d::OpType::GATHER, "dt:gather");
    const bool root = rank_ == options.rootRank;
    check_one(call.title, inputs.size() == 1 && outputs.size() == (root ? 1 : 0));
    const Elements elements = moved(inputs[0]);
    auto& one = call.add(DT_KIND_GATHER, elements, inputs[0].numel(), options.rootRank);
    one.send = call.memory(inputs[0], elements.type, true, false);
    if (root) {
      check_list(call, outputs[0], inputs[0], true);
      one.recv = call.memory(outputs[0], elements.type, false, true);
    }
    return run(call, inputs, root ? outputs[0] : Tensors1(), options);
  }

  WorkPtr scatter(Tensors1& outputs, Tensors2& inputs,
                  const c10d::ScatterOptions& options) override {
    Call call(c10d::OpType::SCATTER, "dt:scatter");
    const bool root = rank_ == options.rootRank;
    check_one(call.title, outputs.size() == 1 && inputs.size() == (root ? 1 : 0));
    const Elements elements = moved(outputs[0]);
    auto& one = call.add(DT_KIND_SCATTER, elements, outputs[0].numel(), options.rootRank);
    one.recv = call.memory(outputs[0], elements.type, false, true);
    if (root) {
      check_list(call, inputs[0], outputs[0], true);
      one.send = call.memory(inputs[0], elements.type, true, false);
    }
    return run(call, root ? inputs[0] : Tensors1(), outputs, options);
  }

  WorkPtr reduce_scatter(Tensors1& outputs, Tensors2& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    Call call(c10d::OpType::REDUCE_SCATTER, "dt:reduce_scatter");
    check_one(call.title, outputs.size() == 1 && inputs.size() == 1);
    const Elements elements = reduced(outputs[0], options.reduceOp);
    check_list(call, inputs[0], outputs[0], false);
    auto& one = call.add(DT_KIND_REDUCE_SCATTERV, elements);
    one.send_counts = call.counts(inputs[0], elements);
    one.send = call.memory(inputs[0], elements.type, true, false);
    one.recv = call.memory(outputs[0], elements.type, false, true);
    return run(call, inputs[0], outputs, options);
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Tensors1 outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors1& outputs, Tensors1& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    Call call(c10d::OpType::_REDUCE_SCATTER_BASE, "dt:_reduce_scatter_base");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Elements elements = reduced(inputs[i], options.reduceOp);
      check_sizes(call, inputs[i], outputs.at(i));
      auto& one = call.add(DT_KIND_REDUCE_SCATTER, elements, outputs[i].numel());
      one.send = call.memory(inputs[i], elements.type, true, false);
      one.recv = call.memory(outputs[i], elements.type, false, true);
    }
    return run(call, inputs, outputs, options);
  }

  WorkPtr alltoall(Tensors1& outputs, Tensors1& inputs,
                   const c10d::AllToAllOptions& options) override {
    Call call(c10d::OpType::ALLTOALL, "dt:all_to_all");
    check_list(call, outputs, outputs.at(0), false);
    check_list(call, inputs, outputs[0], false);
    const Elements elements = moved(inputs[0]);
    auto& one = call.add(DT_KIND_ALLTOALLV, elements);
    one.send_counts = call.counts(inputs, elements);
    one.recv_counts = call.counts(outputs, elements);
    one.send = call.memory(inputs, elements.type, true, false);
    one.recv = call.memory(outputs, elements.type, false, true);
    return run(call, inputs, outputs, options);
  }
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    Call call(c10d::OpType::ALLTOALL_BASE, "dt:all_to_all");
    if (output.scalar_type() != input.scalar_type()) bad_types(call);
    const Elements elements = moved(input);
    auto& one = call.add(DT_KIND_ALLTOALLV, elements);
    one.send_counts = rows(call, input, input_splits, elements);
    one.recv_counts = rows(call, output, output_splits, elements);
    one.send = call.memory(input, elements.type, true, false);
    one.recv = call.memory(output, elements.type, false, true);
    return run(call, {input}, {output}, options);
  }

  WorkPtr send(Tensors1& tensors, int peer, int tag) override {
    Call call(c10d::OpType::SEND, "dt:send");
    pass(call, DT_KIND_SEND, tensors, peer, tag);
    return run(call, tensors, tensors, c10d::BroadcastOptions());
  }
  WorkPtr recv(Tensors1& tensors, int peer, int tag) override {
    Call call(c10d::OpType::RECV, "dt:recv");
    pass(call, DT_KIND_RECV, tensors, peer, tag);
    return run(call, tensors, tensors, c10d::BroadcastOptions());
  }
  WorkPtr recvAnysource(Tensors1&, int) override {
    throw_error(DT_ERR_UNSUPPORTED, "dt:recv: dt cannot receive from any source; name the source");
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Call call(c10d::OpType::BARRIER, "dt:barrier");
    call.add(DT_KIND_BARRIER, {at::kByte, DT_U8, 1});
    return run(call, {}, {}, options);
  }

  void abort() override { call_group("abort"); }
  void shutdown() override { call_group("shutdown"); }

 private:
  [[noreturn]] static void bad_types(const Call& call) {
    throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": tensors of different types");
  }
  /** `all` has the elements of a `part` of each rank. */
  void check_sizes(const Call& call, const Tensor& all, const Tensor& part) const {
    if (all.scalar_type() != part.scalar_type()) bad_types(call);
    if (all.numel() != part.numel() * size_) {
      throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": " +
                                               std::to_string(all.numel()) + " elements, but the " +
                                               std::to_string(size_) + " ranks have " +
                                               std::to_string(part.numel()) + " each");
    }
  }
  /** `list` has a tensor for each rank, of the type of `part`. */
  void check_list(const Call& call, const Tensors1& list, const Tensor& part, bool equal) const {
    if (static_cast<int>(list.size()) != size_) {
      throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": " +
                                               std::to_string(list.size()) + " tensors for " +
                                               std::to_string(size_) + " ranks");
    }
    for (const Tensor& each : list) {
      if (each.scalar_type() != part.scalar_type()) bad_types(call);
      if (equal && each.numel() != part.numel()) {
        throw_error(DT_ERR_INVALID_ARGUMENT,
                    std::string(call.title) + ": tensors of different sizes");
      }
    }
  }
  void gather_all(Call& call, const Tensors1& outputs, const Tensor& input) const {
    check_list(call, outputs, input, false);
    const Elements elements = moved(input);
    auto& one = call.add(DT_KIND_ALLGATHERV, elements);
    one.recv_counts = call.counts(outputs, elements);
    one.send = call.memory(input, elements.type, true, false);
    one.recv = call.memory(outputs, elements.type, false, true);
  }
  /** Elements that each rank gets of the rows of a tensor; without splits equally many. */
  const int64_t* rows(Call& call, const Tensor& tensor, std::vector<int64_t> splits,
                      const Elements& elements) const {
    const int64_t count = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (splits.empty() && count % size_ == 0) splits.assign(size_, count / size_);
    int64_t total = 0;
    for (const int64_t each : splits) total += each;
    if (static_cast<int>(splits.size()) != size_ || total != count) {
      throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": the first dimension, " +
                                               std::to_string(count) +
                                               ", is not the sum of a split for each rank");
    }
    for (int64_t& each : splits) {
      each *= count == 0 ? 0 : tensor.numel() / count * elements.factor;
    }
    return call.tables.emplace_back(std::move(splits)).data();
  }
  static void pass(Call& call, dt_kind kind, const Tensors1& tensors, int peer, int tag) {
    check_one(call.title, tensors.size() == 1);
    if (tag != 0) throw_error(DT_ERR_UNSUPPORTED, std::string(call.title) + ": dt has no tags");
    const bool sends = kind == DT_KIND_SEND;
    const Elements elements = moved(tensors[0]);
    auto& one = call.add(kind, elements, tensors[0].numel(), peer);
    void* const memory = call.memory(tensors[0], elements.type, sends, !sends);
    (sends ? const_cast<void*&>(one.send) : one.recv) = memory;
  }

  /** Carries the call out: all of it, where the caller would wait for it anyway. */
  template <class SomeOptions>
  WorkPtr run(Call& call, const Tensors1& inputs, const Tensors1& results,
              const SomeOptions& options) {
    call.tensors.results = results;
    auto work = c10::make_intrusive<Work>(rank_, call.type, call.title, inputs,
                                          std::move(call.tensors), completions_);
    sweep();
    for (dt_collective& each : call.operations) {
      if (options.timeout.count() > 0) each.timeout_ms = options.timeout.count();
    }
    sequence_ += call.operations.size();
    if (!options.asyncOp) {
      for (const auto& each : call.operations) check(dt_collective_launch(comm_, &each, nullptr));
      work->settle(nullptr);
      return work;
    }
    try {
      for (const auto& each : call.operations) work->launch(comm_, each);
    } catch (...) {
      keep(work);
      throw;
    }
    keep(work);
    return work;
  }

  void call_group(const char* method) {
    const pybind11::gil_scoped_acquire gil;
    pybind11::handle(group_).attr(method)();
  }

  void keep(const c10::intrusive_ptr<Work>& work) {
    const std::lock_guard lock(keeping_);
    pending_.push_back(work);
  }
  /** Forgets works that are done. */
  void sweep() {
    std::unique_lock lock(keeping_);
    while (!pending_.empty()) {
      const auto oldest = pending_.front();
      lock.unlock();  // its callbacks may use the process group
      if (!oldest->isCompleted()) return;
      lock.lock();
      if (!pending_.empty() && pending_.front() == oldest) pending_.pop_front();
    }
  }

  dt_comm* const comm_;
  const c10::intrusive_ptr<Options> options_;
  PyObject* const group_;  ///< a Group of _process_group.py
  const std::shared_ptr<Completions> completions_ = std::make_shared<Completions>();
  std::mutex keeping_;
  std::deque<c10::intrusive_ptr<Work>> pending_;  ///< under keeping_; holds tensors in use
  std::atomic<uint64_t> sequence_ = 0;
};

}  // namespace

PYBIND11_MODULE(dt_c10d, module) {
  pybind11::module_::import("torch.distributed");
  pybind11::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def(pybind11::init<int, int, int64_t, int64_t, std::string, pybind11::object>());
}

}  // namespace dt::torch
