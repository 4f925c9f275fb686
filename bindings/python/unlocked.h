// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace dt::python {

/**
 * How threads come back to Python, or not. A thread that asks for the GIL while Python ends is
 * ended on the spot by CPython before 3.14: through frames of C++, which ends the process. So
 * end_of_python(), which runs before that, waits for the threads that are about to take the GIL,
 * and later ones sleep until the process is gone. (Python has joined all but daemon threads then.)
 */
struct Returning {
  std::atomic<int> threads{0};  ///< that are about to take the GIL
  std::atomic<bool> over{false};
  pthread_t last{};  ///< the thread that ends Python; before `over`
};
inline Returning& returning() {
  static auto* const state = new Returning;  // threads come back after static destructors, too
  return *state;
}

/** A thread is about to take the GIL: has_returned() once it has it. False: Python is over for it.
 */
inline bool may_return() {
  // Counted before `over` is read, and end_of_python() sets `over` before it reads the count:
  // either it waits for this thread, or this thread sees that Python is over.
  Returning& state = returning();
  state.threads.fetch_add(1);
  if (!state.over.load() || pthread_equal(pthread_self(), state.last) != 0) return true;
  state.threads.fetch_sub(1);
  return false;
}
inline void has_returned() { returning().threads.fetch_sub(1); }

/** Without the GIL, for its lifetime or until end(). */
class Unlocked {
 public:
  Unlocked() : saved_(PyEval_SaveThread()) {}
  ~Unlocked() { end(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  void end() {
    if (saved_ == nullptr) return;
    if (!may_return()) {
      for (;;) pause();
    }
    PyEval_RestoreThread(saved_);
    saved_ = nullptr;
    has_returned();
  }

 private:
  PyThreadState* saved_;
};

/**
 * Runs `call`, which is Python's, with the GIL, on any thread. False: Python has ended. A thread
 * that is inside `call` while Python ends sleeps until the process is gone: CPython ends it where
 * it asks for the GIL again, by an exception that no frame of dt below this one could pass on.
 */
template <class F>
bool enter_python(F&& call) {
  if (!may_return()) return false;
  const PyGILState_STATE locked = PyGILState_Ensure();
  has_returned();
  try {
    call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
  PyGILState_Release(locked);
  return true;
}

/**
 * While it lives, this thread is in a function of Python's that must not call dt, such as a log
 * sink. The garbage collector may run there, on a thread of dt's that cannot end itself: see
 * let_go() in _types.py. Made before the thread takes the GIL.
 */
class NoCalls {
 public:
  NoCalls() { ++depth(); }
  ~NoCalls() { --depth(); }
  NoCalls(const NoCalls&) = delete;
  NoCalls& operator=(const NoCalls&) = delete;
  static int& depth() {
    static thread_local int count = 0;
    return count;
  }
};
/** may_call(): whether this thread may call dt. */
inline PyObject* may_call(PyObject*, PyObject*) { return PyBool_FromLong(NoCalls::depth() == 0); }

/** end_of_python(): called once, at exit, by the thread that ends Python. */
inline PyObject* end_of_python(PyObject*, PyObject*) {
  Returning& state = returning();
  state.last = pthread_self();
  state.over.store(true);
  PyThreadState* const saved = PyEval_SaveThread();
  while (state.threads.load() > 0) sched_yield();
  PyEval_RestoreThread(saved);
  Py_RETURN_NONE;
}

}  // namespace dt::python
