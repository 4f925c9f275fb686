// SPDX-License-Identifier: Apache-2.0
// Bytes, text, errors, memory and the log sink in Java. The generated classes are io.dt.raw, which
// the module does not export.

%{
#include <fcntl.h>
#include <jni.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

/// UTF-8 as it is: NewStringUTF() wants another encoding, and messages may hold any bytes.
static jbyteArray dt_bytes(JNIEnv* env, const char* data, size_t bytes) {
  if (bytes > INT32_MAX) {
    SWIG_JavaThrowException(env, SWIG_JavaOutOfMemoryError, "dt: more than an array can hold");
    return nullptr;
  }
  const auto size = static_cast<jsize>(bytes);
  const jbyteArray array = env->NewByteArray(size);
  if (array != nullptr) {
    env->SetByteArrayRegion(array, 0, size, reinterpret_cast<const jbyte*>(data));
  }
  return array;
}
static jbyteArray dt_bytes(JNIEnv* env, const std::string& text) {
  return dt_bytes(env, text.data(), text.size());
}

/// False when an exception is thrown.
static bool dt_read(JNIEnv* env, jbyteArray array, std::string* out) {
  if (array == nullptr) {
    SWIG_JavaThrowException(env, SWIG_JavaNullPointerException, "dt: null instead of a text");
    return false;
  }
  try {
    out->resize(static_cast<size_t>(env->GetArrayLength(array)));
  } catch (const std::bad_alloc&) {
    SWIG_JavaThrowException(env, SWIG_JavaOutOfMemoryError, "dt: no memory");
    return false;
  }
  env->GetByteArrayRegion(array, 0, static_cast<jsize>(out->size()),
                          reinterpret_cast<jbyte*>(out->data()));
  return true;
}

/// Throws io.dt.DtException.of(...). At once, from here: another call could come from another
/// thread of the virtual machine, where dt_last_error() is another one.
static void dt_throw(JNIEnv* env, const dt::Error& error) {
  const jclass type = env->FindClass("io/dt/DtException");
  if (type == nullptr) return;
  const jmethodID of = env->GetStaticMethodID(type, "of", "(II[BJ[BJ[B)Lio/dt/DtException;");
  if (of == nullptr) return;
  const jbyteArray host = dt_bytes(env, error.host());
  const jbyteArray operation = host == nullptr ? nullptr : dt_bytes(env, error.operation());
  const jbyteArray message = operation == nullptr ? nullptr : dt_bytes(env, error.what());
  if (message == nullptr) return;
  const jobject exception = env->CallStaticObjectMethod(
      type, of, static_cast<jint>(error.status()), static_cast<jint>(error.rank()), host,
      static_cast<jlong>(error.pid()), operation, static_cast<jlong>(error.sequence()), message);
  if (!env->ExceptionCheck() && exception != nullptr) env->Throw(static_cast<jthrowable>(exception));
}
%}

%exception {
  try {
    $action
  } catch (const dt::Error& error) {
    dt_throw(jenv, error);
    return $null;
  } catch (const std::bad_alloc&) {
    SWIG_JavaThrowException(jenv, SWIG_JavaOutOfMemoryError, "dt: no memory");
    return $null;
  } catch (const std::exception& error) {
    SWIG_JavaThrowException(jenv, SWIG_JavaRuntimeException, error.what());
    return $null;
  }
}

// No finalizers: what is generated here lives as long as the virtual machine.
%typemap(javafinalize) SWIGTYPE ""

// ---- Text ----

%typemap(jni) const std::string& "jbyteArray"
%typemap(jtype) const std::string& "byte[]"
%typemap(jstype) const std::string& "String"
%typemap(javain) const std::string& "Text.encode($javainput)"
%typemap(in) const std::string& (std::string text) {
  if (!dt_read(jenv, $input, &text)) return $null;
  $1 = &text;
}
%typemap(directorin, descriptor="Ljava/lang/String;", noblock=1) const std::string& {
  $input = dt_bytes(jenv, $1);
  Swig::LocalRefGuard $1_guard(jenv, $input);  // the thread stays attached: nobody else frees it
}
%typemap(javadirectorin) const std::string& "Text.decode($jniinput)"

%typemap(jni) std::string "jbyteArray"
%typemap(jtype) std::string "byte[]"
%typemap(jstype) std::string "String"
%typemap(javaout) std::string { return Text.decode($jnicall); }
%typemap(out) std::string { $result = dt_bytes(jenv, $1); }

