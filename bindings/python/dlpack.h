// SPDX-License-Identifier: Apache-2.0
#pragma once
/** @file DLPack's exchange format before its version 1, as dlpack.h 0.8 lays it out. */
#include <Python.h>

#include <cstdint>
#include <cstring>

namespace dt::python {

enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;  // 0 int, 1 uint, 2 float, 3 opaque, 4 bfloat, 5 complex, 6 bool
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null: contiguous
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

/** Whether it is of a type whose arrays nobody may write, though DLPack lends them so. */
inline bool is_jax(PyObject* object) {
  PyObject* const module =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__module__");
  const char* const name =
      module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  const bool jax = name != nullptr && strncmp(name, "jax", 3) == 0;
  Py_XDECREF(module);
  PyErr_Clear();
  return jax;
}

}  // namespace dt::python
