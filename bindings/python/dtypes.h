// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "python/errors.h"

namespace dt::python {

inline int bytes_of(int dtype) {
  return static_cast<int>(dt_dtype_bytes(static_cast<dt_dtype>(dtype)));
}
/** The dtype of a kind ('i', 'u', 'f', 'b' for bfloat, '?' for bool) and its bytes; -1: dt has
 * none.
 */
inline int dtype_of_kind(char kind, int64_t bytes) {
  switch (kind) {
    case 'i':
      return bytes == 1   ? DT_I8
             : bytes == 2 ? DT_I16
             : bytes == 4 ? DT_I32
             : bytes == 8 ? DT_I64
                          : -1;
    case 'u':
      return bytes == 1   ? DT_U8
             : bytes == 2 ? DT_U16
             : bytes == 4 ? DT_U32
             : bytes == 8 ? DT_U64
                          : -1;
    case 'f': return bytes == 2 ? DT_F16 : bytes == 4 ? DT_F32 : bytes == 8 ? DT_F64 : -1;
    case 'b': return bytes == 2 ? DT_BF16 : -1;
    case '?': return bytes == 1 ? DT_BOOL : -1;
    default: return -1;
  }
}

constexpr const char* kDtypes =
    "dt has bool, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64 and 8-bit floats; "
    "convert "
    "the array, or say with dt.Buffer(array, dtype=...) which of them its elements are";

inline bool refuse(const char* what, const std::string& why) {
  raise_invalid(std::string(what) + ": " + why);
  return false;
}

/** Whatever dt.Dtype() takes, as numpy.float32; None is `otherwise`, and what is none is refused.
 */
inline bool to_dtype(PyObject* object, int otherwise, int* out) {
  *out = otherwise;
  if (object == nullptr || object == Py_None) return true;
  PyObject* made = nullptr;
  if (PyIndex_Check(object) == 0) {
    PyObject* const types = PyImport_ImportModule("dt._types");
    if (types == nullptr) return false;
    made = PyObject_CallMethod(types, "Dtype", "O", object);
    Py_DECREF(types);
    if (made == nullptr) return false;
  }
  int32_t number = 0;
  const bool read = to_int32(made != nullptr ? made : object, &number);
  Py_XDECREF(made);
  if (!read) return false;
  *out = number;
  return bytes_of(number) != 0 || refuse("dtype", std::to_string(number) + " is none; " + kDtypes);
}

}  // namespace dt::python
