// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Reductions that are functions of Python's.
 */
#include <Python.h>

#include "dt/dt.h"
#include "python/unlocked.h"

namespace dt::python {

/**
 * dt_collective.combine of a Combination of _combine.py, on whatever thread dt runs it. The caller
 * keeps the Combination until the operation is done.
 */
inline void combine(void* combination, const void* in, void* inout, int64_t count) {
  const NoCalls no_calls;
  const bool entered = enter_python([&] {
    // The Combination keeps what its function raises; left here is at most that memory is short.
    PyObject* const done = PyObject_CallMethod(
        static_cast<PyObject*>(combination), "run", "LLL",
        static_cast<long long>(reinterpret_cast<intptr_t>(in)),
        static_cast<long long>(reinterpret_cast<intptr_t>(inout)), static_cast<long long>(count));
    if (done == nullptr) PyErr_WriteUnraisable(static_cast<PyObject*>(combination));
    Py_XDECREF(done);
  });
  if (entered) return;
  for (;;) pause();  // a result without this part would be wrong on other ranks, too
}

/** view(address, bytes): that memory, to read and to write. */
inline PyObject* view(PyObject*, PyObject* args) {
  long long address = 0, bytes = 0;
  if (!PyArg_ParseTuple(args, "LL:view", &address, &bytes)) return nullptr;
  return PyMemoryView_FromMemory(reinterpret_cast<char*>(static_cast<intptr_t>(address)),
                                 static_cast<Py_ssize_t>(bytes), PyBUF_WRITE);
}

}  // namespace dt::python
