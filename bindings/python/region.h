// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * The base of dt.Memory: memory of dt's that arrays may be made over. It counts them, so that it is
 * never freed under one.
 */
#include <Python.h>
#include <structmember.h>

#include <new>

#include "python/dlpack.h"
#include "python/dtypes.h"
#include "python/unlocked.h"

namespace dt::python {

struct Region {
  PyObject_HEAD long long address;  ///< 0: closed
  Py_ssize_t count;                 ///< elements
  Py_ssize_t exports;               ///< arrays and calls that use it
  Py_ssize_t element_bytes;
  int dtype;
  char on_gpu;
};

/** As the buffer protocol calls a dtype; bf16 and 8-bit floats, which it has not, are their bits.
 */
inline char* format_of(int dtype) {
  static char formats[][2] = {"b", "B", "i", "I", "q", "Q", "e", "H",
                              "f", "d", "?", "h", "H", "B", "B"};
  return formats[dtype];
}

inline int region_export(PyObject* object, Py_buffer* view, int flags) {
  auto* const self = reinterpret_cast<Region*>(object);
  view->obj = nullptr;
  if (self->address == 0 || self->on_gpu != 0) {
    PyErr_SetString(PyExc_BufferError,
                    self->address == 0 ? "the memory is closed"
                                       : "the memory is a GPU's; use its __cuda_array_interface__");
    return -1;
  }
  view->buf = reinterpret_cast<void*>(static_cast<intptr_t>(self->address));
  view->len = self->count * self->element_bytes;
  view->itemsize = self->element_bytes;
  view->readonly = 0;
  view->ndim = 1;
  view->format = (flags & PyBUF_FORMAT) != 0 ? format_of(self->dtype) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? &self->count : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &self->element_bytes : nullptr;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  Py_INCREF(object);
  view->obj = object;
  ++self->exports;
  return 0;
}
inline void region_release(PyObject* object, Py_buffer*) {
  --reinterpret_cast<Region*>(object)->exports;
}

inline PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* named) {
  static const char* names[] = {"address", "count", "dtype", "on_gpu", nullptr};
  long long address = 0;
  Py_ssize_t count = 0;
  PyObject* dtype = nullptr;
  int on_gpu = 0, number = -1;
  if (!PyArg_ParseTupleAndKeywords(args, named, "LnO|p:Region", const_cast<char**>(names), &address,
                                   &count, &dtype, &on_gpu) ||
      !to_dtype(dtype, -1, &number)) {
    return nullptr;
  }
  if (number == -1 || count < 0) {
    refuse("memory", "a dtype and a count of at least 0 are needed");
    return nullptr;
  }
  auto* const self = reinterpret_cast<Region*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->address = address;
  self->count = count;
  self->element_bytes = bytes_of(number);
  self->dtype = number;
  self->on_gpu = on_gpu != 0 ? 1 : 0;
  return reinterpret_cast<PyObject*>(self);
}

// ---- As a tensor of DLPack: it knows bf16, and its deleter says when the tensor is gone ----

struct LentTensor {
  DLManagedTensor managed;
  int64_t shape;
  Region* region;
};

