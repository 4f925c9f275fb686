// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * dt.Buffer: the memory of any array, with its count and dtype, kept alive and unmoved. From the
 * buffer protocol, DLPack or __cuda_array_interface__; without copies, and without importing the
 * packages the arrays are of.
 */
#include <Python.h>
#include <structmember.h>

#include <cstring>
#include <string>

#include "dt/dt.hpp"
#include "python/dlpack.h"
#include "python/region.h"

namespace dt::python {

struct Buffer {
  PyObject_HEAD Py_buffer view;  ///< obj is null where the memory comes from elsewhere
  DLManagedTensor* tensor;       ///< or null
  PyObject* owner;               ///< or null
  Region* region;                ///< or null
  long long address;
  long long count;  ///< elements
  int dtype;        ///< dt_dtype
  char on_gpu;
  char readonly;
};

/** What is read of one source, before a dtype that the caller gave is looked at. */
struct Description {
  int64_t elements = 0;
  int64_t element_bytes = 0;
  int dtype = -1;
  std::string type;  ///< as the source calls it, where dt has no such dtype
};

/** `format` as in the module struct: one letter, perhaps after one for the byte order. */
inline bool read_format(const char* what, const char* format, Description* out) {
  const char* letter = format == nullptr ? "B" : format;
  if ((*letter == '>' || *letter == '!') && out->element_bytes > 1) {
    return refuse(what, "the array has big-endian elements (format '" + std::string(format) +
                            "'); dt needs the machine's byte order: convert it");
  }
  if (strchr("<>=@!", *letter) != nullptr && *letter != '\0') ++letter;
  if (letter[0] != '\0' && letter[1] == '\0') {
    const char kind = strchr("bhilqn", *letter) != nullptr   ? 'i'
                      : strchr("BHILQN", *letter) != nullptr ? 'u'
                      : strchr("efd", *letter) != nullptr    ? 'f'
                      : *letter == '?'                       ? '?'
                                                             : '-';
    out->dtype = dtype_of_kind(kind, out->element_bytes);
  }
  if (out->dtype == -1) out->type = "format '" + std::string(format) + "'";
  return true;
}

inline bool from_tensor(Buffer* self, PyObject* object, const char* what, Description* out);
inline bool from_interface(Buffer* self, PyObject* object, PyObject* interface, const char* what,
                           Description* out);

inline bool from_view(Buffer* self, PyObject* object, const char* what, Description* out) {
  if (PyObject_GetBuffer(object, &self->view, PyBUF_FULL_RO) != 0) {
    // Types whose arrays may lie on a GPU have the protocol, but for those arrays.
    if (!beside_the_call() && PyObject_HasAttrString(object, "__dlpack__")) {
      PyErr_Clear();
      return from_tensor(self, object, what, out);
    }
    return refuse(what, "the array does not give its memory away");
  }
  const Py_buffer& view = self->view;
  if (!PyBuffer_IsContiguous(&view, 'C')) {
    return refuse(what,
                  "the array is not contiguous in C order; give a contiguous copy, for "
                  "example numpy.ascontiguousarray(array)");
  }
  self->address = reinterpret_cast<intptr_t>(view.buf);
  self->readonly = view.readonly != 0 ? 1 : 0;
  out->element_bytes = view.itemsize;
  out->elements = view.itemsize > 0 ? view.len / view.itemsize : 0;
  return read_format(what, view.format, out);
}

inline bool contiguous(int dimensions, const int64_t* shape, const int64_t* strides,
                       int64_t stride_unit) {
  int64_t expected = stride_unit;
  for (int i = dimensions - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

/** A capsule of the array's, or null. `stream` 0: of host memory, which has none. */
inline PyObject* ask_for_tensor(PyObject* object, int stream) {
  PyObject* const method = PyObject_GetAttrString(object, "__dlpack__");
  PyObject* const none = PyTuple_New(0);
  // By keyword: it may be taken so alone.
  PyObject* const named = stream == 0 ? PyDict_New() : Py_BuildValue("{si}", "stream", stream);
  PyObject* const capsule = method == nullptr || none == nullptr || named == nullptr
                                ? nullptr
                                : PyObject_Call(method, none, named);
  Py_XDECREF(named);
  Py_XDECREF(none);
  Py_XDECREF(method);
  return capsule;
}

inline bool from_tensor(Buffer* self, PyObject* object, const char* what, Description* out) {
  PyObject* const device = PyObject_CallMethod(object, "__dlpack_device__", nullptr);
  int32_t kind = 0;
  const bool known = device != nullptr && PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2 &&
                     to_int32(PyTuple_GET_ITEM(device, 0), &kind);
  Py_XDECREF(device);
  if (!known) return refuse(what, "the array's __dlpack_device__() failed");
  const bool host = kind == kDLCPU || kind == kDLCUDAHost;
  self->on_gpu = kind == kDLCUDA || kind == kDLCUDAManaged ? 1 : 0;
  if (!host && self->on_gpu == 0) {
    return refuse(what, "the array lies on a device of DLPack's kind " + std::to_string(kind) +
                            "; dt knows host memory and CUDA");
  }
  // Stream -1: nothing is synchronised here; the caller says by `stream` who produces the array.
  PyObject* const capsule = ask_for_tensor(object, host ? 0 : -1);
  if (capsule == nullptr) {
    if (!host && !beside_the_call()) {
      PyObject *type = nullptr, *why = nullptr, *trace = nullptr;
      PyErr_Fetch(&type, &why, &trace);
      PyObject* const interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
      if (interface != nullptr) {
        Py_XDECREF(type);
        Py_XDECREF(why);
        Py_XDECREF(trace);
        const bool read = from_interface(self, object, interface, what, out);
        Py_DECREF(interface);
        return read;
      }
      PyErr_Restore(type, why, trace);  // in the place of the newer one
    }
    return refuse(what, "the array does not give its memory away by DLPack");
  }
  self->tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  if (self->tensor != nullptr) PyCapsule_SetName(capsule, "used_dltensor");
  Py_DECREF(capsule);
  if (self->tensor == nullptr) return refuse(what, "the array's __dlpack__() gave no tensor");
  const DLTensor& tensor = self->tensor->dl_tensor;
  if (tensor.strides != nullptr && !contiguous(tensor.ndim, tensor.shape, tensor.strides, 1)) {
    return refuse(what, "the tensor is not contiguous; give tensor.contiguous()");
  }
  out->elements = 1;
  for (int i = 0; i < tensor.ndim; ++i) out->elements *= tensor.shape[i];
  out->element_bytes = tensor.dtype.bits / 8;
  constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  out->type = (tensor.dtype.code < 7 ? kNames[tensor.dtype.code] : "unknown type ") +
              std::to_string(tensor.dtype.bits);
  constexpr char kKinds[] = {'i', 'u', 'f', '-', 'b', '-', '?'};
  if (tensor.dtype.lanes == 1 && tensor.dtype.bits % 8 == 0 && tensor.dtype.code < 7) {
    out->dtype = dtype_of_kind(kKinds[tensor.dtype.code], out->element_bytes);
  }
  self->address =
      reinterpret_cast<intptr_t>(tensor.data) + static_cast<int64_t>(tensor.byte_offset);
  return true;
}

/** `__cuda_array_interface__`, versions 2 and 3. */
inline bool from_interface(Buffer* self, PyObject* object, PyObject* interface, const char* what,
                           Description* out) {
  PyObject* const data =
      PyDict_Check(interface) ? PyDict_GetItemString(interface, "data") : nullptr;
  PyObject* const shape = data ? PyDict_GetItemString(interface, "shape") : nullptr;
  PyObject* const type = data ? PyDict_GetItemString(interface, "typestr") : nullptr;
  const char* const text =
      type != nullptr && PyUnicode_Check(type) ? PyUnicode_AsUTF8(type) : nullptr;
  int64_t address = 0;
  if (data == nullptr || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2 || shape == nullptr ||
      !PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > 64 || text == nullptr ||
      strlen(text) < 3 || !to_int64(PyTuple_GET_ITEM(data, 0), &address)) {
    return refuse(what, "the array's __cuda_array_interface__ lacks data, shape or typestr");
  }
  self->address = address;
  self->readonly = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1)) != 0 ? 1 : 0;
  self->on_gpu = 1;
  Py_INCREF(object);
  self->owner = object;
  out->type = std::string("typestr '") + text + "'";
  out->element_bytes = atoi(text + 2);
  if (text[0] == '>' && out->element_bytes > 1) {
    return refuse(what, "the array has big-endian elements; dt needs the machine's byte order");
  }
  out->dtype = dtype_of_kind(text[1] == 'b'   ? '?'
                             : text[1] == '?' ? '-'
                                              : text[1],
                             out->element_bytes);
  int64_t sizes[64], strides[64];
  PyObject* const steps = PyDict_GetItemString(interface, "strides");
  const auto dimensions = static_cast<int>(PyTuple_GET_SIZE(shape));
  const bool strided =
      steps != nullptr && PyTuple_Check(steps) && PyTuple_GET_SIZE(steps) == dimensions;
  out->elements = 1;
  for (int i = 0; i < dimensions; ++i) {
    if (!to_int64(PyTuple_GET_ITEM(shape, i), &sizes[i])) return false;
    if (strided && !to_int64(PyTuple_GET_ITEM(steps, i), &strides[i])) return false;
    out->elements *= sizes[i];
  }
  if (strided && !contiguous(dimensions, sizes, strides, out->element_bytes)) {
    return refuse(what, "the array is not contiguous in C order; give a contiguous copy");
  }
  return true;
}

inline bool from_region(Buffer* self, Region* region, const char* what, Description* out) {
  if (region->address == 0) return refuse(what, "the memory is closed; allocate it anew");
  Py_INCREF(region);
  ++region->exports;
  self->region = region;
  self->address = region->address;
  self->on_gpu = region->on_gpu;
  out->elements = region->count;
  out->element_bytes = region->element_bytes;
  out->dtype = region->dtype;
  return true;
}

/** Fills a zeroed Buffer. `dtype` -1: the array's own. */
inline bool fill(Buffer* self, PyObject* object, int dtype, const char* what) {
  Description found;
  PyObject* interface = nullptr;
  bool read = false;
  if (PyObject_TypeCheck(object, &region_type())) {
    read = from_region(self, reinterpret_cast<Region*>(object), what, &found);
  } else if (PyObject_CheckBuffer(object)) {
    read = from_view(self, object, what, &found);
  } else if (PyObject_HasAttrString(object, "__dlpack__")) {
    read = from_tensor(self, object, what, &found);
  } else if ((interface = PyObject_GetAttrString(object, "__cuda_array_interface__")) != nullptr) {
    read = from_interface(self, object, interface, what, &found);
    Py_DECREF(interface);
  } else {
    if (beside_the_call()) return false;
    PyErr_Clear();
    return refuse(what, std::string("an array is needed, not ") + Py_TYPE(object)->tp_name +
                            "; give what has the buffer protocol, __dlpack__ or "
                            "__cuda_array_interface__");
  }
  if (!read) return false;
  if (self->tensor != nullptr && is_jax(object)) self->readonly = 1;
  self->count = found.elements;
  self->dtype = dtype == -1 ? found.dtype : dtype;
  if (self->dtype == -1) {
    return refuse(what, "the array's elements are of " + found.type + "; " + kDtypes);
  }
  if (bytes_of(self->dtype) != found.element_bytes) {
    return refuse(what, "the array's elements have " + std::to_string(found.element_bytes) +
                            " bytes, those of the dtype that was given " +
                            std::to_string(bytes_of(self->dtype)) + "; give one of the same size");
  }
  return true;
}

inline void buffer_free(PyObject* object) {
  auto* const self = reinterpret_cast<Buffer*>(object);
  if (self->view.obj != nullptr) PyBuffer_Release(&self->view);
  if (self->tensor != nullptr && self->tensor->deleter != nullptr) {
    self->tensor->deleter(self->tensor);
  }
  if (self->region != nullptr) {
    --self->region->exports;
    Py_DECREF(self->region);
  }
  Py_XDECREF(self->owner);
  Py_TYPE(object)->tp_free(object);
}

inline PyObject* buffer_new(PyTypeObject* type, PyObject* args, PyObject* named) {
  static const char* names[] = {"array", "dtype", nullptr};
  PyObject *array = nullptr, *dtype = nullptr;
  int number = -1;
  if (!PyArg_ParseTupleAndKeywords(args, named, "O|O:Buffer", const_cast<char**>(names), &array,
                                   &dtype) ||
      !to_dtype(dtype, -1, &number)) {
    return nullptr;
  }
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr && !fill(reinterpret_cast<Buffer*>(self), array, number, "dt.Buffer")) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

inline PyObject* buffer_from_address(PyObject* type, PyObject* args, PyObject* named) {
  static const char* names[] = {"address", "count",    "dtype", "owner",
                                "on_gpu",  "readonly", nullptr};
  PyObject *address = nullptr, *count = nullptr, *dtype = nullptr, *owner = Py_None;
  int on_gpu = 0, readonly = 0, number = -1;
  int64_t start = 0, elements = 0;
  if (!PyArg_ParseTupleAndKeywords(args, named, "OOO|Opp:from_address", const_cast<char**>(names),
                                   &address, &count, &dtype, &owner, &on_gpu, &readonly) ||
      !to_int64(address, &start) || !to_int64(count, &elements) || !to_dtype(dtype, -1, &number)) {
    return nullptr;
  }
  if (number == -1 || elements < 0) {
    refuse("dt.Buffer.from_address", "a dtype and a count of at least 0 are needed");
    return nullptr;
  }
  auto* const python_type = reinterpret_cast<PyTypeObject*>(type);
  auto* const self = reinterpret_cast<Buffer*>(python_type->tp_alloc(python_type, 0));
  if (self == nullptr) return nullptr;
  Py_INCREF(owner);
  self->owner = owner;
  self->address = start;
  self->count = elements;
  self->dtype = number;
  self->on_gpu = on_gpu != 0 ? 1 : 0;
  self->readonly = readonly != 0 ? 1 : 0;
  return reinterpret_cast<PyObject*>(self);
}

inline PyTypeObject& buffer_type() {
  static PyMemberDef members[] = {
      {"address", T_LONGLONG, offsetof(Buffer, address), READONLY, "Of the first element."},
      {"count", T_LONGLONG, offsetof(Buffer, count), READONLY, "Elements."},
      {"dtype", T_INT, offsetof(Buffer, dtype), READONLY, "Number of the dt.Dtype."},
      {"on_gpu", T_BOOL, offsetof(Buffer, on_gpu), READONLY, "Whether it is CUDA memory."},
      {"readonly", T_BOOL, offsetof(Buffer, readonly), READONLY, "Whether dt may not write it."},
      {nullptr, 0, 0, 0, nullptr}};
  static PyMethodDef methods[] = {
      {"from_address",
       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(buffer_from_address)),
       METH_CLASS | METH_VARARGS | METH_KEYWORDS,
       "from_address($type, address, count, dtype, owner=None, on_gpu=False, "
       "readonly=False)\n--\n\n"
       "Memory by its address. `owner` is what keeps it alive; else the caller does."},
      {nullptr, nullptr, 0, nullptr}};
  static PyTypeObject type = [] {
    PyTypeObject made = {PyVarObject_HEAD_INIT(nullptr, 0)};
    made.tp_name = "dt.Buffer";
    made.tp_basicsize = sizeof(Buffer);
    made.tp_dealloc = buffer_free;
    made.tp_flags = Py_TPFLAGS_DEFAULT;
    made.tp_doc =
        "Buffer(array, dtype=None)\n--\n\n"
        "The memory of an array, kept alive and unmoved while this object lives.\n\n"
        "Collectives make one of each array they are given; one made beforehand saves them that.\n"
        "`dtype` says what elements of the same size are: dt.Buffer(array_of_uint16, "
        "dt.Dtype.BF16).";
    made.tp_members = members;
    made.tp_methods = methods;
    made.tp_new = buffer_new;
    return made;
  }();
  return type;
}
inline bool add_buffer_type(PyObject* module) {
  if (PyType_Ready(&buffer_type()) != 0) return false;
  Py_INCREF(&buffer_type());
  return PyModule_AddObject(module, "Buffer", reinterpret_cast<PyObject*>(&buffer_type())) == 0;
}

}  // namespace dt::python
