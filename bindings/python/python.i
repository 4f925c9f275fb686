// SPDX-License-Identifier: Apache-2.0
// Bytes, errors, buffers and the log sink in Python.

%{
// ---- Errors ----

/// dt._errors._raise_as(status, rank, host, pid, operation, sequence, message) gives the exception.
static PyObject* dt_make_exception = nullptr;

static void dt_raise(const dt::Error& error) {
  PyObject* const exception =
      dt_make_exception == nullptr
          ? nullptr
          : PyObject_CallFunction(dt_make_exception, "iisLsLs", static_cast<int>(error.status()),
                                  static_cast<int>(error.rank()), error.host().c_str(),
                                  static_cast<long long>(error.pid()), error.operation().c_str(),
                                  static_cast<long long>(error.sequence()), error.what());
  if (exception == nullptr) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    return;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
}
%}

// The GIL is away in $action; SWIG takes it back when the block of $action ends, also by a throw.
%exception {
  try {
    $action
  } catch (const dt::Error& error) {
    dt_raise(error);
    SWIG_fail;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    SWIG_fail;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    SWIG_fail;
  }
}

%native(set_exception_maker) PyObject* dt_set_exception_maker(PyObject*, PyObject*);
%{
static PyObject* dt_set_exception_maker(PyObject*, PyObject* args) {
  PyObject* maker = nullptr;
  if (!PyArg_ParseTuple(args, "O:set_exception_maker", &maker)) return nullptr;
  Py_INCREF(maker);
  Py_XSETREF(dt_make_exception, maker);
  Py_RETURN_NONE;
}
%}

// Python's own of this name is in functools since 3.0.
%warnfilter(321) dt::raw::reduce;

// ---- Bytes ----

%typemap(in) (const char* DATA, int64_t BYTES) (Py_buffer view = {}) {
  if (PyObject_GetBuffer($input, &view, PyBUF_C_CONTIGUOUS) != 0) SWIG_fail;
  $1 = static_cast<$1_ltype>(view.buf);
  $2 = static_cast<$2_ltype>(view.len);
}
%typemap(freearg) (const char* DATA, int64_t BYTES) {
  if (view$argnum.obj != nullptr) PyBuffer_Release(&view$argnum);
}
%typemap(out) dt::raw::Bytes {
  $result = PyBytes_FromStringAndSize($1.data.data(), static_cast<Py_ssize_t>($1.data.size()));
}

// ---- The log sink ----

%feature("director") dt::raw::LogSink;
%feature("director:except") {
  if ($error != nullptr) PyErr_WriteUnraisable(swig_get_self());
}
