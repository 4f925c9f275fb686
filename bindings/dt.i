// SPDX-License-Identifier: Apache-2.0
// The one source of all bindings: raw.h, raw_comm.h and raw_ps.h in Python, Java and C#. Each language adds how
// bytes and errors look there, before the functions that use them.
%module(directors="1", threads="1") raw

%{
#include "raw_ps.h"
%}

%include <stdint.i>
%include <std_string.i>

#if defined(SWIGPYTHON)
%include "python/python.i"
#elif defined(SWIGJAVA)
%include "java/java.i"
#elif defined(SWIGCSHARP)
%include "csharp/csharp.i"
#endif

%include "raw.h"
%include "raw_comm.h"
%include "raw_ps.h"
