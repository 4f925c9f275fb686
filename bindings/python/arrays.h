// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * What Python's operations ask of the arrays that they are given.
 */
#include <Python.h>

#include "python/buffer.h"

namespace dt::python {

/** An array's Buffer, with messages that begin with `what`. Null: an exception is set. */
inline Buffer* keeper_of(PyObject* array, bool writable, PyObject* what) {
  const char* const text = PyUnicode_AsUTF8(what);
  if (text == nullptr) return nullptr;
  PyObject* keeper = array;
  if (Py_TYPE(array) == &buffer_type()) {
    Py_INCREF(keeper);
  } else {
    keeper = buffer_type().tp_alloc(&buffer_type(), 0);
    if (keeper == nullptr) return nullptr;
    if (!fill(reinterpret_cast<Buffer*>(keeper), array, -1, text)) {
      Py_DECREF(keeper);
      return nullptr;
    }
  }
  auto* const found = reinterpret_cast<Buffer*>(keeper);
  if (!writable || found->readonly == 0) return found;
  refuse(text, is_jax(array) ? "a JAX array is read-only, and dt writes the result there; give a "
                               "copy, numpy.array(array), and make a JAX array of it afterwards: "
                               "jax.numpy.asarray(copy)"
                             : "the array is read-only, and dt writes the result there; give a "
                               "writable one");
  Py_DECREF(keeper);
  return nullptr;
}

/** As keeper_of(), of the memory that a communicator is over. */
inline Buffer* keeper_on(PyObject* array, bool writable, PyObject* what, bool on_gpu) {
  Buffer* const found = keeper_of(array, writable, what);
  if (found == nullptr || (found->on_gpu != 0) == on_gpu) return found;
  Py_DECREF(found);
  refuse(PyUnicode_AsUTF8(what),
         on_gpu ? "the array is host memory, and the communicator is over GPU memory; copy it to "
                  "the rank's GPU"
                : "the array is GPU memory, and the communicator is over host memory; start the "
                  "job with backend.name = \"nccl\", or copy the array to the host");
  return nullptr;
}

inline bool takes(Py_ssize_t given, Py_ssize_t wanted) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, given);
  return false;
}

/** A tuple of numbers and one object, which it takes. Py_BuildValue() reads its pattern each time.
 */
template <std::size_t N>
PyObject* tuple_of(const long long (&numbers)[N], PyObject* last) {
  PyObject* const tuple = last == nullptr ? nullptr : PyTuple_New(N + 1);
  for (std::size_t i = 0; tuple != nullptr && i < N; ++i) {
    PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(numbers[i]));
  }
  if (tuple != nullptr) {
    PyTuple_SET_ITEM(tuple, N, last);
  } else {
    Py_XDECREF(last);
  }
  return tuple;
}

/** buffer(array, writable, what): (address, count, dtype, on_gpu, what keeps it so). */
inline PyObject* buffer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 3)) return nullptr;
  const int writable = PyObject_IsTrue(args[1]);  // comparing NumPy integers gives no Py_True
  if (writable == -1) return nullptr;
  Buffer* const found = keeper_of(args[0], writable == 1, args[2]);
  if (found == nullptr) return nullptr;
  return Py_BuildValue("(LLiNN)", found->address, found->count, found->dtype,
                       PyBool_FromLong(found->on_gpu), found);
}

/** one(array, writable, what, on_gpu): its address twice, count, dtype, and what keeps it so. */
inline PyObject* one(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 4)) return nullptr;
  const int writable = PyObject_IsTrue(args[1]);
  if (writable == -1) return nullptr;
  Buffer* const found = keeper_on(args[0], writable == 1, args[2], args[3] == Py_True);
  if (found == nullptr) return nullptr;
  return tuple_of({found->address, found->address, found->count, found->dtype},
                  reinterpret_cast<PyObject*>(found));
}

/** two(send, recv, what send is, what recv is, operation, on_gpu): both addresses, both counts, the
 * dtype, and what keeps them so. */
inline PyObject* two(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 6)) return nullptr;
  const bool on_gpu = args[5] == Py_True;
  Buffer* const send = keeper_on(args[0], false, args[2], on_gpu);
  if (send == nullptr) return nullptr;
  Buffer* const recv = keeper_on(args[1], true, args[3], on_gpu);
  if (recv != nullptr && send->dtype == recv->dtype) {
    PyObject* const both = PyTuple_New(2);
    if (both != nullptr) {
      PyTuple_SET_ITEM(both, 0, reinterpret_cast<PyObject*>(send));
      PyTuple_SET_ITEM(both, 1, reinterpret_cast<PyObject*>(recv));
      return tuple_of({send->address, recv->address, send->count, recv->count, send->dtype}, both);
    }
    Py_DECREF(recv);
    Py_DECREF(send);
    return nullptr;
  }
  if (recv != nullptr) {
    constexpr const char* kNames[] = {"I8",  "U8",  "I32",  "U32", "I64", "U64",    "F16",   "BF16",
                                      "F32", "F64", "BOOL", "I16", "U16", "F8E4M3", "F8E5M2"};
    refuse(PyUnicode_AsUTF8(args[4]), std::string("send is of ") + kNames[send->dtype] +
                                          " and recv of " + kNames[recv->dtype] +
                                          "; give two arrays of one dtype");
    Py_DECREF(recv);
  }
  Py_DECREF(send);
  return nullptr;
}

}  // namespace dt::python
