// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>

#include "dt/dt.hpp"

namespace dt::python {

/** dt._errors.make(status, rank, host, pid, operation, sequence, message) gives the exception. */
inline PyObject*& exception_maker() {
  static PyObject* maker = nullptr;
  return maker;
}
inline PyObject* set_exception_maker(PyObject*, PyObject* args) {
  PyObject* maker = nullptr;
  if (!PyArg_ParseTuple(args, "O:set_exception_maker", &maker)) return nullptr;
  Py_INCREF(maker);
  Py_XSETREF(exception_maker(), maker);
  Py_RETURN_NONE;
}

/** Text of dt: UTF-8, and what is not is shown as U+FFFD. */
inline PyObject* from_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

inline void raise(dt_status status, int32_t rank, const std::string& host, int64_t pid,
                  const std::string& operation, int64_t sequence, const std::string& message) {
  PyObject* exception = nullptr;
  if (exception_maker() != nullptr) {
    exception = PyObject_CallFunction(exception_maker(), "iiNLNLN", static_cast<int>(status),
                                      static_cast<int>(rank), from_text(host),
                                      static_cast<long long>(pid), from_text(operation),
                                      static_cast<long long>(sequence), from_text(message));
  }
  if (exception == nullptr) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
}
inline void raise(const dt::Error& error) {
  raise(error.status(), error.rank(), error.host(), error.pid(), error.operation(),
        error.sequence(), error.what());
}
/** Python's exception for the one of C++ that is being handled. */
inline void raise_current() {
  try {
    throw;
  } catch (const dt::Error& error) {
    raise(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}
/** Whether the exception that is set says nothing about an argument: a signal's, no memory. */
inline bool beside_the_call() {
  return PyErr_Occurred() != nullptr && (PyErr_ExceptionMatches(PyExc_Exception) == 0 ||
                                         PyErr_ExceptionMatches(PyExc_MemoryError) != 0);
}
/**
 * The call is wrong; an exception that is set becomes its cause, and the end of its text. One that
 * is beside_the_call() stays as it is.
 */
inline void raise_invalid(const std::string& message) {
  if (beside_the_call()) return;
  PyObject *type = nullptr, *cause = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &cause, &trace);
  if (type != nullptr) PyErr_NormalizeException(&type, &cause, &trace);
  PyObject* const why = cause == nullptr ? nullptr : PyObject_Str(cause);
  const char* const text = why == nullptr ? nullptr : PyUnicode_AsUTF8(why);
  PyErr_Clear();
  raise(DT_ERR_INVALID_ARGUMENT, -1, "", 0, "", -1,
        text == nullptr ? message : message + " (" + Py_TYPE(cause)->tp_name + ": " + text + ")");
  Py_XDECREF(why);
  if (cause != nullptr) {
    PyObject *new_type = nullptr, *value = nullptr, *new_trace = nullptr;
    PyErr_Fetch(&new_type, &value, &new_trace);
    PyErr_NormalizeException(&new_type, &value, &new_trace);
    PyException_SetCause(value, cause);  // takes it
    PyErr_Restore(new_type, value, new_trace);
  }
  Py_XDECREF(type);
  Py_XDECREF(trace);
}

/** False: an exception is set; as for the next ones. */
inline bool to_int64(PyObject* object, int64_t* out) {
  PyObject* number = nullptr;
  if (!PyLong_Check(object)) {
    number = PyNumber_Index(object);
    if (number == nullptr) return false;
    object = number;
  }
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(object, &overflow);
  Py_XDECREF(number);
  if (overflow == 0) return *out != -1 || PyErr_Occurred() == nullptr;
  raise_invalid("an argument does not fit in signed 64 bits; give one from -2**63 to 2**63 - 1");
  return false;
}
inline bool to_int32(PyObject* object, int32_t* out) {
  int64_t wide = 0;
  if (!to_int64(object, &wide)) return false;
  *out = static_cast<int32_t>(wide);
  if (*out == wide) return true;
  raise_invalid("the argument " + std::to_string(wide) +
                " does not fit in 32 bits; give one from -2147483648 to 2147483647");
  return false;
}
/** Bytes that were no UTF-8 when Python read them (in a path, say) become the same bytes again. */
inline bool to_text(PyObject* object, std::string* out) {
  if (!PyUnicode_Check(object)) {
    PyErr_Format(PyExc_TypeError, "a str is needed, not %.200s", Py_TYPE(object)->tp_name);
    return false;
  }
  PyObject* const bytes = PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape");
  if (bytes == nullptr) {
    raise_invalid("text with half of a surrogate pair is no UTF-8; give whole characters");
    return false;
  }
  out->assign(PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  if (out->find('\0') == std::string::npos) return true;
  raise_invalid("text with a NUL character; dt's keys, names and settings have none");
  return false;
}

/** keep_forever(object): for memory that dt may write after Python has ended. */
inline PyObject* keep_forever(PyObject*, PyObject* args) {
  PyObject* object = nullptr;
  if (!PyArg_ParseTuple(args, "O:keep_forever", &object)) return nullptr;
  Py_INCREF(object);
  Py_RETURN_NONE;
}

}  // namespace dt::python
