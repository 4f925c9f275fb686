// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <algorithm>

namespace dt::torch {

void Work::launch(dt_comm* comm, const dt_collective& one) {
  dt_work* work = nullptr;
  check(dt_collective_launch(comm, &one, &work));
  works_.push_back(work);
}

void Work::drop_results() {
  // Destroyed after the lock is released, as in settle().
  decltype(tensors_.copies) copies;
  decltype(tensors_.combine) combine;
  const std::lock_guard lock(settling_);
  copies.swap(tensors_.copies);
  combine.swap(tensors_.combine);
}

bool Work::poll(int64_t timeout_ms, std::exception_ptr& error) {
  using std::chrono::milliseconds;
  const auto end = end_after(milliseconds(timeout_ms));
  try {
    for (dt_work* const each : works_) {
      int32_t done = 0;
      if (timeout_ms > 0) {
        const auto left = end - std::chrono::steady_clock::now();
        timeout_ms = std::max<int64_t>(0, std::chrono::ceil<milliseconds>(left).count());
      }
      check(timeout_ms == 0 ? dt_work_test(each, &done) : dt_work_wait(each, timeout_ms, &done));
      if (done == 0) return false;
    }
  } catch (...) {
    error = std::current_exception();
  }
  return true;
}

bool Work::ended(int64_t timeout_ms) {
  {
    const std::lock_guard lock(settling_);
    if (settled_) return true;
  }
  std::exception_ptr error;
  if (!poll(timeout_ms, error)) return false;
  settle(error);
  return true;
}

void Work::settle(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  // Destroyed after the lock is released: the destructor of a tensor may take Python's lock.
  decltype(tensors_.copies) copies;
  decltype(tensors_.combine) combine;
  decltype(tensors_.used) unused;
  bool stays = false;
  {
    const std::lock_guard lock(settling_);
    if (settled_) return;
    if (error == nullptr && (tensors_.combine || !tensors_.copies.empty())) {
      try {
        const at::AutoDispatchBelowADInplaceOrView plain;
        if (tensors_.combine) tensors_.combine();
        for (auto& [to, from] : tensors_.copies) to.copy_(from);
      } catch (...) {
        error = std::current_exception();
      }
    }
    combine.swap(tensors_.combine);
    copies.swap(tensors_.copies);
    stays = in_use();
    if (!stays) unused.swap(tensors_.used);
    finish(error);
    settled_ = true;
    future = future_;
  }
  if (future) complete(*future);  // without the lock: callbacks may use this work
  if (!stays) let_go();
}

void Work::let_go() {
  if (pending_) pending_->remove(this);
}

void Work::complete(c10::ivalue::Future& future) {
  if (const std::exception_ptr error = exception()) {
    future.setErrorIfNeeded(error);
  } else {
    future.markCompleted(c10::IValue(tensors_.results));
  }
}

bool Work::isCompleted() { return ended(0); }

bool Work::isSuccess() const {
  const_cast<Work*>(this)->ended(0);
  return c10d::Work::isSuccess();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (open_batch_ && *open_batch_) return true;
  if (!ended(timeout == kNoTimeout ? -1 : timeout.count())) {
    throw_error(DT_ERR_TIMEOUT, c10d::opTypeToString(retrieveOpType()) + " after " +
                                    std::to_string(timeout.count()) +
                                    " ms; the operation itself goes on");
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

void Work::abort() {
  throw_error(DT_ERR_UNSUPPORTED, "one work of dt cannot be aborted; abort the process group");
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  bool settled = false;
  {
    const std::lock_guard lock(settling_);
    if (future_) return future_;
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    settled = settled_;
  }
  if (settled) {
    complete(*future_);
    return future_;
  }
  try {
    complete_later();
  } catch (...) {
    c10::intrusive_ptr<c10::ivalue::Future> given;  // perhaps to another thread, too
    {
      const std::lock_guard lock(settling_);
      if (settled_) return future_;  // settle() completes it
      given.swap(future_);
    }
    given->setErrorIfNeeded(std::current_exception());  // without the lock, as in settle()
    throw;
  }
  return future_;
}

void Work::complete_later() { completions_->add(c10::intrusive_ptr<Work>::reclaim_copy(this)); }

void Pending::add(c10::intrusive_ptr<Work> work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
}

void Pending::remove(const Work* work) {
  c10::intrusive_ptr<Work> held;  // destroyed without the lock, like tensors of a Work
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(works_.begin(), works_.end(),
                                  [&](const auto& each) { return each.get() == work; });
  if (found == works_.end()) return;
  held = std::move(*found);
  works_.erase(found);
}

void Pending::sweep() {
  for (;;) {
    c10::intrusive_ptr<Work> oldest;
    {
      const std::lock_guard lock(mutex_);
      if (works_.empty()) return;
      oldest = works_.front();
    }
    if (!oldest->isCompleted())
      return;              // without the lock: its callbacks may use the process group
    remove(oldest.get());  // another thread may be about to
  }
}

void Pending::close() {
  std::deque<c10::intrusive_ptr<Work>> works;
  {
    const std::lock_guard lock(mutex_);
    works.swap(works_);
  }
  for (auto& each : works) {
    if (!each->isCompleted()) (void)each.release();
  }
}

void Completions::lead_on() {
  if (led_ || works_.empty()) return;
  if (idle_ > 0) {
    --idle_;
    appointed_ = true;
    changed_.notify_one();
  } else {
    start_thread("a future of torch.distributed", [self = shared_from_this()] { self->run(); });
  }
  led_ = true;  // the new thread waits for mutex_
}

void Completions::add(const c10::intrusive_ptr<Work>& work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(work);
  try {
    lead_on();
  } catch (...) {
    works_.pop_back();
    throw;
  }
}

void Completions::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Completions::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    c10::intrusive_ptr<Work> work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    while (!work->poll(-1, error)) {
    }
    lock.lock();
    led_ = false;
    try {
      lead_on();
    } catch (const std::exception&) {  // then this thread goes on when the callbacks have ended
    }
    lock.unlock();
    work->settle(error);
    work.reset();
    lock.lock();
    if (!led_ && !works_.empty()) {
      led_ = true;
      continue;
    }
    ++idle_;
    changed_.wait(lock, [this] { return appointed_ || closed_; });
    if (std::exchange(appointed_, false)) continue;
    --idle_;  // so that lead_on() starts a thread instead of appointing this one
    return;
  }
}

}  // namespace dt::torch
