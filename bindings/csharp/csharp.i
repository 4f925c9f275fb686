// SPDX-License-Identifier: Apache-2.0
// Bytes, errors, buffers and the log sink in C#.

// Errors: native code hands the parts to a delegate, which sets the pending exception of the thread.
%insert(runtime) %{
typedef void (SWIGSTDCALL* DtErrorCallback)(int status, int rank, const char* host, long long pid,
                                            const char* operation, long long sequence,
                                            const char* message);
static DtErrorCallback dt_error_callback = nullptr;
extern "C" SWIGEXPORT void SWIGSTDCALL DtRegisterErrorCallback_$module(DtErrorCallback callback) {
  dt_error_callback = callback;
}
%}
%{
static void dt_throw(const dt::Error& error) {
  dt_error_callback(static_cast<int>(error.status()), error.rank(), error.host().c_str(),
                    error.pid(), error.operation().c_str(), error.sequence(), error.what());
}
%}
%exception {
  try {
    $action
  } catch (const dt::Error& error) {
    dt_throw(error);
    return $null;
  } catch (const std::bad_alloc&) {
    SWIG_CSharpSetPendingException(SWIG_CSharpOutOfMemoryException, "dt: no memory");
    return $null;
  } catch (const std::exception& error) {
    SWIG_CSharpSetPendingException(SWIG_CSharpApplicationException, error.what());
    return $null;
  }
}
%feature("director") dt::raw::LogSink;