inline void end_lent(DLManagedTensor* managed) {
  auto* const lent = static_cast<LentTensor*>(managed->manager_ctx);
  if (Py_IsInitialized()) {  // else all of Python's objects are gone
    (void)enter_python([&] {
      --lent->region->exports;
      Py_DECREF(lent->region);
    });
  }
  delete lent;
}
inline void end_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // somebody has taken the tensor
  end_lent(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

/** Whether `device` is a tuple that says host memory, or None. */
inline bool is_host(PyObject* device) {
  if (device == Py_None) return true;
  int32_t kind = 0, number = 0;
  return PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2 &&
         to_int32(PyTuple_GET_ITEM(device, 0), &kind) &&
         to_int32(PyTuple_GET_ITEM(device, 1), &number) && kind == kDLCPU && number == 0;
}

/** `stream` and `max_version` change nothing: it is host memory, in the format that all read. */
inline PyObject* region_dlpack(PyObject* object, PyObject* args, PyObject* named) {
  static const char* names[] = {"stream", "max_version", "dl_device", "copy", nullptr};
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, named, "|OOOO:__dlpack__", const_cast<char**>(names),
                                   &stream, &version, &device, &copy)) {
    return nullptr;
  }
  const int copied = PyObject_IsTrue(copy);
  if (copied == -1) return nullptr;
  if (copied == 1 || !is_host(device)) {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_BufferError, copied == 1
                                             ? "the memory is lent, not copied; copy the tensor"
                                             : "the memory is the host's; move the tensor");
    }
    return nullptr;
  }
  auto* const self = reinterpret_cast<Region*>(object);
  if (self->address == 0 || self->on_gpu != 0) {
    PyErr_SetString(PyExc_BufferError,
                    self->address == 0 ? "the memory is closed"
                                       : "the memory is a GPU's; use its __cuda_array_interface__");
    return nullptr;
  }
  constexpr uint8_t kCodes[] = {0, 1, 0, 1, 0, 1, 2, 4, 2, 2, 6, 0, 1, 1, 1};  // of dt_dtype
  auto* const lent = new (std::nothrow) LentTensor();
  if (lent == nullptr) return PyErr_NoMemory();
  DLTensor& tensor = lent->managed.dl_tensor;
  tensor.data = reinterpret_cast<void*>(static_cast<intptr_t>(self->address));
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kCodes[self->dtype], static_cast<uint8_t>(8 * self->element_bytes), 1};
  lent->shape = self->count;
  tensor.shape = &lent->shape;
  lent->managed.manager_ctx = lent;
  lent->managed.deleter = end_lent;
  lent->region = self;
  Py_INCREF(self);
  ++self->exports;
  PyObject* const capsule = PyCapsule_New(&lent->managed, "dltensor", end_capsule);
  if (capsule == nullptr) end_lent(&lent->managed);
  return capsule;
}
inline PyObject* region_dlpack_device(PyObject*, PyObject*) {
  return Py_BuildValue("(ii)", static_cast<int>(kDLCPU), 0);
}

/** Gives the address and forgets it; 0 while arrays use it, or once it is closed. */
inline PyObject* region_take(PyObject* object, PyObject*) {
  auto* const self = reinterpret_cast<Region*>(object);
  const long long address = self->exports == 0 ? self->address : 0;
  if (address != 0) self->address = 0;
  return PyLong_FromLongLong(address);
}

/** Undoes it. */
inline PyObject* region_give(PyObject* object, PyObject* address) {
  int64_t number = 0;
  if (!to_int64(address, &number)) return nullptr;
  reinterpret_cast<Region*>(object)->address = number;
  Py_RETURN_NONE;
}

inline PyTypeObject& region_type() {
  static PyMemberDef members[] = {
      {"address", T_LONGLONG, offsetof(Region, address), READONLY,
       "Of the first element; 0: closed."},
      {"count", T_PYSSIZET, offsetof(Region, count), READONLY, "Elements."},
      {"exports", T_PYSSIZET, offsetof(Region, exports), READONLY,
       "Arrays and calls that use it now."},
      {"itemsize", T_PYSSIZET, offsetof(Region, element_bytes), READONLY, "Bytes of an element."},
      {"_dtype", T_INT, offsetof(Region, dtype), READONLY, nullptr},
      {"on_gpu", T_BOOL, offsetof(Region, on_gpu), READONLY, "Whether it is CUDA memory."},
      {nullptr, 0, 0, 0, nullptr}};
  static PyMethodDef methods[] = {
      {"_take", region_take, METH_NOARGS, nullptr},
      {"_give", region_give, METH_O, nullptr},
      {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(region_dlpack)),
       METH_VARARGS | METH_KEYWORDS, nullptr},
      {"__dlpack_device__", region_dlpack_device, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyBufferProcs buffers = {region_export, region_release};
  static PyTypeObject type = [] {
    PyTypeObject made = {PyVarObject_HEAD_INIT(nullptr, 0)};
    made.tp_name = "dt._raw.Region";
    made.tp_basicsize = sizeof(Region);
    made.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
    made.tp_doc = "Region(address, count, dtype, on_gpu=False)\n--\n\nMemory of dt's.";
    made.tp_as_buffer = &buffers;
    made.tp_members = members;
    made.tp_methods = methods;
    made.tp_new = region_new;
    return made;
  }();
  return type;
}
inline bool add_region_type(PyObject* module) {
  if (PyType_Ready(&region_type()) != 0) return false;
  Py_INCREF(&region_type());
  return PyModule_AddObject(module, "Region", reinterpret_cast<PyObject*>(&region_type())) == 0;
}

}  // namespace dt::python
