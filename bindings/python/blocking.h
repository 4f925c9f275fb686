// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Operations that return when the result is there. On Python's main thread one that waits for other
 * ranks looks at signals meanwhile, so that Ctrl-C ends the wait; the operation goes on, and its
 * arrays are kept until it is done.
 */
#include <Python.h>

#include "python/arrays.h"
#include "python/combine.h"
#include "python/errors.h"
#include "python/hook.h"
#include "python/unlocked.h"
#include "raw_comm.h"

namespace dt::python {

/** A wait goes back to Python that often. As _SLICE_MS of _work.py. */
constexpr int64_t kSliceMs = 100;

struct Waiting {
  PyObject* abandoned = nullptr;  ///< by handle, what keeps the arrays of works that nobody holds
  unsigned long main_thread = 0;  ///< the one that handles signals
};
inline Waiting& waiting() {
  static Waiting state;
  return state;
}
/** set_waiting(_abandoned of _work.py, ident of the main thread), once. */
inline PyObject* set_waiting(PyObject*, PyObject* args) {
  Waiting& state = waiting();
  if (!PyArg_ParseTuple(args, "O!k:set_waiting", &PyDict_Type, &state.abandoned,
                        &state.main_thread)) {
    return nullptr;
  }
  Py_INCREF(state.abandoned);
  Py_RETURN_NONE;
}

/** With an exception set: `keep` lives until somebody finds the work done. */
inline void abandon(int64_t work, PyObject* keep) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* const handle = PyLong_FromLongLong(work);
  if (handle == nullptr || PyDict_SetItem(waiting().abandoned, handle, keep) != 0) {
    Py_INCREF(keep);  // for ever
  }
  Py_XDECREF(handle);
  PyErr_Restore(type, value, trace);
}

/** The arguments of carry_out(), converted to C++. */
struct Launch {
  int64_t comm = 0, named = 0;
  dt_collective one = {};
  std::string name;
  Py_buffer tables = {};  ///< obj null: the kind has none

  Launch() = default;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (tables.obj != nullptr) PyBuffer_Release(&tables);
  }
  /** False: an exception is set. `args` from comm on. */
  bool read(PyObject* const* args) {
    int32_t kind = 0, dtype = 0, op = 0, peer = 0;
    int64_t send = 0, recv = 0, count = 0, stream = 0, timeout_ms = 0;
    if (!to_int64(args[0], &comm) || !to_int32(args[1], &kind) || !to_int32(args[2], &dtype) ||
        !to_int32(args[3], &op) || !to_int32(args[4], &peer) || !to_int64(args[5], &send) ||
        !to_int64(args[6], &recv) || !to_int64(args[7], &count) || !to_int64(args[9], &stream) ||
        !to_int64(args[10], &timeout_ms) || (args[11] != Py_None && !to_text(args[11], &name)) ||
        !to_int64(args[13], &named) ||
        (args[8] != Py_None && PyObject_GetBuffer(args[8], &tables, PyBUF_C_CONTIGUOUS) != 0)) {
      return false;
    }
    one = raw::collective(kind, dtype, op, peer, send, recv, count, stream, timeout_ms,
                          args[11] == Py_None ? nullptr : name.c_str());
    return args[12] == Py_None || read_combination(args[12]);
  }
  bool read_combination(PyObject* combination) {
    PyObject* const bytes = PyObject_GetAttrString(combination, "element_bytes");
    const bool known = bytes != nullptr && to_int64(bytes, &one.element_bytes);
    Py_XDECREF(bytes);
    one.combine = combine;
    one.combine_data = combination;
    return known;
  }
  void run(dt_work** out) {
    detail::check(tables.obj == nullptr
                      ? raw::launch_plain(comm, named, one, out)
                      : raw::launch_with_tables(comm, named, one,
                                                static_cast<const char*>(tables.buf), tables.len,
                                                out));
  }
};

/** Launches it and waits in slices. False: an exception is set. */
inline bool run_in_slices(Launch& launch, PyObject* keep) {
  dt_work* work = nullptr;
  for (bool done = false;;) {
    try {
      const Unlocked unlocked;
      if (work == nullptr) {
        launch.one.caller_waits = launch.named == 0 ? 1 : 0;
        launch.run(&work);
      }
      done = raw::work_wait(raw::number(work), kSliceMs);
      if (done) dt_work_destroy(work);
    } catch (...) {
      {
        const Unlocked unlocked;
        dt_work_destroy(work);
      }
      raise_current();
      return false;
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) {
      abandon(raw::number(work), keep);
      return false;
    }
  }
}

/**
 * carry_out(keep, waits, comm, kind, dtype, op, peer, send, recv, count, tables, stream,
 * timeout_ms, name, combination, named). `waits`: for other ranks; `tables`, `name` and
 * `combination` may be None, and `named` 0. `keep` keeps the arrays and the combination.
 */
inline PyObject* carry_out(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 16)) return nullptr;
  Launch launch;
  if (!launch.read(args + 2)) return nullptr;
  if (args[1] == Py_True && PyThread_get_thread_ident() == waiting().main_thread) {
    if (!run_in_slices(launch, args[0])) return nullptr;
    Py_RETURN_NONE;
  }
  try {
    const Unlocked unlocked;
    launch.run(nullptr);
  } catch (...) {
    raise_current();
    return nullptr;
  }
  Py_RETURN_NONE;
}

/** start(comm, ... as carry_out()): its work, by handle. */
inline PyObject* start(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 14)) return nullptr;
  Launch launch;
  if (!launch.read(args)) return nullptr;
  dt_work* work = nullptr;
  try {
    const Unlocked unlocked;
    launch.run(&work);
  } catch (...) {
    raise_current();
    return nullptr;
  }
  return PyLong_FromLongLong(raw::number(work));
}

/** Adds what Python calls with many arguments, which SWIG would put into a tuple first. */
inline bool add_fast_functions(PyObject* module) {
  using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
  const auto plain = [](Fast function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  static PyMethodDef methods[] = {{"buffer", plain(buffer), METH_FASTCALL, nullptr},
                                  {"carry_out", plain(carry_out), METH_FASTCALL, nullptr},
                                  {"hook_function", hook_function, METH_NOARGS, nullptr},
                                  {"may_call", may_call, METH_NOARGS, nullptr},
                                  {"one", plain(one), METH_FASTCALL, nullptr},
                                  {"start", plain(start), METH_FASTCALL, nullptr},
                                  {"two", plain(two), METH_FASTCALL, nullptr},
                                  {"view", view, METH_VARARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace dt::python