// A text that may be null. TYPE and ENCODE: how Java has it.
%define DT_OPTIONAL_TEXT(NAME, TYPE, ENCODE)
%typemap(jni) const char* NAME "jbyteArray"
%typemap(jtype) const char* NAME "byte[]"
%typemap(jstype) const char* NAME TYPE
%typemap(javain) const char* NAME ENCODE
%typemap(in) const char* NAME (std::string text) {
  $1 = nullptr;
  if ($input != nullptr) {
    if (!dt_read(jenv, $input, &text)) return $null;
    $1 = const_cast<char*>(text.c_str());
  }
}
%typemap(freearg) const char* NAME ""
%typemap(argout) const char* NAME ""
%enddef
DT_OPTIONAL_TEXT(PATH, "String", "$javainput == null ? null : Text.encode($javainput)")
DT_OPTIONAL_TEXT(MESSAGE, "String", "$javainput == null ? null : Text.encode($javainput)")
// Of operations, encoded once for many calls, which make no garbage.
DT_OPTIONAL_TEXT(NAME, "byte[]", "$javainput")

// ---- Bytes ----

%typemap(jni) (const char* DATA, int64_t BYTES) "jbyteArray"
%typemap(jtype) (const char* DATA, int64_t BYTES) "byte[]"
%typemap(jstype) (const char* DATA, int64_t BYTES) "byte[]"
%typemap(javain) (const char* DATA, int64_t BYTES) "$javainput"
%typemap(in) (const char* DATA, int64_t BYTES) (std::string bytes) {
  if (!dt_read(jenv, $input, &bytes)) return $null;
  $1 = const_cast<char*>(bytes.data());
  $2 = static_cast<int64_t>(bytes.size());
}
%typemap(argout) (const char* DATA, int64_t BYTES) ""
%typemap(freearg) (const char* DATA, int64_t BYTES) ""

%ignore dt::raw::Bytes;
%ignore dt::raw::reducer_set_hook;
%typemap(jni) dt::raw::Bytes "jbyteArray"
%typemap(jtype) dt::raw::Bytes "byte[]"
%typemap(jstype) dt::raw::Bytes "byte[]"
%typemap(javaout) dt::raw::Bytes { return $jnicall; }
%typemap(out) dt::raw::Bytes { $result = dt_bytes(jenv, $1.data); }

// ---- Memory of the virtual machine ----

%typemap(in, numinputs=0) JNIEnv* "$1 = jenv;"

%{
// Buffers that outlive their memory must not end the process: once dt has given the memory back,
// other pages, zero and unused, take its place until the last buffer is gone.
static void* page_of(int64_t address) { return reinterpret_cast<void*>(address & -4096); }
static size_t page_bytes(int64_t address, int64_t bytes) {
  return static_cast<size_t>(((address + bytes + 4095) & -4096) - (address & -4096));
}
%}

%inline %{
/** Where a direct buffer begins, whatever its position; 0 where it is not direct. */
int64_t address(JNIEnv* env, jobject BUFFER) {
  return reinterpret_cast<int64_t>(env->GetDirectBufferAddress(BUFFER));
}
/** A direct ByteBuffer over foreign memory. */
jobject direct(JNIEnv* env, int64_t address, int64_t bytes) {
  return env->NewDirectByteBuffer(reinterpret_cast<void*>(address), bytes);
}
/** Whether this process can read the byte there: that of a GPU it cannot. */
bool readable(int64_t address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(strerror(errno));
  const bool read = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return read;
}
/** False where it is not free: what lies there stays. */
bool occupy(int64_t address, int64_t bytes) {
  return mmap(page_of(address), page_bytes(address, bytes), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
              0) == page_of(address);
}
void vacate(int64_t address, int64_t bytes) {
  (void)munmap(page_of(address), page_bytes(address, bytes));
}
/** Memory for one call on a heap array: a blocking call must not hold the array itself, or no
 * thread could collect garbage, also not one that is a rank this one waits for. */
int64_t copy_allocate(int64_t bytes) {
  void* const memory = malloc(bytes > 0 ? static_cast<size_t>(bytes) : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return reinterpret_cast<int64_t>(memory);
}
void copy_free(int64_t address) { free(reinterpret_cast<void*>(address)); }
/** `bytes` of an array of numbers from byte `first` on; the caller knows that they are there. */
void copy_in(JNIEnv* env, jobject ARRAY, int64_t first, int64_t address, int64_t bytes) {
  void* const elements = env->GetPrimitiveArrayCritical(static_cast<jarray>(ARRAY), nullptr);
  if (elements == nullptr) return;  // OutOfMemoryError is thrown
  memcpy(reinterpret_cast<void*>(address), static_cast<const char*>(elements) + first,
         static_cast<size_t>(bytes));
  env->ReleasePrimitiveArrayCritical(static_cast<jarray>(ARRAY), elements, JNI_ABORT);
}
void copy_out(JNIEnv* env, int64_t address, jobject ARRAY, int64_t first, int64_t bytes) {
  void* const elements = env->GetPrimitiveArrayCritical(static_cast<jarray>(ARRAY), nullptr);
  if (elements == nullptr) return;
  memcpy(static_cast<char*>(elements) + first, reinterpret_cast<const void*>(address),
         static_cast<size_t>(bytes));
  env->ReleasePrimitiveArrayCritical(static_cast<jarray>(ARRAY), elements, 0);
}
%}

// ---- What native code calls ----

%feature("director") dt::raw::LogSink;
%feature("director") dt::raw::Upcall;
