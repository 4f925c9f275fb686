// SPDX-License-Identifier: Apache-2.0
// Bytes, errors, numbers, text, buffers and the log sink in Python.

%{
#include "python/errors.h"
#include "python/unlocked.h"

#include "python/blocking.h"

// SWIG's own end a thread that comes back while Python ends, in a destructor: see unlocked.h.
#undef SWIG_PYTHON_THREAD_BEGIN_ALLOW
#undef SWIG_PYTHON_THREAD_END_ALLOW
#define SWIG_PYTHON_THREAD_BEGIN_ALLOW dt::python::Unlocked dt_unlocked
#define SWIG_PYTHON_THREAD_END_ALLOW dt_unlocked.end()

// Around what dt calls: the log sink alone.
#undef SWIG_PYTHON_THREAD_BEGIN_BLOCK
#define SWIG_PYTHON_THREAD_BEGIN_BLOCK \
  const dt::python::NoCalls dt_no_calls; \
  SWIG_Python_Thread_Block _swig_thread_block
%}

// The GIL is away in $action; it is taken back when the block of $action ends, also by a throw.
%exception {
  try {
    $action
  } catch (...) {
    dt::python::raise_current();
    SWIG_fail;
  }
}

// ---- What is not in raw.h ----

%define NATIVE(NAME)
%native(NAME) PyObject* dt_python_##NAME(PyObject*, PyObject*);
%{
static PyObject* dt_python_##NAME(PyObject* self, PyObject* args) {
  return dt::python::NAME(self, args);
}
%}
%enddef
NATIVE(set_exception_maker)
NATIVE(set_waiting)
NATIVE(keep_forever)
NATIVE(end_of_python)

%init %{
  if (!dt::python::add_buffer_type(m) || !dt::python::add_region_type(m)) return nullptr;
  if (!dt::python::add_fast_functions(m)) return nullptr;
%}

// Python has calls of its own: see combine.h.
%ignore dt::raw::Upcall;
%ignore dt::raw::upcall_number;
%ignore dt::raw::reducer_set_hook_upcall;
%ignore dt::raw::bucket_fields;
%ignore dt::raw::bucket_give;

// carry_out() and start() of blocking.h stand for them.
%ignore dt::raw::launch;
%ignore dt::raw::launch_blocks;
%ignore dt::raw::launch_async;
%ignore dt::raw::launch_blocks_async;

// ---- Numbers and text ----
// SWIG's own take no NumPy integers, and cut text at its first NUL without a word.

%typemap(in) int32_t {
  if (!dt::python::to_int32($input, &$1)) SWIG_fail;
}
%typemap(in) int64_t {
  if (!dt::python::to_int64($input, &$1)) SWIG_fail;
}
%typemap(in) const std::string& (std::string text) {
  if (!dt::python::to_text($input, &text)) SWIG_fail;
  $1 = &text;
}
%typemap(freearg) const std::string& ""
%typemap(in) (const char* PATH) (std::string text) {
  $1 = nullptr;
  if ($input != Py_None) {
    if (!dt::python::to_text($input, &text)) SWIG_fail;
    $1 = const_cast<char*>(text.c_str());
  }
}
%typemap(freearg) (const char* PATH) ""
%apply (const char* PATH) { (const char* MESSAGE), (const char* NAME) };
%typemap(out) std::string {
  $result = dt::python::from_text($1);
}
%typemap(directorin) const std::string& {
  $input = dt::python::from_text($1);
}

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
