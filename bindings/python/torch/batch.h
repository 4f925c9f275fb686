// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * One work for the calls between startCoalescing() and endCoalescing().
 */
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "work.h"

namespace dt::torch {

/**
 * The calls begin at once. Sends and receives, and what has async_op, are not waited for before the
 * batch is complete, so that sends and receives may stand in it in any order. A collective in host
 * memory without async_op has ended when its call returns, and is not in the batch.
 */
class Batch final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  Batch(int rank, Works works)
      : c10d::Work(rank, c10d::OpType::UNKNOWN), works_(std::move(works)) {}

  bool isCompleted() override {
    bool all = true;
    for (const auto& each : works_) all = each->isCompleted() && all;
    return all;
  }
  bool isSuccess() const override {
    bool all = true;
    for (const auto& each : works_) all = each->isSuccess() && all;
    return all;
  }
  std::exception_ptr exception() const override {
    for (const auto& each : works_) {
      if (each->exception()) return each->exception();
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    using std::chrono::milliseconds;
    const auto end = end_after(timeout);
    std::exception_ptr first;
    for (const auto& each : works_) {
      auto left = timeout;
      if (timeout != kNoTimeout) {
        left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
        left = std::max(left, milliseconds(1));
      }
      try {
        each->wait(left);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
    return true;
  }
  /** Later work of the current stream waits for those on a GPU. */
  void synchronize() override {
    std::exception_ptr first;
    for (const auto& each : works_) {
      try {
        each->synchronize();
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& each : works_) {
      const auto some = each->result();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& each : works_) futures.push_back(each->getFuture());
    return c10::collectAll(futures)->then(
        [self = c10::intrusive_ptr<Batch>::reclaim_copy(this)](c10::ivalue::Future& all) {
          if (all.hasError()) std::rethrow_exception(all.exception_ptr());
          return c10::IValue(self->result());
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const Works works_;
};

}  // namespace dt::torch
