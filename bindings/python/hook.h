// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Hooks of a reducer that are functions of Python's.
 */
#include <Python.h>

#include "dt/dt.h"
#include "python/unlocked.h"
#include "raw.h"

namespace dt::python {

/**
 * dt_bucket_hook of a HookCalls of _hook.py, which the reducer keeps. Its run() keeps what the
 * function raises, and gives the number of a work, 0 for none, or -1. The step then fails, as it
 * does after the end of Python: nobody reduces its buckets.
 */
inline dt_status run_hook(void* calls, const dt_bucket* bucket, int32_t stage, dt_work** out_work) {
  long long work = -1;
  const bool entered = enter_python([&] {
    PyObject* const result = PyObject_CallMethod(
        static_cast<PyObject*>(calls), "run", "iiy#LLiLi", static_cast<int>(bucket->index),
        static_cast<int>(bucket->is_last), reinterpret_cast<const char*>(bucket->params),
        static_cast<Py_ssize_t>(bucket->param_count) * static_cast<Py_ssize_t>(sizeof(int32_t)),
        static_cast<long long>(reinterpret_cast<intptr_t>(bucket->data)),
        static_cast<long long>(bucket->count), static_cast<int>(bucket->dtype),
        static_cast<long long>(reinterpret_cast<intptr_t>(bucket->stream)),
        static_cast<int>(stage));
    if (result != nullptr) {
      work = PyLong_AsLongLong(result);
      Py_DECREF(result);
    }
    if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(static_cast<PyObject*>(calls));
  });
  if (!entered || work < 0) return DT_ERR_ABORTED;
  *out_work = raw::handle<dt_work>(work);
  return DT_OK;
}

/** The address of run_hook(). */
inline PyObject* hook_function(PyObject*, PyObject*) {
  return PyLong_FromLongLong(
      static_cast<long long>(reinterpret_cast<intptr_t>(reinterpret_cast<void*>(&run_hook))));
}

}  // namespace dt::python
