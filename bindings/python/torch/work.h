// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * What a call of torch.distributed returns: one work for all dt operations of the call.
 */
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <dt/dt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace dt::torch {

/** A message of dt with what users of torch.distributed can call and set. */
inline std::string in_words_of_torch(std::string message) {
  constexpr std::array<std::pair<const char*, const char*>, 8> kWords = {
      {{"dt_comm_shrink", "dt.torch.shrink_group()"},
       {"dt_finalize", "destroy_process_group()"},
       {"raise collective.timeout_ms", "raise the group's timeout"},
       {"dt_alltoallv", "all_to_all"},
       {"dt_allgatherv", "all_gather"},
       {"dt_reduce_scatterv", "reduce_scatter"},
       {"dt_recv", "recv"},
       {"the store's process (dt run, ", "the store's process (rank 0, "}}};
  for (const auto& [ours, theirs] : kWords) {
    for (size_t at = 0; (at = message.find(ours, at)) != std::string::npos;) {
      message.replace(at, std::strlen(ours), theirs);
      at += std::strlen(theirs);
    }
  }
  return message.rfind("dt_", 0) == 0 ? message.substr(3) : message;  // "dt_broadcast: ..."
}
/** As the exception that users of torch.distributed catch. */
[[noreturn]] inline void throw_error(dt_status status, const std::string& said) {
  const std::string message = in_words_of_torch(said);
  switch (status) {
    case DT_ERR_INVALID_ARGUMENT: C10_THROW_ERROR(ValueError, message);
    case DT_ERR_UNSUPPORTED: C10_THROW_ERROR(NotImplementedError, message);
    case DT_ERR_TIMEOUT:  // as gloo says it, which programs look for
      C10_THROW_ERROR(DistBackendError, "backend dt: Timed out on " + message);
    default: C10_THROW_ERROR(DistBackendError, message);
  }
}
inline std::exception_ptr error_of(dt_status status, const std::string& message) {
  try {
    throw_error(status, message);
  } catch (...) {
    return std::current_exception();
  }
}
/** Without the calls of C++ that PyTorch adds. */
inline std::string text_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}
/** So much later, also where a program means "never" by a time that no clock can hold. */
inline std::chrono::steady_clock::time_point end_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kCentury{24 * 36500};
  return std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kCentury);
}
/** Differs between threads, also from those that have ended. */
inline uint64_t this_thread_number() {
  static std::atomic<uint64_t> next = 0;
  thread_local const uint64_t mine = next++;
  return mine;
}
/** A thread of its own, without which `what` cannot be done. */
template <class Body>
void start_thread(const std::string& what, Body body) {
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error&) {
    throw_error(DT_ERR_SYSTEM,
                what + ": no thread can be started for it; look at ulimit -u and the memory limit");
  }
}
inline void check(dt_status status) {
  if (status != DT_OK) throw_error(status, dt_last_error());
}
/** Whether a work has succeeded or failed; `error` is set only if it has failed. */
inline bool is_done(dt_work* work, std::exception_ptr& error) {
  int32_t done = 0;
  const dt_status status = dt_work_test(work, &done);
  if (status != DT_OK) error = error_of(status, dt_last_error());
  return status != DT_OK || done != 0;
}

/** The tensors of a call. */
struct Tensors {
  std::vector<at::Tensor> used;   ///< memory that dt reads or writes until it is done
  std::function<void()> combine;  ///< what is left to do when all operations have succeeded
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  ///< to, from; afterwards
  std::vector<at::Tensor> results;                        ///< what the future gives
};

class Work;

/**
 * Threads that complete works which have a future. dt completes the works of a communicator in
 * order, so one thread waits for the oldest. It passes that duty on before it completes the future,
 * because a callback may block, even on a later work.
 */
class Completions : public std::enable_shared_from_this<Completions> {
 public:
  /** Throws, and has not taken the work, where no thread can be started. */
  void add(const c10::intrusive_ptr<Work>& work);
  /** Threads without work end; later works still get one. */
  void close();

 private:
  void run();  ///< of a thread that is to wait for the oldest work
  /** Appoints one where it is needed; mutex_ held. Throws where none can be started. */
  void lead_on();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<Work>> works_;
  int idle_ = 0;
  bool led_ = false;        ///< a thread waits for a work, or is about to
  bool appointed_ = false;  ///< an idle thread is to do it
  bool closed_ = false;
};

/** Works of a communicator whose tensors dt may still use. Any thread. */
class Pending {
 public:
  void add(c10::intrusive_ptr<Work> work);
  /** It has ended. */
  void remove(const Work* work);
  /** Settles the oldest works that are done, and forgets them. */
  void sweep();
  /** Those that are not done stay for ever: dt still uses their tensors. */
  void close();

 private:
  std::mutex mutex_;
  std::deque<c10::intrusive_ptr<Work>> works_;  ///< in the order of the calls
};

class Work : public c10d::Work {
 public:
  /** @param pending may hold the work until it ends; null: nothing holds it. */
  Work(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
       Tensors tensors, std::shared_ptr<Completions> completions, std::shared_ptr<Pending> pending)
      : c10d::Work(rank, type, title, inputs),
        tensors_(std::move(tensors)),
        completions_(std::move(completions)),
        pending_(std::move(pending)) {}
  ~Work() override {
    for (dt_work* const each : works_) dt_work_destroy(each);
  }

  /** Adds an operation, before anybody else has the work. */
  void launch(dt_comm* comm, const dt_collective& one);
  /** wait() returns at once while this is true. */
  void join(std::shared_ptr<std::atomic<bool>> batch) { open_batch_ = std::move(batch); }
  /** An operation could not be launched: outputs stay as they are. */
  void drop_results();
  /** Every operation has succeeded, or one has failed; the first call counts. */
  void settle(std::exception_ptr error);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  std::vector<at::Tensor> result() override { return tensors_.results; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /** Whether all operations have ended after at most timeout_ms; < 0: their own limits. */
  virtual bool poll(int64_t timeout_ms, std::exception_ptr& error);

 protected:
  /** A work that has failed by its own limit: dt goes on, and uses its tensors. */
  virtual bool in_use() const { return false; }

  std::vector<dt_work*> works_;

 private:
  bool ended(int64_t timeout_ms);  ///< poll(), then settle()
  void complete(c10::ivalue::Future& future);
  /** Sees to it that the future is completed once the work is done. */
  virtual void complete_later();
  /** It has ended and dt no longer uses its tensors: nobody keeps it but the program. */
  virtual void let_go();

  Tensors tensors_;
  std::mutex settling_;
  bool settled_ = false;                            ///< under settling_, like future_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  ///< once somebody wants it
  const std::shared_ptr<Completions> completions_;
  const std::shared_ptr<Pending> pending_;
  std::shared_ptr<std::atomic<bool>> open_batch_;  ///< see Batch
};

}  // namespace dt::torch
