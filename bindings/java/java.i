// SPDX-License-Identifier: Apache-2.0
// Bytes, errors, buffers and the log sink in Java.

%{
#include <new>

/// Throws io.dt.DtException.of(status, rank, host, pid, operation, sequence, message).
static void dt_throw(JNIEnv* env, const dt::Error& error) {
  const jclass type = env->FindClass("io/dt/DtException");
  if (type == nullptr) return;
  const jmethodID of = env->GetStaticMethodID(
      type, "of", "(IILjava/lang/String;JLjava/lang/String;JLjava/lang/String;)Lio/dt/DtException;");
  if (of == nullptr) return;
  const jstring host = env->NewStringUTF(error.host().c_str());
  const jstring operation = host == nullptr ? nullptr : env->NewStringUTF(error.operation().c_str());
  const jstring message = operation == nullptr ? nullptr : env->NewStringUTF(error.what());
  if (message == nullptr) return;
  const jobject exception = env->CallStaticObjectMethod(
      type, of, static_cast<jint>(error.status()), static_cast<jint>(error.rank()), host,
      static_cast<jlong>(error.pid()), operation, static_cast<jlong>(error.sequence()), message);
  if (exception != nullptr) env->Throw(static_cast<jthrowable>(exception));
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

// ---- Bytes ----

%typemap(jni) (const char* DATA, int64_t BYTES) "jbyteArray"
%typemap(jtype) (const char* DATA, int64_t BYTES) "byte[]"
%typemap(jstype) (const char* DATA, int64_t BYTES) "byte[]"
%typemap(javain) (const char* DATA, int64_t BYTES) "$javainput"
%typemap(in) (const char* DATA, int64_t BYTES) (jbyte* elements = nullptr) {
  if ($input == nullptr) {
    SWIG_JavaThrowException(jenv, SWIG_JavaNullPointerException, "null bytes");
    return $null;
  }
  elements = jenv->GetByteArrayElements($input, nullptr);
  if (elements == nullptr) return $null;  // OutOfMemoryError is thrown
  $1 = reinterpret_cast<$1_ltype>(elements);
  $2 = jenv->GetArrayLength($input);
}
%typemap(argout) (const char* DATA, int64_t BYTES) ""
%typemap(freearg) (const char* DATA, int64_t BYTES) {
  if (elements$argnum != nullptr) jenv->ReleaseByteArrayElements($input, elements$argnum, JNI_ABORT);
}

%typemap(jni) dt::raw::Bytes "jbyteArray"
%typemap(jtype) dt::raw::Bytes "byte[]"
%typemap(jstype) dt::raw::Bytes "byte[]"
%typemap(javaout) dt::raw::Bytes { return $jnicall; }
%typemap(out) dt::raw::Bytes {
  const auto size = static_cast<jsize>($1.data.size());
  $result = jenv->NewByteArray(size);
  if ($result != nullptr) {
    jenv->SetByteArrayRegion($result, 0, size, reinterpret_cast<const jbyte*>($1.data.data()));
  }
}

// ---- The log sink ----

%feature("director") dt::raw::LogSink;
